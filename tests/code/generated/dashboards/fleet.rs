//! The fleet: all nodes of the chosen clusters.

use super::panel::{MARGIN, Panel, TO_NODE, ZERO_IS_BEST, ZERO_IS_WELL};
use super::shared::{self, tenants};
use super::{Dashboard, Question, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "Fleet",
        summary: "All GPUs of the chosen clusters; needs the recording rules.",
        terms: &[],
        questions: questions(),
        variables: shared::cluster_and_job(),
        annotations: shared::annotations("$fleet", true),
        rows: vec![usage(), health(), nodes(), worst(), energy_and_money()],
        from: "now-6h",
    }
}

fn questions() -> [Question; 3] {
    [
        Question {
            text: "Are all GPUs there and fit for work?",
            panels: vec![
                Panel::stat("GPUs", "How many GPUs the driver lists, and how many are expected, those of nodes that are not watched now among them.")
                    .query("sum(model:gpu_present:sum{$fleet})", "there")
                    .query("sum(instance:gpu_present:count{$fleet})", "expected"),
                Panel::stat("GPUs not fit for work", "Broken: lost, failed, or not answering. Unwatched: the agent of their node does not answer.")
                    .colours(ZERO_IS_WELL)
                    .query(&shared::count_or_zero("uuid:gpu_unfit:group{$fleet}", "$fleet"), "broken")
                    .query(
                        "sum(instance:gpu_present:count{$fleet} and on (cluster, job, instance) up{$fleet} == 0) or 0 * count(gpu_present{$fleet})",
                        "unwatched",
                    ),
            ],
        },
        Question {
            text: "Are they held, and are they used?",
            panels: vec![
                Panel::stat("Share of all GPUs", "Held: granted to tenants. Busy: some engine works, as bills count it.")
                    .share()
                    .query(
                        &tenants("sum(tenant:gpu_tenant_held_seconds:rate5m{$fleet, $tenants}) / sum(model:gpu_present:sum{$fleet})"),
                        "held",
                    )
                    .query("sum(tenant:gpu_tenant_used_seconds:rate5m{$fleet}) / sum(model:gpu_present:sum{$fleet})", "busy"),
                Panel::stat("GPUs held without use", "Of these nobody used anything for longer than the class of the workload allows; a service may wait.")
                    .colours(ZERO_IS_BEST)
                    .query(
                        &shared::count_or_zero("count by (cluster, job, instance, uuid) (gpu_held_without_use{$fleet})", "$fleet"),
                        "held without use",
                    ),
            ],
        },
        Question {
            text: "What do they draw, and what do they cost?",
            panels: vec![
                Panel::stat("Power", "Power draw of all GPUs, without their nodes.")
                    .unit("watt")
                    .query("sum(model:gpu_power_watts:sum{$fleet})", "GPUs"),
                Panel::stat("Cost per hour (estimate)", "Price of what is held now, remainders included; an estimate beside the bill, which counts.")
                    .unit("locale")
                    .decimals(2)
                    .empty("no prices are configured")
                    .shows_legend()
                    .query("3600 * sum by (currency) (tenant:gpu_tenant_held_cost:rate5m{$fleet})", "{{currency}} per hour"),
            ],
        },
    ]
}

