//! `gpumeter job --sum`: reads the summaries of one job that its nodes have made with `--json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Failure;
use crate::accounting::billing::JobSummary;
use crate::model::Fact;
use crate::runtime::file;

/// Reads the files, and adds them up in the order of their nodes' names.
///
/// # Errors
/// A file is no summary, or they are not of one job, in one currency, and of different GPUs.
pub(super) fn read(files: &[PathBuf]) -> Result<JobSummary, Failure> {
    let mut summaries = files.iter().map(|file| read_one(file)).collect::<Result<Vec<_>, _>>()?;
    check(files, &summaries)?;
    summaries.sort_by(|left, right| left.nodes.cmp(&right.nodes));
    let mut summaries = summaries.into_iter();
    let mut sum = summaries.next().ok_or_else(|| Failure::wrong("--sum: give a file"))?;
    summaries.for_each(|other| sum.add(other));
    Ok(sum)
}

fn read_one(file: &Path) -> Result<JobSummary, Failure> {
    let wrong = |error: String| Failure::wrong(format!("{}: {error}", file.display()));
    let text = file::read_text(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| {
        wrong(format!("{error}; it is not what `gpumeter job ID --json` prints: make the summary again"))
    })
}

/// Checks that all summaries belong together, and that nothing is added twice.
fn check(files: &[PathBuf], summaries: &[JobSummary]) -> Result<(), Failure> {
    let clusters = |summary: &JobSummary| -> BTreeSet<String> {
        let labels = summary.labels.iter();
        labels
            .filter(|(label, _)| label == Fact::SlurmCluster.label())
            .map(|(_, name)| name.clone())
            .collect()
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
        for gpu in &summary.gpus {
            if let Some(other) = gpus.insert(&gpu.uuid, file) {
                return Err(Failure::wrong(format!(
                    "{}: it has {}, as {} has; give the summary of each node once",
                    file.display(),
                    gpu.uuid,
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

    use super::super::job_report::report;
    use super::*;
    use crate::cli::report::text;
    use crate::model::{EnergySum, Money, TimeSum};

    const HOUR: u64 = 3_600_000_000_000;

    fn hours(hours: u64) -> TimeSum {
        TimeSum(u128::from(hours * HOUR))
    }

    /// A summary of one hour on a GPU, with these fields instead.
    fn summary(node: &str, other: Value) -> Value {
        let usage = json!({"start": "2026-11-01T00:00:00Z", "end": "2026-11-01T01:00:00Z", "held_ns": HOUR,
            "used_ns": HOUR, "lent_ns": 0, "idle_ns": 0, "unmeasured_ns": 0, "unavailable_ns": 0, "efficiency": 1.0,
            "activity": 1.0, "busy_ns": HOUR, "measured_slot_ns": HOUR, "memory_peak_bytes": 3_u64 << 30,
            "energy_uj": null, "money": "1.500000000"});
        let with = |fields: Value| {
            let mut all = usage.as_object().unwrap().clone();
            all.extend(fields.as_object().unwrap().clone());
            Value::from(all)
        };
        let mut all = json!({"job": "7", "labels": [["slurm_cluster", "alpha"], ["slurm_account", "bio"]],
            "nodes": [node], "simulated": false, "accounted_until": "2026-11-01T02:00:00Z", "time_zone": "UTC",
            "currency": "EUR", "total": usage, "gpus": [with(json!({"node": node, "gpu": 0,
            "uuid": format!("GPU-{node}")}))], "steps": [with(json!({"step": "0", "gpus": 1}))]});
        all.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        all
    }

    fn sum(summaries: &[Value]) -> Result<JobSummary, String> {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = (0..summaries.len()).map(|at| folder.path().join(at.to_string())).collect();
        for (file, summary) in files.iter().zip(summaries) {
            std::fs::write(file, summary.to_string()).unwrap();
        }
        read(&files).map_err(|failure| failure.message)
    }

    #[test]
    fn a_sum_has_a_row_for_each_gpu_of_each_node_and_the_total_of_all() {
        let early = json!({"accounted_until": "2026-11-01T01:00:00Z"});
        let both = sum(&[summary("n2", early), summary("n1", json!({}))]).unwrap();
        assert_eq!(both.nodes, ["n1", "n2"]);
        assert_eq!((both.total.held_ns, both.total.money), (hours(2), Some(Money(3_000_000_000))));
        assert_eq!((both.total.efficiency, both.total.activity), (Some(1.0), Some(1.0)));
        assert_eq!((both.steps.len(), both.steps[0].gpus, both.steps[0].usage.used_ns), (1, 2, hours(2)));
        let told = text::report(&report(&both));
        assert!(told.starts_with("Job 7 on n1, n2\naccount       bio\ncluster       alpha\n"), "{told}");
        let cells = |row: &str| {
            let line =
                told.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{row}: {told}"));
            line[row.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let held = ["1.0000", "1.0000", "0.0000", "100.0", "%", "100.0", "%", "3.0", "-", "1.5000"];
        assert_eq!(cells("n1 gpu 0"), held);
        assert_eq!(cells("total")[..2], ["2.0000", "2.0000"]);
        assert_eq!(cells("total")[9], "3.0000");
        assert_eq!(cells("0 ")[6..8], ["2", "2.0000"], "{told}");
        let state = "not complete: it may go on where the account ends; accounted until 2026-11-01 01:00 Z;";
        assert!(told.replace('\n', " ").contains(state), "{told}");
        assert!(told.contains("end           2026-11-01 01:00 Z, the end of the account\n"), "{told}");
        // A sum is a summary, so that a stored one can be printed.
        let again = sum(&[serde_json::to_value(&both).unwrap()]).unwrap();
        assert_eq!(again, both);
    }

    #[test]
    fn sums_of_more_than_64_bits_are_added_and_read_again() {
        let two_to_the_64 = "18446744073709551616";
        let usage = json!({"node": "n1", "gpu": 0, "uuid": "GPU-n1", "start": "2026-11-01T00:00:00Z",
            "end": "2026-11-01T01:00:00Z", "held_ns": two_to_the_64, "used_ns": two_to_the_64, "lent_ns": "0",
            "idle_ns": "0", "unmeasured_ns": "0", "unavailable_ns": "0", "efficiency": 1.0, "activity": null,
            "busy_ns": "0", "measured_slot_ns": "0", "memory_peak_bytes": "0", "energy_uj": two_to_the_64});
        let long = |node: &str| {
            let mut usage = usage.clone();
            usage["uuid"] = node.into();
            summary(node, json!({"gpus": [usage]}))
        };
        let both = sum(&[long("n1"), long("n2")]).unwrap();
        let total = &both.total;
        assert_eq!((total.held_ns, total.energy_uj), (TimeSum(1 << 65), Some(EnergySum(1 << 65))));
        assert_eq!(total.efficiency, Some(1.0));
        let text = serde_json::to_string(&both).unwrap();
        assert!(text.contains("\"held_ns\":\"36893488147419103232\""), "{text}");
        assert_eq!(serde_json::from_str::<JobSummary>(&text).unwrap(), both);
        let mut endless = long("n1");
        endless["total"]["held_ns"] = u128::MAX.to_string().into();
        assert!(sum(&[endless]).unwrap_err().contains("is not an integer in range"));
    }

    #[test]
    fn what_does_not_belong_together_or_is_there_twice_is_refused() {
        let one = summary("a", json!({}));
        for (other, words) in [
            (summary("a", json!({})), "it has GPU-a, as "),
            (summary("b", json!({"job": "8"})), "its job is not that of "),
            (summary("b", json!({"labels": [["slurm_cluster", "beta"]]})), "its job is not that of "),
            (summary("b", json!({"currency": "USD"})), "its currency is not that of "),
            (json!({"job": "7"}), "it is not what `gpumeter job ID --json` prints"),
            (json!("text"), "it is not what `gpumeter job ID --json` prints"),
        ] {
            let error = sum(&[one.clone(), other]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
