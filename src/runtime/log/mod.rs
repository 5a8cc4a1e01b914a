//! The log thread: writes lines of all threads to standard error, in order.
//!
//! A thread that logs never waits. A full pipe blocks this thread only: the buffer is bounded, and lines that do not fit
//! are counted and reported once there is room again.

use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{self, Writer};

use crate::model::printable;
use crate::runtime::thread::{self, Thread};

const MOST_BYTES: usize = 256 * 1024;

/// The log while the program runs; dropping it waits until the buffer is written, with a limit.
pub struct LogWriter {
    lines: Lines,
    timeout: Duration,
    thread: Thread,
}

/// A writer for lines; each write is one line.
#[derive(Clone, Default)]
pub struct Lines(Arc<LineBuffer>);

#[derive(Default)]
struct LineBuffer {
    waiting: Mutex<WaitingLines>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitingLines {
    bytes: Vec<u8>,
    lost: u64,
    ended: bool,
}

impl LogWriter {
    /// Starts the thread. `timeout` limits how long dropping the log waits for it.
    pub fn start(timeout: Duration) -> Result<Self, thread::Error> {
        let lines = Lines::default();
        let thread = Thread::start("log", {
            let lines = lines.clone();
            move || write_lines(&lines, &mut io::stderr())
        })?;
        // The standard hook writes to standard error itself, and would block while that is not read.
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current();
            tracing::error!(thread = thread.name().unwrap_or("?"), "{panic}");
        }));
        Ok(Self { lines, timeout, thread })
    }

    pub fn lines(&self) -> Lines {
        self.lines.clone()
    }

    /// Writes the last line of the program, even if the buffer is full.
    pub fn write_last(&self, line: &str) {
        let mut waiting = self.lines.0.waiting.lock();
        waiting.bytes.extend_from_slice(line.as_bytes());
        waiting.bytes.push(b'\n');
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.lines.0.waiting.lock().ended = true;
        self.lines.0.changed.notify_one();
        self.thread.wait(self.timeout);
    }
}

impl Lines {
    /// Waits for lines, and returns them with the number of lines dropped since the last call; none at the end.
    fn take(&self) -> Option<(Vec<u8>, u64)> {
        let idle =
            |waiting: &mut WaitingLines| waiting.bytes.is_empty() && waiting.lost == 0 && !waiting.ended;
        let mut waiting = self.0.waiting.lock();
        self.0.changed.wait_while(&mut waiting, idle);
        let taken = (std::mem::take(&mut waiting.bytes), std::mem::take(&mut waiting.lost));
        (taken != (Vec::new(), 0)).then_some(taken)
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.waiting.lock();
        if waiting.bytes.len() + line.len() > MOST_BYTES {
            waiting.lost = waiting.lost.saturating_add(1);
        } else {
            waiting.bytes.extend_from_slice(line);
        }
        drop(waiting);
        self.0.changed.notify_one();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints the fields of an event as text, in which names that others chose cannot break a line or command a terminal.
pub fn printable_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => writer.write_str(&printable(&value)),
            name => write!(writer, "{name}={}", printable(&value)),
        }
    };
    format::debug_fn(field).delimited(" ")
}

fn write_lines(lines: &Lines, output: &mut impl Write) {
    while let Some((bytes, lost)) = lines.take() {
        // The agent also runs with a closed standard error.
        let _ = output.write_all(&bytes);
        if lost > 0 {
            tracing::warn!(lost, "log lines were dropped because standard error was not read in time");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn lines_that_do_not_fit_are_counted_and_earlier_ones_are_complete() {
        let mut lines = Lines::default();
        let line = [b'x'; 1_000];
        for _ in 0..1_000 {
            lines.write_all(&line).unwrap();
        }
        let (bytes, lost) = lines.take().unwrap();
        assert_eq!(bytes.len(), MOST_BYTES / line.len() * line.len());
        assert_eq!(bytes.len() / line.len() + usize::try_from(lost).unwrap(), 1_000);
        lines.write_all(&line).unwrap();
        assert_eq!(lines.take().unwrap(), (line.to_vec(), 0), "there is room again");
    }

    #[test]
    fn a_hostile_name_in_the_log_breaks_no_line_and_commands_no_terminal() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
        let log = log.fmt_fields(printable_fields()).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let name = "a\u{1b}[2Jb\u{9b}c\nERROR forged\u{202e}";
            tracing::warn!(user = %name, gpu = 3, "of {name}");
        });
        lines.0.waiting.lock().ended = true;
        let mut written = Vec::new();
        write_lines(&lines, &mut written);
        let name = "a\\u{1b}[2Jb\\u{9b}c\\nERROR forged\\u{202e}";
        assert_eq!(String::from_utf8(written).unwrap(), format!(" WARN of {name} user={name} gpu=3\n"));
    }

    #[test]
    fn lines_before_the_end_are_written() {
        let mut lines = Lines::default();
        lines.write_all(b"one\n").unwrap();
        lines.write_all(b"two\n").unwrap();
        lines.0.waiting.lock().ended = true;
        let mut written = Vec::new();
        write_lines(&lines, &mut written);
        assert_eq!(written, b"one\ntwo\n");
    }
}
