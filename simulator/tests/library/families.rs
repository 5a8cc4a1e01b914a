//! Memory health and GPM of boards before Ampere and of Grace.

use crate::raw::{
    INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_SUPPORTED, between, call, field, gpu, sample, version,
};
use crate::support::{BEGUN, Node, SECOND};
use nvml_wrapper_sys::bindings as sys;

#[test]
fn pages_retire_before_ampere_and_wait_for_the_driver() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"driver_loads":[40],"gpus":[{"profile":"t4"}],"memory_errors":[
            {"at":5,"gpu":0,"kind":"dram_corrected"},
            {"at":6,"gpu":0,"kind":"sram_uncorrected_parity","count":2},
            {"at":10,"gpu":0,"kind":"page_retired_corrected","count":2},
            {"at":11,"gpu":0,"kind":"page_retired_uncorrected"}]}"#,
    );
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let fields = |ids: [u32; 5]| ids.map(|id| field(&nvml, board, id, 0).unwrap());
    let value = |id| field(&nvml, board, id, 0);
    assert_eq!(fields([29, 30, 31, 92, 93]), [0; 5]);
    node.hold(20 * SECOND);
    assert_eq!(fields([29, 30, 31, 92, 93]), [2, 1, 1, 1, 1]);
    // The fields count errors of device memory; those of the SRAM have a location of their own, and caches have none.
    assert_eq!([11, 22, 3, 10].map(value), [Ok(1), Ok(1), Ok(1), Err(NOT_SUPPORTED)]);
    let mut errors = 0;
    let mut located =
        |place| call!(nvml, nvmlDeviceGetMemoryErrorCounter, board, 1, 0, place, &raw mut errors);
    assert_eq!([1, 3, 7].map(&mut located), [NOT_SUPPORTED, NOT_SUPPORTED, 0]);
    assert_eq!(errors, 2);
    let (mut count, mut addresses, mut times) = (1, [0; 4], [0; 4]);
    let (places, stamps) = (addresses.as_mut_ptr(), times.as_mut_ptr());
    let ask = |count: *mut u32| call!(nvml, nvmlDeviceGetRetiredPages_v2, board, 0, count, places, stamps);
    assert_eq!((ask(&raw mut count), count), (INSUFFICIENT_SIZE, 2));
    assert_eq!((ask(&raw mut count), count), (0, 2));
    assert_eq!(times, [(BEGUN + 10 * SECOND) / 1_000, (BEGUN + 10 * SECOND) / 1_000, 0, 0]);
    assert!(addresses[0] != addresses[1] && addresses[0].is_multiple_of(4096), "{addresses:?}");
    assert_eq!(call!(nvml, nvmlDeviceGetRetiredPages, board, 2, &raw mut count, places), INVALID_ARGUMENT);
    let mut pending = 9;
    assert_eq!(call!(nvml, nvmlDeviceGetRetiredPagesPendingStatus, board, &raw mut pending), 0);
    assert_eq!(pending, 1);
    node.hold(41 * SECOND);
    assert_eq!(fields([29, 30, 31, 92, 93]), [2, 1, 0, 0, 0]);
    // Remapped rows and the SRAM status are not supported.
    assert_eq!([142, 143, 144, 145].map(|id| field(&nvml, board, id, 0)), [Err(NOT_SUPPORTED); 4]);
    let mut status: sys::nvmlEccSramErrorStatus_v1_t = unsafe { std::mem::zeroed() };
    status.version = version::<sys::nvmlEccSramErrorStatus_v1_t>(1);
    assert_eq!(call!(nvml, nvmlDeviceGetSramEccErrorStatus, board, &raw mut status), NOT_SUPPORTED);
}

