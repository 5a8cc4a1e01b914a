//! A connection that gives up on a peer that is too slow.
//!
//! A head must be complete within a deadline that runs from the connection's start or the head's first byte,
//! however steadily bytes drip in; and a peer must take some of its answer now and then. hyper's own header
//! deadline runs between requests too, so at 5 s it would close a scraper's connection after every scrape:
//! hyper gets the longer, idle one, and this is the shorter.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::Limits;
use super::seats::Turn;

type Deadline = Option<Pin<Box<Sleep>>>;

/// An honest head is there within this, also in a rush on a busy machine; whoever takes longer may have to give
/// way to others.
const HONEST: Duration = Duration::from_millis(250);

/// A stream with deadlines.
pub(super) struct Patience {
    stream: TcpStream,
    turn: Arc<Turn>,
    head: Duration,
    stall: Duration,
    head_due: Deadline,
    write_due: Deadline,
}

impl Patience {
    /// The stream of a connection that owes its first head.
    pub(super) fn new(stream: TcpStream, turn: Arc<Turn>, limits: &Limits) -> Self {
        let Limits { head, stall, .. } = *limits;
        Self { stream, turn, head, stall, head_due: Some(Box::pin(sleep(HONEST))), write_due: None }
    }

    /// Whether the head that is owed should have come by now.
    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(due) = &mut self.head_due else { return false };
        if !has_passed(due, context) {
            return false;
        }
        if self.turn.is_slow() {
            return true;
        }
        self.turn.be_slow();
        *due = Box::pin(sleep(self.head.saturating_sub(HONEST)));
        // Asked at once, or nothing would wake us at the second deadline.
        has_passed(due, context)
    }

    /// What a write came to, or that the peer has taken nothing for too long.
    fn wrote<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.write_due = None;
            return outcome;
        }
        let stall = self.stall;
        let due = self.write_due.get_or_insert_with(|| Box::pin(sleep(stall)));
        if has_passed(due, context) { late() } else { Poll::Pending }
    }
}

fn has_passed(due: &mut Pin<Box<Sleep>>, context: &mut Context<'_>) -> bool {
    due.as_mut().poll(context).is_ready()
}

fn late<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl AsyncRead for Patience {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.turn.owes_head() {
            // Asked even when bytes have come: they may drip for ever.
            return if self.is_head_late(context) { late() } else { outcome };
        }
        self.head_due = None;
        // The first bytes after a request: the next head has begun.
        if outcome.is_ready() && buffer.filled().len() > before {
            self.turn.begin_head();
            self.head_due = Some(Box::pin(sleep(HONEST)));
        }
        outcome
    }
}

impl AsyncWrite for Patience {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, outcome)
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
