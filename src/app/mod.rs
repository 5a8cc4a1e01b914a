//! The only wiring, and the only place that starts threads.
//!
//! In goes a validated configuration; out comes an exit status when the agent has stopped. It knows every
//! room and does nothing that a room could do.

mod bills;
mod containers;
pub mod control;
pub mod demo;
mod doctor;
mod grants;
mod heard;
mod host;
mod io;
mod jobs;
mod kernel_log;
mod lanes;
mod ledger;
mod log;
mod node_lock;
mod pods;
mod policy;
mod prices;
mod pulse;
mod record;
mod reload;
mod start_log;
mod systemd;
mod thread;
mod users;
mod web;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sd_notify::NotifyState;
use thiserror::Error;

use crate::clock::{Clock, Page, Stop, system_now};
use crate::config::{Config, ConfigFile};
use crate::holders::ResolvedWorkloads;
use crate::host::{
    DriverDevices, Host, UserDatabase, agent_usage, clock_is_synchronised as host_clock_is_synchronised,
};
use crate::ledger::Timeline;
use crate::meter::{Meter, News};
use crate::model::Nanoseconds;
use crate::{export, serve};

use policy::InForce;
use thread::{Fallen, Thread};

pub use bills::{BillProblem, statement};
pub use doctor::{
    Diagnosis, FamilyDiagnosis, Finding, GpuDiagnosis, GrantDiagnosis, Standing, board_sentences, diagnose,
    unmatched_grants,
};
pub use grants::unresolved_grants;
pub use log::{Lines, Log};
pub use prices::price_warning;
pub use record::{RecordError, Recorded, Recording, RunningRecord, record};
pub use web::check_web;

