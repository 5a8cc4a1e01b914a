//! One node: all of its GPUs.

use super::panel::{MARGIN, Panel, ZERO_IS_WELL};
use super::shared::{self, GPU, HEALTH, gpu_and, tenants};
use super::{Dashboard, Question, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "node",
        title: "Node",
        summary: "One node.",
        terms: &[],
        questions: questions(),
        variables: shared::down_to_node(None),
        annotations: shared::annotations("$node", false),
        rows: vec![
            gpus(),
            activity(),
            power_and_heat(),
            errors(),
            memory_repair(),
            links(),
            account(),
            agent(),
        ],
        from: "now-6h",
    }
}

fn questions() -> [Question; 3] {
    [
        Question {
            text: "Is every GPU of the node there, answering and healthy?",
            panels: vec![shared::presence("$node"), shared::to_do("$node")],
        },
        Question {
            text: "Is one of them slowed down?",
            panels: vec![shared::throttled_now("$node"), shared::closest_margin("$node")],
        },
        Question {
            text: "Are they held, and are they used?",
            panels: vec![
                Panel::stat("GPUs held", "Whole GPUs that tenants hold, and those free of the node.")
                    .decimals(1)
                    .query(
                        &tenants("sum(rate(gpu_tenant_held_seconds_total{$node, $tenants}[$__rate_interval]))"),
                        "held",
                    )
                    .query(
                        r#"sum(rate(gpu_tenant_held_seconds_total{$node, tenant="__unallocated__"}[$__rate_interval]))"#,
                        "free",
                    ),
                Panel::stat("GPUs busy", "Whole GPUs' worth of time in which some engine worked, and what is held and idle.")
                    .decimals(1)
                    .query("sum(rate(gpu_busy_seconds_total{$node}[$__rate_interval]))", "busy")
                    .query(
                        &tenants("sum(rate(gpu_tenant_idle_seconds_total{$node, $tenants}[$__rate_interval]))"),
                        "held and idle",
                    ),
            ],
        },
    ]
}

