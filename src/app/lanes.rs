//! The lane threads, the thread that finds GPUs and hears their events, and how they end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, Thread};
use crate::catalogue::Level;
use crate::clock::system_now;
use crate::config::Config;
use crate::meter::News;
use crate::model::{Absence, GpuId, Nanoseconds, XidEvent};
use crate::nvml::{CallSlot, Events, Found, InFlight, Lane, Library, find};

/// What is known of the lanes.
#[derive(Default)]
pub(super) struct Lanes {
    /// How far finding GPUs has come.
    pub(super) search: Search,
    slots: BTreeMap<Arc<str>, CallSlot>,
    threads: Vec<Thread>,
    xids: Vec<XidEvent>,
    errors: BTreeMap<(Arc<str>, &'static str), u64>,
    library: Option<Arc<Library>>,
}

/// How far finding GPUs has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// The driver has not answered yet.
    #[default]
    Pending,
    /// It counts that many.
    Found(usize),
    /// There is no driver, or it refuses.
    Failed,
}

/// How often a node without a usable driver is looked at again.
const LOOK_AGAIN: Nanoseconds = Nanoseconds::from_seconds(10);

/// What every lane needs to know of the configuration.
#[derive(Clone, Copy)]
struct Cadence {
    level: Level,
    interval: Nanoseconds,
    /// Ticks per tier.
    every: [u64; 3],
}

/// Starts the thread that finds GPUs; it starts a lane for each.
pub(super) fn start(config: &Config, shared: &Arc<Shared>) -> Result<(), StartError> {
    let sampling = &config.sampling;
    let ticks = |span: Nanoseconds| (span.0 / sampling.interval.0).max(1);
    let cadence = Cadence {
        level: sampling.level,
        interval: sampling.interval,
        every: [1, ticks(sampling.medium), ticks(sampling.slow)],
    };
    let path = config.nvml.library.clone();
    let shared_by_thread = Arc::clone(shared);
    let thread = Thread::start("enumerate", move || enumerate(path, cadence, &shared_by_thread))?;
    lock(shared).threads.push(thread);
    Ok(())
}

/// The driver calls that are being made, by UUID.
pub(super) fn in_flight(shared: &Shared) -> BTreeMap<Arc<str>, InFlight> {
    let lanes = lock(shared);
    lanes.slots.iter().filter_map(|(uuid, slot)| Some((Arc::clone(uuid), slot.in_flight()?))).collect()
}

/// XIDs heard since the last look.
pub(super) fn take_xids(shared: &Shared) -> Vec<XidEvent> {
    std::mem::take(&mut lock(shared).xids)
}

/// Ticks that brought nothing, by collector and reason.
pub(super) fn errors(shared: &Shared) -> BTreeMap<(Arc<str>, &'static str), u64> {
    lock(shared).errors.clone()
}

/// How far finding GPUs has come.
pub(super) fn search(shared: &Shared) -> Search {
    lock(shared).search.clone()
}

