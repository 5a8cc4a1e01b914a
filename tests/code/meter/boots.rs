//! The account's time across a boot: what is booked for the time off, and by which clock.

use gpumeter::model::HolderId;

use super::frame_builder::FrameBuilder;
use super::world::World;

const DAY: u64 = 86_400;

/// Seconds held by each holder.
fn held(world: &World, holder: &str) -> u64 {
    world.settled().get(&HolderId::new(holder)).map_or(0, |row| row.parts.held() / 1_000_000_000)
}

fn idle(frame: FrameBuilder) -> FrameBuilder {
    frame.process(7, 0)
}

#[test]
fn a_node_that_was_off_for_days_is_unavailable_and_its_standing_holder_is_not_billed() {
    let mut world = World::new(&["alice"]);
    world.run(60, idle);
    let last_commit = world.wall_seconds();
    world.reboot_synchronised(3 * DAY);
    world.run(100, idle);
    world.assert_balanced();
    assert_eq!(held(&world, HolderId::UNAVAILABLE), 3 * DAY);
    assert_eq!(held(&world, HolderId::UNOBSERVED), 20);
    let (_, end) = world.account_span();
    assert_eq!(held(&world, "user:alice"), 60 + end - (last_commit + 3 * DAY + 20));
}

#[test]
fn a_wrong_clock_at_boot_books_only_time_that_passed() {
    for wrong in [7_200, -7_200, 365 * 86_400] {
        let mut world = World::new(&["alice"]);
        world.run(60, idle);
        let begun = world.account_span().0;
        world.reboot(600, wrong);
        world.run(30, idle);
        assert!(!world.is_anchored());
        assert_eq!(world.clock_lead(), None, "the account has no time yet");
        let settled = world.settled_seconds();
        // A kill now changes nothing.
        world.restart(1);
        world.run(5, idle);
        assert_eq!(world.settled_seconds(), settled, "nothing is booked before the clock is set");
        world.step_clock(-wrong);
        world.synchronised = true;
        world.run(100, idle);
        world.assert_balanced();
        assert!(world.is_anchored());
        assert_eq!(world.clock_lead(), Some(0));
        let (first, end) = world.account_span();
        assert_eq!(first, begun);
        assert_eq!(held(&world, HolderId::UNAVAILABLE), 600, "wrong by {wrong} s");
        assert_eq!(held(&world, HolderId::UNOBSERVED), 57, "wrong by {wrong} s");
        assert_eq!(world.settled_seconds(), end - begun);
        assert!(world.wall_seconds() - end <= 40, "the account is up to date");
    }
}

#[test]
fn an_unsynchronised_clock_is_accepted_two_minutes_after_boot() {
    let mut world = World::new(&["alice"]);
    world.run(60, idle);
    world.reboot(600, 0);
    world.run(99, idle);
    assert!(!world.is_anchored());
    world.run(1, idle);
    assert!(world.is_anchored());
    world.run(60, idle);
    world.assert_balanced();
    assert_eq!(held(&world, HolderId::UNAVAILABLE), 600);
}

#[test]
fn an_unsynchronised_clock_moves_the_account_by_a_day_at_most() {
    let mut world = World::new(&["alice"]);
    world.run(60, idle);
    world.reboot(600, 365 * 86_400);
    world.run(400, idle);
    world.assert_balanced();
    assert_eq!(held(&world, HolderId::UNAVAILABLE) + held(&world, HolderId::UNOBSERVED), DAY);
    assert_eq!(world.clock_lead(), Some(365 * 86_400 + 720 - 86_400));
}

#[test]
fn a_clock_behind_the_last_commit_is_held_there_and_the_offset_is_reported() {
    let mut world = World::new(&["alice"]);
    world.run(60, idle);
    world.reboot(600, -86_400);
    world.run(200, idle);
    world.assert_balanced();
    assert_eq!(held(&world, HolderId::UNAVAILABLE), 0);
    assert_eq!(world.clock_lead(), Some(-86_400 + 720));
}

#[test]
fn an_unsynchronised_clock_before_2025_begins_no_ledger() {
    const TO_2000: i64 = -800_000_000;
    let mut world = World::new(&["alice"]);
    world.run(10, idle);
    world.delete_ledger();
    world.reboot(600, TO_2000);
    world.run(200, idle);
    assert_eq!(world.settled_seconds(), 0, "the account waits for a clock after 2025");
    world.step_clock(-TO_2000);
    let begun = world.wall_seconds() + 1;
    world.run(100, idle);
    world.assert_balanced();
    assert_eq!(world.account_span().0, begun);
}

#[test]
fn a_new_ledger_begins_when_the_clock_is_set() {
    for wrong in [7_200, -7_200] {
        let mut world = World::new(&["alice"]);
        world.run(10, idle);
        world.delete_ledger();
        world.reboot(600, wrong);
        world.run(30, idle);
        world.step_clock(-wrong);
        world.synchronised = true;
        let begun = world.wall_seconds() + 1;
        world.run(100, idle);
        world.assert_balanced();
        let (first, end) = world.account_span();
        assert_eq!(first, begun);
        assert_eq!(world.settled_seconds(), end - first);
    }
}
