//! The thread that asks a container runtime for the names and images of its containers.
//!
//! It asks when a process runs in a container that is not known, and every ten seconds; never more than once per second, and
//! ever less often while the runtime does not answer. What was last known stays in force. It runs only where the
//! configuration names the runtime's socket: who may read that is as good as root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Resolvers;
use crate::clock::system_now;
use crate::docker::{ContainerDescriptions, DockerClient, Error};
use crate::model::{Nanoseconds, UnattributedReason};
use crate::thread::{self, Thread};

/// How often the thread looks whether there is a reason to ask.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often it asks without any reason.
const REFRESH_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

/// The longest time between two attempts while the runtime does not answer.
const MAX_PAUSE: Nanoseconds = Nanoseconds::from_seconds(60);

/// How the thread fares, and what it is asked for.
#[derive(Default)]
pub(crate) struct ContainerResolverStatus {
    /// Whether a process runs in a container that is not known.
    wanted: AtomicBool,
    /// Whether the runtime answered the last time, and when it last did; none before the first attempt.
    last: Mutex<Option<(bool, Option<Nanoseconds>)>>,
}

impl ContainerResolverStatus {
    /// Asks for another round, since a process runs in a container that is not known.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Whether the runtime answered the last time, and when it last did; none where none is asked.
    pub(crate) fn last(&self) -> Option<(bool, Option<Nanoseconds>)> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an attempt; whether the one before ended otherwise.
    fn note(&self, succeeded: bool, now: Nanoseconds) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *last;
        let at = if succeeded { Some(now) } else { before.and_then(|(_, at)| at) };
        *last = Some((succeeded, at));
        before.is_none_or(|(before, _)| before != succeeded)
    }
}

/// Starts the thread where the configuration names a socket.
pub(crate) fn start(shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    let Some(socket) = shared.config.active().config.attribution.containers.socket.clone() else {
        return Ok(());
    };
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Container));
    let shared = Arc::clone(shared);
    Thread::start("containers", move || match DockerClient::new(&shared.host.path(&socket)) {
        Ok(client) => run(&client, &shared),
        Err(error) => tracing::error!(%error, "containers are not named"),
    })?;
    Ok(())
}

fn run(client: &DockerClient, shared: &Resolvers) {
    let (mut next, mut pause) = (Nanoseconds(0), Nanoseconds(0));
    loop {
        let now = system_now().boottime;
        let wanted = shared.containers.wanted.swap(false, Ordering::Relaxed);
        if now >= next || (wanted && pause == Nanoseconds(0)) {
            let answer = client.containers();
            pause = match answer {
                Ok(_) => Nanoseconds(0),
                Err(_) => Nanoseconds((pause.0 * 2).clamp(Nanoseconds::SECOND.0, MAX_PAUSE.0)),
            };
            next = now + if pause == Nanoseconds(0) { REFRESH_INTERVAL } else { pause };
            take(answer, shared);
        }
        if shared.stop.wait(POLL_INTERVAL) {
            return;
        }
    }
}

/// Publishes what the runtime lists, or why it does not.
fn take(answer: Result<ContainerDescriptions, Error>, shared: &Resolvers) {
    let is_new = shared.containers.note(answer.is_ok(), system_now().boottime);
    match answer {
        Ok(containers) => {
            if is_new {
                tracing::info!(containers = containers.len(), "the container runtime names containers");
            }
            shared.update_workloads(|workloads| {
                if *workloads.containers != containers {
                    workloads.containers = Arc::new(containers);
                }
            });
        }
        Err(error) if is_new => {
            tracing::warn!(%error, "the container runtime does not answer; names of containers stay as they were");
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_time_of_the_last_answer_and_only_a_change_is_told() {
        let status = ContainerResolverStatus::default();
        assert_eq!(status.last(), None);
        assert!(status.note(false, Nanoseconds(3)));
        assert_eq!(status.last(), Some((false, None)));
        assert!(status.note(true, Nanoseconds(7)) && !status.note(true, Nanoseconds(8)));
        assert!(status.note(false, Nanoseconds(9)) && !status.note(false, Nanoseconds(10)));
        assert_eq!(status.last(), Some((false, Some(Nanoseconds(8)))));
    }
}
