//! Holders whose facts change: each version has its own time, and no counter falls.

use gpumeter::accounting::tenants::{TenantRules, tenant};
use gpumeter::model::catalogue::AccountValue;
use gpumeter::model::{Fact, Facts, Holder, HolderKind, PodLabel};

use super::seconds;
use super::world::World;

const JOB: &str = "slurm:alpha/211";

fn job(account: &str, started: u64) -> Holder {
    let facts = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, "211"), (Fact::SlurmAccount, account)];
    let mut facts = Facts::new(facts);
    facts.started = Some(started);
    Holder::new(HolderKind::Slurm, facts)
}

/// Held and used seconds of the job's versions, in the order in which they began.
fn versions(world: &World) -> Vec<[u64; 2]> {
    let of_job = world.settled().iter().filter(|(id, _)| id.name() == JOB);
    of_job.map(|(_, row)| [seconds(row)[0], row.used.total() / super::SECOND]).collect()
}

#[test]
fn a_job_that_is_requeued_within_a_window_pays_until_then_for_the_first_account() {
    let mut world = World::new(&[]);
    world.run_job(&job("physics", 1));
    world.run(37, |frame| frame.process(7, 100).busy(100));
    world.run_job(&job("bio", 2));
    world.run(63, |frame| frame.process(7, 100).busy(100));
    let settled = world.settled_seconds();
    assert_eq!(versions(&world), [[37, 37], [settled - 37, settled - 37]]);
    let tenants: Vec<String> = world.bill().iter().map(|line| line.holder.name().to_owned()).collect();
    assert_eq!(tenants, [JOB, JOB]);
    world.assert_balanced();
}

#[test]
fn no_counter_falls_when_a_job_is_requeued_over_restarts_too() {
    let mut world = World::new(&[]);
    let held = |world: &World| {
        let of_tenant = |tenant| world.value(tenant, AccountValue::Held).unwrap_or(0);
        let of_job = world.workload_value(JOB, AccountValue::Held).unwrap_or(0);
        [of_tenant("physics"), of_tenant("bio"), of_job]
    };
    let mut last = [0; 3];
    let mut check = |world: &World| {
        let now = held(world);
        assert!(now.iter().zip(last).all(|(now, last)| *now >= last), "{last:?} then {now:?}");
        last = now;
    };
    for (run, account) in (1..).zip(["physics", "bio", "physics"]) {
        world.run_job(&job(account, run));
        for _ in 0..20 {
            world.run(5, |frame| frame.process(7, 100).busy(100));
            check(&world);
        }
        world.restart(1);
        check(&world);
    }
    world.run(90, |frame| frame.process(7, 100).busy(100));
    check(&world);
    assert_eq!(versions(&world).len(), 3, "the third run is another one of the first account");
    assert!(last[0] > last[1] && last[1] > 0, "{last:?}");
    world.assert_balanced();
}

#[test]
fn a_grant_holds_under_the_version_that_its_user_has_at_the_time() {
    let mut world = World::new(&["alice"]);
    for (uid, seconds) in [(1, 37), (2, 63)] {
        world.identify_holders(&[(7, Holder::user("alice", Some(uid)))]);
        world.run(seconds, |frame| frame.process(7, 100).busy(100));
    }
    let rows: Vec<_> = world.settled().iter().filter(|(id, _)| id.name() == "user:alice").collect();
    let held: Vec<u64> = rows.iter().map(|(_, row)| seconds(row)[0]).collect();
    assert_eq!(held, [37, world.settled_seconds() - 37]);
    assert!(rows.iter().all(|(_, row)| row.used.outside == 0), "{rows:?}");
    world.assert_balanced();
}

#[test]
fn array_ids_that_are_learnt_later_are_added_to_a_version() {
    let mut world = World::new(&[]);
    let first = job("physics", 1);
    let mut named = first.clone();
    named.facts.set(Fact::SlurmArrayJob, "210".into());
    for holder in [&first, &named, &first] {
        world.run_job(holder);
        world.run(30, |frame| frame.process(7, 100).busy(100));
    }
    assert_eq!(versions(&world).len(), 1);
    let sql = "SELECT count(*) FROM holder WHERE facts ->> 'slurm_array_job' = '210'";
    assert_eq!(world.stored::<i64>(sql), 1);
}

#[test]
fn a_changed_label_is_a_new_version_and_one_that_was_not_known_is_added() {
    let pod = |labels: Option<&[(&str, &str)]>| {
        let facts = [(Fact::Namespace, "ml"), (Fact::PodUid, "11"), (Fact::PodContainer, "main")];
        let mut facts = Facts::new(facts);
        if let Some(labels) = labels {
            facts.set_pod_labels(labels.iter().map(|(key, value)| PodLabel::new(key, value)));
        }
        Holder::new(HolderKind::Pod, facts)
    };
    let mut world = World::new(&[]);
    let count = |world: &World| world.settled().keys().filter(|id| id.name() == "k8s:11/main").count();
    let vision = [("team", "vision")];
    for (labels, versions) in
        [(None, 1), (Some(&vision[..]), 1), (Some(&[("team", "speech")]), 2), (Some(&[]), 3), (None, 3)]
    {
        world.run_job(&pod(labels));
        world.run(60, |frame| frame.process(7, 100).busy(100));
        assert_eq!(count(&world), versions, "{labels:?}");
    }
    let sql = "SELECT facts ->> 'k8s_pod_labels' FROM holder WHERE name LIKE 'k8s:%' ORDER BY id";
    assert_eq!(world.stored::<String>(sql), r#"{"team":"vision"}"#);
    world.assert_balanced();
}

#[test]
fn an_account_that_becomes_known_later_pays_from_then_on() {
    let mut world = World::new(&[]);
    let mut unknown = job("", 1);
    unknown.facts.started = None;
    assert_eq!(&*tenant(&unknown, &TenantRules::default()), JOB);
    world.run_job(&unknown);
    world.run(20, |frame| frame.process(7, 100).busy(100));
    world.run_job(&job("physics", 1));
    world.run(60, |frame| frame.process(7, 100).busy(100));
    assert_eq!(versions(&world), [[20, 20], [world.settled_seconds() - 20; 2]]);
}

#[test]
fn a_process_with_the_facts_from_before_a_change_is_covered_by_the_holding() {
    let mut world = World::new(&[]);
    world.run_job(&job("physics", 1));
    world.run(15, |frame| frame.process(7, 100).busy(100));
    world.run_job(&job("bio", 1));
    world.identify_holders(&[(7, job("physics", 1))]);
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let rows: Vec<_> = world.settled().iter().filter(|(id, _)| id.name() == JOB).collect();
    let used = rows.iter().map(|(_, row)| row.used.within).sum::<u64>() / super::SECOND;
    assert_eq!(used, world.settled_seconds(), "within the holding");
    assert_eq!(versions(&world)[0], [15, world.settled_seconds()], "by the version that the process has");
}

#[test]
fn a_job_whose_account_changed_while_the_agent_was_away_has_held_the_gpu_meanwhile() {
    let mut world = World::new(&[]);
    world.run_job(&job("physics", 1));
    world.run(47, |frame| frame.process(7, 100).busy(100));
    world.run_job(&job("bio", 1));
    world.restart(40);
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let held: Vec<u64> = versions(&world).iter().map(|[held, _]| *held).collect();
    assert!(held.len() == 2 && (86..=89).contains(&held[0]), "the gap is the first version's: {held:?}");
    assert_eq!(held.iter().sum::<u64>(), world.settled_seconds());
    world.assert_balanced();
}
