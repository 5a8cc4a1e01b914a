//! The driver's accounting records of processes.

use crate::raw::{INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, call, gpu};
use crate::support::{BEGUN, Node, SECOND};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;

const SCRIPT: &str = r#"{"cycle_seconds":100,"driver_loads":[350],"gpus":[
        {"profile":"h100","accounting":true},{"profile":"l40s","accounting":true},{"profile":"h100"},
        {"profile":"h100","accounting":true,"mig":[{"profile":"7g.80gb","start":0}]},
        {"profile":"h100","accounting":true,"accounting_until":50}],
    "processes":[
        {"pid":4,"gpu":0,"phases":[{"from":10,"to":30,"demand":0.5,"dram":0.25,"memory_bytes":1000},
            {"from":30,"to":40,"demand":0.5,"memory_bytes":3000}]},
        {"pid":5,"gpu":0,"phases":[{"from":0,"to":100,"demand":0.2,"memory_bytes":7000}]},
        {"pid":6,"gpu":0,"phases":[{"from":60,"to":65}]},
        {"pid":6,"gpu":0,"phases":[{"from":70,"to":71,"memory_bytes":9}]},
        {"pid":8,"gpu":1,"phases":[{"from":0,"to":20,"demand":1.0,"memory_bytes":7000}]},
        {"pid":9,"gpu":4,"phases":[{"from":10,"to":30,"memory_bytes":5}]},
        {"pid":10,"gpu":4,"phases":[{"from":60,"to":70}]}]}"#;

fn pids(nvml: &Nvml, gpu: sys::nvmlDevice_t) -> Result<Vec<u32>, u32> {
    let (mut count, mut pids) = (8, [0; 8]);
    match call!(nvml, nvmlDeviceGetAccountingPids, gpu, &raw mut count, pids.as_mut_ptr()) {
        0 => Ok(pids[..count as usize].to_vec()),
        code => Err(code),
    }
}

fn stats(nvml: &Nvml, gpu: sys::nvmlDevice_t, pid: u32) -> Result<sys::nvmlAccountingStats_t, u32> {
    let mut stats: sys::nvmlAccountingStats_t = unsafe { std::mem::zeroed() };
    match call!(nvml, nvmlDeviceGetAccountingStats, gpu, pid, &raw mut stats) {
        0 => Ok(stats),
        code => Err(code),
    }
}

#[test]
fn ended_processes_have_an_accounting_time_and_running_ones_have_none() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    let (mut mode, mut size) = (0, 0);
    assert_eq!(call!(nvml, nvmlDeviceGetAccountingMode, board, &raw mut mode), 0);
    assert_eq!(call!(nvml, nvmlDeviceGetAccountingBufferSize, board, &raw mut size), 0);
    assert_eq!((mode, size), (1, 4000));
    assert_eq!(pids(&nvml, board), Ok(vec![5]));
    node.hold(50 * SECOND);
    let ended = stats(&nvml, board, 4).unwrap();
    assert_eq!((ended.isRunning, ended.time, ended.startTime), (0, 30_000, (BEGUN + 10 * SECOND) / 1_000));
    // Half of the time, minus what it shared with the process that wanted a fifth.
    assert!((43..48).contains(&ended.gpuUtilization), "{}", ended.gpuUtilization);
    assert!((7..10).contains(&ended.memoryUtilization), "{}", ended.memoryUtilization);
    assert_eq!(ended.maxMemoryUsage, 3000);
    let running = stats(&nvml, board, 5).unwrap();
    assert_eq!((running.isRunning, running.time, running.startTime), (1, 0, BEGUN / 1_000));
    assert_eq!(stats(&nvml, board, 6).map(|stats| stats.time), Err(NOT_FOUND));
    let mut count = 1;
    let short = call!(nvml, nvmlDeviceGetAccountingPids, board, &raw mut count, std::ptr::null_mut());
    assert_eq!((short, count), (INSUFFICIENT_SIZE, 2));
}

#[test]
fn only_the_latest_stay_of_a_pid_has_a_record() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 0);
    node.hold(66 * SECOND);
    assert_eq!(stats(&nvml, board, 6).unwrap().time, 5_000);
    node.hold(80 * SECOND);
    let latest = stats(&nvml, board, 6).unwrap();
    assert_eq!((latest.time, latest.maxMemoryUsage), (1_000, 9));
    assert_eq!(
        pids(&nvml, board).map(|mut pids| {
            pids.sort_unstable();
            pids
        }),
        Ok(vec![4, 5, 6])
    );
    // In the next cycle it runs again, and the former record is replaced.
    node.hold(162 * SECOND);
    let again = stats(&nvml, board, 6).unwrap();
    assert_eq!((again.isRunning, again.startTime), (1, (BEGUN + 160 * SECOND) / 1_000));
    node.hold(205 * SECOND);
    assert_eq!(stats(&nvml, board, 4).unwrap().startTime, (BEGUN + 110 * SECOND) / 1_000);
}

#[test]
fn ada_drops_the_memory_of_ended_processes() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let board = gpu(&nvml, 1);
    node.hold(10 * SECOND);
    assert_eq!(stats(&nvml, board, 8).unwrap().maxMemoryUsage, 7000);
    node.hold(30 * SECOND);
    let ended = stats(&nvml, board, 8).unwrap();
    assert_eq!((ended.maxMemoryUsage, ended.gpuUtilization), (0, 100));
}

#[test]
fn there_are_no_accounting_records_without_accounting_or_with_mig() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    node.hold(50 * SECOND);
    for (index, none) in [(2, Ok(Vec::new())), (3, Err(NOT_SUPPORTED))] {
        let mut mode = 9;
        assert_eq!(call!(nvml, nvmlDeviceGetAccountingMode, gpu(&nvml, index), &raw mut mode), 0);
        assert_eq!((mode, pids(&nvml, gpu(&nvml, index))), (0, none), "gpu {index}");
    }
    assert_eq!(stats(&nvml, gpu(&nvml, 2), 5).map(|known| known.time), Err(NOT_FOUND));
}

#[test]
fn accounting_records_survive_accounting_but_not_a_driver_reload() {
    let node = Node::new(SCRIPT);
    let nvml = node.nvml();
    let (board, other) = (gpu(&nvml, 4), gpu(&nvml, 0));
    node.hold(90 * SECOND);
    let mut mode = 9;
    assert_eq!(call!(nvml, nvmlDeviceGetAccountingMode, board, &raw mut mode), 0);
    // Accounting is turned off at 50 s: later processes are not recorded.
    assert_eq!((mode, pids(&nvml, board)), (0, Ok(vec![9])));
    assert_eq!(stats(&nvml, board, 9).unwrap().time, 20_000);
    node.hold(349 * SECOND);
    assert_eq!(pids(&nvml, other).unwrap().len(), 3);
    // The driver is reloaded at 350 s; only running processes are recorded.
    node.hold(351 * SECOND);
    assert_eq!((pids(&nvml, other), pids(&nvml, board)), (Ok(vec![5]), Ok(vec![])));
}
