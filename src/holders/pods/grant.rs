//! The devices that a container was granted, each with its share.

use std::collections::{BTreeMap, BTreeSet};

use super::device_id::{DeviceId, resolve_claimed_device};
use super::{ContainerName, PodObservation, add_problem};
use crate::holders::host::pod_logs::{is_label, is_subdomain};
use crate::holders::kubelet::messages::{
    ClaimResource, ContainerResources, DynamicResource, ListPodResourcesResponse,
};
use crate::holders::kubelet::{ClaimName, ClaimedDevice};
use crate::holders::resolved_workloads::{AllocatedDevice, Allocation};
use crate::model::{Fraction, Holder, HoldingSource, Utc, shown};

/// The name of NVIDIA's driver for resource claims.
pub(super) const NVIDIA_DRIVER: &str = "gpu.nvidia.com";

#[derive(Clone, Debug, Default)]
pub(super) struct Grant {
    pub(super) devices: BTreeMap<String, GrantedDevice>,
    /// Devices of another pod with the same name in the last list.
    replaced: BTreeSet<String>,
    /// Time of the first list that lacked the container, if the last one did.
    pub(super) missing: Option<Utc>,
    /// Whether all containers of its pod have ended for good.
    pub(super) is_over: bool,
    /// When the last container of its pod ended, where that is known.
    pub(super) finished: Option<Utc>,
}

#[derive(Clone, Debug)]
pub(super) struct GrantedDevice {
    pub(super) device: AllocatedDevice,
    /// The share, as it was when granted; that of a claimed device is equal among the containers that hold the claim.
    pub(super) fraction: Fraction,
    /// Time of the first list that had it, or the earlier start of its container.
    pub(super) began: Utc,
    /// Number of the first list that had it.
    pub(super) first_list: u64,
    /// When another container was seen to have it since; kubelets list ended pods until they are deleted.
    pub(super) superseded: Option<Utc>,
    /// Whether it belongs to a resource claim, which several containers may share.
    pub(super) is_claimed: bool,
}

impl Grant {
    /// Chooses among several grants under one name: until an ended pod is deleted, kubelets list it beside its
    /// successor. The grant with a device that is new under this name belongs to the successor; without one, the last
    /// grant stays.
    pub(super) fn newest(mut listed: Vec<BTreeMap<String, GrantedDevice>>, before: &Self) -> Self {
        let is_new = |id: &String| !before.devices.contains_key(id) && !before.replaced.contains(id);
        let rank = |devices: &BTreeMap<String, GrantedDevice>| {
            (devices.keys().any(is_new), devices.keys().eq(before.devices.keys()))
        };
        let newest = listed.iter().map(rank).enumerate().max_by_key(|(_, rank)| *rank);
        let devices = newest.map(|(at, _)| listed.swap_remove(at)).unwrap_or_default();
        let replaced = listed.into_iter().flat_map(BTreeMap::into_keys);
        let replaced = replaced.filter(|id| !devices.contains_key(id)).collect();
        Self { devices, replaced, missing: None, is_over: before.is_over, finished: before.finished }
    }

    /// What the holder was granted and no other container has been granted since.
    pub(super) fn allocations(&self, holder: &Holder) -> impl Iterator<Item = Allocation> {
        let devices = self.devices.values().filter(|device| device.superseded.is_none());
        devices.map(|device| device.allocation(holder))
    }

    /// What the holder was granted until then, or until another container was granted it.
    pub(super) fn ended(&self, holder: &Holder, until: Utc) -> impl Iterator<Item = Allocation> {
        self.devices.values().map(move |device| {
            let until = device.superseded.unwrap_or(until).min(until);
            Allocation { until: Some(until), ..device.allocation(holder) }
        })
    }

    /// What the holder was granted and another container has been granted since.
    pub(super) fn reassigned(&self, holder: &Holder) -> impl Iterator<Item = Allocation> {
        self.devices.values().filter_map(|device| {
            let superseded = device.superseded?;
            let until = self.finished.unwrap_or(superseded).min(superseded);
            Some(Allocation { until: Some(until), ..device.allocation(holder) })
        })
    }
}

