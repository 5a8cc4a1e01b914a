//! The demo: the same agent, whole, on a simulated node that lives in a directory.
//!
//! The directory holds the simulated driver library with its channel (`driver/`), the node's Linux as far
//! as the agent reads it (`host/`), and the ledger. It is kept, so that the account goes on; the driver's
//! time is that of the clock page in it, which agent and library share.

mod local;
mod node;
mod scenario;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::{Launch, StartError};
use crate::clock::{Clock, Page, PageError, PageState, system_now};
use crate::config::{Config, Problems};
use crate::model::Nanoseconds;

pub use local::{COMMAND as CHILD_COMMAND, idle as idle_child};
pub use scenario::{Scenario, ScenarioError};

/// The simulated driver library, built by this package's build script.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// The demo's configuration.
const CONFIG: &str = include_str!("config.yaml");

/// What the command line says of a demo.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of a built-in scenario, or a file.
    pub scenario: String,
    /// Addresses, instead of loopback.
    pub listen: Vec<SocketAddr>,
    /// How many times real time.
    pub speed: f64,
    /// Whether to empty the directory first.
    pub fresh: bool,
    /// The directory, instead of the user's state directory.
    pub directory: Option<PathBuf>,
    /// A configuration file over the demo's own.
    pub config: Option<PathBuf>,
    /// Where to push, if anywhere.
    pub otlp_endpoint: Option<String>,
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
    /// No directory to live in.
    #[error("neither XDG_STATE_HOME nor HOME is set; give a directory with --state-dir")]
    Homeless,
    /// The speed cannot be kept.
    #[error("--speed {0}: give a number between 0.001 and 1000")]
    Speed(f64),
    /// The scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The clock page cannot be used.
    #[error(transparent)]
    Clock(#[from] PageError),
    /// The configuration is wrong.
    #[error("{0}")]
    Config(Problems),
    /// The destination cannot be used.
    #[error("--otlp-endpoint {0}")]
    Endpoint(String),
    /// The child processes of the local scenario cannot be started.
    #[error("starting a process for the local scenario: {0}")]
    Child(io::Error),
    /// The agent itself cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs a demo until it is told to stop.
pub fn run(options: &Options) -> Result<(), DemoError> {
    let directory = directory(options)?;
    if options.fresh {
        empty(&directory)?;
    }
    let driver = directory.join("driver");
    make(&driver)?;
    let mut scenario = Scenario::load(&options.scenario)?;
    let children =
        if scenario.local { Some(local::start(&mut scenario).map_err(DemoError::Child)?) } else { None };
    write(&driver.join("scenario"), scenario.text().as_bytes())?;
    let library = driver.join("libnvidia-ml.so.1");
    install(&library)?;
    let page = clock(&driver.join("clock"), options.speed)?;
    let root = if scenario.local { PathBuf::from("/") } else { node::write(&directory, &scenario, &page)? };
    let config = configure(options, &directory, &library, &scenario)?;
    tracing::info!(directory = %directory.display(), scenario = options.scenario, "demo on a simulated node: every number is made up");
    let launch = Launch { config, clock: Clock::Page(Arc::new(page)), root, simulated: true };
    super::run(launch)?;
    drop(children);
    Ok(())
}

fn directory(options: &Options) -> Result<PathBuf, DemoError> {
    if let Some(directory) = &options.directory {
        return Ok(directory.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .map(|state| state.join("gpumeter/demo"))
        .ok_or(DemoError::Homeless)
}

/// Removes what a demo makes and nothing else: the directory may be anything that was given.
fn empty(directory: &Path) -> Result<(), DemoError> {
    for name in ["driver", "host"] {
        let path = directory.join(name);
        absent_is_fine(fs::remove_dir_all(&path)).map_err(|source| DemoError::File { path, source })?;
    }
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"] {
        let path = directory.join(name);
        absent_is_fine(fs::remove_file(&path)).map_err(|source| DemoError::File { path, source })?;
    }
    Ok(())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A new file under the old name: another process may have the old one mapped.
fn install(library: &Path) -> Result<(), DemoError> {
    let new = library.with_extension("new");
    write(&new, LIBRARY)?;
    fs::rename(&new, library).map_err(|source| DemoError::File { path: library.into(), source })
}

fn clock(path: &Path, speed: f64) -> Result<Page, DemoError> {
    if !(0.001..=1_000.0).contains(&speed) {
        return Err(DemoError::Speed(speed));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1,000 and 10^9")]
    let millionths = (speed * 1e6).round() as u64;
    let page = if path.exists() {
        Page::open(path)?
    } else {
        let now = system_now();
        let state = PageState {
            held: false,
            origin: now.boottime,
            elapsed: Nanoseconds(0),
            speed: millionths,
            utc: now.utc,
            boottime: Nanoseconds::from_seconds(1_000),
        };
        Page::create(path, state)?
    };
    if !page.state().held {
        page.run(millionths)?;
    }
    Ok(page)
}

fn configure(
    options: &Options,
    directory: &Path,
    library: &Path,
    scenario: &Scenario,
) -> Result<Config, DemoError> {
    let mut config = match &options.config {
        Some(path) => Config::read(path),
        None => Config::parse(scenario.config.as_deref().unwrap_or(CONFIG), "the demo's configuration"),
    }
    .map_err(DemoError::Config)?;
    config.nvml.library = Some(library.into());
    config.ledger.path = directory.join("ledger.db");
    config.web.listen = if options.listen.is_empty() {
        vec![SocketAddr::from(([127, 0, 0, 1], 9855))]
    } else {
        options.listen.clone()
    };
    if let Some(endpoint) = &options.otlp_endpoint {
        config.otlp.endpoint = Some(endpoint.parse().map_err(DemoError::Endpoint)?);
    }
    Ok(config)
}

fn make(directory: &Path) -> Result<(), DemoError> {
    fs::create_dir_all(directory).map_err(|source| DemoError::File { path: directory.into(), source })
}

fn write(path: &Path, contents: &[u8]) -> Result<(), DemoError> {
    fs::write(path, contents).map_err(|source| DemoError::File { path: path.into(), source })
}
