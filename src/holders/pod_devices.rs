//! Device ids of Kubernetes device plugins: which GPU they mean, and how much of it.
//!
//! In: an id as the kubelet lists it. Out: the GPU by UUID or minor number and whether the id is one of several replicas
//! of it, or why it holds nothing. An id that no rule knows never means a whole GPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubelet::messages::{ClaimResource, ContainerDevices};
use crate::model::Fraction;

/// Which resources are GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Names of resources; one that ends in `*` stands for all that begin like it.
    pub names: Vec<String>,
    /// Replicas of each shared GPU, for kubelets that do not tell.
    pub replicas: Option<u32>,
}

/// A device id of a known form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceId<'a> {
    gpu: Gpu<'a>,
    replica: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gpu<'a> {
    /// Of a GPU, or of a MIG instance.
    Uuid(&'a str),
    Minor(u32),
}

/// How many replicas there are of each GPU, by the id of any of them.
#[derive(Debug)]
pub(super) struct ReplicaCounts<'a>(BTreeMap<DeviceId<'a>, u32>);

impl<'a> DeviceId<'a> {
    /// NVIDIA's plugin offers `GPU-…`, `MIG-…`, and `GPU-…::2` where a GPU is shared; GKE's offers `nvidia0`,
    /// `nvidia0/gi3` for MIG, and `nvidia0/vgpu2` where a GPU is shared.
    pub(super) fn parse(id: &'a str) -> Result<Self, String> {
        let (base, replica) = id.split_once("::").map_or((id, None), |(base, replica)| (base, Some(replica)));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if id.contains("/gi") {
            return Err("it names a MIG instance by number, and only UUIDs of instances are known".to_owned());
        }
        if is_uuid(base) && replica.is_none_or(is_number) {
            return Ok(Self { gpu: Gpu::Uuid(base), replica: replica.is_some() });
        }
        let (base, virtual_gpu) = id.split_once("/vgpu").map_or((id, None), |(base, gpu)| (base, Some(gpu)));
        let minor = base.strip_prefix("nvidia").filter(|minor| is_number(minor));
        if let (Some(Ok(minor)), true) = (minor.map(str::parse), virtual_gpu.is_none_or(is_number)) {
            return Ok(Self { gpu: Gpu::Minor(minor), replica: virtual_gpu.is_some() });
        }
        Err("it is not the id of a GPU in a form that is known here".to_owned())
    }

    /// Whether it is one of several that stand for the same GPU.
    pub(super) const fn is_replica(&self) -> bool {
        self.replica
    }

    /// UUID of its GPU.
    pub(super) fn gpu(&self, minors: &'a BTreeMap<u32, String>) -> Result<&'a str, String> {
        match self.gpu {
            Gpu::Uuid(uuid) => Ok(uuid),
            Gpu::Minor(minor) => minors.get(&minor).map(String::as_str).ok_or_else(|| {
                format!("no GPU has minor number {minor} in /proc/driver/nvidia/gpus; mount the host's /proc")
            }),
        }
    }
}

/// The minor number of the GPU that a device of NVIDIA's DRA driver is: `gpu-<minor>`.
pub(super) fn claimed_minor(device: &ClaimResource) -> Result<u32, &'static str> {
    let minor = device.device_name.strip_prefix("gpu-").ok_or("it is not the name of a GPU")?;
    if device.share_id.is_some() {
        return Err("it is a share of a GPU, and nobody tells how large");
    }
    if minor.contains("-mig-") {
        return Err("it names a MIG instance by its place, and only UUIDs of instances are known");
    }
    minor.parse().map_err(|_| "it is not the name of a GPU in a form that is known here")
}

impl Resources {
    /// Whether devices of that resource are GPUs.
    pub fn includes(&self, resource: &str) -> bool {
        self.names.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => resource.starts_with(prefix),
            None => resource == name,
        })
    }

    /// How many replicas each GPU has, of all devices of the node.
    pub(super) fn count_replicas<'a>(
        &self,
        all: impl Iterator<Item = &'a ContainerDevices>,
    ) -> ReplicaCounts<'a> {
        let ids = all.filter(|of| self.includes(&of.resource_name)).flat_map(|of| &of.device_ids);
        let mut counts = BTreeMap::new();
        for device in ids.collect::<BTreeSet<_>>().into_iter().filter_map(|id| DeviceId::parse(id).ok()) {
            *counts.entry(device).or_default() += 1;
        }
        ReplicaCounts(counts)
    }

    /// The share of one replica, where all devices of the node are known, or the configuration tells the number.
    pub(super) fn share(
        &self,
        device: &DeviceId<'_>,
        replicas: Option<&ReplicaCounts<'_>>,
    ) -> Result<Fraction, String> {
        let counted = replicas.map(|ReplicaCounts(counts)| counts.get(device).copied().unwrap_or(0));
        let denominator = counted.or(self.replicas).filter(|replicas| *replicas > 0).ok_or(
            "the kubelet does not tell how many replicas its GPU has; set attribution.kubernetes.replicas",
        )?;
        Ok(Fraction { numerator: 1, denominator })
    }
}