fn gpus() -> Row {
    let labels = "cluster, job, instance, gpu, uuid";
    Row {
        title: "GPUs",
        panels: vec![
            Panel::table("GPUs one by one", "One row for each GPU; a click on it opens its dashboard. What a board cannot answer stays blank.")
                .gpu_key()
                .label_column("model", "Model", &format!("group by ({labels}, model, mig) (gpu_info{{$node}})"))
                .key("mig", "MIG")
                .label_column("state", "Health", &format!("group by ({labels}, state) (gpu_health{{$node}})"))
                .label_column("action", "Driver asks for", &format!("group by ({labels}, action) (gpu_recovery_action{{$node}})"))
                .column("Busy", "percentunit", &format!("sum by ({labels}) (rate(gpu_busy_seconds_total{{$node}}[$__rate_interval]))"))
                .column("Memory used", "percentunit", &format!("sum by ({labels}) (gpu_memory_used_bytes{{$node}}) / sum by ({labels}) (gpu_memory_total_bytes{{$node}})"))
                .column("Power", "watt", &format!("sum by ({labels}) (gpu_power_watts{{$node}})"))
                .column(
                    "Of power limit",
                    "percentunit",
                    &format!(r#"sum by ({labels}) (gpu_power_watts{{$node}}) / sum by ({labels}) (gpu_power_limit_watts{{$node, limit="enforced"}})"#),
                )
                .coloured_column(
                    "Margin to slowdown",
                    "celsius",
                    &format!(r#"min by ({labels}) (gpu_temperature_margin_celsius{{$node, limit="slowdown"}})"#),
                    MARGIN,
                )
                .column("SM clock", "hertz", &format!(r#"sum by ({labels}) (gpu_clock_hertz{{$node, clock="sm"}})"#))
                .coloured_column(
                    "Uncorrected errors, 24 h",
                    "none",
                    &format!(r#"sum by ({labels}) (round(increase(gpu_ecc_errors_total{{$node, type="uncorrected"}}[24h])))"#),
                    ZERO_IS_WELL,
                ),
            shared::holders("$node"),
        ],
    }
}

fn activity() -> Row {
    Row {
        title: "Activity and memory",
        panels: vec![
            Panel::lines("Busy", "Share of time in which some engine worked, as bills count it.")
                .share()
                .query("rate(gpu_busy_seconds_total{$node}[$__rate_interval])", GPU),
            Panel::lines("Multiprocessors active", "Share of multiprocessors with work. Boards before Hopper do not report it.")
                .share()
                .empty("no board of the node reports it")
                .query("rate(gpu_sm_active_seconds_total{$node}[$__rate_interval])", GPU),
            Panel::lines("Tensor cores active", "Share of time in which a tensor pipe worked; where it is low, a busy GPU does little. Boards before Hopper do not report it.")
                .share()
                .empty("no board of the node reports it")
                .query("rate(gpu_tensor_active_seconds_total{$node}[$__rate_interval])", GPU),
            Panel::lines("Memory used", "Share of device memory that clients allocated, without what the driver keeps for itself.")
                .share()
                .query("gpu_memory_used_bytes{$node} / gpu_memory_total_bytes{$node}", GPU),
            Panel::lines("Memory bandwidth used", "Share of the device memory's bandwidth. Boards before Hopper do not report it.")
                .share()
                .empty("no board of the node reports it")
                .query("rate(gpu_dram_active_seconds_total{$node}[$__rate_interval])", GPU),
            Panel::lines("MIG instances active", "Share of time in which an instance's engine worked. A MIG GPU before Hopper does not report it.")
                .share()
                .empty("no GPU is partitioned, or the boards do not report it")
                .query("gpu_mig_gr_engine_active_ratio{$node}", &gpu_and("gpu_instance")),
        ],
    }
}

fn power_and_heat() -> Row {
    Row {
        title: "Power and heat",
        panels: vec![
            Panel::lines("Power", "As the driver averages it; the dashes are the limits in force.")
                .unit("watt")
                .limits("limit")
                .query("gpu_power_watts{$node}", GPU)
                .query(r#"max by (cluster, job, instance) (gpu_power_limit_watts{$node, limit="enforced"})"#, "limit {{instance}} {{cluster}}"),
            Panel::lines("Temperature", "By sensor; a number says little without the board's own limits beside it.")
                .unit("celsius")
                .query("gpu_temperature_celsius{$node}", &gpu_and("sensor")),
            Panel::lines("Margin to the board's limits", "Degrees to each limit; at 0 it acts. Boards that report limits as temperatures do not report it.")
                .unit("celsius")
                .colours(MARGIN)
                .empty("no board of the node reports it")
                .query("gpu_temperature_margin_celsius{$node}", &gpu_and("limit")),
            Panel::lines("Throttled, share of time", "Share of time in which a reason held the clocks down, by the driver's counters; reasons may overlap.")
                .share()
                .query("sum by (cluster, job, instance, gpu, uuid, reason) (rate(gpu_throttle_seconds_total{$node}[$__rate_interval])) > 0.001", &gpu_and("reason"))
                .empty("nothing held the clocks down"),
            Panel::lines("SM clock", "Clock of the multiprocessors now.")
                .unit("hertz")
                .query(r#"gpu_clock_hertz{$node, clock="sm"}"#, GPU),
            Panel::stat("Energy of this span", "Energy used in the chosen span, by the driver's own counters.")
                .unit("joule")
                .width(8)
                .height(8)
                .query("sum(increase(gpu_energy_joules_total{$node}[$__range]))", "GPUs"),
        ],
    }
}

fn errors() -> Row {
    Row {
        title: "Errors",
        panels: vec![
            Panel::lines("New XIDs by action", "XIDs by what NVIDIA's catalogue asks for; ignore is for information.")
                .zero_based()
                .empty("no XID in this span; that is good while the GPUs answer")
                .query(
                    "sum by (cluster, job, instance, gpu, uuid, action) (round(increase(gpu_xid_action_errors_total{$node}[$__rate_interval]))) > 0",
                    &gpu_and("action"),
                ),
            Panel::lines("New memory errors", "Errors that ECC corrected or could not correct; uncorrected ones end the work on the GPU.")
                .zero_based()
                .empty("no error in this span; that is good while the GPUs answer")
                .query(
                    "sum by (cluster, job, instance, gpu, uuid, type) (round(increase(gpu_ecc_errors_total{$node}[$__rate_interval]))) > 0",
                    &gpu_and("type"),
                ),
            Panel::states(
                "Health",
                "The agent's verdict over time.",
                HEALTH,
            )
            .query(
                r#"max by (cluster, job, instance, gpu, uuid) (
                    0 * gpu_health{$node, state="ok"} or gpu_health{$node, state="unknown"}
                    or 2 * gpu_health{$node, state="degraded"} or 3 * gpu_health{$node, state="failed"})"#,
                GPU,
            ),
            shared::latest_xids("$node").height(6),
        ],
    }
}

fn memory_repair() -> Row {
    Row {
        title: "Memory repair",
        panels: vec![
            Panel::lines("Remapped rows and retired pages", "Repairs over the board's life, by the kind of error; spare rows are limited. Rows: Ampere and newer; pages: older boards.")
                .width(12)
                .empty("nothing was repaired; that is good while the GPUs answer")
                .query("gpu_remapped_rows{$node} > 0", &format!("{GPU} rows {{{{cause}}}}"))
                .query("gpu_retired_pages{$node} > 0", &format!("{GPU} pages {{{{cause}}}}")),
            Panel::states(
                "Repair to come",
                "Pending: done at the next reset of the GPU; work may go on. Replace: the vendor's criterion for another board is met.",
                &[("1", "pending", "orange"), ("2", "replace", "red")],
            )
            .width(12)
            .empty("no repair is pending; that is good while the GPUs answer")
            .query("gpu_row_remap_pending{$node} == 1", &format!("{GPU} row"))
            .query("gpu_retired_pages_pending{$node} == 1", &format!("{GPU} page"))
            .query("2 * (gpu_row_remap_failure{$node} == 1)", &format!("{GPU} row failed"))
            .query("2 * (gpu_ecc_sram_threshold_exceeded{$node} == 1)", &format!("{GPU} SRAM")),
        ],
    }
}

fn links() -> Row {
    Row {
        title: "NVLink and PCIe",
        panels: vec![
            Panel::lines("NVLinks down", "Links that should be active and are not. One that was never active since the driver was loaded is not connected.")
                .width(6)
                .zero_based()
                .empty("no NVLink of the node was active")
                .query("gpu_nvlink_links_expected{$node} - gpu_nvlink_links_up{$node}", GPU),
            Panel::lines("NVLink throughput", "Over all links, from the GPU's view.")
                .width(6)
                .unit("Bps")
                .empty("no NVLink of the node was active")
                .query("rate(gpu_nvlink_bytes_total{$node}[$__rate_interval])", &gpu_and("direction")),
            Panel::lines("New NVLink errors", "By kind, over all links; one fault can count in more than one kind.")
                .width(6)
                .zero_based()
                .empty("no error in this span; that is good while the GPUs answer")
                .query("round(increase(gpu_nvlink_errors_total{$node}[$__rate_interval])) > 0", &gpu_and("kind")),
            Panel::states(
                "NVLink fabric",
                "State of the registration with the NVLink fabric; jobs over several GPUs need completed.",
                &[("0", "completed", "green"), ("1", "in progress", "blue"), ("2", "not started", "orange"), ("3", "failed", "red")],
            )
            .width(6)
            .empty("no board of the node has a fabric")
            .query(
                r#"max by (cluster, job, instance, gpu, uuid) (
                    0 * gpu_fabric_state{$node, state="completed"} or gpu_fabric_state{$node, state="in_progress"}
                    or 2 * gpu_fabric_state{$node, state="not_started"} or 3 * gpu_fabric_state{$node, state="failed"})"#,
                GPU,
            ),
            Panel::lines("PCIe throughput", "From the GPU's view.")
                .unit("Bps")
                .query("rate(gpu_pcie_bytes_total{$node}[$__rate_interval])", &gpu_and("direction")),
            Panel::lines("PCIe lanes in use", "As a share of the most that GPU and system reach together; less points to board, riser or slot.")
                .share()
                .query("gpu_pcie_link_width{$node} / gpu_pcie_link_width_max{$node}", GPU),
            Panel::lines("New PCIe replays", "Transfers that were repeated; an increase points to board, riser or slot.")
                .zero_based()
                .empty("no replay in this span; that is good while the GPUs answer")
                .query("round(increase(gpu_pcie_replays_total{$node}[$__rate_interval])) > 0", GPU),
        ],
    }
}

fn account() -> Row {
    let by_tenant = |title, answers, expression: &str| {
        Panel::stacked(title, answers).zero_based().query(&tenants(expression), "{{tenant}}")
    };
    Row {
        title: "Account (steps every 15 s, when a window closes)",
        panels: vec![
            by_tenant(
                "GPUs held, by tenant",
                "Whole GPUs granted to each tenant, and what nobody holds: __unallocated__ is free, __stranded__ fits no MIG profile, __unavailable__ was broken or reshaping.",
                "sum by (tenant) (rate(gpu_tenant_held_seconds_total{$node}[$__rate_interval]))",
            ),
            by_tenant(
                "GPUs used, by tenant",
                "Whole GPUs that each tenant's processes kept busy, whoever held them. __system__ and __unattributed__ hold nothing.",
                "sum by (tenant) (rate(gpu_tenant_used_seconds_total{$node}[$__rate_interval]))",
            )
            .empty("nobody used a GPU"),
            by_tenant(
                "GPUs held and idle, by tenant",
                "Whole GPUs held and used by nobody. Time that others used (lent) or that could not be measured is not idle.",
                "sum by (tenant) (rate(gpu_tenant_idle_seconds_total{$node, $tenants}[$__rate_interval]))",
            )
            .empty("no tenant holds a GPU"),
            by_tenant(
                "Power, by tenant",
                "The driver's joules, split: idle power follows what is held, the rest what is used.",
                "sum by (tenant) (rate(gpu_tenant_energy_joules_total{$node}[$__rate_interval]))",
            )
            .unit("watt")
            .width(12),
            Panel::stacked("Cost per hour, by tenant (estimate)", "Held time at the price then in force; an estimate since the node's ledger began, beside the bill, which counts.")
                .unit("locale")
                .zero_based()
                .width(12)
                .empty("no prices are configured")
                .query(
                    "3600 * sum by (tenant, currency) (rate(gpu_tenant_held_cost_total{$node}[$__rate_interval]))",
                    "{{tenant}} {{currency}}",
                ),
        ],
    }
}

fn agent() -> Row {
    Row {
        title: "Can the numbers be trusted?",
        panels: vec![
            Panel::lines("Sample age", "Age of each GPU's last complete sample at the scrape; readings older than two ticks are withheld. The clocks of node and Prometheus have to agree.")
                .unit("s")
                .zero_based()
                .width(12)
                .query(
                    "clamp_min(timestamp(gpumeter_last_sample_timestamp_seconds{$node}) - gpumeter_last_sample_timestamp_seconds{$node}, 0)",
                    GPU,
                ),
            Panel::lines("Call in flight", "A driver call that is late, by name, and for how long.")
                .unit("s")
                .width(12)
                .empty("no call is late; that is good")
                .query("gpumeter_driver_call_in_flight_seconds{$node}", &gpu_and("call")),
        ],
    }
}
