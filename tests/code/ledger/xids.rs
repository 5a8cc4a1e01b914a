//! The sums of XIDs across restarts and reboots, in a ledger without the table, and of a forgotten GPU.

use std::collections::BTreeMap;

use gpumeter::accounting::batches::{LedgerBatch, XidSum, XidSums};
use gpumeter::accounting::ledger::{Ledger, LedgerQueue, Opening, forget};
use gpumeter::model::{Nanoseconds, Utc};

use super::world::{World, opening, register_gpus, uuid};

fn sums(gpu: u32, count: u64) -> XidSums {
    let (last, last_reported) = (Utc(1_800_000_000_000_000_001), Nanoseconds(70));
    let sum = XidSum { count, last, events: count, lines: 1, last_reported, gpu_instance: Some(3) };
    XidSums {
        gpu: uuid(gpu),
        since: None,
        actions: BTreeMap::from([("reset_gpu".into(), count + 1)]),
        codes: BTreeMap::from([(48, sum), (79, sum)]),
    }
}

/// A ledger of two GPUs, of which the first has had XIDs.
fn world() -> World {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let xids = vec![sums(0, 3), sums(9, 1)];
    let acknowledged = ledger.commit(&LedgerBatch { xids, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.xids, [sums(0, 3)], "a GPU that was never seen has none");
    world
}

fn reopened(world: &World, boot_id: &str) -> Vec<XidSums> {
    let opening = Opening { boot_id: boot_id.into(), ..opening(60, Default::default()) };
    Ledger::open(&world.path(), &opening).unwrap().1.xids
}

#[test]
fn xid_sums_survive_reboots_and_source_positions_do_not() {
    let world = world();
    assert_eq!(reopened(&world, "first"), [sums(0, 3)]);
    let mut rebooted = sums(0, 3);
    for code in rebooted.codes.values_mut() {
        (code.events, code.lines, code.last_reported) = (0, 0, Nanoseconds(0));
    }
    assert_eq!(reopened(&world, "second"), [rebooted.clone()]);
    assert_eq!(reopened(&world, ""), [rebooted], "without a boot id each start is a boot");
}

#[test]
fn unreadable_xid_sums_do_not_prevent_opening_the_ledger() {
    let world = world();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute("UPDATE xid_sum SET codes = '{\"79\": -1}', actions = 'x'", []).unwrap();
    drop(connection);
    assert_eq!(reopened(&world, "first"), [XidSums { gpu: uuid(0), ..XidSums::default() }]);
}

#[test]
fn the_queue_keeps_each_gpus_last_xid_sums_across_a_refused_batch() {
    let queue = LedgerQueue::default();
    let offer = |xids| queue.offer(LedgerBatch { xids, ..LedgerBatch::default() });
    offer(vec![sums(0, 1), sums(1, 1)]);
    let failed = queue.wait_for_batch(std::time::Duration::ZERO).unwrap();
    offer(vec![sums(0, 2)]);
    queue.put_back(failed);
    let batch = queue.wait_for_batch(std::time::Duration::ZERO).unwrap();
    assert_eq!(batch.xids, [sums(0, 2), sums(1, 1)]);
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    assert_eq!(ledger.commit_by_gpu(batch).dropped.len(), 0);
    drop(ledger);
    assert_eq!(reopened(&world, "first").len(), 2);
}

#[test]
fn a_forgotten_gpu_begins_again_at_0_with_a_later_start() {
    let world = world();
    assert!(forget(&world.path(), &uuid(0), "first", opening(30, Default::default()).now.boottime).unwrap());
    let [left] = <[XidSums; 1]>::try_from(reopened(&world, "first")).unwrap();
    assert!(left.codes.is_empty() && left.actions.is_empty());
    assert!(left.since.is_some_and(|since| since >= super::world::START), "{left:?}");
}
