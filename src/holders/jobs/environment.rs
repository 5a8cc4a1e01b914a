//! A job as the environment of its processes describes it.
//!
//! The user may have changed the variables, so they never name an account.

use std::collections::BTreeSet;

use crate::holders::host::slurm::StepEnvironment;
use crate::holders::resolved_workloads::parse_number;
use crate::model::{Fact, Facts, Holder, HolderKind};

/// Facts that Slurm passes to processes of a job and not to its prolog.
const FACTS: [(Fact, &str); 4] = [
    (Fact::SlurmArrayJob, "SLURM_ARRAY_JOB_ID"),
    (Fact::SlurmArrayTask, "SLURM_ARRAY_TASK_ID"),
    (Fact::SlurmHetJob, "SLURM_HET_JOB_ID"),
    // A heterogeneous job has the number of its first component.
    (Fact::SlurmHetJob, "SLURM_JOB_ID_HET_GROUP_0"),
];

fn number(environment: &StepEnvironment, name: &str) -> Option<u32> {
    parse_number(environment.variables.get(name)?)
}

/// Whether the text is a valid cluster name, which becomes part of workload ids.
pub(super) fn is_cluster_name(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=256).contains(&text.len()) && text.chars().all(is_part)
}

/// The most characters of a job's name that are kept.
const LONGEST_NAME: usize = 128;

/// Adds the ids that Slurm does not pass to a prolog.
pub(super) fn add_facts(facts: &mut Facts, environment: &StepEnvironment) {
    for (fact, name) in FACTS {
        if let (None, Some(id)) = (facts.get(fact), number(environment, name)) {
            facts.set(fact, id.to_string().into());
        }
    }
}

/// Adds the name of the job, where no record has it. Only these steps have the job's; others have names of their own.
pub(super) fn add_name(facts: &mut Facts, steps: &[StepEnvironment]) {
    let step = steps.iter().find(|step| matches!(&*step.step, "batch" | "interactive"));
    let name = step.and_then(|step| step.variables.get("SLURM_JOB_NAME"));
    if let (None, Some(name)) = (facts.get(Fact::SlurmJobName), name) {
        facts.set(Fact::SlurmJobName, name.chars().take(LONGEST_NAME).collect::<String>().into());
    }
}

pub(super) fn holder(job: &str, environment: &StepEnvironment) -> Option<Holder> {
    let cluster = environment.variables.get("SLURM_CLUSTER_NAME")?;
    if !is_cluster_name(cluster) {
        return None;
    }
    let facts = Facts::new([(Fact::SlurmCluster, cluster.as_str()), (Fact::SlurmJob, job)]);
    let mut facts = facts.with_uid(Some(environment.uid));
    add_facts(&mut facts, environment);
    Some(Holder::new(HolderKind::Slurm, facts))
}

/// Positions of the job's GPUs among those of the node.
pub(super) fn gpus(environment: &StepEnvironment) -> BTreeSet<u32> {
    positions(environment, "SLURM_JOB_GPUS")
}

/// Positions of the GPUs that Slurm assigned to the step; the batch step has none of its own.
pub(super) fn step_gpus(environment: &StepEnvironment) -> BTreeSet<u32> {
    let is_of_step = environment.variables.get("SLURM_STEP_ID") == Some(&environment.step);
    if is_of_step { positions(environment, "SLURM_STEP_GPUS") } else { BTreeSet::new() }
}

fn positions(environment: &StepEnvironment, name: &str) -> BTreeSet<u32> {
    let list = environment.variables.get(name).map_or("", String::as_str);
    list.split(',').filter_map(|position| position.parse().ok()).collect()
}

pub(super) fn shards(environment: &StepEnvironment) -> Option<u32> {
    number(environment, "SLURM_SHARDS_ON_NODE").filter(|shards| *shards > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> StepEnvironment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StepEnvironment { job: "7".into(), step: "0".into(), uid: 1000, variables: variables.collect() }
    }

    #[test]
    fn the_name_of_a_job_is_that_of_its_batch_step_cut_and_a_record_has_another() {
        let step = |step: &str, name: &str| StepEnvironment {
            step: step.into(),
            ..environment(&[("SLURM_JOB_NAME", name)])
        };
        let name = |mut facts: Facts, steps: &[StepEnvironment]| {
            add_name(&mut facts, steps);
            facts.get(Fact::SlurmJobName).map(ToString::to_string)
        };
        let steps = [step("0", "srun"), step("batch", "train")];
        assert_eq!(name(Facts::default(), &steps).as_deref(), Some("train"));
        assert_eq!(name(Facts::default(), &steps[..1]), None);
        let recorded = Facts::new([(Fact::SlurmJobName, "recorded")]);
        assert_eq!(name(recorded, &steps).as_deref(), Some("recorded"));
        let long = [step("interactive", &"é".repeat(500))];
        assert_eq!(name(Facts::default(), &long).map(|name| name.chars().count()), Some(LONGEST_NAME));
    }

    #[test]
    fn a_job_without_a_record_is_named_without_an_account() {
        let known = environment(&[
            ("SLURM_CLUSTER_NAME", "alpha"),
            ("SLURM_JOB_ACCOUNT", "other"),
            ("SLURM_JOB_USER", "root"),
            ("SLURM_ARRAY_JOB_ID", "210"),
            ("SLURM_ARRAY_TASK_ID", "x"),
            ("SLURM_JOB_GPUS", "3,5"),
            ("SLURM_JOB_ID_HET_GROUP_0", "210"),
        ]);
        let holder = holder("211", &known).unwrap();
        let facts: Vec<_> = holder.facts.iter().collect();
        let expected = [
            (Fact::SlurmCluster, "alpha"),
            (Fact::SlurmJob, "211"),
            (Fact::SlurmArrayJob, "210"),
            (Fact::SlurmHetJob, "210"),
        ];
        assert_eq!((facts, holder.facts.uid), (expected.to_vec(), Some(1000)));
        assert_eq!(gpus(&known), [3, 5].into());
        for cluster in ["", "a/b", "a b"] {
            let bad = environment(&[("SLURM_CLUSTER_NAME", cluster)]);
            assert_eq!(super::holder("211", &bad), None, "{cluster}");
        }
    }
}
