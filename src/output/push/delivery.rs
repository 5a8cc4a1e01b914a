//! Decides what a destination is sent next, and when: pure, with the time as an argument.
//!
//! A destination that is away or busy is tried again after a pause that doubles; one that lets nothing in, each minute. A
//! request that fails at the destination is tried for ten minutes and then dropped, so that it alone is lost and never
//! blocks the rest for longer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Accepted, Destination, PointCounts, PushFailure, Spool, SpoolRecord};
use crate::model::{Nanoseconds, Utc};

/// Pause after the first failure, doubled after each further one.
const FIRST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(1);
/// Longest pause that the agent makes by itself.
const LONGEST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);
/// Longest pause that a destination may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(600);
/// How long a request that fails at the destination is tried again.
const LONGEST_FAILURE: Nanoseconds = Nanoseconds::from_seconds(600);
/// A backlog is sent this many times as fast as points come.
const CATCH_UP: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryStep {
    Send(Bytes),
    /// Wait until then, on the boot clock.
    Wait(Nanoseconds),
    Idle,
}

#[derive(Debug)]
pub struct Delivery {
    destination: Destination,
    /// Its place among the readers of the spool.
    reader: usize,
    /// Time between two pushes at the start.
    interval: Nanoseconds,
    in_flight: Option<SpoolRecord>,
    failures: u32,
    /// By the number of a request: when it failed at the destination first. Where the latest points go first, others are sent
    /// between two tries of one.
    first_failures: BTreeMap<i64, Nanoseconds>,
    /// The last snapshot from which something was refused or dropped.
    refused_at: Utc,
    /// The latest snapshot from which something was sent.
    latest: Utc,
    /// Until then only points later than `latest` are sent, and only where the latest points go first.
    not_before: Nanoseconds,
    /// Whether `not_before` is a pause after a failure, which a reload ends and nothing passes.
    failed: bool,
}

impl Delivery {
    pub const fn new(destination: Destination, reader: usize, interval: Nanoseconds) -> Self {
        Self {
            destination,
            reader,
            interval,
            in_flight: None,
            failures: 0,
            first_failures: BTreeMap::new(),
            refused_at: Utc(0),
            latest: Utc(0),
            not_before: Nanoseconds(0),
            failed: false,
        }
    }

    pub const fn destination(&self) -> &Destination {
        &self.destination
    }

    pub(super) fn sends_of(&self) -> Option<Utc> {
        self.in_flight.as_ref().map(|sent| sent.at)
    }

    pub const fn retry_now(&mut self) {
        if self.failed {
            self.not_before = Nanoseconds(0);
        }
    }

    /// What to do at this time. After [`DeliveryStep::Send`] comes [`settle`](Self::settle).
    pub fn next(&mut self, spool: &mut Spool, now: Nanoseconds) -> DeliveryStep {
        let is_early = now < self.not_before;
        if is_early && (self.failed || !self.destination.settings.live_first) {
            return DeliveryStep::Wait(self.not_before);
        }
        let Some(record) = spool.peek(self.reader) else { return DeliveryStep::Idle };
        if is_early && record.at <= self.latest {
            return DeliveryStep::Wait(self.not_before);
        }
        let body = record.body.clone();
        self.in_flight = Some(record);
        DeliveryStep::Send(body)
    }

    /// Records the outcome of the request. `random` is between 0 and 1: the agents of a cluster shall not return together
    /// to a Collector that has just recovered.
    pub fn settle(
        &mut self,
        spool: &mut Spool,
        outcome: &Result<Accepted, PushFailure>,
        now: Nanoseconds,
        random: f64,
    ) {
        let Some(sent) = self.in_flight.take() else { return };
        let points = sent.points;
        let mut counts = PointCounts::default();
        match outcome {
            Ok(accepted) => {
                // A destination may report more rejected points than it was sent.
                counts.rejected = accepted.rejected.min(points);
                counts.sent = points - counts.rejected;
            }
            Err(PushFailure::Refused { .. }) => counts.rejected = points,
            Err(PushFailure::Broken { .. }) if self.has_failed_for_long(sent.id, now) => {
                counts.dropped = points
            }
            Err(PushFailure::Closed { .. } | PushFailure::NotOtlp | PushFailure::Setup(_)) => {
                return self.back_off(Some(LONGEST_PAUSE.duration()), now, random);
            }
            Err(PushFailure::Busy { retry_after, .. }) => return self.back_off(*retry_after, now, random),
            Err(_) => return self.back_off(None, now, random),
        }
        if spool.finish(self.reader, &sent) {
            self.destination.tally().count(counts);
        }
        if counts.sent < points {
            self.refused_at = sent.at;
        }
        self.first_failures.remove(&sent.id);
        self.failures = 0;
        self.failed = false;
        self.latest = self.latest.max(sent.at);
        let following = spool.peek(self.reader).map(|record| record.at);
        if following != Some(sent.at) && self.refused_at != sent.at {
            self.destination.tally().acknowledge(sent.at);
        }
        // The requests of one snapshot follow each other at once, those of different ones ten times as fast as they were
        // made. After a gap, as while no agent ran, no more is waited than after one interval.
        let apart = following.map_or(0, |at| at.0.abs_diff(sent.at.0));
        self.not_before = now + Nanoseconds(apart.min(self.interval.0) / CATCH_UP);
    }

    /// Whether a request has failed at the destination for so long that it is dropped.
    fn has_failed_for_long(&mut self, id: i64, now: Nanoseconds) -> bool {
        let elapsed = |since: Nanoseconds| now.0.saturating_sub(since.0);
        // What was not tried again for so long waits behind later ones, or is gone.
        self.first_failures.retain(|_, since| elapsed(*since) < 2 * LONGEST_FAILURE.0);
        elapsed(*self.first_failures.entry(id).or_insert(now)) >= LONGEST_FAILURE.0
    }

    fn back_off(&mut self, asked: Option<Duration>, now: Nanoseconds, random: f64) {
        let doubled = FIRST_PAUSE.0.saturating_mul(1_u64.checked_shl(self.failures).unwrap_or(u64::MAX));
        let own = doubled.min(LONGEST_PAUSE.0);
        let asked = asked.map_or(0, |asked| asked.min(LONGEST_ASKED).as_nanos());
        let pause = own.max(u64::try_from(asked).unwrap_or(0));
        let extra = (pause as f64 * 0.25 * random.clamp(0.0, 1.0)) as u64;
        self.failures = (self.failures + 1).min(16);
        self.not_before = now + Nanoseconds(pause + extra);
        self.failed = true;
    }
}
