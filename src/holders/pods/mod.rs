//! Kubernetes pods: which container holds which GPU, and in which container a process runs.
//!
//! The kubelet's pod-resources list has devices without pod UIDs, its log directories have UIDs without devices; they are
//! joined by namespace and name. Pod metadata is added where Kubernetes reports it.

mod device_id;
mod grant;
mod metadata;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::resolved_workloads::{AllocatedDevice, Allocation};
use super::standing::sum;
use crate::holders::host::PodLogs;
use crate::holders::host::pod_logs::{LoggedPod, PodLog, is_label, is_subdomain};
use crate::holders::kubelet::ClaimedDevice;
use crate::holders::kubelet::messages::{
    AllocatableResourcesResponse, ContainerResources, ListPodResourcesResponse,
};
use crate::model::{Fact, Facts, Fraction, Holder, HolderId, HolderKind, Nanoseconds, Utc, shown};
pub use device_id::Resources;
use device_id::is_replica;
pub use grant::gpu_claims;
use grant::{Grant, resolve_devices};
pub use metadata::PodMetadata;

const MOST_PROBLEMS: usize = 32;

/// How long an ended allocation is reported: longer than any window of the account stays open.
const KEEP_ENDED: Nanoseconds = Nanoseconds::from_seconds(60);

/// The problem with log directories that are made for the agent, and not those of the kubelet.
const EMPTY_LOGS: &str = "no GPU process can be matched to its pod, because /var/log/pods and /var/log/containers have no \
                          pod, although the kubelet lists some; in a container mount the host's directories of that name";

#[derive(Clone, Copy, Debug)]
pub struct PodObservation<'a> {
    /// The kubelet's list; none where it did not respond.
    pub listed: Option<&'a ListPodResourcesResponse>,
    pub allocatable: Option<&'a AllocatableResourcesResponse>,
    pub logs: &'a PodLogs,
    /// The metadata of pods; empty where there is no source of it.
    pub metadata: &'a PodMetadata,
    /// The UIDs of the pods that have a cgroup; none where that is not known.
    pub running: Option<&'a BTreeSet<String>>,
    pub minors: &'a BTreeMap<u32, String>,
    /// Wall-clock time of the list.
    pub now: Utc,
    pub resources: &'a Resources,
    /// Devices of claims that were granted for administrative access; these hold nothing.
    pub administrative: &'a BTreeSet<ClaimedDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMap {
    /// By UID of the pod, and id and name of the container. The kubelet's log directories may have only the first digits of
    /// the id.
    containers: BTreeMap<(String, String, String), Holder>,
    /// By pod UID: the container of a pod that has only one, used where container ids are not known.
    sole: BTreeMap<String, Holder>,
}

impl PodMap {
    /// The holder of processes in the pod and container with these ids. Where an id is cut, several containers of the
    /// pod may have those digits, and then nobody is guessed.
    pub(super) fn holder(&self, uid: &str, container: &str) -> Option<&Holder> {
        let first = (uid.to_owned(), String::new(), String::new());
        let of_pod = self.containers.range(first..).take_while(|((pod, ..), _)| pod == uid);
        let matching = of_pod.filter(|((_, id, _), _)| container.starts_with(&**id));
        let longest = matching.clone().map(|((_, id, _), _)| id.len()).max();
        let mut found =
            matching.filter(|((_, id, _), _)| Some(id.len()) == longest).map(|(_, holder)| holder);
        let first = found.next().filter(|first| found.all(|other| other.id == first.id));
        first.or_else(|| self.sole.get(uid))
    }

    /// UID of the pod and id of the container of a holder; none where the id is not known.
    pub(super) fn container_of(&self, holder: &HolderId) -> Option<(&str, &str)> {
        let ((uid, id, _), _) = self.containers.iter().find(|(_, known)| known.id == *holder)?;
        Some((uid, id))
    }