/// `GPU-` or `MIG-` and a UUID, and nothing else: HAMi numbers shares of a GPU behind that.
pub(super) fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) else { return false };
    let lengths = uuid.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

    const MIG: &str = "MIG-3cae2e45-052c-4b11-80d3-4d7b2d2d3464";

    fn parsed(id: &str) -> Result<DeviceId<'_>, String> {
        DeviceId::parse(id)
    }

    #[test]
    fn whole_gpus_and_replicas_are_told_by_their_ids() {
        for (id, gpu, replica) in [
            (UUID.to_owned(), Gpu::Uuid(UUID), false),
            (format!("{UUID}::0"), Gpu::Uuid(UUID), true),
            (format!("{UUID}::12"), Gpu::Uuid(UUID), true),
            (MIG.to_owned(), Gpu::Uuid(MIG), false),
            (format!("{MIG}::1"), Gpu::Uuid(MIG), true),
            ("nvidia0".to_owned(), Gpu::Minor(0), false),
            ("nvidia11/vgpu2".to_owned(), Gpu::Minor(11), true),
        ] {
            assert_eq!(parsed(&id), Ok(DeviceId { gpu, replica }), "{id}");
        }
    }

    #[test]
    fn an_id_of_another_form_never_means_a_whole_gpu() {
        for id in [
            format!("{UUID}-0"),
            format!("{UUID}::"),
            format!("{UUID}::a"),
            format!("{UUID}::0::1"),
            UUID.to_uppercase().replace("GPU", "gpu"),
            UUID[..UUID.len() - 1].to_owned(),
            format!("{MIG}-0"),
            "MIG-GPU-3cae2e45-052c-4b11-80d3-4d7b2d2d3464/1/0".to_owned(),
            "nvidia0/gi3".to_owned(),
            "nvidia0/gi3/vgpu1".to_owned(),
            "nvidia".to_owned(),
            "nvidia0/vgpu".to_owned(),
            "nvidia99999999999".to_owned(),
            "0".to_owned(),
            String::new(),
        ] {
            assert!(parsed(&id).is_err(), "{id}");
        }
    }

    #[test]
    fn a_replica_is_one_of_those_that_the_node_has_of_its_gpu() {
        let resources = |replicas| Resources { names: vec!["nvidia.com/*".into()], replicas };
        let devices = |resource: &str, ids: Vec<String>| ContainerDevices {
            resource_name: resource.into(),
            device_ids: ids,
        };
        let replica = format!("{UUID}::1");
        let other = "GPU-00000000-0000-0000-0000-000000000000";
        let all = [
            devices("nvidia.com/gpu", (0..3).map(|at| format!("{UUID}::{at}")).collect()),
            devices("nvidia.com/gpu", vec![replica.clone(), format!("{UUID}::3"), format!("{other}::0")]),
            devices("example.com/gpu", vec![format!("{UUID}::9")]),
        ];
        let device = parsed(&replica).unwrap();
        let share = |of: Resources, all: Option<&[ContainerDevices]>| {
            let counts = all.map(|all| of.count_replicas(all.iter()));
            of.share(&device, counts.as_ref())
        };
        let one_of = |denominator| Ok(Fraction { numerator: 1, denominator });
        assert_eq!(share(resources(None), Some(&all)), one_of(4));
        assert_eq!(share(resources(Some(9)), Some(&all)), one_of(4), "what the kubelet tells comes first");
        assert_eq!(share(resources(Some(9)), None), one_of(9));
        assert!(share(resources(None), None).is_err());
    }

    #[test]
    fn a_resource_is_named_whole_or_by_how_it_begins() {
        let resources =
            Resources { names: vec!["nvidia.com/*".into(), "example.com/gpu".into()], replicas: None };
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
    fn a_claimed_device_is_a_whole_gpu_or_nothing() {
        let device = |name: &str, share: Option<&str>| ClaimResource {
            device_name: name.into(),
            share_id: share.map(ToOwned::to_owned),
            ..ClaimResource::default()
        };
        assert_eq!(claimed_minor(&device("gpu-11", None)), Ok(11));
        for name in ["gpu-0-mig-19-0-1", "gpu-vfio-0", "gpu-", "gpu--1", "gpu-99999999999", "channel-0", ""] {
            assert!(claimed_minor(&device(name, None)).is_err(), "{name}");
        }
        assert!(claimed_minor(&device("gpu-0", Some("a"))).is_err(), "a share");
    }

    proptest! {
        #[test]
        fn any_id_is_parsed_without_a_panic(id in "(GPU-|MIG-|nvidia|::|/vgpu|/gi|[0-9a-f-]|\\PC){0,12}") {
            let _parsed = parsed(&id);
        }
    }
}
