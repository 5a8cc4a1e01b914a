//! The thread that reads the configuration anew, when asked to or when its file has changed.
//!
//! A file is validated whole before anything is swapped; one with a mistake changes nothing, and what is wrong
//! with it goes to the log, problem by problem. What is swapped is one [`ActiveConfig`], which tick loop, samplers and
//! ledger look at before each round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sd_notify::NotifyState;

use super::Shared;
use super::web::WebSource;
use crate::config::{ConfigFile, KeyChange, ReloadedConfig};
use crate::resolvers::grants;
use crate::systemd::{notify, notify_reload};
use crate::thread::{self, Thread};

/// How often the file is looked at; one that changes is read once two looks in a row find it the same.
const LOOK: Duration = Duration::from_secs(2);

/// How the last reload went, and where to ask for one.
pub(super) struct Reloads {
    success: AtomicBool,
    requester: ReloadRequester,
}

/// Asks for a reload.
#[derive(Clone)]
pub(super) struct ReloadRequester(mpsc::Sender<()>);

/// Receives requests for a reload.
pub(super) struct ReloadRequests(mpsc::Receiver<()>);

impl Reloads {
    pub(super) fn new() -> (Self, ReloadRequests) {
        let (sender, requests) = mpsc::channel();
        (
            Self { success: AtomicBool::new(true), requester: ReloadRequester(sender) },
            ReloadRequests(requests),
        )
    }

    /// Whether the agent runs by its file as it was last read.
    pub(super) fn succeeded(&self) -> bool {
        self.success.load(Ordering::Relaxed)
    }

    pub(super) fn requester(&self) -> ReloadRequester {
        self.requester.clone()
    }
}

impl ReloadRequester {
    pub(super) fn request(&self) {
        // After the thread has ended there is nothing left to reload.
        let _ = self.0.send(());
    }
}

/// What is read anew.
pub(super) struct ReloadSources {
    /// The configuration file, if there is one.
    pub(super) config: Option<ConfigFile>,
    /// Certificates, users and what else protects the pages.
    pub(super) web: WebSource,
}

/// Starts the thread.
pub(super) fn start(
    sources: ReloadSources,
    requests: ReloadRequests,
    shared: &Arc<Shared>,
) -> Result<(), thread::Error> {
    let shared = Arc::clone(shared);
    Thread::start("reload", move || watch(sources, &requests, &shared))?;
    Ok(())
}

fn watch(mut sources: ReloadSources, ReloadRequests(requests): &ReloadRequests, shared: &Shared) {
    while !shared.stop.is_called() {
        let asked = requests.recv_timeout(LOOK).is_ok();
        // Several signals ask for one reload.
        requests.try_iter().for_each(drop);
        // Both look, since each remembers its last look.
        let changed =
            sources.config.as_mut().is_some_and(ConfigFile::has_changed) | sources.web.has_changed();
        if !(asked || changed) || shared.stop.is_called() {
            continue;
        }
        notify_reload();
        let status = reload(&mut sources, shared);
        notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
        tracing::info!("{status}");
    }
}

/// Reads all files and applies them, or reports what is wrong with them; returns the result in one line.
fn reload(sources: &mut ReloadSources, shared: &Shared) -> String {
    let ReloadSources { config, web } = sources;
    // Whatever comes of it, they are not read again before they change.
    web.mark_read();
    let outcome = match config {
        Some(source) => reload_config(source, web, shared),
        None => reload_web(web, shared),
    };
    shared.reloads.success.store(outcome.is_ok(), Ordering::Relaxed);
    outcome.unwrap_or_else(|status| status)
}

/// What protects the pages, by the configuration in force; what came of it, in a line.
fn reload_web(web: &mut WebSource, shared: &Shared) -> Result<String, String> {
    match web.read(&shared.config.active().config) {
        Ok(_) if web.has_no_file() => {
            Ok("there is no configuration file to reload; name one with --config".to_owned())
        }
        Ok(security) => {
            shared.access.replace(security);
            Ok("certificates and users read anew; no configuration file is named by --config".to_owned())
        }
        Err(problem) => Err(broken(&problem, "--web.config.file")),
    }
}

/// The configuration file with what protects the pages: both are put in force, or none.
fn reload_config(source: &mut ConfigFile, web: &mut WebSource, shared: &Shared) -> Result<String, String> {
    let running = shared.config.active();
    let file = source.path().display().to_string();
    let reread = source.read_again(&running.config).map_err(|problems| problems.to_string());
    if reread.is_err()
        && let Ok(security) = web.read(&running.config)
    {
        // A certificate that was renewed meanwhile must not expire for a mistake elsewhere.
        shared.access.replace(security);
    }
    let outcome = reread.and_then(|reread| web.read(&reread.config).map(|security| (reread, security)));
    match outcome {
        Ok((ReloadedConfig { config, changes, waiting }, security)) => {
            log_changes(&changes);
            shared.access.replace(security);
            let now = shared.clock.now().boottime;
            let present = grants::present(&shared.resolvers);
            let resolved = grants::resolve(&config, shared.host.users(), &present, &shared.stop);
            let next = running.replaced_by(config, now);
            shared.config.replace(next.with_grantees(&resolved).unwrap_or(next));
            if waiting.is_empty() {
                return Ok(format!("configuration reloaded: {file}"));
            }
            let keys = waiting.join(", ");
            tracing::warn!(
                keys,
                "these keys have changed and need a restart; until then the old values hold"
            );
            Ok(format!("configuration reloaded: {file}; a restart is needed for {keys}"))
        }
        Err(problems) => Err(broken(&problems, &file)),
    }
}

/// Logs problems, one to a line; what came of it.
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

/// Logs which keys say something else, each in a line of its own.
fn log_changes(changes: &[KeyChange]) {
    const MOST: usize = 20;
    if changes.is_empty() {
        tracing::info!("no key of the configuration has changed");
    }
    for change in changes.iter().take(MOST) {
        tracing::info!("configuration key changed: {change}");
    }
    if changes.len() > MOST {
        tracing::info!("{} more configuration keys changed", changes.len() - MOST);
    }
}
