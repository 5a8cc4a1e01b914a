//! NVLink and PCIe by script, and throttle times.

use crate::raw::{INVALID_ARGUMENT, NOT_SUPPORTED, call, field, gpu};
use crate::support::{Node, SECOND};
use nvml_wrapper_sys::bindings as sys;

const ALL: u32 = u32::MAX;

const SCRIPT: &str = r#"{"cycle_seconds":60,"gpus":[{"profile":"h100","count":2},{"profile":"l40s"}],
    "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0,
        "nvlink_tx":18e9,"nvlink_rx":36e9,"pcie_tx":2e9,"pcie_rx":3e9}]}],
    "links_down":[{"from":20,"to":40,"gpu":0,"link":17},{"from":0,"to":60,"gpu":1}],
    "pcie":[{"from":10,"to":20,"gpu":0,"generation":3,"width":8}],
    "replays":[{"at":15,"gpu":0,"count":9}],
    "throttles":[{"from":30,"to":33,"gpu":1,"reason":"hw_power_brake"}]}"#;

#[test]
fn links_carry_the_scripted_bytes_and_a_down_link_carries_none() {
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

const ERRORS: &str = r#"{"cycle_seconds":60,"gpus":[{"profile":"a100"},{"profile":"h100"}],"link_errors":[
    {"at":5,"gpu":0,"link":3,"kind":"crc_flit","count":4},{"at":5,"gpu":1,"link":3,"kind":"crc_flit","count":4},
    {"at":5,"gpu":0,"link":7,"kind":"replay","count":2},{"at":5,"gpu":1,"link":7,"kind":"replay","count":2},
    {"at":5,"gpu":0,"link":3,"kind":"recovery"},{"at":5,"gpu":1,"link":3,"kind":"recovery"},
    {"at":5,"gpu":1,"link":3,"kind":"crc_data"}]}"#;

fn counter(nvml: &nvml_wrapper::Nvml, board: sys::nvmlDevice_t, link: u32, which: u32) -> (u32, u64) {
    let mut value = 0;
    (call!(nvml, nvmlDeviceGetNvLinkErrorCounter, board, link, which, &raw mut value), value)
}

#[test]
fn link_errors_are_counted_by_link_and_in_sum() {
    let node = Node::new(ERRORS);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let count = |id| field(&nvml, board, id, 0).unwrap();
    assert_eq!((count(35), count(38)), (0, 0));
    node.hold(6 * SECOND);
    // CRC flit of link 3, and of all; recovery of link 3, and of all; replay of link 7, and of all.
    let fields = [35, 38, 34, 56, 59, 109, 52].map(count);
    assert_eq!(fields, [4, 4, 0, 1, 1, 2, 2]);
    assert_eq!((counter(&nvml, board, 3, 2), counter(&nvml, board, 7, 0)), ((0, 4), (0, 2)));
    assert_eq!(counter(&nvml, board, 3, 5).0, INVALID_ARGUMENT);
    assert_eq!((field(&nvml, board, 161, 7), field(&nvml, board, 163, 3)), (Ok(2), Ok(4)));
    node.hold(66 * SECOND);
    assert_eq!(count(38), 8);
}

