//! The readings of a GPU for people, and what limits it now.

use super::summarize::{count, ratio, rounded};
use super::summary::GpuReadings;
use crate::model::catalogue::{
    KnownPoint, POWER_CAP, THROTTLE_REASONS, ThrottleReason, known_point, points_of,
};
use crate::model::snapshot::GpuState;
use crate::model::{Absence, Reading, SumOfReadings};

const SM_ACTIVE: KnownPoint = known_point("gpu_sm_active_ratio", None);
const TENSOR_ACTIVE: KnownPoint = known_point("gpu_tensor_active_ratio", None);
const DRAM_ACTIVE: KnownPoint = known_point("gpu_dram_active_ratio", None);
const MEMORY_USED: KnownPoint = known_point("gpu_memory_used_bytes", None);
const MEMORY_TOTAL: KnownPoint = known_point("gpu_memory_total_bytes", None);
const POWER: KnownPoint = known_point("gpu_power_watts", None);
const POWER_LIMIT: KnownPoint = known_point("gpu_power_limit_watts", Some("enforced"));
const TEMPERATURE: KnownPoint = known_point("gpu_temperature_celsius", Some("gpu"));
const MEMORY_TEMPERATURE: KnownPoint = known_point("gpu_temperature_celsius", Some("memory"));
const SLOWDOWN: KnownPoint = known_point("gpu_temperature_limit_celsius", Some("slowdown"));
const SLOWDOWN_MARGIN: KnownPoint = known_point("gpu_temperature_margin_celsius", Some("slowdown"));
const SM_CLOCK: KnownPoint = known_point("gpu_clock_hertz", Some("sm"));

fn read(state: &GpuState, point: KnownPoint) -> Reading {
    state.reading(point.id, point.tier)
}

/// A reading in its base unit.
fn real(state: &GpuState, point: KnownPoint) -> Option<f64> {
    let value = read(state, point).ok()?;
    Some(rounded(value as f64 / 10_f64.powi(point.unit.decimals().into())))
}

fn ecc_errors(state: &GpuState, of: &'static str) -> Option<u64> {
    let labels = [("type", of)];
    let parts = points_of("gpu_ecc_errors_total", &labels).map(|(id, tier)| state.reading(id, tier));
    parts.collect::<SumOfReadings>().whole().and_then(|sum| u64::try_from(sum).ok())
}

pub(super) fn read_gpu(state: &GpuState) -> GpuReadings {
    let activity = if state.is_up() { state.activity } else { Err(Absence::Stale) };
    let temperature = real(state, TEMPERATURE);
    let margin = || Some(temperature? + real(state, SLOWDOWN_MARGIN)?);
    let throttled = THROTTLE_REASONS.iter().filter(|reason| read(state, reason.point) == Ok(1));
    GpuReadings {
        activity: ratio(activity),
        sm_active: ratio(read(state, SM_ACTIVE)),
        tensor_active: ratio(read(state, TENSOR_ACTIVE)),
        dram_active: ratio(read(state, DRAM_ACTIVE)),
        memory_used: count(read(state, MEMORY_USED)),
        memory_total: count(read(state, MEMORY_TOTAL)),
        power: real(state, POWER),
        power_limit: real(state, POWER_LIMIT),
        temperature,
        memory_temperature: real(state, MEMORY_TEMPERATURE),
        temperature_limit: real(state, SLOWDOWN).or_else(margin),
        sm_clock: count(read(state, SM_CLOCK)),
        throttled_by: throttled.map(|reason| reason.name.to_owned()).collect(),
        ecc_corrected: ecc_errors(state, "corrected"),
        ecc_uncorrected: ecc_errors(state, "uncorrected"),
    }
}

/// From this share of time on, the memory of a GPU is busy; below `WAITING`, a GPU waits for work.
const MEMORY_BUSY: f64 = 0.8;
const WAITING: f64 = 0.01;

/// What limits a GPU now: its kind, and the words for it. `is_busy` is what its history says, and
/// `is_unused` that no process is known there.
pub(super) fn limit(
    state: &GpuState,
    readings: &GpuReadings,
    is_busy: bool,
    is_unused: bool,
) -> (&'static str, String) {
    if !state.is_up() {
        return ("unknown", "it does not answer".to_owned());
    }
    let active = |reason: &str| readings.throttled_by.iter().any(|active| active == reason);
    if let Some(ThrottleReason { name, words, .. }) = THROTTLE_REASONS.iter().find(|one| active(one.name)) {
        let detail = match (*name, readings) {
            (POWER_CAP, GpuReadings { power: Some(power), power_limit: Some(limit), .. }) => {
                format!(": {power:.0} of {limit:.0} W")
            }
            (reason, GpuReadings { temperature: Some(celsius), .. }) if reason.contains("thermal") => {
                format!(" at {celsius:.0} °C")
            }
            _ => String::new(),
        };
        return ("throttled", format!("{words}{detail}"));
    }
    match (readings.activity, readings.dram_active) {
        (None, _) => ("unknown", "its activity is not measured".to_owned()),
        (Some(busy), _) if busy < WAITING && is_unused => ("idle", "nothing: nobody uses it".to_owned()),
        (Some(busy), _) if busy < WAITING => ("idle", "nothing: its processes do no work".to_owned()),
        (Some(_), Some(memory)) if memory >= MEMORY_BUSY => {
            ("busy", format!("memory bandwidth: busy {:.0} % of the time", memory * 100.0))
        }
        (Some(busy), _) if is_busy => ("busy", format!("compute: busy {:.0} % of the time", busy * 100.0)),
        (Some(busy), _) => {
            ("waiting", format!("its program: idle {:.0} % of the time", (1.0 - busy) * 100.0))
        }
    }
}
