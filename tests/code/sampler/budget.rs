//! The budget of driver calls: eight in a fast tick, three more per MIG instance.

use std::ops::RangeInclusive;

use gpumeter::model::Frame;
use gpumeter::model::frame::Tier;

use super::world::{World, calls, is_due};

const MOST_PER_FAST_TICK: usize = 8;
const MOST_PER_INSTANCE: usize = 3;
/// Calls in the sixty ticks of a minute; one more or less is no regression.
const EVERY_TICK: RangeInclusive<usize> = 58..=62;
const EVERY_FIFTH_TICK: RangeInclusive<usize> = 10..=14;

/// The frames of a minute with three busy processes; one of them starts and ends every twenty seconds, in ticks that
/// read the fast tier only.
fn minute(gpu: &str, video: &str, presence: bool) -> Vec<Frame> {
    let scenario = format!(
        r#"{{"cycle_seconds": 20, "gpus": [{{{gpu}}}], "processes": [
            {{"pid": 11, "gpu": 0, "phases": [{{"from": 0, "to": 20, "demand": 0.5, "memory_bytes": 1073741824{video}}}]}},
            {{"pid": 12, "gpu": 0, "phases": [{{"from": 0, "to": 20, "demand": 0.3, "memory_bytes": 1073741824}}]}},
            {{"pid": 13, "gpu": 0, "phases": [{{"from": 2.2, "to": 12.4, "demand": 0.3, "memory_bytes": 1073741824}}]}}]}}"#
    );
    let mut world = World::new(&scenario, presence);
    world.tick();
    world.run(60)
}

const H100: &str = r#""profile": "h100""#;
const DECODER: &str = r#", "decoder": 0.5"#;

/// The most and the mean of calls in ticks in which only the fast tier was read, and the mean of all ticks.
fn counts(frames: &[Frame]) -> (usize, f64, f64) {
    let fast: Vec<usize> = frames
        .iter()
        .filter(|frame| !is_due(frame, Tier::Medium) && !is_due(frame, Tier::Slow))
        .map(|frame| frame.calls.len())
        .collect();
    let all: usize = frames.iter().map(|frame| frame.calls.len()).sum();
    let mean = |sum: usize, count: usize| sum as f64 / count as f64;
    (*fast.iter().max().unwrap(), mean(fast.iter().sum(), fast.len()), mean(all, frames.len()))
}

#[test]
fn no_fast_tick_of_a_whole_gpu_makes_more_than_eight_calls() {
    let all = r#", "encoder": 0.5, "decoder": 0.5, "jpeg": 0.5, "ofa": 0.5"#;
    let (l4, a100) = (r#""profile": "l4""#, r#""profile": "a100""#);
    let accounted = r#""profile": "a100", "accounting": true"#;
    for (gpu, video) in
        [(H100, ""), (H100, DECODER), (H100, all), (l4, ""), (l4, DECODER), (a100, ""), (accounted, "")]
    {
        for presence in [false, true] {
            let frames = minute(gpu, video, presence);
            let (most, fast, all) = counts(&frames);
            println!(
                "{gpu}{video}, presence {presence}: most {most}, mean {fast:.2}, with other tiers {all:.2}"
            );
            assert!(most <= MOST_PER_FAST_TICK, "{gpu}{video}: {most}, {:?}", calls(&frames));
        }
    }
}

#[test]
fn a_mig_instance_adds_three_calls_at_most() {
    for board in ["h100", "a100"] {
        let scenario = format!(
            r#"{{"gpus": [{{"profile": "{board}", "mig": [{{"profile": "3g.40gb", "start": 4}},
                {{"profile": "2g.20gb", "start": 0}}]}}], "processes": [
                {{"pid": 11, "gpu": 0, "instance": 0, "phases": [{{"from": 0, "to": 60, "demand": 0.5}}]}}]}}"#
        );
        let mut world = World::new(&scenario, false);
        let instances = world.tick().instances.len();
        assert_eq!(instances, 2);
        let frames = world.run(60);
        let (most, fast, all) = counts(&frames);
        println!(
            "{board} with {instances} instances: most {most}, mean {fast:.2}, with other tiers {all:.2}"
        );
        assert!(most <= MOST_PER_FAST_TICK + instances * MOST_PER_INSTANCE, "{board}: {:?}", calls(&frames));
    }
}

#[test]
fn idle_video_engines_are_read_every_fifth_tick_and_busy_ones_in_every_tick() {
    let idle = calls(&minute(H100, "", false));
    let busy = calls(&minute(H100, DECODER, false));
    assert!(EVERY_FIFTH_TICK.contains(&idle["nvmlDeviceGetDecoderUtilization"]), "{idle:?}");
    assert!(EVERY_FIFTH_TICK.contains(&idle["nvmlDeviceGetEncoderUtilization"]), "{idle:?}");
    assert!(EVERY_TICK.contains(&busy["nvmlDeviceGetDecoderUtilization"]), "{busy:?}");
}

#[test]
fn with_gpm_the_utilization_call_is_made_with_the_medium_tier() {
    let calls = calls(&minute(H100, "", false));
    assert!(EVERY_FIFTH_TICK.contains(&calls["nvmlDeviceGetUtilizationRates"]), "{calls:?}");
    assert!(EVERY_TICK.contains(&calls["nvmlGpmSampleGet"]), "{calls:?}");
}
