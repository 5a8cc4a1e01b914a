//! The GPUs of a job, from its record, `gres.conf` and its environment.

use std::collections::{BTreeMap, BTreeSet};

use super::gres::Gres;
use super::{JobObservation, JobRecord, RecordedGpu, environment};
use crate::holders::host::slurm::StepEnvironment;
use crate::model::Fraction;

/// The UUIDs of a node's GPUs by the numbers of schedulers and exporters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    /// Of GPUs by minor number of the device file.
    pub minors: BTreeMap<u32, String>,
    /// Of GPUs by the driver's index; none before the driver has reported them.
    pub indices: Option<BTreeMap<u32, String>>,
    /// Of compute instances, by index of the GPU and id of the GPU instance; none before the driver has reported them.
    pub instances: Option<BTreeMap<(u32, u32), Vec<String>>>,
}

/// Replaces the record's GPUs by those at its positions, where `gres.conf` has device files at all of them.
pub(super) fn with_device_files(mut record: JobRecord, observation: &JobObservation<'_>) -> JobRecord {
    if observation.gres.is_none() || record.positions.is_empty() {
        return record;
    }
    let gres = observation.gres_of(record.node.as_deref());
    let known = &observation.gpus.minors;
    let minors = record.positions.iter().map(|position| gres.minor(*position));
    if let Some(minors) = minors.collect::<Option<Vec<u32>>>() {
        // A lost GPU has no minor number any more. Where positions equal minor numbers, the prolog found the right
        // GPUs.
        if minors == record.positions && minors.iter().any(|minor| !known.contains_key(minor)) {
            return record;
        }
        let minors: BTreeSet<u32> = minors.into_iter().collect();
        let gpu = |minor| known.get(&minor).cloned().map_or(RecordedGpu::Minor(minor), RecordedGpu::Uuid);
        record.gpus = minors.into_iter().map(gpu).collect();
    }
    record
}

pub(super) fn uuids<'a>(
    record: &'a JobRecord,
    gpus: &'a NodeGpus,
) -> impl Iterator<Item = &'a str> + use<'a> {
    record.gpus.iter().filter_map(|gpu| match gpu {
        RecordedGpu::Uuid(uuid) => Some(uuid.as_str()),
        RecordedGpu::Minor(minor) => gpus.minors.get(minor).map(String::as_str),
    })
}

/// The GPUs that an environment names: UUIDs by minor number. Without device files in `gres.conf` a position is taken
/// for the minor number, except on a node with MIG instances, which have positions too.
pub(super) fn environment_gpus(
    step: &StepEnvironment,
    gres: &Gres,
    node: &NodeGpus,
) -> BTreeMap<u32, String> {
    let has_no_instances = node.instances.as_ref().is_some_and(BTreeMap::is_empty);
    if !gres.has_positions() && !has_no_instances {
        return BTreeMap::new();
    }
    let minors = environment::gpus(step).into_iter().filter_map(|position| gres.minor(position));
    minors.filter_map(|minor| Some((minor, node.minors.get(&minor)?.clone()))).collect()
}

/// Adds what Slurm passes to the job's processes and not to its prolog: array ids, the number of shards, and GPUs of
/// several types, of which Slurm 22.05 passes only one type to a prolog.
pub(super) fn add_environment(
    mut record: JobRecord,
    observation: &JobObservation<'_>,
    taken: &BTreeSet<&str>,
) -> JobRecord {
    let steps = observation.step_environments(&record.job);
    if let Some(step) = steps.first() {
        environment::add_facts(&mut record.holder.facts, step);
        environment::add_name(&mut record.holder.facts, steps);
    }
    let Some(step) = steps.iter().find(|step| is_on_node(&record, step)) else { return record };
    let gres = observation.gres_of(record.node.as_deref());
    let node = observation.gpus;
    if !record.gpus.is_empty() {
        let further = gpus_of_further_types(&record, step, &gres, node).into_iter();
        record.gpus.extend(further.filter(|uuid| !taken.contains(uuid.as_str())).map(RecordedGpu::Uuid));
    }
    let shards = environment::shards(step).filter(|_| record.gpus.len() == 1);
    let minor = uuids(&record, node).next().and_then(|uuid| minor_of(uuid, node));
    if let (Some(numerator), Some(minor)) = (shards, minor) {
        let denominator = gres.shards(minor, node.minors.len()).filter(|shards| *shards >= numerator);
        record.fraction =
            denominator.map_or(record.fraction, |denominator| Fraction { numerator, denominator });
    }
    record
}

/// GPUs of types that the record has none of, as the environment names them. The user can change the environment, so it
/// only adds types that `gres.conf` distinguishes; of one type the record is complete.
fn gpus_of_further_types(
    record: &JobRecord,
    step: &StepEnvironment,
    gres: &Gres,
    node: &NodeGpus,
) -> Vec<String> {
    let type_of = |gpu: &RecordedGpu| match gpu {
        RecordedGpu::Minor(minor) => gres.type_of(*minor),
        RecordedGpu::Uuid(uuid) => minor_of(uuid, node).and_then(|minor| gres.type_of(minor)),
    };
    // The type of a MIG instance, or of a GPU that gres.conf does not name, is unknown.
    let Some(recorded) = record.gpus.iter().map(type_of).collect::<Option<BTreeSet<_>>>() else {
        return Vec::new();
    };
    let is_further = |minor: u32| gres.type_of(minor).is_some_and(|of_gpu| !recorded.contains(of_gpu));
    let gpus = environment_gpus(step, gres, node).into_iter();
    gpus.filter(|(minor, _)| is_further(*minor)).map(|(_, uuid)| uuid).collect()
}

fn minor_of(uuid: &str, node: &NodeGpus) -> Option<u32> {
    node.minors.iter().find(|(_, known)| *known == uuid).map(|(minor, _)| *minor)
}

/// Whether a step runs on the node of the record, as far as both name one: each of several slurmd on one machine numbers
/// GPUs for itself.
pub(super) fn is_on_node(record: &JobRecord, step: &StepEnvironment) -> bool {
    let nodes = step.node().zip(record.node.as_deref());
    nodes.is_none_or(|(of_step, of_record)| of_step == of_record)
}
