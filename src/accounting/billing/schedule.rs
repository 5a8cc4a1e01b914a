//! What the operator decided, as a node recorded it: each entry with the time in which it is in force.

use std::sync::Arc;

use crate::model::{NodeIdentity, QUARTER_HOUR, Utc};

use super::bill::LineRates;
use super::rate::{EXAMPLE, PriceBook, PricedSlot, Rate, RateKind};
use super::terms::Terms;

/// An entry of the operator's configuration that is in force from a time on.
pub trait Dated: Clone + PartialEq {
    /// The begin that the operator gave; without one it begins at the quarter hour after it was first recorded.
    fn from(&self) -> Option<Utc> {
        None
    }

    /// Whether it concerns that node. It is recorded by the nodes that it concerns.
    fn is_for_node(&self, _: &NodeIdentity) -> bool {
        true
    }

    fn selects_nodes(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded<E> {
    /// Its number; an entry that was recorded later has a greater one.
    pub id: i64,
    pub entry: E,
    pub begin: Utc,
    /// When it is no longer in force; none while the operator's configuration has it.
    pub end: Option<Utc>,
    pub recorded: Utc,
    /// The account of time before this was final then.
    pub covered_until: Utc,
}

/// The entries that a node has recorded, in order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule<E> {
    entries: Vec<Recorded<E>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateSchedule {
    pub rates: Schedule<Rate>,
    pub terms: Schedule<Terms>,
}

#[derive(Clone, Copy, Debug)]
pub struct RecordedAt<'a> {
    /// Now, or the end of the last settled minute where that is later.
    pub now: Utc,
    pub node: &'a NodeIdentity,
    /// Since when the node has its name, pool, instance type and spot.
    pub node_since: Utc,
    /// Whether no time is settled yet. Then an entry without a begin is in force from the beginning.
    pub is_new: bool,
    /// The account of time before this is final.
    pub covered_until: Utc,
}

impl<'a> RecordedAt<'a> {
    pub const fn first(node: &'a NodeIdentity) -> Self {
        Self { now: Utc(0), node, node_since: Utc(0), is_new: true, covered_until: Utc(0) }
    }
}

impl RateSchedule {
    pub fn currencies(&self, from: Utc, to: Utc) -> impl Iterator<Item = &str> {
        let prices = self.rates.entries().iter().filter(|rate| {
            rate.entry.kind != RateKind::CarbonKwh && !rate.entry.tariff.class.starts_with(EXAMPLE)
        });
        let prices = prices.filter(move |rate| rate.is_between(from, to));
        prices.map(|rate| &*rate.entry.tariff.currency)
    }
}

impl<E> Recorded<E> {
    fn is_in_force(&self, at: Utc) -> bool {
        self.begin <= at && self.end.is_none_or(|end| at < end)
    }

