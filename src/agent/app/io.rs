//! The I/O thread: HTTP server and signals.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::{mpsc, watch};

use crate::output::serve;
use crate::runtime::clock::Stop;
use crate::runtime::systemd::notify;
use crate::runtime::thread::{self, Thread, VitalThreads};

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

/// What signals act upon.
pub(super) struct Signals {
    pub(super) stop: Stop,
    pub(super) reloads: std::sync::mpsc::Sender<()>,
}

pub(super) fn start(
    bound: serve::BoundListeners,
    site: serve::Site,
    signals: Signals,
    vital: &VitalThreads,
) -> Result<RunningIo, thread::Error> {
    let serve::BoundListeners { listeners, unbound } = bound;
    let status = Arc::clone(site.served.server());
    // Before systemd and the first reader of `/-/ready` are told.
    unbound.iter().for_each(|address| status.missing.insert(&address.error));
    let (stop, stopped) = watch::channel(false);
    let (armed, is_armed) = std::sync::mpsc::channel();
    // Vital, because this thread also handles signals.
    let thread = Thread::start_vital("io", vital, move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "the I/O thread cannot start its runtime"),
        };
        runtime.block_on(async move {
            handle_signals(signals);
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
    status: &Arc<serve::ServerStatus>,
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

/// SIGTERM and SIGINT end the process, SIGHUP requests a reload.
fn handle_signals(Signals { stop, reloads }: Signals) {
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
