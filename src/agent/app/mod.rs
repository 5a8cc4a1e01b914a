//! Wiring: starts and connects the agent's threads for a validated configuration, and ends them in order.

mod bills;
mod events;
mod exports;
mod flags;
mod fleet;
mod io;
mod ledger;
mod local_reader;
mod observer;
mod push;
mod reload;
mod tick_loop;
mod web;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use sd_notify::NotifyState;
use thiserror::Error;

use crate::agent::control::{self, ControlServer};
use crate::agent::policy::{self, AgentPolicy, CurrentPolicy};
use crate::agent::resolvers::{self, Resolvers, SeenProcesses, users};
use crate::agent::session::{self, DriverSessions, Orders, Received, RestartReason};
use crate::config::{Config, ConfigFile, OtlpPlan};
use crate::holders::host::{
    Host, UserDatabase, agent_usage, clock_is_synchronised as host_clock_is_synchronised,
};
use crate::holders::{BelievedCgroups, ResolvedWorkloads};
use crate::meter::{Meter, SamplerNews};
use crate::model::{HowHeld, NodeIdentity, Utc};
use crate::runtime::clock::{Clock, Stop, system_now, system_zone};
use crate::runtime::thread::{self, Thread, VitalThreads};
use crate::{output::serve, runtime::systemd};
pub use flags::{WebFlags, listen_address};
pub use fleet::{FleetLaunch, run_fleet};
pub use observer::Observer;
use reload::Reloads;

#[derive(Debug)]
pub struct Launch {
    pub config: Config,
    pub source: Option<ConfigFile>,
    /// The clock: the system's, or the page of a demo.
    pub clock: Clock,
    /// The root of the Linux files: `/`, or a directory of a demo.
    pub root: PathBuf,
    pub simulated: bool,
    /// Whether it only looks: it takes no lock and writes no file.
    pub observes: bool,
    /// A web configuration file of Prometheus' exporters.
    pub web_file: Option<PathBuf>,
    /// Whether to serve on the sockets that systemd listens on, instead of the configured addresses.
    pub systemd_socket: bool,
}

