//! The thread that finds out who processes are and what the PCI bus shows; the only one that may wait for
//! `/proc`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, Thread};
use crate::clock::system_now;
use crate::holders::{Directory, Identities};
use crate::host::{Host, Pci};
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
        seen.any = true;
        self.news.notify_one();
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

    fn take(&self) -> Option<BTreeSet<u32>> {
        const LOOK: Duration = Duration::from_millis(250);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut seen, _) = self
            .news
            .wait_timeout_while(seen, LOOK, |seen| !seen.any)
            .unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut seen.any) {
            return None;
        }
        Some(std::mem::take(&mut seen.pids))
    }

    fn publish(&self, identities: Arc<Identities>, at: Nanoseconds) {
        *self.identities.lock().unwrap_or_else(PoisonError::into_inner) = (identities, Some(at));
    }
}

/// How often the PCI bus is looked at.
const BUS: Nanoseconds = Nanoseconds::from_seconds(5);

/// Starts the thread. `agent` is this process, where the host is the one that it runs on.
pub(super) fn start(host: Host, agent: Option<u32>, shared: &Arc<Shared>) -> Result<(), StartError> {
    let shared = Arc::clone(shared);
    Thread::start("host", move || {
        let mut directory = Directory::new(host, agent);
        let mut bus = Nanoseconds(0);
        while !shared.stop.is_called() {
            let now = system_now().boottime;
            if now >= bus {
                bus = now + BUS;
                shared.identities.look_at_bus(&shared.host);
            }
            if let Some(pids) = shared.identities.take() {
                let now = shared.clock.now();
                let identities = directory.refresh(&pids, now);
                shared.identities.publish(identities, now.boottime);
            }
        }
    })?;
    Ok(())
}
