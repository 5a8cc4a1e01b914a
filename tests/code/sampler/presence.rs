//! The presence of processes is known as exactly as if every tick read the lists, with few list calls.

use gpumeter::model::{Frame, ProcessSample};

use super::world::{World, calls};

const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
const GRAPHICS: &str = "nvmlDeviceGetGraphicsRunningProcesses_v3";

fn pids(frame: &Frame) -> Vec<u32> {
    frame.processes.as_ref().unwrap().iter().map(|process| process.pid).collect()
}

/// Two processes, of which the second runs from 33 s to 47 s.
fn scenario(demand: f64) -> String {
    format!(
        r#"{{"cycle_seconds": 1000, "gpus": [{{"profile": "h100"}}], "processes": [
            {{"pid": 11, "gpu": 0, "phases": [{{"from": 0, "to": 1000, "demand": {demand}, "memory_bytes": 1073741824}}]}},
            {{"pid": 12, "gpu": 0, "phases": [{{"from": 33, "to": 47, "demand": {demand}, "memory_bytes": 1073741824}}]}}]}}"#
    )
}

/// An idle process from 33 s to 47 s on an otherwise empty GPU.
const SHORT_PROCESS: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
    {"pid": 12, "gpu": 0, "phases": [{"from": 33, "to": 47, "memory_bytes": 1073741824}]}]}"#;

/// At 33 s an idle process replaces another one that used the same amount of memory.
const REPLACED_PROCESS: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
    {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 33, "memory_bytes": 1073741824}]},
    {"pid": 12, "gpu": 0, "phases": [{"from": 33, "to": 1000, "memory_bytes": 1073741824}]}]}"#;

/// The seconds of the scenario in which pid 12 was listed, and the number of list calls.
fn listed_seconds(world: &mut World) -> (Vec<u64>, usize) {
    let frames = world.run(60);
    let seen = frames.iter().zip(11..).filter(|(frame, _)| pids(frame).contains(&12));
    (seen.map(|(_, second)| second).collect(), calls(&frames)[COMPUTE])
}

#[test]
fn a_busy_process_is_listed_from_its_first_to_its_last_tick_with_few_lists() {
    let (seconds, lists) = listed_seconds(&mut World::new(&scenario(0.5), false));
    // At most a tick late: samples cover the sixth of a second before the tick.
    assert!((33..=34).contains(seconds.first().unwrap()), "{seconds:?}");
    assert!((46..=48).contains(seconds.last().unwrap()), "{seconds:?}");
    assert!(lists <= 16, "{lists} lists in a minute");
}

#[test]
fn an_idle_process_is_listed_with_the_medium_tier() {
    let (seconds, lists) = listed_seconds(&mut World::new(&scenario(0.0), false));
    assert!((33..=38).contains(seconds.first().unwrap()), "{seconds:?}");
    assert!((46..=52).contains(seconds.last().unwrap()), "{seconds:?}");
    assert!(lists <= 14, "{lists} lists in a minute");
}

#[test]
fn with_presence_holdings_every_tick_lists_exactly_the_present_processes() {
    let (seconds, lists) = listed_seconds(&mut World::new(&scenario(0.0), true));
    assert_eq!((seconds.first(), seconds.last()), (Some(&33), Some(&46)));
    assert!(lists <= 16, "{lists} lists in a minute");
}

#[test]
fn with_presence_holdings_processes_are_listed_with_the_medium_tier_where_fast_calls_leave_no_room() {
    let scenario = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "t4"}], "processes": [
        {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.1, "memory_bytes": 536870912, "encoder": 0.6, "decoder": 0.3}]},
        {"pid": 12, "gpu": 0, "phases": [{"from": 33, "to": 47, "memory_bytes": 805306368}]}]}"#;
    let (seconds, _) = listed_seconds(&mut World::new(scenario, true));
    assert!((33..=35).contains(seconds.first().unwrap()), "{seconds:?}");
    assert!((46..=50).contains(seconds.last().unwrap()), "{seconds:?}");
}

#[test]
fn start_and_end_of_a_process_on_an_empty_gpu_are_detected_in_the_same_tick_with_few_lists() {
    let (seconds, lists) = listed_seconds(&mut World::new(SHORT_PROCESS, false));
    assert_eq!((seconds.first(), seconds.last()), (Some(&33), Some(&46)));
    assert!(lists <= 5, "{lists} lists in a minute");
}

#[test]
fn an_idle_process_that_replaces_another_of_equal_memory_is_detected_with_the_slow_tier() {
    let (seconds, _) = listed_seconds(&mut World::new(REPLACED_PROCESS, false));
    assert_eq!(seconds.first(), Some(&60));
    let (seconds, _) = listed_seconds(&mut World::new(REPLACED_PROCESS, true));
    assert_eq!(seconds.first(), Some(&35), "with presence holdings, with the medium tier");
}

