//! Counts the points for a destination, and logs losses: at most one line per minute with counts and the reason, and one
//! line when all points are accepted again.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Accepted, Destination, PushFailure};
use crate::model::Nanoseconds;

/// Shortest time between two lines about losses.
const PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

/// Points for one destination since the start; the sender writes it, and the tick loop reads it.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) sent: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// Numbers of points. Each point is sent, rejected or dropped exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointCounts {
    /// Points that the destination accepted.
    pub sent: u64,
    /// Points that the destination refused.
    pub rejected: u64,
    /// Points that were not delivered.
    pub dropped: u64,
}

impl Tally {
    /// The counts since the start.
    pub fn counts(&self) -> PointCounts {
        let [sent, rejected, dropped] =
            [&self.sent, &self.rejected, &self.dropped].map(|count| count.load(Ordering::Relaxed));
        PointCounts { sent, rejected, dropped }
    }
}

/// What was logged about one destination.
#[derive(Debug, Default)]
pub(super) struct LossReport {
    /// The counts at the last line.
    reported: PointCounts,
    /// Points dropped up to the last batch.
    dropped: u64,
    last_warning: Option<Nanoseconds>,
    /// Whether the last line reported losses.
    warned: bool,
}

/// A log line, with the counts since the last one.
#[derive(Debug, PartialEq, Eq)]
enum ReportLine {
    Lost(PointCounts, String),
    AcceptedAgain(PointCounts),
}

impl LossReport {
    /// Records the outcome of a batch, and logs a line if one is due.
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

    /// Logs the points dropped since the last line when the agent stops.
    pub(super) fn end(&mut self, destination: &Destination) {
        let lost = destination.tally().counts().since(self.reported);
        if lost.dropped > 0 {
            ReportLine::Lost(lost, "the agent stopped before they were sent".to_owned()).log(destination);
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
                Some("it accepts batches more slowly than they are made; raise otlp.interval".to_owned())
            }
            Ok(_) => None,
        };
        let since = counts.since(self.reported);
        let is_due = self.last_warning.is_none_or(|at| now.0.saturating_sub(at.0) >= PAUSE.0);
        let line = match reason {
            Some(reason) if is_due => {
                (self.last_warning, self.warned) = (Some(now), true);
                ReportLine::Lost(since, reason)
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
    /// The increase since earlier counts.
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
        match self {
            Self::Lost(PointCounts { sent, rejected, dropped }, reason) => tracing::warn!(
                %destination, reason, sent, rejected, dropped,
                "OTLP points are lost; counts are since the last such line"
            ),
            Self::AcceptedAgain(PointCounts { sent, rejected, dropped }) => tracing::info!(
                %destination, sent, rejected, dropped,
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
        Err(PushFailure::Refused { status, message: String::new() })
    }

    fn unreachable() -> Result<Accepted, PushFailure> {
        Err(PushFailure::Unreachable("Connection refused".to_owned()))
    }

    /// The line after each batch: second, counts since the start, outcome.
    fn lines(batches: &[(u64, [u64; 3], Result<Accepted, PushFailure>)]) -> Vec<Option<ReportLine>> {
        let mut report = LossReport::default();
        let line = |(second, sums, outcome): &(u64, [u64; 3], Result<Accepted, PushFailure>)| {
            report.line(counts(*sums), outcome, Nanoseconds::from_seconds(*second))
        };
        batches.iter().map(line).collect()
    }

    #[test]
    fn losses_are_logged_at_most_once_a_minute_with_counts_and_the_reason_of_that_time() {
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
        let first = ReportLine::Lost(counts([10, 0, 10]), unreachable().unwrap_err().to_string());
        assert_eq!(lost, Some(&first));
        assert_eq!(none, Some(&ReportLine::Lost(counts([0, 20, 10]), refused(404).unwrap_err().to_string())));
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
            .map(|(ReportLine::Lost(counts, _) | ReportLine::AcceptedAgain(counts))| counts.dropped)
            .sum();
        assert_eq!(dropped, 200);
    }

    #[test]
    fn rejected_points_and_a_queue_that_overflows_are_losses_too() {
        let rejecting = Ok(Accepted { rejected: 3, message: "too old".to_owned() });
        let logged = lines(&[(0, [7, 3, 0], rejecting)]);
        assert_eq!(
            logged,
            [Some(ReportLine::Lost(counts([7, 3, 0]), "it rejects points: too old".to_owned()))]
        );
        let slow =
            lines(&[(0, [10, 0, 0], Ok(Accepted::default())), (15, [20, 0, 40], Ok(Accepted::default()))]);
        assert!(
            matches!(&slow[1], Some(ReportLine::Lost(_, reason)) if reason.contains("otlp.interval")),
            "{slow:?}"
        );
    }
}
