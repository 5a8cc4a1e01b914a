//! Commits, refused windows that do not continue the account, and what a kill leaves.

use std::time::Duration;

use gpumeter::accounting::batches::{LedgerBatch, Resumed};
use gpumeter::accounting::ledger::{Cause, LedgerQueue, Reader};
use gpumeter::model::{HolderId, Method, Microjoules, Money, Nanoseconds, SlotState};

use super::world::*;

#[test]
fn reopening_continues_counters_raw_spans_carry_and_holdings() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..30, "user:a");
    let spans = vec![span(30, 31), span(31, 32)];
    let open = vec![open(0, spans.clone())];
    // Its facts are known only after its first row.
    let holders = vec![gpumeter::model::Holder::user("a", Some(1000))];
    ledger.commit(&LedgerBatch { now: after(32), open, holders, ..LedgerBatch::default() }).unwrap();
    drop(ledger);

    let (mut ledger, recovered) = world.open(40, Default::default());
    let gpu = &recovered.gpus[&uuid(0)];
    assert_eq!(gpu.settled_until, after(30));
    assert_eq!(gpu.slot, Nanoseconds::from_seconds(30));
    assert_eq!(gpu.spans, spans);
    assert_eq!(gpu.holdings, spans[1].holdings);
    assert_eq!(gpu.energy_counter, Some(Microjoules(42)));
    assert_eq!(gpu.carry["gpu/held"][&holder("user:a")], 7);
    assert_eq!(gpu.weights[&holder("user:a")], 3);
    assert_eq!(recovered.imbalance, 0);
    let key = counter_key(0, "user:a");
    assert_eq!(recovered.counters[&key].tenant.as_ref(), "a");
    assert_eq!(recovered.counters[&key].amounts.parts.held(), 30 * SECOND);
    assert_eq!(recovered.counters[&key].born, after(16));

    let closed = vec![whole(0, (after(30), after(45)), "user:a", 5)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(46), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.counters[&key].amounts.parts.held(), 45 * SECOND);
    assert_eq!(acknowledged.counters[&key].born, after(16));
    assert_eq!(acknowledged.slots[&uuid(0)].slot, Nanoseconds::from_seconds(45));
    assert_eq!(acknowledged.slots[&uuid(0)].settled_until, after(45));
    assert_eq!(acknowledged.imbalance, 0);
    assert!(acknowledged.bytes > 0);
}

#[test]
fn a_kill_loses_at_most_what_was_not_committed() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..15, "user:a");
    for second in 15..20 {
        let open = vec![open(0, vec![span(second, second + 1)])];
        ledger.commit(&LedgerBatch { now: after(second + 1), open, ..LedgerBatch::default() }).unwrap();
        let (_copy, recovered) = world.copy_as_killed().open(second + 1, Default::default());
        let gpu = &recovered.gpus[&uuid(0)];
        assert_eq!(gpu.settled_until, after(15));
        assert_eq!(gpu.spans.last().unwrap().to, after(second + 1));
        assert_eq!(recovered.counters[&counter_key(0, "user:a")].amounts.parts.held(), 15 * SECOND);
    }
}

#[test]
fn a_window_that_overlaps_the_account_is_refused_whole() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    settle(&mut ledger, 0, 0..15, "user:a");
    let first = (after(0), after(15));
    for (from, to) in [(14, 30), (15, 15), (30, 16)] {
        let mut guilty = whole(0, first, "user:a", 0);
        (guilty.settlement.from, guilty.settlement.to) = (after(from), after(to));
        let closed = vec![whole(1, first, "user:b", 1), guilty];
        let error =
            ledger.commit(&LedgerBatch { now: after(31), closed, ..LedgerBatch::default() }).unwrap_err();
        assert!(matches!(error.cause, Cause::Window { settled_until, .. } if settled_until == after(15)));
        assert!(!error.may_pass());
    }
    // The other GPU's window was not stored either, in the file or in memory.
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM account"), 1);
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM holder WHERE name = 'user:b'"), 0);
    let closed = vec![whole(1, first, "user:b", 1)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(31), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.counters[&counter_key(1, "user:b")].amounts.parts.held(), 15 * SECOND);
}

