//! A GPU whose MIG layout changes at random: samplers, meter and ledger over the simulated driver, in simulated time.
//!
//! After every step: the next tick shows the new layout and none of the old one, no memory and no slice is counted
//! twice between a GPU and its instances, no UUID is given again, no counter goes back, and every settled nanosecond
//! and microjoule is in exactly one account.
//!
//! `GPUMETER_WALK_STEPS` sets the number of steps (`.ci/faults` takes 10,000), `GPUMETER_WALK_SEED` the seed.

mod laws;
mod layout;
mod world;

use std::thread;

use laws::Laws;
use layout::{RandomNumbers, layout};
use world::World;

/// Walks that run in parallel.
const WALKERS: u64 = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    steps: u64,
    ticks: u64,
    instances: u64,
    seconds: u64,
}

#[test]
fn random_mig_layouts_are_shown_at_once_and_count_nothing_twice() {
    let steps = number("GPUMETER_WALK_STEPS").unwrap_or(240);
    let seed = number("GPUMETER_WALK_SEED").unwrap_or(9_855);
    let walkers: Vec<_> = (0..WALKERS)
        .map(|walker| thread::spawn(move || walk(seed + walker, steps.div_ceil(WALKERS))))
        .collect();
    let mut all = Walked::default();
    for walker in walkers {
        let walked = walker.join().expect("a walk violated a law");
        all.steps += walked.steps;
        all.ticks += walked.ticks;
        all.instances += walked.instances;
        all.seconds += walked.seconds;
    }
    let Walked { steps, ticks, instances, seconds } = all;
    println!("walked: steps={steps} ticks={ticks} instances={instances} settled_seconds={seconds}");
    assert!(seconds > 0, "nothing was settled, so the account was not checked");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn walk(seed: u64, steps: u64) -> Walked {
    let mut random = RandomNumbers::new(seed);
    let mut world = World::new();
    let mut laws = Laws::default();
    let mut walked = Walked::default();
    let mut last = None;
    while walked.steps < steps {
        let placed = layout(&mut random);
        if last.as_ref() == Some(&placed) {
            continue;
        }
        world.set_layout(&placed);
        for tick in 0..1 + random.below(3) {
            let result = world.tick();
            let place = format!("seed {seed}, step {}, tick {tick}, layout {placed:?}", walked.steps);
            laws.check(&place, &placed, &result);
            walked.ticks += 1;
        }
        walked.steps += 1;
        walked.instances += placed.iter().flatten().count() as u64;
        last = Some(placed);
    }
    walked.seconds = laws.settled_seconds();
    walked
}
