//! Decides what a destination is sent next, and when: pure, with the time as an argument.
//!
//! Records are sent in order. A destination that is away or busy is tried again after a pause that doubles; one that lets
//! nothing in, each minute. A record that fails while others might not is passed over once a later one is accepted, so that
//! it never blocks the rest, and a destination that fails altogether loses nothing.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::send::decompress;
use super::split::halves;
use super::{Accepted, Destination, PushFailure, Spool, SpoolPosition, SpoolRecord, compress};
use crate::model::{Nanoseconds, Utc};

/// Pause after the first failure, doubled after each further one.
const FIRST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(1);
/// Longest pause that the agent makes by itself.
const LONGEST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);
/// Longest pause that a destination may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(600);
/// Failures of a record after which the next one is tried too.
const MOST_FAILURES: u32 = 5;
/// Records in a row that are tried after one that fails.
const MOST_SUSPECTS: usize = 8;
/// A backlog is sent this many times as fast as points come.
const CATCH_UP: u64 = 10;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryStep {
    /// Send this compressed request.
    Send(Bytes),
    /// Wait until then, on the boot clock.
    Wait(Nanoseconds),
    /// Wait for a record.
    Idle,
}

/// The record that is being sent.
#[derive(Debug)]
struct InFlight {
    record: SpoolRecord,
    /// The place behind it.
    past: SpoolPosition,
    is_backlog: bool,
    /// What is left of a record that was too large: requests with their numbers of points.
    parts: VecDeque<(Bytes, u32)>,
}

/// The state of one destination.
#[derive(Debug)]
pub struct Delivery {
    destination: Destination,
    /// Its reader of the spool.
    reader: usize,
    /// Time between two pushes at the start.
    interval: Nanoseconds,
    in_flight: Option<InFlight>,
    /// Failures since the last success.
    failures: u32,
    /// Rounds in which the record failed although the destination might work.
    refusals: u32,
    /// Records that are tried in the same round when it fails.
    reach: usize,
    /// Records that have failed in this round.
    suspects: usize,
    /// The snapshot of which something was refused last.
    refused_at: Utc,
    /// Nothing is sent before.
    not_before: Nanoseconds,
    /// Whether `not_before` is a pause after a failure, which a reload ends.
    failed: bool,
}

/// What follows from a failure.
enum Reaction {
    /// Another try, after this pause if it is longer.
    Later(Option<Duration>),
    /// Another try, and then one with the next record.
    Suspect,
    /// A try each minute.
    Pause,
    /// Two halves instead.
    Split,
    /// The points are lost.
    Lose,
}

impl Reaction {
    const fn to(failure: &PushFailure) -> Self {
        match failure {
            PushFailure::Unresolved(_)
            | PushFailure::Unreachable(_)
            | PushFailure::Tls(_)
            | PushFailure::TimedOut(_) => Self::Later(None),
            PushFailure::Busy { retry_after, .. } => Self::Later(*retry_after),
            PushFailure::Broken { .. } | PushFailure::NotOtlp => Self::Suspect,
            PushFailure::Setup(_) | PushFailure::Closed { .. } | PushFailure::NotZstd { .. } => Self::Pause,
            PushFailure::TooLarge { .. } => Self::Split,
            PushFailure::Refused { .. } => Self::Lose,
        }
    }
}

impl Delivery {
    /// The delivery to a destination by one reader of the spool.
    pub fn new(destination: Destination, reader: usize, interval: Nanoseconds, spool: &mut Spool) -> Self {
        if destination.settings.live_first {
            spool.put_off(reader);
        }
        Self {
            destination,
            reader,
            interval,
            in_flight: None,
            failures: 0,
            refusals: 0,
            reach: 0,
            suspects: 0,
            refused_at: Utc(0),
            not_before: Nanoseconds(0),
            failed: false,
        }
    }

    /// The destination.
    pub const fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The time of the snapshot that is being sent.
    pub(super) fn sends_of(&self) -> Option<Utc> {
        self.in_flight.as_ref().map(|sent| sent.record.at)
    }

    /// Ends a pause after failures.
    pub const fn retry_now(&mut self) {
        if self.failed {
            self.not_before = Nanoseconds(0);
        }
    }