impl GrantedDevice {
    fn new(device: AllocatedDevice, fraction: Fraction, began: Utc) -> Self {
        Self { device, fraction, began, first_list: 0, superseded: None, is_claimed: false }
    }

    fn allocation(&self, holder: &Holder) -> Allocation {
        let source = HoldingSource::Kubernetes;
        let allocation = Allocation::new(holder, self.device.clone(), self.fraction, source);
        Allocation { since: Some(self.began), ..allocation }
    }
}

/// The GPUs of a container by device id, with their shares; known devices stay as they were granted.
pub(super) fn resolve_devices(
    name: &ContainerName,
    container: &ContainerResources,
    before: &Grant,
    observation: &PodObservation<'_>,
    replicas: Option<&BTreeMap<AllocatedDevice, u32>>,
    problems: &mut BTreeSet<String>,
) -> BTreeMap<String, GrantedDevice> {
    let mut devices = BTreeMap::new();
    let mut add =
        |id: String, resource: &str, resolve: &dyn Fn() -> Result<GrantedDevice, String>| match before
            .devices
            .get(&id)
            .cloned()
            .map_or_else(resolve, Ok)
        {
            Ok(device) => drop(devices.insert(id, device)),
            Err(reason) => {
                add_problem(
                    problems,
                    format!(
                        "{name}: device \"{}\"{} is not billed to it: {reason}",
                        shown(&id),
                        shown(resource)
                    ),
                );
            }
        };
    for assigned in &container.devices {
        if observation.resources.includes(&assigned.resource_name) {
            let resource = format!(" of {}", assigned.resource_name);
            for id in &assigned.device_ids {
                add(id.clone(), &resource, &|| resolve_assigned_device(id, observation, replicas));
            }
        }
    }
    for claim in &container.dynamic_resources {
        let granted = claim.claim_resources.iter().filter(|device| device.driver_name == NVIDIA_DRIVER);
        for device in
            granted.filter(|device| !observation.administrative.contains(&claimed_device(claim, device)))
        {
            let id = format!(
                "{}/{} of claim {}/{}",
                device.pool_name, device.device_name, claim.claim_namespace, claim.claim_name
            );
            add(id, "", &|| resolve_claim(device, observation));
        }
    }
    devices
}

fn resolve_assigned_device(
    id: &str,
    observation: &PodObservation<'_>,
    replicas: Option<&BTreeMap<AllocatedDevice, u32>>,
) -> Result<GrantedDevice, String> {
    let DeviceId { device, is_replica } = DeviceId::parse(id, observation.minors)?;
    let fraction = if is_replica { observation.resources.share(&device, replicas)? } else { Fraction::WHOLE };
    Ok(GrantedDevice::new(device, fraction, observation.now))
}

fn claimed_device(claim: &DynamicResource, device: &ClaimResource) -> ClaimedDevice {
    ClaimedDevice {
        claim: claim_name(claim),
        driver: device.driver_name.clone(),
        pool: device.pool_name.clone(),
        device: device.device_name.clone(),
    }
}

fn claim_name(claim: &DynamicResource) -> ClaimName {
    ClaimName { namespace: claim.claim_namespace.clone(), name: claim.claim_name.clone() }
}

/// The claims of GPUs in a list, whose names Kubernetes would accept.
pub fn gpu_claims(list: &ListPodResourcesResponse) -> BTreeSet<ClaimName> {
    let containers = list.pod_resources.iter().flat_map(|pod| &pod.containers);
    let claims = containers.flat_map(|container| &container.dynamic_resources);
    let is_gpu = |claim: &&DynamicResource| {
        claim.claim_resources.iter().any(|device| device.driver_name == NVIDIA_DRIVER)
    };
    let is_name = |claim: &ClaimName| is_label(&claim.namespace) && is_subdomain(&claim.name);
    claims.filter(is_gpu).map(claim_name).filter(is_name).collect()
}

fn resolve_claim(device: &ClaimResource, observation: &PodObservation<'_>) -> Result<GrantedDevice, String> {
    let device = resolve_claimed_device(device, observation.minors)?;
    let granted = GrantedDevice::new(device, Fraction::WHOLE, observation.now);
    Ok(GrantedDevice { is_claimed: true, ..granted })
}
