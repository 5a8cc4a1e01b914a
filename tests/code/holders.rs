//! The holder of each pid of the fixture trees, and how the directory follows processes that start and end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gpumeter::accounting::tenants::TenantRules;
use gpumeter::holders::host::slurm::RecordFile;
use gpumeter::holders::host::{Host, ProcessError, UserDatabase};
use gpumeter::holders::{
    Identities, JobObservation, JobRecord, JobTracker, NodeGpus, ProcessDirectory, RecordedGpu,
    ResolvedWorkloads, identify,
};
use gpumeter::model::{Fact, Holder, HolderKind, Nanoseconds, Stamp, UnattributedReason, Utc};

/// The tenant of a holder without tenant rules.
fn tenant(holder: &Holder) -> Arc<str> {
    gpumeter::accounting::tenants::tenant(holder, &TenantRules::default())
}

fn tree(name: &str) -> Host {
    Host::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host").join(name))
}

fn assert_holders(name: &str, expected: &[(u32, &str)]) {
    let host = tree(name);
    for (pid, id) in expected {
        let holder =
            identify(&host, &host.process(*pid).unwrap(), &ResolvedWorkloads::default()).unwrap().holder;
        assert_eq!(holder.id.as_str(), *id, "{name}/{pid}");
    }
}

#[test]
fn units_sessions_and_gpu_services_are_distinguished() {
    assert_holders(
        "v2",
        &[
            (812, "__system__"),
            (1400, "__system__"),
            (2001, "unit:trainer.service"),
            (2002, "unit:trainer.service"),
            (2100, "user:bob"),
            (2101, "user:alice"),
            (2103, "user:alice"),
            (2104, "user:4711"),
            (2300, "__system__"),
        ],
    );
}

#[test]
fn a_user_cannot_pass_a_process_off_as_a_system_service() {
    assert_holders("v2", &[(2101, "user:alice"), (2102, "user:alice")]);
}

#[test]
fn a_process_name_inside_a_unit_does_not_make_it_a_system_service() {
    let mut node = Node::new(None);
    for (pid, name, unit) in [
        (7, "Xorg", "trainer.service"),
        (8, "nvidia-persiste", "trainer.service"),
        (9, "nvidia-cuda-mps", "run-mps.scope"),
        (10, "python3", "gdm.service"),
    ] {
        node.start_named(pid, name, (100, 0), &format!("/system.slice/{unit}"));
        let identities = node.refresh(&[pid], 1);
        assert_eq!(holder_of(&identities, pid), Some(&*format!("unit:{unit}")), "{name}");
    }
}

#[test]
fn a_display_managers_x_server_and_compositor_are_system_services() {
    let mut node = Node::new(None);
    for (pid, unit) in (7..).zip(["lightdm", "gdm", "gdm3", "sddm", "xdm"]) {
        let cgroup = format!("/system.slice/{unit}.service");
        node.start_named(pid, "Xorg", (100, 0), &cgroup);
        node.start_named(pid + 100, "gnome-shell", (100, 120), &cgroup);
        // Without logind a user's processes stay in the display manager's unit.
        node.start_named(pid + 200, "Xorg", (100, 1000), &cgroup);
        let identities = node.refresh(&[pid, pid + 100, pid + 200], 1);
        assert_eq!(holder_of(&identities, pid), Some("__system__"), "{unit}");
        assert_eq!(holder_of(&identities, pid + 100), Some("__system__"), "{unit}");
        assert_eq!(holder_of(&identities, pid + 200), Some(&*format!("unit:{unit}.service")));
    }
}

#[test]
fn gpu_service_units_are_system_services_whatever_their_processes_are_called() {
    let mut node = Node::new(None);
    for (pid, unit) in (7..).zip(["nvidia-imex", "nvidia-powerd", "nvidia-dcgm", "nvidia-fabricmanager"]) {
        node.start(pid, 100, 0, &format!("/system.slice/{unit}.service"));
        assert_eq!(holder_of(&node.refresh(&[pid], 1), pid), Some("__system__"), "{unit}");
    }
}

#[test]
fn any_cgroup_hierarchy_of_a_hybrid_system_can_name_the_holder() {
    assert_holders(
        "hybrid",
        &[(300, "unit:trainer.service"), (301, "unit:trainer.service"), (302, "user:bob")],
    );
}

