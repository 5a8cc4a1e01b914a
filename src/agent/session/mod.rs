//! The driver while the agent runs: opening and closing its library, a sampler thread for each GPU, its events, and the
//! XIDs of the kernel log.
//!
//! The inputs are the configuration in force and an operator's orders, the output is [`SamplerNews`] for the tick loop.
//! Every index that the driver counts gets a sampler at once, which reads the GPU's identity itself: so a GPU that hangs or
//! fails delays no other. One session follows another: the library is closed on request, and opened again when the driver
//! was replaced.

mod driver;
mod events;
mod kernel_log;
mod node_lock;
mod orders;
mod received;
mod recording;
mod sampler;
mod search;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

use crate::agent::policy::CurrentPolicy;
use crate::agent::resolvers::SeenProcesses;
use crate::config::Config;
use crate::driver::nvml::{CallSlot, FoundGpu};
use crate::holders::host::Host;
use crate::meter::SamplerNews;
use crate::model::{Absence, CallInFlight, Nanoseconds, Stamp};
use crate::runtime::clock::{Clock, Stop, system_now};
use crate::runtime::file::Lock;
use crate::runtime::thread::{self, Thread};
use crate::runtime::trace;

use driver::DriverState;
use orders::DriverPhase;
use sampler::SamplerThread;

pub(crate) use kernel_log::start as start_kernel_log;
#[cfg(test)]
pub(crate) use node_lock::take as take_node_lock;
pub(crate) use node_lock::{LockState, PATH as NODE_LOCK, look as look_at_node_lock};
pub(crate) use orders::Orders;
#[cfg(test)]
pub(crate) use received::EventBatch;
pub(crate) use received::Received;
pub use recording::{RecordError, Recording, RecordingTotals, RunningRecord, record};

/// What the threads that use the driver share with each other and with the tick loop.
pub(crate) struct DriverSessions {
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) host: Host,
    pub(crate) policy: Arc<CurrentPolicy>,
    pub(crate) news: mpsc::Sender<SamplerNews>,
    pub(crate) samplers: Mutex<Samplers>,
    pub(crate) received: Received,
    pub(crate) processes: Arc<SeenProcesses>,
    pub(crate) simulated: Arc<AtomicBool>,
    pub(crate) orders: Orders,
    /// Whether this process only looks, and needs no lock.
    pub(crate) observes: bool,
    /// The driver's device numbers when the agent started.
    pub(crate) driver_devices: Vec<String>,
    pub(crate) restart: OnceLock<RestartReason>,
}

impl DriverSessions {
    /// Sends news to the tick loop; once that has ended, nobody receives them.
    fn send(&self, news: SamplerNews) {
        let _ = self.news.send(news);
    }
}

/// Why only a new start of the agent can bring the driver back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RestartReason {
    /// Its library was replaced under the container that the agent runs in.
    LibraryReplaced,
    /// It was loaded after the agent's unit had been given its rules on devices.
    DriverLoadedLater,
}

