//! GPUs that are lost, removed, passed through, replaced, forgotten or back, and drivers that are reopened.

use super::world::{UUID, World};
use super::{holder, seconds};

const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000002";

fn busy(world: &mut World, seconds: u64) {
    world.run(seconds, |frame| frame.process(7, 100).busy(100));
}

#[test]
fn lost_passed_through_and_removed_gpus_are_distinguished_by_the_pci_bus() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 3);
    assert_eq!(world.presence(), Some((true, None)));
    world.lose_gpu();
    assert_eq!(world.presence(), Some((false, Some("lost"))), "the PCI bus is unknown");
    for (ours, reason) in [
        (Some(Some("nvidia")), "lost"),
        (Some(None), "lost"),
        (Some(Some("vfio-pci")), "guest"),
        (None, "gone"),
    ] {
        world.set_pci_bus(ours);
        world.run_without_frames(1);
        assert_eq!(world.presence(), Some((false, Some(reason))));
    }
    busy(&mut world, 1);
    assert_eq!(world.presence(), Some((true, None)), "it answers");
}

#[test]
fn a_gpu_that_neither_driver_nor_bus_has_is_gone() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 3);
    world.reopen(false, &[]);
    assert_eq!(world.presence(), Some((false, Some("gone"))));
    world.restart_without_frame(5);
    world.run_without_frames(1);
    assert_eq!(world.presence(), Some((false, Some("gone"))), "until the driver has answered");
    world.reopen(false, &[UUID]);
    assert_eq!(world.presence(), Some((true, None)));
}

#[test]
fn a_gpu_stays_present_while_the_driver_is_reopened() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 3);
    world.run_without_frames(60);
    assert_eq!(world.presence(), Some((true, None)), "no source reports it as lost");
    world.reopen(false, &[UUID]);
    assert_eq!(world.presence(), Some((true, None)));
}

#[test]
fn a_replaced_gpu_is_absent_for_good_and_later_time_is_that_of_the_new_gpu() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 40);
    world.reopen(false, &[OTHER]);
    assert_eq!(world.presence(), Some((false, Some("replaced"))));
    // The label is the driver's index in the current session, so the new board has the index of the old one.
    assert_eq!((world.index(UUID), world.index(OTHER)), (Some(0), Some(0)));
    world.run_without_frames(60);
    assert_eq!(world.settled_seconds(), 40, "exactly, although that is within a window");
    world.run_without_frames(600);
    assert_eq!(world.settled_seconds(), 40);
    world.restart_without_frame(10);
    world.run_without_frames(60);
    assert_eq!(world.presence(), Some((false, Some("replaced"))), "it is known after an agent restart");
    assert_eq!(world.settled_seconds(), 40);
    world.assert_balanced();
}

#[test]
fn the_time_of_a_pci_address_is_counted_once_whichever_gpu_has_it() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 40);
    world.reopen(false, &[OTHER]);
    world.run_without_frames(3);
    world.reopen(false, &[UUID]);
    world.change_plan();
    busy(&mut world, 7);
    world.reopen(false, &[OTHER]);
    world.run_without_frames(600);
    world.reopen(false, &[UUID]);
    assert_eq!(world.presence(), Some((true, None)));
    world.change_plan();
    busy(&mut world, 60);
    assert_eq!(world.seconds_of(OTHER), 3 + 600);
    // The last whole window that ended ten seconds ago.
    assert_eq!(world.settled_seconds() + world.seconds_of(OTHER), (40 + 3 + 7 + 600 + 60 - 10) / 15 * 15);
    assert!(!world.settled().contains_key(&holder("__unobserved__")), "{:?}", world.settled());
    world.assert_balanced();
}

#[test]
fn a_replaced_gpu_that_is_forgotten_counts_no_time_between() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 40);
    world.reopen(false, &[OTHER]);
    world.run_without_frames(300);
    world.forget_gpu();
    world.run_without_frames(300);
    assert_eq!((world.presence(), world.settled_seconds()), (None, 40));
    world.restart_without_frame(10);
    world.run_without_frames(60);
    assert_eq!((world.presence(), world.settled_seconds()), (None, 40));
}

