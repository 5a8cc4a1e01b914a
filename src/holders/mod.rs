//! Who uses a GPU, and who holds it.
//!
//! Comes in: pids that samplers saw, allocations of schedulers, configured grants. Goes out: holders
//! ([`ProcessDirectory`] maps pids to [`Identities`]) and holdings ([`holdings`] computes those of a GPU, with the users
//! that each covers).
//! Does not know: a tenant, a price or a clock; starts no thread.
//!
//! - [`host`]: what /proc, cgroups and the kernel log say, below a root path.
//! - [`kubelet`]: clients of the kubelet and the API server.
//! - [`docker`]: client of Docker's API.

pub mod docker;
pub mod host;
pub mod kubelet;

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
