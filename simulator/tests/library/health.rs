//! Memory health by script: errors, rows, recovery actions.

use crate::raw::{NOT_SUPPORTED, VERSION_MISMATCH, call, field, gpu, instance, version};
use crate::support::{Node, SECOND};
use nvml_wrapper_sys::bindings as sys;

const SCRIPT: &str = r#"{"cycle_seconds":60,"driver_loads":[40],"gpus":[{"profile":"a100"},{"profile":"l40s"}],
    "memory_errors":[
        {"at":10,"gpu":0,"kind":"dram_corrected","count":353},
        {"at":12,"gpu":0,"kind":"dram_uncorrected"},
        {"at":15,"gpu":0,"kind":"sram_corrected","count":4},
        {"at":20,"gpu":0,"kind":"sram_uncorrected_parity","count":2},
        {"at":50,"gpu":0,"kind":"sram_uncorrected_secded","count":3},
        {"at":55,"gpu":0,"kind":"sram_threshold"}],
    "remaps":[
        {"at":11,"gpu":0,"cause":"correctable","pending":true,"bank":5},
        {"at":30,"gpu":0,"cause":"uncorrectable","failure":true,"bank":5},
        {"at":11,"gpu":1,"cause":"uncorrectable","pending":true}],
    "recoveries":[{"from":12,"to":30,"gpu":0,"action":"gpu_reset"},
        {"from":30,"to":35,"gpu":0,"action":"drain_p2p"}]}"#;

#[test]
fn errors_are_counted_by_place_and_a_reload_clears_the_volatile_ones() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let total = |kind, counter| {
        let mut count = 0;
        assert_eq!(call!(nvml, nvmlDeviceGetTotalEccErrors, board, kind, counter, &raw mut count), 0);
        count
    };
    let at = |kind, counter, place| {
        let mut count = 0;
        let code = call!(nvml, nvmlDeviceGetMemoryErrorCounter, board, kind, counter, place, &raw mut count);
        if code == 0 { Ok(count) } else { Err(code) }
    };
    assert_eq!(total(0, 0), 0);
    node.hold(10 * SECOND - 1);
    assert_eq!(total(0, 0), 0);
    node.hold(39 * SECOND);
    assert_eq!((total(0, 0), total(1, 0), total(0, 1), total(1, 1)), (357, 3, 357, 3));
    assert_eq!((at(0, 0, 2), at(1, 0, 2), at(0, 0, 7), at(1, 0, 7)), (Ok(353), Ok(1), Ok(4), Ok(2)));
    assert_eq!(at(0, 0, 1), Err(NOT_SUPPORTED));
    let fields = |ids: [u32; 4]| ids.map(|id| field(&nvml, board, id, 0).unwrap());
    assert_eq!(fields([3, 4, 5, 6]), [357, 3, 357, 3]);
    assert_eq!(field(&nvml, board, 11, 0), Err(NOT_SUPPORTED));
    // The driver is reloaded at 40 s.
    node.hold(45 * SECOND);
    assert_eq!(fields([3, 4, 5, 6]), [0, 0, 357, 3]);
    node.hold(70 * SECOND);
    assert_eq!(fields([3, 4, 5, 6]), [353, 3, 710, 6]);
}

