//! Allocations of schedulers, and the time from which they count.

use gpumeter::model::{Fraction, Holder, HolderId};

use super::world::{UUID, World};
use super::{SECOND, holder, seconds};

const MAIN: &str = "k8s:11/main";
const OTHER: &str = "k8s:12/main";
const HALF: Fraction = Fraction { numerator: 1, denominator: 2 };

/// A world of a GPU without holders, on which a container is busy.
fn world() -> World {
    let mut world = World::new(&[]);
    world.identify_holders(&[(7, Holder::from_id(HolderId::new(MAIN)))]);
    world
}

/// Seconds that a holder has held of the settled time.
fn held(world: &World, name: &str) -> u64 {
    world.settled().get(&holder(name)).map_or(0, |row| seconds(row)[0])
}

#[test]
fn a_holding_that_becomes_known_late_began_when_it_was_granted() {
    let mut world = world();
    world.run(20, |frame| frame.process(7, 100).busy(60));
    world.allocate(MAIN, UUID, Fraction::WHOLE, 8);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), world.settled_seconds() - 12);
    assert_eq!(held(&world, "__unallocated__"), 12);
    let used = world.settled()[&holder(MAIN)].used;
    assert_eq!((used.unheld, used.beyond), (12 * SECOND * 6 / 10, 0), "what it used before it held");
    world.assert_balanced();
}

#[test]
fn two_schedulers_on_one_gpu_are_a_conflict_until_one_of_them_lets_go() {
    let mut world = world();
    world.allocate(MAIN, UUID, Fraction::WHOLE, 0);
    world.run(2, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.conflicts(), (None, vec![]));
    world.allocate("slurm:alpha/7", UUID, Fraction::WHOLE, 0);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.conflicts(), (Some(2), vec![vec![MAIN.into(), "slurm:alpha/7".into()]]));
    let (main, job) = (held(&world, MAIN), held(&world, "slurm:alpha/7"));
    // Each is rounded down to whole seconds.
    assert!(job > 0 && main + job + 1 >= world.settled_seconds(), "{main} and {job}");
    world.clear_allocations();
    world.allocate(MAIN, UUID, Fraction::WHOLE, 0);
    world.run(30, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.conflicts(), (None, vec![]));
    world.assert_balanced();
}

#[test]
fn a_standing_grant_that_does_not_fit_beside_a_scheduler_yields_and_is_no_conflict() {
    let mut world = World::new(&["alice"]);
    world.identify_holders(&[(7, Holder::from_id(HolderId::new(MAIN)))]);
    world.allocate(MAIN, UUID, Fraction::WHOLE, 0);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.conflicts(), (None, vec![]));
    assert_eq!((held(&world, MAIN), held(&world, "user:alice")), (world.settled_seconds(), 0));
    let remark: String = world.stored("SELECT DISTINCT text FROM remark");
    assert_eq!(remark, "gpu: yield user:alice to k8s:11/main");
}

#[test]
fn a_holding_whose_beginning_becomes_known_late_is_dated_back_once() {
    let mut world = world();
    world.run(20, |frame| frame.process(7, 100).busy(60));
    world.allocate(MAIN, UUID, HALF, 0);
    world.run(2, |frame| frame.process(7, 100).busy(60));
    world.clear_allocations();
    world.allocate(MAIN, UUID, HALF, 10);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), (world.settled_seconds() - 12) / 2);
    world.assert_balanced();
}

#[test]
fn a_holding_whose_end_becomes_known_late_ended_then() {
    for (fraction, age) in [(Fraction::WHOLE, 8), (HALF, 8), (Fraction::WHOLE, 0)] {
        let mut world = world();
        world.allocate(MAIN, UUID, fraction, 0);
        world.run(20, |frame| frame.process(7, 100).busy(60));
        world.end_allocation(age);
        world.run(60, |frame| frame.busy(0));
        let share = |time| time * u64::from(fraction.numerator) / u64::from(fraction.denominator);
        assert_eq!(held(&world, MAIN), share(20 - age), "{fraction:?}");
        assert_eq!(held(&world, "__unallocated__"), world.settled_seconds() - share(20 - age));
        world.assert_balanced();
    }
}

