//! The agent about itself.

use super::{Family, Kind, Level, Rows};
use crate::model::Unit;
use crate::model::frame::Tier;

/// Declares each row together with the variant of [`AgentFamily`] that stands for it, in the order of the page.
macro_rules! agent_families {
    ($($family:ident = $row:expr,)*) => {
        /// A family of the agent's own series. Series are added by it and not by name, so that a family that has
        /// no row does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AgentFamily {
            $(#[doc = concat!("The row `", stringify!($family), "`.")] $family,)*
        }

        impl AgentFamily {
            /// All of them, in the order of the page.
            pub const ALL: &[Self] = &[$(Self::$family),*];
        }

        pub(super) const ROWS: &[Family] = &[$($row),*];
    };
}

agent_families! {
    BuildInfo = agent("gpumeter_build_info", Kind::Gauge, Unit::None, "Always 1; version of the agent.", &["version"]),
    Simulated = agent(
        "gpumeter_simulated",
        Kind::Gauge,
        Unit::None,
        "1 when the driver library is simulated and every number is made up, else 0.",
        &[],
    ),
    Quiesced = agent(
        "gpumeter_quiesced",
        Kind::Gauge,
        Unit::None,
        "1 while the agent has let go of the driver on request (gpumeter quiesce), else 0.",
        &[],
    ),
    ConfigReloadSuccess = agent(
        "gpumeter_config_reload_success",
        Kind::Gauge,
        Unit::None,
        "1 when the agent runs by its configuration file as it was last read, 0 when that file has a mistake and the former configuration runs on.",
        &[],
    ),
    LastSampleTimestamp = agent(
        "gpumeter_last_sample_timestamp_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "When the GPU's last frame ended, in seconds since 1970.",
        &["gpu", "uuid"],
    ),
    SamplingInterval = agent(
        "gpumeter_sampling_interval_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "How often the tier is read: as configured, or less often where that would take too much of the driver's time.",
        &["tier"],
    ),
    CollectorSuccess = agent(
        "gpumeter_collector_success",
        Kind::Gauge,
        Unit::None,
        "1 when the driver can be used, the GPU's lane brings frames, or the kernel's log can be read, else 0.",
        &["collector"],
    ),
    CollectorDuration = Family {
        level: Level::Standard,
        ..agent(
            "gpumeter_collector_duration_seconds",
            Kind::Gauge,
            Unit::Seconds,
            "How long the GPU's lane took for its last frame, from the first driver call to the return of the last.",
            &["collector"],
        )
    },
    CollectorErrors = agent(
        "gpumeter_collector_errors_total",
        Kind::Counter,
        Unit::None,
        "Times that the collector brought nothing or lost something, by reason: a tick of a lane (late: its frame came too late to be shown), records of the kernel's log that were overwritten (overrun), kinds of events that the driver would not register (too_many_kinds), XIDs of a place at which no GPU was known for ten minutes (unknown_gpu).",
        &["collector", "reason"],
    ),
    AccountUnsettledWindows = agent(
        "gpumeter_account_unsettled_windows_total",
        Kind::Counter,
        Unit::None,
        "Windows that could not be settled, since their spans did not fit together, and were booked as unmeasured; anything but 0 is a defect.",
        &[],
    ),
    DriverCallDuration = agent(
        "gpumeter_driver_call_duration_seconds",
        Kind::Histogram,
        Unit::Seconds,
        "Time inside the driver per call; its count is the calls, its sum the time inside the driver.",
        &[],
    ),
    DriverCallInFlight = agent(
        "gpumeter_driver_call_in_flight_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "For how long a driver call has not returned; only there while one is late.",
        &["gpu", "uuid", "call"],
    ),
    SourceInfo = Family {
        level: Level::Standard,
        ..agent(
            "gpumeter_source_info",
            Kind::Gauge,
            Unit::None,
            "Always 1; which meter serves a metric whose exactness depends on it: gpm_counter misses nothing (bytes are exact; so is time, over what was missed only if the GPU's clock stood still, since cycles are counted), gpm is exact over each tick, samples over each tick in whole percents, utilization is a sample; a field or call tells as the metric's help says. Below level full of busy time, power, bytes over PCIe, and time on multiprocessors and tensor cores of MIG instances only.",
            &["gpu", "uuid", "metric", "source"],
        )
    },
    SamplesRejected = agent(
        "gpumeter_samples_rejected_total",
        Kind::Counter,
        Unit::None,
        "Driver answers that cannot be true and were dropped: out of range, a counter that went back or jumped, a GPU that is busy with nobody there.",
        &["reason"],
    ),
    SeriesDropped = agent(
        "gpumeter_series_dropped_total",
        Kind::Counter,
        Unit::None,
        "Series left off because of limits.series, counted once per tick and series; while it grows, the page lacks something.",
        &["family"],
    ),
    ResolverSuccess = agent(
        "gpumeter_resolver_success",
        Kind::Gauge,
        Unit::None,
        "1 when the resolver's last round succeeded, else 0.",
        &["resolver"],
    ),
    ResolverAge = agent(
        "gpumeter_resolver_age_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "Age of what the resolver last published.",
        &["resolver"],
    ),
    StandingUnmatched = agent(
        "gpumeter_standing_unmatched",
        Kind::Gauge,
        Unit::None,
        "Standing holdings (attribution.standing) that match no GPU that the driver counts: they hold nothing. Absent \
         without standing holdings, and until the driver has told of all its GPUs.",
        &[],
    ),
    OtlpPointsSent = agent(
        "gpumeter_otlp_points_sent_total",
        Kind::Counter,
        Unit::None,
        "OTLP data points that the destination accepted.",
        &["destination"],
    ),
    OtlpPointsRejected = agent(
        "gpumeter_otlp_points_rejected_total",
        Kind::Counter,
        Unit::None,
        "OTLP data points that the destination refused.",
        &["destination"],
    ),
    OtlpPointsDropped = agent(
        "gpumeter_otlp_points_dropped_total",
        Kind::Counter,
        Unit::None,
        "OTLP data points that could not be delivered.",
        &["destination"],
    ),
    ClockStep = agent(
        "gpumeter_clock_step_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "How far steps have put the wall clock ahead of the account's time, which no step moves; negative: behind.",
        &[],
    ),
    ClockAnchored = agent(
        "gpumeter_clock_anchored",
        Kind::Gauge,
        Unit::None,
        "1 once the account's time in this boot is fixed by the wall clock, else 0; until then no window closes. It is \
         fixed when the kernel says that the clock is synchronised, or two minutes after the boot.",
        &[],
    ),
    LedgerOpen = agent(
        "gpumeter_ledger_open",
        Kind::Gauge,
        Unit::None,
        "1 while the agent has its ledger open, 0 while it cannot open it and keeps no account; absent where \
         ledger.enabled is false.",
        &[],
    ),
    LedgerDurable = agent(
        "gpumeter_ledger_durable",
        Kind::Gauge,
        Unit::None,
        "1 when the ledger lies on a file system that survives a restart of the node, else 0.",
        &[],
    ),
    LedgerImbalance = agent(
        "gpumeter_ledger_imbalance_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "Slot time less what the ledger's parts add up to, exact to the nanosecond; anything but 0 is a defect.",
        &[],
    ),
    LedgerBytes = agent("gpumeter_ledger_bytes", Kind::Gauge, Unit::Bytes, "Size of the ledger on disk.", &[]),
    LedgerLastCommitTimestamp = agent(
        "gpumeter_ledger_last_commit_timestamp_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "When the ledger last committed, in seconds since 1970.",
        &[],
    ),
    LedgerErrors = agent(
        "gpumeter_ledger_errors_total",
        Kind::Counter,
        Unit::None,
        "Commits that failed. What the disk prevents is kept and tried again; of what is refused, the guilty GPU's part is dropped and the log names it.",
        &[],
    ),
    LedgerUnobserved = agent(
        "gpumeter_ledger_unobserved_seconds_total",
        Kind::Counter,
        Unit::Seconds,
        "GPU time settled as __unobserved__ because its window never reached the ledger; anything but 0 is a defect.",
        &[],
    ),
    LedgerQueueWindows = agent(
        "gpumeter_ledger_queue_windows",
        Kind::Gauge,
        Unit::None,
        "Settled windows that wait for the ledger's disk; above a few per GPU the disk is slow or stuck.",
        &[],
    ),
    LedgerCoarseWindows = agent(
        "gpumeter_ledger_coarse_windows_total",
        Kind::Counter,
        Unit::None,
        "Windows added to their neighbour across a minute because the disk was stuck; their minutes are shares of a longer span.",
        &[],
    ),
    HttpRequests = agent(
        "gpumeter_http_requests_total",
        Kind::Counter,
        Unit::None,
        "Requests answered, by status.",
        &["code"],
    ),
    ProcessCpu = agent(
        "process_cpu_seconds_total",
        Kind::Counter,
        Unit::Seconds,
        "User and system CPU time of the agent.",
        &[],
    ),
    ProcessResidentMemory = agent("process_resident_memory_bytes", Kind::Gauge, Unit::Bytes, "Resident memory of the agent.", &[]),
    ProcessVirtualMemory = agent(
        "process_virtual_memory_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Memory that the agent addresses, resident or not.",
        &[],
    ),
    ProcessOpenFds = agent("process_open_fds", Kind::Gauge, Unit::None, "Open file descriptors of the agent.", &[]),
    ProcessMaxFds = agent(
        "process_max_fds",
        Kind::Gauge,
        Unit::None,
        "The most file descriptors that the agent may have open; absent where there is no limit.",
        &[],
    ),
    ProcessStartTime = agent(
        "process_start_time_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "When the agent started, in seconds since 1970.",
        &[],
    ),
}

impl AgentFamily {
    /// Its row.
    pub const fn row(self) -> &'static Family {
        &ROWS[self as usize]
    }

    /// Its full metric name.
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}

const fn agent(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    labels: &'static [&'static str],
) -> Family {
    Family { name, kind, unit, help, labels, level: Level::Lean, tier: Tier::Fast, rows: Rows::Agent }
}
