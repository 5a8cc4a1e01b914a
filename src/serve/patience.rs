//! A connection that gives up on a peer that is too slow.
//!
//! A head must be complete within a deadline that runs from the moment at which some of it is missing, however
//! steadily bytes drip in; the next request must begin before a longer one; and a peer must take some of its answer
//! now and then, and the whole of it within a deadline that runs from the first byte that did not fit into the socket's
//! buffer. hyper has one deadline for both heads and the time between them, and sets a timer for every
//! request: here is one timer per connection, set when there is something to wait for. A request that comes whole
//! sets none, and a timer that is only put off costs no system call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::Limits;
use super::seats::Seat;
use super::stream::Stream;

type Deadline = Option<Pin<Box<Sleep>>>;

/// An honest head follows its connection at once, and is there within this also in a rush on a busy machine; whoever
/// takes longer may have to give way to others. A crowd of silent peers holds up the first scrape among them by as
/// much for each time that it fills all seats.
const HONEST: Duration = Duration::from_millis(50);

/// Whoever has not read its answer within this may have to give way to others.
const HONEST_READING: Duration = Duration::from_secs(1);

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
pub(super) struct Patience<'a> {
    stream: Stream,
    seat: &'a Seat,
    limits: Limits,
    /// What `read_due` was set for; none: for something that has come.
    awaited: Option<Awaited>,
    read_due: Deadline,
    /// For the next bytes of an answer.
    stall_due: Deadline,
    /// For an honest peer to have read its answer, then for any peer; none while all that was written fits into the
    /// socket's buffer.
    answer_due: Deadline,
    /// Whether the peer waits for us: of a request no byte was answered yet.
    asked: bool,
    /// Whether several requests are under way at once, as with HTTP/2, whose bytes between requests are no head.
    is_multiplexed: bool,
}

impl<'a> Patience<'a> {
    /// The stream of a connection that owes its first head.
    pub(super) fn new(stream: Stream, seat: &'a Seat, limits: &Limits) -> Self {
        Self {
            stream,
            seat,
            limits: *limits,
            awaited: None,
            read_due: None,
            stall_due: None,
            answer_due: None,
            asked: true,
            is_multiplexed: false,
        }
    }

    /// From now on requests and answers may cross: after the first head there is one deadline, which runs anew from each
    /// request and each answer. Frames that are neither, such as a PING and its acknowledgement, put it off for nobody.
    pub(super) const fn multiplex(&mut self) {
        self.is_multiplexed = true;
    }

    /// Whether the head that is owed should have come by now.
    fn is_head_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.seat.turn.is_slow() {
            if !self.is_late(Awaited::Head, HONEST, context) {
                return false;
            }
            self.seat.turn.be_slow();
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

    /// What a write came to, or that the peer has taken nothing, or not the whole answer, for too long.
    fn wrote<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall_due = None;
            // The next request is awaited from the last byte of this answer on. What TLS writes before there is a
            // request is no answer.
            if !self.seat.turn.owes_head() && !self.is_multiplexed {
                self.awaited = None;
                self.asked = false;
            }
            return outcome;
        }
        let stall = self.limits.stall;
        let due = self.stall_due.get_or_insert_with(|| Box::pin(sleep(stall)));
        let is_late = has_passed(due, context) || self.is_answer_late(context);
        if is_late { late() } else { Poll::Pending }
    }

    /// Whether the whole answer should have been read by now.
    fn is_answer_late(&mut self, context: &mut Context<'_>) -> bool {
        let honest = HONEST_READING.min(self.limits.answer);
        let due = self.answer_due.get_or_insert_with(|| Box::pin(sleep(honest)));
        if !has_passed(due, context) {
            return false;
        }
        if self.seat.turn.is_slow() {
            return true;
        }
        self.seat.read_slowly();
        due.as_mut().reset(sleep(self.limits.answer.saturating_sub(honest)).deadline());
        has_passed(due, context)
    }
}

fn has_passed(due: &mut Pin<Box<Sleep>>, context: &mut Context<'_>) -> bool {
    due.as_mut().poll(context).is_ready()
}

fn late<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl AsyncRead for Patience<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.seat.turn.owes_head() {
            // Once it had to be waited for, asked even when bytes have come: they may drip for ever.
            let waits = outcome.is_pending() || self.awaited.is_some();
            return if waits && self.is_head_late(context) { late() } else { outcome };
        }
        if outcome.is_pending() {
            if self.is_multiplexed && self.seat.turn.take_activity() {
                self.awaited = None;
            }
            let idle = self.limits.idle;
            let is_late =
                (!self.asked || self.is_multiplexed) && self.is_late(Awaited::Request, idle, context);
            return if is_late { late() } else { outcome };
        }
        // The first bytes after a request: the next head has begun.
        if buffer.filled().len() > before && !self.is_multiplexed {
            self.seat.turn.begin_head();
            self.awaited = None;
            self.asked = true;
        }
        outcome
    }
}

impl AsyncWrite for Patience<'_> {
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

    /// hyper flushes once all that it has of an answer is written, and a page is one piece.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.answer_due.take().is_some() {
            self.seat.turn.end_answer();
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
