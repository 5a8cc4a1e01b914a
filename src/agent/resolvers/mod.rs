//! The threads that find out who uses and holds GPUs: each reads one source and publishes the last result.
//!
//! The sources are `/proc`, the kubelet, Slurm's records, a container runtime and the name service. A source that does
//! not respond delays its own thread only, and its last result stays in force.

mod aside;
pub(crate) mod containers;
mod installed;
pub(crate) mod jobs;
pub(crate) mod pods;
pub(crate) mod processes;
pub(crate) mod users;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

use crate::accounting::batches::{Recovered, RecoveredShare};
use crate::agent::policy::CurrentPolicy;
use crate::holders::host::Host;
use crate::holders::{AllocatedDevice, Allocation, ResolvedWorkloads};
use crate::model::snapshot::Roster;
use crate::model::{HolderKind, HoldingSource, Nanoseconds};
use crate::runtime::clock::{Clock, Stop, system_now};
use crate::runtime::thread::{self, Thread};

pub(crate) use installed::installed_scheduler;
pub(crate) use processes::SeenProcesses;
pub use users::unresolved_grants;

/// How often each thread looks whether a round is due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a kubelet or runtime is asked without a request.
const REFRESH_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// How long the start of the agent waits for the first round of a scheduler's resolver: holdings go on across a restart
/// of the agent only if its first tick knows them.
const FIRST_ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread that has finished no round for this long does not answer any more. It is three times the longest interval.
const SILENT_AFTER: Nanoseconds = Nanoseconds(3 * REFRESH_INTERVAL.0);

/// What the resolver threads share with each other and with the tick loop.
pub(crate) struct Resolvers {
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) host: Host,
    pub(crate) policy: Arc<CurrentPolicy>,
    /// The GPUs of the node as of the last tick; none before the first.
    pub(crate) gpus: Mutex<Option<TrackedGpus>>,
    pub(crate) simulated: Arc<AtomicBool>,
    /// Whether this process only looks, and writes no file.
    pub(crate) observes: bool,
    pub(crate) processes: Arc<SeenProcesses>,
    pub(crate) workloads: Mutex<Arc<ResolvedWorkloads>>,
    pub(crate) statuses: ResolverStatuses,
}

/// The GPUs that the tick loop accounts for.
pub(crate) struct TrackedGpus {
    pub(crate) roster: Arc<Roster>,
    pub(crate) listed: Vec<bool>,
}

pub(crate) struct ResolverRound {
    /// The value of the label `resolver`.
    pub(crate) resolver: &'static str,
    pub(crate) succeeded: bool,
    /// Age of the last success.
    pub(crate) age: Option<Nanoseconds>,
}

impl Resolvers {
    pub(crate) fn workloads(&self) -> Arc<ResolvedWorkloads> {
        Arc::clone(&self.workloads.lock())
    }

    fn update_workloads(&self, change: impl FnOnce(&mut ResolvedWorkloads)) {
        let mut workloads = self.workloads.lock();
        let workloads = Arc::make_mut(&mut workloads);
        change(workloads);
        workloads.nest_jobs();
    }

    /// Allocates what that scheduler had granted when the agent last stopped in this boot, until its resolver knows better.
    fn allocate_recovered(&self, recovered: Option<&Recovered>, source: HoldingSource) {
        let shares = recovered.into_iter().flat_map(|recovered| &recovered.shares);
        let shares = shares.filter(|share| share.source == source).map(|share| {
            let RecoveredShare { gpu, gpu_instance, holder, fraction, .. } = share.clone();
            let device = match gpu_instance {
                Some(id) => AllocatedDevice::Instance { gpu, id },
                None => AllocatedDevice::Uuid(gpu),
            };
            Allocation::new(&holder, device, fraction, source)
        });
        let shares: Vec<Allocation> = shares.collect();
        self.update_workloads(|workloads| workloads.allocate(source, &shares));
    }

    /// Whether a process on a GPU runs in a workload of that kind, whether or not it has a name.
    fn has_processes_of(&self, kind: HolderKind) -> bool {
        let (identities, _) = self.processes.get();
        identities.holders().any(|holder| holder.id.workload_kind() == Some(kind))
    }

