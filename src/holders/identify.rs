//! Identifies the holder of a process.
//!
//! The order is: GPU system, workload, unit, user; outer identities stay in the facts. A process in a container, pod,
//! job or virtual machine that no resolver names is unattributed, since its uid may be the image's and its unit the
//! runtime's. On which GPU the process is makes no difference.

use std::sync::Arc;

use super::process_location::{LocationKind, ProcessLocation};
use super::resolved_workloads::ResolvedWorkloads;
use crate::holders::host::{Host, ProcessInfo, UserNameError};
use crate::model::{Fact, Facts, Holder, HolderId, HolderKind, UnattributedReason};

/// Units of the GPU system: persistence daemon, fabric manager, IMEX, power daemon, DCGM, and MPS control with the
/// servers that it starts below itself.
const SYSTEM_UNITS: &[&str] = &[
    "nvidia-cuda-mps-control.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mps.service",
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
];

/// Units whose X server and compositor belong to the system; other processes may belong to a user's session.
const DISPLAY_MANAGERS: &[&str] =
    &["gdm.service", "gdm3.service", "lightdm.service", "sddm.service", "xdm.service"];

/// Daemons that also run without a unit.
const DAEMONS: &[&str] = &["nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"];

const DISPLAY_SERVERS: &[&str] =
    &["X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "weston"];

/// The kernel keeps no more bytes of a name: `nvidia-persistenced` is `nvidia-persiste` in `/proc`.
const NAME_BYTES: usize = 15;

/// The first uid of regular users, the default of login.defs(5).
const FIRST_REGULAR_UID: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub holder: Holder,
    /// Set where a resolver may still name the holder or add to its facts: the reason for which processes of such
    /// workloads are unattributed.
    pub awaited: Option<UnattributedReason>,
}

impl From<Holder> for Identity {
    fn from(holder: Holder) -> Self {
        Self { holder, awaited: None }
    }
}

/// Identifies the holder of a process.
///
/// # Errors
/// The name of its user is not known. A unit is named without its user, and waits for the name, where the lookup failed.
pub fn identify(
    host: &Host,
    process: &ProcessInfo,
    workloads: &ResolvedWorkloads,
) -> Result<Identity, UserNameError> {
    let location = ProcessLocation::from_cgroups(&process.cgroups, &workloads.cgroups);
    if is_system(process, &location) {
        return Ok(Holder::remainder(HolderId::new(HolderId::SYSTEM)).into());
    }
    if let LocationKind::Workload(path) = &location.kind {
        return Ok(workloads.identify(path));
    }
    let user = match (&location.kind, location.session_owner) {
        // The uid of a process in a rootless container is a subordinate uid, not that of its user.
        (LocationKind::RootlessContainer { .. }, Some(owner)) => find_user(host, owner, None),
        _ => find_user(host, process.uid, process.namespace_owner),
    };
    let holder = match (&location.kind, user) {
        (LocationKind::Unit { name, .. }, Ok(user)) => Holder::unit(name, Some(&user.name), Some(user.uid)),
        (LocationKind::Unit { name, .. }, Err(UserNameError::Failed { uid })) => {
            let holder = Holder::unit(name, None, Some(uid));
            return Ok(Identity { holder, awaited: Some(UnattributedReason::Unknown) });
        }
        (LocationKind::RootlessContainer { runtime, id }, user) if !id.is_empty() => {
            rootless_container(runtime, id, &user?)
        }
        (_, user) => user.map(|user| Holder::user(&user.name, Some(user.uid)))?,
    };
    Ok(holder.into())
}

/// A container that a user runs. Its id begins with the uid, since users name their own cgroups: one of another user's
/// container, or of a container of root, would else be billed there.
fn rootless_container(runtime: &str, id: &str, user: &ProcessUser) -> Holder {
    let texts = [(Fact::ContainerRuntime, runtime), (Fact::Container, id), (Fact::User, &*user.name)];
    let facts = Facts::new(texts).with_uid(Some(user.uid));
    let id = HolderId::new(format!("{}:{runtime}/{}/{id}", HolderKind::Container.name(), user.uid));
    Holder { id, facts }
}

/// Whether the process belongs to the GPU system, for which no tenant pays. A process chooses its own name, so names
/// count only for system accounts in sessions and outside of units, and for the X server and compositor of a display
/// manager. They never count inside a workload, where any user may be root.
fn is_system(process: &ProcessInfo, location: &ProcessLocation) -> bool {
    let names: &[&[&str]] = match &location.kind {
        LocationKind::RootlessContainer { .. } | LocationKind::Workload(_) => return false,
        LocationKind::Unit { name, .. } if SYSTEM_UNITS.contains(&name.as_str()) => return true,
        LocationKind::Unit { name, .. } if DISPLAY_MANAGERS.contains(&name.as_str()) => &[DISPLAY_SERVERS],
        LocationKind::Unit { .. } => return false,
        LocationKind::Unspecified | LocationKind::UserSession => &[DAEMONS, DISPLAY_SERVERS],
    };
    // An MPS server runs under its client's uid, but in the session of the account that started its control daemon.
    let is_system_account = process.uid < FIRST_REGULAR_UID
        || location.session_owner.is_some_and(|owner| owner < FIRST_REGULAR_UID);
    let is_named = |name: &&str| process.name == name[..name.len().min(NAME_BYTES)];
    is_system_account && names.concat().iter().any(is_named)
}

/// A user; the name is the number where none is known.
struct ProcessUser {
    uid: u32,
    name: Arc<str>,
}

/// Finds the user of a process. A uid without a name is a user of its own, unless it is subordinate to another user, who has
/// it for his user namespaces: a daemon with a session may start processes of users whom this system does not know.
fn find_user(host: &Host, uid: u32, namespace_owner: Option<u32>) -> Result<ProcessUser, UserNameError> {
    let users = host.users();
    if let Some(name) = users.name(uid)? {
        return Ok(ProcessUser { uid, name });
    }
    let uid = users.subordinate_owner(uid).or(namespace_owner).unwrap_or(uid);
    let name = users.name(uid)?.unwrap_or_else(|| uid.to_string().into());
    Ok(ProcessUser { uid, name })
}
