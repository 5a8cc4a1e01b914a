//! Reads the pods that hold nothing (`attribution.kubernetes.ignore`).

use super::entries::{Mistake, entries_of, read_entries};
use super::problem::ProblemCollector;
use super::tree::YamlNode;
use super::values::name;
use crate::model::PodPattern;

entry_keys! { PodPattern;
    namespace => namespace, text("a pattern", name), Optional("monitoring"),
        "Namespace of the pods, or a pattern in which * stands for anything; by default any.";
    pod => pod, text("a pattern", name), Optional("dcgm-exporter-*"),
        "Name of the pods, or a pattern in which * stands for anything; by default any.";
}

pub(crate) fn read(items: &[YamlNode], base: &str, report: &mut ProblemCollector) -> Vec<PodPattern> {
    entries_of(read_entries(items, base, TABLE.keys, report, |pods: PodPattern, _, _| {
        let is_any = |text: &String| text.bytes().all(|byte| byte == b'*');
        if is_any(&pods.namespace) && is_any(&pods.pod) {
            let text = "stands for every pod; name a namespace or pods, or turn pods off with socket: off";
            return Err(Some(Mistake::of("", text)));
        }
        Ok(pods)
    }))
}
