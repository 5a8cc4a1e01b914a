//! The pulse thread: at every tick's deadline, with what has come, one pulse of the meter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::lanes::{self, Search, next_multiple};
use super::policy::InForce;
use super::systemd::Watchdog;
use super::{NodeName, Shared, StartError, Thread, io, ledger};
use crate::catalogue::{AgentFamily, Level};
use crate::clock::system_now;
use crate::export::{OtlpEncoder, PublishedSnapshot};
use crate::host::agent_usage;
use crate::ledger::Queue;
use crate::meter::{Inputs, Meter, News, Services};
use crate::model::Nanoseconds;
use crate::model::snapshot::Snapshot;
use crate::push;

/// Where a pulse's results go.
pub(super) struct Outlets {
    queue: Option<Arc<Queue>>,
    status: Option<Arc<ledger::LedgerStatus>>,
    push: Option<Push>,
    io: io::Shared,
    watchdog: Watchdog,
    /// Where it is read what the agent costs; absent while that cannot be opened.
    usage: Option<agent_usage::AgentUsageReader>,
}

/// The push: every so many pulses.
struct Push {
    level: Level,
    encoder: OtlpEncoder,
    to: io::PushTo,
    buffer: Vec<u8>,
}

fn encoder(level: Level, NodeName { name, cluster }: &NodeName) -> OtlpEncoder {
    OtlpEncoder::new(level, name, cluster)
}

impl Outlets {
    pub(super) fn new(in_force: &InForce, ledger: Option<&ledger::Running>, io: &io::Running) -> Self {
        Self {
            queue: ledger.map(|ledger| Arc::clone(&ledger.queue)),
            status: ledger.map(|ledger| Arc::clone(&ledger.status)),
            push: io.push.clone().map(|to| Push {
                level: in_force.cadence.level,
                encoder: encoder(in_force.cadence.level, &to.node),
                to,
                buffer: Vec::new(),
            }),
            io: io.shared.clone(),
            watchdog: Watchdog::asked_for(),
            usage: None,
        }
    }

    fn send(&mut self, number: u64, snapshot: &Arc<Snapshot>, in_force: &InForce) {
        let Some(push) = &mut self.push else { return };
        if !number.is_multiple_of(in_force.push_every) {
            return;
        }
        if push.level != in_force.cadence.level {
            // What it kept is numbered by its level's families; series that end so go stale by themselves.
            push.level = in_force.cadence.level;
            push.encoder = encoder(push.level, &push.to.node);
        }
        let points = push.encoder.encode(snapshot, &mut push.buffer);
        let body = bytes::Bytes::copy_from_slice(&push.buffer);
        push.to.queue.put(push::Batch { body, points: points as u64 });
    }

    /// The pulse is alive.
    fn beat(&mut self) {
        self.io.heartbeat.beat();
        self.watchdog.beat(system_now().boottime);
    }
}

/// Starts the thread.
pub(super) fn start(
    meter: Meter,
    inbox: Receiver<News>,
    outlets: Outlets,
    shared: &Arc<Shared>,
) -> Result<Thread, StartError> {
    let theirs = Arc::clone(shared);
    Thread::start_vital("pulse", shared.ends(), move || beat(meter, &inbox, outlets, &theirs))
}

fn beat(mut meter: Meter, inbox: &Receiver<News>, mut outlets: Outlets, shared: &Shared) {
    let mut news = first_frames(inbox, shared);
    let mut number = 0;
    loop {
        let in_force = shared.in_force();
        meter.obey(Arc::clone(&in_force.policy));
        news.extend(inbox.try_iter());
        // Where descriptors are short it is tried again.
        outlets.usage = outlets.usage.take().or_else(|| agent_usage::AgentUsageReader::open().ok());
        let inputs = inputs(std::mem::take(&mut news), &outlets, shared);
        let now = shared.clock.now();
        let pulse = meter.tick(now, inputs);
        outlets.send(number, &pulse.snapshot, &in_force);
        let page_cache = Arc::clone(&in_force.page_cache);
        shared.pages.publish(Arc::new(PublishedSnapshot::new(pulse.snapshot, page_cache)));
        shared.publish_timeline(meter.timeline());
        if let Some(queue) = outlets.queue.as_ref().filter(|_| meter.has_ledger()) {
            queue.offer(pulse.batch);
        }
        if number == 0 {
            tracing::info!("first snapshot");
        }
        number += 1;
        // Lanes read at the multiples of the interval; a fifth later what is in time has come. The next one after this
        // tick began, even where it took long: time counted from here would leave out a tick.
        let interval = in_force.cadence.interval;
        let deadline = next_multiple(now.boottime, interval) + Nanoseconds(interval.0 / 5);
        let every = outlets.watchdog.every();
        if !shared.wait_until(deadline, &in_force, &shared.stop, (every, || outlets.beat())) {
            return;
        }
    }
}

