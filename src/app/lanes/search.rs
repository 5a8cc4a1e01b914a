//! Opening the driver, again and again until it counts a GPU; on a real one, for one agent per node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{LOOK_AGAIN, Search, count, lock, tell_if_all_are_known};
use crate::app::Shared;
use crate::app::node_lock::{self, Unlocked};
use crate::nvml::{CallSlot, Library, OpenError, count as count_gpus};

/// The driver cannot be used.
struct Problem {
    reason: &'static str,
    text: String,
}

/// Opens the driver, again and again until it counts a GPU; none when the agent stops.
pub(super) fn open(path: Option<&Path>, slot: &CallSlot, shared: &Shared) -> Option<(Arc<Library>, u32)> {
    let mut told = String::new();
    loop {
        match look(path, slot, shared) {
            Ok((library, 0)) => {
                // A driver counts what it saw when it was initialised: for a new GPU it is opened anew.
                drop(library);
                lock(shared).search = Search::Found(0);
                tell_if_all_are_known(shared);
                const NONE: &str = "the driver counts no GPU; it is opened again from time to time";
                if told != NONE {
                    tracing::warn!(NONE);
                    NONE.clone_into(&mut told);
                }
            }
            Ok(seen) => return Some(seen),
            Err(Problem { reason, text }) => {
                count(shared, "driver".into(), reason);
                lock(shared).search = Search::Failed;
                if told != text {
                    tracing::error!(
                        reason = text,
                        "no GPU can be read; the agent serves its own health and looks again"
                    );
                    told = text;
                }
            }
        }
        if !pause(shared) {
            return None;
        }
    }
}

fn look(path: Option<&Path>, slot: &CallSlot, shared: &Shared) -> Result<(Arc<Library>, u32), Problem> {
    let library = Library::open(path).map_err(|error| {
        // A simulated library says in a file beside it what it could not tell by a return code.
        let told = path.and_then(|path| std::fs::read_to_string(path.with_file_name("error")).ok());
        let reason = match error {
            OpenError::Missing { .. } => "missing",
            OpenError::NotNvml { .. } => "not_nvml",
            OpenError::Refused { .. } => "refused",
        };
        let told = told.map(|text| format!(" ({})", text.trim())).unwrap_or_default();
        Problem { reason, text: format!("{error}{told}") }
    })?;
    shared.simulated.fetch_or(library.is_simulated(), Ordering::Relaxed);
    if !library.is_simulated() {
        own_node(shared)?;
    }
    let counted = count_gpus(&library, slot, &shared.clock).map_err(|absence| Problem {
        reason: absence.reason(),
        text: format!("the driver does not count its GPUs: {}", absence.reason()),
    })?;
    Ok((library, counted))
}

/// Takes the node for this agent, once.
fn own_node(shared: &Shared) -> Result<(), Problem> {
    if lock(shared).node.is_some() {
        return Ok(());
    }
    match node_lock::take(&node_lock::PLACES) {
        Ok(node) => lock(shared).node = Some(node),
        Err(Unlocked::Held(pid)) => {
            let text = format!(
                "another gpumeter (pid {pid}) reads this node's GPUs; stop it, or stop this one: two would \
                 bill the same time twice"
            );
            return Err(Problem { reason: "locked", text });
        }
        Err(Unlocked::Nowhere(problems)) => {
            tracing::warn!(problems, "a second agent on this node would not be noticed");
        }
    }
    Ok(())
}

/// Waits until it is time to look again; false when the agent stops.
pub(super) fn pause(shared: &Shared) -> bool {
    let again = shared.clock.now().boottime + LOOK_AGAIN;
    shared.clock.wait_until(again, &shared.stop, || {})
}
