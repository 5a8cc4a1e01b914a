//! Whether the driver may be open: the operator's orders, and the phase of the thread that opens and closes it.
//!
//! An order waits for that thread, with a limit; the thread waits for no order. A release ends after a limited time, so
//! that a forgotten agent uses the driver again by itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Stop, system_now};
use crate::export::Release;
use crate::model::{Nanoseconds, Utc};

/// How long a release may take: the last call of a sampler, the end of its plan, and the shutdown of the library.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// What the thread that opens and closes the driver is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum DriverPhase {
    /// Nothing of the driver is open.
    #[default]
    Closed,
    /// The library is opened, or tried again from time to time.
    Opening,
    Open,
    Closing,
    /// These calls have not returned, so the library cannot be closed.
    Stuck(Vec<String>),
}

/// The operator's orders.
#[derive(Default)]
pub(crate) struct Orders {
    state: Mutex<OrderState>,
    changed: Condvar,
}

#[derive(Default)]
struct OrderState {
    phase: DriverPhase,
    /// When the release ends, by the system's boot clock.
    until: Option<Nanoseconds>,
    /// Who asked for that: a Unix user id.
    user: u32,
    /// Ends what is open, or the wait while nothing may be.
    end: Stop,
}

impl Orders {
    /// Whether the driver is closed on request.
    pub(crate) fn is_released(&self) -> bool {
        let state = self.lock();
        state.until.is_some() && state.phase == DriverPhase::Closed
    }

    /// Until when the driver is released, and who asked for it; absent while it is not released.
    pub(crate) fn release(&self) -> Option<Release> {
        let state = self.lock();
        let until = state.until.filter(|_| state.phase == DriverPhase::Closed)?;
        let now = system_now();
        let left = until.0.saturating_sub(now.boottime.0);
        Some(Release { until: Utc(now.utc.0.saturating_add(left)), user: state.user })
    }

