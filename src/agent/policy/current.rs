//! The settings that hold now, shared by all threads; a reload replaces them as a whole.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{AgentPolicy, ResolvedGrantees};
use crate::model::{HowHeld, Nanoseconds};
use crate::runtime::clock::{Clock, Stop};

pub(crate) struct CurrentPolicy(Mutex<Arc<AgentPolicy>>);

impl CurrentPolicy {
    pub(crate) fn new(policy: AgentPolicy) -> Self {
        Self(Mutex::new(Arc::new(policy)))
    }

    pub(crate) fn now(&self) -> Arc<AgentPolicy> {
        Arc::clone(&self.0.lock())
    }

    /// Sets other settings; a scheduler that was found before stays found.
    pub(crate) fn replace(&self, next: AgentPolicy) {
        let mut current = self.0.lock();
        let next = match current.scheduler {
            Some(found) => next.with_scheduler(found),
            None => next,
        };
        *current = Arc::new(next);
    }

    /// Records that a scheduler grants GPUs on this node. Returns how they are held from now on, where that turns presence
    /// off.
    pub(crate) fn find_scheduler(&self) -> Option<HowHeld> {
        let mut current = self.0.lock();
        if current.scheduler.is_some() {
            return None;
        }
        let was_by_presence = current.how_held().is_by_presence();
        let next = (**current).clone().with_scheduler(HowHeld::Scheduled);
        let how_held = next.how_held();
        *current = Arc::new(next);
        (was_by_presence && !how_held.is_by_presence()).then_some(how_held)
    }

    /// Sets names of users and members of groups in the grants of the configuration.
    pub(crate) fn resolve_grants(&self, resolved: &ResolvedGrantees) {
        let mut current = self.0.lock();
        if let Some(next) = current.with_grantees(resolved) {
            *current = Arc::new(next);
        }
    }

    /// Waits until the clock shows `wait.until`, or until other settings hold than those of the waiting thread; false if `end`
    /// was called first.
    pub(crate) fn wait_until(
        &self,
        clock: &Clock,
        waited_by: &Arc<AgentPolicy>,
        end: &Stop,
        mut wait: Wait<impl FnMut()>,
    ) -> bool {
        loop {
            let next = clock.now().boottime + wait.every;
            if !clock.wait_until(wait.until.min(next), end, &mut wait.notify) {
                return false;
            }
            if wait.until <= next || !Arc::ptr_eq(&self.now(), waited_by) {
                return true;
            }
        }
    }
}

pub(crate) struct Wait<F> {
    pub(crate) until: Nanoseconds,
    pub(crate) every: Nanoseconds,
    /// Called while waiting, to show that the thread is alive.
    pub(crate) notify: F,
}
