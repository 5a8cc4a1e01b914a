//! Which deployment a node's findings amount to: what the agent can promise there, in one sentence.

use super::Finding;

/// What may be missing, what is left then, from the most to the least that it takes away.
const VARIANTS: [(&str, &str); 11] = [
    ("driver", "own health only: no driver, so no GPU is read"),
    ("gpus", "own health only: the driver is there, and no GPU is read"),
    ("processes", "telemetry: GPUs are read, but who uses them stays unnamed"),
    ("ledger", "attribution without a ledger: accounts end with the agent"),
    (
        "pods",
        "accounting without all of Kubernetes: some pods hold nothing, or their processes are billed to nobody",
    ),
    ("deployment", "less than all: the line deployment names the variant of the manifests that has the rest"),
    (
        "jobs",
        "accounting without all of Slurm: some jobs hold nothing, or their processes are billed to nobody",
    ),
    ("containers", "accounting of containers by their ids: their runtime does not tell names"),
    ("owners", "accounting of those whom the agent can name: what others use is billed to nobody"),
    ("xids", "accounting, without the driver's events"),
    ("kernel log", "accounting, without the kernel's log: a few XIDs stay unknown"),
];

/// The variant that the findings leave.
pub(super) fn of(findings: &[Finding]) -> &'static str {
    let misses = |what| findings.iter().any(|finding| finding.what == what && !finding.works);
    let left = VARIANTS.iter().find(|(what, _)| misses(*what));
    left.map_or("complete: telemetry, attribution, accounting and health", |(_, variant)| variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_thing_that_is_missing_decides() {
        let finding = |what, works| Finding::new(what, works, "");
        assert!(of(&[finding("driver", true), finding("ledger", true)]).starts_with("complete"));
        assert!(of(&[finding("kernel log", false), finding("processes", false)]).starts_with("telemetry"));
        assert!(of(&[finding("ledger", false), finding("driver", false)]).starts_with("own health only"));
        assert!(of(&[finding("kernel log", false)]).starts_with("accounting, without the kernel's log"));
    }
}
