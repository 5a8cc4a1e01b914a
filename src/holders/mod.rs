//! Who uses a GPU, and who holds it.
//!
//! In: processes of the host, configured standing grants, the holders present on a GPU. Out: pid to
//! [`Holder`](crate::model::Holder) ([`ProcessDirectory`], [`Identities`]), and a GPU's holdings with the users that
//! each covers ([`holdings`]). The order of identities is: processes of the GPU system; a Slurm job, pod, container or
//! virtual machine, which is unattributed where its resolver does not name it; the unit; the user. It knows no tenant,
//! price or clock, and starts no thread.

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