#[test]
fn an_empty_gpu_without_memory_readings_is_listed_in_every_tick() {
    let mut world = World::new(SHORT_PROCESS, false);
    world.set_faults(
        r#"[{"function": "nvmlDeviceGetMemoryInfo_v2", "code": 3}, {"function": "nvmlDeviceGetMemoryInfo", "code": 3}]"#,
    );
    let frames = world.run(60);
    let seen = frames.iter().zip(11..).filter(|(frame, _)| pids(frame).contains(&12));
    let seconds: Vec<u64> = seen.map(|(_, second)| second).collect();
    assert_eq!(seconds.first(), Some(&33));
    assert!((46..=52).contains(seconds.last().unwrap()), "{seconds:?}");
    let calls = calls(&frames);
    assert!(calls[COMPUTE] > 40, "{calls:?}");
    assert!(calls["nvmlDeviceGetMemoryInfo_v2"] <= 2, "{calls:?}");
}

#[test]
fn start_and_end_of_a_process_on_an_instance_are_detected_by_its_memory() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4},
            {"profile": "2g.20gb", "start": 0}]}], "processes": [
            {"pid": 11, "gpu": 0, "instance": 0, "phases": [{"from": 0, "to": 1000, "memory_bytes": 1073741824}]},
            {"pid": 12, "gpu": 0, "instance": 1, "phases": [{"from": 33, "to": 47, "memory_bytes": 1073741824}]}]}"#,
        false,
    );
    let (seconds, lists) = listed_seconds(&mut world);
    assert_eq!((seconds.first(), seconds.last()), (Some(&33), Some(&46)));
    assert!(lists <= 16, "{lists} lists in a minute");
}

#[test]
fn process_samples_are_read_rarely_for_one_process_and_from_the_first_tick_of_a_second() {
    let mut world = World::node(&scenario(0.5), 1);
    world.tick();
    let before = world.run(20);
    let count = calls(&before)["nvmlDeviceGetProcessUtilization"];
    assert_eq!(count, 4, "with the medium tier");
    let weight = |frame: &Frame, pid: u32| -> u64 {
        let all = frame.samples.iter().flatten();
        let of = |sample: &ProcessSample| (sample.pid == pid).then(|| sample.window * u64::from(sample.sm));
        all.filter_map(of).sum()
    };
    let with_samples = before.iter().filter(|frame| weight(frame, 11) > 0);
    assert!(
        with_samples.skip(1).all(|frame| weight(frame, 11) > 100_000_000),
        "they cover the whole time since the last read"
    );
    let frames = world.run(6);
    let first = frames.iter().find(|frame| weight(frame, 12) > 0).unwrap();
    assert!(first.begun.since(before[19].begun).0 <= 4_000_000_000);
    // Earlier use of pid 11 was booked: the sample has at most a second of it, in microseconds times percent.
    assert!(weight(first, 11) <= 60_000_000, "{}", weight(first, 11));
    assert!(frames[2..].iter().all(|frame| pids(frame) == [11, 12]));
}

#[test]
fn the_graphics_list_is_read_once_a_minute_at_most() {
    let mut world = World::new(&scenario(0.5), false);
    world.tick();
    let calls = calls(&world.run(330));
    // The memory did not change, so the list is skipped; it is read every fifth minute nevertheless.
    assert!((1..=3).contains(&calls[GRAPHICS]), "{calls:?}");
}

#[test]
fn a_failed_list_is_read_again_in_the_next_tick() {
    let mut world = World::new(&scenario(0.5), false);
    world.run(22);
    world.set_faults(&format!(r#"[{{"function": "{COMPUTE}", "code": 999}}]"#));
    world.run(1);
    assert!(world.tick().processes.is_err());
    world.set_faults("[]");
    assert_eq!(pids(&world.tick()), [11, 12]);
}

#[test]
fn a_failed_list_of_mps_clients_is_read_again_in_the_next_tick() {
    let mut world = World::new(&scenario(0.5), false);
    world.set_faults(r#"[{"function": "nvmlDeviceGetMPSComputeRunningProcesses_v3", "code": 999}]"#);
    assert!(world.tick().processes.is_err(), "a missing list is better than an incomplete one");
    world.set_faults("[]");
    assert_eq!(pids(&world.tick()), [11]);
}

#[test]
fn a_frame_has_the_time_of_its_process_list() {
    let mut world = World::new(&scenario(0.5), false);
    let frames = world.run(20);
    assert!(frames.iter().all(|frame| frame.listed.is_some_and(|at| at <= frame.begun)));
    let fresh = frames.iter().filter(|frame| frame.listed == Some(frame.begun)).count();
    assert_eq!(fresh, calls(&frames)[COMPUTE]);
}

#[test]
fn a_frame_is_known_empty_only_if_its_own_tick_shows_it() {
    let mut world = World::new(SHORT_PROCESS, false);
    let frames = world.run(60);
    let empty: Vec<u64> =
        (11..).zip(&frames).filter(|(_, frame)| frame.known_empty).map(|(at, _)| at).collect();
    assert!(empty.iter().all(|second| !(34..=46).contains(second)), "{empty:?}");
    assert!(empty.len() >= 35, "{empty:?}");
    // Without a memory reading the list is old, and the GPU is not known to be empty.
    let (memory, list) = ("nvmlDeviceGetMemoryInfo", COMPUTE);
    world.set_faults(&format!(
        r#"[{{"function": "{memory}", "code": 999}}, {{"function": "{memory}_v2", "code": 999}},
        {{"function": "{list}", "code": 999}}]"#
    ));
    assert!(world.run(10).iter().all(|frame| !frame.known_empty));
}
