//! `gpumeter job --sum`: reads the summaries of one job that its nodes have made with `--json`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Failure;
use crate::billing::BillLine;

/// The summary of one node, as `gpumeter job --json` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NodeSummary {
    pub(super) job: String,
    pub(super) node: String,
    pub(super) simulated: bool,
    #[serde(default)]
    pub(super) example_prices: bool,
    pub(super) accounted_until: String,
    pub(super) currency: Option<String>,
    pub(super) lines: Vec<BillLine>,
}

/// Reads the files, in the order of their nodes' names.
///
/// # Errors
/// A file is no summary, or they are not of one job, in one currency, and of different GPUs.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<NodeSummary>, Failure> {
    let mut summaries = files.iter().map(|file| read_one(file)).collect::<Result<Vec<_>, _>>()?;
    check(files, &summaries)?;
    summaries.sort_by(|left, right| left.node.cmp(&right.node));
    Ok(summaries)
}

fn read_one(file: &Path) -> Result<NodeSummary, Failure> {
    let wrong = |error: String| Failure::wrong(format!("{}: {error}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| {
        wrong(format!("{error}; it is not what `gpumeter job ID --json` prints: make the summary again"))
    })
}

/// Checks that nothing would be added that does not belong together, and nothing twice.
fn check(files: &[PathBuf], summaries: &[NodeSummary]) -> Result<(), Failure> {
    let clusters = |summary: &NodeSummary| -> BTreeSet<String> {
        summary.lines.iter().filter_map(|line| line.labels.get("slurm_cluster").cloned()).collect()
    };
    let mut gpus: BTreeMap<&str, &Path> = BTreeMap::new();
    for (file, summary) in files.iter().zip(summaries) {
        let differs = |what: &str| {
            let first = files[0].display();
            Failure::wrong(format!(
                "{}: its {what} is not that of {first}; add up the nodes of one job",
                file.display()
            ))
        };
        let first = &summaries[0];
        if summary.job != first.job || clusters(summary) != clusters(first) {
            return Err(differs("job"));
        }
        if summary.currency != first.currency {
            return Err(differs("currency"));
        }
        let own: BTreeSet<&str> = summary.lines.iter().map(|line| &*line.gpu.uuid).collect();
        for uuid in own {
            if let Some(other) = gpus.insert(uuid, file) {
                return Err(Failure::wrong(format!(
                    "{}: it has {uuid}, as {} has; give the summary of each node once",
                    file.display(),
                    other.display()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A summary of one hour on a GPU, with these fields instead.
    fn summary(node: &str, other: Value) -> Value {
        let hour = 3_600_000_000_000_u64;
        let line = json!({"tenant": "bio", "holder": "slurm:alpha/7", "labels": {"slurm_cluster": "alpha"}, "gpu": 0,
            "uuid": format!("GPU-{node}"), "held_ns": hour, "within_ns": hour, "lent_ns": 0, "idle_ns": 0,
            "unmeasured_ns": 0, "unavailable_ns": 0, "used_ns": hour, "beyond_share_ns": 0, "outside_holding_ns": 0,
            "unheld_ns": 0, "energy_static_uj": null, "energy_dynamic_uj": null, "grade": "measured",
            "measured_ns": hour, "method": "observed", "sources": [], "money": "1.500000000"});
        let mut all = json!({"job": "7", "node": node, "simulated": false, "accounted_until": "2026-11-01T00:00:00Z",
            "currency": "EUR", "lines": [line]});
        all.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        all
    }

    fn read_all(summaries: &[Value]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = (0..summaries.len()).map(|at| folder.path().join(at.to_string())).collect();
        for (file, summary) in files.iter().zip(summaries) {
            fs::write(file, summary.to_string()).unwrap();
        }
        let names = |all: Vec<NodeSummary>| all.into_iter().map(|one| one.node).collect();
        read(&files).map(names).map_err(|failure| failure.message)
    }

    #[test]
    fn summaries_of_one_job_are_read_in_the_order_of_their_nodes() {
        let all = [summary("b", json!({})), summary("a", json!({}))];
        assert_eq!(read_all(&all), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn what_does_not_belong_together_or_is_there_twice_is_refused() {
        let one = summary("a", json!({}));
        for (other, words) in [
            (summary("a", json!({})), "it has GPU-a, as "),
            (summary("b", json!({"job": "8"})), "its job is not that of "),
            (summary("b", json!({"currency": "USD"})), "its currency is not that of "),
            (json!({"job": "7"}), "it is not what `gpumeter job ID --json` prints"),
            (json!("text"), "it is not what `gpumeter job ID --json` prints"),
        ] {
            let error = read_all(&[one.clone(), other]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
