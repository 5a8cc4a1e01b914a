//! Where in the system a process runs, told from its cgroup paths.
//!
//! In: the paths of all its hierarchies. Out: [`Place`]: below a unit, in a user's session, in a workload that no
//! resolver names yet, or nowhere in particular. Where hierarchies differ the more careful
//! answer counts, and their order never does. It does not know who runs there.

use super::decode::decode;
use super::unit::{is_slice, unit};
use super::user::owner;
use super::workload::{WorkloadPath, workload};

/// Where a process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) ground: Ground,
    /// The user in whose session it is.
    pub(super) owner: Option<u32>,
}

/// Whose ground it is; the greater one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ground {
    /// The root, a slice, or a unit that systemd made up a name for in `system.slice`: nothing is said.
    Open,
    /// A unit of the system manager, with the depth of the path that says so.
    Unit { depth: usize, name: String },
    /// A session, or the user's own service manager, whose units he names as he likes.
    Session,
    /// A rootless container, or whatever else of the kind a user made below his own service manager. The cgroups there
    /// are named by him, so they show that the process is his and prove nothing else.
    Rootless,
    /// A container, a pod, a job, a virtual machine, or something unknown.
    Workload(WorkloadPath),
}

impl Place {
    /// The place that the paths of one process tell.
    pub(super) fn of(paths: &[String]) -> Self {
        let told: Vec<Self> = paths.iter().map(|path| place(path)).collect();
        let owner = told.iter().filter_map(|place| place.owner).max();
        let ground = told.into_iter().map(|place| place.ground).max().unwrap_or(Ground::Open);
        Self { ground, owner }
    }
}

fn place(path: &str) -> Place {
    // A reader in a cgroup namespace of its own sees what lies outside of it below `..`.
    let parts: Vec<_> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .skip_while(|part| *part == "..")
        .map(decode)
        .collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    // Only down to the first unit: what is below it may be named by whoever runs there.
    let upper = parts.iter().position(|part| !is_slice(part)).map_or(parts.len(), |first| first + 1);
    let upper = &parts[..upper];
    Place { ground: ground(&parts, upper), owner: upper.iter().find_map(|part| owner(part)) }
}

fn ground(parts: &[&str], upper: &[&str]) -> Ground {
    if let Some(path) = workload(parts) {
        let has_owner = upper.iter().any(|part| owner(part).is_some());
        if has_owner { Ground::Rootless } else { Ground::Workload(path) }
    } else if upper.iter().any(|part| is_users(part)) {
        Ground::Session
    } else if let Some(name) = unit(upper) {
        Ground::Unit { depth: parts.len(), name: name.to_owned() }
    } else if is_without_systemd(parts)
        || upper.last().is_none_or(|last| is_slice(last) || is_unit_like(last))
    {
        Ground::Open
    } else {
        Ground::Workload(WorkloadPath::Unknown)
    }
}

/// Whether a part is in the place of a unit although its name cannot be printed.
fn is_unit_like(part: &str) -> bool {
    part.ends_with(".service") || part.ends_with(".scope")
}

