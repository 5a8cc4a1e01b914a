//! Roll-ups change no bill, and deletion keeps counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumeter::accounting::batches::LedgerBatch;
use gpumeter::accounting::billing::{
    Bill, BillRequest, LineDetail, PriceBook, Rate, RateKind, RateSelector, Terms,
};
use gpumeter::accounting::ledger::{Cause, Ledger, Reader, Retention};
use gpumeter::accounting::tenants::{TenantRule, TenantRules};
use gpumeter::model::{Grade, HolderId, HoldingSource, Method, Nanoseconds, QUARTER_HOUR, Row, Tariff, Utc};
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::laws::{Weights, weights, window};
use super::world::*;

const QUARTER: u64 = QUARTER_HOUR.0 / SECOND;
const HOUR: u64 = 3_600;

/// Sums up all that is closed, and deletes nothing.
const AT_ONCE: Retention = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };

/// Windows of two GPUs, one with MIG instances, and what changes while they are settled.
#[derive(Clone, Debug)]
struct Story {
    /// Length in seconds, what is held and used, and whether the windows were merged.
    windows: Vec<(u64, Weights, bool)>,
    /// Prices with a begin, in quarter hours, and the window before which they are recorded.
    rates: Vec<(usize, u64, i64)>,
    /// The tenant of units from a rule, its begin, and the window before which it is recorded.
    rules: Vec<(usize, Option<u64>, usize)>,
    /// The steps after which the agent is killed.
    kills: usize,
}

fn stories() -> impl Strategy<Value = Story> {
    // Some eight hours from 17:15 UTC on the last day of a month: it ends in Kathmandu, Kolkata and UTC.
    let length = prop_oneof![Just(15_u64), 60..400_u64, 1_000..3_000_u64];
    let windows = prop::collection::vec((length, weights(), prop::bool::weighted(0.1)), 16..32);
    let rates = prop::collection::vec((0..16_usize, 0..32_u64, 0..1_000_000_000_000_i64), 0..6);
    let rules = prop::collection::vec((0..16_usize, prop::option::of(0..32_u64), 0..3_usize), 0..4);
    (windows, rates, rules, 1..4_usize).prop_map(|(windows, rates, rules, kills)| Story {
        windows,
        rates,
        rules,
        kills,
    })
}

/// 2025-11-30T17:15:00Z, in seconds after the start of the world.
const EVENING: u64 = 15 * 86_400 + 19 * HOUR;

fn prices(rates: &[(usize, u64, i64)]) -> PriceBook {
    const KINDS: [RateKind; 3] = [RateKind::GpuHour, RateKind::InstanceHour, RateKind::Kwh];
    let rate = |(index, (_, quarter, nano)): (usize, &(usize, u64, i64))| {
        let kind = KINDS[index % 3];
        let mig_profile = (kind == RateKind::InstanceHour).then(|| "?g".to_owned());
        Rate {
            kind,
            selector: RateSelector { mig_profile, ..RateSelector::default() },
            from: Some(after(EVENING + quarter * QUARTER)),
            nano: *nano,
            tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
            derivation: None,
        }
    };
    let mut book = book(&[(0, 4_000_000_000)]);
    book.rates.extend(rates.iter().enumerate().map(rate));
    let from = Some(after(EVENING + 9 * QUARTER));
    book.terms = vec![Terms { tenant: "b".into(), from, discount: 125_000_000, ..Terms::default() }];
    book
}

