//! Which meter serves the metrics whose exactness depends on it, as `gpumeter_source_info` says.
//!
//! In goes a GPU as the meter follows it, out come pairs of family and source. It does not know the labels.

use super::Gpu;
use super::since::Since;
use crate::catalogue::{InstanceValue, Level, PointId, first_integral, first_point};
use crate::model::{Absence, Via};

/// Family and source of what is read of the GPU up to a level.
pub(super) fn sources(gpu: &Gpu, level: Level) -> Vec<(&'static str, &'static str)> {
    let busy = gpu.account.source().map(|source| ("gpu_busy_seconds_total", source.name()));
    let via = gpu.frame.as_deref().map(|frame| &*frame.identity.via).unwrap_or_default();
    let by = |point: PointId| via.get(point).copied().flatten().map(Via::name);
    let power = by(POWER).map(|name| ("gpu_power_watts", name));
    let totals = TOTALS.iter().filter(|total| total.told <= level).filter_map(|total| {
        // What is not read at this level is counted no more, either.
        let otherwise = by(total.rate)?;
        let counts = gpu.since.get(total.integral).is_some_and(Since::is_in_force);
        Some((total.family, if counts { COUNTER } else { otherwise }))
    });
    // All instances of a GPU are read alike.
    let instance = gpu.frame.as_deref().and_then(|frame| frame.instances.first());
    let instance = instance.filter(|_| level >= Level::Standard);
    let of_instance = INSTANCE_TOTALS.iter().filter_map(|(family, value)| {
        let (instance, value) = (instance?, *value as usize);
        let is_read = !instance.readings.get(value)?.is_err_and(Absence::is_permanent);
        let since = gpu.instances_since.get(&instance.identity.id.gpu_instance);
        let counts = since.and_then(|since| since.get(value)).is_some_and(Since::is_in_force);
        is_read.then_some((*family, if counts { COUNTER } else { Via::Gpm.name() }))
    });
    busy.into_iter().chain(power).chain(totals).chain(of_instance).collect()
}

const POWER: PointId = first_point("gpu_power_watts");

/// The source of a total that goes by GPM's own counter.
const COUNTER: &str = "gpm_counter";

/// A total that a counter may tell exactly.
struct Total {
    family: &'static str,
    /// From which level on its source is told: a node with many GPUs pays for each row.
    told: Level,
    /// The first of its integrals.
    integral: usize,
    /// The first point of what else tells it.
    rate: PointId,
}

impl Total {
    const fn new(family: &'static str, told: Level, rate: &str) -> Self {
        Self { family, told, integral: first_integral(family), rate: first_point(rate) }
    }
}

const TOTALS: [Total; 4] = [
    Total::new("gpu_pcie_bytes_total", Level::Standard, "gpu_pcie_bytes_total"),
    Total::new("gpu_sm_active_seconds_total", Level::Full, "gpu_sm_active_ratio"),
    Total::new("gpu_tensor_active_seconds_total", Level::Full, "gpu_tensor_active_ratio"),
    Total::new("gpu_pipe_active_seconds_total", Level::Full, "gpu_pipe_active_ratio"),
];

/// The same of MIG instances.
const INSTANCE_TOTALS: [(&str, InstanceValue); 2] = [
    ("gpu_mig_sm_active_seconds_total", InstanceValue::SmActive),
    ("gpu_mig_tensor_active_seconds_total", InstanceValue::TensorActive),
];