#[test]
fn the_sram_status_counts_parity_and_secded_separately() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    node.hold(54 * SECOND);
    let board = gpu(&nvml, 0);
    let mut status: sys::nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    assert_eq!(call!(nvml, nvmlDeviceGetSramEccErrorStatus, board, &raw mut status), VERSION_MISMATCH);
    status.version = version::<sys::nvmlEccSramErrorStatus_v1_t>(1);
    assert_eq!(call!(nvml, nvmlDeviceGetSramEccErrorStatus, board, &raw mut status), 0);
    assert_eq!((status.aggregateUncParity, status.aggregateUncSecDed, status.aggregateCor), (2, 3, 4));
    assert_eq!((status.volatileUncParity, status.volatileUncSecDed, status.volatileCor), (0, 3, 0));
    assert_eq!((status.aggregateUncBucketSm, status.aggregateUncBucketL2), (2, 3));
    assert_eq!(status.bThresholdExceeded, 0);
    node.hold(56 * SECOND);
    assert_eq!(call!(nvml, nvmlDeviceGetSramEccErrorStatus, board, &raw mut status), 0);
    assert_eq!(status.bThresholdExceeded, 1);
    let mut entries: [sys::nvmlEccSramUniqueUncorrectedErrorEntry_v1_t; 4] = unsafe { std::mem::zeroed() };
    let mut unique = sys::nvmlEccSramUniqueUncorrectedErrorCounts_v1_t {
        version: version::<sys::nvmlEccSramUniqueUncorrectedErrorCounts_v1_t>(1),
        entryCount: 4,
        entries: entries.as_mut_ptr(),
    };
    let code = call!(nvml, nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts, board, &raw mut unique);
    assert_eq!((code, unique.entryCount), (0, 2));
    let [parity, secded, ..] = entries;
    assert_eq!((parity.isParity, parity.count, secded.isParity, secded.count), (1, 2, 0, 3));
    let mut detail: sys::nvmlEccErrorCounts_t = unsafe { std::mem::zeroed() };
    assert_eq!(call!(nvml, nvmlDeviceGetDetailedEccErrors, board, 0, 1, &raw mut detail), 0);
    assert_eq!((detail.deviceMemory, detail.l2Cache), (353, 4));
}

#[test]
fn rows_remapped_leave_the_histogram_of_hbm_and_wait_for_the_driver() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let (hbm, gddr) = (gpu(&nvml, 0), gpu(&nvml, 1));
    let rows = |board| (142..=145).map(|id| field(&nvml, board, id, 0).unwrap()).collect::<Vec<_>>();
    let histogram = |board| {
        let mut values: sys::nvmlRowRemapperHistogramValues_t = unsafe { std::mem::zeroed() };
        assert_eq!(call!(nvml, nvmlDeviceGetRowRemapperHistogram, board, &raw mut values), 0);
        [values.max, values.high, values.partial, values.low, values.none]
    };
    assert_eq!((rows(hbm), histogram(hbm)), (vec![0; 4], [640, 0, 0, 0, 0]));
    node.hold(20 * SECOND);
    assert_eq!((rows(hbm), histogram(hbm)), (vec![1, 0, 1, 0], [639, 1, 0, 0, 0]));
    // The histogram of boards with GDDR never changes.
    assert_eq!((rows(gddr), histogram(gddr)), (vec![0, 1, 1, 0], [192, 0, 0, 0, 0]));
    node.hold(39 * SECOND);
    assert_eq!((rows(hbm), histogram(hbm)), (vec![1, 1, 1, 1], [639, 0, 1, 0, 0]));
    node.hold(41 * SECOND);
    assert_eq!(rows(hbm), [1, 1, 0, 1]);
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (9, 9, 9, 9);
    let code = call!(
        nvml,
        nvmlDeviceGetRemappedRows,
        hbm,
        &raw mut corrected,
        &raw mut uncorrected,
        &raw mut pending,
        &raw mut failed
    );
    assert_eq!((code, corrected, uncorrected, pending, failed), (0, 1, 1, 0, 1));
    // Eight rows in one bank use up its spare rows.
    node.hold(4 * 60 * SECOND - 1);
    assert_eq!(histogram(hbm), [639, 0, 0, 0, 1]);
}

#[test]
fn pages_are_not_retired_since_ampere() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    for id in [29, 30, 31, 92, 93] {
        assert_eq!(field(&nvml, board, id, 0), Err(NOT_SUPPORTED), "field {id}");
    }
    let (mut count, mut pending) = (0, 0);
    let none = std::ptr::null_mut();
    assert_eq!(call!(nvml, nvmlDeviceGetRetiredPages, board, 0, &raw mut count, none), NOT_SUPPORTED);
    assert_eq!(call!(nvml, nvmlDeviceGetRetiredPagesPendingStatus, board, &raw mut pending), NOT_SUPPORTED);
}

