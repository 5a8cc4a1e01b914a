//! One session of the driver library: its samplers, what ends it, and its end.
//!
//! Only what the driver learns at its initialisation needs another session; it costs every GPU about a tick without
//! readings. [`OpenSession::is_to_continue`] is the one place that decides it.
//!
//! | state | what happens |
//! |---|---|
//! | every sampler reports that the driver is gone, or every call has failed for 10 s | another session, once stuck samplers have returned; the GPUs count as reset |
//! | a GPU came to the bus, or the driver counts another number, or has another GPU in place of a lost one | another session |
//! | the operator orders a release, or the agent stops | the session ends |
//! | a GPU is lost or reset, its MIG layout changes, the level changes, a tick panics or is late | that GPU's plan is compiled again by its own sampler (`sampler.rs`) |
//! | a sampler is stuck in a call when a session ends | its library stays open and the next session uses it; the GPU gets another sampler once the call returns |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::orders::DriverPhase;
use super::search::Opened;
use super::{DriverSessions, POLL_INTERVAL, SamplerThread, Search};
use crate::driver::nvml::{CallSlot, Library, count, find};
use crate::holders::host::Pci;
use crate::meter::SamplerNews;
use crate::model::{Absence, Nanoseconds};
use crate::runtime::clock::{Stop, system_now};

const RECOUNT_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// How long every call may fail before the driver is closed; an unloaded driver returns nothing but errors.
const SILENCE: Nanoseconds = Nanoseconds::from_seconds(10);

/// The kernel's driver, by its name on the bus.
const DRIVER: &str = "nvidia";

/// How long to wait after a session in which the driver returned nothing but errors.
const PAUSE: Duration = Duration::from_secs(1);

/// How long samplers may take to end; a GSP that does not answer takes 45 s for each call.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT_AT_EXIT: Duration = Duration::from_millis(400);

#[derive(Default)]
pub(crate) struct DriverState {
    /// A library that could not be closed, with the samplers that are stuck in it.
    pub(crate) kept: Option<Opened>,
    stuck: Vec<SamplerThread>,
    /// Identifies the loading of the driver's module that the last session used.
    module: Option<u64>,
    pub(crate) was_open: bool,
    /// Whether the last session ended because the driver returned nothing but errors.
    has_failed: bool,
    /// Whether the driver was or may have been unloaded since the last session; its counters then restart at 0.
    pub(crate) unloaded: bool,
}

pub(crate) struct OpenSession<'a> {
    library: Arc<Library>,
    counted: u32,
    samplers: Vec<SamplerThread>,
    end: &'a Stop,
    slot: &'a CallSlot,
    shared: &'a Arc<DriverSessions>,
    /// When to count the GPUs again, by the system's boot clock.
    recount: Nanoseconds,
    /// Since when every call of every sampler has failed.
    failing_since: Option<Nanoseconds>,
    bus: Option<Arc<Pci>>,
}

impl DriverState {
    /// Closes a library that returned nothing but errors, once the samplers that are stuck in it have returned;
    /// false when `end` was called before. Any other library that could not be closed is used again.
    pub(crate) fn close_failed_library(&mut self, end: &Stop) -> bool {
        if !self.has_failed {
            return true;
        }
        end.wait(PAUSE);
        while !self.stuck.iter().all(|sampler| sampler.thread.wait(Duration::ZERO)) {
            if end.wait(POLL_INTERVAL) {
                return false;
            }
        }
        for sampler in self.stuck.drain(..) {
            sampler.thread.join();
        }
        self.kept = None;
        true
    }

    /// Reports to the orders that the driver is closed, or which calls are stuck.
    pub(crate) fn report_closed(&self, shared: &DriverSessions) {
        shared.orders.set_phase(if self.stuck.is_empty() {
            DriverPhase::Closed
        } else {
            DriverPhase::Stuck(self.stuck.iter().map(SamplerThread::call).collect())
        });
    }

