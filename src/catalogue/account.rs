//! The account, from closed and committed windows: it steps every 15 s and never goes backwards.

use super::{AccountPoint, AccountValue, Family, HoldingValue, Level, Rows};
use crate::model::HolderKind;
use crate::model::{Fact, Unit};

/// The labels of a workload: its id, kind and tenant, and a label for each fact that any kind of holder has.
const WORKLOAD_LABELS: &[&str] = &{
    let mut labels = ["workload"; 3 + Fact::ALL.len()];
    (labels[1], labels[2]) = ("kind", "tenant");
    let mut at = 0;
    while at < Fact::ALL.len() {
        labels[3 + at] = Fact::ALL[at].label();
        at += 1;
    }
    labels
};

pub(super) const ROWS: &[Family] = &[
    Family::counter(
        "gpu_slot_seconds_total",
        Unit::Seconds,
        "Time accounted for on the GPU, in closed windows: every second is held by a tenant or \
         by a remainder such as __unallocated__. On a MIG GPU by GPU instance, weighted by its \
         placements; free and stranded placements, and the time between two layouts, have no \
         gpu_instance.",
        Rows::Slot,
    )
    .labels(&["gpu", "uuid", "gpu_instance"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_held_seconds_total",
        Unit::Seconds,
        "GPU time that the tenant held, in closed windows. Over any window of time the increases \
         of all tenants sum to that of slot seconds (the totals do so in the ledger and the API, \
         since the series of tenants that are gone end); held = within + lent + waste + \
         unmeasured + unavailable.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Held }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_used_seconds_total",
        Unit::Seconds,
        "GPU time kept busy by the tenant's processes, in closed windows; the sum over all \
         tenants is the time busy.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Used }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_idle_seconds_total",
        Unit::Seconds,
        "GPU time held and not used by the holder (lent + waste), in closed windows. The sum of \
         held over all tenants is slot seconds; held = within + lent + waste + unmeasured + \
         unavailable.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Idle }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_lent_seconds_total",
        Unit::Seconds,
        "GPU time held, idle, and used by others, in closed windows; part of idle.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Lent }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Standard),
    Family::counter(
        "gpu_tenant_beyond_share_seconds_total",
        Unit::Seconds,
        "GPU time used above the tenant's own held part, in closed windows.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::BeyondShare }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Standard),
    Family::counter(
        "gpu_tenant_outside_holding_seconds_total",
        Unit::Seconds,
        "GPU time used by a tenant who held nothing on a GPU that others held, in closed \
         windows.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::OutsideHolding }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Standard),
    Family::counter(
        "gpu_tenant_unmeasured_seconds_total",
        Unit::Seconds,
        "GPU time held while activity could not be measured, in closed windows; never counted as \
         idle.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Unmeasured }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Standard),
    Family::counter(
        "gpu_tenant_unavailable_seconds_total",
        Unit::Seconds,
        "GPU time held while the GPU was lost or failed, in closed windows.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Unavailable }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
    .level(Level::Standard),
    Family::counter(
        "gpu_tenant_energy_joules_total",
        Unit::Joules,
        "Energy of the tenant in closed windows: static is the GPU's idle power, shared by held \
         time; dynamic is the rest, shared by use.",
        Rows::Account(&[
            AccountPoint { labels: &[("part", "static")], value: AccountValue::EnergyStatic },
            AccountPoint { labels: &[("part", "dynamic")], value: AccountValue::EnergyDynamic },
        ]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "part"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_held_cost_total",
        Unit::Money,
        "Price of the time the tenant held, without unavailable time, whose price goes to \
         __unavailable__; at the price in force then, in closed windows; an estimate, gpumeter \
         bill prints the amount that counts.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::HeldCost }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "currency", "price_class"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_used_cost_total",
        Unit::Money,
        "Price of the time the tenant used, at the price in force then, in closed windows; an \
         estimate, gpumeter bill prints the amount that counts.",
        Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::UsedCost }]),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "currency", "price_class"])
    .level(Level::Standard),
    Family::counter(
        "gpu_workload_held_seconds_total",
        Unit::Seconds,
        "GPU time that the workload held, in closed windows; gpu_workload_info has its tenant. \
         Time that nobody held is in gpu_tenant_held_seconds_total.",
        Rows::WorkloadAccount(&[AccountPoint { labels: &[], value: AccountValue::Held }]),
    )
    .labels(&["workload", "gpu", "uuid", "gpu_instance"]),
    Family::counter(
        "gpu_workload_used_seconds_total",
        Unit::Seconds,
        "GPU time kept busy by the workload's processes, in closed windows.",
        Rows::WorkloadAccount(&[AccountPoint { labels: &[], value: AccountValue::Used }]),
    )
    .labels(&["workload", "gpu", "uuid", "gpu_instance"]),
    Family::counter(
        "gpu_workload_idle_seconds_total",
        Unit::Seconds,
        "GPU time that the workload held and did not use (lent + waste), in closed windows; what \
         unmeasured time would have been is not in it.",
        Rows::WorkloadAccount(&[AccountPoint { labels: &[], value: AccountValue::Idle }]),
    )
    .labels(&["workload", "gpu", "uuid", "gpu_instance"]),
    Family::counter(
        "gpu_workload_energy_joules_total",
        Unit::Joules,
        "Energy of the workload in closed windows: static is the GPU's idle power, shared by \
         held time; dynamic is the rest, shared by use.",
        Rows::WorkloadAccount(&[
            AccountPoint { labels: &[("part", "static")], value: AccountValue::EnergyStatic },
            AccountPoint { labels: &[("part", "dynamic")], value: AccountValue::EnergyDynamic },
        ]),
    )
    .labels(&["workload", "gpu", "uuid", "gpu_instance", "part"]),
    Family::counter(
        "gpu_unattributed_seconds_total",
        Unit::Seconds,
        "GPU time kept busy by processes whose owner is not known, by reason, in closed windows. \
         The sum over all reasons is gpu_tenant_used_seconds_total of the tenant \
         __unattributed__.",
        Rows::Unattributed,
    )
    .labels(&["gpu", "uuid", "reason"])
    .level(Level::Standard)
    .values(&[("reason", &["container", "pod", "job", "vm", "unknown"])]),
    Family::gauge(
        "gpu_holding_ratio",
        Unit::Ratio,
        "Share of the GPU, or of the GPU instance, that the workload holds now, without what \
         others hold within that; where claims exceed the GPU, what it was granted.",
        Rows::Holding(HoldingValue::Ratio),
    )
    .labels(&["gpu", "uuid", "gpu_instance", "workload", "tenant", "source"])
    .level(Level::Standard),
    Family::gauge(
        "gpu_workload_info",
        Unit::None,
        "Always 1; tenant and origin of a workload that holds or uses a GPU now, with the labels \
         that are known of it, and k8s_pod_label_<label> for each label of pods in \
         attribution.kubernetes.labels.",
        Rows::Holding(HoldingValue::WorkloadInfo),
    )
    .labels(WORKLOAD_LABELS)
    .level(Level::Standard)
    .values(&[("kind", HolderKind::NAMES)]),
    Family::gauge(
        "gpu_cost_per_hour",
        Unit::Money,
        "Price of one GPU-hour that is in force now.",
        Rows::Holding(HoldingValue::CostPerHour),
    )
    .labels(&["gpu", "uuid", "currency", "price_class"])
    .level(Level::Lean),
];
