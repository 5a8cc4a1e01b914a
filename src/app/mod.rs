//! Wiring: starts the agent's threads, connects them, reloads the configuration and ends everything in order.
//!
//! In: a validated configuration. Out: an exit status when the agent has stopped.

mod io;
mod ledger;
mod reload;
mod start_log;
mod tick_loop;
mod web;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sd_notify::NotifyState;
use thiserror::Error;

use crate::clock::{Clock, Stop, system_now};
use crate::config::{Config, ConfigFile};
use crate::control::{self, ControlServer};
use crate::host::{Host, UserDatabase, agent_usage, clock_is_synchronised as host_clock_is_synchronised};
use crate::meter::{Meter, SamplerNews};
use crate::policy::{ActiveConfig, CurrentConfig};
use crate::resolvers::{self, Resolvers, SeenProcesses, grants};
use crate::session::{self, DriverSessions, Orders, Received, RestartReason};
use crate::thread::{self, FirstFailure, Thread};
use crate::{export, serve, systemd};

pub use web::check_web;

/// What the command line adds to the configuration.
#[derive(Debug)]
pub struct Launch {
    /// The validated configuration.
    pub config: Config,
    /// The file that it came from, to be read again when it changes.
    pub source: Option<ConfigFile>,
    /// The clock: the system's, or a demo's page.
    pub clock: Clock,
    /// Where Linux is rooted: `/`, or a demo's tree.
    pub root: PathBuf,
    /// Whether the driver is known to be made up before it has been opened.
    pub simulated: bool,
    /// Where pages are served, beside what the configuration says.
    pub web: WebOptions,
}

/// What the command line says of serving pages.
#[derive(Clone, Debug, Default)]
pub struct WebOptions {
    /// A web configuration file as Prometheus' exporters have it.
    pub file: Option<PathBuf>,
    /// Whether to serve on the sockets that systemd listens on, instead of the configured addresses.
    pub systemd_socket: bool,
}

/// The agent cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address is taken or cannot be bound.
    #[error(transparent)]
    Listen(#[from] serve::Error),
    /// systemd's sockets cannot be served on.
    #[error(transparent)]
    Inherit(#[from] serve::InheritError),
    /// TLS, users or what else protects the pages cannot be used.
    #[error("{0}")]
    Web(String),
    /// The ledger is owned by another agent, broken, or lies where it cannot be written.
    #[error(transparent)]
    Ledger(#[from] crate::ledger::Error),
    /// The OTLP destination cannot be used.
    #[error(transparent)]
    Destination(#[from] crate::push::BadDestination),
    /// It had started, and the driver was replaced under its container: only a new container has the new library.
    #[error(
        "the driver was replaced under this container, whose library is still the old one; the ledger is closed in \
         order, restart the container"
    )]
    Replaced,
    /// It had started, and the driver was loaded afterwards: the rules on devices of its unit know only a driver that was there.
    #[error(
        "/dev/nvidiactl is refused: the driver was loaded after this agent, whose rules on devices (DeviceAllow) are \
         older; the ledger is closed in order, start the agent again"
    )]
    DriverLoadedLater,
    /// It had started, and a thread that it cannot do without has failed.
    #[error(
        "the {0} thread has failed, so the agent ended in order, to be started anew; what the log says of it is \
         worth a report"
    )]
    ThreadFailed(&'static str),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] thread::Error),
}

impl StartError {
    /// Whether the agent had run, and to be started anew is all that it needs.
    pub const fn wants_restart(&self) -> bool {
        matches!(self, Self::Replaced | Self::DriverLoadedLater | Self::ThreadFailed(_))
    }
}

/// How long the agent's parts take at most to end, one after the other, whatever driver, disk and network do:
/// together less than two seconds, with what systemd and the log may take.
const IO_TIMEOUT: Duration = Duration::from_millis(700);
const TICK_LOOP_TIMEOUT: Duration = Duration::from_millis(200);
const LEDGER_TIMEOUT: Duration = Duration::from_millis(500);
/// Samplers end while the others are waited for.
const SAMPLERS_TIMEOUT: Duration = Duration::from_millis(200);

/// What this node is called.
#[derive(Clone, Debug)]
struct NodeName {
    /// As configured, else what the DaemonSet says in `NODE_NAME`, else the host name, which in a pod is the pod's.
    name: Arc<str>,
    /// The cluster as configured, else empty.
    cluster: Arc<str>,
}

