//! The HTTP server: metrics of the latest snapshot for everybody, the API for users of this host or for configured users.
//!
//! It reads the published snapshot, the time of the last tick, and bills from the thread that reads the ledger. A request
//! calls no driver and changes nothing, so all scrapers get the same. It runs on one current-thread runtime: nothing here
//! may block, and slow or numerous peers must not delay the others.

mod accept;
mod bill;
mod client_certificate;
mod connection;
mod connections;

mod listen;
mod live;
mod liveness;
mod local;
mod overload;
mod page;
mod passwords;
mod response;
mod route;
mod security;
mod statement;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use accept::run;
pub(crate) use bill::answer_bills;
pub use bill::{BY_DAY, BillProblem, BillQuery, BillRequest, period, read_bills, read_explanation};

pub use listen::{
    BoundListeners, Error, InheritError, Listener, MetricNames, MissingListeners, UnboundAddress, bind,
    inherit,
};
pub use liveness::Liveness;
pub use local::{Ends, OwnerRequest, ReaderUnknown};
pub use page::LivePage;
pub use passwords::{Passwords, VerifyRequest};
pub use response::Requests;
pub use security::{Access, Security};
pub use statement::{ClosedBill, PeriodCloser};

use crate::export::{LatestSnapshot, Release};
use crate::model::VisibleAccount;

/// Why the agent keeps no account; none while it does.
#[derive(Debug, Default)]
pub struct NoAccount(Mutex<Option<String>>);

impl NoAccount {
    /// Sets the reason; none means that there is an account.
    pub fn set(&self, reason: Option<String>) {
        *self.0.lock() = reason;
    }

    /// The reason, in one line.
    pub fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

/// What a user of this host may see, by his id, while no users are configured.
pub type LocalReader = Box<dyn Fn(u32) -> Result<VisibleAccount, ReaderUnknown> + Send + Sync>;

/// What the server serves, and its limits.
pub struct Site {
    /// The latest snapshot with its pages.
    pub pages: Arc<LatestSnapshot>,
    /// The release of the driver, while it is released.
    pub release: Box<dyn Fn() -> Option<Release> + Send + Sync>,
    /// The page at `/`.
    pub page: LivePage,
    /// When the tick loop last ran.
    pub liveness: Arc<Liveness>,
    /// Why no account is kept, if none is.
    pub no_account: Arc<NoAccount>,
    /// The addresses on which the server does not listen yet.
    pub missing: Arc<MissingListeners>,
    /// The queue of the thread that finds whose connections on loopback are.
    pub owners: mpsc::Sender<OwnerRequest>,
    /// Tells what a user of this host may see; it never waits.
    pub local_reader: LocalReader,
    /// The queue of the thread that reads the ledger.
    pub bills: mpsc::Sender<BillRequest>,
    /// TLS, users and headers.
    pub access: Arc<Access>,
    /// Counts responses by status.
    pub requests: Arc<Requests>,
    /// Limits on time and connections.
    pub limits: ServerLimits,
}

/// Limits on time and number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// From a connection's start to the end of its first request's head.
    pub head: Duration,
    /// From the end of one response to the end of the next request's head: longer than any usual scrape interval.
    pub idle: Duration,
    /// From the time at which a response is ready until the socket has accepted all of it.
    pub response: Duration,
    /// For a bill.
    pub bill: Duration,
    /// For unfinished responses when the agent stops.
    pub drain: Duration,
    /// Simultaneous connections.
    pub connections: usize,
}

/// File descriptors that are reserved for everything else: the ledger, `/proc`, the push, the log.
const NOT_FOR_CONNECTIONS: u64 = 44;

impl ServerLimits {
    /// Limits for a process that may open that many files.
    pub fn within(files: u64) -> Self {
        let usual = Self::default();
        // A fifth of the descriptors is for refused connections whose peers still read the response.
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
            response: Duration::from_secs(30),
            bill: Duration::from_secs(5),
            drain: Duration::from_millis(500),
            connections: 256,
        }
    }
}
