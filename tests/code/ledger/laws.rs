//! Laws over random settlements: nothing is lost between windows, counters, rows and bills.

use gpumeter::accounting::batches::{Acknowledged, ClosedWindow, LedgerBatch};
use gpumeter::accounting::billing::{
    Basis, Bill, BillRequest, ExactMoney, PriceBook, Rate, RateKind, RateSelector, Terms, WHOLE_RATE,
};
use gpumeter::accounting::ledger::Reader;
use gpumeter::model::{Amounts, HolderId, MigProfile, Money, Parts, Row, SlotId, Tariff, Use};
use proptest::prelude::*;

use super::world::*;

const HOLDERS: [&str; 4] = [HolderId::UNALLOCATED, "unit:train.service", "user:a", "user:b"];

/// Weights of the five parts of each holder, and of its use.
pub(super) type Weights = Vec<([u8; 5], [u8; 2])>;

pub(super) fn weights() -> impl Strategy<Value = Weights> {
    prop::collection::vec((any::<[u8; 5]>(), any::<[u8; 2]>()), HOLDERS.len())
}

/// Divides `total` along weights, the rest to the last.
fn divide(total: u64, weights: &[u8]) -> Vec<u64> {
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>().max(1);
    let mut parts: Vec<u64> = weights.iter().map(|weight| total / sum * u64::from(*weight)).collect();
    let rest = total - parts.iter().sum::<u64>();
    *parts.last_mut().unwrap() += rest;
    parts
}

pub(super) fn window(gpu: u32, (from, to): (u64, u64), weights: &Weights) -> ClosedWindow {
    let cells: Vec<u8> = weights.iter().flat_map(|(parts, _)| *parts).collect();
    let held = divide((to - from) * SECOND, &cells);
    let part = |index: usize| held.iter().skip(index).step_by(5).sum::<u64>();
    let users = |index: usize| -> Vec<u8> { weights.iter().map(|(_, used)| used[index]).collect() };
    let (within, beyond) = (divide(part(0), &users(0)), divide(part(1), &users(1)));
    let rows: Vec<Row> = HOLDERS
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let cell = &held[i * 5..];
            let parts = Parts {
                within: cell[0],
                lent: cell[1],
                idle: cell[2],
                unmeasured: cell[3],
                unavailable: cell[4],
            };
            let row = row(name, parts, Use { within: within[i], beyond: beyond[i], ..Use::default() });
            Row { slot: slot(gpu, i), ..row }
        })
        .collect();
    closed(gpu, (after(from), after(to)), rows)
}

/// The slot of a holder: on GPU 1 each but the first has a MIG instance.
fn slot(gpu: u32, holder: usize) -> SlotId {
    if gpu == 0 || holder == 0 {
        return SlotId::default();
    }
    let size = 1 << (holder - 1);
    let profile = MigProfile { name: format!("{size}g").into(), size, total: 8 };
    SlotId { gpu_instance: Some(holder as u32), profile: Some(profile) }
}

/// Rates of all kinds with some selectors, and terms of some tenants, that begin at any minute of the first hours.
pub(super) fn books() -> impl Strategy<Value = PriceBook> {
    const KINDS: [RateKind; 4] =
        [RateKind::GpuHour, RateKind::InstanceHour, RateKind::Kwh, RateKind::CarbonKwh];
    let from = || prop::option::of((0..90_u64).prop_map(|minutes| after(minutes * 60)));
    let rate = (0..4_usize, 0..3_usize, from(), 0..1_000_000_000_000_i64).prop_map(
        |(kind, selected, from, nano)| {
            let (kind, mut selector) = (KINDS[kind], RateSelector::default());
            match selected {
                1 => selector.uuid = Some(uuid(1).to_string()),
                2 => selector.model = Some("*H100*".into()),
                _ => {}
            }
            selector.mig_profile = (kind == RateKind::InstanceHour).then(|| "?g".to_owned());
            let tariff = Tariff { currency: "EUR".into(), class: "on_demand".into() };
            Rate { kind, selector, from, nano, tariff, derivation: None }
        },
    );
    let terms = (
        prop::sample::select(vec!["a", "b", "*", "t*"]).prop_map(str::to_owned),
        any::<bool>(),
        any::<bool>(),
        0..=WHOLE_RATE,
        from(),
    );
    let terms = terms.prop_map(|(tenant, is_used, charges, discount, from)| Terms {
        tenant,
        from,
        basis: if is_used { Basis::Used } else { Basis::Held },
        discount,
        charges_outside_use: charges && !is_used,
    });
    (prop::collection::vec(rate, 0..8), prop::collection::vec(terms, 0..4))
        .prop_map(|(rates, terms)| PriceBook { rates, terms })
}

