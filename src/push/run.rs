//! The sender: sends the batches of the queue one after the other, and counts points sent, rejected and dropped.
//!
//! When the agent stops it has a moment for what is under way and waiting; the rest is counted as dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::report::LossReport;
use super::{Accepted, Destination, PushFailure, PushQueue, Tally, send};
use crate::clock::system_now;

/// Time for the last batches when the agent stops.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Sends what comes into the queue until `shutdown` says true or its sender is gone.
pub async fn run(queue: Arc<PushQueue>, destination: Destination, mut shutdown: watch::Receiver<bool>) {
    let mut report = LossReport::default();
    {
        let mut sending = pin!(send_all(&queue, &destination, &mut report));
        tokio::select! {
            () = sending.as_mut() => {}
            // An error means that the sender is gone: stop as well.
            _ = shutdown.wait_for(|stop| *stop) => {
                queue.close();
                let _ = timeout(LAST_MOMENT, sending).await;
            }
        }
    }
    queue.clear();
    report.end(&destination);
}

async fn send_all(queue: &PushQueue, destination: &Destination, report: &mut LossReport) {
    while let Some(batch) = queue.next().await {
        let unsettled = PointsInFlight { points: batch.points, tally: destination.tally() };
        let outcome = send(destination, batch.body).await;
        unsettled.settle(&outcome);
        report.settle(destination, &outcome, system_now().boottime);
    }
}

/// The points of a batch under way; dropped with it if the agent stops before its end.
struct PointsInFlight<'a> {
    points: u64,
    tally: &'a Tally,
}

impl PointsInFlight<'_> {
    fn settle(mut self, outcome: &Result<Accepted, PushFailure>) {
        let rejected = match outcome {
            // A destination cannot reject more than it was sent, whatever it says.
            Ok(accepted) => accepted.rejected.min(self.points),
            Err(PushFailure::Refused { .. }) => self.points,
            Err(_) => return,
        };
        self.tally.count_rejected(rejected);
        self.tally.count_sent(self.points - rejected);
        self.points = 0;
    }
}

impl Drop for PointsInFlight<'_> {
    fn drop(&mut self) {
        self.tally.count_dropped(self.points);
    }
}
