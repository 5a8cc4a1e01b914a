//! Processes as read from /proc: fixture trees of each cgroup layout, hostile ones, and the real `/proc`.

use std::fs;
use std::path::Path;

use gpumeter::holders::host::{Host, ProcessError, ProcessInfo, UserNameError, agent_usage};
use proptest::prelude::*;

fn tree(name: &str) -> Host {
    Host::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host").join(name))
}

#[test]
fn a_process_is_read_below_one_root() {
    let expected = ProcessInfo {
        pid: 2002,
        start_time: 50_002,
        name: "python3".into(),
        uid: 1001,
        namespace_owner: None,
        cgroups: vec!["/system.slice/trainer.service/workers".into()],
    };
    assert_eq!(tree("v2").process(2002).unwrap(), expected);
    assert_eq!(tree("v2").start_time(2002).unwrap(), 50_002);
}

#[test]
fn every_cgroup_hierarchy_of_a_hybrid_system_is_read() {
    let paths = tree("hybrid").process(301).unwrap().cgroups;
    let unit = "/system.slice/trainer.service";
    assert_eq!(paths, [unit, unit, "/", "/", "/", "/"]);
}

#[test]
fn a_setuid_program_belongs_to_the_user_who_started_it() {
    assert_eq!(tree("v2").process(2103).unwrap().uid, 1000);
}

#[test]
fn a_pid_without_a_process_has_ended() {
    for pid in [0, 1, u32::MAX] {
        let gone = tree("v2").process(pid).unwrap_err();
        assert!(matches!(gone, ProcessError::Ended { pid: of } if of == pid), "{gone}");
    }
    assert!(matches!(Host::at("/nonexistent").process(1), Err(ProcessError::Ended { .. })));
}

#[test]
fn a_hostile_process_name_is_read_as_a_name() {
    let host = tree("hostile");
    let process = host.process(500).unwrap();
    assert_eq!((process.name.as_str(), process.start_time), ("x) R 1 (y", 7000));
    let process = host.process(501).unwrap();
    assert_eq!((process.name.as_str(), process.uid), ("a\u{fffd}Uid:\u{fffd}0", 1000));
    assert_eq!(host.process(502).unwrap().name, "\u{fffd}\u{fffd}\u{fffd}");
}

#[test]
fn a_truncated_file_is_an_error_that_names_it() {
    for (pid, file) in [(503, "stat"), (504, "status"), (509, "stat"), (510, "stat")] {
        let gone = tree("hostile").process(pid).unwrap_err();
        assert!(matches!(gone, ProcessError::Malformed { .. }), "{gone:?}");
        assert!(gone.to_string().starts_with(&format!("/proc/{pid}/{file} ")), "{gone}");
    }
}

#[test]
fn a_proc_directory_without_files_is_not_a_process() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/7")).unwrap();
    assert!(matches!(Host::at(root.path()).process(7), Err(ProcessError::Ended { pid: 7 })));
    fs::create_dir_all(root.path().join("proc/7/stat")).unwrap();
    assert!(matches!(
        Host::at(root.path()).process(7),
        Err(ProcessError::Unreadable { pid: 7, file: "stat", .. })
    ));
}

#[test]
fn a_uid_has_its_first_name_in_the_user_file() {
    let host = tree("hostile");
    assert_eq!(host.users().name(1000).unwrap().as_deref(), Some("alice"));
    assert_eq!(host.users().name(5).unwrap().as_deref(), Some("\u{fffd}\u{fffd}"));
    assert_eq!(host.users().name(10).unwrap(), None, "a line without all its digits would be another user");
    assert_eq!(host.users().name(77).unwrap(), None);
    assert_eq!(
        tree("none").users().name(0),
        Err(UserNameError::Failed { uid: 0 }),
        "without a user file it is unknown whether a uid has a name"
    );
}

#[test]
fn a_new_user_is_known_after_the_user_file_changed() {
    let root = tempfile::tempdir().unwrap();
    let passwd = root.path().join("etc/passwd");
    fs::create_dir(root.path().join("etc")).unwrap();
    let host = Host::at(root.path());
    assert!(host.users().name(1000).is_err());
    fs::write(&passwd, "alice:x:1000:1000::/:\n").unwrap();
    assert_eq!(host.users().name(1000).unwrap().as_deref(), Some("alice"));
    fs::write(&passwd, "alice:x:1000:1000::/:\nbob:x:1001:1001::/:\n").unwrap();
    assert_eq!(host.users().name(1001).unwrap().as_deref(), Some("bob"));
    fs::remove_file(&passwd).unwrap();
    assert_eq!(host.users().name(1001).unwrap().as_deref(), Some("bob"), "while it is replaced, names stay");
}

#[test]
fn boot_id_and_host_name_are_read() {
    let host = tree("v2");
    assert_eq!(host.boot_id().as_deref(), Some("0f4b8a52-6c1d-4a53-9a51-1be0a7f4c2aa"));
    assert_eq!(host.host_name().as_deref(), Some("node7"));
    assert_eq!(tree("hybrid").host_name().as_deref(), Some("old-node"));
    assert_eq!((tree("none").boot_id(), tree("none").host_name()), (None, None));
}

#[test]
fn on_the_real_system_this_test_is_a_process() {
    let host = Host::at("/");
    let pid = std::process::id();
    let process = host.process(pid).unwrap();
    assert_eq!(process.uid, rustix::process::getuid().as_raw());
    assert_eq!(host.start_time(pid).unwrap(), process.start_time);
    assert!(process.start_time > 0 && !process.cgroups.is_empty());
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(process.name, comm.trim_end());
    assert!(host.boot_id().is_some() && host.host_name().is_some());
}

#[test]
fn on_the_real_system_a_child_that_ended_is_gone() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let host = Host::at("/");
    assert_eq!(host.process(child.id()).unwrap().pid, child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(host.process(child.id()), Err(ProcessError::Ended { .. })));
}

#[test]
fn the_agent_measures_its_own_cost() {
    let usage = agent_usage::AgentUsageReader::open().unwrap();
    let before = usage.read().unwrap();
    assert!(before.resident.0 > 100_000 && before.open_files >= 3, "{before:?}");
    let _open: Vec<_> = (0..8).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
    let after = usage.read().unwrap();
    assert!(after.open_files >= 8 && after.cpu >= before.cpu, "{after:?}");
}

proptest! {
    #[test]
    fn a_process_of_any_bytes_is_read_without_a_panic(stat: Vec<u8>, status: Vec<u8>, cgroup: Vec<u8>) {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("proc/7");
        fs::create_dir_all(&directory).unwrap();
        for (name, bytes) in [("stat", stat), ("status", status), ("cgroup", cgroup)] {
            fs::write(directory.join(name), bytes).unwrap();
        }
        let _ = Host::at(root.path()).process(7);
    }
}

#[test]
fn a_static_pod_has_the_hash_of_its_manifest_for_its_uid() {
    let root = tempfile::tempdir().unwrap();
    let hash = "b6cd6bb4d2a94ea5a1b3c6d7e8f90a1b";
    let pod = format!("var/log/pods/kube-system_trainer-node1_{hash}");
    std::fs::create_dir_all(root.path().join(pod).join("main")).unwrap();
    let pods = Host::at(root.path()).pod_logs().pods.unwrap();
    // The cgroup of such a pod has this UID, while the API server reports another one.
    let pod = &pods.first().unwrap().pod;
    assert_eq!((&*pod.namespace, &*pod.name, &*pod.uid), ("kube-system", "trainer-node1", hash));
}
