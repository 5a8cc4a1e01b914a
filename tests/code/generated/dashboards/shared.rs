//! Variables, annotations and panels that several dashboards have.

use super::panel::{self, MARGIN, Panel, TO_NODE, TO_TENANT, TO_WORKLOAD, ZERO_IS_BEST, ZERO_IS_WELL};
use super::{Annotation, Variable};

/// What a series of one GPU is called: unique among nodes and clusters.
pub(super) const GPU: &str = "{{instance}} GPU {{gpu}} {{cluster}}";

/// The legend of a series of one GPU with a further label.
pub(super) fn gpu_and(label: &str) -> String {
    format!("{GPU} {{{{{label}}}}}")
}

const NOT_NAMED: &str = r#"tenant!~"__.*__""#;

/// What no tenant is excluded from: the matcher of tenants that are no remainder.
pub(super) fn tenants(expression: &str) -> String {
    expression.replace("$tenants", NOT_NAMED)
}

/// 0 while agents report and nothing is counted; without agents nothing, so that no calm number stands for none.
pub(super) fn count_or_zero(expression: &str, scope: &str) -> String {
    format!("count({expression}) or 0 * count(gpu_present{{{scope}}})")
}

/// The GPUs that are held without use, those first that stood idle longest in the last day.
pub(super) fn held_without_use(title: &'static str, scope: &str) -> Panel {
    Panel::table(title, "As GpuHeldIdle has it: nobody used anything for longer than the class of the workload allows. By how long they stood idle in the last day.")
        .empty("nobody holds a GPU without use")
        .key("cluster", "Cluster")
        .linked_key("instance", "Node", TO_NODE)
        .gpu_key()
        .linked_key("tenant", "Tenant", TO_TENANT)
        .key("kind", "How")
        .column(
            "Idle hours of the last day",
            "none",
            &format!(
                "topk(50, max by (cluster, instance, gpu, uuid, tenant, kind) (gpu_held_without_use{scope} \
                 * on (cluster, job, instance, uuid, tenant) group_left () \
                 sum by (cluster, job, instance, uuid, tenant) (increase(gpu_tenant_idle_seconds_total{scope}[1d]))) / 3600)"
            ),
        )
        .sorted_by(&["Idle hours of the last day"])
}

pub(super) const CLUSTER: Variable =
    Variable { name: "cluster", label: "Cluster", selector: "gpumeter_build_info", all: Some(".*") };

pub(super) fn cluster_and_job() -> Vec<Variable> {
    vec![
        CLUSTER,
        Variable {
            name: "job",
            label: "Job",
            selector: r#"gpumeter_build_info{cluster=~"$cluster"}"#,
            all: Some(".+"),
        },
    ]
}

/// Variables down to the node; of one node where `all` is absent.
pub(super) fn down_to_node(all: Option<&'static str>) -> Vec<Variable> {
    let mut variables = cluster_and_job();
    variables.push(Variable {
        name: "instance",
        label: "Instance",
        selector: "gpumeter_build_info{$fleet}",
        all,
    });
    variables
}

/// XIDs, driver restarts, reshapes and changes of prices. Those that read every GPU are off where there are thousands.
pub(super) fn annotations(scope: &'static str, is_large: bool) -> Vec<Annotation> {
    let mark = |name, expression: &str, title, text, colour| Annotation {
        name,
        expression: panel::expand(&expression.replace("$scope", scope)),
        title,
        text,
        colour,
        is_moment: false,
        is_shown: !is_large,
    };
    vec![
        Annotation {
            is_moment: true,
            is_shown: true,
            ..mark(
                "XIDs",
                "1000 * gpu_xid_last_timestamp_seconds{$scope}",
                "XID {{xid}}",
                "{{instance}} GPU {{gpu}} {{cluster}}",
                "red",
            )
        },
        mark(
            "Driver restarts",
            "max by (cluster, job, instance) (resets(gpu_energy_joules_total{$scope}[$__rate_interval])) > 0",
            "driver restarted, or a GPU was reset",
            "{{instance}} {{cluster}}",
            "purple",
        ),
        mark(
            "Reshapes",
            "sum by (cluster, job, instance) (increase(gpumeter_mig_layout_changes_total{$scope}[$__rate_interval])) > 0",
            "MIG layout changed",
            "{{instance}} {{cluster}}",
            "blue",
        ),
        Annotation {
            is_shown: true,
            ..mark(
                "Price changes",
                "changes(model:gpu_cost_per_hour:max{cluster=~\"$cluster\"}[$__rate_interval]) > 0",
                "price changed",
                "{{model}} {{currency}} {{price_class}} {{cluster}}",
                "yellow",
            )
        },
    ]
}

