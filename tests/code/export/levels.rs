//! How many series a GPU has at each level, on the board that supports most.

use std::sync::Arc;

use gpumeter::model::Absence;
use gpumeter::model::catalogue::{InstanceValue, IntegralOf, Level, Point, Rows, device_points, integral_of};
use gpumeter::model::snapshot::{AgentEntry, Snapshot};

use super::fixture;
use super::record::{Visit, visits};

/// What a GB200 with all its NVLinks lacks: limit temperatures, a fan, retired pages.
const GB200: &[&str] = &[
    "gpu_temperature_limit_celsius",
    "gpu_fan_speed_ratio",
    "gpu_retired_pages",
    "gpu_retired_pages_pending",
];

/// Link errors of NVLink up to the fourth generation, and from the fifth on.
const OF_NVLINK_4: &[&str] = &["crc_flit", "crc_data", "replay"];
const OF_NVLINK_5: &[&str] = &[
    "malformed_packet",
    "buffer_overrun",
    "receive",
    "local_integrity",
    "recovery_failed",
    "effective",
    "symbol",
];

/// What an H100 lacks beside that: the families of Grace.
const H100: &[&str] = &[
    "gpu_temperature_limit_celsius",
    "gpu_fan_speed_ratio",
    "gpu_retired_pages",
    "gpu_retired_pages_pending",
    "gpu_module_power_watts",
    "gpu_module_power_instant_watts",
    "gpu_module_power_limit_watts",
    "gpu_cache_hit_ratio",
    "gpu_c2c_bytes_total",
    "gpu_c2c_payload_bytes_total",
    "gpu_fabric_health",
    "gpu_fabric_fault",
    "gpu_fabric_health_mask",
];

/// What an A100 lacks: GPM and distances to its limits.
const A100: &[&str] = &[
    "gpu_gr_engine_active_ratio",
    "gpu_sm_active_ratio",
    "gpu_sm_occupancy_ratio",
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "gpu_pipe_active_ratio",
    "gpu_video_engine_active_ratio",
    "gpu_context_switch_active_ratio",
    "gpu_cache_hit_ratio",
    "gpu_c2c_bytes_total",
    "gpu_c2c_payload_bytes_total",
    "gpu_memory_power_watts",
    "gpu_memory_power_instant_watts",
    "gpu_module_power_watts",
    "gpu_module_power_instant_watts",
    "gpu_module_power_limit_watts",
    "gpu_power_instant_watts",
    "gpu_temperature_margin_celsius",
    "gpu_fan_speed_ratio",
    "gpu_retired_pages",
    "gpu_retired_pages_pending",
    "gpu_fabric_state",
    "gpu_fabric_health",
    "gpu_fabric_fault",
    "gpu_fabric_health_mask",
];

/// What an A100 in MIG mode lacks beside that: activity of the whole GPU, and links.
const UNDER_MIG: &[&str] = &[
    "gpu_utilization_ratio",
    "gpu_memory_activity_ratio",
    "gpu_engine_utilization_ratio",
    "gpu_nvlink_links_up",
    "gpu_nvlink_links_expected",
    "gpu_nvlink_bytes_total",
    "gpu_nvlink_errors_total",
    "gpu_remapped_rows",
    "gpu_row_remap_pending",
    "gpu_row_remap_failure",
];

