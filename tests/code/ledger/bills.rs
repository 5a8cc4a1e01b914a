//! Prices and bills.

use gpumeter::accounting::batches::LedgerBatch;
use gpumeter::accounting::billing::{
    Bill, BillRequest, BillsJson, ClaimConflict, ExactMoney, PriceBook, Rate, RateKind, RateSelector,
    bills_from_json,
};
use gpumeter::accounting::ledger::{Cause, Ledger, Opening, Reader, Retention};
use gpumeter::model::{HolderId, HowHeld, Money, Nanoseconds, NodeIdentity, Parts, QUARTER_HOUR, Use, Utc};

use jiff::tz::TimeZone;

use super::world::*;

const EURO: i128 = 1_000_000_000;
/// Seconds in a quarter hour.
const QUARTER: u64 = QUARTER_HOUR.0 / SECOND;
const HOUR: Nanoseconds = Nanoseconds::from_seconds(3600);
/// 2025-11-01T00:00:00Z and 2025-12-01T00:00:00Z.
const NOVEMBER: Utc = Utc(1_761_955_200_000_000_000);
const DECEMBER: Utc = Utc(1_764_547_200_000_000_000);

/// Whole nano-units.
fn exact(nano: i128) -> ExactMoney {
    ExactMoney::from_parts(Money(nano), 0).unwrap()
}

#[test]
fn a_bill_sums_holders_and_remainders_to_the_gpu() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 3 * EURO)]));
    register_gpus(&mut ledger, 1);
    let half = 7_500_000_000;
    for from in (0..3600).step_by(15) {
        let rows = vec![
            row(HolderId::UNALLOCATED, Parts { idle: half, ..Parts::default() }, Use::default()),
            row("user:a", Parts { within: half, ..Parts::default() }, Use { within: half, ..Use::default() }),
        ];
        let closed = vec![closed(0, (after(from), after(from + 15)), rows)];
        ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
    }
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!((bill.from, bill.to), (NOVEMBER, after(3600)));
    assert_eq!(bill.currency.as_deref(), Some("EUR"));
    assert_eq!(bill.gpus[0].money, Some(Money(3 * EURO)));
    let lines: Vec<_> = bill.lines.iter().map(|line| (line.holder.as_str(), line.money)).collect();
    let each = Some(Money(3 * EURO / 2));
    assert_eq!(lines, [(HolderId::UNALLOCATED, each), ("user:a", each)]);
    assert_eq!(bill.lines[1].amounts.memory_byte_seconds, 240 * (80 << 30));
    let proof = bill.reconciliation;
    assert_eq!((proof.imbalance, proof.imbalance_money), (0, Money(0)));
    assert_eq!(proof.slot, Nanoseconds::from_seconds(3600).into());
    assert_eq!(bill.unpriced, Some(Nanoseconds(0).into()));
    // The counters have the same cost, and half of it was used.
    let recovered = {
        drop(ledger);
        world.open(3700, book(&[(0, 3 * EURO)])).1
    };
    let counter = &recovered.counters[&counter_key(0, "user:a")];
    let cost = counter.costs.values().next().unwrap();
    assert_eq!([cost.held, cost.used], [exact(3 * EURO / 2); 2]);
}