/// What a rule of `budgets.yaml` says of the running month, for the tenants that matchers choose.
///
/// The rules are evaluated once per hour, and a budget is of all clusters.
fn of_month(rule: &str, matchers: &str, condition: &str) -> String {
    tenants(&format!(
        "last_over_time(tenant_month:{rule}{{{matchers}}}[2h]){condition} \
         and on (month) gpumeter_billing_period_end_timestamp_seconds > time()"
    ))
}

const COST: &str = "gpu_tenant_cost:sum";
const SPENT: &str = "gpu_tenant_budget:spent_ratio";
const PROJECTED: &str = "gpu_tenant_budget:projected_ratio";
const NO_SUM: &str = "no prices, or no hour is added up yet";

/// What the running month costs so far, by currency; each query is a sum of `month_sum`.
pub(super) fn month_cost(answers: &'static str) -> Panel {
    Panel::stat("Month so far (estimate)", answers).unit("locale").decimals(2).empty(NO_SUM).shows_legend()
}

pub(super) fn month_sum(matchers: &str) -> String {
    format!("sum by (currency) ({})", of_month(COST, matchers, ""))
}

/// How many tenants have used up their budgets, or will.
pub(super) fn over_budget(matchers: &str) -> Panel {
    let count = |rule| {
        let over = of_month(rule, matchers, " > 1");
        format!("count({over}) or 0 * count({})", of_month(rule, matchers, ""))
    };
    Panel::stat("Tenants over budget", "Projected: at the end of the month, if each hour until then costs what one of the last 24 hours did; who is over it now is one of them. Of all clusters; alerts/budgets.yaml adds it up once per hour.")
        .colours(ZERO_IS_BEST)
        .empty("no budgets, or no hour is added up yet")
        .query(&count(SPENT), "now")
        .query(&count(PROJECTED), "projected")
}

/// What each tenant costs in the running month, beside its budget.
pub(super) fn month_by_tenant(matchers: &str) -> Panel {
    // With rules of a budget per cluster, costs add up, and the highest share counts.
    let by_tenant = |operation, rule| {
        format!("{operation} by (tenant, month, currency) ({})", of_month(rule, matchers, ""))
    };
    let budget = tenants(&format!("max by (tenant, currency) (gpu_tenant_budget{{{matchers}}})"));
    Panel::table("Month so far and budgets, by tenant (estimate)", "Of all clusters; alerts/budgets.yaml adds it up once per hour. The bill counts. Spent and Projected are shares of the budget, and blank without one; Projected as if each hour until the end of the month cost what one of the last 24 hours did.")
        .empty(NO_SUM)
        .linked_key("tenant", "Tenant", TO_TENANT)
        .key("month", "Month")
        .key("currency", "Currency")
        .money_column("Cost so far", &by_tenant("sum", COST))
        .money_column("Budget", &budget)
        .coloured_column("Spent", "percentunit", &by_tenant("max", SPENT), &[(f64::NEG_INFINITY, "green"), (1.0, "red")])
        .coloured_column("Projected", "percentunit", &by_tenant("max", PROJECTED), &[(f64::NEG_INFINITY, "green"), (1.0, "orange")])
        .sorted_by(&["Spent", "Cost so far"])
}

/// How many GPUs are there, and how many should be.
pub(super) fn presence(scope: &str) -> Panel {
    Panel::stat("GPUs", "How many GPUs the driver lists, and how many the agents expect: those it has listed before and that nobody told to forget.")
        .query(&format!("sum(gpu_present{{{scope}}})"), "there")
        .query(&format!("count(gpu_present{{{scope}}})"), "expected")
}

