//! Wiring of the server of a fleet: it looks at a directory of exports, and serves what they cost.
//!
//! Server, signals, reload, passwords and local readers are those of an agent.

mod advice;
mod answers;
mod keeper;
mod statements;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use sd_notify::NotifyState;

use self::advice::KeptAdvice;
use self::answers::Answers;
use super::local_reader::{local_reader, start_owners};
use super::reload::{ReloadSources, reload_web, reread, start_watching};
use super::web::{self, WebSource};
use super::{IO_TIMEOUT, RUNNING, StartError, io, server_limits};
use crate::accounting::day_files::{CostCache, ExportSource, cache_name, read_expected};
use crate::agent::resolvers::users::watched_groups;
use crate::config::{Config, ConfigFile, ListenAddress};
use crate::holders::host::{UserDatabase, agent_usage};
use crate::model::VisibleAccount;
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
    /// The list of all nodes.
    pub expected: Option<PathBuf>,
}

struct FleetShared {
    stop: Stop,
    config: Mutex<Arc<Config>>,
    access: Arc<serve::Access>,
    status: Arc<FleetStatus>,
    exports: PathBuf,
    expected: Option<PathBuf>,
    advice: KeptAdvice,
}

impl FleetShared {
    /// The files that are read beside the cache.
    fn source(&self) -> ExportSource<'_> {
        let untrusted_at = Some(system_now().utc);
        ExportSource { skip_damaged: true, untrusted_at, ..ExportSource::of(&self.exports) }
    }

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
    let directory = cache_directory(&launch.exports, |name| std::env::var_os(name))?;
    launch.expected.as_deref().map(read_expected).transpose()?;
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
        exports: launch.exports,
        expected: launch.expected,
        advice: KeptAdvice::default(),
    });
    let vital = VitalThreads::new(shared.stop.clone());
    let (reloads, requests) = mpsc::channel();
    web::start(passwords, &shared.stop)?;
    let answers =
        Answers { reader: cache.reader(), statements: launch.statements, shared: Arc::clone(&shared) };
    let site = site(answers, &vital)?;
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

fn site(answers: Answers, vital: &VitalThreads) -> Result<serve::Site, StartError> {
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
        local_reader: of_cluster(local_reader(&users, readers), config.node.cluster.as_deref()),
        zone: answers.reader.zone().clone(),
        bills: serve::BillQueue::new(answers.start(vital)?),
        access: Arc::clone(&shared.access),
        limits: serve::ServerLimits { bill: LONGEST_ANSWER, ..server_limits() },
    })
}

/// Users of this host are those of the cluster of Slurm that it belongs to.
fn of_cluster(reader: serve::LocalReader, cluster: Option<&str>) -> serve::LocalReader {
    let cluster: Option<Arc<str>> = cluster.map(Arc::from);
    Box::new(move |uid| match (reader(uid)?, &cluster) {
        (VisibleAccount::OfUser(user), Some(cluster)) => {
            Some(VisibleAccount::OfSlurmUser { user, cluster: Arc::clone(cluster) })
        }
        (visible, _) => Some(visible),
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

/// Where the cache is: in `CACHE_DIRECTORY`, which systemd sets, else in a directory of its own among the user's caches.
fn cache_directory(
    exports: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, StartError> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    let of_exports = || Some(of_user()?.join("gpumeter").join(cache_name(exports)));
    path("CACHE_DIRECTORY").or_else(of_exports).ok_or(StartError::NoCacheDirectory)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_where_the_environment_says_and_never_among_temporary_files() {
        let of = |variables: &[(&str, &str)]| {
            let value = |name: &str| {
                variables.iter().find(|(given, _)| *given == name).map(|(_, value)| value.into())
            };
            cache_directory(Path::new("/exports/of/nobody"), value).map(|path| path.display().to_string())
        };
        // Another release finds it again.
        const NAME: &str = "fleet-5c6e9204aada14ce";
        let (home, empty) = (("HOME", "/home/a"), ("XDG_CACHE_HOME", ""));
        assert_eq!(of(&[home, ("CACHE_DIRECTORY", "/c")]).unwrap(), "/c");
        assert_eq!(of(&[home, empty]).unwrap(), format!("/home/a/.cache/gpumeter/{NAME}"));
        assert_eq!(of(&[home, ("XDG_CACHE_HOME", "/x")]).unwrap(), format!("/x/gpumeter/{NAME}"));
        assert!(of(&[]).unwrap_err().to_string().contains("CACHE_DIRECTORY"));
    }
}
