//! The agent's own numbers: counters and a histogram that the pulse keeps, and what other threads report.

use std::collections::HashMap;
use std::sync::Arc;

use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use crate::catalogue::{Kind, families};
use crate::model::snapshot::{AgentEntry, AgentNumber, Histogram as Buckets};
use crate::model::{Frame, Nanoseconds, Rejection};

/// Numbers of other threads, each a series of an agent family of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Series and value, an integer of the family's unit.
    pub series: Vec<(AgentEntry, i64)>,
}

impl Services {
    /// Adds a series.
    pub fn add(&mut self, family: &'static str, labels: Vec<(&'static str, Arc<str>)>, value: i64) {
        self.series.push((AgentEntry { family, labels }, value));
    }
}

/// Upper bounds of the driver-call histogram in seconds: from a getter's 3 us to a GSP time-out.
const CALL_BOUNDS: [f64; 12] = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0, 10.0, 60.0];

/// The pulse's own counters, kept by the `prometheus` crate.
#[derive(Debug)]
pub struct Counters {
    registry: Registry,
    calls: Histogram,
    rejected: IntCounterVec,
    pub(super) unsettled: IntCounter,
}

impl Default for Counters {
    fn default() -> Self {
        Self::new().unwrap_or_else(|_| Self::unregistered())
    }
}

impl Counters {
    fn new() -> prometheus::Result<Self> {
        let counters = Self::unregistered();
        counters.registry.register(Box::new(counters.calls.clone()))?;
        counters.registry.register(Box::new(counters.rejected.clone()))?;
        counters.registry.register(Box::new(counters.unsettled.clone()))?;
        Ok(counters)
    }

    /// Counters that count and are shown nowhere: what is left when a name were refused, which the tests
    /// of the catalogue exclude.
    #[expect(clippy::expect_used, reason = "the names are constants; a test makes these counters")]
    fn unregistered() -> Self {
        let call =
            HistogramOpts::new("gpumeter_driver_call_duration_seconds", "-").buckets(CALL_BOUNDS.into());
        let rejected = IntCounterVec::new(Opts::new("gpumeter_samples_rejected_total", "-"), &["reason"])
            .expect("a valid name");
        for reason in Rejection::ALL {
            // A series is born at 0, so that its first increase is seen.
            rejected.with_label_values(&[reason.reason()]);
        }
        Self {
            registry: Registry::new(),
            calls: Histogram::with_opts(call).expect("a valid name"),
            rejected,
            unsettled: IntCounter::new("gpumeter_account_unsettled_windows_total", "-")
                .expect("a valid name"),
        }
    }

    /// Counts a frame's calls and rejected answers.
    pub(super) fn observe(&self, frame: &Frame) {
        for call in &frame.calls {
            self.calls.observe(call.took.0 as f64 / Nanoseconds::SECOND.0 as f64);
        }
        for (reason, count) in &frame.rejected {
            self.reject(*reason, *count);
        }
    }

    /// Counts answers that the meter itself could not believe.
    pub(super) fn reject(&self, reason: Rejection, count: u64) {
        self.rejected.with_label_values(&[reason.reason()]).inc_by(count);
    }

    /// All of them as series of the catalogue.
    pub(super) fn gather(&self) -> Vec<(AgentEntry, AgentNumber)> {
        self.registry.gather().iter().flat_map(series).collect()
    }
}

/// The catalogue's static name of a family that the registry gathered.
fn series(family: &MetricFamily) -> Vec<(AgentEntry, AgentNumber)> {
    let Some(row) = crate::catalogue::family(family.name()) else { return Vec::new() };
    family
        .get_metric()
        .iter()
        .map(|metric| {
            let labels = metric
                .get_label()
                .iter()
                .filter_map(|pair| {
                    let name = row.labels.iter().find(|name| **name == pair.name())?;
                    Some((*name, pair.value().into()))
                })
                .collect();
            let number = if row.kind == Kind::Histogram {
                AgentNumber::Histogram(Arc::new(buckets(metric.get_histogram())))
            } else {
                // The crate keeps its integer counters as doubles on the way out; they count events.
                #[expect(clippy::cast_possible_truncation, reason = "a count of events fits 53 bits")]
                AgentNumber::Integer(metric.get_counter().get_value() as i64)
            };
            (AgentEntry { family: row.name, labels }, number)
        })
        .collect()
}

fn buckets(histogram: &prometheus::proto::Histogram) -> Buckets {
    Buckets {
        bounds: histogram.get_bucket().iter().map(|bucket| bucket.upper_bound()).collect(),
        cumulative: histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect(),
        count: histogram.get_sample_count(),
        sum: histogram.get_sample_sum(),
    }
}

/// Sorts series into the catalogue's order, and by labels within a family.
pub(super) fn sort(series: &mut [(AgentEntry, AgentNumber)]) {
    let places: HashMap<&str, usize> =
        families().enumerate().map(|(place, family)| (family.name, place)).collect();
    series.sort_by(|(left, _), (right, _)| {
        let place = |entry: &AgentEntry| places.get(entry.family).copied();
        (place(left), &left.labels).cmp(&(place(right), &right.labels))
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_own_counter_is_a_family_of_the_catalogue() {
        let counters = Counters::default();
        let names: BTreeSet<_> = counters.gather().into_iter().map(|(entry, _)| entry.family).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn every_reason_of_rejection_is_counted_from_zero_on() {
        let counters = Counters::default();
        let rejected = |(entry, number): &(AgentEntry, AgentNumber)| {
            entry.family == "gpumeter_samples_rejected_total" && matches!(number, AgentNumber::Integer(0))
        };
        assert_eq!(counters.gather().iter().filter(|one| rejected(one)).count(), Rejection::ALL.len());
    }
}
