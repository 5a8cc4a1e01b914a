//! Where in the system a process runs, by its cgroup paths.
//!
//! Where hierarchies differ, the kind with the highest precedence counts, so their order never matters.

use std::borrow::Cow;

use crate::model::UnattributedReason;

use super::believed_cgroups::BelievedCgroups;
use super::workload_path::{
    OuterWorkload, WorkloadPath, parse_container_below, parse_workload_path, reads_like_more_than,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessLocation {
    pub(super) kind: LocationKind,
    /// The user in whose session it runs.
    pub(super) session_owner: Option<u32>,
}

/// What kind of cgroup a process is in, in ascending order of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LocationKind {
    /// The root, a slice, or a unit in `system.slice` with a name that systemd generated.
    Unspecified,
    /// A unit of the system manager; `depth` is the number of parts of the path that names it.
    Unit { depth: usize, name: String },
    /// A login session or the user's own service manager, whose unit names the user chooses.
    UserSession,
    /// A rootless container below the user's own service manager. The user names the cgroups there, so they prove only
    /// that the process belongs to that user; the id may be empty.
    RootlessContainer { runtime: &'static str, id: String },
    /// A container, pod, job or virtual machine, or a path of an unknown form.
    Workload(WorkloadPath),
}

impl ProcessLocation {
    pub(super) fn from_cgroups(paths: &[String], cgroups: &BelievedCgroups) -> Self {
        let locations: Vec<Self> = paths.iter().map(|path| locate(path, cgroups).location).collect();
        let session_owner = locations.iter().filter_map(|location| location.session_owner).max();
        let kind =
            locations.into_iter().map(|location| location.kind).max().unwrap_or(LocationKind::Unspecified);
        Self { kind, session_owner }
    }
}

struct LocatedPath {
    location: ProcessLocation,
    /// The parts that are not believed, since what runs in the believed ones may have named them.
    rest: Vec<String>,
}

/// The first of these paths in which a part that is not believed reads like a pod, job or container that would have
/// counted.
pub fn refused_cgroup<'a>(paths: &'a [String], cgroups: &BelievedCgroups) -> Option<&'a str> {
    paths.iter().map(String::as_str).find(|path| {
        let LocatedPath { location, rest } = locate(path, cgroups);
        let kind = match &location.kind {
            LocationKind::Workload(workload) => Some(workload.reason()),
            LocationKind::RootlessContainer { .. } => Some(UnattributedReason::Container),
            _ => None,
        };
        rest.iter().any(|part| reads_like_more_than(part, kind))
    })
}

/// The parts of the path that name a container in which another container of that path runs.
pub(super) fn enclosing_container(path: &str) -> Option<Vec<String>> {
    let LocatedPath { location, rest } = locate(path, &BelievedCgroups::default());
    let is_container = matches!(location.kind, LocationKind::Workload(WorkloadPath::Container { .. }));
    let parts = split(path);
    let is_outer = rest.iter().any(|part| reads_like_more_than(part, None));
    (is_container && is_outer).then(|| parts[..parts.len() - rest.len()].to_vec())
}

/// The decoded parts of a path. In a cgroup namespace of its own, a reader sees cgroups outside of it below `..`.
pub(super) fn split(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty()).skip_while(|part| *part == "..");
    parts.map(|part| decode(part).into_owned()).collect()
}

fn locate(path: &str, cgroups: &BelievedCgroups) -> LocatedPath {
    let all = split(path);
    let parts: Vec<&str> = all.iter().map(String::as_str).collect();
    // Parts below the first unit are ignored because whoever runs in the unit may name them.
    let upper = parts.iter().position(|part| !is_slice(part)).map_or(parts.len(), |first| first + 1);
    let (kind, depth) = find_kind(&parts, &parts[..upper], cgroups);
    let session_owner = parts[..upper].iter().find_map(|part| session_owner(part));
    let rest = all.get(depth..).unwrap_or_default().to_vec();
    LocatedPath { location: ProcessLocation { kind, session_owner }, rest }
}