    pub(super) fn with_id(&self, id: &HolderId) -> Option<&Holder> {
        let holders = self.containers.values().chain(self.sole.values());
        holders.into_iter().find(|holder| holder.id == *id)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHoldings {
    pub map: PodMap,
    pub allocations: Vec<Allocation>,
    /// What they held until they ended within the last minute.
    pub ended: Vec<Allocation>,
    /// Why devices hold nothing, and what prevents joining pods to processes.
    pub problems: BTreeSet<String>,
    /// Whether a container was missing for the first time, so that the next list decides whether its holding has ended.
    pub is_ending: bool,
}

/// Namespace and name of a pod, which another pod may have later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodName {
    namespace: String,
    name: String,
}

impl From<&LoggedPod> for PodName {
    fn from(pod: &LoggedPod) -> Self {
        Self { namespace: pod.namespace.clone(), name: pod.name.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ContainerName {
    pod: PodName,
    container: String,
}

impl ContainerName {
    /// The container as a holder; without the pod's UID its id is made of names, and no process is joined to it.
    fn holder(&self, uid: Option<&String>, metadata: &PodMetadata) -> Holder {
        let Self { pod: PodName { namespace, name }, container } = self;
        let mut facts = Facts::new([
            (Fact::Namespace, namespace.as_str()),
            (Fact::Pod, name),
            (Fact::PodContainer, container),
        ]);
        match uid {
            Some(uid) => {
                facts.set(Fact::PodUid, uid.as_str().into());
                metadata.add_facts(uid, &mut facts);
                Holder::new(HolderKind::Pod, facts)
            }
            None => Holder { id: HolderId::new(format!("k8s:{namespace}/{name}/{container}")), facts },
        }
    }

    fn is_ignored(&self, resources: &Resources) -> bool {
        resources.ignores(&self.holder(None, &PodMetadata::default()).facts)
    }
}

impl std::fmt::Display for ContainerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pod: PodName { namespace, name }, container } = self;
        write!(f, "container {container} of pod {namespace}/{name}")
    }
}

#[derive(Debug, Default)]
pub struct PodTracker {
    grants: BTreeMap<ContainerName, Grant>,
    /// Of containers that are in no list any more.
    ended: Vec<Allocation>,
    /// UIDs of the listed pods; a pod that is missing keeps its last one.
    uids: BTreeMap<PodName, String>,
    lists: u64,
    /// What was held before this tracker began, until the first list.
    recovered: Vec<Allocation>,
    logs: PodLogs,
}

impl PodTracker {
    /// Tracks a node on which this was held until now. It stays until the first list, or until its pod has no cgroup any
    /// more. A holder that the list has too keeps its share.
    pub fn continuing(recovered: Vec<Allocation>) -> Self {
        Self { recovered, ..Self::default() }
    }

    /// Whether something is held that no list has confirmed yet.
    pub const fn awaits_first_list(&self) -> bool {
        !self.recovered.is_empty()
    }

    /// Updates the holdings from one round. A holding begins with the first list that has it, or with the earlier start
    /// of its container. It ends when its pod has ended, or with the second list that lacks it; its end is then dated
    /// back to that of the pod's last container, else to the first list that lacked it. A replica keeps the share that it
    /// had when it was granted; the share of a claimed device follows each list.
    pub fn observe(&mut self, observation: PodObservation<'_>) -> PodHoldings {
        let mut holdings = PodHoldings::default();
        if let Some(list) = observation.listed {
            self.apply_list(list, &observation, &mut holdings);
            // Pods that turn out to have ended keep the shares that they had.
            self.share_claims(observation.resources);
        }
        let mut logs = observation.metadata.complete(observation.logs.clone());
        let has_devices =
            self.grants.values().any(|grant| grant.missing.is_none() && !grant.devices.is_empty());
        let are_empty =
            logs.containers.as_ref().is_some_and(Vec::is_empty) && logs.pods.iter().flatten().count() == 0;
        let unread = logs.unread.take().or_else(|| (has_devices && are_empty).then(|| EMPTY_LOGS.to_owned()));
        if let Some(unread) = unread.filter(|_| observation.listed.is_some()) {
            add_problem(&mut holdings.problems, unread);
        }
        // The last content of an unreadable directory stays, so that no container changes its holder.
        logs.pods = logs.pods.or_else(|| self.logs.pods.take());
        logs.containers = logs.containers.or_else(|| self.logs.containers.take());
        self.update_uids(&logs, &observation);
        self.read_container_times(observation.metadata);
        self.end_devices_of_older_pods(&logs, observation.now);
        if observation.listed.is_some() {
            self.restore_shares();
        } else if let Some(running) = observation.running {
            self.recovered
                .retain(|one| one.holder.facts.get(Fact::PodUid).is_none_or(|uid| running.contains(&**uid)));
        }
        self.share_claims(observation.resources);
        self.ended.retain(|one| is_told(one, observation.now));
        (holdings.allocations, holdings.ended) = self.allocations(&observation);
        let recovered = self.recovered.iter().filter(|one| !observation.resources.ignores(&one.holder.facts));
        holdings.allocations.extend(recovered.cloned());
        holdings.map = self.map(&logs, observation.metadata);
        self.logs = logs;
        holdings
    }

