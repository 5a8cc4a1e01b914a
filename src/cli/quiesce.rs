//! `gpumeter quiesce` and `gpumeter resume`: the running agent releases the driver, so that GPUs can be reset or
//! repartitioned (MIG) or the driver upgraded, and uses it again.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IsTerminal, stdin};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use clap::Args;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};

use super::interrupts::Interrupts;
use super::{Failure, configuration, print};
use crate::clock::system_now;
use crate::config;
use crate::control::{self, ControlReply, ControlRequest};
use crate::model::Nanoseconds;

/// Where the running agent listens.
#[derive(Args, Debug)]
pub(super) struct AgentSocket {
    /// Configuration file of the running agent.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Local socket of the agent, instead of the configured one; a demo's is control.sock in its directory.
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Options of `quiesce`.
#[derive(Args, Debug)]
pub(super) struct QuiesceCommand {
    #[command(flatten)]
    socket: AgentSocket,
    /// For how long at most; then the agent uses the driver again by itself.
    #[arg(long = "for", default_value = "10m", value_name = "TIME", value_parser = span)]
    span: Nanoseconds,
    /// A command to run meanwhile: the driver stays released until it ends, however long that takes.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn span(text: &str) -> Result<Nanoseconds, String> {
    config::span(text, Nanoseconds::from_seconds(1), control::LONGEST)
}

impl AgentSocket {
    /// The path of the socket.
    pub(super) fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        configuration(self.config.as_ref())?
            .web
            .control
            .ok_or_else(|| Failure::wrong("web.control is off; set it to a path, or give one with --socket"))
    }

    pub(super) fn ask(&self, ask: &ControlRequest) -> Result<ControlReply, Failure> {
        question(&self.path()?, ask)
    }
}

fn question(socket: &Path, ask: &ControlRequest) -> Result<ControlReply, Failure> {
    let reply = control::ask(socket, ask).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => "only root and the agent's own user may ask: run it as one of them",
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "no agent listens there: start it, or give its --config or --socket (a demo's is control.sock in its \
                 directory)"
            }
            _ => "is the agent well? its log says more",
        };
        Failure::wrong(format!("{}: {error}; {remedy}", socket.display()))
    })?;
    match reply.error {
        Some(error) => Err(Failure::found(error)),
        None => Ok(reply),
    }
}

/// Tells the agent to use the driver again.
pub(super) fn resume(socket: &AgentSocket) -> Result<(), Failure> {
    match socket.ask(&ControlRequest::Resume)?.was_released {
        Some(false) => print("the driver was not released; there was nothing to resume\n"),
        _ => print("the agent uses the driver again\n"),
    }
}

impl QuiesceCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let socket = self.socket.path()?;
        let ask = ControlRequest::Quiesce { nanoseconds: self.span.0 };
        let Some((program, arguments)) = self.command.split_first() else {
            question(&socket, &ask)?;
            let seconds = self.span.0 / Nanoseconds::SECOND.0;
            return print(&format!(
                "the driver is released: none of its files is open and its library is not mapped\n\
                 the agent uses it again after `gpumeter resume`, or by itself in {seconds} s\n"
            ));
        };
        let name = program.to_string_lossy();
        // Another quiesce may be running, which a mistyped command must not end.
        if !is_runnable(program) {
            return Err(Failure::wrong(format!(
                "{name}: no such command, or not executable; check its name, the agent was not asked for anything"
            )));
        }
        // Before the driver is released: an interrupt must make the agent use it again.
        let mut interrupts =
            Interrupts::new().map_err(|error| Failure::wrong(format!("signals: {error}")))?;
        question(&socket, &ask)?;
        let outcome = match interrupts.wait(Duration::ZERO) {
            Some(signal) => Ok(ExitStatus::from_raw(signal.as_raw())),
            None => std::process::Command::new(program)
                .args(arguments)
                .spawn()
                .and_then(|mut child| self.wait(&mut child, &mut interrupts, (&socket, &ask))),
        };
        question(&socket, &ControlRequest::Resume)?;
        status(&name, outcome.map_err(|error| Failure::wrong(format!("{name}: {error}")))?)
    }

    /// Waits for the command, and renews the request in time, so that the driver stays released. Signals are passed on
    /// to the command: as long as it runs, it may use the driver.
    fn wait(
        &self,
        child: &mut Child,
        interrupts: &mut Interrupts,
        (socket, ask): (&Path, &ControlRequest),
    ) -> std::io::Result<ExitStatus> {
        const LOOK: Duration = Duration::from_millis(50);
        let mut asked = system_now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if system_now().since(asked).0 >= self.span.0 / 2 {
                asked = system_now();
                if let Err(failure) = question(socket, ask) {
                    tracing::warn!(
                        problem = failure.message,
                        "the request to keep the driver released failed; the agent may use it again before the command ends"
                    );
                }
            }
            let signal = interrupts.wait(LOOK);
            // A terminal interrupts the command by itself.
            if let Some(signal) = signal.filter(|signal| *signal != Signal::INT || !stdin().is_terminal()) {
                // It may have ended meanwhile.
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

/// The command's exit status is ours; a signal's is 128 and its number, as a shell tells it.
fn status(name: &str, status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let number = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Err(Failure { status: u8::try_from(number).unwrap_or(1), message: format!("{name}: {status}") })
}