#[derive(Default)]
pub(crate) struct Samplers {
    search: Search,
    /// Calls of GPUs, by UUID.
    slots: BTreeMap<Arc<str>, WatchedCalls>,
    unidentified: Vec<WatchedCalls>,
    /// How many GPUs have no identity yet and were reported in the log.
    unidentified_gpus: usize,
    /// GPUs that the event set does not hold yet.
    unregistered: Vec<FoundGpu>,
    /// Why GPUs were not read at the last try, by index.
    absences: BTreeMap<u32, Absence>,
    /// The thread that opens the driver.
    thread: Option<Thread>,
    /// Failed ticks and searches by collector and reason.
    errors: BTreeMap<(Arc<str>, &'static str), u64>,
    node: Option<Lock>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Search {
    /// The driver has not returned yet, or is released.
    #[default]
    Pending,
    Found(usize),
    /// There is no driver, or it cannot be opened.
    Failed,
}

/// The driver calls of one thread: one that takes long is logged, and so is its return.
struct WatchedCalls {
    collector: Arc<str>,
    slot: CallSlot,
    seen: Option<SeenCall>,
}

struct SeenCall {
    call: CallInFlight,
    /// When it was first seen, in the system's time.
    first: Stamp,
    is_logged: bool,
}

/// The thread that opens the driver.
const ENUMERATE: &str = "enumerate";

/// How long a call may last before it is logged.
const LONG_CALL: Nanoseconds = Nanoseconds::from_seconds(2);

/// How often a failed driver, GPU or event registration is tried again.
const RETRY_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// How often the end of the session is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Starts the thread that opens the driver; it starts a sampler for each GPU.
pub(crate) fn start(config: &Config, shared: &Arc<DriverSessions>) -> Result<(), thread::Error> {
    let path = config.nvml.library.clone();
    let shared_by_thread = Arc::clone(shared);
    let thread = Thread::start(ENUMERATE, move || enumerate(path, &shared_by_thread))?;
    shared.samplers.lock().thread = Some(thread);
    Ok(())
}

/// The driver calls that are being made, by UUID. Long ones are logged, and counted where no series can name them.
pub(crate) fn in_flight(shared: &DriverSessions) -> BTreeMap<Arc<str>, CallInFlight> {
    let mut samplers = shared.samplers.lock();
    let Samplers { unidentified, errors, slots, .. } = &mut *samplers;
    for watched in slots.values_mut() {
        watched.check();
    }
    for calls in unidentified {
        if calls.check() {
            let is_driver = &*calls.collector == ENUMERATE;
            let collector = if is_driver { "driver".into() } else { Arc::clone(&calls.collector) };
            *errors.entry((collector, "no_answer")).or_default() += 1;
        }
    }
    samplers
        .slots
        .iter()
        .filter_map(|(uuid, slot)| Some((Arc::clone(uuid), slot.slot.in_flight()?)))
        .collect()
}

impl WatchedCalls {
    fn new(collector: Arc<str>, slot: &CallSlot) -> Self {
        Self { collector, slot: slot.clone(), seen: None }
    }

    /// Logs a call that takes long, and its return; whether it is logged as long for the first time.
    fn check(&mut self) -> bool {
        let (now, who) = (system_now(), &self.collector);
        let in_flight = self.slot.in_flight();
        if let Some(seen) = self.seen.take_if(|seen| Some(seen.call) != in_flight)
            && seen.is_logged
        {
            let took = now.since(seen.first);
            let attributes = vec![("collector", who.to_string()), ("call", seen.call.function.to_owned())];
            trace::record("driver.call", took, attributes);
            let took = took.0 / Nanoseconds::SECOND.0;
            tracing::info!(%who, call = seen.call.function, seconds = took, "a driver call returned");
        }
        let Some(call) = in_flight else { return false };
        let seen = self.seen.get_or_insert(SeenCall { call, first: now, is_logged: false });
        let is_newly_long = !seen.is_logged && now.since(seen.first) > LONG_CALL;
        if is_newly_long {
            const SECONDS: u64 = LONG_CALL.0 / Nanoseconds::SECOND.0;
            tracing::warn!(%who, call = call.function, "a driver call has not returned for more than {SECONDS} s");
            seen.is_logged = true;
        }
        is_newly_long
    }
}

pub(crate) fn errors(shared: &DriverSessions) -> BTreeMap<(Arc<str>, &'static str), u64> {
    shared.samplers.lock().errors.clone()
}

/// How far the search for GPUs has come; GPUs without an identity do not count.
pub(crate) fn search(shared: &DriverSessions) -> Search {
    let samplers = shared.samplers.lock();
    match samplers.search {
        Search::Found(counted) => Search::Found(counted.saturating_sub(samplers.unidentified_gpus)),
        other => other,
    }
}

/// Whether the driver can be used; unknown until it has answered, or its first call is logged as long.
pub(crate) fn driver_ok(shared: &DriverSessions) -> Option<bool> {
    let samplers = shared.samplers.lock();
    let hangs = |calls: &WatchedCalls| {
        &*calls.collector == ENUMERATE && calls.seen.as_ref().is_some_and(|seen| seen.is_logged)
    };
    match samplers.search {
        Search::Pending => samplers.unidentified.iter().any(hangs).then_some(false),
        Search::Found(_) => Some(true),
        Search::Failed => Some(false),
    }
}

/// Waits for the thread that closes the library, which waits for the samplers.
pub(crate) fn close(shared: &DriverSessions, timeout: Duration) {
    let thread = shared.samplers.lock().thread.take();
    if thread.is_some_and(|thread| !thread.wait(timeout)) {
        tracing::warn!("a driver call has not returned; the agent ends without closing the driver library");
    }
}

/// Opens the driver, session after session.
fn enumerate(path: Option<PathBuf>, shared: &Arc<DriverSessions>) {
    let slot = CallSlot::default();
    watch(shared, ENUMERATE.into(), &slot);
    let mut driver = DriverState::default();
    while let Some(end) = shared.orders.may_open(&shared.stop) {
        let opened = if driver.close_failed_library(&end) {
            let open = || search::open(path.as_deref(), driver.was_open, &end, &slot, shared);
            driver.kept.take().or_else(open)
        } else {
            None
        };
        let Some(opened) = opened else {
            shared.samplers.lock().search = Search::Pending;
            driver.report_closed(shared);
            continue;
        };
        let library = Arc::clone(&opened.library);
        tracing::info!(
            gpus = opened.gpus,
            library = %library.path().display(),
            simulated = library.is_simulated(),
            "driver library opened"
        );
        let mut session = driver.begin(opened, &end, &slot, shared);
        shared.orders.set_phase(DriverPhase::Open);
        let events = events::event_set(&library, &slot, shared, || session.is_to_continue(&mut driver));
        drop(library);
        if let Some(events) = events {
            events::listen(events, shared, || session.is_to_continue(&mut driver));
        } else {
            while session.is_to_continue(&mut driver) {
                end.wait(POLL_INTERVAL);
            }
        }
        driver.end(session);
    }
}

impl Samplers {
    fn remove(&mut self, sampler: &SamplerThread) {
        self.slots.retain(|_, watched| {
            // A call that hung has returned, or the sampler would not have ended.
            watched.check();
            !watched.slot.is(&sampler.slot)
        });
        self.unwatch(&collector(sampler.index));
    }

    fn unwatch(&mut self, collector: &str) {
        self.unidentified.retain_mut(|calls| {
            calls.check();
            &*calls.collector != collector
        });
    }
}

fn watch(shared: &DriverSessions, collector: Arc<str>, slot: &CallSlot) {
    shared.samplers.lock().unidentified.push(WatchedCalls::new(collector, slot));
}

/// The value of the label `collector` of a GPU that has no identity yet.
fn collector(index: u32) -> Arc<str> {
    format!("gpu{index}").into()
}

fn count_error(shared: &DriverSessions, collector: Arc<str>, reason: &'static str) {
    *shared.samplers.lock().errors.entry((collector, reason)).or_default() += 1;
}

/// Reports that every counted GPU is identified: a GPU that is not among them is gone.
fn report_if_all_are_known(shared: &DriverSessions) {
    let samplers = shared.samplers.lock();
    let all = matches!(samplers.search, Search::Found(counted) if samplers.slots.len() >= counted);
    drop(samplers);
    if all {
        shared.send(SamplerNews::Counted);
    }
}
