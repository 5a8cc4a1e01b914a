//! The agent's own state and counters.

use super::{Family, Kind, Level, Rows};
use crate::model::Unit;

/// Declares each row together with the variant of [`AgentFamily`] that stands for it, in the order of the page: kind, name,
/// unit, labels, help, and what is not as usual.
macro_rules! agent_families {
    ($($family:ident = $kind:ident($name:literal, $unit:ident, [$($label:literal),*]) $help:literal
        $(.$method:ident($argument:expr))*;)+) => {
        /// A family of the agent's own series. Series are added by it, so that a family without a row does not
        /// compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum AgentFamily {
            $(#[doc = concat!("The row `", stringify!($family), "`.")] $family,)+
        }

        impl AgentFamily {
            pub const ALL: &[Self] = &[$(Self::$family),+];
        }

        pub(super) const ROWS: &[Family] = &[$(
            Family::new(Kind::$kind, $name, Unit::$unit, $help, Rows::Agent)
                .labels(&[$($label),*])
                .level(Level::Lean)
                $(.$method($argument))*
        ),+];
    };
}

agent_families! {
    BuildInfo = Gauge("gpumeter_build_info", None, ["version"]) "Always 1; version of the agent.";
    NodeInfo = Gauge("gpumeter_node_info", None, ["node_name", "cluster_name"])
        "Always 1; what this node is called in the configuration (node.name, node.cluster).";
    Simulated = Gauge("gpumeter_simulated", None, [])
        "1 when the driver library is simulated and every number is made up, else 0.";
    Quiesced = Gauge("gpumeter_quiesced", None, [])
        "1 while the agent has released the driver on request (gpumeter quiesce), else 0.";
    ConfigReloadSuccess = Gauge("gpumeter_config_reload_success", None, [])
        "1 when the agent runs with its configuration file as last read, 0 when that file has a mistake and the \
         previous configuration stays in force.";
    LastSampleTimestamp = Gauge("gpumeter_last_sample_timestamp_seconds", Seconds, ["gpu", "uuid"])
        "When the GPU was last read completely, in seconds since 1970.";
    SamplingInterval = Gauge("gpumeter_sampling_interval_seconds", Seconds, ["tier", "gpu", "uuid"])
        "Interval at which the tier is read, as configured; with gpu and uuid, that of a GPU which is read less \
         often, since reading takes too much of the driver's time.";
    CollectorSuccess = Gauge("gpumeter_collector_success", None, ["collector"])
        "1 when the collector works, else 0: the driver can be used, the GPU is being read, or the kernel log can be \
         read.";
    CollectorDuration = Gauge("gpumeter_collector_duration_seconds", Seconds, ["collector"])
        "How long the last reading of the GPU took, from the first driver call to the return of the last."
        .level(Level::Standard);
    CollectorErrors = Counter("gpumeter_collector_errors_total", None, ["collector", "reason"])
        "Readings that the collector failed to deliver or lost, by reason: a GPU's reading in one tick (driver_gone: \
         the driver was unloaded, or loaded again; rejected: the value was implausible; not_yet: nothing has been \
         read yet; late: it came too late to be exported; panic: a defect of the agent; read_by_another_lane: \
         another sampler thread already reads the GPU with this UUID), kernel log records that were overwritten \
         (overrun), kinds of events that the driver refused to register (too_many_kinds), XIDs from a PCI address at \
         which no GPU was known for ten minutes (unknown_gpu)."
        .values(&[("reason", &["not_supported", "no_symbol", "no_permission", "lost", "driver_gone", "failed", "rejected",
            "not_yet", "late", "panic", "read_by_another_lane", "overrun", "too_many_kinds", "unknown_gpu"])]);
    AccountUnsettledWindows = Counter("gpumeter_account_unsettled_windows_total", None, [])
        "Accounting windows of 15 s booked as unmeasured because what was recorded of them is inconsistent, as \
         intervals that overlap or leave a gap; anything but 0 is a defect of the agent.";
    MigLayoutChanges = Counter("gpumeter_mig_layout_changes_total", None, ["gpu", "uuid"])
        "How often the GPU was found divided into other MIG instances than before, or MIG mode switched, since the \
         agent's start. The time between two layouts is __unavailable__.";
    DriverCallDuration = Histogram("gpumeter_driver_call_duration_seconds", Seconds, [])
        "Time inside the driver per call; _count is the number of calls, _sum the total time inside the driver.";
    DriverCallInFlight = Gauge("gpumeter_driver_call_in_flight_seconds", Seconds, ["gpu", "uuid", "call"])
        "How long a late driver call has been running; exported only while a call is late.";
    SourceInfo = Gauge("gpumeter_source_info", None, ["gpu", "uuid", "metric", "source"])
        "Always 1; the source of a metric whose exactness depends on it: gpm_counter misses nothing (bytes are \
         exact; it counts cycles, so time across missed ticks is exact only if the clock did not change), gpm is \
         exact over each tick, samples is exact over each tick in whole percents, utilization is one sample per \
         tick; field and call are as the metric's help says; processes and host stand in for a memory that the \
         driver does not report. Below level full only for those two, busy time, power, bytes over PCIe, and \
         multiprocessor and tensor core time of MIG instances."
        .level(Level::Standard)
        .values(&[("source", &["gpm", "samples", "utilization", "none", "field", "call", "gpm_counter", "processes",
            "host"])]);
    SamplesRejected = Counter("gpumeter_samples_rejected_total", None, ["reason"])
        "Driver answers dropped as implausible, by reason: out_of_range (impossible value, or a counter that \
         jumped), counter_back (a counter decreased), sample (a utilization sample above 100 % or dated in the \
         future), count (more processes or samples than any GPU has), ghost_busy (activity on a GPU without \
         processes)."
        .values(&[("reason", &["out_of_range", "counter_back", "sample", "count", "ghost_busy"])]);
    SeriesDropped = Counter("gpumeter_series_dropped_total", None, ["family"])
        "Series left out because of limits.series, counted once per tick and series; while this grows, /metrics is \
         incomplete.";
    ResolverSuccess = Gauge("gpumeter_resolver_success", None, ["resolver"])
        "1 when the resolver's last run succeeded; 0 when it failed, and while no run has ended for 30 s.";
    ResolverAge = Gauge("gpumeter_resolver_age_seconds", Seconds, ["resolver"])
        "Age of the data that the resolver last published.";
    StandingUnmatched = Gauge("gpumeter_standing_unmatched", None, [])
        "Number of grants in attribution.standing that name a GPU which the driver does not list; such a grant has \
         no effect on that GPU. Absent without grants, and until all GPUs of the driver are known.";
    HoldingConflicts = Gauge("gpumeter_holding_conflicts", None, ["gpu", "uuid"])
        "Claims of schedulers that together exceed the GPU; each holds and pays for a part. Absent while all fit.";
    PriceMissing = Gauge("gpumeter_price_missing", None, [])
        "1 while prices are configured and none is in force for a GPU, so that its time is accounted for without \
         money (unpriced in gpumeter bill); 0 while each GPU has one. Absent without prices.";
    BillingPeriodStart = Gauge("gpumeter_billing_period_start_timestamp_seconds", Seconds, ["month"])
        "When the month of gpu_tenant_cost_month_to_date began, in seconds since 1970.";
    BillingPeriodEnd = Gauge("gpumeter_billing_period_end_timestamp_seconds", Seconds, ["month"])
        "When the month of gpu_tenant_cost_month_to_date ends, in seconds since 1970.";
    ListenMissing = Gauge("gpumeter_listen_missing", None, [])
        "Number of addresses of web.listen on which the agent cannot serve, most likely because another process \
         listens there; it tries again until it can, and is not ready meanwhile.";
    OtlpPointsSent = Counter("gpumeter_otlp_points_sent_total", None, ["destination"])
        "OTLP data points, or events, that the destination accepted.";
    OtlpPointsRejected = Counter("gpumeter_otlp_points_rejected_total", None, ["destination"])
        "OTLP data points, or events, that the destination refused for good.";
    OtlpPointsDropped = Counter("gpumeter_otlp_points_dropped_total", None, ["destination"])
        "OTLP data points, or events, that were dropped from the spool: too many, too old, in a damaged file, or in a \
         request that failed at the destination for ten minutes.";
    OtlpQueueBytes = Gauge("gpumeter_otlp_queue_bytes", Bytes, ["destination"])
        "Compressed size of what waits in the spool for the destination.";
    OtlpSuccess = Gauge("gpumeter_otlp_success", None, ["destination"])
        "1 when the destination accepted the last request, else 0; absent before the first.";
    OtlpSpoolDamaged = Counter("gpumeter_otlp_spool_damaged_bytes_total", Bytes, [])
        "Bytes of the spool's files that SQLite calls damaged; each is kept as spool.db.damaged.";
    OtlpSpoolErrors = Counter("gpumeter_otlp_spool_errors_total", None, [])
        "Operations on the spool's file that failed; meanwhile a small part of the backlog is kept in memory.";
    ClockStep = Gauge("gpumeter_clock_step_seconds", Seconds, [])
        "How far clock steps have moved the wall clock ahead of the time that bills use, which ignores steps; \
         negative means behind.";
    ClockAnchored = Gauge("gpumeter_clock_anchored", None, [])
        "1 once the time used for bills has been set from the wall clock after this boot, else 0; while 0, the \
         agent keeps no account. It is set when the kernel says that the clock is synchronised, or two \
         minutes after the boot.";
    LedgerOpen = Gauge("gpumeter_ledger_open", None, [])
        "1 while the agent has its ledger open, 0 while it cannot open it and keeps no account; absent where \
         ledger.enabled is false.";
    LedgerDurable = Gauge("gpumeter_ledger_durable", None, [])
        "1 when the ledger is on a file system that survives a reboot of the node, else 0.";
    LedgerImbalance = Gauge("gpumeter_ledger_imbalance_seconds", Seconds, [])
        "Accounted GPU time minus the sum of its parts in the ledger, exact to the nanosecond; anything but 0 is a \
         defect of the agent.";
    LedgerBytes = Gauge("gpumeter_ledger_bytes", Bytes, []) "Size of the ledger on disk.";
    LedgerLastCommitTimestamp = Gauge("gpumeter_ledger_last_commit_timestamp_seconds", Seconds, [])
        "When the ledger last committed, in seconds since 1970.";
    LedgerExportAge = Gauge("gpumeter_ledger_export_age_seconds", Seconds, [])
        "Time since everything that is closed was last exported, or since the start where nothing was yet; absent \
         without ledger.export.directory.";
    LedgerErrors = Counter("gpumeter_ledger_errors_total", None, [])
        "Ledger commits that failed. After a disk error the data is kept and retried; when data itself is refused, \
         the part of the GPU that caused it is dropped and named in the log.";
    LedgerUnobserved = Counter("gpumeter_ledger_unobserved_seconds_total", Seconds, [])
        "GPU time booked as __unobserved__ because its window never reached the ledger; anything but 0 is a defect \
         of the agent.";
    LedgerQueueWindows = Gauge("gpumeter_ledger_queue_windows", None, [])
        "Settled windows not yet written to the ledger; more than a few per GPU means that the disk is slow or \
         stuck.";
    LedgerCoarseWindows = Counter("gpumeter_ledger_coarse_windows_total", None, [])
        "Windows merged with a neighbour across a minute boundary because the disk was stuck; the minutes they cover \
         are proportional shares of the merged window.";
    HttpRequests = Counter("gpumeter_http_requests_total", None, ["code"]) "HTTP requests answered, by status code.";
    NvswitchSxidErrors = Counter("gpu_nvswitch_sxid_errors_total", None, ["pci_bus_id", "sxid", "severity"])
        "SXID errors of an NVSwitch by code, from the kernel's log, since the agent's start; a code has no series \
         until it is first seen.";
    NvswitchSxidLastTimestamp = Gauge("gpu_nvswitch_sxid_last_timestamp_seconds", Seconds, ["pci_bus_id", "sxid", "severity"])
        "When the SXID was last seen since the agent's start, in seconds since 1970.";
    ProcessCpu = Counter("process_cpu_seconds_total", Seconds, []) "User and system CPU time of the agent.";
    ProcessResidentMemory = Gauge("process_resident_memory_bytes", Bytes, []) "Resident memory of the agent.";
    ProcessVirtualMemory = Gauge("process_virtual_memory_bytes", Bytes, []) "Virtual memory of the agent.";
    ProcessOpenFds = Gauge("process_open_fds", None, []) "Open file descriptors of the agent.";
    ProcessMaxFds = Gauge("process_max_fds", None, [])
        "The most file descriptors that the agent may have open; absent where there is no limit.";
    ProcessStartTime = Gauge("process_start_time_seconds", Seconds, []) "When the agent started, in seconds since 1970.";
}

impl AgentFamily {
    pub const fn row(self) -> &'static Family {
        &ROWS[self as usize]
    }

    pub const fn name(self) -> &'static str {
        self.row().name
    }
}
