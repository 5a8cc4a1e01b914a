//! Real child processes for the local scenario, which only exist so that `/proc` has them.

use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::{DemoError, DemoScenario};

/// The hidden command that a child runs.
pub const COMMAND: &str = "demo-child";

/// The children; they end when their standard input closes, which happens however this process ends.
pub(super) struct Children {
    children: Vec<(Child, Option<ChildStdin>)>,
}

/// Starts a child for every process of the scenario, which gets its pid.
pub(super) fn start(scenario: &mut DemoScenario) -> Result<Children, DemoError> {
    let failed = |error| DemoError::Other(format!("starting a process for the local scenario: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut children = Vec::new();
    let assigned = scenario.assign_pids(|| {
        let mut child = Command::new(&program).arg(COMMAND).stdin(Stdio::piped()).spawn()?;
        let pid = child.id();
        let input = child.stdin.take();
        children.push((child, input));
        Ok(pid)
    });
    assigned.map_err(failed)?;
    Ok(Children { children })
}

impl Drop for Children {
    fn drop(&mut self) {
        for (mut child, input) in self.children.drain(..) {
            drop(input);
            // It ends by itself; waiting only collects its exit status.
            let _ = child.wait();
        }
    }
}

/// The body of a child: waits until its standard input closes.
pub fn idle() {
    let mut nothing = [0];
    while io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
}
