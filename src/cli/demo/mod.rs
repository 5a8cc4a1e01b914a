//! The demo: the whole agent on a simulated node in a directory; and the replay, a demo whose driver answers from a
//! recording.
//!
//! The directory holds the simulated driver library with its files (`driver/`), the Linux files that the agent reads
//! (`host/`), and the ledger. It is kept, so that the account goes on. Agent and library share the time of the clock page
//! in it. One demo uses the directory at a time; a directory with other files is refused.

mod history;
mod kubelet;
mod local;
mod lock;
mod node;
mod scenario;
#[cfg(test)]
mod tests;
mod time;
mod workloads;

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use crate::agent::app::{self, Launch, StartError, WebFlags, listen_address};
use crate::config::{self, Config, Endpoint, ListenAddress};
use crate::driver::nvml::{Library, OpenError};
use crate::driver::record::{self, ReadError};
use crate::meter::attribution::WINDOW;
use crate::runtime::clock::{Clock, ClockPage, PageError, system_now};
use crate::runtime::file::{self, Durability};
use crate::runtime::thread::{self, Thread};
use time::DemoTime;

pub use history::{DemoHistory, HistoryExtent, HistoryPaths, parse_days, parse_nodes};
pub use local::{COMMAND as CHILD_COMMAND, idle as idle_child};
pub use scenario::DemoScenario;
pub use time::parse_speed;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// A demo, or a replay: a demo with a recording.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DemoCommand {
    /// Built-in scenario (cluster; node, without schedulers; local, with real processes), or the path of a file.
    #[arg(long, default_value = "cluster", value_name = "NAME|FILE")]
    pub(crate) scenario: String,
    /// The recording of a driver that the simulated one answers from, in place of the scenario.
    #[arg(skip)]
    pub(crate) recording: Option<PathBuf>,
    /// Address to serve on, instead of web.listen or 127.0.0.1:9855; may be repeated.
    #[arg(long, visible_alias = "web.listen-address", value_name = "ADDR", value_parser = listen_address)]
    pub(crate) listen: Vec<ListenAddress>,
    /// How many times faster than real time.
    #[arg(long, default_value = "1", value_name = "N", value_parser = parse_speed)]
    pub(crate) speed: u64,
    /// Start from scratch: empty the demo's directory first.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Directory of the demo, instead of $XDG_STATE_HOME/gpumeter/demo: new, empty, or of an earlier demo.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Configuration file, instead of the scenario's. For the default web.listen the demo uses 127.0.0.1:9855, for the
    /// default web.control control.sock in its directory; a ledger.path outside its directory is refused.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Push over OTLP/HTTP to this address, e.g. http://localhost:4318; by default nothing is pushed.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// Begin with a past of so many days, such as 60d, in a new ledger and in exports, as the scenario describes it.
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    pub(crate) history: Option<u64>,
    /// How many nodes have that past; the demo runs on the first, and the others have ledgers in DIR/nodes.
    #[arg(long, value_name = "N", default_value = "1", requires = "history", value_parser = parse_nodes)]
    pub(crate) nodes: usize,
    /// Number from which all that looks random in the past follows, and the UUIDs of GPUs; by default the scenario's.
    #[arg(long, value_name = "S", requires = "history")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) web: WebFlags,
}