    /// Whether the list has a new replica, whose share depends on the devices that the kubelet may assign.
    pub fn needs_allocatable(&self, listed: &ListPodResourcesResponse, resources: &Resources) -> bool {
        let listed_before = self.grants.values().filter(|grant| grant.missing.is_none());
        let granted: BTreeSet<&String> = listed_before.flat_map(|grant| grant.devices.keys()).collect();
        let containers = listed.pod_resources.iter().flat_map(|pod| &pod.containers);
        let devices = containers.flat_map(|container| &container.devices);
        let ids = devices.filter(|of| resources.includes(&of.resource_name)).flat_map(|of| &of.device_ids);
        let mut replicas = ids.filter(|id| is_replica(id));
        replicas.any(|id| !granted.contains(id))
    }

    fn apply_list(
        &mut self,
        list: &ListPodResourcesResponse,
        observation: &PodObservation<'_>,
        holdings: &mut PodHoldings,
    ) {
        self.lists += 1;
        let containers = list.pod_resources.iter().flat_map(|pod| &pod.containers);
        let listed_devices = containers.flat_map(|container| &container.devices);
        let PodObservation { resources, minors, .. } = *observation;
        let replicas = observation
            .allocatable
            .map(|of| resources.count_replicas(of.devices.iter().chain(listed_devices), minors));
        let mut grants = BTreeMap::new();
        for (name, containers) in group_containers(list, &mut holdings.problems) {
            let before = self.grants.remove(&name).unwrap_or_default();
            let problems = &mut holdings.problems;
            let resolve = |container: &&ContainerResources| {
                resolve_devices(&name, container, &before, observation, replicas.as_ref(), problems)
            };
            let listed = containers.iter().map(resolve);
            let mut grant = Grant::newest(listed.collect(), &before);
            for (_, device) in grant.devices.iter_mut().filter(|(id, _)| !before.devices.contains_key(*id)) {
                device.first_list = self.lists;
            }
            grants.insert(name, grant);
        }
        for (name, mut grant) in std::mem::take(&mut self.grants) {
            let Some(missing) = grant.missing else {
                holdings.is_ending |= !grant.devices.is_empty();
                grant.missing = Some(observation.now);
                grants.insert(name, grant);
                continue;
            };
            let uid = self.uids.get(&name.pod);
            if grant.is_over || name.is_ignored(observation.resources) {
                continue;
            }
            let holder = name.holder(uid, observation.metadata);
            let finished = uid.and_then(|uid| observation.metadata.ended_at(uid)).or(grant.finished);
            let until = finished.unwrap_or(missing).min(missing);
            self.ended.extend(grant.ended(&holder, until));
        }
        self.grants = grants;
        self.end_reassigned_devices(observation.now);
    }

    /// Restores the shares that holders had before this tracker began; several devices of one GPU divide its share
    /// equally.
    fn restore_shares(&mut self) {
        let mut previous: BTreeMap<(HolderId, AllocatedDevice), Fraction> = BTreeMap::new();
        for Allocation { holder, device, fraction, .. } in std::mem::take(&mut self.recovered) {
            let share =
                previous.entry((holder.id, device)).or_insert(Fraction { numerator: 0, denominator: 1 });
            *share = sum(*share, fraction);
        }
        for (name, grant) in self.grants.iter_mut().filter(|_| !previous.is_empty()) {
            let holder = name.holder(self.uids.get(&name.pod), &PodMetadata::default()).id;
            let mut counts: BTreeMap<AllocatedDevice, u32> = BTreeMap::new();
            for device in grant.devices.values() {
                *counts.entry(device.device.clone()).or_default() += 1;
            }
            for device in grant.devices.values_mut() {
                let Some(share) = previous.get(&(holder.clone(), device.device.clone())) else { continue };
                let count = counts.get(&device.device).copied().unwrap_or(1);
                device.fraction = match share.numerator % count {
                    0 => Fraction { numerator: share.numerator / count, ..*share },
                    _ => Fraction { denominator: share.denominator.saturating_mul(count), ..*share },
                };
            }
        }
    }

