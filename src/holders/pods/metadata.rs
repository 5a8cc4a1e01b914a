//! Metadata of the node's pods: UIDs, containers, owners, labels, and whether and when they ended.
//!
//! It completes the content of the log directories. Values that Kubernetes would not accept are left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::holders::host::PodLogs;
use crate::holders::host::pod_logs::{
    ContainerLog, LoggedPod, PodLog, is_container_id, is_label, is_subdomain, is_uid,
};
use crate::holders::kubelet::pod::{ContainerStatus, ObjectMeta, Pod, Time};
use crate::model::{Fact, Facts, PodLabel, Utc};

/// The most pods that are kept; a kubelet runs 110 by default.
const MOST_PODS: usize = 4_096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMetadata {
    pods: BTreeMap<String, KnownPod>,
    read: Utc,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownPod {
    pod: LoggedPod,
    created: Utc,
    has_ended: bool,
    owner: Option<(String, String)>,
    labels: Vec<PodLabel>,
    containers: Vec<KnownContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownContainer {
    name: String,
    id: Option<String>,
    started: Option<Utc>,
    finished: Option<Utc>,
}

impl PodMetadata {
    /// The metadata in pod objects that were `read` at that time, with the labels of these keys.
    pub fn new(pods: &[Pod], labels: &[String], read: Utc) -> Self {
        let known = pods.iter().take(MOST_PODS).filter_map(|pod| KnownPod::new(pod, labels));
        let known = known.map(|known| (known.pod.uid.clone(), known)).collect();
        Self { pods: known, read }
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub(super) fn has_ended(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.has_ended)
    }

    /// When the last container of that pod ended; none while one of them runs or is started again.
    pub(super) fn ended_at(&self, uid: &str) -> Option<Utc> {
        let finished = self.pods.get(uid)?.containers.iter().map(|one| one.finished);
        finished.collect::<Option<Vec<Utc>>>()?.into_iter().max()
    }

    /// Start time of a container; none while it is not started or not reported as started.
    pub(super) fn started(&self, uid: &str, container: &str) -> Option<Utc> {
        let mut containers = self.pods.get(uid)?.containers.iter();
        containers.find(|one| one.name == container)?.started
    }

    /// Adds the owner and the labels of a pod.
    pub(super) fn add_facts(&self, uid: &str, facts: &mut Facts) {
        let Some(pod) = self.pods.get(uid) else { return };
        if let Some((kind, name)) = &pod.owner {
            facts.set(Fact::OwnerKind, kind.as_str().into());
            facts.set(Fact::OwnerName, name.as_str().into());
        }
        facts.set_pod_labels(pod.labels.iter().cloned());
    }

    /// Adds the pods of this metadata to those of the log directories. Of several pods with one name, the latest that
    /// has not ended counts. Directories of other pods are kept, since such a pod may have begun after the metadata was
    /// read.
    pub(super) fn complete(&self, logs: PodLogs) -> PodLogs {
        if self.pods.is_empty() {
            return logs;
        }
        let mut latest: BTreeMap<(&str, &str), &KnownPod> = BTreeMap::new();
        for known in self.pods.values() {
            let name = (&*known.pod.namespace, &*known.pod.name);
            // A static pod has no creation time.
            let started = |pod: &KnownPod| pod.containers.iter().filter_map(|one| one.started).max();
            let rank = |pod: &KnownPod| (!pod.has_ended, pod.created, started(pod));
            let best = latest.entry(name).or_insert(known);
            if rank(known) > rank(best) {
                *best = known;
            }
        }
        let unknown = logs.pods.into_iter().flatten().filter(|log| !self.pods.contains_key(&log.pod.uid));
        let here = latest.values().map(|known| PodLog { pod: known.pod.clone(), changed: self.read });
        let mut containers = logs.containers.unwrap_or_default();
        let logged: BTreeSet<String> = containers.iter().map(|log| log.id.clone()).collect();
        for known in self.pods.values() {
            let ids =
                known.containers.iter().filter_map(|container| Some((container, container.id.clone()?)));
            containers.extend(ids.filter(|(_, id)| !logged.contains(id)).map(|(container, id)| {
                ContainerLog { pod: known.pod.clone(), name: container.name.clone(), id }
            }));
        }
        PodLogs { pods: Some(unknown.chain(here).collect()), containers: Some(containers), unread: None }
    }
}

impl KnownPod {
    fn new(pod: &Pod, labels: &[String]) -> Option<Self> {
        let meta = pod.metadata.as_ref()?;
        let ObjectMeta { namespace, name, uid, .. } = meta;
        if !(is_label(namespace) && is_subdomain(name) && is_uid(uid)) {
            return None;
        }
        let is_word =
            |text: &str| (1..=253).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        let owner = meta.owner().filter(|(kind, name)| is_word(kind) && is_word(name));
        let label = |key: &String| {
            let value = meta.labels.get(key).filter(|value| is_word(value))?;
            Some(PodLabel::new(key, value))
        };
        Some(Self {
            pod: LoggedPod { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() },
            created: meta.creation_timestamp.map_or(Utc(0), utc),
            has_ended: pod.has_ended(),
            owner: owner.map(|(kind, name)| (kind.to_owned(), name.to_owned())),
            labels: labels.iter().filter_map(label).collect(),
            containers: pod.containers().filter_map(KnownContainer::new).collect(),
        })
    }
}

impl KnownContainer {
    fn new(container: &ContainerStatus) -> Option<Self> {
        let id = container.id().filter(|id| is_container_id(id));
        is_label(&container.name).then(|| Self {
            name: container.name.clone(),
            id: id.map(ToOwned::to_owned),
            started: container.started().map(utc),
            // Kubernetes writes the year 1 where it does not know.
            finished: container.finished().map(utc).filter(|finished| finished.0 > 0),
        })
    }
}

fn utc(time: Time) -> Utc {
    let seconds = u64::try_from(time.seconds).unwrap_or(0).saturating_mul(1_000_000_000);
    Utc(seconds.saturating_add(u64::try_from(time.nanos).unwrap_or(0)))
}
