//! What tenants are charged in the month so far is what a bill of that time says, however it was added up.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumeter::accounting::batches::{ClosedWindow, LedgerBatch};
use gpumeter::accounting::billing::{Basis, ExactMoney, PriceBook, Rate, RateKind, RateSelector, Terms};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader};
use gpumeter::accounting::tenants::{TenantRule, TenantRules};
use gpumeter::model::{
    Fact, Facts, Holder, HolderId, HolderKind, MigProfile, Nanoseconds, Parts, Row, SlotId, Use, Utc,
};
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::world::*;

/// 2025-12-01T00:00 in Zurich, after [`START`].
const DECEMBER: u64 = 1_385_100;
/// When the account begins.
const BEGIN: u64 = DECEMBER - 40 * 60;

/// What happens in a minute beside its windows.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    /// Only now the costs are asked for.
    Ask,
    /// The windows of GPU 0 come later than those of GPU 1.
    Late,
    Reprice(u64),
    /// A rate from the begin of the quarter hour two before.
    RepriceThePast(u64),
    /// Terms for that tenant: of used time, and with a discount in percent.
    Terms(&'static str, bool, u32),
    /// Another tenant for jobs of this account.
    Rule(&'static str, usize),
    Restart,
    /// A job runs for another account.
    Requeue(usize, &'static str),
}

fn step() -> impl Strategy<Value = Step> {
    let account = || prop::sample::select(vec!["physics", "bio", "chem"]);
    prop_oneof![
        4 => Just(Step::Nothing),
        4 => Just(Step::Ask),
        3 => Just(Step::Late),
        1 => (1..9_999_999_999_u64).prop_map(Step::Reprice),
        1 => (1..9_999_999_999_u64).prop_map(Step::RepriceThePast),
        1 => (prop::sample::select(vec!["lab", "team*", "*"]), any::<bool>(), 0..=100_u32)
            .prop_map(|(tenant, used, percent)| Step::Terms(tenant, used, percent)),
        2 => (account(), 0..3_usize).prop_map(|(account, tenant)| Step::Rule(account, tenant)),
        1 => Just(Step::Restart),
        2 => (0..2_usize, account()).prop_map(|(job, account)| Step::Requeue(job, account)),
    ]
}

fn opening_at(seconds: u64, rules: &Arc<TenantRules>, book: PriceBook) -> Opening {
    Opening {
        tenant_rules: Arc::clone(rules),
        zone: Some(TimeZone::get("Europe/Zurich").unwrap()),
        ..opening(seconds, book)
    }
}

/// What the operator gives.
#[derive(Default)]
struct Prices {
    /// Begin, 0 for none, and nano-units per GPU-hour.
    rates: Vec<(u64, i128)>,
    terms: Vec<Terms>,
}

impl Prices {
    /// The book, with a price of MIG instances and one of energy.
    fn book(&self) -> PriceBook {
        let mut book = book(&self.rates);
        let profile = RateSelector { mig_profile: Some("1g.*".into()), ..RateSelector::default() };
        for (kind, selector) in [(RateKind::InstanceHour, profile), (RateKind::Kwh, RateSelector::default())]
        {
            book.rates.push(Rate { kind, selector, from: None, nano: 777_777_777, ..book.rates[0].clone() });
        }
        book.terms.clone_from(&self.terms);
        book
    }
}

/// A window of a GPU of which the holder has an instance.
fn of_instance(window: (Utc, Utc), name: &str, used: u64) -> ClosedWindow {
    let time = window.1.since(window.0).0;
    let profile = Some(MigProfile { name: "1g.10gb".into(), size: 1, total: 8 });
    let parts = Parts { within: used / 8, idle: time / 8 - used / 8, ..Parts::default() };
    let own = row(name, parts, Use { within: used / 8, ..Use::default() });
    let free = Parts { idle: time - time / 8, ..Parts::default() };
    let rows = vec![
        row(HolderId::UNALLOCATED, free, Use::default()),
        Row { slot: SlotId { gpu_instance: Some(7), profile }, ..own },
    ];
    closed(1, window, rows)
}

fn job(number: usize, account: &str) -> Holder {
    let number = number.to_string();
    let facts = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, &number), (Fact::SlurmAccount, account)];
    Holder::new(HolderKind::Slurm, Facts::new(facts))
}