    fn allocated(&self, source: HoldingSource) -> Vec<Allocation> {
        self.workloads().allocations.iter().filter(|one| one.source == source).cloned().collect()
    }

    /// The last round of each resolver that has had one, or has not finished one for long.
    pub(crate) fn last_rounds(&self) -> Vec<ResolverRound> {
        let (clock, now) = (self.clock.now().boottime, system_now().boottime);
        let statuses = &self.statuses;
        let mut rounds = Vec::new();
        let mut add = |status: &ResolverStatus, last: Option<LastRound>, at: Nanoseconds| {
            let is_silent = status.check_silence(now);
            // Rounds of `host` and `users` are told by what they publish, but a panic of theirs by their status alone.
            let has_failed = status.last().is_some_and(|last| !last.succeeded);
            if last.is_none() && !is_silent && !has_failed {
                return;
            }
            let succeeded_at = last.and_then(|last| last.succeeded_at);
            let age = succeeded_at.map(|succeeded| Nanoseconds(at.0.saturating_sub(succeeded.0)));
            let succeeded = !is_silent && !has_failed && last.is_some_and(|last| last.succeeded);
            rounds.push(ResolverRound { resolver: status.name, succeeded, age });
        };
        let success = |at| LastRound { succeeded: true, succeeded_at: Some(at) };
        add(&statuses.host, self.processes.get().1.map(success), clock);
        for status in [&statuses.users].into_iter().chain(statuses.of_workloads()) {
            add(status, status.last(), now);
        }
        rounds
    }

    /// Starts the thread of a resolver. A panic, which is logged, ends one run of it; the next begins anew, so that one
    /// answer that it cannot cope with does not stop the account.
    fn start(
        self: &Arc<Self>,
        status: fn(&ResolverStatuses) -> &ResolverStatus,
        mut run: impl FnMut(&Arc<Self>) + Send + 'static,
    ) -> Result<(), thread::Error> {
        let (shared, mut has_failed) = (Arc::clone(self), false);
        let own = status(&self.statuses);
        own.finish_round();
        Thread::start_again(own.name, &self.stop, move || {
            if std::mem::replace(&mut has_failed, true) {
                let own = status(&shared.statuses);
                own.record_failure(false);
                tracing::error!(
                    resolver = own.name,
                    "a resolver has failed, which is a defect of the agent; it is started again, and its last result stays in use"
                );
            }
            run(&shared);
        })?;
        Ok(())
    }

    /// Starts the thread of a resolver with a round each second. `begin` makes the state of a run and returns its rounds; none where
    /// it cannot, which it logs. The channel closes after the first round.
    fn start_rounds<R: FnMut(&Self)>(
        self: &Arc<Self>,
        status: fn(&ResolverStatuses) -> &ResolverStatus,
        mut begin: impl FnMut(&Arc<Self>) -> Option<R> + Send + 'static,
    ) -> Result<mpsc::Receiver<()>, thread::Error> {
        let (done, first_round) = mpsc::channel();
        let mut done = Some(done);
        self.start(status, move |shared| {
            let Some(mut run_round) = begin(shared) else { return };
            loop {
                run_round(shared);
                drop(done.take());
                status(&shared.statuses).finish_round();
                if shared.stop.wait(POLL_INTERVAL) {
                    return;
                }
            }
        })?;
        Ok(first_round)
    }
}

/// Starts the threads that identify processes and workloads. `agent` is the agent's pid where it runs on that host.
pub(crate) fn start(
    shared: &Arc<Resolvers>,
    recovered: Option<&Recovered>,
    agent: Option<u32>,
) -> Result<(), thread::Error> {
    pods::start(shared, recovered)?;
    jobs::start(shared, recovered)?;
    containers::start(shared)?;
    processes::start(agent, shared)
}

pub(crate) struct ResolverStatuses {
    host: ResolverStatus,
    users: ResolverStatus,
    pods: ResolverStatus,
    jobs: ResolverStatus,
    containers: ResolverStatus,
}

