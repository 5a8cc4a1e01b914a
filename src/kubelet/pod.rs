//! Pods as Kubernetes describes them: a few fields of `v1.Pod`, in protobuf and JSON.
//!
//! Field numbers are those of `core/v1/generated.proto` in `k8s.io/api` v0.37.0; fields that are not listed here are skipped
//! by both decoders.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

/// Annotation of the object that the API server has for a static pod: the UID under which the kubelet runs it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Names, labels, owners.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    /// What has become of it.
    #[prost(message, optional, tag = "3")]
    pub status: Option<PodStatus>,
}

/// Names, labels, owners.
#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Its UID; of a static pod at the API server not the one under which it runs.
    #[prost(string, tag = "5")]
    pub uid: String,
    /// Version of the object, of lists too.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// When it was created.
    #[prost(message, optional, tag = "8")]
    #[serde(deserialize_with = "time")]
    pub creation_timestamp: Option<Time>,
    /// Labels.
    #[prost(map = "string, string", tag = "11")]
    #[serde(deserialize_with = "or_default")]
    pub labels: HashMap<String, String>,
    /// Annotations.
    #[prost(map = "string, string", tag = "12")]
    #[serde(deserialize_with = "or_default")]
    pub annotations: HashMap<String, String>,
    /// Objects that it belongs to.
    #[prost(message, repeated, tag = "13")]
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}

/// An object that a pod belongs to.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    /// Kind, such as `ReplicaSet`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Whether it controls the pod; at most one does.
    #[prost(bool, tag = "6")]
    pub controller: bool,
}

/// What has become of a pod.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[prost(string, tag = "1")]
    pub phase: String,
    /// Its containers.
    #[prost(message, repeated, tag = "8")]
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Those that run before them, or beside them as sidecars.
    #[prost(message, repeated, tag = "10")]
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Those that were added while it ran.
    #[prost(message, repeated, tag = "13")]
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

/// What has become of a container.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its state.
    #[prost(message, optional, tag = "2")]
    pub state: Option<ContainerState>,
    /// `RUNTIME://ID`; empty before it was created.
    #[prost(string, tag = "8")]
    #[serde(rename = "containerID")]
    pub container_id: String,
}

/// State of a container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It runs.
    #[prost(message, optional, tag = "2")]
    pub running: Option<Running>,
}

/// State of a container that runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Running {
    /// Since when.
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "time")]
    pub started_at: Option<Time>,
}

/// A time since 1970, UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct Time {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beside them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Pods as JSON.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodList {
    /// Version of the list.
    pub(super) metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub(super) items: Vec<Pod>,
}

impl Pod {
    /// Name and namespace.
    pub fn meta(&self) -> Option<&ObjectMeta> {
        self.metadata.as_ref()
    }

    /// Whether all its containers have ended for good.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| matches!(&*status.phase, "Succeeded" | "Failed"))
    }

    /// Its containers of every kind, by name.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.status.iter().flat_map(|status| {
            let PodStatus {
                container_statuses, init_container_statuses, ephemeral_container_statuses, ..
            } = status;
            container_statuses.iter().chain(init_container_statuses).chain(ephemeral_container_statuses)
        })
    }
}

impl ObjectMeta {
    /// The UID under which the kubelet runs the pod, as it stands in cgroups and log directories.
    pub fn local_uid(&self) -> &str {
        self.annotations.get(MIRROR).unwrap_or(&self.uid)
    }

    /// What controls the pod. The ReplicaSet of a Deployment, which is named after it and the hash of its template, stands
    /// for the Deployment.
    pub fn owner(&self) -> Option<(&str, &str)> {
        let OwnerReference { kind, name, .. } =
            self.owner_references.iter().find(|owner| owner.controller)?;
        let hash = self.labels.get("pod-template-hash").filter(|_| kind == "ReplicaSet");
        let deployment = hash.and_then(|hash| name.strip_suffix(&**hash)?.strip_suffix('-'));
        match deployment.filter(|deployment| !deployment.is_empty()) {
            Some(deployment) => Some(("Deployment", deployment)),
            // The API server's object of a static pod belongs to its node.
            None if kind == "Node" => None,
            None => Some((kind, name)),
        }
    }
}