#[derive(Debug, Error)]
pub enum DemoError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Recording(#[from] ReadError),
    #[error(transparent)]
    Clock(#[from] PageError),
    #[error(transparent)]
    Thread(#[from] thread::Error),
    #[error("{0}")]
    Other(String),
}

const OTHER_DIRECTORY: &str = "choose another directory with --state-dir";

fn file_error(path: &Path) -> impl Fn(io::Error) -> DemoError {
    move |error| DemoError::Other(format!("{}: {error}; {OTHER_DIRECTORY}", path.display()))
}

/// Runs a demo until SIGTERM or SIGINT.
pub(crate) fn run(options: &DemoCommand) -> Result<(), DemoError> {
    let directory = find_directory(options)?;
    let driver = directory.join("driver");
    // Errors in the command line are reported before anything is changed.
    let (mut scenario, played) = match &options.recording {
        None => (DemoScenario::load(&options.scenario)?, None),
        Some(path) => (DemoScenario::of_recording(), Some((path, record::span(path)?))),
    };
    let (source, mut config) = configure(options, &directory, &scenario)?;
    let history = plan_history(options, &driver, &mut scenario, &config)?;
    make(&directory)?;
    lock::claim(&directory)?;
    let _lock = lock::lock(&directory)?;
    if options.fresh {
        empty(&directory, &config.ledger.path)?;
    }
    check_history(&directory, &config.ledger.path, history.is_some())?;
    make(&driver)?;
    let _children = if scenario.local { Some(local::start(&mut scenario)?) } else { None };
    write(&driver.join("scenario"), scenario.text().as_bytes())?;
    install_library(&library(&directory))?;
    let time = match (&played, &history) {
        (None, None) => DemoTime::start(&driver, options.speed)?,
        (None, Some(history)) => DemoTime::stand(&driver, history.end())?,
        (Some((path, span)), _) => {
            copy(path, &driver.join(scenario::RECORDING), span.whole)?;
            DemoTime::replay(&driver, options.speed, span)?
        }
    };
    let page = Arc::clone(&time.page);
    let outcome = start_node(options, &directory, &scenario, &page).and_then(|root| {
        // It may need more memory than the agent, which does not use it.
        drop(scenario);
        if let Some(history) = history {
            write_history(&history, &directory, &mut config)?;
            time.go_on(options.speed)?;
        }
        export_again(&directory, &mut config);
        let clock = Clock::Page(page);
        Ok(app::run(Launch {
            config,
            source,
            clock,
            root,
            simulated: true,
            observes: false,
            web_file: options.web.file.clone(),
            systemd_socket: options.web.systemd_socket,
        })?)
    });
    let ended = time.end();
    outcome.and(ended)
}

/// The past that is asked for; mistakes in it are found before anything is changed.
fn plan_history(
    options: &DemoCommand,
    driver: &Path,
    scenario: &mut DemoScenario,
    config: &Config,
) -> Result<Option<DemoHistory>, DemoError> {
    let Some(days) = options.history else { return Ok(None) };
    let seed = options.seed.unwrap_or_else(|| scenario.seed());
    scenario.set_seed(seed);
    let end =
        time::shown(driver).filter(|_| !options.fresh).unwrap_or_else(|| system_now().utc).floor(WINDOW);
    scenario.history(config, HistoryExtent { days, nodes: options.nodes, seed }, end).map(Some)
}

/// Refuses a history before an account that is there already, and to go on from a part of a history.
fn check_history(directory: &Path, ledger: &Path, is_wanted: bool) -> Result<(), DemoError> {
    let begun = directory.join(history::BEGUN);
    if begun.exists() {
        return Err(DemoError::Other(format!(
            "{}: the history in this directory was not finished; start with --fresh, or {OTHER_DIRECTORY}",
            directory.display()
        )));
    }
    if is_wanted && ledger.exists() {
        return Err(DemoError::Other(format!(
            "--history: {} has an account already, and a history comes before all of it; start with --fresh to replace it, or \
             {OTHER_DIRECTORY}",
            ledger.display()
        )));
    }
    Ok(())
}

/// Writes the past of a demo whose driver library answers.
fn write_history(history: &DemoHistory, directory: &Path, config: &mut Config) -> Result<(), DemoError> {
    let begun = directory.join(history::BEGUN);
    write(&begun, b"")?;
    let uuids = workloads::uuids(&library(directory))?;
    if config.ledger.export.directory.is_none() {
        make(&directory.join(history::EXPORTS))?;
    }
    export_again(directory, config);
    let exports = config.ledger.export.directory.as_deref().unwrap_or(directory);
    history.write(HistoryPaths { ledger: &config.ledger.path, directory, exports }, Some(&uuids))?;
    fs::remove_file(&begun).map_err(file_error(&begun))
}

/// Exports where a history was exported, unless the configuration says where to.
fn export_again(directory: &Path, config: &mut Config) {
    let exports = directory.join(history::EXPORTS);
    if config.ledger.export.directory.is_none() && exports.exists() {
        config.ledger.export.directory = Some(exports);
    }
}

/// Starts what simulates the node, and returns the root of its files.
fn start_node(
    options: &DemoCommand,
    directory: &Path,
    scenario: &DemoScenario,
    page: &Arc<ClockPage>,
) -> Result<PathBuf, DemoError> {
    // An agent waits for a driver that may come; that of a demo does not come by itself.
    try_library(options, directory)?;
    let root = if scenario.local { PathBuf::from("/") } else { node::write(directory, scenario, page)? };
    if let Some(workloads) = &scenario.workloads {
        workloads.start(&root, &workloads::uuids(&library(directory))?, Arc::clone(page))?;
    }
    let (what, source) = match &options.recording {
        None => ("demo on a simulated node: every number is made up", options.scenario.clone()),
        Some(path) => {
            ("replay of a recording: its numbers are not those of this node", path.display().to_string())
        }
    };
    tracing::info!(directory = %directory.display(), source, "{what}");
    Ok(root)
}

/// How long the library may take to open. A scenario of faults may let every call hang; then the agent starts and waits.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The loader's message for a library on a file system without execute permission.
const NO_EXEC: &str = "failed to map segment";

/// Opens and closes the simulated library; its scenario and its clock must be in place.
fn try_library(options: &DemoCommand, directory: &Path) -> Result<(), DemoError> {
    let path = library(directory);
    let reason = path.with_file_name("error");
    ignore_absence(fs::remove_file(&reason)).map_err(file_error(&reason))?;
    let (sender, outcome) = mpsc::channel();
    Thread::start("trial", move || {
        // Fails if the demo no longer waits.
        let _ = sender.send(Library::open(Some(&path)).map(drop));
    })?;
    match outcome.recv_timeout(OPEN_TIMEOUT) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => explain_failure(options, directory, error),
        Err(_) => {
            let seconds = OPEN_TIMEOUT.as_secs();
            tracing::warn!(seconds, "the simulated driver library does not open; the agent waits for it");
            Ok(())
        }
    }
}

/// The error of a library that does not open; none if the scenario's faults make the driver refuse.
fn explain_failure(options: &DemoCommand, directory: &Path, error: OpenError) -> Result<(), DemoError> {
    let driver = directory.join("driver");
    // The library writes what it cannot express by a return code to a file.
    let reason = fs::read_to_string(driver.join("error")).ok();
    let copy = format!("{}: ", driver.join("scenario").display());
    let message = match (&error, reason.as_deref().map(str::trim)) {
        (OpenError::Missing { reason, .. }, _) if reason.contains(NO_EXEC) => format!(
            "{} is mounted noexec, so the simulated driver library cannot be loaded; {OTHER_DIRECTORY}",
            directory.display()
        ),
        (OpenError::Refused { .. }, None) if driver.join("faults").exists() => {
            tracing::warn!(%error, "the simulated driver refuses because of the scenario's faults");
            return Ok(());
        }
        (_, None) => format!("simulated {error}; start the demo with --fresh, or {OTHER_DIRECTORY}"),
        (_, Some(reason)) => match reason.strip_prefix(&copy) {
            // The user knows the original file and not the copy that the library read.
            Some(problem) => match &options.recording {
                Some(recording) => format!("recording {}: {problem}", recording.display()),
                None => format!("scenario {}: {problem}", options.scenario),
            },
            None => format!(
                "simulated {error}: {reason}; correct the scenario, or start with --fresh if another file is wrong"
            ),
        },
    };
    Err(DemoError::Other(message))
}

pub(crate) fn library(directory: &Path) -> PathBuf {
    directory.join("driver/libnvidia-ml.so.1")
}

fn find_directory(options: &DemoCommand) -> Result<PathBuf, DemoError> {
    if let Some(directory) = &options.state_dir {
        return Ok(directory.clone());
    }
    let state = state_directory().ok_or_else(|| {
        let message = "neither XDG_STATE_HOME nor HOME is set; give a directory with --state-dir";
        DemoError::Other(message.to_owned())
    })?;
    Ok(state.join(if options.recording.is_some() { REPLAY } else { DEMO }))
}

/// The directories of a demo and of a replay in the user's state directory.
const DEMO: &str = "gpumeter/demo";
const REPLAY: &str = "gpumeter/replay";

fn state_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))
}

