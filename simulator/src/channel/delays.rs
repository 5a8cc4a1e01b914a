//! Realistic call times, for scenarios with `delays: realistic`.
//!
//! Most calls take a few microseconds, and no sleep is that short. So their times are summed for each GPU and
//! slept once they reach 0.1 ms, minus what the sleep before took too long, up to 0.1 ms: single calls return at
//! once and the sum is right. On a busy machine calls take longer, and none returns at once for it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Nanoseconds of debt at which a call sleeps.
const ENOUGH: i64 = 100_000;
/// Nanoseconds of a call that only reads the driver's memory.
const CHEAP: i64 = 2_500;
/// Nanoseconds of a call to the GPU's own processor: 499 to 706 us in the history printed with an XID 119.
const GSP: i64 = 500_000;
/// Nanoseconds of a batch of fields, and of each field in it.
const BATCH: i64 = 20_000;
const FIELD: i64 = 2_000;

/// Call time in nanoseconds that is not slept yet, of one GPU or of the calls without one.
#[derive(Default)]
pub(crate) struct Debt(AtomicI64);

impl Debt {
    /// Adds the time of a call and sleeps if enough is owed; returns the nanoseconds added.
    pub(crate) fn call(&self, function: &str) -> u64 {
        self.owe(cost(function))
    }

    /// Adds the time of a batch's fields; returns the nanoseconds added.
    pub(crate) fn fields(&self, count: usize) -> u64 {
        self.owe(FIELD.saturating_mul(i64::try_from(count.min(1_000)).unwrap_or(0)))
    }

    fn owe(&self, cost: i64) -> u64 {
        let owed = self.0.fetch_add(cost, Ordering::Relaxed).saturating_add(cost);
        if owed >= ENOUGH {
            self.pay(owed);
        }
        cost.unsigned_abs()
    }

    fn pay(&self, owed: i64) {
        // This thread sleeps for the whole debt, so others start from 0.
        self.0.fetch_sub(owed, Ordering::Relaxed);
        let begun = Instant::now();
        thread::sleep(Duration::from_nanos(owed.unsigned_abs()));
        let slept = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.0.fetch_sub(slept.saturating_sub(owed).min(ENOUGH), Ordering::Relaxed);
    }
}

/// Nanoseconds of a call. Utilization, memory, fan and the graphics list were measured on real boards; PCIe
/// traffic is from the header; the rest is estimated between them.
fn cost(function: &str) -> i64 {
    match function {
        "nvmlDeviceGetUtilizationRates" => CHEAP,
        "nvmlDeviceGetMemoryInfo" | "nvmlDeviceGetMemoryInfo_v2" | "nvmlDeviceGetBAR1MemoryInfo" => 11_600,
        "nvmlDeviceGetFanSpeed" | "nvmlDeviceGetFanSpeed_v2" | "nvmlDeviceGetFanSpeedRPM" => 137_000,
        "nvmlDeviceGetPcieThroughput" => 20_000_000,
        "nvmlDeviceGetFieldValues" => BATCH,
        "nvmlEventSetWait" | "nvmlEventSetWait_v2" | "nvmlGpmMetricsGet" => 0,
        _ if function.contains("GraphicsRunningProcesses") => 4_491_000,
        _ if function.contains("RunningProcess") => 300_000,
        _ if GSP_CALLS.iter().any(|part| function.contains(part)) => GSP,
        _ => CHEAP,
    }
}

/// Parts of the names of functions that call the GPU's own processor.
const GSP_CALLS: &[&str] = &[
    "PowerUsage",
    "Temperature",
    "ThermalSettings",
    "TotalEnergyConsumption",
    "ClockInfo",
    "ClocksEventReasons",
    "ClocksThrottleReasons",
    "ViolationStatus",
    "EccErrors",
    "MemoryErrorCounter",
    "SramEccErrorStatus",
    "RemappedRows",
    "RowRemapper",
    "RetiredPages",
    "NvLink",
    "GpmSampleGet",
    "GpmMigSampleGet",
    "ProcessUtilization",
    "ProcessesUtilization",
    "Samples",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_are_slept_together() {
        let debt = Debt::default();
        let begun = Instant::now();
        for _ in 0..2_000 {
            debt.call("nvmlDeviceGetMemoryInfo");
        }
        let took = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let left = debt.0.load(Ordering::Relaxed);
        assert!(left < ENOUGH && took + left >= 2_000 * 11_600, "{took} {left}");
    }

    #[test]
    fn time_slept_too_long_is_subtracted() {
        let debt = Debt(AtomicI64::new(-1_000_000));
        for _ in 0..50 {
            debt.call("nvmlDeviceGetMemoryInfo");
        }
        debt.fields(4);
        assert_eq!(debt.0.load(Ordering::Relaxed), -1_000_000 + 50 * 11_600 + 4 * 2_000);
    }

    #[test]
    fn functions_take_the_measured_times() {
        assert_eq!(cost("nvmlDeviceGetUtilizationRates"), 2_500);
        assert_eq!(cost("nvmlDeviceGetGraphicsRunningProcesses_v3"), 4_491_000);
        assert_eq!(cost("nvmlDeviceGetComputeRunningProcesses_v3"), 300_000);
        assert_eq!(cost("nvmlDeviceGetPcieThroughput"), 20_000_000);
        assert_eq!(cost("nvmlDeviceGetPowerUsage"), 500_000);
        assert_eq!(cost("nvmlDeviceGetIndex"), 2_500);
    }
}
