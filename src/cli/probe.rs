//! `gpumeter probe`: asks the agent of this node over its local socket whether it is healthy or ready. TLS, client
//! certificates and passwords have no part in it, so it serves as the probe of a container.

use clap::Args;

use super::quiesce::AgentSocket;
use super::{Failure, print};
use crate::control::ControlRequest;

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct ProbeCommand {
    #[command(flatten)]
    socket: AgentSocket,
    /// Ask whether the agent is ready, too: whether there is a first snapshot.
    #[arg(long)]
    ready: bool,
}

impl ProbeCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // Whatever is wrong, a probe has failed.
        let failed = |failure: Failure| Failure::found(failure.message);
        self.socket.ask(&ControlRequest::Probe { ready: self.ready }).map_err(failed)?;
        print(if self.ready { "ready\n" } else { "healthy\n" })
    }
}
