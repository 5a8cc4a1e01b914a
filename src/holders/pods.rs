//! Kubernetes pods: which container holds which GPU, and in which container a process runs.
//!
//! In: what the kubelet's pod-resources API lists, which has no UIDs; what its log directories name, which has no devices;
//! what Kubernetes says of the pods, where it tells; the GPUs' minor numbers. Out: [`PodMap`] and the holdings of containers, with a reason for each device that holds
//! nothing. The two are joined by namespace and name. It asks nobody itself and knows no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pod_devices::{DeviceId, ReplicaCounts, Resources, claimed_device};
use super::pod_metadata::PodMetadata;
use super::resolved_workloads::{AllocatedDevice, Allocation};
use crate::host::PodLogs;
use crate::host::pod_logs::{LoggedPod, PodLog, is_label, is_subdomain};
use crate::kubelet::messages::{
    AllocatableResourcesResponse, ClaimResource, ContainerResources, DynamicResource,
    ListPodResourcesResponse,
};
use crate::model::{Fact, Facts, Fraction, Holder, HolderId, HolderKind, HoldingSource, Utc};

/// The most reasons that are kept of one round.
const MOST_PROBLEMS: usize = 32;

/// NVIDIA's driver of GPUs for resource claims.
const NVIDIA_DRIVER: &str = "gpu.nvidia.com";

/// What one round has learned.
#[derive(Clone, Copy, Debug)]
pub struct PodObservation<'a> {
    /// What the kubelet lists; none where it did not answer.
    pub listed: Option<&'a ListPodResourcesResponse>,
    /// The devices that it may assign, where it tells them.
    pub allocatable: Option<&'a AllocatableResourcesResponse>,
    /// What its log directories name.
    pub logs: &'a PodLogs,
    /// What Kubernetes says of the pods; empty where nobody tells.
    pub metadata: &'a PodMetadata,
    /// UUIDs of GPUs by minor number.
    pub minors: &'a BTreeMap<u32, String>,
    /// When it was listed, by the wall clock.
    pub now: Utc,
    /// Which devices are GPUs.
    pub resources: &'a Resources,
}

/// In which containers processes run, as last published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMap {
    /// By container id: UID of the pod, and the container.
    containers: BTreeMap<String, (String, Holder)>,
    /// By UID: the container of a pod that has only one, where container ids are not known.
    sole: BTreeMap<String, Holder>,
}

impl PodMap {
    /// Whose process runs in the pod and container of these ids.
    pub(super) fn holder(&self, uid: &str, container: &str) -> Option<&Holder> {
        let known = self.containers.get(container).filter(|(pod, _)| pod == uid);
        known.map(|(_, holder)| holder).or_else(|| self.sole.get(uid))
    }
}

/// What is known after a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHoldings {
    /// In which containers processes run.
    pub map: PodMap,
    /// What containers hold.
    pub allocations: Vec<Allocation>,
    /// Why devices hold nothing, and what stands in the way of joining pods to processes.
    pub problems: BTreeSet<String>,
    /// Whether a container was missing for the first time, so that the next list decides on its holding.
    pub is_ending: bool,
}

/// A container as the kubelet lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ContainerName {
    namespace: String,
    pod: String,
    container: String,
}

/// What a container was granted.
#[derive(Clone, Debug, Default)]
struct Grant {
    /// By device id.
    devices: BTreeMap<String, GrantedDevice>,
    /// Devices with which the last list had another pod of the same name.
    former: BTreeSet<String>,
    /// Whether the last list did not have it.
    missing: bool,
}

impl Grant {
    /// What a container was granted of which a list has several: until a pod that has ended is deleted, kubelets list it
    /// beside the one that replaced it under its name. The one with a device that is new here has replaced the others, else
    /// the one that was in force stays.
    fn newest(mut listed: Vec<BTreeMap<String, GrantedDevice>>, before: &Self) -> Self {
        let is_new = |id: &String| !before.devices.contains_key(id) && !before.former.contains(id);
        let rank = |devices: &BTreeMap<String, GrantedDevice>| {
            (devices.keys().any(is_new), devices.keys().eq(before.devices.keys()))
        };
        let newest = listed.iter().map(rank).enumerate().max_by_key(|(_, rank)| *rank);
        let devices = newest.map(|(at, _)| listed.swap_remove(at)).unwrap_or_default();
        let former = listed.into_iter().flat_map(BTreeMap::into_keys);
        let former = former.filter(|id| !devices.contains_key(id)).collect();
        Self { devices, former, missing: false }
    }
}

/// A device of a container.
#[derive(Clone, Debug)]
struct GrantedDevice {
    /// Its GPU or MIG instance.
    device: AllocatedDevice,
    /// How much of it, as it was when granted.
    fraction: Fraction,
    /// When the first list had it, or its container started, whichever was earlier.
    began: Utc,
    /// Number of the list that had it first.
    since: u64,
    /// Whether another container was granted it since: kubelets list pods that have ended until they are deleted.
    superseded: bool,
    /// Whether a resource claim has it, which several containers may share.
    is_claimed: bool,
}

/// What the devices of a container are known by.
struct GrantSources<'a> {
    /// What the container was granted before.
    before: &'a Grant,
    seen: &'a PodObservation<'a>,
    replicas: Option<&'a ReplicaCounts<'a>>,
}