#[test]
fn a_bill_says_how_gpus_are_held_and_where_claims_did_not_fit_together() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[]));
    register_gpus(&mut ledger, 1);
    let bill =
        |world: &World| Reader::open(&world.path()).unwrap().bill(&between(Some(NOVEMBER), None)).unwrap();
    assert_eq!((bill(&world).how_held, bill(&world).claim_conflicts), (None, vec![]));
    ledger.record_how_held(HowHeld::NothingGrants).unwrap();
    ledger.record_how_held(HowHeld::Scheduled).unwrap();
    let (pod, job) = ("gpu: conflict k8s:11/main", "gpu: conflict slurm:alpha/7");
    for from in (0..2_700).step_by(15) {
        let mut window = whole(0, (after(from), after(from + 15)), "k8s:11/main", 0);
        let flags: &[&str] = match from {
            0..75 | 1_200 => &[pod, job, "gpu: yield user:a to slurm:alpha/7"],
            300 => &["1: conflict slurm:alpha/8", "1: conflict slurm:alpha/9", "2: conflict user:c"],
            // As earlier releases wrote of a claim that yielded.
            2_010 => &["gpu: conflict user:b"],
            _ => &[],
        };
        window.settlement.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let batch = LedgerBatch { now: after(from + 16), closed: vec![window], ..LedgerBatch::default() };
        ledger.commit(&batch).unwrap();
    }
    let told = bill(&world);
    assert_eq!(told.how_held, Some(HowHeld::Scheduled));
    let conflicts = |bill: &Bill| -> Vec<(Option<u32>, String, u64)> {
        let of_slot = |one: &ClaimConflict| (one.gpu_instance, one.holders.join(" "), one.quarter_hours);
        bill.claim_conflicts.iter().map(of_slot).collect()
    };
    let expected = [
        (Some(1), "slurm:alpha/8 slurm:alpha/9".to_owned(), 1),
        (None, "k8s:11/main slurm:alpha/7".to_owned(), 2),
    ];
    assert_eq!(conflicts(&told), expected, "by slot, and none of a claim that yielded");
    let at_once = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
    while ledger.retain(at_once).unwrap() {}
    assert_eq!(conflicts(&bill(&world)), expected, "after a roll-up");
}

#[test]
fn a_bill_that_begins_before_gpus_were_held_so_does_not_say_how() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[]));
    register_gpus(&mut ledger, 1);
    ledger.record_how_held(HowHeld::Grants).unwrap();
    settle(&mut ledger, 0, 0..120, "user:a");
    ledger.record_how_held(HowHeld::NothingGrants).unwrap();
    settle(&mut ledger, 0, 120..240, "user:a");
    ledger.record_how_held(HowHeld::NothingGrants).unwrap();
    let how_held =
        |from| Reader::open(&world.path()).unwrap().bill(&between(Some(from), None)).unwrap().how_held;
    let told = [0, 60, 120, 180].map(|second| how_held(after(second)));
    assert_eq!(told, [None, None, Some(HowHeld::NothingGrants), Some(HowHeld::NothingGrants)]);
}

#[test]
fn unavailable_time_is_shown_to_its_holder_and_charged_to_nobody() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 3600 * EURO)]));
    register_gpus(&mut ledger, 1);
    let second = SECOND;
    // One minute busy, one minute failed.
    for from in (0..120).step_by(15) {
        let parts = if from < 60 {
            Parts { idle: 15 * second, ..Parts::default() }
        } else {
            Parts { unavailable: 15 * second, ..Parts::default() }
        };
        let rows = vec![row("user:a", parts, Use::default())];
        let closed = vec![closed(0, (after(from), after(from + 15)), rows)];
        ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
    }
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    let lines: Vec<_> = bill
        .lines
        .iter()
        .map(|line| (line.holder.as_str(), line.amounts.parts.unavailable, line.charged.0, line.money))
        .collect();
    let minute = 60 * second;
    assert_eq!(
        lines,
        [
            (HolderId::UNAVAILABLE, 0, minute, Some(Money(60 * EURO))),
            ("user:a", minute, minute, Some(Money(60 * EURO))),
        ]
    );
    assert_eq!(bill.reconciliation.imbalance_money, Money(0));
    drop(ledger);
    let recovered = world.open(200, PriceBook::default()).1;
    let held = |name| recovered.counters[&counter_key(0, name)].costs.values().next().unwrap().held;
    assert_eq!([held("user:a"), held(HolderId::UNAVAILABLE)], [exact(60 * EURO); 2]);
}

