//! Versions of holders: facts that tenant rules read never change in place.

use std::collections::BTreeMap;

use std::sync::Arc;

use gpumeter::accounting::batches::{
    Acknowledged, CounterKey, HolderCounter, LedgerBatch, Recovered, TenantKey,
};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader};
use gpumeter::accounting::tenants::{TenantRule, TenantRules};
use gpumeter::model::{Fact, Facts, Holder, HolderKind, Money};

use super::world::*;

/// One per GPU-hour, in nano-units.
const EURO: i128 = 1_000_000_000;

fn job(number: &str, facts: &[(Fact, &str)]) -> Holder {
    let known = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, number)];
    Holder::new(HolderKind::Slurm, Facts::new(known.into_iter().chain(facts.iter().copied())))
}

fn of_account(number: &str, account: &str) -> Holder {
    job(number, &[(Fact::SlurmAccount, account)])
}

/// The seconds that a counter's cost is for, at a price of [`EURO`] an hour.
fn paid_seconds(counter: &HolderCounter) -> u64 {
    let paid: i128 = counter.costs.values().map(|cost| cost.held.parts()).sum();
    u64::try_from(paid / EURO / i128::from(SECOND)).unwrap()
}

/// What the meter knows of the account: all that it publishes.
struct Published {
    live: BTreeMap<CounterKey, HolderCounter>,
    sums: BTreeMap<TenantKey, HolderCounter>,
    last: BTreeMap<String, u64>,
}

impl Published {
    fn of(recovered: Recovered) -> Self {
        Self { live: recovered.counters, sums: recovered.unloaded_sums, last: BTreeMap::new() }
    }

    /// Held seconds by tenant and by workload, and for how many of them each tenant pays; none is less than before.
    fn apply(&mut self, acknowledged: Acknowledged) -> &BTreeMap<String, u64> {
        self.live.extend(acknowledged.counters);
        self.sums.extend(acknowledged.unloaded_sums);
        acknowledged.unloaded.iter().for_each(|key| drop(self.live.remove(key)));
        let held = self.held();
        for (name, before) in &self.last {
            // What has left memory has no series.
            let now = held.get(name).copied();
            assert!(now.is_none_or(|now| now >= *before), "{name}: {before} then {now:?}");
        }
        self.last = held;
        &self.last
    }

    fn held(&self) -> BTreeMap<String, u64> {
        let mut held = BTreeMap::<String, u64>::new();
        let mut tenants = std::collections::BTreeSet::new();
        for (key, counter) in &self.live {
            let seconds = counter.amounts.parts.held() / SECOND;
            let tenant = key.with_tenant(&counter.tenant);
            for name in [&*tenant.tenant, key.holder.name()] {
                *held.entry(name.to_owned()).or_default() += seconds;
            }
            *held.entry(format!("{} pays", tenant.tenant)).or_default() += paid_seconds(counter);
            tenants.insert(tenant);
        }
        for (key, sum) in self.sums.iter().filter(|(key, _)| tenants.contains(key)) {
            *held.entry(key.tenant.to_string()).or_default() += sum.amounts.parts.held() / SECOND;
            *held.entry(format!("{} pays", key.tenant)).or_default() += paid_seconds(sum);
        }
        held
    }
}

