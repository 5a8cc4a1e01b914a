//! Versions of holders: facts that tenant rules read never change in place.

use std::collections::BTreeMap;

use gpumeter::ledger::{Acknowledged, CounterKey, HolderCounter, LedgerBatch, Recovered, TenantKey};
use gpumeter::model::{Fact, Facts, Holder, HolderKind, Money};

use super::world::*;

fn job(number: &str, facts: &[(Fact, &str)]) -> Holder {
    let known = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, number)];
    Holder::new(HolderKind::Slurm, Facts::new(known.into_iter().chain(facts.iter().copied())))
}

fn of_account(number: &str, account: &str) -> Holder {
    job(number, &[(Fact::SlurmAccount, account)])
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

    /// Held seconds by tenant and by workload; none is less than before.
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
            tenants.insert(tenant);
        }
        for (key, sum) in self.sums.iter().filter(|(key, _)| tenants.contains(key)) {
            *held.entry(key.tenant.to_string()).or_default() += sum.amounts.parts.held() / SECOND;
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
        let (mut ledger, recovered) = world.open(0, None);
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
        // The job continues, also for an agent that begins now.
        drop(ledger);
        let (mut ledger, recovered) = world.open(from + 20, None);
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
    }
}

#[test]
fn the_bill_has_a_line_for_each_account_of_a_job() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Some(book(&[(0, 3_600_000_000_000)])));
    register_gpus(&mut ledger, 1);
    for (from, account) in [(0, "physics"), (30, "bio")] {
        let holders = vec![of_account("211", account)];
        ledger.commit(&LedgerBatch { now: after(from), holders, ..LedgerBatch::default() }).unwrap();
        settle(&mut ledger, 0, from..from + 30, "slurm:alpha/211");
    }
    drop(ledger);
    let mut reader = gpumeter::ledger::Reader::open(&world.path()).unwrap();
    let statement = reader.bill(None, None).unwrap();
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
    let (mut ledger, _) = world.open(0, None);
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
