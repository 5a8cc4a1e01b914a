//! The pods and Slurm jobs of a scenario: a kubelet with its container logs, and job records with their cgroups, all below
//! the demo's root.
//!
//! A device is written in the scenario as the index of its GPU, or as `9::2` for a replica.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::kubelet::{self, KubeletAnswers, ListedPod};
use super::{DemoError, file_error, make, write};
use crate::holders::kubelet::messages::{
    AllocatableResourcesResponse, ContainerDevices, ContainerResources, PodResources,
};
use crate::runtime::clock::ClockPage;

/// Where a kubelet serves the pod-resources API.
const SOCKET: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ScenarioWorkloads {
    #[serde(default)]
    pods: Vec<ScenarioPod>,
    /// Replicas of each GPU that is shared by time-slicing, by index.
    #[serde(default)]
    replicas: BTreeMap<String, u32>,
    #[serde(default)]
    jobs: Vec<Job>,
    /// After so many seconds everything in the scenario happens again.
    #[serde(default = "ten_minutes")]
    cycle_seconds: f64,
}

/// As in the driver library.
fn ten_minutes() -> f64 {
    600.0
}

#[derive(Clone, Debug, Deserialize)]
struct ScenarioPod {
    namespace: String,
    name: String,
    uid: String,
    containers: Vec<Container>,
    /// The seconds within a cycle between which it exists.
    #[serde(default)]
    from: f64,
    #[serde(default = "always")]
    to: f64,
}

fn always() -> f64 {
    f64::INFINITY
}

#[derive(Clone, Debug, Deserialize)]
struct Container {
    name: String,
    id: String,
    #[serde(default)]
    devices: Vec<String>,
}

/// The record of a job as the prolog writes it, with the indices of its GPUs.
#[derive(Clone, Debug, Deserialize)]
struct Job {
    job_id: u32,
    gpus: Vec<usize>,
    #[serde(flatten)]
    lines: BTreeMap<String, String>,
}

impl ScenarioWorkloads {
    pub(super) fn start(
        &self,
        root: &Path,
        uuids: &[String],
        clock: Arc<ClockPage>,
    ) -> Result<(), DemoError> {
        for job in &self.jobs {
            job.write(root, uuids)?;
        }
        make(&root.join("var/lib/kubelet/pod-resources"))?;
        if self.pods.is_empty() {
            return Ok(());
        }
        for pod in &self.pods {
            pod.write_logs(root)?;
        }
        kubelet::start(&root.join(SOCKET), self.answers(uuids, clock)?)
    }

    fn answers(&self, uuids: &[String], clock: Arc<ClockPage>) -> Result<KubeletAnswers, DemoError> {
        let mut pods = Vec::new();
        let mut allocatable = Vec::new();
        for pod in &self.pods {
            let mut containers = Vec::new();
            for container in &pod.containers {
                let ids: Result<Vec<String>, _> =
                    container.devices.iter().map(|device| device_id(device, uuids)).collect();
                let ids = ids?;
                allocatable.extend(ids.iter().filter(|id| !id.contains("::")).cloned());
                containers.push(ContainerResources {
                    name: container.name.clone(),
                    devices: if ids.is_empty() { Vec::new() } else { vec![gpus(ids)] },
                    dynamic_resources: Vec::new(),
                });
            }
            let resources =
                PodResources { name: pod.name.clone(), namespace: pod.namespace.clone(), containers };
            pods.push(ListedPod { resources, from: pod.from, to: pod.to });
        }
        for (gpu, count) in &self.replicas {
            for replica in 0..*count {
                allocatable.push(device_id(&format!("{gpu}::{replica}"), uuids)?);
            }
        }
        let allocatable = AllocatableResourcesResponse { devices: vec![gpus(allocatable)] };
        Ok(KubeletAnswers { pods, allocatable, clock, cycle_seconds: self.cycle_seconds })
    }
}

/// The id of a device as NVIDIA's device plugin gives it.
fn device_id(device: &str, uuids: &[String]) -> Result<String, DemoError> {
    let (index, replica) = match device.split_once("::") {
        Some((index, replica)) => (index, Some(replica)),
        None => (device, None),
    };
    let uuid = index.parse::<usize>().ok().and_then(|index| uuids.get(index));
    let uuid = uuid.ok_or_else(|| {
        DemoError::Other(format!(
            "the scenario's pods or jobs name GPU {device:?}, which it does not have; write its index, or INDEX::REPLICA"
        ))
    })?;
    Ok(replica.map_or_else(|| uuid.clone(), |replica| format!("{uuid}::{replica}")))
}

fn gpus(device_ids: Vec<String>) -> ContainerDevices {
    ContainerDevices { resource_name: "nvidia.com/gpu".to_owned(), device_ids }
}

impl ScenarioPod {
    fn write_logs(&self, root: &Path) -> Result<(), DemoError> {
        let Self { namespace, name, uid, containers, .. } = self;
        let links = root.join("var/log/containers");
        make(&links)?;
        for Container { name: container, id, .. } in containers {
            let directory = format!("var/log/pods/{namespace}_{name}_{uid}/{container}");
            make(&root.join(&directory))?;
            let link = links.join(format!("{name}_{namespace}_{container}-{id}.log"));
            symlink(format!("/{directory}/0.log"), &link).map_err(file_error(&link))?;
        }
        Ok(())
    }
}

impl Job {
    fn write(&self, root: &Path, uuids: &[String]) -> Result<(), DemoError> {
        let Self { job_id, gpus, lines } = self;
        let uuids: Result<Vec<String>, _> =
            gpus.iter().map(|gpu| device_id(&gpu.to_string(), uuids)).collect();
        let mut record = format!("job_id={job_id}\ngpus={}\n", uuids?.join(","));
        for (key, value) in lines {
            record += &format!("{key}={value}\n");
        }
        let records = root.join("run/gpumeter-slurm");
        let cgroup = root.join(format!("sys/fs/cgroup/system.slice/slurmstepd.scope/job_{job_id}"));
        make(&records)?;
        // The agent writes its map of GPUs to that directory.
        make(&root.join("run/gpumeter"))?;
        make(&cgroup)?;
        write(&records.join(job_id.to_string()), record.as_bytes())
    }
}

/// The UUIDs of the simulated GPUs by index, from the file that the driver library writes when it is opened.
pub(super) fn uuids(library: &Path) -> Result<Vec<String>, DemoError> {
    #[derive(Deserialize)]
    struct DriverTruth {
        gpus: Vec<DriverTruthGpu>,
    }
    #[derive(Deserialize)]
    struct DriverTruthGpu {
        uuid: String,
    }
    let path: PathBuf = library.with_file_name("truth");
    let text = fs::read_to_string(&path).map_err(file_error(&path))?;
    let truth: DriverTruth = serde_json::from_str(&text).map_err(|error| file_error(&path)(error.into()))?;
    Ok(truth.gpus.into_iter().map(|gpu| gpu.uuid).collect())
}