impl NodeName {
    fn of(config: &Config, host: &Host) -> Self {
        let of_pod = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        let name = config.node.name.clone().or_else(of_pod).or_else(|| host.host_name()).unwrap_or_default();
        Self { name: name.into(), cluster: config.node.cluster.clone().unwrap_or_default().into() }
    }
}

/// What the threads share.
struct Shared {
    node: NodeName,
    clock: Clock,
    stop: Stop,
    host: Host,
    config: Arc<CurrentConfig>,
    simulated: Arc<AtomicBool>,
    sessions: Arc<DriverSessions>,
    resolvers: Arc<Resolvers>,
    pages: Arc<export::LatestSnapshot>,
    /// When the tick loop was last alive.
    liveness: Arc<serve::Liveness>,
    /// TLS, users and what else protects the pages.
    access: Arc<serve::Access>,
    /// Why there is no account, where there is none.
    no_account: Arc<serve::NoAccount>,
    first_failure: FirstFailure,
    reloads: reload::Reloads,
}

impl Shared {
    fn new(
        launch: &Launch,
        access: Arc<serve::Access>,
        reloads: reload::Reloads,
        news: mpsc::Sender<SamplerNews>,
    ) -> Self {
        let (clock, stop) = (launch.clock.clone(), Stop::default());
        let host = Host::with_users(&launch.root, UserDatabase::of_host(&launch.root));
        let config = Arc::new(CurrentConfig::new(ActiveConfig::new(launch.config.clone())));
        let simulated = Arc::new(AtomicBool::new(launch.simulated));
        let (pages, processes) = (Arc::default(), Arc::new(SeenProcesses::of(&host)));
        let sessions = DriverSessions {
            clock: clock.clone(),
            stop: stop.clone(),
            host: host.clone(),
            config: Arc::clone(&config),
            news,
            samplers: Default::default(),
            received: Received::default(),
            processes: Arc::clone(&processes),
            simulated: Arc::clone(&simulated),
            orders: Orders::default(),
            driver_devices: host.driver_devices(),
            restart: OnceLock::new(),
        };
        let resolvers = Resolvers {
            clock: clock.clone(),
            stop: stop.clone(),
            host: host.clone(),
            config: Arc::clone(&config),
            pages: Arc::clone(&pages),
            simulated: Arc::clone(&simulated),
            processes,
            workloads: Default::default(),
            pods: Default::default(),
            jobs: Default::default(),
            containers: Default::default(),
        };
        Self {
            node: NodeName::of(&launch.config, &host),
            clock,
            stop,
            host,
            config,
            simulated,
            sessions: Arc::new(sessions),
            resolvers: Arc::new(resolvers),
            pages,
            liveness: Arc::new(serve::Liveness::new(|| system_now().boottime)),
            access,
            no_account: Arc::default(),
            first_failure: FirstFailure::default(),
            reloads,
        }
    }

    /// What a vital thread needs to stop the agent when it ends early.
    const fn ends(&self) -> (&Stop, &FirstFailure) {
        (&self.stop, &self.first_failure)
    }

    /// Whether the wall clock may be used for the account: a simulated one always, the system's when the kernel reports
    /// it as synchronised.
    fn clock_is_synchronised(&self) -> bool {
        match self.clock {
            Clock::System => host_clock_is_synchronised(),
            Clock::Page(_) => true,
        }
    }
}

/// The threads that have something to bring to an end.
struct Threads {
    io: io::RunningIo,
    tick_loop: Thread,
    ledger: Option<ledger::RunningLedger>,
    control: Option<control::Control>,
}

