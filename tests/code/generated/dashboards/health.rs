//! Health: what has to be drained, reset, rebooted or replaced, over all nodes of the chosen clusters.

use super::panel::{MARGIN, Panel, TO_GPU, TO_NODE, ZERO_IS_BEST, ZERO_IS_WELL};
use super::shared;
use super::{Dashboard, Question, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "health",
        title: "Health",
        summary: "What is wrong with GPUs and what to do about it, in the chosen clusters; needs the recording rules. docs/actions.md says what each action means.",
        terms: &[],
        questions: questions(),
        variables: shared::cluster_and_job(),
        annotations: shared::annotations("$fleet", true),
        rows: vec![to_do(), xids(), memory(), heat_and_power(), links(), versions()],
        from: "now-24h",
    }
}

fn questions() -> [Question; 3] {
    [
        Question {
            text: "What needs hands now?",
            panels: vec![
                shared::to_do("$fleet"),
                Panel::stat("Boards to replace", "Boards that meet their vendor's criterion for replacement: a memory row could not be replaced, or too many SRAM errors.")
                    .colours(ZERO_IS_WELL)
                    .query(
                        &shared::count_or_zero(
                            "(gpu_row_remap_failure{$fleet} == 1 or on (cluster, job, instance, uuid) gpu_ecc_sram_threshold_exceeded{$fleet} == 1)",
                            "$fleet",
                        ),
                        "boards",
                    ),
            ],
        },
        Question {
            text: "Does it spread?",
            panels: vec![
                Panel::stat("GPUs not fit for work", "Lost, failed, or not answering, as a share of all that are watched; above 5 % on several nodes somebody is paged.")
                    .unit("percentunit")
                    .decimals(1)
                    .colours(&[(f64::NEG_INFINITY, "green"), (0.01, "orange"), (0.05, "red")])
                    .query(
                        "(count(uuid:gpu_unfit:group{$fleet}) or 0 * count(gpu_present{$fleet})) / count(gpu_present{$fleet})",
                        "not fit",
                    ),
                Panel::stat("Nodes with such GPUs", "Nodes with at least one GPU that is lost, failed, or not answering.")
                    .colours(ZERO_IS_BEST)
                    .query(
                        &shared::count_or_zero("group by (cluster, instance) (uuid:gpu_unfit:group{$fleet})", "$fleet"),
                        "nodes",
                    ),
            ],
        },
        Question {
            text: "What gets worse?",
            panels: vec![
                Panel::stat("Repairs that wait for a reset", "GPUs with a memory row or page that is replaced at the next reset; work may go on until then.")
                    .colours(ZERO_IS_BEST)
                    .query(
                        &shared::count_or_zero(
                            "(gpu_row_remap_pending{$fleet} == 1 or on (cluster, job, instance, uuid) gpu_retired_pages_pending{$fleet} == 1)",
                            "$fleet",
                        ),
                        "GPUs",
                    ),
                Panel::stat("Uncorrected errors, 24 h", "Errors that ECC could not correct, over all GPUs.")
                    .colours(ZERO_IS_WELL)
                    .query(r#"sum(sum_over_time(type_location:gpu_ecc_errors:increase5m{$fleet, type="uncorrected"}[24h:5m]))"#, "errors"),
            ],
        },
    ]
}

fn to_do() -> Row {
    let gpu = "cluster, job, instance, gpu, uuid";
    Row {
        title: "To do",
        panels: vec![
            Panel::table("What to do", "One row for each GPU that is not ok, is to be replaced, or waits for a reset of a memory row: what the driver asks for, and 1 for the other two. Actions of XIDs and links that are down are below; gpumeter health on the node says why.")
                .width(16)
                .empty("nothing is to be done; that is good while the agents answer")
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .gpu_key()
                .label_column("state", "Health", &format!(r#"group by ({gpu}, state) (gpu_health{{$fleet, state!="ok"}})"#))
                .label_column("action", "Driver asks for", &format!(r#"group by ({gpu}, action) (gpu_recovery_action{{$fleet, action!="none"}})"#))
                .coloured_column("Replace", "none", &format!("max by ({gpu}) (gpu_row_remap_failure{{$fleet}} == 1 or gpu_ecc_sram_threshold_exceeded{{$fleet}} == 1)"), ZERO_IS_WELL)
                .coloured_column("Awaits reset", "none", &format!("max by ({gpu}) (gpu_row_remap_pending{{$fleet}} == 1 or gpu_retired_pages_pending{{$fleet}} == 1)"), ZERO_IS_BEST),
            Panel::table("GPUs that are absent", "lost: on the bus, but not with the driver. gone: not on the bus. guest and replaced are somebody's intention. Another board may have the index now.")
                .width(8)
                .empty("no GPU is absent")
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .key("gpu", "GPU")
                .linked_key("uuid", "UUID", TO_GPU)
                .label_column("reason", "Reason", &format!("group by ({gpu}, reason) (gpu_absence_info{{$fleet}})")),
            shared::health_over_time().width(12),
            Panel::lines("GPUs slowed down, by reason", "GPUs whose clocks the reason holds down at the moment.")
                .zero_based()
                .width(12)
                .query("sum by (reason) (reason:gpu_throttle_active:sum{$fleet})", "{{reason}}"),
        ],
    }
}

fn xids() -> Row {
    Row {
        title: "XIDs",
        panels: vec![shared::xids_by_action().width(10).height(9), shared::latest_xids("$fleet").width(14)],
    }
}

fn memory() -> Row {
    let per_gpu = |title, answers, heading, expression: &str| {
        Panel::table(title, answers)
            .width(8)
            .height(8)
            .key("cluster", "Cluster")
            .linked_key("instance", "Node", TO_NODE)
            .gpu_key()
            .coloured_column(heading, "none", expression, ZERO_IS_BEST)
    };
    Row {
        title: "Memory",
        panels: vec![
            Panel::lines("New memory errors", "Errors of the last five minutes, by memory and by whether ECC could correct them.")
                .zero_based()
                .query("sum by (type, location) (type_location:gpu_ecc_errors:increase5m{$fleet})", "{{type}} {{location}}"),
            per_gpu(
                "Corrected errors of an hour",
                "The twenty GPUs with the most corrected errors; a board that often leads will need a new row.",
                "Corrected",
                r#"topk(20, sum by (cluster, instance, gpu, uuid) (round(increase(gpu_ecc_errors_total{$fleet, type="corrected"}[1h]))) > 0)"#,
            )
            .empty("no corrected error; that is good while the GPUs answer"),
            per_gpu(
                "Rows replaced",
                "The twenty boards with the most memory rows replaced over their life; spare rows are limited.",
                "Rows",
                "topk(20, sum by (cluster, instance, gpu, uuid) (gpu_remapped_rows{$fleet}) > 0)",
            )
            .empty("no row was replaced, or no board is of Ampere or newer"),
        ],
    }
}

fn heat_and_power() -> Row {
    Row {
        title: "Heat",
        panels: vec![
            Panel::table("Closest to a limit of heat", "The twenty smallest distances to a limit of the board; at 0 the limit acts.")
                .width(12)
                .empty("no board reports its distance to a limit")
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .gpu_key()
                .key("limit", "Limit")
                .coloured_column("Margin", "celsius", "bottomk(20, gpu_temperature_margin_celsius{$fleet})", MARGIN),
            Panel::table("Slowed down now", "GPUs whose clocks something holds down, by reason; the power cap is left out.")
                .width(12)
                .empty("no GPU is slowed down")
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .gpu_key()
                .label_column(
                    "reason",
                    "Reason",
                    r#"group by (cluster, job, instance, gpu, uuid, reason) (gpu_throttle_active{$fleet, reason!="sw_power_cap"} == 1)"#,
                ),
        ],
    }
}

fn links() -> Row {
    let per_gpu = |title, answers| {
        Panel::table(title, answers)
            .width(8)
            .height(8)
            .key("cluster", "Cluster")
            .linked_key("instance", "Node", TO_NODE)
            .gpu_key()
    };
    Row {
        title: "Links",
        panels: vec![
            per_gpu("NVLinks down", "Links that should be active and are not. One that was never active since the driver was loaded is not connected.")
                .empty("no NVLink is down")
                .coloured_column("Down", "none", "gpu_nvlink_links_expected{$fleet} - gpu_nvlink_links_up{$fleet} > 0", ZERO_IS_BEST),
            per_gpu("New NVLink errors of an hour", "By kind, over all links of the GPU; one fault can count in more than one kind and at both ends.")
                .empty("no NVLink error")
                .key("kind", "Kind")
                .coloured_column("Errors", "none", "topk(20, round(increase(gpu_nvlink_errors_total{$fleet}[1h])) > 0)", ZERO_IS_BEST),
            per_gpu("PCIe links with fewer lanes", "Lanes in use where they are fewer than GPU and system reach together: board, riser or slot.")
                .empty("every PCIe link has all its lanes")
                .coloured_column("Lanes", "none", "gpu_pcie_link_width{$fleet} < gpu_pcie_link_width_max{$fleet}", ZERO_IS_BEST),
            Panel::table("NVLink fabric", "GPUs by the state of their registration with the NVLink fabric; jobs over several GPUs need completed.")
                .width(12)
                .height(6)
                .empty("no board has a fabric")
                .key("cluster", "Cluster")
                .key("state", "State")
                .column("GPUs", "none", "count by (cluster, state) (gpu_fabric_state{$fleet})"),
            Panel::table("New PCIe replays of an hour", "Transfers that were repeated; an increase points to board, riser or slot.")
                .width(12)
                .height(6)
                .empty("no replay")
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .gpu_key()
                .coloured_column("Replays", "none", "topk(20, round(increase(gpu_pcie_replays_total{$fleet}[1h])) > 0)", ZERO_IS_BEST),
        ],
    }
}

fn versions() -> Row {
    Row {
        title: "Versions",
        panels: vec![
            Panel::table(
                "Drivers and firmware",
                "GPUs by model, driver and video BIOS; a mixture is often the cause.",
            )
            .key("cluster", "Cluster")
            .key("model", "Model")
            .key("driver_version", "Driver")
            .key("vbios_version", "Video BIOS")
            .column(
                "GPUs",
                "none",
                "count by (cluster, model, driver_version, vbios_version) (gpu_info{$fleet})",
            ),
        ],
    }
}
