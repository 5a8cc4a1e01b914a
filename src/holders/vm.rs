//! Virtual machines by name, as libvirt and Proxmox write them into cgroup paths.
//!
//! What runs inside a machine is the guest's and cannot be seen from here.

use crate::model::{Fact, Facts, Holder, HolderKind};

/// The machine of that name; none where the path does not say it.
pub(super) fn holder(name: &str) -> Option<Holder> {
    (!name.is_empty()).then(|| Holder::new(HolderKind::Vm, Facts::new([(Fact::Vm, name)])))
}
