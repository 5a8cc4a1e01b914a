//! One opening of the driver library: its lanes, what ends it, and its end.
//!
//! A session ends when the agent stops, when the operator asks, when every lane says that the driver is gone,
//! or when there are other GPUs than it knows. A lane that is stuck in a call is left alone and named; the
//! library it is in then stays open, and the next session goes on with it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Cadence, LaneThread, Search, lock, start_lane};
use crate::app::Shared;
use crate::clock::{Stop, system_now};
use crate::meter::News;
use crate::model::Nanoseconds;
use crate::nvml::{CallSlot, Library, count, find};

/// How often it is looked whether there are other GPUs.
const RECOUNT: Nanoseconds = Nanoseconds::from_seconds(10);

/// How long lanes may take to end; a GSP that does not answer takes 45 s for each call.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_AT_EXIT: Duration = Duration::from_millis(400);

/// What outlives a session.
#[derive(Default)]
pub(super) struct Driver {
    /// A library that could not be closed, with the lanes that are stuck in it.
    kept: Option<(Arc<Library>, u32)>,
    stuck: Vec<LaneThread>,
    /// Which loading of the kernel's module the last session saw.
    epoch: Option<u64>,
    /// Whether there was a session.
    pub(super) was_open: bool,
    /// Whether the last one ended because the driver was gone.
    died: bool,
}

/// A library that is open.
pub(super) struct Session<'a> {
    library: Arc<Library>,
    counted: u32,
    lanes: Vec<LaneThread>,
    cadence: Cadence,
    end: &'a Stop,
    slot: &'a CallSlot,
    shared: &'a Arc<Shared>,
    /// When to look for other GPUs, by the system's boot clock.
    recount: Nanoseconds,
    /// The PCI addresses that were bound to the driver at the last look.
    bound: Option<BTreeSet<Arc<str>>>,
}

impl Driver {
    /// The library that could not be closed, if it may be gone on with; a dead one is closed first, which
    /// waits for the lanes that are stuck in it. None within when `end` was called.
    pub(super) fn kept(&mut self, end: &Stop) -> Option<Option<(Arc<Library>, u32)>> {
        const LOOK: Duration = Duration::from_millis(200);
        if !self.died {
            return Some(self.kept.take());
        }
        while !self.stuck.iter().all(|lane| lane.thread.wait(Duration::ZERO)) {
            if end.wait(LOOK) {
                return None;
            }
        }
        for lane in self.stuck.drain(..) {
            lane.thread.join();
        }
        self.kept = None;
        Some(None)
    }

    /// Tells the orders whether nothing is open, or what is stuck.
    pub(super) fn tell(&self, shared: &Shared) {
        if self.stuck.is_empty() {
            shared.orders.closed();
        } else {
            shared.orders.stuck(self.stuck.iter().map(LaneThread::call).collect());
        }
    }

