//! The names under which others know the same quantities: dcgm-exporter's, and OpenTelemetry's hardware conventions.
//!
//! Data for an exporter of those names; it does not know how they are printed. What is no linear function of one
//! of our families has no row: the last XID's code as a value (DCGM_FI_DEV_XID_ERRORS; ours tell it as a label), used
//! memory as a share, states as numbers.

/// Whose names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// dcgm-exporter's default and optional counters.
    Dcgm,
    /// OpenTelemetry's semantic conventions for hardware.
    Otel,
}

impl Profile {
    /// The word in configuration and documentation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dcgm => "dcgm",
            Self::Otel => "otel",
        }
    }
}

/// How a profile declares a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instrument {
    /// A momentary value.
    Gauge,
    /// A value that only grows.
    Counter,
    /// A sum that may shrink; only OpenTelemetry tells it from a gauge.
    UpDownCounter,
}

/// One name of a profile.
#[derive(Debug)]
pub struct Alias {
    /// Whose name.
    pub profile: Profile,
    /// The name.
    pub name: &'static str,
    /// Its declared type.
    pub kind: Instrument,
    /// The family that it shows.
    pub of: &'static str,
    /// The labels that choose among the family's series; what is chosen is added up, except over labels renamed.
    pub when: &'static [(&'static str, &'static str)],
    /// Factor and divisor from the family's base unit to the alias' unit.
    pub scale: (u64, u64),
    /// Whether it is the growth per second of a counter.
    pub rate: bool,
    /// Labels of the alias: name and value, or name and `=` with the family's label whose value it takes.
    pub labels: &'static [(&'static str, &'static str)],
}

const GPU: (&str, &str) = ("hw.type", "gpu");