#[test]
fn a_late_end_changes_no_closed_window_and_leaves_a_later_grant() {
    let mut world = world();
    world.allocate(MAIN, UUID, Fraction::WHOLE, 0);
    world.run(40, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.settled_seconds(), 30);
    world.end_allocation(35);
    world.run(1, |frame| frame.process(7, 100).busy(60));
    world.allocate(MAIN, UUID, Fraction::WHOLE, 0);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), world.settled_seconds() - 11);
    world.assert_balanced();
}

#[test]
fn a_holding_that_is_known_only_after_its_end_had_its_time() {
    let mut world = world();
    world.run(20, |frame| frame.process(7, 100).busy(60));
    world.allocate(MAIN, UUID, Fraction::WHOLE, 9);
    world.end_allocation(4);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), 5);
    world.assert_balanced();
}

#[test]
fn a_late_holding_changes_no_closed_window() {
    let mut world = world();
    world.run(40, |frame| frame.process(7, 100).busy(60));
    assert_eq!(world.settled_seconds(), 30);
    world.allocate(MAIN, UUID, Fraction::WHOLE, 35);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), world.settled_seconds() - 30);
    world.assert_balanced();
}

#[test]
fn a_late_holding_takes_nothing_from_those_who_held() {
    for (fraction, free) in [(Fraction::WHOLE, 0), (HALF, 5)] {
        let mut world = world();
        world.allocate(OTHER, UUID, fraction, 0);
        world.run(20, |frame| frame.process(7, 100).busy(60));
        world.clear_allocations();
        world.allocate(MAIN, UUID, fraction, 5);
        world.run(60, |frame| frame.process(7, 100).busy(60));
        let share = |time| time * u64::from(fraction.numerator) / u64::from(fraction.denominator);
        assert_eq!(held(&world, OTHER), share(20), "{fraction:?}");
        let expected = share(world.settled_seconds() - 20 + free);
        assert_eq!(held(&world, MAIN), expected, "{fraction:?}");
        world.assert_balanced();
    }
}

#[test]
fn a_late_holding_of_a_mig_instance_began_when_it_was_granted() {
    let mut world = world();
    world.change_layout(|frame| frame.mig(8, 3, 1).instance(1, 4, Some(0)));
    world.run(19, |frame| frame.mig(8, 3, 1).instance(1, 4, Some(50)).process_on(1, 7, 1));
    world.allocate(MAIN, "MIG-1-4", Fraction::WHOLE, 8);
    world.run(60, |frame| frame.mig(8, 3, 1).instance(1, 4, Some(50)).process_on(1, 7, 1));
    assert_eq!(held(&world, MAIN), (world.settled_seconds() - 12) / 2);
    world.assert_balanced();
}

#[test]
fn a_share_that_changes_begins_with_the_change_and_the_smaller_one_is_bridged() {
    let mut world = world();
    let change = |world: &mut World, fraction: Fraction| {
        world.clear_allocations();
        world.allocate(MAIN, UUID, fraction, 0);
    };
    change(&mut world, HALF);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    change(&mut world, Fraction::WHOLE);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), 30 + world.settled_seconds() - 60);
    change(&mut world, HALF);
    world.restart(30);
    world.run(60, |frame| frame.process(7, 100).busy(60));
    assert_eq!(held(&world, MAIN), 30 + 60 + (world.settled_seconds() - 120) / 2);
    world.assert_balanced();
}

#[test]
fn what_a_scheduler_had_granted_is_known_after_a_restart() {
    let mut world = world();
    world.allocate(MAIN, UUID, HALF, 0);
    world.run(20, |frame| frame.process(7, 100).busy(60));
    world.restart_without_ledger(5);
    world.open_ledger();
    assert_eq!(world.recovered_shares(), [(MAIN, HALF)]);
    world.clear_allocations();
    world.run(20, |frame| frame.process(7, 100).busy(60));
    world.restart_without_ledger(5);
    world.open_ledger();
    assert_eq!(world.recovered_shares(), []);
}