    /// Begins a session: a lane for every GPU that is counted and has none that is stuck.
    pub(super) fn begin<'a>(
        &mut self,
        (library, counted): (Arc<Library>, u32),
        cadence: Cadence,
        (end, slot): (&'a Stop, &'a CallSlot),
        shared: &'a Arc<Shared>,
    ) -> Session<'a> {
        // A library that was kept has counted once for all, those too whose lanes are stuck.
        if self.stuck.is_empty() {
            let epoch = shared.host.module_epoch();
            let anew = self.was_open && (self.died || epoch != self.epoch);
            (self.epoch, self.died, self.was_open) = (epoch, false, true);
            // The pulse ends after the lanes are told to; then nobody listens.
            let _ = shared.news.send(News::Opened { anew });
        }
        let mut lanes = lock(shared);
        lanes.search = Search::Found(counted as usize);
        lanes.mute = 0;
        lanes.gone.clear();
        lanes.lost.clear();
        lanes.unheard.clear();
        drop(lanes);
        let recount = system_now().boottime + RECOUNT;
        let mut session =
            Session { library, counted, lanes: Vec::new(), cadence, end, slot, shared, recount, bound: None };
        let stuck: BTreeSet<u32> = self.stuck.iter().map(|lane| lane.index).collect();
        for index in (0..counted).filter(|index| !stuck.contains(index)) {
            session.start(index);
        }
        session
    }

    /// Waits for the lanes, and closes the library if none is stuck in it.
    pub(super) fn end(&mut self, session: Session<'_>) {
        let Session { library, counted, lanes, shared, end, .. } = session;
        end.call();
        shared.orders.closing();
        let patience = if shared.stop.is_called() { PATIENCE_AT_EXIT } else { PATIENCE };
        let begun = system_now();
        for lane in lanes.into_iter().chain(std::mem::take(&mut self.stuck)) {
            // One limit for all: with every lane stuck it still ends in time.
            if lane.thread.wait(patience.saturating_sub(system_now().since(begun).duration())) {
                lock(shared).part(&lane);
                lane.thread.join();
            } else {
                self.stuck.push(lane);
            }
        }
        lock(shared).search = Search::Pending;
        if self.stuck.is_empty() {
            // The last reference: this shuts the library down and unmaps it.
            drop(library);
            return self.tell(shared);
        }
        let calls: Vec<String> = self.stuck.iter().map(LaneThread::call).collect();
        tracing::warn!(stuck = calls.join(", "), "driver calls have not returned; the library is not closed");
        if shared.stop.is_called() {
            // A shutdown would wait for the stuck call.
            std::mem::forget(library);
        } else {
            self.kept = Some((library, counted));
        }
        self.tell(shared);
    }
}

impl Session<'_> {
    fn start(&mut self, index: u32) {
        match start_lane(&self.library, index, self.cadence, self.end, self.shared) {
            Ok(lane) => self.lanes.push(lane),
            Err(error) => tracing::error!(%error, index, "a GPU is not read"),
        }
    }

    /// Looks after the session; false when it is to end. Called a few times a second.
    pub(super) fn goes_on(&mut self, driver: &mut Driver) -> bool {
        if self.end.is_called() {
            return false;
        }
        if !self.lanes.is_empty() && lock(self.shared).gone.len() >= self.lanes.len() {
            tracing::warn!("the driver is gone: no GPU can be read until it is loaded again");
            driver.died = true;
            return false;
        }
        self.revive(driver);
        if self.is_changed() {
            tracing::info!("there are other GPUs than before; the driver is opened again");
            return false;
        }
        true
    }

    /// A lane that was stuck when the library should have been closed has come back: another takes its place.
    fn revive(&mut self, driver: &mut Driver) {
        let stuck = std::mem::take(&mut driver.stuck);
        for lane in stuck {
            if lane.thread.wait(Duration::ZERO) {
                lock(self.shared).part(&lane);
                lane.thread.join();
                self.start(lane.index);
            } else {
                driver.stuck.push(lane);
            }
        }
    }

    /// Whether the driver or the bus has other GPUs than this session reads. The driver counts what it saw at
    /// its initialisation, so a GPU that comes to the bus is only counted when it is opened anew; that costs
    /// every GPU about a tick without readings.
    fn is_changed(&mut self) -> bool {
        let now = system_now().boottime;
        if now < self.recount {
            return false;
        }
        self.recount = now + RECOUNT;
        let clock = &self.shared.clock;
        let counted = count(&self.library, self.slot, clock);
        if counted.is_ok_and(|counted| counted != self.counted) {
            return true;
        }
        let lost: Vec<u32> = lock(self.shared).lost.iter().copied().collect();
        let replaced = lost.into_iter().any(|index| {
            find(&self.library, index, self.slot, clock)
                .is_ok_and(|found| !lock(self.shared).slots.contains_key(&found.id.uuid))
        });
        replaced || self.has_arrived()
    }

    fn has_arrived(&mut self) -> bool {
        let Some(pci) = self.shared.identities.pci() else { return false };
        let bound: BTreeSet<Arc<str>> = pci.bound_to("nvidia").map(Arc::clone).collect();
        let arrived = self.bound.as_ref().is_some_and(|before| bound.difference(before).next().is_some());
        self.bound = Some(bound);
        arrived
    }
}