/// How many GPUs somebody should do something about.
pub(super) fn to_do(scope: &str) -> Panel {
    let unwell = format!(
        r#"gpu_recovery_action{{{scope}, action!="none"}}
        or on (cluster, job, instance, uuid) gpu_health{{{scope}, state=~"failed|degraded"}}
        or on (cluster, job, instance, uuid) gpu_absence_info{{{scope}, reason=~"lost|gone"}}"#
    );
    Panel::stat("GPUs with something to do", "GPUs that are lost, failed or degraded, or that the driver asks to reset; the health dashboard says what.")
        .colours(ZERO_IS_WELL)
        .query(&count_or_zero(&unwell, scope), "to do")
}

/// The smallest distance to the slowdown limit.
pub(super) fn closest_margin(scope: &str) -> Panel {
    Panel::stat("Closest to slowdown", "Degrees between the hottest GPU and its own slowdown limit; at 0 it slows down. Boards that report limits only as temperatures are left out.")
        .unit("celsius")
        .colours(MARGIN)
        .empty("no board reports its distance to a limit")
        .query(&format!(r#"min(gpu_temperature_margin_celsius{{{scope}, limit="slowdown"}})"#), "margin")
}

/// How many GPUs are slowed down now.
pub(super) fn throttled_now(scope: &str) -> Panel {
    let throttled = format!(
        r#"max by (cluster, job, instance, uuid) (gpu_throttle_active{{{scope}, reason!="sw_power_cap"}}) == 1"#
    );
    Panel::stat("Throttled now", "GPUs whose clocks something holds down; the power cap, which a busy GPU reaches by design, is left out.")
        .colours(ZERO_IS_BEST)
        .query(&count_or_zero(&throttled, scope), "throttled")
}

/// Who holds the GPUs, one row for each holding.
pub(super) fn holders(scope: &str) -> Panel {
    Panel::table("Holders", "Who holds which share of a GPU or MIG instance now, and by which record; a nested holding shows its own part.")
        .empty("nobody holds a GPU")
        .key("cluster", "Cluster")
        .key("instance", "Node")
        .gpu_key()
        .key("gpu_instance", "MIG instance")
        .linked_key("tenant", "Tenant", TO_TENANT)
        .linked_key("workload", "Workload", TO_WORKLOAD)
        .key("source", "Granted by")
        .column("Share", "percentunit", &format!("gpu_holding_ratio{{{scope}}} > 0"))
}

/// The last XIDs, one row for each code and GPU.
pub(super) fn latest_xids(scope: &str) -> Panel {
    let on = "on (cluster, job, instance, uuid, xid)";
    Panel::table("Latest XIDs", "When each code was last seen on each GPU, with its class and the action that NVIDIA's catalogue asks for.")
        .empty("no XID was seen; that is good while the GPUs answer")
        .key("cluster", "Cluster")
        .key("instance", "Node")
        .gpu_key()
        .key("xid", "XID")
        .key("class", "Class")
        .key("action", "Action")
        .column(
            "Last seen",
            "dateTimeAsIso",
            &format!(
                "1000 * gpu_xid_last_timestamp_seconds{{{scope}}} * {on} group_left (class, action) \
                 group by (cluster, job, instance, uuid, xid, class, action) (gpu_xid_info{{{scope}}})"
            ),
        )
}

/// The states of health, in the order of their numbers in a state timeline.
pub(super) const HEALTH: &[(&str, &str, &str)] =
    &[("0", "ok", "green"), ("1", "unknown", "purple"), ("2", "degraded", "orange"), ("3", "failed", "red")];

/// GPUs by the state of their health over time.
pub(super) fn health_over_time() -> Panel {
    Panel::stacked(
        "GPUs by state of health",
        "The agents' verdicts over time; unknown: the GPU does not answer in time.",
    )
    .zero_based()
    .coloured_like(HEALTH)
    .query("sum by (state) (model_state:gpu_health:count{$fleet})", "{{state}}")
}

/// XIDs by what they ask for.
pub(super) fn xids_by_action() -> Panel {
    Panel::lines("New XIDs by action", "XIDs of the last five minutes by what NVIDIA's catalogue asks for; restart_app is the application's own failure, ignore is for information.")
        .zero_based()
        .query("sum by (action) (action:gpu_xid_action_errors:increase5m{$fleet})", "{{action}}")
}
