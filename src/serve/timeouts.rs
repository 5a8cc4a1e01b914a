//! Timeouts of a connection.
//!
//! A request head must be complete within a limit that starts at its first byte, however steadily bytes arrive. The next
//! request must begin within a longer limit. A peer must read some bytes of a response within one limit, and the whole
//! response within another. hyper has only one limit for the head together with the time before it, none for writing, and
//! none for an HTTP/2 client whose flow-control window stays closed. So each connection records what it is doing since
//! when, and one timer waits for the earliest deadline.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::ServerLimits;
use super::listen::BoxedStream;
use crate::clock::system_now;

/// The head of a usual client arrives within this time, even in a burst on a busy machine.
const USUAL_HEAD: Duration = Duration::from_millis(50);

/// A usual client reads its response, or closes a connection on request, within this time.
const USUAL_READING: Duration = Duration::from_secs(1);

/// Time since boot.
pub(super) fn now() -> Duration {
    Duration::from_nanos(system_now().boottime.0)
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    state: Mutex<ActivityState>,
    /// Notified when a deadline may have changed.
    pub(super) changed: Notify,
    /// Notified when the peer is to be asked to close the connection.
    pub(super) close_requested: Notify,
}

/// All times are since boot.
#[derive(Debug, Default)]
struct ActivityState {
    /// Since when a head is incomplete.
    head_since: Option<Duration>,
    /// The number of requests whose response is not ready.
    running: usize,
    /// The start of each response that is not completely written to the socket, by number.
    sending: BTreeMap<u64, Duration>,
    next_response: u64,
    /// Since when the socket accepts no byte.
    blocked_since: Option<Duration>,
    idle_since: Duration,
    close_requested_at: Option<Duration>,
    is_evicted: bool,
    is_multiplexed: bool,
}

impl ActivityState {
    fn is_idle(&self) -> bool {
        self.head_since.is_none() && self.running == 0 && self.sending.is_empty()
    }

    /// Since when the peer has not read a response.
    fn sending_since(&self) -> Option<Duration> {
        self.sending.values().next().copied().into_iter().chain(self.blocked_since).min()
    }
}

impl ConnectionActivity {
    /// The state of a new connection, whose first head is due.
    pub(super) fn new() -> Self {
        let state = ActivityState { head_since: Some(now()), ..ActivityState::default() };
        Self { state: Mutex::new(state), changed: Notify::new(), close_requested: Notify::new() }
    }

    /// The time at which the connection is closed if nothing changes; 0 if it was evicted.
    pub(super) fn deadline(&self, limits: &ServerLimits) -> Option<Duration> {
        let state = self.state();
        if state.is_evicted {
            return Some(Duration::ZERO);
        }
        let response = state.sending.values().next();
        let deadlines = [
            state.head_since.map(|since| since + limits.head),
            state.blocked_since.map(|since| since + limits.stall),
            response.map(|since| *since + limits.response),
            state.is_idle().then(|| state.idle_since + limits.idle),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The time from which the peer counts as a slow reader, unless it reads on.
    pub(super) fn slow_reader_from(&self) -> Option<Duration> {
        self.state().sending_since().map(|since| since + USUAL_READING)
    }

    /// Whether the peer takes longer than usual, so that its connection may be replaced by a new one.
    pub(super) fn is_slow(&self, now: Duration) -> bool {
        let state = self.state();
        let is_past = |since: Option<Duration>, usual| since.is_some_and(|since| since + usual <= now);
        is_past(state.head_since, USUAL_HEAD)
            || is_past(state.sending_since(), USUAL_READING)
            || is_past(state.close_requested_at, USUAL_READING)
    }

    /// Makes the connection close now.
    pub(super) fn evict(&self) {
        self.state().is_evicted = true;
        self.changed.notify_one();
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.state().is_evicted
    }

    /// Marks the connection as HTTP/2: with several requests at once, a received byte does not begin a head.
    pub(super) fn multiplex(&self) {
        self.state().is_multiplexed = true;
    }

    /// Asks the peer to close the connection.
    pub(super) fn request_close(&self) {
        self.state().close_requested_at.get_or_insert_with(now);
        self.close_requested.notify_one();
    }

    /// Records that a head is complete.
    pub(super) fn begin_request(self: &Arc<Self>) -> RequestInProgress {
        let mut state = self.state();
        state.head_since = None;
        state.running += 1;
        RequestInProgress { activity: Arc::clone(self), sending: None }
    }

    fn note_read(&self) {
        let mut state = self.state();
        if state.is_idle() && !state.is_multiplexed {
            state.head_since = Some(now());
            self.changed.notify_one();
        }
    }

    fn note_write(&self, is_blocked: bool) {
        let mut state = self.state();
        if !is_blocked {
            state.blocked_since = None;
        } else if state.blocked_since.is_none() {
            state.blocked_since = Some(now());
            self.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock()
    }
}

/// A request from the end of its head until its response is completely written to the socket, or dropped.
#[derive(Debug)]
pub(super) struct RequestInProgress {
    activity: Arc<ConnectionActivity>,
    /// The number of the response that is being sent.
    sending: Option<u64>,
}

impl RequestInProgress {
    /// Returns the same body; the request ends when that is dropped.
    pub(super) fn send(mut self, body: Bytes) -> Bytes {
        let mut state = self.activity.state();
        let number = state.next_response;
        state.next_response += 1;
        state.running -= 1;
        state.sending.insert(number, now());
        drop(state);
        self.sending = Some(number);
        self.activity.changed.notify_one();
        Bytes::from_owner(BodyInProgress { body, _request: self })
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        match self.sending {
            Some(number) => drop(state.sending.remove(&number)),
            None => state.running -= 1,
        }
        state.idle_since = now();
        self.activity.changed.notify_one();
    }
}

struct BodyInProgress {
    body: Bytes,
    _request: RequestInProgress,
}

impl AsRef<[u8]> for BodyInProgress {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// A stream that records reads and writes.
pub(super) struct ObservedStream {
    pub(super) stream: BoxedStream,
    pub(super) activity: Arc<ConnectionActivity>,
}

impl ObservedStream {
    fn note_outcome<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.activity.note_write(outcome.is_pending());
        outcome
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.note_read();
        }
        outcome
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_outcome(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_outcome(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