/// What each holder had on each slot, without prices.
fn physics(bill: &Bill) -> Vec<(String, SlotId, String)> {
    let mut sums = std::collections::BTreeMap::<_, Amounts>::new();
    for line in
        bill.lines.iter().filter(|line| !line.tenant.starts_with("__") || line.amounts.parts.held() > 0)
    {
        sums.entry((line.gpu.uuid.to_string(), line.slot.clone(), line.holder.to_string()))
            .or_default()
            .add(&line.amounts);
    }
    sums.into_iter()
        .map(|((gpu, slot, holder), sum)| (format!("{gpu} {holder}"), slot, format!("{sum:?}")))
        .collect()
}

/// A ledger of two GPUs with random windows of random lengths, and random prices.
pub(super) fn settled(lengths: &[(u64, Weights)], rates: &[u64]) -> (World, Acknowledged) {
    let world = World::new();
    let prices: Vec<(u64, i128)> =
        rates.iter().enumerate().map(|(i, rate)| (i as u64 * 120, i128::from(*rate))).collect();
    let (mut ledger, _) = world.open(0, book(&prices));
    register_gpus(&mut ledger, 2);
    let mut last = Acknowledged::default();
    let mut from = 0;
    // The last window ends with its minute, so that bills reach the end.
    let open = lengths.iter().map(|(length, _)| length).sum::<u64>() % 60;
    let end = (60 - open, vec![([1; 5], [1; 2]); HOLDERS.len()]);
    for (length, weights) in lengths.iter().chain([&end]) {
        let to = from + length;
        let closed = (0..2).map(|gpu| window(gpu, (from, to), weights)).collect();
        last = ledger.commit(&LedgerBatch { now: after(to), closed, ..LedgerBatch::default() }).unwrap();
        assert_eq!(last.imbalance, 0);
        from = to;
    }
    (world, last)
}

