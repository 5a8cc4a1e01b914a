//! The runs of workloads: each pod, job and activation with its times, its GPUs and its holder.

use std::sync::Arc;

use super::description::{PastActivity, PastHolder, PastNode, PastRuns, PastWorkload};
use super::random::{mixed, up_to, uuid};
use super::times::minutes;
use crate::model::{DAY, Fact, Facts, Fraction, Holder, HolderKind, HoldingSource, MINUTE, Utc};

/// A run of a workload.
#[derive(Clone, Debug)]
pub(super) struct PastRun {
    /// Who was granted its GPUs.
    pub(super) holder: Arc<Holder>,
    /// Whose its processes were: a step of a job, else the holder.
    pub(super) user: Arc<Holder>,
    /// The share of each GPU, and the scheduler that granted it; none where no scheduler did.
    pub(super) grant: Option<(Fraction, HoldingSource)>,
    pub(super) gpus: Vec<u32>,
    pub(super) from: Utc,
    pub(super) to: Utc,
    /// Place of its workload in the list of the node.
    pub(super) workload: usize,
    /// Tells its random numbers from those of other runs.
    pub(super) salt: u64,
}

/// Where and when the runs of a node are.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeTime {
    /// Of seed and node.
    pub(super) salt: u64,
    pub(super) from: Utc,
    pub(super) to: Utc,
    /// The begin of the last day of the history.
    pub(super) midnight: Utc,
}

impl NodeTime {
    /// The part of a span that the node lived through; none where there is none.
    pub(super) fn within(self, from: Utc, to: Utc) -> Option<[Utc; 2]> {
        let (from, to) = (from.max(self.from), to.min(self.to));
        (from < to).then_some([from, to])
    }
}

/// All runs of a node, in order of time.
pub(super) fn runs(node: &PastNode, time: NodeTime) -> Vec<PastRun> {
    let mut runs = Vec::new();
    for (place, workload) in node.workloads.iter().enumerate() {
        let salt = mixed(&[time.salt, place as u64]);
        for (number, [from, to]) in spans(workload, salt, time).into_iter().enumerate() {
            // A run that goes on when the history ends is not at its end there.
            if time.within(from, to).is_none() {
                continue;
            }
            let parts: Vec<Vec<u32>> = match workload.replicas {
                true => workload.gpus.iter().map(|gpu| vec![*gpu]).collect(),
                false => vec![workload.gpus.clone()],
            };
            for (part, gpus) in parts.into_iter().enumerate() {
                let salt = mixed(&[salt, number as u64, part as u64]);
                let (holder, user) = holders(&workload.holder, RunNumber { number, part, salt, begin: from });
                let (grant, workload) = (workload.grant(), place);
                runs.push(PastRun { holder, user, grant, gpus, from, to, workload, salt });
            }
        }
    }
    runs.sort_by_key(|run| (run.from, run.workload, run.salt));
    runs
}

/// The times of the runs of a workload, in order.
fn spans(workload: &PastWorkload, salt: u64, time: NodeTime) -> Vec<[Utc; 2]> {
    let begin = workload.from.map_or(time.from, |from| from.at(time.midnight));
    let given = workload.to.map(|to| to.at(time.midnight));
    let end = given.unwrap_or(time.to);
    let Some(PastRuns { days, at, minutes: length, jitter_minutes }) = workload.runs else {
        return vec![[begin, end]];
    };
    let first = begin.floor(DAY);
    let all = std::iter::successors(Some(first), |day| Some(day.plus(DAY))).take_while(|day| *day < end);
    let of_day = |day: Utc| {
        let jitter = |which| minutes(up_to(jitter_minutes, &[salt, day.0, which]));
        let from = day.plus(at.since_midnight()).plus(jitter(0));
        let to = from.plus(minutes(length)).plus(jitter(1));
        [from, given.map_or(to, |given| to.min(given))]
    };
    let spans = all.filter(|day| days.contains(*day)).map(of_day);
    spans.filter(|[from, to]| begin <= *from && from < to).collect()
}

