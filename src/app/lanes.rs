//! The lane threads, the thread that opens the driver, counts GPUs and hears their events, and how they end.
//!
//! Every index that the driver counts gets a lane at once, and the lane itself asks who lives there: a GPU
//! that hangs or fails at that holds up no other, and is asked again. The library is open for one session
//! after the other: it is let go of on request, and opened anew when the driver was.

mod events;
mod orders;
mod search;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::node_lock::NodeLock;
use super::{Shared, StartError, Thread};
use crate::catalogue::Level;
use crate::clock::{Stop, system_now};
use crate::config::Config;
use crate::meter::News;
use crate::model::frame::Tier;
use crate::model::{Absence, Frame, GpuId, Nanoseconds, Stamp, Unframed};
use crate::nvml::{CallSlot, FoundGpu, InFlight, Library, Sampler, find};

pub(super) use orders::Orders;
use session::Driver;

/// What is known of the lanes.
#[derive(Default)]
pub(super) struct Lanes {
    search: Search,
    /// Calls of GPUs, by UUID.
    slots: BTreeMap<Arc<str>, Watched>,
    /// Calls that belong to no GPU that has a name.
    nameless: Vec<Watched>,
    /// Indices whose GPU did not say who it is.
    mute: usize,
    /// GPUs that the event set does not hold yet.
    unheard: Vec<FoundGpu>,
    /// Indices whose lane says that the driver is gone, whose GPU answers nothing, and whose GPU is lost.
    gone: BTreeSet<u32>,
    silent: BTreeSet<u32>,
    lost: BTreeSet<u32>,
    thread: Option<Thread>,
    errors: BTreeMap<(Arc<str>, &'static str), u64>,
    node: Option<NodeLock>,
}

/// A lane's thread, as who waits for it sees it.
struct LaneThread {
    index: u32,
    slot: CallSlot,
    thread: Thread,
}

/// How far finding GPUs has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// The driver has not answered yet, or was let go of.
    #[default]
    Pending,
    /// That many GPUs can be expected to speak.
    Found(usize),
    /// There is no driver, or it refuses.
    Failed,
}

/// A place for driver calls: one that hangs is logged, and so is its return.
struct Watched {
    who: Arc<str>,
    slot: CallSlot,
    /// The call seen last, when it was first seen in the system's time, and whether it was logged.
    seen: Option<(InFlight, Stamp, bool)>,
}

/// Who opens the driver, among those without a name.
const ENUMERATE: &str = "enumerate";

/// How long a call may last before it is logged.
const LONG: Nanoseconds = Nanoseconds::from_seconds(2);

/// GPM needs more than 100 ms between the samples of a pair.
const PAIR_GAP: Nanoseconds = Nanoseconds(120_000_000);

/// How often a driver, a GPU or an event registration that failed is tried again.
const LOOK_AGAIN: Nanoseconds = Nanoseconds::from_seconds(10);

/// What every lane needs to know of the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cadence {
    pub(super) level: Level,
    pub(super) interval: Nanoseconds,
    /// Ticks per tier.
    every: [u64; 3],
    /// Whether presence decides who holds.
    presence: bool,
    /// The share of wall time that all lanes may spend inside the driver, in millionths.
    driver_share: u32,
}

impl Cadence {
    pub(super) fn of(config: &Config) -> Self {
        let sampling = &config.sampling;
        let ticks = |span: Nanoseconds| (span.0 / sampling.interval.0).max(1);
        Self {
            level: sampling.level,
            interval: sampling.interval,
            every: [1, ticks(sampling.medium), ticks(sampling.slow)],
            presence: config.attribution.presence,
            driver_share: sampling.driver_share,
        }
    }
}

/// Starts the thread that finds GPUs; it starts a lane for each.
pub(super) fn start(config: &Config, shared: &Arc<Shared>) -> Result<(), StartError> {
    let path = config.nvml.library.clone();
    let shared_by_thread = Arc::clone(shared);
    let thread = Thread::start(ENUMERATE, move || enumerate(path, &shared_by_thread))?;
    lock(shared).thread = Some(thread);
    Ok(())
}

/// The driver calls that are being made, by UUID. Long ones are logged, and counted where no series can name them.
pub(super) fn in_flight(shared: &Shared) -> BTreeMap<Arc<str>, InFlight> {
    let mut lanes = lock(shared);
    let Lanes { nameless, errors, slots, .. } = &mut *lanes;
    for watched in slots.values_mut() {
        watched.look();
    }
    for nameless in nameless {
        if nameless.look() {
            let collector =
                if &*nameless.who == ENUMERATE { "driver".into() } else { Arc::clone(&nameless.who) };
            *errors.entry((collector, "no_answer")).or_default() += 1;
        }
    }
    lanes.slots.iter().filter_map(|(uuid, slot)| Some((Arc::clone(uuid), slot.slot.in_flight()?))).collect()
}

