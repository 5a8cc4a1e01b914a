//! Labels of Kubernetes pods that the configuration promotes to facts of their containers.

use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodLabel {
    /// As Kubernetes has it, such as `kueue.x-k8s.io/queue-name`.
    pub key: Arc<str>,
    /// Its value; never empty.
    pub value: Arc<str>,
    /// The label of `gpu_workload_info`.
    pub name: Arc<str>,
}

impl PodLabel {
    /// The most that a configuration may promote.
    pub const MOST: usize = 12;

    /// How the names of these labels of `gpu_workload_info` begin.
    pub const PREFIX: &str = "k8s_pod_label_";

    pub fn new(key: &str, value: &str) -> Self {
        Self { key: key.into(), value: value.into(), name: Self::name_of(key).into() }
    }

    pub fn name_and_value(&self) -> (&str, &str) {
        (&self.name, &self.value)
    }

    /// The label of `gpu_workload_info` for a label of that key: what Prometheus does not allow in it is `_`.
    pub fn name_of(key: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        Self::PREFIX.chars().chain(key.chars().map(plain)).collect()
    }
}
