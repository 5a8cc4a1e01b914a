//! Accepts connections until the agent stops, then lets answers under way finish, but not for long.
//!
//! Nothing that happens on one connection ends the loop: an error ends that connection, a panic is counted as
//! a 500 and ends that connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use rustix::io::Errno;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use super::Site;
use super::connection::converse;
use super::local::Ends;
use super::seats::Seats;
use super::stream::{Listener, Stream, Watched};
use super::turnaway::Turnaway;

/// Wait after a failed accept: file descriptors come back when connections end, not by asking again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves on these sockets until `shutdown` says true or its sender is gone.
///
/// Runs on a current-thread runtime with I/O and time. Fails only where a socket cannot be watched, at start.
pub async fn run(listeners: Vec<Listener>, site: Site, shutdown: watch::Receiver<bool>) -> io::Result<()> {
    let seats = Seats::new(site.limits.connections);
    let turnaway = Turnaway::new(site.limits.connections / 4);
    let hall = Hall { site: Arc::new(site), seats, turnaway };
    let mut doors = JoinSet::new();
    for listener in listeners {
        doors.spawn(hall.clone().open(listener.watch()?, shutdown.clone()));
    }
    while doors.join_next().await.is_some() {}
    Ok(())
}

/// Returns once the agent is to stop.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that whoever could say it is gone: stop as well.
    drop(shutdown.wait_for(|stop| *stop).await);
}

/// What all connections share.
#[derive(Clone)]
struct Hall {
    site: Arc<Site>,
    seats: Arc<Seats>,
    turnaway: Turnaway,
}

impl Hall {
    /// Accepts on one socket until the agent stops.
    async fn open(self, listener: Watched, shutdown: watch::Receiver<bool>) {
        let mut guests = JoinSet::new();
        let mut stop = shutdown.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(guest) => self.greet(guest, &mut guests, &shutdown).await,
                    Err(error) => self.bear(&error, &listener).await,
                },
                Some(end) = guests.join_next() => self.note(end),
                () = stopped(&mut stop) => break,
            }
        }
        drop(listener);
        let all_gone = async { while guests.join_next().await.is_some() {} };
        // Dropping the set ends those that are left.
        let _ = timeout(self.site.limits.drain, all_gone).await;
    }

    async fn greet(
        &self,
        (stream, ends): (Stream, Ends),
        guests: &mut JoinSet<()>,
        shutdown: &watch::Receiver<bool>,
    ) {
        let Some(seat) = self.seats.take(ends.peer(), self.site.limits.queue).await else {
            self.site.requests.count(StatusCode::SERVICE_UNAVAILABLE.as_u16());
            // Over TLS nobody could read why.
            return match self.site.access.current().has_tls() {
                true => drop(stream),
                false => self.turnaway.turn_away(stream, guests),
            };
        };
        guests.spawn(converse(stream, ends, seat, Arc::clone(&self.site), shutdown.clone()));
    }

    fn note(&self, end: Result<(), JoinError>) {
        if let Err(error) = end
            && error.is_panic()
        {
            self.site.requests.count(StatusCode::INTERNAL_SERVER_ERROR.as_u16());
            tracing::error!(%error, "answering a request panicked; the connection is closed");
        }
    }

    /// What a failed accept asks for.
    async fn bear(&self, error: &io::Error, listener: &Watched) {
        // The peer left before it was accepted: the next one need not wait.
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        tracing::warn!(%error, "no connection can be accepted; trying again");
        let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).map(Some);
        if exhausted.contains(&error.raw_os_error()) && self.turnaway.send_away_from(listener).await {
            self.site.requests.count(StatusCode::SERVICE_UNAVAILABLE.as_u16());
        }
        sleep(ACCEPT_PAUSE).await;
    }
}