#[test]
fn a_changed_rate_begins_at_the_next_quarter_hour_and_restates_nothing() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4 * EURO)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..75, "user:a");
    drop(ledger);
    // In the first quarter hour the rate doubles.
    let (mut ledger, _) = world.open(80, book(&[(0, 8 * EURO)]));
    settle(&mut ledger, 0, 75..2 * QUARTER, "user:a");
    let mut reader = Reader::open(&world.path()).unwrap();
    let bill = reader.bill(&between(None, None)).unwrap();
    let money: Vec<_> = bill.gpus[0].intervals.iter().map(|interval| interval.money).collect();
    assert_eq!(money, [exact(EURO), exact(2 * EURO)]);
    let by_rate: Vec<_> = bill.lines.iter().map(|line| line.money).collect();
    assert_eq!(by_rate, [Some(Money(EURO)), Some(Money(2 * EURO))]);
    let first = reader.bill(&between(None, Some(after(60)))).unwrap();
    assert_eq!(first.lines[0].money, Some(Money(4 * EURO / 60)));
    // The same price book again changes nothing.
    drop(ledger);
    let (mut ledger, _) = world.open(2 * QUARTER + 20, book(&[(0, 8 * EURO)]));
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM history WHERE kind = 'rate'"), 2);
    // Without a price book there is no cost from the next quarter hour on, and what was billed stays.
    ledger.reprice(&PriceBook::default(), boottime(2 * QUARTER + 20)).unwrap();
    settle(&mut ledger, 0, 2 * QUARTER..4 * QUARTER, "user:a");
    let bill = reader.bill(&between(None, None)).unwrap();
    assert_eq!(bill.gpus[0].money, Some(Money(5 * EURO)));
    assert_eq!(bill.unpriced, Some(QUARTER_HOUR.into()));
    assert_eq!(bill.reconciliation.imbalance_money, Money(0));
}

#[test]
fn an_announced_rate_comes_into_force_by_itself_and_may_be_withdrawn_before() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4 * EURO), (QUARTER, 8 * EURO)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..2 * QUARTER, "user:a");
    ledger.reprice(&book(&[(0, 4 * EURO), (9 * QUARTER, EURO)]), boottime(2 * QUARTER + 5)).unwrap();
    ledger.reprice(&book(&[(0, 4 * EURO)]), boottime(2 * QUARTER + 10)).unwrap();
    settle(&mut ledger, 0, 2 * QUARTER..4 * QUARTER, "user:a");
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!(bill.gpus[0].money, Some(Money((1 + 2 + 2 + 1) * EURO)));
}

#[test]
fn a_rate_that_is_given_late_prices_the_past_from_its_begin_on_and_no_counter() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..2 * QUARTER, "user:a");
    let mut reader = Reader::open(&world.path()).unwrap();
    let bill = reader.bill(&between(None, None)).unwrap();
    assert_eq!((bill.currency, bill.lines[0].money, bill.gpus[0].money), (None, None, None));
    // Without a begin it would price nothing of that.
    ledger.reprice(&book(&[(0, 9 * EURO), (QUARTER, 4 * EURO)]), boottime(2 * QUARTER + 1)).unwrap();
    let bill = reader.bill(&between(None, None)).unwrap();
    assert_eq!(bill.gpus[0].money, Some(Money(EURO)));
    assert_eq!(bill.unpriced, Some(QUARTER_HOUR.into()));
    drop(ledger);
    let (_, recovered) = world.open(2 * QUARTER + 2, PriceBook::default());
    assert!(recovered.counters[&counter_key(0, "user:a")].costs.is_empty());
}

#[test]
fn time_that_is_covered_keeps_its_prices() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4 * EURO)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..3 * QUARTER, "user:a");
    let sql = format!("UPDATE ledger SET covered_until_ns = {}", after(QUARTER + 60).0);
    rusqlite::Connection::open(world.path()).unwrap().execute(&sql, []).unwrap();
    ledger.reprice(&book(&[(0, 4 * EURO), (60, 8 * EURO)]), boottime(3 * QUARTER + 1)).unwrap();
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!(bill.gpus[0].money, Some(Money((1 + 1 + 2) * EURO)));
}

