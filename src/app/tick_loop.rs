//! The tick loop: at the deadline of each tick it runs the meter with the news that has arrived.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{NodeName, Shared, io, ledger};
use crate::catalogue::{AgentFamily, Level};
use crate::clock::{next_multiple, system_now};
use crate::export::{OtlpEncoder, PublishedSnapshot};
use crate::host::agent_usage;
use crate::ledger::LedgerQueue;
use crate::meter::{Inputs, Meter, SamplerNews, Services};
use crate::model::Nanoseconds;
use crate::model::snapshot::Snapshot;
use crate::policy::{ActiveConfig, Wait};
use crate::push;
use crate::session::{self, Search};
use crate::systemd::Watchdog;
use crate::thread::{self, Thread};

/// Where the results of a tick go.
pub(super) struct Outputs {
    queue: Option<Arc<LedgerQueue>>,
    status: Option<Arc<ledger::LedgerStatus>>,
    push: Option<Push>,
    io: io::IoStatus,
    watchdog: Watchdog,
    /// Where it is read what the agent costs; absent while that cannot be opened.
    usage: Option<agent_usage::AgentUsageReader>,
}

/// The OTLP push, every so many ticks.
struct Push {
    level: Level,
    encoder: OtlpEncoder,
    to: io::PushTo,
    buffer: Vec<u8>,
}

fn encoder(level: Level, NodeName { name, cluster }: &NodeName) -> OtlpEncoder {
    OtlpEncoder::new(level, name, cluster)
}

impl Outputs {
    pub(super) fn new(
        active: &ActiveConfig,
        ledger: Option<&ledger::RunningLedger>,
        io: &io::RunningIo,
    ) -> Self {
        Self {
            queue: ledger.map(|ledger| Arc::clone(&ledger.queue)),
            status: ledger.map(|ledger| Arc::clone(&ledger.status)),
            push: io.push.clone().map(|to| Push {
                level: active.cadence.level,
                encoder: encoder(active.cadence.level, &to.node),
                to,
                buffer: Vec::new(),
            }),
            io: io.status.clone(),
            watchdog: Watchdog::asked_for(),
            usage: None,
        }
    }

    fn send(&mut self, number: u64, snapshot: &Arc<Snapshot>, active: &ActiveConfig) {
        let Some(push) = &mut self.push else { return };
        if !number.is_multiple_of(active.push_every) {
            return;
        }
        if push.level != active.cadence.level {
            // What it kept is numbered by its level's families; series that end so go stale by themselves.
            push.level = active.cadence.level;
            push.encoder = encoder(push.level, &push.to.node);
        }
        let points = push.encoder.encode(snapshot, &mut push.buffer);
        let body = bytes::Bytes::copy_from_slice(&push.buffer);
        push.to.queue.put(push::PushBatch { body, points: points as u64 });
    }

    /// Reports that the tick loop is alive.
    fn notify_alive(&mut self) {
        self.io.liveness.record_tick();
        self.watchdog.feed(system_now().boottime);
    }
}

/// Starts the thread.
pub(super) fn start(
    meter: Meter,
    inbox: Receiver<SamplerNews>,
    outputs: Outputs,
    shared: &Arc<Shared>,
) -> Result<Thread, thread::Error> {
    let theirs = Arc::clone(shared);
    Thread::start_vital("tick_loop", shared.ends(), move || run(meter, &inbox, outputs, &theirs))
}

fn run(mut meter: Meter, inbox: &Receiver<SamplerNews>, mut outputs: Outputs, shared: &Shared) {
    let mut news = first_frames(inbox, shared);
    let mut number = 0;
    loop {
        let active = shared.config.active();
        meter.apply_policy(Arc::clone(&active.policy));
        news.extend(inbox.try_iter());
        // Where descriptors are short it is tried again.
        outputs.usage = outputs.usage.take().or_else(|| agent_usage::AgentUsageReader::open().ok());
        let inputs = inputs(std::mem::take(&mut news), &outputs, shared);
        let now = shared.clock.now();
        let tick = meter.tick(now, inputs);
        outputs.send(number, &tick.snapshot, &active);
        shared.pages.publish(Arc::new(PublishedSnapshot::new(tick.snapshot, Arc::clone(&active.page_cache))));
        shared.config.set_timeline(meter.timeline());
        if let Some(queue) = outputs.queue.as_ref().filter(|_| meter.has_ledger()) {
            queue.offer(tick.batch);
        }
        if number == 0 {
            tracing::info!("first snapshot");
        }
        number += 1;
        // Samplers read at the multiples of the interval; a fifth later what is in time has come. The next one after this
        // tick began, even where it took long: time counted from here would leave out a tick.
        let interval = active.cadence.interval;
        let deadline = next_multiple(now.boottime, interval) + Nanoseconds(interval.0 / 5);
        let every = outputs.watchdog.every();
        let wait = Wait { until: deadline, every, notify: || outputs.notify_alive() };
        if !shared.config.wait_until(&shared.clock, &active, &shared.stop, wait) {
            return;
        }
    }
}

