//! The threads that find out who uses and holds GPUs: each reads one source and publishes the last result.
//!
//! The sources are `/proc`, the kubelet, Slurm's records, a container runtime and the name service. A source that does
//! not respond delays its own thread only, and its last result stays in force.

pub(crate) mod containers;
pub(crate) mod jobs;
pub(crate) mod pods;
pub(crate) mod processes;
pub(crate) mod users;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Stop, system_now};
use crate::export::LatestSnapshot;
use crate::holders::ResolvedWorkloads;
use crate::host::{Host, NameService};
use crate::ledger::Recovered;
use crate::model::{Nanoseconds, UnattributedReason};
use crate::policy::CurrentConfig;
use crate::thread;

pub(crate) use processes::SeenProcesses;
pub use users::unresolved_grants;

/// How often each thread looks whether a round is due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often a kubelet or runtime is asked without a request.
const REFRESH_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// How long the start of the agent waits for the first round of a scheduler's resolver: holdings go on across a restart
/// of the agent only if its first tick knows them.
const FIRST_ROUND_TIMEOUT: Duration = Duration::from_secs(1);

/// What the resolver threads share with each other and with the tick loop.
pub(crate) struct Resolvers {
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) host: Host,
    pub(crate) config: Arc<CurrentConfig>,
    /// Snapshots, which list the GPUs of the node.
    pub(crate) pages: Arc<LatestSnapshot>,
    pub(crate) simulated: Arc<AtomicBool>,
    pub(crate) processes: Arc<SeenProcesses>,
    pub(crate) workloads: Mutex<Arc<ResolvedWorkloads>>,
    pub(crate) statuses: ResolverStatuses,
}

/// The last round of a resolver.
pub(crate) struct ResolverRound {
    /// The value of the label `resolver`.
    pub(crate) resolver: &'static str,
    pub(crate) succeeded: bool,
    /// Age of the last success.
    pub(crate) age: Option<Nanoseconds>,
}

impl Resolvers {
    /// The workloads as last published.
    pub(crate) fn workloads(&self) -> Arc<ResolvedWorkloads> {
        Arc::clone(&self.workloads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the published workloads.
    fn update_workloads(&self, change: impl FnOnce(&mut ResolvedWorkloads)) {
        let mut workloads = self.workloads.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut workloads));
    }

    /// The last round of each resolver that has had one.
    pub(crate) fn last_rounds(&self) -> Vec<ResolverRound> {
        let (clock, now) = (self.clock.now().boottime, system_now().boottime);
        let mut rounds = Vec::new();
        let mut add = |resolver, succeeded, age: Option<u64>| {
            rounds.push(ResolverRound { resolver, succeeded, age: age.map(Nanoseconds) });
        };
        if let Some(at) = self.processes.get().1 {
            add("host", true, Some(clock.0.saturating_sub(at.0)));
        }
        if let Some(last) = self.host.users().service().and_then(NameService::last_lookup) {
            add("users", last.succeeded, Some(now.0.saturating_sub(last.ended.0)));
        }
        for status in self.statuses.all() {
            if let Some(last) = status.last() {
                let age = last.succeeded_at.map(|at| now.0.saturating_sub(at.0));
                add(status.name, last.succeeded, age);
            }
        }
        rounds
    }
}

/// Starts the threads that identify processes and workloads. `agent` is the agent's pid where it runs on that host.
pub(crate) fn start(
    shared: &Arc<Resolvers>,
    recovered: Option<&Recovered>,
    agent: Option<u32>,
) -> Result<(), thread::Error> {
    pods::start(shared, recovered)?;
    jobs::start(shared)?;
    containers::start(shared)?;
    processes::start(agent, shared)
}

/// The status of each resolver of workloads.
pub(crate) struct ResolverStatuses {
    pods: ResolverStatus,
    jobs: ResolverStatus,
    containers: ResolverStatus,
}

impl Default for ResolverStatuses {
    fn default() -> Self {
        Self {
            pods: ResolverStatus::new("pods", UnattributedReason::Pod),
            jobs: ResolverStatus::new("jobs", UnattributedReason::Job),
            containers: ResolverStatus::new("containers", UnattributedReason::Container),
        }
    }
}