#[test]
fn each_gpu_has_the_rate_of_its_model_and_node() {
    let world = World::new();
    let rate =
        |selector: RateSelector, euros| Rate { selector, ..book(&[(0, euros * EURO)]).rates.remove(0) };
    let pattern = |text: &str| Some(text.to_owned());
    let rates = vec![
        rate(RateSelector { model: pattern("*H100*"), ..RateSelector::default() }, 8),
        rate(RateSelector { uuid: Some(uuid(1).to_string()), ..RateSelector::default() }, 2),
        rate(RateSelector { node: pattern("other-*"), ..RateSelector::default() }, 9),
        rate(RateSelector::default(), 1),
    ];
    let node = NodeIdentity { name: "gpu-7".into(), ..NodeIdentity::default() };
    let opening = Opening { node, ..opening(0, PriceBook { rates, ..book(&[]) }) };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    register_gpus(&mut ledger, 2);
    (0..2).for_each(|gpu| settle(&mut ledger, gpu, 0..QUARTER, "user:a"));
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    let money: Vec<_> = bill.gpus.iter().map(|gpu| gpu.money).collect();
    assert_eq!(money, [Some(Money(2 * EURO)), Some(Money(EURO / 2))]);
    assert_eq!(bill.reconciliation.imbalance_money, Money(0));
}

#[test]
fn time_before_the_first_price_is_shown_as_unpriced_and_not_as_charged() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(120, 3600 * EURO)]));
    register_gpus(&mut ledger, 1);
    let half = 7_500_000_000;
    for from in (0..180).step_by(15) {
        let rows = vec![
            row(HolderId::UNALLOCATED, Parts { idle: half, ..Parts::default() }, Use::default()),
            row("user:a", Parts { within: half, ..Parts::default() }, Use { within: half, ..Use::default() }),
        ];
        let closed = vec![closed(0, (after(from), after(from + 15)), rows)];
        ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
    }
    let mut reader = Reader::open(&world.path()).unwrap();
    let statement = reader.bill(&between(None, None)).unwrap();
    let lines: Vec<_> = statement
        .lines
        .iter()
        .map(|line| (&*line.tenant, line.charged.0 / SECOND, line.unpriced.0 / SECOND, line.money))
        .collect();
    let money = Some(Money(30 * EURO));
    let free = Some(Money(0));
    assert_eq!(
        lines,
        [
            (HolderId::UNALLOCATED, 0, 60, free),
            (HolderId::UNALLOCATED, 30, 0, money),
            ("a", 0, 60, free),
            ("a", 30, 0, money)
        ]
    );
    assert_eq!(statement.unpriced, Some(Nanoseconds(120 * SECOND).into()));
    let price = &statement.rates[0];
    assert_eq!((statement.rates.len(), price.slot), (1, Nanoseconds(60 * SECOND).into()));
    assert_eq!((price.price, price.money), (Money(3600 * EURO), Money(60 * EURO)));
    // Before it is in force there is no cost, but the coming price is reported on a line.
    let before = reader.bill(&between(None, Some(after(120)))).unwrap();
    assert_eq!(
        (before.currency, before.unpriced, before.rates),
        (None, Some(Nanoseconds(120 * SECOND).into()), Vec::new())
    );
}

#[test]
fn a_ledger_without_prices_reports_no_unpriced_time() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..60, "user:a");
    let statement = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!((statement.unpriced, statement.currency), (None, None));
}

