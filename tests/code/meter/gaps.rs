//! Times without samples, without answers, or with garbage.

use std::cell::Cell;

use gpumeter::model::HolderId;

use super::frame_builder::FrameBuilder;
use super::world::World;
use super::{SECOND, holder, seconds};

/// Dynamic energy of a holder in whole joules.
fn dynamic(world: &World, name: &str) -> u64 {
    world.settled().get(&HolderId::new(name)).map_or(0, |row| row.dynamic / 1_000_000)
}

#[test]
fn one_energy_reading_of_zero_does_not_book_the_whole_counter() {
    let mut world = World::new(&["alice"]);
    world.run(20, |frame| frame.process(7, 100).busy(100).energy_counter(5_000_000_000));
    world.run(1, |frame| frame.process(7, 100).busy(100).energy_counter(0));
    world.run(40, |frame| frame.process(7, 100).busy(100).energy_counter(5_000_000_000));
    assert_eq!(dynamic(&world, "user:alice"), 0);
}

#[test]
fn energy_of_a_gap_goes_to_those_who_held_through_it() {
    let mut world = World::new(&["alice", "bob"]);
    world.run(47, |frame| frame.process(7, 100).busy(100));
    world.identify(8, "bob");
    world.restart(36_000);
    world.run(60, |frame| frame.process(8, 100).busy(1));
    let (alice, bob) = (dynamic(&world, "user:alice"), dynamic(&world, "user:bob"));
    // 100 W for ten hours, half of it each.
    assert!((1_795_000..=1_806_000).contains(&alice), "{alice}");
    assert!((1_795_000..=1_810_000).contains(&bob), "{bob}");
}

#[test]
fn idle_power_is_not_learned_from_unobserved_time() {
    let mut world = World::new(&["alice"]);
    world.run(20, |frame| frame.process(7, 100).busy(100));
    world.forget_identities();
    world.restart(3_600);
    world.run(1, |frame| frame);
    world.identify(7, "alice");
    let before = dynamic(&world, "user:alice");
    world.run(100, |frame| frame.process(7, 100).busy(100));
    assert!(dynamic(&world, "user:alice") > before + 5_000, "use is not idle energy");
}

/// The learned idle power in watts: first 40 s at 60 W without a process, then `between`, then a process at 120 W.
fn idle_power(between: impl Fn(&mut World, &dyn Fn(FrameBuilder, i64) -> FrameBuilder)) -> u64 {
    let joules = Cell::new(100_000);
    let draw = |frame: FrameBuilder, watts: i64| {
        joules.set(joules.get() + watts);
        frame.energy_counter(joules.get())
    };
    let mut world = World::new(&["alice"]);
    world.run(1, |frame| draw(frame.process(7, 100), 60));
    world.run(41, |frame| draw(frame, 60));
    between(&mut world, &draw);
    let floor = |world: &World| {
        let row = &world.settled()[&holder("user:alice")];
        ((row.energy - row.dynamic) / 1_000_000, world.settled_seconds())
    };
    world.run(60, |frame| draw(frame.process(7, 100).busy(100), 120));
    let (energy, time) = floor(&world);
    world.run(60, |frame| draw(frame.process(7, 100).busy(100), 120));
    let (later, end) = floor(&world);
    world.assert_balanced();
    (later - energy) / (end - time)
}

#[test]
fn idle_power_is_not_learned_while_a_process_may_have_started() {
    assert_eq!(idle_power(|_, _| {}), 60);
    // The list is still empty while a context keeps the clocks high.
    let watts = idle_power(|world, draw| world.run(7, |frame| draw(frame.old_list(), 120)));
    assert_eq!(watts, 60);
}

#[test]
fn idle_power_is_not_learned_while_the_node_is_suspended() {
    let watts = idle_power(|world, draw| {
        world.skip_ticks(8 * 3_600);
        world.run(20, |frame| draw(frame, 60));
    });
    assert_eq!(watts, 60);
}

