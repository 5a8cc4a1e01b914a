//! The demo: the whole agent on a simulated node in a directory; and the replay, a demo whose driver answers from a
//! recording.
//!
//! The directory holds the simulated driver library with its files (`driver/`), the Linux files that the agent reads
//! (`host/`), and the ledger. It is kept, so that the account goes on. Agent and library share the time of the clock page
//! in it. One demo uses the directory at a time; a directory with other files is refused.

mod kubelet;
mod local;
mod lock;
mod node;
mod scenario;
mod time;
mod workloads;

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use thiserror::Error;

use crate::app::{self, Launch, StartError, WebOptions};
use crate::clock::{Clock, ClockPage, PageError};
use crate::config::{self, Config, ListenAddress, Problems};
use crate::nvml::{Library, OpenError};
use crate::record::{self, ReadError};
use crate::thread::{self, Thread};
use lock::DirectoryLock;
use time::DemoTime;

pub use local::{COMMAND as CHILD_COMMAND, idle as idle_child};
pub use scenario::{DemoScenario, ScenarioError};

/// The simulated driver library, built by this package's build script.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// The demo's configuration.
const CONFIG: &str = include_str!("config.yaml");

/// The options of a demo or replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the driver answers from.
    pub source: DemoSource,
    /// Addresses to serve on; if empty, those of the configuration or 127.0.0.1:9855.
    pub listen: Vec<ListenAddress>,
    /// How many times faster than real time.
    pub speed: f64,
    /// Whether to empty the directory first.
    pub fresh: bool,
    /// The directory; if absent, one in the user's state directory.
    pub directory: Option<PathBuf>,
    /// A configuration file, instead of the demo's own.
    pub config: Option<PathBuf>,
    /// How pages are served.
    pub web: WebOptions,
    /// OTLP endpoint to push to, if any.
    pub otlp_endpoint: Option<String>,
}

/// What the simulated driver answers from.
#[derive(Clone, Debug)]
pub enum DemoSource {
    /// A built-in scenario by name, or a file.
    Scenario(String),
    /// A recording of another driver.
    Recording(PathBuf),
}

impl std::fmt::Display for DemoSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scenario(name) => write!(f, "{name}"),
            Self::Recording(path) => path.display().fmt(f),
        }
    }
}