    fn is_between(&self, from: Utc, to: Utc) -> bool {
        self.begin < to && self.end.is_none_or(|end| from < end)
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<E> Schedule<E> {
    pub const fn new(entries: Vec<Recorded<E>>) -> Self {
        Self { entries }
    }

    pub fn entries(&self) -> &[Recorded<E>] {
        &self.entries
    }

    pub fn in_force(&self, at: Utc) -> impl Iterator<Item = &Recorded<E>> {
        self.entries.iter().filter(move |entry| entry.is_in_force(at))
    }

    fn changes(&self) -> impl Iterator<Item = Utc> {
        self.entries.iter().flat_map(|entry| [Some(entry.begin), entry.end]).flatten()
    }

    pub fn changes_between(&self, from: Utc, to: Utc) -> impl Iterator<Item = Utc> {
        self.changes().filter(move |at| from < *at && *at < to)
    }

    pub fn last_recorded(&self, from: Utc, to: Utc) -> Utc {
        let inside = self.entries.iter().filter(|entry| entry.is_between(from, to));
        inside.map(|entry| entry.recorded).max().unwrap_or_default()
    }
}

impl<E: Dated> Schedule<E> {
    /// Records the operator's entries in place of the last ones. Returns whether that changed anything.
    ///
    /// An entry that is not recorded yet begins when its operator says, but not in time that is covered; without a begin, at
    /// the next quarter hour. One that is gone ends at the next quarter hour.
    pub fn record(&mut self, given: &[E], at: RecordedAt<'_>) -> bool {
        let RecordedAt { now, node, node_since, is_new, covered_until } = at;
        let next_quarter = now.floor(QUARTER_HOUR).plus(QUARTER_HOUR);
        let given = || given.iter().filter(|entry| entry.is_for_node(node));
        let mut is_changed = false;
        for gone in self.entries.iter_mut().filter(|known| known.end.is_none()) {
            if !given().any(|entry| gone.entry == *entry) {
                gone.end = Some(next_quarter);
                is_changed = true;
            }
        }
        for entry in given() {
            if self.entries.iter().any(|known| known.end.is_none() && known.entry == *entry) {
                continue;
            }
            let begin = match entry.from() {
                Some(from) if from < covered_until => covered_until.ceil(QUARTER_HOUR),
                Some(from) => from,
                None if is_new => Utc(0),
                None => next_quarter,
            };
            // What the node was before had the rates of then.
            let node_since = if entry.selects_nodes() { node_since.ceil(QUARTER_HOUR) } else { Utc(0) };
            let begin = begin.max(node_since);
            let id = self.entries.last().map_or(1, |last| last.id + 1);
            let entry = entry.clone();
            self.entries.push(Recorded { id, entry, begin, end: None, recorded: now, covered_until });
            is_changed = true;
        }
        is_changed
    }
}

impl RateSchedule {
    /// The rate of that kind for a slot at a time: that with the most specific selector, then the latest given begin, then
    /// the last recorded one.
    pub fn rate(&self, kind: RateKind, slot: PricedSlot<'_>, at: Utc) -> Option<&Recorded<Rate>> {
        let rates = self.rates.in_force(at).filter(|rate| rate.entry.kind == kind && rate.entry.is_for(slot));
        rates.max_by_key(|rate| (rate.entry.selector.specificity(), rate.entry.from, rate.id))
    }

    /// The terms of a tenant at a time: those with the tenant's own name before those with a pattern, then the latest given
    /// begin, then the last recorded ones.
    pub fn terms_of(&self, tenant: &str, at: Utc) -> Option<&Recorded<Terms>> {
        let terms = self.terms.in_force(at).filter(|terms| terms.entry.is_for(tenant));
        terms.max_by_key(|terms| (terms.entry.tenant == tenant, terms.entry.from, terms.id))
    }

    /// The times inside a span at which an entry begins or ends, in order.
    pub fn changes_between(&self, from: Utc, to: Utc) -> Vec<Utc> {
        let terms = self.terms.changes_between(from, to);
        let mut changes: Vec<Utc> = self.rates.changes_between(from, to).chain(terms).collect();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// The currency of what prices a line; none where nothing does.
    pub fn currency_of(&self, line: &LineRates) -> Option<&Arc<str>> {
        let id = line.time.or(line.energy)?;
        let rate = self.rates.entries().iter().find(|rate| rate.id == id);
        rate.map(|rate| &rate.entry.tariff.currency)
    }

    /// Whether the operator gives any price for this node.
    pub fn is_configured(&self) -> bool {
        self.rates.entries.iter().any(|rate| rate.end.is_none() && rate.entry.kind.is_time())
    }

    /// Whether the node ever had a price.
    pub fn has_prices(&self) -> bool {
        self.rates.entries.iter().any(|rate| rate.entry.kind.is_time())
    }

    /// Records a book in place of the last one. Returns whether that changed anything.
    pub fn record(&mut self, book: &PriceBook, at: RecordedAt<'_>) -> bool {
        // Both are recorded, whether or not the first has changed.
        self.rates.record(&book.rates, at) | self.terms.record(&book.terms, at)
    }

    /// The schedule of a node that has always had that book: entries without a begin hold from the beginning.
    pub fn always(book: &PriceBook, node: &NodeIdentity) -> Self {
        let mut schedule = Self::default();
        schedule.record(book, RecordedAt::first(node));
        schedule
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::accounting::billing::RateSelector;
    use crate::model::{MigProfile, Nanoseconds, Tariff};

    static NODE: LazyLock<NodeIdentity> =
        LazyLock::new(|| NodeIdentity { name: "node-1".into(), ..NodeIdentity::default() });

    /// A time in quarter hours.
    fn quarter(count: u64) -> Utc {
        Utc(count * QUARTER_HOUR.0)
    }

    fn rate(model: Option<&str>, from: Option<u64>, nano: i64) -> Rate {
        Rate {
            kind: RateKind::GpuHour,
            selector: RateSelector { model: model.map(str::to_owned), ..RateSelector::default() },
            from: from.map(quarter),
            nano,
            tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
            derivation: None,
        }
    }

    fn book(rates: Vec<Rate>) -> PriceBook {
        PriceBook { rates, ..PriceBook::default() }
    }

    fn during(count: u64) -> RecordedAt<'static> {
        let now = quarter(count).plus(Nanoseconds::SECOND);
        RecordedAt { now, node: &NODE, node_since: Utc(0), is_new: false, covered_until: Utc(0) }
    }

    fn slot(model: &str) -> PricedSlot<'_> {
        PricedSlot { uuid: "GPU-0", model, profile: None }
    }

    fn prices(schedule: &RateSchedule, model: &str, quarters: std::ops::Range<u64>) -> Vec<Option<i64>> {
        let price = |count| schedule.rate(RateKind::GpuHour, slot(model), quarter(count));
        quarters.map(|count| price(count).map(|rate| rate.entry.nano)).collect()
    }

    #[test]
    fn a_rate_without_a_begin_holds_from_the_next_quarter_hour_on_and_ends_at_one() {
        let mut schedule = RateSchedule::default();
        assert!(!schedule.record(&PriceBook::default(), during(0)) && !schedule.is_configured());
        assert!(schedule.record(&book(vec![rate(None, None, 1)]), RecordedAt { is_new: true, ..during(3) }));
        assert_eq!(prices(&schedule, "H100", 0..4), [Some(1); 4]);
        assert!(!schedule.record(&book(vec![rate(None, None, 1)]), during(4)));
        assert!(schedule.record(&book(vec![rate(None, None, 2)]), during(5)));
        assert!(schedule.record(&PriceBook::default(), during(7)));
        assert_eq!(prices(&schedule, "H100", 4..10), [Some(1), Some(1), Some(2), Some(2), None, None]);
        assert_eq!(schedule.changes_between(quarter(0), quarter(8)), [quarter(6)]);
    }

    #[test]
    fn a_rate_with_a_begin_holds_in_the_past_too_but_not_in_covered_time() {
        let mut schedule = RateSchedule::default();
        schedule.record(&book(vec![rate(None, None, 1)]), RecordedAt { is_new: true, ..during(0) });
        let late = book(vec![rate(None, None, 1), rate(None, Some(2), 5)]);
        schedule.record(&late, during(9));
        assert_eq!(prices(&schedule, "H100", 1..4), [Some(1), Some(5), Some(5)]);
        // A correction has the same selector and begin.
        let corrected = book(vec![rate(None, None, 1), rate(None, Some(2), 6)]);
        schedule.record(&corrected, RecordedAt { covered_until: Utc(quarter(3).0 + 1), ..during(9) });
        assert_eq!(prices(&schedule, "H100", 1..6), [Some(1), Some(5), Some(5), Some(6), Some(6)]);
    }

    #[test]
    fn a_rate_of_some_nodes_holds_from_when_the_node_is_one_of_them() {
        let mut schedule = RateSchedule::default();
        let of_pool = |pool: &str, nano| Rate {
            selector: RateSelector { pool: Some(pool.into()), ..RateSelector::default() },
            ..rate(None, Some(1), nano)
        };
        let given = book(vec![of_pool("a", 1), of_pool("b", 5)]);
        let pool = |pool: &str| NodeIdentity { pool: Some(pool.into()), ..NODE.clone() };
        let (a, b) = (pool("a"), pool("b"));
        let at = |node, since, count| RecordedAt { node, node_since: quarter(since), ..during(count) };
        schedule.record(&given, RecordedAt { is_new: true, ..at(&a, 0, 0) });
        schedule.record(&given, at(&b, 4, 4));
        schedule.record(&given, at(&a, 7, 7));
        assert_eq!(
            prices(&schedule, "H100", 1..9),
            [Some(1), Some(1), Some(1), Some(5), Some(5), Some(5), Some(1), Some(1)]
        );
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
        schedule.record(&given, RecordedAt { is_new: true, ..during(0) });
        assert_eq!(prices(&schedule, "NVIDIA H100", 1..4), [Some(3); 3]);
        assert_eq!(prices(&schedule, "NVIDIA A40", 1..4), [Some(1), Some(2), Some(2)]);
        assert_eq!(schedule.rates.entries().len(), 3, "rates of other nodes are not recorded");
    }

    #[test]
    fn a_rate_of_instances_prices_instances_of_its_profile_only() {
        let selector = RateSelector { mig_profile: Some("1g.*".into()), ..RateSelector::default() };
        let of_instance = Rate { kind: RateKind::InstanceHour, selector, ..rate(None, None, 7) };
        let schedule = RateSchedule::always(&book(vec![of_instance, rate(None, None, 1)]), &NODE);
        let price = |profile: Option<&MigProfile>| {
            let slot = PricedSlot { profile, ..slot("H100") };
            schedule.rate(RateKind::InstanceHour, slot, quarter(1)).map(|rate| rate.entry.nano)
        };
        let profile = |name: &str| MigProfile { name: name.into(), size: 1, total: 8 };
        let prices = [Some(&profile("1g.10gb")), Some(&profile("3g.40gb")), None].map(price);
        assert_eq!(prices, [Some(7), None, None]);
        assert_eq!(prices_of_gpu(&schedule), Some(1));
    }

    fn prices_of_gpu(schedule: &RateSchedule) -> Option<i64> {
        schedule.rate(RateKind::GpuHour, slot("H100"), quarter(1)).map(|rate| rate.entry.nano)
    }

    #[test]
    fn a_tenant_s_own_terms_come_before_those_of_a_pattern() {
        let terms = |tenant: &str, discount| Terms { tenant: tenant.into(), discount, ..Terms::default() };
        let terms = vec![terms("ml", 1), terms("*", 2), terms("m*", 3)];
        let schedule = RateSchedule::always(&PriceBook { terms, ..PriceBook::default() }, &NODE);
        let discount = |tenant| schedule.terms_of(tenant, quarter(1)).map(|terms| terms.entry.discount);
        assert_eq!(["ml", "mx", "x", "__unallocated__"].map(discount), [Some(1), Some(3), Some(2), None]);
    }
}
