//! Faults that only a reset of the GPU clears, across restarts of the agent: the verdict and the unavailable time.

use gpumeter::model::catalogue::AccountValue;
use gpumeter::model::{HealthState, Remedy};

use super::frame_builder::FrameBuilder;
use super::world::{UUID, World};
use super::{SECOND, holder};

const FAILED: (HealthState, Remedy) = (HealthState::Failed, Remedy::ResetGpu);
const WELL: (HealthState, Remedy) = (HealthState::Ok, Remedy::None);

fn work(frame: FrameBuilder) -> FrameBuilder {
    frame.process(7, 100).busy(100)
}

/// A GPU with failed hardware, after a restart of the agent.
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
fn verdict_and_unavailable_time_survive_several_agent_restarts() {
    let mut world = failed();
    let reasons = world.reasons();
    assert_eq!(reasons.len(), 1);
    for _ in 0..3 {
        world.restart(5);
        // Killed again at once: nothing is settled in between.
        world.restart(1);
        let before = used(&world);
        world.run(60, work);
        assert_eq!(world.verdict(), FAILED);
        assert_eq!(world.reasons(), reasons, "rule, text and time");
        let after = used(&world);
        assert!(after <= before + 1, "from {before} to {after}");
    }
    // A second one continues the count.
    world.xid(48);
    assert!(world.reasons()[0].1.ends_with("2 times"), "{:?}", world.reasons());
    // A reset that the agent sees clears them, and time is used again.
    let before = used(&world);
    world.run(1, |frame| work(frame).energy_counter(1));
    world.run(60, |frame| work(frame).energy_counter(2));
    assert_eq!(world.verdict(), WELL);
    assert!(used(&world) >= before + 35, "from {before} to {}", used(&world));
    world.assert_balanced();
}

#[test]
fn a_reset_while_the_agent_was_down_is_detected_and_garbage_is_not_a_reset() {
    let mut world = failed();
    world.restart_without_frame(5);
    // The counter's first answer to a new process may be anything.
    world.run(1, |frame| work(frame).energy_counter(0));
    world.run(60, work);
    assert_eq!(world.verdict(), FAILED);
    world.restart_without_frame(5);
    let before = used(&world);
    for joules in 100..190 {
        world.run(1, |frame| work(frame).energy_counter(joules));
        let cleared = joules >= 102;
        assert_eq!(world.verdict(), if cleared { WELL } else { FAILED }, "{joules}");
    }
    assert!(used(&world) >= before + 50, "from {before} to {}", used(&world));
    // It does not return either.
    world.restart_without_frame(5);
    world.run(3, |frame| work(frame).energy_counter(500));
    assert_eq!(world.verdict(), WELL);
    world.assert_balanced();
}

#[test]
fn a_driver_reload_while_the_agent_was_down_clears_hardware_faults() {
    for (module, wanted) in [(Some(7), FAILED), (None, FAILED), (Some(8), WELL)] {
        let mut world = World::new(&["alice"]);
        world.module = Some(7);
        world.reopen(false, &[UUID]);
        world.run(3, work);
        world.xid(48);
        world.run(3, work);
        world.restart_without_frame(5);
        world.module = module;
        world.reopen(false, &[UUID]);
        world.run(10, work);
        assert_eq!(world.verdict(), wanted, "{module:?}");
    }
}

#[test]
fn a_lost_gpu_that_answers_the_next_agent_was_reset() {
    let mut world = failed();
    world.lose_gpu();
    world.run_without_frames(3);
    world.restart_without_frame(5);
    world.run_without_frames(2);
    assert_eq!(world.verdict().0, HealthState::Failed, "it has not been read yet");
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
}

#[test]
fn a_gpu_returned_by_a_guest_was_reset() {
    let mut world = World::new(&["alice"]);
    world.without_energy();
    world.run(3, work);
    world.xid(48);
    world.set_pci_bus(Some(Some("vfio-pci")));
    world.reopen(false, &[]);
    world.run_without_frames(3);
    assert_eq!(world.verdict().0, HealthState::Failed, "it has not been read yet");
    world.set_pci_bus(Some(Some("nvidia")));
    world.reopen(false, &[UUID]);
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
}

#[test]
fn a_reset_ends_unavailable_time_without_a_verdict_in_the_ledger_too() {
    let mut world = failed();
    // As if the rule behind it no longer existed.
    let forget = "UPDATE sticky_fault SET faults = json_set(faults, '$.faults', json('[]'))";
    assert_eq!(world.execute_sql(forget), 1);
    world.restart_without_frame(5);
    world.run(3, work);
    assert_eq!(world.verdict(), WELL);
    world.reopen(true, &[UUID]);
    world.run(3, work);
    assert_eq!(
        world.stored::<i64>("SELECT count(*) FROM sticky_fault WHERE faults ->> 'failed' IS NOT NULL"),
        0
    );
}

#[test]
fn energy_without_a_counter_is_absent_and_not_zero() {
    let energies = [AccountValue::EnergyStatic, AccountValue::EnergyDynamic];
    let mut world = World::new(&["alice"]);
    world.without_energy();
    world.run(120, work);
    assert!(world.published("alice").is_some());
    assert_eq!(energies.map(|value| world.value("alice", value)), [None, None]);
    let lines = world.bill();
    assert!(lines.iter().all(|line| !line.has_energy), "{lines:?}");
    assert!(!lines.is_empty());
    // A measured GPU has energy; a holder that used none of it has 0.
    let mut world = World::new(&["alice", "bob"]);
    world.run(120, work);
    let values = ["alice", "bob"].map(|user| world.value(user, AccountValue::EnergyDynamic));
    assert!(values[0] > Some(0), "{values:?}");
    assert_eq!(values[1], Some(0));
    assert!(world.bill().iter().all(|line| line.has_energy));
}
