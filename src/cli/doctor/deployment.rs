//! What the agent can do on the node by its findings; in a pod also the variant of the manifests (packaging/kubernetes) whose
//! rights it has, and the variant that has the rights it lacks.

use super::{Diagnosis, Finding, node};
use crate::config::Config;
use crate::holders::host::Host;
use crate::model::Absence;

#[derive(Clone, Copy, Debug)]
struct Rights {
    driver: bool,
    /// The kubelet's directory of sockets.
    kubelet: bool,
    processes: bool,
    /// How many metric families the driver reserves for administrators.
    refused: usize,
}

/// The variant of the manifests whose rights this pod has; nothing outside of pods.
pub(super) fn check_manifest(config: &Config, host: &Host, diagnosis: &Diagnosis) -> Option<Finding> {
    std::env::var_os("KUBERNETES_SERVICE_HOST")?;
    let works = |what| diagnosis.findings.iter().filter(|one| one.what == what).all(|one| one.works);
    let socket = config.attribution.kubernetes.socket.as_deref();
    let families = diagnosis.gpus.first().map(|gpu| gpu.families.as_slice()).unwrap_or_default();
    let rights = Rights {
        driver: works("driver") && works("gpus"),
        kubelet: socket.and_then(|socket| host.path(socket).parent().map(|parent| parent.exists()))
            == Some(true),
        processes: works("processes") && node::container_init(host).is_none(),
        refused: families.iter().filter(|one| one.reason == Absence::NoPermission.reason()).count(),
    };
    Some(describe_rights(rights))
}

fn describe_rights(rights: Rights) -> Finding {
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
        lacks.push("the holders of GPUs are not visible: use variant allocation or usage".to_owned());
    }
    if !rights.processes {
        lacks.push("the users of GPUs are not visible: use variant usage".to_owned());
    }
    if rights.refused > 0 {
        let refused = rights.refused;
        lacks.push(format!(
            "the driver reserves {refused} metric families for administrators: use variant mig-legacy"
        ));
    }
    Finding::with_problems("deployment", format!("this pod has the rights of variant {variant}"), &lacks)
}

/// What the agent can do if this check has failed; the check that costs the most comes first.
const VARIANTS: [(&str, &str); 11] = [
    ("driver", "only its own /-/healthy and metrics about itself: no driver, so no GPU is read"),
    ("gpus", "only its own /-/healthy and metrics about itself: the driver works, but no GPU can be read"),
    ("processes", "telemetry: GPUs are read, but who uses them stays unnamed"),
    ("ledger", "attribution without a ledger: all usage totals are lost when the agent stops"),
    (
        "pods",
        "accounting without all of Kubernetes: some pods are billed for no GPU, or their processes are billed to nobody",
    ),
    (
        "deployment",
        "not everything: this pod lacks rights; see the line `deployment` above for the manifest variant that has them",
    ),
    (
        "jobs",
        "accounting without all of Slurm: some jobs are billed for no GPU, or their processes are billed to nobody",
    ),
    ("containers", "accounting of containers by their ids: their runtime does not report names"),
    ("owners", "accounting of the owners that the agent can name: use by others is billed to nobody"),
    ("xids", "accounting, without XID events of the driver"),
    ("kernel log", "accounting, without the kernel log: a few XIDs stay unknown"),
];

pub(super) fn describe_variant(findings: &[Finding]) -> &'static str {
    let has_failed = |what| findings.iter().any(|finding| finding.what == what && !finding.works);
    let worst = VARIANTS.iter().find(|(what, _)| has_failed(*what));
    worst.map_or("everything: telemetry, attribution, accounting and health", |(_, variant)| variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_that_a_pod_lacks_are_named_with_the_variant_that_has_them() {
        let all = Rights { driver: true, kubelet: true, processes: true, refused: 0 };
        let well = describe_rights(all);
        assert!(well.works && well.why == "this pod has the rights of variant usage", "{}", well.why);
        let cases = [
            (Rights { processes: false, ..all }, "variant allocation;", "use variant usage"),
            (
                Rights { processes: false, kubelet: false, ..all },
                "variant devices;",
                "use variant allocation or usage",
            ),
            (Rights { driver: false, ..all }, "variant usage;", "gpu-operator or cdi"),
            (
                Rights { refused: 3, ..all },
                "variant usage;",
                "3 metric families for administrators: use variant mig-legacy",
            ),
        ];
        for (rights, is, remedy) in cases {
            let finding = describe_rights(rights);
            assert!(
                !finding.works && finding.why.contains(is) && finding.why.contains(remedy),
                "{}",
                finding.why
            );
        }
    }

    #[test]
    fn the_gravest_thing_that_is_missing_decides() {
        let finding = |what, works| Finding::new(what, works, "");
        assert!(
            describe_variant(&[finding("driver", true), finding("ledger", true)]).starts_with("everything")
        );
        assert!(
            describe_variant(&[finding("kernel log", false), finding("processes", false)])
                .starts_with("telemetry")
        );
        assert!(
            describe_variant(&[finding("ledger", false), finding("driver", false)])
                .starts_with("only its own /-/healthy")
        );
        assert!(
            describe_variant(&[finding("kernel log", false)])
                .starts_with("accounting, without the kernel log")
        );
    }
}
