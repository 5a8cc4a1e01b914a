//! What the environment of a job's processes says of the job, and how many shards `gres.conf` makes of each GPU.
//!
//! In: variables as a process of the job has them, whose number of the job is that of its cgroup; the text of `gres.conf`.
//! Out: GPUs, shards, ids. The user may have changed the variables, so they never name an account, and a GPU that another
//! job's record names is not taken from it. It reads no file itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::slurm::StepEnvironment;
use crate::model::{Fact, Facts, Holder, HolderKind};

/// Largest number of names that a bracket in a list of hosts or files stands for.
const MOST_NAMES: u32 = 4_096;

/// What Slurm does not tell a prolog on the node of a job, and puts into the environment of its processes.
pub(super) const FACTS: [(Fact, &str); 3] = [
    (Fact::SlurmArrayJob, "SLURM_ARRAY_JOB_ID"),
    (Fact::SlurmArrayTask, "SLURM_ARRAY_TASK_ID"),
    (Fact::SlurmHetJob, "SLURM_HET_JOB_ID"),
];

fn number(environment: &StepEnvironment, name: &str) -> Option<u32> {
    let text = environment.variables.get(name)?;
    text.parse().ok().filter(|number: &u32| number.to_string() == *text)
}

/// Adds the ids that Slurm tells no prolog.
pub(super) fn add_facts(facts: &mut Facts, environment: &StepEnvironment) {
    for (fact, name) in FACTS {
        if let (None, Some(id)) = (facts.get(fact), number(environment, name)) {
            facts.set(fact, id.to_string().into());
        }
    }
}

/// The job of a number that has no record: without an account, which the prolog alone can vouch for.
pub(super) fn holder(job: &str, environment: &StepEnvironment) -> Option<Holder> {
    let cluster = environment.variables.get("SLURM_CLUSTER_NAME")?;
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if cluster.is_empty() || cluster.len() > 256 || !cluster.chars().all(is_name) {
        return None;
    }
    let facts = Facts::new([(Fact::SlurmCluster, cluster.as_str()), (Fact::SlurmJob, job)]);
    let mut facts = facts.with_uid(Some(environment.uid));
    add_facts(&mut facts, environment);
    Some(Holder::new(HolderKind::Slurm, facts))
}

/// Numbers of the device files of the job's GPUs.
pub(super) fn gpus(environment: &StepEnvironment) -> BTreeSet<u32> {
    let list = environment.variables.get("SLURM_JOB_GPUS").map_or("", String::as_str);
    list.split(',').filter_map(|minor| minor.parse().ok()).collect()
}

/// How many shards the job has on this node.
pub(super) fn shards(environment: &StepEnvironment) -> Option<u32> {
    number(environment, "SLURM_SHARDS_ON_NODE").filter(|shards| *shards > 0)
}

/// How many shards each GPU has, by number of its device file, on the node of that name. The count of a line
/// `Name=shard Count=N File=...` is divided among its files, without `File` among all GPUs.
pub(super) fn shard_counts<'a>(
    gres: &str,
    node: Option<&str>,
    minors: impl Iterator<Item = &'a u32> + Clone,
) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for line in gres.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split_whitespace().filter_map(|word| word.split_once('='));
        let words: BTreeMap<String, &str> =
            words.map(|(key, value)| (key.to_ascii_lowercase(), value)).collect();
        let is_elsewhere = match (words.get("nodename"), node) {
            (Some(names), Some(node)) => !expand(names).iter().any(|name| name == node),
            _ => false,
        };
        let count = words.get("count").and_then(|count| count.parse::<u32>().ok());
        let Some(count) = count.filter(|count| *count > 0 && words.get("name") == Some(&"shard")) else {
            continue;
        };
        if is_elsewhere {
            continue;
        }
        let gpus: Vec<u32> = match words.get("file") {
            Some(files) => expand(files).iter().filter_map(|file| minor(file)).collect(),
            None => minors.clone().copied().collect(),
        };
        let each = count / u32::try_from(gpus.len()).unwrap_or(u32::MAX).max(1);
        counts.extend(gpus.into_iter().map(|minor| (minor, each)));
    }
    counts.retain(|_, count| *count > 0);
    counts
}

/// The number at the end of a device file's name.
fn minor(file: &str) -> Option<u32> {
    let digits = file.len() - file.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    file[file.len() - digits..].parse().ok()
}

/// The names that a list such as `/dev/nvidia[0-2,4]` or `a,b` stands for.
fn expand(list: &str) -> Vec<String> {
    let Some((before, rest)) = list.split_once('[') else {
        return list.split(',').map(str::to_owned).collect();
    };
    let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
    let numbers = inside.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let width = first.len();
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if last.saturating_sub(first) < MOST_NAMES => {
                (first..=last).map(|number| format!("{before}{number:0width$}{after}")).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        }
    });
    numbers.take(MOST_NAMES as usize).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> StepEnvironment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StepEnvironment { uid: 1000, variables: variables.collect() }
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
        ]);
        let holder = holder("211", &known).unwrap();
        let facts: Vec<_> = holder.facts.iter().collect();
        let expected = [(Fact::SlurmCluster, "alpha"), (Fact::SlurmJob, "211"), (Fact::SlurmArrayJob, "210")];
        assert_eq!((facts, holder.facts.uid), (expected.to_vec(), Some(1000)));
        assert_eq!(gpus(&known), [3, 5].into());
        for cluster in ["", "a/b", "a b"] {
            let bad = environment(&[("SLURM_CLUSTER_NAME", cluster)]);
            assert_eq!(super::holder("211", &bad), None, "{cluster}");
        }
    }

    #[test]
    fn gres_conf_tells_how_many_shards_a_gpu_has() {
        let minors = [0, 1, 2, 4];
        let counts =
            |text: &str| shard_counts(text, Some("n2"), minors.iter()).into_iter().collect::<Vec<_>>();
        for (text, expected) in [
            ("", vec![]),
            ("Name=gpu File=/dev/nvidia[0-3]\nName=mps Count=100\n", vec![]),
            (
                "Name=shard Count=4 File=/dev/nvidia0\nname=shard count=24 file=/dev/nvidia[1-2,4]\n",
                vec![(0, 4), (1, 8), (2, 8), (4, 8)],
            ),
            ("Name=shard Count=32", vec![(0, 8), (1, 8), (2, 8), (4, 8)]),
            ("NodeName=n[1-3] Name=shard Count=4 File=/dev/nvidia0", vec![(0, 4)]),
            ("NodeName=n[5-7] Name=shard Count=4 File=/dev/nvidia0", vec![]),
            ("Name=shard Count=0 File=/dev/nvidia0\nName=shard Count=x\n# Name=shard Count=4", vec![]),
            ("Name=shard Count=4 File=/dev/nvidia[0-4000000000]", vec![]),
        ] {
            assert_eq!(counts(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_gres_conf_is_read_without_a_panic(text in "((Name|Count|File|NodeName)=[a-z0-9,\\[\\]-]{0,9}|shard|\\s|\\PC){0,20}") {
            shard_counts(&text, None, [0, 1].iter());
        }
    }
}