#[derive(Debug, Error)]
pub enum StartError {
    /// An address is not this host's, or is taken and the agent is a demo.
    #[error(transparent)]
    Listen(#[from] serve::Error),
    #[error(transparent)]
    Inherit(#[from] serve::InheritError),
    #[error("{0}")]
    Web(String),
    /// The ledger is owned by another agent, or is not a ledger.
    #[error(transparent)]
    Ledger(#[from] crate::accounting::ledger::Error),
    #[error(transparent)]
    Variable(#[from] crate::config::BadVariable),
    /// It had started, and the driver was replaced outside its container: only a new container has the new library.
    #[error(
        "the driver was replaced under this container, which still has the old library; the ledger was closed \
         cleanly; restart the container"
    )]
    Replaced,
    /// It had started, and the driver was loaded afterwards: the DeviceAllow rules of its unit cover only devices that existed
    /// at its start.
    #[error(
        "/dev/nvidiactl is refused: the driver was loaded after the agent, and its unit (DeviceAllow) only allows devices \
         that existed at its start; the ledger was closed cleanly; restart the agent"
    )]
    DriverLoadedLater,
    #[error(
        "the {0} thread failed, so the agent shut down cleanly; restart it, and please report the error in the log"
    )]
    ThreadFailed(&'static str),
    #[error(transparent)]
    Thread(#[from] thread::Error),
    #[error(transparent)]
    FleetCache(#[from] crate::accounting::day_files::CacheError),
    /// The list of expected nodes cannot be read.
    #[error(transparent)]
    Expected(#[from] crate::accounting::day_files::ExportError),
    #[error("there is no directory for the cache: set CACHE_DIRECTORY, XDG_CACHE_HOME or HOME")]
    NoCacheDirectory,
}

impl StartError {
    /// Whether the agent had started, and a restart solves the problem.
    pub const fn wants_restart(&self) -> bool {
        matches!(self, Self::Replaced | Self::DriverLoadedLater | Self::ThreadFailed(_))
    }
}

const RUNNING: &str = "running";

/// How long the agent waits at most for its parts to end, one after the other: with systemd and the log less than two
/// seconds, whatever driver, disk and network do.
const IO_TIMEOUT: Duration = Duration::from_millis(700);
const TICK_LOOP_TIMEOUT: Duration = Duration::from_millis(200);
const LEDGER_TIMEOUT: Duration = Duration::from_millis(500);
/// Samplers end while the others are waited for.
const SAMPLERS_TIMEOUT: Duration = Duration::from_millis(200);

struct Shared {
    node: NodeIdentity,
    clock: Clock,
    stop: Stop,
    host: Host,
    policy: Arc<CurrentPolicy>,
    simulated: Arc<AtomicBool>,
    sessions: Arc<DriverSessions>,
    resolvers: Arc<Resolvers>,
    status: Arc<serve::AgentStatus>,
    started: Utc,
    access: Arc<serve::Access>,
    vital: VitalThreads,
    reloads: Reloads,
}

impl Shared {
    fn new(
        launch: &Launch,
        access: Arc<serve::Access>,
        reloads: Reloads,
        news: mpsc::Sender<SamplerNews>,
    ) -> Self {
        let (clock, stop) = (launch.clock.clone(), Stop::default());
        let host = Host::with_users(&launch.root, UserDatabase::of_host(&launch.root));
        let scheduler = resolvers::installed_scheduler(&launch.config, &host);
        let policy = Arc::new(CurrentPolicy::new(AgentPolicy::new(launch.config.clone(), scheduler)));
        let simulated = Arc::new(AtomicBool::new(launch.simulated));
        let processes = Arc::new(SeenProcesses::of(&host));
        let sessions = DriverSessions {
            clock: clock.clone(),
            stop: stop.clone(),
            host: host.clone(),
            policy: Arc::clone(&policy),
            news,
            samplers: Default::default(),
            received: Received::default(),
            processes: Arc::clone(&processes),
            simulated: Arc::clone(&simulated),
            orders: Orders::default(),
            observes: launch.observes,
            driver_devices: host.driver_devices(),
            restart: OnceLock::new(),
        };
        let attribution = &launch.config.attribution;
        let cgroups = BelievedCgroups::new(&attribution.runtimes, &attribution.container_nodes, &host);
        let workloads = ResolvedWorkloads { cgroups: cgroups.into(), ..ResolvedWorkloads::default() };
        let resolvers = Resolvers {
            clock: clock.clone(),
            stop: stop.clone(),
            host: host.clone(),
            policy: Arc::clone(&policy),
            gpus: Mutex::default(),
            simulated: Arc::clone(&simulated),
            observes: launch.observes,
            processes,
            workloads: Mutex::new(Arc::new(workloads)),
            statuses: Default::default(),
        };
        Self {
            node: policy::node_identity(
                &launch.config,
                &policy::node_name(&launch.config, || host.host_name()),
            ),
            clock,
            stop: stop.clone(),
            host,
            policy,
            simulated,
            sessions: Arc::new(sessions),
            resolvers: Arc::new(resolvers),
            status: Arc::new(serve::AgentStatus::new(|| system_now().boottime)),
            started: system_now().utc,
            access,
            vital: VitalThreads::new(stop),
            reloads,
        }
    }

    /// Records that a scheduler grants GPUs on this node, which turns presence off under `auto`.
    fn find_scheduler(&self) {
        if let Some(how_held) = self.policy.find_scheduler() {
            log_how_held(how_held);
        }
    }

    /// Whether the account may use the wall clock: that of a demo always, that of the system when the kernel reports it as
    /// synchronised.
    fn clock_is_synchronised(&self) -> bool {
        match self.clock {
            Clock::System => host_clock_is_synchronised(),
            Clock::Page(_) => true,
        }
    }
}

struct Threads {
    io: io::RunningIo,
    push: Option<push::RunningPush>,
    tick_loop: Thread,
    ledger: Option<ledger::RunningLedger>,
    exports: Option<exports::RunningExports>,
    control: Option<control::Control>,
}

/// The page of an agent with the default `web.listen`, where the command line looks for one.
pub const DEFAULT_PAGE: &str = "http://127.0.0.1:9855";

/// Runs the agent until SIGTERM, SIGINT or a fatal error.
pub fn run(launch: Launch) -> Result<(), StartError> {
    // The agent also works with the present limit, with fewer connections.
    if let Err(error) = agent_usage::raise_open_files_limit() {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
    log_start(&launch);
    let (web, access, passwords) = web::WebSource::open(&launch.config, launch.web_file.clone())?;
    let bound = listen(&launch, &access.current())?;
    let page = bound.listeners.iter().find_map(|one| one.page_url(&access.current()));
    let page = page.filter(|_| launch.simulated);
    let (news, inbox) = mpsc::channel();
    let (reloads, reload_requests) = mpsc::channel();
    let shared = Arc::new(Shared::new(&launch, access, Reloads::new(reloads), news));
    // First, because opening the driver takes time in which the ledger is opened.
    session::start(&launch.config, &shared.sessions)?;
    let receivers = Receivers { bound, inbox, reload_requests, web, passwords };
    let threads = start(launch, receivers, &shared).inspect_err(|_| {
        shared.stop.call();
        session::close(&shared.sessions, IO_TIMEOUT);
    })?;
    // Also while an address is taken: systemd would end an agent that does not become ready, and the account with it.
    let status = shared.status.server.missing.reason();
    systemd::notify(&[NotifyState::Ready, NotifyState::Status(status.as_deref().unwrap_or(RUNNING))]);
    if let Some(url) = page {
        log_page(&url, &shared);
    }
    shared.stop.wait_for_call();
    systemd::notify(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    threads.close();
    session::close(&shared.sessions, SAMPLERS_TIMEOUT);
    if let Some(thread) = shared.vital.first_failure() {
        return Err(StartError::ThreadFailed(thread));
    }
    match shared.sessions.restart.get() {
        Some(RestartReason::LibraryReplaced) => Err(StartError::Replaced),
        Some(RestartReason::DriverLoadedLater) => Err(StartError::DriverLoadedLater),
        None => Ok(()),
    }
}

fn log_start(launch: &Launch) {
    let Launch { config, source, .. } = launch;
    let file = source.as_ref().map(ConfigFile::path).map_or_else(
        || "none".to_owned(),
        |path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string(),
    );
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = &*file,
        level = config.sampling.level.name(),
        interval_ms = config.sampling.interval.0 / 1_000_000,
        "gpumeter starts"
    );
    if source.as_ref().is_some_and(ConfigFile::is_blank) {
        tracing::warn!(
            "{file}: has no key with a value, so every key has its default; give keys, or {{}} if none is meant"
        );
    }
    policy::refused_counters(config).iter().for_each(|line| tracing::warn!("{line}"));
    let book = &config.prices;
    let currency = match book.currency() {
        Some(_) if book.is_example() => "example prices",
        Some(currency) => &**currency,
        None => "none: hours and joules, no money",
    };
    tracing::info!(
        standing = config.attribution.standing.len(),
        presence = config.attribution.presence.map_or_else(|| "auto".to_owned(), |set| set.to_string()),
        rates = book.prices().count(),
        currency,
        "grants and prices"
    );
}

/// Logs where to look at a demo or replay, once there is something to see: the last line of its start.
fn log_page(url: &str, shared: &Shared) {
    const POLL_INTERVAL: Duration = Duration::from_millis(20);
    while shared.status.pages.get().is_none() {
        if shared.stop.wait(POLL_INTERVAL) {
            return;
        }
    }
    let options = if url == DEFAULT_PAGE { String::new() } else { format!(" --url {url}") };
    tracing::info!("open {url}, then gpumeter top{options}");
}

fn log_how_held(how_held: HowHeld) {
    tracing::info!("{}; {}", how_held.describe(), how_held.advice());
}

fn listen(launch: &Launch, security: &serve::Security) -> Result<serve::BoundListeners, StartError> {
    let addresses = &launch.config.web.listen;
    let inherited = if launch.systemd_socket { serve::inherit()? } else { Vec::new() };
    let is_activated = !inherited.is_empty();
    let mut bound = match is_activated {
        true => serve::BoundListeners { listeners: inherited, unbound: Vec::new() },
        false => serve::bind(addresses, serve::MetricNames::Native)?,
    };
    if is_activated && *addresses != Config::default().web.listen {
        let given: Vec<String> = bound.listeners.iter().map(serve::Listener::address).collect();
        for address in addresses.iter().map(ToString::to_string).filter(|address| !given.contains(address)) {
            tracing::warn!(
                "web.listen {address} is not served: with --web.systemd-socket the agent serves on the sockets of its socket \
                 unit alone ({}); give the address there with ListenStream=, or remove it from web.listen",
                given.join(" and ")
            );
        }
    }
    // A socket unit has no addresses of this kind.
    let dcgm = serve::bind(&launch.config.web.dcgm_listen, serve::MetricNames::Dcgm)?;
    bound.listeners.extend(dcgm.listeners);
    bound.unbound.extend(dcgm.unbound);
    bound.listeners.iter().for_each(|listener| listener.log(security));
    // A demo has no account to keep, and one that nobody can look at is of no use.
    if launch.simulated && !bound.unbound.is_empty() {
        return Err(bound.unbound.remove(0).error.into());
    }
    Ok(bound)
}

struct Receivers {
    bound: serve::BoundListeners,
    inbox: mpsc::Receiver<SamplerNews>,
    reload_requests: mpsc::Receiver<()>,
    web: web::WebSource,
    passwords: web::PasswordRequests,
}

fn start(launch: Launch, receivers: Receivers, shared: &Arc<Shared>) -> Result<Threads, StartError> {
    let Launch { config, source, clock, root, .. } = launch;
    let Receivers { bound, inbox, reload_requests, web, passwords } = receivers;
    let resolvers = &shared.resolvers;
    let (ledger, recovered) = ledger::start(shared)?;
    log_how_held(shared.policy.now().how_held());
    users::start(resolvers)?;
    let on_gpus = users::users_on_gpus(resolvers);
    shared.policy.resolve_grants(&users::resolve_grants(
        &config,
        shared.host.users(),
        &on_gpus,
        &shared.stop,
    ));
    let policy = shared.policy.now();
    let started = clock.now();
    let path = ledger.as_ref().map(|ledger| ledger.path.clone());
    let control = ControlServer {
        stop: shared.stop.clone(),
        sessions: Arc::clone(&shared.sessions),
        status: Arc::clone(&shared.status),
        ledger: path.clone(),
        billing: policy.config.billing.clone(),
        // Without a ledger nothing receives orders.
        statements: ledger.as_ref().map_or_else(|| mpsc::channel().0, |ledger| ledger.statements.clone()),
        library: config.nvml.library.clone(),
    };
    let control = control::start(config.web.control.as_deref(), control)?;
    let exports = exports::start(ledger.as_ref(), shared)?;
    let bills = bills::start(path, shared)?;
    web::start(passwords, &shared.stop)?;
    let signals = io::Signals { stop: shared.stop.clone(), reloads: shared.reloads.requests.clone() };
    let io = io::start(bound, site(&config, bills, shared)?, signals, &shared.vital)?;
    let plan = if shared.resolvers.observes { OtlpPlan::default() } else { policy::otlp_plan(&config)? };
    let push = push::start(&config, &plan, shared)?;
    let agent = (root == Path::new("/")).then(std::process::id);
    resolvers::start(resolvers, recovered.as_ref(), agent)?;
    session::start_kernel_log(&shared.sessions)?;
    let meter = Meter::new(Arc::clone(&policy.meter), started, recovered);
    let outputs = tick_loop::Outputs::new(ledger.as_ref(), exports.as_ref(), push.as_ref());
    let tick_loop = tick_loop::start(meter, inbox, outputs, shared)?;
    reload::start(reload::ReloadSources { config: source, web }, reload_requests, shared)?;
    Ok(Threads { io, push, tick_loop, ledger, exports, control })
}

fn site(
    config: &Config,
    bills: tokio::sync::mpsc::Sender<serve::BillJob>,
    shared: &Arc<Shared>,
) -> Result<serve::Site, StartError> {
    let agent = {
        let shared = Arc::clone(shared);
        let status = Arc::clone(&shared.status);
        serve::AgentSite { status, release: Box::new(move || shared.sessions.orders.release()) }
    };
    let policy = Arc::clone(&shared.policy);
    let readers = move || policy.now().config.web.local_readers.clone();
    Ok(serve::Site {
        served: serve::Served::Agent(agent),
        page: serve::LivePage::new(config.web.external_url.as_deref()),
        owners: local_reader::start_owners(&shared.stop)?,
        local_reader: local_reader::local_reader(shared.host.users(), readers),
        bills: serve::BillQueue::new(bills),
        zone: config.billing.time_zone.clone().unwrap_or_else(system_zone),
        access: Arc::clone(&shared.access),
        limits: server_limits(),
    })
}

fn server_limits() -> serve::ServerLimits {
    serve::ServerLimits::within(agent_usage::open_files_limit().unwrap_or(u64::MAX))
}

impl Threads {
    /// Ends them in the order of the data path, so that nothing is sent to a closed ledger.
    fn close(self) {
        drop(self.control);
        self.io.stop(IO_TIMEOUT);
        self.tick_loop.wait(TICK_LOOP_TIMEOUT);
        if let Some(push) = self.push {
            push.close(IO_TIMEOUT);
        }
        if let Some(ledger) = self.ledger {
            ledger.close(LEDGER_TIMEOUT);
        }
        if let Some(exports) = self.exports {
            exports.close();
        }
    }
}