#[test]
fn a_gpu_that_answers_after_it_was_forgotten_is_expected_again() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 40);
    world.lose_gpu();
    world.forget_gpu();
    world.run_without_frames(300);
    assert_eq!((world.presence(), world.settled_seconds()), (None, 40));
    // Its sampler never ended, so it is not found again.
    world.change_plan();
    busy(&mut world, 100);
    assert_eq!(world.presence(), Some((true, None)));
    // From its first frame on, at second 341.
    assert_eq!(world.settled_seconds(), 40 + (40 + 300 + 100 - 10) / 15 * 15 - 341);
    world.assert_balanced();
}

#[test]
fn a_forgotten_gpu_has_no_series_and_keeps_its_account() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 40);
    world.forget_gpu();
    assert_eq!(world.presence(), Some((true, None)), "a present GPU is expected");
    world.lose_gpu();
    world.forget_gpu();
    assert_eq!(world.presence(), None);
    world.run_without_frames(600);
    let rests = world.settled_seconds();
    assert!((40..=60).contains(&rests), "{rests}");
    world.restart_without_frame(10);
    world.run_without_frames(5);
    assert_eq!(world.presence(), None, "it is known after an agent restart");
    world.reopen(false, &[UUID]);
    busy(&mut world, 60);
    assert_eq!(world.presence(), Some((true, None)));
    assert!(world.settled_seconds() > rests);
    world.assert_balanced();
}

#[test]
fn the_first_frame_after_the_driver_is_reopened_measures_no_earlier_time() {
    let mut world = World::new(&["alice"]);
    busy(&mut world, 30);
    world.run_without_frames(9);
    // Its sampler counts its plans from the same number on.
    world.reopen(false, &[UUID]);
    busy(&mut world, 60);
    let [_, _, idle, unmeasured, _] = seconds(&world.settled()[&holder("user:alice")]);
    assert!((9..=11).contains(&unmeasured), "{unmeasured}");
    assert_eq!(idle, 0);
    world.assert_balanced();
}

#[test]
fn a_reloaded_driver_counts_energy_from_zero() {
    let energy = |anew| {
        let mut world = World::new(&["alice"]);
        world.run(30, |frame| frame.process(7, 100).busy(100).energy_counter(1_000));
        world.run_without_frames(5);
        world.reopen(anew, &[UUID]);
        // The new counter is above the old one, so that its reset cannot be detected.
        world.run(60, |frame| frame.process(7, 100).busy(100).energy_counter(2_000));
        world.assert_balanced();
        world.settled().values().map(|row| row.energy).sum::<u64>() / 1_000_000
    };
    assert_eq!(energy(false), 1_000, "the same driver's counter covers the gap");
    assert_eq!(energy(true), 0);
}

#[test]
fn no_series_are_dropped_for_a_gpu_that_is_not_expected() {
    const HELD: &str = "gpu_tenant_held_seconds_total";
    for forgotten in [false, true] {
        let mut world = World::new(&["alice"]);
        busy(&mut world, 40);
        world.lose_gpu();
        if forgotten {
            world.forget_gpu();
        }
        world.run_without_frames(1);
        world.limit_series(0);
        world.run_without_frames(3);
        assert_eq!(world.has_dropped(HELD), !forgotten);
    }
}

#[test]
fn a_gpu_without_readings_yet_has_its_share_of_the_series() {
    const HELD: &str = "gpu_tenant_held_seconds_total";
    // The agent's own series and alice's fit together, but not with those of a GPU.
    for (limit, dropped) in [(150, true), (5_000, false)] {
        let mut world = World::new(&["alice"]);
        busy(&mut world, 40);
        world.restart_without_frame(5);
        world.limit_series(limit);
        world.run_without_frames(2);
        assert_eq!(world.has_dropped(HELD), dropped, "{limit}");
    }
}

#[test]
fn a_board_that_replaces_another_has_its_index_and_the_grants_to_that_index() {
    let mut world = World::new(&[]);
    world.grant_by_index(&[(0, "alice")]);
    world.run_gpus(&[(0, UUID)], 40);
    assert_eq!(world.holders_of(UUID), ["alice"]);
    world.reopen(false, &[OTHER]);
    world.run_gpus(&[(0, OTHER)], 100);
    assert_eq!((world.index(OTHER), world.presence()), (Some(0), Some((false, Some("replaced")))));
    assert_eq!(world.holders_of(OTHER), ["alice"]);
    assert!(world.holders_of(UUID).is_empty(), "a grant by index never applies to a board that was replaced");
    assert_eq!(world.collectors(), ["gpu0"]);
    assert!((75..=100).contains(&world.held_by("alice", OTHER)), "{}", world.held_by("alice", OTHER));
    world.assert_balanced();
}

