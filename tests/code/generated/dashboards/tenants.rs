//! Tenants and cost, over all nodes of the chosen clusters.

use super::panel::{Panel, TO_TENANT, TO_WORKLOAD, ZERO_IS_BEST, ZERO_IS_WELL};
use super::shared::{self, tenants};
use super::{Dashboard, Question, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let mut variables = shared::cluster_and_job();
    variables.push(Variable {
        name: "tenant",
        label: "Tenant",
        selector: "tenant:gpu_tenant_held_seconds:rate5m{$fleet}",
        all: Some(".+"),
    });
    Dashboard {
        name: "tenants",
        title: "Tenants and cost",
        summary: "Who holds, uses and pays for GPUs in the chosen clusters; needs the recording rules. Money here is an estimate: gpumeter bill prints the amounts that count.",
        terms: &[],
        questions: questions(),
        variables,
        annotations: shared::annotations("$fleet", true),
        rows: vec![
            month(),
            over_time(),
            sums(),
            cost(),
            availability(),
            held_without_use(),
            use_without_holding(),
            trust(),
        ],
        from: "now-24h",
    }
}

const SINCE: &str = "min_over_time(timestamp(tenant:gpu_tenant_held_seconds:increase1h{$fleet})[31d:1h])";

fn questions() -> [Question; 3] {
    let chosen =
        |expression: &str| tenants(&expression.replace("$chosen", r#"$fleet, tenant=~"$tenant", $tenants"#));
    [
        Question {
            text: "Who holds GPUs, and how many?",
            panels: vec![
                Panel::stat("Tenants that hold", "Tenants that hold a part of a GPU now.")
                    .query(&chosen("count(sum by (tenant) (tenant:gpu_tenant_held_seconds:rate5m{$chosen}) > 0)"), "tenants")
                    .empty("nobody holds a GPU"),
                Panel::stat("GPUs held and used", "Whole GPUs that the chosen tenants hold, and what their processes keep busy, wherever.")
                    .decimals(1)
                    .query(&chosen("sum(tenant:gpu_tenant_held_seconds:rate5m{$chosen})"), "held")
                    .query(&chosen("sum(tenant:gpu_tenant_used_seconds:rate5m{$chosen})"), "used")
                    .empty("nobody holds or uses a GPU"),
            ],
        },
        Question {
            text: "What is held and not used, and what is used by nobody known?",
            panels: vec![
                Panel::stat("Share held and idle", "Share of what the chosen tenants hold that nobody uses. Time that could not be measured is not idle.")
                    .share()
                    .query(
                        &chosen("sum(tenant:gpu_tenant_idle_seconds:rate5m{$chosen}) / (sum(tenant:gpu_tenant_held_seconds:rate5m{$chosen}) > 0)"),
                        "idle",
                    )
                    .empty("nobody holds a GPU"),
                Panel::stat("Used by nobody known", "Share of all use whose owner the agents could not name; nobody is billed for it.")
                    .share()
                    .colours(&[(f64::NEG_INFINITY, "green"), (0.05, "orange")])
                    .query(
                        r#"(sum(tenant:gpu_tenant_used_seconds:rate5m{$fleet, tenant="__unattributed__"}) or 0 * sum(tenant:gpu_tenant_used_seconds:rate5m{$fleet}))
                        / (sum(tenant:gpu_tenant_used_seconds:rate5m{$fleet}) > 0)"#,
                        "unattributed",
                    )
                    .empty("no GPU is used"),
            ],
        },
        Question {
            text: "What does it cost, by estimate?",
            panels: vec![
                Panel::stat("Cost per hour (estimate)", "Price of what the chosen tenants hold now, without remainders; an estimate beside the bill, which counts.")
                    .unit("locale")
                    .decimals(2)
                    .empty("no prices are configured")
                    .shows_legend()
                    .query(&chosen("3600 * sum by (currency) (tenant:gpu_tenant_held_cost:rate5m{$chosen})"), "{{currency}} per hour, tenants only"),
                shared::month_cost("What the chosen tenants are charged for the running calendar month in all clusters, added up once per hour by alerts/budgets.yaml; an estimate beside the bill, which counts.")
                    .query(&shared::month_sum(CHOSEN), "{{currency}}, tenants only"),
            ],
        },
    ]
}

/// Whose money the rules of budgets are asked for.
const CHOSEN: &str = r#"tenant=~"$tenant", $tenants"#;

fn month() -> Row {
    Row {
        title: "Money of the month (estimates of all clusters; the bill counts)",
        panels: vec![
            shared::month_by_tenant(CHOSEN).width(18).height(8),
            shared::over_budget(CHOSEN).width(6).height(8),
        ],
    }
}

fn over_time() -> Row {
    let by_tenant = |title, answers, operation: &str| {
        let name = format!("tenant:gpu_tenant_{operation}_seconds:rate5m");
        Panel::stacked(title, answers).zero_based().query(
            &tenants(&format!(
                r#"topk(10, sum by (tenant) ({name}{{$fleet, tenant=~"$tenant", $tenants}}))"#
            )),
            "{{tenant}}",
        )
    };
    Row {
        title: "GPUs over time, the ten largest tenants at each moment",
        panels: vec![
            by_tenant("Held", "Whole GPUs granted to each tenant.", "held").empty("nobody holds a GPU"),
            by_tenant(
                "Used",
                "Whole GPUs that each tenant's processes kept busy, whoever held them.",
                "used",
            )
            .empty("nobody uses a GPU"),
            by_tenant(
                "Held and idle",
                "Whole GPUs held and used by nobody; what others used of it (lent) is not idle.",
                "idle",
            )
            .empty("nobody holds a GPU"),
        ],
    }
}

fn sums() -> Row {
    let hours = |operation: &str, span: &str| {
        tenants(&format!(
            r#"sum by (tenant) (sum_over_time(tenant:gpu_tenant_{operation}:increase1h{{$fleet, tenant=~"$tenant"}}[{span}]))"#
        ))
    };
    let month = |operation: &str| {
        format!(
            r#"sum by (tenant, month) (last_over_time(tenant_month:gpu_tenant_{operation}_seconds:sum{{$fleet, tenant=~"$tenant"}}[31d])) / 3600"#
        )
    };
    Row {
        title: "Sums, by the hours recorded; also of nodes that are gone",
        panels: vec![
            Panel::table("The chosen span, in GPU-hours", "Whole hours that ended in the chosen span. In double underscores: what no tenant held. A click on the tenant chooses it here.")
                .width(12)
                .empty("no hour has ended in this span since the rules are loaded")
                .linked_key("tenant", "Tenant", TO_TENANT)
                .column("Held", "none", &format!("{} / 3600", hours("held_seconds", "$__range")))
                .column("Used", "none", &format!("{} / 3600", hours("used_seconds", "$__range")))
                .column("Held and idle", "none", &format!("{} / 3600", hours("idle_seconds", "$__range")))
                .column("Energy", "joule", &hours("energy_joules", "$__range"))
                .sorted_by(&["Held and idle"]),
            Panel::table("Calendar months so far, in GPU-hours", "UTC, by hours that have ended; kept for as long as Prometheus keeps one sample of it. A bill has the month of its own time zone.")
                .width(12)
                .empty("no hour has ended since the rules are loaded")
                .linked_key("tenant", "Tenant", TO_TENANT)
                .key("month", "Month")
                .column("Held", "none", &month("held"))
                .column("Used", "none", &month("used"))
                .column("Held and idle", "none", &month("idle"))
                .sorted_by(&["Month", "Held and idle"]),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "Cost (estimates; the bill counts)",
        panels: vec![
            Panel::stacked("Cost per hour, by tenant (estimate)", "Held time at the price then in force, the ten largest tenants; an estimate since each node's ledger began.")
                .unit("locale")
                .zero_based()
                .empty("no prices are configured")
                .query(
                    &tenants(r#"topk(10, 3600 * sum by (tenant, currency) (tenant:gpu_tenant_held_cost:rate5m{$fleet, tenant=~"$tenant", $tenants}))"#),
                    "{{tenant}} {{currency}}",
                ),
            Panel::stacked("Cost per hour, by remainder (estimate)", "What nobody held, at the same prices, since free GPUs cost as much as held ones; an estimate since each node's ledger began.")
                .unit("locale")
                .zero_based()
                .empty("no prices are configured, or everything is held")
                .query(
                    r#"3600 * sum by (tenant, currency) (tenant:gpu_tenant_held_cost:rate5m{$fleet, tenant=~"__.*__"})"#,
                    "{{tenant}} {{currency}}",
                ),
            Panel::table("Prices in force", "Price of one GPU-hour by model and class.")
                .width(8)
                .height(8)
                .unit("locale")
                .empty("no prices are configured")
                .key("model", "Model")
                .key("price_class", "Class")
                .key("currency", "Currency")
                .column("Per GPU-hour", "locale", "max by (model, price_class, currency) (model:gpu_cost_per_hour:max{$fleet})"),
        ],
    }
}

/// What is left of 30 days for GPUs that are lost or failed, as the rules of `standard.yaml` have it.
fn availability() -> Row {
    let hours = |part: &str| {
        tenants(&format!(
            r#"sum by (tenant) (sum_over_time(tenant:gpu_tenant_{part}_seconds:increase1h{{$fleet, tenant=~"$tenant", $tenants}}[30d]))"#
        ))
    };
    let all = format!("({} + {} > 0)", hours("available"), hours("unavailable"));
    let now = |part: &str| {
        tenants(&format!(
            r#"topk(10, sum by (tenant) (tenant:gpu_tenant_{part}_seconds:rate5m{{$fleet, tenant=~"$tenant", $tenants}}))"#
        ))
    };
    let pace = r#"topk(10, max by (tenant, window) (tenant_window:gpu_tenant_unavailable_seconds:ratio{cluster=~"$cluster", tenant=~"$tenant", window=~"1h|6h"}) / 0.005)"#;
    Row {
        title: "Availability of what tenants hold: the objective is 99.5 % in 30 days",
        panels: vec![
            Panel::table("Availability in 30 days", "Share of the GPU time held in which the GPU was neither lost nor failed; of the last 30 days, by the hours recorded that Prometheus keeps. Allowance used: of the 0.5 % that the objective leaves. Time across reboots and of dead nodes is left out, since no tenant holds it: it goes to __unavailable__ and __unobserved__, or the node's series end.")
                .width(10)
                .height(8)
                .empty("no hour has ended in which a tenant held a GPU")
                .linked_key("tenant", "Tenant", TO_TENANT)
                .coloured_column("Available", "percentunit", &format!("{} / {all}", hours("available")), &[(f64::NEG_INFINITY, "red"), (0.995, "green")])
                .coloured_column("Allowance used", "percentunit", &format!("{} / {all} / 0.005", hours("unavailable")), &[(f64::NEG_INFINITY, "green"), (1.0, "red")])
                .column("Lost GPU-hours", "none", &format!("{} / 3600", hours("unavailable")))
                .column("Held GPU-hours", "none", &format!("{all} / 3600"))
                .sorted_by(&["Allowance used"]),
            Panel::lines("Pace of the allowance", "How many times faster than in 30 days the allowance is used up, over one hour and six; alerts fire above 14.4 and 6. The ten highest.")
                .width(7)
                .height(8)
                .zero_based()
                .empty("nobody holds a GPU")
                .query(pace, "{{tenant}} {{window}}"),
            Panel::lines("Held and lost, or slow by heat", "Whole GPUs that a tenant holds: lost or failed, or slowed down by heat or the power brake of the server. Slow time is available time. The ten largest.")
                .width(7)
                .height(8)
                .zero_based()
                .empty("nobody holds a GPU")
                .query(&now("unavailable"), "{{tenant}} lost")
                .query(&now("throttled"), "{{tenant}} slow"),
        ],
    }
}

fn held_without_use() -> Row {
    Row {
        title: "Held without use",
        panels: vec![shared::held_without_use(
            "GPUs that are held without use",
            r#"{$fleet, tenant=~"$tenant"}"#,
        )],
    }
}

fn use_without_holding() -> Row {
    let by_tenant = |title, answers, family: &str| {
        Panel::table(title, answers)
            .width(8)
            .height(8)
            .linked_key("tenant", "Tenant", TO_TENANT)
            .column(
                "GPUs",
                "none",
                &format!(r#"topk(20, sum by (tenant) (rate({family}{{$fleet, tenant=~"$tenant"}}[$__rate_interval]))) > 0.01"#),
            )
            .sorted_by(&["GPUs"])
    };
    Row {
        title: "Use beside what is held",
        panels: vec![
            by_tenant("Used beyond the own share", "Whole GPUs used above what the tenant holds on the same GPU.", "gpu_tenant_beyond_share_seconds_total")
                .empty("nobody uses more than its share"),
            by_tenant("Used where others hold", "Whole GPUs used by tenants who hold nothing on a GPU that others hold.", "gpu_tenant_outside_holding_seconds_total")
                .empty("nobody uses what others hold"),
            by_tenant("Lent to others", "Whole GPUs held by the tenant and used by others; not part of idle.", "gpu_tenant_lent_seconds_total")
                .empty("nobody uses what others hold"),
            Panel::table("Holdings of the chosen tenants", "Whole GPUs that each workload holds now.")
                .width(16)
                .empty("the chosen tenants hold nothing")
                .linked_key("tenant", "Tenant", TO_TENANT)
                .linked_key("workload", "Workload", TO_WORKLOAD)
                .key("source", "Granted by")
                .column("GPUs", "none", r#"sum by (tenant, workload, source) (gpu_holding_ratio{$fleet, tenant=~"$tenant"} > 0)"#)
                .sorted_by(&["GPUs"]),
            Panel::table("Use without an owner, by reason", "Whole GPUs whose user the agents could not name: what kind of holder it is, as far as they know.")
                .width(8)
                .empty("every use has an owner")
                .key("reason", "Reason")
                .column("GPUs", "none", "sum by (reason) (rate(gpu_unattributed_seconds_total{$fleet}[$__rate_interval])) > 0.001")
                .sorted_by(&["GPUs"]),
        ],
    }
}

fn trust() -> Row {
    Row {
        title: "Does it add up?",
        panels: vec![
            Panel::stat("Time that no tenant and no remainder has", "Slot time less what all tenants and remainders hold, in GPUs; 0 but for moments in which a series is new.")
                .width(8)
                .decimals(2)
                .colours(&[(f64::NEG_INFINITY, "green"), (0.5, "orange")])
                .query(
                    "abs(sum(rate(gpu_slot_seconds_total{$fleet}[$__rate_interval])) - sum(rate(gpu_tenant_held_seconds_total{$fleet}[$__rate_interval])))",
                    "GPUs",
                ),
            Panel::stat("Imbalance of the ledgers", "What the parts of an account miss of the whole; anything but 0 is a defect of gpumeter.")
                .width(8)
                .unit("s")
                .colours(&[(f64::NEG_INFINITY, "green"), (0.000_001, "red")])
                .query("max(abs(gpumeter_ledger_imbalance_seconds{$fleet}))", "imbalance"),
            Panel::stat("Nodes without a price", "Nodes where prices are configured and none is in force for a GPU.")
                .width(8)
                .colours(ZERO_IS_BEST)
                .query("sum(gpumeter_price_missing{$fleet})", "nodes")
                .empty("no prices are configured"),
            Panel::stat("GPUs accounted for twice", "GPUs that two instances report; their time, energy and money are in every sum twice.")
                .width(8)
                .colours(ZERO_IS_WELL)
                .query(
                    &shared::count_or_zero("count by (cluster, uuid) (group by (cluster, uuid, instance) (gpu_present{$fleet} == 1)) > 1", "$fleet"),
                    "GPUs",
                ),
            Panel::stat("Sums are recorded since", "The first hour that Prometheus has recorded and kept; sums of longer spans lack what came before. The ledgers may reach further back.")
                .unit("dateTimeAsIso")
                .empty("no hour has been recorded yet")
                .query(&format!("1000 * min({SINCE})"), "since")
                .width(8),
        ],
    }
}