    /// What to do at this time. After [`DeliveryStep::Send`] comes [`settle`](Self::settle).
    pub fn next(&mut self, spool: &mut Spool, now: Nanoseconds) -> DeliveryStep {
        let is_live_first = self.destination.settings.live_first;
        // What is new goes to such a destination although its backlog waits.
        let is_paced = !self.failed && is_live_first && spool.peek(self.reader, 0).is_some();
        if now < self.not_before && !is_paced {
            return DeliveryStep::Wait(self.not_before);
        }
        if let Some((part, _)) = self.in_flight.as_ref().and_then(|sent| sent.parts.front()) {
            return DeliveryStep::Send(part.clone());
        }
        let mut found = spool.peek(self.reader, self.suspects);
        if found.is_none() && self.suspects > 0 {
            // There is nothing to compare with.
            self.suspects = 0;
            self.back_off(spool, None, now, 0.5);
            return DeliveryStep::Wait(self.not_before);
        }
        let is_backlog = found.is_none();
        if is_backlog {
            found = spool.peek_backlog(self.reader);
        }
        let Some((past, record)) = found else { return DeliveryStep::Idle };
        let body = record.body.clone();
        self.in_flight = Some(InFlight { record, past, is_backlog, parts: VecDeque::new() });
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
        let Some(mut sent) = self.in_flight.take() else { return };
        let points = sent.parts.front().map_or(sent.record.points, |(_, points)| *points);
        let tally = self.destination.tally();
        match outcome {
            Ok(accepted) => {
                tally.accept_points(points.into(), accepted.rejected);
                if accepted.rejected > 0 {
                    self.refused_at = sent.record.at;
                }
                self.finish(spool, sent, now);
            }
            Err(failure) => match Reaction::to(failure) {
                Reaction::Lose => {
                    tally.reject_points(points.into());
                    self.refused_at = sent.record.at;
                    self.finish(spool, sent, now);
                }
                Reaction::Split => match split(&sent) {
                    Some(parts) => {
                        sent.parts.pop_front();
                        parts.into_iter().rev().for_each(|part| sent.parts.push_front(part));
                        self.in_flight = Some(sent);
                    }
                    None => {
                        tally.reject_points(points.into());
                        self.refused_at = sent.record.at;
                        self.finish(spool, sent, now);
                    }
                },
                Reaction::Later(asked) => self.back_off(spool, asked, now, random),
                Reaction::Pause => {
                    self.back_off(spool, Some(LONGEST_PAUSE.duration()), now, random);
                }
                // The next one follows at once, so that a destination that recovers is not taken for one that
                // refuses the first alone.
                Reaction::Suspect if self.suspects < self.reach => self.suspects += 1,
                Reaction::Suspect => {
                    self.refusals += 1;
                    if self.refusals >= MOST_FAILURES {
                        self.reach = (self.reach + 1).min(MOST_SUSPECTS);
                    }
                    self.back_off(spool, None, now, random);
                }
            },
        }
    }

    /// The request was accepted, or is lost; the next one follows.
    fn finish(&mut self, spool: &mut Spool, mut sent: InFlight, now: Nanoseconds) {
        (self.failures, self.refusals, self.reach, self.failed) = (0, 0, 0, false);
        sent.parts.pop_front();
        if !sent.parts.is_empty() {
            self.in_flight = Some(sent);
            return;
        }
        if sent.is_backlog {
            spool.advance_backlog(self.reader, (sent.past, &sent.record));
        } else {
            // What was passed over fails where a later record does not.
            for _ in 0..std::mem::take(&mut self.suspects) {
                if let Some((past, record)) = spool.peek(self.reader, 0) {
                    self.destination.tally().drop_points(record.points.into());
                    spool.set_aside(&record);
                    spool.advance(self.reader, (past, &record));
                }
            }
            spool.advance(self.reader, (sent.past, &sent.record));
        }
        let following = spool.peek(self.reader, 0).map(|(_, record)| record.at);
        let following = following.or_else(|| spool.peek_backlog(self.reader).map(|(_, record)| record.at));
        if following != Some(sent.record.at) && self.refused_at != sent.record.at {
            self.destination.tally().acknowledge(sent.record.at);
        }
        // The requests of one snapshot follow each other at once, those of different ones ten times as fast as they were made. After
        // a gap, as while no agent ran, no more is waited than after one interval.
        let apart = following.map_or(0, |at| at.0.abs_diff(sent.record.at.0));
        self.not_before = now + Nanoseconds(apart.min(self.interval.0) / CATCH_UP);
    }

    fn back_off(&mut self, spool: &mut Spool, asked: Option<Duration>, now: Nanoseconds, random: f64) {
        let doubled = FIRST_PAUSE.0.saturating_mul(1_u64.checked_shl(self.failures).unwrap_or(u64::MAX));
        let own = doubled.min(LONGEST_PAUSE.0);
        let asked = asked.map_or(0, |asked| asked.min(LONGEST_ASKED).as_nanos());
        let pause = own.max(u64::try_from(asked).unwrap_or(0));
        let extra = (pause as f64 * 0.25 * random.clamp(0.0, 1.0)) as u64;
        self.failures = (self.failures + 1).min(16);
        self.not_before = now + Nanoseconds(pause + extra);
        (self.failed, self.suspects) = (true, 0);
        if self.destination.settings.live_first {
            spool.put_off(self.reader);
        }
    }
}

/// Two halves of the request that is being sent; none if it has one point.
fn split(sent: &InFlight) -> Option<[(Bytes, u32); 2]> {
    let body = sent.parts.front().map_or(&sent.record.body, |(body, _)| body);
    let request = decompress(body).ok()?;
    Some(halves(sent.record.signal, &request)?.map(|(half, points)| (compress(&half), points)))
}
