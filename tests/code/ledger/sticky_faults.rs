//! Sticky faults of a GPU, across restarts and reboots, and in a ledger without their table.

use std::collections::{BTreeMap, BTreeSet};

use gpumeter::accounting::batches::{LedgerBatch, StickyFaults};
use gpumeter::accounting::ledger::{Ledger, LedgerQueue, Opening};
use gpumeter::model::{Microjoules, StickyFault, Utc};

use super::world::{World, opening, register_gpus, uuid};

fn sticky_faults(gpu: u32, count: u64) -> StickyFaults {
    let xids = StickyFault {
        rule: "xid_reboot".into(),
        since: Utc(1_800_000_000_000_000_001),
        count: 0,
        xids: BTreeMap::from([(79, (count, None)), (48, (1, Some(3)))]),
    };
    let notice = StickyFault { rule: "unavailable".into(), count, ..StickyFault::default() };
    StickyFaults {
        gpu: uuid(gpu),
        // By name, as the ledger returns them.
        faults: vec![notice, xids],
        failed: Some(Utc(5)),
        module: Some(u64::MAX),
        energy_counter: Some(Microjoules(7)),
        most_links_up: 12,
    }
}

fn commit(ledger: &mut Ledger, faults: Vec<StickyFaults>) {
    ledger.commit(&LedgerBatch { sticky_faults: faults, ..LedgerBatch::default() }).unwrap();
}

/// A ledger of two GPUs, of which the first has a sticky fault.
fn world() -> World {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    commit(&mut ledger, vec![sticky_faults(0, 1), sticky_faults(9, 1)]);
    world
}

fn faults_after_reopening(world: &World, boot_id: &str) -> Vec<StickyFaults> {
    let opening = Opening { boot_id: boot_id.into(), ..opening(60, Default::default()) };
    Ledger::open(&world.path(), &opening).unwrap().1.sticky_faults
}

#[test]
fn sticky_faults_survive_the_agent_and_not_the_boot() {
    let world = world();
    assert_eq!(
        faults_after_reopening(&world, "first"),
        [sticky_faults(0, 1)],
        "a GPU that was never seen has nothing"
    );
    assert_eq!(faults_after_reopening(&world, "second"), []);
    assert_eq!(faults_after_reopening(&world, "first"), [], "the reboot has reset it");
}

#[test]
fn without_a_boot_id_each_start_is_a_boot() {
    let world = World::new();
    let opening = Opening { boot_id: String::new(), ..opening(0, Default::default()) };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    register_gpus(&mut ledger, 1);
    commit(&mut ledger, vec![sticky_faults(0, 1)]);
    drop(ledger);
    assert_eq!(faults_after_reopening(&world, ""), []);
}

#[test]
fn a_new_sticky_fault_replaces_the_former_and_none_ends_it() {
    let world = world();
    let (mut ledger, _) = world.open(60, Default::default());
    commit(&mut ledger, vec![sticky_faults(0, 2), sticky_faults(1, 3)]);
    drop(ledger);
    assert_eq!(faults_after_reopening(&world, "first"), [sticky_faults(0, 2), sticky_faults(1, 3)]);
    let (mut ledger, _) = world.open(90, Default::default());
    commit(&mut ledger, vec![StickyFaults { gpu: uuid(0), ..StickyFaults::default() }]);
    drop(ledger);
    assert_eq!(faults_after_reopening(&world, "first"), [sticky_faults(1, 3)]);
}

#[test]
fn the_queue_keeps_each_gpus_last_sticky_fault_across_a_refused_batch() {
    let queue = LedgerQueue::default();
    let offer = |faults| queue.offer(LedgerBatch { sticky_faults: faults, ..LedgerBatch::default() });
    offer(vec![sticky_faults(0, 1), sticky_faults(1, 1)]);
    let failed = queue.wait_for_batch(std::time::Duration::ZERO).unwrap();
    offer(vec![sticky_faults(0, 2)]);
    queue.put_back(failed);
    let batch = queue.wait_for_batch(std::time::Duration::ZERO).unwrap();
    assert_eq!(batch.sticky_faults, [sticky_faults(0, 2), sticky_faults(1, 1)]);
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let salvage = ledger.commit_by_gpu(batch);
    assert_eq!((salvage.acknowledged.len(), salvage.dropped.len()), (2, 0));
    drop(ledger);
    assert_eq!(faults_after_reopening(&world, "first").len(), 2);
}

#[test]
fn an_unreadable_verdict_text_keeps_the_verdict() {
    let spoilt = ["'{\"79\": 1'", "CAST(x'ff' AS TEXT)", "'{\"79\": [-1, null]}'"];
    for xids in spoilt {
        let world = world();
        let connection = rusqlite::Connection::open(world.path()).unwrap();
        connection.execute(&format!("UPDATE sticky_fault SET xids = {xids}, since_ns = -1"), []).unwrap();
        drop(connection);
        let read = faults_after_reopening(&world, "first");
        let names: Vec<&str> = read[0].faults.iter().map(|fault| &*fault.rule).collect();
        assert_eq!((names, read[0].failed), (vec!["unavailable", "xid_reboot"], Some(Utc(1))), "{xids}");
        assert!(read[0].faults.iter().all(|fault| fault.xids.is_empty()), "{xids}");
    }
}

#[test]
fn an_unreadable_sticky_fault_does_not_prevent_opening_the_ledger() {
    let world = world();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let spoil = "UPDATE sticky_fault SET rule = CAST(x'ff' AS TEXT) WHERE rule = 'unavailable'";
    connection.execute(spoil, []).unwrap();
    drop(connection);
    let read = faults_after_reopening(&world, "first");
    let names: BTreeSet<&str> = read[0].faults.iter().map(|fault| &*fault.rule).collect();
    assert_eq!((names, read[0].failed), (BTreeSet::from(["", "xid_reboot"]), Some(Utc(5))));
}