#[test]
fn containers_and_machines_are_named_by_their_paths_and_pods_and_jobs_are_never_a_user_or_a_unit() {
    assert_holders(
        "hybrid",
        &[
            (303, "container:docker/2b18f1c46a7d4ac9e2f87f0d6a21b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4"),
            (304, "__unattributed__/job"),
        ],
    );
    assert_holders(
        "nested",
        &[
            // A pod's path below a container of this node.
            (400, "container:docker/2b18f1c46a7d4ac9e2f87f0d6a21b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4"),
            (401, "container:docker/2b18f1c46a7d4ac9e2f87f0d6a21b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4"),
            (403, "__unattributed__/job"),
            (405, "vm:instance-00000001"),
        ],
    );
    let host = tree("nested");
    let holder = identify(&host, &host.process(403).unwrap(), &ResolvedWorkloads::default()).unwrap().holder;
    assert_eq!((holder.id.kind(), &*tenant(&holder)), (HolderKind::Remainder, "__unattributed__"));
}

#[test]
fn a_cgroup_created_by_a_user_makes_no_more_than_a_container_of_that_user() {
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let mut node = Node::new(None);
    node.start(6, 100, 0, &format!("/machine.slice/libpod-{ID}.scope"));
    assert_eq!(holder_of(&node.refresh(&[6], 1), 6), Some(&*format!("container:podman/{ID}")));
    let own = "/user.slice/user-1000.slice/user@1000.service";
    for (pid, uid, name, expected) in [
        (7, 1000, format!("docker-{ID}.scope"), format!("container:docker/1000/{ID}")),
        (8, 1000, "kubepods.slice/x".to_owned(), "user:alice".to_owned()),
        (9, 1000, "slurmstepd.scope/job_1/step_0".to_owned(), "user:alice".to_owned()),
        // The uid of another user, as an image's passwd may have it, and the id of a container of root.
        (10, 1001, format!("libpod-{ID}.scope"), format!("container:podman/1000/{ID}")),
    ] {
        node.start(pid, 100, uid, &format!("{own}/{name}"));
        let identities = node.refresh(&[6, pid], 1);
        assert_eq!(holder_of(&identities, pid), Some(&*expected), "{name}");
        let holder = identities.identities.get(pid, identities.at).unwrap().holder.clone();
        assert_eq!(
            (&*tenant(&holder), holder.facts.get(Fact::User).map(|user| &**user)),
            ("alice", Some("alice"))
        );
    }
}

#[test]
fn a_rootless_containers_subordinate_uid_is_its_owner() {
    let container = "container:podman/1000/2b18f1c46a7d4ac9e2f87f0d6a21b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4";
    assert_holders("nested", &[(402, container)]);
}

#[test]
fn users_in_a_rootless_namespace_are_its_owner() {
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let mut node = Node::new(None);
    let container = |owner: u32| {
        format!("/user.slice/user-{owner}.slice/user@{owner}.service/user.slice/libpod-{ID}.scope/container")
    };
    let session = |owner: u32| format!("/user.slice/user-{owner}.slice/session-3.scope");
    // In the namespace: root, two users with subordinate uids, one with a uid that belongs to another user of the host.
    let alice = [(7, 1000), (8, 100_000), (9, 100_032), (10, 1001)];
    for (pid, uid) in alice {
        node.start(pid, 100, uid, &container(1000));
    }
    for (pid, uid) in [(11, 1001), (12, 165_536)] {
        node.start(pid, 100, uid, &container(1001));
    }
    // A container without a cgroup of its own is in its user's session, or in none.
    node.subordinate("alice:100000:65536\n1001:165536:65536\n");
    node.start(13, 100, 100_032, &session(1000));
    node.start(14, 100, 165_536, &session(1001));
    node.start(15, 100, 100_032, "/");
    let identities = node.refresh(&(7..=15).collect::<Vec<_>>(), 1);
    let container = |owner: u32| format!("container:podman/{owner}/{ID}");
    for (holder, user, pids) in [
        (container(1000), "alice", vec![7, 8, 9, 10]),
        (container(1001), "bob", vec![11, 12]),
        ("user:alice".to_owned(), "alice", vec![13, 15]),
        ("user:bob".to_owned(), "bob", vec![14]),
    ] {
        for pid in pids {
            assert_eq!(holder_of(&identities, pid), Some(&*holder), "{pid}");
            let holder = &identities.identities.get(pid, identities.at).unwrap().holder;
            assert_eq!(&*tenant(holder), user, "{pid}");
        }
    }
}