#[test]
fn the_recovery_action_follows_the_scenario() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let mut seen = Vec::new();
    for second in [11, 12, 29, 30, 35, 72] {
        node.hold(second * SECOND);
        seen.push((field(&nvml, board, 230, 0).unwrap(), field(&nvml, board, 226, 0).unwrap()));
    }
    assert_eq!(seen, [(0, 0), (1, 1), (1, 1), (3, 0), (0, 0), (1, 1)]);
}

#[test]
fn an_instance_shows_only_the_uncorrected_errors_of_its_own_sram() {
    let node = Node::new(
        r#"{"gpus":[{"profile":"h100","mig":[
                {"profile":"3g.40gb","start":4},{"profile":"3g.40gb","start":0}]}],
            "memory_errors":[
                {"at":1,"gpu":0,"instance":0,"kind":"sram_uncorrected_secded","count":2},
                {"at":1,"gpu":0,"kind":"dram_corrected","count":7}]}"#,
    );
    let nvml = node.nvml();
    node.hold(2 * SECOND);
    let parent = gpu(&nvml, 0);
    let counter = |device, kind, counter, place| {
        let mut count = 0;
        let code = call!(nvml, nvmlDeviceGetMemoryErrorCounter, device, kind, counter, place, &raw mut count);
        if code == 0 { Ok(count) } else { Err(code) }
    };
    // By instance id: the one at 0 comes first.
    let (without, with) = (instance(&nvml, parent, 0), instance(&nvml, parent, 1));
    assert_eq!(
        (counter(with, 1, 0, 7), counter(without, 1, 0, 7), counter(parent, 1, 0, 7)),
        (Ok(2), Ok(0), Ok(2))
    );
    assert_eq!((counter(with, 1, 1, 7), counter(with, 0, 0, 2)), (Err(NOT_SUPPORTED), Err(NOT_SUPPORTED)));
    assert_eq!(counter(parent, 0, 0, 2), Ok(7));
    let mut count = 0;
    assert_eq!(call!(nvml, nvmlDeviceGetTotalEccErrors, with, 0, 0, &raw mut count), NOT_SUPPORTED);
    // In MIG mode remapped rows are not supported, but the histogram is.
    assert_eq!(field(&nvml, parent, 142, 0), Err(NOT_SUPPORTED));
    let mut values: sys::nvmlRowRemapperHistogramValues_t = unsafe { std::mem::zeroed() };
    assert_eq!(call!(nvml, nvmlDeviceGetRowRemapperHistogram, parent, &raw mut values), 0);
    assert_eq!(values.max, 2560);
}

#[test]
fn conditions_outside_the_cycle_or_on_unknown_gpus_are_refused() {
    for (text, said) in [
        (r#""remaps":[{"at":601,"gpu":0,"cause":"correctable"}]"#, "remaps: at 601 is not within"),
        (r#""links_down":[{"from":5,"to":4,"gpu":0}]"#, "links_down: from 5 to 4 is not a span"),
        (r#""memory_errors":[{"at":1,"gpu":3,"kind":"dram_corrected"}]"#, "memory_errors: there is no gpu 3"),
        (
            r#""memory_errors":[{"at":1,"gpu":0,"instance":2,"kind":"sram_corrected"}]"#,
            "memory_errors: gpu 0 has no instance 2 in its mig list",
        ),
        (
            r#""links_down":[{"from":5,"to":6,"gpu":0,"link":18}]"#,
            "links_down: gpu 0 has no link 18; it has 18",
        ),
        (
            r#""link_errors":[{"at":5,"gpu":0,"link":99,"kind":"replay"}]"#,
            "link_errors: gpu 0 has no link 99",
        ),
        (
            r#""remaps":[{"at":1,"gpu":0,"cause":"correctable","bank":2560}]"#,
            "remaps: gpu 0 has no bank 2560 that remaps; it has 2560",
        ),
    ] {
        let node = Node::new(&format!(r#"{{"gpus":[{{"profile":"h100"}}],{text}}}"#));
        let opened = nvml_wrapper::Nvml::builder().lib_path(node.library().as_os_str()).init();
        assert!(opened.is_err());
        assert!(node.read("error").contains(said), "{}", node.read("error"));
    }
}
