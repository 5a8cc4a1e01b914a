//! Commands that ask the running agent over its local socket: `quiesce` and `resume`, `inventory`, `probe`.
//!
//! While the agent is quiesced it has released the driver, so that GPUs can be reset or repartitioned (MIG) or the driver
//! upgraded.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IsTerminal, stdin};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};

use super::bill::check_unowned;
use super::interrupts::Interrupts;
use super::{Failure, print, print_data, read_config};
use crate::accounting::ledger;
use crate::agent::control::{self, ControlReply, ControlRequest, InventoryLine};
use crate::config;
use crate::holders::host::Host;
use crate::model::{Nanoseconds, shown};
use crate::runtime::clock::system_now;

#[derive(Args, Debug)]
pub(super) struct AgentSocket {
    /// Configuration file of the running agent.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Local socket of the agent, instead of the configured one; that of a demo is control.sock in its directory.
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(super) struct QuiesceCommand {
    #[command(flatten)]
    socket: AgentSocket,
    /// How long the driver stays released at most; then the agent uses it again by itself.
    #[arg(long = "for", default_value = "10m", value_name = "TIME", value_parser = span)]
    span: Nanoseconds,
    /// Command to run meanwhile; the driver stays released until it ends, however long that takes.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn span(text: &str) -> Result<Nanoseconds, config::Complaint> {
    config::duration(text, Nanoseconds::from_seconds(1), control::LONGEST)
}

impl AgentSocket {
    fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        read_config(self.config.as_ref())?
            .web
            .control
            .ok_or_else(|| Failure::wrong("web.control is off; set it to a path, or give one with --socket"))
    }

    pub(super) fn send(&self, request: &ControlRequest) -> Result<ControlReply, Failure> {
        send_request(&self.path()?, request)
    }
}

pub(super) fn send_request(socket: &Path, request: &ControlRequest) -> Result<ControlReply, Failure> {
    let reply = control::send_request(socket, request).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                "only root and the agent's own user may use it: run the command as one of them"
            }
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "no agent listens there: start it, or give its --config or --socket (that of a demo is control.sock \
                 in its directory)"
            }
            _ => "see the agent's log for the reason",
        };
        Failure::wrong(format!("{}: {error}; {remedy}", socket.display()))
    })?;
    match reply.error {
        Some(error) => Err(Failure::found(error)),
        None => Ok(reply),
    }
}

pub(super) fn resume(socket: &AgentSocket) -> Result<(), Failure> {
    match socket.send(&ControlRequest::Resume)?.was_released {
        Some(false) => print("the driver was not released; there was nothing to resume\n"),
        _ => print("the agent uses the driver again\n"),
    }
}

impl QuiesceCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let socket = self.socket.path()?;
        let request = ControlRequest::Quiesce { nanoseconds: self.span.0 };
        let Some((program, arguments)) = self.command.split_first() else {
            send_request(&socket, &request)?;
            let seconds = self.span.0 / Nanoseconds::SECOND.0;
            return print(&format!(
                "the driver is released: none of its files is open and its library is not mapped\n\
                 the agent uses it again after `gpumeter resume`, or by itself in {seconds} s\n"
            ));
        };
        let name = program.to_string_lossy();
        // A mistyped command must not end a quiesce that is already running.
        if !is_runnable(program) {
            return Err(Failure::wrong(format!(
                "{name}: no such command, or not executable; check its name; the driver was not released"
            )));
        }
        // Before the driver is released: an interrupt must make the agent use it again.
        let mut interrupts =
            Interrupts::new().map_err(|error| Failure::wrong(format!("signals: {error}")))?;
        send_request(&socket, &request)?;
        let outcome = match interrupts.wait(Duration::ZERO) {
            Some(signal) => Ok(ExitStatus::from_raw(signal.as_raw())),
            None => std::process::Command::new(program)
                .args(arguments)
                .spawn()
                .and_then(|mut child| self.wait(&mut child, &mut interrupts, &socket, &request)),
        };
        send_request(&socket, &ControlRequest::Resume)?;
        to_result(&name, outcome.map_err(|error| Failure::wrong(format!("{name}: {error}")))?)
    }

    /// Waits for the command, and renews the request so that the driver stays released. Signals are passed on to the
    /// command, which may use the driver as long as it runs.
    fn wait(
        &self,
        child: &mut Child,
        interrupts: &mut Interrupts,
        socket: &Path,
        request: &ControlRequest,
    ) -> std::io::Result<ExitStatus> {
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        let mut requested = system_now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if system_now().since(requested).0 >= self.span.0 / 2 {
                requested = system_now();
                if let Err(failure) = send_request(socket, request) {
                    tracing::warn!(
                        problem = failure.message,
                        "the request to keep the driver released failed; the agent may use it again before the command ends"
                    );
                }
            }
            let signal = interrupts.wait(POLL_INTERVAL);
            // A terminal interrupts the command by itself.
            if let Some(signal) = signal.filter(|signal| *signal != Signal::INT || !stdin().is_terminal()) {
                // The command may have ended meanwhile.
                let _ = kill_process(Pid::from_child(child), signal);
            }
        }
    }
}

/// Whether the command is found, in PATH unless it names a directory, and may be run.
fn is_runnable(program: &OsStr) -> bool {
    let is_executable = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if Path::new(program).components().count() > 1 {
        return is_executable(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).any(|directory| is_executable(&directory.join(program)))
}

/// The command's exit status becomes that of gpumeter; after a signal it is 128 plus its number, as in a shell.
fn to_result(name: &str, status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure { status: u8::try_from(number).unwrap_or(1), message: format!("{name}: {status}") })
}

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
                check_unowned(path, "inventory")?;
                control::inventory(path).map_err(Failure::wrong)?
            }
            None => self.socket.send(&ControlRequest::Inventory)?.inventory.unwrap_or_default(),
        };
        if self.json {
            let text = serde_json::to_string_pretty(&lines).map_err(Failure::found)?;
            return print_data(&(text + "\n"));
        }
        print(&table(&lines))
    }

    fn forget(&self, uuid: &str) -> Result<(), Failure> {
        let Some(path) = &self.ledger else {
            return self.socket.send(&ControlRequest::Forget { uuid: uuid.to_owned() }).map(drop);
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
        page += &format!("{index:>3} {uuid:40} {state:9} {since:20} {bus:12} {}\n", shown(model));
    }
    page
}

/// Options of `probe`. It needs no TLS, client certificate or password, so it can be the exec probe of a container.
#[derive(Args, Debug)]
pub(super) struct ProbeCommand {
    #[command(flatten)]
    socket: AgentSocket,
    /// Also require that the agent is ready, which it is from its first snapshot on.
    #[arg(long)]
    ready: bool,
}

impl ProbeCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // Exit status 1 for every failure, as probes expect.
        let failed = |failure: Failure| Failure::found(failure.message);
        self.socket.send(&ControlRequest::Probe { ready: self.ready }).map_err(failed)?;
        print(if self.ready { "ready\n" } else { "healthy\n" })
    }
}