pub(super) fn worlds() -> impl Strategy<Value = (Vec<(u64, Weights)>, Vec<u64>)> {
    // Mostly windows of 15 s; sometimes a gap that was settled at once.
    let length = prop_oneof![4 => Just(15_u64), 1 => 1..400_u64];
    (prop::collection::vec((length, weights()), 4..24), prop::collection::vec(0..1_000_000_000_000_u64, 1..4))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counters_are_the_sum_of_rows((windows, rates) in worlds()) {
        let (world, acknowledged) = settled(&windows, &rates);
        let connection = rusqlite::Connection::open(world.path()).unwrap();
        let differences: i64 = connection.query_row(
            "WITH sums AS (SELECT gpu, holder, gpu_instance, sum(within_ns) a, sum(lent_ns) b, sum(idle_ns) c,
                sum(unmeasured_ns) d, sum(unavailable_ns) e, sum(used_within_ns) f, sum(used_beyond_ns) g,
                sum(energy_static_uj) h, sum(energy_dynamic_uj) i FROM account GROUP BY gpu, holder, gpu_instance)
             SELECT count(*) FROM sums LEFT JOIN counter k USING (gpu, holder, gpu_instance)
             WHERE (a, b, c, d, e, f, g, h, i) IS NOT (k.within_ns, k.lent_ns, k.idle_ns,
                k.unmeasured_ns, k.unavailable_ns, k.used_within_ns, k.used_beyond_ns,
                k.energy_static_uj, k.energy_dynamic_uj) AND a+b+c+d+e+f+g+h+i > 0",
            [], |row| row.get(0)).unwrap();
        prop_assert_eq!(differences, 0);
        // Every minute balances: held to GPU time, use to the parts that were used.
        let unbalanced: i64 = connection.query_row(
            "SELECT count(*) FROM (SELECT m.slot_ns AS slot,
                sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns) AS held,
                sum(within_ns + lent_ns) AS parts, sum(used_within_ns + used_beyond_ns) AS used,
                max(measured_ns - used_within_ns - used_beyond_ns) AS excess
             FROM account a JOIN minute m USING (minute_ns, gpu) GROUP BY minute_ns, gpu)
             WHERE slot <> held OR parts <> used OR excess > 0", [], |row| row.get(0)).unwrap();
        prop_assert_eq!(unbalanced, 0);
        for (uuid, slot) in &acknowledged.slots {
            let held: u64 = acknowledged.counters.iter().filter(|(key, _)| key.gpu == *uuid)
                .map(|(_, counter)| counter.amounts.parts.held()).sum();
            prop_assert_eq!(slot.slot.0, held);
        }
    }

    #[test]
    fn adjacent_bills_add_up_to_one_and_each_reconciles((windows, rates) in worlds(), cut in 0..40_u64) {
        let (world, _) = settled(&windows, &rates);
        let mut reader = Reader::open(&world.path()).unwrap();
        let whole = reader.bill(&between(None, None)).unwrap();
        let cut = after(cut * 60).min(whole.to);
        let bills = [
            reader.bill(&between(None, Some(cut))).unwrap(),
            reader.bill(&between(Some(cut), None)).unwrap(),
        ];
        for bill in bills.iter().chain([&whole]) {
            prop_assert_eq!(bill.reconciliation.imbalance, 0);
            prop_assert_eq!(bill.reconciliation.imbalance_money, Money(0));
        }
        for gpu in &whole.gpus {
            let parts = bills.iter().flat_map(|bill| &bill.gpus).filter(|part| part.gpu == gpu.gpu);
            let sum = ExactMoney::sum(parts.map(|part| part.exact().unwrap())).unwrap();
            prop_assert_eq!(gpu.exact().unwrap(), sum);
        }
        for line in &whole.lines {
            let mut sum = (Amounts::default(), ExactMoney::ZERO);
            for part in bills.iter().flat_map(|bill| &bill.lines)
                .filter(|part| (&part.gpu, &part.slot, &part.holder, part.rates) == (&line.gpu, &line.slot, &line.holder, line.rates)) {
                sum.0.add(&part.amounts);
                sum.1 = sum.1.plus(part.exact).unwrap();
            }
            prop_assert_eq!(line.amounts, sum.0);
            prop_assert_eq!(line.exact, sum.1);
        }
    }

    #[test]
    fn the_cost_counters_sum_to_the_gpus_cost_and_survive_a_restart((windows, rates) in worlds()) {
        let (world, acknowledged) = settled(&windows, &rates);
        let mut reader = Reader::open(&world.path()).unwrap();
        let bill = reader.bill(&between(None, None)).unwrap();
        let until = acknowledged.slots[&uuid(0)].settled_until;
        prop_assert_eq!(bill.to, until);
        let counted = acknowledged.counters.iter().filter(|(key, _)| key.gpu == uuid(0))
            .flat_map(|(_, counter)| counter.costs.values()).map(|cost| cost.held);
        prop_assert_eq!(bill.gpus[0].exact().unwrap(), ExactMoney::sum(counted).unwrap());
        let (_, recovered) = world.open(20_000, Default::default());
        prop_assert_eq!(recovered.counters, acknowledged.counters);
        prop_assert_eq!(recovered.imbalance, 0);
    }

    #[test]
    fn an_explanation_has_every_line_of_the_bill_and_its_minutes_add_up((windows, rates) in worlds(), book in books()) {
        let (world, _) = settled(&windows, &rates);
        let reader = || Reader::open(&world.path()).unwrap();
        let request = BillRequest { book: Some(book), ..BillRequest::default() };
        let bill = reader().bill(&request).unwrap();
        let explained = reader().explain(&request).unwrap();
        let lines: Vec<_> = explained.lines.iter().map(|line| line.line.clone()).collect();
        prop_assert_eq!(&lines, &bill.lines);
        for line in &explained.lines {
            let (mut parts, mut used, mut at) = (Parts::default(), Use::default(), bill.from);
            for span in &line.spans {
                prop_assert!(at <= span.from && span.from < span.to && span.to <= bill.to);
                prop_assert!(span.held.held() + span.others.0 <= span.slot.0);
                at = span.to;
                parts.add(&span.held);
                used.add(&span.used);
            }
            prop_assert_eq!((parts, used), (line.line.amounts.parts, line.line.amounts.used));
        }
    }

    #[test]
    fn any_book_reconciles_and_changes_no_physics((windows, rates) in worlds(), book in books(), other in books()) {
        let (world, _) = settled(&windows, &rates);
        let bill = |book: &PriceBook| {
            let request = BillRequest { book: Some(book.clone()), ..BillRequest::default() };
            Reader::open(&world.path()).unwrap().bill(&request).unwrap()
        };
        let (one, two) = (bill(&book), bill(&other));
        prop_assert_eq!(physics(&one), physics(&two));
        let has_prices = |book: &PriceBook| book.rates.iter().any(|rate| rate.kind != RateKind::CarbonKwh);
        for (bill, book) in [(&one, &book), (&two, &other)] {
            prop_assert!(bill.is_balanced(), "{:?}", bill.reconciliation);
            let gpus = ExactMoney::sum(bill.gpus.iter().map(|gpu| gpu.exact().unwrap())).unwrap();
            prop_assert_eq!(ExactMoney::sum(bill.lines.iter().map(|line| line.exact)).unwrap(), gpus);
            // Printed lines sum to the exact total, rounded down; without a price there is no money.
            let printed: Money = bill.lines.iter().filter_map(|line| line.money).sum();
            prop_assert_eq!(printed, if bill.currency.is_some() { gpus.floor() } else { Money(0) });
            prop_assert!(has_prices(book) || bill.currency.is_none());
            // Full rates: what terms and instances change stands beside.
            let flat = PriceBook { terms: Vec::new(), ..book.clone() };
            let request = BillRequest { book: Some(flat), ..BillRequest::default() };
            let without = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
            prop_assert_eq!(without.reconciliation.gpu_money, bill.reconciliation.gpu_money);
        }
        // Spreading moves money in its own column only.
        let mut spread = one.clone();
        spread.spread(&[HolderId::UNALLOCATED.to_owned()]).unwrap();
        let moved: Money = spread.lines.iter().filter_map(|line| line.spread).sum();
        prop_assert_eq!(moved, Money(0));
        prop_assert_eq!(spread.reconciliation, one.reconciliation);
    }
}
