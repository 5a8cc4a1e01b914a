//! How older and odd drivers must be read, written by hand.

use gpumeter::model::catalogue::{PointId, first_point, point};
use gpumeter::model::{Absence, Bytes, Frame, MemoryKind, Reading};

use super::node::Node;

const TWO: &str = r#"
    {"pid":4211,"gpu":0,"phases":[{"from":0,"to":600,"demand":0.5,"memory_bytes":21474836480}]},
    {"pid":4212,"gpu":0,"phases":[{"from":0,"to":600,"demand":0.3,"memory_bytes":1073741824}]}"#;

fn frame(persona: &str, gpu: &str) -> Frame {
    Node::new(Some(persona), gpu, TWO).frame()
}

fn newest(gpu: &str) -> Frame {
    Node::new(None, gpu, TWO).frame()
}

fn read(frame: &Frame, point: PointId) -> Reading {
    frame.readings[point]
}

fn listed(frame: &Frame) -> Vec<(u32, Option<Bytes>)> {
    frame.processes.as_ref().unwrap().iter().map(|process| (process.pid, process.memory)).collect()
}

const THEIRS: [(u32, Option<Bytes>); 2] =
    [(4211, Some(Bytes(21_474_836_480))), (4212, Some(Bytes(1_073_741_824)))];

const A100: &str = r#"{"profile":"a100"}"#;
const H100: &str = r#"{"profile":"h100"}"#;
const SLOWED: &str = r#"{"profile":"h100"}],"throttles":[
    {"from":0,"to":30,"gpu":0,"reason":"sw_thermal"},
    {"from":30,"to":50,"gpu":0,"reason":"hw_thermal"},
    {"from":50,"to":60,"gpu":0,"reason":"hw_power_brake"}"#;

const TOTAL: PointId = first_point("gpu_memory_total_bytes");
const USED: PointId = first_point("gpu_memory_used_bytes");
const FREE: PointId = first_point("gpu_memory_free_bytes");
const RESERVED: PointId = first_point("gpu_memory_reserved_bytes");

#[test]
fn early_535_lists_processes_with_their_pids_and_memory() {
    for gpu in [A100, H100] {
        let frame = frame("early_535", gpu);
        assert_eq!(listed(&frame), THEIRS);
        let asked: Vec<_> = frame.calls.iter().map(|call| call.function).collect();
        assert!(asked.contains(&"nvmlDeviceGetComputeRunningProcesses_v2"), "{asked:?}");
        assert!(!asked.contains(&"nvmlDeviceGetComputeRunningProcesses_v3"), "{asked:?}");
    }
}

#[test]
fn every_driver_lists_the_same_processes() {
    for (persona, gpu) in
        [("r470", A100), ("r535_98", A100), ("r545_double_tag", A100), ("r580_ids", H100), ("r590", H100)]
    {
        assert_eq!(listed(&frame(persona, gpu)), THEIRS, "{persona}");
    }
}

#[test]
fn r470_reports_memory_without_a_reserve() {
    let (old, new) = (frame("r470", A100), newest(A100));
    assert_eq!(read(&old, RESERVED), Err(Absence::NoSymbol));
    let reserve = read(&new, RESERVED).unwrap();
    assert!(reserve > 0);
    // That driver leaves reserved memory out of the total: an A30 has 24258 MiB there, and 24576 since.
    assert_eq!(read(&old, USED), read(&new, USED));
    assert_eq!(read(&old, FREE), read(&new, FREE));
    assert_eq!(read(&old, TOTAL).unwrap() + reserve, read(&new, TOTAL).unwrap());
    assert_eq!(read(&old, TOTAL).unwrap(), read(&old, USED).unwrap() + read(&old, FREE).unwrap());
}

#[test]
fn r545_reports_a_plausible_memory_temperature() {
    const MEMORY: PointId = point("gpu_temperature_celsius", "memory");
    for gpu in [A100, H100] {
        let temperature = read(&frame("r545_double_tag", gpu), MEMORY);
        assert_eq!(temperature, read(&newest(gpu), MEMORY));
        assert!((30_000..90_000).contains(&temperature.unwrap()), "{temperature:?}");
    }
}

#[test]
fn gb10_reports_process_memory_and_no_memory_of_its_own() {
    let frame = frame("gb10", H100);
    assert_eq!(frame.identity.memory, Some(MemoryKind::Unified));
    assert_eq!(newest(H100).identity.memory, Some(MemoryKind::Device));
    for point in [TOTAL, USED, FREE, RESERVED] {
        assert_eq!(read(&frame, point), Err(Absence::NotSupported));
    }
    assert_eq!(listed(&frame), THEIRS);
}

#[test]
fn r580_counts_throttled_time_under_old_and_new_field_ids() {
    const SECOND: i64 = 1_000_000_000;
    let (old, new) = (frame("r580_ids", SLOWED), newest(SLOWED));
    for (reason, seconds) in [
        (point("gpu_throttle_seconds_total", "sw_thermal_slowdown"), 30),
        (point("gpu_throttle_seconds_total", "hw_thermal_slowdown"), 20),
        (point("gpu_throttle_seconds_total", "hw_power_brake"), 10),
    ] {
        assert_eq!(read(&old, reason), Ok(seconds * SECOND));
        assert_eq!(read(&new, reason), Ok(seconds * SECOND));
    }
}

#[test]
fn r590_reports_remapped_rows_by_the_first_version() {
    const CORRECTABLE: PointId = point("gpu_remapped_rows", "correctable");
    let frame = frame("r590", H100);
    assert_eq!(read(&frame, CORRECTABLE), Ok(0));
}

#[test]
fn r470_counts_active_links_one_by_one() {
    const UP: PointId = first_point("gpu_nvlink_links_up");
    let (old, new) = (frame("r470", A100), newest(A100));
    assert_eq!(read(&old, UP), read(&new, UP));
    assert!(read(&new, UP).unwrap() > 0);
    let asked =
        |frame: &Frame| frame.calls.iter().filter(|call| call.function == "nvmlDeviceGetNvLinkState").count();
    assert!(asked(&old) > 0 && asked(&new) == 0);
}

#[test]
fn limits_are_temperatures_where_the_driver_reports_no_distances() {
    const LIMIT: PointId = point("gpu_temperature_limit_celsius", "slowdown");
    const MARGIN: PointId = point("gpu_temperature_margin_celsius", "slowdown");
    // This driver has no distance fields.
    let oldest = frame("r470", H100);
    assert!((80_000..100_000).contains(&read(&oldest, LIMIT).unwrap()));
    // This driver has them, but does not support any of them here.
    let old = frame("early_535", H100);
    assert!(read(&old, LIMIT).is_err() && read(&old, MARGIN).is_err());
    assert!(read(&newest(H100), MARGIN).is_ok());
}
