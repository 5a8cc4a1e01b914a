//! Counts the points for a destination, and logs failures: at most one line per minute with counts and the reason, and one
//! line when all points are accepted again.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::{Accepted, Destination, PushFailure};
use crate::model::{Nanoseconds, Utc};

const PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

/// Points for one destination since the start; the sender writes it, and the tick loop reads it.
#[derive(Debug, Default)]
pub struct Tally {
    sent: AtomicU64,
    rejected: AtomicU64,
    dropped: AtomicU64,
    /// Bytes of the spool that wait for it.
    pub waiting: AtomicU64,
    /// The time of the latest snapshot from which nothing was refused.
    acknowledged: AtomicU64,
    /// Outcome of the last request: 0 before the first, 1 accepted, 2 failed.
    last: AtomicU8,
}

/// Numbers of points. Each point is sent, rejected or dropped exactly once, or still waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointCounts {
    pub sent: u64,
    pub rejected: u64,
    pub dropped: u64,
}

impl Tally {
    pub fn counts(&self) -> PointCounts {
        let [sent, rejected, dropped] =
            [&self.sent, &self.rejected, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        PointCounts { sent, rejected, dropped }
    }

    pub(super) fn count(&self, points: PointCounts) {
        self.sent.fetch_add(points.sent, Ordering::Relaxed);
        self.rejected.fetch_add(points.rejected, Ordering::Relaxed);
        self.dropped.fetch_add(points.dropped, Ordering::Relaxed);
    }

    pub fn acknowledged(&self) -> Utc {
        Utc(self.acknowledged.load(Ordering::Relaxed))
    }

    pub(super) fn acknowledge(&self, at: Utc) {
        self.acknowledged.fetch_max(at.0, Ordering::Relaxed);
    }

    /// Whether the last request was accepted; none before the first.
    pub fn last_ok(&self) -> Option<bool> {
        match self.last.load(Ordering::Relaxed) {
            0 => None,
            last => Some(last == 1),
        }
    }

    pub(super) fn record_outcome(&self, ok: bool) {
        self.last.store(if ok { 1 } else { 2 }, Ordering::Relaxed);
    }

    pub fn drop_points(&self, points: u64) {
        self.dropped.fetch_add(points, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(super) struct DeliveryReport {
    reported: PointCounts,
    /// Points dropped up to the last request.
    dropped: u64,
    last_warning: Option<Nanoseconds>,
    warned: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum ReportLine {
    Failing(PointCounts, String),
    AcceptedAgain(PointCounts),
}

impl DeliveryReport {
    /// Records the outcome of a request, and logs a line if one is due.
    pub(super) fn settle(
        &mut self,
        destination: &Destination,
        outcome: &Result<Accepted, PushFailure>,
        now: Nanoseconds,
    ) {
        if let Some(line) = self.line(destination.tally().counts(), outcome, now) {
            line.log(destination);
        }
    }

    pub(super) fn end(&mut self, destination: &Destination) {
        let waiting_bytes = destination.tally().waiting.load(Ordering::Relaxed);
        if waiting_bytes > 0 {
            tracing::info!(%destination, waiting_bytes, "OTLP points wait in the spool for the next start");
        }
    }

    fn line(
        &mut self,
        counts: PointCounts,
        outcome: &Result<Accepted, PushFailure>,
        now: Nanoseconds,
    ) -> Option<ReportLine> {
        let overflowed = counts.dropped > std::mem::replace(&mut self.dropped, counts.dropped);
        let reason = match outcome {
            Err(failure) => Some(failure.to_string()),
            Ok(Accepted { rejected: 1.., message }) => Some(format!("it rejects points: {message}")),
            Ok(_) if overflowed => {
                Some("points were too many or too old for the spool; raise otlp.spool.size or age".to_owned())
            }
            Ok(_) => None,
        };
        let since = counts.since(self.reported);
        let is_due = self.last_warning.is_none_or(|at| now.0.saturating_sub(at.0) >= PAUSE.0);
        let line = match reason {
            Some(reason) if is_due => {
                self.last_warning = Some(now);
                self.warned = true;
                ReportLine::Failing(since, reason)
            }
            // A loss too short for a line of its own is included in the next line.
            None if self.warned || (is_due && since.rejected + since.dropped > 0) => {
                self.warned = false;
                ReportLine::AcceptedAgain(since)
            }
            _ => return None,
        };
        self.reported = counts;
        Some(line)
    }
}

impl PointCounts {
    const fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            rejected: self.rejected.saturating_sub(earlier.rejected),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }
}

impl ReportLine {
    fn log(&self, destination: &Destination) {
        let waiting_bytes = destination.tally().waiting.load(Ordering::Relaxed);
        match self {
            Self::Failing(PointCounts { sent, rejected, dropped }, reason) => tracing::warn!(
                %destination, reason, sent, rejected, dropped, waiting_bytes,
                "the OTLP destination does not accept all points; counts are since the last such line, and what waits is \
                 sent later"
            ),
            Self::AcceptedAgain(PointCounts { sent, rejected, dropped }) => tracing::info!(
                %destination, sent, rejected, dropped, waiting_bytes,
                "the OTLP destination accepts all points again; counts are since the last such line"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts([sent, rejected, dropped]: [u64; 3]) -> PointCounts {
        PointCounts { sent, rejected, dropped }
    }

    fn refused(status: u16) -> Result<Accepted, PushFailure> {
        Err(PushFailure::Refused { status: status.to_string(), message: String::new() })
    }

    fn unreachable() -> Result<Accepted, PushFailure> {
        Err(PushFailure::Unreachable("Connection refused".to_owned()))
    }

    /// The line after each batch: second, counts since the start, outcome.
    fn lines(batches: &[(u64, [u64; 3], Result<Accepted, PushFailure>)]) -> Vec<Option<ReportLine>> {
        let mut report = DeliveryReport::default();
        let line = |(second, sums, outcome): &(u64, [u64; 3], Result<Accepted, PushFailure>)| {
            report.line(counts(*sums), outcome, Nanoseconds::from_seconds(*second))
        };
        batches.iter().map(line).collect()
    }

    #[test]
    fn failures_are_logged_at_most_once_a_minute_with_counts_and_the_reason_of_that_time() {
        let well = || Ok(Accepted::default());
        let logged = lines(&[
            (0, [10, 0, 0], well()),
            (15, [10, 0, 10], unreachable()),
            (30, [10, 0, 20], unreachable()),
            (60, [10, 10, 20], refused(404)),
            (75, [10, 20, 20], refused(404)),
            (90, [10, 30, 20], refused(404)),
            (105, [20, 30, 20], well()),
            (120, [30, 30, 20], well()),
        ]);
        let [lost, none, again] = [1, 4, 6].map(|place| logged[place].as_ref());
        let first = ReportLine::Failing(counts([10, 0, 10]), unreachable().unwrap_err().to_string());
        assert_eq!(lost, Some(&first));
        assert_eq!(
            none,
            Some(&ReportLine::Failing(counts([0, 20, 10]), refused(404).unwrap_err().to_string()))
        );
        assert_eq!(again, Some(&ReportLine::AcceptedAgain(counts([10, 10, 0]))));
        assert_eq!(logged.iter().flatten().count(), 3, "{logged:?}");
    }

    #[test]
    fn a_destination_that_comes_and_goes_causes_two_lines_a_minute_and_every_loss_is_logged() {
        let batches: Vec<_> = (0..40)
            .map(|number: u64| {
                let (fails, lost) = (number.is_multiple_of(2), 10 * (number / 2 + 1));
                let outcome = if fails { unreachable() } else { Ok(Accepted::default()) };
                (15 * number, [10 * number.div_ceil(2), 0, lost], outcome)
            })
            .chain([(700, [400, 0, 200], Ok(Accepted::default()))])
            .collect();
        let logged = lines(&batches);
        assert!(logged.iter().flatten().count() <= 21, "{logged:?}");
        let dropped: u64 = logged
            .iter()
            .flatten()
            .map(|(ReportLine::Failing(counts, _) | ReportLine::AcceptedAgain(counts))| counts.dropped)
            .sum();
        assert_eq!(dropped, 200);
    }

    #[test]
    fn rejected_points_and_a_spool_that_overflows_are_reported_too() {
        let rejecting = Ok(Accepted { rejected: 3, message: "too old".to_owned() });
        let logged = lines(&[(0, [7, 3, 0], rejecting)]);
        assert_eq!(
            logged,
            [Some(ReportLine::Failing(counts([7, 3, 0]), "it rejects points: too old".to_owned()))]
        );
        let slow =
            lines(&[(0, [10, 0, 0], Ok(Accepted::default())), (15, [20, 0, 40], Ok(Accepted::default()))]);
        assert!(
            matches!(&slow[1], Some(ReportLine::Failing(_, reason)) if reason.contains("otlp.spool.size")),
            "{slow:?}"
        );
    }
}
