//! Whether the driver may be open: orders of `gpumeter quiesce` (here: release) and `gpumeter resume`, and the phase of the
//! thread that opens and closes the driver.
//!
//! A release waits up to `RELEASE_TIMEOUT` for that thread to close the driver; the thread never waits for a caller. A
//! release ends after a limited time, so that a forgotten agent uses the driver again by itself.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::model::{Nanoseconds, Release, Utc};
use crate::runtime::clock::{Stop, system_now};

/// How long a release may take: the last call of a sampler, the end of its plan, and the shutdown of the library.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DriverPhase {
    #[default]
    Closed,
    /// The library is being opened; a failure is tried again.
    Opening,
    Open,
    Closing,
    /// These calls have not returned, so the library cannot be closed.
    Stuck(Vec<String>),
}

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
    /// The Unix user id of the operator who ordered the release.
    user: u32,
    /// Ends the open session, or the wait of a release.
    end: Stop,
}

impl Orders {
    /// The end of the release, and who ordered it; none while the driver is not closed for one.
    pub(crate) fn release(&self) -> Option<Release> {
        let state = self.state.lock();
        let until = state.until.filter(|_| state.phase == DriverPhase::Closed)?;
        let now = system_now();
        let left = until.0.saturating_sub(now.boottime.0);
        Some(Release { until: Utc(now.utc.0.saturating_add(left)), user: state.user })
    }

    /// Closes the driver and keeps it closed for `span`; returns once it is closed. The error names the calls that have not
    /// returned; then the driver is used again.
    pub(crate) fn release_driver(&self, span: Nanoseconds, user: u32) -> Result<(), String> {
        let mut state = self.state.lock();
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
        self.changed.wait_while_for(&mut state, open, RELEASE_TIMEOUT);
        let problem = match &state.phase {
            DriverPhase::Closed => {
                state.until = Some(system_now().boottime + span);
                return Ok(());
            }
            DriverPhase::Stuck(calls) => format!("has not returned from {}", calls.join(", ")),
            DriverPhase::Opening => "is being opened, and its initialisation has not returned".to_owned(),
            DriverPhase::Open | DriverPhase::Closing => {
                format!("library was not closed within {} s", RELEASE_TIMEOUT.as_secs())
            }
        };
        state.until = None;
        state.end.call();
        Err(format!(
            "the driver {problem}, so the driver was not released: look for NVRM and Xid lines in the kernel log"
        ))
    }

    /// Uses the driver again; whether it was released.
    pub(crate) fn resume(&self) -> bool {
        let mut state = self.state.lock();
        let was_released = state.until.take().is_some();
        if was_released {
            state.end.call();
        }
        was_released
    }

    /// Waits until the driver may be opened, and returns the stop of its session; none when the agent stops.
    pub(crate) fn may_open(&self, stop: &Stop) -> Option<Stop> {
        const POLL_INTERVAL: Duration = Duration::from_secs(1);
        loop {
            if stop.is_called() {
                return None;
            }
            let end = stop.part();
            let mut state = self.state.lock();
            state.end = end.clone();
            let left = state.until.map_or(0, |until| until.0.saturating_sub(system_now().boottime.0));
            if left == 0 {
                state.until = None;
                self.enter(&mut state, DriverPhase::Opening);
                return Some(end);
            }
            if !matches!(state.phase, DriverPhase::Stuck(_)) {
                self.enter(&mut state, DriverPhase::Closed);
            }
            drop(state);
            end.wait(Duration::from_nanos(left).min(POLL_INTERVAL));
        }
    }

    pub(crate) fn set_phase(&self, phase: DriverPhase) {
        self.enter(&mut self.state.lock(), phase);
    }

    fn enter(&self, state: &mut OrderState, phase: DriverPhase) {
        state.phase = phase;
        self.changed.notify_all();
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
        orders.set_phase(DriverPhase::Open);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(HOUR, 0));
            while !end.wait(Duration::from_secs(1)) {}
            assert!(orders.release().is_none());
            orders.set_phase(DriverPhase::Closed);
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert!(orders.release().is_some());
        let release = orders.release().unwrap();
        assert!(release.until > system_now().utc);
        assert_eq!(release.user, 0);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| orders.may_open(&stop).is_some());
            assert!(orders.resume());
            assert!(!orders.resume(), "it is not released any more");
            assert!(opener.join().unwrap());
        });
        assert!(orders.release().is_none());
    }

    #[test]
    fn the_time_needed_to_close_is_no_part_of_the_release() {
        let (orders, stop) = (Orders::default(), Stop::default());
        let end = orders.may_open(&stop).unwrap();
        orders.set_phase(DriverPhase::Open);
        let span = Nanoseconds(1_000_000);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(span, 0));
            while !end.wait(Duration::from_secs(1)) {}
            // The last call of a sampler takes longer than the release.
            std::thread::sleep(Duration::from_millis(20));
            orders.set_phase(DriverPhase::Closing);
            orders.set_phase(DriverPhase::Closed);
            assert!(orders.release().is_some());
            let opener = scope.spawn(|| orders.may_open(&stop).is_some());
            assert_eq!(asked.join().unwrap(), Ok(()));
            assert!(opener.join().unwrap(), "and then it is over");
        });
    }

    #[test]
    fn what_is_stuck_is_told_and_the_driver_is_taken_up_again() {
        let (orders, stop) = (Orders::default(), Stop::default());
        orders.may_open(&stop).unwrap();
        orders.set_phase(DriverPhase::Open);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.release_driver(HOUR, 0));
            orders.set_phase(DriverPhase::Stuck(vec!["GPU 3 in nvmlDeviceGetTemperature".into()]));
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
        orders.set_phase(DriverPhase::Closed);
        orders.release_driver(HOUR, 0).unwrap();
        stop.call();
        assert!(orders.may_open(&stop).is_none());
    }
}