impl Default for ResolverStatuses {
    fn default() -> Self {
        Self {
            host: ResolverStatus::new("host", None),
            users: ResolverStatus::new("users", None),
            pods: ResolverStatus::new("pods", Some(HolderKind::Pod)),
            jobs: ResolverStatus::new("jobs", Some(HolderKind::Slurm)),
            containers: ResolverStatus::new("containers", Some(HolderKind::Container)),
        }
    }
}

impl ResolverStatuses {
    const fn of_workloads(&self) -> [&ResolverStatus; 3] {
        [&self.pods, &self.jobs, &self.containers]
    }

    fn request_rounds(&self, kinds: &BTreeSet<HolderKind>) {
        let is_wanted = |status: &&ResolverStatus| status.kind.is_some_and(|kind| kinds.contains(&kind));
        for status in self.of_workloads().into_iter().filter(is_wanted) {
            status.is_requested.store(true, Ordering::Relaxed);
        }
    }
}

struct ResolverStatus {
    name: &'static str,
    kind: Option<HolderKind>,
    is_requested: AtomicBool,
    last: Mutex<Option<LastRound>>,
    /// Time since boot at which its thread finished a round, also one without a question; 0 where it has no thread.
    finished: AtomicU64,
    /// Whether the log says that it does not answer.
    is_silent: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastRound {
    succeeded: bool,
    /// Time since boot of the last success.
    succeeded_at: Option<Nanoseconds>,
}

impl ResolverStatus {
    const fn new(name: &'static str, kind: Option<HolderKind>) -> Self {
        Self {
            name,
            kind,
            is_requested: AtomicBool::new(false),
            last: Mutex::new(None),
            finished: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
        }
    }

    fn finish_round(&self) {
        self.finished.store(system_now().boottime.0, Ordering::Relaxed);
    }

    /// Whether its thread has finished no round for long; a change is logged.
    fn check_silence(&self, now: Nanoseconds) -> bool {
        let finished = self.finished.load(Ordering::Relaxed);
        let is_silent = finished > 0 && now.0.saturating_sub(finished) > SILENT_AFTER.0;
        if self.is_silent.swap(is_silent, Ordering::Relaxed) != is_silent {
            if is_silent {
                tracing::warn!(
                    resolver = self.name,
                    "a resolver has not answered for half a minute; what it told last stays in force (docs/troubleshooting.md)"
                );
            } else {
                tracing::info!(resolver = self.name, "the resolver answers again");
            }
        }
        is_silent
    }

    fn take_request(&self) -> bool {
        self.is_requested.swap(false, Ordering::Relaxed)
    }

    /// The last round; none before the first, and where there was never a source.
    fn last(&self) -> Option<LastRound> {
        *self.last.lock()
    }

    /// Records a successful round. Returns whether it is the first round or the first success after a failure.
    fn record_success(&self, now: Nanoseconds) -> bool {
        let last = LastRound { succeeded: true, succeeded_at: Some(now) };
        let before = self.last.lock().replace(last);
        before.is_none_or(|before| !before.succeeded)
    }

