//! The agent's own numbers: counters and a histogram that the tick loop keeps, and what other threads report.

use std::sync::Arc;

use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use crate::catalogue::{AgentFamily, Kind};
use crate::model::snapshot::{AgentEntry, AgentNumber, Histogram as Buckets};
use crate::model::{CallTime, Nanoseconds, Rejection};

/// A series: its family, and its labels in the family's order.
pub(super) type AgentSeries = (AgentFamily, Vec<(&'static str, Arc<str>)>);

/// Numbers of other threads, each a series of an agent family of the catalogue.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Series and value, an integer of the family's unit.
    pub(super) series: Vec<(AgentSeries, i64)>,
}

impl Services {
    /// Adds a series of a family of the catalogue. A name that has no row there is no family:
    ///
    /// ```compile_fail,E0308
    /// gpumeter::meter::Services::default().add("gpumeter_no_such_family", Vec::new(), 1);
    /// ```
    pub fn add(&mut self, family: AgentFamily, labels: Vec<(&'static str, Arc<str>)>, value: i64) {
        self.series.push(((family, labels), value));
    }
}

/// Upper bounds of the driver-call histogram in seconds: from a getter's 3 us to a GSP time-out.
const CALL_BOUNDS: [f64; 12] = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0, 10.0, 60.0];

/// The tick loop's own counters, kept by the `prometheus` crate.
#[derive(Debug)]
pub struct MeterCounters {
    registry: Registry,
    calls: Histogram,
    rejected: IntCounterVec,
    pub(super) unsettled: IntCounter,
}

impl Default for MeterCounters {
    fn default() -> Self {
        Self::new().unwrap_or_else(|_| Self::unregistered())
    }
}

impl MeterCounters {
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
            HistogramOpts::new(AgentFamily::DriverCallDuration.name(), "-").buckets(CALL_BOUNDS.into());
        let rejected = IntCounterVec::new(Opts::new(AgentFamily::SamplesRejected.name(), "-"), &["reason"])
            .expect("a valid name");
        for reason in Rejection::ALL {
            // A series is born at 0, so that its first increase is seen.
            rejected.with_label_values(&[reason.reason()]);
        }
        Self {
            registry: Registry::new(),
            calls: Histogram::with_opts(call).expect("a valid name"),
            rejected,
            unsettled: IntCounter::new(AgentFamily::AccountUnsettledWindows.name(), "-")
                .expect("a valid name"),
        }
    }

    /// Counts a tick's calls and rejected answers.
    pub(super) fn observe(&self, calls: &[CallTime], rejected: &[(Rejection, u64)]) {
        for call in calls {
            self.calls.observe(call.took.0 as f64 / Nanoseconds::SECOND.0 as f64);
        }
        for (reason, count) in rejected {
            self.reject(*reason, *count);
        }
    }

    /// Counts answers that the meter itself could not believe.
    pub(super) fn reject(&self, reason: Rejection, count: u64) {
        self.rejected.with_label_values(&[reason.reason()]).inc_by(count);
    }

    /// All of them as series of the catalogue.
    pub(super) fn gather(&self) -> Vec<(AgentSeries, AgentNumber)> {
        self.registry.gather().iter().flat_map(series).collect()
    }
}

/// The series of a family that the registry gathered under the name of its row.
fn series(gathered: &MetricFamily) -> Vec<(AgentSeries, AgentNumber)> {
    let Some(family) = AgentFamily::ALL.iter().find(|family| family.name() == gathered.name()) else {
        return Vec::new();
    };
    let row = family.row();
    gathered
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
            ((*family, labels), number)
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

/// Series in the catalogue's order, and by labels within a family; the order is found anew only when other series
/// come than the last time.
#[derive(Debug, Default)]
pub(super) struct SeriesOrder {
    given: Vec<AgentSeries>,
    /// Which of the given stands at each place.
    places: Vec<usize>,
    sorted: Arc<[AgentEntry]>,
}

impl SeriesOrder {
    pub(super) fn sort(
        &mut self,
        series: Vec<(AgentSeries, AgentNumber)>,
    ) -> (Arc<[AgentEntry]>, Vec<AgentNumber>) {
        let (given, numbers): (Vec<AgentSeries>, Vec<AgentNumber>) = series.into_iter().unzip();
        if given != self.given {
            self.sort_entries(given);
        }
        let numbers = self.places.iter().filter_map(|place| numbers.get(*place).cloned());
        (Arc::clone(&self.sorted), numbers.collect())
    }

    fn sort_entries(&mut self, given: Vec<AgentSeries>) {
        let mut sorted: Vec<_> = given.iter().enumerate().collect();
        sorted.sort_by_key(|(_, series)| *series);
        self.places = sorted.iter().map(|(place, _)| *place).collect();
        let entry =
            |(family, labels): &AgentSeries| AgentEntry { family: family.name(), labels: labels.clone() };
        self.sorted = sorted.into_iter().map(|(_, series)| entry(series)).collect();
        self.given = given;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalogue::{Rows, families};

    #[test]
    fn every_own_counter_is_a_family_of_the_catalogue() {
        let counters = MeterCounters::default();
        let names: BTreeSet<_> = counters.gather().into_iter().map(|((family, _), _)| family).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn every_reason_of_rejection_is_counted_from_zero_on() {
        let counters = MeterCounters::default();
        let rejected = |((family, _), number): &(AgentSeries, AgentNumber)| {
            *family == AgentFamily::SamplesRejected && matches!(number, AgentNumber::Integer(0))
        };
        assert_eq!(counters.gather().iter().filter(|one| rejected(one)).count(), Rejection::ALL.len());
    }

    #[test]
    fn every_agent_family_stands_at_the_place_of_its_row() {
        let rows = families().filter(|family| matches!(family.rows, Rows::Agent)).map(|family| family.name);
        assert!(AgentFamily::ALL.iter().map(|family| family.name()).eq(rows));
    }

    #[test]
    fn series_stand_in_the_catalogues_order_with_their_own_numbers() {
        let key = |family, gpu: &str| (family, vec![("gpu", gpu.into())]);
        let entry = |family: AgentFamily, gpu: &str| AgentEntry {
            family: family.name(),
            labels: vec![("gpu", gpu.into())],
        };
        let (one, other) = (AgentFamily::BuildInfo, AgentFamily::LastSampleTimestamp);
        let series = |numbers: [i64; 3]| {
            let keys = [key(other, "1"), key(other, "0"), key(one, "0")];
            keys.into_iter().zip(numbers.map(AgentNumber::Integer)).collect()
        };
        let whole = |numbers: Vec<AgentNumber>| {
            let number = |number| if let AgentNumber::Integer(number) = number { number } else { -1 };
            numbers.into_iter().map(number).collect::<Vec<_>>()
        };
        let mut order = SeriesOrder::default();
        let (first, numbers) = order.sort(series([1, 2, 3]));
        assert_eq!(*first, [entry(one, "0"), entry(other, "0"), entry(other, "1")]);
        assert_eq!(whole(numbers), [3, 2, 1]);
        let (second, numbers) = order.sort(series([10, 20, 30]));
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(whole(numbers), [30, 20, 10]);
        let (third, numbers) = order.sort(vec![(key(other, "7"), AgentNumber::Integer(5))]);
        assert_eq!((&*third, whole(numbers)), (&[entry(other, "7")][..], vec![5]));
    }
}