/// Settles a story, and returns the end of its account.
fn settle_story(world: &World, story: &Story) -> u64 {
    let (mut ledger, _) = Ledger::open(&world.path(), &opening(EVENING, prices(&[]))).unwrap();
    let registrations = (0..2).map(|gpu| registration(gpu, EVENING)).collect();
    ledger.commit(&LedgerBatch { now: after(EVENING), registrations, ..LedgerBatch::default() }).unwrap();
    let mut from = EVENING;
    let mut rules = TenantRules::default();
    let last = (60 - story.windows.iter().map(|(length, ..)| length).sum::<u64>() % 60, weights_of(1), false);
    for (index, (length, weights, coarse)) in story.windows.iter().chain([&last]).enumerate() {
        let recorded: Vec<_> = story.rates.iter().filter(|(at, ..)| *at <= index).copied().collect();
        ledger.reprice(&prices(&recorded), boottime(from)).unwrap();
        for (_, begin, tenant) in story.rules.iter().filter(|(at, ..)| *at == index) {
            let patterns = BTreeMap::from([("user".to_owned(), "*".to_owned())]);
            let tenant = ["team", "lab", "team-2"][*tenant].to_owned();
            let begin = begin.map(|quarter| after(EVENING + quarter * QUARTER));
            rules.rules.insert(0, TenantRule { patterns, tenant, from: begin, ..TenantRule::default() });
            ledger.replace_tenant_rules(&Arc::new(rules.clone()), boottime(from)).unwrap();
        }
        let to = from + length;
        let closed = (0..2).map(|gpu| {
            let mut window = window(gpu, (from, to), weights);
            window.coarse = *coarse;
            window
                .settlement
                .rows
                .iter_mut()
                .enumerate()
                .for_each(|(row, settled)| vary(settled, index + row));
            window.settlement.flags = vec![format!("gpu: remark {}", index % 3)];
            window
        });
        let closed = closed.collect();
        ledger.commit(&LedgerBatch { now: after(to), closed, ..LedgerBatch::default() }).unwrap();
        from = to;
    }
    from
}

fn weights_of(weight: u8) -> Weights {
    vec![([weight; 5], [weight; 2]); 4]
}

/// Gives a row one of the grades, methods, sources and grants.
fn vary(row: &mut Row, number: usize) {
    use gpumeter::model::ActivitySource::{Gpm, None, Samples, Utilization};
    row.grade = [Grade::Measured, Grade::SplitByMemory, Grade::Unknown][number % 3];
    row.method = [Method::Observed, Method::Observed, Method::Bridged][number % 3];
    row.source = [Gpm, Utilization, None, Samples][number % 4];
    row.granted_by = HoldingSource::ALL.get(number % 5).copied();
}

/// The bills of closed periods: with and without days, of the whole, of its months and of a part, in three time zones.
fn bills(world: &World, from: Utc, to: Utc) -> Vec<Bill> {
    let quarter = |at: Utc| at.floor(QUARTER_HOUR);
    let mut bills = Vec::new();
    for zone in ["UTC", "Asia/Kolkata", "Asia/Kathmandu"] {
        for by_day in [false, true] {
            let zone = TimeZone::get(zone).unwrap();
            let month = gpumeter::accounting::billing::Month::containing(from, &zone).unwrap();
            let detail = LineDetail { day: by_day, ..LineDetail::whole() };
            let mut reader = Reader::open(&world.path()).unwrap();
            let periods = [
                (None, None),
                (Some(from), Some(month.end)),
                (Some(month.end), None),
                (Some(from), Some(quarter(to))),
                (Some(from.plus(QUARTER_HOUR)), Some(from.plus(Nanoseconds(5 * QUARTER_HOUR.0)))),
            ];
            bills.extend(periods.map(|(from, to)| {
                let (zone, detail) = (zone.clone(), detail.clone());
                reader.bill(&BillRequest { zone, detail, ..between(from, to) }).unwrap()
            }));
        }
    }
    bills
}

/// All rows that retention touches.
fn rows(world: &World) -> Vec<String> {
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let mut rows = Vec::new();
    for table in ["account", "minute", "remark", "ledger", "counter", "cost"] {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let value = |index| format!("{:?}", row.get::<_, rusqlite::types::Value>(index).unwrap());
            rows.push(format!("{table} {}", (0..columns).map(value).collect::<Vec<_>>().join(" ")));
        }
    }
    rows
}