#[test]
fn a_board_with_ecc_off_counts_no_errors() {
    let node = Node::new(r#"{"gpus":[{"profile":"rtx-4090"}]}"#);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    assert_eq!((field(&nvml, board, 1, 0), field(&nvml, board, 3, 0)), (Ok(0), Err(NOT_SUPPORTED)));
    let (mut current, mut pending) = (9, 9);
    assert_eq!(call!(nvml, nvmlDeviceGetEccMode, board, &raw mut current, &raw mut pending), 0);
    assert_eq!((current, pending), (0, 0));
}

#[test]
fn grace_uses_c2c_instead_of_pcie() {
    let node = Node::new(
        r#"{"cycle_seconds":60,"gpus":[{"profile":"gb200"}],"processes":[{"pid":7,"gpu":0,"phases":[
            {"from":0,"to":60,"demand":1.0,"pcie_tx":1048576000,"pcie_rx":2097152000}]}]}"#,
    );
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let first = sample(&nvml, board);
    node.hold(10 * SECOND);
    let second = sample(&nvml, board);
    let seen = between(&nvml, first, second, &[20, 21, 100, 101, 102, 104, 105, 160, 161]);
    let seen: Vec<f64> = seen.into_iter().map(|value| (value.unwrap() * 10.0).round() / 10.0).collect();
    assert_eq!(seen, [0.0, 0.0, 1_000.0, 2_000.0, 940.0, 100.0, 200.0, 75.0, 25.0]);
    assert_eq!(between(&nvml, first, second, &[144]), [Err(NOT_SUPPORTED)]);
    assert_eq!((field(&nvml, board, 197, 0), field(&nvml, board, 198, 0)), (Ok(0), Ok(0)));
    // The ring of the module's power ends with the field's value.
    let mut samples: [sys::nvmlSample_t; 120] = unsafe { std::mem::zeroed() };
    let (mut kind, mut count) = (9, 120);
    let (kind_at, count_at, samples_at) = (&raw mut kind, &raw mut count, samples.as_mut_ptr());
    assert_eq!(call!(nvml, nvmlDeviceGetSamples, board, 7, 0, kind_at, count_at, samples_at), 0);
    let newest = unsafe { samples[count as usize - 1].sampleValue.ullVal };
    assert_eq!((count, Ok(newest)), (100, field(&nvml, board, 186, 1)));
}

#[test]
fn a_reloaded_driver_counts_errors_and_traffic_from_zero() {
    let node = Node::new(
        r#"{"cycle_seconds":600,"gpus":[{"profile":"h100","accounting":true}],
            "processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":20,"demand":1.0,"nvlink_tx":18e9}]},
                {"pid":8,"gpu":0,"phases":[{"from":0,"to":600,"demand":0.5,"nvlink_tx":18e9}]}],
            "memory_errors":[{"at":5,"gpu":0,"kind":"dram_uncorrected"}],
            "remaps":[{"at":6,"gpu":0,"cause":"uncorrectable","pending":true}],
            "link_errors":[{"at":7,"gpu":0,"link":2,"kind":"replay","count":3}],
            "replays":[{"at":8,"gpu":0,"count":40}]}"#,
    );
    let ids = [(4, 0), (6, 0), (143, 0), (144, 0), (161, 2), (94, 0)];
    let seen =
        |nvml: &nvml_wrapper::Nvml| ids.map(|(id, scope)| field(nvml, gpu(nvml, 0), id, scope).unwrap());
    let nvml = node.nvml();
    node.hold(30 * SECOND);
    let before = seen(&nvml);
    assert_eq!(&before[..5], &[1, 1, 1, 1, 3]);
    assert!(before[5] >= 40);
    let traffic = field(&nvml, gpu(&nvml, 0), 138, u32::MAX).unwrap();
    nvml.shutdown().unwrap();
    node.state(r#"{"driver":{"epoch":2}}"#);
    let nvml = node.nvml();
    node.hold(31 * SECOND);
    assert_eq!(seen(&nvml), [0, 1, 1, 0, 0, 0]);
    let after = field(&nvml, gpu(&nvml, 0), 138, u32::MAX).unwrap();
    assert!(after > 0 && after < traffic / 10, "{after} after {traffic}");
    assert!(field(&nvml, gpu(&nvml, 0), 197, 0).unwrap() < 2_000_000_000);
    // The record of the ended process is gone.
    let (mut count, mut pids) = (4, [0; 4]);
    assert_eq!(call!(nvml, nvmlDeviceGetAccountingPids, gpu(&nvml, 0), &raw mut count, pids.as_mut_ptr()), 0);
    assert_eq!((count, pids[0]), (1, 8));
}
