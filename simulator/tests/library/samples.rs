//! The rings of samples of a GPU.

use crate::raw::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, call, gpu};
use crate::support::{BEGUN, Node, SECOND};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;

const SCRIPT: &str = r#"{"cycle_seconds":600,"gpus":[{"profile":"h100"},
        {"profile":"h100","mig":[{"profile":"7g.80gb","start":0}]},{"profile":"a100"}],
    "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":100,"demand":1.0,"dram":0.5,"encoder":0.25,
        "decoder":0.2,"jpeg":0.1,"ofa":0.05}]}]}"#;

/// Time stamps and values after the last seen one, or the return code.
fn ring(
    nvml: &Nvml,
    gpu: sys::nvmlDevice_t,
    kind: u32,
    seen: u64,
    room: u32,
) -> Result<Vec<(u64, u64)>, u32> {
    let none: sys::nvmlSample_t = unsafe { std::mem::zeroed() };
    let mut samples = vec![none; room as usize];
    let (mut value_type, mut count) = (9, room);
    let (type_at, count_at) = (&raw mut value_type, &raw mut count);
    let code = call!(nvml, nvmlDeviceGetSamples, gpu, kind, seen, type_at, count_at, samples.as_mut_ptr());
    if code != 0 {
        return Err(code);
    }
    assert_eq!(value_type, 1);
    let found = samples.iter().take(count as usize);
    Ok(found.map(|sample| (sample.timeStamp, unsafe { sample.sampleValue.ullVal })).collect())
}

#[test]
fn a_ring_keeps_the_newest_samples_and_a_reader_can_continue() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    node.hold(50 * SECOND);
    let (mut value_type, mut count) = (9, 0);
    let (type_at, count_at) = (&raw mut value_type, &raw mut count);
    let none = std::ptr::null_mut();
    assert_eq!(call!(nvml, nvmlDeviceGetSamples, board, 1, 0, type_at, count_at, none), 0);
    assert_eq!(count, 120);
    let all = ring(&nvml, board, 1, 0, 200).unwrap();
    // A sixth of a second each: twenty of the fifty seconds are left.
    assert_eq!(all.len(), 120);
    let (first, last) = (all.first().unwrap().0, all.last().unwrap().0);
    assert!(last <= (BEGUN + 50 * SECOND) / 1_000 && last - first == 119 * 166_666);
    let part = ring(&nvml, board, 1, 0, 50).unwrap();
    assert_eq!(part, all[..50]);
    let rest = ring(&nvml, board, 1, part.last().unwrap().0, 200).unwrap();
    assert_eq!(rest, all[50..]);
    assert_eq!(ring(&nvml, board, 1, last, 200), Err(NOT_FOUND));
    assert_eq!(ring(&nvml, board, 1, 0, 0), Err(INVALID_ARGUMENT));
    assert_eq!(ring(&nvml, board, 10, 0, 9), Err(INVALID_ARGUMENT));
}

#[test]
fn every_ring_shows_its_meter() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    node.hold(50 * SECOND);
    let newest = |kind| ring(&nvml, board, kind, 0, 120).unwrap().last().unwrap().1;
    // GPU, memory, encoder, decoder, SM clock, memory clock, JPEG, optical flow.
    assert_eq!([1, 2, 3, 4, 5, 6, 8, 9].map(newest), [100, 50, 25, 20, 1_980, 2_619, 10, 5]);
    let power = ring(&nvml, board, 0, 0, 120).unwrap();
    assert!(
        power.len() == 120 && power.iter().all(|(_, milliwatts)| (300_000..=700_000).contains(milliwatts))
    );
    assert_eq!(power.last().unwrap().0 - power.first().unwrap().0, 119 * 100_000);
    let other = ring(&nvml, gpu(&nvml, 2), 0, 0, 120).unwrap();
    assert_eq!(other.last().unwrap().0 - other.first().unwrap().0, 119 * 50_000);
    // The board has no module power.
    assert_eq!(ring(&nvml, board, 7, 0, 120), Err(NOT_SUPPORTED));
}

#[test]
fn rings_of_utilization_are_empty_at_idle_and_refused_with_mig() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let (board, parent, idle) = (gpu(&nvml, 0), gpu(&nvml, 1), gpu(&nvml, 2));
    node.hold(110 * SECOND);
    // The process ended ten seconds ago: half of the ring still has its samples.
    assert!((58..62).contains(&ring(&nvml, board, 1, 0, 120).unwrap().len()));
    assert_eq!(ring(&nvml, idle, 1, 0, 120), Err(NOT_FOUND));
    assert_eq!(ring(&nvml, idle, 5, 0, 120).unwrap().last().unwrap().1, 210);
    for kind in [1, 2, 3, 4, 8, 9] {
        assert_eq!(ring(&nvml, parent, kind, 0, 120), Err(NOT_SUPPORTED), "type {kind}");
    }
    assert!(ring(&nvml, parent, 0, 0, 120).is_ok());
    node.hold(130 * SECOND);
    assert_eq!(ring(&nvml, board, 1, 0, 120), Err(NOT_FOUND));
}
