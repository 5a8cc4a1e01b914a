//! The processes of the GPU system itself, which no tenant pays for.
//!
//! In: a process and its location. Out: whether it belongs to the system. A process chooses its own name, so names
//! count only for system accounts in sessions and outside of units, and for X server and compositor of a display
//! manager. They never count inside a workload, where root may be anybody. The agent itself is recognised by its pid
//! elsewhere.

use super::process_location::{LocationKind, ProcessLocation};
use crate::host::ProcessInfo;

/// Persistence daemon, fabric manager, IMEX, power daemon, DCGM, MPS control (and the servers that it starts below
/// itself).
const UNITS: &[&str] = &[
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

/// X servers and compositors that display managers start.
const DISPLAY_SERVERS: &[&str] =
    &["X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "weston"];

/// The kernel keeps no more bytes of a name: `nvidia-persistenced` is `nvidia-persiste` in `/proc`.
const NAME_BYTES: usize = 15;

/// The first uid of regular users, the default of login.defs(5).
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

/// Whether it runs for a system account. An MPS server runs under its client's uid, but in the session of the account
/// that started its control daemon.
fn is_trusted(process: &ProcessInfo, location: &ProcessLocation) -> bool {
    process.uid < FIRST_PERSON || location.session_owner.is_some_and(|owner| owner < FIRST_PERSON)
}

fn is_named(process: &ProcessInfo, name: &str) -> bool {
    process.name == name || process.name == name[..name.len().min(NAME_BYTES)]
}
