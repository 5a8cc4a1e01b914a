//! Every label name with its one meaning; its values where they are a closed set, in all families or in one.

use super::links::NUMBERS;
use super::{AccountRows, Family, InstanceRows, LabelPair, Labelled, Rows};
use crate::model::Fact;

#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    pub meaning: &'static str,
    /// All values it can have; empty where the set is open, or [differs by family](values_of).
    pub values: &'static [&'static str],
}

pub const LABELS: &[Label] = &{
    let mut labels = [open("", ""); OWN.len() + Fact::ALL.len()];
    let mut at = 0;
    while at < labels.len() {
        labels[at] = if at < OWN.len() {
            OWN[at]
        } else {
            let fact = Fact::ALL[at - OWN.len()];
            open(fact.label(), fact.meaning())
        };
        at += 1;
    }
    labels
};

/// The labels other than facts of a holder.
const OWN: &[Label] = &[
    open(
        "gpu",
        "index of the physical GPU in the current driver session; a GPU that is gone keeps its last one",
    ),
    open("uuid", "UUID of the physical GPU, the key of all joins"),
    open(
        "gpu_instance",
        "the driver's id of a MIG GPU instance; ids are reused after the MIG layout changes",
    ),
    open("compute_instance", "the driver's id of a compute instance within its GPU instance"),
    open("node_name", "name of the node: node.name, else its host name"),
    open("cluster_name", "name of the node's cluster: node.cluster, else empty"),
    open("mig_uuid", "UUID of a MIG device"),
    open("profile", "MIG profile, such as 3g.40gb"),
    open(
        "placement",
        "a GPU instance's first memory slice and how many it has, such as 4:4; empty where the driver reports that only to root",
    ),
    open("model", "product name"),
    open("serial", "serial number of the board"),
    open("board_part", "part number of the board"),
    open("pci_bus_id", "PCI address, such as 00000000:0F:00.0"),
    open("minor_number", "number of the device file, as in /dev/nvidia0"),
    open("architecture", "architecture of the GPU, or the driver's number for it where no name is known"),
    open("compute_capability", "CUDA compute capability, such as 9.0"),
    open("vbios_version", "version of the video BIOS"),
    open("driver_version", "version of the driver"),
    open("cuda_version", "newest CUDA version that the driver supports, such as 13.0"),
    closed("mig", "whether the GPU is partitioned into MIG instances", &["true", "false"]),
    open("feature", "mode of the GPU that is on or off"),
    open("chassis_serial", "serial number of the rack's chassis"),
    open("slot", "slot of the chassis"),
    open("tray", "compute tray of the slot"),
    open("host_id", "host within the tray"),
    open("module_id", "place of the GPU on its baseboard, from 1"),
    open("cluster_uuid", "UUID of the NVLink cluster; empty on a fabric of one node"),
    open("clique", "group of GPUs within the cluster that can reach each other"),
    open("family", "full name of a metric family that is missing or incomplete"),
    open("metric", "full name of an exported metric family"),
    closed(
        "engine",
        "engine of the GPU: sm is the multiprocessors, memory is device memory traffic, the others are the video and image engines",
        &["sm", "memory", "encoder", "decoder", "jpeg", "ofa"],
    ),
    closed(
        "pipe",
        "execution pipe of the multiprocessors",
        &["integer", "fp16", "fp32", "fp64", "tensor_dfma", "tensor_dmma", "tensor_hmma", "tensor_imma"],
    ),
    closed(
        "number",
        "number of an engine among those of its kind, from 0",
        &["0", "1", "2", "3", "4", "5", "6", "7"],
    ),
    open(
        "memory",
        "which memory: the GPU's own (device), the host's (host), another GPU's (peer), or the host's as that of the GPU (unified)",
    ),
    closed("sensor", "where the temperature is measured", &["gpu", "memory"]),
    open("limit", "which limit; the values depend on the family"),
    closed("fan", "number of the fan, from 0", &["0", "1", "2", "3"]),
    closed("clock", "clock domain", &["sm", "memory", "graphics", "video"]),
    open("reason", "reason for the reported state"),
    closed("direction", "from the GPU's view", &["transmit", "receive"]),
    closed("link", "number of the NVLink, from 0", &NUMBERS),
    open("kind", "kind of error, or of workload; the values depend on the family"),
    open("xid", "code of an XID error"),
    open("sxid", "code of an SXID error"),
    closed(
        "severity",
        "whether the NVSwitch has stopped until it is reset with its GPUs (fatal), or goes on (non_fatal)",
        &["fatal", "non_fatal"],
    ),
    closed(
        "class",
        "kind of fault that the XID stands for",
        &["application", "hardware", "driver", "link", "information", "unknown"],
    ),
    open("action", "what to do about it; see docs/actions.md"),
    closed("type", "whether ECC could correct the error", &["corrected", "uncorrected"]),
    closed("location", "which memory", &["dram", "sram"]),
    closed("cause", "the kind of error that caused a repair", &["correctable", "uncorrectable"]),
    closed(
        "availability",
        "how many spare rows a memory bank has left",
        &["max", "high", "partial", "low", "none"],
    ),
    open("pid", "process id as the driver reports it; other: all processes without a series of their own"),
    open("process", "name of the process"),
    open("workload", "id of a workload"),
    open("tenant", "the payer, or a remainder in double underscores, such as __unallocated__"),
    open("state", "the reported state"),
    closed("part", "static: idle power; dynamic: the rest", &["static", "dynamic"]),
    open("month", "calendar month in billing.time_zone, such as 2026-11"),
    open("currency", "currency of the price"),
    open("price_class", "price class of the rate"),
    open("source", "where the metric's values come from"),
    open("version", "version of the agent"),
    closed("tier", "sampling tier: how often a reading is taken", &["fast", "medium", "slow"]),
    open("collector", "part of the agent that reads the data"),
    open("call", "function of the driver"),
    open("resolver", "part of the agent that finds out to whom a process belongs"),
    open("destination", "address that the agent pushes to"),
    open("code", "HTTP status"),
];