/// The demo cannot start.
#[derive(Debug, Error)]
pub enum DemoError {
    /// A file of the demo cannot be written.
    #[error("{path}: {source}; choose another directory with --state-dir")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no user directory for its files.
    #[error("neither XDG_STATE_HOME nor HOME is set; give a directory with --state-dir")]
    Homeless,
    /// The directory holds files that no demo made.
    #[error(
        "{directory}: not empty, and not a directory of a demo (it has no file {marker}); choose an empty or new directory with --state-dir",
        marker = lock::MARKER
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
    },
    /// Another demo uses the directory.
    #[error(
        "{directory}: another demo uses it, process {pid}; stop that one, or choose another directory with --state-dir"
    )]
    Owned {
        /// The demo's directory.
        directory: PathBuf,
        /// The process id of the other demo.
        pid: String,
    },
    /// The library cannot be loaded from there.
    #[error(
        "{directory} is mounted noexec, so the simulated driver library cannot be loaded; choose another directory with --state-dir"
    )]
    NoExec {
        /// The demo's directory.
        directory: PathBuf,
    },
    /// The configuration names a ledger outside the directory.
    #[error(
        "ledger.path {path}: a demo or replay never writes another ledger than its own, {own}; remove ledger.path from the file, or choose the directory with --state-dir"
    )]
    OtherLedger {
        /// What the file says.
        path: PathBuf,
        /// The ledger in the demo's directory.
        own: PathBuf,
    },
    /// The library cannot be used.
    #[error("simulated {0}; start the demo with --fresh, or choose another directory with --state-dir")]
    Library(OpenError),
    /// The library cannot be used for a reason that it wrote to a file.
    #[error(
        "simulated {error}: {reason}; correct the scenario, or start with --fresh if another file is wrong"
    )]
    Driver {
        /// The error of the library.
        error: OpenError,
        /// The reason that it wrote.
        reason: String,
    },
    /// The speed is out of range.
    #[error("--speed {0}: give a number between 0.001 and 1000")]
    Speed(f64),
    /// The scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The recording cannot be played.
    #[error(transparent)]
    Recording(#[from] ReadError),
    /// The clock page cannot be used.
    #[error(transparent)]
    Clock(#[from] PageError),
    /// The configuration is wrong.
    #[error("{0}")]
    Config(Problems),
    /// The destination cannot be used.
    #[error("--otlp-endpoint {0}")]
    Endpoint(config::Complaint),
    /// The child processes of the local scenario cannot be started.
    #[error("starting a process for the local scenario: {0}")]
    Child(io::Error),
    /// A pod or job of the scenario names a GPU that the scenario does not have.
    #[error(
        "the scenario's pods or jobs name GPU {0:?}, which it does not have; write its index, or INDEX::REPLICA"
    )]
    UnknownDevice(String),
    /// A thread of the demo cannot be started.
    #[error(transparent)]
    Thread(#[from] thread::Error),
    /// The agent itself cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs a demo until SIGTERM or SIGINT.
pub fn run(options: &Options) -> Result<(), DemoError> {
    let directory = find_directory(options)?;
    let driver = directory.join("driver");
    // Errors in the command line are reported before anything is changed.
    let (mut scenario, played) = match &options.source {
        DemoSource::Scenario(name) => (DemoScenario::load(name)?, None),
        DemoSource::Recording(path) => (DemoScenario::of_recording(), Some((path, record::span(path)?))),
    };
    let speed = time::speed(options.speed)?;
    let (source, config) = configure(options, &directory, &scenario)?;
    make(&directory)?;
    lock::claim(&directory)?;
    let _lock = DirectoryLock::take(&directory)?;
    if options.fresh {
        empty(&directory, &config.ledger.path)?;
    }
    make(&driver)?;
    let _children =
        if scenario.local { Some(local::start(&mut scenario).map_err(DemoError::Child)?) } else { None };
    write(&driver.join("scenario"), scenario.text().as_bytes())?;
    install_library(&library(&directory))?;
    let time = match &played {
        None => DemoTime::start(&driver, speed)?,
        Some((path, span)) => {
            copy(path, &driver.join(scenario::RECORDING), span.whole)?;
            DemoTime::replay(&driver, speed, span)?
        }
    };
    let page = Arc::clone(&time.page);
    let outcome = start_node(options, &directory, &scenario, &page).and_then(|root| {
        // It may need more memory than the agent, which does not use it.
        drop(scenario);
        let clock = Clock::Page(page);
        Ok(app::run(Launch { config, source, clock, root, simulated: true, web: options.web.clone() })?)
    });
    let ended = time.end();
    outcome.and(ended)
}

/// Starts what simulates the node, and returns the root of its files.
fn start_node(
    options: &Options,
    directory: &Path,
    scenario: &DemoScenario,
    page: &ClockPage,
) -> Result<PathBuf, DemoError> {
    // An agent waits for a driver that may come; that of a demo does not come by itself.
    try_library(options, directory)?;
    let root = if scenario.local { PathBuf::from("/") } else { node::write(directory, scenario, page)? };
    if let Some(workloads) = &scenario.workloads {
        workloads.start(&root, &workloads::uuids(&library(directory))?)?;
    }
    let what = match &options.source {
        DemoSource::Scenario(_) => "demo on a simulated node: every number is made up",
        DemoSource::Recording(_) => "replay of a recording: its numbers are not those of this node",
    };
    tracing::info!(directory = %directory.display(), source = %options.source, "{what}");
    Ok(root)
}

/// How long the library may take to open. A scenario of faults may let every call hang; then the agent starts and waits.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The loader's message for a library on a file system without execute permission.
const NO_EXEC: &str = "failed to map segment";

/// Opens and closes the simulated library; its scenario and its clock must be in place.
fn try_library(options: &Options, directory: &Path) -> Result<(), DemoError> {
    let path = library(directory);
    let reason = path.with_file_name("error");
    ignore_absence(fs::remove_file(&reason)).map_err(|source| DemoError::File { path: reason, source })?;
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
fn explain_failure(options: &Options, directory: &Path, error: OpenError) -> Result<(), DemoError> {
    if let OpenError::Missing { reason, .. } = &error
        && reason.contains(NO_EXEC)
    {
        return Err(DemoError::NoExec { directory: directory.into() });
    }
    let driver = directory.join("driver");
    // The library writes what it cannot express by a return code to a file.
    let Ok(reason) = fs::read_to_string(driver.join("error")) else {
        if matches!(error, OpenError::Refused { .. }) && driver.join("faults").exists() {
            tracing::warn!(%error, "the simulated driver refuses because of the scenario's faults");
            return Ok(());
        }
        return Err(DemoError::Library(error));
    };
    let copy = format!("{}: ", driver.join("scenario").display());
    Err(match reason.trim().strip_prefix(&copy) {
        // The user knows the original file and not the copy that the library read.
        Some(problem) => DemoError::Scenario(ScenarioError::Broken {
            path: options.source.to_string().into(),
            problem: problem.into(),
        }),
        None => DemoError::Driver { error, reason: reason.trim().into() },
    })
}

/// The path of the driver library of the demo in that directory.
pub(crate) fn library(directory: &Path) -> PathBuf {
    directory.join("driver/libnvidia-ml.so.1")
}

fn find_directory(options: &Options) -> Result<PathBuf, DemoError> {
    if let Some(directory) = &options.directory {
        return Ok(directory.clone());
    }
    let state = state_directory().ok_or(DemoError::Homeless)?;
    Ok(state.join(match options.source {
        DemoSource::Scenario(_) => DEMO,
        DemoSource::Recording(_) => REPLAY,
    }))
}

/// The directories of a demo and of a replay in the user's state directory.
const DEMO: &str = "gpumeter/demo";
const REPLAY: &str = "gpumeter/replay";

fn state_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))
}

