//! The account of a GPU in MIG mode: each instance is a slot, and the rest is a remainder.

use gpumeter::model::Holder;

use super::frame_builder::FrameBuilder;
use super::world::World;
use super::{SECOND, holder, seconds};

/// A 4g and a 1g instance on a board with eight memory slices.
fn two(frame: FrameBuilder, large: Option<i64>, small: Option<i64>) -> FrameBuilder {
    frame.mig(8, 2, 1).instance(1, 4, large).instance(9, 1, small)
}

/// A world whose GPU has that layout from its beginning, in whole windows.
fn divided(users: &[&str]) -> World {
    let mut world = World::new(users);
    world.run(14, |frame| frame);
    world.change_layout(|frame| two(frame, Some(0), Some(0)));
    world
}

fn identify_both(world: &mut World) {
    world.identify_holders(&[(7, Holder::user("alice", None)), (11, Holder::user("bob", None))]);
}

/// What was settled since, in thousandths of GPU-seconds.
fn since(world: &World, before: &[(&str, [u64; 2])], name: &str) -> [u64; 2] {
    let row = world.settled().get(&holder(name));
    let now =
        row.map_or([0, 0], |row| [row.parts.held(), row.used.total()].map(|time| time / (SECOND / 1_000)));
    let known = before.iter().find(|(known, _)| *known == name).map_or([0, 0], |(_, times)| *times);
    [now[0] - known[0], now[1] - known[1]]
}

#[test]
fn an_instance_is_held_and_used_by_its_placements_and_the_rest_is_free_or_stranded() {
    let mut world = divided(&["alice"]);
    identify_both(&mut world);
    world.run(75, |frame| two(frame, Some(50), Some(100)).process_on(1, 7, 1).process_on(9, 11, 1));
    // One minute of eight slices; the first 15 s were those of a whole GPU, of which one is between the epochs.
    assert_eq!(world.settled_seconds(), 75);
    let whole = [("user:alice", [14_000, 0])];
    let [held, used] = since(&world, &whole, "user:alice");
    assert_eq!(held, 37_500, "five eighths, whoever uses it");
    assert_eq!(used, 15_000, "half of four eighths");
    assert_eq!(since(&world, &[], "user:bob"), [0, 7_500], "all of one eighth, outside any holding");
    assert_eq!(since(&world, &[], "__unallocated__")[0], 15_000);
    assert_eq!(since(&world, &[], "__stranded__")[0], 7_500);
    assert_eq!(since(&world, &[], "__unavailable__")[0], 1_000, "between the epochs");
    world.assert_balanced();
}

#[test]
fn dynamic_energy_of_a_mig_gpu_follows_its_instances_activity_and_not_memory() {
    let mut world = divided(&[]);
    identify_both(&mut world);
    world.run(60, |frame| two(frame, Some(25), Some(100)).process_on(1, 7, 1).process_on(9, 11, 70));
    let [alice, bob] = ["user:alice", "user:bob"].map(|name| world.settled()[&holder(name)].dynamic);
    assert!(bob > 0 && alice.abs_diff(bob) <= bob / 20, "each kept an eighth busy: {alice}, {bob}");
    world.assert_balanced();
}

