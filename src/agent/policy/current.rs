//! The configuration in force, shared by all threads; a reload replaces it as a whole.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{ActiveConfig, ResolvedGrantees};
use crate::model::{HowHeld, Nanoseconds};
use crate::runtime::clock::{Clock, Stop};

/// The configuration in force.
pub(crate) struct CurrentConfig {
    active: Mutex<Arc<ActiveConfig>>,
}

impl CurrentConfig {
    pub(crate) fn new(active: ActiveConfig) -> Self {
        Self { active: Mutex::new(Arc::new(active)) }
    }

    /// The configuration in force.
    pub(crate) fn active(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.active.lock())
    }

    /// Sets another configuration; a scheduler that was found before stays found.
    pub(crate) fn replace(&self, next: ActiveConfig) {
        let mut active = self.active.lock();
        let next = match active.scheduler {
            Some(found) => next.with_scheduler(found),
            None => next,
        };
        *active = Arc::new(next);
    }

    /// Records that a scheduler grants GPUs on this node. Returns how they are held from now on, where that turns presence
    /// off.
    pub(crate) fn find_scheduler(&self) -> Option<HowHeld> {
        let mut active = self.active.lock();
        if active.scheduler.is_some() {
            return None;
        }
        let was_by_presence = active.how_held().is_by_presence();
        let next = (**active).clone().with_scheduler(HowHeld::Scheduled);
        let how_held = next.how_held();
        *active = Arc::new(next);
        (was_by_presence && !how_held.is_by_presence()).then_some(how_held)
    }

    /// Sets names of users and members of groups in the grants of the configuration.
    pub(crate) fn resolve_grants(&self, resolved: &ResolvedGrantees) {
        let mut active = self.active.lock();
        if let Some(next) = active.with_grantees(resolved) {
            *active = Arc::new(next);
        }
    }

    /// Waits until the clock shows `wait.until`, or until the sampling schedule is no longer that of `waited_by`; false
    /// if `end` was called first.
    pub(crate) fn wait_until(
        &self,
        clock: &Clock,
        waited_by: &ActiveConfig,
        end: &Stop,
        mut wait: Wait<impl FnMut()>,
    ) -> bool {
        loop {
            let next = clock.now().boottime + wait.every;
            if !clock.wait_until(wait.until.min(next), end, &mut wait.notify) {
                return false;
            }
            if wait.until <= next || self.active().cadence != waited_by.cadence {
                return true;
            }
        }
    }
}

/// How long to wait, and what to call meanwhile.
pub(crate) struct Wait<F> {
    pub(crate) until: Nanoseconds,
    /// The longest time between two calls of `notify`.
    pub(crate) every: Nanoseconds,
    /// Called while waiting, to show that the thread is alive.
    pub(crate) notify: F,
}