fn reopened(world: &World, seconds: u64, book: PriceBook) -> Ledger {
    Ledger::open(&world.path(), &opening(seconds, book)).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bills_of_closed_periods_are_the_same_before_between_and_after_roll_ups(story in stories()) {
        let world = World::new();
        let end = settle_story(&world, &story);
        let (from, to) = (after(EVENING), after(end));
        let before = bills(&world, from, to);
        let number = "SELECT count(*) FROM minute";
        let minutes = world.sql::<i64>(number);
        // One ledger is rolled up at once, and the other by agents that are killed between any two steps, or some.
        let mut killed = world.copy_as_killed();
        let book = || prices(&story.rates);
        let mut ledger = reopened(&world, end, book());
        while ledger.retain(AT_ONCE).unwrap() {}
        drop(ledger);
        let mut ledger = reopened(&killed, end, book());
        let mut step = 0;
        while ledger.retain(AT_ONCE).unwrap() {
            step += 1;
            if step % story.kills == 0 {
                let files = killed.copy_as_killed();
                drop(ledger);
                killed = files;
                ledger = reopened(&killed, end, book());
            }
            if step % 20 == 0 {
                prop_assert_eq!(&bills(&killed, from, to)[..3], &before[..3]);
            }
        }
        drop(ledger);
        prop_assert_eq!(rows(&killed), rows(&world));
        prop_assert_eq!(bills(&world, from, to), before);
        // All whole quarter hours are sums, and only the last one has minutes.
        let rolled = world.sql::<i64>("SELECT rolled_until_ns FROM ledger") as u64;
        prop_assert_eq!(Utc(rolled), to.floor(QUARTER_HOUR));
        prop_assert_eq!(
            world.sql::<i64>("SELECT count(*) FROM minute WHERE minute_ns % 900000000000 > 0 AND minute_ns < (SELECT rolled_until_ns FROM ledger)"),
            0
        );
        prop_assert!(world.sql::<i64>(number) < minutes / 4);
    }
}

/// A ledger with six hours of one GPU and one holder.
fn six_hours() -> (World, Ledger) {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4_000_000_000)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..6 * HOUR, "user:a");
    (world, ledger)
}

fn hours(number: u64) -> Nanoseconds {
    Nanoseconds::from_seconds(number * HOUR)
}

#[test]
fn a_row_is_summed_up_by_its_age_at_the_last_commit_and_the_last_quarter_hour_only_when_it_is_closed() {
    let (world, mut ledger) = six_hours();
    let rolled = |world: &World| Utc(world.sql::<i64>("SELECT rolled_until_ns FROM ledger") as u64);
    let retention = Retention { minutes: hours(4), quarter_hours: hours(100) };
    while ledger.retain(retention).unwrap() {}
    assert_eq!(rolled(&world), after(2 * HOUR));
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM minute"), 8 + 240);
    assert!(!ledger.retain(retention).unwrap(), "nothing is left to do");
    // A minute of the next quarter hour is settled: the one before is closed, and that one is not.
    settle(&mut ledger, 0, 6 * HOUR..6 * HOUR + 60, "user:a");
    ledger.commit(&LedgerBatch { now: after(9 * HOUR), ..LedgerBatch::default() }).unwrap();
    while ledger.retain(AT_ONCE).unwrap() {}
    assert_eq!(rolled(&world), after(6 * HOUR));
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM minute"), 24 + 1);
}

#[test]
fn a_bill_cannot_begin_or_end_inside_a_sum_and_the_error_names_its_edges() {
    let (world, mut ledger) = six_hours();
    while ledger.retain(Retention { minutes: hours(4), quarter_hours: hours(100) }).unwrap() {}
    let mut reader = Reader::open(&world.path()).unwrap();
    for (from, to, edge) in
        [(60, 2 * HOUR, "from"), (0, 2 * HOUR - 60, "to"), (QUARTER + 840, 5 * HOUR, "from")]
    {
        let error = reader.bill(&between(Some(after(from)), Some(after(to)))).unwrap_err();
        assert!(matches!(error.cause, Cause::RolledUp { edge: found, .. } if found == edge), "{error}");
    }
    let error = reader.bill(&between(Some(after(60)), None)).unwrap_err().to_string();
    assert!(error.contains("from: 2025-11-14T22:16:00Z is inside a quarter hour"), "{error}");
    assert!(error.contains("give 2025-11-14T22:15:00Z or 2025-11-14T22:30:00Z"), "{error}");
    // Where minutes are kept, any minute will do; also the very edge.
    let kept = reader.bill(&between(Some(after(2 * HOUR)), Some(after(2 * HOUR + 60)))).unwrap();
    assert_eq!(kept.reconciliation.slot, Nanoseconds::from_seconds(60).into());
}

