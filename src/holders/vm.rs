//! Virtual machines by name, as libvirt and Proxmox write them into cgroup paths.
//!
//! Processes inside a machine cannot be seen from the host.

use crate::model::{Fact, Facts, Holder, HolderKind};

/// The machine of that name; none where the path does not name it.
pub(super) fn holder(name: &str) -> Option<Holder> {
    (!name.is_empty()).then(|| Holder::new(HolderKind::Vm, Facts::new([(Fact::Vm, name)])))
}