#[test]
fn grants_by_index_follow_the_driver_when_it_counts_in_another_order() {
    let mut world = World::new(&[]);
    world.grant_by_index(&[(0, "alice"), (1, "bob")]);
    world.reopen_with(&[(0, UUID), (1, OTHER)]);
    world.run_gpus(&[(0, UUID), (1, OTHER)], 60);
    assert_eq!((world.holders_of(UUID), world.holders_of(OTHER)), (vec!["alice"], vec!["bob"]));
    world.reopen_with(&[(1, UUID), (0, OTHER)]);
    assert_eq!((world.index(UUID), world.index(OTHER)), (Some(1), Some(0)));
    assert!(world.holders_of(UUID).is_empty(), "until its first frame no holder is known on both sides");
    world.run_gpus(&[(1, UUID), (0, OTHER)], 60);
    assert_eq!((world.holders_of(UUID), world.holders_of(OTHER)), (vec!["bob"], vec!["alice"]));
    assert_eq!(world.collectors(), ["gpu0", "gpu1"]);
    world.run_without_frames(60);
    // From its first frame under the grants to the last under that index.
    assert_eq!(world.held_by("alice", UUID), 59);
    world.assert_balanced();
}

#[test]
fn a_gpu_that_is_gone_keeps_its_label_and_neither_its_collector_nor_a_grant_by_index() {
    let mut world = World::new(&[]);
    world.grant_by_index(&[(0, "alice")]);
    world.reopen_with(&[(0, UUID), (1, OTHER)]);
    world.run_gpus(&[(0, UUID), (1, OTHER)], 40);
    world.reopen_with(&[(0, OTHER)]);
    world.run_gpus(&[(0, OTHER)], 40);
    assert_eq!((world.index(UUID), world.index(OTHER)), (Some(0), Some(0)));
    assert_eq!(world.presence(), Some((false, Some("gone"))));
    assert_eq!((world.holders_of(UUID), world.holders_of(OTHER)), (vec![], vec!["alice"]));
    assert_eq!(world.collectors(), ["gpu0"]);
    world.run_without_frames(60);
    assert!(world.holders_of(UUID).is_empty(), "though its windows were settled since");
    assert_eq!(world.held_by("alice", UUID), 39, "from its first frame under the grants on");
    // The restarted agent knows it, and the driver has not answered yet.
    world.restart_without_frame(10);
    world.run_without_frames(60);
    assert!(world.holders_of(UUID).is_empty());
    assert_eq!(world.collectors(), ["gpu0"]);
    world.assert_balanced();
}

#[test]
fn a_process_identified_late_is_covered_by_the_grants_to_the_index_of_its_time() {
    let mut world = World::new(&[]);
    world.grant_by_index(&[(0, "alice"), (1, "bob")]);
    world.run_gpus(&[(0, UUID)], 20);
    world.reopen_with(&[(1, UUID)]);
    world.run_gpus(&[(1, UUID)], 1);
    world.identify(7, "carol");
    world.run_gpus(&[(1, UUID)], 60);
    assert_eq!(world.held_by("alice", UUID), 20);
    world.assert_balanced();
}

#[test]
fn grants_that_match_no_gpu_are_counted_once_all_gpus_are_known() {
    let mut world = World::new(&["alice"]);
    assert_eq!(world.unmatched_grants(), Some(0));
    world.restart_without_frame(5);
    world.run_without_frames(1);
    assert_eq!(world.unmatched_grants(), None, "the driver has not counted its GPUs yet");
    world.restart(5);
    world.grant_by_index(&[(0, "alice"), (8, "bob"), (9, "carol")]);
    world.run_without_frames(1);
    assert_eq!(world.unmatched_grants(), Some(2));
    world.reopen_with(&[(8, UUID)]);
    assert_eq!(world.unmatched_grants(), Some(2), "of 0 and 9");
    world.grant_by_index(&[(8, "bob")]);
    world.run_without_frames(1);
    assert_eq!(world.unmatched_grants(), Some(0));
    world.reload(&[]);
    world.run_without_frames(1);
    assert_eq!(world.unmatched_grants(), None, "there are no grants");
}
