//! Identifies the holder of a process.
//!
//! In: a process, the host for user names, the resolvers' workloads. Out: its holder, or a remainder. The order is: GPU
//! system, workload, unit, user; outer identities stay in the facts. A process in a container, pod, job or virtual
//! machine that no resolver names is unattributed, since its uid may be the image's and its unit the runtime's. It does
//! not know which GPU the process is on.

use super::process_location::{LocationKind, ProcessLocation};
use super::resolved_workloads::ResolvedWorkloads;
use super::system::is_system;
use super::user::find_user;
use crate::host::{Host, ProcessInfo, UserNameError};
use crate::model::{Holder, HolderId};

/// The holder of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The holder, or a remainder.
    pub holder: Holder,
    /// Whether a resolver may still name the holder or add to its facts.
    pub pending: bool,
}

impl From<Holder> for Identity {
    fn from(holder: Holder) -> Self {
        Self { holder, pending: false }
    }
}

/// Identifies the holder of a process.
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
                pending: workloads.may_resolve(reason),
            },
        });
    }
    let uid = match (&location.kind, location.session_owner) {
        // The uid of a process in a rootless container is a subordinate uid, not that of its user.
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
