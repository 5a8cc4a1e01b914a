//! The key table: every key of the configuration, one row each, in the order of the printed file.
//!
//! Whoever adds a key adds a row here and a field to [`Config`]; parsing, the printed defaults and the
//! documentation follow.

use super::address::{endpoint, listen};
use super::check::Draft;
use super::key::{Absent, Change, Field, Key, Row};
use super::problem::Complaint;
use super::values::{name, path, path_or_off, put, resource};
use super::{prices, standing};
use crate::catalogue::Level;
use crate::model::Nanoseconds;

#[cfg(doc)]
use super::Config;

const fn seconds(number: u64) -> Nanoseconds {
    Nanoseconds::from_seconds(number)
}

const LEVELS: [&str; 3] = [Level::Lean.name(), Level::Standard.name(), Level::Full.name()];

/// The sections, each with one sentence.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "node",
        "What this node is called: in gpumeter_node_info, the API, bills and the OTLP resource; no other series has it as a label.",
    ),
    ("sampling", "How often and how much is read."),
    ("nvml", "The driver library."),
    ("attribution", "Who holds GPUs, and so who pays for them while they are idle."),
    ("prices", "What a GPU-hour costs; without prices there are hours and joules, and no money anywhere."),
    ("ledger", "Where accounts are kept, so that a restart loses nothing."),
    ("otlp", "Push to an OpenTelemetry collector."),
    ("limits", "Bounds."),
    ("web", "The pages: /metrics and what else is served."),
];

