//! Reads the labels of a Kubernetes node from a file: pool, instance type, and whether the node may be taken away.

use std::collections::BTreeMap;
use std::path::Path;

use super::problem::{Complaint, FilePosition, ProblemCollector, Problems};
use super::settings::NodeConfig;

/// Labels that name the pool: of Karpenter, GKE, EKS, eksctl, AKS, OKE and kOps.
const POOLS: [&str; 7] = [
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "oke.oraclecloud.com/pool.name",
    "kops.k8s.io/instancegroup",
];

const TYPES: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];

/// Labels that say whether a node may be taken away, with the value, in lower case, that says that it may.
const SPOT: [(&str, &str); 6] = [
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacitytype", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("cloud.google.com/gke-provisioning", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
];

impl NodeConfig {
    /// Reads the file that `node.labels_file` names, and sets from it what the configuration does not give.
    ///
    /// # Errors
    /// The file cannot be read; lines that are no labels.
    pub(super) fn read_labels(&mut self) -> Result<(), Problems> {
        let Some(path) = self.labels_file.clone() else { return Ok(()) };
        let labels = read(&path)?;
        let first = |names: &[&str]| names.iter().find_map(|name| labels.get(*name)).cloned();
        self.pool = self.pool.take().or_else(|| first(&POOLS));
        self.instance_type = self.instance_type.take().or_else(|| first(&TYPES));
        let spot = SPOT.iter().filter_map(|(name, spot)| {
            let value = labels.iter().find(|(label, _)| label.eq_ignore_ascii_case(name))?.1;
            Some(value.eq_ignore_ascii_case(spot))
        });
        self.spot = self.spot.or_else(|| spot.reduce(|one, other| one || other));
        Ok(())
    }
}

/// The labels of a file: one as `key=value` or `key="value"` on each line, or a JSON object.
fn read(path: &Path) -> Result<BTreeMap<String, String>, Problems> {
    let (text, file) = (super::read_text(path)?, path.display().to_string());
    if text.trim_start().starts_with('{') {
        let wrong = |error| format!("is not a JSON object of texts ({error}); give labels with their values");
        return serde_json::from_str(&text).map_err(|error| Problems::one(&file, None, wrong(error)));
    }
    let (mut labels, mut report) = (BTreeMap::new(), ProblemCollector::default());
    let lines = (1..).zip(text.lines().map(str::trim));
    for (line, text) in lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')) {
        let Some((key, value)) = text.split_once('=') else {
            let complaint = Complaint::about(text, "is no label", "give one as key=value on each line");
            report.add(Some(FilePosition { line, column: 1 }), "", complaint);
            continue;
        };
        labels.insert(key.trim().to_owned(), value.trim().trim_matches('"').to_owned());
    }
    report.finish(&file)?;
    Ok(labels)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn node(text: &str, given: &NodeConfig) -> Result<NodeConfig, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        std::fs::write(&path, text).unwrap();
        let mut node = NodeConfig { labels_file: Some(path), ..given.clone() };
        node.read_labels().map_err(|problems| problems.to_string())?;
        Ok(node)
    }

    #[test]
    fn pool_type_and_spot_are_read_from_lines_or_json_and_what_is_given_stays() {
        let lines = "# node\nkarpenter.sh/nodepool=\"gpu-a\"\nnode.kubernetes.io/instance-type=p4d.24xlarge\n\
                     eks.amazonaws.com/capacityType=SPOT\n";
        let read = node(lines, &NodeConfig::default()).unwrap();
        assert_eq!(
            (read.pool.as_deref(), read.instance_type.as_deref(), read.spot),
            (Some("gpu-a"), Some("p4d.24xlarge"), Some(true))
        );
        let json = r#"{"cloud.google.com/gke-nodepool": "a2", "kubernetes.io/os": "linux"}"#;
        let given = NodeConfig { pool: Some("mine".into()), ..NodeConfig::default() };
        let read = node(json, &given).unwrap();
        assert_eq!((read.pool.as_deref(), read.instance_type, read.spot), (Some("mine"), None, None));
        let standard = "karpenter.sh/capacity-type=on-demand";
        assert_eq!(node(standard, &NodeConfig::default()).unwrap().spot, Some(false));
    }

    #[test]
    fn a_line_that_is_no_label_is_named() {
        let problem = node("a=b\nnonsense\n", &NodeConfig::default()).unwrap_err();
        assert!(problem.contains(":2:1: ") && problem.contains("\"nonsense\" is no label"), "{problem}");
        let problem = node("{\"a\": 1}", &NodeConfig::default()).unwrap_err();
        assert!(problem.contains("is not a JSON object of texts"), "{problem}");
    }
}