#[test]
fn a_uid_without_a_name_is_a_user_of_its_own_in_whosever_session_and_unit_it_runs() {
    let mut node = Node::new(None);
    node.subordinate("bob:100000:65536\n");
    let session = "/user.slice/user-1000.slice/session-2.scope";
    for (pid, uid, cgroup, holder, user) in [
        (7, 2001, session, "user:2001", "2001"),
        (8, 2002, session, "user:2002", "2002"),
        (9, 1001, session, "user:bob", "bob"),
        (10, 100_032, session, "user:bob", "bob"),
        (11, 2001, "/system.slice/jupyterhub.service", "unit:jupyterhub.service", "2001"),
        (12, 100_032, "/system.slice/jupyterhub.service", "unit:jupyterhub.service", "bob"),
    ] {
        node.start(pid, 100, uid, cgroup);
        let identities = node.refresh(&[pid], 1);
        assert_eq!(holder_of(&identities, pid), Some(holder), "{uid} in {cgroup}");
        let facts = &identities.identities.get(pid, identities.at).unwrap().holder.facts;
        assert_eq!(facts.get(Fact::User).map(|name| &**name), Some(user), "{uid} in {cgroup}");
    }
    // No subuid file names it, as where a directory service does, but its user namespace has an owner.
    node.start(13, 100, 300_005, session);
    fs::write(node.root.path().join("proc/13/uid_map"), "0 1000 1\n1 300000 65536\n").unwrap();
    assert_eq!(holder_of(&node.refresh(&[13], 1), 13), Some("user:alice"));
}

#[test]
fn a_unit_seen_from_another_cgroup_namespace_is_still_that_unit() {
    assert_holders("nested", &[(404, "unit:train@run-7.service")]);
}

#[test]
fn a_unit_has_the_user_it_runs_as() {
    let host = tree("v2");
    let facts =
        identify(&host, &host.process(2001).unwrap(), &ResolvedWorkloads::default()).unwrap().holder.facts;
    assert_eq!(facts.iter().collect::<Vec<_>>(), [(Fact::Unit, "trainer.service"), (Fact::User, "alice")]);
    assert_eq!(facts.uid, Some(1000));
}

#[test]
fn hostile_processes_are_attributed_too() {
    assert_holders(
        "hostile",
        &[
            (500, "unit:a.service"),
            (501, "user:alice"),
            (502, "user:alice"),
            (505, "unit:\u{fffd}\u{fffd}.service"),
            (506, "unit:a\\x0ab\\x2fc.service"),
            (511, "user:alice"),
        ],
    );
}

#[test]
fn no_holder_can_take_the_name_of_a_remainder() {
    let host = tree("hostile");
    for (pid, id, payer) in
        [(507, "unit:_system__.service", "_system__.service"), (508, "user:__system__", "user:__system__")]
    {
        let holder =
            identify(&host, &host.process(pid).unwrap(), &ResolvedWorkloads::default()).unwrap().holder;
        assert_eq!((holder.id.as_str(), &*tenant(&holder)), (id, payer));
        assert_ne!(holder.id.kind(), HolderKind::Remainder);
        assert!(!holder.id.is_remainder());
    }
}

/// A fixture tree in which processes start and end, and the process directory over it.
struct Node {
    root: tempfile::TempDir,
    directory: ProcessDirectory,
}

impl Node {
    fn new(agent: Option<u32>) -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/passwd"), "alice:x:1000:1000::/:\nbob:x:1001:1001::/:\n").unwrap();
        let directory = ProcessDirectory::new(Host::at(root.path()), agent, 0);
        Self { root, directory }
    }

    /// Writes the subuid file.
    fn subordinate(&self, text: &str) {
        fs::write(self.root.path().join("etc/subuid"), text).unwrap();
    }

    /// A node that opens at most this many pidfds, as over the real `/proc`.
    fn with_pidfds(descriptors: usize) -> Self {
        let mut node = Self::new(None);
        let infos = node.root.path().join("proc/self/fdinfo");
        fs::create_dir_all(&infos).unwrap();
        for number in 0..512 {
            fs::write(infos.join(number.to_string()), format!("NSpid:\t{}\n", std::process::id())).unwrap();
        }
        node.directory = ProcessDirectory::new(Host::at(node.root.path()), None, descriptors);
        node
    }

    fn start(&self, pid: u32, start_time: u64, uid: u32, cgroup: &str) {
        self.start_named(pid, "train", (start_time, uid), cgroup);
    }

    fn start_named(&self, pid: u32, name: &str, (start_time, uid): (u64, u32), cgroup: &str) {
        let place = self.root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&place).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(place.join("stat"), format!("{pid} ({name}) S {zeros}{start_time} 0 0\n")).unwrap();
        fs::write(place.join("status"), format!("Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"))
            .unwrap();
        fs::write(place.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.root.path().join(format!("proc/{pid}"))).unwrap();
    }

    fn refresh(&mut self, seen: &[u32], second: u64) -> Refreshed {
        self.refresh_with(&ResolvedWorkloads::default(), seen, second)
    }

    /// A round so many seconds after the boot, which was at the beginning of the wall clock.
    fn refresh_with(&mut self, workloads: &ResolvedWorkloads, seen: &[u32], second: u64) -> Refreshed {
        let pids: BTreeSet<u32> = seen.iter().copied().collect();
        let at = Nanoseconds::from_seconds(second);
        let identities = self.directory.refresh(&pids, workloads, Stamp { boottime: at, utc: Utc(at.0) });
        Refreshed { identities, at }
    }
}