#[test]
fn a_window_that_is_settled_already_is_skipped_and_never_doubled() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..30, "user:a");
    let again = |from: u64| whole(0, (after(from), after(from + 15)), "user:b", 1);
    let closed = vec![again(0), again(15)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(31), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.slots[&uuid(0)].settled_until, after(30));
    assert!(acknowledged.counters.is_empty());
    let closed = vec![again(15), again(30)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(46), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.slots[&uuid(0)].slot, Nanoseconds::from_seconds(45));
    assert_eq!(acknowledged.counters[&counter_key(0, "user:b")].amounts.parts.held(), 15 * SECOND);
    assert_eq!((acknowledged.imbalance, acknowledged.unobserved), (0, Nanoseconds(0)));
}

#[test]
fn a_gap_before_a_window_is_booked_as_unobserved_and_counted() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 3_600_000_000_000)]));
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..15, "user:a");
    let spans = vec![open(0, vec![span(15, 16), span(80, 100)])];
    ledger.commit(&LedgerBatch { now: after(100), open: spans, ..LedgerBatch::default() }).unwrap();
    let closed = vec![whole(0, (after(90), after(120)), "user:a", 5)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(121), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.unobserved, Nanoseconds::from_seconds(75));
    assert_eq!(acknowledged.imbalance, 0);
    assert_eq!(acknowledged.slots[&uuid(0)].slot, Nanoseconds::from_seconds(120));
    let nobody = &acknowledged.counters[&counter_key(0, HolderId::UNOBSERVED)];
    assert_eq!((nobody.amounts.parts.unmeasured, nobody.amounts.parts.held()), (75 * SECOND, 75 * SECOND));
    assert_eq!(acknowledged.counters[&counter_key(0, "user:a")].amounts.parts.held(), 45 * SECOND);
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM raw"), 0);
    assert_eq!(world.sql::<i64>("SELECT slot_ns FROM minute ORDER BY minute_ns LIMIT 1"), 60 * SECOND as i64);
    assert!(world.sql::<String>("SELECT text FROM remark").contains("75000000000 ns"));
    // The next one continues, and the bill has both.
    settle(&mut ledger, 0, 120..180, "user:a");
    let bill = Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    assert_eq!((bill.to, bill.reconciliation.imbalance), (after(180), 0));
    assert_eq!(bill.reconciliation.imbalance_money, Money(0));
    let line = bill.lines.iter().find(|line| line.holder == holder(HolderId::UNOBSERVED)).unwrap();
    assert_eq!((line.method, line.amounts.parts.unmeasured), (Method::Observed, 75 * SECOND));
}

#[test]
fn a_refused_gpu_does_not_affect_the_others() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    settle(&mut ledger, 0, 0..20, "user:a");
    let window = |gpu, from, to| whole(gpu, (after(from), after(to)), "user:b", 1);
    // GPU 0 has an account up to 30; its first window overlaps that, the second continues it.
    let batch = LedgerBatch {
        now: after(60),
        registrations: vec![registration(2, 0)],
        closed: vec![window(0, 15, 45), window(0, 45, 60), window(1, 0, 15), window(2, 0, 15)],
        open: vec![open(0, vec![span(60, 62), span(61, 63)]), open(1, vec![span(15, 16)])],
        ..LedgerBatch::default()
    };
    assert!(ledger.commit(&batch).is_err());
    let salvage = ledger.commit_by_gpu(batch);
    let dropped: Vec<&str> = salvage.dropped.iter().map(|(gpu, _)| &**gpu).collect();
    assert_eq!(dropped, [&*uuid(0), &*uuid(0)], "a window and the spans");
    assert!(salvage.unfinished.is_empty() && salvage.prevented.is_none());
    let last = salvage.acknowledged.last().unwrap();
    assert_eq!(last.imbalance, 0);
    let unobserved: Nanoseconds =
        salvage.acknowledged.iter().map(|acknowledged| acknowledged.unobserved).sum();
    assert_eq!(unobserved, Nanoseconds::from_seconds(15), "between 30 and 45");
    drop(ledger);
    let (_, recovered) = world.open(61, Default::default());
    let until: Vec<_> = (0..3).map(|gpu| recovered.gpus[&uuid(gpu)].settled_until).collect();
    assert_eq!(until, [after(60), after(15), after(15)]);
    assert_eq!(recovered.gpus[&uuid(1)].spans, [span(15, 16)]);
    assert_eq!(recovered.imbalance, 0);
}

