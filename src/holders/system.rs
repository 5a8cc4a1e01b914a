//! The processes of the GPU system itself, which no tenant pays for.
//!
//! In: a process and its place. Out: whether it is one. A name proves nothing, since every process names
//! itself: it counts only for system accounts, and never inside a workload, where root is anybody. It does
//! not know the agent, which is told by its pid.

use super::place::{Ground, Place};
use crate::host::Process;

/// Persistence daemon, fabric manager, DCGM, MPS control (and the servers that it starts below itself).
const UNITS: &[&str] = &[
    "nvidia-cuda-mps-control.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-mps.service",
    "nvidia-persistenced.service",
];

/// The same by process, and the display server.
const NAMES: &[&str] = &["Xorg", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"];

/// The kernel keeps no more bytes of a name: `nvidia-persistenced` is `nvidia-persiste` in `/proc`.
const NAME_BYTES: usize = 15;

/// The first uid of people, as login.defs(5) has it everywhere today.
const FIRST_PERSON: u32 = 1000;

/// Whether the process belongs to the GPU system.
pub(super) fn is_system(process: &Process, place: &Place) -> bool {
    match &place.ground {
        Ground::Workload => false,
        Ground::Unit { name, .. } if UNITS.contains(&name.as_str()) => true,
        _ => is_trusted(process, place) && NAMES.iter().any(|name| is_named(process, name)),
    }
}

/// An MPS server runs under its client's uid, but in the session of root where root started its control.
fn is_trusted(process: &Process, place: &Place) -> bool {
    process.uid < FIRST_PERSON || place.owner.is_some_and(|owner| owner < FIRST_PERSON)
}

fn is_named(process: &Process, name: &str) -> bool {
    process.name == name || process.name == name[..name.len().min(NAME_BYTES)]
}
