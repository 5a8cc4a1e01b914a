//! Drivers that are old or faulty.

use gpumeter::driver::nvml::{CallSlot, Library, OpenError};
use gpumeter::model::catalogue::{device_points, first_point};
use gpumeter::model::{Absence, Reading, Rejection};
use gpumeter::runtime::clock::Clock;

use super::world::{LIBRARY, World, calls};

const WORK: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
    {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.5, "memory_bytes": 1073741824}]}]}"#;

const VERSION_3: [&str; 2] =
    ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"];
const VERSION_2: [&str; 2] =
    ["nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v2"];

fn is_listed(world: &mut World) -> bool {
    let frames = world.run(6);
    let list = frames[5].processes.clone().unwrap();
    list.iter().any(|process| process.pid == 11 && process.memory.is_some_and(|memory| memory.0 == 1 << 30))
}

#[test]
fn processes_are_listed_by_an_older_function_if_the_library_lacks_the_newer_one() {
    assert!(is_listed(&mut World::without(&VERSION_3, WORK)));
    assert!(is_listed(&mut World::without(&[VERSION_3, VERSION_2].concat(), WORK)));
}

#[test]
fn early_535_lists_processes_by_the_second_version() {
    let scenario = WORK.replacen('{', r#"{"driver_version": "535.54.03", "#, 1);
    let mut world = World::new(&scenario, false);
    let calls = calls(&world.run(10));
    assert!(calls.contains_key(VERSION_2[0]) && !calls.contains_key(VERSION_3[0]), "{calls:?}");
}

#[test]
fn a_call_that_is_not_supported_is_not_repeated() {
    let mut world =
        World::new(r#"{"gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}]}"#, false);
    world.tick();
    let calls = calls(&world.run(30));
    assert!(!calls.contains_key("nvmlDeviceGetProcessUtilization"), "{calls:?}");
    assert!(!calls.contains_key("nvmlDeviceGetUtilizationRates"), "{calls:?}");
}

#[test]
fn a_failed_gpm_sample_is_replaced_by_the_utilization_call_in_the_same_tick() {
    let mut world = World::new(&WORK.replace("l4", "h100"), false);
    world.run(3);
    world.set_faults(r#"[{"function": "nvmlGpmSampleGet", "code": 999}]"#);
    let frame = world.tick();
    assert_eq!(frame.readings[first_point("gpu_gr_engine_active_ratio")], Err(Absence::Failed));
    assert!(frame.readings[first_point("gpu_utilization_ratio")].is_ok());
    assert!(calls([&frame]).contains_key("nvmlDeviceGetUtilizationRates"));
}

#[test]
fn an_instance_without_attributes_does_not_cause_a_new_plan_at_every_check() {
    let mut world =
        World::new(r#"{"gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}]}"#, false);
    world.set_faults(r#"[{"function": "nvmlDeviceGetAttributes_v2", "code": 999}]"#);
    let frames = world.run(60);
    assert_eq!(frames[59].generation, frames[0].generation);
    // The sampler still looks for it, less and less often.
    world.set_faults("[]");
    let found = (0..200).find(|_| !world.tick().instances.is_empty());
    assert!(found.is_some());
}

#[test]
fn a_call_that_always_needs_a_larger_buffer_is_repeated_only_a_few_times() {
    let mut world = World::new(WORK, false);
    world.run(3);
    world.set_faults(r#"[{"function": "nvmlDeviceGetProcessUtilization", "code": 7}]"#);
    let frame = world.tick();
    assert!(frame.samples.is_err());
    let calls = calls([&frame]);
    assert!(calls["nvmlDeviceGetProcessUtilization"] <= 16, "{calls:?}");
}

#[test]
fn a_hardware_slowdown_is_shown_under_one_reason() {
    let shown = |scenario: &str| {
        let frame = World::new(scenario, false).tick();
        let names = ["hw_other_slowdown", "hw_thermal_slowdown", "hw_power_brake"];
        names.map(|name| {
            let (point, _) = device_points()
                .enumerate()
                .find(|(_, (family, point))| {
                    family.name == "gpu_throttle_active" && point.labels == [("reason", name)]
                })
                .unwrap();
            frame.readings[point].unwrap()
        })
    };
    // This board sets the bit of any hardware slowdown together with that of the power brake, as real ones do.
    let braked = shown(r#"{"gpus": [{"profile": "h100", "surprise": "clocked_down"}]}"#);
    assert_eq!(braked, [0, 0, 1]);
    let alone = r#"{"gpus": [{"profile": "h100"}],
        "throttles": [{"from": 0, "to": 600, "gpu": 0, "reason": "hw_slowdown"}]}"#;
    assert_eq!(shown(alone), [1, 0, 0]);
}

#[test]
fn rejected_readings_of_an_instance_are_counted() {
    let mut world =
        World::new(r#"{"gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}]}"#, false);
    world.run(2);
    world.set_faults(r#"[{"function": "nvmlGpmMetricsGet", "garbage": true}]"#);
    let frame = world.tick();
    let rejected = |readings: &[Reading]| {
        readings.iter().filter(|reading| **reading == Err(Absence::Rejected)).count() as u64
    };
    let of_instance = rejected(&frame.instances[0].readings);
    assert!(of_instance > 0, "{:?}", frame.instances);
    let all = rejected(&frame.readings) + of_instance;
    assert!(frame.rejected.contains(&(Rejection::OutOfRange, all)), "{all}: {:?}", frame.rejected);
}

#[test]
fn a_library_is_not_initialised_before_its_caller_allows_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("libnvidia-ml.so.1");
    std::fs::write(&path, LIBRARY).unwrap();
    // nvmlInit refuses a scenario that it cannot read.
    std::fs::write(directory.path().join("scenario"), "no scenario").unwrap();
    let (slot, clock) = (CallSlot::default(), Clock::System);
    let open = |allows: bool| {
        let mut reported = None;
        let mut may_init = |simulated| {
            reported = Some(simulated);
            allows
        };
        let error = Library::open_seen(Some(&path), (&slot, &clock), &mut may_init).unwrap_err();
        (error, reported)
    };
    assert!(matches!(open(true), (OpenError::Refused { .. }, Some(true))));
    assert!(matches!(open(false), (OpenError::NotAllowed { .. }, Some(true))));
}
