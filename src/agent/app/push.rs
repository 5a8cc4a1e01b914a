//! The thread of the OTLP push: its spool and destinations.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::SpanContext;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;

use super::{Shared, StartError};
use crate::agent::policy::{AgentPolicy, otlp_resource};
use crate::config::{Config, OtlpNames, OtlpPlan, SpoolConfig};
use crate::meter::Services;
use crate::model::Utc;
use crate::model::catalogue::{AgentFamily, Level};
use crate::model::snapshot::Snapshot;
use crate::output::events::Event;
use crate::output::push::{
    Delivery, Destination, MOST_REQUEST, Push, PushBatch, PushQueue, Signal, Spool, SpoolHealth, SpoolLimits,
    run,
};
use crate::output::render::{OtlpEncoder, OtlpResource, encode_events};
use crate::runtime::clock::{Clock, system_now};
use crate::runtime::thread::Thread;
use crate::runtime::trace;

pub(super) struct RunningPush {
    pub(super) target: PushTarget,
    thread: Thread,
}

#[derive(Clone, Debug)]
pub(super) struct PushTarget {
    queue: Arc<PushQueue>,
    destinations: Vec<Destination>,
    health: Arc<SpoolHealth>,
    resource: OtlpResource,
}

impl RunningPush {
    /// Sends what can be sent at once; the rest stays in the spool.
    pub(super) fn close(self, longest: Duration) {
        // The last pushes have no spans, since those would have to be pushed too.
        let began = system_now().boottime;
        trace::stop(longest);
        let lasted = Duration::from_nanos(system_now().boottime.0 - began.0);
        self.target.queue.close();
        if !self.thread.wait(longest.saturating_sub(lasted)) {
            tracing::warn!(
                "the OTLP push did not end in time; what it was sending is sent again at the next start"
            );
        }
    }
}

pub(super) fn start(
    config: &Config,
    plan: &OtlpPlan,
    shared: &Arc<Shared>,
) -> Result<Option<RunningPush>, StartError> {
    if plan.destinations.is_empty() {
        return Ok(None);
    }
    plan.origins.iter().for_each(|origin| tracing::info!("OTLP: {origin}"));
    let mut destinations = Vec::new();
    for settings in &plan.destinations {
        let signals = Signal::ALL.into_iter().filter(|signal| signal.goes_to(settings));
        destinations.extend(signals.map(|signal| Destination::new(settings, signal)));
        if let Err(problem) = crate::output::push::check_files(settings) {
            tracing::error!("OTLP destination {settings}: {problem}; it is tried again each minute");
        }
    }
    let spool = match open_spool(&config.otlp.spool, &destinations) {
        Ok(spool) => spool,
        Err(error) => {
            tracing::error!(%error, "the OTLP push cannot be started; nothing is pushed");
            return Ok(None);
        }
    };
    let interval = config.otlp.interval;
    let deliveries = destinations.iter().enumerate();
    let deliveries = deliveries
        .map(|(reader, destination)| Delivery::new(destination.clone(), reader, interval))
        .collect();
    let queue = Arc::new(PushQueue::default());
    let health = Arc::clone(spool.health());
    let resource = otlp_resource(config, &shared.node.name, plan);
    let target = PushTarget { queue: Arc::clone(&queue), destinations, health, resource };
    if config.otlp.traces > 0 && plan.destinations.iter().any(|one| one.traces) {
        let client = SpanClient { target: target.clone(), clock: shared.clock.clone() };
        if let Err(error) = trace::start(config.otlp.traces, target.resource.attributes(), client) {
            tracing::error!(%error, "the agent's traces cannot be started; all else is pushed");
        }
    }
    let (reloads, at_stop) = (shared.reloads.count.subscribe(), Arc::clone(&queue));
    let thread = Thread::start("push", move || {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                runtime.block_on(run(Push { queue, spool, deliveries }, reloads));
                // A lookup in the name service may hang.
                runtime.shutdown_background();
            }
            Err(error) => {
                tracing::error!(%error, "the OTLP push cannot start its runtime; nothing is pushed")
            }
        }
        at_stop.close();
    })?;
    Ok(Some(RunningPush { target, thread }))
}