#[test]
fn a_job_that_runs_again_for_another_account_leaves_its_past_to_the_first() {
    // The counter of the first run is in memory, or has left it; another job of either account runs before, or not.
    for (gone, others_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("{gone} {others_first}");
        let world = World::new();
        let (mut ledger, recovered) = world.open(0, book(&[(0, EURO)]));
        register_gpus(&mut ledger, 1);
        let mut published = Published::of(recovered);
        let mut from = 0;
        let mut work = |published: &mut Published, name: &str, holders: Vec<Holder>| {
            let closed = vec![whole(0, (after(from), after(from + 15)), name, 5 * SECOND)];
            let batch = LedgerBatch { now: after(from + 16), holders, closed, ..LedgerBatch::default() };
            from += 15;
            published.apply(ledger.commit(&batch).unwrap()).clone()
        };
        let jobs = vec![of_account("211", "physics"), of_account("2", "bio"), of_account("3", "chem")];
        work(&mut published, "slurm:alpha/211", jobs);
        if others_first {
            work(&mut published, "slurm:alpha/2", vec![]);
        }
        for _ in 0..if gone { 60 } else { 1 } {
            work(&mut published, "slurm:alpha/3", vec![]);
        }
        let others = if others_first { 15 } else { 0 };
        let held = work(&mut published, "slurm:alpha/211", vec![of_account("211", "bio")]);
        assert_eq!((held["physics"], held["bio"], held["slurm:alpha/211"]), (15, 15 + others, 30), "{case}");
        assert_eq!((held["physics pays"], held["bio pays"]), (15, 15 + others), "{case}");
        // The job continues, also for an agent that begins now.
        drop(ledger);
        let (mut ledger, recovered) = world.open(from + 20, book(&[(0, EURO)]));
        assert_eq!(recovered.imbalance, 0);
        let versions: Vec<_> =
            recovered.holders.iter().filter(|holder| holder.id.name() == "slurm:alpha/211").collect();
        assert_eq!(versions.len(), 2, "{case}");
        assert_eq!(versions[1].facts, of_account("211", "bio").facts, "{case}");
        let mut published = Published { last: held.clone(), ..Published::of(recovered) };
        let closed = vec![whole(0, (after(from), after(from + 15)), "slurm:alpha/211", 5 * SECOND)];
        let batch = LedgerBatch { now: after(from + 36), closed, ..LedgerBatch::default() };
        let held = published.apply(ledger.commit(&batch).unwrap());
        assert_eq!((held["physics"], held["bio"], held["slurm:alpha/211"]), (15, 30 + others, 45), "{case}");
        assert_eq!((held["physics pays"], held["bio pays"]), (15, 30 + others), "{case}");
    }
}

/// Rules by which jobs of the account `physics` belong to a tenant.
fn physics_is(tenant: &str) -> Arc<TenantRules> {
    let patterns = BTreeMap::from([("slurm_account".to_owned(), "phys*".to_owned())]);
    let rule = TenantRule { patterns, tenant: tenant.to_owned(), ..TenantRule::default() };
    let attributes = [("lab", "4711"), ("nobody", "1")].map(|(tenant, center)| {
        (tenant.to_owned(), BTreeMap::from([("cost_center".to_owned(), center.to_owned())]))
    });
    Arc::new(TenantRules { rules: vec![rule], attributes: attributes.into(), ..TenantRules::default() })
}

#[test]
fn a_changed_rule_holds_from_the_next_quarter_hour_on_and_the_past_keeps_its_tenant() {
    const CHANGE: u64 = 900;
    let world = World::new();
    let prices = book(&[(0, 3_600_000_000_000)]);
    let first = Opening { tenant_rules: physics_is("team"), ..opening(0, prices.clone()) };
    let (mut ledger, recovered) = Ledger::open(&world.path(), &first).unwrap();
    register_gpus(&mut ledger, 1);
    let mut published = Published::of(recovered);
    let window = |ledger: &mut Ledger, from: u64, name: &str| {
        let closed = vec![whole(0, (after(from), after(from + 15)), name, 5 * SECOND)];
        let holders = vec![of_account("211", "physics"), of_account("3", "chem")];
        ledger
            .commit(&LedgerBatch { now: after(from + 16), holders, closed, ..LedgerBatch::default() })
            .unwrap()
    };
    let name = |from: u64| if from.is_multiple_of(30) { "slurm:alpha/211" } else { "slurm:alpha/3" };
    for from in (0..CHANGE + 60).step_by(15) {
        if from == 600 {
            ledger.replace_tenant_rules(&physics_is("lab"), boottime(from)).unwrap();
        }
        let held = published.apply(window(&mut ledger, from, name(from)));
        assert!(from >= CHANGE || !held.contains_key("lab"), "{from}: {held:?}");
    }
    let held =
        |published: &Published| ["team", "lab", "chem", "slurm:alpha/211"].map(|name| published.last[name]);
    assert_eq!(held(&published), [450, 30, 480, 480]);
    // An agent that begins now goes on with the new tenant, and records nothing anew.
    drop(ledger);
    let again = Opening { tenant_rules: physics_is("lab"), ..opening(CHANGE + 62, prices) };
    let (mut ledger, recovered) = Ledger::open(&world.path(), &again).unwrap();
    let mut published = Published { last: published.last, ..Published::of(recovered) };
    published.apply(window(&mut ledger, CHANGE + 60, name(0)));
    assert_eq!(held(&published), [450, 45, 480, 495]);
    // The minute is full, so it is on the bill.
    for from in [CHANGE + 75, CHANGE + 90, CHANGE + 105] {
        published.apply(window(&mut ledger, from, "slurm:alpha/3"));
    }
    drop(ledger);
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM history WHERE kind = 'rules'"), 2);
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert!(bill.is_balanced());
    let lines = bill.lines.iter().map(|line| (&*line.tenant, line.amounts.parts.held() / SECOND));
    let mut sums = BTreeMap::new();
    lines.for_each(|(tenant, held)| *sums.entry(tenant).or_insert(0) += held);
    assert_eq!(sums, BTreeMap::from([("chem", 525), ("lab", 45), ("team", 450)]));
    assert_eq!(bill.tenant_attributes["lab"]["cost_center"], "4711");
    assert!(!bill.tenant_attributes.contains_key("nobody"));
    // L17: other rules change no total.
    rusqlite::Connection::open(world.path())
        .unwrap()
        .execute_batch("DELETE FROM history WHERE kind = 'rules'")
        .unwrap();
    let without = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!(without.reconciliation, bill.reconciliation);
    let tenants: Vec<&str> = without.lines.iter().map(|line| &*line.tenant).collect();
    assert!(tenants.contains(&"physics") && !tenants.contains(&"lab"), "{tenants:?}");
}