/// Follows the containers of a node from list to list.
#[derive(Debug, Default)]
pub struct Pods {
    granted: BTreeMap<ContainerName, Grant>,
    /// UID of the pod when it was last listed, by namespace and name.
    uids: BTreeMap<(String, String), String>,
    /// How many lists there were.
    lists: u64,
    /// What holders held of GPUs when the agent last ran, until the first list.
    resumed: BTreeMap<(HolderId, AllocatedDevice), Fraction>,
    /// The logs of the last round.
    logs: PodLogs,
}

impl Pods {
    /// Pods of a node on which these held so much of these GPUs when the agent last ran: whoever still holds keeps the share
    /// that it was granted then.
    pub fn resuming(held: impl IntoIterator<Item = (HolderId, Arc<str>, Fraction)>) -> Self {
        let resumed = held.into_iter();
        let resumed =
            resumed.map(|(holder, gpu, fraction)| ((holder, AllocatedDevice::Uuid(gpu)), fraction)).collect();
        Self { resumed, ..Self::default() }
    }

    /// Takes what a round has learned. A holding begins with the first list that has it, or with the start of its container
    /// where that was earlier, and ends with the second list that has not, or when its pod has ended; the share of a replica
    /// stays what it was when it was granted.
    pub fn observe(&mut self, seen: PodObservation<'_>) -> PodHoldings {
        let mut known = PodHoldings::default();
        if let Some(listed) = seen.listed {
            self.list(listed, &seen, &mut known);
        }
        let mut logs = seen.metadata.complete(seen.logs.clone());
        if let Some(unread) = logs.unread.take().filter(|_| seen.listed.is_some()) {
            tell(&mut known.problems, unread);
        }
        // A directory that cannot be read now is as it was: nobody is renamed.
        logs.pods = logs.pods.or_else(|| self.logs.pods.take());
        logs.containers = logs.containers.or_else(|| self.logs.containers.take());
        self.find_uids(&logs, seen.now);
        self.find_starts(seen.metadata);
        self.supersede_older_pods(&logs);
        if seen.listed.is_some() {
            self.resume();
        }
        self.publish(&logs, seen.metadata, &mut known);
        self.logs = logs;
        known
    }

    /// Whether shares depend on which devices the kubelet may assign: a replica is listed that was not granted before.
    pub fn needs_allocatable(&self, listed: &ListPodResourcesResponse, resources: &Resources) -> bool {
        let listed_before = self.granted.values().filter(|grant| !grant.missing);
        let granted: BTreeSet<&String> = listed_before.flat_map(|grant| grant.devices.keys()).collect();
        let containers = listed.pod_resources.iter().flat_map(|pod| &pod.containers);
        let devices = containers.flat_map(|container| &container.devices);
        let ids = devices.filter(|of| resources.includes(&of.resource_name)).flat_map(|of| &of.device_ids);
        let mut replicas = ids.filter(|id| DeviceId::parse(id).is_ok_and(|device| device.is_replica()));
        replicas.any(|id| !granted.contains(id))
    }

    fn list(
        &mut self,
        listed: &ListPodResourcesResponse,
        seen: &PodObservation<'_>,
        known: &mut PodHoldings,
    ) {
        let mut granted = BTreeMap::new();
        self.lists += 1;
        let containers = listed.pod_resources.iter().flat_map(|pod| &pod.containers);
        let devices_listed = containers.flat_map(|container| &container.devices);
        let replicas =
            seen.allocatable.map(|of| seen.resources.count_replicas(of.devices.iter().chain(devices_listed)));
        let mut containers: BTreeMap<ContainerName, Vec<&ContainerResources>> = BTreeMap::new();
        for pod in &listed.pod_resources {
            for container in &pod.containers {
                if !(is_label(&pod.namespace) && is_subdomain(&pod.name) && is_label(&container.name)) {
                    let names = format!("{}/{}/{}", pod.namespace, pod.name, container.name);
                    let names: String = names.chars().take(200).collect();
                    tell(&mut known.problems, format!("{names:?} is no container's name"));
                    continue;
                }
                let name = ContainerName {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                };
                containers.entry(name).or_default().push(container);
            }
        }
        for (name, containers) in containers {
            let before = self.granted.remove(&name).unwrap_or_default();
            let known_by = GrantSources { before: &before, seen, replicas: replicas.as_ref() };
            let listed = containers.iter();
            let listed = listed.map(|container| devices(&name, container, &known_by, &mut known.problems));
            let mut grant = Grant::newest(listed.collect(), &before);
            for (_, device) in grant.devices.iter_mut().filter(|(id, _)| !before.devices.contains_key(*id)) {
                device.since = self.lists;
            }
            granted.insert(name, grant);
        }
        for (name, grant) in std::mem::take(&mut self.granted) {
            if !grant.missing {
                known.is_ending |= !grant.devices.is_empty();
                granted.insert(name, Grant { missing: true, ..grant });
            }
        }
        self.granted = granted;
        self.supersede();
    }

    /// Gives the devices of the first list the shares that their holders had before: several of one GPU had it in equal parts.
    fn resume(&mut self) {
        let resumed = std::mem::take(&mut self.resumed);
        for (name, grant) in self.granted.iter_mut().filter(|_| !resumed.is_empty()) {
            let uid = self.uids.get(&(name.namespace.clone(), name.pod.clone()));
            let holder = name.holder(uid.map(String::as_str), &PodMetadata::default()).id;
            let mut counts: BTreeMap<AllocatedDevice, u32> = BTreeMap::new();
            for device in grant.devices.values() {
                *counts.entry(device.device.clone()).or_default() += 1;
            }
            for device in grant.devices.values_mut() {
                let Some(share) = resumed.get(&(holder.clone(), device.device.clone())) else { continue };
                let count = counts.get(&device.device).copied().unwrap_or(1);
                device.fraction = match share.numerator % count {
                    0 => Fraction { numerator: share.numerator / count, ..*share },
                    _ => Fraction { denominator: share.denominator.saturating_mul(count), ..*share },
                };
            }
        }
    }

