//! Who uses a GPU, and who holds it.
//!
//! In: processes as the host shows them, standing holdings as configured, the holders present on a GPU.
//! Out: pid to [`Holder`](crate::model::Holder) ([`ProcessDirectory`], [`Identities`]), and a GPU's holdings with
//! whom each covers ([`holdings`]). Identity goes by kind: the GPU system's own processes, then the unit,
//! then the user; what belongs to a Slurm job, pod, container or virtual machine comes before the unit and is
//! unattributed where its resolver does not name it. It knows no tenant, no money, no clock, and starts no thread.

#[cfg(test)]
mod cgroup_corpus;
mod container;
mod decode;
mod holdings;
mod identify;
mod identities;
mod jobs;
mod node_gpus;
mod pods;
mod presence;
mod process_directory;
mod process_location;
mod resolved_workloads;
mod standing;
mod system;
mod unit;
mod user;
mod vm;
mod workload_path;

pub use holdings::{Granting, holdings};
pub use identify::{Identity, identify};
pub use identities::{IdentifiedProcess, Identities};
pub use jobs::{JobHoldings, JobMap, JobObservation, JobRecord, JobTracker, RecordedGpu};
pub use node_gpus::NodeGpus;
pub use pods::{PodHoldings, PodMap, PodMetadata, PodObservation, PodTracker, Resources};
pub use process_directory::ProcessDirectory;
pub use resolved_workloads::{AllocatedDevice, Allocation, InstancePlace, ResolvedWorkloads};
pub use standing::{
    GpuSelector, GrantedSlot, Selector, SessionGpu, StandingGrant, are_configured_alike, in_words,
};
