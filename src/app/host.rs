//! The thread that finds out who processes are and what the PCI bus shows; the only one that may wait for
//! `/proc`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, Thread};
use crate::clock::system_now;
use crate::holders::{Directory, Identities};
use crate::host::{Host, Pci, own};
use crate::model::Nanoseconds;

/// What lanes saw, and who that is as far as it is known.
#[derive(Default)]
pub(super) struct Published {
    seen: Mutex<Seen>,
    news: Condvar,
    identities: Mutex<(Arc<Identities>, Option<Nanoseconds>)>,
    pci: Mutex<Option<Arc<Pci>>>,
}

#[derive(Default)]
struct Seen {
    pids: BTreeSet<u32>,
    any: bool,
}

impl Published {
    /// A lane saw these processes.
    pub(super) fn see(&self, pids: impl Iterator<Item = u32>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.pids.extend(pids);
        if !std::mem::replace(&mut seen.any, true) {
            self.news.notify_one();
        }
    }

    /// Who is known, and when the map was made.
    pub(super) fn get(&self) -> (Arc<Identities>, Option<Nanoseconds>) {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The GPUs on the PCI bus, where it can be seen.
    pub(super) fn pci(&self) -> Option<Arc<Pci>> {
        self.pci.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn look_at_bus(&self, host: &Host) {
        let pci = host.pci().map(Arc::new);
        *self.pci.lock().unwrap_or_else(PoisonError::into_inner) = pci;
    }

    /// Waits for what lanes see; whether there is any.
    fn wait(&self) -> bool {
        const LOOK: Duration = Duration::from_secs(1);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(seen, LOOK, |seen| !seen.any);
        waited.unwrap_or_else(PoisonError::into_inner).0.any
    }

    fn take(&self) -> BTreeSet<u32> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.any = false;
        std::mem::take(&mut seen.pids)
    }

    fn publish(&self, identities: Arc<Identities>, at: Nanoseconds) {
        *self.identities.lock().unwrap_or_else(PoisonError::into_inner) = (identities, Some(at));
    }
}

/// How often the PCI bus is looked at.
const BUS: Nanoseconds = Nanoseconds::from_seconds(5);

/// Lanes read at the same moment: after the first one the others have so long, and all are looked at in one round.
const GATHER: Duration = Duration::from_millis(5);

/// The most processes that are held by a descriptor, and the descriptors that are left to everything else first.
const MOST_HELD: u64 = 256;
const NOT_FOR_PROCESSES: u64 = 512;

/// How many processes may be held where so many files may be open: those above it are read every round.
fn held_within(files: u64) -> usize {
    let held = (files.saturating_sub(NOT_FOR_PROCESSES) / 2).min(MOST_HELD);
    usize::try_from(held).unwrap_or(0)
}

/// Starts the thread. `agent` is this process, where the host is the one that it runs on.
pub(super) fn start(host: Host, agent: Option<u32>, shared: &Arc<Shared>) -> Result<(), StartError> {
    let shared = Arc::clone(shared);
    Thread::start("host", move || {
        let mut directory = Directory::new(host, agent, held_within(own::most_files().unwrap_or(u64::MAX)));
        let mut bus = Nanoseconds(0);
        while !shared.stop.is_called() {
            let now = system_now().boottime;
            if now >= bus {
                bus = now + BUS;
                shared.identities.look_at_bus(&shared.host);
            }
            if shared.identities.wait() && !shared.stop.wait(GATHER) {
                let now = shared.clock.now();
                let identities = directory.refresh(&shared.identities.take(), now);
                shared.identities.publish(identities, now.boottime);
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_descriptors_are_few_none_is_spent_on_processes() {
        assert_eq!([64, 512, 700, 1_024, u64::MAX].map(held_within), [0, 0, 94, 256, 256]);
    }
}
