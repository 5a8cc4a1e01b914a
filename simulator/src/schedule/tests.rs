//! The sums against a walk over every slice, and the laws of sharing.

use super::*;
use crate::channel::scenario::Phase;

fn phase(from: f64, to: f64, demand: f64) -> Phase {
    Phase {
        from,
        to,
        demand,
        memory_bytes: 1,
        sm: 0.5,
        tensor: 0.25,
        dram: 0.125,
        encoder: 0.1,
        ..Phase::default()
    }
}

fn worker(pid: u32, engine: usize, phases: &[Phase]) -> Worker {
    Worker { pid, engine, spans: phases.iter().map(WorkSpan::new).collect(), face: Face::default() }
}

fn timeline() -> Cycle {
    Cycle::new(Script {
        seed: 7,
        cycle_seconds: 3.21,
        engines: vec![428_571, 571_428],
        workers: vec![
            worker(1, 0, &[phase(0.0, 3.0, 0.8)]),
            worker(2, 0, &[phase(1.0, 2.0, 0.9), phase(2.5, 3.21, 0.3)]),
            worker(3, 0, &[phase(0.5, 3.21, 0.7)]),
            worker(4, 1, &[phase(0.0, 1.0, 0.5)]),
        ],
        brakes: vec![Brake { from: 100, to: 150, reason: 4 }],
        power: PowerModel { idle: 70_000, dynamic: 630_000 },
        together: false,
    })
}

/// Eight that want one engine now and then, one that always does, one that never does, one that is nowhere.
fn crowd(together: bool) -> Cycle {
    let several =
        |pid: u32| worker(pid, 0, &[phase(0.0, 2.0 + f64::from(pid) / 10.0, f64::from(pid) / 10.0)]);
    let mut workers: Vec<Worker> = (1..=8).map(several).collect();
    workers.push(worker(20, 1, &[phase(0.3, 3.0, 1.0)]));
    workers.push(worker(21, 1, &[phase(0.0, 3.21, 0.0)]));
    workers.push(worker(22, NOWHERE, &[phase(0.0, 3.21, 0.5)]));
    Cycle::new(Script {
        seed: 3,
        cycle_seconds: 3.21,
        engines: vec![428_571, 571_428],
        workers,
        brakes: vec![Brake { from: 10, to: 321, reason: 4 }],
        power: PowerModel { idle: 70_000, dynamic: 630_000 },
        together,
    })
}

/// The totals by one slice after the other.
fn slice_by_slice(cycle: &Cycle, elapsed: u64) -> Totals {
    let mut sums = cycle.checkpoints.first().cloned().unwrap_or_default();
    let slices = elapsed / SLICE;
    for slice in 0..slices {
        cycle.add_part(slice % cycle.cycle, SLICE, &mut sums);
    }
    Walk { cycle, slices, part: elapsed % SLICE, sums, stopped: false }.totals()
}

#[test]
fn sums_by_checkpoint_and_by_kind_equal_those_of_slice_after_slice() {
    for cycle in [timeline(), stays(), crowd(false), crowd(true)] {
        compare(&cycle);
    }
}

fn compare(timeline: &Cycle) {
    for elapsed in [
        0,
        1,
        SLICE - 1,
        SLICE,
        999_999_999,
        1_000_000_000,
        3_209_999_999,
        3_210_000_000,
        5_555_555_555,
        40_000_000_001,
    ] {
        assert_eq!(timeline.totals(elapsed), slice_by_slice(timeline, elapsed), "at {elapsed}");
    }
}

#[test]
fn totals_never_go_backwards() {
    let timeline = timeline();
    let mut former = timeline.totals(0);
    for step in 1..2_000 {
        let next = timeline.totals(step * 4_321_987);
        assert!(next.busy >= former.busy && next.energy > former.energy, "at step {step}");
        for (earlier, later) in former.workers.iter().zip(&next.workers) {
            assert!(later.busy >= earlier.busy && later.sm >= earlier.sm && later.encoder >= earlier.encoder);
        }
        former = next;
    }
}

#[test]
fn workers_of_an_engine_share_its_busy_time_and_nothing_is_lost() {
    let totals = timeline().totals(3_210_000_000 * 5);
    let shared: u64 = totals.workers.iter().take(3).map(|work| work.busy).sum();
    assert_eq!(totals.engines.first().map(|engine| engine.busy), Some(shared));
    assert_eq!(shared % SLICE, 0);
    assert!(totals.busy >= shared);
}