/// Whether the path is one of OpenRC's services or of elogind's sessions, which have no slices.
fn is_without_systemd(parts: &[&str]) -> bool {
    let first = parts.first().copied().unwrap_or_default();
    first == "elogind" || first.starts_with("openrc") || first.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a part is where logind keeps users.
fn is_users(part: &str) -> bool {
    part == "user.slice"
        || owner(part).is_some()
        || (part.starts_with("session-") && part.ends_with(".scope"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::UnattributedReason;

    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    fn at(path: &str) -> Place {
        Place::of(&[path.replace("CID", ID)])
    }

    fn reason(place: &Place) -> Option<UnattributedReason> {
        match &place.ground {
            Ground::Workload(path) => Some(path.reason()),
            _ => None,
        }
    }

    fn unit_at(path: &str) -> Option<String> {
        match at(path).ground {
            Ground::Unit { name, .. } => Some(name),
            _ => None,
        }
    }

    #[test]
    fn a_unit_is_what_stands_first_below_the_slices() {
        for (path, name) in [
            ("/system.slice/trainer.service", "trainer.service"),
            ("/system.slice/system-train.slice/train@run\\x2d7.service", "train@run-7.service"),
            ("/system.slice/trainer.service/workers/3", "trainer.service"),
            ("/system.slice/run-r1.scope", "run-r1.scope"),
            ("/ml.slice/ml-batch.slice/serve.service", "serve.service"),
            ("/../../system.slice/trainer.service", "trainer.service"),
            ("/system.slice/_cpu.service", "cpu.service"),
            ("/init.scope", "init.scope"),
        ] {
            assert_eq!(unit_at(path).as_deref(), Some(name), "{path}");
        }
    }

    #[test]
    fn a_unit_with_a_generated_name_is_its_users_or_stands_for_its_slice() {
        let random = "run-r0123456789abcdef0123456789abcdef";
        for name in [random, "run-u42", "run-p123-i456", "run-4711"] {
            for (slices, stands_for) in [
                ("/system.slice", None),
                ("", None),
                ("/ml.slice", Some("ml.slice")),
                ("/ml.slice/ml-batch.slice", Some("ml-batch.slice")),
            ] {
                let path = format!("{slices}/{name}.scope/worker");
                assert_eq!(unit_at(&path).as_deref(), stands_for, "{path}");
                let ground = at(&path).ground;
                assert!(stands_for.is_some() || ground == Ground::Open, "{path}: {ground:?}");
            }
        }
        for name in [
            "run-training.service",
            "run-.service",
            "run-u.service",
            "run-r1.scope",
            "run-p1.service",
            "rerun-4.service",
        ] {
            assert_eq!(unit_at(&format!("/system.slice/{name}")).as_deref(), Some(name));
        }
        let users = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-u7.scope";
        assert_eq!(at(users), Place { ground: Ground::Session, owner: Some(1000) });
        let application = "/user.slice/user-1000.slice/user@1000.service/app-gnome-x-1.scope";
        assert_eq!(at(application), Place { ground: Ground::Session, owner: Some(1000) });
    }

    #[test]
    fn the_daemon_of_a_runtime_is_a_unit_and_what_runs_below_it_is_not() {
        assert_eq!(unit_at("/system.slice/docker.service").as_deref(), Some("docker.service"));
        assert_eq!(
            unit_at("/system.slice/docker-registry.service").as_deref(),
            Some("docker-registry.service")
        );
        for path in ["/system.slice/docker.service/docker/x", "/system.slice/containerd.service/default/x"] {
            assert_eq!(reason(&at(path)), Some(UnattributedReason::Container), "{path}");
        }
    }

    #[test]
    fn no_container_pod_job_or_machine_passes_for_a_unit() {
        use UnattributedReason::{Container, Job, Pod, Unknown, Vm};
        let pod = "pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464";
        for (path, expected) in [
            (
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable-POD.slice/cri-containerd-CID.scope",
                Pod,
            ),
            (
                "/system.slice/docker-CID.scope/kubelet.slice/kubepods-besteffort-POD.slice/cri-containerd-CID.scope",
                Pod,
            ),
            ("/system.slice/containerd.service/kubepods-besteffort-POD.slice:cri-containerd:CID", Pod),
            ("/kubepods.slice/kubepods-POD.slice/crio-CID.scope", Pod),
            ("/kubepods.slice/kubepods-POD.slice/crio-CID.scope/container", Pod),
            ("/kubepods/burstable/pod5a89bcaa-3509-4b11-80d3-4d7b2d2d3464/CID", Pod),
            ("/kubepods/podb6cd0000000000000000000000000000/CID", Pod),
            ("/system.slice/k3s.service/x", Pod),
            ("/system.slice/docker-CID.scope", Container),
            ("/docker/CID", Container),
            ("/docker/x", Container),
            ("/lxc/101/ns/init.scope", Container),
            ("/machine.slice/libpod-CID.scope/container", Container),
            ("/machine.slice/machine-nspawn.scope/payload", Container),
            ("/system.slice/web.service/libpod-payload-CID", Container),
            ("/system.slice/web.service/CID", Container),
            ("/lxc.payload.c1/system.slice/trainer.service", Container),
            ("/system.slice/slurmstepd.scope/job_211/step_extern/user/task_0", Job),
            ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", Job),
            ("/system.slice/slurmstepd.scope/job_211/step_0/user/task_0/docker-CID.scope", Job),
            ("/system.slice/node1_slurmstepd.scope/job_211/step_0/user/task_0", Job),
            ("/slurm_node1/uid_262563/job_55786247/step_0", Job),
            ("/slurm/uid_1000/job_7/step_batch/task_0", Job),
            ("/kubepods.slice/kubepods-POD.slice/crio-CID.scope/slurmstepd.scope/job_1/step_0", Job),
            ("/machine.slice/machine-qemu\\x2d2\\x2dinstance\\x2d00000001.scope/libvirt", Vm),
            ("/machine/vm7.libvirt-qemu/emulator", Vm),
            ("/qemu.slice/100.scope", Vm),
            ("/something/unknown/x.service", Unknown),
        ] {
            assert_eq!(reason(&at(&path.replace("POD", pod))), Some(expected), "{path}");
        }
    }

    #[test]
    fn paths_of_openrc_and_elogind_are_no_workload() {
        for path in ["/openrc.sshd", "/openrc/sshd", "/elogind/1", "/1"] {
            assert_eq!(at(path).ground, Ground::Open, "{path}");
        }
    }

    #[test]
    fn a_users_own_units_are_his_session_whatever_they_are_called() {
        for path in [
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-persistenced.service",
            "/user.slice/user-1000.slice/user@1000.service/system.slice/trainer.service",
            "/../user@1000.service/app.slice/x.service",
        ] {
            assert_eq!(at(path), Place { ground: Ground::Session, owner: Some(1000) }, "{path}");
        }
        assert_eq!(at("/../session-3.scope"), Place { ground: Ground::Session, owner: None });
        assert_eq!(at("/system.slice/x.service/user-1000.slice").owner, None);
    }

    #[test]
    fn a_rootless_container_has_an_owner() {
        let path = "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-CID.scope/container";
        assert_eq!(at(path), Place { ground: Ground::Rootless, owner: Some(1000) });
    }

    #[test]
    fn roots_and_slices_say_nothing() {
        for path in ["/", "", "/..", "/../..", "/system.slice", "/-.slice"] {
            assert_eq!(at(path), Place { ground: Ground::Open, owner: None }, "{path}");
        }
        assert_eq!(Place::of(&[]), Place { ground: Ground::Open, owner: None });
    }

    #[test]
    fn of_many_hierarchies_the_one_that_tells_something_counts() {
        let paths = ["/", "/system.slice", "/system.slice/trainer.service", "/"].map(String::from);
        let Ground::Unit { name, .. } = Place::of(&paths).ground else { unreachable!() };
        assert_eq!(name, "trainer.service");
        let container = ["/system.slice/docker.service".to_owned(), format!("/docker/{ID}")];
        assert_eq!(reason(&Place::of(&container)), Some(UnattributedReason::Container));
    }

    proptest! {
        #[test]
        fn any_path_is_placed_without_a_panic(path in "(/|\\.\\.|\\PC|\\.slice|user-|\\\\x2d|\\.service){0,20}") {
            at(&path);
        }

        #[test]
        fn the_order_of_the_hierarchies_never_counts(
            (paths, shuffled) in prop::collection::vec(
                prop::sample::select(vec![
                    "/", "/a.slice/b.service", "/c.service", "/c.service/x", "/docker/x",
                    "/user.slice/user-7.slice/session-1.scope", "/user.slice/user-8.slice",
                ]), 0..6,
            ).prop_flat_map(|paths| (Just(paths.clone()), Just(paths).prop_shuffle()))
        ) {
            let strings = |paths: Vec<&str>| paths.into_iter().map(String::from).collect::<Vec<_>>();
            prop_assert_eq!(Place::of(&strings(paths)), Place::of(&strings(shuffled)));
        }
    }
}