/// The clock that belongs to a driver library: a simulated one lives in the time of the page beside it.
pub fn clock_of(library: Option<&Path>) -> Clock {
    let page = library.and_then(|library| Page::open(&library.with_file_name("clock")).ok());
    page.map_or(Clock::System, |page| Clock::Page(Arc::new(page)))
}

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
    Fallen(&'static str),
    /// A thread could not be started.
    #[error("starting the {thread} thread: {source}")]
    Thread {
        /// Which.
        thread: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl StartError {
    /// Whether the agent had run, and to be started anew is all that it needs.
    pub const fn wants_restart(&self) -> bool {
        matches!(self, Self::Replaced | Self::DriverLoadedLater | Self::Fallen(_))
    }
}

/// How long the agent's parts take at most to end, one after the other, whatever driver, disk and network do:
/// together less than two seconds, with what systemd and the log may take.
const IO_PATIENCE: Duration = Duration::from_millis(700);
const PULSE_PATIENCE: Duration = Duration::from_millis(200);
const LEDGER_PATIENCE: Duration = Duration::from_millis(500);
/// Lanes end while the others are waited for.
const LANES_PATIENCE: Duration = Duration::from_millis(200);

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

/// Why only a new start of the agent can bring the driver back.
#[derive(Clone, Copy, Debug)]
enum RestartReason {
    /// Its library was replaced under the container that the agent runs in.
    LibraryReplaced,
    /// It was loaded after the agent's unit had been given its rules on devices.
    DriverLoadedLater,
}

/// What the threads share.
struct Shared {
    node: NodeName,
    clock: Clock,
    stop: Stop,
    /// Lanes and events to the pulse.
    news: mpsc::Sender<News>,
    lanes: Mutex<lanes::Lanes>,
    heard: heard::Heard,
    identities: host::Published,
    /// What the resolvers know.
    workloads: Mutex<Arc<ResolvedWorkloads>>,
    pods: pods::PodStatus,
    jobs: jobs::JobStatus,
    containers: containers::ContainerStatus,
    pages: Arc<export::LatestSnapshot>,
    /// When the pulse last beat.
    heartbeat: Arc<serve::Heartbeat>,
    /// TLS, users and what else protects the pages.
    access: Arc<serve::Access>,
    /// The account's time axis, as the pulse last knew it.
    timeline: Mutex<Timeline>,
    /// Why there is no account, where there is none.
    no_account: Arc<serve::NoAccount>,
    simulated: AtomicBool,
    /// Whether the driver may be open.
    orders: lanes::Orders,
    /// The driver's device numbers when the agent started.
    driver_devices: DriverDevices,
    /// Why only a new start can bring the driver back.
    restart: OnceLock<RestartReason>,
    fallen: Fallen,
    host: Host,
    reloads: reload::Reloads,
    in_force: Mutex<Arc<InForce>>,
}

impl Shared {
    /// What the resolvers know of workloads, as last published.
    fn workloads(&self) -> Arc<ResolvedWorkloads> {
        Arc::clone(&self.workloads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what the resolvers know of workloads.
    fn update_workloads(&self, change: impl FnOnce(&mut ResolvedWorkloads)) {
        let mut workloads = self.workloads.lock().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut workloads));
    }

    /// What a vital thread ends with, and tells when it ends by itself.
    const fn ends(&self) -> (&Stop, &Fallen) {
        (&self.stop, &self.fallen)
    }

    /// What the configuration says at the moment.
    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&self.in_force.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_in_force(&self, next: InForce) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        *in_force = Arc::new(next.dated_by(self.timeline()));
    }

    /// Whether the wall clock may be taken for the account's: a simulated one at once, the system's when the kernel
    /// says that it is synchronised.
    fn clock_is_synchronised(&self) -> bool {
        match self.clock {
            Clock::System => host_clock_is_synchronised(),
            Clock::Page(_) => true,
        }
    }

    /// Takes the account's time axis; prices that were changed on another one are dated anew.
    fn publish_timeline(&self, timeline: Timeline) {
        let last = {
            let mut last = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *last, timeline)
        };
        if last != timeline {
            let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
            *in_force = Arc::new(InForce::clone(&in_force).dated_by(timeline));
        }
    }

    fn timeline(&self) -> Timeline {
        *self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what is known of users and groups into the grants, whatever configuration is in force by now.
    fn resolve_grants(&self, resolved: &grants::Resolved) {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(next) = in_force.with(resolved) {
            *in_force = Arc::new(next);
        }
    }

    /// Waits until the clock shows `moment`, or another cadence is in force than the one waited by, and beats at
    /// least as often as `every`; false if `end` was called first.
    fn wait_until(
        &self,
        moment: Nanoseconds,
        by: &InForce,
        end: &Stop,
        (every, mut beat): (Nanoseconds, impl FnMut()),
    ) -> bool {
        loop {
            let now = self.clock.now().boottime;
            if !self.clock.wait_until(moment.min(now + every), end, &mut beat) {
                return false;
            }
            if moment <= now + every || self.in_force().cadence != by.cadence {
                return true;
            }
        }
    }
}

/// The threads that have something to bring to an end.
struct Threads {
    io: io::Running,
    pulse: Thread,
    ledger: Option<ledger::Running>,
    control: Option<control::Control>,
}

/// Runs the agent until it is told to stop.
pub fn run(launch: Launch) -> Result<(), StartError> {
    // The limit as it is serves, too: fewer processes are held then.
    if let Err(error) = agent_usage::raise_most_files() {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
    start_log::agent(&launch);
    let (web, access, questions) = web::WebSource::open(&launch.config, launch.web.file.clone())?;
    let listeners = listen(&launch, &access.current())?;
    let (news, inbox) = mpsc::channel();
    let (reloads, rings) = reload::Reloads::new();
    let host = Host::with_users(&launch.root, UserDatabase::of_host(&launch.root));
    let shared = Arc::new(Shared {
        node: NodeName::of(&launch.config, &host),
        clock: launch.clock.clone(),
        stop: Stop::default(),
        news,
        lanes: Mutex::default(),
        heard: heard::Heard::default(),
        identities: host::Published::of(&host),
        workloads: Mutex::default(),
        pods: pods::PodStatus::default(),
        jobs: jobs::JobStatus::default(),
        containers: containers::ContainerStatus::default(),
        pages: Arc::default(),
        heartbeat: Arc::new(serve::Heartbeat::new(|| system_now().boottime)),
        access,
        timeline: Mutex::default(),
        no_account: Arc::default(),
        simulated: AtomicBool::new(launch.simulated),
        orders: lanes::Orders::default(),
        driver_devices: host.driver_devices(),
        restart: OnceLock::new(),
        fallen: Fallen::default(),
        host,
        reloads,
        in_force: Mutex::new(Arc::new(InForce::new(launch.config.clone()))),
    });
    // First, so that the driver answers while the ledger is opened.
    lanes::start(&launch.config, &shared)?;
    let inlets = Inlets { listeners, inbox, rings, web, questions };
    let threads = start(launch, inlets, &shared).inspect_err(|_| {
        shared.stop.call();
        lanes::close(&shared, IO_PATIENCE);
    })?;
    systemd::tell(&[NotifyState::Ready, NotifyState::Status("running")]);
    shared.stop.wait_for_call();
    systemd::tell(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    threads.close();
    lanes::close(&shared, LANES_PATIENCE);
    if let Some(thread) = shared.fallen.first() {
        return Err(StartError::Fallen(thread));
    }
    match shared.restart.get() {
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
struct Inlets {
    listeners: Vec<serve::Listener>,
    inbox: mpsc::Receiver<News>,
    rings: reload::Rings,
    web: web::WebSource,
    questions: web::Questions,
}

fn start(
    launch: Launch,
    Inlets { listeners, inbox, rings, web, questions }: Inlets,
    shared: &Arc<Shared>,
) -> Result<Threads, StartError> {
    let Launch { config, source, clock, root, .. } = launch;
    let host = shared.host.clone();
    let (ledger, recovered) = ledger::start(shared)?;
    users::start(shared)?;
    shared.resolve_grants(&grants::resolve(&config, host.users(), &grants::present(shared), &shared.stop));
    let in_force = shared.in_force();
    let started = clock.now();
    let path = ledger.as_ref().map(|ledger| ledger.path.clone());
    let control = control::start(config.web.control.as_deref(), path, config.nvml.library.clone(), shared)?;
    let bills = bills::start(ledger.as_ref().map(|ledger| ledger.path.clone()), shared)?;
    web::start(questions, shared)?;
    let io = io::start(listeners, &config, bills, shared)?;
    let agent = (root == Path::new("/")).then(std::process::id);
    pods::start(shared, recovered.as_ref())?;
    jobs::start(shared)?;
    containers::start(shared)?;
    host::start(host, agent, shared)?;
    kernel_log::start(shared.host.clone(), shared)?;
    let meter = Meter::new(Arc::clone(&in_force.policy), started, recovered);
    shared.publish_timeline(meter.timeline());
    let pulse = pulse::start(meter, inbox, pulse::Outlets::new(&in_force, ledger.as_ref(), &io), shared)?;
    reload::start(reload::Sources { config: source, web }, rings, shared)?;
    Ok(Threads { io, pulse, ledger, control })
}

impl Threads {
    /// Ends them in the order in which the account flows: nothing is offered to a ledger that has closed.
    fn close(self) {
        drop(self.control);
        self.io.stop(IO_PATIENCE);
        self.pulse.wait(PULSE_PATIENCE);
        if let Some(ledger) = self.ledger {
            ledger.close(LEDGER_PATIENCE);
        }
    }
}