impl Watched {
    fn new(who: Arc<str>, slot: &CallSlot) -> Self {
        Self { who, slot: slot.clone(), seen: None }
    }

    /// Looks at its call; true, and logged, when that begins to be long. Its return is logged, too.
    fn look(&mut self) -> bool {
        let now = system_now();
        let was_told = self.told();
        let in_flight = self.slot.in_flight();
        if let Some((call, first, true)) = self.seen.filter(|(seen, ..)| Some(*seen) != in_flight) {
            let took = now.since(first).0 / Nanoseconds::SECOND.0;
            tracing::info!(who = %self.who, call = call.function, seconds = took, "a driver call returned");
        }
        self.seen = in_flight.map(|call| match self.seen {
            Some((seen, first, told)) if seen == call => {
                let long = now.since(first) > LONG;
                if long && !told {
                    tracing::warn!(who = %self.who, call = call.function, "a driver call does not return");
                }
                (call, first, told || long)
            }
            _ => (call, now, false),
        });
        self.told() && !was_told
    }

    /// Whether it is in a call that was told to be long.
    fn told(&self) -> bool {
        self.seen.is_some_and(|(.., told)| told)
    }
}

/// Ticks that brought nothing, by collector and reason.
pub(super) fn errors(shared: &Shared) -> BTreeMap<(Arc<str>, &'static str), u64> {
    lock(shared).errors.clone()
}

/// How far finding GPUs has come; GPUs that do not say who they are are not waited for.
pub(super) fn search(shared: &Shared) -> Search {
    let lanes = lock(shared);
    match lanes.search {
        Search::Found(counted) => Search::Found(counted.saturating_sub(lanes.mute)),
        other => other,
    }
}

/// Whether the driver can be used; unknown until it has answered, or has not for so long that it is told.
pub(super) fn driver_ok(shared: &Shared) -> Option<bool> {
    let lanes = lock(shared);
    let hangs = |nameless: &Watched| &*nameless.who == ENUMERATE && nameless.told();
    match lanes.search {
        Search::Pending => lanes.nameless.iter().any(hangs).then_some(false),
        Search::Found(_) => Some(true),
        Search::Failed => Some(false),
    }
}