/// The identified processes after a refresh, and the time of the refresh.
struct Refreshed {
    identities: Arc<Identities>,
    at: Nanoseconds,
}

/// The holder of a pid at the time of the refresh.
fn holder_of(refreshed: &Refreshed, pid: u32) -> Option<&str> {
    read(refreshed, pid, refreshed.at)
}

/// The holder of a pid in a reading of that second.
fn holder_at(refreshed: &Refreshed, pid: u32, second: u64) -> Option<&str> {
    read(refreshed, pid, Nanoseconds::from_seconds(second))
}

fn read(refreshed: &Refreshed, pid: u32, at: Nanoseconds) -> Option<&str> {
    refreshed.identities.get(pid, at).map(|identified| identified.holder.id.as_str())
}

#[test]
fn who_knows_pods_is_asked_when_the_last_process_of_one_has_left_the_gpus() {
    let pod = |container: char| {
        let id = container.to_string().repeat(64);
        format!("/kubepods/burstable/pod11111111-052c-4b11-80d3-4d7b2d2d3464/{id}")
    };
    let mut node = Node::new(None);
    for pid in [7, 8] {
        node.start(pid, 100, 0, &pod('a'));
    }
    node.start(9, 100, 1000, "/user.slice/user-1000.slice/session-3.scope");
    let mut wanted = |seen: &[u32], second: u64| {
        let at = node.refresh(seen, second).at;
        node.directory.wanted_kinds(Stamp { boottime: at, utc: Utc(at.0) })
    };
    let pods = BTreeSet::from([HolderKind::Pod]);
    assert_eq!(wanted(&[7, 8, 9], 10), BTreeSet::new());
    assert_eq!(wanted(&[8, 9], 13), BTreeSet::new(), "another process of it is there");
    assert_eq!(wanted(&[9], 14), BTreeSet::new(), "a slow sampler may have its own round");
    assert_eq!(wanted(&[8, 9], 15), BTreeSet::new());
    assert_eq!([wanted(&[9], 18), wanted(&[9], 19)], [pods, BTreeSet::new()], "once");
    assert_eq!(wanted(&[], 30), BTreeSet::from([HolderKind::User]));
}

#[test]
fn a_holder_applies_to_readings_from_the_start_of_its_process_to_the_last_confirmation() {
    let mut node = Node::new(None);
    // Ten ticks are a tenth of a second.
    node.start(7, 1_000, 1000, "/");
    let first = node.refresh(&[7], 20);
    assert_eq!(
        [9, 10, 20].map(|second| holder_at(&first, 7, second)),
        [None, Some("user:alice"), Some("user:alice")]
    );
    // The pid is reused between two refreshes: readings of that time have no holder.
    node.start(7, 3_000, 1001, "/");
    assert_eq!([25, 35].map(|second| holder_at(&first, 7, second)), [None, None]);
    let second = node.refresh(&[7], 40);
    assert_eq!([20, 29].map(|time| holder_at(&second, 7, time)), [Some("user:alice"); 2], "read late");
    assert_eq!([30, 40].map(|time| holder_at(&second, 7, time)), [Some("user:bob"); 2]);
    assert_eq!(holder_at(&second, 7, 41), None);
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/");
    assert_eq!(holder_of(&node.refresh(&[7], 1), 7), Some("user:alice"));
    node.end(7);
    node.start(7, 200, 1001, "/");
    let identities = node.refresh(&[7], 2);
    assert_eq!(holder_of(&identities, 7), Some("user:bob"));
    assert_eq!(identities.identities.get(7, identities.at).unwrap().start_time, 200);
}

#[test]
fn a_reused_pid_that_cannot_be_read_has_no_holder() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/");
    node.refresh(&[7], 1);
    node.start(7, 200, 1001, "/");
    fs::write(node.root.path().join("proc/7/status"), "").unwrap();
    assert_eq!(holder_of(&node.refresh(&[7], 2), 7), None);
}

/// A process that ends when it is dropped.
struct Child(std::process::Child);

