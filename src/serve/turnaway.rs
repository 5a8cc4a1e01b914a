//! Tells a newcomer that there is no seat, for next to nothing.
//!
//! The answer is one write of ready-made bytes, without a word of the request read. Closing then would make
//! the kernel reset the connection over the unread request and perhaps discard the answer, so the socket
//! lingers, reading into nowhere, until the peer closes too: for a second at most, and few at a time.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::stream::{Stream, Watched};

const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: text/plain; charset=utf-8\r\n\
content-length: 41\r\n\
retry-after: 1\r\n\
connection: close\r\n\
\r\n\
all connections are busy; try again soon\n";

const LINGER: Duration = Duration::from_secs(1);
const LONGEST_REQUEST: usize = 64 * 1024;

/// Those who were turned away and may still be reading why.
#[derive(Clone, Debug)]
pub(super) struct Turnaway {
    /// One reference for each of them.
    count: Arc<()>,
    most: usize,
    /// A descriptor in reserve: without any, a peer could be neither accepted nor sent away, and would wait
    /// in vain.
    spare: Arc<Mutex<Option<File>>>,
}

impl Turnaway {
    /// At most so many linger.
    pub(super) fn new(most: usize) -> Self {
        Self { count: Arc::default(), most, spare: Arc::new(Mutex::new(reserve())) }
    }

    /// Sends somebody away although there is no descriptor left; whether anybody was there.
    pub(super) async fn send_away_from(&self, listener: &Watched) -> bool {
        drop(self.spare().take());
        // Whoever the failed accept was for is still there.
        let accepted = timeout(Duration::from_millis(1), listener.accept()).await;
        let was_there = match accepted {
            Ok(Ok((stream, _))) => {
                // It may have left; then nobody misses the answer.
                let _ = stream.try_write(ANSWER);
                true
            }
            _ => false,
        };
        *self.spare() = reserve();
        was_there
    }

    fn spare(&self) -> MutexGuard<'_, Option<File>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers 503 and closes.
    pub(super) fn turn_away(&self, stream: Stream, tasks: &mut JoinSet<()>) {
        // A new socket's send buffer is empty: this does not wait. A peer that is gone needs no answer.
        let wrote = stream.try_write(ANSWER);
        if wrote.is_err() || Arc::strong_count(&self.count) > self.most {
            return;
        }
        let counted = self.clone();
        tasks.spawn(async move {
            let _ = timeout(LINGER, linger(&stream)).await;
            drop(counted);
        });
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Reads into nowhere until the peer closes.
async fn linger(stream: &Stream) {
    if rustix::net::shutdown(stream, Shutdown::Write).is_err() {
        return;
    }
    let mut nowhere = [0; 1024];
    let mut total = 0;
    while total < LONGEST_REQUEST && stream.readable().await.is_ok() {
        match stream.try_read(&mut nowhere) {
            Ok(0) => return,
            Ok(count) => total += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_ready_made_answer_has_the_length_that_it_says() {
        let text = str::from_utf8(ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