    /// Ends the holding of a device that another container was granted in a later list.
    fn end_reassigned_devices(&mut self, now: Utc) {
        let mut latest: BTreeMap<String, u64> = BTreeMap::new();
        for (id, device) in self.grants.values().flat_map(|grant| &grant.devices) {
            let first_list = latest.entry(id.clone()).or_default();
            *first_list = (*first_list).max(device.first_list);
        }
        for (id, device) in self.grants.values_mut().flat_map(|grant| &mut grant.devices) {
            if !device.is_claimed && latest.get(id).is_some_and(|list| *list > device.first_list) {
                device.superseded.get_or_insert(now);
            }
        }
    }

    /// Ends all but one holding of a device that one list shows in several pods: the others have ended and are not
    /// deleted yet. The pod whose latest container began last is running; without logs that is not known, and all hold.
    fn end_devices_of_older_pods(&mut self, logs: &PodLogs, now: Utc) {
        let mut began: BTreeMap<(&str, &str), Utc> = BTreeMap::new();
        for PodLog { pod, changed } in logs.pods.iter().flatten() {
            let latest = began.entry((&pod.namespace, &pod.name)).or_insert(*changed);
            *latest = (*latest).max(*changed);
        }
        let began = |name: &ContainerName| began.get(&(&*name.pod.namespace, &*name.pod.name)).copied();
        let mut latest: BTreeMap<(String, u64), Utc> = BTreeMap::new();
        for (name, grant) in &self.grants {
            let Some(began) = began(name) else { continue };
            for (id, device) in grant.devices.iter().filter(|(_, device)| device.superseded.is_none()) {
                let known = latest.entry((id.clone(), device.first_list)).or_insert(began);
                *known = (*known).max(began);
            }
        }
        for (name, grant) in &mut self.grants {
            let Some(began) = began(name) else { continue };
            for (id, device) in grant.devices.iter_mut().filter(|(_, device)| !device.is_claimed) {
                if latest.get(&(id.clone(), device.first_list)).is_some_and(|latest| *latest > began) {
                    device.superseded.get_or_insert(now);
                }
            }
        }
    }

    /// Finds the UIDs of the listed pods. Of several pods with one name, as a StatefulSet creates, the latest counts.
    fn update_uids(&mut self, logs: &PodLogs, observation: &PodObservation<'_>) {
        let PodObservation { metadata, now, resources, .. } = *observation;
        let mut latest = BTreeMap::new();
        for log in logs.pods.iter().flatten() {
            let found = latest.entry(PodName::from(&log.pod)).or_insert((log.changed, &log.pod.uid));
            *found = (*found).max((log.changed, &log.pod.uid));
        }
        let of_containers = logs.containers.iter().flatten().map(|log| &log.pod);
        for pod in of_containers.filter(|_| logs.pods.is_none()) {
            latest.entry(pod.into()).or_insert((Utc(0), &pod.uid));
        }
        let mut uids = BTreeMap::new();
        for (name, grant) in &mut self.grants {
            let before = self.uids.get(&name.pod);
            let found = latest.get(&name.pod).map(|(_, uid)| *uid);
            if let Some(before) =
                before.filter(|_| grant.missing.is_none() && found.is_some() && before != found)
            {
                // Another pod has the name now.
                if !grant.is_over && !name.is_ignored(resources) {
                    let finished = metadata.ended_at(before).or(grant.finished);
                    let holder = name.holder(Some(before), metadata);
                    self.ended.extend(grant.ended(&holder, finished.unwrap_or(now).min(now)));
                }
                (grant.is_over, grant.finished) = (false, None);
                for device in grant.devices.values_mut() {
                    (device.first_list, device.began, device.superseded) = (self.lists, now, None);
                }
            }
            if let Some(uid) = before.filter(|_| grant.missing.is_some()).or(found) {
                uids.insert(name.pod.clone(), uid.clone());
            }
        }
        self.uids = uids;
    }

