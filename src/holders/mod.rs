//! Who uses a GPU, and who holds it.
//!
//! [`ProcessDirectory`] maps pids to holders ([`Identities`]); [`holdings`] computes a GPU's holdings, with the users that
//! each covers, from allocations of schedulers and configured grants. Nothing here knows a tenant, a price or a clock, or
//! starts a thread.

mod believed_cgroups;
#[cfg(test)]
mod cgroup_corpus;
mod holdings;
mod identify;
mod identities;
mod jobs;
mod pods;
mod process_directory;
mod process_location;
mod resolved_workloads;
mod standing;
mod workload_path;

pub use believed_cgroups::{BelievedCgroups, names_every_pod};
pub use holdings::{Granting, holdings};
pub use identify::{Identity, identify};
pub use identities::{IdentifiedProcess, Identities};
pub use jobs::{JobHoldings, JobMap, JobObservation, JobRecord, JobTracker, NodeGpus, RecordedGpu};
pub use pods::{PodHoldings, PodMap, PodMetadata, PodObservation, PodTracker, Resources, gpu_claims};
pub use process_directory::ProcessDirectory;
pub use process_location::refused_cgroup;
pub use resolved_workloads::{AllocatedDevice, Allocation, ResolvedWorkloads};
pub use standing::{GrantedSlot, SessionGpu, are_configured_alike, in_words};
