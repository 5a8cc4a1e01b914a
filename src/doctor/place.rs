//! What the agent needs of the machine it runs on: the host's processes, and a place for its ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::Finding;
use crate::config::Config;
use crate::holders::{ResolvedWorkloads, SessionGpu, identify, in_words};
use crate::host::{FIRST_PID_NAMESPACE, Host, ProcessError, UserDatabase};
use crate::ledger::Cause;
use crate::model::{UnattributedReason, Utc};
use crate::policy::{self, price_in_words, price_warning};
use crate::resolvers::unresolved_grants;
use crate::session::{LockState, look_at_node_lock};

/// What gives the agent the host's pids, and what is lost without them.
const REMEDY: &str = "run in the host's pid namespace (--pid=host, or hostPID: true), or GPU processes stay unnamed: holdings go \
                      on, and what is used outside of them is __unattributed__";

/// Whether the pids that the driver reports can be found in this pid namespace; `pids` are on GPUs now.
pub(super) fn processes(host: &Host, pids: &BTreeSet<u32>) -> Finding {
    let is_hidden = |pid: &u32| matches!(host.process(*pid), Err(ProcessError::Ended { .. }));
    if !pids.is_empty() && pids.iter().all(is_hidden) {
        let why = format!("/proc has none of the {} processes that are on GPUs; {REMEDY}", pids.len());
        return Finding::new("processes", false, why);
    }
    if let Err(error) = host.process(1) {
        let why = format!("/proc does not tell who process 1 is ({error}); {REMEDY}");
        return Finding::new("processes", false, why);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    match (namespaces(&status), fs::read_link("/proc/self/ns/pid")) {
        (1, Ok(namespace)) if namespace == Path::new(FIRST_PID_NAMESPACE) => {
            Finding::new("processes", true, "this is the host's pid namespace")
        }
        (1, _) if first_of_container(host).is_some() => {
            let why = format!("only this container's processes are visible; {REMEDY}");
            Finding::new("processes", false, why)
        }
        // Inside a container /proc looks the same as outside.
        (1, _) => {
            Finding::new("processes", true, format!("/proc tells who a process is; in a container {REMEDY}"))
        }
        (0, _) => {
            Finding::new("processes", true, "/proc tells who a process is; the kernel names no namespace")
        }
        (_, _) => {
            Finding::new("processes", false, format!("this is not the pid namespace of /proc; {REMEDY}"))
        }
    }
}

/// The name of process 1 where it is one that only a container begins with: the agent itself, or a pod's sandbox.
pub(super) fn first_of_container(host: &Host) -> Option<String> {
    let name = fs::read_to_string(host.path(Path::new("/proc/1/comm"))).ok()?;
    let name = name.trim();
    ["gpumeter", "pause"].contains(&name).then(|| name.to_owned())
}

/// Whether the processes on GPUs have owners whom the account can name, and why those that have none have none.
pub(super) fn owners(host: &Host, pids: &BTreeSet<u32>, workloads: &ResolvedWorkloads) -> Finding {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for pid in pids {
        let reason = match host.process(*pid) {
            Ok(process) => {
                let holder = identify(host, &process, workloads).map(|identity| identity.holder.id);
                holder.map_or(Some(UnattributedReason::Unknown), |id| id.unattributed_reason())
            }
            // It ended meanwhile, or is hidden from here, which is a finding of its own.
            Err(ProcessError::Ended { .. }) => None,
            Err(_) => Some(UnattributedReason::Unknown),
        };
        if let Some(reason) = reason {
            *reasons.entry(reason.name()).or_default() += 1;
        }
    }
    let unattributed: usize = reasons.values().sum();
    if unattributed == 0 {
        let why = format!("none of {} processes on GPUs is __unattributed__", pids.len());
        return Finding::new("owners", true, why);
    }
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let why = format!(
        "{unattributed} of {} processes on GPUs are __unattributed__, by reason: {}; what they \
         use is counted in gpu_unattributed_seconds_total",
        pids.len(),
        reasons.join(", ")
    );
    Finding::new("owners", false, why)
}

/// Whether the users and groups to whom the configuration grants holdings exist; nothing where it grants none.
pub(super) fn standing(config: &Config, users: &UserDatabase) -> Option<Finding> {
    let granted = config.attribution.standing.len();
    if granted == 0 {
        return None;
    }
    let problems = unresolved_grants(config, users);
    let why = if problems.is_empty() {
        format!("the users and groups of all {granted} standing holdings resolve")
    } else {
        problems.join("; ")
    };
    Some(Finding::new("standing", problems.is_empty(), why))
}

/// Whether each standing holding matches a GPU that the driver counts; nothing where there are none.
pub(super) fn grants(config: &Config, gpus: &[SessionGpu]) -> Option<Finding> {
    let granted = policy::grants(config);
    if granted.is_empty() {
        return None;
    }
    let without: Vec<String> = granted
        .iter()
        .map(|grant| (&grant.id, grant.unmatched(gpus.iter())))
        .filter(|(_, missing)| !missing.is_empty())
        .map(|(id, missing)| format!("{id} ({})", in_words(&missing)))
        .collect();
    let why = if without.is_empty() {
        format!("all {} standing holdings match their GPUs", granted.len())
    } else {
        format!(
            "attribution.standing: no GPU that the driver counts matches {}; such a grant holds nothing there: correct its gpu, \
             indices and UUIDs are those of nvidia-smi -L",
            without.join(", ")
        )
    };
    Some(Finding::new("grants", without.is_empty(), why))
}

/// Whether a price is in force, where prices are configured.
pub(super) fn prices(config: &Config, now: Utc) -> Finding {
    match price_warning(config, now) {
        Some(warning) => Finding::new("prices", false, warning),
        None => Finding::new("prices", true, price_in_words(config, now)),
    }
}

/// Whether the kernel's log can be read, where some XIDs stand alone.
pub(super) fn kernel_log(host: &Host) -> Finding {
    let why = match host.kernel_log(false) {
        Ok(_) => return Finding::new("kernel log", true, "/dev/kmsg can be read"),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => {
                "there is no /dev/kmsg; in a container give it that device, read-only".into()
            }
            ErrorKind::PermissionDenied => {
                "/dev/kmsg is refused: give CAP_SYSLOG (kernel.dmesg_restrict is 1; under systemd enable the drop-in \
                 kernel-log.conf), and in a container the device, read-only"
                    .to_owned()
            }
            _ => format!("/dev/kmsg: {error}"),
        },
    };
    Finding::new("kernel log", false, why)
}