const fn open(name: &'static str, meaning: &'static str) -> Label {
    Label { name, meaning, values: &[] }
}

const fn closed(name: &'static str, meaning: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, meaning, values }
}

/// All values that a label can have in a family, in order; empty where they are not a closed set.
pub fn values_of(family: &Family, label: &str) -> Vec<&'static str> {
    fn labels<V>(points: &'static [Labelled<V>]) -> Vec<&'static [LabelPair]> {
        points.iter().map(|point| point.labels).collect()
    }
    let own = match &family.rows {
        Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => labels(points),
        Rows::Account(AccountRows::Tenant(points) | AccountRows::Workload(points)) => labels(points),
        Rows::Process(points) => labels(points),
        rows => rows.points().iter().chain(rows.integrated_points()).map(|point| point.labels).collect(),
    };
    let mut values = Vec::new();
    for (_, value) in own.into_iter().flatten().filter(|(name, _)| *name == label) {
        if !values.contains(value) {
            values.push(*value);
        }
    }
    if values.is_empty() {
        let own = family.values.iter().find(|(name, _)| *name == label);
        let known =
            || LABELS.iter().find(|known| known.name == label).map_or(&[] as &[_], |known| known.values);
        values.extend(own.map_or_else(known, |(_, values)| *values));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue::family;
    use crate::model::catalogue::xid::{self, Action};
    use crate::model::frame::{Rejection, Tier};
    use crate::model::{Absence, ActivitySource, Attachment, HealthState, UnattributedReason, Via};

    fn is_of(name: &str, value: &str) -> bool {
        LABELS.iter().any(|label| label.name == name && label.values.contains(&value))
    }

    fn values(name: &str, label: &str) -> Vec<&'static str> {
        values_of(family(name).unwrap(), label)
    }

    #[test]
    fn closed_sets_have_the_values_that_the_code_writes() {
        for family in ["gpu_xid_action_errors_total", "gpu_xid_info"] {
            let known = values(family, "action");
            assert_eq!(known.len(), Action::ALL.len());
            assert!(Action::ALL.iter().all(|action| known.contains(&action.name())));
        }
        assert!((0..=255).all(|code| is_of("class", xid::find(code).class.name())));
        assert!(Tier::ALL.iter().all(|tier| is_of("tier", tier.name())));
        assert_eq!(values("gpu_health", "state"), HealthState::ALL.map(HealthState::name));
        assert_eq!(
            values("gpumeter_samples_rejected_total", "reason"),
            Rejection::ALL.map(Rejection::reason)
        );
        assert_eq!(
            values("gpu_unattributed_seconds_total", "reason"),
            UnattributedReason::ALL.map(UnattributedReason::name)
        );
        let absent = Attachment::ALL
            .iter()
            .filter(|place| !matches!(place, Attachment::Present | Attachment::Forgotten));
        assert_eq!(
            values("gpu_absence_info", "reason"),
            absent.map(|place| place.name()).collect::<Vec<_>>()
        );
        let (unsupported, errors) =
            (values("gpu_unsupported", "reason"), values("gpumeter_collector_errors_total", "reason"));
        for absence in [
            Absence::NotSupported,
            Absence::NoSymbol,
            Absence::NoPermission,
            Absence::Lost,
            Absence::DriverGone,
            Absence::Failed,
            Absence::Rejected,
            Absence::NotYet,
        ] {
            assert_eq!(unsupported.contains(&absence.reason()), absence.is_permanent());
            assert!(errors.contains(&absence.reason()));
        }
        let sources = values("gpumeter_source_info", "source");
        let meters =
            [ActivitySource::Gpm, ActivitySource::Samples, ActivitySource::Utilization, ActivitySource::None];
        assert!(meters.iter().all(|meter| sources.contains(&meter.name())));
        assert!(Via::ALL.iter().all(|via| sources.contains(&via.name())));
    }

    #[test]
    fn a_label_has_the_values_of_its_family_where_that_has_a_set() {
        assert_eq!(
            values("gpu_fabric_state", "state"),
            ["not_started", "in_progress", "completed", "failed"]
        );
        assert_eq!(
            values("gpu_recovery_action", "action"),
            ["none", "reset_gpu", "reboot_node", "drain_p2p", "drain_and_reset_gpu"]
        );
        for family in [
            "gpu_pipe_active_seconds_total",
            "gpu_mig_pipe_active_ratio",
            "gpu_mig_pipe_active_seconds_total",
        ] {
            assert_eq!(values(family, "pipe"), values("gpu_pipe_active_ratio", "pipe"), "{family}");
        }
        assert_eq!(values("gpu_info", "mig"), ["true", "false"]);
        assert_eq!(values("gpu_xid_info", "xid"), Vec::<&str>::new());
    }

    #[test]
    fn every_label_is_used_by_a_family() {
        let used =
            |name: &str| crate::model::catalogue::families().any(|family| family.labels.contains(&name));
        let unused: Vec<&str> = LABELS.iter().map(|label| label.name).filter(|name| !used(name)).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }
}