/// Compares the costs of the month with a bill from its begin.
fn compare(world: &World, ledger: &mut Ledger) -> Result<(), TestCaseError> {
    let costs = ledger.month_costs().unwrap().unwrap();
    let begin = costs.month.begin;
    let bill = Reader::open(&world.path()).unwrap().bill(&between(Some(begin), None)).unwrap();
    let mut expected = BTreeMap::<String, ExactMoney>::new();
    for line in &bill.lines {
        let sum = expected.entry(line.tenant.clone()).or_default();
        *sum = sum.plus(line.exact).unwrap();
    }
    expected.retain(|_, money| *money != ExactMoney::ZERO);
    let found = costs.iter().map(|(tenant, _, money)| (tenant.to_string(), money));
    prop_assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{}", costs.month.name);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_costs_of_the_month_are_those_of_the_bill(
        steps in prop::collection::vec((step(), 0..3_usize, 0..=60_u64), 80)
    ) {
        let world = World::new();
        let mut rules = TenantRules::default();
        let mut prices = Prices { rates: vec![(0, 2_500_000_000)], terms: Vec::new() };
        let first = opening_at(BEGIN, &Arc::new(rules.clone()), prices.book());
        let (mut ledger, _) = Ledger::open(&world.path(), &first).unwrap();
        let registrations = vec![registration(0, BEGIN), registration(1, BEGIN)];
        ledger.commit(&LedgerBatch { now: after(BEGIN), registrations, ..LedgerBatch::default() }).unwrap();
        let (mut accounts, mut late) = (["physics", "bio"], Vec::new());
        for (from, (step, holder, used)) in (BEGIN..).step_by(60).zip(steps) {
            match step {
                Step::Nothing | Step::Ask | Step::Late => {}
                Step::Reprice(nano) => {
                    prices.rates = vec![(0, i128::from(nano))];
                    ledger.reprice(&prices.book(), boottime(from)).unwrap();
                }
                Step::RepriceThePast(nano) => {
                    let begin = from / 900 * 900 - 1_800;
                    prices.rates.retain(|(from, _)| *from != begin);
                    prices.rates.push((begin, i128::from(nano)));
                    ledger.reprice(&prices.book(), boottime(from)).unwrap();
                }
                Step::Terms(tenant, of_use, percent) => {
                    prices.terms.retain(|terms| terms.tenant != tenant);
                    let basis = if of_use { Basis::Used } else { Basis::Held };
                    let (tenant, discount) = (tenant.to_owned(), percent * 10_000_000);
                    prices.terms.push(Terms { tenant, basis, discount, ..Terms::default() });
                    ledger.reprice(&prices.book(), boottime(from)).unwrap();
                }
                Step::Rule(account, tenant) => {
                    let patterns = BTreeMap::from([("slurm_account".to_owned(), account.to_owned())]);
                    let tenant = ["team", "lab", "team-2"][tenant].to_owned();
                    rules.rules.insert(0, TenantRule { patterns, tenant, ..TenantRule::default() });
                    ledger.replace_tenant_rules(&Arc::new(rules.clone()), boottime(from)).unwrap();
                }
                Step::Restart => {
                    drop(ledger);
                    let opening = opening_at(from, &Arc::new(rules.clone()), prices.book());
                    ledger = Ledger::open(&world.path(), &opening).unwrap().0;
                }
                Step::Requeue(job, account) => accounts[job] = account,
            }
            let used = used * SECOND;
            let lost = Parts { unavailable: 60 * SECOND, ..Parts::default() };
            let name = ["slurm:alpha/0", "slurm:alpha/1", "user:a"][holder];
            let window = (after(from), after(from + 60));
            let broken = vec![row(name, lost, Use::default())];
            let other = match used / SECOND {
                0..20 => of_instance(window, "slurm:alpha/1", used),
                20..40 => whole(1, window, "slurm:alpha/1", used),
                _ => closed(1, window, broken),
            };
            late.push(whole(0, window, name, used));
            let on_time = if matches!(step, Step::Late) { Vec::new() } else { std::mem::take(&mut late) };
            let holders = vec![job(0, accounts[0]), job(1, accounts[1])];
            for closed in [vec![other], on_time] {
                let batch =
                    LedgerBatch { now: after(from + 61), holders: holders.clone(), closed, ..LedgerBatch::default() };
                ledger.commit(&batch).unwrap();
            }
            if matches!(step, Step::Ask) {
                compare(&world, &mut ledger)?;
            }
        }
        ledger.commit(&LedgerBatch { closed: late, ..LedgerBatch::default() }).unwrap();
        compare(&world, &mut ledger)?;
        let month = ledger.month_costs().unwrap().unwrap();
        prop_assert_eq!(&*month.month.name, "2025-12");
        prop_assert_eq!(month.month.begin, after(DECEMBER));
        prop_assert!(month.month.end > after(DECEMBER).plus(Nanoseconds::from_seconds(30 * 86_400)));
    }
}

#[test]
fn without_rates_there_is_no_cost_of_the_month() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, PriceBook::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..60, "user:a");
    assert_eq!(ledger.month_costs().unwrap(), None);
    ledger.reprice(&book(&[(0, 1)]), boottime(60)).unwrap();
    let costs = ledger.month_costs().unwrap().unwrap();
    assert!(costs.is_empty() && &*costs.month.name == "2025-11", "the rate begins later");
}

#[test]
fn a_window_that_is_late_over_a_change_of_rules_is_charged_to_the_tenant_of_its_time() {
    let world = World::new();
    let rules = |tenant: &str| {
        let patterns = BTreeMap::from([("slurm_account".to_owned(), "physics".to_owned())]);
        let rule = TenantRule { patterns, tenant: tenant.to_owned(), ..TenantRule::default() };
        Arc::new(TenantRules { rules: vec![rule], ..TenantRules::default() })
    };
    let first = opening_at(0, &rules("team"), book(&[(0, 3_600_000_000_000)]));
    let (mut ledger, _) = Ledger::open(&world.path(), &first).unwrap();
    register_gpus(&mut ledger, 2);
    let settle = |ledger: &mut Ledger, gpu: u32, from: u64| {
        let closed = vec![whole(gpu, (after(from), after(from + 60)), "slurm:alpha/0", 0)];
        let holders = vec![job(0, "physics")];
        ledger.commit(&LedgerBatch { now: after(961), holders, closed, ..LedgerBatch::default() }).unwrap();
    };
    (0..840).step_by(60).for_each(|from| settle(&mut ledger, 0, from));
    ledger.replace_tenant_rules(&rules("lab"), boottime(840)).unwrap();
    ledger.month_costs().unwrap();
    // The first GPU's last minute before the change comes after the second's first minute behind it.
    (0..960).step_by(60).for_each(|from| settle(&mut ledger, 1, from));
    (840..960).step_by(60).for_each(|from| settle(&mut ledger, 0, from));
    let costs = ledger.month_costs().unwrap().unwrap();
    let found = costs.iter().map(|(tenant, _, money)| (&**tenant, money.floor().0 / 1_000_000_000));
    assert_eq!(found.collect::<Vec<_>>(), [("lab", 120), ("team", 1_800)]);
    compare(&world, &mut ledger).unwrap();
}
