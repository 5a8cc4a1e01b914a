//! NVLink and PCIe by script, and what held the clocks down.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use nvml_wrapper_sys::bindings as sys;
use raw::{INVALID_ARGUMENT, NOT_SUPPORTED, call, field, gpu};
use support::{Node, SECOND};

const ALL: u32 = u32::MAX;

const SCRIPT: &str = r#"{"cycle_seconds":60,"gpus":[{"profile":"h100","count":2},{"profile":"l40s"}],
    "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0,
        "nvlink_tx":18e9,"nvlink_rx":36e9,"pcie_tx":2e9,"pcie_rx":3e9}]}],
    "link_errors":[
        {"at":5,"gpu":0,"link":3,"kind":"crc_flit","count":4},
        {"at":5,"gpu":0,"link":7,"kind":"replay","count":2},
        {"at":5,"gpu":0,"link":3,"kind":"recovery"}],
    "links_down":[{"from":20,"to":40,"gpu":0,"link":17},{"from":0,"to":60,"gpu":1}],
    "pcie":[{"from":10,"to":20,"gpu":0,"generation":3,"width":8}],
    "replays":[{"at":15,"gpu":0,"count":9}],
    "throttles":[{"from":30,"to":33,"gpu":1,"reason":"hw_power_brake"}]}"#;

#[test]
fn links_carry_the_scripted_bytes_and_one_that_is_down_none() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let kibibytes = |id, scope| field(&nvml, board, id, scope).unwrap();
    node.hold(20 * SECOND);
    // 18 and 36 GB/s over 18 links for 20 s.
    assert_eq!((kibibytes(138, 0), kibibytes(139, 17)), (20_000_000_000 / 1024, 40_000_000_000 / 1024));
    assert!(kibibytes(140, 0) > kibibytes(138, 0));
    let (mut state, mut kind) = (9, 9);
    assert_eq!(call!(nvml, nvmlDeviceGetNvLinkState, board, 17, &raw mut state), 0);
    assert_eq!((state, field(&nvml, board, 165, 17), field(&nvml, board, 164, 17)), (0, Ok(0), Ok(0)));
    assert_eq!((field(&nvml, board, 165, 16), field(&nvml, board, 164, 16)), (Ok(1), Ok(26_562)));
    let remote =
        |link, kind: &mut u32| call!(nvml, nvmlDeviceGetNvLinkRemoteDeviceType, board, link, &raw mut *kind);
    assert_eq!((remote(16, &mut kind), kind, remote(17, &mut 9)), (0, 2, NOT_SUPPORTED));
    let stood = kibibytes(138, 17);
    node.hold(37 * SECOND);
    assert_eq!(kibibytes(138, 17), stood);
    // Seventeen links share what eighteen had.
    assert_eq!(kibibytes(138, 0), (20_000_000_000 + 17 * 18_000_000_000 / 17) / 1024);
    let sum: u64 = (0..18).map(|link| kibibytes(138, link)).sum();
    assert_eq!(kibibytes(138, ALL), sum);
    let mut former = 0;
    for second in 0..150 {
        node.hold(second * SECOND);
        assert!(kibibytes(138, 17) >= former, "at {second}");
        former = kibibytes(138, 17);
    }
    assert_eq!(field(&nvml, board, 138, 18), Err(INVALID_ARGUMENT));
}

#[test]
fn link_errors_are_counted_by_link_and_in_sum() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let count = |id| field(&nvml, board, id, 0).unwrap();
    assert_eq!((count(35), count(38)), (0, 0));
    node.hold(6 * SECOND);
    // CRC flit of link 3, and of all; recovery of link 3, and of all; replay of link 7, and of all.
    let fields = [35, 38, 34, 56, 59, 109, 52].map(count);
    assert_eq!(fields, [4, 4, 0, 1, 1, 2, 2]);
    let mut value = 0;
    let errors = |link, which, value: &mut u64| {
        call!(nvml, nvmlDeviceGetNvLinkErrorCounter, board, link, which, &raw mut *value)
    };
    assert_eq!((errors(3, 2, &mut value), value), (0, 4));
    assert_eq!((errors(7, 0, &mut value), value), (0, 2));
    assert_eq!(errors(3, 5, &mut value), INVALID_ARGUMENT);
    assert_eq!((field(&nvml, board, 161, 7), field(&nvml, board, 163, 3)), (Ok(2), Ok(4)));
    node.hold(66 * SECOND);
    assert_eq!(count(38), 8);
}

