//! Verdicts on readings of which a part is missing for a while, and on NVLinks.

use gpumeter::model::catalogue::{PointId, first_point};
use gpumeter::model::{Absence, HealthState, Reading, Remedy};

use super::world::{UUID, World};

const EXPECTED: PointId = first_point("gpu_nvlink_links_expected");

const DEGRADED: (HealthState, Remedy) = (HealthState::Degraded, Remedy::ResetGpu);
const WELL: (HealthState, Remedy) = (HealthState::Ok, Remedy::None);

#[test]
fn a_reading_that_fails_does_not_turn_a_degraded_gpu_healthy() {
    let mut world = World::new(&["alice"]);
    let mut verdicts = Vec::new();
    let failed: Reading = Err(Absence::Failed);
    for dram in [Ok(0), Ok(2), failed, Ok(2), failed, Ok(0)] {
        world.run(1, |frame| frame.uncorrected([dram, Ok(0)]));
        verdicts.push(world.verdict());
    }
    assert_eq!(verdicts, [WELL, DEGRADED, DEGRADED, DEGRADED, DEGRADED, WELL]);
    // A board that counts no errors of SRAM is judged by those of DRAM.
    world.run(1, |frame| frame.uncorrected([Ok(1), Err(Absence::NotSupported)]));
    assert_eq!(world.verdict(), DEGRADED);
    world.run(1, |frame| frame.uncorrected([Ok(0), Err(Absence::NotSupported)]));
    assert_eq!(world.verdict(), WELL);
}

/// The verdict after so many links were up for more than a minute, and how many were expected.
fn with_links(world: &mut World, up: u32, of: u32) -> ((HealthState, Remedy), Option<i64>) {
    world.run(62, |frame| frame.links(up, of));
    (world.verdict(), expected(world))
}

fn expected(world: &World) -> Option<i64> {
    world.page().gpus[0].frame.as_ref().unwrap().readings[EXPECTED].ok()
}

#[test]
fn links_that_were_never_up_are_not_connected_and_one_that_was_is_down() {
    let mut world = World::new(&["alice"]);
    // An A100 without a bridge, then an H100 NVL of a pair.
    assert_eq!(with_links(&mut world, 0, 12), (WELL, None));
    assert_eq!(with_links(&mut world, 12, 18), (WELL, Some(12)));
    assert_eq!(with_links(&mut world, 11, 18), (DEGRADED, Some(12)));
    assert_eq!(with_links(&mut world, 0, 18), (DEGRADED, Some(12)));
    assert_eq!(with_links(&mut world, 12, 18), (WELL, Some(12)));
    world.run(62, |frame| frame.links(12, 18).registered());
    assert_eq!((world.verdict(), expected(&world)), (DEGRADED, Some(18)), "a fabric connects all links");
}

#[test]
fn a_link_that_was_up_is_missed_over_restarts_and_resets_until_the_driver_is_loaded_again() {
    let mut world = World::new(&["alice"]);
    world.module = Some(7);
    world.reopen(false, &[UUID]);
    assert_eq!(with_links(&mut world, 12, 18), (WELL, Some(12)));
    // A reset of the GPU does not connect it.
    world.run(1, |frame| frame.links(11, 18).energy_counter(1));
    for _ in 0..2 {
        world.restart_without_frame(5);
        world.reopen(false, &[UUID]);
        assert_eq!(with_links(&mut world, 11, 18), (DEGRADED, Some(12)));
    }
    world.restart_without_frame(5);
    world.module = Some(8);
    world.reopen(false, &[UUID]);
    assert_eq!(
        with_links(&mut world, 11, 18),
        (WELL, Some(11)),
        "a bridge that failed meanwhile is not missed"
    );
    // While the agent runs.
    world.module = Some(9);
    world.reopen(true, &[UUID]);
    assert_eq!(with_links(&mut world, 0, 18), (WELL, None));
    world.restart_without_frame(5);
    world.reopen(false, &[UUID]);
    assert_eq!(with_links(&mut world, 0, 18), (WELL, None));
}
