//! Which variant of the manifests (packaging/kubernetes) an agent in a pod runs as, and which one gives it what it lacks.

use super::{Diagnosis, Finding, place};
use crate::config::Config;
use crate::host::Host;
use crate::model::Absence;

/// What the pod lets the agent see.
#[derive(Clone, Copy, Debug)]
struct Rights {
    /// The driver and its GPUs.
    driver: bool,
    /// The kubelet's directory of sockets.
    kubelet: bool,
    /// The processes of the host.
    processes: bool,
    /// How many families of metrics the driver keeps for administrators.
    refused: usize,
}

/// The variant of an agent in a pod; none outside of pods.
pub(super) fn deployment(config: &Config, host: &Host, diagnosis: &Diagnosis) -> Option<Finding> {
    std::env::var_os("KUBERNETES_SERVICE_HOST")?;
    let works = |what| diagnosis.findings.iter().filter(|one| one.what == what).all(|one| one.works);
    let socket = config.attribution.kubernetes.socket.as_deref();
    let families = diagnosis.gpus.first().map(|gpu| gpu.families.as_slice()).unwrap_or_default();
    let rights = Rights {
        driver: works("driver") && works("gpus"),
        kubelet: socket.and_then(|socket| host.path(socket).parent().map(|parent| parent.exists()))
            == Some(true),
        processes: works("processes") && place::first_of_container(host).is_none(),
        refused: families.iter().filter(|one| one.reason == Absence::NoPermission.reason()).count(),
    };
    Some(judge(rights))
}

fn judge(rights: Rights) -> Finding {
    let variant = match (rights.kubelet, rights.processes) {
        (false, false) => "devices",
        (true, false) => "allocation",
        (true, true) => "usage",
        (false, true) => "usage, without the kubelet's directories",
    };
    let mut lacks = Vec::new();
    if !rights.driver {
        lacks.push(
            "it has no GPU: add component gpu-operator or cdi (runtimeClassName: nvidia), on GKE gke-cos"
                .to_owned(),
        );
    }
    if !rights.kubelet {
        lacks.push("it does not see who holds GPUs: take variant allocation or usage".to_owned());
    }
    if !rights.processes {
        lacks.push("it does not see who uses GPUs: take variant usage".to_owned());
    }
    if rights.refused > 0 {
        let refused = rights.refused;
        lacks.push(format!(
            "the driver keeps {refused} families of metrics for administrators: take variant mig-legacy"
        ));
    }
    Finding::with_problems("deployment", format!("this pod has the rights of variant {variant}"), &lacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_lacks_is_told_with_the_variant_that_has_it() {
        let all = Rights { driver: true, kubelet: true, processes: true, refused: 0 };
        let well = judge(all);
        assert!(well.works && well.why == "this pod has the rights of variant usage", "{}", well.why);
        let cases = [
            (Rights { processes: false, ..all }, "variant allocation;", "take variant usage"),
            (
                Rights { processes: false, kubelet: false, ..all },
                "variant devices;",
                "take variant allocation or usage",
            ),
            (Rights { driver: false, ..all }, "variant usage;", "gpu-operator or cdi"),
            (
                Rights { refused: 3, ..all },
                "variant usage;",
                "3 families of metrics for administrators: take variant mig-legacy",
            ),
        ];
        for (rights, is, remedy) in cases {
            let finding = judge(rights);
            assert!(
                !finding.works && finding.why.contains(is) && finding.why.contains(remedy),
                "{}",
                finding.why
            );
        }
    }
}
