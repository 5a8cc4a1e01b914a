//! The thread's work: takes requests from the queue into the spool, and sends them to each destination.
//!
//! When the agent stops it has half a second for what waits; the rest stays in the spool for the next start.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::trace::SpanContext;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::report::DeliveryReport;
use super::{Accepted, Delivery, DeliveryStep, Destination, PushFailure, PushQueue, Signal, Spool, send};
use crate::model::{Nanoseconds, Utc};
use crate::runtime::clock::system_now;
use crate::runtime::trace;

const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Push {
    pub queue: Arc<PushQueue>,
    pub spool: Spool,
    pub deliveries: Vec<Delivery>,
}

/// Runs until the queue is closed. Each change of `reloads` ends the pauses of destinations that failed.
pub async fn run(push: Push, reloads: watch::Receiver<u64>) {
    let Push { queue, spool, deliveries } = push;
    let spool = Rc::new(RefCell::new(spool));
    let (news, appended) = watch::channel((Utc(0), SpanContext::NONE));
    let (stop, stopped) = watch::channel(false);
    let local = tokio::task::LocalSet::new();
    let mut tasks = JoinSet::new();
    for delivery in deliveries {
        let signals =
            Signals { appended: appended.clone(), reloads: reloads.clone(), stopped: stopped.clone() };
        tasks.spawn_local_on(deliver(delivery, Rc::clone(&spool), signals), &local);
    }
    local
        .run_until(async move {
            while let Some(batch) = queue.next().await {
                spool.borrow_mut().append(&batch);
                news.send_replace((batch.at, batch.cause));
            }
            stop.send_replace(true);
            // What is not sent stays in the spool.
            let _ = timeout(FLUSH_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
        })
        .await;
}

struct Signals {
    /// The time of the last request of the queue, with the span of its tick.
    appended: watch::Receiver<(Utc, SpanContext)>,
    reloads: watch::Receiver<u64>,
    stopped: watch::Receiver<bool>,
}

async fn deliver(mut delivery: Delivery, spool: Rc<RefCell<Spool>>, mut signals: Signals) {
    let random = RandomState::new();
    let mut report = DeliveryReport::default();
    let destination = delivery.destination().clone();
    loop {
        let now = system_now().boottime;
        let step = delivery.next(&mut spool.borrow_mut(), now);
        match step {
            DeliveryStep::Send(body) => {
                let cause = cause(&signals, delivery.sends_of());
                let outcome = traced(&destination, body, &cause).await;
                let now = system_now().boottime;
                destination.tally().record_outcome(outcome.is_ok());
                delivery.settle(&mut spool.borrow_mut(), &outcome, now, random_share(&random, now));
                report.settle(&destination, &outcome, now);
            }
            // Whoever waits when the agent stops would wait too long.
            DeliveryStep::Wait(_) | DeliveryStep::Idle if *signals.stopped.borrow() => {
                return report.end(&destination);
            }
            DeliveryStep::Wait(until) => {
                let left = Duration::from_nanos(until.0.saturating_sub(now.0));
                tokio::select! {
                    () = sleep(left) => {}
                    _ = signals.reloads.changed() => delivery.retry_now(),
                    _ = signals.stopped.changed() => {}
                    _ = signals.appended.changed(), if destination.settings.live_first => {}
                }
            }
            DeliveryStep::Idle => {
                tokio::select! {
                    _ = signals.appended.changed() => {}
                    _ = signals.stopped.changed() => {}
                }
            }
        }
    }
}

/// The span of the tick of a request, unless the request has waited while later ones came.
fn cause(signals: &Signals, sent: Option<Utc>) -> SpanContext {
    let (at, cause) = &*signals.appended.borrow();
    if sent == Some(*at) { cause.clone() } else { SpanContext::NONE }
}

async fn traced(
    destination: &Destination,
    body: Bytes,
    cause: &SpanContext,
) -> Result<Accepted, PushFailure> {
    // A span of sending spans would be followed by another one.
    if destination.signal == Signal::Traces {
        return send(destination, body).await;
    }
    let mut span = trace::begin_child("push", cause);
    span.set("destination", destination.name().to_string());
    let outcome = send(destination, body).await;
    if let Err(failure) = &outcome {
        span.fail(failure.to_string());
    }
    outcome
}

/// A random number from 0 to 1. The standard library's hash seeds are random enough, and need no crate.
fn random_share(random: &RandomState, now: Nanoseconds) -> f64 {
    let mut hasher = random.build_hasher();
    hasher.write_u64(now.0);
    (hasher.finish() >> 32) as f64 / f64::from(u32::MAX)
}