#[test]
fn without_activity_of_its_own_an_instance_is_held_unmeasured() {
    let mut world = divided(&["alice"]);
    world.run(75, |frame| two(frame, None, None).process_on(1, 7, 1));
    let [held, used, idle, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    // The first second of the epoch was reported as idle; before it the whole GPU was idle for 14 s.
    assert_eq!((held, used, idle, unmeasured), (51, 0, 14, 37));
    assert!(!world.settled().contains_key(&holder("__unobserved__")));
    world.assert_balanced();
}

#[test]
fn several_users_of_an_instance_share_its_busy_time_by_what_they_hold_else_by_memory() {
    let mut world = World::of_presence("alice");
    identify_both(&mut world);
    world.change_layout(|frame| two(frame, Some(0), Some(0)));
    world.run(80, |frame| two(frame, Some(100), Some(0)).process_on(1, 7, 3).process_on(1, 11, 1));
    let used = |name: &str| world.settled()[&holder(name)].used.total();
    assert_eq!(used("user:alice"), used("user:bob"), "presence gives each a half of the instance");
    let mut world = World::new(&[]);
    identify_both(&mut world);
    world.change_layout(|frame| two(frame, Some(0), Some(0)));
    world.run(80, |frame| two(frame, Some(100), Some(0)).process_on(1, 7, 3).process_on(1, 11, 1));
    let used = |name: &str| world.settled()[&holder(name)].used.total();
    assert!(used("user:alice").abs_diff(3 * used("user:bob")) < SECOND / 1_000, "split by memory");
    world.assert_balanced();
}

#[test]
fn a_process_that_comes_to_an_instance_after_the_work_uses_nothing_of_it() {
    let mut world = World::new(&[]);
    identify_both(&mut world);
    world.change_layout(|frame| two(frame, Some(0), Some(0)));
    world.run(65, |frame| two(frame, Some(100), Some(0)).process_on(1, 7, 3));
    world.run(20, |frame| two(frame, Some(0), Some(0)).process_on(1, 7, 3).process_on(1, 11, 1));
    let used = |name: &str| world.settled().get(&holder(name)).map_or(0, |row| row.used.total());
    assert!(used("user:alice") > 30 * SECOND);
    assert_eq!(used("user:bob"), 0);
    world.assert_balanced();
}

#[test]
fn a_process_of_an_instance_identified_late_is_named_while_its_window_is_open() {
    let mut world = World::new(&[]);
    world.run(14, |frame| frame);
    world.change_layout(|frame| two(frame, Some(0), Some(0)));
    world.run(8, |frame| two(frame, Some(100), Some(0)).process_on(1, 11, 1));
    world.identify(11, "carol");
    world.run(40, |frame| two(frame, Some(100), Some(0)).process_on(1, 11, 1));
    assert!(!world.settled().contains_key(&holder("__unattributed__")));
    let [_, used] = since(&world, &[], "user:carol");
    assert!(used >= 15_000, "{used}");
    world.assert_balanced();
}

#[test]
fn the_time_between_two_epochs_is_unavailable_and_the_next_one_has_its_own_slots() {
    let mut world = divided(&["alice"]);
    world.run(29, |frame| two(frame, Some(0), Some(0)));
    world.change_layout(|frame| frame.mig(8, 0, 0).instance(0, 8, Some(100)).process_on(0, 7, 1));
    world.run(45, |frame| frame.mig(8, 0, 0).instance(0, 8, Some(100)).process_on(0, 7, 1));
    let [_, used, _, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert_eq!(unmeasured, 0);
    assert!(used >= 30, "all of the GPU: {used}");
    assert_eq!(world.settled()[&holder("__unavailable__")].parts.held(), 2 * SECOND);
    assert_eq!(world.layout_changes(), Some(2), "whole, then two, then one");
    world.assert_balanced();
}

#[test]
fn the_holding_of_an_instance_is_bridged_over_a_restart_with_the_same_layout() {
    let mut world = divided(&["alice"]);
    world.run(40, |frame| two(frame, Some(0), Some(0)));
    world.restart_without_frame(60);
    world.change_plan();
    world.run(60, |frame| two(frame, Some(0), Some(0)));
    let [_, _, _, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert!((36..=39).contains(&unmeasured), "five eighths of 60 s: {unmeasured}");
    let unobserved = world.settled()[&holder("__unobserved__")].parts.held() / SECOND;
    assert!((22..=23).contains(&unobserved), "{unobserved}");
    world.assert_balanced();
}

#[test]
fn a_restart_with_another_layout_bridges_nothing() {
    let mut world = divided(&["alice"]);
    world.run(40, |frame| two(frame, Some(0), Some(0)));
    world.restart_without_frame(60);
    world.change_plan();
    world.run(60, |frame| frame.mig(8, 0, 0).instance(0, 8, Some(0)));
    let [_, _, _, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert_eq!(unmeasured, 0);
    let unobserved = world.settled()[&holder("__unobserved__")].parts.held() / SECOND;
    assert!((59..=61).contains(&unobserved), "{unobserved}");
    world.assert_balanced();
}

#[test]
fn without_placements_instances_count_by_memory_and_what_is_left_is_unallocated() {
    let mut world = World::new(&[]);
    world.change_layout(|frame| two(frame, Some(0), Some(0)).without_placements());
    world.run(60, |frame| two(frame, Some(0), Some(0)).without_placements());
    let rows = world.settled();
    assert!(!rows.contains_key(&holder("__stranded__")));
    let flags: i64 = world.stored("SELECT count(*) FROM remark WHERE text LIKE '%placements are not known%'");
    assert!(flags > 0);
    world.assert_balanced();
}

#[test]
fn bill_lines_and_the_page_distinguish_instances() {
    let mut world = divided(&["alice"]);
    identify_both(&mut world);
    world.run(75, |frame| two(frame, Some(50), Some(100)).process_on(1, 7, 1).process_on(9, 11, 1));
    let bill = world.bill();
    let held = |name: &str, gpu_instance| -> Option<u64> {
        let own =
            bill.iter().find(|line| line.holder == holder(name) && line.slot.gpu_instance == gpu_instance);
        own.map(|line| line.amounts.parts.held() / (SECOND / 1_000))
    };
    // The bill has the whole minute from the beginning, of which the GPU was divided for 45 s.
    assert_eq!(held("user:alice", Some(1)), Some(22_500), "a half of 45 s");
    assert_eq!(held("user:alice", Some(9)), Some(5_625), "an eighth");
    assert_eq!(held("user:alice", None), Some(14_000), "while the GPU was whole");
    assert_eq!(held("__stranded__", None), Some(5_625));
    assert_eq!(held("__unallocated__", Some(1)), None);
    let used = bill.iter().find(|line| line.holder == holder("user:bob")).unwrap();
    assert_eq!((used.slot.gpu_instance, used.amounts.used.outside), (Some(9), 5_625 * (SECOND / 1_000)));
    let (instances, rest) = world.slot_seconds();
    assert_eq!(instances, [("1".to_owned(), 30), ("9".to_owned(), 7)].into());
    assert_eq!(rest, 15 + 22);
    assert_eq!(world.instances_of("alice"), ["", "1", "9"]);
    world.assert_balanced();
}

#[test]
fn the_counters_of_instances_continue_after_a_restart() {
    let mut world = divided(&["alice"]);
    world.run(60, |frame| two(frame, Some(0), Some(0)));
    let before = world.slot_seconds().0["1"];
    world.restart_without_frame(5);
    world.change_plan();
    world.run(30, |frame| two(frame, Some(0), Some(0)));
    assert!(world.slot_seconds().0["1"] > before);
    world.assert_balanced();
}
