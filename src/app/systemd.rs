//! What systemd is told: that the agent is ready, reloads, stops, and, by the pulse alone, that it is alive.
//!
//! Without a service manager all of it does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::model::Nanoseconds;

/// Tells the service manager, if one listens.
pub(super) fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}

/// A reload begins; the service manager waits for the next [`NotifyState::Ready`].
pub(super) fn tell_of_reload() {
    // A manager that asked by SIGHUP knows by this time that the answer is to that signal.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Keeps systemd's watchdog quiet. The pulse owns it, so that it barks when the pulse stalls, whatever else
/// of the agent still works.
pub(super) struct Watchdog {
    /// Between two words: half of what systemd allows. Absent where it does not watch.
    every: Option<Nanoseconds>,
    last: Option<Nanoseconds>,
}

impl Watchdog {
    /// As often as systemd asks for.
    pub(super) fn asked_for() -> Self {
        Self::every(sd_notify::watchdog_enabled())
    }

    fn every(limit: Option<Duration>) -> Self {
        let half = |limit: Duration| Nanoseconds(u64::try_from(limit.as_nanos() / 2).unwrap_or(u64::MAX));
        Self { every: limit.map(half), last: None }
    }

    /// The pulse is alive; `now` is the system's boot clock.
    pub(super) fn beat(&mut self, now: Nanoseconds) {
        if self.is_due(now) {
            tell(&[NotifyState::Watchdog]);
        }
    }

    fn is_due(&mut self, now: Nanoseconds) -> bool {
        let Some(every) = self.every else { return false };
        let due = self.last.is_none_or(|last| now.0.saturating_sub(last.0) >= every.0);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_of_the_pulse_twice_in_its_interval_and_only_if_it_beats() {
        let mut watchdog = Watchdog::every(Some(Duration::from_secs(10)));
        let heard: Vec<u64> =
            (0..13).filter(|second| watchdog.is_due(Nanoseconds::from_seconds(*second))).collect();
        assert_eq!(heard, [0, 5, 10]);
        assert!(!Watchdog::every(None).is_due(Nanoseconds(u64::MAX)));
    }
}