    /// Closes the driver and keeps it closed for `span`; returns once it is closed. The error names the calls that have not
    /// returned; then the driver is used again.
    pub(crate) fn release_driver(&self, span: Nanoseconds, user: u32) -> Result<(), String> {
        let mut state = self.lock();
        state.user = user;
        if state.phase == DriverPhase::Closed {
            state.until = Some(system_now().boottime + span);
            return Ok(());
        }
        // A short release would be over before everything is closed.
        let longest = Nanoseconds(u64::try_from(RELEASE_TIMEOUT.as_nanos()).unwrap_or(u64::MAX));
        state.until = Some(system_now().boottime + longest + span);
        state.end.call();
        let open =
            |state: &mut OrderState| !matches!(state.phase, DriverPhase::Closed | DriverPhase::Stuck(_));
        let waited = self.changed.wait_timeout_while(state, RELEASE_TIMEOUT, open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let problem = match &state.phase {
            DriverPhase::Closed => {
                state.until = Some(system_now().boottime + span);
                return Ok(());
            }
            DriverPhase::Stuck(calls) => format!("has not returned from {}", calls.join(", ")),
            DriverPhase::Opening => "is being opened, and its initialisation has not returned".to_owned(),
            DriverPhase::Open | DriverPhase::Closing => "is not closed in time".to_owned(),
        };
        state.until = None;
        state.end.call();
        Err(format!(
            "the driver {problem}, so it was not released: look for NVRM and Xid lines in the kernel log"
        ))
    }

    /// Uses the driver again; whether it was released.
    pub(crate) fn resume(&self) -> bool {
        let mut state = self.lock();
        let was_released = state.until.take().is_some();
        if was_released {
            state.end.call();
        }
        was_released
    }

    /// Waits until the driver may be opened; out comes what ends it. None when the agent stops.
    pub(crate) fn may_open(&self, stop: &Stop) -> Option<Stop> {
        const LOOK: Duration = Duration::from_secs(1);
        loop {
            let end = stop.part();
            let mut state = self.lock();
            state.end = end.clone();
            let left = state.until.map(|until| until.0.saturating_sub(system_now().boottime.0));
            match left {
                Some(left) if left > 0 => {
                    if !matches!(state.phase, DriverPhase::Stuck(_)) {
                        self.enter(&mut state, DriverPhase::Closed);
                    }
                    drop(state);
                    end.wait(Duration::from_nanos(left).min(LOOK));
                }
                _ => {
                    state.until = None;
                    self.enter(&mut state, DriverPhase::Opening);
                    drop(state);
                }
            }
            if stop.is_called() {
                return None;
            }
            if left.is_none_or(|left| left == 0) {
                return Some(end);
            }
        }
    }

    pub(crate) fn opened(&self) {
        self.enter(&mut self.lock(), DriverPhase::Open);
    }

    pub(crate) fn closing(&self) {
        self.enter(&mut self.lock(), DriverPhase::Closing);
    }

    pub(crate) fn closed(&self) {
        self.enter(&mut self.lock(), DriverPhase::Closed);
    }

    /// The library stays open, since these calls have not returned.
    pub(crate) fn stuck(&self, calls: Vec<String>) {
        self.enter(&mut self.lock(), DriverPhase::Stuck(calls));
    }

    fn enter(&self, state: &mut OrderState, phase: DriverPhase) {
        state.phase = phase;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const HOUR: Nanoseconds = Nanoseconds::from_seconds(3_600);

    #[test]
    fn a_release_ends_the_session_and_waits_for_its_end() {
        let (orders, stop) = (Orders::default(), Stop::default());
        let end = orders.may_open(&stop).unwrap();
        orders.opened();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(HOUR, 0));
            while !end.wait(Duration::from_secs(1)) {}
            assert!(!orders.is_released());
            orders.closed();
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert!(orders.is_released());
        let release = orders.release().unwrap();
        assert!(release.until > system_now().utc);
        assert_eq!(release.user, 0);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| orders.may_open(&stop).is_some());
            assert!(orders.resume());
            assert!(!orders.resume(), "it is not released any more");
            assert!(opener.join().unwrap());
        });
        assert!(!orders.is_released());
    }

    #[test]
    fn the_time_needed_to_close_is_no_part_of_the_release() {
        let (orders, stop) = (Orders::default(), Stop::default());
        let end = orders.may_open(&stop).unwrap();
        orders.opened();
        let span = Nanoseconds(1_000_000);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(span, 0));
            while !end.wait(Duration::from_secs(1)) {}
            // The last call of a sampler takes longer than the release.
            std::thread::sleep(Duration::from_millis(20));
            orders.closing();
            orders.closed();
            assert!(orders.is_released());
            let opener = scope.spawn(|| orders.may_open(&stop).is_some());
            assert_eq!(asked.join().unwrap(), Ok(()));
            assert!(opener.join().unwrap(), "and then it is over");
        });
    }

    #[test]
    fn what_is_stuck_is_told_and_the_driver_is_taken_up_again() {
        let (orders, stop) = (Orders::default(), Stop::default());
        orders.may_open(&stop).unwrap();
        orders.opened();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(HOUR, 0));
            orders.stuck(vec!["GPU 3 in nvmlDeviceGetTemperature".into()]);
            let told = asked.join().unwrap().unwrap_err();
            assert!(told.contains("GPU 3 in nvmlDeviceGetTemperature"), "{told}");
        });
        assert!(orders.may_open(&stop).is_some());
    }

    #[test]
    fn it_is_taken_up_again_by_itself_and_not_when_the_agent_stops() {
        let (orders, stop) = (Orders::default(), Stop::default());
        orders.release_driver(Nanoseconds(1_000_000), 0).unwrap();
        assert!(orders.may_open(&stop).is_some());
        orders.closed();
        orders.release_driver(HOUR, 0).unwrap();
        stop.call();
        assert!(orders.may_open(&stop).is_none());
    }
}