#[test]
fn an_explanation_shows_quarter_hours_where_only_these_are_kept() {
    let (world, mut ledger) = six_hours();
    let explain = || Reader::open(&world.path()).unwrap().explain(&between(Some(after(0)), None)).unwrap();
    let before = explain();
    while ledger.retain(Retention { minutes: hours(4), quarter_hours: hours(100) }).unwrap() {}
    let now = explain();
    assert_eq!((before.quarter_hours_until, now.quarter_hours_until), (None, Some(after(2 * HOUR))));
    assert_eq!(now.lines, before.lines, "spans of one share end where they ended");
    assert_eq!((now.usage[0].from, now.usage[0].to), (after(0), after(6 * HOUR)));
    assert_eq!(now.lines[0].spans.len(), 1);
}

#[test]
fn time_that_is_settled_late_is_added_to_the_sums() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4_000_000_000)]));
    register_gpus(&mut ledger, 2);
    // GPU 1 is gone after an hour, and its account goes on hours later.
    settle(&mut ledger, 0, 0..4 * HOUR, "user:a");
    settle(&mut ledger, 1, 0..HOUR + 60, "user:b");
    while ledger.retain(AT_ONCE).unwrap() {}
    let gap = closed(
        1,
        (after(HOUR + 60), after(4 * HOUR)),
        vec![row(
            HolderId::UNOBSERVED,
            gpumeter::model::Parts { unmeasured: (3 * HOUR - 60) * SECOND, ..Default::default() },
            Default::default(),
        )],
    );
    ledger
        .commit(&LedgerBatch { now: after(4 * HOUR), closed: vec![gap], ..LedgerBatch::default() })
        .unwrap();
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM minute WHERE minute_ns % 900000000000 > 0"), 0);
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!(bill.reconciliation.slot, Nanoseconds::from_seconds(8 * HOUR).into());
    assert!(bill.is_balanced());
    assert!(!ledger.retain(AT_ONCE).unwrap());
}

#[test]
fn deletion_keeps_counters_and_later_bills_and_earlier_ones_say_what_is_gone() {
    let (world, mut ledger) = six_hours();
    let later = || Reader::open(&world.path()).unwrap().bill(&between(Some(after(5 * HOUR)), None)).unwrap();
    let before = later();
    let counters = |world: &World| -> Vec<String> {
        rows(world).into_iter().filter(|row| row.starts_with("co")).collect()
    };
    let counted = counters(&world);
    assert_eq!(counted.len(), 2);
    while ledger.retain(Retention { minutes: hours(2), quarter_hours: hours(3) }).unwrap() {}
    assert_eq!((later(), counters(&world)), (before, counted.clone()));
    assert_eq!(world.sql::<i64>("SELECT min(minute_ns) FROM minute") as u64, after(3 * HOUR).0);
    assert_eq!(world.sql::<i64>("SELECT min(minute_ns) FROM account") as u64, after(3 * HOUR).0);
    let error = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap_err();
    assert!(matches!(error.cause, Cause::Deleted { until, .. } if until == after(3 * HOUR)), "{error}");
    assert!(error.to_string().contains("is before 2025-11-15T01:15:00Z"), "{error}");
    drop(ledger);
    let (mut ledger, recovered) = world.open(6 * HOUR + 60, book(&[(0, 4_000_000_000)]));
    assert_eq!(recovered.imbalance, 0);
    // Everything is deleted: a price does not hold for all time then.
    ledger.commit(&LedgerBatch { now: after(100 * HOUR), ..LedgerBatch::default() }).unwrap();
    while ledger.retain(Retention { minutes: hours(2), quarter_hours: hours(3) }).unwrap() {}
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM minute"), 0);
    ledger.reprice(&book(&[(0, 5_000_000_000)]), boottime(100 * HOUR)).unwrap();
    assert_eq!(
        world.sql::<i64>("SELECT max(begin_ns) FROM history WHERE kind = 'rate'") as u64,
        after(100 * HOUR + QUARTER).0
    );
    assert_eq!(counters(&world), counted);
}
