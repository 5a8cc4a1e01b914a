//! One workload on all of its GPUs: a pod, a job, a service.

use super::panel::{Panel, TO_NODE, ZERO_IS_BEST, ZERO_IS_WELL};
use super::shared::{self, GPU};
use super::{Dashboard, Question, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let mut variables = shared::down_to_node(Some(".+"));
    variables.push(Variable {
        name: "tenant",
        label: "Tenant",
        selector: "gpu_workload_info{$node}",
        all: Some(".+"),
    });
    variables.push(Variable {
        name: "workload",
        label: "Workload",
        selector: r#"gpu_workload_info{$node, tenant=~"$tenant"}"#,
        all: None,
    });
    Dashboard {
        name: "workload",
        title: "Workload",
        summary: "One workload on all GPUs that it holds, side by side. A rank that waits for others spins at 100 %, so compare power, clocks and tensor cores, not utilization. A share of a GPU shows the whole GPU.",
        terms: &[],
        questions: questions(),
        variables,
        annotations: shared::annotations("$node", true),
        rows: vec![what(), ranks(), links_and_memory(), amounts()],
        from: "now-3h",
    }
}

/// The GPUs that the workload holds a part of.
const HELD: &str =
    r#"and on (cluster, job, instance, uuid) (gpu_holding_ratio{$node, workload=~"$workload"} > 0)"#;

fn held(expression: &str) -> String {
    format!("({expression} {HELD})")
}

/// Each GPU of the workload; of more than twenty the median, the lowest and the highest.
fn each(title: &'static str, answers: &'static str, expression: &str) -> Panel {
    let series = held(expression);
    Panel::lines(title, answers)
        .empty("the workload holds no GPU that reports it")
        .query(&format!("{series} and on () count({series}) <= 20"), GPU)
        .query(&format!("min({series}) and on () count({series}) > 20"), "lowest of all")
        .query(&format!("quantile(0.5, {series}) and on () count({series}) > 20"), "median of all")
        .query(&format!("max({series}) and on () count({series}) > 20"), "highest of all")
}

