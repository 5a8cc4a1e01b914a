//! The agent's own numbers: counters and a histogram of the tick loop, and numbers of other threads.

use std::sync::Arc;

use prometheus::core::Metric;
use prometheus::{Histogram, HistogramOpts};

use crate::model::catalogue::AgentFamily;
use crate::model::snapshot::{AgentEntry, AgentNumber, Histogram as Buckets};
use crate::model::{CallTime, Nanoseconds, Rejection};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AgentSeries {
    family: AgentFamily,
    /// In the family's order.
    labels: Vec<(&'static str, Arc<str>)>,
}

/// Numbers of other threads, each a series of an agent family of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct Services {
    series: Vec<(AgentSeries, AgentNumber)>,
}

impl Services {
    /// Adds a series, with an integer of the family's unit. A family is a row of the catalogue, never a text.
    pub fn add(&mut self, family: AgentFamily, labels: Vec<(&'static str, Arc<str>)>, value: u64) {
        self.push(family, labels, whole(value));
    }

    /// Adds the series of a family without labels.
    pub fn set(&mut self, family: AgentFamily, value: u64) {
        self.push(family, Vec::new(), whole(value));
    }

    /// The same with a value that may be negative.
    pub(super) fn set_signed(&mut self, family: AgentFamily, value: i64) {
        self.push(family, Vec::new(), value);
    }

    fn push(&mut self, family: AgentFamily, labels: Vec<(&'static str, Arc<str>)>, value: i64) {
        self.series.push((AgentSeries { family, labels }, AgentNumber::Integer(value)));
    }

    pub(super) fn sorted(mut self) -> (Arc<[AgentEntry]>, Vec<AgentNumber>) {
        self.series.sort_by(|(one, _), (other, _)| one.cmp(other));
        let entry = |AgentSeries { family, labels }| AgentEntry { family: family.name(), labels };
        let (entries, numbers): (Vec<AgentEntry>, _) =
            self.series.into_iter().map(|(series, number)| (entry(series), number)).unzip();
        (entries.into(), numbers)
    }
}

/// Upper bounds of the driver-call histogram in seconds: from a getter's 3 us to a GSP time-out.
const CALL_BOUNDS: [f64; 12] = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0, 10.0, 60.0];

#[derive(Debug)]
pub(super) struct MeterCounters {
    calls: Histogram,
    rejected: [u64; Rejection::ALL.len()],
    pub(super) unsettled: u64,
}

impl Default for MeterCounters {
    #[expect(
        clippy::expect_used,
        reason = "the name and the bounds are constants; a test makes this histogram"
    )]
    fn default() -> Self {
        let calls =
            HistogramOpts::new(AgentFamily::DriverCallDuration.name(), "-").buckets(CALL_BOUNDS.into());
        Self {
            calls: Histogram::with_opts(calls).expect("a valid histogram"),
            rejected: Default::default(),
            unsettled: 0,
        }
    }
}

impl MeterCounters {
    pub(super) fn observe(&mut self, calls: &[CallTime], rejected: &[(Rejection, u64)]) {
        for call in calls {
            self.calls.observe(call.took.0 as f64 / Nanoseconds::SECOND.0 as f64);
        }
        for (reason, count) in rejected {
            self.reject(*reason, *count);
        }
    }

    pub(super) fn reject(&mut self, reason: Rejection, count: u64) {
        self.rejected[reason as usize] += count;
    }

    pub(super) fn add_to(&self, numbers: &mut Services) {
        for reason in Rejection::ALL {
            let labels = vec![("reason", reason.reason().into())];
            numbers.add(AgentFamily::SamplesRejected, labels, self.rejected[reason as usize]);
        }
        numbers.set(AgentFamily::AccountUnsettledWindows, self.unsettled);
        let calls = self.calls.metric();
        let calls = calls.get_histogram();
        let buckets = Buckets {
            bounds: calls.get_bucket().iter().map(|bucket| bucket.upper_bound()).collect(),
            cumulative: calls.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect(),
            count: calls.get_sample_count(),
            sum: calls.get_sample_sum(),
        };
        let series = AgentSeries { family: AgentFamily::DriverCallDuration, labels: Vec::new() };
        numbers.series.push((series, AgentNumber::Histogram(Arc::new(buckets))));
    }
}

/// A counter as the integer of a series.
pub(super) fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue::{Rows, families};

    #[test]
    fn every_counter_of_the_tick_loop_starts_at_0() {
        let mut numbers = Services::default();
        MeterCounters::default().add_to(&mut numbers);
        let zeros = numbers.series.iter().filter(|(_, number)| matches!(number, AgentNumber::Integer(0)));
        assert_eq!(
            (zeros.count(), numbers.series.len()),
            (Rejection::ALL.len() + 1, Rejection::ALL.len() + 2)
        );
    }

    #[test]
    fn every_rejection_is_counted_under_its_own_reason() {
        for (index, reason) in Rejection::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn every_agent_family_stands_at_the_place_of_its_row() {
        let rows = families().filter(|family| matches!(family.rows, Rows::Agent)).map(|family| family.name);
        assert!(AgentFamily::ALL.iter().map(|family| family.name()).eq(rows));
    }

    #[test]
    fn series_stand_in_the_catalogues_order_with_their_own_numbers() {
        let entry = |family: AgentFamily, gpu: &str| AgentEntry {
            family: family.name(),
            labels: vec![("gpu", gpu.into())],
        };
        let (one, other) = (AgentFamily::BuildInfo, AgentFamily::LastSampleTimestamp);
        let series = |series: &[(AgentFamily, &str, u64)]| {
            let mut numbers = Services::default();
            for (family, gpu, value) in series {
                numbers.add(*family, vec![("gpu", (*gpu).into())], *value);
            }
            numbers
        };
        let integers = |numbers: Vec<AgentNumber>| {
            let number = |number| if let AgentNumber::Integer(number) = number { number } else { -1 };
            numbers.into_iter().map(number).collect::<Vec<_>>()
        };
        let (entries, numbers) = series(&[(other, "1", 1), (other, "0", 2), (one, "0", 3)]).sorted();
        assert_eq!(*entries, [entry(one, "0"), entry(other, "0"), entry(other, "1")]);
        assert_eq!(integers(numbers), [3, 2, 1]);
    }
}