#[test]
fn a_rule_with_a_begin_in_the_past_names_the_tenant_of_then_and_leaves_counters_as_they_were() {
    const QUARTER: u64 = 900;
    let world = World::new();
    let (mut ledger, recovered) = world.open(0, book(&[(0, 3_600_000_000_000)]));
    let mut published = Published::of(recovered);
    register_gpus(&mut ledger, 1);
    let holders = vec![of_account("211", "physics")];
    ledger.commit(&LedgerBatch { now: after(0), holders, ..LedgerBatch::default() }).unwrap();
    settle(&mut ledger, 0, 0..2 * QUARTER, "slurm:alpha/211");
    let before = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    let mut late = physics_is("lab").as_ref().clone();
    late.rules[0].from = Some(after(QUARTER));
    ledger.replace_tenant_rules(&Arc::new(late), boottime(2 * QUARTER)).unwrap();
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    let held: Vec<_> =
        bill.lines.iter().map(|line| (&*line.tenant, line.amounts.parts.held() / SECOND)).collect();
    assert_eq!(held, [("lab", QUARTER), ("physics", QUARTER)]);
    assert_eq!(bill.reconciliation, before.reconciliation);
    let last =
        published.apply(ledger.commit(&LedgerBatch { now: after(1_801), ..LedgerBatch::default() }).unwrap());
    assert!(!last.contains_key("lab"), "{last:?}");
}

#[test]
fn the_bill_has_a_line_for_each_account_of_a_job() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 3_600_000_000_000)]));
    register_gpus(&mut ledger, 1);
    for (from, account) in [(0, "physics"), (30, "bio")] {
        let holders = vec![of_account("211", account)];
        ledger.commit(&LedgerBatch { now: after(from), holders, ..LedgerBatch::default() }).unwrap();
        settle(&mut ledger, 0, from..from + 30, "slurm:alpha/211");
    }
    drop(ledger);
    let mut reader = gpumeter::accounting::ledger::Reader::open(&world.path()).unwrap();
    let statement = reader.bill(&between(None, None)).unwrap();
    assert!(statement.is_balanced());
    let lines = statement.lines.iter().map(|line| {
        let held = line.amounts.parts.held() / SECOND;
        (&*line.tenant, line.holder.name(), &*line.labels["slurm_account"], held, line.money)
    });
    let lines: Vec<_> = lines.collect();
    let money = Some(Money(30_000_000_000));
    assert_eq!(
        lines,
        [("bio", "slurm:alpha/211", "bio", 30, money), ("physics", "slurm:alpha/211", "physics", 30, money),]
    );
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM holder WHERE name = 'slurm:alpha/211'"), 2);
}

#[test]
fn a_fact_that_was_not_known_is_added_and_one_that_changes_the_tenant_is_not() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let array = (Fact::SlurmArrayJob, "210");
    let account = (Fact::SlurmAccount, "physics");
    let mut store = |facts: &[(Fact, &str)]| {
        let holders = vec![job("211", facts)];
        ledger.commit(&LedgerBatch { now: after(1), holders, ..LedgerBatch::default() }).unwrap();
        world.sql::<i64>("SELECT count(*) FROM holder")
    };
    assert_eq!(store(&[]), 1);
    assert_eq!(store(&[array]), 1);
    assert_eq!(store(&[]), 1, "what is known stays");
    assert_eq!(world.sql::<String>("SELECT facts ->> 'slurm_array_job' FROM holder"), "210");
    assert_eq!(store(&[array, account]), 2);
    assert_eq!(store(&[account, (Fact::SlurmArrayJob, "220")]), 3);
    assert_eq!(store(&[account]), 3);
}