/// Waits for the lanes; the library is closed only if none is stuck in it.
pub(super) fn close(shared: &Shared, patience: Duration) {
    let threads = std::mem::take(&mut lock(shared).threads);
    // One limit for all: with every lane stuck the agent still ends in time.
    let begun = system_now();
    let ended = threads
        .iter()
        .filter(|thread| thread.wait(patience.saturating_sub(system_now().since(begun).duration())))
        .count();
    let library = lock(shared).library.take();
    if ended == threads.len() {
        if let Some(library) = library {
            Library::close(library);
        }
    } else {
        // A shutdown would wait for the stuck call.
        tracing::warn!(
            stuck = threads.len() - ended,
            "driver calls have not returned; leaving without shutdown"
        );
        std::mem::forget(library);
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Lanes> {
    shared.lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enumerate(path: Option<PathBuf>, cadence: Cadence, shared: &Arc<Shared>) {
    let slot = CallSlot::default();
    let (library, found) = loop {
        match look(path.as_ref(), &slot, shared) {
            Ok(seen) => break seen,
            Err(reason) => {
                if lock(shared).search == Search::Pending {
                    tracing::warn!(
                        reason,
                        "no GPU can be read; the agent serves its own health and looks again"
                    );
                }
                lock(shared).search = Search::Failed;
            }
        }
        let again = shared.clock.now().boottime + LOOK_AGAIN;
        if !shared.clock.wait_until(again, &shared.stop, || {}) {
            return;
        }
    };
    shared.simulated.store(library.is_simulated(), Ordering::Relaxed);
    tracing::info!(gpus = found.len(), simulated = library.is_simulated(), "driver library opened");
    for gpu in &found {
        // The pulse ends after the lanes are told to; then nobody listens.
        let _ = shared.news.send(News::Found(gpu.id.clone()));
    }
    let _ = shared.news.send(News::Counted);
    lock(shared).search = Search::Found(found.len());
    for gpu in &found {
        if let Err(error) = start_lane(&library, gpu, cadence, shared) {
            tracing::error!(%error, "a GPU is not read");
        }
    }
    let events = Events::register(&library, &found, slot, shared.clock.clone());
    lock(shared).library = Some(Arc::clone(&library));
    drop(library);
    match events {
        Ok(events) => listen(events, shared),
        Err(absence) => tracing::warn!(reason = absence.reason(), "XIDs cannot be heard from the driver"),
    }
}

fn look(
    path: Option<&PathBuf>,
    slot: &CallSlot,
    shared: &Shared,
) -> Result<(Arc<Library>, Vec<Found>), String> {
    let library = Library::open(path.map(PathBuf::as_path)).map_err(|error| {
        // A simulated library says in a file beside it what it could not tell by a return code.
        let told = path.and_then(|path| std::fs::read_to_string(path.with_file_name("error")).ok());
        format!("{error}{}", told.map(|text| format!(" ({})", text.trim())).unwrap_or_default())
    })?;
    match find(&library, slot, &shared.clock) {
        Ok(found) => Ok((library, found)),
        Err(absence) => {
            Library::close(library);
            Err(format!("the driver does not count its GPUs: {}", absence.reason()))
        }
    }
}

fn listen(mut events: Events, shared: &Shared) {
    while !shared.stop.is_called() {
        match events.wait() {
            Ok(Some(event)) => {
                tracing::warn!(uuid = %event.uuid, xid = event.xid, "XID");
                lock(shared).xids.push(event);
            }
            Ok(None) => {}
            Err(absence) => {
                count(shared, "events".into(), absence.reason());
                // An event set that fails at once would spin.
                shared.stop.wait(Duration::from_secs(1));
            }
        }
    }
    events.free();
}

fn start_lane(
    library: &Arc<Library>,
    found: &Found,
    cadence: Cadence,
    shared: &Arc<Shared>,
) -> Result<(), StartError> {
    let slot = CallSlot::default();
    let lane = Lane::new(Arc::clone(library), found, slot.clone(), shared.clock.clone(), cadence.level);
    lock(shared).slots.insert(Arc::clone(&found.id.uuid), slot);
    let shared_by_thread = Arc::clone(shared);
    let thread = Thread::start("lane", move || sample(lane, cadence, &shared_by_thread))?;
    lock(shared).threads.push(thread);
    Ok(())
}

/// The lane thread: reads at every multiple of the interval, from the start on.
fn sample(mut lane: Lane, cadence: Cadence, shared: &Shared) {
    let collector: Arc<str> = format!("gpu{}", lane.gpu().index).into();
    let gpu = lane.gpu().clone();
    let mut tick: u64 = 0;
    while !shared.stop.is_called() {
        let begun = shared.clock.now().boottime;
        let due = cadence.every.map(|every| tick.is_multiple_of(every));
        // The lane is whole after a panic: its readings may be half new, and the next plan replaces them.
        match catch_unwind(AssertUnwindSafe(|| lane.tick(due))) {
            Ok(answer) => deliver(&mut lane, &gpu, answer, begun, cadence, (&collector, shared)),
            Err(_) => {
                count(shared, Arc::clone(&collector), "panic");
                lane.forget_plan();
            }
        }
        tick += 1;
        let next = next_multiple(shared.clock.now().boottime, cadence.interval);
        if !shared.clock.wait_until(next, &shared.stop, || {}) {
            return;
        }
    }
}

fn deliver(
    lane: &mut Lane,
    gpu: &GpuId,
    answer: Result<crate::model::Frame, Absence>,
    begun: Nanoseconds,
    cadence: Cadence,
    (collector, shared): (&Arc<str>, &Shared),
) {
    let took = shared.clock.now().boottime.0.saturating_sub(begun.0);
    let news = match answer {
        // A frame that took two ticks is older than what may be shown, and its span is already closed.
        Ok(_) if took > 2 * cadence.interval.0 => {
            lane.forget_plan();
            count(shared, Arc::clone(collector), "late");
            return;
        }
        Ok(frame) => {
            let pids = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
            shared.identities.see(pids);
            News::Frame(Box::new(frame))
        }
        Err(absence) => {
            count(shared, Arc::clone(collector), absence.reason());
            if absence != Absence::Lost {
                return;
            }
            News::Lost(gpu.clone())
        }
    };
    // The pulse ends after the lanes are told to; then nobody listens.
    let _ = shared.news.send(news);
}

fn count(shared: &Shared, collector: Arc<str>, reason: &'static str) {
    *lock(shared).errors.entry((collector, reason)).or_default() += 1;
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