impl Child {
    fn start() -> (Self, u32) {
        let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        (Self(child), pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn neither_a_process_with_an_open_pidfd_nor_one_that_has_ended_is_read_again() {
    let mut node = Node::with_pidfds(8);
    let (child, pid) = Child::start();
    node.start(pid, 100, 1000, "/");
    assert_eq!(holder_of(&node.refresh(&[pid], 1), pid), Some("user:alice"));
    // The kernel never reuses the pid of a running process; only the fixture tree can.
    node.start(pid, 200, 1001, "/");
    assert_eq!(holder_of(&node.refresh(&[pid], 2), pid), Some("user:alice"));
    drop(child);
    let reads = node.directory.reads();
    assert_eq!(holder_of(&node.refresh(&[pid], 3), pid), Some("user:alice"), "nobody has the pid");
    assert_eq!(node.directory.reads(), reads, "the kernel says so, and /proc is not asked");
}

#[test]
fn a_process_that_was_unreadable_when_its_pidfd_was_opened_is_not_identified_later() {
    let mut node = Node::with_pidfds(1);
    let (child, first) = Child::start();
    // Any running process can stand for the one that took the pid.
    let own = std::process::id();
    for pid in [first, own] {
        node.start(pid, 100, 1000, "/");
    }
    node.refresh(&[first], 1);
    node.refresh(&[first, own], 2);
    drop(child);
    node.end(own);
    assert_eq!(holder_of(&node.refresh(&[own], 3), own), Some("user:alice"), "unreadable for a moment");
    node.start(own, 200, 1001, "/");
    assert_eq!(holder_of(&node.refresh(&[own], 4), own), Some("user:bob"));
}

#[test]
fn processes_beyond_the_descriptor_limit_are_read_in_every_round() {
    let mut node = Node::with_pidfds(1);
    let (_one, first) = Child::start();
    let (_other, second) = Child::start();
    for pid in [first, second] {
        node.start(pid, 100, 1000, "/");
    }
    node.refresh(&[first], 1);
    node.refresh(&[first, second], 2);
    for pid in [first, second] {
        node.start(pid, 200, 1001, "/");
    }
    let identities = node.refresh(&[first, second], 3);
    assert_eq!(
        [first, second].map(|pid| holder_of(&identities, pid)),
        [Some("user:alice"), Some("user:bob")]
    );
}

#[test]
fn a_process_that_ended_is_found_for_a_minute() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/");
    node.refresh(&[7], 10);
    node.end(7);
    assert_eq!(holder_at(&node.refresh(&[], 70), 7, 10), Some("user:alice"));
    assert_eq!(holder_at(&node.refresh(&[], 71), 7, 10), None);
}

#[test]
fn a_process_that_ended_is_found_for_as_long_as_the_driver_lists_it() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/");
    node.refresh(&[7], 1);
    node.end(7);
    for second in (30..=600).step_by(30) {
        assert_eq!(holder_of(&node.refresh(&[7], second), 7), Some("user:alice"), "{second}");
    }
    assert_eq!(holder_at(&node.refresh(&[], 660), 7, 600), Some("user:alice"));
    assert_eq!(holder_at(&node.refresh(&[], 661), 7, 600), None);
}

#[test]
fn a_pid_without_a_process_has_no_holder_until_one_starts() {
    let mut node = Node::new(None);
    assert_eq!(holder_of(&node.refresh(&[7], 1), 7), None);
    assert_eq!(node.directory.unidentified().keys().collect::<Vec<_>>(), [&7]);
    node.start(7, 100, 1000, "/");
    assert_eq!(holder_of(&node.refresh(&[7], 2), 7), Some("user:alice"));
    assert!(node.directory.unidentified().is_empty());
}

#[test]
fn pids_that_proc_does_not_have_are_asked_for_less_and_less_often_and_at_once_when_the_list_changes() {
    let mut node = Node::new(None);
    let hidden: Vec<u32> = (1_000..1_320).collect();
    let mut seconds = 1..;
    let mut reads_in = |node: &mut Node, rounds: usize, listed: &[u32]| {
        let before = node.directory.reads();
        for second in seconds.by_ref().take(rounds) {
            node.refresh(listed, second);
            assert_eq!(
                node.directory.unidentified().len(),
                listed.len(),
                "each is still known to be missing"
            );
        }
        node.directory.reads() - before
    };
    assert_eq!(reads_in(&mut node, 1, &hidden), 320);
    // After 1, 2, 4, 8, 16 and 32 s, then every 60 s.
    assert_eq!(reads_in(&mut node, 63, &hidden), 320 * 6);
    assert_eq!(reads_in(&mut node, 600, &hidden), 320 * 10);
    assert_eq!(reads_in(&mut node, 1, &hidden[1..]), 319, "the list has changed");
    assert_eq!(reads_in(&mut node, 1, &hidden), 320);
    node.start(1_000, 100, 1000, "/");
    let second = seconds.next().unwrap();
    assert_eq!(holder_of(&node.refresh(&hidden, second), 1_000), Some("user:alice"));
}

#[test]
fn an_unknown_user_name_leaves_only_its_own_pid_unnamed() {
    let mut node = Node::new(None);
    let host = Host::with_users(node.root.path(), UserDatabase::of_service());
    let users = Arc::clone(host.users());
    node.directory = ProcessDirectory::new(host, None, 0);
    node.start(7, 100, 1000, "/");
    node.start(8, 100, 2000, "/");
    node.start(9, 100, 3000, "/system.slice/docker.service/x");
    let identities = node.refresh(&[7, 8, 9], 1);
    assert_eq!(
        [7, 8, 9].map(|pid| holder_of(&identities, pid)),
        [None, None, Some("__unattributed__/container")]
    );
    assert!(matches!(node.directory.unidentified()[&7], ProcessError::Unnamed { pid: 7, .. }));
    assert_eq!(users.next_due(Duration::ZERO), Some(1000));
    // Its lookup hangs.
    users.store(2000, Some(None));
    let identities = node.refresh(&[7, 8], 2);
    assert_eq!([7, 8].map(|pid| holder_of(&identities, pid)), [None, Some("user:2000")]);
    users.store(1000, Some(Some("ldap-alice".into())));
    assert_eq!(holder_of(&node.refresh(&[7, 8], 3), 7), Some("user:ldap-alice"));
    assert_eq!(users.next_due(Duration::ZERO), None, "each is looked up once, and no other");
}

#[test]
fn when_the_name_service_fails_the_ledgers_name_is_used_and_never_a_number() {
    let mut node = Node::new(None);
    let host = Host::with_users(node.root.path(), UserDatabase::of_service());
    let users = Arc::clone(host.users());
    users.remember([(1000, "alice".into())]);
    node.directory = ProcessDirectory::new(host, None, 0);
    node.start(7, 100, 1000, "/");
    node.start(8, 100, 2000, "/");
    node.start(9, 100, 2000, "/system.slice/a.service");
    node.refresh(&[7, 8, 9], 1);
    for uid in [1000, 2000] {
        users.store(uid, None);
    }
    let identities = node.refresh(&[7, 8, 9], 2);
    assert_eq!([7, 8, 9].map(|pid| holder_of(&identities, pid)), [Some("user:alice"), None, None]);
    let identities = node.refresh(&[7, 8, 9], 11);
    assert_eq!([8, 9].map(|pid| holder_of(&identities, pid)), [None, Some("unit:a.service")]);
    let user = |round: &Refreshed| {
        round.identities.get(9, round.at).unwrap().holder.facts.get(Fact::User).map(ToString::to_string)
    };
    assert_eq!(user(&identities), None);
    users.store(2000, Some(Some("carol".into())));
    let identities = node.refresh(&[7, 8, 9], 12);
    assert_eq!([8, 9].map(|pid| holder_of(&identities, pid)), [Some("user:carol"), Some("unit:a.service")]);
    assert_eq!(
        user(&identities),
        Some("carol".to_owned()),
        "the unit's user has a name as soon as it is known"
    );
}

#[test]
fn the_process_list_is_shared_while_it_does_not_change() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/");
    let first = node.refresh(&[7], 1);
    let same = |later: Refreshed| later.identities.has_same_processes(&first.identities);
    assert!(same(node.refresh(&[7], 2)));
    assert!(same(node.refresh(&[7, 8], 3)));
    node.start(8, 100, 1000, "/");
    assert!(!same(node.refresh(&[7, 8], 4)));
    assert_eq!(holder_of(&first, 8), None, "what was published stays as it was");
}