    /// Ends the holdings of devices that another container was granted later.
    fn supersede(&mut self) {
        let mut latest: BTreeMap<String, u64> = BTreeMap::new();
        for (id, device) in self.granted.values().flat_map(|grant| &grant.devices) {
            let since = latest.entry(id.clone()).or_default();
            *since = (*since).max(device.since);
        }
        for (id, device) in self.granted.values_mut().flat_map(|grant| &mut grant.devices) {
            device.superseded |=
                !device.is_claimed && latest.get(id).is_some_and(|since| *since > device.since);
        }
    }

    /// Ends the holdings of devices that one list shows in several pods: the pod whose latest container began last runs, the
    /// others have ended and are not deleted yet. Without logs nobody knows which.
    fn supersede_older_pods(&mut self, logs: &PodLogs) {
        let mut began: BTreeMap<(&str, &str), Utc> = BTreeMap::new();
        for PodLog { pod, changed } in logs.pods.iter().flatten() {
            let latest = began.entry((&pod.namespace, &pod.name)).or_insert(*changed);
            *latest = (*latest).max(*changed);
        }
        let began = |name: &ContainerName| began.get(&(&*name.namespace, &*name.pod)).copied();
        let mut latest: BTreeMap<(String, u64), Utc> = BTreeMap::new();
        for (name, grant) in &self.granted {
            let Some(began) = began(name) else { continue };
            for (id, device) in grant.devices.iter().filter(|(_, device)| !device.superseded) {
                let known = latest.entry((id.clone(), device.since)).or_insert(began);
                *known = (*known).max(began);
            }
        }
        for (name, grant) in &mut self.granted {
            let Some(began) = began(name) else { continue };
            for (id, device) in grant.devices.iter_mut().filter(|(_, device)| !device.is_claimed) {
                device.superseded |=
                    latest.get(&(id.clone(), device.since)).is_some_and(|latest| *latest > began);
            }
        }
    }

    /// Finds the UIDs of the listed pods. Of several pods of one name, as a StatefulSet makes, the latest counts; a pod that is
    /// not listed any more keeps the UID that it had.
    fn find_uids(&mut self, logs: &PodLogs, now: Utc) {
        let mut latest = BTreeMap::new();
        for log in logs.pods.iter().flatten() {
            let LoggedPod { namespace, name, uid } = &log.pod;
            let found = latest.entry((namespace.as_str(), name.as_str())).or_insert((log.changed, uid));
            *found = (*found).max((log.changed, uid));
        }
        let of_containers = logs.containers.iter().flatten().map(|log| &log.pod);
        for LoggedPod { namespace, name, uid } in of_containers.filter(|_| logs.pods.is_none()) {
            latest.entry((namespace, name)).or_insert((Utc(0), uid));
        }
        let mut uids = BTreeMap::new();
        for (name, grant) in &mut self.granted {
            let pod = (name.namespace.clone(), name.pod.clone());
            let before = self.uids.get(&pod);
            let found = latest.get(&(&*name.namespace, &*name.pod)).map(|(_, uid)| *uid);
            if !grant.missing && before.is_some() && found.is_some() && before != found {
                // Another pod of the same name.
                for device in grant.devices.values_mut() {
                    (device.since, device.began, device.superseded) = (self.lists, now, false);
                }
            }
            if let Some(uid) = before.filter(|_| grant.missing).or(found) {
                uids.insert(pod, uid.clone());
            }
        }
        self.uids = uids;
    }

    /// Dates back the holdings of containers that had started before a list showed them.
    fn find_starts(&mut self, metadata: &PodMetadata) {
        for (name, grant) in &mut self.granted {
            let uid = self.uids.get(&(name.namespace.clone(), name.pod.clone()));
            let Some(started) = uid.and_then(|uid| metadata.started(uid, &name.container)) else { continue };
            grant.devices.values_mut().for_each(|device| device.began = device.began.min(started));
        }
    }

    fn publish(&self, logs: &PodLogs, metadata: &PodMetadata, known: &mut PodHoldings) {
        let mut names: BTreeMap<(&str, &str), Vec<&ContainerName>> = BTreeMap::new();
        for (name, grant) in &self.granted {
            let uid = self.uids.get(&(name.namespace.clone(), name.pod.clone()));
            let uid = uid.map(String::as_str);
            let holder = name.holder(uid, metadata);
            names.entry((&name.namespace, &name.pod)).or_default().push(name);
            if uid.is_some_and(|uid| metadata.has_ended(uid)) {
                continue;
            }
            let devices = grant.devices.values().filter(|device| !device.superseded);
            known.allocations.extend(devices.map(|device| Allocation {
                holder: holder.clone(),
                device: device.device.clone(),
                fraction: device.fraction,
                source: HoldingSource::Kubernetes,
                since: Some(device.began),
            }));
        }
        known
            .allocations
            .sort_by(|one, other| (&one.device, &one.holder.id).cmp(&(&other.device, &other.holder.id)));
        let Some(containers) = &logs.containers else {
            for ((namespace, pod), containers) in names {
                let uid = self.uids.get(&(namespace.to_owned(), pod.to_owned()));
                if let (Some(uid), [one]) = (uid, &containers[..]) {
                    known.map.sole.insert(uid.clone(), one.holder(Some(uid), metadata));
                }
            }
            return;
        };
        for log in containers {
            let LoggedPod { namespace, name, uid } = log.pod.clone();
            let name = ContainerName { namespace, pod: name, container: log.name.clone() };
            known.map.containers.insert(log.id.clone(), (uid.clone(), name.holder(Some(&uid), metadata)));
        }
    }
}

