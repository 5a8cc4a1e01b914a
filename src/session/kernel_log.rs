//! The thread that reads the kernel's log for XIDs: some never become events of the driver, and the last words
//! of a driver that hangs stand only there.
//!
//! Records from before the agent's start are not told. A log that cannot be read is tried again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use super::DriverSessions;
use super::received::{Batch, Kind, Received};
use crate::health::kernel_line;
use crate::host::KernelLog;
use crate::model::{GpuName, XidSource};
use crate::thread::{self, Thread};

/// How often a log that speaks is looked at: soon enough for a tick.
const LOOK: Duration = Duration::from_millis(200);

/// Seconds that one which is silent is waited for at once: it wakes the thread when it speaks, and nobody waits for
/// the thread's end.
const SILENCE: u32 = 60;

/// How often a log that cannot be read is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Reads at one look: more than a log holds would be somebody writing as fast as we read.
const MOST_READS: usize = 4_096;

/// Starts the thread.
pub(crate) fn start(shared: &Arc<DriverSessions>) -> Result<(), thread::Error> {
    let shared = Arc::clone(shared);
    Thread::start("kernel_log", move || {
        let _deaf = Deaf(&shared.received);
        // A log that comes to be while we look is new as a whole.
        let (mut came, mut told) = (false, false);
        while !shared.stop.is_called() {
            match shared.host.kernel_log(came) {
                Ok(log) => {
                    told = false;
                    if let Err(error) = follow(log, &shared) {
                        tracing::warn!(%error, "the kernel's log cannot be read any more; it is opened again");
                    }
                    came = false;
                }
                Err(error) => {
                    came = error.kind() == ErrorKind::NotFound;
                    if !told {
                        tracing::info!(%error, "the kernel's log cannot be read; XIDs come from the driver alone");
                        told = true;
                    }
                }
            }
            shared.received.kernel_log(false, 0);
            shared.stop.wait(AGAIN);
        }
    })?;
    Ok(())
}

/// Says that nobody reads the log any more when its thread ends, however it ends.
struct Deaf<'a>(&'a Received);

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        self.0.kernel_log(false, 0);
    }
}

/// Reads until the agent stops or the log fails.
fn follow(mut log: KernelLog, shared: &DriverSessions) -> std::io::Result<()> {
    while !shared.stop.is_called() {
        let (mut batch, mut speaks) = (Batch::default(), false);
        for _ in 0..MOST_READS {
            if !log.read(|record| hear(record, &mut batch))? {
                break;
            }
            speaks = true;
        }
        shared.received.kernel_log(true, log.take_lost());
        if !batch.is_empty() {
            shared.received.add(batch, shared.clock.now());
        }
        if speaks || !log.is_silent_for(SILENCE)? {
            shared.stop.wait(LOOK);
        }
    }
    Ok(())
}

fn hear(record: &str, batch: &mut Batch) {
    let Some(line) = kernel_line::parse(record) else { return };
    batch.xid(Kind {
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
        let heard = Received::default();
        let failed = catch_unwind(AssertUnwindSafe(|| {
            let _deaf = Deaf(&heard);
            heard.kernel_log(true, 0);
            panic!("a fault of its own");
        }));
        assert!(failed.is_err());
        assert_eq!(heard.losses().0, Some(false));
    }
}
