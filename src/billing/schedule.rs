//! The recorded rates of a node, and which of them is in force for a GPU at a time.

use std::sync::Arc;

use crate::model::{Price, QUARTER_HOUR, Tariff, Utc};

use super::rate::{PriceBook, Rate, RateSelector};

/// A rate as it was recorded. Only its end changes later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRate {
    /// Its number; a rate that was recorded later has a greater one.
    pub id: i64,
    /// The GPUs that it prices. It was recorded by a node that it selects.
    pub selector: RateSelector,
    /// The begin that the operator gave.
    pub given_from: Option<Utc>,
    /// When it is first in force.
    pub begin: Utc,
    /// When it is no longer in force; none while the operator's book has it.
    pub end: Option<Utc>,
    /// The price.
    pub price: Price,
    /// How it follows from what the operator gave; none where it was given itself.
    pub derivation: Option<Arc<str>>,
    /// When it was recorded.
    pub recorded: Utc,
}

/// The rates that a node has recorded, in order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSchedule {
    rates: Vec<RecordedRate>,
}

/// The circumstances in which a book is recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedAt<'a> {
    /// Now, or the end of the last settled minute where that is later.
    pub now: Utc,
    /// Name of the node.
    pub node: &'a str,
    /// Whether no time is settled yet. Then a rate without a begin is in force from the beginning.
    pub is_new: bool,
    /// The prices of time before this are final.
    pub covered_until: Utc,
}

impl RecordedRate {
    /// Whether it is the record of an entry of a book that is still there.
    fn is_of(&self, rate: &Rate, currency: &str) -> bool {
        let Price { tariff: Tariff { currency: own, class }, nano_per_gpu_hour } = &self.price;
        self.end.is_none()
            && (&self.selector, self.given_from) == (&rate.selector, rate.from)
            && (&**own, class, *nano_per_gpu_hour) == (currency, &rate.class, rate.nano_per_gpu_hour)
    }

    fn is_in_force(&self, at: Utc) -> bool {
        self.begin <= at && self.end.is_none_or(|end| at < end)
    }
}

impl RateSchedule {
    /// A schedule of recorded rates, in order of their ids.
    pub const fn new(rates: Vec<RecordedRate>) -> Self {
        Self { rates }
    }

    /// The recorded rates, in order of their ids.
    pub fn rates(&self) -> &[RecordedRate] {
        &self.rates
    }

    /// The rate of a GPU at a time: that with the most specific selector, then the latest given begin, then the last
    /// recorded one.
    pub fn in_force(&self, uuid: &str, model: &str, at: Utc) -> Option<&RecordedRate> {
        let rates = self.rates.iter().filter(|rate| rate.is_in_force(at));
        let rates = rates.filter(|rate| rate.selector.is_for_gpu(uuid, model));
        rates.max_by_key(|rate| (rate.selector.specificity(), rate.given_from, rate.id))
    }

