//! A connection that gives up on a peer that is too slow.
//!
//! A head must be complete within a deadline that runs from the moment at which some of it is missing, however
//! steadily bytes drip in; the next request must begin before a longer one; and a peer must take some of its answer
//! now and then. hyper has one deadline for both heads and the time between them, and sets a timer for every
//! request: here is one timer per connection, set when there is something to wait for. A request that comes whole
//! sets none, and a timer that is only put off costs no system call.

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

/// An honest head follows its connection at once, and is there within this also in a rush on a busy machine; whoever
/// takes longer may have to give way to others. A crowd of silent peers holds up the first scrape among them by as
/// much for each time that it fills all seats.
const HONEST: Duration = Duration::from_millis(50);

/// What a read waits for, each with a deadline of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The first byte of the next request.
    Request,
    /// The rest of a head.
    Head,
    /// The rest of a head that takes long.
    SlowHead,
}

/// A stream with deadlines.
pub(super) struct Patience {
    stream: TcpStream,
    turn: Arc<Turn>,
    limits: Limits,
    /// What `read_due` was set for; none: for something that has come.
    awaited: Option<Awaited>,
    read_due: Deadline,
    write_due: Deadline,
    /// Whether the peer waits for us: of a request no byte was answered yet.
    asked: bool,
}

impl Patience {
    /// The stream of a connection that owes its first head.
    pub(super) fn new(stream: TcpStream, turn: Arc<Turn>, limits: &Limits) -> Self {
        let limits = *limits;
        Self { stream, turn, limits, awaited: None, read_due: None, write_due: None, asked: true }
    }

    /// Whether the head that is owed should have come by now.
    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.turn.is_slow() {
            if !self.is_late(Awaited::Head, HONEST, context) {
                return false;
            }
            self.turn.be_slow();
        }
        let rest = self.limits.head.saturating_sub(HONEST);
        self.is_late(Awaited::SlowHead, rest, context)
    }

    /// Whether this has been awaited for so long.
    fn is_late(&mut self, awaited: Awaited, patience: Duration, context: &mut Context<'_>) -> bool {
        if self.awaited.replace(awaited) != Some(awaited) {
            let fresh = sleep(patience);
            match &mut self.read_due {
                Some(due) => due.as_mut().reset(fresh.deadline()),
                None => self.read_due = Some(Box::pin(fresh)),
            }
        }
        self.read_due.as_mut().is_some_and(|due| has_passed(due, context))
    }

    /// What a write came to, or that the peer has taken nothing for too long.
    fn wrote<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.write_due = None;
            // The next request is awaited from the last byte of this answer on.
            self.awaited = None;
            self.asked = false;
            return outcome;
        }
        let stall = self.limits.stall;
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
            // Once it had to be waited for, asked even when bytes have come: they may drip for ever.
            let waits = outcome.is_pending() || self.awaited.is_some();
            return if waits && self.is_head_late(context) { late() } else { outcome };
        }
        if outcome.is_pending() {
            let idle = self.limits.idle;
            let is_late = !self.asked && self.is_late(Awaited::Request, idle, context);
            return if is_late { late() } else { outcome };
        }
        // The first bytes after a request: the next head has begun.
        if buffer.filled().len() > before {
            self.turn.begin_head();
            self.awaited = None;
            self.asked = true;
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
