//! What the agent needs of the machine it runs on: the host's processes, the kernel log, a place for its ledger, an OTLP
//! destination.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::Finding;
use crate::accounting::ledger::Cause;
use crate::accounting::tenants::{TenantNames, TenantRules};
use crate::agent::policy::{self, price_in_words, price_warning, refused_counters};
use crate::agent::session::{LockState, look_at_node_lock};
use crate::config::Config;
use crate::holders::host::{FIRST_PID_NAMESPACE, Host, ProcessError, ProcessInfo};
use crate::holders::{ResolvedWorkloads, identify, refused_cgroup};
use crate::model::{UnattributedReason, Utc, shown};
use crate::output::push::{Destination, Signal, compress, send};

/// How the agent sees the host's pids, and what is lost without them.
const REMEDY: &str = "run in the host's pid namespace (--pid=host, or hostPID: true); otherwise GPU processes cannot be named: \
                      GPU time granted to pods, to jobs or by attribution.standing is still billed, all other use is \
                      booked on __unattributed__";

/// Whether `pids`, which the driver reports on GPUs now, are processes of this pid namespace.
pub(super) fn check_processes(host: &Host, pids: &BTreeSet<u32>) -> Finding {
    let finding = |works, why: String| Finding::new("processes", works, why);
    let is_hidden = |pid: &u32| matches!(host.process(*pid), Err(ProcessError::Ended { .. }));
    if !pids.is_empty() && pids.iter().all(is_hidden) {
        let why = format!("/proc has none of the {} processes that are on GPUs; {REMEDY}", pids.len());
        return finding(false, why);
    }
    if let Err(error) = host.process(1) {
        return finding(false, format!("process 1 cannot be read in /proc ({error}); {REMEDY}"));
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    match (count_pid_namespaces(&status), fs::read_link("/proc/self/ns/pid")) {
        (1, Ok(namespace)) if namespace == Path::new(FIRST_PID_NAMESPACE) => {
            finding(true, "this is the host's pid namespace".into())
        }
        (1, _) if container_init(host).is_some() => {
            finding(false, format!("only this container's processes are visible; {REMEDY}"))
        }
        // Inside a container /proc looks the same as outside.
        (1, _) => finding(true, format!("/proc can be read. If this is a container, also {REMEDY}")),
        (0, _) => finding(true, "/proc can be read; the kernel reports no pid namespaces".into()),
        (_, _) => finding(false, format!("/proc is of another pid namespace; {REMEDY}")),
    }
}

/// The name of process 1 if only a container starts with it: the agent itself, or a pod's sandbox.
pub(super) fn container_init(host: &Host) -> Option<String> {
    let name = fs::read_to_string(host.path(Path::new("/proc/1/comm"))).ok()?;
    let name = name.trim();
    ["gpumeter", "pause"].contains(&name).then(|| name.to_owned())
}

const MOST_NAMED: usize = 5;

/// How many processes on GPUs have no owner whom the account can name, by reason, and the first of them with their commands.
pub(super) fn check_owners(host: &Host, pids: &BTreeSet<u32>, workloads: &ResolvedWorkloads) -> Finding {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut named: Vec<String> = Vec::new();
    for pid in pids {
        let (reason, name) = match host.process(*pid) {
            Ok(process) => {
                let holder = identify(host, &process, workloads).map(|identity| identity.holder.id);
                let reason = holder.map_or(Some(UnattributedReason::Unknown), |id| id.unattributed_reason());
                let Some(reason) = reason else { continue };
                (reason, describe_unknown(host, &process, reason))
            }
            // It has ended since, or is hidden, which is a finding of its own.
            Err(ProcessError::Ended { .. }) => continue,
            Err(_) => (UnattributedReason::Unknown, format!("pid {pid}")),
        };
        *reasons.entry(reason.name()).or_default() += 1;
        named.push(name);
    }
    let unattributed: usize = reasons.values().sum();
    if unattributed == 0 {
        let why = match pids.len() {
            0 => "no process uses a GPU now".to_owned(),
            1 => "the one process on a GPU has an owner".to_owned(),
            count => format!("all {count} processes on GPUs have an owner"),
        };
        return Finding::new("owners", true, why);
    }
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let mut why = format!(
        "{unattributed} of {} processes on GPUs are __unattributed__, by reason: {}; what they \
         use is counted in gpu_unattributed_seconds_total",
        pids.len(),
        reasons.join(", ")
    );
    let more = named.len().saturating_sub(MOST_NAMED);
    named.truncate(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    why.push_str(&format!("; they are {}{more}", named.join(", ")));
    Finding::new("owners", false, why)
}

/// A process without an owner by pid and command, and by user and cgroup where the cgroup has an unknown form: not where the user
/// has no name, nor in a pod or job, in which a uid may be the image's.
fn describe_unknown(host: &Host, process: &ProcessInfo, reason: UnattributedReason) -> String {
    let command = format!("pid {} ({})", process.pid, shown(&process.name));
    if matches!(reason, UnattributedReason::Pod | UnattributedReason::Job) {
        return command;
    }
    let user = host.users().look_up(process.uid).ok().flatten();
    let path = process.cgroups.iter().max_by_key(|path| path.len());
    match user.zip(path) {
        Some((user, path)) => format!("{command} of user {} in {}", shown(&user), shown(path)),
        None => command,
    }
}

/// The tenants whose name comes from two kinds of holders, of those who are on GPUs or were granted some; nothing without
/// such tenants.
pub(super) fn check_tenants(
    host: &Host,
    pids: &BTreeSet<u32>,
    workloads: &ResolvedWorkloads,
    rules: &TenantRules,
) -> Option<Finding> {
    let processes = pids.iter().filter_map(|pid| host.process(*pid).ok());
    let users = processes.filter_map(|process| Some(identify(host, &process, workloads).ok()?.holder));
    let granted = workloads.allocations.iter().map(|allocation| allocation.holder.clone());
    let mut names = TenantNames::default();
    let problems: Vec<String> = users.chain(granted).filter_map(|holder| names.add(&holder, rules)).collect();
    (!problems.is_empty()).then(|| Finding::new("tenants", false, problems.join("; ")))
}

/// Names a process on a GPU whose cgroup reads like that of a pod, job or container, but lies below a container or a
/// service whose processes may have chosen its name; no finding where there is none.
pub(super) fn check_cgroups(
    host: &Host,
    pids: &BTreeSet<u32>,
    workloads: &ResolvedWorkloads,
) -> Option<Finding> {
    let processes: Vec<_> = pids.iter().filter_map(|pid| host.process(*pid).ok()).collect();
    let refused = processes
        .iter()
        .filter_map(|process| Some((process, refused_cgroup(&process.cgroups, &workloads.cgroups)?)));
    let refused: Vec<_> = refused.collect();
    let (process, path) = refused.first()?;
    let holder = identify(host, process, workloads).map(|identity| identity.holder.id.to_string());
    let why = format!(
        "{} processes on GPUs are in cgroups whose names are not believed, since what runs in the container or service \
         above may have chosen them: pid {} in {} counts as {}; if that container is a node, name its path in \
         attribution.container_nodes, if that service runs containers, in attribution.runtimes",
        refused.len(),
        process.pid,
        shown(path),
        shown(&holder.unwrap_or_else(|_| "a user without a name".to_owned())),
    );
    Some(Finding::new("cgroups", false, why))
}

pub(super) fn check_dcgm_counters(config: &Config) -> Option<Finding> {
    config.web.dcgm_counters.as_ref()?;
    let mut config = config.clone();
    let (works, why) = match config.read_dcgm_counters() {
        Err(problems) => (false, problems.to_string()),
        Ok(()) => match refused_counters(&config) {
            refused if refused.is_empty() => {
                (true, "every counter of web.dcgm_counters is on the page".into())
            }
            refused => (false, refused.join("; ")),
        },
    };
    Some(Finding::new("dcgm counters", works, why))
}

pub(super) fn check_prices(config: &Config, now: Utc) -> Finding {
    match price_warning(config, now) {
        Some(warning) => Finding::new("prices", false, warning),
        None => Finding::new("prices", true, price_in_words(config, now)),
    }
}

/// Whether the kernel log can be read; some XIDs are reported nowhere else.
pub(super) fn check_kernel_log(host: &Host) -> Finding {
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

/// How many pid namespaces this process is in, counted from that of `/proc` inwards.
fn count_pid_namespaces(status: &str) -> usize {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .map_or(0, |numbers| numbers.split_ascii_whitespace().count())
}

pub(super) fn check_node_lock(path: &Path) -> Finding {
    let name = path.display();
    let why = match look_at_node_lock(path) {
        Ok(LockState::Held(pid)) => format!("{name}: held by process {pid}"),
        Ok(LockState::Free) => format!("{name}: not held; no agent reads a real driver here"),
        Ok(LockState::Absent) => format!("{name}: does not exist; no agent reads a real driver here"),
        Err(error) => return Finding::new("node lock", false, error.to_string()),
    };
    Finding::new("node lock", true, why)
}

/// Says that systemd opens the port, where the socket unit is enabled. Whether its addresses and the command fit is what the agent
/// logs when it starts: only it gets the sockets.
pub(super) fn check_socket_unit(host: &Host) -> Option<Finding> {
    let enabled = host.path(Path::new("/etc/systemd/system/sockets.target.wants/gpumeter.socket"));
    fs::symlink_metadata(enabled).ok()?;
    let why = "gpumeter.socket is enabled: the addresses are those that `systemctl cat gpumeter.socket` shows, and web.listen is \
               not used";
    Some(Finding::new("socket unit", true, why))
}

pub(super) fn check_ledger(config: &Config) -> Finding {
    let finding = |works, why: String| Finding::new("ledger", works, why);
    if !config.ledger.enabled {
        let why = "ledger.enabled is false: the account and the state of faults are lost when the agent ends";
        return finding(false, why.into());
    }
    let path = &config.ledger.path;
    let name = path.display();
    let parent = path.ancestors().skip(1).find(|parent| parent.exists()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return finding(false, format!("{name}: {} is not a directory; set ledger.path", parent.display()));
    }
    let file = if path.exists() { access(path, Access::READ_OK | Access::WRITE_OK) } else { Ok(()) };
    if let Err(error) = access(parent, Access::WRITE_OK | Access::EXEC_OK).and(file) {
        let root = if error == Errno::ACCESS { "run the agent as root, or " } else { "" };
        let parent = parent.display();
        return finding(
            false,
            format!("{name}: cannot be written in {parent}: {error}; {root}set ledger.path"),
        );
    }
    if let Err(emptied) = crate::accounting::ledger::check_not_emptied(path) {
        return finding(false, format!("{name}: {}", emptied.cause));
    }
    let state = match crate::accounting::ledger::check_unowned(path).map_err(|owned| owned.cause) {
        Ok(()) if path.parent().is_some_and(|directory| !directory.exists()) => {
            ": its directory does not exist; the agent makes it when it starts".to_owned()
        }
        Ok(()) if !path.exists() => ": does not exist; the agent makes it when it starts".to_owned(),
        Ok(()) => String::new(),
        // On a node where the agent runs, this is as it should be.
        Err(Cause::Owned { pid: Some(pid) }) => format!(": a running agent writes it, process {pid}"),
        Err(other) => format!(": {other}"),
    };
    finding(true, format!("{name}{state}"))
}

/// Whether each OTLP destination accepts a request without points, and where the settings come from; nothing if no push is
/// configured.
pub(super) fn check_otlp(config: &Config) -> Vec<Finding> {
    let plan = match policy::otlp_plan(config) {
        Ok(plan) => plan,
        Err(problem) => return vec![Finding::new("otlp", false, problem.to_string())],
    };
    if plan.destinations.is_empty() {
        return Vec::new();
    }
    let mut findings = vec![Finding::new("otlp settings", true, plan.origins.join("; "))];
    for settings in &plan.destinations {
        for signal in Signal::ALL.into_iter().filter(|signal| signal.goes_to(settings)) {
            let outcome = send_empty_request(&Destination::new(settings, signal));
            findings.push(Finding::new("otlp", outcome.is_ok(), outcome.unwrap_or_else(|problem| problem)));
        }
    }
    findings
}

fn send_empty_request(destination: &Destination) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("{destination} was not tried: {error}"))?;
    let outcome = runtime.block_on(send(destination, compress(&[])));
    // A lookup in the name service may hang; the command does not wait for it.
    runtime.shutdown_background();
    let accepted = outcome.map_err(|failure| format!("{destination}: {failure}"))?;
    let message = match accepted.message.as_str() {
        "" => String::new(),
        message => format!(" with the message: {message}"),
    };
    Ok(format!("{destination} accepted an empty request{message}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::agent::session::take_node_lock;
    use crate::holders::Allocation;
    use crate::model::{Fact, Facts, Fraction, Holder, HolderKind, HoldingSource};

    #[test]
    fn without_the_hosts_pids_the_processes_on_gpus_are_not_in_proc() {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host");
        let host = Host::at(tree.join("nested"));
        let hidden = check_processes(&host, &BTreeSet::from([98, 99]));
        assert!(!hidden.works, "{}", hidden.why);
        for words in ["/proc has none of the 2 processes", "hostPID: true", "is still billed"] {
            assert!(hidden.why.contains(words), "{}", hidden.why);
        }
        // One of them is visible.
        assert!(!check_processes(&host, &BTreeSet::from([99, 400])).why.contains("/proc has none"));
    }

    #[test]
    fn a_cgroup_that_is_not_believed_is_named_with_whom_its_process_counts_as() {
        let host = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/nested");
        let (host, workloads) = (Host::at(host), ResolvedWorkloads::default());
        let finding = check_cgroups(&host, &(400..=405).collect(), &workloads).unwrap();
        assert!(!finding.works);
        for words in ["1 processes", "pid 400 in /system.slice/docker-", "counts as container:docker/2b18"] {
            assert!(finding.why.contains(words), "{}", finding.why);
        }
        assert!(check_cgroups(&host, &(401..=405).collect(), &workloads).is_none());
    }

    #[test]
    fn processes_without_an_owner_are_counted_by_reason() {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host");
        let nested = check_owners(
            &Host::at(tree.join("nested")),
            &(400..=405).collect(),
            &ResolvedWorkloads::default(),
        );
        assert!(!nested.works);
        let counts = "1 of 6 processes on GPUs are __unattributed__, by reason: job 1;";
        assert!(nested.why.starts_with(counts) && nested.why.contains("; they are pid "), "{}", nested.why);
        let unknown = check_owners(
            &Host::at(tree.join("hostile")),
            &BTreeSet::from([512]),
            &ResolvedWorkloads::default(),
        );
        let named = "; they are pid 512 (i) of user alice in /machine.slice/other.service/payload";
        assert!(unknown.why.ends_with(named), "{}", unknown.why);
        let named = check_owners(
            &Host::at(tree.join("v2")),
            &BTreeSet::from([2001, 2100, 9999]),
            &ResolvedWorkloads::default(),
        );
        assert!(named.works, "{}", named.why);
        let nobody =
            check_owners(&Host::at(tree.join("v2")), &BTreeSet::new(), &ResolvedWorkloads::default());
        assert_eq!((nobody.works, &*nobody.why), (true, "no process uses a GPU now"));
    }

    #[test]
    fn a_namespace_and_a_user_of_one_name_are_a_finding() {
        let host = Host::at("/nonexistent");
        let pod = [(Fact::PodUid, "1"), (Fact::PodContainer, "c"), (Fact::Namespace, "alice")];
        let pod = Holder::new(HolderKind::Pod, Facts::new(pod));
        let check = |holders: &[Holder]| {
            let (device, fraction, source) = ("GPU-0", Fraction::WHOLE, HoldingSource::Kubernetes);
            let allocations = holders.iter().map(|holder| Allocation::new(holder, device, fraction, source));
            let workloads =
                ResolvedWorkloads { allocations: allocations.collect(), ..ResolvedWorkloads::default() };
            check_tenants(&host, &BTreeSet::new(), &workloads, &TenantRules::default())
        };
        assert!(check(std::slice::from_ref(&pod)).is_none());
        let finding = check(&[pod, Holder::user("alice", None)]).unwrap();
        assert!(
            !finding.works && finding.why.contains("k8s:1/c") && finding.why.contains("user:alice"),
            "{}",
            finding.why
        );
    }

    #[test]
    fn the_finding_on_the_node_lock_names_its_path_and_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gpumeter.lock");
        let name = path.display().to_string();
        let why = |words: &str| format!("{name}: {words}");
        assert_eq!(check_node_lock(&path).why, why("does not exist; no agent reads a real driver here"));
        let held = take_node_lock(&path).unwrap();
        assert_eq!(check_node_lock(&path).why, why(&format!("held by process {}", std::process::id())));
        drop(held);
        assert_eq!(check_node_lock(&path).why, why("not held; no agent reads a real driver here"));
    }

    #[test]
    fn a_ledger_that_does_not_exist_is_no_problem() {
        let directory = tempfile::tempdir().unwrap();
        let checked = |path: &Path| {
            let config = Config::parse(&format!("ledger: {{path: {}}}", path.display()), "test").unwrap();
            let finding = check_ledger(&config);
            (finding.works, finding.why.split_once(": ").map(|(_, words)| words.to_owned()))
        };
        let words = |words: &str| (true, Some(format!("{words}; the agent makes it when it starts")));
        let file = directory.path().join("made/ledger.db");
        assert_eq!(checked(&file), words("its directory does not exist"));
        std::fs::create_dir(directory.path().join("made")).unwrap();
        assert_eq!(checked(&file), words("does not exist"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(checked(&file), (true, None));
    }

    #[test]
    fn namespaces_are_counted_from_the_status_file() {
        assert_eq!(count_pid_namespaces("Name:\tsh\nNSpid:\t12\nNSpgid:\t12\n"), 1);
        assert_eq!(count_pid_namespaces("NSpid:\t4711\t12\n"), 2);
        assert_eq!(count_pid_namespaces("Name:\tsh\n"), 0);
    }
}
