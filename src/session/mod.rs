//! The driver while the agent runs: opening and closing its library, a sampler thread for each GPU, its events, and the
//! XIDs of the kernel log.
//!
//! In: the configuration in force and the orders of an operator. Out: [`SamplerNews`] for the tick loop. Every index that the
//! driver counts gets a sampler at once, which asks the GPU for its identity: a GPU that hangs or fails then delays no
//! other. One session follows another: the library is closed on request, and opened again when the driver was replaced.

mod driver;
mod events;
mod kernel_log;
mod node_lock;
mod orders;
mod received;
mod recording;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use crate::clock::{Clock, Stop, next_multiple, system_now};
use crate::config::Config;
use crate::host::{DriverDevices, Host};
use crate::meter::SamplerNews;
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, Nanoseconds, Stamp, Unframed};
use crate::nvml::{CallSlot, FoundGpu, InFlight, Library, Sampler, find};
use crate::policy::{CurrentConfig, Wait};
use crate::resolvers::SeenProcesses;
use crate::thread::{self, Thread};

use driver::DriverState;
use node_lock::NodeLock;

pub(crate) use kernel_log::start as start_kernel_log;
#[cfg(test)]
pub(crate) use node_lock::take as take_node_lock;
pub(crate) use node_lock::{LockState, PATH as NODE_LOCK, look as look_at_node_lock};
pub(crate) use orders::Orders;
pub(crate) use received::Received;
pub use recording::{RecordError, Recorded, Recording, RunningRecord, record};

/// What the threads that use the driver share with each other and with the tick loop.
pub(crate) struct DriverSessions {
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) host: Host,
    pub(crate) config: Arc<CurrentConfig>,
    /// Frames and events for the tick loop.
    pub(crate) news: mpsc::Sender<SamplerNews>,
    pub(crate) samplers: Mutex<Samplers>,
    pub(crate) received: Received,
    pub(crate) processes: Arc<SeenProcesses>,
    pub(crate) simulated: Arc<AtomicBool>,
    /// Whether the driver may be open.
    pub(crate) orders: Orders,
    /// The driver's device numbers when the agent started.
    pub(crate) driver_devices: DriverDevices,
    /// Why only a new start can bring the driver back.
    pub(crate) restart: OnceLock<RestartReason>,
}

/// Why only a new start of the agent can bring the driver back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RestartReason {
    /// Its library was replaced under the container that the agent runs in.
    LibraryReplaced,
    /// It was loaded after the agent's unit had been given its rules on devices.
    DriverLoadedLater,
}

/// State of the samplers.
#[derive(Default)]
pub(crate) struct Samplers {
    search: Search,
    /// Calls of GPUs, by UUID.
    slots: BTreeMap<Arc<str>, WatchedCalls>,
    /// Calls that belong to no identified GPU.
    unidentified: Vec<WatchedCalls>,
    /// How many GPUs have not returned their identity.
    unidentified_gpus: usize,
    /// GPUs that the event set does not hold yet.
    unregistered: Vec<FoundGpu>,
    /// Indices of GPUs whose driver is gone, whose calls all fail, and that are lost.
    gone: BTreeSet<u32>,
    silent: BTreeSet<u32>,
    lost: BTreeSet<u32>,
    thread: Option<Thread>,
    errors: BTreeMap<(Arc<str>, &'static str), u64>,
    node: Option<NodeLock>,
}

/// A running sampler.
struct SamplerThread {
    index: u32,
    slot: CallSlot,
    thread: Thread,
}

/// How far the search for GPUs has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Search {
    /// The driver has not answered yet, or is released.
    #[default]
    Pending,
    /// So many GPUs were counted.
    Found(usize),
    /// There is no driver, or it refuses.
    Failed,
}

/// The driver calls of one thread: one that hangs is logged, and so is its return.
struct WatchedCalls {
    who: Arc<str>,
    slot: CallSlot,
    /// The call seen last, when it was first seen in the system's time, and whether it was logged.
    seen: Option<(InFlight, Stamp, bool)>,
}

/// The thread that opens the driver.
const ENUMERATE: &str = "enumerate";

/// How long a call may last before it is logged.
const LONG: Nanoseconds = Nanoseconds::from_seconds(2);

/// GPM needs more than 100 ms between the samples of a pair.
const PAIR_GAP: Nanoseconds = Nanoseconds(120_000_000);

/// How often a failed driver, GPU or event registration is tried again.
const RETRY_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// Starts the thread that opens the driver; it starts a sampler for each GPU.
pub(crate) fn start(config: &Config, shared: &Arc<DriverSessions>) -> Result<(), thread::Error> {
    let path = config.nvml.library.clone();
    let shared_by_thread = Arc::clone(shared);
    let thread = Thread::start(ENUMERATE, move || enumerate(path, &shared_by_thread))?;
    lock(shared).thread = Some(thread);
    Ok(())
}

