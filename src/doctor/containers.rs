//! Whether a container runtime names its containers.

use std::sync::Arc;

use super::Finding;
use crate::config::Config;
use crate::docker::DockerClient;
use crate::holders::ResolvedWorkloads;
use crate::host::Host;

/// Asks the runtime once; no finding where the configuration names none. Adds what was learned to that of which processes
/// are identified by.
pub(super) fn containers(config: &Config, host: &Host, workloads: &mut ResolvedWorkloads) -> Option<Finding> {
    let socket = config.attribution.containers.socket.as_ref()?;
    let listed = DockerClient::new(&host.path(socket)).and_then(|client| client.containers());
    Some(match listed {
        Ok(containers) => {
            let why = format!("{} names {} running containers", socket.display(), containers.len());
            workloads.containers = Arc::new(containers);
            Finding::new("containers", true, why)
        }
        Err(error) => {
            let why = format!("containers are billed by their ids, without names and images: {error}");
            Finding::new("containers", false, why)
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_there_is_a_finding_and_no_socket_is_none() {
        let root = tempfile::tempdir().unwrap();
        let (host, mut workloads) = (Host::at(root.path()), ResolvedWorkloads::default());
        assert!(containers(&Config::default(), &host, &mut workloads).is_none());
        let text = "attribution: {containers: {socket: /run/docker.sock}}";
        let config = Config::parse(text, "test").unwrap();
        let finding = containers(&config, &host, &mut workloads).unwrap();
        assert!(!finding.works && finding.why.contains("run/docker.sock does not exist"), "{}", finding.why);
    }
}
