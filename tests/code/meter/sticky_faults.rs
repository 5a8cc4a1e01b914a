//! What only a reset of the GPU ends, over a restart of the agent: the verdict, and the time that is unavailable.

use gpumeter::catalogue::AccountValue;
use gpumeter::model::{HealthState, Remedy};

use super::making::Making;
use super::world::{UUID, World};
use super::{SECOND, holder};

const FAILED: (HealthState, Remedy) = (HealthState::Failed, Remedy::ResetGpu);
const WELL: (HealthState, Remedy) = (HealthState::Ok, Remedy::None);

fn work(frame: Making) -> Making {
    frame.process(7, 100).busy(100)
}

/// A GPU whose hardware has failed, and whose agent was then started anew.
fn failed() -> World {
    let mut world = World::new(&["alice"]);
    world.run(60, work);
    world.xid(48);
    world.run(30, work);
    assert_eq!(world.verdict(), FAILED);
    world
}

/// Seconds that alice used.
fn used(world: &World) -> u64 {
    world.settled()[&holder("user:alice")].used.total() / SECOND
}

#[test]
fn a_verdict_and_the_unavailable_time_outlive_the_agent_however_often_it_is_started() {
    let mut world = failed();
    let told = world.reasons();
    assert_eq!(told.len(), 1);
    for _ in 0..3 {
        world.restart(5);
        // Killed at once again: nothing is settled in between.
        world.restart(1);
        let before = used(&world);
        world.run(60, work);
        assert_eq!(world.verdict(), FAILED);
        assert_eq!(world.reasons(), told, "rule, words and since when");
        let after = used(&world);
        assert!(after <= before + 1, "from {before} to {after}");
    }
    // Another one is counted on.
    world.xid(48);
    assert!(world.reasons()[0].1.ends_with("2 times"), "{:?}", world.reasons());
    world.balanced();
}

#[test]
fn a_reset_while_no_agent_looked_is_seen_and_garbage_is_not_taken_for_one() {
    let mut world = failed();
    world.restart_silent(5);
    // The counter's first answer of a new process may be anything.
    world.run(1, |frame| work(frame).counter(0));
    world.run(60, work);
    assert_eq!(world.verdict(), FAILED);
    world.restart_silent(5);
    let before = used(&world);
    for joules in 100..190 {
        world.run(1, |frame| work(frame).counter(joules));
        let cleared = joules >= 102;
        assert_eq!(world.verdict(), if cleared { WELL } else { FAILED }, "{joules}");
    }
    assert!(used(&world) >= before + 50, "from {before} to {}", used(&world));
    // Nor does it come back.
    world.restart_silent(5);
    world.run(3, |frame| work(frame).counter(500));
    assert_eq!(world.verdict(), WELL);
    world.balanced();
}

#[test]
fn a_driver_that_was_loaded_anew_while_no_agent_looked_has_reset_what_failed() {
    for (module, wanted) in [(Some(7), FAILED), (None, FAILED), (Some(8), WELL)] {
        let mut world = World::new(&["alice"]);
        world.module = Some(7);
        world.reopen(false, &[UUID]);
        world.run(3, work);
        world.xid(48);
        world.run(3, work);
        world.restart_silent(5);
        world.module = module;
        world.reopen(false, &[UUID]);
        world.run(10, work);
        assert_eq!(world.verdict(), wanted, "{module:?}");
    }
}

#[test]
fn a_lost_gpu_that_answers_the_next_agent_was_reset() {
    let mut world = failed();
    world.lose();
    world.silence(3);
    world.restart_silent(5);
    world.silence(2);
    assert_eq!(world.verdict().0, HealthState::Failed, "nobody has seen it yet");
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
}

#[test]
fn a_gpu_that_a_guest_has_had_was_reset_by_him() {
    let mut world = World::new(&["alice"]);
    world.without_energy();
    world.run(3, work);
    world.xid(48);
    world.bus(Some(Some("vfio-pci")));
    world.reopen(false, &[]);
    world.silence(3);
    assert_eq!(world.verdict().0, HealthState::Failed, "nobody has seen it yet");
    world.bus(Some(Some("nvidia")));
    world.reopen(false, &[UUID]);
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
}

#[test]
fn a_reset_ends_unavailable_time_that_no_verdict_stands_for_in_the_ledger_too() {
    let mut world = failed();
    // As where the rule behind it is not known any more.
    assert_eq!(world.tamper("DELETE FROM latch WHERE rule <> '__unavailable__'"), 1);
    world.restart_silent(5);
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
    world.reopen(true, &[UUID]);
    world.run(3, work);
    assert_eq!(world.tamper("DELETE FROM latch"), 0);
}

#[test]
fn energy_that_no_driver_counts_is_absent_and_not_zero() {
    let energies = [AccountValue::EnergyStatic, AccountValue::EnergyDynamic];
    let mut world = World::new(&["alice"]);
    world.without_energy();
    world.run(120, work);
    assert!(world.published("alice").is_some());
    assert_eq!(energies.map(|value| world.value("alice", value)), [None, None]);
    let lines = world.bill();
    assert!(lines.iter().all(|line| !line.has_energy), "{lines:?}");
    assert!(!lines.is_empty());
    // A GPU that has been measured since has energy, and who used none of it has 0.
    let mut world = World::new(&["alice", "bob"]);
    world.run(120, work);
    let values = ["alice", "bob"].map(|user| world.value(user, AccountValue::EnergyDynamic));
    assert!(values[0] > Some(0), "{values:?}");
    assert_eq!(values[1], Some(0));
    assert!(world.bill().iter().all(|line| line.has_energy));
}
