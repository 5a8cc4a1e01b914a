//! The precedence of identities: the GPU system, the unit, the user.
//!
//! In: a process and the host for names. Out: its holder; the outer identities stay in the facts. A process in a
//! container, pod, job or virtual machine is unattributed with that reason, since its uid may be the image's and its
//! unit the runtime's. A kind that comes later is one arm more, before the unit. It does not know which GPU the process
//! is on.

use super::place::{Ground, Place};
use super::system::is_system;
use super::user::user;
use crate::host::{Host, Process, Unresolved};
use crate::model::{Holder, HolderId};

/// Whose process it is.
///
/// # Errors
/// The name of its user is not known. A unit is named without its user where the lookup failed.
pub fn identify(host: &Host, process: &Process) -> Result<Holder, Unresolved> {
    let place = Place::of(&process.cgroups);
    if is_system(process, &place) {
        return Ok(Holder::remainder(HolderId::new(HolderId::SYSTEM)));
    }
    if let Ground::Workload(reason) = place.ground {
        return Ok(Holder::remainder(HolderId::unattributed(reason)));
    }
    let uid = match (&place.ground, place.owner) {
        // A uid inside a rootless container may be anybody's number outside.
        (Ground::Rootless, Some(owner)) => owner,
        _ => process.uid,
    };
    let user = user(host, uid, place.owner);
    match (&place.ground, user) {
        (Ground::Unit { name, .. }, Ok(user)) => Ok(Holder::unit(name, Some(&user.name), Some(user.uid))),
        (Ground::Unit { name, .. }, Err(Unresolved::Failed { .. })) => {
            Ok(Holder::unit(name, None, Some(uid)))
        }
        (_, user) => user.map(|user| Holder::user(&user.name, Some(user.uid))),
    }
}
