//! Every label name with its one meaning, and its values where they are a closed set.

/// A label name.
#[derive(Debug)]
pub struct Label {
    /// As on the page.
    pub name: &'static str,
    /// What its values say, wherever it stands.
    pub meaning: &'static str,
    /// All values it can have; empty where they are not a closed set.
    pub values: &'static [&'static str],
}

/// All label names, each once.
pub const LABELS: &[Label] = &[
    open("gpu", "index of the physical GPU, the driver's at first sight of its UUID in this boot"),
    open("uuid", "UUID of the physical GPU, the key of all joins"),
    open("gpu_instance", "the driver's id of a MIG GPU instance, used again after a change of the layout"),
    open("compute_instance", "the driver's id of a compute instance within its GPU instance"),
    open("mig_uuid", "UUID of a MIG device"),
    open("profile", "MIG profile, as 3g.40gb"),
    open("model", "product name"),
    open("serial", "serial number of the board"),
    open("board_part", "part number of the board"),
    open("pci_bus_id", "PCI address, as 00000000:0F:00.0"),
    open("minor_number", "number of the device file, as in /dev/nvidia0"),
    open("architecture", "architecture of the GPU, or its number where it has no name yet"),
    open("compute_capability", "CUDA compute capability, as 9.0"),
    open("vbios_version", "version of the video BIOS"),
    open("driver_version", "version of the driver"),
    open("cuda_version", "newest CUDA that the driver serves, as 13.0"),
    closed("mig", "whether the GPU is cut into instances", &["true", "false"]),
    open("chassis_serial", "serial number of the rack's chassis"),
    open("slot", "slot of the chassis"),
    open("tray", "compute tray of the slot"),
    open("host_id", "host within the tray"),
    open("module_id", "place of the GPU on its baseboard, from 1"),
    open("cluster_uuid", "UUID of the NVLink cluster, empty on a fabric of one node"),
    open("clique", "group of GPUs within the cluster that reach each other"),
    open("family", "a metric of this catalogue"),
    open("metric", "a metric of this catalogue"),
    closed("engine", "engine beside the graphics and compute engine", &["encoder", "decoder", "jpeg", "ofa"]),
    closed(
        "pipe",
        "pipe of the multiprocessors",
        &["integer", "fp16", "fp32", "fp64", "tensor_dfma", "tensor_hmma", "tensor_imma"],
    ),
    closed("sensor", "where a temperature is taken", &["gpu", "memory"]),
    closed(
        "limit",
        "which of several limits",
        &[
            "enforced",
            "requested",
            "default",
            "min",
            "max",
            "shutdown",
            "slowdown",
            "memory_max_operating",
            "gpu_max_operating",
        ],
    ),
    closed("fan", "number of the fan, from 0", &["0", "1", "2", "3"]),
    closed("clock", "clock domain", &["sm", "memory", "graphics", "video"]),
    closed(
        "reason",
        "why: clocks are held down, something cannot be had, or was refused",
        &[
            "sw_power_cap",
            "hw_slowdown",
            "sync_boost",
            "sw_thermal_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake",
            "board_limit",
            "reliability",
            "not_supported",
            "no_symbol",
            "no_permission",
            "lost",
            "failed",
            "rejected",
            "not_yet",
            "stale",
            "out_of_range",
        ],
    ),
    closed("direction", "from the GPU's view", &["transmit", "receive"]),
    closed(
        "link",
        "number of the NVLink, from 0",
        &[
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17",
            "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33",
            "34", "35",
        ],
    ),
    open("kind", "which of several kinds: of NVLink errors, or of identity of a workload"),
    open("xid", "code of an XID error"),
    closed(
        "class",
        "what kind of fault an XID tells of",
        &["application", "hardware", "driver", "link", "information", "unknown"],
    ),
    closed(
        "action",
        "what to do",
        &[
            "none",
            "ignore",
            "restart_app",
            "reset_gpu",
            "reboot_node",
            "drain_p2p",
            "drain_and_reset_gpu",
            "check",
            "check_mechanicals",
            "update_software",
            "contact_support",
        ],
    ),
    closed("type", "whether ECC could correct the error", &["corrected", "uncorrected"]),
    closed("location", "which memory", &["dram", "sram"]),
    closed("cause", "the kind of error that caused a repair", &["correctable", "uncorrectable"]),
    closed(
        "availability",
        "how many spare rows a memory bank has left",
        &["max", "high", "partial", "low", "none"],
    ),
    open("pid", "process id as the driver sees it; other: all that have no series of their own"),
    open("process", "name of the process"),
    open("workload", "id of a workload"),
    open("tenant", "who pays, or a remainder in double underscores"),
    closed("state", "how a GPU is", &["ok", "degraded", "unknown", "failed"]),
    closed("part", "part of energy", &["static", "dynamic"]),
    open("currency", "currency of the price"),
    open("price_class", "class of the price"),
    open("source", "where it comes from: the meter of a metric, the grantor of a holding"),
    open("systemd_unit", "systemd unit"),
    open("user_name", "Unix user"),
    open("version", "version of the agent"),
    closed("tier", "how often something is read", &["fast", "medium", "slow"]),
    open("collector", "part of the agent that collects"),
    open("call", "function of the driver"),
    open("resolver", "part of the agent that finds out who a process is"),
    open("destination", "where the agent sends to"),
    open("code", "HTTP status"),
];

const fn open(name: &'static str, meaning: &'static str) -> Label {
    Label { name, meaning, values: &[] }
}

const fn closed(name: &'static str, meaning: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, meaning, values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::xid::{self, Action};
    use crate::model::Absence;
    use crate::model::frame::Tier;

    fn is_of(name: &str, value: &str) -> bool {
        LABELS.iter().any(|label| label.name == name && label.values.contains(&value))
    }

    #[test]
    fn values_that_the_code_writes_are_of_the_closed_sets() {
        assert!(Action::ALL.iter().all(|action| is_of("action", action.name())));
        assert!((0..=255).all(|code| is_of("class", xid::meaning(code).0.name())));
        assert!(Tier::ALL.iter().all(|tier| is_of("tier", tier.name())));
        let reasons = [
            Absence::NotSupported,
            Absence::NoSymbol,
            Absence::NoPermission,
            Absence::Lost,
            Absence::Failed,
            Absence::Rejected,
            Absence::NotYet,
            Absence::Stale,
        ];
        assert!(reasons.iter().all(|absence| is_of("reason", absence.reason())));
        assert!(!is_of("reason", "because"));
    }

    #[test]
    fn every_label_stands_in_a_family() {
        let used = |name: &str| crate::catalogue::families().any(|family| family.labels.contains(&name));
        let unused: Vec<&str> = LABELS.iter().map(|label| label.name).filter(|name| !used(name)).collect();
        // The verdict on a GPU has it.
        assert!(unused.iter().all(|name| *name == "state"), "{unused:?}");
    }
}
