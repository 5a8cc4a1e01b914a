//! Pods of Kubernetes: the fields of `v1.Pod` that the agent reads, in protobuf and JSON.
//!
//! Field numbers are those of `core/v1/generated.proto` in `k8s.io/api` v0.37.0; both decoders skip all other fields.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "3")]
    pub status: Option<PodStatus>,
}

#[derive(Clone, PartialEq, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(message, optional, tag = "8")]
    #[serde(deserialize_with = "time")]
    pub creation_timestamp: Option<Time>,
    #[prost(map = "string, string", tag = "11")]
    #[serde(deserialize_with = "or_default")]
    pub labels: HashMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub name: String,
    /// Whether it controls the pod; at most one owner does.
    #[prost(bool, tag = "6")]
    pub controller: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[prost(string, tag = "1")]
    pub phase: String,
    #[prost(message, repeated, tag = "8")]
    #[serde(deserialize_with = "or_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Init containers, sidecars included.
    #[prost(message, repeated, tag = "10")]
    #[serde(deserialize_with = "or_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "13")]
    #[serde(deserialize_with = "or_default")]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub state: Option<ContainerState>,
    /// `RUNTIME://ID`; empty before it was created.
    #[prost(string, tag = "8")]
    #[serde(rename = "containerID")]
    pub container_id: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    #[prost(message, optional, tag = "2")]
    pub running: Option<ContainerStateRunning>,
    #[prost(message, optional, tag = "3")]
    pub terminated: Option<ContainerStateTerminated>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateRunning {
    #[prost(message, optional, tag = "1")]
    #[serde(deserialize_with = "time")]
    pub started_at: Option<Time>,
}

/// State of a container that has ended and is not started again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateTerminated {
    #[prost(message, optional, tag = "5")]
    #[serde(deserialize_with = "time")]
    pub started_at: Option<Time>,
    #[prost(message, optional, tag = "6")]
    #[serde(deserialize_with = "time")]
    pub finished_at: Option<Time>,
}

/// A time since 1970, UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PodList {
    #[serde(deserialize_with = "or_default")]
    pub(super) items: Vec<Pod>,
}

impl Pod {
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| matches!(&*status.phase, "Succeeded" | "Failed"))
    }

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
    /// Kind and name of the pod's controller. A ReplicaSet that is named after a Deployment and the hash of its template is
    /// replaced by the Deployment. The StatefulSets of a LeaderWorkerSet, one of all leaders and one of each group's workers, are
    /// replaced by it.
    pub fn owner(&self) -> Option<(&str, &str)> {
        let OwnerReference { kind, name, .. } =
            self.owner_references.iter().find(|owner| owner.controller)?;
        let set = self.labels.get("leaderworkerset.sigs.k8s.io/name").filter(|_| kind == "StatefulSet");
        if let Some(set) = set.filter(|set| !set.is_empty()) {
            return Some(("LeaderWorkerSet", set));
        }
        let hash = self.labels.get("pod-template-hash").filter(|_| kind == "ReplicaSet");
        let deployment = hash.and_then(|hash| name.strip_suffix(&**hash)?.strip_suffix('-'));
        match deployment.filter(|deployment| !deployment.is_empty()) {
            Some(deployment) => Some(("Deployment", deployment)),
            None => Some((kind, name)),
        }
    }
}

impl ContainerStatus {
    pub fn id(&self) -> Option<&str> {
        self.container_id.split_once("://").map(|(_, id)| id)
    }

    /// When it started, while it is running or after it has ended for good.
    pub fn started(&self) -> Option<Time> {
        let state = self.state?;
        state.running.map_or_else(|| state.terminated?.started_at, |running| running.started_at)
    }

    /// When it ended; none while it runs or waits for a start.
    pub fn finished(&self) -> Option<Time> {
        self.state?.terminated?.finished_at
    }
}

/// Kubernetes writes `null` for some empty lists and maps.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(text: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(text)?.unwrap_or_default())
}

/// An RFC 3339 time; none if it cannot be parsed.
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

    fn meta(kind: &str, name: &str, label: Option<(&str, &str)>) -> ObjectMeta {
        let reference =
            |controller, name: &str| OwnerReference { kind: kind.into(), name: name.into(), controller };
        ObjectMeta {
            owner_references: vec![reference(false, "other"), reference(true, name)],
            labels: label.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect(),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn the_owner_is_the_controller_or_what_made_the_controller() {
        let hash = |hash| Some(("pod-template-hash", hash));
        let set = |name| Some(("leaderworkerset.sigs.k8s.io/name", name));
        for (kind, name, label, owner) in [
            ("ReplicaSet", "web-5d4f8c", hash("5d4f8c"), Some(("Deployment", "web"))),
            ("ReplicaSet", "web-5d4f8c", None, Some(("ReplicaSet", "web-5d4f8c"))),
            ("ReplicaSet", "5d4f8c", hash("5d4f8c"), Some(("ReplicaSet", "5d4f8c"))),
            ("StatefulSet", "db", hash("db"), Some(("StatefulSet", "db"))),
            ("StatefulSet", "chat", set("chat"), Some(("LeaderWorkerSet", "chat"))),
            ("StatefulSet", "chat-1", set("chat"), Some(("LeaderWorkerSet", "chat"))),
            ("StatefulSet", "chat-1", set(""), Some(("StatefulSet", "chat-1"))),
            ("Job", "chat", set("chat"), Some(("Job", "chat"))),
            ("Job", "nightly-2917", None, Some(("Job", "nightly-2917"))),
            ("PyTorchJob", "train", None, Some(("PyTorchJob", "train"))),
        ] {
            assert_eq!(meta(kind, name, label).owner(), owner, "{kind} {name}");
        }
        assert_eq!(ObjectMeta::default().owner(), None);
    }

    #[test]
    fn the_same_pod_is_read_from_json_and_protobuf() {
        let json = r#"{"kind": "Pod", "metadata": {"name": "train-0", "namespace": "ml", "uid": "u",
            "creationTimestamp": "2026-11-23T02:08:04Z", "labels": {"team": "vision"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "train", "controller": true}]},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://ab",
                "state": {"running": {"startedAt": "2026-11-23T02:08:05Z"}}, "ready": true}]}}"#;
        let pod: Pod = serde_json::from_str(json).unwrap();
        assert_eq!(Pod::decode(&*pod.encode_to_vec()).unwrap(), pod);
        let container = pod.containers().next().unwrap();
        assert_eq!((&*container.name, container.id()), ("main", Some("ab")));
        assert_eq!(container.started(), Some(Time { seconds: 1_795_399_685, nanos: 0 }));
        assert_eq!(pod.metadata.as_ref().unwrap().owner(), Some(("Job", "train")));
        assert!(!pod.has_ended());
        let json = json.replace(
            "\"running\": {\"startedAt\"",
            "\"terminated\": {\"finishedAt\": \"2026-11-23T02:08:09Z\", \"startedAt\"",
        );
        let ended: Pod = serde_json::from_str(&json).unwrap();
        assert_eq!(Pod::decode(&*ended.encode_to_vec()).unwrap(), ended);
        let times = ended.containers().next().map(|one| (one.started(), one.finished())).unwrap();
        let at = |seconds| Some(Time { seconds, nanos: 0 });
        assert_eq!((times, container.finished()), ((at(1_795_399_685), at(1_795_399_689)), None));
        let list: PodList = serde_json::from_str(r#"{"items": null}"#).unwrap();
        assert_eq!(list.items.len(), 0);
    }
}
