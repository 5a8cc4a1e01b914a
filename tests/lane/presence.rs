//! Who is there: as known as if every tick asked, for a fifth of the calls.

use gpumeter::model::Frame;

use crate::world::{World, calls};

const COMPUTE: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
const GRAPHICS: &str = "nvmlDeviceGetGraphicsRunningProcesses_v3";

fn pids(frame: &Frame) -> Vec<u32> {
    frame.processes.as_ref().unwrap().iter().map(|process| process.pid).collect()
}

/// Two processes; the second lives from 33 s to 47 s.
fn scenario(demand: f64) -> String {
    format!(
        r#"{{"cycle_seconds": 1000, "gpus": [{{"profile": "h100"}}], "processes": [
            {{"pid": 11, "gpu": 0, "phases": [{{"from": 0, "to": 1000, "demand": {demand}}}]}},
            {{"pid": 12, "gpu": 0, "phases": [{{"from": 33, "to": 47, "demand": {demand}}}]}}]}}"#
    )
}

/// Seconds of the scenario in which the lane listed the second process.
fn seen(world: &mut World) -> (Vec<u64>, usize) {
    let frames = world.run(60);
    let seen = frames.iter().zip(11..).filter(|(frame, _)| pids(frame).contains(&12));
    (seen.map(|(_, second)| second).collect(), calls(&frames)[COMPUTE])
}

#[test]
fn who_works_is_listed_from_the_first_tick_to_the_last_for_few_lists() {
    let (seconds, lists) = seen(&mut World::new(&scenario(0.5), false));
    // A tick late, at most: samples are those of the sixth of a second before it.
    assert!((33..=34).contains(seconds.first().unwrap()), "{seconds:?}");
    assert!((46..=48).contains(seconds.last().unwrap()), "{seconds:?}");
    assert!(lists <= 16, "{lists} lists in a minute");
}

#[test]
fn who_idles_is_listed_with_the_medium_tier() {
    let (seconds, lists) = seen(&mut World::new(&scenario(0.0), false));
    assert!((33..=38).contains(seconds.first().unwrap()), "{seconds:?}");
    assert!((46..=52).contains(seconds.last().unwrap()), "{seconds:?}");
    assert!(lists <= 14, "{lists} lists in a minute");
}

#[test]
fn where_presence_holds_every_tick_lists() {
    let (seconds, lists) = seen(&mut World::new(&scenario(0.0), true));
    assert_eq!((seconds.first(), seconds.last()), (Some(&33), Some(&46)));
    assert_eq!(lists, 60);
}

#[test]
fn an_empty_gpu_is_listed_in_every_tick_so_that_the_first_one_is_seen_at_once() {
    let mut world = World::new(
        r#"{"cycle_seconds": 1000, "gpus": [{"profile": "h100"}], "processes": [
            {"pid": 12, "gpu": 0, "phases": [{"from": 33, "to": 47}]}]}"#,
        false,
    );
    let (seconds, _) = seen(&mut world);
    assert_eq!(seconds.first(), Some(&33));
}

#[test]
fn the_graphics_list_is_asked_for_once_a_minute() {
    let mut world = World::new(&scenario(0.5), false);
    world.tick();
    let calls = calls(&world.run(180));
    // One more for the process that falls silent, or is new to the compute list, and is on neither.
    assert!(calls[GRAPHICS] <= 5, "{calls:?}");
}

#[test]
fn a_list_that_fails_is_asked_for_again_in_the_next_tick() {
    let mut world = World::new(&scenario(0.5), false);
    world.run(4);
    world.faults(&format!(r#"[{{"function": "{COMPUTE}", "code": 999}}]"#));
    world.run(1);
    assert!(world.tick().processes.is_err());
    world.faults("[]");
    assert_eq!(pids(&world.tick()), [11]);
}

#[test]
fn a_frame_says_when_its_list_was_taken() {
    let mut world = World::new(&scenario(0.5), false);
    let frames = world.run(20);
    assert!(frames.iter().all(|frame| frame.listed.is_some_and(|at| at <= frame.begun)));
    let fresh = frames.iter().filter(|frame| frame.listed == Some(frame.begun)).count();
    assert_eq!(fresh, calls(&frames)[COMPUTE]);
}
