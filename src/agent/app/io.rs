//! The I/O thread: HTTP server and signals.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::{mpsc, watch};

use super::StartError;
use super::local_reader::{local_reader, start_owners};
use crate::config::Config;
use crate::holders::host::agent_usage;
use crate::output::serve;
use crate::runtime::clock::system_zone;
use crate::runtime::systemd::notify;
use crate::runtime::thread::Thread;

pub(super) struct RunningIo {
    stop: watch::Sender<bool>,
    thread: Thread,
}

impl RunningIo {
    pub(super) fn stop(&self, longest: Duration) {
        // It may have ended by itself.
        let _ = self.stop.send(true);
        if !self.thread.wait(longest) {
            tracing::warn!("HTTP connections did not end in time; they are dropped");
        }
    }
}

pub(super) fn start(
    bound: serve::BoundListeners,
    config: &Config,
    bills: mpsc::Sender<serve::BillJob>,
    shared: &Arc<super::Shared>,
) -> Result<RunningIo, StartError> {
    let site = serve::Site {
        status: Arc::clone(&shared.status),
        release: {
            let shared = Arc::clone(shared);
            Box::new(move || shared.sessions.orders.release())
        },
        page: serve::LivePage::new(config.web.external_url.as_deref()),
        owners: start_owners(shared)?,
        local_reader: local_reader(shared),
        bills,
        zone: config.billing.time_zone.clone().unwrap_or_else(system_zone),
        access: Arc::clone(&shared.access),
        limits: serve::ServerLimits::within(agent_usage::open_files_limit().unwrap_or(u64::MAX)),
    };
    let serve::BoundListeners { listeners, unbound } = bound;
    // Before systemd and the first reader of `/-/ready` are told.
    unbound.iter().for_each(|address| shared.status.missing.insert(&address.error));
    let status = Arc::clone(&shared.status);
    let (stop, stopped) = watch::channel(false);
    let (agent_stop, reloads) = (shared.stop.clone(), shared.reloads.requests.clone());
    let (armed, is_armed) = std::sync::mpsc::channel();
    // Vital, because this thread also handles signals.
    let thread = Thread::start_vital("io", &shared.vital, move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "the I/O thread cannot start its runtime"),
        };
        runtime.block_on(async move {
            handle_signals(agent_stop, reloads);
            let later = listen_later(unbound, &status);
            // Fails if the start has timed out.
            let _ = armed.send(());
            if let Err(error) = serve::run(listeners, later, site, stopped).await {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
    })?;
    // systemd may send SIGHUP as soon as the agent is ready; without a handler that would end the agent.
    let _ = is_armed.recv_timeout(Duration::from_secs(1));
    Ok(RunningIo { stop, thread })
}

/// Waits for the addresses that are taken; returns the receiver of their sockets.
fn listen_later(
    unbound: Vec<serve::UnboundAddress>,
    status: &Arc<serve::AgentStatus>,
) -> mpsc::Receiver<serve::Listener> {
    let (sender, later) = mpsc::channel(1);
    for address in unbound {
        let (sender, status) = (sender.clone(), Arc::clone(status));
        tokio::spawn(async move {
            let listener = address.listen(&status.missing).await;
            // Fails if the server has ended.
            if sender.send(listener).await.is_ok() {
                let missing = status.missing.reason();
                notify(&[NotifyState::Status(missing.as_deref().unwrap_or(super::RUNNING))]);
            }
        });
    }
    later
}

/// SIGTERM and SIGINT end the agent, SIGHUP requests a reload.
fn handle_signals(stop: crate::runtime::clock::Stop, reloads: std::sync::mpsc::Sender<()>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
    else {
        tracing::error!(
            "signals cannot be handled; end the agent with SIGKILL, which loses one tick at most"
        );
        return;
    };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                // Fails if the reload thread has ended.
                _ = hangup.recv() => drop(reloads.send(())),
            }
        }
        stop.call();
    });
}
