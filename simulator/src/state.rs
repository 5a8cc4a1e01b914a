//! What lives as long as the library is initialised: one node, counted.
//!
//! In: init and shutdown. Out: the node for a call. The last shutdown drops it, so that nothing (memory, the
//! clock's mapping) is left when the library is unloaded, and the next init reads the scenario anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::answer::{Answer, Refused, UNINITIALIZED, UNKNOWN};
use crate::channel;
use crate::node::Node;

struct State {
    users: u32,
    node: Option<Arc<Node>>,
}

static STATE: Mutex<State> = Mutex::new(State { users: 0, node: None });

/// A lock that goes on after a panic of another holder: nothing here is left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts one user more; the first reads the scenario.
pub(crate) fn initialise() -> Answer {
    let mut state = lock(&STATE);
    if state.node.is_none() {
        let directory = channel::directory().ok_or(UNKNOWN)?;
        let node = Node::open(&directory).map_err(|reason| {
            // Best effort: the error code is all that NVML itself can say.
            let _ = std::fs::write(directory.join("error"), format!("{reason}\n"));
            UNKNOWN
        })?;
        let _ = std::fs::remove_file(directory.join("error"));
        state.node = Some(Arc::new(node));
    }
    state.users += 1;
    Ok(())
}

/// Counts one user less; the last one drops the node.
pub(crate) fn shut_down() -> Answer {
    let node = {
        let mut state = lock(&STATE);
        state.users = state.users.checked_sub(1).ok_or(UNINITIALIZED)?;
        if state.users == 0 { state.node.take() } else { state.node.clone() }
    };
    if let Some(node) = node {
        node.report_now();
    }
    Ok(())
}

/// The node, if the library is initialised.
pub(crate) fn node() -> Result<Arc<Node>, Refused> {
    lock(&STATE).node.clone().ok_or(UNINITIALIZED)
}