/// The driver calls that are being made, by UUID. Long ones are logged, and counted where no series can name them.
pub(crate) fn in_flight(shared: &DriverSessions) -> BTreeMap<Arc<str>, InFlight> {
    let mut samplers = lock(shared);
    let Samplers { unidentified, errors, slots, .. } = &mut *samplers;
    for watched in slots.values_mut() {
        watched.check();
    }
    for calls in unidentified {
        if calls.check() {
            let collector = if &*calls.who == ENUMERATE { "driver".into() } else { Arc::clone(&calls.who) };
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
    fn new(who: Arc<str>, slot: &CallSlot) -> Self {
        Self { who, slot: slot.clone(), seen: None }
    }

    /// Checks the call in flight: logs one that takes long, and its return. True when it is logged as long for the first time.
    fn check(&mut self) -> bool {
        let now = system_now();
        let was_logged = self.is_logged();
        let in_flight = self.slot.in_flight();
        if let Some((call, first, true)) = self.seen.filter(|(seen, ..)| Some(*seen) != in_flight) {
            let took = now.since(first).0 / Nanoseconds::SECOND.0;
            tracing::info!(who = %self.who, call = call.function, seconds = took, "a driver call returned");
        }
        self.seen = in_flight.map(|call| match self.seen {
            Some((seen, first, logged)) if seen == call => {
                let long = now.since(first) > LONG;
                if long && !logged {
                    tracing::warn!(who = %self.who, call = call.function, "a driver call does not return");
                }
                (call, first, logged || long)
            }
            _ => (call, now, false),
        });
        self.is_logged() && !was_logged
    }

    /// Whether its call in flight is logged as long.
    fn is_logged(&self) -> bool {
        self.seen.is_some_and(|(.., logged)| logged)
    }
}

/// Failed ticks by collector and reason.
pub(crate) fn errors(shared: &DriverSessions) -> BTreeMap<(Arc<str>, &'static str), u64> {
    lock(shared).errors.clone()
}

/// How far the search for GPUs has come; GPUs without an identity do not count.
pub(crate) fn search(shared: &DriverSessions) -> Search {
    let samplers = lock(shared);
    match samplers.search {
        Search::Found(counted) => Search::Found(counted.saturating_sub(samplers.unidentified_gpus)),
        other => other,
    }
}

/// Whether the driver can be used; unknown until it has answered, or its first call is logged as long.
pub(crate) fn driver_ok(shared: &DriverSessions) -> Option<bool> {
    let samplers = lock(shared);
    let hangs = |calls: &WatchedCalls| &*calls.who == ENUMERATE && calls.is_logged();
    match samplers.search {
        Search::Pending => samplers.unidentified.iter().any(hangs).then_some(false),
        Search::Found(_) => Some(true),
        Search::Failed => Some(false),
    }
}

/// Waits for the thread that closes the library, which waits for the samplers.
pub(crate) fn close(shared: &DriverSessions, timeout: Duration) {
    let thread = lock(shared).thread.take();
    if thread.is_some_and(|thread| !thread.wait(timeout)) {
        tracing::warn!("the driver has not returned; leaving without shutdown");
    }
}

fn lock(shared: &DriverSessions) -> MutexGuard<'_, Samplers> {
    shared.samplers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the driver, session after session.
fn enumerate(path: Option<PathBuf>, shared: &Arc<DriverSessions>) {
    let slot = CallSlot::default();
    watch(shared, ENUMERATE.into(), &slot);
    let mut driver = DriverState::default();
    while let Some(end) = shared.orders.may_open(&shared.stop) {
        driver.wait_after_failure(&end);
        let opened = driver.kept(&end).and_then(|kept| {
            kept.or_else(|| {
                let found = search::open(path.as_deref(), driver.was_open, (&end, &slot), shared);
                driver.away |= found.as_ref().is_some_and(|found| found.was_away);
                found.map(|found| (found.library, found.gpus))
            })
        });
        let Some((library, gpus)) = opened else {
            lock(shared).search = Search::Pending;
            driver.report_closed(shared);
            continue;
        };
        tracing::info!(
            gpus,
            library = %library.path().display(),
            simulated = library.is_simulated(),
            "driver library opened"
        );
        let mut session = driver.begin((Arc::clone(&library), gpus), (&end, &slot), shared);
        shared.orders.opened();
        if let Some(events) =
            events::event_set(&library, &slot, shared, || session.is_to_continue(&mut driver))
        {
            drop(library);
            events::listen(events, shared, || session.is_to_continue(&mut driver));
        } else {
            drop(library);
            const LOOK: Duration = Duration::from_millis(200);
            while session.is_to_continue(&mut driver) {
                end.wait(LOOK);
            }
        }
        driver.end(session);
    }
}

impl SamplerThread {
    /// The call it is in.
    fn call(&self) -> String {
        let call = self.slot.in_flight().map_or("a driver call", |call| call.function);
        format!("GPU {} in {call}", self.index)
    }
}

impl Samplers {
    /// Removes a sampler that has ended.
    fn remove(&mut self, sampler: &SamplerThread) {
        self.slots.retain(|_, watched| {
            // A call that hung has returned, or the sampler would not have ended.
            watched.check();
            !watched.slot.is(&sampler.slot)
        });
        let who = collector(sampler.index);
        self.unwatch(&who);
    }

    /// Removes the calls of a collector; one that hung has returned.
    fn unwatch(&mut self, who: &str) {
        self.unidentified.retain_mut(|calls| {
            calls.check();
            &*calls.who != who
        });
    }
}

fn watch(shared: &DriverSessions, who: Arc<str>, slot: &CallSlot) {
    lock(shared).unidentified.push(WatchedCalls::new(who, slot));
}

fn collector(index: u32) -> Arc<str> {
    format!("gpu{index}").into()
}

fn start_sampler(
    library: &Arc<Library>,
    index: u32,
    end: &Stop,
    shared: &Arc<DriverSessions>,
) -> Result<SamplerThread, thread::Error> {
    let slot = CallSlot::default();
    let (library, end) = (Arc::clone(library), end.clone());
    let (slot_by_thread, shared_by_thread) = (slot.clone(), Arc::clone(shared));
    let thread = Thread::start("sampler", move || {
        let (slot, shared) = (slot_by_thread, shared_by_thread);
        if let Some(found) = identify_gpu(&library, index, &slot, &end, &shared) {
            let level = shared.config.active().cadence.level;
            let sampler = Sampler::new(library, &found, slot, shared.clock.clone(), level);
            sample(sampler, &end, &shared);
        }
    })?;
    Ok(SamplerThread { index, slot, thread })
}

/// Asks for the identity of the GPU at an index until it is known; none when the session ends.
fn identify_gpu(
    library: &Arc<Library>,
    index: u32,
    slot: &CallSlot,
    end: &Stop,
    shared: &DriverSessions,
) -> Option<FoundGpu> {
    let collector = collector(index);
    watch(shared, Arc::clone(&collector), slot);
    let mut is_logged = false;
    loop {
        let answer = find(library, index, slot, &shared.clock);
        note_absence(shared, index, answer.as_ref().err());
        let reason = match answer {
            Ok(found) if claim(&found, slot, shared) => {
                let mut samplers = lock(shared);
                samplers.unwatch(&collector);
                // A sampler that was stuck in a former session is not counted in this one.
                samplers.unidentified_gpus =
                    samplers.unidentified_gpus.saturating_sub(usize::from(is_logged));
                drop(samplers);
                // The receiver is gone once the tick loop has ended.
                let _ = shared
                    .news
                    .send(SamplerNews::Found { gpu: found.id.clone(), bus: Arc::clone(found.bus()) });
                report_if_all_are_known(shared);
                return Some(found);
            }
            Ok(_) => "read_by_another_lane",
            Err(absence) => absence.reason(),
        };
        count(shared, Arc::clone(&collector), reason);
        if !is_logged {
            tracing::error!(index, reason, "a GPU does not say who it is; it is asked again");
            lock(shared).unidentified_gpus += 1;
            is_logged = true;
        }
        if !search::pause(end, shared) {
            return None;
        }
    }
}

/// Stores whether the last answer was that the driver is gone, failed, or that the GPU is lost.
fn note_absence(shared: &DriverSessions, index: u32, absence: Option<&Absence>) {
    let mut samplers = lock(shared);
    let Samplers { gone, silent, lost, .. } = &mut *samplers;
    for (set, means) in [(gone, Absence::DriverGone), (silent, Absence::Failed), (lost, Absence::Lost)] {
        if absence == Some(&means) {
            set.insert(index);
        } else {
            set.remove(&index);
        }
    }
}

/// Reports that every counted GPU is identified: a GPU that is not among them is gone.
fn report_if_all_are_known(shared: &DriverSessions) {
    let samplers = lock(shared);
    let all = matches!(samplers.search, Search::Found(counted) if samplers.slots.len() >= counted);
    drop(samplers);
    if all {
        let _ = shared.news.send(SamplerNews::Counted);
    }
}

/// Registers this sampler for that GPU; false when the GPU has another one.
fn claim(found: &FoundGpu, slot: &CallSlot, shared: &DriverSessions) -> bool {
    let mut samplers = lock(shared);
    if samplers.slots.contains_key(&found.id.uuid) {
        return false;
    }
    let watched = WatchedCalls::new(collector(found.id.index), slot);
    samplers.slots.insert(Arc::clone(&found.id.uuid), watched);
    samplers.unregistered.push(found.clone());
    true
}

/// Runs a sampler: reads at every multiple of the interval, from the start on.
fn sample(mut sampler: Sampler, end: &Stop, shared: &DriverSessions) {
    let collector = collector(sampler.gpu().index);
    let gpu = sampler.gpu().clone();
    let mut tick: u64 = 0;
    let mut generation = 0;
    // Whether an event asks for all tiers, and the first tick at which they may be read for an event again.
    let (mut read_all, mut next_read_all) = (false, 0);
    while !end.is_called() {
        let active = shared.config.active();
        let cadence = active.cadence;
        let mut earliest = Nanoseconds(0);
        let hint = shared.received.take_hint(&gpu.uuid);
        if hint.mig_changed {
            sampler.drop_plan();
        }
        let due = cadence.every.map(|every| tick.is_multiple_of(every));
        read_all |= hint.read_all;
        if read_all && tick >= next_read_all {
            // EventSet that repeat, as XIDs do, must not cause all tiers to be read in every tick.
            (read_all, next_read_all) = (false, tick + cadence.every[Tier::Medium as usize]);
            sampler.read_all_tiers_next();
        }
        // After a panic the readings may be half updated; the next plan replaces them.
        let run_tick = || {
            sampler.configure(cadence.level, cadence.presence, driver_share(cadence.driver_share, shared));
            sampler.tick(due)
        };
        match catch_unwind(AssertUnwindSafe(run_tick)) {
            Ok(answer) => {
                let begins = answer.as_ref().ok().filter(|frame| frame.generation != generation);
                if let Some(frame) = begins {
                    // A new plan begins a new GPM pair.
                    generation = frame.generation;
                    earliest = frame.begun.boottime + PAIR_GAP;
                }
                let lateness =
                    Lateness { limit: Nanoseconds(2 * cadence.interval.0), begins: begins.is_some() };
                deliver(&mut sampler, &gpu, answer, lateness, (&collector, shared));
            }
            Err(_) => {
                count(shared, Arc::clone(&collector), "panic");
                sampler.drop_plan();
            }
        }
        tick += 1;
        let next = next_multiple(shared.clock.now().boottime.max(earliest), cadence.interval);
        let wait = Wait { until: next, every: Nanoseconds::SECOND, notify: || {} };
        shared.config.wait_until(&shared.clock, &active, end, wait);
    }
    if !shared.stop.is_called() {
        // What the driver keeps for the plan is given back, since the driver may outlive the session.
        sampler.drop_plan();
    }
}

/// When a frame is too late.
struct Lateness {
    /// How long reading a frame may take: after two ticks it is too old to be shown, and its span is closed.
    limit: Nanoseconds,
    /// Whether it is the first frame of its plan. That one is never dropped: it reads all tiers, which may always take too
    /// long on a slow board.
    begins: bool,
}

/// Sends the result of a tick to the tick loop; a late frame is dropped.
fn deliver(
    sampler: &mut Sampler,
    gpu: &GpuId,
    answer: Result<Frame, Absence>,
    lateness: Lateness,
    (collector, shared): (&Arc<str>, &DriverSessions),
) {
    note_absence(shared, gpu.index, answer.as_ref().err());
    let is_late = |frame: &Frame| frame.ended.since(frame.begun) > lateness.limit;
    let news = match answer {
        Ok(frame) if is_late(&frame) && !lateness.begins => {
            sampler.discard_last_tick();
            count(shared, Arc::clone(collector), "late");
            SamplerNews::Unframed(Unframed { calls: frame.calls, rejected: frame.rejected })
        }
        Ok(frame) => {
            if is_late(&frame) {
                sampler.ignore_cost_of_last_tick();
            }
            let listed = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
            let sampled = frame.samples.iter().flatten().map(|sample| sample.pid);
            shared.processes.see(listed, sampled);
            SamplerNews::Frame(Box::new(frame))
        }
        Err(absence) => {
            count(shared, Arc::clone(collector), absence.reason());
            if absence == Absence::Lost {
                let _ = shared.news.send(SamplerNews::Lost(gpu.clone()));
            }
            SamplerNews::Unframed(sampler.take_unframed())
        }
    };
    // The receiver is gone once the tick loop has ended.
    let _ = shared.news.send(news);
}

fn count(shared: &DriverSessions, collector: Arc<str>, reason: &'static str) {
    *lock(shared).errors.entry((collector, reason)).or_default() += 1;
}

/// The share of driver time of one sampler: an equal part of the node's for each GPU that is read.
fn driver_share(share: u32, shared: &DriverSessions) -> u32 {
    let samplers = u32::try_from(lock(shared).slots.len()).unwrap_or(u32::MAX);
    share / samplers.max(1)
}
