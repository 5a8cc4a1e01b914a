//! The open connections: what each does and since when, how long it may, and which one gives way when all are in use.
//!
//! ```text
//!           head complete          response ready            written
//! idle ------------------> making ----------------> writing ---------> idle
//! 5 s if new, else 90 s    what it waits for        30 s
//!                          has its own limit
//! ```
//!
//! A connection is idle until the head of a request is complete, however steadily its bytes arrive; so is one in its TLS
//! handshake. hyper limits a head only together with the idle time before it, limits no response, and has no limit at all
//! for HTTP/2. So one timer per connection is here.
//!
//! With a plain semaphore a few hundred slow peers would lock out every scraper. So when all connections are in use, the
//! one that has been idle longest gives way to a new one, or else the one that has been writing longest, if that is over a
//! second. A new connection is refused only while all others are being answered. Nothing waits for a place: a wait would
//! delay those that come after it, and evicting is enough for a burst.
//!
//! A response that is being written keeps its page in memory, and later responses keep other pages. So at most an eighth
//! of all connections may be writing for over a second; above that those that do so longest are closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::ServerLimits;
use crate::runtime::clock::system_now;

/// A usual client reads its response within this time.
const USUAL_READING: Duration = Duration::from_secs(1);

/// Time since boot.
fn now() -> Duration {
    Duration::from_nanos(system_now().boottime.0)
}

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: Mutex<Vec<Arc<Activity>>>,
}

#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ActivityState>,
    /// Notified when the deadline may have changed.
    changed: Notify,
}

/// All times are since boot.
#[derive(Debug)]
struct ActivityState {
    /// The responses in progress, by number: since when each is written, none while it is made. HTTP/2 has several.
    responses: BTreeMap<u64, Option<Duration>>,
    next_response: u64,
    /// When it was accepted, or when the last response was written.
    idle_since: Duration,
    is_new: bool,
    is_evicted: bool,
}

impl ActivityState {
    fn idle_since(&self) -> Option<Duration> {
        self.responses.is_empty().then_some(self.idle_since)
    }

    fn writing_since(&self) -> Option<Duration> {
        self.responses.values().flatten().min().copied()
    }

    /// Since when it has been writing, if its peer reads slower than usual.
    fn unread_since(&self, now: Duration) -> Option<Duration> {
        self.writing_since().filter(|since| *since + USUAL_READING <= now)
    }

    /// When it is closed if nothing changes; 0 if it gave way.
    fn deadline(&self, limits: &ServerLimits) -> Option<Duration> {
        if self.is_evicted {
            return Some(Duration::ZERO);
        }
        let idle = if self.is_new { limits.head } else { limits.idle };
        match self.idle_since() {
            Some(since) => Some(since + idle),
            None => self.writing_since().map(|since| since + limits.response),
        }
    }
}

impl Connections {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, open: Mutex::new(Vec::new()) }
    }

    /// Adds a new connection, in place of another one if all are in use; none if all others are being answered.
    pub(super) fn open(self: &Arc<Self>) -> Option<OpenConnection> {
        let now = now();
        let mut open = self.open.lock();
        if open.len() >= self.most {
            let idle = oldest(&open, ActivityState::idle_since);
            let gives_way = idle.or_else(|| oldest(&open, |state| state.unread_since(now)))?;
            open.remove(gives_way).evict();
        }
        let state = ActivityState {
            responses: BTreeMap::new(),
            next_response: 0,
            idle_since: now,
            is_new: true,
            is_evicted: false,
        };
        let activity = Arc::new(Activity { state: Mutex::new(state), changed: Notify::new() });
        open.push(Arc::clone(&activity));
        Some(OpenConnection { activity, connections: Arc::clone(self) })
    }

    /// Closes those whose responses have been unread longest when there are too many.
    fn evict_slow_readers(&self, now: Duration) {
        let mut open = self.open.lock();
        let unread = open.iter().filter(|one| one.state.lock().unread_since(now).is_some()).count();
        for _ in (self.most / 8).max(1)..unread {
            if let Some(place) = oldest(&open, |state| state.unread_since(now)) {
                open.remove(place).evict();
            }
        }
    }
}

fn oldest(open: &[Arc<Activity>], since: impl Fn(&ActivityState) -> Option<Duration>) -> Option<usize> {
    let times = open.iter().enumerate().filter_map(|(place, one)| Some((since(&one.state.lock())?, place)));
    times.min().map(|(_, place)| place)
}

/// A connection among the open ones until this is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) activity: Arc<Activity>,
    connections: Arc<Connections>,
}