    /// Dates back the holdings of containers that started before a list showed them, and notes when pods ended.
    fn read_container_times(&mut self, metadata: &PodMetadata) {
        for (name, grant) in &mut self.grants {
            let Some(uid) = self.uids.get(&name.pod) else { continue };
            if metadata.has(uid) {
                (grant.is_over, grant.finished) = (metadata.has_ended(uid), metadata.ended_at(uid));
            }
            let Some(started) = metadata.started(uid, &name.container) else { continue };
            grant.devices.values_mut().for_each(|device| device.began = device.began.min(started));
        }
    }

    /// Divides each claimed device equally among the containers that hold it.
    fn share_claims(&mut self, resources: &Resources) {
        let holding =
            self.grants.iter_mut().filter(|(name, grant)| !grant.is_over && !name.is_ignored(resources));
        let devices =
            holding.flat_map(|(_, grant)| &mut grant.devices).filter(|(_, device)| device.is_claimed);
        let mut shares: BTreeMap<&String, Vec<&mut Fraction>> = BTreeMap::new();
        for (id, device) in devices {
            shares.entry(id).or_default().push(&mut device.fraction);
        }
        for sharing in shares.into_values() {
            let denominator = u32::try_from(sharing.len()).unwrap_or(u32::MAX);
            sharing.into_iter().for_each(|share| *share = Fraction { numerator: 1, denominator });
        }
    }

    /// The holdings of containers, by device and holder, and those that ended within the last minute.
    fn allocations(&self, observation: &PodObservation<'_>) -> (Vec<Allocation>, Vec<Allocation>) {
        let PodObservation { metadata, now, resources, .. } = *observation;
        let (mut allocations, mut ended) = (Vec::new(), self.ended.clone());
        for (name, grant) in &self.grants {
            if name.is_ignored(resources) {
                continue;
            }
            let holder = name.holder(self.uids.get(&name.pod), metadata);
            if !grant.is_over {
                allocations.extend(grant.allocations(&holder));
                ended.extend(grant.reassigned(&holder));
            } else if let Some(finished) = grant.finished {
                ended.extend(grant.ended(&holder, finished));
            }
        }
        ended.retain(|one| is_told(one, now));
        allocations
            .sort_by(|one, other| (&one.device, &one.holder.id).cmp(&(&other.device, &other.holder.id)));
        (allocations, ended)
    }

    /// The containers in which processes run: by container id, else by pods with one container.
    fn map(&self, logs: &PodLogs, metadata: &PodMetadata) -> PodMap {
        let mut map = PodMap::default();
        if let Some(containers) = &logs.containers {
            for log in containers {
                let uid = &log.pod.uid;
                let name = ContainerName { pod: (&log.pod).into(), container: log.name.clone() };
                let key = (uid.clone(), log.id.clone(), log.name.clone());
                map.containers.insert(key, name.holder(Some(uid), metadata));
            }
            return map;
        }
        for (pod, uid) in &self.uids {
            let mut containers = self.grants.keys().filter(|name| name.pod == *pod);
            if let (Some(sole), None) = (containers.next(), containers.next()) {
                map.sole.insert(uid.clone(), sole.holder(Some(uid), metadata));
            }
        }
        map
    }
}

/// The listed containers by name; several where the list has a pod that has ended beside its successor.
fn group_containers<'a>(
    list: &'a ListPodResourcesResponse,
    problems: &mut BTreeSet<String>,
) -> BTreeMap<ContainerName, Vec<&'a ContainerResources>> {
    let mut grouped: BTreeMap<ContainerName, Vec<&ContainerResources>> = BTreeMap::new();
    for pod in &list.pod_resources {
        for container in &pod.containers {
            if !(is_label(&pod.namespace) && is_subdomain(&pod.name) && is_label(&container.name)) {
                let names = format!("{}/{}/{}", pod.namespace, pod.name, container.name);
                add_problem(problems, format!("\"{}\" is not a valid container name", shown(&names)));
                continue;
            }
            let pod = PodName { namespace: pod.namespace.clone(), name: pod.name.clone() };
            let name = ContainerName { pod, container: container.name.clone() };
            grouped.entry(name).or_default().push(container);
        }
    }
    grouped
}

/// Whether an ended allocation is still reported.
fn is_told(ended: &Allocation, now: Utc) -> bool {
    ended.until.is_some_and(|until| now < until.plus(KEEP_ENDED))
}

fn add_problem(problems: &mut BTreeSet<String>, problem: String) {
    if problems.len() < MOST_PROBLEMS {
        problems.insert(problem);
    }
}
