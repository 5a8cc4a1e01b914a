//! Tells a newcomer that there is no seat, for next to nothing.
//!
//! The answer is one write of ready-made bytes, without a word of the request read. Closing then would make
//! the kernel reset the connection over the unread request and perhaps discard the answer, so the socket
//! lingers, reading into nowhere, until the peer closes too: for a second at most, and few at a time.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: text/plain; charset=utf-8\r\n\
content-length: 41\r\n\
retry-after: 1\r\n\
connection: close\r\n\
\r\n\
all connections are busy; try again soon\n";

const LINGER: Duration = Duration::from_secs(1);
const LONGEST_REQUEST: usize = 64 * 1024;
const MOST: usize = 64;

/// Those who were turned away and may still be reading why.
#[derive(Clone, Debug, Default)]
pub(super) struct Turnaway(Arc<()>);

impl Turnaway {
    /// Answers 503 and closes.
    pub(super) fn turn_away(&self, stream: TcpStream, tasks: &mut JoinSet<()>) {
        // A new socket's send buffer is empty: this does not wait. A peer that is gone needs no answer.
        let wrote = stream.try_write(ANSWER);
        if wrote.is_err() || Arc::strong_count(&self.0) > MOST {
            return;
        }
        let counted = self.clone();
        tasks.spawn(async move {
            let _ = timeout(LINGER, linger(&stream)).await;
            drop(counted);
        });
    }
}

/// Reads into nowhere until the peer closes.
async fn linger(stream: &TcpStream) {
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
