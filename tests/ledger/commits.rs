//! Commits, refusals of what does not continue the account, and what a kill leaves.

use gpumeter::ledger::{Batch, Cause, Queue};
use gpumeter::model::{Microjoules, Nanoseconds};

use crate::world::*;

#[test]
fn reopening_continues_counters_raw_spans_carry_and_holdings() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    settle(&mut ledger, 0, 0..30, "user:a");
    let spans = vec![span(30, 31), span(31, 32)];
    let open = vec![open(0, spans.clone())];
    // Its facts are learned after its first row.
    let holders = vec![gpumeter::model::Holder::user("a", Some(1000))];
    ledger.commit(&Batch { now: after(32), open, holders, ..Batch::default() }).unwrap();
    drop(ledger);

    let (mut ledger, recovered) = world.open(40, None);
    let gpu = &recovered.gpus[&uuid(0)];
    assert_eq!(gpu.settled_until, after(30));
    assert_eq!(gpu.slot, Nanoseconds::from_seconds(30));
    assert_eq!(gpu.spans, spans);
    assert_eq!(gpu.holdings, spans[1].holdings);
    assert_eq!(gpu.energy_counter, Some(Microjoules(42)));
    assert_eq!(gpu.carry["gpu/held"][&holder("user:a")], 7);
    assert_eq!(gpu.weights[&holder("user:a")], 3);
    assert_eq!(recovered.imbalance, 0);
    assert_eq!(recovered.holders, [gpumeter::model::Holder::user("a", Some(1000))]);
    let key = (uuid(0), holder("user:a"));
    assert_eq!(recovered.counters[&key].parts.held(), 30 * SECOND);
    assert_eq!(recovered.counters[&key].born, after(16));

    let closed = vec![whole(0, (after(30), after(45)), "user:a", 5)];
    let told = ledger.commit(&Batch { now: after(46), closed, ..Batch::default() }).unwrap();
    assert_eq!(told.counters[&key].parts.held(), 45 * SECOND);
    assert_eq!(told.counters[&key].born, after(16));
    assert_eq!(told.slots[&uuid(0)].slot, Nanoseconds::from_seconds(45));
    assert_eq!(told.slots[&uuid(0)].settled_until, after(45));
    assert_eq!(told.imbalance, 0);
    assert!(told.bytes > 0);
}

#[test]
fn a_kill_loses_at_most_what_was_not_committed() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    settle(&mut ledger, 0, 0..15, "user:a");
    for second in 15..20 {
        let open = vec![open(0, vec![span(second, second + 1)])];
        ledger.commit(&Batch { now: after(second + 1), open, ..Batch::default() }).unwrap();
        let (_copy, recovered) = world.killed().open(second + 1, None);
        let gpu = &recovered.gpus[&uuid(0)];
        assert_eq!(gpu.settled_until, after(15));
        assert_eq!(gpu.spans.last().unwrap().to, after(second + 1));
        assert_eq!(recovered.counters[&(uuid(0), holder("user:a"))].parts.held(), 15 * SECOND);
    }
}

#[test]
fn a_window_committed_twice_or_with_a_hole_is_refused_whole() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 2);
    settle(&mut ledger, 0, 0..15, "user:a");
    let first = (after(0), after(15));
    for (from, to) in [(0, 15), (16, 30), (14, 30), (15, 15)] {
        let closed = vec![whole(1, first, "user:b", 1), whole(0, (after(from), after(to)), "user:a", 0)];
        let error = ledger.commit(&Batch { now: after(31), closed, ..Batch::default() }).unwrap_err();
        assert!(matches!(error.cause, Cause::Window { settled_until, .. } if settled_until == after(15)));
    }
    // The other GPU's window was not stored either, in the file and in memory.
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM account"), 1);
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM holder WHERE name = 'user:b'"), 0);
    let closed = vec![whole(1, first, "user:b", 1)];
    let told = ledger.commit(&Batch { now: after(31), closed, ..Batch::default() }).unwrap();
    assert_eq!(told.counters[&(uuid(1), holder("user:b"))].parts.held(), 15 * SECOND);
}

#[test]
fn a_straddling_span_is_stored_again_by_its_remainder() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    let spans = vec![open(0, vec![span(0, 10), span(10, 20)])];
    ledger.commit(&Batch { now: after(20), open: spans, ..Batch::default() }).unwrap();
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    let mut batch = Batch { now: after(21), closed, ..Batch::default() };
    // Without the remainder seconds 15 to 20 would be in neither the account nor the spans, once the
    // next span comes.
    batch.open = vec![open(0, vec![span(20, 21)])];
    let error = ledger.commit(&batch).unwrap_err();
    assert!(matches!(error.cause, Cause::Spans { at, .. } if at == after(15)), "{error}");
    batch.open = vec![open(0, vec![span(15, 20), span(20, 21)])];
    ledger.commit(&batch).unwrap();
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM raw"), 2);
    drop(ledger);
    let (_, recovered) = world.open(22, None);
    assert_eq!(recovered.gpus[&uuid(0)].spans, [span(15, 20), span(20, 21)]);
}

