//! Shows on a terminal how far a long bill is.

use std::io::{IsTerminal, Write, stderr};

/// How many files are read between two times at which it is shown.
const EVERY: usize = 64;

/// A line on standard error where that is a terminal.
#[derive(Debug, Default)]
pub(super) struct ProgressMeter {
    is_shown: bool,
}

impl ProgressMeter {
    pub(super) fn show(&mut self, done: usize, total: usize) {
        if done.is_multiple_of(EVERY) && stderr().is_terminal() {
            self.is_shown = true;
            // A terminal that is gone needs no progress.
            let _ = write!(stderr(), "\rread {done} of {total} files");
        }
    }

    pub(super) fn clear(&self) {
        if self.is_shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