    /// Begins a session: starts a sampler for every counted GPU, unless it has one that is stuck.
    pub(crate) fn begin<'a>(
        &mut self,
        opened: Opened,
        end: &'a Stop,
        slot: &'a CallSlot,
        shared: &'a Arc<DriverSessions>,
    ) -> OpenSession<'a> {
        let Opened { library, gpus: counted, was_unloaded } = opened;
        self.unloaded |= was_unloaded;
        // A library that was kept has counted all its GPUs, also those whose samplers are stuck.
        if self.stuck.is_empty() {
            let module = shared.host.module_epoch();
            let anew = self.was_open && (self.unloaded || module != self.module);
            (self.module, self.has_failed, self.unloaded, self.was_open) = (module, false, false, true);
            shared.send(SamplerNews::Opened { anew, module });
        }
        let mut samplers = shared.samplers.lock();
        samplers.search = Search::Found(counted as usize);
        samplers.unidentified_gpus = 0;
        samplers.absences.clear();
        samplers.unregistered.clear();
        drop(samplers);
        let recount = system_now().boottime + RECOUNT_INTERVAL;
        let mut session = OpenSession {
            library,
            counted,
            samplers: Vec::new(),
            end,
            slot,
            shared,
            recount,
            failing_since: None,
            bus: None,
        };
        let stuck: BTreeSet<u32> = self.stuck.iter().map(|sampler| sampler.index).collect();
        for index in (0..counted).filter(|index| !stuck.contains(index)) {
            session.start(index);
        }
        session
    }

    /// Waits for the samplers, and closes the library if none is stuck in it.
    pub(crate) fn end(&mut self, session: OpenSession<'_>) {
        let OpenSession { library, counted, samplers, shared, end, .. } = session;
        end.call();
        shared.orders.set_phase(DriverPhase::Closing);
        let timeout = if shared.stop.is_called() { CLOSE_TIMEOUT_AT_EXIT } else { CLOSE_TIMEOUT };
        let begun = system_now();
        for sampler in samplers.into_iter().chain(std::mem::take(&mut self.stuck)) {
            // One limit for all: with every sampler stuck it still ends in time.
            if sampler.thread.wait(timeout.saturating_sub(system_now().since(begun).duration())) {
                shared.samplers.lock().remove(&sampler);
                sampler.thread.join();
            } else {
                self.stuck.push(sampler);
            }
        }
        shared.samplers.lock().search = Search::Pending;
        if self.stuck.is_empty() {
            // The last reference: this shuts the library down and unmaps it.
            drop(library);
            return self.report_closed(shared);
        }
        let calls: Vec<String> = self.stuck.iter().map(SamplerThread::call).collect();
        tracing::warn!(
            stuck = calls.join(", "),
            "driver calls have not returned; the driver library stays open"
        );
        if shared.stop.is_called() {
            // A shutdown would wait for the stuck call.
            std::mem::forget(library);
        } else {
            self.kept = Some(Opened { library, gpus: counted, was_unloaded: false });
        }
        self.report_closed(shared);
    }
}

impl OpenSession<'_> {
    fn start(&mut self, index: u32) {
        match SamplerThread::start(&self.library, index, self.end, self.shared) {
            Ok(sampler) => self.samplers.push(sampler),
            Err(error) => {
                tracing::error!(%error, index, "the sampler thread of a GPU could not be started; the GPU is not read")
            }
        }
    }

    /// Checks the session; false when it must end. Called a few times a second.
    pub(crate) fn is_to_continue(&mut self, driver: &mut DriverState) -> bool {
        if self.end.is_called() {
            return false;
        }
        self.replace_returned(driver);
        let reason = if self.has_driver_failed(driver) {
            driver.has_failed = true;
            "every driver call fails on every GPU"
        } else if self.has_other_gpus() {
            "the set of GPUs on this node has changed"
        } else {
            return true;
        };
        tracing::warn!("{reason}; the driver library is closed and opened again");
        false
    }

    /// Whether every sampler reports that the driver is gone, or all calls have failed for a while.
    fn has_driver_failed(&mut self, driver: &mut DriverState) -> bool {
        let now = system_now().boottime;
        let samplers = self.shared.samplers.lock();
        let all = self.samplers.len();
        let count = |absence| samplers.absences.values().filter(|one| **one == absence).count();
        let gone = count(Absence::DriverGone);
        let failed = gone + count(Absence::Failed);
        drop(samplers);
        driver.unloaded |= gone > 0 && gone >= all;
        self.failing_since = self.failing_since.or(Some(now)).filter(|_| failed > 0 && failed >= all);
        driver.unloaded || self.failing_since.is_some_and(|since| now.0 - since.0 >= SILENCE.0)
    }

    /// Replaces samplers that were stuck at the end of the last session and have returned.
    fn replace_returned(&mut self, driver: &mut DriverState) {
        let stuck = std::mem::take(&mut driver.stuck);
        for sampler in stuck {
            if sampler.thread.wait(Duration::ZERO) {
                self.shared.samplers.lock().remove(&sampler);
                sampler.thread.join();
                self.start(sampler.index);
            } else {
                driver.stuck.push(sampler);
            }
        }
    }

    /// Whether the driver or the bus has other GPUs than this session reads. The driver counts what it saw at
    /// its initialisation, so a GPU that comes to the bus is only counted when it is opened anew; that costs
    /// every GPU about a tick without readings.
    fn has_other_gpus(&mut self) -> bool {
        if self.has_new_gpu_on_bus() {
            return true;
        }
        let now = system_now().boottime;
        if now < self.recount {
            return false;
        }
        self.recount = now + RECOUNT_INTERVAL;
        let clock = &self.shared.clock;
        let counted = count(&self.library, self.slot, clock);
        if counted.is_ok_and(|counted| counted != self.counted) {
            return true;
        }
        let absences = self.shared.samplers.lock().absences.clone();
        let mut lost = absences.into_iter().filter(|(_, absence)| *absence == Absence::Lost);
        lost.any(|(index, _)| {
            find(&self.library, index, self.slot, clock)
                .is_ok_and(|found| !self.shared.samplers.lock().slots.contains_key(&found.id.uuid))
        })
    }

    fn has_new_gpu_on_bus(&mut self) -> bool {
        let now = self.shared.processes.pci();
        let before = std::mem::replace(&mut self.bus, now.clone());
        let (Some(before), Some(now)) = (before, now) else { return false };
        if Arc::ptr_eq(&before, &now) {
            return false;
        }
        let known: BTreeSet<_> = before.bound_to(DRIVER).collect();
        now.bound_to(DRIVER).any(|gpu| !known.contains(&gpu))
    }
}
