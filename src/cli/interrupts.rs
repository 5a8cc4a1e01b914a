//! Catches SIGINT, SIGTERM and SIGHUP, so that a command can undo what it changed before it ends.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

/// Catches signals from its creation on.
pub(super) struct Interrupts {
    runtime: Runtime,
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

impl Interrupts {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let (interrupt, terminate, hangup) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        );
        drop(inside);
        Ok(Self { runtime, interrupt, terminate, hangup })
    }

    pub(super) fn wait(&mut self, longest: Duration) -> Option<Signal> {
        let Self { runtime, interrupt, terminate, hangup } = self;
        let any = async {
            tokio::select! {
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
                _ = hangup.recv() => Signal::HUP,
            }
        };
        runtime.block_on(async { timeout(longest, any).await.ok() })
    }
}
