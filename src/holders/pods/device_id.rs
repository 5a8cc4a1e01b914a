//! Device ids of Kubernetes device plugins: the GPU or MIG instance that an id names, and the share of it.
//!
//! An id of an unknown form never stands for a whole GPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::holders::kubelet::messages::{ClaimResource, ContainerDevices};
use crate::holders::resolved_workloads::{AllocatedDevice, is_uuid, parse_number};
use crate::model::{Fact, Facts, Fraction, PodPattern};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Names of resources; one that ends in `*` stands for all with that prefix.
    pub names: Vec<String>,
    /// Replicas of each shared GPU, for kubelets that do not report them.
    pub replicas: Option<u32>,
    /// Pods that hold nothing.
    pub ignored: Vec<PodPattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceId {
    pub(super) device: AllocatedDevice,
    /// Whether it is one of several ids of one GPU.
    pub(super) is_replica: bool,
}

impl DeviceId {
    /// Parses an id. NVIDIA's plugin offers `GPU-…`, `MIG-…`, and `GPU-…::2` where a GPU is shared; GKE's offers `nvidia0`,
    /// `nvidia0/gi3` for MIG, and both with `/vgpu2` behind where a GPU is shared. `minors` are the UUIDs of the node's
    /// GPUs by minor number.
    pub(super) fn parse(id: &str, minors: &BTreeMap<u32, String>) -> Result<Self, String> {
        let unknown = || "it is not a GPU id of a known form".to_owned();
        let (base, replica) = split_replica(id);
        if replica.is_some_and(|replica| parse_number(replica).is_none()) {
            return Err(unknown());
        }
        let is_replica = replica.is_some();
        if is_uuid(base) {
            return Ok(Self { device: base.into(), is_replica });
        }
        let (base, instance) = split(base, "/gi");
        let instance = instance.map(|id| parse_number(id).ok_or_else(unknown)).transpose()?;
        let minor = base.strip_prefix("nvidia").and_then(parse_number).ok_or_else(unknown)?;
        let gpu = uuid_of(minor, minors)?;
        let device = match instance {
            Some(id) => AllocatedDevice::Instance { gpu: gpu.into(), id },
            None => gpu.into(),
        };
        Ok(Self { device, is_replica })
    }
}

pub(super) fn is_replica(id: &str) -> bool {
    split_replica(id).1.is_some_and(|replica| parse_number(replica).is_some())
}

fn split_replica(id: &str) -> (&str, Option<&str>) {
    split(id, if id.starts_with("nvidia") { "/vgpu" } else { "::" })
}