/// The kinds of link errors that a board without these families does not count.
fn uncounted(lacked: &[&'static str]) -> &'static [&'static str] {
    if lacked == GB200 { OF_NVLINK_4 } else { OF_NVLINK_5 }
}

/// A board without these families, in a rack, with all other readings known.
fn board(lacked: &[&'static str], level: Level) -> Snapshot {
    let mut snapshot = fixture::node(1, 0);
    let frame = Arc::get_mut(snapshot.gpus[0].frame.as_mut().unwrap()).unwrap();
    let counts = |point: &Point| {
        !point.labels.iter().any(|(name, kind)| *name == "kind" && uncounted(lacked).contains(kind))
    };
    for (reading, (family, point)) in frame.readings.iter_mut().zip(device_points()) {
        if lacked.contains(&family.name) || !counts(point) {
            *reading = Err(Absence::NotSupported);
        }
    }
    let identity = Arc::make_mut(&mut frame.identity);
    identity.mig = lacked.contains(&"gpu_utilization_ratio");
    if lacked.contains(&"gpu_fabric_state") {
        (identity.fabric, identity.platform) = (None, None);
    }
    if identity.mig {
        for instance in Arc::get_mut(&mut frame.instances).unwrap() {
            let ratios = InstanceValue::ALL.iter().filter(|value| value.is_ratio());
            ratios.for_each(|value| instance.readings[*value as usize] = Err(Absence::NotSupported));
        }
    } else {
        frame.instances = Arc::default();
    }
    let identity = Arc::clone(&frame.identity);
    let unsupported = gpumeter::meter::unsupported(frame, level);
    let readings = frame.readings.clone();
    for (number, integral) in snapshot.gpus[0].integrals.iter_mut().enumerate() {
        let (IntegralOf::Ratio(point) | IntegralOf::Flow(point)) = integral_of(number);
        *integral = readings[point].and(*integral);
    }
    if unsupported.iter().any(|(family, _)| *family == "gpu_busy_seconds_total") {
        snapshot.gpus[0].busy = Err(Absence::NotSupported);
    }
    let roster = Arc::get_mut(&mut snapshot.roster).unwrap();
    let gpu = &mut roster.gpus[0];
    // The number of instances depends on the layout.
    gpu.instances.clear();
    gpu.identity = identity;
    gpu.unsupported = unsupported;
    gpu.absence = None;
    let (index, uuid) = (Arc::clone(&gpu.index), Arc::clone(&gpu.id.uuid));
    let own = |family, more: &[(&'static str, &str)]| {
        let mut labels = vec![("gpu", Arc::clone(&index)), ("uuid", Arc::clone(&uuid))];
        labels.extend(more.iter().map(|(name, value)| (*name, Arc::from(*value))));
        AgentEntry { family, labels }
    };
    let gpm = |metric| own("gpumeter_source_info", &[("metric", metric), ("source", "gpm_counter")]);
    let counted =
        ["gpu_sm_active_seconds_total", "gpu_tensor_active_seconds_total", "gpu_pipe_active_seconds_total"];
    // Their absence is reported at level full.
    let counted = counted.into_iter().filter(|_| level == Level::Full);
    let mut agent = vec![
        own("gpumeter_last_sample_timestamp_seconds", &[]),
        own("gpumeter_driver_call_in_flight_seconds", &[("call", "nvmlDeviceGetUtilizationRates")]),
        own("gpumeter_source_info", &[("metric", "gpu_busy_seconds_total"), ("source", "gpm")]),
        own("gpumeter_source_info", &[("metric", "gpu_pcie_bytes_total"), ("source", "gpm")]),
        own("gpumeter_source_info", &[("metric", "gpu_power_watts"), ("source", "field")]),
    ];
    if !lacked.contains(&"gpu_sm_active_ratio") {
        agent.extend(counted.map(gpm));
    }
    roster.agent = agent.into();
    assert!(snapshot.agent.len() >= roster.agent.len(), "each family has a count");
    snapshot.agent.truncate(roster.agent.len());
    snapshot
}

/// Series of the GPU without those whose number depends on tenants, holdings and XIDs.
fn series(snapshot: &Snapshot, level: Level) -> Vec<Visit> {
    let mut visits = visits(snapshot, level);
    visits.retain(|visit| {
        let happens = matches!(visit.family.rows, Rows::Account(_));
        let of_one_xid = visit.family.labels.contains(&"xid");
        !happens && !of_one_xid && visit.family.labels.contains(&"gpu")
    });
    visits
}

fn names(visits: &[Visit]) -> String {
    visits.iter().map(|visit| format!("{} {:?}\n", visit.family.name, &visit.labels[2..])).collect()
}

#[test]
fn lean_has_at_most_40_series_per_gpu_and_standard_100() {
    for lacked in [GB200, H100, A100, &[A100, UNDER_MIG].concat()] {
        for (level, most) in [(Level::Lean, 40), (Level::Standard, 100)] {
            let series = series(&board(lacked, level), level);
            assert!(series.len() <= most, "{}: {} series\n{}", level.name(), series.len(), names(&series));
        }
        // The counts above are those of a board without absent readings.
        let full = series(&board(lacked, Level::Full), Level::Full).len();
        assert!(full > 200, "{full}");
    }
}

#[test]
fn each_level_includes_the_ones_below() {
    let snapshot = board(H100, Level::Full);
    let all: Vec<String> = Level::ALL.map(|level| names(&series(&snapshot, level))).into();
    for pair in all.windows(2) {
        assert!(pair[0].lines().all(|line| pair[1].lines().any(|other| other == line)));
        assert!(pair[0].len() < pair[1].len());
    }
}

#[test]
fn the_interval_of_all_gpus_has_no_gpu_and_that_of_one_names_it() {
    let mut snapshot = fixture::node(1, 0);
    let entry = |more: &[(&'static str, &str)]| AgentEntry {
        family: "gpumeter_sampling_interval_seconds",
        labels: [("tier", "slow")]
            .iter()
            .chain(more)
            .map(|(name, value)| (*name, Arc::from(*value)))
            .collect(),
    };
    let roster = Arc::get_mut(&mut snapshot.roster).unwrap();
    roster.agent = [entry(&[]), entry(&[("gpu", "0"), ("uuid", "GPU-1")])].into();
    snapshot.agent.truncate(2);
    let visits = visits(&snapshot, Level::Lean);
    let shown = visits.iter().filter(|visit| visit.family.name == "gpumeter_sampling_interval_seconds");
    let names: Vec<Vec<_>> =
        shown.map(|visit| visit.labels.iter().map(|(name, _)| name.to_string()).collect()).collect();
    assert_eq!(names, [vec!["tier"], vec!["tier", "gpu", "uuid"]]);
}