/// The kind of a location, and how many parts of the path are believed.
fn find_kind(parts: &[&str], upper: &[&str], cgroups: &BelievedCgroups) -> (LocationKind, usize) {
    if upper.iter().any(|part| is_user_session(part)) {
        return find_in_session(parts, upper);
    }
    if is_without_systemd(parts) {
        return (LocationKind::Unspecified, parts.len());
    }
    if let Some(OuterWorkload { workload, depth }) = parse_workload_path(parts, cgroups) {
        return (LocationKind::Workload(workload), depth);
    }
    if let Some(name) = find_unit(upper) {
        return (LocationKind::Unit { depth: parts.len(), name: name.to_owned() }, upper.len());
    }
    let kind = match upper.last() {
        // A unit whose name cannot be printed.
        Some(last) if last.ends_with(".service") || last.ends_with(".scope") => LocationKind::Unspecified,
        Some(last) if !is_slice(last) => LocationKind::Workload(WorkloadPath::Unknown),
        _ => LocationKind::Unspecified,
    };
    (kind, upper.len())
}

/// The user's session, or the outermost container in it, whatever services it is below.
fn find_in_session(parts: &[&str], upper: &[&str]) -> (LocationKind, usize) {
    match parse_container_below(parts, upper.len()) {
        Some(OuterWorkload { workload: WorkloadPath::Container { runtime, id }, depth }) => {
            (LocationKind::RootlessContainer { runtime, id }, depth)
        }
        _ => (LocationKind::UserSession, upper.len()),
    }
}

/// Whether the path belongs to an OpenRC service or an elogind session, which have no slices.
fn is_without_systemd(parts: &[&str]) -> bool {
    let first = parts.first().copied().unwrap_or_default();
    first == "elogind" || first.starts_with("openrc") || first.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a part is a cgroup in which logind places the processes of users.
fn is_user_session(part: &str) -> bool {
    part == "user.slice"
        || session_owner(part).is_some()
        || (part.starts_with("session-") && part.ends_with(".scope"))
}

/// Finds the unit of the system manager below the slices. A generated name differs at every start, so such a unit counts
/// as its slice, and in `system.slice`, the default, as no unit.
fn find_unit<'a>(parts: &[&'a str]) -> Option<&'a str> {
    let at = parts.iter().position(|part| !is_slice(part))?;
    let first = parts[at];
    let name = first.strip_suffix(".service").or_else(|| first.strip_suffix(".scope"))?;
    // systemd accepts no such name, and a line break would forge a line in logs and pages.
    if name.is_empty() || name.contains(char::is_control) {
        return None;
    }
    if !is_generated(name) {
        return Some(first);
    }
    let slice = *parts[..at].last()?;
    let is_chosen = !matches!(slice, "system.slice" | "-.slice") && !slice.contains(char::is_control);
    is_chosen.then_some(slice)
}

