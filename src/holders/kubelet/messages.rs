//! Messages of the kubelet's pod-resources API v1 and Pods API v1alpha1, with the fields that the agent reads.
//!
//! Names and field numbers are those of `pkg/apis/podresources/v1/api.proto` and `pkg/apis/pods/v1alpha1/api.proto` in
//! `k8s.io/kubelet` v0.37.0; the decoder skips all other fields. They are written by hand, since generated code would need
//! protoc wherever the agent is built.

/// Request of every method; it has no fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EmptyRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocatableResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of device plugins; the kubelet may repeat a resource once per NUMA node.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Devices that were assigned through resource claims (DRA).
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ContainerDevices {
    /// Extended resource, such as `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DynamicResource {
    #[prost(string, tag = "2")]
    pub claim_name: String,
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ClaimResource {
    /// Name of the driver, such as `gpu.nvidia.com`.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// Pool of the driver, usually the node.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    #[prost(string, tag = "4")]
    pub device_name: String,
    /// Id of a share of the device, where several claims share it.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodsResponse {
    /// Each an encoded [`Pod`](super::pod::Pod).
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub pods: Vec<bytes::Bytes>,
}