#[test]
fn a_bill_names_its_node_and_begins_with_the_month_in_the_readers_time_zone() {
    let world = World::new();
    let node = NodeIdentity { name: "n1".into(), cluster: Some("c1".into()), ..NodeIdentity::default() };
    // The last minute is at 23:59 of November 30 in UTC, and in December an hour further east.
    let last = (DECEMBER.0 - START.0) / SECOND - 60;
    let opening = Opening { node: node.clone(), ..opening(last, PriceBook::default()) };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, last..last + 60, "user:a");
    let utc = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!((utc.from, &*utc.from_local), (NOVEMBER, "2025-11-01T00:00:00+00:00"));
    assert_eq!(utc.time_zone, "UTC");
    assert_eq!((utc.node, utc.cluster, utc.simulated), (node.name, node.cluster, false));
    let request = BillRequest { zone: TimeZone::fixed(jiff::tz::offset(1)), ..BillRequest::default() };
    let east = Reader::open(&world.path()).unwrap().bill(&request).unwrap();
    assert_eq!((east.from, &*east.from_local), (Utc(DECEMBER.0 - HOUR.0), "2025-12-01T00:00:00+01:00"));
    assert_eq!(east.to_local, "2025-12-01T01:00:00+01:00");
    let later = Reader::open(&world.path()).unwrap().bill(&between(None, Some(DECEMBER.plus(HOUR)))).unwrap();
    assert_eq!(later.asked_to.as_deref(), Some("2025-12-01T01:00:00+00:00"));
}

#[test]
fn a_ledger_stays_marked_as_simulated_once_it_was() {
    let world = World::new();
    let simulated = NodeIdentity { name: "n1".into(), simulated: true, ..NodeIdentity::default() };
    drop(
        Ledger::open(&world.path(), &Opening { node: simulated, ..opening(0, PriceBook::default()) })
            .unwrap(),
    );
    let real = NodeIdentity { name: "n2".into(), ..NodeIdentity::default() };
    drop(Ledger::open(&world.path(), &Opening { node: real, ..opening(60, PriceBook::default()) }).unwrap());
    let node = || Reader::open(&world.path()).unwrap().node().unwrap();
    assert_eq!(node(), NodeIdentity { name: "n2".into(), simulated: true, ..NodeIdentity::default() });
}

#[test]
fn a_period_in_two_currencies_has_a_bill_for_each_and_none_over_both() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, EURO)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..60, "user:a");
    let mut dollars = book(&[(0, EURO)]);
    dollars.rates[0].tariff.currency = "USD".into();
    ledger.reprice(&dollars, boottime(30)).unwrap();
    settle(&mut ledger, 0, 60..2 * QUARTER, "user:a");
    let mut reader = Reader::open(&world.path()).unwrap();
    let Cause::Currencies { since, .. } = reader.bill(&between(None, None)).unwrap_err().cause else {
        panic!()
    };
    assert_eq!(since, after(QUARTER));
    let bills = reader.bills(&between(None, None)).unwrap();
    let [euros, dollars] = bills.as_slice() else { panic!("{} bills", bills.len()) };
    assert_eq!([&euros.currency, &dollars.currency].map(Option::as_deref), [Some("EUR"), Some("USD")]);
    assert_eq!((euros.to, dollars.from, dollars.to), (since, since, after(2 * QUARTER)));
    assert_eq!(*euros, reader.bill(&between(None, Some(since))).unwrap());
    let slots = [euros, dollars].map(|bill| bill.reconciliation.slot);
    assert_eq!(slots, [Nanoseconds::from_seconds(QUARTER).into(); 2]);
    assert!(euros.is_balanced() && dollars.is_balanced());
    // JSON is the bill itself where there is one.
    let texts = [&bills[..], &bills[..1]].map(|bills| serde_json::to_string(&BillsJson(bills)).unwrap());
    assert!(texts[0].starts_with('[') && texts[1].starts_with('{'));
    assert_eq!(bills_from_json(&texts[0]).unwrap().len(), 2);
    assert_eq!(bills_from_json(&texts[1]).unwrap()[0].currency, euros.currency);
    // And back again.
    ledger.reprice(&book(&[(0, EURO)]), boottime(2 * QUARTER - 60)).unwrap();
    settle(&mut ledger, 0, 2 * QUARTER..3 * QUARTER, "user:a");
    let bills = reader.bills(&between(None, None)).unwrap();
    let currencies: Vec<&str> = bills.iter().filter_map(|bill| bill.currency.as_deref()).collect();
    assert_eq!(currencies, ["EUR", "USD", "EUR"]);
}

