//! Each meter against the truth behind it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::board::board;
use crate::channel::scenario::Phase;
use crate::schedule::{Face, PowerModel, Script, WorkSpan, Worker};

fn timeline(demand: f64) -> Timeline {
    let phase =
        Phase { to: 60.0, demand, sm: 1.0, tensor: 1.0, dram: 0.5, encoder: 0.25, ..Phase::default() };
    Timeline::new(Script {
        seed: 3,
        cycle_seconds: 120.0,
        engines: vec![1_000_000],
        workers: vec![Worker {
            pid: 1,
            engine: 0,
            spans: vec![WorkSpan::new(&phase)],
            face: Face::default(),
        }],
        brakes: Vec::new(),
        power: PowerModel { idle: 70_000, dynamic: 630_000 },
        together: false,
    })
}

fn at(timeline: &Timeline, seconds: u64) -> Meters<'_> {
    Meters {
        timeline,
        board: board("h100").unwrap(),
        warmer: 0,
        surprise: None,
        elapsed: seconds * 1_000_000_000,
    }
}

#[test]
fn utilization_is_the_last_complete_window_in_whole_percent() {
    let full = timeline(1.0);
    assert_eq!(
        at(&full, 10).utilization(),
        Utilization { gpu: 100, memory: 50, encoder: 25, ..Utilization::default() }
    );
    assert_eq!(at(&full, 0).utilization(), Utilization::default());
    assert_eq!(at(&full, 70).utilization(), Utilization::default());
    let half = timeline(0.5);
    let mut meters = at(&half, 10);
    let first = meters.utilization();
    meters.elapsed += 199_999_999;
    assert_eq!(meters.utilization(), first);
    let sum: u32 = (10..60).map(|second| at(&half, second).utilization().gpu).sum();
    assert!((45..55).contains(&(sum / 50)), "{}", sum / 50);
}

#[test]
fn power_and_temperature_are_those_of_a_real_board() {
    let full = timeline(1.0);
    let (load, rest) = (at(&full, 59), at(&full, 119));
    // 30 + 30 + 25 + 7.5 hundredths of the dynamic power, the encoder's half a hundredth.
    assert_eq!(load.power_average(), 70_000 + 630_000 * 93 / 100);
    assert_eq!(rest.power_average(), 70_000);
    assert!((58..68).contains(&load.temperature()), "{}", load.temperature());
    assert!((28..34).contains(&rest.temperature()));
    assert!((20..30).contains(&load.margin().unwrap()));
    assert!(rest.resting() && !load.resting());
}

#[test]
fn the_mean_power_misses_what_happens_between_its_looks() {
    let half = timeline(0.5);
    let meters = at(&half, 30);
    let truth = half.power(29_000_000_000, 30_000_000_000);
    assert_ne!(meters.power_average(), truth);
    let off = meters.power_average().abs_diff(truth) as f64 / truth as f64;
    assert!(off < 0.4, "{off}");
}

#[test]
fn process_samples_begin_after_the_last_seen_and_end_for_an_idle_gpu() {
    let full = timeline(1.0);
    let all = at(&full, 10).process_samples(None);
    assert_eq!(all.len(), 16);
    assert!(all.iter().all(|sample| sample.sm == 100 && sample.memory == 50));
    let seen = all.get(13).unwrap().at;
    assert_eq!(at(&full, 10).process_samples(Some(seen)).len(), 2);
    assert!(at(&full, 100).process_samples(None).is_empty());
    // A process that has ended is still in the buffer for a while.
    assert!(!at(&full, 61).process_samples(None).is_empty());
}
