//! The names of dcgm-exporter: what of the catalogue each shows, and why some cannot be served.
//!
//! A name that is a linear function of one family is an alias of that family's row ([`super::Alias`]); the others are here.

use std::sync::LazyLock;

use super::{Alias, Family, FirstNumbers, GpuRows, InstanceRows, PointId, Profile, Rows, numbered_families};
use crate::model::Unit;
use crate::model::frame::Tier;
use crate::model::snapshot::CLOCK_EVENT_COUNT;

/// The counters that are on the page unless the operator has a file of his own.
pub const DEFAULT_COUNTERS: &str = include_str!("dcgm/default-counters.csv");

/// The time that the `…_COUNT` metrics of events look back over, in milliseconds; dcgm-exporter's default.
pub const WINDOW_MS: u64 = 300_000;

/// What a name of dcgm-exporter shows.
#[derive(Clone, Debug)]
pub enum DcgmMetric {
    Values(DcgmValues),
    /// The XID that was seen last since the agent's start, 0 before the first one.
    LastXid,
    /// XIDs by code, in the last [`WINDOW_MS`] or since counting began.
    Xids(EventPeriod),
    /// Readings of the clocks with each event reason, in the last [`WINDOW_MS`] or since the agent's start.
    ClockEvents(EventPeriod),
    /// Used memory as a share of the memory that is not reserved.
    UsedMemoryRatio,
    GpuCount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPeriod {
    /// The last [`WINDOW_MS`].
    Window,
    Total,
}

/// The values that a name shows of a GPU, and of a MIG instance where the driver reports one of its own.
#[derive(Clone, Debug)]
pub struct DcgmValues {
    pub gpu: Option<ScaledValues>,
    pub instance: Option<ScaledValues>,
    /// Whether it is printed as a double, which dcgm-exporter does with six decimals; else as an integer.
    pub is_double: bool,
    /// Whether it is one of DCGM's profiling metrics, which it measures by MIG instance.
    pub is_profiling: bool,
    /// Which use of a process it is, where dcgm-exporter splits it by the pods that share a GPU.
    pub of_process: Option<ProcessUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessUse {
    Memory,
    /// Share of time in which its kernels ran, in percent.
    Multiprocessors,
}

#[derive(Clone, Debug)]
pub struct ScaledValues {
    pub family: &'static Family,
    pub places: Vec<ValuePlace>,
    /// Factor and divisor from an integer of the family's unit to the unit of the name.
    pub scale: (i128, i128),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePlace {
    Reading(PointId),
    /// The agent's total, by its integral number.
    Total(usize),
    /// The rate per second of one of [`RATED`], by its place there.
    Rate(usize),
    /// A reading of a MIG instance, by the order of its values.
    Instance(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatedValue {
    /// A [`ValuePlace::Reading`] or a [`ValuePlace::Total`].
    pub place: ValuePlace,
    pub tier: Tier,
}

pub static RATED: LazyLock<Vec<RatedValue>> = LazyLock::new(|| {
    let aliases = dcgm_aliases().filter(|(_, _, alias)| alias.rate);
    let mut rated: Vec<RatedValue> = Vec::new();
    for (family, first, alias) in aliases {
        for place in places(family, first, alias) {
            let value = RatedValue { place, tier: family.tier };
            if !rated.contains(&value) {
                rated.push(value);
            }
        }
    }
    rated
});

fn dcgm_aliases() -> impl Iterator<Item = (&'static Family, FirstNumbers, &'static Alias)> {
    numbered_families().flat_map(|(family, first)| {
        let own = family.aliases.iter().filter(|alias| alias.profile == Profile::Dcgm);
        own.map(move |alias| (family, first, alias))
    })
}

fn places(family: &Family, first: FirstNumbers, alias: &Alias) -> Vec<ValuePlace> {
    let is_selected = |labels: &[(&str, &str)]| alias.when.iter().all(|label| labels.contains(label));
    match &family.rows {
        Rows::Instance(InstanceRows::Read(points)) => points
            .iter()
            .filter(|point| is_selected(point.labels))
            .map(|point| ValuePlace::Instance(point.value as usize))
            .collect(),
        rows => {
            let is_total = matches!(rows, Rows::Gpu(GpuRows::Flow(_)));
            super::points_of(family.name, alias.when)
                .map(|(point, _)| match is_total {
                    true => ValuePlace::Total(first.integral + point - first.point),
                    false => ValuePlace::Reading(point),
                })
                .collect()
        }
    }
}

pub fn dcgm_metric(name: &str) -> Option<DcgmMetric> {
    let name = modern(name);
    Some(match name {
        "DCGM_FI_DEV_XID_ERRORS" => DcgmMetric::LastXid,
        "DCGM_EXP_XID_ERRORS_COUNT" => DcgmMetric::Xids(EventPeriod::Window),
        "DCGM_EXP_XID_ERRORS_TOTAL" => DcgmMetric::Xids(EventPeriod::Total),
        "DCGM_EXP_CLOCK_EVENTS_COUNT" => DcgmMetric::ClockEvents(EventPeriod::Window),
        "DCGM_EXP_CLOCK_EVENTS_TOTAL" => DcgmMetric::ClockEvents(EventPeriod::Total),
        // The second is its name since DCGM 4.5.
        "DCGM_FI_DEV_FB_USED_PERCENT" | "DCGM_FI_DEV_FB_USED_RATIO" => DcgmMetric::UsedMemoryRatio,
        "DCGM_FI_DEV_COUNT" => DcgmMetric::GpuCount,
        _ => DcgmMetric::Values(values(name)?),
    })
}

const PROFILING: &str = "DCGM_FI_PROF_";

fn values(name: &str) -> Option<DcgmValues> {
    let mut found = DcgmValues {
        gpu: None,
        instance: None,
        is_double: false,
        is_profiling: name.starts_with(PROFILING),
        of_process: match name {
            "DCGM_FI_DEV_FB_USED" => Some(ProcessUse::Memory),
            "DCGM_FI_DEV_GPU_UTIL" => Some(ProcessUse::Multiprocessors),
            _ => None,
        },
    };
    for (family, first, alias) in dcgm_aliases().filter(|(_, _, alias)| alias.name == name) {
        let mut places = places(family, first, alias);
        if alias.rate {
            let rate = |place| RATED.iter().position(|rated| rated.place == place).map(ValuePlace::Rate);
            places = places.into_iter().filter_map(rate).collect();
        }
        let one = 10_i128.pow(family.unit.decimals().into());
        let (factor, divisor) = alias.scale;
        let scale = (factor.into(), one * i128::from(divisor));
        found.is_double |= is_double(family, alias);
        let side =
            if matches!(family.rows, Rows::Instance(_)) { &mut found.instance } else { &mut found.gpu };
        // Names of two families would need a rule which of them counts; the tests call this for every name.
        debug_assert!(side.is_none(), "{name}");
        *side = Some(ScaledValues { family, places, scale });
    }
    (found.gpu.is_some() || found.instance.is_some()).then_some(found)
}

/// DCGM's doubles: watts, and the shares of time of its profiling; its other fields are integers (dcgm_fields.cpp).
fn is_double(family: &Family, alias: &Alias) -> bool {
    family.unit == Unit::Watts || (family.unit == Unit::Ratio && alias.name.starts_with(PROFILING))
}

/// The reasons for the clocks of a GPU as dcgm-exporter names them, by the bit of NVML's mask.
pub const CLOCK_EVENTS: [&str; CLOCK_EVENT_COUNT] = [
    "gpu_idle",
    "clocks_setting",
    "power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
];

pub fn dcgm_refusal(name: &str) -> &'static str {
    let because = [
        (
            "DCGM_EXP_GPU_HEALTH_STATUS",
            "it is the result of DCGM's own health checks; gpu_health is gpumeter's",
        ),
        ("DCGM_EXP_P2P_STATUS", "links between pairs of GPUs are not read; see gpu_nvlink_links_up"),
        ("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "an idle GPU is not throttled, so its time is not read"),
        ("DCGM_FI_DEV_VGPU_", "vGPU is not read"),
        ("DCGM_FI_DEV_VIRTUAL_MODE", "vGPU is not read"),
        ("DCGM_FI_DEV_NVSWITCH_", "NVSwitches are not read"),
        ("DCGM_FI_DEV_CPU_", "CPUs are not read; node_exporter does that"),
        ("DCGM_FI_DEV_CONNECTX_", "network cards are not read; node_exporter does that"),
        ("DCGM_FI_PROF_", "NVML's GPU performance monitoring has no such value"),
        (
            "DCGM_FI_DEV_NVLINK_",
            "it is not read; gpu_nvlink_link_bytes_total and gpu_nvlink_link_errors_total are by link",
        ),
        ("DCGM_FI_BIND_UNBIND_EVENT", "the agent follows GPUs that come and go by itself; see gpu_present"),
        ("DCGM_FI_", "gpumeter does not read it"),
        ("DCGM_EXP_", "gpumeter does not compute it"),
    ];
    let known = because.iter().find(|(beginning, _)| modern(name).starts_with(beginning));
    known.map_or("it is no field of DCGM", |(_, reason)| reason)
}

/// The name of today for one of dcgm-exporter 1.x.
fn modern(name: &str) -> &str {
    const RENAMED: [(&str, &str); 20] = [
        ("dcgm_sm_clock", "DCGM_FI_DEV_SM_CLOCK"),
        ("dcgm_memory_clock", "DCGM_FI_DEV_MEM_CLOCK"),
        ("dcgm_memory_temp", "DCGM_FI_DEV_MEMORY_TEMP"),
        ("dcgm_gpu_temp", "DCGM_FI_DEV_GPU_TEMP"),
        ("dcgm_power_usage", "DCGM_FI_DEV_POWER_USAGE"),
        ("dcgm_total_energy_consumption", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        ("dcgm_pcie_replay_counter", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
        ("dcgm_gpu_utilization", "DCGM_FI_DEV_GPU_UTIL"),
        ("dcgm_mem_copy_utilization", "DCGM_FI_DEV_MEM_COPY_UTIL"),
        ("dcgm_enc_utilization", "DCGM_FI_DEV_ENC_UTIL"),
        ("dcgm_dec_utilization", "DCGM_FI_DEV_DEC_UTIL"),
        ("dcgm_xid_errors", "DCGM_FI_DEV_XID_ERRORS"),
        ("dcgm_fb_free", "DCGM_FI_DEV_FB_FREE"),
        ("dcgm_fb_used", "DCGM_FI_DEV_FB_USED"),
        ("dcgm_nvlink_bandwidth_total", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
        ("dcgm_fi_prof_gr_engine_active", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ("dcgm_fi_prof_pipe_tensor_active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
        ("dcgm_fi_prof_dram_active", "DCGM_FI_PROF_DRAM_ACTIVE"),
        ("dcgm_fi_prof_pcie_tx_bytes", "DCGM_FI_PROF_PCIE_TX_BYTES"),
        ("dcgm_fi_prof_pcie_rx_bytes", "DCGM_FI_PROF_PCIE_RX_BYTES"),
    ];
    RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new)
}

impl DcgmMetric {
    pub fn needs_gpm(&self) -> bool {
        matches!(self, Self::Values(DcgmValues { gpu: Some(scaled), .. }) if scaled.family.needs_gpm())
    }

    /// Whether it is a rate or a count of events, which are kept for the configured page only.
    pub fn needs_history(&self) -> bool {
        match self {
            Self::Values(DcgmValues { gpu, .. }) => gpu
                .as_ref()
                .is_some_and(|scaled| scaled.places.iter().any(|place| matches!(place, ValuePlace::Rate(_)))),
            Self::LastXid | Self::Xids(_) | Self::ClockEvents(_) => true,
            Self::UsedMemoryRatio | Self::GpuCount => false,
        }
    }

    /// The families that it needs read, beside those that are read anyway.
    pub fn families(&self) -> impl Iterator<Item = &'static Family> {
        let values = match self {
            Self::Values(values) => [&values.gpu, &values.instance].map(Option::as_ref),
            _ => [None; 2],
        };
        let named = match self {
            Self::ClockEvents(_) => &[CLOCK_EVENT_REASONS] as &[_],
            Self::UsedMemoryRatio => &["gpu_memory_reserved_bytes"],
            _ => &[],
        };
        let own = values.into_iter().flatten().map(|scaled| scaled.family);
        own.chain(named.iter().filter_map(|name| super::family(name)))
    }
}

pub const CLOCK_EVENT_REASONS: &str = "gpu_clock_event_reasons";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_is_a_metric_with_places_and_one_unit() {
        for (family, _, alias) in dcgm_aliases() {
            let Some(DcgmMetric::Values(values)) = dcgm_metric(alias.name) else {
                panic!("{} of {}", alias.name, family.name)
            };
            for scaled in [&values.gpu, &values.instance].into_iter().flatten() {
                assert!(!scaled.places.is_empty(), "{}", alias.name);
            }
        }
    }

    #[test]
    fn rates_are_those_of_links() {
        let names: Vec<_> =
            dcgm_aliases().filter(|(.., alias)| alias.rate).map(|(.., alias)| alias.name).collect();
        assert!(
            names.contains(&"DCGM_FI_PROF_PCIE_TX_BYTES") && names.contains(&"DCGM_FI_PROF_NVLINK_RX_BYTES")
        );
        // PCIe, NVLink, C2C, its payload and 18 single links, in both directions; several names may show one of them.
        assert_eq!(RATED.len(), 8 + 2 * 18);
    }

    #[test]
    fn bandwidth_of_nvlinks_is_what_dcgm_4_calls_megabytes_per_second() {
        for name in [
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_L17",
            "dcgm_nvlink_bandwidth_total",
        ] {
            let Some(DcgmMetric::Values(DcgmValues { gpu: Some(scaled), .. })) = dcgm_metric(name) else {
                panic!("{name}")
            };
            assert!(
                matches!(scaled.places[..], [ValuePlace::Rate(_), ValuePlace::Rate(_)]),
                "{name}: {scaled:?}"
            );
            // KiB per second over 1000.
            assert_eq!(scaled.scale, (1, 1_024_000), "{name}");
        }
    }

    #[test]
    fn a_refused_name_has_a_reason() {
        for (name, reason) in [
            ("DCGM_FI_PROF_UNKNOWN", "no such value"),
            ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "vGPU"),
            ("DCGM_FI_DEV_BRAND", "does not read it"),
            ("gpu_temp", "no field of DCGM"),
        ] {
            assert!(dcgm_metric(name).is_none(), "{name}");
            assert!(dcgm_refusal(name).contains(reason), "{name}");
        }
    }

    #[test]
    fn names_of_1_x_show_what_they_are_called_today() {
        assert!(matches!(dcgm_metric("dcgm_xid_errors"), Some(DcgmMetric::LastXid)));
        assert!(matches!(dcgm_metric("dcgm_gpu_temp"), Some(DcgmMetric::Values(_))));
    }
}