/// Frames for the first tick, which does not wait for a deadline: it comes once every GPU has sent one, or after a second.
fn first_frames(inbox: &Receiver<SamplerNews>, shared: &Shared) -> Vec<SamplerNews> {
    const LOOK: Duration = Duration::from_millis(1);
    const LOOKS: usize = 1_000;
    let mut news = Vec::new();
    let mut spoken = 0;
    for _ in 0..LOOKS {
        match session::search(&shared.sessions) {
            Search::Failed => break,
            Search::Found(gpus) if spoken >= gpus => break,
            Search::Pending | Search::Found(_) => {}
        }
        match inbox.recv_timeout(LOOK) {
            Ok(one) => {
                spoken += usize::from(matches!(one, SamplerNews::Frame(_) | SamplerNews::Lost(_)));
                news.push(one);
            }
            Err(RecvTimeoutError::Timeout) if shared.stop.is_called() => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    news
}

fn inputs(news: Vec<SamplerNews>, outputs: &Outputs, shared: &Shared) -> Inputs {
    let (identities, _) = shared.resolvers.processes.get();
    let (xids, notices) = shared.sessions.received.take();
    Inputs {
        news,
        xids,
        notices,
        identities,
        allocations: Arc::clone(&shared.resolvers.workloads().allocations),
        pci: shared.resolvers.processes.pci(),
        in_flight: session::in_flight(&shared.sessions),
        acknowledged: outputs.status.as_ref().map(|status| status.take()).unwrap_or_default(),
        opened_late: outputs.status.as_ref().and_then(|status| status.take_opened_late()),
        synchronised: shared.clock_is_synchronised(),
        services: services(outputs, shared),
    }
}

/// Adds how reading the kernel log and receiving events fares.
fn event_numbers(services: &mut Services, shared: &Shared) {
    let (kernel_log, overrun, refused) = shared.sessions.received.losses();
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

/// Adds how the ledger thread and its queue fare.
fn ledger_numbers(services: &mut Services, outputs: &Outputs) {
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if let Some(status) = &outputs.status {
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
    if let Some(queue) = &outputs.queue {
        let pressure = queue.pressure();
        services.add(AgentFamily::LedgerQueueWindows, Vec::new(), whole(pressure.windows as u64));
        let coarse = pressure.merged + pressure.forced;
        services.add(AgentFamily::LedgerCoarseWindows, Vec::new(), whole(coarse));
    }
}

/// Adds how the resolvers fare.
fn resolver_numbers(services: &mut Services, shared: &Shared) {
    let age =
        |now: Nanoseconds, at: Nanoseconds| i64::try_from(now.0.saturating_sub(at.0)).unwrap_or(i64::MAX);
    let host = shared
        .resolvers
        .processes
        .get()
        .1
        .map(|at| ("host", true, Some(age(shared.clock.now().boottime, at))));
    let users = shared.host.users().last_lookup();
    let users = users.map(|(succeeded, at)| ("users", succeeded, Some(age(system_now().boottime, at))));
    let pods = shared.resolvers.pods.last();
    let pods = pods.map(|(succeeded, at)| ("pods", succeeded, at.map(|at| age(system_now().boottime, at))));
    let jobs = shared.resolvers.jobs.last();
    let jobs = jobs.map(|(succeeded, at)| ("jobs", succeeded, at.map(|at| age(system_now().boottime, at))));
    let containers = shared.resolvers.containers.last();
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
fn services(outputs: &Outputs, shared: &Shared) -> Services {
    let mut services = Services::default();
    let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    services.add(AgentFamily::BuildInfo, vec![("version", env!("CARGO_PKG_VERSION").into())], 1);
    let NodeName { name, cluster } = &shared.node;
    let labels = vec![("node_name", Arc::clone(name)), ("cluster_name", Arc::clone(cluster))];
    services.add(AgentFamily::NodeInfo, labels, 1);
    services.add(AgentFamily::Simulated, Vec::new(), shared.simulated.load(Ordering::Relaxed).into());
    services.add(AgentFamily::Quiesced, Vec::new(), shared.sessions.orders.release().is_some().into());
    services.add(AgentFamily::ConfigReloadSuccess, Vec::new(), shared.reloads.succeeded().into());
    if let Some(ok) = session::driver_ok(&shared.sessions) {
        services.add(AgentFamily::CollectorSuccess, vec![("collector", "driver".into())], ok.into());
    }
    for ((collector, reason), count) in session::errors(&shared.sessions) {
        let labels = vec![("collector", collector), ("reason", reason.into())];
        services.add(AgentFamily::CollectorErrors, labels, whole(count));
    }
    event_numbers(&mut services, shared);
    resolver_numbers(&mut services, shared);
    ledger_numbers(&mut services, outputs);
    for (code, count) in outputs.io.requests.by_code() {
        services.add(AgentFamily::HttpRequests, vec![("code", code.to_string().into())], whole(count));
    }
    if let Some(push) = &outputs.push {
        let tally = &push.to.tally;
        for (family, count) in [
            (AgentFamily::OtlpPointsSent, tally.sent()),
            (AgentFamily::OtlpPointsRejected, tally.rejected()),
            (AgentFamily::OtlpPointsDropped, tally.dropped()),
        ] {
            services.add(family, vec![("destination", Arc::clone(&push.to.name))], whole(count));
        }
    }
    if let Some(Ok(own)) = outputs.usage.as_ref().map(agent_usage::AgentUsageReader::read) {
        services.add(AgentFamily::ProcessCpu, Vec::new(), whole(own.cpu.0));
        services.add(AgentFamily::ProcessResidentMemory, Vec::new(), whole(own.resident.0));
        services.add(AgentFamily::ProcessVirtualMemory, Vec::new(), whole(own.addressed.0));
        services.add(AgentFamily::ProcessOpenFds, Vec::new(), whole(own.open_files));
    }
    if let Some(most) = agent_usage::most_files() {
        services.add(AgentFamily::ProcessMaxFds, Vec::new(), whole(most));
    }
    services.add(AgentFamily::ProcessStartTime, Vec::new(), whole(outputs.io.started.0));
    services
}
