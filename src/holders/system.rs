//! The processes of the GPU system itself, which no tenant pays for.
//!
//! In: a process and its place. Out: whether it is one. A process chooses its own name, so inside a unit only the unit
//! counts. A name counts in a session of a system account, outside of all units, and for the X server and the compositor
//! of a display manager; never inside a workload, where root may be anybody. It does not know the agent, which is
//! recognised by its pid.

use super::process_location::{LocationKind, ProcessLocation};
use crate::host::ProcessInfo;

/// Persistence daemon, fabric manager, IMEX, power daemon, DCGM, MPS control (and the servers that it starts below itself).
const UNITS: &[&str] = &[
    "nvidia-cuda-mps-control.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mps.service",
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
];

/// Units whose X server and compositor belong to the system; their other processes may be a user's session.
const DISPLAY_MANAGERS: &[&str] =
    &["gdm.service", "gdm3.service", "lightdm.service", "sddm.service", "xdm.service"];

/// Daemons that also run without a unit.
const DAEMONS: &[&str] = &["nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-persistenced"];

/// X servers and compositors that display managers start.
const DISPLAY_SERVERS: &[&str] =
    &["X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "weston"];

/// The kernel keeps no more bytes of a name: `nvidia-persistenced` is `nvidia-persiste` in `/proc`.
const NAME_BYTES: usize = 15;

/// The first uid of people, as login.defs(5) has it everywhere today.
const FIRST_PERSON: u32 = 1000;

/// Whether the process belongs to the GPU system.
pub(super) fn is_system(process: &ProcessInfo, location: &ProcessLocation) -> bool {
    let names: &[&[&str]] = match &location.kind {
        LocationKind::RootlessContainer | LocationKind::Workload(_) => return false,
        LocationKind::Unit { name, .. } if UNITS.contains(&name.as_str()) => return true,
        LocationKind::Unit { name, .. } if DISPLAY_MANAGERS.contains(&name.as_str()) => &[DISPLAY_SERVERS],
        LocationKind::Unit { .. } => return false,
        LocationKind::Unspecified | LocationKind::UserSession => &[DAEMONS, DISPLAY_SERVERS],
    };
    is_trusted(process, location) && names.concat().iter().any(|name| is_named(process, name))
}

/// An MPS server runs under its client's uid, but in the session of root where root started its control.
fn is_trusted(process: &ProcessInfo, location: &ProcessLocation) -> bool {
    process.uid < FIRST_PERSON || location.session_owner.is_some_and(|owner| owner < FIRST_PERSON)
}

fn is_named(process: &ProcessInfo, name: &str) -> bool {
    process.name == name || process.name == name[..name.len().min(NAME_BYTES)]
}