#[test]
fn a_process_keeps_its_first_identity() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/system.slice/a.service");
    node.refresh(&[7], 1);
    node.start(7, 100, 1000, "/system.slice/b.service");
    assert_eq!(holder_of(&node.refresh(&[7], 2), 7), Some("unit:a.service"));
}

#[test]
fn each_process_of_a_unit_has_the_user_who_runs_it() {
    let mut node = Node::new(None);
    node.start(7, 200, 1001, "/system.slice/a.service");
    node.start(8, 100, 1000, "/system.slice/a.service");
    node.start(9, 300, 1000, "/system.slice/a.service");
    let identities = node.refresh(&[7, 8, 9], 4);
    let [bob, alice, same] = [7, 8, 9].map(|pid| identities.identities.get(pid, identities.at).unwrap());
    assert!(Arc::ptr_eq(&alice.holder, &same.holder));
    let users = [bob, alice].map(|one| one.holder.facts.get(Fact::User).map(|user| &**user));
    assert_eq!(users, [Some("bob"), Some("alice")]);
    let oldest: Vec<_> = identities.identities.oldest_first().iter().map(|holder| holder.facts.uid).collect();
    assert_eq!(oldest, [Some(1000), Some(1001), Some(1000)]);
    assert_eq!(identities.identities.uids(), BTreeSet::from([1000, 1001]));
}

#[test]
fn the_agent_itself_is_a_system_service() {
    let mut node = Node::new(Some(7));
    node.start(7, 100, 1000, "/system.slice/a.service");
    assert_eq!(holder_of(&node.refresh(&[7], 1), 7), Some("__system__"));
}

