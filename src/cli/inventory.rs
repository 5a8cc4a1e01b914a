//! `gpumeter inventory`: the GPUs that this node is expected to have, where each is and since when.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::bill::unowned;
use super::quiesce::AgentSocket;
use super::{Failure, print};
use crate::clock::system_now;
use crate::control::{self, ControlRequest, InventoryLine};
use crate::host::Host;
use crate::ledger;

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct InventoryCommand {
    #[command(flatten)]
    socket: AgentSocket,
    /// A ledger file that no agent is using, instead of a running agent.
    #[arg(long, value_name = "FILE", global = true, conflicts_with_all = ["socket", "config"])]
    ledger: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    change: Option<InventoryChange>,
}

#[derive(Subcommand, Debug)]
enum InventoryChange {
    /// Stop expecting an absent GPU: its series end, its account stays in the ledger.
    Forget {
        /// UUID of the GPU.
        uuid: String,
    },
}

impl InventoryCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.change {
            None => self.list(),
            Some(InventoryChange::Forget { uuid }) => self.forget(uuid),
        }
    }

    fn list(&self) -> Result<(), Failure> {
        let lines = match &self.ledger {
            Some(path) => {
                unowned(path, "inventory")?;
                control::inventory(path).map_err(Failure::wrong)?
            }
            None => self.socket.ask(&ControlRequest::Inventory)?.inventory.unwrap_or_default(),
        };
        if self.json {
            let text = serde_json::to_string_pretty(&lines).map_err(Failure::found)?;
            return print(&(text + "\n"));
        }
        print(&table(&lines))
    }

    fn forget(&self, uuid: &str) -> Result<(), Failure> {
        let Some(path) = &self.ledger else {
            return self.socket.ask(&ControlRequest::Forget { uuid: uuid.to_owned() }).map(drop);
        };
        let boot_id = Host::at("/").boot_id().unwrap_or_default();
        if ledger::forget(path, uuid, &boot_id, system_now().boottime).map_err(Failure::wrong)? {
            Ok(())
        } else {
            Err(Failure::found(format!("{uuid}: not in the inventory; see gpumeter inventory")))
        }
    }
}

fn table(lines: &[InventoryLine]) -> String {
    let mut page = format!("{:>3} {:40} {:9} {:20} {:12} model\n", "gpu", "uuid", "state", "since", "bus");
    for InventoryLine { index, uuid, model, bus, state, since } in lines {
        page += &format!("{index:>3} {uuid:40} {state:9} {since:20} {bus:12} {model}\n");
    }
    page
}
