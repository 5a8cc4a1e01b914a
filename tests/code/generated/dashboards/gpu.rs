//! One GPU.

use super::panel::{MARGIN, Panel, TO_TENANT, TO_WORKLOAD, ZERO_IS_WELL};
use super::shared::{self, GPU, gpu_and};
use super::{Dashboard, Question, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let mut variables = shared::down_to_node(None);
    variables.push(Variable { name: "uuid", label: "GPU", selector: "gpu_info{$node}", all: None });
    Dashboard {
        name: "gpu",
        title: "GPU",
        summary: "One GPU.",
        terms: &[],
        questions: questions(),
        variables,
        annotations: shared::annotations("$device", false),
        rows: vec![activity(), limits(), links(), errors(), holders(), instances(), processes()],
        from: "now-6h",
    }
}

fn questions() -> [Question; 3] {
    [
        Question {
            text: "Is it healthy, and what is to be done?",
            panels: vec![
                Panel::stat("Health", "The agent's verdict; gpumeter health on the node says why.")
                    .shows_label("state")
                    .query("gpu_health{$device}", "{{state}}"),
                Panel::stat("The driver asks for", "What the driver wants done before the GPU is used again. Drivers before 570 do not report it.")
                    .shows_label("action")
                    .empty("the driver does not report it, or the GPU does not answer")
                    .query("gpu_recovery_action{$device}", "{{action}}"),
            ],
        },
        Question {
            text: "Is it really busy?",
            panels: vec![
                Panel::stat("Busy", "Share of time in which some engine worked, as bills count it.")
                    .share()
 .empty("the GPU is partitioned (see its instances), or does not answer")
                    .query("rate(gpu_busy_seconds_total{$device}[$__rate_interval])", "busy"),
                Panel::stat("Tensor cores active", "Share of time in which a tensor pipe worked; where it is low, a busy GPU does little. Boards before Hopper do not report it.")
                    .share()
                    .empty("the board does not report it")
                    .query("rate(gpu_tensor_active_seconds_total{$device}[$__rate_interval])", "tensor"),
            ],
        },
        Question {
            text: "What slows it down, and who has it?",
            panels: vec![
                Panel::stat("Throttled now by", "What holds the clocks down at this moment.")
                    .shows_label("reason")
                    .empty("nothing")
                    .query("gpu_throttle_active{$device} == 1", "{{reason}}"),
                Panel::stat("Held by", "The tenants that hold a part of it.")
                    .shows_label("tenant")
                    .empty("nobody")
                    .query("sum by (tenant) (gpu_holding_ratio{$device} > 0)", "{{tenant}}"),
            ],
        },
    ]
}

fn activity() -> Row {
    Row {
        title: "Activity",
        panels: vec![
            Panel::lines("What works", "Busy says that something ran; the others how much of the GPU it filled. All but busy need Hopper or newer.")
                .share()
 .empty("the GPU is partitioned (see its instances), or does not answer")
                .width(12)
                .query("rate(gpu_busy_seconds_total{$device}[$__rate_interval])", "busy")
                .query("rate(gpu_sm_active_seconds_total{$device}[$__rate_interval])", "multiprocessors")
                .query("rate(gpu_tensor_active_seconds_total{$device}[$__rate_interval])", "tensor cores")
                .query("rate(gpu_dram_active_seconds_total{$device}[$__rate_interval])", "memory bandwidth"),
            Panel::stacked("Memory", "What clients allocated, what the driver keeps, and what is free.")
                .unit("bytes")
                .zero_based()
                .width(12)
                .query("gpu_memory_used_bytes{$device}", "used")
                .query("gpu_memory_reserved_bytes{$device}", "reserved")
                .query("gpu_memory_free_bytes{$device}", "free"),
            Panel::lines("Pipes active", "Share of time in which each pipe of the multiprocessors worked. Boards before Hopper do not report it.")
                .share()
                .width(12)
                .empty("the board does not report it")
                .query("gpu_pipe_active_ratio{$device}", "{{pipe}}"),
            Panel::lines("Video and image engines", "Share of time in which the engines worked.")
                .share()
 .empty("the GPU is partitioned (see its instances), or does not answer")
                .width(12)
                .query("gpu_engine_utilization_ratio{$device}", "{{engine}}"),
        ],
    }
}