#[test]
fn hopper_takes_links_as_scopes_and_reports_0_for_the_older_sums() {
    let node = Node::new(ERRORS);
    let nvml = node.nvml();
    let board = gpu(&nvml, 1);
    node.hold(6 * SECOND);
    let of = |id, scope| field(&nvml, board, id, scope);
    assert_eq!([(161, 7), (162, 3), (163, 3), (163, 4)].map(|(id, link)| of(id, link)), [2, 1, 4, 0].map(Ok));
    for id in (32..=37).chain(46..=51).chain(53..=58).chain(84..=89).chain(96..=101).chain(108..=119) {
        assert_eq!(of(id, 0), Err(NOT_SUPPORTED), "{id}");
    }
    for id in [38, 45, 52, 59, 160, 42] {
        assert_eq!(of(id, 0), Ok(0), "{id}");
    }
    assert_eq!((counter(&nvml, board, 3, 3), counter(&nvml, board, 7, 0)), ((0, 1), (0, 2)));
    // Fields of NVLink 5; the second is an unknown field here.
    assert_eq!((of(208, 0), of(219, 0)), (Err(NOT_SUPPORTED), Err(INVALID_ARGUMENT)));
    let old = Node::new(&ERRORS.replacen('{', r#"{"persona":"r470","#, 1));
    let nvml = old.nvml();
    old.hold(6 * SECOND);
    assert_eq!([52, 109].map(|id| field(&nvml, gpu(&nvml, 1), id, 0)), [Ok(2), Ok(2)]);
}

#[test]
fn nvlink_5_counts_packets_and_recoveries_by_link_and_no_replays() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"gb200"},{"profile":"b200"},{"profile":"rtx-pro-6000"}],
            "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":60,"demand":1.0,
                "nvlink_tx":18e9,"nvlink_rx":36e9}]}],
            "link_errors":[{"at":5,"gpu":0,"link":14,"kind":"recovery","count":505},
                {"at":5,"gpu":0,"link":14,"kind":"recovery_failed"},
                {"at":5,"gpu":0,"link":2,"kind":"malformed_packet","count":3},
                {"at":5,"gpu":0,"link":2,"kind":"receive","count":4},
                {"at":5,"gpu":0,"link":2,"kind":"effective","count":16},
                {"at":5,"gpu":1,"link":17,"kind":"symbol","count":9}]}"#,
    );
    let nvml = node.nvml();
    node.hold(8 * SECOND);
    let (board, other) = (gpu(&nvml, 0), gpu(&nvml, 1));
    let of = |id, scope| field(&nvml, board, id, scope);
    assert_eq!([213, 214, 215].map(|id| of(id, 14)), [505, 1, 506].map(Ok));
    assert_eq!([206, 207, 208, 219, 213].map(|id| of(id, 2)), [3, 0, 7, 16, 0].map(Ok));
    assert_eq!((field(&nvml, other, 221, 17), field(&nvml, other, 221, 16)), (Ok(9), Ok(0)));
    // 1 and 2 GB/s for 8 s, and 16 errors in 1.28e11 bits: 1e-10.
    assert_eq!([201, 202, 203, 204].map(|id| of(id, 2)), [40, 8_000, 80, 16_000].map(|v| Ok(v * 1_000_000)));
    assert_eq!([220, 222].map(|id| of(id, 2)), [Ok((1 << 8) | 10), Ok(4095)]);
    for (id, scope) in [(161, 0), (162, 14), (163, 2), (84, 0), (35, 0), (216, 0), (235, 0)] {
        assert_eq!(of(id, scope), Err(NOT_SUPPORTED), "{id}");
    }
    assert_eq!(([38, 52].map(|id| of(id, 0)), counter(&nvml, board, 0, 0).0), ([Ok(0); 2], NOT_SUPPORTED));
    // There is no sum over links, no nineteenth link, and no link on a board without NVLink.
    assert_eq!([ALL, 18].map(|scope| of(213, scope)), [Err(INVALID_ARGUMENT); 2]);
    assert_eq!([208, 219].map(|id| field(&nvml, gpu(&nvml, 2), id, 0)), [Err(NOT_SUPPORTED); 2]);
}

#[test]
fn errors_that_a_generation_does_not_count_cannot_be_scripted() {
    for (profile, kind) in [("h100", "recovery_failed"), ("b200", "crc_flit"), ("a100", "symbol")] {
        let node = Node::new(&format!(
            r#"{{"gpus":[{{"profile":"{profile}"}}],
                "link_errors":[{{"at":1,"gpu":0,"link":0,"kind":"{kind}"}}]}}"#
        ));
        assert!(nvml_wrapper::Nvml::builder().lib_path(node.library().as_os_str()).init().is_err());
        let said = format!("link_errors: gpu 0 is a {profile}, whose NVLinks count other kinds");
        assert!(node.read("error").contains(&said), "{}", node.read("error"));
    }
}

#[test]
fn links_down_without_a_link_disables_all_and_an_l40s_has_none() {
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
fn pcie_counts_bytes_and_replays_and_can_be_downgraded() {
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
fn throttle_times_are_added_to_the_power_cap_time_of_an_idle_board() {
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
