//! The sender: sends the batches of the queue one after the other, and counts points sent, rejected and dropped.
//!
//! When the agent stops it has half a second for the batches that are left; the rest is counted as dropped.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::report::LossReport;
use super::{Accepted, Destination, PushFailure, PushQueue, Tally, send};
use crate::clock::system_now;

/// Time for the last batches when the agent stops.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Sends the batches of the queue until `shutdown` is true or its sender is dropped.
pub async fn run(queue: Arc<PushQueue>, destination: Destination, mut shutdown: watch::Receiver<bool>) {
    let mut report = LossReport::default();
    {
        let mut sending = pin!(send_all(&queue, &destination, &mut report));
        tokio::select! {
            () = sending.as_mut() => {}
            // An error means that the sender of `shutdown` was dropped, which also stops the run.
            _ = shutdown.wait_for(|stop| *stop) => {
                queue.close();
                let _ = timeout(FLUSH_TIMEOUT, sending).await;
            }
        }
    }
    queue.clear();
    report.end(&destination);
}

async fn send_all(queue: &PushQueue, destination: &Destination, report: &mut LossReport) {
    while let Some(batch) = queue.next().await {
        let in_flight = PointsInFlight { points: batch.points, tally: destination.tally() };
        let outcome = send(destination, batch.body).await;
        in_flight.settle(&outcome);
        report.settle(destination, &outcome, system_now().boottime);
    }
}

/// The points of a batch that is being sent. They are counted as dropped unless `settle` counts them otherwise.
struct PointsInFlight<'a> {
    points: u64,
    tally: &'a Tally,
}

impl PointsInFlight<'_> {
    fn settle(mut self, outcome: &Result<Accepted, PushFailure>) {
        let rejected = match outcome {
            // A destination may report more rejected points than it was sent.
            Ok(accepted) => accepted.rejected.min(self.points),
            Err(PushFailure::Refused { .. }) => self.points,
            Err(_) => return,
        };
        self.tally.rejected.fetch_add(rejected, Ordering::Relaxed);
        self.tally.sent.fetch_add(self.points - rejected, Ordering::Relaxed);
        self.points = 0;
    }
}

impl Drop for PointsInFlight<'_> {
    fn drop(&mut self) {
        self.tally.dropped.fetch_add(self.points, Ordering::Relaxed);
    }
}