#[test]
fn a_sighting_is_stored_even_if_its_window_is_refused() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    let mut backwards = whole(0, (after(0), after(15)), "user:a", 0);
    backwards.settlement.to = after(0);
    let batch = LedgerBatch {
        registrations: vec![registration(0, 0)],
        closed: vec![backwards],
        ..LedgerBatch::default()
    };
    assert_eq!(ledger.commit_by_gpu(batch).dropped.len(), 1);
    // Without it every later window would be refused.
    let closed = vec![whole(0, (after(15), after(30)), "user:a", 0)];
    let acknowledged =
        ledger.commit(&LedgerBatch { now: after(31), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(acknowledged.unobserved, Nanoseconds::from_seconds(15));
}

#[test]
fn a_locked_ledger_returns_the_whole_batch() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let other = rusqlite::Connection::open(world.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let closed = (0..2).map(|gpu| whole(gpu, (after(0), after(15)), "user:a", 0)).collect();
    let salvage = ledger.commit_by_gpu(LedgerBatch { now: after(16), closed, ..LedgerBatch::default() });
    assert!(salvage.acknowledged.is_empty() && salvage.dropped.is_empty());
    assert!(salvage.prevented.unwrap().may_pass());
    other.execute_batch("ROLLBACK").unwrap();
    let queue = LedgerQueue::default();
    for batch in salvage.unfinished {
        queue.put_back(batch);
    }
    let acknowledged = ledger.commit(&queue.wait_for_batch(std::time::Duration::ZERO).unwrap()).unwrap();
    assert_eq!(acknowledged.slots.len(), 2);
}

#[test]
fn only_the_rest_of_a_span_across_a_boundary_is_stored_again() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let spans = vec![open(0, vec![span(0, 10), span(10, 20)])];
    ledger.commit(&LedgerBatch { now: after(20), open: spans, ..LedgerBatch::default() }).unwrap();
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    let mut batch = LedgerBatch { now: after(21), closed, ..LedgerBatch::default() };
    // Without the rest seconds 15 to 20 would be in no span, and a restart would find them unobserved.
    batch.open = vec![open(0, vec![span(20, 21)])];
    ledger.commit(&batch).unwrap();
    let (_, recovered) = world.copy_as_killed().open(22, Default::default());
    let spans = &recovered.gpus[&uuid(0)].spans;
    assert_eq!((spans[0].from, spans[0].to, spans[0].state), (after(15), after(20), SlotState::Unobserved));
    assert_eq!(spans[1..], [span(20, 21)]);
    batch.closed.clear();
    batch.open = vec![open(0, vec![span(15, 20), span(20, 21)])];
    ledger.commit(&batch).unwrap();
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM raw"), 2);
    drop(ledger);
    let (_, recovered) = world.open(22, Default::default());
    assert_eq!(recovered.gpus[&uuid(0)].spans, [span(15, 20), span(20, 21)]);
}

#[test]
fn spans_that_are_settled_already_are_ignored_and_overlaps_are_refused() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..15, "user:a");
    let spans = |spans| LedgerBatch { now: after(17), open: vec![open(0, spans)], ..LedgerBatch::default() };
    ledger.commit(&spans(vec![span(13, 15), span(15, 16)])).unwrap();
    ledger.commit(&spans(vec![span(15, 16), span(16, 17)])).unwrap();
    assert!(ledger.commit(&spans(vec![span(16, 18), span(17, 19)])).is_err());
    assert!(ledger.commit(&spans(vec![span(14, 16)])).is_err());
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM raw"), 2);
}

#[test]
fn a_ledger_with_raw_spans_stored_by_key_continues() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    drop(ledger);
    // The table as it was before raw spans were appended.
    rusqlite::Connection::open(world.path())
        .unwrap()
        .execute_batch(
            "DROP TABLE raw;
             CREATE TABLE raw (gpu INTEGER NOT NULL REFERENCES gpu (id), from_ns INTEGER NOT NULL,
                to_ns INTEGER NOT NULL, span TEXT NOT NULL, PRIMARY KEY (from_ns, gpu)) STRICT, WITHOUT ROWID",
        )
        .unwrap();
    let (mut ledger, _) = world.open(0, Default::default());
    for (now, spans) in [(16, vec![span(0, 15), span(15, 16)]), (17, vec![span(15, 16), span(16, 17)])] {
        ledger
            .commit(&LedgerBatch { now: after(now), open: vec![open(0, spans)], ..LedgerBatch::default() })
            .unwrap();
    }
    settle(&mut ledger, 0, 0..15, "user:a");
    drop(ledger);
    let (_, recovered) = world.open(18, Default::default());
    assert_eq!(recovered.gpus[&uuid(0)].spans, [span(15, 16), span(16, 17)]);
}

