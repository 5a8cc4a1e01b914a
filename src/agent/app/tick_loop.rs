//! The tick loop: at the deadline of each tick it runs the meter with the frames that have arrived.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::events::find_events;
use super::push::TickPush;
use super::{Shared, exports, ledger, push};
use crate::agent::policy::Wait;
use crate::agent::resolvers::TrackedGpus;
use crate::agent::session::{self, Search};
use crate::holders::host::agent_usage;
use crate::meter::{Inputs, Meter, SamplerNews, Services};
use crate::model::Nanoseconds;
use crate::model::catalogue::AgentFamily;
use crate::output::events::EventTracker;
use crate::output::render::PublishedSnapshot;
use crate::runtime::clock::{next_multiple, system_now};
use crate::runtime::systemd::Watchdog;
use crate::runtime::thread::{self, Thread};
use crate::runtime::trace;

pub(super) struct Outputs {
    ledger: Option<Arc<ledger::LedgerChannel>>,
    exports: Option<Arc<exports::ExportState>>,
    push: Option<TickPush>,
    watchdog: Watchdog,
    /// Reads the resource usage of the agent; absent while its files cannot be opened.
    usage: Option<agent_usage::AgentUsageReader>,
}

impl Outputs {
    pub(super) fn new(
        ledger: Option<&ledger::RunningLedger>,
        exports: Option<&exports::RunningExports>,
        push: Option<&push::RunningPush>,
    ) -> Self {
        Self {
            ledger: ledger.map(|ledger| Arc::clone(&ledger.channel)),
            exports: exports.map(|exports| Arc::clone(&exports.state)),
            push: push.map(|push| TickPush::new(push.target.clone())),
            watchdog: Watchdog::from_environment(),
            usage: None,
        }
    }
}

pub(super) fn start(
    meter: Meter,
    inbox: Receiver<SamplerNews>,
    outputs: Outputs,
    shared: &Arc<Shared>,
) -> Result<Thread, thread::Error> {
    let theirs = Arc::clone(shared);
    Thread::start_vital("tick_loop", &shared.vital, move || run(meter, &inbox, outputs, &theirs))
}

fn run(mut meter: Meter, inbox: &Receiver<SamplerNews>, mut outputs: Outputs, shared: &Shared) {
    let mut news = first_frames(inbox, shared);
    let mut number: u64 = 0;
    let mut tracker = EventTracker::default();
    loop {
        if !shared.resolvers.workloads().allocations.is_empty() {
            shared.find_scheduler();
        }
        let policy = shared.policy.now();
        meter.apply_policy(Arc::clone(&policy.meter));
        news.extend(inbox.try_iter());
        // Tried again in each tick, as file descriptors may be short for a while.
        outputs.usage = outputs.usage.take().or_else(|| agent_usage::AgentUsageReader::open().ok());
        let inputs = inputs(std::mem::take(&mut news), &outputs, shared);
        let now = shared.clock.now();
        let mut span = trace::begin("tick");
        let tick = meter.tick(now, inputs);
        span.set("gpus", tick.snapshot.gpus.len().to_string());
        if let Some(push) = outputs.push.as_mut().filter(|_| number.is_multiple_of(policy.ticks_per_push())) {
            push.push_snapshot(&tick.snapshot, &policy, &span.context());
        }
        let events = find_events(&mut tracker, &tick.snapshot, shared);
        if let Some(push) = &outputs.push {
            push.push_events(&events, tick.snapshot.at.utc, span.context());
        }
        let listed = tick.snapshot.gpus.iter().map(|gpu| gpu.present).collect();
        let tracked = TrackedGpus { roster: Arc::clone(&tick.snapshot.roster), listed };
        *shared.resolvers.gpus.lock() = Some(tracked);
        shared
            .status
            .pages
            .publish(Arc::new(PublishedSnapshot::new(tick.snapshot, Arc::clone(&policy.page_cache))));
        if let Some(ledger) = outputs.ledger.as_ref().filter(|_| meter.has_ledger()) {
            ledger.offer(tick.batch, span.context());
        }
        drop(span);
        if number == 0 {
            tracing::info!("first snapshot");
        }
        number += 1;
        // Samplers read at the multiples of the interval; a fifth of it later their frames have arrived. The next multiple is
        // counted from the start of this tick, so that a long tick does not skip one.
        let interval = policy.config.sampling.interval;
        let deadline = next_multiple(now.boottime, interval) + Nanoseconds(interval.0 / 5);
        let every = outputs.watchdog.every();
        let notify = || {
            shared.status.liveness.record_tick();
            outputs.watchdog.feed(system_now().boottime);
        };
        let wait = Wait { until: deadline, every, notify };
        if !shared.policy.wait_until(&shared.clock, &policy, &shared.stop, wait) {
            return;
        }
    }
}

