//! Heat has one answer: the verdict, which bills' explanations keep.

use gpumeter::model::{HealthState, Remedy};

use super::world::World;

const WELL: (HealthState, Remedy) = (HealthState::Ok, Remedy::None);
const HOT: (HealthState, Remedy) = (HealthState::Degraded, Remedy::CheckAirflow);

/// Runs a GPU that is slowed down for these reasons for so many seconds.
fn run(world: &mut World, seconds: u64, reasons: &[&str]) {
    world.run(seconds, |frame| frame.process(7, 100).busy(100).throttled(reasons));
}

#[test]
fn heat_degrades_a_gpu_after_a_minute_by_the_board_and_after_five_by_the_driver() {
    for (reason, seconds) in [("hw_thermal_slowdown", 60), ("sw_thermal_slowdown", 300)] {
        let mut world = World::new(&["alice"]);
        run(&mut world, 30, &[]);
        run(&mut world, seconds, &[reason]);
        assert_eq!(world.verdict(), WELL, "{reason}: not yet");
        run(&mut world, 1, &[reason]);
        assert_eq!(world.verdict(), HOT, "{reason}");
        run(&mut world, 299, &[]);
        assert_eq!(world.verdict(), HOT, "{reason}: until five minutes without it");
        run(&mut world, 2, &[]);
        assert_eq!(world.verdict(), WELL, "{reason}");
    }
}

#[test]
fn the_minutes_of_a_degraded_gpu_are_explained_by_its_verdict() {
    let mut world = World::new(&["alice"]);
    run(&mut world, 30, &[]);
    // A power cap is what a busy board has.
    run(&mut world, 90, &["sw_power_cap"]);
    assert_eq!(world.stored::<i64>("SELECT count(*) FROM remark"), 0);
    run(&mut world, 479, &["sw_power_cap", "sw_thermal_slowdown"]);
    run(&mut world, 30, &[]);
    assert_eq!(
        world.stored::<String>("SELECT group_concat(DISTINCT text) FROM remark"),
        "gpu: health degraded (check_airflow): the driver slows the GPU down for heat, for five minutes or more"
    );
    let minutes = world.stored::<i64>("SELECT count(*) FROM remark");
    assert!((3..=5).contains(&minutes), "{minutes}");
}
