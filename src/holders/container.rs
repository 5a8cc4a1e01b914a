//! Containers that belong to no pod and no job, by the runtime and the id that stand in the cgroup path.
//!
//! Their names and images are known to the runtimes alone, whose sockets are as good as root; the id needs none of them.

use crate::docker::ContainerDescription;
use crate::model::{Fact, Facts, Holder, HolderKind};

/// The container of that id; none where the path does not say it.
pub(super) fn holder(runtime: &str, id: &str, description: Option<&ContainerDescription>) -> Option<Holder> {
    let mut facts = Facts::new([(Fact::ContainerRuntime, runtime), (Fact::Container, id)]);
    if let Some(ContainerDescription { name, image }) = description {
        facts.set(Fact::ContainerName, name.as_str().into());
        facts.set(Fact::ContainerImage, image.as_str().into());
    }
    (!id.is_empty()).then(|| Holder::new(HolderKind::Container, facts))
}

/// Whether a container of that runtime can be in a list of Docker's API.
pub(super) fn may_be_described(runtime: &str) -> bool {
    matches!(runtime, "docker" | "podman" | "unknown")
}
