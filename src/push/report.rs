//! Logs losses of a destination: at most one line a minute with counts and the reason, and one line when all points are
//! accepted again.

use super::{Accepted, Destination, PushFailure, Tally};
use crate::model::Nanoseconds;

/// The shortest time between two lines about losses.
const PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

/// What was reported of one destination.
#[derive(Debug, Default)]
pub(super) struct LossReport {
    /// The counts at the last line.
    reported: Counts,
    /// Points dropped until the last batch.
    dropped: u64,
    last_warning: Option<Nanoseconds>,
    /// Whether the last line spoke of losses.
    warned: bool,
}

/// What became of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sent: u64,
    rejected: u64,
    dropped: u64,
}

/// A line of the log, with the counts since the last one.
#[derive(Debug, PartialEq, Eq)]
enum ReportLine {
    Lost(Counts, String),
    TakenAgain(Counts),
}

impl LossReport {
    /// Records the outcome of a batch, and logs a line if one is due.
    pub(super) fn settle(
        &mut self,
        destination: &Destination,
        outcome: &Result<Accepted, PushFailure>,
        now: Nanoseconds,
    ) {
        if let Some(line) = self.line(Counts::of(destination.tally()), outcome, now) {
            line.log(destination);
        }
    }

    /// Logs what was lost since the last line when the agent stops.
    pub(super) fn end(&mut self, destination: &Destination) {
        let lost = Counts::of(destination.tally()).since(self.reported);
        if lost.dropped > 0 {
            ReportLine::Lost(lost, "the agent stopped before they were taken".to_owned()).log(destination);
        }
    }

    fn line(
        &mut self,
        counts: Counts,
        outcome: &Result<Accepted, PushFailure>,
        now: Nanoseconds,
    ) -> Option<ReportLine> {
        let overflowed = counts.dropped > std::mem::replace(&mut self.dropped, counts.dropped);
        let reason = match outcome {
            Err(failure) => Some(failure.to_string()),
            Ok(Accepted { rejected: 1.., message }) => Some(format!("it rejects points: {message}")),
            Ok(_) if overflowed => {
                Some("it takes batches more slowly than they come; raise otlp.interval".to_owned())
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
            // Short losses that were not logged yet are included in the next line.
            None if self.warned || (is_due && since.rejected + since.dropped > 0) => {
                self.warned = false;
                ReportLine::TakenAgain(since)
            }
            _ => return None,
        };
        self.reported = counts;
        Some(line)
    }
}

impl Counts {
    fn of(tally: &Tally) -> Self {
        Self { sent: tally.sent(), rejected: tally.rejected(), dropped: tally.dropped() }
    }

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
            Self::Lost(Counts { sent, rejected, dropped }, reason) => tracing::warn!(
                %destination, reason, sent, rejected, dropped,
                "OTLP points are lost; counts are since the last such line"
            ),
            Self::TakenAgain(Counts { sent, rejected, dropped }) => tracing::info!(
                %destination, sent, rejected, dropped,
                "the OTLP destination takes all points again; counts are since the last such line"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts([sent, rejected, dropped]: [u64; 3]) -> Counts {
        Counts { sent, rejected, dropped }
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
    fn losses_are_told_at_most_once_a_minute_with_counts_and_the_reason_of_that_time() {
        let well = || Ok(Accepted::default());
        let told = lines(&[
            (0, [10, 0, 0], well()),
            (15, [10, 0, 10], unreachable()),
            (30, [10, 0, 20], unreachable()),
            (60, [10, 10, 20], refused(404)),
            (75, [10, 20, 20], refused(404)),
            (90, [10, 30, 20], refused(404)),
            (105, [20, 30, 20], well()),
            (120, [30, 30, 20], well()),
        ]);
        let [lost, none, again] = [1, 4, 6].map(|place| told[place].as_ref());
        let first = ReportLine::Lost(counts([10, 0, 10]), unreachable().unwrap_err().to_string());
        assert_eq!(lost, Some(&first));
        assert_eq!(none, Some(&ReportLine::Lost(counts([0, 20, 10]), refused(404).unwrap_err().to_string())));
        assert_eq!(again, Some(&ReportLine::TakenAgain(counts([10, 10, 0]))));
        assert_eq!(told.iter().flatten().count(), 3, "{told:?}");
    }

    #[test]
    fn a_destination_that_comes_and_goes_brings_two_lines_a_minute_and_no_loss_stays_untold() {
        let batches: Vec<_> = (0..40)
            .map(|number: u64| {
                let (fails, lost) = (number.is_multiple_of(2), 10 * (number / 2 + 1));
                let outcome = if fails { unreachable() } else { Ok(Accepted::default()) };
                (15 * number, [10 * number.div_ceil(2), 0, lost], outcome)
            })
            .chain([(700, [400, 0, 200], Ok(Accepted::default()))])
            .collect();
        let told = lines(&batches);
        assert!(told.iter().flatten().count() <= 21, "{told:?}");
        let dropped: u64 = told
            .iter()
            .flatten()
            .map(|(ReportLine::Lost(counts, _) | ReportLine::TakenAgain(counts))| counts.dropped)
            .sum();
        assert_eq!(dropped, 200);
    }

    #[test]
    fn rejected_points_and_a_queue_that_overflows_are_losses_too() {
        let rejecting = Ok(Accepted { rejected: 3, message: "too old".to_owned() });
        let told = lines(&[(0, [7, 3, 0], rejecting)]);
        assert_eq!(
            told,
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
