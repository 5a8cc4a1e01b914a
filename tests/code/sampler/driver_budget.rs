//! With a slow driver the sampler stretches the intervals of slower tiers and lists, and shortens them again.

use gpumeter::model::Stretch;
use gpumeter::model::catalogue::first_point;
use gpumeter::model::frame::Tier;

use super::world::{World, calls, is_due};

const WORK: &str = r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
    {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.5}]}]}"#;

/// This call is made with the medium tier, and health needs it: 60 ms are 1.2 % of wall time at one call every 5 s.
const SLOW: &str = r#"[{"function": "nvmlDeviceGetCurrentClocksEventReasons", "delay_ms": 60}]"#;

#[test]
fn a_slow_medium_tier_is_read_less_often_and_the_fast_tier_in_every_tick() {
    let mut world = World::new(WORK, false);
    world.set_faults(SLOW);
    world.run(90);
    let frames = world.run(60);
    let stretch = frames[0].stretch;
    assert_eq!(stretch.medium, 2, "{stretch:?}");
    let medium = frames.iter().filter(|frame| is_due(frame, Tier::Medium)).count();
    assert_eq!(medium, 6);
    assert!(frames.iter().all(|frame| is_due(frame, Tier::Fast)));
    let slow = frames.iter().filter(|frame| is_due(frame, Tier::Slow)).count();
    assert_eq!(calls(&frames)["nvmlDeviceGetFieldValues"], 60 + medium + slow);
    let inside: u64 = frames.iter().flat_map(|frame| &frame.calls).map(|call| call.took.0).sum();
    println!("inside the driver: {} ms in a minute, {stretch:?}", inside / 1_000_000);
}

#[test]
fn the_log_says_by_what_the_intervals_are_multiplied_and_when_no_more() {
    // The threads of other tests have a log too, since `tracing` drops for good what is first logged by a thread without one.
    tracing_subscriber::fmt().with_writer(std::io::sink).init();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let file = std::fs::File::create(&path).unwrap();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(file).finish();
    let stretch = tracing::subscriber::with_default(log, || {
        let mut world = World::new(WORK, false);
        world.set_faults(SLOW);
        let stretch = world.run(90)[89].stretch;
        world.set_faults("[]");
        assert!((0..20_000).any(|_| world.tick().stretch == Stretch::default()));
        stretch
    });
    let log = std::fs::read_to_string(&path).unwrap();
    let Stretch { medium, slow, others, lists } = stretch;
    let slowed = format!(
        "so to keep within sampling.driver_share the intervals of the medium tier, the slow tier, what health does not need \
         of both, and the process lists are multiplied by these numbers gpu=0 medium={medium} slow={slow} others={others} \
         lists={lists}"
    );
    let at = |words: &str| log.find(words).unwrap_or_else(|| panic!("{words:?} is not in {log}"));
    assert!(at(&slowed) < at("every tier is read at its configured interval gpu=0"), "{log}");
}

#[test]
fn a_driver_that_is_fast_again_is_read_at_the_configured_intervals() {
    let mut world = World::new(WORK, false);
    world.set_faults(SLOW);
    let slow = world.run(90);
    assert!(slow[89].stretch.medium > 1);
    world.set_faults("[]");
    // A tick is a second of simulated time but takes little real time, which is what a busy machine lengthens.
    let back = (0..20_000).find(|_| world.tick().stretch == Stretch::default());
    assert!(back.is_some(), "{back:?}");
}

