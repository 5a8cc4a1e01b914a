//! The precedence of identities: the GPU system, the unit, the user.
//!
//! In: a process and the host for names. Out: its holder; the outer identities stay in the facts. A process in a
//! container, pod, job or virtual machine that no resolver names is unattributed with that reason, since its uid may be
//! the image's and its unit the runtime's. It does not know which GPU the process is on.

use super::process_location::{LocationKind, ProcessLocation};
use super::resolved_workloads::ResolvedWorkloads;
use super::system::is_system;
use super::user::find_user;
use crate::host::{Host, ProcessInfo, UserNameError};
use crate::model::{Holder, HolderId};

/// Whose process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The holder, or a remainder.
    pub holder: Holder,
    /// Whether a resolver may still name the holder of what is unattributed now.
    pub pending: bool,
}

impl From<Holder> for Identity {
    fn from(holder: Holder) -> Self {
        Self { holder, pending: false }
    }
}

/// Finds out whose process it is.
///
/// # Errors
/// The name of its user is not known. A unit is named without its user where the lookup failed.
pub fn identify(
    host: &Host,
    process: &ProcessInfo,
    workloads: &ResolvedWorkloads,
) -> Result<Identity, UserNameError> {
    let location = ProcessLocation::from_cgroups(&process.cgroups);
    if is_system(process, &location) {
        return Ok(Holder::remainder(HolderId::new(HolderId::SYSTEM)).into());
    }
    if let LocationKind::Workload(path) = &location.kind {
        return Ok(match workloads.holder(path) {
            Ok(holder) => Identity { holder, pending: workloads.may_describe(path) },
            Err(reason) => Identity {
                holder: Holder::remainder(HolderId::unattributed(reason)),
                pending: workloads.awaits(reason),
            },
        });
    }
    let uid = match (&location.kind, location.session_owner) {
        // A uid inside a rootless container may be anybody's number outside.
        (LocationKind::RootlessContainer, Some(owner)) => owner,
        _ => process.uid,
    };
    let user = find_user(host, uid, location.session_owner);
    let holder = match (&location.kind, user) {
        (LocationKind::Unit { name, .. }, Ok(user)) => Holder::unit(name, Some(&user.name), Some(user.uid)),
        (LocationKind::Unit { name, .. }, Err(UserNameError::Failed { .. })) => {
            Holder::unit(name, None, Some(uid))
        }
        (_, user) => user.map(|user| Holder::user(&user.name, Some(user.uid)))?,
    };
    Ok(holder.into())
}
