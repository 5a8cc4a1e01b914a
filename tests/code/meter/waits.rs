//! Holdings of which nothing is used: what is found live and what the ledger's advice says of the same time, although ticks were late or
//! did not say who was there.

use gpumeter::model::{Holder, HolderId};

use super::frame_builder::FrameBuilder;
use super::world::World;

const TICK: u64 = 30;

/// What is found live, with the seconds after `begun` since when.
fn live(world: &World, begun: u64) -> Vec<(&'static str, u64)> {
    let since = |at: u64| at / 1_000_000_000 - begun;
    world.page().roster.unused.iter().map(|one| (one.kind.name(), since(one.since.0))).collect()
}

/// Runs ticks up to a minute after `begun`.
fn run_to(world: &mut World, begun: u64, minute: u64, make: fn(FrameBuilder) -> FrameBuilder) {
    while world.wall_seconds() < begun + minute * 60 {
        world.run(1, make);
    }
}

/// A GPU that does nothing and is told of as ever, but for four times together of less than six minutes: no frame came, nobody looked
/// whose the processes are, a new plan began without a list of processes, and the agent was updated.
fn run_with_gaps(world: &mut World, begun: u64, make: fn(FrameBuilder) -> FrameBuilder) {
    world.run(11, make);
    world.run_without_frames(3 * TICK);
    run_to(world, begun, 12, make);
    world.run(1, make);
    world.confirm_identities();
    world.run(3, make);
    world.identify(7, "alice");
    run_to(world, begun, 20, make);
    world.run(1, make);
    world.change_plan();
    world.run(2, |frame| frame.busy(0).without_list());
    run_to(world, begun, 30, make);
}

#[test]
fn the_two_hours_of_an_open_session_go_on_over_late_ticks() {
    let session = |frame: FrameBuilder| frame.process_without_sample(7).busy(0);
    for is_by_presence in [false, true] {
        let mut world = if is_by_presence { World::of_presence("alice") } else { World::new(&["alice"]) };
        world.sample_every(TICK);
        let begun = world.wall_seconds();
        run_with_gaps(&mut world, begun, session);
        world.restart(20);
        run_to(&mut world, begun, 119, session);
        assert_eq!(live(&world, begun), [], "by presence: {is_by_presence}");
        run_to(&mut world, begun, 190, session);
        assert_eq!(live(&world, begun), [("open_session", 0)], "by presence: {is_by_presence}");
        assert_eq!(world.advised(), ["open_session user:alice"], "by presence: {is_by_presence}");
        // More than a twentieth.
        world.run_without_frames(15 * 60);
        run_to(&mut world, begun, 220, session);
        assert_eq!(live(&world, begun), [], "by presence: {is_by_presence}");
        world.assert_balanced();
    }
}

#[test]
fn the_half_hour_of_a_job_without_a_process_goes_on_over_late_ticks() {
    let mut world = World::new(&[]);
    world.sample_every(TICK);
    world.run(1, |frame| frame.process_without_sample(7));
    world.run_job(&Holder::from_id(HolderId::new("slurm:alpha/7")));
    let begun = world.wall_seconds();
    let nothing = |frame: FrameBuilder| frame.busy(0);
    world.run(11, nothing);
    world.run_without_frames(3 * TICK);
    run_to(&mut world, begun, 25, nothing);
    assert_eq!(live(&world, begun), []);
    // An hour beyond it, and little more.
    run_to(&mut world, begun, 95, nothing);
    assert_eq!(live(&world, begun), [("held_without_process", 0)]);
    assert_eq!(world.advised(), ["held_without_process slurm:alpha"]);
}
