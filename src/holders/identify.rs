//! The precedence of identities: the GPU system, the unit, the user.
//!
//! In: a process and the host for names. Out: its holder; the outer identities stay in the facts. A kind
//! that comes later is one arm more, before the unit. It does not know which GPU the process is on.

use super::place::{Ground, Place};
use super::system::is_system;
use super::user::user;
use crate::host::{Host, Process};
use crate::model::{Holder, HolderId};

/// Whose process it is.
pub fn identify(host: &Host, process: &Process) -> Holder {
    let place = Place::of(&process.cgroups);
    if is_system(process, &place) {
        return Holder::remainder(HolderId::new(HolderId::SYSTEM));
    }
    let user = user(host, process.uid, place.owner);
    match &place.ground {
        Ground::Unit { name, .. } => Holder::unit(name, Some(&user.name), Some(user.uid)),
        Ground::Open | Ground::Session | Ground::Workload => Holder::user(&user.name, Some(user.uid)),
    }
}