pub(crate) struct RunningDemo {
    pub(crate) directory: PathBuf,
    pub(crate) pid: String,
}

/// The demo or replay that runs in the user's state directory, if one does.
pub(crate) fn running() -> Option<RunningDemo> {
    let state = state_directory()?;
    [DEMO, REPLAY].into_iter().find_map(|name| {
        let directory = state.join(name);
        let pid = lock::owner(&directory)?;
        Some(RunningDemo { directory, pid })
    })
}

/// Removes what a demo makes from its own directory, except lock files; fails if another agent writes the ledger.
fn empty(directory: &Path, ledger: &Path) -> Result<(), DemoError> {
    crate::accounting::ledger::check_unowned(ledger).map_err(StartError::Ledger)?;
    for name in ["driver", "host", history::NODES, history::EXPORTS] {
        let path = directory.join(name);
        ignore_absence(fs::remove_dir_all(&path)).map_err(file_error(&path))?;
    }
    let begun = directory.join(history::BEGUN);
    ignore_absence(fs::remove_file(&begun)).map_err(file_error(&begun))?;
    for entry in fs::read_dir(directory).map_err(file_error(directory))? {
        let path = entry.map_err(file_error(directory))?.path();
        // The ledger, its write-ahead log, and the copies that upgrades saved.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ledger.db") && name != "ledger.db.lock" {
            ignore_absence(fs::remove_file(&path)).map_err(file_error(&path))?;
        }
    }
    Ok(())
}