#[test]
fn a_process_whose_workload_a_resolver_may_still_name_stays_unnamed_for_a_while() {
    let mut node = Node::new(None);
    node.start(7, 100, 1000, "/kubepods.slice");
    node.start(8, 100, 1000, "/system.slice/slurmstepd.scope");
    let awaits =
        |awaited: Vec<UnattributedReason>| ResolvedWorkloads { awaited, ..ResolvedWorkloads::default() };
    let pods = awaits(vec![UnattributedReason::Pod]);
    let round = node.refresh_with(&pods, &[7, 8], 10);
    assert_eq!((holder_of(&round, 7), holder_of(&round, 8)), (None, Some("__unattributed__/job")));
    assert_eq!(holder_of(&node.refresh_with(&pods, &[7], 18), 7), None);
    assert_eq!(holder_of(&node.refresh_with(&pods, &[7], 19), 7), Some("__unattributed__/pod"));
    // The resolver was disabled, so it is not waited for.
    node.start(9, 100, 1000, "/kubepods.slice");
    assert_eq!(holder_of(&node.refresh_with(&pods, &[9], 31), 9), None);
    assert_eq!(holder_of(&node.refresh_with(&awaits(vec![]), &[9], 32), 9), Some("__unattributed__/pod"));
}

/// What is known of jobs while job 211 has this record.
fn jobs_of(account: &str, start: u64) -> ResolvedWorkloads {
    let record = format!("job_id=211\ncluster=alpha\naccount={account}\nstart={start}\n");
    let records = [RecordFile { name: "211".into(), version: (1, 0, 0), bytes: Ok(record.into_bytes()) }];
    let known = JobTracker::default().observe(JobObservation {
        records: &records,
        mappings: &[],
        cluster: None,
        cgroups: None,
        environments: &BTreeMap::new(),
        gres: None,
        gpus: &NodeGpus::default(),
        now: Nanoseconds(0),
        utc: Utc(0),
    });
    ResolvedWorkloads { jobs: Arc::new(known.map), ..ResolvedWorkloads::default() }
}

#[test]
fn a_process_has_the_account_of_its_run_of_a_job() {
    let mut node = Node::new(None);
    let step = "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0";
    let payers = |round: &Refreshed, pids: &[u32]| -> Vec<String> {
        let payer = |pid: &u32| tenant(&round.identities.get(*pid, round.at).unwrap().holder).to_string();
        pids.iter().map(payer).collect()
    };
    // Ticks of a hundredth of a second.
    node.start(7, 11_000, 1000, step);
    let first = jobs_of("physics", 100);
    assert_eq!(payers(&node.refresh_with(&first, &[7], 120), &[7]), ["physics"]);
    let moved = jobs_of("chem", 100);
    assert_eq!(payers(&node.refresh_with(&moved, &[7], 130), &[7]), ["chem"], "the same run");
    // The job is requeued; a process of its first run is stuck, and one of the next is seen before the record is.
    node.start(8, 20_500, 1000, step);
    assert_eq!(payers(&node.refresh_with(&moved, &[7, 8], 206), &[7, 8]), ["chem", "chem"]);
    let second = jobs_of("bio", 200);
    assert_eq!(payers(&node.refresh_with(&second, &[7, 8], 207), &[7, 8]), ["chem", "bio"]);
    node.start(9, 21_000, 1000, step);
    let round = node.refresh_with(&second, &[7, 8, 9], 211);
    assert_eq!(payers(&round, &[7, 8, 9]), ["chem", "bio", "bio"]);
    let [one, other] = [8, 9].map(|pid| round.identities.get(pid, round.at).unwrap());
    assert_eq!(one.holder, other.holder);
}

/// The record that the Slurm prolog writes of job 211 with these variables.
fn recorded(directory: &Path, variables: &[(&str, &str)]) -> Result<JobRecord, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/prolog.sh");
    let mut command = Command::new("sh");
    command.arg(script).env_clear().env("GPUMETER_DIRECTORY", directory).env("SLURM_JOB_ID", "211");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let records = directory.with_file_name("gpumeter-slurm");
    let files: Vec<_> = fs::read_dir(&records).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["211"], "no temporary file stays");
    JobRecord::parse(&fs::read(records.join("211")).unwrap())
}

