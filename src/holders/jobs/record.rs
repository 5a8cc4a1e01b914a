//! The record of a job, as the Slurm prolog writes it.
//!
//! In: the bytes of a file with lines `key=value`. Out: [`JobRecord`], or why it is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::environment;
use crate::holders::node_gpus::is_uuid;
use crate::model::{Fact, Facts, Fraction, Holder, HolderKind};

/// Largest number of GPUs that a record names.
const MOST_GPUS: usize = 256;

/// A record of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The job with all facts.
    pub holder: Holder,
    /// Number of the job.
    pub job: String,
    /// SLUID of the job, which Slurm 26.05 names cgroups by.
    pub sluid: Option<String>,
    /// Its GPUs as the prolog found them; correct where Slurm numbers GPUs like their device files.
    pub gpus: Vec<RecordedGpu>,
    /// Positions of the same GPUs in `gres.conf`.
    pub positions: Vec<u32>,
    /// How much it holds of each.
    pub fraction: Fraction,
    /// Name of the node, where Slurm passes it to the prolog.
    pub node: Option<String>,
    /// Path of the configuration that slurmd uses.
    pub configuration: Option<String>,
}

/// A GPU as a record names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordedGpu {
    /// By UUID: of a GPU from the agent's map, or of a MIG instance from Slurm.
    Uuid(String),
    /// By number of the device file, where the map has no UUID.
    Minor(u32),
}

impl JobRecord {
    /// A job that no record describes; only a record can vouch for an account.
    pub(super) fn without_account(
        holder: Holder,
        job: &str,
        gpus: Vec<RecordedGpu>,
        node: Option<String>,
    ) -> Self {
        Self {
            holder,
            job: job.to_owned(),
            sluid: None,
            gpus,
            positions: Vec::new(),
            fraction: Fraction::WHOLE,
            node,
            configuration: None,
        }
    }

    /// Parses a record; unknown keys of a newer prolog are ignored.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        if !text.ends_with('\n') {
            return Err("its last line is incomplete".to_owned());
        }
        let mut values = BTreeMap::new();
        for line in text.lines() {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("{line:.80?} is not key=value"))?;
            if value.len() > 256 && !key.starts_with("gpu") || value.chars().any(char::is_control) {
                return Err(format!("the value of {key:.40?} is too long or has control characters"));
            }
            if values.insert(key, value).is_some() {
                return Err(format!("{key:.40?} is given twice"));
            }
        }
        values.retain(|_, value| !value.is_empty());
        Self::from_values(&values)
    }

    fn from_values(values: &BTreeMap<&str, &str>) -> Result<Self, String> {
        let number = |key: &str| match values.get(key) {
            Some(value) if !is_number(value) => Err(format!("{key} is {value:.40?}, which is not a number")),
            value => Ok(value.copied()),
        };
        let required = |value: Option<_>, key: &str| value.ok_or_else(|| format!("it has no {key}"));
        let job = required(number("job_id")?, "job_id")?;
        let cluster = required(values.get("cluster").copied(), "cluster")?;
        if !environment::is_cluster_name(cluster) {
            return Err(format!("cluster is {cluster:.40?}, which is not a valid cluster name"));
        }
        let uid = number("uid")?.and_then(|uid| uid.parse().ok());
        let mut facts = Facts::new([(Fact::SlurmCluster, cluster), (Fact::SlurmJob, job)]).with_uid(uid);
        for (fact, key) in [
            (Fact::SlurmArrayJob, "array_job_id"),
            (Fact::SlurmArrayTask, "array_task_id"),
            (Fact::SlurmHetJob, "het_job_id"),
        ] {
            facts.set(fact, number(key)?.unwrap_or_default().into());
        }
        for (fact, key) in [
            (Fact::SlurmAccount, "account"),
            (Fact::SlurmUser, "user"),
            (Fact::SlurmPartition, "partition"),
            (Fact::SlurmQos, "qos"),
        ] {
            facts.set(fact, values.get(key).copied().unwrap_or_default().into());
        }
        Ok(Self {
            holder: Holder::new(HolderKind::Slurm, facts),
            job: job.to_owned(),
            sluid: values.get("sluid").map(|sluid| (*sluid).to_owned()),
            gpus: gpus(values)?,
            positions: positions(values)?,
            fraction: fraction(number("mps_percentage")?)?,
            node: values.get("node").map(|node| (*node).to_owned()),
            configuration: values.get("configuration").map(|path| (*path).to_owned()),
        })
    }
}

pub(super) fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

/// The share of a percentage of `gres/mps`; without one a job holds whole GPUs.
fn fraction(percentage: Option<&str>) -> Result<Fraction, String> {
    let Some(percentage) = percentage else { return Ok(Fraction::WHOLE) };
    match percentage.parse() {
        Ok(numerator @ 1..=100) => Ok(Fraction { numerator, denominator: 100 }),
        _ => Err(format!("mps_percentage is {percentage}, which is not 1 to 100")),
    }
}

fn positions(values: &BTreeMap<&str, &str>) -> Result<Vec<u32>, String> {
    let list = values.get("gpu_positions").into_iter().flat_map(|list| list.split(',')).take(MOST_GPUS);
    let position = |text: &str| text.parse().ok().filter(|_| is_number(text));
    list.map(|text| {
        position(text).ok_or_else(|| format!("gpu_positions has {text:.80?}, which is not a number"))
    })
    .collect()
}

fn gpus(values: &BTreeMap<&str, &str>) -> Result<Vec<RecordedGpu>, String> {
    let list = |key: &str| values.get(key).into_iter().flat_map(|list| list.split(','));
    let mut gpus = BTreeSet::new();
    for uuid in list("gpus") {
        if !is_uuid(uuid) {
            return Err(format!("{uuid:.80?} is not the UUID of a GPU or of a MIG instance"));
        }
        gpus.insert(RecordedGpu::Uuid(uuid.to_owned()));
    }
    for minor in list("gpu_minors") {
        let number = minor.parse().ok().filter(|_| is_number(minor));
        gpus.insert(RecordedGpu::Minor(number.ok_or_else(|| format!("{minor:.80?} is not a minor number"))?));
    }
    if gpus.len() > MOST_GPUS {
        return Err(format!("it names more than {MOST_GPUS} GPUs"));
    }
    Ok(gpus.into_iter().collect())
}
