//! Notifications to systemd: ready, reloading, stopping, and the watchdog, which only the tick loop feeds.
//!
//! Without a service manager nothing is sent. If the socket is full, a notification waits with a timeout, and that of the
//! watchdog not at all. The crate `sd-notify` has no timeout, so only its message format is used.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

use crate::model::Nanoseconds;

const SEND_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states, Some(SEND_TIMEOUT)) {
        tracing::warn!(%error, "systemd cannot be notified");
    }
}

/// Sends a message; without a timeout it fails if the socket is full.
fn send(states: &[NotifyState<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    match timeout {
        Some(_) => socket.set_write_timeout(timeout)?,
        None => socket.set_nonblocking(true)?,
    }
    socket.connect_addr(&parse_address(&address)?)?;
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    socket.send(message.as_bytes()).map(drop)
}

/// A path, or an abstract name after `@`.
fn parse_address(text: &OsStr) -> io::Result<SocketAddr> {
    match text.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(text),
    }
}

/// Reports the start of a reload; the service manager waits for the next [`NotifyState::Ready`].
pub(crate) fn notify_reload() {
    // By this time a manager that sent SIGHUP knows that the reload is for that signal.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// Feeds systemd's watchdog. Only the tick loop feeds it, so that it fires whenever the tick loop stalls.
pub(crate) struct Watchdog {
    /// Time between two notifications: half of the limit of systemd. Absent without a watchdog.
    every: Option<Nanoseconds>,
    last: Option<Nanoseconds>,
}

impl Watchdog {
    pub(crate) fn from_environment() -> Self {
        Self::within(sd_notify::watchdog_enabled())
    }

    fn within(limit: Option<Duration>) -> Self {
        let half = |limit: Duration| Nanoseconds(u64::try_from(limit.as_nanos() / 2).unwrap_or(u64::MAX));
        Self { every: limit.map(half), last: None }
    }

    /// How often [`Watchdog::feed`] must be called: every second, or four times per limit if that is shorter, so that a call
    /// just before a notification is due does not delay it.
    pub(crate) fn every(&self) -> Nanoseconds {
        let wanted = self.every.map_or(Nanoseconds::SECOND, |every| Nanoseconds(every.0 / 2));
        wanted.clamp(Nanoseconds(1_000_000), Nanoseconds::SECOND)
    }

    /// Notifies systemd when that is due; `now` is the system's boot clock.
    pub(crate) fn feed(&mut self, now: Nanoseconds) {
        if !self.is_due(now) {
            return;
        }
        match send(&[NotifyState::Watchdog], None) {
            // Earlier notifications are not read yet, and the tick loop never waits.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "systemd cannot be notified"),
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
    fn a_name_after_an_at_sign_is_abstract() {
        let name = parse_address(OsStr::new("@manager")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"manager"[..]));
        assert_eq!(
            parse_address(OsStr::new("/run/x")).unwrap().as_pathname(),
            Some(std::path::Path::new("/run/x"))
        );
        assert!(parse_address(OsStr::new(&"x".repeat(200))).is_err());
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