fn questions() -> [Question; 3] {
    let power = held("gpu_power_watts{$node}");
    let unwell = held(r#"gpu_health{$node, state!="ok"}"#);
    let throttled = held(
        r#"(max by (cluster, job, instance, uuid) (gpu_throttle_active{$node, reason!="sw_power_cap"}) == 1)"#,
    );
    [
        Question {
            text: "Does it have its GPUs, and are they well?",
            panels: vec![
                Panel::stat("GPUs held", "Whole GPUs that the workload holds, and on how many GPUs.")
                    .decimals(2)
                    .empty("the workload holds nothing now")
                    .query(r#"sum(gpu_holding_ratio{$node, workload=~"$workload"})"#, "held")
                    .query(r#"count(group by (cluster, job, instance, uuid) (gpu_holding_ratio{$node, workload=~"$workload"} > 0))"#, "on GPUs"),
                Panel::stat("GPUs not ok", "GPUs of the workload that are degraded, failed, or do not answer.")
                    .colours(ZERO_IS_WELL)
                    .empty("the workload holds nothing now")
                    .query(&format!("count({unwell}) or 0 * count({})", held("gpu_present{$node}")), "not ok"),
            ],
        },
        Question {
            text: "Does one rank hold the others up?",
            panels: vec![
                Panel::stat("Lowest power / median", "Power of the rank that draws least as a share of the median; far below 1 one rank does less than the others, or waits.")
                    .unit("percentunit")
                    .colours(&[(f64::NEG_INFINITY, "orange"), (0.7, "green")])
                    .empty("the workload holds nothing now")
                    .query(&format!("min({power}) / quantile(0.5, {power})"), "lowest"),
                Panel::stat("Ranks throttled", "GPUs of the workload whose clocks something holds down; the power cap is left out.")
                    .colours(ZERO_IS_BEST)
                    .empty("the workload holds nothing now")
                    .query(&format!("count({throttled}) or 0 * count({})", held("gpu_present{$node}")), "throttled"),
            ],
        },
        Question {
            text: "What does it take?",
            panels: vec![
                Panel::stat("Power of its GPUs", "Power draw of the GPUs that it holds a part of.")
                    .unit("watt")
                    .empty("the workload holds nothing now")
                    .query(&format!("sum({power})"), "GPUs"),
                Panel::stat("Cost per hour (estimate)", "What it holds at the price in force now; an estimate beside the bill, which counts.")
                    .unit("locale")
                    .decimals(2)
                    .empty("no prices are configured, or the workload holds nothing now")
                    .query(
                        r#"sum by (currency) (
                            sum by (cluster, job, instance, uuid) (gpu_holding_ratio{$node, workload=~"$workload", gpu_instance=""})
                            * on (cluster, job, instance, uuid) group_right () gpu_cost_per_hour{$node})"#,
                        "{{currency}} per hour, whole GPUs",
                    ),
            ],
        },
    ]
}

fn what() -> Row {
    let tell = "group by (workload, kind, tenant, k8s_namespace_name, k8s_pod_name, k8s_container_name, slurm_job_id, slurm_step_id, \
                slurm_account, slurm_user, systemd_unit, user_name, container_name)";
    let gpu = "cluster, job, instance, gpu, uuid";
    let of_gpu = |expression: &str| format!("sum by ({gpu}) {}", held(expression));
    Row {
        title: "What and where",
        panels: vec![
            Panel::table("What it is", "Origin and tenant of the workload.")
                .height(4)
                .empty("the workload is gone")
                .key("workload", "Workload")
                .key("kind", "Kind")
                .key("tenant", "Tenant")
                .key("k8s_namespace_name", "Namespace")
                .key("k8s_pod_name", "Pod")
                .key("k8s_container_name", "Container")
                .key("slurm_job_id", "Job")
                .key("slurm_step_id", "Step")
                .key("slurm_account", "Account")
                .key("slurm_user", "Slurm user")
                .key("systemd_unit", "Unit")
                .key("user_name", "User")
                .label_column(
                    "container_name",
                    "Docker container",
                    &format!(r#"{tell} (gpu_workload_info{{$node, workload=~"$workload"}})"#),
                ),
            Panel::table(
                "Ranks",
                "One row for each GPU of the workload; sort by a column to find the odd one.",
            )
            .empty("the workload holds nothing now")
            .key("cluster", "Cluster")
            .linked_key("instance", "Node", TO_NODE)
            .gpu_key()
            .label_column(
                "state",
                "Health",
                &format!("group by ({gpu}, state) {}", held("gpu_health{$node}")),
            )
            .column("Power", "watt", &of_gpu("gpu_power_watts{$node}"))
            .column("SM clock", "hertz", &of_gpu(r#"gpu_clock_hertz{$node, clock="sm"}"#))
            .column(
                "Tensor cores",
                "percentunit",
                &of_gpu("rate(gpu_tensor_active_seconds_total{$node}[$__rate_interval])"),
            )
            .column("Memory used", "bytes", &of_gpu("gpu_memory_used_bytes{$node}"))
            .coloured_column(
                "Throttle reasons",
                "none",
                &of_gpu(r#"gpu_throttle_active{$node, reason!="sw_power_cap"}"#),
                ZERO_IS_BEST,
            )
            .coloured_column(
                "XIDs of 24 h",
                "none",
                &of_gpu(r#"round(increase(gpu_xid_action_errors_total{$node, action!="ignore"}[24h]))"#),
                ZERO_IS_WELL,
            ),
        ],
    }
}

fn ranks() -> Row {
    Row {
        title: "Ranks side by side (more than 20 GPUs: lowest, median and highest)",
        panels: vec![
            each("Power", "The best sign of work: a rank that waits draws less.", "gpu_power_watts{$node}").unit("watt"),
            each("SM clock", "A rank with a lower clock slows all others down.", r#"gpu_clock_hertz{$node, clock="sm"}"#).unit("hertz"),
            each("Tensor cores active", "Share of time in which a tensor pipe worked; needs Hopper or newer.", "rate(gpu_tensor_active_seconds_total{$node}[$__rate_interval])").share(),
            each("Multiprocessors active", "A rank that waits may spin here at 100 %; needs Hopper or newer.", "rate(gpu_sm_active_seconds_total{$node}[$__rate_interval])").share(),
            each("Throttled, share of time", "All reasons together, the power cap among them; more than 100 % where reasons overlap.", "sum by (cluster, job, instance, gpu, uuid) (rate(gpu_throttle_seconds_total{$node}[$__rate_interval]))").unit("percentunit"),
            each("Temperature", "Of the core.", r#"gpu_temperature_celsius{$node, sensor="gpu"}"#).unit("celsius"),
        ],
    }
}

fn links_and_memory() -> Row {
    let both = |family: &str| {
        format!("sum by (cluster, job, instance, gpu, uuid) (rate({family}{{$node}}[$__rate_interval]))")
    };
    Row {
        title: "Communication and memory",
        panels: vec![
            each(
                "NVLink, both directions",
                "Both directions; a rank that sends less than its peers is odd.",
                &both("gpu_nvlink_bytes_total"),
            )
            .unit("Bps"),
            each("PCIe, both directions", "Both directions.", &both("gpu_pcie_bytes_total")).unit("Bps"),
            each(
                "Memory used",
                "What clients allocated; of all that share the GPU.",
                "gpu_memory_used_bytes{$node}",
            )
            .unit("bytes"),
        ],
    }
}

fn amounts() -> Row {
    let of_workload = |operation: &str| {
        format!(
            r#"sum(rate(gpu_workload_{operation}_seconds_total{{$node, workload=~"$workload"}}[$__rate_interval]))"#
        )
    };
    Row {
        title: "Account of the workload (steps every 15 s)",
        panels: vec![
            Panel::lines("GPUs held, used and idle", "Whole GPUs by the account.")
                .zero_based()
                .width(12)
                .empty("the agents do not export amounts of workloads")
                .query(&of_workload("held"), "held")
                .query(&of_workload("used"), "used")
                .query(&of_workload("idle"), "held and idle"),
            Panel::lines("Power by the account", "Its part of the driver's joules: idle power by what it holds, the rest by what it uses.")
                .unit("watt")
                .zero_based()
                .width(12)
                .empty("the agents do not export amounts of workloads")
                .query(
                    r#"sum by (part) (rate(gpu_workload_energy_joules_total{$node, workload=~"$workload"}[$__rate_interval]))"#,
                    "{{part}}",
                ),
        ],
    }
}
