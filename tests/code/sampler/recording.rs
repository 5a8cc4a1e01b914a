//! A replay of a recording shows what the sampler showed, point by point.

use std::fs;

use gpumeter::model::catalogue::{device_points, first_point};
use gpumeter::model::{Frame, Via};

use super::world::World;

const SECONDS: u64 = 70;

/// The readings and lists that differ in two frames of one second.
fn differences(shown: &Frame, replayed: &Frame) -> Vec<String> {
    let readings = device_points().zip(shown.readings.iter().zip(&replayed.readings));
    let mut differ: Vec<String> = readings
        .filter(|(_, (one, other))| one != other)
        .map(|((family, point), (one, other))| {
            format!("{} {:?}: {one:?}, {other:?}", family.name, point.labels)
        })
        .collect();
    let mut compare = |what: &str, one: String, other: String| {
        if one != other {
            differ.push(format!("{what}: {one}, {other}"));
        }
    };
    compare("identity", format!("{:?}", shown.identity), format!("{:?}", replayed.identity));
    compare("instances", format!("{:?}", shown.instances), format!("{:?}", replayed.instances));
    compare("processes", format!("{:?}", shown.processes), format!("{:?}", replayed.processes));
    compare("samples", format!("{:?}", shown.samples), format!("{:?}", replayed.samples));
    compare("sampled", format!("{:?}", shown.sampled), format!("{:?}", replayed.sampled));
    differ
}

/// Records the first GPU of a scenario, compares a replay with it, and returns the recording.
fn record_and_replay(scenario: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (mut world, recorder) = World::recorded(scenario, file.path());
    // With the whole wall time as budget a busy machine stretches no interval of either.
    world.set_driver_share(1_000_000, false);
    let shown = world.run(SECONDS);
    recorder.end().unwrap();
    let mut replay = World::new(&format!(r#"{{"gpus": [], "recording": {:?}}}"#, file.path()), false);
    replay.set_driver_share(1_000_000, false);
    for (second, frame) in shown.iter().enumerate() {
        let differ = differences(frame, &replay.tick());
        assert!(
            differ.is_empty(),
            "after {second} s: {} differ: {:#?}",
            differ.len(),
            &differ[..differ.len().min(8)]
        );
    }
    fs::read_to_string(file.path()).unwrap()
}

#[test]
fn a_replay_shows_every_reading_of_a_board_with_nvlinks() {
    record_and_replay(
        r#"{"cycle_seconds": 40, "gpus": [{"profile": "h100"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 40, "demand": 0.5, "memory_bytes": 1073741824}]},
            {"pid": 12, "gpu": 0, "phases": [{"from": 20, "to": 30, "demand": 0.3, "decoder": 0.5}]}]}"#,
    );
}

#[test]
fn a_replay_shows_a_board_with_a_ring_of_samples() {
    record_and_replay(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "a100"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.4}]},
            {"pid": 12, "gpu": 0, "phases": [{"from": 31.2, "to": 32.7, "demand": 0.4, "memory_bytes": 1073741824}]}]}"#,
    );
    record_and_replay(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.4}]}]}"#,
    );
}

#[test]
fn a_replay_shows_the_instances_of_a_board() {
    record_and_replay(
        r#"{"gpus": [{"profile": "h100", "mig": [{"profile": "3g.40gb", "start": 4},
            {"profile": "2g.20gb", "start": 0}]}], "processes": [
            {"pid": 11, "gpu": 0, "instance": 0, "phases": [{"from": 0, "to": 60, "demand": 0.5}]}]}"#,
    );
}

#[test]
fn a_recording_does_not_depend_on_the_buffer_size_of_the_recorder() {
    let processes: Vec<String> = (1..=40)
        .map(|pid| {
            format!(r#"{{"pid": {pid}, "gpu": 0, "phases": [{{"from": 0, "to": 60, "demand": 0.01}}]}}"#)
        })
        .collect();
    let scenario = format!(
        r#"{{"cycle_seconds": 60, "gpus": [{{"profile": "h100"}}], "processes": [{}]}}"#,
        processes.join(", ")
    );
    let recording = record_and_replay(&scenario);
    let refused = recording.lines().find(|line| line.contains(r#""code":7"#));
    assert_eq!(refused, None);
}

#[test]
fn a_single_refused_gpm_metric_is_read_from_its_next_source() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (mut world, recorder) = World::recorded(r#"{"gpus": [{"profile": "h100"}]}"#, file.path());
    world.run(10);
    recorder.end().unwrap();
    let recording = fs::read_to_string(file.path()).unwrap();
    // GPM's rate of bytes sent over PCIe.
    let is_sent = |line: &str| line.contains("nvmlGpmMetric_t") && line.contains(r#"{"number":20}],"code""#);
    let lines = recording.lines().map(|line| match is_sent(line) {
        true => line.replace(r#""code":0"#, r#""code":3"#) + "\n",
        false => line.to_owned() + "\n",
    });
    let refusing: String = lines.collect();
    assert_ne!(refusing, recording);
    fs::write(file.path(), refusing).unwrap();
    let mut replay = World::new(&format!(r#"{{"gpus": [], "recording": {:?}}}"#, file.path()), false);
    let frames = replay.run(8);
    let sent = first_point("gpu_pcie_bytes_total");
    let by = |frame: &Frame| [sent, sent + 1].map(|point| frame.identity.via[point]);
    assert_eq!(by(&frames[0]), [Some(Via::Gpm); 2]);
    assert_eq!(by(&frames[7]), [Some(Via::Field), Some(Via::Gpm)]);
    assert!(frames[7].readings[sent].is_ok(), "{:?}", frames[7].readings[sent]);
    assert_eq!(frames[7].generation, frames[0].generation + 1, "one new plan");
}
