//! OTLP over HTTP: sends encoded batches of points to one destination.
//!
//! Between the tick loop and the sender is a short queue; when it is full the oldest batch is dropped and counted, so a slow
//! destination never delays the tick loop. Every point is counted as sent, rejected or dropped. TLS is not supported yet.

mod destination;
mod queue;
mod reply;
mod report;
mod run;
mod send;

use std::time::Duration;

pub use destination::{BadDestination, Destination};
pub use queue::{PushBatch, PushQueue};
pub use report::{PointCounts, Tally};
pub use run::run;
pub use send::{PushFailure, send};

/// Response of a destination that accepted a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Points of the batch that it refused.
    pub rejected: u64,
    /// Its reason, or a warning; empty if there is none.
    pub message: String,
}

/// Limits on the tries to send a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushLimits {
    /// Time for a batch, with all tries and pauses.
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