#[test]
fn presence_is_bridged_when_the_driver_answers_after_the_first_tick() {
    let mut world = World::of_presence("alice");
    world.run(45, |frame| frame.process(7, 100).busy(100));
    world.restart_without_frame(120);
    world.run_without_frames(3);
    world.first_frame();
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let [_, _, idle, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert!((119..=125).contains(&unmeasured), "{unmeasured}");
    assert_eq!(idle, 0);
    world.assert_balanced();
}

#[test]
fn a_gap_is_not_billed_to_a_process_that_starts_after_it() {
    let mut world = World::of_presence("alice");
    world.run(45, |frame| frame.process(7, 100).busy(100));
    world.identify(8, "bob");
    world.run_without_frames(9);
    world.change_plan();
    world.run(60, |frame| frame.process(8, 100).busy(100));
    let [_, _, _, unmeasured, _] = seconds(&world.settled()[&holder("user:bob")]);
    assert_eq!(unmeasured, 0);
    world.assert_balanced();
}

#[test]
fn a_failed_process_list_is_not_an_empty_one() {
    let mut world = World::of_presence("alice");
    world.run(20, |frame| frame.process(7, 100).busy(100));
    world.run(10, |frame| frame.busy(100).without_list());
    world.run(40, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    assert!(!rows.contains_key(&holder("__unattributed__")), "{rows:?}");
    assert_eq!(rows[&holder("user:alice")].parts.within, world.settled_seconds() * SECOND);
}

#[test]
fn a_process_sampled_while_the_list_failed_is_not_billed_for_later_use() {
    let mut world = World::new(&["alice", "bob"]);
    world.identify(8, "bob");
    world.run(20, |frame| frame.process(7, 100).busy(100));
    world.run(1, |frame| frame.process(8, 100).busy(100).without_list());
    world.run(60, |frame| frame.busy(100).without_list());
    assert_eq!(world.settled()[&holder("user:bob")].used.total(), SECOND);
    world.assert_balanced();
}

#[test]
fn a_process_identified_late_is_covered_by_the_grants_of_its_time() {
    let mut world = World::new(&["alice"]);
    world.forget_identities();
    world.run(3, |frame| frame.process(7, 100).busy(100));
    world.reload(&["bob"]);
    world.identify(7, "alice");
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let alice = world.settled()[&holder("user:alice")].clone();
    assert_eq!((alice.parts.held(), alice.parts.within), (3 * SECOND, 3 * SECOND));
    let bob = world.settled()[&holder("user:bob")].parts.held();
    assert_eq!(bob, (world.settled_seconds() - 3) * SECOND);
    world.assert_balanced();
}

#[test]
fn a_process_identified_late_is_covered_by_a_group_if_its_user_was_found_to_be_a_member_since() {
    let mut world = World::new(&[]);
    world.grant_to_group("lab", &[]);
    world.run(3, |frame| frame.process(7, 100).busy(100));
    world.grant_to_group("lab", &[1]);
    world.identify(7, "alice");
    world.run(60, |frame| frame.process(7, 100).busy(100));
    let rows = world.settled();
    let lab = rows[&holder("group:lab")].parts;
    assert_eq!((lab.held(), lab.within), (world.settled_seconds() * SECOND, lab.held()));
    let alice = &rows[&holder("user:alice")];
    assert_eq!((alice.parts.held(), alice.used.within), (0, lab.within), "she uses and the group holds");
    world.assert_balanced();
}

#[test]
fn a_short_sample_does_not_cover_missed_ticks() {
    let mut world = World::new(&["alice"]);
    world.run(16, |frame| frame.process(7, 100).utilization(0));
    world.skip_ticks(9);
    world.run(40, |frame| frame.process(7, 100).utilization(100));
    let [held, used, idle, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert!((9..=11).contains(&unmeasured), "{unmeasured}");
    assert!(held.abs_diff(used + idle + unmeasured) <= 2);
}

#[test]
fn a_ring_of_samples_covers_missed_ticks_as_far_as_it_reaches() {
    for (reach, expected) in [(10, 0), (1, 9)] {
        let mut world = World::new(&["alice"]);
        world.run(16, |frame| frame.process(7, 100).utilization(0).sample_ring(50, 1));
        world.skip_ticks(9);
        world.run(40, |frame| frame.process(7, 100).utilization(0).sample_ring(50, reach));
        let [held, used, idle, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
        assert!((expected..=expected + 2).contains(&unmeasured), "{unmeasured}");
        assert!(used.abs_diff(idle) <= 1, "half of what was measured: {used} of {held}");
        world.assert_balanced();
    }
}

#[test]
fn an_ended_process_that_is_still_listed_is_not_billed_for_others() {
    let mut world = World::new(&["alice", "bob"]);
    world.identify(8, "bob");
    world.run(20, |frame| frame.process(7, 50).process(8, 50).busy(100));
    world.run(60, |frame| frame.process(7, 100).process_without_sample(8).busy(100));
    assert_eq!(world.settled()[&holder("user:bob")].used.total(), 10 * SECOND);
    world.assert_balanced();
}

#[test]
fn a_gpu_that_the_driver_no_longer_counts_is_unavailable_from_then_on() {
    let mut world = World::new(&["alice"]);
    world.run(45, |frame| frame.process(7, 100).busy(100));
    world.restart_without_frame(30);
    world.finish_counting_gpus();
    world.run_without_frames(60);
    let [held, used, _, unmeasured, unavailable] = seconds(&world.settled()[&holder("user:alice")]);
    assert!(held.abs_diff(used + unmeasured + unavailable) <= 2);
    assert!((29..=31).contains(&unmeasured), "the agent's gap: {unmeasured}");
    assert!(unavailable >= 30, "{unavailable}");
    world.assert_balanced();
}

#[test]
fn a_grant_removed_by_a_reload_ends_on_a_hung_gpu_too() {
    for lost in [false, true] {
        let mut world = World::new(&["alice"]);
        world.run(45, |frame| frame.process(7, 100).busy(100));
        if lost {
            world.lose_gpu();
        }
        world.run_without_frames(60);
        world.reload(&["bob"]);
        world.run_without_frames(600);
        let held = |name: &str| world.settled()[&holder(name)].parts.held() / SECOND;
        let (alice, bob) = (held("user:alice"), held("user:bob"));
        // A window that is open at the reload counts with the grants at its end.
        assert!((75..=105).contains(&alice), "{alice}");
        assert!(bob >= 570, "{bob}");
        world.assert_balanced();
    }
}

#[test]
fn busy_time_on_the_page_equals_used_time_in_the_account() {
    let mut world = World::new(&["alice"]);
    let begun = world.busy();
    world.run(20, |frame| frame.process(7, 100).utilization(70));
    // Ticks were missed that a short sample does not cover, and one came late into a closed window.
    world.skip_ticks(9);
    world.run(20, |frame| frame.process(7, 100).utilization(100));
    world.run_without_frames(27);
    world.run(20, |frame| frame.process(7, 100).busy(30));
    world.xid(48);
    world.run(20, |frame| frame.process(7, 100).busy(100));
    let busy = world.busy() - begun;
    world.run_without_frames(30);
    let used: u64 = world.settled().values().map(|row| row.used.total()).sum();
    assert_eq!(busy, used);
}
