//! A driver that returns garbage, from the start or later: none of it becomes a reading.

use std::collections::BTreeSet;

use gpumeter::model::catalogue::{Bound, GpuRows, InstanceValue, Kind, Rows, device_points, first_point};
use gpumeter::model::{Absence, Frame, GpuIdentity, InstanceFrame, Rejection, Via};

use super::world::World;

const BOARDS: [&str; 4] = [
    r#"{"profile": "h100"}"#,
    r#"{"profile": "gb200"}"#,
    r#"{"profile": "t4"}"#,
    r#"{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4}]}"#,
];

const ALL: &str = r#"[{"function": "*", "garbage": true}]"#;

fn world(seed: u64, board: &str) -> World {
    World::new(&format!(r#"{{"seed": {seed}, "gpus": [{board}]}}"#), false)
}

/// The bound of a point's readings, which depends on how the point is read.
fn bound(frame: &Frame, point: usize) -> Bound {
    let (family, _) = device_points().nth(point).unwrap();
    let is_rate =
        matches!(family.rows, Rows::Gpu(GpuRows::Flow(_))) && frame.identity.via[point] == Some(Via::Gpm);
    if is_rate { Bound::RATE } else { family.bound().unwrap() }
}

/// The readings that are outside their bounds.
fn impossible(frame: &Frame) -> Vec<String> {
    let of_gpu =
        device_points().enumerate().zip(&frame.readings).filter_map(|((point, (family, _)), reading)| {
            let value = reading.ok()?;
            (bound(frame, point).accept(value) != Some(value)).then(|| format!("{} {value}", family.name))
        });
    let of_instance = |instance: &InstanceFrame| {
        let readings = InstanceValue::ALL.into_iter().zip(instance.readings.to_vec());
        let out_of_bounds = readings.filter(|(value, reading)| {
            reading.is_ok_and(|reading| value.bound().accept(reading) != Some(reading))
        });
        out_of_bounds.map(|(value, reading)| format!("{value:?} {reading:?}")).collect::<Vec<_>>()
    };
    of_gpu.chain(frame.instances.iter().flat_map(of_instance)).collect()
}

/// The points and instance values that have a reading.
fn present(frame: &Frame) -> BTreeSet<(usize, usize)> {
    let of = |place: usize, readings: &[Result<i64, Absence>]| -> Vec<_> {
        readings
            .iter()
            .enumerate()
            .filter(|(_, reading)| reading.is_ok())
            .map(|(point, _)| (place, point))
            .collect()
    };
    let instances = frame.instances.iter().flat_map(|instance| of(1, &instance.readings));
    of(0, &frame.readings).into_iter().chain(instances).collect()
}

fn texts(identity: &GpuIdentity) -> [&str; 9] {
    [
        &identity.model,
        &identity.serial,
        &identity.board_part,
        &identity.pci_bus_id,
        &identity.minor_number,
        &identity.architecture,
        &identity.compute_capability,
        &identity.vbios_version,
        &identity.cuda_version,
    ]
}

#[test]
fn no_gauge_of_a_driver_that_returns_only_garbage_is_accepted() {
    for (seed, board) in (0..).zip(BOARDS.iter().cycle()).take(12) {
        let mut world = world(seed, board);
        world.run(5);
        world.set_faults(ALL);
        let frames = world.run(56);
        assert!(
            frames.iter().all(|frame| impossible(frame).is_empty()),
            "{board}: {:?}",
            impossible(&frames[55])
        );
        let rejected =
            |frame: &Frame| frame.rejected.iter().any(|(reason, _)| *reason == Rejection::OutOfRange);
        assert!(frames.iter().all(rejected), "{board}");
        // Every tier was read by now. A single bit of garbage can be a valid throttle reason, alone and in the mask.
        let last = frames.last().unwrap();
        let gauges = device_points().zip(&last.readings).filter(|((family, _), reading)| {
            family.kind == Kind::Gauge
                && matches!(family.rows, Rows::Gpu(GpuRows::Read(_)))
                && reading.is_ok_and(|value| value != 0)
        });
        let accepted: BTreeSet<_> = gauges.map(|((family, _), _)| family.name).collect();
        assert!(
            accepted.is_subset(&BTreeSet::from(["gpu_throttle_active", "gpu_clock_event_reasons"])),
            "{board}: {accepted:?}"
        );
    }
}

fn reading(frame: &Frame, family: &str) -> Result<i64, Absence> {
    frame.readings[first_point(family)]
}

#[test]
fn a_power_field_that_returns_garbage_from_the_start_is_replaced_by_the_call() {
    let mut world = world(1, r#"{"profile": "h100", "surprise": "power_field_garbage"}"#);
    for frame in world.run(130) {
        let power = reading(&frame, "gpu_power_watts");
        assert!(power.is_ok_and(|power| power < 800_000), "{power:?}");
    }
    // No call reports the instant power.
    assert!(reading(&world.tick(), "gpu_power_instant_watts").is_err());
}

#[test]
fn fields_that_begin_to_return_garbage_are_replaced_by_calls() {
    let mut world = world(5, BOARDS[0]);
    world.run(5);
    world.set_faults(r#"[{"function": "nvmlDeviceGetFieldValues", "garbage": true}]"#);
    let frames = world.run(200);
    // Power is read in every tick, its limits in every fifth. A new plan may accept a counter's garbage once more.
    for (family, most) in
        [("gpu_power_watts", 13), ("gpu_energy_joules_total", 30), ("gpu_power_limit_watts", 75)]
    {
        let failed = frames.iter().enumerate().filter(|(_, frame)| reading(frame, family).is_err());
        let failed: Vec<usize> = failed.map(|(second, _)| second).collect();
        assert!(failed.len() <= most && failed.iter().all(|second| *second < 150), "{family}: {failed:?}");
    }
    let generations: BTreeSet<_> = frames.iter().map(|frame| frame.generation).collect();
    assert!(generations.len() <= 4, "{generations:?}");
}

#[test]
fn a_plan_made_from_garbage_shows_nothing_impossible_and_is_corrected_afterwards() {
    for (seed, board) in (0..).zip(BOARDS) {
        let mut world = world(seed, board);
        let healthy = world.run(65).pop().unwrap();
        for chance in ["0.2", "0.5", "0.8"] {
            world.set_faults(&ALL.replace("true", &format!(r#"true, "chance": {chance}"#)));
            for _ in 0..6 {
                world.drop_plan();
                for frame in (0..6).filter_map(|_| world.try_tick().ok()) {
                    assert_eq!(impossible(&frame), Vec::<String>::new(), "{board}");
                    let own = texts(&healthy.identity);
                    let wrong = texts(&frame.identity)
                        .into_iter()
                        .zip(own)
                        .find(|(now, own)| !now.is_empty() && now != own);
                    assert_eq!(wrong, None, "{board}");
                }
            }
        }
        world.set_faults("[]");
        // A plan is checked again 30 s after it was made, and the slowest tier is read once a minute.
        let after = (0..150).filter_map(|_| world.try_tick().ok()).last().unwrap();
        assert_eq!(texts(&after.identity), texts(&healthy.identity));
        let lost: Vec<_> = present(&healthy).difference(&present(&after)).copied().collect();
        let name = |(place, point): &(usize, usize)| match place {
            0 => device_points().nth(*point).unwrap().0.name,
            _ => "of an instance",
        };
        assert!(lost.is_empty(), "{board}: {:?}", lost.iter().map(name).collect::<BTreeSet<_>>());
    }
}