    /// The times inside a span at which a rate begins or ends, in order.
    pub fn changes_between(&self, from: Utc, to: Utc) -> Vec<Utc> {
        let changes = self.rates.iter().flat_map(|rate| [Some(rate.begin), rate.end]).flatten();
        let mut changes: Vec<Utc> = changes.filter(|at| from < *at && *at < to).collect();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// The time after `at` at which a rate next begins or ends.
    pub fn next_change(&self, at: Utc) -> Utc {
        let changes = self.rates.iter().flat_map(|rate| [Some(rate.begin), rate.end]).flatten();
        changes.filter(|change| *change > at).min().unwrap_or(Utc(u64::MAX))
    }

    /// Whether the operator gives any rate for this node.
    pub fn is_configured(&self) -> bool {
        self.rates.iter().any(|rate| rate.end.is_none())
    }

    /// Records a book in place of the last one; none ends all rates. Returns whether that changed anything.
    ///
    /// An entry that is not recorded yet begins when its operator says, but not in time that is covered; without a begin, at
    /// the next quarter hour. One that is gone ends at the next quarter hour.
    pub fn record(&mut self, book: Option<&PriceBook>, at: RecordedAt<'_>) -> bool {
        let RecordedAt { now, node, is_new, covered_until } = at;
        let next_quarter = now.floor(QUARTER_HOUR).plus(QUARTER_HOUR);
        let entries = || {
            let entries =
                book.into_iter().flat_map(|book| book.rates.iter().map(|rate| (rate, &book.currency)));
            entries.filter(|(rate, _)| rate.selector.is_for_node(node))
        };
        let is_known = |known: &RecordedRate| entries().any(|(rate, currency)| known.is_of(rate, currency));
        let mut is_changed = false;
        for gone in self.rates.iter_mut().filter(|known| known.end.is_none()) {
            if !is_known(gone) {
                gone.end = Some(next_quarter);
                is_changed = true;
            }
        }
        for (rate, currency) in entries() {
            if self.rates.iter().any(|known| known.is_of(rate, currency)) {
                continue;
            }
            let begin = match rate.from {
                Some(from) if from < covered_until => ceil(covered_until),
                Some(from) => from,
                None if is_new => Utc(0),
                None => next_quarter,
            };
            self.rates.push(RecordedRate {
                id: self.rates.last().map_or(1, |last| last.id + 1),
                selector: rate.selector.clone(),
                given_from: rate.from,
                begin,
                end: None,
                price: Price {
                    tariff: Tariff { currency: currency.clone(), class: rate.class.clone() },
                    nano_per_gpu_hour: rate.nano_per_gpu_hour,
                },
                derivation: rate.derivation.clone(),
                recorded: now,
            });
            is_changed = true;
        }
        is_changed
    }
}

/// The first quarter hour that is not earlier.
fn ceil(at: Utc) -> Utc {
    let floor = at.floor(QUARTER_HOUR);
    if floor == at { at } else { floor.plus(QUARTER_HOUR) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Nanoseconds;

    /// A time in quarter hours.
    fn quarter(count: u64) -> Utc {
        Utc(count * QUARTER_HOUR.0)
    }

    fn rate(model: Option<&str>, from: Option<u64>, nano_per_gpu_hour: i64) -> Rate {
        Rate {
            selector: RateSelector { model: model.map(str::to_owned), ..RateSelector::default() },
            from: from.map(quarter),
            nano_per_gpu_hour,
            class: "on_demand".into(),
            derivation: None,
        }
    }

    fn book(rates: Vec<Rate>) -> PriceBook {
        PriceBook { currency: "EUR".into(), rates }
    }

    /// Recorded in the middle of a quarter hour.
    fn during(count: u64) -> RecordedAt<'static> {
        let now = quarter(count).plus(Nanoseconds::SECOND);
        RecordedAt { now, node: "node-1", is_new: false, covered_until: Utc(0) }
    }

    fn prices(schedule: &RateSchedule, model: &str, quarters: std::ops::Range<u64>) -> Vec<Option<i64>> {
        let price = |count| schedule.in_force("GPU-0", model, quarter(count));
        quarters.map(|count| price(count).map(|rate| rate.price.nano_per_gpu_hour)).collect()
    }

    #[test]
    fn a_rate_without_a_begin_holds_from_the_next_quarter_hour_on_and_ends_at_one() {
        let mut schedule = RateSchedule::default();
        assert!(!schedule.record(None, during(0)) && !schedule.is_configured());
        assert!(
            schedule.record(Some(&book(vec![rate(None, None, 1)])), RecordedAt { is_new: true, ..during(3) })
        );
        assert_eq!(prices(&schedule, "H100", 0..4), [Some(1); 4]);
        assert!(!schedule.record(Some(&book(vec![rate(None, None, 1)])), during(4)));
        assert!(schedule.record(Some(&book(vec![rate(None, None, 2)])), during(5)));
        assert!(schedule.record(None, during(7)));
        assert_eq!(prices(&schedule, "H100", 4..10), [Some(1), Some(1), Some(2), Some(2), None, None]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(8)), [quarter(6)]);
        assert_eq!(
            [5, 6, 8].map(|count| schedule.next_change(quarter(count)).0),
            [quarter(6).0, quarter(8).0, u64::MAX]
        );
    }

    #[test]
    fn a_rate_with_a_begin_holds_in_the_past_too_but_not_in_covered_time() {
        let mut schedule = RateSchedule::default();
        schedule.record(Some(&book(vec![rate(None, None, 1)])), RecordedAt { is_new: true, ..during(0) });
        let late = book(vec![rate(None, None, 1), rate(None, Some(2), 5)]);
        schedule.record(Some(&late), during(9));
        assert_eq!(prices(&schedule, "H100", 1..4), [Some(1), Some(5), Some(5)]);
        // A correction has the same selector and begin.
        let corrected = book(vec![rate(None, None, 1), rate(None, Some(2), 6)]);
        schedule.record(Some(&corrected), RecordedAt { covered_until: Utc(quarter(3).0 + 1), ..during(9) });
        assert_eq!(prices(&schedule, "H100", 1..6), [Some(1), Some(5), Some(5), Some(6), Some(6)]);
    }

    #[test]
    fn the_most_specific_selector_holds_then_the_latest_begin() {
        let mut schedule = RateSchedule::default();
        let given = book(vec![
            rate(Some("*H100*"), None, 3),
            rate(None, Some(2), 2),
            rate(None, None, 1),
            Rate {
                selector: RateSelector { node: Some("node-2".into()), ..RateSelector::default() },
                ..rate(None, None, 9)
            },
        ]);
        schedule.record(Some(&given), RecordedAt { is_new: true, ..during(0) });
        assert_eq!(prices(&schedule, "NVIDIA H100", 1..4), [Some(3); 3]);
        assert_eq!(prices(&schedule, "NVIDIA A40", 1..4), [Some(1), Some(2), Some(2)]);
        assert_eq!(schedule.rates().len(), 3, "rates of other nodes are not recorded");
    }
}
