//! How exactly the frames show the activity of the GPU.

use gpumeter::model::Frame;
use gpumeter::model::catalogue::first_point;

use super::world::World;

/// The mean activity over the frames as the account uses it, in thousandths, and whether it is from the sample ring.
fn activity(frames: &[Frame]) -> (u64, bool) {
    let plain = first_point("gpu_utilization_ratio");
    let of = |frame: &Frame| match frame.sampled {
        Some(sampled) => sampled.ratio,
        None => frame.readings[plain].unwrap().try_into().unwrap(),
    };
    let sum: u64 = frames.iter().map(of).sum();
    (sum / frames.len() as u64 / 1_000_000, frames.iter().all(|frame| frame.sampled.is_some()))
}

#[test]
fn a_board_without_gpm_shows_its_mean_activity_over_minutes() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.4}]}]}"#,
        false,
    );
    world.tick();
    let (mean, rings) = activity(&world.run(300));
    // The ring covers all time and rounds to whole percents; the utilization call covers a part of the time.
    let error = if rings { 10 } else { 40 };
    println!("activity {mean} of 400 thousandths, by the ring: {rings}");
    assert!(mean.abs_diff(400) <= error, "{mean}");
}

#[test]
fn an_idle_board_without_gpm_shows_no_activity() {
    let mut world = World::new(r#"{"gpus": [{"profile": "l4"}]}"#, false);
    world.tick();
    let (mean, _) = activity(&world.run(30));
    assert_eq!(mean, 0);
}

#[test]
fn work_after_a_pause_is_complete_on_a_board_whose_ring_was_empty() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 12, "demand": 1.0},
                {"from": 30, "to": 32, "demand": 1.0}]}]}"#,
        false,
    );
    world.tick();
    let frames = world.run(39);
    // Every frame stands for a second, so the account books the sum of these ratios.
    let milliseconds = |frames: &[Frame]| -> u64 {
        frames.iter().map(|frame| frame.sampled.unwrap().ratio / 1_000_000).sum()
    };
    let (first, second) = frames.split_at(14);
    println!("{} and {} of 1000 and 2000 ms", milliseconds(first), milliseconds(second));
    assert!((900..=1_100).contains(&milliseconds(first)), "{}", milliseconds(first));
    assert!((1_800..=2_100).contains(&milliseconds(second)), "{}", milliseconds(second));
}

#[test]
fn work_that_ends_within_a_tick_is_complete_on_a_board_whose_ring_ends_with_it() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 12, "demand": 1.0},
                {"from": 20, "to": 22.5, "demand": 1.0}, {"from": 23.5, "to": 24, "demand": 1.0},
                {"from": 40.5, "to": 41.25, "demand": 1.0}]}]}"#,
        false,
    );
    world.tick();
    world.tick();
    let frames = world.run(40);
    let milliseconds: u64 = frames.iter().map(|frame| frame.sampled.unwrap().ratio / 1_000_000).sum();
    println!("{milliseconds} of 3750 ms");
    assert!((3_500..=4_000).contains(&milliseconds), "{milliseconds}");
}

#[test]
fn the_sample_ring_replaces_the_utilization_call() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "l4"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 1000, "demand": 0.4}]}]}"#,
        false,
    );
    world.tick();
    let frames = world.run(60);
    let calls = super::world::calls(&frames);
    assert_eq!(calls["nvmlDeviceGetSamples"], 60, "{calls:?}");
    assert_eq!(calls["nvmlDeviceGetUtilizationRates"], 12, "{calls:?}");
    assert!(frames.iter().all(|frame| frame.sampled.is_some()));
    assert!(frames.iter().all(|frame| frame.rejected.is_empty()));
}

#[test]
fn a_falling_traffic_rate_is_not_rejected_as_a_decreasing_counter() {
    let mut world = World::new(
        r#"{"cycle_seconds": 20, "gpus": [{"profile": "h100"}], "processes": [
            {"pid": 11, "gpu": 0, "phases": [{"from": 0, "to": 13, "demand": 1.0, "pcie_tx": 2000000000},
                {"from": 13, "to": 17, "demand": 1.0, "pcie_tx": 500000000}, {"from": 17, "to": 20}]}]}"#,
        false,
    );
    world.tick();
    let frames = world.run(20);
    assert!(frames.iter().all(|frame| frame.rejected.is_empty()));
    let sent: i64 =
        frames.iter().map(|frame| frame.readings[first_point("gpu_pcie_bytes_total")].unwrap()).sum();
    assert!((28_000_000_000..28_100_000_000).contains(&sent), "13 s of 2 GB and 4 s of 0.5 GB: {sent}");
}
