//! The one I/O thread: HTTP, the push, and the signals that end the agent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::StartError;
use super::reload::ReloadRequester;
use crate::clock::system_now;
use crate::config::Config;
use crate::host::agent_usage;
use crate::model::Utc;
use crate::thread::Thread;
use crate::{push, serve};

/// The running I/O thread.
pub(super) struct RunningIo {
    pub(super) status: IoStatus,
    /// Where a push goes, if anywhere.
    pub(super) push: Option<PushTo>,
    stop: watch::Sender<bool>,
    thread: Thread,
}

/// A destination as the tick loop sees it.
#[derive(Clone)]
pub(super) struct PushTo {
    pub(super) queue: Arc<push::PushQueue>,
    /// What it is called in metrics.
    pub(super) name: Arc<str>,
    pub(super) tally: Arc<push::Tally>,
    /// The node that speaks.
    pub(super) node: super::NodeName,
}

/// What the tick loop shares with it.
#[derive(Clone)]
pub(super) struct IoStatus {
    pub(super) liveness: Arc<serve::Liveness>,
    pub(super) requests: Arc<serve::Requests>,
    /// When the agent started, by the system's clock.
    pub(super) started: Utc,
}

impl RunningIo {
    /// Closes the listener and what it serves.
    pub(super) fn stop(&self, longest: Duration) {
        // It may have ended by itself.
        let _ = self.stop.send(true);
        if !self.thread.wait(longest) {
            tracing::warn!("connections did not end in time");
        }
    }
}

/// Starts the thread.
pub(super) fn start(
    listeners: Vec<serve::Listener>,
    config: &Config,
    bills: mpsc::Sender<serve::BillRequest>,
    shared: &Arc<super::Shared>,
) -> Result<RunningIo, StartError> {
    let io = IoStatus {
        liveness: Arc::clone(&shared.liveness),
        requests: Arc::default(),
        started: system_now().utc,
    };
    let push = destination(config, &shared.node)?;
    let site = serve::Site {
        pages: Arc::clone(&shared.pages),
        release: {
            let shared = Arc::clone(shared);
            Box::new(move || shared.sessions.orders.release())
        },
        index: serve::render_index_page(config.web.external_url.as_deref()),
        liveness: Arc::clone(&io.liveness),
        requests: Arc::clone(&io.requests),
        no_account: Arc::clone(&shared.no_account),
        bills,
        access: Arc::clone(&shared.access),
        limits: serve::ServerLimits::within(agent_usage::most_files().unwrap_or(u64::MAX)),
    };
    let (stop, stopped) = watch::channel(false);
    let sender = push.as_ref().map(|(destination, to)| (destination.clone(), Arc::clone(&to.queue)));
    let (agent_stop, requester) = (shared.stop.clone(), shared.reloads.requester());
    let (armed, is_armed) = std::sync::mpsc::channel();
    // Without this thread no signal is handled either.
    let thread = Thread::start_vital("io", shared.ends(), move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "no I/O runtime"),
        };
        runtime.block_on(async move {
            handle_signals(agent_stop, requester);
            // Nobody may be waiting any more.
            let _ = armed.send(());
            let push = async {
                if let Some((destination, queue)) = sender {
                    push::run(queue, destination, stopped.clone()).await;
                }
            };
            // Both end when told to stop: the server drains, the push delivers what it can.
            let (served, ()) = tokio::join!(serve::run(listeners, site, stopped.clone()), push);
            if let Err(error) = served {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
    })?;
    // systemd may send SIGHUP as soon as the agent reports ready; without a handler it would end the agent.
    let _ = is_armed.recv_timeout(Duration::from_secs(1));
    let push = push.map(|(_, to)| to);
    Ok(RunningIo { status: io, push, stop, thread })
}

/// Requests that may wait for a slow collector; the oldest gives way.
const WAITING: usize = 2;

fn destination(
    config: &Config,
    node: &super::NodeName,
) -> Result<Option<(push::Destination, PushTo)>, StartError> {
    let Some(endpoint) = &config.otlp.endpoint else { return Ok(None) };
    let destination = push::Destination::parse(&endpoint.to_string())?;
    let tally = Arc::clone(destination.tally());
    let queue = Arc::new(push::PushQueue::new(WAITING, Arc::clone(&tally)));
    let to = PushTo { queue, name: Arc::clone(destination.name()), tally, node: node.clone() };
    Ok(Some((destination, to)))
}

/// SIGTERM and SIGINT end the agent, SIGHUP requests a reload.
fn handle_signals(stop: crate::clock::Stop, requester: ReloadRequester) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
    else {
        tracing::error!("signals cannot be heard; end the agent by SIGKILL, it loses at most a tick");
        return;
    };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => requester.request(),
            }
        }
        stop.call();
    });
}
