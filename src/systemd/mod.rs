//! Notifications to systemd: ready, reloading, stopping, and the watchdog, which only the tick loop feeds.
//!
//! Without a service manager nothing is sent. A full socket is waited for with a limit, and by the tick loop not at all.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

use crate::model::Nanoseconds;

/// How long to wait for room in the socket.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Notifies the service manager, if there is one.
pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states, Some(SEND_TIMEOUT)) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}

/// Sends a message; without timeout there must be room for it at once.
fn send(states: &[NotifyState<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    match timeout {
        Some(_) => socket.set_write_timeout(timeout)?,
        None => socket.set_nonblocking(true)?,
    }
    socket.connect_addr(&address(&place)?)?;
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    socket.send(message.as_bytes()).map(drop)
}

/// A path, or after `@` a name that has no place among the files.
fn address(place: &OsStr) -> io::Result<SocketAddr> {
    match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(place),
    }
}

/// A reload begins; the service manager waits for the next [`NotifyState::Ready`].
pub(crate) fn notify_reload() {
    // A manager that asked by SIGHUP knows by this time that the answer is to that signal.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// Feeds systemd's watchdog. The tick loop owns it, so that it fires when the tick loop stalls, whatever else still works.
pub(crate) struct Watchdog {
    /// Between two notifications: half of what systemd allows. Absent without a watchdog.
    every: Option<Nanoseconds>,
    last: Option<Nanoseconds>,
}

impl Watchdog {
    /// As often as systemd asks for.
    pub(crate) fn asked_for() -> Self {
        Self::within(sd_notify::watchdog_enabled())
    }

    fn within(limit: Option<Duration>) -> Self {
        let half = |limit: Duration| Nanoseconds(u64::try_from(limit.as_nanos() / 2).unwrap_or(u64::MAX));
        Self { every: limit.map(half), last: None }
    }

    /// How often [`Watchdog::feed`] must be called: each second, or four times per limit of a shorter watchdog. A call just
    /// before a notification is due must not make that one late.
    pub(crate) fn every(&self) -> Nanoseconds {
        let asked = self.every.map_or(Nanoseconds::SECOND, |every| Nanoseconds(every.0 / 2));
        asked.clamp(Nanoseconds(1_000_000), Nanoseconds::SECOND)
    }

    /// Notifies systemd when that is due; `now` is the system's boot clock.
    pub(crate) fn feed(&mut self, now: Nanoseconds) {
        if !self.is_due(now) {
            return;
        }
        match send(&[NotifyState::Watchdog], None) {
            // Earlier notifications still wait to be read, and the tick loop never waits.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "systemd cannot be told"),
            Ok(()) => {}
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
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_name_after_an_at_sign_is_no_file() {
        let name = address(OsStr::new("@manager")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"manager"[..]));
        assert_eq!(
            address(OsStr::new("/run/x")).unwrap().as_pathname(),
            Some(std::path::Path::new("/run/x"))
        );
        assert!(address(OsStr::new(&"x".repeat(200))).is_err());
    }

    #[test]
    fn the_watchdog_is_notified_twice_per_limit() {
        let mut watchdog = Watchdog::within(Some(Duration::from_secs(10)));
        let notified: Vec<u64> =
            (0..13).filter(|second| watchdog.is_due(Nanoseconds::from_seconds(*second))).collect();
        assert_eq!(notified, [0, 5, 10]);
        assert!(!Watchdog::within(None).is_due(Nanoseconds(u64::MAX)));
    }

    #[test]
    fn the_watchdog_is_fed_each_second_or_as_often_as_a_short_one_needs() {
        let every = |limit| Watchdog::within(limit).every().0;
        let limits = [None, Some(30_000), Some(1_000), Some(0)];
        let waits = limits.map(|limit| every(limit.map(Duration::from_millis)));
        assert_eq!(waits, [1_000_000_000, 1_000_000_000, 250_000_000, 1_000_000]);
    }
}