#[test]
fn the_slurm_prologs_record_is_read_for_any_user_name() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("gpumeter");
    let hostile = "$(touch pwned) `id`; \"a\" 'b' = * \u{e9}";
    let variables = [
        ("SLURM_CLUSTER_NAME", "alpha"),
        ("SLURM_JOB_USER", hostile),
        ("SLURM_JOB_ACCOUNT", "physics\njob_id=1"),
        ("SLURM_JOB_QOS", "\u{1b}[2J"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_ARRAY_JOB_ID", "210"),
        ("SLURM_ARRAY_TASK_ID", "3"),
    ];
    let record = recorded(&directory, &variables).unwrap();
    let fact = |fact| record.holder.facts.get(fact).map(|text| &**text);
    assert_eq!(fact(Fact::SlurmUser), Some(hostile));
    assert_eq!((fact(Fact::SlurmAccount), fact(Fact::SlurmQos)), (None, None), "left out");
    assert_eq!(fact(Fact::SlurmArrayTask), Some("3"));
    assert_eq!((record.holder.id.as_str(), record.holder.facts.uid), ("slurm:alpha/211", Some(1000)));
    assert!(record.gpus.is_empty());
}

#[test]
fn the_slurm_prolog_maps_gpus_by_the_agents_map() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("gpumeter");
    fs::create_dir(&directory).unwrap();
    let map = directory.join("gpus");
    let uuid = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    fs::write(&map, format!("0 {uuid}\n10 GPU-x\n")).unwrap();
    let gpus = |numbers| {
        let variables = [("SLURM_CLUSTER_NAME", "alpha"), ("SLURM_JOB_GPUS", numbers)];
        recorded(&directory, &variables).map(|record| record.gpus)
    };
    let mapped = RecordedGpu::Uuid(uuid.into());
    assert_eq!(gpus("0"), Ok(vec![mapped.clone()]));
    assert_eq!(gpus("0,1"), Ok(vec![mapped.clone(), RecordedGpu::Minor(1)]));
    assert_eq!(gpus(""), Ok(vec![]));
    assert!(gpus("*").unwrap_err().contains("not a minor number"));
    // Other files that the agent's user puts there are ignored.
    let unmapped = Ok(vec![RecordedGpu::Minor(0)]);
    for hostile in ["0 GPU-$(id)", "0 GPU-a,GPU-b", "0 GPU-a b", " 0 GPU-a", "0 ../x", "0", "* GPU-a", "\0"] {
        fs::write(&map, format!("{hostile}\n")).unwrap();
        assert_eq!(gpus("0"), unmapped, "{hostile:?}");
    }
    fs::write(&map, format!("{}\n0 {uuid}\n", "x".repeat(1_000_000))).unwrap();
    assert_eq!(gpus("0"), unmapped, "a map of any length is read within bounds");
    fs::remove_file(&map).unwrap();
    assert_eq!(gpus("0,1"), Ok(vec![RecordedGpu::Minor(0), RecordedGpu::Minor(1)]));
    symlink("/dev/zero", &map).unwrap();
    assert_eq!(gpus("0"), unmapped);
}

#[test]
fn the_slurm_prolog_records_nothing_where_others_may_write() {
    let place = tempfile::tempdir().unwrap();
    let records = place.path().join("gpumeter-slurm");
    let run = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm/prolog.sh");
        let mut command = Command::new("sh");
        command.arg(script).env_clear().env("SLURM_JOB_ID", "211").env("SLURM_CLUSTER_NAME", "alpha");
        let output = command.env("GPUMETER_DIRECTORY", place.path().join("gpumeter")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    fs::create_dir(&records).unwrap();
    for mode in [0o777, 0o775, 0o757, 0o1777] {
        fs::set_permissions(&records, fs::Permissions::from_mode(mode)).unwrap();
        run();
        assert_eq!(fs::read_dir(&records).unwrap().count(), 0, "{mode:o}");
    }
    fs::set_permissions(&records, fs::Permissions::from_mode(0o755)).unwrap();
    let elsewhere = place.path().join("elsewhere");
    fs::rename(&records, &elsewhere).unwrap();
    symlink(&elsewhere, &records).unwrap();
    run();
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "a symbolic link is not a directory of root");
    fs::remove_file(&records).unwrap();
    fs::rename(&elsewhere, &records).unwrap();
    run();
    assert!(records.join("211").exists());
    // Only root can change a directory's owner.
    if chown(&records, Some(65532), None).is_ok() {
        fs::remove_file(records.join("211")).unwrap();
        run();
        assert_eq!(fs::read_dir(&records).unwrap().count(), 0, "a directory of another user");
    }
}

#[test]
fn the_slurm_hooks_exit_with_0_on_errors() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm");
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("gpumeter-slurm"), "").unwrap();
    for script in ["prolog.sh", "epilog.sh"] {
        for job in ["211", "../../x", ""] {
            let mut command = Command::new("sh");
            command.arg(scripts.join(script)).env_clear().env("SLURM_JOB_ID", job);
            let status =
                command.env("GPUMETER_DIRECTORY", place.path().join("gpumeter")).output().unwrap().status;
            assert!(status.success(), "{script} {job}");
        }
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}