/// The text before and behind a separator; the whole text where there is none.
fn split<'a>(text: &'a str, separator: &str) -> (&'a str, Option<&'a str>) {
    text.split_once(separator).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

fn uuid_of(minor: u32, minors: &BTreeMap<u32, String>) -> Result<&str, String> {
    minors.get(&minor).map(String::as_str).ok_or_else(|| {
        format!("no GPU has minor number {minor} in /proc/driver/nvidia/gpus; mount the host's /proc")
    })
}

/// The device of a resource claim, by the name that NVIDIA's DRA driver gives it. `gpu-<minor>` is a whole GPU. The
/// name of a MIG instance adds profile id, first memory slice and number of slices (`gpu-0-mig-19-4-1`). Where the
/// driver creates instances when they are claimed, it adds profile, profile id and first slice
/// (`gpu-0-mig-1g10gb-19-4`).
pub(super) fn resolve_claimed_device(
    claimed: &ClaimResource,
    minors: &BTreeMap<u32, String>,
) -> Result<AllocatedDevice, String> {
    let unknown = || "it is not a GPU name of a known form".to_owned();
    if claimed.share_id.is_some() {
        return Err("it is a share of a GPU, and its size is not reported".to_owned());
    }
    let name = claimed.device_name.strip_prefix("gpu-").ok_or_else(unknown)?;
    let (minor, instance) = split(name, "-mig-");
    let minor = parse_number(minor).ok_or_else(unknown)?;
    let slices = instance.map(|instance| parse_slices(instance).ok_or_else(unknown)).transpose()?;
    let uuid = uuid_of(minor, minors)?;
    Ok(match slices {
        Some((start, size)) => AllocatedDevice::Slices { gpu: uuid.into(), start, size },
        None => uuid.into(),
    })
}

/// The first memory slice of a MIG instance, and the number of slices where its name has it.
fn parse_slices(name: &str) -> Option<(u32, Option<u32>)> {
    let parts: Vec<&str> = name.split('-').collect();
    let numbers: Vec<Option<u32>> = parts.iter().map(|part| parse_number(part)).collect();
    match numbers[..] {
        [Some(_), Some(start), Some(size)] => Some((start, Some(size))),
        // A profile has a dash where it has attributes: `1g10gb-me`.
        [None, .., Some(_), Some(start)] if parts[0].ends_with("gb") => Some((start, None)),
        _ => None,
    }
}

impl Resources {
    pub(super) fn ignores(&self, facts: &Facts) -> bool {
        let fact = |fact| facts.get(fact).map_or("", |text| &**text);
        self.ignored.iter().any(|pattern| pattern.matches(fact(Fact::Namespace), fact(Fact::Pod)))
    }

    /// Whether devices of that resource are GPUs.
    pub fn includes(&self, resource: &str) -> bool {
        self.names.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => resource.starts_with(prefix),
            None => resource == name,
        })
    }

    pub(super) fn count_replicas<'a>(
        &self,
        all: impl Iterator<Item = &'a ContainerDevices>,
        minors: &BTreeMap<u32, String>,
    ) -> BTreeMap<AllocatedDevice, u32> {
        let ids = all.filter(|of| self.includes(&of.resource_name)).flat_map(|of| &of.device_ids);
        let ids: BTreeSet<&String> = ids.filter(|id| is_replica(id)).collect();
        let mut counts = BTreeMap::new();
        for id in ids.into_iter().filter_map(|id| DeviceId::parse(id, minors).ok()) {
            *counts.entry(id.device).or_default() += 1;
        }
        counts
    }

    /// The share of one replica, by the number of replicas that the kubelet reports, else by the configured number.
    pub(super) fn share(
        &self,
        device: &AllocatedDevice,
        replicas: Option<&BTreeMap<AllocatedDevice, u32>>,
    ) -> Result<Fraction, String> {
        let counted = replicas.map(|counts| counts.get(device).copied().unwrap_or(0));
        let denominator = counted.or(self.replicas).filter(|replicas| *replicas > 0).ok_or(
            "the kubelet does not report how many replicas the GPU has; set attribution.kubernetes.replicas",
        )?;
        Ok(Fraction { numerator: 1, denominator })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

    const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000000";

    const MIG: &str = "MIG-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

    fn minors() -> BTreeMap<u32, String> {
        BTreeMap::from([(0, UUID.to_owned()), (11, OTHER.to_owned())])
    }

    fn device_of(id: &str) -> Option<(AllocatedDevice, bool)> {
        let DeviceId { device, is_replica } = DeviceId::parse(id, &minors()).ok()?;
        Some((device, is_replica))
    }

    fn instance(gpu: &str, id: u32) -> AllocatedDevice {
        AllocatedDevice::Instance { gpu: gpu.into(), id }
    }

    #[test]
    fn each_form_of_an_id_names_a_gpu_or_a_mig_instance_whole_or_as_a_replica() {
        for (id, device, replica) in [
            (UUID.to_owned(), UUID.into(), false),
            (format!("{UUID}::0"), UUID.into(), true),
            (format!("{UUID}::12"), UUID.into(), true),
            (MIG.to_owned(), MIG.into(), false),
            (format!("{MIG}::1"), MIG.into(), true),
            ("nvidia0".to_owned(), UUID.into(), false),
            ("nvidia11".to_owned(), OTHER.into(), false),
            ("nvidia11/vgpu2".to_owned(), OTHER.into(), true),
            ("nvidia0/gi3".to_owned(), instance(UUID, 3), false),
            ("nvidia11/gi13".to_owned(), instance(OTHER, 13), false),
            ("nvidia0/gi3/vgpu1".to_owned(), instance(UUID, 3), true),
        ] {
            assert_eq!(device_of(&id), Some((device, replica)), "{id}");
        }
    }

    #[test]
    fn an_id_of_another_form_or_of_a_gpu_that_is_not_there_holds_nothing() {
        for id in [
            format!("{UUID}-0"),
            format!("{UUID}::"),
            format!("{UUID}::a"),
            format!("{UUID}::0::1"),
            format!("{UUID}/gi3"),
            format!("{UUID}/vgpu1"),
            UUID.to_uppercase().replace("GPU", "gpu"),
            UUID[..UUID.len() - 1].to_owned(),
            format!("{MIG}-0"),
            "MIG-GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464/1/0".to_owned(),
            "nvidia0/gi".to_owned(),
            "nvidia0/gi03".to_owned(),
            "nvidia0/gi-1".to_owned(),
            "nvidia0/gi3/gi4".to_owned(),
            "nvidia0/gi3/vgpu".to_owned(),
            "nvidia0/vgpu1/gi3".to_owned(),
            "nvidia0/gi3::1".to_owned(),
            "nvidia0::1".to_owned(),
            "nvidia1".to_owned(),
            "nvidia1/gi3".to_owned(),
            "nvidia".to_owned(),
            "nvidia/gi3".to_owned(),
            "nvidia00".to_owned(),
            "nvidia0/vgpu".to_owned(),
            "nvidia99999999999".to_owned(),
            "0".to_owned(),
            String::new(),
        ] {
            assert_eq!(device_of(&id), None, "{id}");
        }
    }

    #[test]
    fn a_replica_is_one_of_those_that_the_node_has_of_its_gpu() {
        let resources =
            |replicas| Resources { names: vec!["nvidia.com/*".into()], replicas, ignored: Vec::new() };
        let devices = |resource: &str, ids: Vec<String>| ContainerDevices {
            resource_name: resource.into(),
            device_ids: ids,
        };
        let replica = format!("{UUID}::1");
        let all = [
            devices("nvidia.com/gpu", (0..3).map(|at| format!("{UUID}::{at}")).collect()),
            devices("nvidia.com/gpu", vec![replica.clone(), format!("{UUID}::3"), format!("{OTHER}::0")]),
            devices("example.com/gpu", vec![format!("{UUID}::9")]),
        ];
        let share = |of: Resources, all: Option<&[ContainerDevices]>| {
            let counts = all.map(|all| of.count_replicas(all.iter(), &minors()));
            of.share(&UUID.into(), counts.as_ref())
        };
        let one_of = |denominator| Ok(Fraction { numerator: 1, denominator });
        assert_eq!(share(resources(None), Some(&all)), one_of(4));
        assert_eq!(share(resources(Some(9)), Some(&all)), one_of(4), "the kubelet's number comes first");
        assert_eq!(share(resources(Some(9)), None), one_of(9));
        assert!(share(resources(None), None).is_err());
    }

    #[test]
    fn a_resource_is_named_whole_or_by_how_it_begins() {
        let resources = Resources {
            names: vec!["nvidia.com/*".into(), "example.com/gpu".into()],
            replicas: None,
            ignored: Vec::new(),
        };
        for (name, included) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/gpu.shared", true),
            ("example.com/gpu", true),
            ("example.com/gpus", false),
            ("amd.com/gpu", false),
        ] {
            assert_eq!(resources.includes(name), included, "{name}");
        }
    }

    #[test]
    fn a_claimed_device_is_a_whole_gpu_or_a_mig_instance_by_its_place_or_holds_nothing() {
        let minors = minors();
        let claimed = |name: &str, share: Option<&str>| {
            let share_id = share.map(ToOwned::to_owned);
            let device = ClaimResource { device_name: name.into(), share_id, ..ClaimResource::default() };
            resolve_claimed_device(&device, &minors)
        };
        let at = |gpu: &str, start, size| AllocatedDevice::Slices { gpu: gpu.into(), start, size };
        for (name, device) in [
            ("gpu-11", OTHER.into()),
            ("gpu-0-mig-19-6-1", at(UUID, 6, Some(1))),
            ("gpu-11-mig-9-4-4", at(OTHER, 4, Some(4))),
            ("gpu-0-mig-1g10gb-19-6", at(UUID, 6, None)),
            ("gpu-0-mig-1g10gb-me-20-2", at(UUID, 2, None)),
        ] {
            assert_eq!(claimed(name, None), Ok(device), "{name}");
        }
        for name in [
            "gpu-0-mig-19-0",
            "gpu-0-mig-19-0-1-2",
            "gpu-0-mig-1g10gb",
            "gpu-0-mig-1g10gb-19",
            "gpu-0-mig-1g10gb-19-x",
            "gpu-0-mig-x-19-0",
            "gpu-0-mig-",
            "gpu-5-mig-19-0-1",
            "gpu-vfio-0",
            "gpu-5",
            "gpu-",
            "gpu--1",
            "gpu-99999999999",
            "channel-0",
            "",
        ] {
            assert!(claimed(name, None).is_err(), "{name}");
        }
        assert!(claimed("gpu-0", Some("a")).is_err(), "a share");
    }

    proptest! {
        #[test]
        fn any_id_is_parsed_without_a_panic(id in "(GPU-|MIG-|nvidia|::|/vgpu|/gi|[0-9a-f-]|\\PC){0,12}") {
            let _parsed = DeviceId::parse(&id, &minors());
        }
    }
}