fn usage() -> Row {
    Row {
        title: "Use",
        panels: vec![
            Panel::lines("GPUs by use", "Whole GPUs: held by tenants, busy, held and idle, and free. Busy may exceed held where GPUs are used that nobody holds.")
                .zero_based()
                .query(&tenants("sum(tenant:gpu_tenant_held_seconds:rate5m{$fleet, $tenants})"), "held")
                .query("sum(tenant:gpu_tenant_used_seconds:rate5m{$fleet})", "busy")
                .query(&tenants("sum(tenant:gpu_tenant_idle_seconds:rate5m{$fleet, $tenants})"), "held and idle")
                .query(r#"sum(tenant:gpu_tenant_held_seconds:rate5m{$fleet, tenant="__unallocated__"})"#, "free")
                .query(r#"sum(tenant:gpu_tenant_held_seconds:rate5m{$fleet, tenant=~"__(unavailable|unobserved|stranded)__"}) or 0 * sum(tenant:gpu_tenant_held_seconds:rate5m{$fleet})"#, "out of use"),
            Panel::lines("Busy GPUs, quantiles", "A tenth of the GPUs is busy for less than p10, half for less than p50, a tenth for more than p90. GPUs in MIG mode are left out.")
                .share()
                .query("avg by (cluster, quantile) (quantile:gpu_busy_seconds:rate5m{$fleet})", "p{{quantile}} {{cluster}}"),
            Panel::stacked("GPUs held, by tenant", "The ten tenants that hold most at each moment.")
                .zero_based()
                .query(
                    &tenants("topk(10, sum by (tenant) (tenant:gpu_tenant_held_seconds:rate5m{$fleet, $tenants}))"),
                    "{{tenant}}",
                ),
        ],
    }
}

fn health() -> Row {
    Row {
        title: "Health",
        panels: vec![
            shared::health_over_time(),
            shared::xids_by_action(),
            Panel::table("Firing alerts", "Alerts of gpumeter that fire, silenced or not.")
                .width(8)
                .height(8)
                .empty("no alert fires, if Prometheus has the rules")
                .key("cluster", "Cluster")
                .key("alertname", "Alert")
                .key("severity", "Severity")
                .column(
                    "Count",
                    "none",
                    r#"count by (cluster, alertname, severity) (ALERTS{cluster=~"$cluster", alertstate="firing", alertname=~"Gpu.+", severity!="none"})"#,
                ),
        ],
    }
}

fn nodes() -> Row {
    Row {
        title: "Nodes and models",
        panels: vec![
            Panel::table("Nodes", "One row for each node; a click on it opens its dashboard. One that was watched within an hour and does not answer now has no numbers; of agents that push, Watched is blank.")
                .width(18)
                .height(12)
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .coloured_column("Watched", "bool_yes_no", "max by (cluster, instance) (up{$fleet} and on (cluster, job, instance) last_over_time(gpumeter_build_info{$fleet}[1h]))", &[(f64::NEG_INFINITY, "red"), (1.0, "green")])
                .column("GPUs", "none", "sum by (cluster, instance) (gpu_present{$fleet})")
                .coloured_column(
                    "Broken",
                    "none",
                    "count by (cluster, instance) (uuid:gpu_unfit:group{$fleet}) or 0 * count by (cluster, instance) (gpu_present{$fleet})",
                    ZERO_IS_WELL,
                )
                .column("Busy", "percentunit", "avg by (cluster, instance) (rate(gpu_busy_seconds_total{$fleet}[$__rate_interval]))")
                .column(
                    "Held and idle",
                    "none",
                    &tenants("sum by (cluster, instance) (rate(gpu_tenant_idle_seconds_total{$fleet, $tenants}[$__rate_interval]))"),
                )
                .column(
                    "Memory used",
                    "percentunit",
                    "sum by (cluster, instance) (gpu_memory_used_bytes{$fleet}) / sum by (cluster, instance) (gpu_memory_total_bytes{$fleet})",
                )
                .column("Power", "watt", "sum by (cluster, instance) (gpu_power_watts{$fleet})")
                .coloured_column(
                    "Margin to slowdown",
                    "celsius",
                    r#"min by (cluster, instance) (gpu_temperature_margin_celsius{$fleet, limit="slowdown"})"#,
                    MARGIN,
                ),
            Panel::table("Models", "GPUs by model, and how many of them are not ok.")
                .width(6)
                .height(12)
                .key("model", "Model")
                .column("There", "none", "sum by (model) (model:gpu_present:sum{$fleet})")
                .coloured_column(
                    "Not ok",
                    "none",
                    r#"sum by (model) (model_state:gpu_health:count{$fleet, state!="ok"}) or 0 * sum by (model) (model:gpu_present:count{$fleet})"#,
                    ZERO_IS_WELL,
                ),
        ],
    }
}

fn worst() -> Row {
    Row {
        title: "The worst of all",
        panels: vec![
            shared::held_without_use("Held without use", "{$fleet}").width(12),
            Panel::table(
                "Closest to slowdown",
                "The twenty GPUs that are nearest to their own slowdown limit.",
            )
            .width(12)
            .empty("no board reports its distance to a limit")
            .key("cluster", "Cluster")
            .linked_key("instance", "Node", TO_NODE)
            .gpu_key()
            .coloured_column(
                "Margin",
                "celsius",
                r#"bottomk(20, gpu_temperature_margin_celsius{$fleet, limit="slowdown"})"#,
                MARGIN,
            ),
        ],
    }
}

fn energy_and_money() -> Row {
    Row {
        title: "Energy and money",
        panels: vec![
            Panel::stacked("Power by model", "Power draw of the GPUs, without their nodes.")
                .unit("watt")
                .zero_based()
                .width(12)
                .query("sum by (model) (model:gpu_power_watts:sum{$fleet})", "{{model}}"),
            Panel::stacked("Cost per hour by price class (estimate)", "Price of what is held, remainders included, at the price then in force; an estimate since each node's ledger began, beside the bill, which counts.")
                .unit("locale")
                .zero_based()
                .width(12)
                .empty("no prices are configured")
                .query(
                    "3600 * sum by (currency, price_class) (tenant:gpu_tenant_held_cost:rate5m{$fleet})",
                    "{{price_class}} {{currency}}",
                ),
            shared::month_by_tenant("$tenants").width(18).height(8),
            shared::month_cost("What the running calendar month costs in all clusters: what tenants are charged, and what nobody held; alerts/budgets.yaml adds it up once per hour. An estimate beside the bill, which counts.")
                .width(6)
                .height(8)
                .query(&shared::month_sum("$tenants"), "{{currency}}, tenants")
                .query(&shared::month_sum(r#"tenant=~"__.*__""#), "{{currency}}, not held"),
        ],
    }
}