#[test]
fn calls_that_health_does_not_need_are_made_less_often_and_the_tiers_are_read_as_before() {
    let mut world = World::new(WORK, false);
    // Four clocks take 12 % of wall time, of which 8 % are allowed: more than a busy machine makes of the other calls.
    world.set_driver_share(80_000, false);
    world.set_faults(r#"[{"function": "nvmlDeviceGetClockInfo", "delay_ms": 150}]"#);
    world.run(130);
    let frames = world.run(80);
    let stretch = frames[0].stretch;
    assert_eq!(stretch, Stretch { others: stretch.others, ..Stretch::default() });
    assert!(stretch.others > 1);
    assert_eq!(frames.iter().filter(|frame| is_due(frame, Tier::Medium)).count(), 16);
    let calls = calls(&frames);
    assert_eq!(calls["nvmlDeviceGetCurrentClocksEventReasons"], 16);
    assert!(calls["nvmlDeviceGetClockInfo"] <= 4 * 16 / 2, "{calls:?}");
}

#[test]
fn one_slow_call_changes_no_interval() {
    let mut world = World::new(WORK, false);
    world.set_driver_share(80_000, false);
    world.run(70);
    // Five seconds are 8.3 % of a minute.
    world.set_faults(
        r#"[{"function": "nvmlDeviceGetFieldValues", "delay_ms": 5000, "from": 80.5, "to": 81.5}]"#,
    );
    let frames = world.run(60);
    let slowest = frames.iter().flat_map(|frame| &frame.calls).map(|call| call.took).max().unwrap();
    assert!(slowest >= gpumeter::model::Nanoseconds::from_seconds(5), "{slowest:?}");
    assert!(frames.iter().all(|frame| frame.stretch == Stretch::default()));
    let read = |tier| frames.iter().filter(|frame| is_due(frame, tier)).count();
    assert_eq!((read(Tier::Medium), read(Tier::Slow)), (12, 1));
}

/// Durations measured on a loaded driver: a field batch and a sample ask the firmware, and a list visits all
/// clients under the driver's lock.
const REALISTIC: &str = r#"[{"function": "nvmlDeviceGetFieldValues", "delay_ms": 1},
    {"function": "nvmlGpmSampleGet", "delay_ms": 1},
    {"function": "nvmlDeviceGetProcessUtilization", "delay_ms": 1},
    {"function": "nvmlDeviceGetComputeRunningProcesses_v3", "delay_ms": 4},
    {"function": "nvmlDeviceGetGraphicsRunningProcesses_v3", "delay_ms": 4}]"#;

#[test]
fn process_lists_are_rarely_read_with_the_delays_of_a_real_driver() {
    let mut world = World::new(WORK, false);
    world.tick();
    world.set_faults(REALISTIC);
    let frames = world.run(60);
    let calls = calls(&frames);
    let count = |function| calls.get(function).copied().unwrap_or(0);
    assert!(count(COMPUTE) <= 1, "{calls:?}");
    assert!(count("nvmlDeviceGetGraphicsRunningProcesses_v3") <= 1, "{calls:?}");
    // A busy machine sleeps longer than requested, so the share is printed and not checked.
    let inside: u64 = frames.iter().flat_map(|frame| &frame.calls).map(|call| call.took.0).sum();
    println!("inside the driver: {:.3} % of wall time", inside as f64 / 60e9 * 100.0);
}

/// Fast calls alone exceed half a percent, and the medium tier and the lists take so much that both are stretched.
const OVER_BUDGET: &str = r#"[{"function": "nvmlDeviceGetFieldValues", "delay_ms": 12},
    {"function": "nvmlDeviceGetComputeRunningProcesses_v3", "delay_ms": 30}]"#;

const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";

/// A scenario of two processes, of which one allocates or frees memory every 5 s.
fn allocating_process() -> String {
    let phase = |period: u32| {
        let memory = (1 + period % 2) << 30;
        format!(
            r#"{{"from": {}, "to": {}, "demand": 0.5, "memory_bytes": {memory}}}"#,
            period * 5,
            (period + 1) * 5
        )
    };
    let phases: Vec<String> = (0..200).map(phase).collect();
    format!(
        r#"{{"cycle_seconds": 1000, "gpus": [{{"profile": "h100"}}], "processes": [
            {{"pid": 11, "gpu": 0, "phases": [{}]}},
            {{"pid": 12, "gpu": 0, "phases": [{{"from": 0, "to": 1000, "demand": 0.5, "memory_bytes": 1073741824}}]}}]}}"#,
        phases.join(", ")
    )
}

