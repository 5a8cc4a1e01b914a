//! OTLP over HTTP: sends encoded batches of points to one destination.
//!
//! In go bodies that the encoder has finished and the number of points in each; out comes the destination's
//! verdict, and counts of points sent, rejected and dropped. Between the tick loop and the sender is a short queue; when
//! it is full the oldest batch is dropped and counted, so a slow destination never delays the tick loop. TLS is not
//! supported yet.

mod attempt;
mod destination;
mod queue;
mod reply;
mod report;
mod run;
mod send;
mod tally;

use std::time::Duration;

pub use destination::{BadDestination, Destination};
pub use queue::{PushBatch, PushQueue};
pub use run::run;
pub use send::{PushFailure, send, try_once};
pub use tally::Tally;

/// What a destination made of a batch that it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Points that it refused nevertheless.
    pub rejected: u64,
    /// Why, or a warning, in its own words; "" if it said nothing.
    pub message: String,
}

/// How long and how often a batch is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushLimits {
    /// For a batch, all tries and pauses included.
    pub total: Duration,
    /// Pause after the first try, doubled after each further one.
    pub pause: Duration,
    /// Longest pause that a destination may ask for.
    pub longest_pause: Duration,
    /// Tries in all.
    pub tries: u32,
}

impl Default for PushLimits {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(10),
            pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
            tries: 3,
        }
    }
}