#[test]
fn a_gpu_without_account_is_refused() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 0)];
    let error = ledger.commit(&LedgerBatch { now: after(15), closed, ..LedgerBatch::default() }).unwrap_err();
    assert!(matches!(error.cause, Cause::UnknownGpu { .. }), "{error}");
}

#[test]
fn a_commit_is_synced_every_ten_seconds_and_when_a_window_closes() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let mut synced = Vec::new();
    for second in 0..25 {
        let open = vec![open(0, vec![span(second, second + 1)])];
        let acknowledged =
            ledger.commit(&LedgerBatch { now: after(second + 1), open, ..LedgerBatch::default() }).unwrap();
        if acknowledged.synced {
            synced.push(second + 1);
        }
    }
    assert_eq!(synced, [10, 20]);
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    assert!(ledger.commit(&LedgerBatch { now: after(26), closed, ..LedgerBatch::default() }).unwrap().synced);
}

#[test]
fn a_gap_settled_at_once_is_spread_over_its_minutes() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let closed = vec![whole(0, (after(0), after(150)), "user:a", 75 * SECOND)];
    ledger.commit(&LedgerBatch { now: after(151), closed, ..LedgerBatch::default() }).unwrap();
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM account"), 3);
    let second = "SELECT within_ns FROM account ORDER BY minute_ns LIMIT 1 OFFSET 1";
    assert_eq!(world.sql::<i64>(second), 30 * SECOND as i64);
}

#[test]
fn absurd_memory_and_energy_are_capped_to_the_columns_range() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    for from in [0, 15] {
        let mut absurd = whole(0, (after(from), after(from + 15)), "user:a", 5);
        absurd.settlement.rows[0].amounts.memory_byte_seconds = u64::MAX;
        absurd.settlement.rows[0].amounts.energy_dynamic = Microjoules(u64::MAX);
        ledger
            .commit(&LedgerBatch { now: after(from + 16), closed: vec![absurd], ..LedgerBatch::default() })
            .unwrap();
    }
    let largest = "SELECT min(memory_byte_seconds, energy_dynamic_uj) FROM account";
    assert_eq!(world.sql::<i64>(largest), i64::MAX);
    drop(ledger);
    let (_, recovered) = world.open(31, Default::default());
    let counter = &recovered.counters[&counter_key(0, "user:a")];
    assert_eq!(counter.amounts.parts.held(), 30 * SECOND);
    assert_eq!(counter.amounts.energy_dynamic.0, i64::MAX as u64);
}

#[test]
fn the_counter_and_the_holdings_survive_a_window_that_leaves_no_open_span() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let queue = LedgerQueue::default();
    queue.offer(LedgerBatch {
        now: after(15),
        open: vec![open(0, vec![span(0, 15)])],
        ..LedgerBatch::default()
    });
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    queue.offer(LedgerBatch { now: after(25), closed, ..LedgerBatch::default() });
    ledger.commit(&queue.wait_for_batch(std::time::Duration::ZERO).unwrap()).unwrap();
    drop(ledger);
    let (_, recovered) = world.open(26, Default::default());
    let gpu = &recovered.gpus[&uuid(0)];
    assert_eq!((gpu.settled_until, gpu.energy_counter), (after(15), Some(Microjoules(42))));
    assert_eq!(gpu.holdings, span(0, 15).holdings);
    assert!(gpu.spans.is_empty());
}

#[test]
fn a_repeated_older_span_does_not_change_the_current_holders() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let mut first = span(0, 1);
    first.holdings = [].into();
    for spans in [vec![first.clone(), span(1, 2)], vec![first]] {
        ledger
            .commit(&LedgerBatch { now: after(2), open: vec![open(0, spans)], ..LedgerBatch::default() })
            .unwrap();
    }
    drop(ledger);
    let (_, recovered) = world.open(3, Default::default());
    assert_eq!(recovered.gpus[&uuid(0)].holdings, span(1, 2).holdings);
}

#[test]
fn a_gpu_model_that_is_known_later_is_stored() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    for (model, stored) in [("", ""), ("NVIDIA H100", "NVIDIA H100"), ("", "NVIDIA H100")] {
        let mut registration = registration(0, 0);
        registration.model = model.into();
        ledger
            .commit(&LedgerBatch { now: START, registrations: vec![registration], ..LedgerBatch::default() })
            .unwrap();
        assert_eq!(world.sql::<String>("SELECT model FROM gpu"), stored);
    }
}