/// Whether systemd-run generated the name: `run-r` and 32 hexadecimal digits, `run-u123`, `run-p123-i456`, `run-123`.
fn is_generated(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name.strip_prefix("run-") else { return false };
    let pair = rest.strip_prefix('p').and_then(|rest| rest.split_once("-i"));
    let random = rest
        .strip_prefix('r')
        .is_some_and(|digits| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    random
        || is_number(rest.strip_prefix('u').unwrap_or(rest))
        || pair.is_some_and(|(pid, invocation)| is_number(pid) && is_number(invocation))
}

/// Whether a part only groups others.
fn is_slice(part: &str) -> bool {
    part.ends_with(".slice")
}

/// The user of a slice or service manager: `user-1000.slice`, `user@1000.service`.
fn session_owner(part: &str) -> Option<u32> {
    let slice = part.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
    let manager = part.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service"));
    let digits = slice.or(manager)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Decodes systemd's `\x2d` and similar escapes in one part of a path, and removes the underscore with which systemd
/// escapes names of kernel files. A part that would decode to a slash, control characters or invalid UTF-8 stays as it
/// is, so that no part becomes two and no name breaks a line.
fn decode(part: &str) -> Cow<'_, str> {
    let part = part.strip_prefix('_').unwrap_or(part);
    if !part.contains("\\x") {
        return Cow::Borrowed(part);
    }
    match String::from_utf8(unescape(part.as_bytes())) {
        Ok(text) if !text.contains(|c: char| c == '/' || c.is_control()) => Cow::Owned(text),
        _ => Cow::Borrowed(part),
    }
}

fn unescape(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        match parse_escape(bytes) {
            Some(byte) => {
                out.push(byte);
                bytes = &bytes[4..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    out
}

/// The byte that `\xHH` at the front encodes.
fn parse_escape(bytes: &[u8]) -> Option<u8> {
    let [b'\\', b'x', high, low, ..] = bytes else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    fn from_cgroups(paths: &[String]) -> ProcessLocation {
        ProcessLocation::from_cgroups(paths, &BelievedCgroups::default())
    }

    fn at(path: &str) -> ProcessLocation {
        from_cgroups(&[path.replace("CID", ID)])
    }

    fn unit_at(path: &str) -> Option<String> {
        match at(path).kind {
            LocationKind::Unit { name, .. } => Some(name),
            _ => None,
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
                let kind = at(&path).kind;
                assert!(stands_for.is_some() || kind == LocationKind::Unspecified, "{path}: {kind:?}");
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
    }

    #[test]
    fn nothing_has_no_owner_and_neither_has_a_slice_that_a_unit_makes_below_itself() {
        let nothing = ProcessLocation { kind: LocationKind::Unspecified, session_owner: None };
        assert_eq!((from_cgroups(&[]), at("")), (nothing.clone(), nothing));
        assert_eq!(at("/system.slice/x.service/user-1000.slice").session_owner, None);
    }

    fn said(path: &str, cgroups: &BelievedCgroups) -> String {
        let paths = [path.replace("CID", ID)];
        let refused = refused_cgroup(&paths, cgroups).map_or("", |_| ", refused");
        match ProcessLocation::from_cgroups(&paths, cgroups).kind {
            LocationKind::Workload(WorkloadPath::Container { runtime, .. }) => format!("{runtime}{refused}"),
            LocationKind::Workload(WorkloadPath::Job { job, .. }) => format!("job {job}{refused}"),
            LocationKind::Workload(WorkloadPath::Pod { uid, .. }) => format!("pod {uid}{refused}"),
            LocationKind::RootlessContainer { .. } => format!("rootless{refused}"),
            LocationKind::Unit { name, .. } => format!("{name}{refused}"),
            LocationKind::UserSession => format!("session{refused}"),
            other => format!("{other:?}{refused}"),
        }
    }

    #[test]
    fn below_a_container_or_a_service_that_is_no_runtime_nothing_is_believed_and_it_is_named() {
        let pod = "kubepods.slice/kubepods-pod3cae2e45_052c_4b11_80d3_4d7b2d2d3464.slice/crio-CID.scope";
        let user = "/user.slice/user-1000.slice/user@1000.service";
        for (path, expected) in [
            ("/lxc.payload.x/slurmstepd.scope/job_211/step_7", "lxc, refused"),
            ("/lxc.payload.x/kubepods", "lxc, refused"),
            ("/lxc.payload.x/system.slice/trainer.service", "lxc"),
            ("/docker/CID/docker/CID", "docker"),
            (&format!("/docker/CID/{pod}"), "docker, refused"),
            (
                &format!("/{pod}/slurmstepd.scope/job_211/step_7"),
                "pod 3cae2e45-052c-4b11-80d3-4d7b2d2d3464, refused",
            ),
            ("/system.slice/web.service/slurmstepd.scope/job_211/step_7", "web.service, refused"),
            (&format!("/system.slice/web.service/{pod}"), "web.service, refused"),
            ("/system.slice/web.service/docker-CID.scope", "web.service, refused"),
            ("/system.slice/session.scope/slurm/uid_1/job_7/step_0", "session.scope"),
            ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/job_211", "job 7"),
            ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/docker-CID.scope", "job 7"),
            (&format!("{user}/app.slice/docker.service/docker-CID.scope"), "rootless"),
            (&format!("{user}/user.slice/libpod-CID.scope/slurmstepd.scope/job_211"), "rootless, refused"),
            (&format!("{user}/slurmstepd.scope/job_211/step_0"), "session, refused"),
            (&format!("{user}/kubepods"), "session, refused"),
        ] {
            assert_eq!(said(path, &BelievedCgroups::default()), expected, "{path}");
        }
    }

    #[test]
    fn the_configuration_names_further_runtimes_and_containers_that_are_nodes() {
        let root = tempfile::tempdir().unwrap();
        let host = crate::holders::host::Host::at(root.path());
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let nodes = ["/lxc.payload.slurm", "/system.slice/docker-2b*", "/system.slice"];
        let cgroups = BelievedCgroups::new(&list(&["web.service", "my-*"]), &list(&nodes), &host);
        let pod = "kubelet/kubepods/pod3cae2e45-052c-4b11-80d3-4d7b2d2d3464/CID";
        for (path, expected) in [
            ("/system.slice/web.service/libpod-payload-CID", "podman"),
            ("/system.slice/my-runtime.service/CID", "unknown"),
            ("/lxc.payload.slurm/slurmstepd.scope/job_211/step_7", "job 211"),
            ("/lxc.payload.slurm/system.slice/nvidia-persistenced.service", "lxc"),
            ("/lxc.payload.slurm2/slurmstepd.scope/job_211/step_7", "lxc, refused"),
            (&format!("/system.slice/docker-CID.scope/{pod}"), "pod 3cae2e45-052c-4b11-80d3-4d7b2d2d3464"),
            (&format!("/docker/CID/{pod}"), "docker, refused"),
        ] {
            assert_eq!(said(path, &cgroups), expected, "{path}");
        }
    }

    #[test]
    fn a_job_below_a_container_of_a_pod_that_is_a_node_keeps_that_container() {
        let root = tempfile::tempdir().unwrap();
        let nodes = ["/kubepods/pod3cae2e45*/*".to_owned()];
        let cgroups = BelievedCgroups::new(&[], &nodes, &crate::holders::host::Host::at(root.path()));
        let path = |uid: &str| {
            format!("/kubepods/pod{uid}-052c-4b11-80d3-4d7b2d2d3464/{ID}/slurmstepd.scope/job_7/step_0")
        };
        let kind = |uid| ProcessLocation::from_cgroups(&[path(uid)], &cgroups).kind;
        let LocationKind::Workload(WorkloadPath::Job { job, pod, .. }) = kind("3cae2e45") else {
            panic!("{:?}", kind("3cae2e45"));
        };
        let pod_path = |uid: &str| WorkloadPath::Pod {
            uid: format!("{uid}-052c-4b11-80d3-4d7b2d2d3464"),
            container: ID.to_owned(),
        };
        assert_eq!((&*job, pod.as_deref()), ("7", Some(&pod_path("3cae2e45"))));
        assert_eq!(kind("4cae2e45"), LocationKind::Workload(pod_path("4cae2e45")));
    }

    #[test]
    fn an_agent_in_a_node_that_is_a_container_believes_the_cgroups_of_that_node() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let pod = format!("kubelet/kubepods/pod3cae2e45-052c-4b11-80d3-4d7b2d2d3464/{ID}");
        let believed = |own: &str| {
            std::fs::write(root.path().join("proc/self/cgroup"), format!("0::{}\n", own.replace("CID", ID)))
                .unwrap();
            let cgroups = BelievedCgroups::new(&[], &[], &crate::holders::host::Host::at(root.path()));
            said(&format!("/docker/CID/{pod}"), &cgroups)
        };
        assert_eq!(believed(&format!("/docker/CID/{pod}")), "pod 3cae2e45-052c-4b11-80d3-4d7b2d2d3464");
        assert_eq!(believed("/docker/CID"), "docker, refused", "the agent's own container is no node");
        assert_eq!(believed("/system.slice/gpumeter.service"), "docker, refused");
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(decode("train@run\\x2d7.service"), "train@run-7.service");
        assert_eq!(decode("machine-qemu\\x2d2\\x2dvm.scope"), "machine-qemu-2-vm.scope");
        assert_eq!(decode("_cpu.service"), "cpu.service");
        assert_eq!(decode("caf\\xc3\\xa9.service"), "café.service");
        assert_eq!(decode("plain.service"), "plain.service");
    }

    #[test]
    fn what_would_break_a_path_or_a_line_keeps_its_spelling() {
        for part in
            ["a\\x2fb.service", "a\\x0ab.service", "a\\xff.service", "a\\x2", "a\\xzz", "\\x00", "\\x"]
        {
            assert_eq!(decode(part), part);
        }
    }

    proptest! {
        #[test]
        fn any_part_is_decoded_without_a_panic(part in "(\\\\x[0-9a-g]{0,2}|\\PC|_){0,12}") {
            prop_assert!(!decode(&part).contains(char::is_control));
        }

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
            prop_assert_eq!(from_cgroups(&strings(paths)), from_cgroups(&strings(shuffled)));
        }
    }
}