impl ContainerName {
    /// The container as a holder; without the pod's UID its id is made of names, and no process is joined to it.
    fn holder(&self, uid: Option<&str>, metadata: &PodMetadata) -> Holder {
        let Self { namespace, pod, container } = self;
        let mut facts = Facts::new([
            (Fact::Namespace, namespace.as_str()),
            (Fact::Pod, pod),
            (Fact::PodContainer, container),
        ]);
        match uid {
            Some(uid) => {
                facts.set(Fact::PodUid, uid.into());
                metadata.describe(uid, &mut facts);
                Holder::new(HolderKind::Pod, facts)
            }
            None => Holder { id: HolderId::new(format!("k8s:{namespace}/{pod}/{container}")), facts },
        }
    }
}

impl std::fmt::Display for ContainerName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespace, pod, container } = self;
        write!(f, "container {container} of pod {namespace}/{pod}")
    }
}

/// The GPUs of a container, and their shares.
fn devices(
    name: &ContainerName,
    container: &ContainerResources,
    sources: &GrantSources<'_>,
    problems: &mut BTreeSet<String>,
) -> BTreeMap<String, GrantedDevice> {
    let GrantSources { before, seen, .. } = sources;
    let mut devices = BTreeMap::new();
    let assigned = container.devices.iter().filter(|devices| seen.resources.includes(&devices.resource_name));
    for (resource, id) in assigned.flat_map(|of| of.device_ids.iter().map(|id| (&of.resource_name, id))) {
        if let Some(granted) = before.devices.get(id) {
            devices.insert(id.clone(), granted.clone());
            continue;
        }
        match granted(id, sources) {
            Ok((device, fraction)) => {
                devices.insert(
                    id.clone(),
                    GrantedDevice {
                        device,
                        fraction,
                        began: seen.now,
                        since: 0,
                        superseded: false,
                        is_claimed: false,
                    },
                );
            }
            Err(reason) => {
                let [resource, id] = [resource, id].map(|text| text.chars().take(100).collect::<String>());
                let resource = resource.escape_debug();
                tell(problems, format!("{name}: {resource} {id:?} holds nothing: {reason}"));
            }
        }
    }
    for claim in &container.dynamic_resources {
        for device in claim.claim_resources.iter().filter(|device| device.driver_name == NVIDIA_DRIVER) {
            let id = format!(
                "{}/{} of claim {}/{}",
                device.pool_name, device.device_name, claim.claim_namespace, claim.claim_name
            );
            match before.devices.get(&id).cloned().map_or_else(|| claimed(claim, device, seen), Ok) {
                Ok(device) => drop(devices.insert(id, device)),
                Err(reason) => {
                    let id: String = id.chars().take(200).collect();
                    tell(problems, format!("{name}: {id:?} holds nothing: {reason}"));
                }
            }
        }
    }
    devices
}

/// The device that a resource claim (DRA) was granted: the containers that the list shows with the claim share it equally.
fn claimed(
    claim: &DynamicResource,
    device: &ClaimResource,
    seen: &PodObservation<'_>,
) -> Result<GrantedDevice, String> {
    let device = claimed_device(device, seen.minors)?;
    let pods = seen.listed.iter().flat_map(|listed| &listed.pod_resources);
    let claims = pods.flat_map(|pod| &pod.containers).flat_map(|container| &container.dynamic_resources);
    let name = |claim: &DynamicResource| (claim.claim_namespace.clone(), claim.claim_name.clone());
    let sharing = claims.filter(|other| name(other) == name(claim)).count();
    let denominator = u32::try_from(sharing.max(1)).unwrap_or(u32::MAX);
    let fraction = Fraction { numerator: 1, denominator };
    Ok(GrantedDevice { device, fraction, began: seen.now, since: 0, superseded: false, is_claimed: true })
}

/// The GPU or MIG instance that a device id means, and how much of it.
fn granted(id: &str, sources: &GrantSources<'_>) -> Result<(AllocatedDevice, Fraction), String> {
    let GrantSources { seen, replicas, .. } = sources;
    let id = DeviceId::parse(id)?;
    let device = id.device(seen.minors)?;
    let fraction = if id.is_replica() { seen.resources.share(&id, *replicas)? } else { Fraction::WHOLE };
    Ok((device, fraction))
}

