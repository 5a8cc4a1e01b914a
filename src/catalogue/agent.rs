//! The agent about itself.

use super::{Family, Kind, Level, Rows};
use crate::model::Unit;

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
    NodeInfo = agent(
        "gpumeter_node_info",
        Kind::Gauge,
        Unit::None,
        "Always 1; what this node is called in the configuration (node.name, node.cluster).",
        &["node_name", "cluster_name"],
    ),
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
        "1 while the agent has released the driver on request (gpumeter quiesce), else 0.",
        &[],
    ),
    ConfigReloadSuccess = agent(
        "gpumeter_config_reload_success",
        Kind::Gauge,
        Unit::None,
        "1 when the agent runs with its configuration file as last read, 0 when that file has a \
         mistake and the previous configuration stays in force.",
        &[],
    ),
    LastSampleTimestamp = agent(
        "gpumeter_last_sample_timestamp_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "When the GPU was last read completely, in seconds since 1970.",
        &["gpu", "uuid"],
    ),
    SamplingInterval = agent(
        "gpumeter_sampling_interval_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "Interval at which the tier is read: as configured, or longer where reading would take \
         too much of the driver's time.",
        &["tier"],
    ),
    CollectorSuccess = agent(
        "gpumeter_collector_success",
        Kind::Gauge,
        Unit::None,
        "1 when the collector works, else 0: the driver can be used, the GPU is being read, or \
         the kernel log can be read.",
        &["collector"],
    ),
    CollectorDuration = agent(
            "gpumeter_collector_duration_seconds",
            Kind::Gauge,
            Unit::Seconds,
            "How long the last reading of the GPU took, from the first driver call to the return of \
         the last.",
            &["collector"],
        ).level(Level::Standard),
    CollectorErrors = agent(
        "gpumeter_collector_errors_total",
        Kind::Counter,
        Unit::None,
        "Readings that the collector failed to deliver or lost, by reason: a GPU's reading in \
         one tick (late: it came too late to be exported), kernel log records that were \
         overwritten (overrun), kinds of events that the driver refused to register \
         (too_many_kinds), XIDs from a PCI address at which no GPU was known for ten minutes \
         (unknown_gpu).",
        &["collector", "reason"],
    ).values(&[("reason", &[
            "not_supported",
            "no_symbol",
            "no_permission",
            "lost",
            "driver_gone",
            "failed",
            "rejected",
            "not_yet",
            "late",
            "panic",
            "read_by_another_lane",
            "overrun",
            "too_many_kinds",
            "unknown_gpu",
        ])]),
    AccountUnsettledWindows = agent(
        "gpumeter_account_unsettled_windows_total",
        Kind::Counter,
        Unit::None,
        "Windows booked as unmeasured because their spans did not fit together; anything but 0 \
         is a defect of the agent.",
        &[],
    ),
    MigLayoutChanges = agent(
        "gpumeter_mig_layout_changes_total",
        Kind::Counter,
        Unit::None,
        "How often the GPU was found divided into other MIG instances than before, or MIG mode \
         switched, since the agent's start. The time between two layouts is __unavailable__.",
        &["gpu", "uuid"],
    ),
    DriverCallDuration = agent(
        "gpumeter_driver_call_duration_seconds",
        Kind::Histogram,
        Unit::Seconds,
        "Time inside the driver per call; _count is the number of calls, _sum the total time \
         inside the driver.",
        &[],
    ),
    DriverCallInFlight = agent(
        "gpumeter_driver_call_in_flight_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "How long a late driver call has been running; exported only while a call is late.",
        &["gpu", "uuid", "call"],
    ),
    SourceInfo = agent(
            "gpumeter_source_info",
            Kind::Gauge,
            Unit::None,
            "Always 1; the source of a metric whose exactness depends on it: gpm_counter misses \
         nothing (bytes are exact; it counts cycles, so time across missed ticks is exact only if \
         the clock did not change), gpm is exact over each tick, samples is exact over each tick \
         in whole percents, utilization is one sample per tick; field and call are as the \
         metric's help says. Below level full only for busy time, power, bytes over PCIe, and \
         multiprocessor and tensor core time of MIG instances.",
            &["gpu", "uuid", "metric", "source"],
        ).level(Level::Standard).values(&[("source", &["gpm", "samples", "utilization", "none", "field", "call", "gpm_counter"])]),
    SamplesRejected = agent(
        "gpumeter_samples_rejected_total",
        Kind::Counter,
        Unit::None,
        "Driver answers dropped as implausible: out of range, a counter that decreased or \
         jumped, or a GPU that reports use while no process is on it.",
        &["reason"],
    ).values(&[("reason", &["out_of_range", "counter_back", "sample", "count", "ghost_busy"])]),
    SeriesDropped = agent(
        "gpumeter_series_dropped_total",
        Kind::Counter,
        Unit::None,
        "Series left out because of limits.series, counted once per tick and series; while this \
         grows, /metrics is incomplete.",
        &["family"],
    ),
    ResolverSuccess = agent(
        "gpumeter_resolver_success",
        Kind::Gauge,
        Unit::None,
        "1 when the resolver's last run succeeded, else 0.",
        &["resolver"],
    ),
    ResolverAge = agent(
        "gpumeter_resolver_age_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "Age of the data that the resolver last published.",
        &["resolver"],
    ),
    StandingUnmatched = agent(
        "gpumeter_standing_unmatched",
        Kind::Gauge,
        Unit::None,
        "Standing holdings (attribution.standing) that name a GPU which the driver does not count: they hold nothing \
         there. Absent without standing holdings, and until the driver has told of all its GPUs.",
        &[],
    ),
    PriceMissing = agent(
        "gpumeter_price_missing",
        Kind::Gauge,
        Unit::None,
        "1 while prices are configured and none is in force, so that GPU time is accounted for without money (unpriced in \
         gpumeter bill); 0 while one is in force. Absent without prices.",
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
        "How far clock steps have moved the wall clock ahead of the time that bills use, which \
         ignores steps; negative means behind.",
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
        "1 when the ledger is on a file system that survives a reboot of the node, else 0.",
        &[],
    ),
    LedgerImbalance = agent(
        "gpumeter_ledger_imbalance_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "Accounted GPU time minus the sum of its parts in the ledger, exact to the nanosecond; \
         anything but 0 is a defect of the agent.",
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
        "Ledger commits that failed. After a disk error the data is kept and retried; when data \
         itself is refused, the part of the GPU that caused it is dropped and named in the log.",
        &[],
    ),
    LedgerUnobserved = agent(
        "gpumeter_ledger_unobserved_seconds_total",
        Kind::Counter,
        Unit::Seconds,
        "GPU time booked as __unobserved__ because its window never reached the ledger; anything \
         but 0 is a defect of the agent.",
        &[],
    ),
    LedgerQueueWindows = agent(
        "gpumeter_ledger_queue_windows",
        Kind::Gauge,
        Unit::None,
        "Settled windows not yet written to the ledger; more than a few per GPU means that the \
         disk is slow or stuck.",
        &[],
    ),
    LedgerCoarseWindows = agent(
        "gpumeter_ledger_coarse_windows_total",
        Kind::Counter,
        Unit::None,
        "Windows merged with a neighbour across a minute boundary because the disk was stuck; \
         the minutes they cover are proportional shares of the merged window.",
        &[],
    ),
    HttpRequests = agent(
        "gpumeter_http_requests_total",
        Kind::Counter,
        Unit::None,
        "HTTP requests answered, by status code.",
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
        "Virtual memory of the agent.",
        &[],
    ),
    ProcessOpenFds = agent("process_open_fds", Kind::Gauge, Unit::None, "Open file descriptors of the agent.", &[]),
    ProcessMaxFds = agent(
        "process_max_fds",
        Kind::Gauge,
        Unit::None,
        "The most file descriptors that the agent may have open; absent where there is no \
         limit.",
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
    Family::new(kind, name, unit, help, Rows::Agent).labels(labels).level(Level::Lean)
}