impl ResolverStatuses {
    const fn all(&self) -> [&ResolverStatus; 3] {
        [&self.pods, &self.jobs, &self.containers]
    }

    /// Requests a round of the resolvers that may name processes which are unattributed for these reasons.
    fn request_rounds(&self, pending: &BTreeSet<UnattributedReason>) {
        for status in self.all().into_iter().filter(|status| pending.contains(&status.reason)) {
            status.is_requested.store(true, Ordering::Relaxed);
        }
    }
}

/// How the last round of a resolver ended, and whether another is requested.
struct ResolverStatus {
    name: &'static str,
    /// Why processes are unattributed until it names them.
    reason: UnattributedReason,
    is_requested: AtomicBool,
    last: Mutex<Option<LastRound>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastRound {
    succeeded: bool,
    /// Time since boot of the last success.
    succeeded_at: Option<Nanoseconds>,
}

impl ResolverStatus {
    const fn new(name: &'static str, reason: UnattributedReason) -> Self {
        Self { name, reason, is_requested: AtomicBool::new(false), last: Mutex::new(None) }
    }

    fn take_request(&self) -> bool {
        self.is_requested.swap(false, Ordering::Relaxed)
    }

    /// The last round; none before the first, and where there was never a source.
    fn last(&self) -> Option<LastRound> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a successful round. Returns whether it is the first round or the first success after a failure.
    fn record_success(&self, now: Nanoseconds) -> bool {
        let last = LastRound { succeeded: true, succeeded_at: Some(now) };
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(last);
        before.is_none_or(|before| !before.succeeded)
    }

    /// Records a failed round. Returns whether it is the first round or the first failure after a success. A source that
    /// `is_missing` and was never there is no failure.
    fn record_failure(&self, is_missing: bool) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() && is_missing {
            return false;
        }
        let succeeded_at = last.and_then(|before| before.succeeded_at);
        let before = last.replace(LastRound { succeeded: false, succeeded_at });
        before.is_none_or(|before| before.succeeded)
    }
}

/// When a thread asks its source again.
#[derive(Default)]
struct RetrySchedule {
    next: Nanoseconds,
    /// How long it waits since the last failure; zero while the source responds.
    pause: Nanoseconds,
}

impl RetrySchedule {
    /// The longest pause, for a source that has failed several times.
    const MAX_PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

    /// Whether it is time to ask. A request brings this forward while the source responds.
    fn is_due(&self, now: Nanoseconds, is_requested: bool) -> bool {
        now >= self.next || (is_requested && self.pause == Nanoseconds(0))
    }

    fn plan_refresh(&mut self, now: Nanoseconds, period: Nanoseconds) {
        (self.pause, self.next) = (Nanoseconds(0), now + period);
    }

    fn plan_retry(&mut self, now: Nanoseconds) {
        self.pause = Nanoseconds((self.pause.0 * 2).clamp(Nanoseconds::SECOND.0, Self::MAX_PAUSE.0));
        self.next = now + self.pause;
    }
}

/// Logs the problems that were not there in the last round, and keeps all for the next.
fn log_new_problems(logged: &mut BTreeSet<String>, problems: BTreeSet<String>) {
    for problem in problems.difference(logged) {
        tracing::warn!("{problem}");
    }
    *logged = problems;
}

/// Replaces a published value where it has changed.
fn replace<T: PartialEq>(published: &mut Arc<T>, value: T) {
    if **published != value {
        *published = Arc::new(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_time_of_the_last_success_and_only_a_change_is_reported() {
        let status = ResolverStatus::new("pods", UnattributedReason::Pod);
        assert!(!status.record_failure(true));
        assert_eq!(status.last(), None, "there was never a source");
        assert!(status.record_failure(false) && !status.record_failure(true));
        assert_eq!(status.last(), Some(LastRound { succeeded: false, succeeded_at: None }));
        assert!(status.record_success(Nanoseconds(7)) && !status.record_success(Nanoseconds(8)));
        assert!(status.record_failure(true) && !status.record_failure(false));
        let last = LastRound { succeeded: false, succeeded_at: Some(Nanoseconds(8)) };
        assert_eq!(status.last(), Some(last));
    }
}
