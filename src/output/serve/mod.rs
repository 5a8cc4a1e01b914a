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
mod fleet;
mod latest;
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
mod tls;

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use accept::run;
pub use bill::{BillJob, BillQueue, BillRefusal, BillReply, LedgerQuestion};
pub use fleet::{FleetStatus, Look};
pub use latest::LatestSnapshot;
pub use listen::{
    BoundListeners, Error, InheritError, Listener, MetricNames, MissingListeners, UnboundAddress, bind,
    inherit,
};
pub use liveness::Liveness;
pub use local::{Ends, OwnerRequest};
pub use page::LivePage;
pub use passwords::{Passwords, VerifyRequest};
pub use response::Requests;
pub use route::{endpoint_paths, fleet_paths};
pub use security::{Access, Security};

use crate::model::{Nanoseconds, Release, VisibleAccount};

/// What the agent says of itself to everybody who asks: the tick loop and other threads write it, the server reads it.
pub struct AgentStatus {
    pub pages: LatestSnapshot,
    pub liveness: Liveness,
    /// Why no account is kept, if none is, in one line.
    pub no_account: Mutex<Option<String>>,
    pub server: Arc<ServerStatus>,
}

/// What any server says of itself.
#[derive(Debug, Default)]
pub struct ServerStatus {
    pub missing: MissingListeners,
    pub requests: Requests,
}

impl AgentStatus {
    /// At the start of an agent, whose clock is `now`.
    pub fn new(now: impl Fn() -> Nanoseconds + Send + Sync + 'static) -> Self {
        Self {
            pages: LatestSnapshot::default(),
            liveness: Liveness::new(now),
            no_account: Mutex::default(),
            server: Arc::default(),
        }
    }

    /// Whether the tick loop runs, or what to do.
    ///
    /// # Errors
    /// It does not.
    pub fn check_health(&self) -> Result<(), String> {
        if self.liveness.is_alive() {
            return Ok(());
        }
        let seconds = self.liveness.since_last_tick().0 / Nanoseconds::SECOND.0;
        Err(format!("the last tick was {seconds} s ago; restart the agent"))
    }

    /// Whether the agent can be scraped at all its addresses. It is ready without an account: a full disk must not restart
    /// it.
    ///
    /// # Errors
    /// It cannot, yet.
    pub fn check_readiness(&self) -> Result<(), String> {
        self.pages.get().ok_or(NO_SNAPSHOT)?;
        self.server.missing.reason().map_or(Ok(()), Err)
    }
}

pub const NO_SNAPSHOT: &str = "there is no snapshot yet; try again in a second";

/// What a user of this host may see, by his id, while no users are configured; none while his name is not known.
pub type LocalReader = Box<dyn Fn(u32) -> Option<VisibleAccount> + Send + Sync>;

/// What the server is in front of.
pub enum Served {
    Agent(AgentSite),
    Fleet(Arc<FleetStatus>),
}

pub struct AgentSite {
    pub status: Arc<AgentStatus>,
    pub release: Box<dyn Fn() -> Option<Release> + Send + Sync>,
}

impl Served {
    /// What is counted whatever is served.
    pub fn server(&self) -> &Arc<ServerStatus> {
        match self {
            Self::Agent(agent) => &agent.status.server,
            Self::Fleet(fleet) => &fleet.server,
        }
    }
}

pub struct Site {
    pub served: Served,
    pub page: LivePage,
    pub owners: mpsc::Sender<OwnerRequest>,
    /// Returns what a user of this host may see; it never waits.
    pub local_reader: LocalReader,
    pub bills: BillQueue,
    /// The time zone of bills whose request names none.
    pub zone: TimeZone,
    pub access: Arc<Access>,
    pub limits: ServerLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// From a connection's start to the end of its first request's head.
    pub head: Duration,
    /// From the end of one response to the end of the next request's head: longer than any usual scrape interval.
    pub idle: Duration,
    /// From the time at which a response is ready until the socket has accepted all of it.
    pub response: Duration,
    pub bill: Duration,
    /// For unfinished responses when the agent stops.
    pub drain: Duration,
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
