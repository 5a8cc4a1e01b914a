//! The thread that reloads the configuration on request, or when a file has changed.
//!
//! A file is validated as a whole before it is applied; one with a mistake changes nothing, and its problems are logged one
//! by one. What is replaced is one [`AgentPolicy`](crate::agent::policy::AgentPolicy), which tick loop, samplers and ledger read
//! before each round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;

use super::Shared;
use super::web::WebSource;
use crate::agent::policy;
use crate::agent::resolvers::users;
use crate::config::{Config, ConfigFile, ReloadedConfig};
use crate::model::shown;
use crate::output::serve::Access;
use crate::runtime::clock::Stop;
use crate::runtime::systemd::{notify, notify_reload};
use crate::runtime::thread::{self, Thread};

/// How often the files are checked for changes; a changed one is read once two checks in a row find it unchanged.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct Reloads {
    success: AtomicBool,
    pub(super) requests: mpsc::Sender<()>,
    /// How many there were, for what is to be tried again.
    pub(super) count: watch::Sender<u64>,
}

impl Reloads {
    pub(super) fn new(requests: mpsc::Sender<()>) -> Self {
        Self { success: AtomicBool::new(true), requests, count: watch::Sender::new(0) }
    }

    pub(super) fn succeeded(&self) -> bool {
        self.success.load(Ordering::Relaxed)
    }
}

pub(super) struct ReloadSources {
    pub(super) config: Option<ConfigFile>,
    pub(super) web: WebSource,
}

pub(super) fn start(
    sources: ReloadSources,
    requests: mpsc::Receiver<()>,
    shared: &Arc<Shared>,
) -> Result<(), thread::Error> {
    let shared = Arc::clone(shared);
    let stop = shared.stop.clone();
    start_watching(sources, requests, &stop, move |sources| reload(sources, &shared))
}

/// Starts the thread, which calls `reload` on request or when a file has changed; that returns the result in one line.
pub(super) fn start_watching(
    mut sources: ReloadSources,
    requests: mpsc::Receiver<()>,
    stop: &Stop,
    mut reload: impl FnMut(&mut ReloadSources) -> String + Send + 'static,
) -> Result<(), thread::Error> {
    let stop = stop.clone();
    Thread::start("reload", move || watch_files(&mut sources, &requests, &stop, &mut reload))?;
    Ok(())
}

fn watch_files(
    sources: &mut ReloadSources,
    requests: &mpsc::Receiver<()>,
    stop: &Stop,
    reload: &mut impl FnMut(&mut ReloadSources) -> String,
) {
    while !stop.is_called() {
        let requested = requests.recv_timeout(CHECK_INTERVAL).is_ok();
        // Several requests are one reload.
        requests.try_iter().for_each(drop);
        // Both are checked (no short circuit), since each compares with its last check.
        let changed =
            sources.config.as_mut().is_some_and(ConfigFile::has_changed) | sources.web.files.have_changed();
        if !(requested || changed) || stop.is_called() {
            continue;
        }
        notify_reload();
        let status = reload(sources);
        notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        tracing::info!("{status}");
    }
}

/// Reads all files and applies them, or reports what is wrong with them; returns the result in one line.
fn reload(sources: &mut ReloadSources, shared: &Shared) -> String {
    let ReloadSources { config, web } = sources;
    // Even after an error they are not read again before they change.
    web.files.mark_read();
    let outcome = match config {
        Some(source) => reload_config(source, web, shared),
        None => reload_web(web, &shared.policy.now().config, &shared.access),
    };
    shared.reloads.success.store(outcome.is_ok(), Ordering::Relaxed);
    shared.reloads.count.send_modify(|count| *count += 1);
    outcome.unwrap_or_else(|status| status)
}

/// Reloads TLS, users and headers under the current configuration; returns the result in one line.
pub(super) fn reload_web(web: &mut WebSource, running: &Config, access: &Access) -> Result<String, String> {
    match web.read(running) {
        Ok(_) if web.files.is_empty() => {
            Ok("there is no configuration file to reload; give one with --config".to_owned())
        }
        outcome => match outcome.and_then(|security| access.replace(security)) {
            Ok(()) => {
                Ok("certificates and users reloaded; no configuration file is given with --config".to_owned())
            }
            Err(problem) => Err(broken(&problem, "--web.config.file")),
        },
    }
}

/// Reloads the configuration file with TLS, users and headers: both are applied, or none.
fn reload_config(source: &mut ConfigFile, web: &mut WebSource, shared: &Shared) -> Result<String, String> {
    let running = shared.policy.now();
    let (config, status) = reread(source, web, &running.config, &shared.access)?;
    policy::refused_counters(&config).iter().for_each(|line| tracing::warn!("{line}"));
    let now = shared.clock.now().boottime;
    let present = users::users_on_gpus(&shared.resolvers);
    let resolved = users::resolve_grants(&config, shared.host.users(), &present, &shared.stop);
    let next = running.replaced_by(config, now);
    shared.policy.replace(next.with_grantees(&resolved).unwrap_or(next));
    let how_held = shared.policy.now().how_held();
    if how_held != running.how_held() {
        super::log_how_held(how_held);
    }
    Ok(status)
}

/// Reads the configuration file again, and replaces TLS, users and headers by its; both, or none. Returns the configuration, and
/// the result in one line.
pub(super) fn reread(
    source: &mut ConfigFile,
    web: &mut WebSource,
    running: &Config,
    access: &Access,
) -> Result<(Config, String), String> {
    let file = source.path().display().to_string();
    let mut replace_access = |config: &Config| web.read(config).and_then(|next| access.replace(next));
    let outcome = match source.read_again(running) {
        Ok(reread) => replace_access(&reread.config).map(|()| reread),
        // A mistake in the configuration file must not keep an expired certificate in use.
        Err(problems) => Err(match replace_access(running) {
            Ok(()) => problems.to_string(),
            Err(more) => format!("{problems}\n{more}"),
        }),
    };
    let ReloadedConfig { config, changes, waiting } = outcome.map_err(|problems| broken(&problems, &file))?;
    log_changes(&changes);
    if waiting.is_empty() {
        return Ok((config, format!("configuration reloaded: {file}")));
    }
    let keys = waiting.join(", ");
    tracing::warn!(keys, "these keys have changed and need a restart; until then the old values apply");
    Ok((config, format!("configuration reloaded: {file}; a restart is needed for {keys}")))
}

/// Logs the problems, one per line; returns the result in one line.
fn broken(problems: &str, what: &str) -> String {
    for problem in problems.lines() {
        tracing::error!("{problem}");
    }
    let count = match problems.lines().count() {
        1 => "a problem".to_owned(),
        many => format!("{many} problems"),
    };
    format!("configuration not reloaded: {what} has {count}; the former one stays in force")
}

fn log_changes(changes: &[String]) {
    const MOST: usize = 20;
    let keys = changes.iter().take(MOST).map(|key| shown(key)).collect::<Vec<_>>().join(", ");
    match changes.len() {
        0 => tracing::info!("no key of the configuration has changed"),
        1..=MOST => tracing::info!("configuration keys changed: {keys}"),
        count => tracing::info!("configuration keys changed: {keys} and {} more", count - MOST),
    }
}