fn ignore_absence(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Replaces the library by a new file of the same name: another process may have the old one mapped.
fn install_library(library: &Path) -> Result<(), DemoError> {
    let new = library.with_extension("new");
    file::replace(library, &new, 0o666, Durability::Kill, |file| file.write_all(LIBRARY))
        .map_err(file_error(library))
}

fn configure(
    options: &DemoCommand,
    directory: &Path,
    scenario: &DemoScenario,
) -> Result<(Option<config::ConfigFile>, Config), DemoError> {
    let (source, mut config) = match (&options.config, &options.recording) {
        (Some(path), _) => {
            let opened =
                config::ConfigFile::open(path).map_err(|problems| DemoError::Other(problems.to_string()));
            opened.map(|(source, config)| (Some(source), config))?
        }
        // The demo's grants and prices are not those of the recorded node.
        (None, Some(_)) => (None, Config::default()),
        (None, None) => (None, scenario.configuration()?),
    };
    // A file with the printed defaults has paths and addresses that are meant for a node; the demo replaces them.
    let defaults = Config::default();
    let ledger = directory.join("ledger.db");
    if config.ledger.path != defaults.ledger.path && config.ledger.path != ledger {
        return Err(DemoError::Other(format!(
            "ledger.path {}: a demo or replay never writes another ledger than its own, {}; remove ledger.path from \
             the file, or choose the directory with --state-dir",
            config.ledger.path.display(),
            ledger.display()
        )));
    }
    if let Some(path) = &config.nvml.library {
        tracing::warn!(path = %path.display(), "nvml.library is not used: the driver of a demo or replay is simulated");
    }
    config.ledger.path = ledger;
    config.otlp.spool.directory = directory.join("otlp");
    config.nvml.library = Some(library(directory));
    if config.web.control == defaults.web.control {
        config.web.control = Some(directory.join("control.sock"));
    }
    if !options.listen.is_empty() {
        config.web.listen.clone_from(&options.listen);
    } else if config.web.listen == defaults.web.listen {
        config.web.listen = vec![ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9855)))];
    }
    options.web.apply(&mut config);
    if options.otlp_endpoint.is_some() {
        config.otlp.endpoint.clone_from(&options.otlp_endpoint);
    }
    Ok((source, config))
}

fn make(directory: &Path) -> Result<(), DemoError> {
    fs::create_dir_all(directory).map_err(file_error(directory))
}

fn copy(from: &Path, to: &Path, length: u64) -> Result<(), DemoError> {
    let copied = || io::copy(&mut file::open(from)?.take(length), &mut fs::File::create(to)?);
    copied().map(|_| ()).map_err(file_error(to))
}

fn write(path: &Path, contents: &[u8]) -> Result<(), DemoError> {
    fs::write(path, contents).map_err(file_error(path))
}
