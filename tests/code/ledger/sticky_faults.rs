//! Sticky faults of a GPU, across restarts and reboots.

use std::collections::BTreeMap;

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
fn unreadable_sticky_faults_do_not_prevent_opening_the_ledger() {
    for faults in ["'{\"faults\": ['", "CAST(x'ff' AS TEXT)", "'{\"faults\": -1}'"] {
        let world = world();
        let connection = rusqlite::Connection::open(world.path()).unwrap();
        connection.execute(&format!("UPDATE sticky_fault SET faults = {faults}"), []).unwrap();
        drop(connection);
        assert_eq!(faults_after_reopening(&world, "first"), [], "{faults}");
    }
}