fn limits() -> Row {
    Row {
        title: "Power, heat and clocks",
        panels: vec![
            Panel::lines("Power", "The rate of the energy counter is exact; the reading is the driver's average. The dashes are the limit in force.")
                .unit("watt")
                .limits("limit")
                .query("rate(gpu_energy_joules_total{$device}[$__rate_interval])", "by the energy counter")
                .query("gpu_power_watts{$device}", "reading")
                .query(r#"gpu_power_limit_watts{$device, limit="enforced"}"#, "limit"),
            Panel::lines("Temperature", "By sensor; the dashes are the board's own limits, on boards that report them as temperatures.")
                .unit("celsius")
                .limits("limit")
                .empty("the GPU does not answer; the dashes alone: the board reports its distance to the limits instead")
                .query("gpu_temperature_celsius{$device}", "{{sensor}}")
                .query("gpu_temperature_limit_celsius{$device}", "limit {{limit}}"),
            Panel::lines("Margin to the board's limits", "Degrees to each limit; at 0 it acts. Boards that report limits as temperatures do not report it.")
                .unit("celsius")
                .colours(MARGIN)
                .empty("the board does not report it")
                .query("gpu_temperature_margin_celsius{$device}", "{{limit}}"),
            Panel::lines("Clocks", "Clocks now.")
                .unit("hertz")
                .query("gpu_clock_hertz{$device}", "{{clock}}"),
            Panel::lines("Highest clocks", "The highest clock that the board allows.")
                .empty("the driver does not report it, or the GPU does not answer")
                .unit("hertz")
                .query("gpu_clock_max_hertz{$device}", "{{clock}}"),
            Panel::stacked("Throttled, share of time", "Share of time in which a reason held the clocks down, by the driver's own counters; reasons may overlap.")
                .unit("percentunit")
                .zero_based()
                .query("rate(gpu_throttle_seconds_total{$device}[$__rate_interval])", "{{reason}}"),
        ],
    }
}

fn links() -> Row {
    Row {
        title: "Links",
        panels: vec![
            Panel::lines("PCIe throughput", "From the GPU's view.")
                .width(6)
                .unit("Bps")
                .query("rate(gpu_pcie_bytes_total{$device}[$__rate_interval])", "{{direction}}"),
            Panel::lines("PCIe link", "Generation and lanes now, and the most that GPU and system reach together. Boards lower the generation when idle.")
                .width(6)
                .limits("most")
                .query("gpu_pcie_link_generation{$device}", "generation")
                .query("gpu_pcie_link_generation_max{$device}", "most generation")
                .query("gpu_pcie_link_width{$device}", "lanes")
                .query("gpu_pcie_link_width_max{$device}", "most lanes"),
            Panel::lines("NVLink throughput", "Over all links, from the GPU's view.")
                .width(6)
                .unit("Bps")
                .empty("the board has no NVLink")
                .query("rate(gpu_nvlink_bytes_total{$device}[$__rate_interval])", "{{direction}}"),
            Panel::lines("NVLinks up", "Links that are active, and those that should be.")
                .width(6)
                .zero_based()
                .limits("expected")
                .empty("the board has no NVLink")
                .query("gpu_nvlink_links_up{$device}", "up")
                .query("gpu_nvlink_links_expected{$device}", "expected"),
            Panel::lines("NVLink errors by link", "New errors of each link, by kind; a fault shows at both ends.")
                .width(24)
                .height(6)
                .zero_based()
                .empty("no error in this span; that is good while the GPU answers")
                .query("round(increase(gpu_nvlink_link_errors_total{$device}[$__rate_interval])) > 0", "link {{link}} {{kind}}"),
        ],
    }
}

fn errors() -> Row {
    Row {
        title: "Errors and repair",
        panels: vec![
            shared::latest_xids("$device").width(12).height(6),
            Panel::table("Memory errors of 24 hours", "Errors that ECC corrected or could not correct.")
                .width(6)
                .height(6)
                .key("type", "Type")
                .key("location", "Memory")
                .coloured_column(
                    "New",
                    "none",
                    "sum by (type, location) (round(increase(gpu_ecc_errors_total{$device}[24h])))",
                    ZERO_IS_WELL,
                ),
            Panel::table("Spare rows", "Memory banks by how many of their spare rows are left.")
                .width(6)
                .height(6)
                .empty("the board does not report it")
                .key("availability", "Spare rows")
                .column("Banks", "none", "sum by (availability) (gpu_row_remap_banks{$device})"),
        ],
    }
}

fn holders() -> Row {
    Row {
        title: "Who has it",
        panels: vec![
            Panel::table(
                "Holders now",
                "Who holds which share, and by which record; a nested holding shows its own part.",
            )
            .height(6)
            .empty("nobody holds a part of it")
            .key("gpu_instance", "MIG instance")
            .linked_key("tenant", "Tenant", TO_TENANT)
            .linked_key("workload", "Workload", TO_WORKLOAD)
            .key("source", "Granted by")
            .column("Share", "percentunit", "gpu_holding_ratio{$device} > 0"),
            Panel::stacked("Held, by tenant", "Whole GPUs; adds up to 1, with what nobody holds.")
                .zero_based()
                .query(
                    "sum by (tenant) (rate(gpu_tenant_held_seconds_total{$device}[$__rate_interval]))",
                    "{{tenant}}",
                ),
            Panel::stacked("Used, by tenant", "Whole GPUs; adds up to the time busy.")
                .zero_based()
                .empty("nobody used it")
                .query(
                    "sum by (tenant) (rate(gpu_tenant_used_seconds_total{$device}[$__rate_interval]))",
                    "{{tenant}}",
                ),
            Panel::stacked(
                "Power, by tenant",
                "The driver's joules, split: idle power follows what is held, the rest what is used.",
            )
            .unit("watt")
            .zero_based()
            .query(
                "sum by (tenant) (rate(gpu_tenant_energy_joules_total{$device}[$__rate_interval]))",
                "{{tenant}}",
            ),
        ],
    }
}

fn instances() -> Row {
    Row {
        title: "MIG instances",
        panels: vec![
            Panel::table("Instances", "Profile and placement of each instance, and its memory.")
                .empty("the GPU is not partitioned")
                .height(6)
                .key("gpu_instance", "Instance")
                .label_column("profile", "Profile", "group by (gpu_instance, profile, placement) (gpu_mig_info{$device})")
                .key("placement", "Placement")
                .column("Memory used", "bytes", "sum by (gpu_instance) (gpu_mig_memory_used_bytes{$device})")
                .column("Memory", "bytes", "sum by (gpu_instance) (gpu_mig_memory_total_bytes{$device})"),
            Panel::lines("Instances active", "Share of time in which the instance's engine worked. A MIG GPU before Hopper does not report it.")
                .share()
                .width(12)
                .empty("the GPU is not partitioned, or does not report it")
                .query("gpu_mig_gr_engine_active_ratio{$device}", "instance {{gpu_instance}}"),
            Panel::lines("Tensor cores of instances", "Share of time in which a tensor pipe of the instance worked.")
                .share()
                .width(12)
                .empty("the GPU is not partitioned, or does not report it")
                .query("rate(gpu_mig_tensor_active_seconds_total{$device}[$__rate_interval])", "instance {{gpu_instance}}"),
        ],
    }
}

fn processes() -> Row {
    let labels = "pid, process, tenant, workload, gpu_instance";
    Row {
        title: "Processes",
        panels: vec![
            Panel::table("Processes", "Largest first; other: all without series of their own.")
                .empty("no process, or the agent exports them not")
                .key("pid", "PID")
                .key("process", "Process")
                .linked_key("tenant", "Tenant", TO_TENANT)
                .linked_key("workload", "Workload", TO_WORKLOAD)
                .key("gpu_instance", "MIG instance")
                .column("Memory", "bytes", &format!("sum by ({labels}) (gpu_process_memory_bytes{{$device}})"))
                .column(
                    "Multiprocessors",
                    "percentunit",
                    &format!(r#"sum by ({labels}) (gpu_process_utilization_ratio{{$device, engine="sm"}})"#),
                ),
            Panel::lines("Power of the memory", "A part of the GPU's power, where the board reports it.")
                .unit("watt")
                .width(12)
                .empty("the board does not report it")
                .query("gpu_memory_power_watts{$device}", GPU),
            Panel::lines("Context switches", "Share of time that the engine spent on switching between contexts: what time-slicing costs. Needs Hopper or newer.")
                .share()
                .width(12)
                .empty("the board does not report it")
                .query("gpu_context_switch_active_ratio{$device}", &gpu_and("uuid")),
        ],
    }
}