impl ContainerStatus {
    /// Its id at the runtime.
    pub fn id(&self) -> Option<&str> {
        self.container_id.split_once("://").map(|(_, id)| id)
    }

    /// Since when it runs.
    pub fn started(&self) -> Option<Time> {
        self.state?.running?.started_at
    }
}

/// Kubernetes writes `null` for some empty lists and maps.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(text: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(text)?.unwrap_or_default())
}

/// A time as JSON has it; one that cannot be read is none.
fn time<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(text)?;
    let time = text.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    Ok(time.map(|time| Time { seconds: time.as_second(), nanos: time.subsec_nanosecond() }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use prost::Message;

    use super::*;

    fn meta(kind: &str, name: &str, hash: Option<&str>) -> ObjectMeta {
        let reference =
            |controller, name: &str| OwnerReference { kind: kind.into(), name: name.into(), controller };
        ObjectMeta {
            owner_references: vec![reference(false, "other"), reference(true, name)],
            labels: hash.map(|hash| ("pod-template-hash".to_owned(), hash.to_owned())).into_iter().collect(),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn the_owner_is_the_controller_and_a_deployments_replica_set_stands_for_it() {
        for (kind, name, hash, owner) in [
            ("ReplicaSet", "web-5d4f8c", Some("5d4f8c"), Some(("Deployment", "web"))),
            ("ReplicaSet", "web-5d4f8c", None, Some(("ReplicaSet", "web-5d4f8c"))),
            ("ReplicaSet", "5d4f8c", Some("5d4f8c"), Some(("ReplicaSet", "5d4f8c"))),
            ("StatefulSet", "db", Some("db"), Some(("StatefulSet", "db"))),
            ("Job", "nightly-2917", None, Some(("Job", "nightly-2917"))),
            ("PyTorchJob", "train", None, Some(("PyTorchJob", "train"))),
            ("Node", "node-1", None, None),
        ] {
            assert_eq!(meta(kind, name, hash).owner(), owner, "{kind} {name}");
        }
        assert_eq!(ObjectMeta::default().owner(), None);
    }

    #[test]
    fn a_static_pods_object_at_the_api_server_tells_the_uid_under_which_it_runs() {
        let mut meta = ObjectMeta { uid: "api".into(), ..ObjectMeta::default() };
        assert_eq!(meta.local_uid(), "api");
        meta.annotations.insert(MIRROR.into(), "hash".into());
        assert_eq!(meta.local_uid(), "hash");
    }

    #[test]
    fn the_same_pod_is_read_from_json_and_protobuf() {
        let json = r#"{"kind": "Pod", "metadata": {"name": "train-0", "namespace": "ml", "uid": "u",
            "creationTimestamp": "2026-11-23T02:08:04Z", "labels": {"team": "vision"}, "annotations": null,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "train", "controller": true}]},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://ab",
                "state": {"running": {"startedAt": "2026-11-23T02:08:05Z"}}, "ready": true}]}}"#;
        let pod: Pod = serde_json::from_str(json).unwrap();
        assert_eq!(Pod::decode(&*pod.encode_to_vec()).unwrap(), pod);
        let container = pod.containers().next().unwrap();
        assert_eq!((&*container.name, container.id()), ("main", Some("ab")));
        assert_eq!(container.started(), Some(Time { seconds: 1_795_399_685, nanos: 0 }));
        assert_eq!(pod.meta().unwrap().owner(), Some(("Job", "train")));
        assert!(!pod.has_ended());
        let list: PodList =
            serde_json::from_str(r#"{"metadata": {"resourceVersion": "7"}, "items": null}"#).unwrap();
        assert_eq!((&*list.metadata.resource_version, list.items.len()), ("7", 0));
    }
}