#[test]
fn demand_is_the_share_of_slices() {
    let lone = Cycle::new(Script {
        seed: 1,
        cycle_seconds: 600.0,
        engines: vec![MILLION],
        workers: vec![worker(9, 0, &[phase(0.0, 600.0, 0.85)])],
        brakes: Vec::new(),
        power: PowerModel { idle: 0, dynamic: 1 },
        together: false,
    });
    let share = lone.totals(600_000_000_000).busy as f64 / 600e9;
    assert!((share - 0.85).abs() < 0.01, "{share}");
}

#[test]
fn energy_is_the_integral_of_power() {
    let timeline = timeline();
    let (from, to) = (1_003_000_000, 1_987_000_000);
    let mean = timeline.power(from, to);
    let energy = timeline.totals(to).energy - timeline.totals(from).energy;
    let joules = mean as f64 * (to - from) as f64 / 1e6;
    assert!((energy as f64 - joules).abs() / joules < 1e-5, "{energy} and {joules}");
}

#[test]
fn a_brake_lasts_as_long_as_scripted_in_every_cycle() {
    let timeline = timeline();
    assert_eq!(timeline.braked(4, 1_200_000_000), 200_000_000);
    assert_eq!(timeline.braked(4, 3_210_000_000 + 1_600_000_000), 1_000_000_000);
    assert_eq!(timeline.braked(8, 10_000_000_000), 0);
    assert_eq!(timeline.brakes(1_499_999_999), 4);
    assert_eq!(timeline.brakes(1_500_000_000), 0);
}

/// Three workers on one engine; the second comes back over the turn of the cycle.
fn stays() -> Cycle {
    Cycle::new(Script {
        seed: 7,
        cycle_seconds: 10.0,
        engines: vec![MILLION],
        workers: vec![
            worker(1, 0, &[phase(2.0, 4.0, 1.0), phase(4.0, 6.0, 1.0)]),
            worker(2, 0, &[phase(0.0, 1.0, 1.0), phase(8.0, 10.0, 1.0)]),
            worker(3, 0, &[phase(0.0, 10.0, 1.0)]),
        ],
        brakes: Vec::new(),
        power: PowerModel { idle: 70_000, dynamic: 630_000 },
        together: true,
    })
}

#[test]
fn a_stay_goes_over_phases_and_the_turn_of_the_cycle() {
    let cycle = stays();
    let [first, second, third] = cycle.workers() else { unreachable!() };
    let stay = |worker, tenths: u64| {
        let stay = cycle.stay(worker, tenths * SLICE * 10)?;
        Some((stay.began / SLICE / 100, stay.ended.map(|ended| ended / SLICE / 100)))
    };
    assert_eq!(
        [19, 20, 59, 60, 119].map(|at| stay(first, at)),
        [None, Some((2, None)), Some((2, None)), Some((2, Some(6))), Some((2, Some(6)))]
    );
    assert_eq!(
        [5, 10, 79, 90, 105, 111].map(|at| stay(second, at)),
        [
            Some((0, None)),
            Some((0, Some(1))),
            Some((0, Some(1))),
            Some((8, None)),
            Some((8, None)),
            Some((8, Some(11)))
        ]
    );
    assert_eq!([0, 995].map(|at| stay(third, at)), [Some((0, None)), Some((0, None))]);
}

#[test]
fn workers_side_by_side_have_their_slices_whole_and_the_engine_is_no_busier() {
    let totals = stays().totals(6_000_000_000);
    let held: Vec<u64> = totals.workers.iter().map(|work| work.busy / SLICE).collect();
    assert_eq!(held, [400, 100, 600]);
    let engine = totals.engines.first().copied().unwrap_or_default();
    assert_eq!((engine.busy, totals.busy, totals.switches), (600 * SLICE, 600 * SLICE, vec![0]));
    // Halves of 400 and 100 slices beside the half of 600.
    assert_eq!(engine.sm, 550 * SLICE);
}

#[test]
fn a_walk_comes_to_the_same_as_asking_anew() {
    let timeline = timeline();
    let mut walk = timeline.walk(123_456_789);
    for step in 1..200_u64 {
        let at = 123_456_789 + step * 55_555_555;
        walk.advance(at);
        assert_eq!(walk.totals(), timeline.totals(at), "at {at}");
    }
}
