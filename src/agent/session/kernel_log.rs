//! The thread that reads XIDs and SXIDs from the kernel log: some XIDs never become events of the driver, and a driver that hangs writes
//! its last messages only there.
//!
//! Records from before the agent's start are skipped. A log that cannot be read is tried again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::DriverSessions;
use super::received::{EventBatch, Received, XidKind};
use crate::holders::host::KernelLog;
use crate::meter::health::kernel_line;
use crate::model::{GpuName, XidSource};
use crate::runtime::thread::{self, Thread};

/// How often a log with new records is read: several times per tick.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The longest wait for the next record of a silent log, in seconds. A new record ends the wait, and nobody waits for
/// the thread's end.
const SILENT_SECONDS: u32 = 60;

/// How often a log that cannot be read is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The most records read at once, more than a log holds: a process may write as fast as this one reads.
const MAX_READS: usize = 4_096;

pub(crate) fn start(shared: &Arc<DriverSessions>) -> Result<(), thread::Error> {
    let shared = Arc::clone(shared);
    Thread::start("kernel_log", move || {
        let _report = ReportUnreadable(&shared.received);
        // A log that appears after the start is read from its beginning.
        let (mut appeared_later, mut is_logged) = (false, false);
        while !shared.stop.is_called() {
            match shared.host.kernel_log(appeared_later) {
                Ok(log) => {
                    is_logged = false;
                    if let Err(error) = follow(log, &shared) {
                        tracing::warn!(%error, "the kernel log cannot be read any more; it is opened again");
                    }
                    appeared_later = false;
                }
                Err(error) => {
                    appeared_later = error.kind() == ErrorKind::NotFound;
                    if !is_logged {
                        tracing::info!(%error, "the kernel log cannot be read; XIDs come from the driver alone");
                        is_logged = true;
                    }
                }
            }
            shared.received.kernel_log(false, 0);
            shared.stop.wait(RETRY_INTERVAL);
        }
    })?;
    Ok(())
}

/// Reports the log as unreadable when its thread ends, even by a panic.
struct ReportUnreadable<'a>(&'a Received);

impl Drop for ReportUnreadable<'_> {
    fn drop(&mut self) {
        self.0.kernel_log(false, 0);
    }
}

/// Reads until the agent stops or the log fails.
fn follow(mut log: KernelLog, shared: &DriverSessions) -> std::io::Result<()> {
    while !shared.stop.is_called() {
        let (mut batch, mut has_records) = (EventBatch::default(), false);
        for _ in 0..MAX_READS {
            if !log.read(|record| count(record, &mut batch))? {
                break;
            }
            has_records = true;
        }
        shared.received.kernel_log(true, log.take_lost());
        if !batch.is_empty() {
            shared.received.add(batch, shared.clock.now());
        }
        if has_records || !log.is_idle_for(SILENT_SECONDS)? {
            shared.stop.wait(POLL_INTERVAL);
        }
    }
    Ok(())
}

fn count(record: &str, batch: &mut EventBatch) {
    if let Some(sxid) = kernel_line::parse_sxid(record) {
        return batch.sxid(sxid);
    }
    let Some(line) = kernel_line::parse(record) else { return };
    batch.xid(XidKind {
        source: XidSource::KernelLog,
        gpu: GpuName::Pci(line.pci),
        xid: line.xid,
        gpu_instance: line.gpu_instance,
        compute_instance: line.compute_instance,
    });
}

#[cfg(test)]
#[allow(clippy::panic, reason = "the thread's own fault is what is tested")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_thread_that_fails_does_not_leave_the_log_looking_read() {
        let received = Received::default();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let _report = ReportUnreadable(&received);
            received.kernel_log(true, 0);
            panic!("a fault of its own");
        }));
        assert!(failed.is_err());
        assert_eq!(received.losses().0, Some(false));
    }
}
