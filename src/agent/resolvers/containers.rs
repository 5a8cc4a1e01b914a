//! The thread that asks a container runtime for the names and images of its containers.
//!
//! It asks when a process runs in an unknown container, and every ten seconds; at most once per second, and less often
//! while the runtime does not respond. The last result stays in force. It runs only where the configuration names the
//! runtime's socket, since access to that socket is as good as root.

use std::sync::Arc;

use super::{REFRESH_INTERVAL, Resolvers, replace};
use crate::holders::docker::DockerClient;
use crate::model::UnattributedReason;
use crate::runtime::clock::{Backoff, system_now};
use crate::runtime::thread;

pub(super) fn start(shared: &Arc<Resolvers>) -> Result<(), thread::Error> {
    let Some(socket) = shared.policy.now().config.attribution.containers.socket.clone() else {
        return Ok(());
    };
    shared.update_workloads(|workloads| workloads.awaited.push(UnattributedReason::Container));
    shared.start_rounds(|statuses| &statuses.containers, move |shared| {
        match DockerClient::new(&shared.host.path(&socket)) {
            Ok(client) => {
                let mut schedule = Backoff::default();
                Some(move |shared: &Resolvers| run_round(&client, &mut schedule, shared))
            }
            Err(error) => {
                tracing::error!(%error, "the container runtime client cannot start: containers appear by id, without names, until the agent is restarted");
                None
            }
        }
    })?;
    Ok(())
}

fn run_round(client: &DockerClient, schedule: &mut Backoff, shared: &Resolvers) {
    let status = &shared.statuses.containers;
    let now = system_now().boottime;
    let is_requested = status.take_request();
    if !schedule.is_due(now) && (!is_requested || schedule.has_failed()) {
        return;
    }
    match client.containers() {
        Ok(containers) => {
            schedule.succeed(now, REFRESH_INTERVAL);
            if status.record_success(system_now().boottime) {
                tracing::info!(containers = containers.len(), "the container runtime names containers");
            }
            shared.update_workloads(|workloads| replace(&mut workloads.containers, containers));
        }
        Err(error) => {
            schedule.fail(now);
            if status.record_failure(false) {
                tracing::warn!(%error, "the container runtime does not answer; names of containers stay as they were");
            }
        }
    }
}
