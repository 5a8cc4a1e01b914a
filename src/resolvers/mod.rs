//! The threads that find out who uses and holds GPUs: each asks one source and publishes what it last said.
//!
//! In: pids that samplers saw, the kubelet, Slurm's records, a container runtime, the name service. Out: identities of
//! processes, [`ResolvedWorkloads`] and members of granted groups. A source that does not answer delays its own thread only.

pub(crate) mod containers;
pub(crate) mod grants;
pub(crate) mod jobs;
pub(crate) mod pods;
pub(crate) mod processes;
pub(crate) mod users;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{Clock, Stop};
use crate::export::LatestSnapshot;
use crate::holders::ResolvedWorkloads;
use crate::host::Host;
use crate::policy::CurrentConfig;

pub use grants::unresolved_grants;
pub(crate) use processes::SeenProcesses;

/// What the resolver threads share with each other and with the tick loop.
pub(crate) struct Resolvers {
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) host: Host,
    pub(crate) config: Arc<CurrentConfig>,
    /// Snapshots, which list the GPUs of the node.
    pub(crate) pages: Arc<LatestSnapshot>,
    pub(crate) simulated: Arc<AtomicBool>,
    pub(crate) processes: Arc<SeenProcesses>,
    pub(crate) workloads: Mutex<Arc<ResolvedWorkloads>>,
    pub(crate) pods: pods::PodResolverStatus,
    pub(crate) jobs: jobs::JobResolverStatus,
    pub(crate) containers: containers::ContainerResolverStatus,
}

impl Resolvers {
    /// ResolvedWorkloads as last published.
    pub(crate) fn workloads(&self) -> Arc<ResolvedWorkloads> {
        Arc::clone(&self.workloads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the published workloads.
    fn update_workloads(&self, change: impl FnOnce(&mut ResolvedWorkloads)) {
        let mut workloads = self.workloads.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut workloads));
    }
}