/// The first pulse does not wait for a deadline: it comes when every GPU has spoken, or after a second.
fn first_frames(inbox: &Receiver<News>, shared: &Shared) -> Vec<News> {
    const LOOK: Duration = Duration::from_millis(1);
    const LOOKS: usize = 1_000;
    let mut news = Vec::new();
    let mut spoken = 0;
    for _ in 0..LOOKS {
        match lanes::search(shared) {
            Search::Failed => break,
            Search::Found(gpus) if spoken >= gpus => break,
            Search::Pending | Search::Found(_) => {}
        }
        match inbox.recv_timeout(LOOK) {
            Ok(one) => {
                spoken += usize::from(matches!(one, News::Frame(_) | News::Lost(_)));
                news.push(one);
            }
            Err(RecvTimeoutError::Timeout) if shared.stop.is_called() => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    news
}

fn inputs(news: Vec<News>, outlets: &Outlets, shared: &Shared) -> Inputs {
    let (identities, _) = shared.identities.get();
    let (xids, notices) = shared.heard.take();
    Inputs {
        news,
        xids,
        notices,
        identities,
        allocations: Arc::clone(&shared.workloads().allocations),
        pci: shared.identities.pci(),
        in_flight: lanes::in_flight(shared),
        acknowledged: outlets.status.as_ref().map(|status| status.take()).unwrap_or_default(),
        opened_late: outlets.status.as_ref().and_then(|status| status.take_opened_late()),
        synchronised: shared.clock_is_synchronised(),
        services: services(outlets, shared),
    }
}

/// What those who hear of GPUs say of themselves.
fn hearing(services: &mut Services, shared: &Shared) {
    let (kernel_log, overrun, refused) = shared.heard.losses();
    if let Some(ok) = kernel_log {
        services.add(AgentFamily::CollectorSuccess, vec![("collector", "kernel_log".into())], ok.into());
    }
    for (collector, reason, count) in
        [("kernel_log", "overrun", overrun), ("events", "too_many_kinds", refused)]
    {
        if count > 0 {
            let labels = vec![("collector", collector.into()), ("reason", reason.into())];
            services.add(AgentFamily::CollectorErrors, labels, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// What the ledger thread and its queue say of themselves.
fn ledger_numbers(services: &mut Services, outlets: &Outlets) {
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if let Some(status) = &outlets.status {
        services.add(AgentFamily::LedgerOpen, Vec::new(), status.durable().is_some().into());
        if let Some(durable) = status.durable() {
            services.add(AgentFamily::LedgerDurable, Vec::new(), durable.into());
        }
        services.add(AgentFamily::LedgerErrors, Vec::new(), whole(status.errors()));
        services.add(AgentFamily::LedgerUnobserved, Vec::new(), whole(status.unobserved()));
        if let Some(at) = status.last_commit() {
            services.add(AgentFamily::LedgerLastCommitTimestamp, Vec::new(), whole(at));
        }
    }
    if let Some(queue) = &outlets.queue {
        let pressure = queue.pressure();
        services.add(AgentFamily::LedgerQueueWindows, Vec::new(), whole(pressure.windows as u64));
        let coarse = pressure.merged + pressure.forced;
        services.add(AgentFamily::LedgerCoarseWindows, Vec::new(), whole(coarse));
    }
}

/// How those who find out who processes are fare.
fn resolvers(services: &mut Services, shared: &Shared) {
    let age =
        |now: Nanoseconds, at: Nanoseconds| i64::try_from(now.0.saturating_sub(at.0)).unwrap_or(i64::MAX);
    let host = shared.identities.get().1.map(|at| ("host", true, Some(age(shared.clock.now().boottime, at))));
    let users = shared.host.users().last_lookup();
    let users = users.map(|(succeeded, at)| ("users", succeeded, Some(age(system_now().boottime, at))));
    let pods = shared.pods.last();
    let pods = pods.map(|(succeeded, at)| ("pods", succeeded, at.map(|at| age(system_now().boottime, at))));
    let jobs = shared.jobs.last();
    let jobs = jobs.map(|(succeeded, at)| ("jobs", succeeded, at.map(|at| age(system_now().boottime, at))));
    let containers = shared.containers.last();
    let containers = containers
        .map(|(succeeded, at)| ("containers", succeeded, at.map(|at| age(system_now().boottime, at))));
    let all = host.into_iter().chain(users).chain(pods).chain(jobs).chain(containers);
    for (resolver, succeeded, age) in all {
        services.add(AgentFamily::ResolverSuccess, vec![("resolver", resolver.into())], succeeded.into());
        if let Some(age) = age {
            services.add(AgentFamily::ResolverAge, vec![("resolver", resolver.into())], age);
        }
    }
}

/// What the other threads count, as series of the catalogue.
fn services(outlets: &Outlets, shared: &Shared) -> Services {
    let mut services = Services::default();
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    services.add(AgentFamily::BuildInfo, vec![("version", env!("CARGO_PKG_VERSION").into())], 1);
    let NodeName { name, cluster } = &shared.node;
    let labels = vec![("node_name", Arc::clone(name)), ("cluster_name", Arc::clone(cluster))];
    services.add(AgentFamily::NodeInfo, labels, 1);
    services.add(AgentFamily::Simulated, Vec::new(), shared.simulated.load(Ordering::Relaxed).into());
    services.add(AgentFamily::Quiesced, Vec::new(), shared.orders.are_to_let_go().into());
    services.add(AgentFamily::ConfigReloadSuccess, Vec::new(), shared.reloads.succeeded().into());
    if let Some(ok) = lanes::driver_ok(shared) {
        services.add(AgentFamily::CollectorSuccess, vec![("collector", "driver".into())], ok.into());
    }
    for ((collector, reason), count) in lanes::errors(shared) {
        let labels = vec![("collector", collector), ("reason", reason.into())];
        services.add(AgentFamily::CollectorErrors, labels, whole(count));
    }
    hearing(&mut services, shared);
    resolvers(&mut services, shared);
    ledger_numbers(&mut services, outlets);
    for (code, count) in outlets.io.requests.by_code() {
        services.add(AgentFamily::HttpRequests, vec![("code", code.to_string().into())], whole(count));
    }
    if let Some(push) = &outlets.push {
        let tally = &push.to.tally;
        for (family, count) in [
            (AgentFamily::OtlpPointsSent, tally.sent()),
            (AgentFamily::OtlpPointsRejected, tally.rejected()),
            (AgentFamily::OtlpPointsDropped, tally.dropped()),
        ] {
            services.add(family, vec![("destination", Arc::clone(&push.to.name))], whole(count));
        }
    }
    if let Some(Ok(own)) = outlets.usage.as_ref().map(agent_usage::AgentUsageReader::read) {
        services.add(AgentFamily::ProcessCpu, Vec::new(), whole(own.cpu.0));
        services.add(AgentFamily::ProcessResidentMemory, Vec::new(), whole(own.resident.0));
        services.add(AgentFamily::ProcessVirtualMemory, Vec::new(), whole(own.addressed.0));
        services.add(AgentFamily::ProcessOpenFds, Vec::new(), whole(own.open_files));
    }
    if let Some(most) = agent_usage::most_files() {
        services.add(AgentFamily::ProcessMaxFds, Vec::new(), whole(most));
    }
    services.add(AgentFamily::ProcessStartTime, Vec::new(), whole(outlets.io.started.0));
    services
}