fn tell(problems: &mut BTreeSet<String>, problem: String) {
    if problems.len() < MOST_PROBLEMS {
        problems.insert(problem);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::pod_logs::ContainerLog;
    use crate::kubelet::messages::{ContainerDevices, PodResources};
    use crate::kubelet::pod::{
        ContainerState, ContainerStatus, ObjectMeta, OwnerReference, Pod, PodStatus, Running, Time,
    };
    use crate::model::PodLabel;

    const GPU: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";
    const UID: &str = "11111111-052c-4b11-80d3-4d7b2d2d3464";
    const OTHER_UID: &str = "22222222-052c-4b11-80d3-4d7b2d2d3464";
    const ID: &str = "2b18000000000000000000000000000000000000000000000000000000000abc";

    fn devices(ids: &[&str]) -> ContainerDevices {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids }
    }

    fn container(name: &str, ids: &[&str]) -> ContainerResources {
        ContainerResources { name: name.into(), devices: vec![devices(ids)], dynamic_resources: Vec::new() }
    }

    /// Pod `ml/train-0` with these containers.
    fn listed(containers: Vec<ContainerResources>) -> ListPodResourcesResponse {
        let pod = PodResources { name: "train-0".into(), namespace: "ml".into(), containers };
        ListPodResourcesResponse { pod_resources: vec![pod] }
    }

    fn logged(uid: &str) -> LoggedPod {
        LoggedPod { namespace: "ml".into(), name: "train-0".into(), uid: uid.into() }
    }

    /// Logs of these pods, begun one after the other, and of one container of the last.
    fn logs(uids: &[&str]) -> PodLogs {
        let pods = (1..).zip(uids).map(|(second, uid)| PodLog { pod: logged(uid), changed: Utc(second) });
        let main = |uid: &&str| ContainerLog { pod: logged(uid), name: "main".into(), id: ID.into() };
        let containers = Some(uids.last().map(main).into_iter().collect());
        PodLogs { pods: Some(pods.collect()), containers, unread: None }
    }

    /// A node, and what it was last told.
    struct TestNode {
        pods: Pods,
        resources: Resources,
        metadata: PodMetadata,
        now: Utc,
    }

    impl TestNode {
        fn new(replicas: Option<u32>) -> Self {
            let resources = Resources { names: vec!["nvidia.com/*".into()], replicas };
            Self { pods: Pods::default(), resources, metadata: PodMetadata::default(), now: Utc(10) }
        }

        fn round(
            &mut self,
            listed: Option<&ListPodResourcesResponse>,
            allocatable: Option<&[&str]>,
            logs: &PodLogs,
        ) -> PodHoldings {
            let allocatable =
                allocatable.map(|ids| AllocatableResourcesResponse { devices: vec![devices(ids)] });
            self.pods.observe(PodObservation {
                listed,
                allocatable: allocatable.as_ref(),
                logs,
                metadata: &self.metadata,
                minors: &BTreeMap::from([(0, GPU.to_owned())]),
                now: self.now,
                resources: &self.resources,
            })
        }
    }

    fn held(known: &PodHoldings) -> Vec<(&str, Fraction)> {
        known.allocations.iter().map(|one| (one.holder.id.as_str(), one.fraction)).collect()
    }

    const fn one_of(denominator: u32) -> Fraction {
        Fraction { numerator: 1, denominator }
    }

    #[test]
    fn a_container_with_a_gpu_holds_it_and_its_processes_are_its() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU]), container("sidecar", &[])]);
        let known = node.round(Some(&list), None, &logs(&[UID]));
        let id = format!("k8s:{UID}/main");
        assert_eq!(held(&known), [(&*id, Fraction::WHOLE)]);
        assert_eq!(known.problems, BTreeSet::new());
        let holder = known.map.holder(UID, ID).unwrap();
        assert_eq!(*holder, known.allocations[0].holder);
        let facts: Vec<_> = holder.facts.iter().map(|(_, text)| text).collect();
        assert_eq!(facts, ["ml", "train-0", UID, "main"]);
        assert_eq!(known.map.holder(OTHER_UID, ID), None, "a container of another pod");
        assert_eq!(known.map.holder(UID, ""), None);
    }

    #[test]
    fn a_holding_ends_with_the_second_list_that_has_it_not_and_a_failed_list_ends_nothing() {
        let mut node = TestNode::new(None);
        let (list, none) = (listed(vec![container("main", &[GPU])]), ListPodResourcesResponse::default());
        let id = format!("k8s:{UID}/main");
        node.round(Some(&list), None, &logs(&[UID]));
        let missing = node.round(Some(&none), None, &logs(&[]));
        assert_eq!((held(&missing), missing.is_ending), (vec![(&*id, Fraction::WHOLE)], true));
        let unanswered = node.round(None, None, &logs(&[]));
        assert_eq!(held(&unanswered).len(), 1);
        let ended = node.round(Some(&none), None, &logs(&[]));
        assert_eq!((held(&ended), ended.is_ending), (vec![], false));
        node.round(Some(&list), None, &logs(&[UID]));
        node.round(Some(&none), None, &logs(&[UID]));
        let back = node.round(Some(&list), None, &logs(&[UID]));
        assert_eq!(held(&back).len(), 1);
        assert_eq!(
            held(&node.round(Some(&none), None, &logs(&[UID]))).len(),
            1,
            "missing for the first time"
        );
    }

    #[test]
    fn a_replica_keeps_the_share_that_it_was_granted() {
        let mut node = TestNode::new(Some(3));
        let replica = |at: u32| format!("{GPU}::{at}");
        let all: Vec<String> = (0..10).map(replica).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let first = listed(vec![container("main", &all[..1])]);
        assert!(node.pods.needs_allocatable(&first, &node.resources));
        let known = node.round(Some(&first), Some(&all[..4]), &logs(&[UID]));
        assert_eq!(known.allocations[0].fraction, one_of(4));
        assert!(!node.pods.needs_allocatable(&first, &node.resources));
        let both = listed(vec![container("main", &all[..1]), container("other", &all[7..8])]);
        let known = node.round(Some(&both), Some(&all), &logs(&[UID]));
        let shares: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
        assert_eq!(shares, [one_of(4), one_of(10)]);
        let mut old_kubelet = TestNode::new(Some(3));
        assert_eq!(old_kubelet.round(Some(&first), None, &logs(&[UID])).allocations[0].fraction, one_of(3));
        let mut unknown = TestNode::new(None);
        let known = unknown.round(Some(&first), None, &logs(&[UID]));
        assert!(known.allocations.is_empty());
        let problem = known.problems.first().unwrap();
        assert!(problem.contains("attribution.kubernetes.replicas"), "{problem}");
    }

    #[test]
    fn a_replica_keeps_its_share_over_a_restart_of_the_agent() {
        let replicas: Vec<String> = (0..10).map(|at| format!("{GPU}::{at}")).collect();
        let replicas: Vec<&str> = replicas.iter().map(String::as_str).collect();
        let list = listed(vec![container("main", &replicas[..2]), container("other", &replicas[3..4])]);
        let held_before = |of: &str, numerator, denominator| {
            let id = HolderId::new(format!("k8s:{UID}/{of}"));
            (id, Arc::from(GPU), Fraction { numerator, denominator })
        };
        // It was granted when the GPU had four replicas; it has ten now.
        let mut node = TestNode::new(None);
        node.pods = Pods::resuming([held_before("main", 1, 2), held_before("gone", 1, 4)]);
        assert_eq!(held(&node.round(None, None, &logs(&[UID]))), [], "the kubelet does not answer yet");
        for _ in 0..2 {
            let known = node.round(Some(&list), Some(&replicas), &logs(&[UID]));
            let shares: Vec<Fraction> = known.allocations.iter().map(|one| one.fraction).collect();
            assert_eq!(shares, [one_of(4), one_of(4), one_of(10)]);
        }
    }

    #[test]
    fn a_pod_made_anew_under_the_same_name_is_another_holder() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU])]);
        node.round(Some(&list), None, &logs(&[UID]));
        let known = node.round(Some(&list), None, &logs(&[UID, OTHER_UID]));
        assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
        assert_eq!(known.map.holder(OTHER_UID, ID).unwrap().id.as_str(), format!("k8s:{OTHER_UID}/main"));
    }

    #[test]
    fn a_pod_that_is_listed_beside_the_one_that_replaced_it_under_its_name_holds_nothing() {
        const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000000";
        let list = |gpus: &[&[&str]]| {
            let pods = gpus.iter().flat_map(|ids| listed(vec![container("main", ids)]).pod_resources);
            ListPodResourcesResponse { pod_resources: pods.collect() }
        };
        let mut node = TestNode::new(None);
        let mut held = |gpus: &[&[&str]]| {
            let known = node.round(Some(&list(gpus)), None, &logs(&[UID]));
            known.allocations.iter().map(|one| one.device.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(held(&[&[GPU]]), [GPU]);
        for order in [[&[GPU][..], &[OTHER]], [&[OTHER], &[GPU]], [&[GPU], &[OTHER]]] {
            assert_eq!(held(&order), [OTHER], "{order:?}");
        }
        assert_eq!(held(&[&[], &[OTHER]]), [OTHER], "what has ended has given its devices back");
        assert_eq!(held(&[&[OTHER], &[]]), [OTHER]);
        assert_eq!(held(&[&[OTHER]]), [OTHER]);
        assert_eq!(held(&[&[OTHER], &[GPU]]), [GPU], "replaced another time");
    }

    #[test]
    fn a_pod_that_has_ended_and_is_still_listed_yields_its_gpu_to_the_next() {
        let mut node = TestNode::new(None);
        let mut list = listed(vec![container("main", &[GPU])]);
        node.round(Some(&list), None, &logs(&[UID]));
        let mut next = list.pod_resources[0].clone();
        next.name = "train-1".into();
        list.pod_resources.push(next);
        let holders = |known: &PodHoldings| {
            known
                .allocations
                .iter()
                .map(|one| one.holder.facts.get(Fact::Pod).unwrap().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(holders(&node.round(Some(&list), None, &logs(&[UID]))), ["train-1"]);
        assert_eq!(holders(&node.round(Some(&list), None, &logs(&[UID]))), ["train-1"]);
        list.pod_resources.pop();
        node.round(Some(&list), None, &logs(&[UID]));
        assert!(node.round(Some(&list), None, &logs(&[UID])).allocations.is_empty(), "ended is ended");
    }

    /// What Kubernetes says of pod `ml/train-0`.
    fn described(uid: &str, phase: &str) -> Pod {
        let owner = OwnerReference { kind: "Job".into(), name: "train".into(), controller: true };
        let metadata = ObjectMeta {
            name: "train-0".into(),
            namespace: "ml".into(),
            uid: uid.into(),
            labels: [("team", "vision"), ("queue", "x y")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            owner_references: vec![owner],
            ..ObjectMeta::default()
        };
        let main =
            ContainerStatus { name: "main".into(), container_id: format!("containerd://{ID}"), state: None };
        let status =
            PodStatus { phase: phase.into(), container_statuses: vec![main], ..PodStatus::default() };
        Pod { metadata: Some(metadata), status: Some(status) }
    }

    fn metadata(pods: &[Pod]) -> PodMetadata {
        PodMetadata::new(pods, &["team".to_owned(), "queue".to_owned()], Utc(2))
    }

    #[test]
    fn what_kubernetes_says_of_a_pod_joins_its_processes_and_is_known_of_its_containers() {
        let mut node = TestNode::new(None);
        node.metadata = metadata(&[described(UID, "Running")]);
        let list = listed(vec![container("main", &[GPU])]);
        let unread = PodLogs { unread: Some("no logs".into()), ..PodLogs::default() };
        let known = node.round(Some(&list), None, &unread);
        assert_eq!(known.problems, BTreeSet::new(), "logs are not needed");
        let holder = known.map.holder(UID, ID).unwrap();
        assert_eq!(*holder, known.allocations[0].holder);
        assert_eq!(holder.facts.get(Fact::OwnerKind).map(|text| &**text), Some("Job"));
        assert_eq!(holder.facts.get(Fact::OwnerName).map(|text| &**text), Some("train"));
        let labels: Vec<_> = holder.facts.pod_labels().iter().map(PodLabel::name_and_value).collect();
        assert_eq!(labels, [("k8s_pod_label_team", "vision")], "a value that is none is left out");
    }

    #[test]
    fn a_holding_began_with_the_first_list_or_with_its_container_where_that_was_earlier() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU])]);
        let mut began = |now: u64, started: Option<i64>, uids: &[&str]| {
            node.now = Utc(now * 1_000_000_000);
            let mut pod = described(uids[uids.len() - 1], "Running");
            let status = &mut pod.status.as_mut().unwrap().container_statuses[0];
            let started_at = started.map(|seconds| Time { seconds, nanos: 0 });
            status.state = Some(ContainerState { running: Some(Running { started_at }) });
            node.metadata = metadata(&[pod]);
            let known = node.round(Some(&list), None, &logs(uids));
            known.allocations[0].since.unwrap().0 / 1_000_000_000
        };
        assert_eq!(began(10, None, &[UID]), 10, "it has not started");
        assert_eq!(began(11, Some(11), &[UID]), 10, "listed before it started");
        assert_eq!(began(12, Some(7), &[UID]), 7, "its start became known later");
        assert_eq!(began(13, Some(13), &[UID]), 7, "it was started anew");
        assert_eq!(began(14, None, &[UID]), 7, "it waits for its restart");
        assert_eq!(began(20, Some(18), &[UID, OTHER_UID]), 18, "another pod of the same name");
    }

    #[test]
    fn a_pod_that_has_ended_holds_nothing_however_long_it_is_listed() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU])]);
        assert_eq!(held(&node.round(Some(&list), None, &logs(&[UID]))).len(), 1);
        for phase in ["Succeeded", "Failed"] {
            node.metadata = metadata(&[described(UID, phase)]);
            assert!(held(&node.round(Some(&list), None, &logs(&[UID]))).is_empty(), "{phase}");
        }
        // Another of the same name has begun; the former is still described.
        node.metadata = metadata(&[described(UID, "Failed"), described(OTHER_UID, "Pending")]);
        let known = node.round(Some(&list), None, &logs(&[UID]));
        assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
    }

    #[test]
    fn a_pod_that_began_after_it_was_read_what_pods_there_are_is_known_by_its_logs() {
        let mut node = TestNode::new(None);
        node.metadata = metadata(&[described(UID, "Running")]);
        let list = listed(vec![container("main", &[GPU])]);
        // The pods' logs began at 1, 2 and 3; what is described was read at 2.
        let gone = "33333333-052c-4b11-80d3-4d7b2d2d3464";
        let known = node.round(Some(&list), None, &logs(&[gone]));
        assert_eq!(held(&known)[0].0, format!("k8s:{UID}/main"), "the other one is gone");
        let known = node.round(Some(&list), None, &logs(&[gone, UID, OTHER_UID]));
        assert_eq!(held(&known)[0].0, format!("k8s:{OTHER_UID}/main"));
    }

    #[test]
    fn without_logs_a_container_holds_under_its_names_and_no_process_is_joined() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU])]);
        let unread = PodLogs { unread: Some("no logs".into()), ..PodLogs::default() };
        let known = node.round(Some(&list), None, &unread);
        assert_eq!(held(&known), [("k8s:ml/train-0/main", Fraction::WHOLE)]);
        assert_eq!(known.problems, ["no logs".to_owned()].into());
        assert_eq!(known.allocations[0].holder.facts.get(Fact::Namespace).map(|text| &**text), Some("ml"));
        assert_eq!(known.map, PodMap::default());
    }

    #[test]
    fn without_container_ids_only_a_pod_of_one_container_is_joined() {
        let mut node = TestNode::new(None);
        let only_pods = PodLogs { containers: None, ..logs(&[UID]) };
        let known = node.round(Some(&listed(vec![container("main", &[GPU])])), None, &only_pods);
        assert_eq!(known.map.holder(UID, ID).unwrap().id.as_str(), format!("k8s:{UID}/main"));
        let two = listed(vec![container("main", &[GPU]), container("sidecar", &[])]);
        assert_eq!(node.round(Some(&two), None, &only_pods).map.holder(UID, ID), None);
    }

    /// A container with claim `ml/claim`, which was granted that device.
    fn claiming(name: &str, device: &str) -> ContainerResources {
        let device = ClaimResource {
            driver_name: NVIDIA_DRIVER.into(),
            pool_name: "node-1".into(),
            device_name: device.into(),
            share_id: None,
        };
        let claim = DynamicResource {
            claim_name: "claim".into(),
            claim_namespace: "ml".into(),
            claim_resources: vec![device],
        };
        ContainerResources { name: name.into(), devices: Vec::new(), dynamic_resources: vec![claim] }
    }

    #[test]
    fn a_claimed_gpu_is_held_and_containers_that_share_the_claim_share_it_equally() {
        let mut node = TestNode::new(None);
        let known = node.round(Some(&listed(vec![claiming("main", "gpu-0")])), None, &logs(&[UID]));
        let main = format!("k8s:{UID}/main");
        assert_eq!(held(&known), [(&*main, Fraction::WHOLE)]);
        assert_eq!(known.allocations[0].device, GPU.into());
        let mut node = TestNode::new(None);
        let both = listed(vec![claiming("main", "gpu-0"), claiming("other", "gpu-0")]);
        let known = node.round(Some(&both), None, &logs(&[UID]));
        let other = format!("k8s:{UID}/other");
        assert_eq!(held(&known), [(&*main, one_of(2)), (&*other, one_of(2))]);
        assert_eq!(held(&node.round(Some(&both), None, &logs(&[UID]))).len(), 2, "neither ends the other's");
        let far = node.round(Some(&listed(vec![claiming("main", "gpu-7")])), None, &logs(&[UID]));
        assert!(far.problems.first().unwrap().contains("minor number 7"), "{:?}", far.problems);
    }

    #[test]
    fn a_mig_instance_is_held_by_its_uuid() {
        let mut node = TestNode::new(None);
        let mig = GPU.replace("GPU-", "MIG-");
        let known = node.round(Some(&listed(vec![container("main", &[&mig])])), None, &logs(&[UID]));
        assert_eq!(
            (&known.allocations[0].device, known.allocations[0].fraction),
            (&(&*mig).into(), Fraction::WHOLE)
        );
    }

    #[test]
    fn what_is_no_known_device_and_who_has_no_kubernetes_name_holds_nothing_and_is_told() {
        let mut node = TestNode::new(None);
        let hami = format!("{GPU}-0");
        let claiming = claiming("claims", "gpu-0-mig-19-0");
        let mut unrelated = container("other", &["x"]);
        unrelated.devices[0].resource_name = "example.com/fpga".into();
        let list = listed(vec![
            container("main", &[&hami, "MIG-1", "nvidia7", "nvidia0", "nvidia0/gi"]),
            claiming,
            unrelated,
            container("a\nb", &[GPU]),
            container(&"x".repeat(64), &[GPU]),
        ]);
        let known = node.round(Some(&list), None, &logs(&[UID]));
        assert_eq!(held(&known), [(&*format!("k8s:{UID}/main"), Fraction::WHOLE)], "nvidia0");
        assert_eq!(known.problems.len(), 7, "{:#?}", known.problems);
        assert!(known.problems.iter().all(|problem| !problem.contains('\n')));
    }

    #[test]
    fn of_two_pods_that_a_first_list_shows_on_one_gpu_the_one_that_began_last_holds_it() {
        let pod = |name: &str| PodResources {
            name: name.into(),
            namespace: "ml".into(),
            containers: vec![container("main", &[GPU])],
        };
        let list = ListPodResourcesResponse { pod_resources: vec![pod("train-0"), pod("train-1")] };
        let log = |name: &str, uid: &str, second| PodLog {
            pod: LoggedPod { name: name.into(), ..logged(uid) },
            changed: Utc(second),
        };
        let of = |logs: Option<Vec<PodLog>>| {
            let logs = PodLogs { pods: logs, ..PodLogs::default() };
            let known = TestNode::new(None).round(Some(&list), Some(&[]), &logs);
            known.allocations.iter().map(|one| one.holder.id.to_string()).collect::<Vec<_>>()
        };
        let logs = vec![log("train-0", UID, 7), log("train-1", OTHER_UID, 3)];
        assert_eq!(of(Some(logs)), [format!("k8s:{UID}/main")], "train-1 has ended and is not deleted yet");
        assert_eq!(of(None).len(), 2, "nobody knows which");
    }

    #[test]
    fn logs_that_cannot_be_read_for_a_round_rename_nobody() {
        let mut node = TestNode::new(None);
        let list = listed(vec![container("main", &[GPU])]);
        let before = node.round(Some(&list), Some(&[]), &logs(&[UID]));
        let after = node.round(Some(&list), Some(&[]), &PodLogs::default());
        assert_eq!(after.allocations, before.allocations);
        assert_eq!(after.map.containers, before.map.containers);
        assert_eq!(after.allocations[0].holder.id.as_str(), format!("k8s:{UID}/main"));
    }

    fn any_name() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "ml",
            "train-0",
            "a.b",
            "",
            "A",
            "a/b",
            "a_b",
            "a\nb",
            "../..",
            "\u{202e}x",
        ])
        .prop_map(str::to_owned)
    }

    fn any_device() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["", "::0", "::1", "::x", "-0", "/vgpu0"]).prop_flat_map(|end| {
            prop::sample::select(vec![GPU, "MIG-1", "nvidia0", "nvidia9", ""])
                .prop_map(move |device| format!("{device}{end}"))
        })
    }

    proptest! {
        #[test]
        fn whatever_the_kubelet_lists_only_known_devices_are_held_by_printable_names(
            lists in prop::collection::vec(
                prop::collection::vec((any_name(), any_name(), any_name(), any_device()), 0..6), 1..4,
            )
        ) {
            let mut node = TestNode::new(None);
            for list in lists {
                let pod_resources = list.iter().map(|(namespace, name, of, device)| PodResources {
                    name: name.clone(),
                    namespace: namespace.clone(),
                    containers: vec![container(of, &[device])],
                });
                let list = ListPodResourcesResponse { pod_resources: pod_resources.collect() };
                let known = node.round(Some(&list), Some(&[]), &logs(&[UID]));
                for one in known.allocations {
                    prop_assert_eq!(one.device, GPU.into());
                    prop_assert!(one.holder.id.as_str().starts_with("k8s:"));
                    prop_assert!(one.holder.id.as_str().chars().all(|c| c.is_ascii_graphic()));
                    prop_assert!(one.fraction.numerator == 1 && one.fraction.denominator >= 1);
                }
                prop_assert!(known.problems.iter().all(|problem| !problem.contains(char::is_control)));
            }
        }
    }
}
