//! Containers that belong to no pod and no job, by the runtime and the id that stand in the cgroup path.
//!
//! Their names are known to the runtimes alone, whose sockets are as good as root; the id needs none of them.

use crate::model::{Fact, Facts, Holder, HolderKind};

/// The container of that id; none where the path does not say it.
pub(super) fn holder(runtime: &str, id: &str) -> Option<Holder> {
    let facts = Facts::new([(Fact::ContainerRuntime, runtime), (Fact::Container, id)]);
    (!id.is_empty()).then(|| Holder::new(HolderKind::Container, facts))
}
