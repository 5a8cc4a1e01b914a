//! What a commit costs; reported, never gated: `cargo test --release --test ledger -- --ignored --nocapture`.

use gpumeter::ledger::Batch;

use crate::world::*;

#[test]
#[ignore = "a measurement"]
fn a_tick_of_eight_gpus() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Some(book(&[(0, 3_000_000_000)])));
    introduced(&mut ledger, 8);
    let ticks = 1800;
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (begun, mut spent, mut closes) = (cpu(), 0, 0);
    for tick in 0..ticks {
        let spans = |_| (0..3).map(|_| ()).enumerate().map(|(i, ())| third(tick, i as u64)).collect();
        let mut batch = Batch { now: after(tick + 1), ..Batch::default() };
        batch.open = (0..8).map(|gpu| open(gpu, spans(gpu))).collect();
        if tick % 15 == 14 {
            let window = (after(tick - 14), after(tick + 1));
            batch.closed = (0..8).map(|gpu| whole(gpu, window, "user:a", 5)).collect();
            closes += 1;
        }
        ledger.commit(&batch).unwrap();
        spent += 1;
    }
    let (ended, bytes) = (cpu(), std::fs::metadata(world.path()).unwrap().len());
    let nanos = (ended.tv_sec - begun.tv_sec) * 1_000_000_000 + (ended.tv_nsec - begun.tv_nsec);
    eprintln!("{spent} commits, {closes} closes: {} us CPU each, {bytes} bytes", nanos / 1000 / spent);
}

/// One of three spans of a tick.
fn third(tick: u64, index: u64) -> gpumeter::model::Span {
    let mut span = span(tick, tick + 1);
    let part = SECOND / 3;
    span.from.0 += index * part;
    span.to.0 -= if index == 2 { 0 } else { SECOND - (index + 1) * part };
    span
}
