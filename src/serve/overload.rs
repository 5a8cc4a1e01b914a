//! The response to a connection for which there is no room, for next to nothing.
//!
//! It is one write of ready-made bytes, without a word of the request read. Closing then would make the kernel reset the
//! connection over the unread request and perhaps discard the response, so the socket is read and discarded until the
//! peer closes too: for a second at most, and of few connections at a time.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::listen::{AsyncListener, BoxedStream};

const RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: text/plain; charset=utf-8\r\n\
content-length: 41\r\n\
retry-after: 1\r\n\
connection: close\r\n\
\r\n\
all connections are busy; try again soon\n";

const LONGEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_REQUEST: u64 = 64 * 1024;

/// Sends the response to connections for which there is no room.
#[derive(Clone, Debug)]
pub(super) struct OverloadResponse {
    /// For those that may still be reading the response.
    closing: Arc<Semaphore>,
    /// A descriptor in reserve: without any, a peer could be neither accepted nor refused, and would wait in vain.
    spare: Arc<Mutex<Option<File>>>,
}

impl OverloadResponse {
    /// At most so many connections are kept open until their peers have read the response.
    pub(super) fn new(most: usize) -> Self {
        Self { closing: Arc::new(Semaphore::new(most)), spare: Arc::new(Mutex::new(reserve())) }
    }

    /// Refuses a connection although there is no descriptor left; whether there was one.
    pub(super) async fn refuse_without_descriptor(&self, listener: &AsyncListener) -> bool {
        drop(self.spare().take());
        // The connection for which accept failed is still there.
        let accepted = timeout(Duration::from_millis(1), listener.accept()).await;
        let was_there = if let Ok(Ok((mut stream, _))) = accepted {
            // The peer may have left; then nobody misses the response.
            write(&mut stream).await;
            true
        } else {
            false
        };
        *self.spare() = reserve();
        was_there
    }

    fn spare(&self) -> MutexGuard<'_, Option<File>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers 503 and closes.
    pub(super) async fn refuse(&self, mut stream: BoxedStream, tasks: &mut JoinSet<()>) {
        if !write(&mut stream).await {
            return;
        }
        if let Ok(permit) = Arc::clone(&self.closing).try_acquire_owned() {
            tasks.spawn(async move {
                let _ = timeout(LONGEST_WAIT, discard_rest(stream)).await;
                drop(permit);
            });
        }
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Writes the response. The send buffer of a new socket is empty, so this does not wait.
async fn write(stream: &mut BoxedStream) -> bool {
    matches!(timeout(Duration::from_millis(1), stream.write_all(RESPONSE)).await, Ok(Ok(())))
}

async fn discard_rest(mut stream: BoxedStream) -> std::io::Result<u64> {
    stream.shutdown().await?;
    copy(&mut stream.take(LONGEST_REQUEST), &mut sink()).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_ready_made_response_has_the_length_that_it_says() {
        let text = str::from_utf8(RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