fn open_spool(config: &SpoolConfig, destinations: &[Destination]) -> rusqlite::Result<Spool> {
    // Only its owner may read it, since it tells who uses GPUs. Where it cannot be made, the spool says so.
    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.directory);
    let limits = SpoolLimits { bytes: u64::from(config.size) << 20, age: config.age };
    Spool::open(&config.directory, limits, destinations)
}

pub(super) struct TickPush {
    encoder: OtlpEncoder,
    target: PushTarget,
}

impl TickPush {
    pub(super) fn new(target: PushTarget) -> Self {
        Self { encoder: OtlpEncoder::new(Level::Lean, &target.resource), target }
    }

    pub(super) fn push_snapshot(&mut self, snapshot: &Snapshot, policy: &AgentPolicy, cause: &SpanContext) {
        self.encoder.level = policy.level;
        self.encoder.has_hardware_names = policy.config.otlp.names == OtlpNames::Hardware;
        let at = snapshot.at.utc;
        let metrics = self.target.destinations.iter().filter(|one| one.signal == Signal::Metrics);
        if let Some(acknowledged) = metrics.map(|one| one.tally().acknowledged()).min() {
            self.encoder.acknowledge(acknowledged);
        }
        for (body, points) in self.encoder.encode_requests(snapshot, MOST_REQUEST) {
            let points = points as u64;
            self.target.put(PushBatch { signal: Signal::Metrics, at, body, points, cause: cause.clone() });
        }
    }

    pub(super) fn push_events(&self, events: &[Arc<Event>], at: Utc, cause: SpanContext) {
        let is_wanted = self.target.destinations.iter().any(|one| one.signal == Signal::Logs);
        if is_wanted && !events.is_empty() {
            let body = encode_events(events, &self.target.resource);
            self.target.put(PushBatch { signal: Signal::Logs, at, body, points: events.len() as u64, cause });
        }
    }

    pub(super) fn add_metrics(&self, services: &mut Services) {
        for destination in &self.target.destinations {
            let (tally, name) = (destination.tally(), destination.name());
            let counts = tally.counts();
            for (family, count) in [
                (AgentFamily::OtlpPointsSent, counts.sent),
                (AgentFamily::OtlpPointsRejected, counts.rejected),
                (AgentFamily::OtlpPointsDropped, counts.dropped),
                (AgentFamily::OtlpQueueBytes, tally.waiting.load(Ordering::Relaxed)),
            ] {
                services.add(family, vec![("destination", Arc::clone(name))], count);
            }
            if let Some(ok) = tally.last_ok() {
                let labels = vec![("destination", Arc::clone(name))];
                services.add(AgentFamily::OtlpSuccess, labels, ok.into());
            }
        }
        let health = &self.target.health;
        services.set(AgentFamily::OtlpSpoolDamaged, health.damaged.load(Ordering::Relaxed));
        services.set(AgentFamily::OtlpSpoolErrors, health.errors.load(Ordering::Relaxed));
    }
}

/// Where OpenTelemetry's exporter of spans sends its requests to: the queue.
#[derive(Debug)]
struct SpanClient {
    target: PushTarget,
    clock: Clock,
}

#[async_trait]
impl HttpClient for SpanClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let body = request.into_body();
        let spans = ExportTraceServiceRequest::decode(body.clone())?.resource_spans;
        let scopes = spans.iter().flat_map(|resource| &resource.scope_spans);
        let points = scopes.map(|scope| scope.spans.len() as u64).sum();
        let (signal, at, cause) = (Signal::Traces, self.clock.now().utc, SpanContext::NONE);
        self.target.put(PushBatch { signal, at, body: body.into(), points, cause });
        Ok(Response::default())
    }
}

impl PushTarget {
    /// Queues a request; what it displaces is counted for each destination.
    fn put(&self, batch: PushBatch) {
        for dropped in self.queue.put(batch) {
            let receivers = self.destinations.iter().filter(|one| one.signal == dropped.signal);
            receivers.for_each(|one| one.tally().drop_points(dropped.points));
        }
    }
}