impl OpenConnection {
    pub(super) async fn must_close(&self, limits: &ServerLimits) {
        loop {
            let now = now();
            let (deadline, unread_from) = {
                let state = self.activity.state.lock();
                (state.deadline(limits), state.writing_since().map(|since| since + USUAL_READING))
            };
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            if unread_from.is_some_and(|from| from <= now) {
                self.connections.evict_slow_readers(now);
            }
            let wake = deadline.into_iter().chain(unread_from.filter(|from| *from > now)).min();
            let changed = self.activity.changed.notified();
            match wake {
                Some(wake) => drop(timeout(wake - now, changed).await),
                None => changed.await,
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.open.lock().retain(|one| !Arc::ptr_eq(one, &self.activity));
    }
}

impl Activity {
    pub(super) fn begin_response(self: &Arc<Self>) -> ResponseInProgress {
        let mut state = self.state.lock();
        let number = state.next_response;
        state.next_response += 1;
        state.is_new = false;
        state.responses.insert(number, None);
        ResponseInProgress { activity: Arc::clone(self), number, body: Bytes::new() }
    }

    fn evict(&self) {
        self.state.lock().is_evicted = true;
        self.changed.notify_one();
    }
}

/// A response from the end of its request's head until it is written to the socket, or dropped.
#[derive(Debug)]
pub(super) struct ResponseInProgress {
    activity: Arc<Activity>,
    number: u64,
    body: Bytes,
}

impl ResponseInProgress {
    /// Returns the same body; the response is written when that is dropped.
    pub(super) fn write(mut self, body: Bytes) -> Bytes {
        self.activity.state.lock().responses.insert(self.number, Some(now()));
        self.activity.changed.notify_one();
        self.body = body;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ResponseInProgress {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for ResponseInProgress {
    fn drop(&mut self) {
        let mut state = self.activity.state.lock();
        state.responses.remove(&self.number);
        state.idle_since = now();
        self.activity.changed.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn connections(most: usize) -> Arc<Connections> {
        Arc::new(Connections::new(most))
    }

    fn is_evicted(connection: &OpenConnection) -> bool {
        connection.activity.state.lock().is_evicted
    }

    /// A connection whose peer has not read its response for two seconds, and the response.
    fn slow_reader(connections: &Arc<Connections>) -> (OpenConnection, Bytes) {
        let connection = connections.open().unwrap();
        let body = connection.activity.begin_response().write(Bytes::from_static(b"page"));
        let begun = now() - Duration::from_secs(2);
        connection.activity.state.lock().responses.insert(0, Some(begun));
        (connection, body)
    }

    #[test]
    fn the_longest_idle_connection_gives_way_then_the_slowest_reader_and_never_one_that_is_answered() {
        let all = connections(4);
        let scraper = all.open().unwrap();
        let slow = slow_reader(&all);
        let half_head = all.open().unwrap();
        let asking = all.open().unwrap();
        let _bill = asking.activity.begin_response();
        drop(scraper.activity.begin_response());
        let mut others = vec![all.open().unwrap()];
        assert!(is_evicted(&half_head) && !is_evicted(&scraper), "the scraper has been idle for less time");
        let _quick = others[0].activity.begin_response().write(Bytes::from_static(b"page"));
        // Not a second ago, however long this test is stopped.
        let begun = now() + Duration::from_secs(60);
        others[0].activity.state.lock().responses.insert(0, Some(begun));
        others.push(all.open().unwrap());
        let _scrape = others[1].activity.begin_response();
        assert!(is_evicted(&scraper) && !is_evicted(&slow.0));
        others.push(all.open().unwrap());
        let _probe = others[2].activity.begin_response();
        assert!(is_evicted(&slow.0));
        assert!(all.open().is_none(), "all are being answered, or written for less than a second");
        assert!(!is_evicted(&asking) && !others.iter().any(is_evicted));
        drop(others);
        assert!(all.open().is_some());
    }

    #[tokio::test]
    async fn of_too_many_slow_readers_those_that_read_longest_are_closed() {
        let all = connections(16);
        let [first, second, third] = [(); 3].map(|()| slow_reader(&all));
        // Its own timer finds that there are too many.
        first.0.must_close(&ServerLimits::default()).await;
        let evicted = [&first, &second, &third].map(|(connection, _)| is_evicted(connection));
        assert_eq!(evicted, [true, false, false]);
        drop(second.1);
        assert!(second.0.activity.state.lock().idle_since().is_some(), "it has read its response");
    }
}