#[test]
fn lists_stay_stretched_under_a_new_plan_but_are_read_every_minute() {
    let mut world = World::new(&allocating_process(), false);
    world.set_faults(OVER_BUDGET);
    world.run(130);
    world.drop_plan();
    let frames = world.run(240);
    assert!(frames.iter().all(|frame| frame.stretch.lists == 8), "{:?}", frames[0].stretch);
    let lists = calls(&frames)[COMPUTE];
    assert!((5..=12).contains(&lists), "{lists} lists in 240 s");
    let age = |frame: &gpumeter::model::Frame| frame.begun.since(frame.listed.unwrap()).0 / 1_000_000_000;
    assert!(frames.iter().all(|frame| age(frame) <= 60));
}

#[test]
fn lists_are_read_more_often_with_a_larger_driver_share() {
    let mut world = World::new(&allocating_process(), false);
    world.set_faults(OVER_BUDGET);
    world.run(130);
    world.set_faults("[]");
    world.set_driver_share(1_000_000, false);
    world.run(60);
    let lists = calls(&world.run(60))[COMPUTE];
    assert!(lists >= 11, "{lists} lists in a minute");
}

#[test]
fn an_event_reads_all_tiers_despite_the_stretch_and_shifts_no_later_read() {
    let mut world = World::new(WORK, false);
    world.set_faults(OVER_BUDGET);
    world.run(130);
    assert_eq!(world.tick().stretch.medium, 2);
    world.read_all();
    let frame = world.tick();
    assert!(Tier::ALL.iter().all(|tier| is_due(&frame, *tier)), "{:?}", frame.tiers);
    assert_eq!(calls([&frame])[COMPUTE], 1);
    let frames = world.run(160);
    let read = |tier| frames.iter().filter(|frame| is_due(frame, tier)).count();
    assert_eq!(read(Tier::Medium), 16, "every 10 s");
}

/// A scenario of seven instances, each with a process that allocates or frees memory every second.
fn allocating_instances() -> String {
    let layout: Vec<String> =
        (0..7).map(|start| format!(r#"{{"profile": "1g.10gb", "start": {start}}}"#)).collect();
    let process = |instance: u32| {
        let phase = |second: u32| {
            let memory = (1 + (second + instance) % 2) << 30;
            let to = second + 1;
            format!(r#"{{"from": {second}, "to": {to}, "demand": 0.5, "memory_bytes": {memory}}}"#)
        };
        let phases: Vec<String> = (0..200).map(phase).collect();
        let phases = phases.join(", ");
        format!(r#"{{"pid": {}, "gpu": 0, "instance": {instance}, "phases": [{phases}]}}"#, 11 + instance)
    };
    let processes: Vec<String> = (0..7).map(process).collect();
    format!(
        r#"{{"cycle_seconds": 200, "gpus": [{{"profile": "h100", "mig": [{}]}}], "processes": [{}]}}"#,
        layout.join(", "),
        processes.join(", ")
    )
}

#[test]
fn processes_that_allocate_every_second_cause_no_more_lists_than_the_stretch_allows() {
    let mut world = World::new(&allocating_instances(), false);
    assert!(calls(&world.run(20))[COMPUTE] >= 20, "unstretched, each allocation is followed by a list");
    world.set_faults(OVER_BUDGET);
    world.run(130);
    let frames = world.run(60);
    assert!(frames.iter().all(|frame| frame.stretch.lists == 8), "{:?}", frames[0].stretch);
    let lists = calls(&frames)[COMPUTE];
    assert!((1..=13).contains(&lists), "{lists} lists in a minute");
}

#[test]
fn utilization_is_read_every_five_seconds_even_if_the_medium_tier_is_stretched() {
    const UTILIZATION: usize = first_point("gpu_utilization_ratio");
    const MEMORY: usize = first_point("gpu_memory_activity_ratio");
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 151, "demand": 1.0, "dram": 0.8}]}]}"#,
        false,
    );
    world.set_faults(OVER_BUDGET);
    let frames = world.run(140);
    let working = frames.last().unwrap();
    assert_eq!(working.stretch.medium, 2);
    assert!([UTILIZATION, MEMORY].iter().all(|point| working.readings[*point].unwrap() > 500_000_000));
    let idle = world.run(6).pop().unwrap();
    assert_eq!([UTILIZATION, MEMORY].map(|point| idle.readings[point]), [Ok(0), Ok(0)]);
    let count = calls(&world.run(60))["nvmlDeviceGetUtilizationRates"];
    assert_eq!(count, 12);
}