/// A demo or replay that runs.
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
    crate::ledger::check_unowned(ledger).map_err(StartError::Ledger)?;
    for name in ["driver", "host"] {
        let path = directory.join(name);
        ignore_absence(fs::remove_dir_all(&path)).map_err(|source| DemoError::File { path, source })?;
    }
    let of_directory = |source| DemoError::File { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(of_directory)? {
        let path = entry.map_err(of_directory)?.path();
        // The ledger, its write-ahead log, and the copies that upgrades saved.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ledger.db") && name != "ledger.db.lock" {
            ignore_absence(fs::remove_file(&path)).map_err(|source| DemoError::File { path, source })?;
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
    write(&new, LIBRARY)?;
    fs::rename(&new, library).map_err(|source| DemoError::File { path: library.into(), source })
}

fn configure(
    options: &Options,
    directory: &Path,
    scenario: &DemoScenario,
) -> Result<(Option<config::ConfigFile>, Config), DemoError> {
    let (source, mut config) = match &options.config {
        Some(path) => config::ConfigFile::open(path).map(|(source, config)| (Some(source), config)),
        None => Config::parse(scenario.config.as_deref().unwrap_or(CONFIG), "the demo's configuration")
            .map(|config| (None, config)),
    }
    .map_err(DemoError::Config)?;
    // A file with the printed defaults has paths and addresses that are meant for a node; the demo replaces them.
    let defaults = Config::default();
    let ledger = directory.join("ledger.db");
    if config.ledger.path != defaults.ledger.path && config.ledger.path != ledger {
        return Err(DemoError::OtherLedger { path: config.ledger.path, own: ledger });
    }
    if let Some(path) = &config.nvml.library {
        tracing::warn!(path = %path.display(), "nvml.library is not used: the driver of a demo or replay is simulated");
    }
    config.ledger.path = ledger;
    config.nvml.library = Some(library(directory));
    if config.web.control == defaults.web.control {
        config.web.control = Some(directory.join("control.sock"));
    }
    if !options.listen.is_empty() {
        config.web.listen.clone_from(&options.listen);
    } else if config.web.listen == defaults.web.listen {
        config.web.listen = vec![ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 9855)))];
    }
    if let Some(endpoint) = &options.otlp_endpoint {
        config.otlp.endpoint = Some(endpoint.parse().map_err(DemoError::Endpoint)?);
    }
    Ok((source, config))
}

fn make(directory: &Path) -> Result<(), DemoError> {
    fs::create_dir_all(directory).map_err(|source| DemoError::File { path: directory.into(), source })
}

/// Copies the first `length` bytes.
fn copy(from: &Path, to: &Path, length: u64) -> Result<(), DemoError> {
    let copied = || io::copy(&mut fs::File::open(from)?.take(length), &mut fs::File::create(to)?);
    copied().map(|_| ()).map_err(|source| DemoError::File { path: to.into(), source })
}

fn write(path: &Path, contents: &[u8]) -> Result<(), DemoError> {
    fs::write(path, contents).map_err(|source| DemoError::File { path: path.into(), source })
}