/// The frames of the first tick, which has no deadline: it starts once every GPU has sent one, or after a second.
fn first_frames(inbox: &Receiver<SamplerNews>, shared: &Shared) -> Vec<SamplerNews> {
    const POLL_INTERVAL: Duration = Duration::from_millis(1);
    const MOST_POLLS: usize = 1_000;
    let mut news = Vec::new();
    let mut frames = 0;
    for _ in 0..MOST_POLLS {
        match session::search(&shared.sessions) {
            Search::Failed => break,
            Search::Found(gpus) if frames >= gpus => break,
            Search::Pending | Search::Found(_) => {}
        }
        match inbox.recv_timeout(POLL_INTERVAL) {
            Ok(one) => {
                frames += usize::from(matches!(one, SamplerNews::Frame(_) | SamplerNews::Lost(_)));
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
    // An XID names who is on the GPU.
    let wants_processes = shared.status.pages.wants_processes() || !xids.is_empty();
    let workloads = shared.resolvers.workloads();
    Inputs {
        news,
        xids,
        sxids: shared.sessions.received.take_sxids(),
        notices,
        identities,
        allocations: Arc::clone(&workloads.allocations),
        ended: Arc::clone(&workloads.ended),
        pci: shared.resolvers.processes.pci(),
        host_memory: shared.resolvers.processes.memory(),
        wants_processes,
        in_flight: session::in_flight(&shared.sessions),
        acknowledged: outputs.ledger.as_ref().map(|ledger| ledger.take_acknowledged()).unwrap_or_default(),
        opened_late: outputs.ledger.as_ref().and_then(|ledger| ledger.take_opened_late()),
        awaits_clock: outputs.ledger.as_ref().is_some_and(|ledger| ledger.awaits_clock()),
        services: services(outputs, shared),
    }
}

fn add_event_metrics(services: &mut Services, shared: &Shared) {
    let (kernel_log, overrun, refused) = shared.sessions.received.losses();
    if let Some(ok) = kernel_log {
        services.add(AgentFamily::CollectorSuccess, vec![("collector", "kernel_log".into())], ok.into());
    }
    for (collector, reason, count) in
        [("kernel_log", "overrun", overrun), ("events", "too_many_kinds", refused)]
    {
        if count > 0 {
            let labels = vec![("collector", collector.into()), ("reason", reason.into())];
            services.add(AgentFamily::CollectorErrors, labels, count);
        }
    }
}

fn add_ledger_metrics(services: &mut Services, ledger: &ledger::LedgerChannel) {
    services.set(AgentFamily::LedgerOpen, ledger.durable().is_some().into());
    if let Some(durable) = ledger.durable() {
        services.set(AgentFamily::LedgerDurable, durable.into());
    }
    services.set(AgentFamily::LedgerErrors, ledger.errors());
    services.set(AgentFamily::LedgerUnobserved, ledger.unobserved());
    if let Some(at) = ledger.last_commit() {
        services.set(AgentFamily::LedgerLastCommitTimestamp, at);
    }
    let pressure = ledger.queue.pressure();
    services.set(AgentFamily::LedgerQueueWindows, pressure.windows as u64);
    services.set(AgentFamily::LedgerCoarseWindows, pressure.merged);
}

fn add_resolver_metrics(services: &mut Services, shared: &Shared) {
    for round in shared.resolvers.last_rounds() {
        let labels = || vec![("resolver", round.resolver.into())];
        services.add(AgentFamily::ResolverSuccess, labels(), round.succeeded.into());
        if let Some(age) = round.age {
            services.add(AgentFamily::ResolverAge, labels(), age.0);
        }
    }
}

fn services(outputs: &Outputs, shared: &Shared) -> Services {
    let mut services = Services::default();
    services.add(AgentFamily::BuildInfo, vec![("version", env!("CARGO_PKG_VERSION").into())], 1);
    let cluster = shared.node.cluster.as_deref().unwrap_or_default();
    let labels = vec![("node_name", shared.node.name.as_str().into()), ("cluster_name", cluster.into())];
    services.add(AgentFamily::NodeInfo, labels, 1);
    services.set(AgentFamily::Simulated, shared.simulated.load(Ordering::Relaxed).into());
    services.set(AgentFamily::Quiesced, shared.sessions.orders.release().is_some().into());
    services.set(AgentFamily::ConfigReloadSuccess, shared.reloads.succeeded().into());
    services.set(AgentFamily::ListenMissing, shared.status.server.missing.count() as u64);
    if let Some(ok) = session::driver_ok(&shared.sessions) {
        services.add(AgentFamily::CollectorSuccess, vec![("collector", "driver".into())], ok.into());
    }
    for ((collector, reason), count) in session::errors(&shared.sessions) {
        let labels = vec![("collector", collector), ("reason", reason.into())];
        services.add(AgentFamily::CollectorErrors, labels, count);
    }
    add_event_metrics(&mut services, shared);
    add_resolver_metrics(&mut services, shared);
    if let Some(ledger) = &outputs.ledger {
        add_ledger_metrics(&mut services, ledger);
    }
    if let Some(exports) = &outputs.exports {
        services.set(AgentFamily::LedgerExportAge, exports.age(shared.clock.now().boottime).0);
    }
    for (code, count) in shared.status.server.requests.by_code() {
        services.add(AgentFamily::HttpRequests, vec![("code", code.to_string().into())], count);
    }
    if let Some(push) = &outputs.push {
        push.add_metrics(&mut services);
    }
    if let Some(Ok(own)) = outputs.usage.as_ref().map(agent_usage::AgentUsageReader::read) {
        services.set(AgentFamily::ProcessCpu, own.cpu.0);
        services.set(AgentFamily::ProcessResidentMemory, own.resident.0);
        services.set(AgentFamily::ProcessVirtualMemory, own.addressed.0);
        services.set(AgentFamily::ProcessOpenFds, own.open_files);
    }
    if let Some(most) = agent_usage::open_files_limit() {
        services.set(AgentFamily::ProcessMaxFds, most);
    }
    services.set(AgentFamily::ProcessStartTime, shared.started.0);
    services
}
