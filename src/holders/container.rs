//! Containers that belong to no pod and no job, by the runtime and the id in the cgroup path.
//!
//! Names and images need the runtime's socket, which gives root access; the id does not.

use crate::docker::ContainerDescription;
use crate::model::{Fact, Facts, Holder, HolderKind};

/// The container of that id; none where the path does not name it.
pub(super) fn holder(runtime: &str, id: &str, description: Option<&ContainerDescription>) -> Option<Holder> {
    let mut facts = Facts::new([(Fact::ContainerRuntime, runtime), (Fact::Container, id)]);
    if let Some(ContainerDescription { name, image }) = description {
        facts.set(Fact::ContainerName, name.as_str().into());
        facts.set(Fact::ContainerImage, image.as_str().into());
    }
    (!id.is_empty()).then(|| Holder::new(HolderKind::Container, facts))
}

/// Whether Docker's API can list containers of that runtime.
pub(super) fn may_be_described(runtime: &str) -> bool {
    matches!(runtime, "docker" | "podman" | "unknown")
}