/// Runs the agent until SIGTERM, SIGINT or a fatal error.
pub fn run(launch: Launch) -> Result<(), StartError> {
    // The limit as it is serves, too: fewer processes are held then.
    if let Err(error) = agent_usage::raise_most_files() {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
    start_log::agent(&launch);
    let (web, access, passwords) = web::WebSource::open(&launch.config, launch.web.file.clone())?;
    let listeners = listen(&launch, &access.current())?;
    let (news, inbox) = mpsc::channel();
    let (reloads, reload_requests) = reload::Reloads::new();
    let shared = Arc::new(Shared::new(&launch, access, reloads, news));
    // First, so that the driver answers while the ledger is opened.
    session::start(&launch.config, &shared.sessions)?;
    let receivers = Receivers { listeners, inbox, reload_requests, web, passwords };
    let threads = start(launch, receivers, &shared).inspect_err(|_| {
        shared.stop.call();
        session::close(&shared.sessions, IO_TIMEOUT);
    })?;
    systemd::notify(&[NotifyState::Ready, NotifyState::Status("running")]);
    shared.stop.wait_for_call();
    systemd::notify(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    threads.close();
    session::close(&shared.sessions, SAMPLERS_TIMEOUT);
    if let Some(thread) = shared.first_failure.name() {
        return Err(StartError::ThreadFailed(thread));
    }
    match shared.sessions.restart.get() {
        Some(RestartReason::LibraryReplaced) => Err(StartError::Replaced),
        Some(RestartReason::DriverLoadedLater) => Err(StartError::DriverLoadedLater),
        None => Ok(()),
    }
}

/// Opens the sockets on which pages are served.
fn listen(launch: &Launch, security: &serve::Security) -> Result<Vec<serve::Listener>, StartError> {
    let listeners = match launch.web.systemd_socket {
        true => serve::inherit()?,
        false => serve::bind(&launch.config.web.listen)?,
    };
    for listener in &listeners {
        let address = listener.address();
        tracing::info!(%address, tls = security.has_tls(), users = security.user_count(), "listening");
    }
    Ok(listeners)
}

/// What the threads receive from.
struct Receivers {
    listeners: Vec<serve::Listener>,
    inbox: mpsc::Receiver<SamplerNews>,
    reload_requests: reload::ReloadRequests,
    web: web::WebSource,
    passwords: web::PasswordRequests,
}

fn start(launch: Launch, receivers: Receivers, shared: &Arc<Shared>) -> Result<Threads, StartError> {
    let Launch { config, source, clock, root, .. } = launch;
    let Receivers { listeners, inbox, reload_requests, web, passwords } = receivers;
    let resolvers = &shared.resolvers;
    let (ledger, recovered) = ledger::start(shared)?;
    resolvers::users::start(resolvers)?;
    let on_gpus = grants::present(resolvers);
    shared.config.resolve_grants(&grants::resolve(&config, shared.host.users(), &on_gpus, &shared.stop));
    let active = shared.config.active();
    let started = clock.now();
    let path = ledger.as_ref().map(|ledger| ledger.path.clone());
    let control = ControlServer {
        stop: shared.stop.clone(),
        sessions: Arc::clone(&shared.sessions),
        liveness: Arc::clone(&shared.liveness),
        pages: Arc::clone(&shared.pages),
        ledger: path.clone(),
        library: config.nvml.library.clone(),
    };
    let control = control::start(config.web.control.as_deref(), control)?;
    let bills = start_bill_reader(path, shared)?;
    web::start(passwords, shared)?;
    let io = io::start(listeners, &config, bills, shared)?;
    resolvers::pods::start(resolvers, recovered.as_ref())?;
    resolvers::jobs::start(resolvers)?;
    resolvers::containers::start(resolvers)?;
    let agent = (root == Path::new("/")).then(std::process::id);
    resolvers::processes::start(agent, resolvers)?;
    session::start_kernel_log(&shared.sessions)?;
    let meter = Meter::new(Arc::clone(&active.policy), started, recovered);
    shared.config.set_timeline(meter.timeline());
    let outputs = tick_loop::Outputs::new(&active, ledger.as_ref(), &io);
    let tick_loop = tick_loop::start(meter, inbox, outputs, shared)?;
    reload::start(reload::ReloadSources { config: source, web }, reload_requests, shared)?;
    Ok(Threads { io, tick_loop, ledger, control })
}

/// Starts the thread that reads bills, if there is a ledger; without one the sender is closed.
fn start_bill_reader(
    path: Option<PathBuf>,
    shared: &Shared,
) -> Result<tokio::sync::mpsc::Sender<serve::BillRequest>, StartError> {
    /// Further bills are refused at once.
    const WAITING: usize = 16;
    let (sender, requests) = tokio::sync::mpsc::channel(WAITING);
    let Some(path) = path else { return Ok(sender) };
    let stop = shared.stop.clone();
    Thread::start("reader", move || serve::answer_bills(&path, requests, &stop))?;
    Ok(sender)
}

impl Threads {
    /// Ends them in the order in which the account flows: nothing is offered to a ledger that has closed.
    fn close(self) {
        drop(self.control);
        self.io.stop(IO_TIMEOUT);
        self.tick_loop.wait(TICK_LOOP_TIMEOUT);
        if let Some(ledger) = self.ledger {
            ledger.close(LEDGER_TIMEOUT);
        }
    }
}
