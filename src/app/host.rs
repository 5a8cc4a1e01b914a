//! The thread that finds out who processes are; the only one that may wait for `/proc`.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Shared, StartError, Thread};
use crate::holders::{Directory, Identities};
use crate::host::Host;
use crate::model::Nanoseconds;

/// What lanes saw, and who that is as far as it is known.
#[derive(Default)]
pub(super) struct Published {
    seen: Mutex<Seen>,
    news: Condvar,
    identities: Mutex<(Arc<Identities>, Option<Nanoseconds>)>,
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

/// Starts the thread. `agent` is this process, where the host is the one that it runs on.
pub(super) fn start(host: Host, agent: Option<u32>, shared: &Arc<Shared>) -> Result<(), StartError> {
    let shared = Arc::clone(shared);
    Thread::start("host", move || {
        let mut directory = Directory::new(host, agent);
        while !shared.stop.is_called() {
            if let Some(pids) = shared.identities.take() {
                let now = shared.clock.now();
                let identities = directory.refresh(&pids, now);
                shared.identities.publish(identities, now.boottime);
            }
        }
    })?;
    Ok(())
}