#[test]
fn spans_that_are_settled_already_are_ignored_and_overlaps_are_refused() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    settle(&mut ledger, 0, 0..15, "user:a");
    let spans = |spans| Batch { now: after(17), open: vec![open(0, spans)], ..Batch::default() };
    ledger.commit(&spans(vec![span(13, 15), span(15, 16)])).unwrap();
    ledger.commit(&spans(vec![span(15, 16), span(16, 17)])).unwrap();
    assert!(ledger.commit(&spans(vec![span(16, 18), span(17, 19)])).is_err());
    assert!(ledger.commit(&spans(vec![span(14, 16)])).is_err());
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM raw"), 2);
}

#[test]
fn a_gpu_without_account_is_refused() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 0)];
    let error = ledger.commit(&Batch { now: after(15), closed, ..Batch::default() }).unwrap_err();
    assert!(matches!(error.cause, Cause::UnknownGpu { .. }), "{error}");
}

#[test]
fn a_close_and_every_tenth_second_survive_a_power_loss() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    let mut synced = Vec::new();
    for second in 0..25 {
        let open = vec![open(0, vec![span(second, second + 1)])];
        let told = ledger.commit(&Batch { now: after(second + 1), open, ..Batch::default() }).unwrap();
        if told.synced {
            synced.push(second + 1);
        }
    }
    assert_eq!(synced, [10, 20]);
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    assert!(ledger.commit(&Batch { now: after(26), closed, ..Batch::default() }).unwrap().synced);
}

#[test]
fn a_gap_settled_at_once_is_spread_over_its_minutes() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    let closed = vec![whole(0, (after(0), after(150)), "user:a", 75 * SECOND)];
    ledger.commit(&Batch { now: after(151), closed, ..Batch::default() }).unwrap();
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM account"), 3);
    let second = "SELECT within_ns FROM account ORDER BY minute_ns LIMIT 1 OFFSET 1";
    assert_eq!(world.sql::<i64>(second), 30 * SECOND as i64);
}

#[test]
fn an_absurd_reading_of_memory_or_energy_is_cut_to_what_a_row_can_hold() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    for from in [0, 15] {
        let mut absurd = whole(0, (after(from), after(from + 15)), "user:a", 5);
        absurd.settlement.rows[0].memory_byte_seconds = u64::MAX;
        absurd.settlement.rows[0].energy_dynamic = Microjoules(u64::MAX);
        ledger.commit(&Batch { now: after(from + 16), closed: vec![absurd], ..Batch::default() }).unwrap();
    }
    let largest = "SELECT min(memory_byte_seconds, energy_dynamic_uj) FROM account";
    assert_eq!(world.sql::<i64>(largest), i64::MAX);
    drop(ledger);
    let (_, recovered) = world.open(31, None);
    let counter = &recovered.counters[&(uuid(0), holder("user:a"))];
    assert_eq!(counter.parts.held(), 30 * SECOND);
    assert_eq!(counter.energy_dynamic.0, i64::MAX as u64);
}

#[test]
fn the_counter_and_the_holdings_survive_a_window_that_leaves_no_open_span() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    let queue = Queue::default();
    queue.offer(Batch { now: after(15), open: vec![open(0, vec![span(0, 15)])], ..Batch::default() });
    let closed = vec![whole(0, (after(0), after(15)), "user:a", 5)];
    queue.offer(Batch { now: after(25), closed, ..Batch::default() });
    ledger.commit(&queue.take(std::time::Duration::ZERO).unwrap()).unwrap();
    drop(ledger);
    let (_, recovered) = world.open(26, None);
    let gpu = &recovered.gpus[&uuid(0)];
    assert_eq!((gpu.settled_until, gpu.energy_counter), (after(15), Some(Microjoules(42))));
    assert_eq!(gpu.holdings, span(0, 15).holdings);
    assert!(gpu.spans.is_empty());
}

#[test]
fn an_older_span_that_comes_again_does_not_tell_who_holds_now() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    introduced(&mut ledger, 1);
    let mut first = span(0, 1);
    first.holdings = [].into();
    for spans in [vec![first.clone(), span(1, 2)], vec![first]] {
        ledger.commit(&Batch { now: after(2), open: vec![open(0, spans)], ..Batch::default() }).unwrap();
    }
    drop(ledger);
    let (_, recovered) = world.open(3, None);
    assert_eq!(recovered.gpus[&uuid(0)].holdings, span(1, 2).holdings);
}

#[test]
fn a_model_that_is_learned_later_is_stored_and_never_forgotten() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, None);
    for (model, stored) in [("", ""), ("NVIDIA H100", "NVIDIA H100"), ("", "NVIDIA H100")] {
        let mut sight = sight(0, 0);
        sight.model = model.into();
        ledger.commit(&Batch { now: START, sights: vec![sight], ..Batch::default() }).unwrap();
        assert_eq!(world.sql::<String>("SELECT model FROM gpu"), stored);
    }
}