#[test]
fn time_while_an_account_was_paused_is_in_no_row() {
    let window = |from: u64| whole(0, (after(from), after(from + 15)), "user:a", 5);
    let resumed = |at| vec![Resumed { gpu: uuid(0), at: after(at) }];
    let rested = LedgerBatch {
        now: after(100),
        closed: vec![window(15)],
        resumed: resumed(100),
        ..LedgerBatch::default()
    };
    let goes_on = LedgerBatch { now: after(130), closed: vec![window(115)], ..LedgerBatch::default() };
    for joined in [false, true] {
        let world = World::new();
        let (mut ledger, _) = world.open(0, Default::default());
        register_gpus(&mut ledger, 1);
        settle(&mut ledger, 0, 0..15, "user:a");
        let queue = LedgerQueue::default();
        queue.offer(rested.clone());
        if !joined {
            ledger.commit(&queue.wait_for_batch(Duration::ZERO).unwrap()).unwrap();
            let (_copy, recovered) = world.copy_as_killed().open(101, Default::default());
            let gpu = &recovered.gpus[&uuid(0)];
            assert_eq!((gpu.settled_until, gpu.carry.len(), gpu.energy_counter), (after(100), 0, None));
            assert!(gpu.holdings.is_empty() && gpu.spans.is_empty());
        }
        queue.offer(goes_on.clone());
        let acknowledged = ledger.commit(&queue.wait_for_batch(Duration::ZERO).unwrap()).unwrap();
        // After a pause only the hole is unobserved.
        assert_eq!(acknowledged.unobserved, Nanoseconds::from_seconds(15));
        assert_eq!(acknowledged.slots[&uuid(0)].slot, Nanoseconds::from_seconds(15 + 15 + 15 + 15));
        assert_eq!(acknowledged.imbalance, 0);
    }
}

#[test]
fn counters_leave_memory_and_come_back_and_their_tenants_sum_never_falls() {
    use std::collections::BTreeMap;

    use gpumeter::model::{Fact, Facts, Holder};

    let world = World::new();
    let (mut ledger, recovered) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let job = |name: &str| Holder { id: holder(name), facts: Facts::new([(Fact::Unit, "team.service")]) };
    let holders = vec![job("unit:first"), job("unit:second")];
    ledger.commit(&LedgerBatch { now: after(0), holders, ..LedgerBatch::default() }).unwrap();
    let tenant = counter_key(0, "unit:first").with_tenant(&"team.service".into());
    let (mut live, mut unloaded_sums) = (recovered.counters, recovered.unloaded_sums);
    let mut sum = 0;
    // The first tenant for a minute, the second for 20 s, then the first again.
    for from in (0..1500).step_by(15) {
        let name = if (60..1260).contains(&from) { "unit:second" } else { "unit:first" };
        let closed = vec![whole(0, (after(from), after(from + 15)), name, 5 * SECOND)];
        let acknowledged =
            ledger.commit(&LedgerBatch { now: after(from + 16), closed, ..LedgerBatch::default() }).unwrap();
        live.extend(acknowledged.counters);
        unloaded_sums.extend(acknowledged.unloaded_sums);
        for key in acknowledged.unloaded {
            live.remove(&key);
        }
        let of_tenant = live.values().chain(unloaded_sums.get(&tenant));
        let held: u64 = of_tenant.map(|counter| counter.amounts.parts.held()).sum();
        assert_eq!(held, (from + 15) * SECOND, "at second {from}");
        assert!(held > sum);
        sum = held;
        match from {
            60..660 | 1260.. => assert_eq!(live.len(), 2, "at second {from}"),
            800..1260 => assert_eq!(live.len(), 1, "at second {from}"),
            _ => {}
        }
    }
    assert_eq!(live[&counter_key(0, "unit:first")].amounts.parts.held(), 300 * SECOND);
    // A restart loads recent counters and sums the rest.
    drop(ledger);
    let (_, recovered) = world.open(3_000, Default::default());
    let held = |counters: &BTreeMap<_, gpumeter::accounting::batches::HolderCounter>| -> u64 {
        counters.values().map(|counter| counter.amounts.parts.held()).sum()
    };
    assert_eq!(held(&recovered.counters) + recovered.unloaded_sums[&tenant].amounts.parts.held(), sum);
    assert_eq!(recovered.imbalance, 0);
}