#[test]
fn energy_in_another_currency_than_time_is_refused_too() {
    let world = World::new();
    let mut euros = book(&[(0, EURO)]);
    let energy = Rate { kind: RateKind::Kwh, ..euros.rates[0].clone() };
    euros.rates.push(energy);
    let (mut ledger, _) = world.open(0, euros);
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..60, "user:a");
    let mut francs = book(&[(0, EURO)]);
    (francs.rates[0].tariff.currency, francs.rates[0].from) = ("CHF".into(), Some(after(0)));
    ledger.reprice(&francs, boottime(60)).unwrap();
    let refused = Reader::open(&world.path()).unwrap().bills(&between(None, None)).unwrap_err();
    let Cause::MixedCurrencies { first, second, since } = &refused.cause else { panic!("{refused}") };
    assert_eq!((&**first, &**second, *since), ("EUR", "CHF", after(0)));
}

#[test]
fn a_minute_that_is_not_closed_is_left_for_the_next_bill() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 2);
    settle(&mut ledger, 0, 0..180, "user:a");
    settle(&mut ledger, 1, 0..105, "user:a");
    let mut reader = Reader::open(&world.path()).unwrap();
    let bill = reader.bill(&between(None, Some(after(600)))).unwrap();
    assert_eq!((bill.to, bill.closed_until), (after(60), after(60)));
    assert_eq!(bill.reconciliation.slot, Nanoseconds::from_seconds(120).into());
    settle(&mut ledger, 1, 105..180, "user:a");
    let next = reader.bill(&between(Some(bill.to), None)).unwrap();
    assert_eq!(next.reconciliation.slot, Nanoseconds::from_seconds(240).into());
    assert_eq!(next.gpus.len(), 2);
    let empty = reader.bill(&between(Some(after(6000)), None)).unwrap();
    assert_eq!((empty.from, empty.to), (after(6000), after(6000)));
    assert!(empty.lines.is_empty() && empty.gpus.is_empty());
}

#[test]
fn a_bill_without_a_beginning_is_of_the_month_of_its_last_minute() {
    let world = World::new();
    // One minute before December.
    let last = (DECEMBER.0 - START.0) / SECOND - 60;
    let (mut ledger, _) = world.open(last, PriceBook::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, last..last + 60, "user:a");
    let mut reader = Reader::open(&world.path()).unwrap();
    let bill = reader.bill(&between(None, None)).unwrap();
    assert_eq!((bill.from, bill.to), (NOVEMBER, DECEMBER));
    settle(&mut ledger, 0, last + 60..last + 180, "user:a");
    let current = reader.bill(&between(None, None)).unwrap();
    assert_eq!((current.from, current.to), (DECEMBER, after(last + 180)));
    assert_eq!(current.reconciliation.slot, Nanoseconds::from_seconds(120).into());
    let former = reader.bill(&between(None, Some(DECEMBER))).unwrap();
    assert_eq!((former.from, former.to), (NOVEMBER, DECEMBER));
    let all = reader.bill(&between(Some(Utc(0)), None)).unwrap();
    assert_eq!(all.reconciliation.slot, Nanoseconds::from_seconds(last + 180).into());
}

#[test]
fn a_cancelled_bill_is_interrupted() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 1);
    let closed = vec![whole(0, (after(0), after(60_000)), "user:a", 0)];
    ledger.commit(&LedgerBatch { now: after(60_000), closed, ..LedgerBatch::default() }).unwrap();
    let mut reader = Reader::open(&world.path()).unwrap();
    reader.interrupt_when(|| true).unwrap();
    let error = reader.bill(&between(None, None)).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
}

#[test]
fn a_removed_gpu_does_not_delay_bills() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 2);
    settle(&mut ledger, 1, 0..75, "user:a");
    let closed = vec![whole(0, (after(0), after(7200)), "user:a", 0)];
    ledger.commit(&LedgerBatch { now: after(7200), closed, ..LedgerBatch::default() }).unwrap();
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!(bill.to, after(7200));
    assert_eq!(bill.gpus[1].settled_until, after(75));
    assert_eq!(bill.gpus[1].slot, Nanoseconds::from_seconds(75));
}
