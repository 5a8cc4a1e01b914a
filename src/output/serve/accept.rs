//! Accepts connections until the agent stops, then lets unfinished responses end within a limit.
//!
//! An error or a panic ends only its connection; a panic is counted as status 500.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::Site;
use super::connection::{Arrival, serve_connection};
use super::connections::Connections;
use super::listen::{AsyncListener, BoxedStream, Listener, MetricNames};
use super::overload::OverloadResponse;

/// Wait after a failed accept: file descriptors become free only when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves on these sockets, and on those that come later, until `shutdown` says true or its sender is gone.
///
/// Runs on a current-thread runtime with I/O and time. Fails only if a socket cannot be registered.
pub async fn run(
    listeners: Vec<Listener>,
    mut later: mpsc::Receiver<Listener>,
    site: Site,
    shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let connections = Arc::new(Connections::new(site.limits.connections));
    let overload = OverloadResponse::new(site.limits.connections / 4);
    let server = Server { site: Arc::new(site), connections, overload };
    let mut loops = JoinSet::new();
    for listener in listeners {
        loops.spawn(server.clone().accept_all(listener.names, listener.into_async()?, shutdown.clone()));
    }
    let mut stop = shutdown.clone();
    loop {
        tokio::select! {
            Some(listener) = later.recv() => {
                listener.log(&server.site.access.current());
                loops.spawn(server.clone().accept_all(listener.names, listener.into_async()?, shutdown.clone()));
            }
            () = stopped(&mut stop) => break,
        }
    }
    while loops.join_next().await.is_some() {}
    Ok(())
}

async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: stop as well.
    drop(shutdown.wait_for(|stop| *stop).await);
}

#[derive(Clone)]
struct Server {
    site: Arc<Site>,
    connections: Arc<Connections>,
    overload: OverloadResponse,
}

impl Server {
    async fn accept_all(
        self,
        names: MetricNames,
        listener: AsyncListener,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let mut tasks = JoinSet::new();
        let graceful = GracefulShutdown::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, ends)) => {
                        self.admit(stream, Arrival { ends, names }, &mut tasks, graceful.watcher());
                        // First a request that is there already is answered, and a connection that gave way is closed.
                        // Otherwise the connections of a burst would evict each other, and use up the descriptors.
                        yield_now().await;
                    }
                    Err(error) => self.handle_accept_error(&error, &listener).await,
                },
                Some(end) = tasks.join_next() => self.note_panic(end),
                () = stopped(&mut shutdown) => break,
            }
        }
        drop(listener);
        // Then dropping the set ends the remaining ones.
        let _ = timeout(self.site.limits.drain, graceful.shutdown()).await;
    }

    /// Serves the connection, or refuses it while all are being answered.
    fn admit(&self, stream: BoxedStream, arrival: Arrival, tasks: &mut JoinSet<()>, shutdown: Watcher) {
        if let Some(connection) = self.connections.open() {
            tasks.spawn(serve_connection(stream, arrival, connection, Arc::clone(&self.site), shutdown));
            return;
        }
        self.site.served.server().requests.count(StatusCode::SERVICE_UNAVAILABLE.as_u16());
        // With TLS the client could read the response only after a handshake.
        if !self.site.access.current().has_tls() {
            tasks.spawn(self.overload.clone().refuse(stream));
        }
    }

    fn note_panic(&self, end: Result<(), JoinError>) {
        if let Err(error) = end
            && error.is_panic()
        {
            self.site.served.server().requests.count(StatusCode::INTERNAL_SERVER_ERROR.as_u16());
            tracing::error!(%error, "a request handler panicked; the connection is closed");
        }
    }

    async fn handle_accept_error(&self, error: &io::Error, listener: &AsyncListener) {
        // The peer left before it was accepted; this is no reason to wait.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        tracing::warn!(%error, "accepting a connection failed; trying again");
        let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).map(Some);
        if exhausted.contains(&error.raw_os_error())
            && self.overload.refuse_without_descriptor(listener).await
        {
            self.site.served.server().requests.count(StatusCode::SERVICE_UNAVAILABLE.as_u16());
        }
        sleep(ACCEPT_PAUSE).await;
    }
}
