//! Init, shutdown, and the node between them.
//!
//! The last shutdown drops the node, so that nothing (memory, the clock's mapping, open files) is left when the
//! library is unloaded; the next init reads the scenario again. The driver's version is noted when the library
//! is loaded: init fails if the driver has another version by then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::answer::{Answer, Refused, UNINITIALIZED, UNKNOWN};
use crate::node::{self, Node};
use crate::{channel, lock};

struct State {
    users: u32,
    node: Option<Arc<Node>>,
}

static STATE: Mutex<State> = Mutex::new(State { users: 0, node: None });

/// The mark of the driver's version when this library was loaded; 0: unknown.
static LIBRARY: AtomicU64 = AtomicU64::new(0);

/// The loader calls it: a driver version that changes between loading and init is a mismatch.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    let mark = channel::directory().and_then(|directory| node::mark_in(&directory));
    LIBRARY.store(mark.unwrap_or(0), Ordering::Relaxed);
}

/// Adds a user; the first one reads the scenario.
pub(crate) fn initialise() -> Answer {
    let mut state = lock(&STATE);
    let node = match current(&mut state) {
        Some(node) => node,
        None => open()?,
    };
    let known = LIBRARY.load(Ordering::Relaxed);
    let library = if known == 0 { node.version_mark() } else { known };
    node.check_init(library)?;
    LIBRARY.store(library, Ordering::Relaxed);
    state.node = Some(node);
    state.users += 1;
    Ok(())
}

fn open() -> Result<Arc<Node>, Refused> {
    let directory = channel::directory().ok_or(UNKNOWN)?;
    // Before `state` is read, which may write an error of its own.
    let _ = std::fs::remove_file(directory.join("error"));
    let node = Node::open(&directory).map_err(|reason| {
        // Best effort: NVML itself returns only an error code.
        let _ = std::fs::write(directory.join("error"), format!("{reason}\n"));
        UNKNOWN
    })?;
    Ok(Arc::new(node))
}

/// Removes a user; the last one drops the node. This works without a driver too.
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

/// The node, if the library is initialised and its driver was not reloaded since.
pub(crate) fn node() -> Result<Arc<Node>, Refused> {
    let node = any_node()?;
    node.check_driver()?;
    Ok(node)
}

/// The node, if the library is initialised, even without a driver.
pub(crate) fn any_node() -> Result<Arc<Node>, Refused> {
    current(&mut lock(&STATE)).ok_or(UNINITIALIZED)
}

fn current(state: &mut State) -> Option<Arc<Node>> {
    let node = state.node.clone()?;
    let Some(next) = node.next_if_changed() else { return Some(node) };
    let next = Arc::new(next);
    state.node = Some(Arc::clone(&next));
    Some(next)
}
