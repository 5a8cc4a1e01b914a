//! The HTTP server: pages of the latest snapshot for everybody, the API for this host's users or for configured users.
//!
//! It reads the published snapshot, the time of the last tick, and what the thread that reads the ledger answers. A
//! request calls no driver and changes nothing, so two scrapers see the same. It runs on one current-thread runtime:
//! nothing here may block, and no peer, however slow or many, may keep the others waiting.

mod accept;
mod bill;
mod bill_reader;
mod client_certificate;
mod connection;
mod connection_limit;
mod index;
mod listen;
mod liveness;
mod local;
mod overload;
mod passwords;
mod requests;
mod response;
mod route;
mod security;
mod timeouts;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;

pub use accept::run;
pub use bill::{BillError, BillRequest};
pub(crate) use bill_reader::answer_bills;
pub use bill_reader::{BillProblem, statement};
pub use index::render_index_page;
pub use listen::{Error, InheritError, Listener, bind, inherit};
pub use liveness::Liveness;
pub use passwords::{Passwords, VerifyRequest};
pub use requests::Requests;
pub use security::{Access, Security, SecurityError, VisibleTenants};

use crate::export::{LatestSnapshot, Release};

/// Why the agent keeps no account; empty while it does.
#[derive(Debug, Default)]
pub struct NoAccount(Mutex<Option<String>>);

impl NoAccount {
    /// Sets the reason; none means that there is an account.
    pub fn set(&self, reason: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// The reason, in one line.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the server shows, and its limits.
pub struct Site {
    /// The latest snapshot with its pages.
    pub pages: Arc<LatestSnapshot>,
    /// Until when the driver is released, while it is.
    pub release: Box<dyn Fn() -> Option<Release> + Send + Sync>,
    /// The page at `/`, as [`render_index_page`] makes it.
    pub index: Bytes,
    /// When the tick loop last ran.
    pub liveness: Arc<Liveness>,
    /// Why there is no account, where there is none.
    pub no_account: Arc<NoAccount>,
    /// Requests for the thread that reads the ledger.
    pub bills: mpsc::Sender<BillRequest>,
    /// TLS, users and what else protects the pages.
    pub access: Arc<Access>,
    /// Counts responses by status.
    pub requests: Arc<Requests>,
    /// Limits on time and connections.
    pub limits: ServerLimits,
}

/// How long the server waits for a peer, and how many it serves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// From a connection's start, or a request's first byte, to the end of its head.
    pub head: Duration,
    /// From the end of one response to the next request: longer than any usual scrape interval.
    pub idle: Duration,
    /// Without the peer taking a single byte of a response.
    pub stall: Duration,
    /// From the time at which a response is ready until the socket has accepted all of it.
    pub response: Duration,
    /// For a bill.
    pub bill: Duration,
    /// For responses under way when the agent stops.
    pub drain: Duration,
    /// For room, when all connections are open: longer than a usual head takes, so that a rush is only late.
    pub queue: Duration,
    /// Connections at once.
    pub connections: usize,
}

/// File descriptors that are left to everything but connections: the ledger, `/proc`, the push, the log.
const NOT_FOR_CONNECTIONS: u64 = 44;

impl ServerLimits {
    /// Limits for a process that may open so many files; fewer files mean fewer connections.
    pub fn within(files: u64) -> Self {
        let usual = Self::default();
        // A quarter of them on top is for those that are refused and still read why.
        let connections = files.saturating_sub(NOT_FOR_CONNECTIONS) / 5 * 4;
        let connections = usize::try_from(connections).unwrap_or(usize::MAX).clamp(4, usual.connections);
        Self { connections, ..usual }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(5),
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(10),
            response: Duration::from_secs(30),
            bill: Duration::from_secs(5),
            drain: Duration::from_millis(500),
            queue: Duration::from_millis(500),
            connections: 256,
        }
    }
}
