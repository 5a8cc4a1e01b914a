//! Wiring of the server of a fleet: it looks at a directory of exports, and serves what they cost.
//!
//! Server, signals, reload, passwords and local readers are those of an agent.

mod answers;
mod keeper;
mod statements;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use sd_notify::NotifyState;

use self::answers::Answers;
use super::local_reader::{local_reader, start_owners};
use super::reload::{ReloadSources, reload_web, reread, start_watching};
use super::web::{self, WebSource};
use super::{IO_TIMEOUT, RUNNING, StartError, io, server_limits};
use crate::accounting::day_files::CostCache;
use crate::agent::resolvers::users::watched_groups;
use crate::config::{Config, ConfigFile, ListenAddress};
use crate::holders::host::{UserDatabase, agent_usage};
use crate::output::serve::{self, FleetStatus};
use crate::runtime::clock::{Stop, system_now, system_zone};
use crate::runtime::systemd::notify;
use crate::runtime::thread::{self, Thread, VitalThreads};

/// How long a bill may take, and a report of costs: less than a client waits.
const LONGEST_ANSWER: Duration = Duration::from_secs(9);

/// How long is waited for a write of the cache, which a kill would only undo.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(1);

const USERS_POLL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct FleetLaunch {
    pub config: Config,
    pub source: Option<ConfigFile>,
    /// A web configuration file of Prometheus' exporters.
    pub web_file: Option<PathBuf>,
    pub listen: Vec<ListenAddress>,
    pub exports: PathBuf,
    /// The directory of closed statements.
    pub statements: Option<PathBuf>,
}

struct FleetShared {
    stop: Stop,
    config: Mutex<Arc<Config>>,
    access: Arc<serve::Access>,
    status: Arc<FleetStatus>,
}

impl FleetShared {
    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock())
    }
}

/// Runs the server until SIGTERM, SIGINT or a fatal error.
pub fn run_fleet(launch: FleetLaunch) -> Result<(), StartError> {
    if let Err(error) = agent_usage::raise_open_files_limit() {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
    let (web, access, passwords) = WebSource::open(&launch.config, launch.web_file.clone())?;
    let bound = serve::bind(&launch.listen, serve::MetricNames::Native)?;
    bound.listeners.iter().for_each(|listener| listener.log(&access.current()));
    let zone = launch.config.billing.time_zone.clone().unwrap_or_else(system_zone);
    let directory = cache_directory(&launch.exports);
    let cache = CostCache::open(&directory, &launch.exports, zone, system_now().utc)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        exports = %launch.exports.display(),
        cache = %directory.display(),
        "gpumeter fleet starts; the cache may be deleted while it does not run"
    );
    let shared = Arc::new(FleetShared {
        stop: Stop::default(),
        config: Mutex::new(Arc::new(launch.config)),
        access,
        status: Arc::default(),
    });
    let vital = VitalThreads::new(shared.stop.clone());
    let (reloads, requests) = mpsc::channel();
    web::start(passwords, &shared.stop)?;
    let answers = Answers {
        reader: cache.reader(),
        exports: launch.exports,
        statements: launch.statements,
        shared: Arc::clone(&shared),
    };
    let site = site(answers)?;
    let signals = io::Signals { stop: shared.stop.clone(), reloads };
    let io = io::start(bound, site, signals, &vital)?;
    let keeper = keeper::start(cache, &shared, &vital)?;
    let sources = ReloadSources { config: launch.source, web };
    let reloading = Arc::clone(&shared);
    start_watching(sources, requests, &shared.stop, move |sources| reload(sources, &reloading))?;
    let missing = shared.status.server.missing.reason();
    notify(&[NotifyState::Ready, NotifyState::Status(missing.as_deref().unwrap_or(RUNNING))]);
    shared.stop.wait_for_call();
    notify(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    io.stop(IO_TIMEOUT);
    keeper.wait(KEEPER_TIMEOUT);
    vital.first_failure().map_or(Ok(()), |thread| Err(StartError::ThreadFailed(thread)))
}

fn site(answers: Answers) -> Result<serve::Site, StartError> {
    let shared = Arc::clone(&answers.shared);
    let config = shared.config();
    let users = Arc::new(UserDatabase::of_host(Path::new("/")));
    start_users(&users, &shared)?;
    let readers = {
        let shared = Arc::clone(&shared);
        move || shared.config().web.local_readers.clone()
    };
    Ok(serve::Site {
        served: serve::Served::Fleet(Arc::clone(&shared.status)),
        page: serve::LivePage::new(config.web.external_url.as_deref()),
        owners: start_owners(&shared.stop)?,
        local_reader: local_reader(&users, readers),
        zone: answers.reader.zone().clone(),
        bills: serve::BillQueue::new(answers.start()?),
        access: Arc::clone(&shared.access),
        limits: serve::ServerLimits { bill: LONGEST_ANSWER, ..server_limits() },
    })
}

/// Starts the thread that looks up who may read by `web.local_readers`; the name service may wait for a network.
fn start_users(users: &Arc<UserDatabase>, shared: &Arc<FleetShared>) -> Result<(), thread::Error> {
    let (users, shared) = (Arc::clone(users), Arc::clone(shared));
    let stop = shared.stop.clone();
    Thread::start_again("users", &stop, move || {
        while !shared.stop.is_called() {
            users.set_groups(watched_groups(&shared.config()));
            if let Some(uid) = users.next_due(USERS_POLL)
                && let Err(error) = users.refresh(uid, |_| {})
            {
                tracing::warn!(uid, %error, "the name of a user cannot be looked up; it is tried again");
            }
        }
    })?;
    Ok(())
}

/// Reads all files again and applies them, or reports what is wrong with them; returns the result in one line.
fn reload(sources: &mut ReloadSources, shared: &FleetShared) -> String {
    let ReloadSources { config, web } = sources;
    // Even after an error they are not read again before they change.
    web.files.mark_read();
    let running = shared.config();
    let outcome = match config {
        Some(source) => reread(source, web, &running, &shared.access).map(|(config, status)| {
            *shared.config.lock() = Arc::new(config);
            status
        }),
        None => reload_web(web, &running, &shared.access),
    };
    outcome.unwrap_or_else(|status| status)
}

/// Where the cache is: in `CACHE_DIRECTORY`, which systemd sets, else in a directory of its own among the user's caches, or
/// where there are none, among temporary files.
fn cache_directory(exports: &Path) -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = variable("CACHE_DIRECTORY") {
        return directory;
    }
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(exports).unwrap_or_else(|_| exports.to_owned()).hash(&mut hasher);
    let name = format!("fleet-{:016x}", hasher.finish());
    let of_user = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    match of_user {
        Some(caches) => caches.join("gpumeter").join(name),
        None => std::env::temp_dir().join(format!("gpumeter-{name}")),
    }
}