impl PastWorkload {
    fn grant(&self) -> Option<(Fraction, HoldingSource)> {
        let share = self
            .share
            .map_or(Fraction::WHOLE, |[numerator, denominator]| Fraction { numerator, denominator });
        match self.holder {
            PastHolder::Pod { .. } => Some((share, HoldingSource::Kubernetes)),
            PastHolder::Job { .. } => Some((share, HoldingSource::Slurm)),
            PastHolder::Unit { .. } | PastHolder::User { .. } => None,
        }
    }
}

/// What tells the holder of a run from those of the workload's other runs.
struct RunNumber {
    number: usize,
    part: usize,
    salt: u64,
    begin: Utc,
}

/// Who was granted the GPUs of a run, and whose its processes were.
fn holders(described: &PastHolder, run: RunNumber) -> (Arc<Holder>, Arc<Holder>) {
    let alone = |holder: Holder| {
        let holder = Arc::new(holder);
        (Arc::clone(&holder), holder)
    };
    match described {
        PastHolder::Pod { namespace, name, owner_kind, owner } => {
            // A StatefulSet numbers its pods, and what makes them anew gives each a name of its own.
            let name = match owner_kind.as_str() {
                "Deployment" | "ReplicaSet" | "Job" => format!("{name}-{:05x}", run.salt & 0xF_FFFF),
                _ => format!("{name}-{}", run.part),
            };
            alone(Holder::new(
                HolderKind::Pod,
                Facts::new([
                    (Fact::Namespace, namespace.as_str()),
                    (Fact::Pod, &name),
                    (Fact::PodUid, &uuid(&[run.salt])),
                    (Fact::PodContainer, "main"),
                    (Fact::OwnerKind, owner_kind),
                    (Fact::OwnerName, owner),
                ]),
            ))
        }
        PastHolder::Job { cluster, account, user, partition, qos, first, array } => {
            let mut facts = Facts::new([
                (Fact::SlurmCluster, cluster.as_str()),
                (Fact::SlurmJob, &first.saturating_add(run.number as u64).to_string()),
                (Fact::SlurmAccount, account),
                (Fact::SlurmUser, user),
                (Fact::SlurmPartition, partition),
                (Fact::SlurmQos, qos),
            ]);
            if let Some(array) = array {
                facts.set(Fact::SlurmArrayJob, array.to_string().into());
                facts.set(Fact::SlurmArrayTask, (run.number + 1).to_string().into());
            }
            facts.started = Some(run.begin.0 / 1_000_000_000);
            let job = Holder::new(HolderKind::Slurm, facts.clone());
            facts.set(Fact::SlurmStep, "0".into());
            (Arc::new(job), Arc::new(Holder::new(HolderKind::Slurm, facts)))
        }
        PastHolder::Unit { unit, user, uid } => alone(Holder::unit(unit, user.as_deref(), *uid)),
        PastHolder::User { user, uid } => alone(Holder::user(user, Some(*uid))),
    }
}

impl PastRun {
    pub(super) fn is_at(&self, at: Utc) -> bool {
        self.from <= at && at < self.to
    }

    /// The place of the first activity of its workload that applies at a time on the GPU with that place in its list.
    pub(super) fn activity(&self, workload: &PastWorkload, gpu: usize, at: Utc) -> Option<usize> {
        workload.activity.iter().enumerate().position(|(place, activity)| {
            let PastActivity { days, hours, after_minutes, last_minutes, first_gpus, .. } = *activity;
            days.is_none_or(|days| days.contains(at))
                && hours.is_none_or(|hours| hours.contains(at))
                && after_minutes.is_none_or(|after| at >= self.from.plus(minutes(after)))
                && last_minutes.is_none_or(|last| at.plus(minutes(last)) >= self.to)
                && first_gpus.is_none_or(|first| gpu < first)
                && self.is_in_turn(activity, place, at)
        })
    }

    /// Whether the minutes of an activity that comes back are now.
    fn is_in_turn(&self, activity: &PastActivity, place: usize, at: Utc) -> bool {
        let Some((every, length)) = activity.every_minutes.zip(activity.for_minutes) else { return true };
        let offset = up_to(every - 1, &[self.salt, place as u64]);
        (at.since(self.from).0 / MINUTE.0 + offset) % every < length
    }
}
