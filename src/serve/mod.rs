//! The HTTP server: pages of the latest snapshot to whoever asks, the API to whoever is on this host, or to users.
//!
//! In go requests, out come pages that were rendered elsewhere, the pulse's heartbeat, and what the thread
//! that reads the ledger answers. A request calls no driver and changes nothing, so two scrapers see the same.
//! It runs on one current-thread runtime: nothing here may block, and no peer, however slow or many, may keep
//! the others waiting. It does not know GPUs, nor what a page says.

mod answer;
mod bill;
mod bill_reader;
mod client_certificate;
mod connection;
mod heartbeat;
mod landing;
mod listen;
mod local;
mod multiplex;
mod pages;
mod passwords;
mod patience;
mod query;
mod requests;
mod route;
mod run;
mod seats;
mod security;
mod stream;
mod tls;
mod turnaway;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::mpsc;

pub use bill::{BillError, BillRequest};
pub(crate) use bill_reader::answer_bills;
pub use bill_reader::{BillProblem, statement};
pub use heartbeat::Heartbeat;
pub use landing::landing_page;
pub use listen::{Error, InheritError, bind, inherit};
pub use pages::{Pages, Served, Wanted};
pub use passwords::{Passwords, VerifyRequest};
pub use requests::Requests;
pub use run::run;
pub use security::{Access, Security, SecurityError, Visible};
pub use stream::Listener;

/// Why the agent keeps no account; nothing while it does.
#[derive(Debug, Default)]
pub struct NoAccount(Mutex<Option<String>>);

impl NoAccount {
    /// From now on that is the reason; none says that there is an account.
    pub fn set(&self, reason: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// The reason, in one line.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the server shows, and how patient it is.
pub struct Site {
    /// The pages of the latest snapshot.
    pub pages: Pages,
    /// The page at `/`, as [`landing_page`] makes it.
    pub landing: Bytes,
    /// Whether the pulse is alive.
    pub heartbeat: Arc<Heartbeat>,
    /// Why there is no account, where there is none.
    pub no_account: Arc<NoAccount>,
    /// Where the thread that reads the ledger takes its questions.
    pub bills: mpsc::Sender<BillRequest>,
    /// TLS, users and what else protects the pages.
    pub access: Arc<Access>,
    /// Counts what was answered.
    pub requests: Arc<Requests>,
    /// How long and how many.
    pub limits: Limits,
}

/// How long the server waits for a peer, and how many it serves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From a connection's start, or a request's first byte, to the end of its head.
    pub head: Duration,
    /// From one answer to the next request: longer than any usual scrape interval.
    pub idle: Duration,
    /// Without the peer taking a single byte of its answer.
    pub stall: Duration,
    /// For the whole of an answer, from the first byte of it that the peer's and our buffers do not hold.
    pub answer: Duration,
    /// For a bill.
    pub bill: Duration,
    /// For answers under way when the agent stops.
    pub drain: Duration,
    /// For a free seat, when all are taken: longer than an honest head takes, so that a rush is only late.
    pub queue: Duration,
    /// Connections at once.
    pub connections: usize,
}

/// File descriptors that are left to everything but connections: the ledger, `/proc`, the push, the log.
const NOT_FOR_CONNECTIONS: u64 = 44;

impl Limits {
    /// Limits for a process that may open so many files; where they are few, so are the connections.
    pub fn within(files: u64) -> Self {
        let usual = Self::default();
        // A quarter of them on top is for those who are turned away and linger.
        let connections = files.saturating_sub(NOT_FOR_CONNECTIONS) / 5 * 4;
        let connections = usize::try_from(connections).unwrap_or(usize::MAX).clamp(4, usual.connections);
        Self { connections, ..usual }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(5),
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            bill: Duration::from_secs(5),
            drain: Duration::from_millis(500),
            queue: Duration::from_millis(500),
            connections: 256,
        }
    }
}
