//! Counters of a driver that returns wrong values.

use std::collections::BTreeSet;

use gpumeter::model::catalogue::{PointId, device_points, first_point};
use gpumeter::model::frame::Tier;
use gpumeter::model::{Absence, Frame, Reading, Rejection};

use super::world::{World, is_due};

const WORK: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
    {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.8, "nvlink_tx": 20000000000,
        "nvlink_rx": 20000000000, "pcie_tx": 1000000000}]}]}"#;

const GARBAGE: &str = r#"[{"function": "nvmlDeviceGetFieldValues", "garbage": true},
    {"function": "nvmlDeviceGetMemoryErrorCounter", "garbage": true}]"#;

fn counters() -> impl Iterator<Item = PointId> {
    device_points().enumerate().filter(|(_, (family, _))| family.is_driver_counter()).map(|(point, _)| point)
}

/// The families with a counter that decreased from one frame that has it to the next.
fn decreased<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> BTreeSet<&'static str> {
    let mut last = vec![0; device_points().count()];
    let mut decreased = BTreeSet::new();
    for frame in frames {
        for point in counters() {
            let Ok(value) = frame.readings[point] else { continue };
            if value < last[point] {
                decreased.insert(device_points().nth(point).unwrap().0.name);
            }
            last[point] = value;
        }
    }
    decreased
}

#[test]
fn a_healthy_board_shows_every_counter_in_its_first_frame() {
    let mut world = World::new(WORK, false);
    let frames = world.run(5);
    let shown = |frame: &Frame| counters().filter(|point| frame.readings[*point].is_ok()).count();
    assert_eq!(shown(&frames[0]), shown(&frames[4]));
    assert!(shown(&frames[0]) > 50 && frames.iter().all(|frame| frame.rejected.is_empty()));
}

#[test]
fn the_first_value_of_a_counter_that_the_probe_could_not_read_is_absent_and_not_rejected() {
    let mut world = World::new(WORK, false);
    world.set_faults(
        r#"[{"function": "nvmlDeviceGetTotalEnergyConsumption", "code": 999},
            {"function": "nvmlDeviceGetFieldValues", "code": 999}]"#,
    );
    let energy = first_point("gpu_energy_joules_total");
    assert_eq!(world.tick().readings[energy], Err(Absence::Failed));
    world.set_faults("[]");
    let (first, second) = (world.tick(), world.tick());
    assert_eq!(first.readings[energy], Err(Absence::NotYet));
    assert!(second.readings[energy].is_ok());
    assert!(first.rejected.is_empty() && second.rejected.is_empty());
}

#[test]
fn a_counter_that_was_cleared_is_read_in_the_next_ticks_until_it_is_believed() {
    // The driver forgets at 77 s what it counted, and errors come at 80 s. The tiers are due at 80 s and at 120 s.
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "driver_loads": [77], "memory_errors": [
            {"at": 20, "gpu": 0, "kind": "dram_uncorrected", "count": 5},
            {"at": 80, "gpu": 0, "kind": "dram_uncorrected", "count": 2}],
            "replays": [{"at": 20, "gpu": 0, "count": 90}]}"#,
        false,
    );
    // The time that calls take is real, and a busy machine must not stretch intervals here.
    world.set_driver_share(1_000_000, false);
    let frames = world.run(200);
    // The first frame is of 11 s.
    let at = |second: usize| &frames[second - 11];
    for (point, fell, before, after) in [
        (first_point("gpu_ecc_errors_total") + 2, 120, 5, 2),
        (first_point("gpu_pcie_replays_total"), 80, 90, 0),
    ] {
        let read = |second: usize| at(second).readings[point];
        assert_eq!(read(fell - 1), Ok(before));
        let meanwhile: Vec<Reading> = (fell..fell + 9).map(read).collect();
        assert_eq!(meanwhile, [Err(Absence::Rejected); 9], "{before}");
        assert_eq!(read(fell + 9), Ok(after));
    }
    let slow: Vec<usize> = (11..211).filter(|second| is_due(at(*second), Tier::Slow)).collect();
    let expected: Vec<usize> = [11, 60].into_iter().chain(120..130).chain([180]).collect();
    assert_eq!(slow, expected, "then it is read in its own time again");
}

#[test]
fn lasting_garbage_decreases_no_counter_and_correct_values_are_accepted_at_once() {
    let mut world = World::new(WORK, false);
    let mut frames = world.run(20);
    world.set_faults(GARBAGE);
    frames.extend(world.run(120));
    let rejected = frames.iter().flat_map(|frame| &frame.rejected).map(|(reason, _)| *reason);
    assert!(rejected.collect::<Vec<_>>().contains(&Rejection::CounterBack));
    world.set_faults("[]");
    frames.push(world.tick());
    let energy = first_point("gpu_energy_joules_total");
    assert!(frames.last().unwrap().readings[energy] > frames[0].readings[energy]);
    assert!(frames.last().unwrap().readings[energy].is_ok());
    frames.extend(world.run(60));
    assert_eq!(decreased(&frames), BTreeSet::new());
}

#[test]
fn a_plan_made_from_garbage_continues_the_counters_of_the_last_plan() {
    let mut world = World::new(WORK, false);
    let mut frames = world.run(60);
    world.set_faults(GARBAGE);
    for _ in 0..10 {
        world.drop_plan();
        frames.extend(world.run(6));
    }
    world.set_faults("[]");
    frames.extend(world.run(70));
    assert_eq!(decreased(&frames), BTreeSet::new());
    let energy = first_point("gpu_energy_joules_total");
    assert!(frames.last().unwrap().readings[energy].is_ok());
}