#[test]
fn a_dead_bridge_leaves_all_links_inactive_and_l40s_has_none() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let (dead, none) = (gpu(&nvml, 1), gpu(&nvml, 2));
    for link in 0..18 {
        assert_eq!(field(&nvml, dead, 165, link), Ok(0));
    }
    assert_eq!((field(&nvml, dead, 90, 0), field(&nvml, dead, 138, ALL)), (Ok(0), Ok(0)));
    assert_eq!(
        (field(&nvml, none, 165, 0), field(&nvml, none, 38, 0)),
        (Err(NOT_SUPPORTED), Err(NOT_SUPPORTED))
    );
    let mut state = 9;
    assert_eq!(call!(nvml, nvmlDeviceGetNvLinkState, none, 0, &raw mut state), NOT_SUPPORTED);
}

#[test]
fn pcie_counts_bytes_and_replays_and_can_be_slower_than_it_could() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let link = |read: &dyn Fn(sys::nvmlDevice_t, *mut u32) -> u32| {
        let mut value = 0;
        assert_eq!(read(board, &raw mut value), 0);
        value
    };
    let generation = || link(&|gpu, value| call!(nvml, nvmlDeviceGetCurrPcieLinkGeneration, gpu, value));
    let width = || link(&|gpu, value| call!(nvml, nvmlDeviceGetCurrPcieLinkWidth, gpu, value));
    let speed = || link(&|gpu, value| call!(nvml, nvmlDeviceGetPcieSpeed, gpu, value));
    let most = || link(&|gpu, value| call!(nvml, nvmlDeviceGetMaxPcieLinkGeneration, gpu, value));
    let replays = field(&nvml, board, 94, 0).unwrap();
    assert_eq!((generation(), width(), speed()), (5, 16, 32_000));
    node.hold(15 * SECOND);
    assert_eq!((generation(), width(), speed(), most()), (3, 8, 8_000, 5));
    assert_eq!(field(&nvml, board, 94, 0), Ok(replays + 9));
    // 2 and 3 GB/s, 0.6 MB/s at rest, and two bursts of 0.24 MB.
    let bytes = |id| field(&nvml, board, id, 0).unwrap();
    assert_eq!((bytes(197), bytes(198)), (30_009_480_000, 45_009_480_000));
    node.hold(20 * SECOND);
    assert_eq!((generation(), width()), (5, 16));
}

#[test]
fn brakes_are_counted_beside_the_power_cap_of_an_idle_board() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let (board, other) = (gpu(&nvml, 1), gpu(&nvml, 0));
    let capped = |board| field(&nvml, board, 74, 0).unwrap() / SECOND;
    assert!((7_015..7_022).contains(&capped(board)) && capped(board).abs_diff(capped(other)) < 7);
    node.hold(32 * SECOND);
    assert_eq!((field(&nvml, board, 77, 0), field(&nvml, board, 271, 0)), (Ok(2 * SECOND), Ok(2 * SECOND)));
    let mut time: sys::nvmlViolationTime_t = unsafe { std::mem::zeroed() };
    assert_eq!(call!(nvml, nvmlDeviceGetViolationStatus, board, 3, &raw mut time), 0);
    assert_eq!(time.violationTime, 2 * SECOND);
    assert_eq!(call!(nvml, nvmlDeviceGetViolationStatus, board, 7, &raw mut time), INVALID_ARGUMENT);
}