/// Every key.
pub(crate) const KEYS: &[Key<Draft>] = &[
    Key {
        path: "node.name",
        field: Field::Text {
            accepts: "a name",
            set: |draft, text| put(&mut draft.config.node.name, name(text)),
        },
        absent: Absent::Optional("gpu-node-7"),
        change: Change::Restart(|new, old| keep(&mut new.node.name, &old.node.name)),
        unit: "",
        help: "Name of the node in gpumeter_node_info, API, bills, OTLP; by default the host name.",
    },
    Key {
        path: "node.cluster",
        field: Field::Text {
            accepts: "a name",
            set: |draft, text| put(&mut draft.config.node.cluster, name(text)),
        },
        absent: Absent::Optional("zurich-1"),
        change: Change::Restart(|new, old| keep(&mut new.node.cluster, &old.node.cluster)),
        unit: "",
        help: "Name of its cluster in gpumeter_node_info, API, bills, OTLP (k8s.cluster.name).",
    },
    Key {
        path: "sampling.interval",
        field: Field::Duration {
            least: Nanoseconds(100_000_000),
            most: seconds(60),
            place: |draft| &mut draft.config.sampling.interval,
        },
        absent: Absent::Default("1s"),
        change: Change::Reload,
        unit: "",
        help: "The tick: how often the readings are taken from which usage and bills are computed.",
    },
    Key {
        path: "sampling.medium",
        field: Field::Duration {
            least: Nanoseconds(100_000_000),
            most: seconds(600),
            place: |draft| &mut draft.config.sampling.medium,
        },
        absent: Absent::Default("5s"),
        change: Change::Reload,
        unit: "",
        help: "How often readings that change within seconds are taken; not shorter than the tick.",
    },
    Key {
        path: "sampling.slow",
        field: Field::Duration {
            least: Nanoseconds(100_000_000),
            most: seconds(3600),
            place: |draft| &mut draft.config.sampling.slow,
        },
        absent: Absent::Default("60s"),
        change: Change::Reload,
        unit: "",
        help: "How often readings that hardly change are taken; not shorter than the tick.",
    },
    Key {
        path: "sampling.driver_share",
        field: Field::Count {
            least: 100,
            most: 1_000_000,
            place: |draft| &mut draft.config.sampling.driver_share,
        },
        absent: Absent::Default("5000"),
        change: Change::Reload,
        unit: "millionths",
        help: "Largest share of time spent in driver calls; above it slow tiers are read less often.",
    },
    Key {
        path: "sampling.level",
        field: Field::Word {
            words: &LEVELS,
            set: |draft, index| {
                draft.config.sampling.level = Level::ALL.get(index).copied().unwrap_or(Level::Standard);
            },
        },
        absent: Absent::Default(Level::Standard.name()),
        change: Change::Reload,
        unit: "",
        help: "Which metrics: lean (for alerts), standard (for dashboards too) or full (all).",
    },
    Key {
        path: "nvml.library",
        field: Field::Text {
            accepts: "an absolute path",
            set: |draft, text| put(&mut draft.config.nvml.library, path(text)),
        },
        absent: Absent::Optional("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
        change: Change::Restart(|new, old| keep(&mut new.nvml.library, &old.nvml.library)),
        unit: "",
        help: "Path of libnvidia-ml.so.1; by default found by the loader or in the usual directories.",
    },
    Key {
        path: "attribution.presence",
        field: Field::Flag(|draft| &mut draft.config.attribution.presence),
        absent: Absent::Default("false"),
        change: Change::Reload,
        unit: "",
        help: "Whether a tenant with a process on a GPU holds it; for nodes without a scheduler.",
    },
    Key {
        path: "attribution.standing",
        field: Field::Maps {
            set: |draft, items, base, report| {
                draft.config.attribution.standing = standing::read(items, base, report);
            },
            rows: |prefix| standing::KEYS.iter().flat_map(|key| key.rows(prefix)).collect(),
        },
        absent: Absent::Optional(""),
        change: Change::Reload,
        unit: "",
        help: "Grants written by hand: each gives a tenant a share of some GPUs.",
    },
    Key {
        path: "attribution.kubernetes.socket",
        field: Field::Text {
            accepts: "an absolute path, or off",
            set: |draft, text| put(&mut draft.config.attribution.kubernetes.socket, path_or_off(text)),
        },
        absent: Absent::Default("/var/lib/kubelet/pod-resources/kubelet.sock"),
        change: Change::Restart(|new, old| {
            keep(&mut new.attribution.kubernetes.socket, &old.attribution.kubernetes.socket)
        }),
        unit: "",
        help: "Socket of the kubelet that tells which containers hold GPUs, or off.",
    },
    Key {
        path: "attribution.kubernetes.resources",
        field: Field::Texts { accepts: "the name of an extended resource", set: resource_too },
        absent: Absent::Default("nvidia.com/*"),
        change: Change::Reload,
        unit: "",
        help: "Extended resources that are GPUs; a * at the end stands for any ending.",
    },
    Key {
        path: "attribution.kubernetes.replicas",
        field: Field::Count {
            least: 1,
            most: 1_000,
            place: |draft| &mut draft.config.attribution.kubernetes.replicas,
        },
        absent: Absent::Optional("4"),
        change: Change::Reload,
        unit: "replicas",
        help: "Replicas of each time-sliced GPU, for kubelets before 1.23, which do not tell.",
    },
    Key {
        path: "attribution.slurm.records",
        field: Field::Text {
            accepts: "an absolute path, or off",
            set: |draft, text| put(&mut draft.config.attribution.slurm.records, path_or_off(text)),
        },
        absent: Absent::Default("/run/gpumeter/slurm"),
        change: Change::Restart(|new, old| {
            keep(&mut new.attribution.slurm.records, &old.attribution.slurm.records)
        }),
        unit: "",
        help: "Directory in which the prolog of Slurm records jobs, or off.",
    },
    Key {
        path: "prices.book",
        field: Field::Word { words: &["example"], set: |draft, _| draft.example = true },
        absent: Absent::Optional("example"),
        change: Change::Reload,
        unit: "",
        help: "Use the built-in example prices, for demonstrations only, instead of your own.",
    },
    Key {
        path: "prices.currency",
        field: Field::Text {
            accepts: "a currency code",
            set: |draft, text| put(&mut draft.currency, prices::currency(text)),
        },
        absent: Absent::Optional("USD"),
        change: Change::Reload,
        unit: "",
        help: "Currency of your rates.",
    },
    Key {
        path: "prices.rates",
        field: Field::Maps {
            set: |draft, items, base, report| draft.rates = prices::read(items, base, report),
            rows: |prefix| prices::KEYS.iter().flat_map(|key| key.rows(prefix)).collect(),
        },
        absent: Absent::Optional(""),
        change: Change::Reload,
        unit: "",
        help: "Your rates; each is in force until the next one begins.",
    },
    Key {
        path: "ledger.enabled",
        field: Field::Flag(|draft| &mut draft.config.ledger.enabled),
        absent: Absent::Default("true"),
        change: Change::Restart(|new, old| keep(&mut new.ledger.enabled, &old.ledger.enabled)),
        unit: "",
        help: "Whether usage is accounted for; without it there are no bills and no tenant metrics.",
    },
    Key {
        path: "ledger.path",
        field: Field::Text {
            accepts: "an absolute path",
            set: |draft, text| put(&mut draft.config.ledger.path, path(text)),
        },
        absent: Absent::Default("/var/lib/gpumeter/ledger.db"),
        change: Change::Restart(|new, old| keep(&mut new.ledger.path, &old.ledger.path)),
        unit: "",
        help: "Path of the ledger, the database behind the bills.",
    },
    Key {
        path: "otlp.endpoint",
        field: Field::Text {
            accepts: "http://host:port",
            set: |draft, text| put(&mut draft.config.otlp.endpoint, endpoint(text)),
        },
        absent: Absent::Optional("http://127.0.0.1:4318"),
        change: Change::Restart(|new, old| keep(&mut new.otlp.endpoint, &old.otlp.endpoint)),
        unit: "",
        help: "OTLP/HTTP address of the Collector; without it nothing is pushed.",
    },
    Key {
        path: "otlp.interval",
        field: Field::Duration {
            least: Nanoseconds(100_000_000),
            most: seconds(600),
            place: |draft| &mut draft.config.otlp.interval,
        },
        absent: Absent::Default("15s"),
        change: Change::Reload,
        unit: "",
        help: "How often to push; a multiple of sampling.interval.",
    },
    Key {
        path: "limits.birth_delay",
        field: Field::Duration {
            least: Nanoseconds(0),
            most: seconds(600),
            place: |draft| &mut draft.config.limits.birth_delay,
        },
        absent: Absent::Default("60s"),
        change: Change::Reload,
        unit: "",
        help: "How long a new counter is exported as 0 first, so that rate() sees its first increase.",
    },
    Key {
        path: "limits.processes",
        field: Field::Count { least: 0, most: 10_000, place: |draft| &mut draft.config.limits.processes },
        absent: Absent::Default("200"),
        change: Change::Reload,
        unit: "processes",
        help: "How many processes per GPU get their own series at level full, largest first.",
    },
    Key {
        path: "limits.series",
        field: Field::Count { least: 500, most: 1_000_000, place: |draft| &mut draft.config.limits.series },
        absent: Absent::Default("20000"),
        change: Change::Reload,
        unit: "series",
        help: "Most series on /metrics; series of processes are left out first, new tenants last.",
    },
    Key {
        path: "web.listen",
        field: Field::Texts { accepts: "IP:port", set: listen_too },
        absent: Absent::Default("[::]:9855"),
        change: Change::Restart(|new, old| keep(&mut new.web.listen, &old.web.listen)),
        unit: "",
        help: "Addresses to serve on; a port alone, such as :9855, means all interfaces.",
    },
    Key {
        path: "web.control",
        field: Field::Text {
            accepts: "an absolute path, or off",
            set: |draft, text| put(&mut draft.config.web.control, path_or_off(text)),
        },
        absent: Absent::Default("/run/gpumeter/control.sock"),
        change: Change::Restart(|new, old| keep(&mut new.web.control, &old.web.control)),
        unit: "",
        help: "Local socket for quiesce, resume and inventory (root and the agent's user), or off.",
    },
    Key {
        path: "web.created",
        field: Field::Flag(|draft| &mut draft.config.web.created),
        absent: Absent::Default("false"),
        change: Change::Reload,
        unit: "",
        help: "Whether /metrics has a _created line with the start time of each counter.",
    },
];

fn listen_too(draft: &mut Draft, text: &str) -> Result<(), Complaint> {
    let address = listen(text)?;
    if draft.config.web.listen.contains(&address) {
        return Err(Complaint::about(text, "is in the list twice", "keep one"));
    }
    draft.config.web.listen.push(address);
    Ok(())
}

fn resource_too(draft: &mut Draft, text: &str) -> Result<(), Complaint> {
    let resource = resource(text)?;
    let resources = &mut draft.config.attribution.kubernetes.resources;
    if resources.contains(&resource) {
        return Err(Complaint::about(text, "is in the list twice", "keep one"));
    }
    resources.push(resource);
    Ok(())
}

fn keep<T: Clone + PartialEq>(new: &mut T, old: &T) -> bool {
    let differs = new != old;
    new.clone_from(old);
    differs
}

/// Every key as people read about it, in the order of the printed file.
pub fn rows() -> Vec<Row> {
    KEYS.iter().flat_map(|key| key.rows("")).collect()
}

/// The sections in order, each with one sentence.
pub const fn sections() -> &'static [(&'static str, &'static str)] {
    SECTIONS
}
