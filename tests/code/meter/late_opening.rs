//! A ledger that is opened only after the agent has started: how the time until then is combined with it.

use gpumeter::model::{HealthState, HolderId, Remedy};

use super::frame_builder::FrameBuilder;
use super::world::{UUID, World};
use super::{SECOND, holder};

const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000002";

fn work(frame: FrameBuilder) -> FrameBuilder {
    frame.process(7, 100).busy(100)
}

/// Whole seconds held by a holder.
fn held(world: &World, name: &str) -> u64 {
    world.settled().get(&holder(name)).map_or(0, |row| row.parts.held() / SECOND)
}

/// Whole seconds in which the GPU was unavailable.
fn unavailable(world: &World) -> u64 {
    world.settled().values().map(|row| row.parts.unavailable).sum::<u64>() / SECOND
}

/// An account of 60 s, an agent that ran 50 s without it, and a ledger that can be opened again.
fn opened_late() -> World {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    world.restart_without_ledger(10);
    world.first_frame();
    world.run(40, work);
    world.open_ledger();
    world
}

#[test]
fn time_before_a_late_opening_is_unobserved_and_not_bridged() {
    let mut world = opened_late();
    world.run(100, work);
    world.assert_balanced();
    // The first tick with the ledger is one second after the opening.
    assert_eq!(held(&world, HolderId::UNOBSERVED), 51);
    let alice = &world.settled()[&holder("user:alice")];
    assert_eq!(alice.parts.unmeasured, 0);
    assert_eq!(held(&world, "user:alice"), world.settled_seconds() - 51);
}

#[test]
fn holders_known_before_a_late_opening_are_stored_with_their_facts() {
    let mut world = World::new(&["alice"]);
    world.restart_without_ledger(10);
    world.first_frame();
    world.identify(7, "bob");
    world.run(40, work);
    world.open_ledger();
    world.run(60, work);
    assert!(held(&world, "user:bob") == 0 && world.settled().contains_key(&holder("user:bob")));
    let facts: String = world.stored("SELECT facts FROM holder WHERE name = 'user:bob'");
    assert!(facts.contains("uid"), "{facts}");
}

#[test]
fn a_gpu_that_the_ledger_does_not_know_has_an_account_from_a_late_opening_on() {
    let mut world = World::new(&["alice"]);
    world.run(20, work);
    world.delete_ledger();
    world.restart_without_ledger(10);
    world.first_frame();
    world.run(40, work);
    world.open_ledger();
    let opened = world.wall_seconds();
    world.run(100, work);
    world.assert_balanced();
    // The tick that begins the account is one second after the opening.
    assert_eq!(world.account_span().0, opened + 1);
    let model: String = world.stored("SELECT model FROM gpu");
    assert_eq!(model, "test");
    let expected: String = world.stored("SELECT attachment FROM expected");
    assert_eq!(expected, "present");
}

#[test]
fn the_time_in_which_another_gpu_had_the_pci_address_is_not_counted_at_a_late_opening() {
    let mut world = World::new(&["alice"]);
    world.run(40, work);
    world.reopen(false, &[OTHER]);
    assert_eq!(world.presence(), Some((false, Some("replaced"))));
    world.run_without_frames(60);
    assert_eq!(world.settled_seconds(), 40);
    // The agent starts without its ledger, and the GPU is back in its place.
    world.restart_without_ledger(10);
    world.first_frame();
    world.run(40, work);
    world.open_ledger();
    let opened = world.wall_seconds() + 1;
    world.run(100, work);
    world.assert_balanced();
    assert_eq!(world.presence(), Some((true, None)));
    let (_, end) = world.account_span();
    assert_eq!(world.settled_seconds(), 40 + end - opened);
    assert_eq!(held(&world, HolderId::UNOBSERVED), 0);
}

#[test]
fn a_gpu_known_only_to_the_ledger_is_gone_at_a_late_opening() {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    world.restart_without_ledger(10);
    world.finish_counting_gpus();
    world.run_without_frames(20);
    world.open_ledger();
    world.run_without_frames(100);
    world.assert_balanced();
    assert_eq!(world.presence(), Some((false, Some("gone"))));
    assert!(unavailable(&world) >= 80, "{:?}", world.settled());
}

#[test]
fn a_gpu_that_was_lost_before_a_late_opening_is_unavailable_from_it_on() {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    world.restart_without_ledger(10);
    world.first_frame();
    world.lose_gpu();
    world.run_without_frames(20);
    world.open_ledger();
    world.run_without_frames(100);
    world.assert_balanced();
    assert!(unavailable(&world) >= 80, "{:?}", world.settled());
}

#[test]
fn hardware_that_failed_before_a_late_opening_is_unavailable_from_it_on() {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    let before = world.settled()[&holder("user:alice")].used.total();
    world.restart_without_ledger(10);
    world.first_frame();
    world.run(3, work);
    world.xid(48);
    world.run(20, work);
    assert_eq!(world.verdict(), (HealthState::Failed, Remedy::ResetGpu));
    world.open_ledger();
    world.run(100, work);
    world.assert_balanced();
    let used = world.settled()[&holder("user:alice")].used.total();
    assert!(used <= before + 15 * SECOND, "from {before} to {used}");
    assert!(unavailable(&world) >= 80, "{:?}", world.settled());
}

#[test]
fn a_late_opening_drops_energy_and_verdict_of_a_former_driver_load() {
    let run = |module| {
        let mut world = World::new(&["alice"]);
        world.module = Some(7);
        world.reopen(false, &[UUID]);
        world.run(60, |frame| work(frame).energy_counter(1_000));
        world.xid(48);
        world.run(3, |frame| work(frame).energy_counter(1_000));
        world.restart_without_ledger(10);
        world.module = module;
        world.reopen(false, &[UUID]);
        world.run(40, |frame| work(frame).energy_counter(5_000));
        world.open_ledger();
        world.run(100, |frame| work(frame).energy_counter(5_000));
        world.assert_balanced();
        let joules: u64 = world.settled().values().map(|row| row.energy).sum();
        (joules / 1_000_000, world.verdict().0)
    };
    assert_eq!(run(Some(7)), (4_000, HealthState::Failed), "the same driver load continues its counters");
    assert_eq!(run(Some(8)), (0, HealthState::Ok), "the counts of another driver load are unknown");
}

/// An agent without its ledger in a boot whose clock is two hours ahead of the ledger's time of that boot.
fn on_another_time() -> World {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    world.step_clock(7_200);
    world.restart_without_ledger(10);
    world.first_frame();
    world.run(40, work);
    world
}

#[test]
fn the_account_continues_in_the_ledgers_time_after_a_late_opening() {
    let mut world = on_another_time();
    world.open_ledger();
    world.run(100, work);
    world.assert_balanced();
    assert!((180..=210).contains(&world.settled_seconds()), "{}", world.settled_seconds());
    let used = world.settled()[&holder("user:alice")].used.total() / SECOND;
    assert!(used >= 60 + 80, "what is read after the opening is measured: {used}");
}

#[test]
fn the_account_of_a_gpu_that_was_replaced_before_a_late_opening_ends_with_it() {
    let mut world = on_another_time();
    world.reopen(false, &[OTHER]);
    world.open_ledger();
    world.run_without_frames(1);
    assert_eq!(world.presence(), Some((false, Some("replaced"))));
    world.run_without_frames(100);
    world.assert_balanced();
    assert_eq!(world.settled_seconds(), 60 + 10 + 40 + 1);
}
