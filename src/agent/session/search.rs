//! Opens the driver, and tries again until it counts a GPU. A real driver is opened by one agent per node only.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::node_lock::{self, LockError};
use super::{DriverSessions, RETRY_INTERVAL, RestartReason, Search, count_error, report_if_all_are_known};
use crate::driver::nvml::{CallSlot, Library, OpenError, count};
use crate::runtime::clock::Stop;

/// The longest wait between two tries after a driver was lost, and before the first was opened.
const RETRY_AFTER_LOSS: Duration = Duration::from_secs(3);
const RETRY_FIRST: Duration = Duration::from_secs(10);

/// The library and the kernel's module are of different versions.
const MISMATCH: &str = "version_mismatch";

/// An upgrade may replace the module before the library; this many mismatches in a row are not an upgrade in progress.
const MAX_MISMATCHES: u32 = 3;

struct OpenProblem {
    reason: &'static str,
    text: String,
}

/// A driver that counts GPUs.
pub(crate) struct Opened {
    pub(crate) library: Arc<Library>,
    pub(crate) gpus: u32,
    /// Whether an earlier try failed, so that the driver may have been unloaded or replaced meanwhile.
    pub(crate) was_unloaded: bool,
}

/// Opens the driver, and tries again until it counts a GPU; none when the session is to end. A driver that
/// `was_open` is being upgraded or reset, so it is tried more often.
pub(crate) fn open(
    path: Option<&Path>,
    was_open: bool,
    end: &Stop,
    slot: &CallSlot,
    shared: &DriverSessions,
) -> Option<Opened> {
    let longest = if was_open { RETRY_AFTER_LOSS } else { RETRY_FIRST };
    let mut logged = String::new();
    let mut mismatches = 0;
    let mut was_unloaded = false;
    for wait in [1, 2, 4, 8].map(Duration::from_secs).into_iter().chain(std::iter::repeat(RETRY_FIRST)) {
        if end.is_called() {
            return None;
        }
        match try_open(path, slot, shared) {
            Ok((library, 0)) => {
                // A driver counts the GPUs that it found when it was initialised, so it is opened again for a new one.
                drop(library);
                shared.samplers.lock().search = Search::Found(0);
                report_if_all_are_known(shared);
                const NONE: &str = "the driver reports 0 GPUs; it is opened again every few seconds";
                if logged != NONE {
                    tracing::warn!(NONE);
                    NONE.clone_into(&mut logged);
                }
            }
            Ok((library, gpus)) => return Some(Opened { library, gpus, was_unloaded }),
            Err(OpenProblem { reason, text }) => {
                count_error(shared, "driver".into(), reason);
                shared.samplers.lock().search = Search::Failed;
                was_unloaded = true;
                mismatches = if reason == MISMATCH { mismatches + 1 } else { 0 };
                if let Some(restart) = restart_reason(was_open && mismatches >= MAX_MISMATCHES, shared) {
                    tracing::error!(reason = text, ?restart, "the agent stops, to be started again");
                    // The first reason stays.
                    let _ = shared.restart.set(restart);
                    shared.stop.call();
                }
                if logged != text {
                    tracing::error!(
                        reason = text,
                        "no GPU can be read; the agent serves its own metrics and tries again"
                    );
                    logged = text;
                }
            }
        }
        // In real time, in which a driver is loaded, not on the demo's clock.
        end.wait(wait.min(longest));
    }
    None
}

/// Why restarting the agent would help; none if it would not. It does not help against a device file that is refused and
/// existed at the start.
fn restart_reason(library_is_older: bool, shared: &DriverSessions) -> Option<RestartReason> {
    if library_is_older && shared.host.is_container() {
        return Some(RestartReason::LibraryReplaced);
    }
    let was_loaded = || shared.host.driver_devices() != shared.driver_devices;
    (shared.host.denies_driver_device() && was_loaded()).then_some(RestartReason::DriverLoadedLater)
}

fn try_open(
    path: Option<&Path>,
    slot: &CallSlot,
    shared: &DriverSessions,
) -> Result<(Arc<Library>, u32), OpenProblem> {
    let mut not_owned = None;
    // A second agent must not even initialise the driver.
    let mut may_init = |simulated: bool| {
        not_owned = if simulated { None } else { own_node(shared).err() };
        not_owned.is_none()
    };
    let opened = Library::open_seen(path, (slot, &shared.clock), &mut may_init);
    let library = opened.map_err(|error| {
        if let Some(problem) = not_owned {
            return problem;
        }
        // A simulated library writes into a file beside it what no return code can express.
        let hint = path.and_then(|path| std::fs::read_to_string(path.with_file_name("error")).ok());
        let reason = match error {
            OpenError::Missing { .. } | OpenError::Nowhere { .. } => "missing",
            OpenError::NotNvml { .. } => "not_nvml",
            OpenError::Untrusted { .. } => "untrusted",
            OpenError::Refused { .. } | OpenError::NotAllowed { .. } => "refused",
            OpenError::Mismatch { .. } => MISMATCH,
        };
        let hint = hint.map(|text| format!(" ({})", text.trim())).unwrap_or_default();
        OpenProblem { reason, text: format!("{error}{hint}") }
    })?;
    shared.simulated.fetch_or(library.is_simulated(), Ordering::Relaxed);
    let counted = count(&library, slot, &shared.clock).map_err(|absence| OpenProblem {
        reason: absence.reason(),
        text: format!("the driver does not count its GPUs: {}", absence.reason()),
    })?;
    Ok((library, counted))
}

/// Takes the node's lock for this agent, once.
fn own_node(shared: &DriverSessions) -> Result<(), OpenProblem> {
    if shared.observes || shared.samplers.lock().node.is_some() {
        return Ok(());
    }
    match node_lock::take(Path::new(node_lock::PATH)) {
        Ok(node) => {
            shared.samplers.lock().node = Some(node);
            Ok(())
        }
        Err(error) => {
            let reason = if matches!(error, LockError::Held(_)) { "locked" } else { "no_lock" };
            Err(OpenProblem { reason, text: error.to_string() })
        }
    }
}

/// Waits for the next try; false when the session ends.
pub(crate) fn pause(end: &Stop, shared: &DriverSessions) -> bool {
    let again = shared.clock.now().boottime + RETRY_INTERVAL;
    shared.clock.wait_until(again, end, || {})
}
