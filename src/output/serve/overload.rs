//! Refuses connections with status 503, at low cost.
//!
//! The response is one write of constant bytes, and the request is not parsed. Closing at once would make the kernel reset
//! the connection because of the unread request, and perhaps discard the response. So the socket is drained until the peer
//! closes it, for a second at most and for few connections at a time.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::listen::{AsyncListener, BoxedStream};

const RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: text/plain; charset=utf-8\r\n\
content-length: 41\r\n\
retry-after: 1\r\n\
connection: close\r\n\
\r\n\
all connections are busy; try again soon\n";

const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const MOST_DRAINED_BYTES: u64 = 64 * 1024;

#[derive(Clone, Debug)]
pub(super) struct OverloadResponse {
    /// Permits for connections whose peers may still read the response.
    closing: Arc<Semaphore>,
    /// A spare file descriptor: without any, a peer could be neither accepted nor refused.
    spare: Arc<Mutex<Option<File>>>,
}

impl OverloadResponse {
    /// At most `most` connections stay open until their peers have read the response.
    pub(super) fn new(most: usize) -> Self {
        Self { closing: Arc::new(Semaphore::new(most)), spare: Arc::new(Mutex::new(open_spare())) }
    }

    /// Refuses a connection although there is no file descriptor left; returns whether there was a connection.
    pub(super) async fn refuse_without_descriptor(&self, listener: &AsyncListener) -> bool {
        drop(self.spare.lock().take());
        // The connection for which accept failed is still in the backlog.
        let accepted = timeout(Duration::from_millis(1), listener.accept()).await;
        let was_refused = if let Ok(Ok((mut stream, _))) = accepted {
            // Fails if the peer has left.
            write(&mut stream).await;
            true
        } else {
            false
        };
        *self.spare.lock() = open_spare();
        was_refused
    }

    pub(super) async fn refuse(self, mut stream: BoxedStream) {
        if write(&mut stream).await
            && let Ok(_permit) = self.closing.try_acquire()
        {
            let _ = timeout(DRAIN_TIMEOUT, drain(stream)).await;
        }
    }
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Writes the response. The send buffer of a new socket is empty, so this does not wait.
async fn write(stream: &mut BoxedStream) -> bool {
    matches!(timeout(Duration::from_millis(1), stream.write_all(RESPONSE)).await, Ok(Ok(())))
}

async fn drain(mut stream: BoxedStream) -> std::io::Result<u64> {
    stream.shutdown().await?;
    copy(&mut stream.take(MOST_DRAINED_BYTES), &mut sink()).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn the_constant_response_has_its_content_length() {
        let text = str::from_utf8(RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