/// How many pid namespaces the process has a number in, from that of `/proc` inwards.
fn namespaces(status: &str) -> usize {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .map_or(0, |numbers| numbers.split_ascii_whitespace().count())
}

/// Whether an agent holds the lock of which each node has one, and whether one could take it.
pub(super) fn node_lock(path: &Path) -> Finding {
    let name = path.display();
    match look_at_node_lock(path) {
        Ok(LockState::Held(pid)) => Finding::new("node lock", true, format!("{name}: held by process {pid}")),
        Ok(LockState::Free) => {
            Finding::new("node lock", true, format!("{name}: not held; no agent reads a real driver here"))
        }
        Ok(LockState::Absent) => Finding::new(
            "node lock",
            true,
            format!("{name}: does not exist yet; no agent reads a real driver here"),
        ),
        Err(error) => Finding::new("node lock", false, error.to_string()),
    }
}

/// Whether a ledger can be kept where it is configured.
pub(super) fn ledger(config: &Config) -> Finding {
    let path = &config.ledger.path;
    let name = path.display();
    if !config.ledger.enabled {
        return Finding::new(
            "ledger",
            false,
            "switched off by ledger.enabled: accounts and verdicts of the hardware end with the agent",
        );
    }
    let place = path.ancestors().skip(1).find(|place| place.exists()).unwrap_or(Path::new("."));
    if !place.is_dir() {
        let why = format!("{name}: {} is not a directory; set ledger.path", place.display());
        return Finding::new("ledger", false, why);
    }
    let file = if path.exists() { access(path, Access::READ_OK | Access::WRITE_OK) } else { Ok(()) };
    if let Err(error) = access(place, Access::WRITE_OK | Access::EXEC_OK).and(file) {
        let root = if error == Errno::ACCESS { "run the agent as root, or " } else { "" };
        let why = format!("{name}: cannot be written in {}: {error}; {root}set ledger.path", place.display());
        return Finding::new("ledger", false, why);
    }
    match crate::ledger::check_unowned(path) {
        Ok(()) if path.parent().is_some_and(|directory| !directory.exists()) => Finding::new(
            "ledger",
            true,
            format!("{name}: its directory does not exist; the agent makes it when it starts"),
        ),
        Ok(()) if !path.exists() => {
            Finding::new("ledger", true, format!("{name}: does not exist; the agent makes it when it starts"))
        }
        Ok(()) => Finding::new("ledger", true, name.to_string()),
        // That is how it should be on a node where the agent runs.
        Err(owned) => match owned.cause {
            Cause::Owned { pid: Some(pid) } => {
                Finding::new("ledger", true, format!("{name}: a running agent writes it, process {pid}"))
            }
            other => Finding::new("ledger", true, format!("{name}: {other}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::session::take_node_lock;

    #[test]
    fn without_the_hosts_pids_the_processes_on_gpus_are_not_in_proc() {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host");
        let host = Host::at(tree.join("nested"));
        let hidden = processes(&host, &BTreeSet::from([98, 99]));
        assert!(!hidden.works, "{}", hidden.why);
        for words in ["/proc has none of the 2 processes", "hostPID: true", "holdings go on"] {
            assert!(hidden.why.contains(words), "{}", hidden.why);
        }
        // One that has ended meanwhile is no sign.
        assert!(!processes(&host, &BTreeSet::from([99, 400])).why.contains("/proc has none"));
    }

    #[test]
    fn processes_without_an_owner_are_counted_by_reason() {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host");
        let nested =
            owners(&Host::at(tree.join("nested")), &(400..=405).collect(), &ResolvedWorkloads::default());
        assert!(!nested.works);
        let counts = "2 of 6 processes on GPUs are __unattributed__, by reason: job 1, pod 1;";
        assert!(nested.why.starts_with(counts), "{}", nested.why);
        let named = owners(
            &Host::at(tree.join("v2")),
            &BTreeSet::from([2001, 2100, 9999]),
            &ResolvedWorkloads::default(),
        );
        assert!(named.works, "{}", named.why);
    }

    #[test]
    fn the_node_lock_is_told_with_its_path_and_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gpumeter.lock");
        let name = path.display().to_string();
        let why = |words: &str| format!("{name}: {words}");
        assert_eq!(super::node_lock(&path).why, why("does not exist yet; no agent reads a real driver here"));
        let held = take_node_lock(&path).unwrap();
        assert_eq!(super::node_lock(&path).why, why(&format!("held by process {}", std::process::id())));
        drop(held);
        assert_eq!(super::node_lock(&path).why, why("not held; no agent reads a real driver here"));
    }

    #[test]
    fn a_ledger_that_is_not_there_yet_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let told = |path: &Path| {
            let config = Config::parse(&format!("ledger: {{path: {}}}", path.display()), "test").unwrap();
            let finding = super::ledger(&config);
            (finding.works, finding.why.split_once(": ").map(|(_, words)| words.to_owned()))
        };
        let words = |words: &str| (true, Some(format!("{words}; the agent makes it when it starts")));
        let file = directory.path().join("made/ledger.db");
        assert_eq!(told(&file), words("its directory does not exist"));
        std::fs::create_dir(directory.path().join("made")).unwrap();
        assert_eq!(told(&file), words("does not exist"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(told(&file), (true, None));
    }

    #[test]
    fn a_grant_that_matches_no_gpu_is_named() {
        let gpus = [SessionGpu { index: Some(0), uuid: "GPU-1d1c".into() }];
        let grants = |text: &str| grants(&Config::parse(text, "test").unwrap(), &gpus);
        assert!(grants("").is_none());
        let well = "attribution: {standing: [{gpu: all, user: alice, fraction: 1/8}, {gpu: 0, user: bob, fraction: 1/8}]}";
        assert!(grants(well).unwrap().works);
        let sick = "attribution: {standing: [{id: lab, gpu: 8, user: alice, fraction: 1/8}, {gpu: 0, user: bob, fraction: \
                    1/8}, {gpu: 9, user: bob, fraction: 1/8}]}";
        let finding = grants(sick).unwrap();
        assert!(!finding.works && finding.why.contains("matches lab (GPU 8), 3 (GPU 9);"), "{}", finding.why);
    }

    #[test]
    fn namespaces_are_counted_from_the_status_file() {
        assert_eq!(namespaces("Name:\tsh\nNSpid:\t12\nNSpgid:\t12\n"), 1);
        assert_eq!(namespaces("NSpid:\t4711\t12\n"), 2);
        assert_eq!(namespaces("Name:\tsh\n"), 0);
    }
}
