//! The account, from closed and committed windows: it steps every 15 s and never goes backwards.

use super::AccountRows::{Tenant, Workload};
use super::AccountValue::{
    BeyondShare, EnergyDynamic, EnergyStatic, Held, HeldCost, Idle, Lent, OutsideHolding, Unavailable,
    Unmeasured, Used, UsedCost,
};
use super::Rows::Account;
use super::{AccountRows, AccountValue, Family, Labelled, Level, labelled};
use crate::model::{Fact, HolderKind, Unit};

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
        Account(AccountRows::Slot),
    )
    .labels(&["gpu", "uuid", "gpu_instance"])
    .level(Level::Lean),
    tenant_seconds(
        "gpu_tenant_held_seconds_total",
        Level::Lean,
        "GPU time that the tenant held, in closed windows. Over any window of time the increases \
         of all tenants sum to that of slot seconds (the totals do so in the ledger and the API, \
         since the series of tenants that are gone end); held = within (used by those whom the \
         holding covers) + lent + idle + unmeasured + unavailable.",
        &[labelled(&[], Held)],
    ),
    tenant_seconds(
        "gpu_tenant_used_seconds_total",
        Level::Lean,
        "GPU time kept busy by the tenant's processes, in closed windows; the sum over all \
         tenants is the time busy.",
        &[labelled(&[], Used)],
    ),
    tenant_seconds(
        "gpu_tenant_idle_seconds_total",
        Level::Lean,
        "GPU time held and used by nobody, in closed windows. Unused is lent and idle together; \
         held = within + lent + idle + unmeasured + unavailable.",
        &[labelled(&[], Idle)],
    ),
    tenant_seconds(
        "gpu_tenant_lent_seconds_total",
        Level::Standard,
        "GPU time held and used by others, in closed windows; not part of idle. held = within + \
         lent + idle + unmeasured + unavailable.",
        &[labelled(&[], Lent)],
    ),
    tenant_seconds(
        "gpu_tenant_beyond_share_seconds_total",
        Level::Standard,
        "GPU time used above the tenant's own held part, in closed windows.",
        &[labelled(&[], BeyondShare)],
    ),
    tenant_seconds(
        "gpu_tenant_outside_holding_seconds_total",
        Level::Standard,
        "GPU time used by a tenant who held nothing on a GPU that others held, in closed \
         windows.",
        &[labelled(&[], OutsideHolding)],
    ),
    tenant_seconds(
        "gpu_tenant_unmeasured_seconds_total",
        Level::Standard,
        "GPU time held while activity could not be measured, in closed windows; never counted as \
         idle. held = within + lent + idle + unmeasured + unavailable.",
        &[labelled(&[], Unmeasured)],
    ),
    tenant_seconds(
        "gpu_tenant_unavailable_seconds_total",
        Level::Standard,
        "GPU time held while the GPU was lost or failed, in closed windows. held = within + lent + \
         idle + unmeasured + unavailable.",
        &[labelled(&[], Unavailable)],
    ),
    Family::counter(
        "gpu_tenant_energy_joules_total",
        Unit::Joules,
        "Energy of the tenant in closed windows: static is the GPU's idle power, shared by held \
         time; dynamic is the rest, shared by use.",
        Account(Tenant(&[
            labelled(&[("part", "static")], EnergyStatic),
            labelled(&[("part", "dynamic")], EnergyDynamic),
        ])),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "part"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_held_cost_total",
        Unit::Money,
        "Price of the time the tenant held, without unavailable time, whose price goes to \
         __unavailable__; at the price in force then, in closed windows; an estimate, gpumeter \
         bill prints the amount that counts.",
        Account(Tenant(&[labelled(&[], HeldCost)])),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "currency", "price_class"])
    .level(Level::Lean),
    Family::counter(
        "gpu_tenant_used_cost_total",
        Unit::Money,
        "Price of the time the tenant used, at the price in force then, in closed windows; an \
         estimate, gpumeter bill prints the amount that counts.",
        Account(Tenant(&[labelled(&[], UsedCost)])),
    )
    .labels(&["tenant", "gpu", "uuid", "gpu_instance", "currency", "price_class"])
    .level(Level::Standard),
    workload_seconds(
        "gpu_workload_held_seconds_total",
        Level::Standard,
        "GPU time that the workload held, in closed windows; gpu_workload_info has its tenant. \
         Time that nobody held is in gpu_tenant_held_seconds_total. At level standard only with \
         sampling.workload_counters.",
        &[labelled(&[], Held)],
    ),
    workload_seconds(
        "gpu_workload_used_seconds_total",
        Level::Standard,
        "GPU time kept busy by the workload's processes, in closed windows. At level standard only with \
         sampling.workload_counters.",
        &[labelled(&[], Used)],
    ),
    workload_seconds(
        "gpu_workload_idle_seconds_total",
        Level::Full,
        "GPU time that the workload held and nobody used, in closed windows; time lent to others \
         and unmeasured time are not included.",
        &[labelled(&[], Idle)],
    ),
    Family::counter(
        "gpu_workload_energy_joules_total",
        Unit::Joules,
        "Energy of the workload in closed windows: static is the GPU's idle power, shared by \
         held time; dynamic is the rest, shared by use. At level standard only with \
         sampling.workload_counters.",
        Account(Workload(&[
            labelled(&[("part", "static")], EnergyStatic),
            labelled(&[("part", "dynamic")], EnergyDynamic),
        ])),
    )
    .labels(&["workload", "gpu", "uuid", "gpu_instance", "part"])
    .level(Level::Standard),
    workload_cost(
        "gpu_workload_held_cost_total",
        "Price of the time the workload held, without unavailable time, whose price goes to __unavailable__; at the price in force \
         then, before terms, in closed windows; an estimate, as gpu_tenant_held_cost_total is. At level standard only with \
         sampling.workload_counters.",
        &[labelled(&[], HeldCost)],
    ),
    workload_cost(
        "gpu_workload_used_cost_total",
        "Price of the time the workload used, at the price in force then, before terms, in closed windows; an estimate. At level \
         standard only with sampling.workload_counters.",
        &[labelled(&[], UsedCost)],
    ),
    Family::counter(
        "gpu_unattributed_seconds_total",
        Unit::Seconds,
        "GPU time kept busy by processes whose owner is not known, by reason, in closed windows. \
         The sum over all reasons is gpu_tenant_used_seconds_total of the tenant \
         __unattributed__.",
        Account(AccountRows::Unattributed),
    )
    .labels(&["gpu", "uuid", "reason"])
    .level(Level::Standard)
    .values(&[("reason", &["container", "pod", "job", "vm", "unknown"])]),
    Family::gauge(
        "gpu_holding_ratio",
        Unit::Ratio,
        "Share of the GPU, or of the GPU instance, that the workload holds now, minus shares that \
         others hold inside it (a step inside its job); if the requested shares together exceed \
         the GPU, the share that it was granted, 0 where none was left.",
        Account(AccountRows::Holding),
    )
    .labels(&["gpu", "uuid", "gpu_instance", "workload", "tenant", "source"])
    .level(Level::Standard),
    Family::gauge(
        "gpu_held_without_use",
        Unit::None,
        "1 while the tenant holds at least a part of the GPU and uses nothing of it for longer than \
         the class of its workload allows: without a process for 30 minutes (batch) or 2 hours \
         (interactive, unknown), or with an interactive process that does nothing for 2 hours. Not \
         there else; never for services, warm and reserved workloads.",
        Account(AccountRows::Unused),
    )
    .labels(&["tenant", "gpu", "uuid", "kind"])
    .level(Level::Lean)
    .values(&[("kind", &["held_without_process", "open_session"])]),
    Family::gauge(
        "gpu_workload_info",
        Unit::None,
        "Always 1; tenant and origin of a workload that holds or uses a GPU now, with the labels \
         that are known of it, and k8s_pod_label_<label> for each label of pods in \
         attribution.kubernetes.labels.",
        Account(AccountRows::WorkloadInfo),
    )
    .labels(WORKLOAD_LABELS)
    .level(Level::Standard)
    .values(&[("kind", HolderKind::NAMES)]),
    Family::gauge(
        "gpu_cost_per_hour",
        Unit::Money,
        "Price of one GPU-hour that is in force now.",
        Account(AccountRows::CostPerHour),
    )
    .labels(&["gpu", "uuid", "currency", "price_class"])
    .level(Level::Lean),
    Family::gauge(
        "gpu_tenant_cost_month_to_date",
        Unit::Money,
        "What the tenant is charged on this node for the calendar month so far (billing.time_zone), \
         under its terms, in closed windows, as gpumeter bill has it: a rate that is recorded late \
         changes it.",
        Account(AccountRows::MonthCost),
    )
    .labels(&["tenant", "month", "currency"])
    .level(Level::Lean),
    Family::gauge(
        "gpu_tenant_budget",
        Unit::Money,
        "What the tenant may cost in each calendar month, over all nodes (tenants.budgets); every \
         node with that configuration has it.",
        Account(AccountRows::Budget),
    )
    .labels(&["tenant", "currency"])
    .level(Level::Lean),
];

const fn tenant_seconds(
    name: &'static str,
    level: Level,
    help: &'static str,
    values: &'static [Labelled<AccountValue>],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Account(Tenant(values)))
        .labels(&["tenant", "gpu", "uuid", "gpu_instance"])
        .level(level)
}

const fn workload_seconds(
    name: &'static str,
    level: Level,
    help: &'static str,
    values: &'static [Labelled<AccountValue>],
) -> Family {
    Family::counter(name, Unit::Seconds, help, Account(Workload(values)))
        .labels(&["workload", "gpu", "uuid", "gpu_instance"])
        .level(level)
}

const fn workload_cost(
    name: &'static str,
    help: &'static str,
    values: &'static [Labelled<AccountValue>],
) -> Family {
    Family::counter(name, Unit::Money, help, Account(Workload(values)))
        .labels(&["workload", "gpu", "uuid", "gpu_instance", "currency", "price_class"])
        .level(Level::Standard)
}
