//! The configuration as the rest of the house reads it: plain, complete, validated.
//!
//! Every field has its value, from the file or from the key table's default. It does not know where a value
//! came from, nor YAML.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::address::Endpoint;
use super::prices::Book;
use super::standing::Standing;
use crate::catalogue::Level;
use crate::model::Nanoseconds;

/// A validated configuration; [`Config::default`] is what runs without a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: Node,
    /// How often and how much is read.
    pub sampling: Sampling,
    /// The driver library.
    pub nvml: Nvml,
    /// Who holds GPUs.
    pub attribution: Attribution,
    /// What a GPU-hour costs; without it there is no money anywhere.
    pub prices: Option<Book>,
    /// Where accounts are kept.
    pub ledger: Ledger,
    /// The push to a collector.
    pub otlp: Otlp,
    /// Bounds.
    pub limits: Limits,
    /// The pages.
    pub web: Web,
}

/// This node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name; without it, the host name.
    pub name: Option<String>,
    /// The cluster to which it belongs.
    pub cluster: Option<String>,
}

/// How often and how much is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The tick, 100 ms to 60 s: tier fast.
    pub interval: Nanoseconds,
    /// Tier medium; may be shorter than the tick, which then rules.
    pub medium: Nanoseconds,
    /// Tier slow; may be shorter than the tick, which then rules.
    pub slow: Nanoseconds,
    /// The share of wall time that all lanes together may spend inside the driver, in millionths.
    pub driver_share: u32,
    /// Which metrics are exported.
    pub level: Level,
}

/// The driver library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvml {
    /// Absolute path of `libnvidia-ml.so.1`; without it, the loader finds it.
    pub library: Option<PathBuf>,
}

/// Who holds GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// Whether a process that is there holds its GPU.
    pub presence: bool,
    /// Holdings that the operator grants, in the order of the file; no GPU is granted more than once over.
    pub standing: Vec<Standing>,
    /// Pods of Kubernetes.
    pub kubernetes: Kubernetes,
    /// Jobs of Slurm.
    pub slurm: Slurm,
}

/// Jobs of Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    /// Directory of the records that the prolog writes; without it no job holds anything.
    pub records: Option<PathBuf>,
}

/// Pods of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// Socket of the kubelet's pod-resources API; without it no pod holds anything.
    pub socket: Option<PathBuf>,
    /// Extended resources that are GPUs; a name that ends in `*` stands for all that begin like it.
    pub resources: Vec<String>,
    /// Replicas of each shared GPU, where the kubelet does not tell; 0 where it is not known.
    pub replicas: u32,
}

/// Where accounts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Whether accounts are kept at all.
    pub enabled: bool,
    /// Absolute path of the database.
    pub path: PathBuf,
}

/// The push to a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Where to push; without it nothing is pushed.
    pub endpoint: Option<Endpoint>,
    /// How often; a multiple of the tick whenever there is an endpoint.
    pub interval: Nanoseconds,
}

/// Bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a new series stays at 0, so that a scraper sees its birth.
    pub birth_delay: Nanoseconds,
    /// How many processes of each GPU get series of their own.
    pub processes: u32,
    /// How many series a page may have.
    pub series: u32,
}

/// The pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// Addresses to listen on; at least one, no two alike.
    pub listen: Vec<SocketAddr>,
    /// Absolute path of the local socket, if there is to be one.
    pub control: Option<PathBuf>,
    /// Whether `/metrics` carries `_created` lines.
    pub created: bool,
}

impl Config {
    /// A place to put values into; the key table's defaults make it [`Config::default`].
    pub(super) fn blank() -> Self {
        Self {
            node: Node { name: None, cluster: None },
            sampling: Sampling {
                interval: Nanoseconds(0),
                medium: Nanoseconds(0),
                slow: Nanoseconds(0),
                driver_share: 0,
                level: Level::Standard,
            },
            nvml: Nvml { library: None },
            attribution: Attribution {
                presence: false,
                standing: Vec::new(),
                kubernetes: Kubernetes { socket: None, resources: Vec::new(), replicas: 0 },
                slurm: Slurm { records: None },
            },
            prices: None,
            ledger: Ledger { enabled: false, path: PathBuf::new() },
            otlp: Otlp { endpoint: None, interval: Nanoseconds(0) },
            limits: Limits { birth_delay: Nanoseconds(0), processes: 0, series: 0 },
            web: Web { listen: Vec::new(), control: None, created: false },
        }
    }
}