/// Waits for the thread that closes the library, which waits for the lanes.
pub(super) fn close(shared: &Shared, patience: Duration) {
    let thread = lock(shared).thread.take();
    if thread.is_some_and(|thread| !thread.wait(patience)) {
        tracing::warn!("the driver has not returned; leaving without shutdown");
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Lanes> {
    shared.lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the driver, session after session.
fn enumerate(path: Option<PathBuf>, shared: &Arc<Shared>) {
    let slot = CallSlot::default();
    watch(shared, ENUMERATE.into(), &slot);
    let mut driver = Driver::default();
    while let Some(end) = shared.orders.may_open(&shared.stop) {
        driver.rest(&end);
        let opened = driver.kept(&end).and_then(|kept| {
            kept.or_else(|| {
                let found = search::open(path.as_deref(), driver.was_open, (&end, &slot), shared);
                driver.away |= found.as_ref().is_some_and(|found| found.was_away);
                found.map(|found| (found.library, found.gpus))
            })
        });
        let Some((library, gpus)) = opened else {
            lock(shared).search = Search::Pending;
            driver.tell(shared);
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
        if let Some(events) = events::event_set(&library, &slot, shared, || session.goes_on(&mut driver)) {
            drop(library);
            events::listen(events, shared, || session.goes_on(&mut driver));
        } else {
            drop(library);
            const LOOK: Duration = Duration::from_millis(200);
            while session.goes_on(&mut driver) {
                end.wait(LOOK);
            }
        }
        driver.end(session);
    }
}

impl LaneThread {
    /// Where it is.
    fn call(&self) -> String {
        let call = self.slot.in_flight().map_or("a driver call", |call| call.function);
        format!("GPU {} in {call}", self.index)
    }
}

impl Lanes {
    /// Forgets a lane that has ended.
    fn part(&mut self, lane: &LaneThread) {
        self.slots.retain(|_, watched| {
            // A call that hung has returned, or the lane would not have ended.
            watched.look();
            !watched.slot.is(&lane.slot)
        });
        let who = collector(lane.index);
        self.unwatch(&who);
    }

    /// Forgets the calls of a collector; one that hung has returned.
    fn unwatch(&mut self, who: &str) {
        self.nameless.retain_mut(|nameless| {
            nameless.look();
            &*nameless.who != who
        });
    }
}

fn watch(shared: &Shared, who: Arc<str>, slot: &CallSlot) {
    lock(shared).nameless.push(Watched::new(who, slot));
}

fn collector(index: u32) -> Arc<str> {
    format!("gpu{index}").into()
}

fn start_lane(
    library: &Arc<Library>,
    index: u32,
    end: &Stop,
    shared: &Arc<Shared>,
) -> Result<LaneThread, StartError> {
    let slot = CallSlot::default();
    let (library, end) = (Arc::clone(library), end.clone());
    let (slot_by_thread, shared_by_thread) = (slot.clone(), Arc::clone(shared));
    let thread = Thread::start("lane", move || {
        let (slot, shared) = (slot_by_thread, shared_by_thread);
        if let Some(found) = meet(&library, index, &slot, &end, &shared) {
            let level = shared.in_force().cadence.level;
            let lane = Sampler::new(library, &found, slot, shared.clock.clone(), level);
            sample(lane, &end, &shared);
        }
    })?;
    Ok(LaneThread { index, slot, thread })
}

/// Asks who lives at an index until it says so; none when the session ends.
fn meet(
    library: &Arc<Library>,
    index: u32,
    slot: &CallSlot,
    end: &Stop,
    shared: &Shared,
) -> Option<FoundGpu> {
    let collector = collector(index);
    watch(shared, Arc::clone(&collector), slot);
    let mut mute = false;
    loop {
        let answer = find(library, index, slot, &shared.clock);
        note(shared, index, answer.as_ref().err());
        let reason = match answer {
            Ok(found) if claim(&found, slot, shared) => {
                let mut lanes = lock(shared);
                lanes.unwatch(&collector);
                // One that was stuck comes back in a session that has not counted it.
                lanes.mute = lanes.mute.saturating_sub(usize::from(mute));
                drop(lanes);
                // The pulse ends after the lanes are told to; then nobody listens.
                let _ = shared.news.send(News::Found { gpu: found.id.clone(), bus: Arc::clone(found.bus()) });
                tell_if_all_are_known(shared);
                return Some(found);
            }
            Ok(_) => "read_by_another_lane",
            Err(absence) => absence.reason(),
        };
        count(shared, Arc::clone(&collector), reason);
        if !mute {
            tracing::error!(index, reason, "a GPU does not say who it is; it is asked again");
            lock(shared).mute += 1;
            mute = true;
        }
        if !search::pause(end, shared) {
            return None;
        }
    }
}

/// Notes what a lane says of the driver and of its GPU.
fn note(shared: &Shared, index: u32, absence: Option<&Absence>) {
    let mut lanes = lock(shared);
    let Lanes { gone, silent, lost, .. } = &mut *lanes;
    for (set, means) in [(gone, Absence::DriverGone), (silent, Absence::Failed), (lost, Absence::Lost)] {
        if absence == Some(&means) {
            set.insert(index);
        } else {
            set.remove(&index);
        }
    }
}

/// When every GPU that the driver counts has said who it is, a GPU that is not among them is gone.
fn tell_if_all_are_known(shared: &Shared) {
    let lanes = lock(shared);
    let all = matches!(lanes.search, Search::Found(counted) if lanes.slots.len() >= counted);
    drop(lanes);
    if all {
        let _ = shared.news.send(News::Counted);
    }
}

/// Whether this lane is the first for that GPU.
fn claim(found: &FoundGpu, slot: &CallSlot, shared: &Shared) -> bool {
    let mut lanes = lock(shared);
    if lanes.slots.contains_key(&found.id.uuid) {
        return false;
    }
    let watched = Watched::new(collector(found.id.index), slot);
    lanes.slots.insert(Arc::clone(&found.id.uuid), watched);
    lanes.unheard.push(found.clone());
    true
}

/// The lane thread: reads at every multiple of the interval, from the start on.
fn sample(mut lane: Sampler, end: &Stop, shared: &Shared) {
    let collector = collector(lane.gpu().index);
    let gpu = lane.gpu().clone();
    let mut tick: u64 = 0;
    let mut generation = 0;
    // Whether something happened that slower tiers tell of, and from which tick on they may be read for that.
    let (mut happened, mut next_look) = (false, 0);
    while !end.is_called() {
        let in_force = shared.in_force();
        let cadence = in_force.cadence;
        let mut earliest = Nanoseconds(0);
        let hint = shared.heard.take_hint(&gpu.uuid);
        if hint.recut {
            lane.drop_plan();
        }
        let due = cadence.every.map(|every| tick.is_multiple_of(every));
        happened |= hint.ask_all;
        if happened && tick >= next_look {
            // What happens again and again, as XIDs do, is no reason to read everything in every tick.
            (happened, next_look) = (false, tick + cadence.every[Tier::Medium as usize]);
            lane.read_all_tiers_next();
        }
        // The lane is whole after a panic: its readings may be half new, and the next plan replaces them.
        let tick_as_told = || {
            lane.configure(cadence.level, cadence.presence, part(cadence.driver_share, shared));
            lane.tick(due)
        };
        match catch_unwind(AssertUnwindSafe(tick_as_told)) {
            Ok(answer) => {
                let begins = answer.as_ref().ok().filter(|frame| frame.generation != generation);
                if let Some(frame) = begins {
                    // A new plan begins a new GPM pair.
                    generation = frame.generation;
                    earliest = frame.begun.boottime + PAIR_GAP;
                }
                let lateness =
                    Lateness { limit: Nanoseconds(2 * cadence.interval.0), begins: begins.is_some() };
                deliver(&mut lane, &gpu, answer, lateness, (&collector, shared));
            }
            Err(_) => {
                count(shared, Arc::clone(&collector), "panic");
                lane.drop_plan();
            }
        }
        tick += 1;
        let next = next_multiple(shared.clock.now().boottime.max(earliest), cadence.interval);
        shared.wait_until(next, &in_force, end, (Nanoseconds::SECOND, || {}));
    }
    if !shared.stop.is_called() {
        // What the driver keeps for the plan is given back, since the driver may outlive the session.
        lane.drop_plan();
    }
}

/// When a frame comes too late.
struct Lateness {
    /// How long it may take: after two ticks it is older than what may be shown, and its span is already closed.
    limit: Nanoseconds,
    /// Whether it is its plan's first one: that covers nothing, and one that reads all tiers of a slow board would
    /// be dropped for ever, with plan after plan.
    begins: bool,
}

/// Sends what a tick brought; a frame that comes too late is dropped, with its plan.
fn deliver(
    lane: &mut Sampler,
    gpu: &GpuId,
    answer: Result<Frame, Absence>,
    lateness: Lateness,
    (collector, shared): (&Arc<str>, &Shared),
) {
    note(shared, gpu.index, answer.as_ref().err());
    let is_late = |frame: &Frame| frame.ended.since(frame.begun) > lateness.limit;
    let news = match answer {
        Ok(frame) if is_late(&frame) && !lateness.begins => {
            lane.discard_last_tick();
            count(shared, Arc::clone(collector), "late");
            News::Unframed(Unframed { calls: frame.calls, rejected: frame.rejected })
        }
        Ok(frame) => {
            if is_late(&frame) {
                lane.ignore_cost_of_last_tick();
            }
            let listed = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
            let sampled = frame.samples.iter().flatten().map(|sample| sample.pid);
            shared.identities.see(listed, sampled);
            News::Frame(Box::new(frame))
        }
        Err(absence) => {
            count(shared, Arc::clone(collector), absence.reason());
            if absence == Absence::Lost {
                let _ = shared.news.send(News::Lost(gpu.clone()));
            }
            News::Unframed(lane.take_unframed())
        }
    };
    // The pulse ends after the lanes are told to; then nobody listens.
    let _ = shared.news.send(news);
}

fn count(shared: &Shared, collector: Arc<str>, reason: &'static str) {
    *lock(shared).errors.entry((collector, reason)).or_default() += 1;
}

/// A lane's part of the node's share of driver time: an equal one for each GPU that is read.
fn part(share: u32, shared: &Shared) -> u32 {
    let lanes = u32::try_from(lock(shared).slots.len()).unwrap_or(u32::MAX);
    share / lanes.max(1)
}

/// The next multiple of `interval` after `now`, so that all lanes and the pulse keep one grid.
pub(super) fn next_multiple(now: Nanoseconds, interval: Nanoseconds) -> Nanoseconds {
    Nanoseconds((now.0 / interval.0 + 1) * interval.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_same_for_everybody() {
        assert_eq!(next_multiple(Nanoseconds(0), Nanoseconds(10)), Nanoseconds(10));
        assert_eq!(next_multiple(Nanoseconds(10), Nanoseconds(10)), Nanoseconds(20));
        assert_eq!(next_multiple(Nanoseconds(19), Nanoseconds(10)), Nanoseconds(20));
    }
}
