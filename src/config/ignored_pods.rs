//! Reads the pods that hold nothing (`attribution.kubernetes.ignore`).

use super::key::{Absent, ChangeEffect, Key, KeyType, Table};
use super::problem::{Complaint, ProblemCollector};
use super::read_mapping;
use super::tree::YamlNode;
use super::values::{name, put};
use crate::model::PodPattern;

keys! { IgnoredPodsDraft;
"Some pods while they are read."
pub(crate) struct IgnoredPodsDraft () {
    namespace: Option<String>, text("a pattern", name), Optional("monitoring"), Reload,
        "Namespace of the pods, or a pattern in which * stands for anything; by default any.";
    pod: Option<String>, text("a pattern", name), Optional("dcgm-exporter-*"), Reload,
        "Name of the pods, or a pattern in which * stands for anything; by default any.";
}
}

/// Reads the list and returns the valid patterns.
pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<PodPattern> {
    let mut patterns = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = IgnoredPodsDraft::default();
        if read_mapping::read_mapping(item, &path, TABLE.keys, &mut draft, report).is_none() {
            continue;
        }
        let any = || "*".to_owned();
        let pattern =
            PodPattern { namespace: draft.namespace.unwrap_or_else(any), pod: draft.pod.unwrap_or_else(any) };
        if [&pattern.namespace, &pattern.pod].iter().all(|text| text.bytes().all(|byte| byte == b'*')) {
            let text = "stands for every pod; name a namespace or pods, or turn pods off with socket: off";
            report.add(item.place, path, Complaint(text.to_owned()));
            continue;
        }
        patterns.push(pattern);
    }
    patterns
}