/// All names of all profiles.
pub const ALIASES: &[Alias] = &[
    dcgm("DCGM_FI_DEV_SM_CLOCK", "gpu_clock_hertz", &[("clock", "sm")]).over(1_000_000),
    dcgm("DCGM_FI_DEV_MEM_CLOCK", "gpu_clock_hertz", &[("clock", "memory")]).over(1_000_000),
    dcgm("DCGM_FI_DEV_MEMORY_TEMP", "gpu_temperature_celsius", &[("sensor", "memory")]),
    dcgm("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", &[("sensor", "gpu")]),
    dcgm("DCGM_FI_DEV_SLOWDOWN_TEMP", "gpu_temperature_limit_celsius", &[("limit", "slowdown")]),
    dcgm("DCGM_FI_DEV_SHUTDOWN_TEMP", "gpu_temperature_limit_celsius", &[("limit", "shutdown")]),
    dcgm("DCGM_FI_DEV_POWER_USAGE", "gpu_power_watts", &[]),
    dcgm("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gpu_power_limit_watts", &[("limit", "enforced")]),
    dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gpu_power_limit_watts", &[("limit", "requested")]),
    dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu_energy_joules_total", &[]).times(1_000).counter(),
    dcgm("DCGM_FI_DEV_PSTATE", "gpu_performance_state", &[]),
    dcgm("DCGM_FI_DEV_FAN_SPEED", "gpu_fan_speed_ratio", &[("fan", "0")]).times(100),
    dcgm("DCGM_FI_DEV_PCIE_LINK_GEN", "gpu_pcie_link_generation", &[]),
    dcgm("DCGM_FI_DEV_PCIE_LINK_WIDTH", "gpu_pcie_link_width", &[]),
    dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "gpu_pcie_replays_total", &[]).counter(),
    dcgm("DCGM_FI_PROF_PCIE_TX_BYTES", "gpu_pcie_bytes_total", &[("direction", "transmit")]).per_second(),
    dcgm("DCGM_FI_PROF_PCIE_RX_BYTES", "gpu_pcie_bytes_total", &[("direction", "receive")]).per_second(),
    dcgm("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", "gpu_pcie_bytes_total", &[("direction", "transmit")]).counter(),
    dcgm("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL", "gpu_pcie_bytes_total", &[("direction", "receive")]).counter(),
    dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu_nvlink_bytes_total", &[]).over(1_024).counter(),
    dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES", "gpu_nvlink_bytes_total", &[("direction", "transmit")]).per_second(),
    dcgm("DCGM_FI_PROF_NVLINK_RX_BYTES", "gpu_nvlink_bytes_total", &[("direction", "receive")]).per_second(),
    nvlink_errors("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", &[("kind", "crc_flit")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", &[("kind", "crc_data")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", &[("kind", "replay")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", &[("kind", "recovery")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", &[("kind", "receive")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", &[("kind", "recovery")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", &[("kind", "recovery_failed")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", &[("kind", "local_integrity")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", &[("kind", "symbol")]),
    nvlink_errors("DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", &[("kind", "effective")]),
    dcgm("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_ratio", &[]).times(100),
    dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", "gpu_memory_activity_ratio", &[]).times(100),
    dcgm("DCGM_FI_DEV_ENC_UTIL", "gpu_engine_utilization_ratio", &[("engine", "encoder")]).times(100),
    dcgm("DCGM_FI_DEV_DEC_UTIL", "gpu_engine_utilization_ratio", &[("engine", "decoder")]).times(100),
    dcgm("DCGM_FI_DEV_FB_TOTAL", "gpu_memory_total_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_DEV_FB_FREE", "gpu_memory_free_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_DEV_FB_RESERVED", "gpu_memory_reserved_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_DEV_BAR1_TOTAL", "gpu_bar1_total_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_DEV_BAR1_USED", "gpu_bar1_used_bytes", &[]).over(1 << 20),
    dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu_gr_engine_active_ratio", &[]),
    dcgm("DCGM_FI_PROF_SM_ACTIVE", "gpu_sm_active_ratio", &[]),
    dcgm("DCGM_FI_PROF_SM_OCCUPANCY", "gpu_sm_occupancy_ratio", &[]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gpu_tensor_active_ratio", &[]),
    dcgm("DCGM_FI_PROF_DRAM_ACTIVE", "gpu_dram_active_ratio", &[]),
    dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "fp64")]),
    dcgm("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "fp32")]),
    dcgm("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "fp16")]),
    dcgm("DCGM_FI_PROF_PIPE_INT_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "integer")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "tensor_imma")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "tensor_hmma")]),
    dcgm("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "gpu_pipe_active_ratio", &[("pipe", "tensor_dfma")]),
    video("DCGM_FI_PROF_NVDEC0_ACTIVE", &[("engine", "decoder"), ("number", "0")]),
    video("DCGM_FI_PROF_NVDEC1_ACTIVE", &[("engine", "decoder"), ("number", "1")]),
    video("DCGM_FI_PROF_NVDEC2_ACTIVE", &[("engine", "decoder"), ("number", "2")]),
    video("DCGM_FI_PROF_NVDEC3_ACTIVE", &[("engine", "decoder"), ("number", "3")]),
    video("DCGM_FI_PROF_NVDEC4_ACTIVE", &[("engine", "decoder"), ("number", "4")]),
    video("DCGM_FI_PROF_NVDEC5_ACTIVE", &[("engine", "decoder"), ("number", "5")]),
    video("DCGM_FI_PROF_NVDEC6_ACTIVE", &[("engine", "decoder"), ("number", "6")]),
    video("DCGM_FI_PROF_NVDEC7_ACTIVE", &[("engine", "decoder"), ("number", "7")]),
    video("DCGM_FI_PROF_NVJPG0_ACTIVE", &[("engine", "jpeg"), ("number", "0")]),
    video("DCGM_FI_PROF_NVJPG1_ACTIVE", &[("engine", "jpeg"), ("number", "1")]),
    video("DCGM_FI_PROF_NVJPG2_ACTIVE", &[("engine", "jpeg"), ("number", "2")]),
    video("DCGM_FI_PROF_NVJPG3_ACTIVE", &[("engine", "jpeg"), ("number", "3")]),
    video("DCGM_FI_PROF_NVJPG4_ACTIVE", &[("engine", "jpeg"), ("number", "4")]),
    video("DCGM_FI_PROF_NVJPG5_ACTIVE", &[("engine", "jpeg"), ("number", "5")]),
    video("DCGM_FI_PROF_NVJPG6_ACTIVE", &[("engine", "jpeg"), ("number", "6")]),
    video("DCGM_FI_PROF_NVJPG7_ACTIVE", &[("engine", "jpeg"), ("number", "7")]),
    video("DCGM_FI_PROF_NVOFA0_ACTIVE", &[("engine", "ofa"), ("number", "0")]),
    video("DCGM_FI_PROF_NVOFA1_ACTIVE", &[("engine", "ofa"), ("number", "1")]),
    dcgm("DCGM_FI_PROF_C2C_TX_ALL_BYTES", "gpu_c2c_bytes_total", &[("direction", "transmit")]).per_second(),
    dcgm("DCGM_FI_PROF_C2C_RX_ALL_BYTES", "gpu_c2c_bytes_total", &[("direction", "receive")]).per_second(),
    dcgm("DCGM_FI_PROF_C2C_TX_DATA_BYTES", "gpu_c2c_payload_bytes_total", &[("direction", "transmit")])
        .per_second(),
    dcgm("DCGM_FI_PROF_C2C_RX_DATA_BYTES", "gpu_c2c_payload_bytes_total", &[("direction", "receive")])
        .per_second(),
    cache("DCGM_FI_PROF_HOSTMEM_CACHE_HIT", &[("memory", "host")]),
    cache("DCGM_FI_PROF_PEERMEM_CACHE_HIT", &[("memory", "peer")]),
    violation("DCGM_FI_DEV_POWER_VIOLATION", &[("reason", "sw_power_cap")]),
    violation("DCGM_FI_DEV_THERMAL_VIOLATION", &[("reason", "sw_thermal_slowdown")]),
    violation("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", &[("reason", "sync_boost")]),
    violation("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", &[("reason", "board_limit")]),
    violation("DCGM_FI_DEV_RELIABILITY_VIOLATION", &[("reason", "reliability")]),
    dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "gpu_ecc_errors_total", &[("type", "corrected")]).counter(),
    dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gpu_ecc_errors_total", &[("type", "uncorrected")]).counter(),
    dcgm("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "gpu_ecc_lifetime_errors_total", &[("type", "corrected")])
        .counter(),
    dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "gpu_ecc_lifetime_errors_total", &[("type", "uncorrected")])
        .counter(),
    dcgm("DCGM_FI_DEV_RETIRED_SBE", "gpu_retired_pages", &[("cause", "correctable")]).counter(),
    dcgm("DCGM_FI_DEV_RETIRED_DBE", "gpu_retired_pages", &[("cause", "uncorrectable")]).counter(),
    dcgm("DCGM_FI_DEV_RETIRED_PENDING", "gpu_retired_pages_pending", &[]).counter(),
    dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "gpu_remapped_rows", &[("cause", "uncorrectable")])
        .counter(),
    dcgm("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "gpu_remapped_rows", &[("cause", "correctable")]).counter(),
    dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gpu_row_remap_failure", &[]),
    dcgm("DCGM_FI_DEV_ROW_REMAP_PENDING", "gpu_row_remap_pending", &[]),
    otel("hw.gpu.utilization", "gpu_utilization_ratio", &[], &[("hw.gpu.task", "general")]),
    otel(
        "hw.gpu.utilization",
        "gpu_engine_utilization_ratio",
        &[("engine", "encoder")],
        &[("hw.gpu.task", "encoder")],
    ),
    otel(
        "hw.gpu.utilization",
        "gpu_engine_utilization_ratio",
        &[("engine", "decoder")],
        &[("hw.gpu.task", "decoder")],
    ),
    otel("hw.gpu.memory.usage", "gpu_memory_used_bytes", &[], &[]).up_down(),
    otel("hw.gpu.memory.limit", "gpu_memory_total_bytes", &[], &[]).up_down(),
    otel("hw.gpu.io", "gpu_pcie_bytes_total", &[], &[("network.io.direction", "=direction")]).counter(),
    otel("hw.errors", "gpu_ecc_errors_total", &[], &[GPU, ("error.type", "=type")]).counter(),
    otel("hw.errors", "gpu_pcie_replays_total", &[], &[GPU, ("error.type", "pcie_replay")]).counter(),
    otel("hw.errors", "gpu_xid_action_errors_total", &[], &[GPU, ("error.type", "xid")]).counter(),
    otel("hw.status", "gpu_health", &[], &[GPU, ("hw.state", "=state")]).up_down(),
    otel("hw.energy", "gpu_energy_joules_total", &[], &[GPU]).counter(),
    otel("hw.power", "gpu_power_watts", &[], &[GPU]),
    otel("hw.temperature", "gpu_temperature_celsius", &[], &[("hw.sensor_location", "=sensor")]),
    otel("hw.temperature.limit", "gpu_temperature_limit_celsius", &[], &[("hw.limit_type", "=limit")]),
    otel("hw.fan.speed_ratio", "gpu_fan_speed_ratio", &[], &[("hw.name", "=fan")]),
];

const fn dcgm(name: &'static str, of: &'static str, when: &'static [(&'static str, &'static str)]) -> Alias {
    let (profile, kind) = (Profile::Dcgm, Instrument::Gauge);
    Alias { profile, name, kind, of, when, scale: (1, 1), rate: false, labels: &[] }
}

const fn nvlink_errors(name: &'static str, when: &'static [(&'static str, &'static str)]) -> Alias {
    dcgm(name, "gpu_nvlink_errors_total", when).counter()
}

const fn video(name: &'static str, when: &'static [(&'static str, &'static str)]) -> Alias {
    dcgm(name, "gpu_video_engine_active_ratio", when)
}

/// In percent.
const fn cache(name: &'static str, when: &'static [(&'static str, &'static str)]) -> Alias {
    dcgm(name, "gpu_cache_hit_ratio", when).times(100)
}

/// In nanoseconds.
const fn violation(name: &'static str, when: &'static [(&'static str, &'static str)]) -> Alias {
    dcgm(name, "gpu_throttle_seconds_total", when).times(1_000_000_000).counter()
}

const fn otel(
    name: &'static str,
    of: &'static str,
    when: &'static [(&'static str, &'static str)],
    labels: &'static [(&'static str, &'static str)],
) -> Alias {
    let (profile, kind) = (Profile::Otel, Instrument::Gauge);
    Alias { profile, name, kind, of, when, scale: (1, 1), rate: false, labels }
}

impl Alias {
    const fn times(mut self, factor: u64) -> Self {
        self.scale.0 = factor;
        self
    }

    const fn over(mut self, divisor: u64) -> Self {
        self.scale.1 = divisor;
        self
    }

    const fn counter(mut self) -> Self {
        self.kind = Instrument::Counter;
        self
    }

    const fn up_down(mut self) -> Self {
        self.kind = Instrument::UpDownCounter;
        self
    }

    const fn per_second(mut self) -> Self {
        self.rate = true;
        self
    }
}
