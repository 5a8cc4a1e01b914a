//! Whether the driver may be open: what the operator asked for, and how far the thread is that opens it.
//!
//! Asking waits for that thread, with a limit; the thread itself waits for nobody. A request to let go is in
//! force for a limited time, so that an agent that was forgotten takes the driver up again by itself.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Stop, system_now};
use crate::export::Release;
use crate::model::{Nanoseconds, Utc};

/// How long letting go may take: a lane's last call, the plans' end, and the driver's own shutdown.
const LONGEST: Duration = Duration::from_secs(15);

/// How far the thread is that opens and closes the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Phase {
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

/// The orders.
#[derive(Default)]
pub(crate) struct Orders {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// Let go until then, by the system's boot clock.
    until: Option<Nanoseconds>,
    /// Who asked for that: a Unix user id.
    user: u32,
    /// Ends what is open, or the wait while nothing may be.
    end: Stop,
}

impl Orders {
    /// Whether the driver was let go of on request.
    pub(crate) fn are_to_let_go(&self) -> bool {
        let state = self.lock();
        state.until.is_some() && state.phase == Phase::Closed
    }

    /// Until when the driver is released, and who asked for it; absent while it is not released.
    pub(crate) fn release(&self) -> Option<Release> {
        let state = self.lock();
        let until = state.until.filter(|_| state.phase == Phase::Closed)?;
        let now = system_now();
        let left = until.0.saturating_sub(now.boottime.0);
        Some(Release { until: Utc(now.utc.0.saturating_add(left)), user: state.user })
    }

    /// Lets go of the driver; returns when nothing of it is open, which it stays for that long from then on, or
    /// says what is stuck, and then the driver is taken up again.
    pub(crate) fn let_go(&self, span: Nanoseconds, user: u32) -> Result<(), String> {
        let mut state = self.lock();
        state.user = user;
        if state.phase == Phase::Closed {
            state.until = Some(system_now().boottime + span);
            return Ok(());
        }
        // A short time would be over before everything is closed.
        let longest = Nanoseconds(u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX));
        state.until = Some(system_now().boottime + longest + span);
        state.end.call();
        let open = |state: &mut State| !matches!(state.phase, Phase::Closed | Phase::Stuck(_));
        let waited = self.news.wait_timeout_while(state, LONGEST, open);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let problem = match &state.phase {
            Phase::Closed => {
                state.until = Some(system_now().boottime + span);
                return Ok(());
            }
            Phase::Stuck(calls) => format!("has not returned from {}", calls.join(", ")),
            Phase::Opening => "is being opened, and its initialisation has not returned".to_owned(),
            Phase::Open | Phase::Closing => "is not closed in time".to_owned(),
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
                    if !matches!(state.phase, Phase::Stuck(_)) {
                        self.enter(&mut state, Phase::Closed);
                    }
                    drop(state);
                    end.wait(Duration::from_nanos(left).min(LOOK));
                }
                _ => {
                    state.until = None;
                    self.enter(&mut state, Phase::Opening);
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
        self.enter(&mut self.lock(), Phase::Open);
    }

    pub(crate) fn closing(&self) {
        self.enter(&mut self.lock(), Phase::Closing);
    }

    pub(crate) fn closed(&self) {
        self.enter(&mut self.lock(), Phase::Closed);
    }

    /// The library stays open, since these calls have not returned.
    pub(crate) fn stuck(&self, calls: Vec<String>) {
        self.enter(&mut self.lock(), Phase::Stuck(calls));
    }

    fn enter(&self, state: &mut State, phase: Phase) {
        state.phase = phase;
        self.news.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const HOUR: Nanoseconds = Nanoseconds::from_seconds(3_600);

    #[test]
    fn letting_go_ends_what_is_open_and_waits_for_its_end() {
        let (orders, stop) = (Orders::default(), Stop::default());
        let end = orders.may_open(&stop).unwrap();
        orders.opened();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.let_go(HOUR, 0));
            while !end.wait(Duration::from_secs(1)) {}
            assert!(!orders.are_to_let_go());
            orders.closed();
            assert_eq!(asked.join().unwrap(), Ok(()));
        });
        assert!(orders.are_to_let_go());
        let release = orders.release().unwrap();
        assert!(release.until > system_now().utc);
        assert_eq!(release.user, 0);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| orders.may_open(&stop).is_some());
            assert!(orders.resume());
            assert!(!orders.resume(), "it is not released any more");
            assert!(opener.join().unwrap());
        });
        assert!(!orders.are_to_let_go());
    }

    #[test]
    fn the_time_of_letting_go_is_no_part_of_the_time_that_was_asked_for() {
        let (orders, stop) = (Orders::default(), Stop::default());
        let end = orders.may_open(&stop).unwrap();
        orders.opened();
        let span = Nanoseconds(1_000_000);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| orders.let_go(span, 0));
            while !end.wait(Duration::from_secs(1)) {}
            // A lane's last call takes longer than the time that was asked for.
            std::thread::sleep(Duration::from_millis(20));
            orders.closing();
            orders.closed();
            assert!(orders.are_to_let_go());
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
            let asked = scope.spawn(|| orders.let_go(HOUR, 0));
            orders.stuck(vec!["GPU 3 in nvmlDeviceGetTemperature".into()]);
            let told = asked.join().unwrap().unwrap_err();
            assert!(told.contains("GPU 3 in nvmlDeviceGetTemperature"), "{told}");
        });
        assert!(orders.may_open(&stop).is_some());
    }

    #[test]
    fn it_is_taken_up_again_by_itself_and_not_when_the_agent_stops() {
        let (orders, stop) = (Orders::default(), Stop::default());
        orders.let_go(Nanoseconds(1_000_000), 0).unwrap();
        assert!(orders.may_open(&stop).is_some());
        orders.closed();
        orders.let_go(HOUR, 0).unwrap();
        stop.call();
        assert!(orders.may_open(&stop).is_none());
    }
}
