//! The account, from closed and committed windows: it steps every 15 s and never goes backwards.

use super::{AccountPoint, AccountValue, Family, HoldingValue, Kind, Level, Rows};
use crate::model::frame::Tier;
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
    Family {
        name: "gpu_slot_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "Time accounted for on the GPU, in closed windows: every second is held by a tenant or by a remainder such as __unallocated__.",
        labels: &["gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Slot,
    },
    Family {
        name: "gpu_tenant_held_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time that the tenant held, in closed windows. Over any window of time the increases of all tenants sum to that of slot seconds (the totals do so in the ledger and the API, since the series of tenants that are gone end); held = within + lent + waste + unmeasured + unavailable.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Held }]),
    },
    Family {
        name: "gpu_tenant_used_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time kept busy by the tenant's processes, in closed windows; the sum over all tenants is the time busy.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Used }]),
    },
    Family {
        name: "gpu_tenant_idle_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time held and not used by the holder (lent + waste), in closed windows. The sum of held over all tenants is slot seconds; held = within + lent + waste + unmeasured + unavailable.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Idle }]),
    },
    Family {
        name: "gpu_tenant_lent_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time held, idle, and used by others, in closed windows; part of idle.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Lent }]),
    },
    Family {
        name: "gpu_tenant_beyond_share_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time used above the tenant's own held part, in closed windows.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::BeyondShare }]),
    },
    Family {
        name: "gpu_tenant_outside_holding_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time used by a tenant who held nothing on a GPU that others held, in closed windows.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::OutsideHolding }]),
    },
    Family {
        name: "gpu_tenant_unmeasured_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time held while activity could not be measured, in closed windows; never counted as idle.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Unmeasured }]),
    },
    Family {
        name: "gpu_tenant_unavailable_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time held while the GPU was lost or failed, in closed windows.",
        labels: &["tenant", "gpu", "uuid"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::Unavailable }]),
    },
    Family {
        name: "gpu_tenant_energy_joules_total",
        kind: Kind::Counter,
        unit: Unit::Joules,
        help: "Energy of the tenant in closed windows: static is the GPU's idle power, shared by held time; dynamic is the rest, shared by use.",
        labels: &["tenant", "gpu", "uuid", "part"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Account(&[
            AccountPoint { labels: &[("part", "static")], value: AccountValue::EnergyStatic },
            AccountPoint { labels: &[("part", "dynamic")], value: AccountValue::EnergyDynamic },
        ]),
    },
    Family {
        name: "gpu_tenant_held_cost_total",
        kind: Kind::Counter,
        unit: Unit::Money,
        help: "Price of the time the tenant held, without unavailable time, whose price goes to __unavailable__; at the price in force then, in closed windows; an estimate, gpumeter bill prints the amount that counts.",
        labels: &["tenant", "gpu", "uuid", "currency", "price_class"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::HeldCost }]),
    },
    Family {
        name: "gpu_tenant_used_cost_total",
        kind: Kind::Counter,
        unit: Unit::Money,
        help: "Price of the time the tenant used, at the price in force then, in closed windows; an estimate, gpumeter bill prints the amount that counts.",
        labels: &["tenant", "gpu", "uuid", "currency", "price_class"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Account(&[AccountPoint { labels: &[], value: AccountValue::UsedCost }]),
    },
    Family {
        name: "gpu_unattributed_seconds_total",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        help: "GPU time kept busy by processes whose owner is not known, by reason, in closed windows. The sum over all reasons is gpu_tenant_used_seconds_total of the tenant __unattributed__.",
        labels: &["gpu", "uuid", "reason"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Unattributed,
    },
    Family {
        name: "gpu_holding_ratio",
        kind: Kind::Gauge,
        unit: Unit::Ratio,
        help: "Share of the GPU that the workload holds now; where claims exceed the GPU, what it was granted.",
        labels: &["gpu", "uuid", "workload", "tenant", "source"],
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Holding(HoldingValue::Ratio),
    },
    Family {
        name: "gpu_workload_info",
        kind: Kind::Gauge,
        unit: Unit::None,
        help: "Always 1; tenant and origin of a workload that holds or uses a GPU now, with the labels that are known of it.",
        labels: WORKLOAD_LABELS,
        level: Level::Standard,
        tier: Tier::Fast,
        rows: Rows::Holding(HoldingValue::WorkloadInfo),
    },
    Family {
        name: "gpu_cost_per_hour",
        kind: Kind::Gauge,
        unit: Unit::Money,
        help: "Price of one GPU-hour that is in force now.",
        labels: &["gpu", "uuid", "currency", "price_class"],
        level: Level::Lean,
        tier: Tier::Fast,
        rows: Rows::Holding(HoldingValue::CostPerHour),
    },
];