    /// Records a failed round. Returns whether it is the first round or the first failure after a success. A source that
    /// was never there is no failure where `is_optional`, as nothing on the node needs it.
    fn record_failure(&self, is_optional: bool) -> bool {
        let mut last = self.last.lock();
        if last.is_none() && is_optional {
            return false;
        }
        let succeeded_at = last.and_then(|before| before.succeeded_at);
        let before = last.replace(LastRound { succeeded: false, succeeded_at });
        before.is_none_or(|before| before.succeeded)
    }
}

/// Logs the problems that were not there in the last round, and keeps all for the next.
fn log_new_problems(logged: &mut BTreeSet<String>, problems: BTreeSet<String>) {
    for problem in problems.difference(logged) {
        tracing::warn!("{problem}");
    }
    *logged = problems;
}

fn replace<T: PartialEq>(published: &mut Arc<T>, value: T) {
    if **published != value {
        *published = Arc::new(value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::{Once, mpsc};

    use super::*;
    use crate::agent::policy::AgentPolicy;
    use crate::config::Config;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn resolvers_below(root: &Path) -> Arc<Resolvers> {
        let config = "attribution: {containers: {socket: /run/docker.sock}}";
        let host = Host::at(root);
        Arc::new(Resolvers {
            clock: Clock::System,
            stop: Stop::default(),
            policy: Arc::new(CurrentPolicy::new(AgentPolicy::new(
                Config::parse(config, "test").unwrap(),
                None,
            ))),
            gpus: Mutex::default(),
            simulated: Arc::default(),
            observes: true,
            processes: Arc::new(SeenProcesses::of(&host)),
            workloads: Mutex::default(),
            statuses: ResolverStatuses::default(),
            host,
        })
    }

    fn succeeded(resolvers: &Resolvers, name: &str) -> Option<bool> {
        let rounds = resolvers.last_rounds();
        rounds.iter().find(|round| round.resolver == name).map(|round| round.succeeded)
    }

    /// A log that is written to that file. The threads of other tests have a log too, since `tracing` drops for good what
    /// is first logged by a thread without one.
    fn log_to(file: &Path) -> impl tracing::Subscriber + use<> {
        static OTHERS: Once = Once::new();
        OTHERS.call_once(|| tracing_subscriber::fmt().with_writer(std::io::sink).init());
        let file = fs::File::create(file).unwrap();
        tracing_subscriber::fmt().with_ansi(false).with_writer(file).finish()
    }

    fn logged(file: &Path, level: &str, words: &str) -> usize {
        let text = fs::read_to_string(file).unwrap();
        text.lines().filter(|line| line.contains(level) && line.contains(words)).count()
    }

    #[test]
    fn a_failure_keeps_the_time_of_the_last_success_and_only_a_change_is_reported() {
        let status = ResolverStatus::new("pods", None);
        assert!(!status.record_failure(true));
        assert_eq!(status.last(), None, "there was never a source");
        assert!(status.record_failure(false) && !status.record_failure(true));
        assert_eq!(status.last(), Some(LastRound { succeeded: false, succeeded_at: None }));
        assert!(status.record_success(Nanoseconds(7)) && !status.record_success(Nanoseconds(8)));
        assert!(status.record_failure(true) && !status.record_failure(false));
        let last = LastRound { succeeded: false, succeeded_at: Some(Nanoseconds(8)) };
        assert_eq!(status.last(), Some(last));
    }

    #[test]
    fn a_thread_that_finishes_no_round_for_half_a_minute_does_not_answer_until_it_does() {
        let second = Nanoseconds::from_seconds;
        let status = ResolverStatus::new("pods", None);
        assert!(!status.check_silence(second(1_000)), "it has no thread");
        status.finished.store(second(100).0, Ordering::Relaxed);
        let silent = [100, 130, 131, 200].map(|now| status.check_silence(second(now)));
        assert_eq!(silent, [false, false, true, true]);
        status.finished.store(second(200).0, Ordering::Relaxed);
        assert!(!status.check_silence(second(201)));
    }

    #[test]
    fn a_resolver_that_finishes_no_round_has_no_success_and_one_warning() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        let resolvers = resolvers_below(root.path());
        let pods = &resolvers.statuses.pods;
        let now = system_now().boottime;
        pods.record_success(now);
        pods.finish_round();
        assert_eq!([succeeded(&resolvers, "pods"), succeeded(&resolvers, "jobs")], [Some(true), None]);
        let long_ago = Nanoseconds(now.0 - SILENT_AFTER.0 - 1);
        for status in [pods, &resolvers.statuses.jobs] {
            status.finished.store(long_ago.0, Ordering::Relaxed);
        }
        tracing::subscriber::with_default(log_to(&log), || {
            for _ in 0..2 {
                let both = ["pods", "jobs"].map(|name| succeeded(&resolvers, name));
                assert_eq!(both, [Some(false); 2], "also where no round was ever finished");
            }
            let rounds = resolvers.last_rounds();
            assert!(rounds.iter().all(|round| round.age.is_some() == (round.resolver == "pods")));
            pods.finish_round();
            assert_eq!(succeeded(&resolvers, "pods"), Some(true));
        });
        for name in ["pods", "jobs"] {
            let warning = format!(
                "has not answered for half a minute; what it told last stays in force (docs/troubleshooting.md) resolver=\"{name}\""
            );
            assert_eq!(logged(&log, "WARN", &warning), 1, "{}", fs::read_to_string(&log).unwrap());
        }
        assert_eq!(logged(&log, "INFO", "the resolver answers again resolver=\"pods\""), 1);
    }

    #[test]
    fn every_resolver_says_when_it_finishes_a_round() {
        let root = tempfile::tempdir().unwrap();
        let resolvers = resolvers_below(root.path());
        start(&resolvers, None, None).unwrap();
        users::start(&resolvers).unwrap();
        let ResolverStatuses { host, users, pods, jobs, containers } = &resolvers.statuses;
        let all = [host, users, pods, jobs, containers];
        let long_ago = 1;
        all.iter().for_each(|status| status.finished.store(long_ago, Ordering::Relaxed));
        let deadline = system_now().boottime + Nanoseconds::from_seconds(TIMEOUT.as_secs());
        for status in all {
            while status.finished.load(Ordering::Relaxed) == long_ago {
                assert!(system_now().boottime < deadline, "{} finishes no round", status.name);
                std::thread::yield_now();
            }
        }
        resolvers.stop.call();
    }

    #[test]
    fn the_resolvers_of_processes_and_users_have_no_success_after_a_panic_until_their_next_round() {
        let root = tempfile::tempdir().unwrap();
        let resolvers = resolvers_below(root.path());
        type Choice = fn(&ResolverStatuses) -> &ResolverStatus;
        for status in [(|all| &all.host) as Choice, |all| &all.users] {
            let (begin, runs) = mpsc::channel();
            let mut is_first = true;
            let body = move |_: &Arc<Resolvers>| {
                begin.send(()).unwrap();
                assert!(!std::mem::take(&mut is_first), "a fault of its own");
            };
            resolvers.start(status, body).unwrap();
            let name = status(&resolvers.statuses).name;
            let both = || runs.recv_timeout(TIMEOUT).is_ok() && runs.recv_timeout(TIMEOUT).is_ok();
            assert!(both(), "{name} does not start again");
            assert_eq!(succeeded(&resolvers, name), Some(false), "{name}");
        }
        users::start(&resolvers).unwrap();
        let deadline = system_now().boottime + Nanoseconds::from_seconds(TIMEOUT.as_secs());
        while succeeded(&resolvers, "users") == Some(false) {
            assert!(system_now().boottime < deadline, "users stays failed");
            std::thread::yield_now();
        }
        resolvers.stop.call();
    }

    #[test]
    fn a_resolver_that_panics_has_no_success_is_logged_and_starts_again() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        let resolvers = resolvers_below(root.path());
        resolvers.statuses.pods.record_success(Nanoseconds(7));
        let (begin, runs) = mpsc::channel();
        let mut subscriber = Some(log_to(&log));
        let body = move |shared: &Arc<Resolvers>| {
            begin.send(shared.statuses.pods.last().unwrap()).unwrap();
            if let Some(subscriber) = subscriber.take() {
                // It is for what this thread logs until it ends.
                std::mem::forget(tracing::subscriber::set_default(subscriber));
                panic!("a fault of its own");
            }
        };
        resolvers.start(|statuses| &statuses.pods, body).unwrap();
        let succeeded_at = Some(Nanoseconds(7));
        for succeeded in [true, false] {
            assert_eq!(runs.recv_timeout(TIMEOUT).unwrap(), LastRound { succeeded, succeeded_at });
        }
        assert_eq!(succeeded(&resolvers, "pods"), Some(false));
        assert_eq!(
            logged(
                &log,
                "ERROR",
                "a resolver has failed, which is a defect of the agent; it is started again"
            ),
            1
        );
        assert_eq!(
            runs.recv_timeout(TIMEOUT),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "a run that ends is the last"
        );
    }
}
