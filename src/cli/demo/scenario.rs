//! The scenario of a simulated node: the document for the driver library, and what the host knows of its processes.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::DemoError;
use super::history::{DemoHistory, HistoryExtent, ScenarioPast};
use super::workloads::ScenarioWorkloads;
use crate::config::Config;
use crate::model::Utc;
use crate::runtime::file;

const CLUSTER: &str = include_str!("cluster.json");
const CLUSTER_HISTORY: &str = include_str!("history.json");
const NODE: &str = include_str!("node.json");
/// The demo's configuration.
const CONFIG: &str = include_str!("config.yaml");
const LOCAL: &str = include_str!("local.json");

/// The name of a recording beside the driver library.
pub(super) const RECORDING: &str = "recording";

/// A scenario. The driver library ignores what is for the host, and the other way round.
#[derive(Clone, Debug)]
pub struct DemoScenario {
    /// Whether its processes are real child processes of the demo, and its host is this one.
    pub local: bool,
    pub config: Option<String>,
    pub(super) workloads: Option<ScenarioWorkloads>,
    /// Its past, if it has one.
    past: Option<ScenarioPast>,
    document: Value,
}

#[derive(Clone, Debug)]
pub struct HostProcess {
    pub pid: u32,
    /// Its name as in `/proc/PID/comm`.
    pub comm: String,
    pub uid: u32,
    pub cgroup: String,
}

impl DemoScenario {
    /// A built-in scenario by name, or a file.
    pub fn load(name: &str) -> Result<Self, DemoError> {
        let parsed = match name {
            "cluster" => Self::parse_with_past(CLUSTER, CLUSTER_HISTORY),
            "node" => Self::parse(NODE),
            "local" => Self::parse(LOCAL),
            file => file::read_text(Path::new(file))
                .map_err(|error| format!("{error}; the built-in ones are cluster, node and local"))
                .and_then(|text| Self::parse(&text)),
        };
        parsed.map_err(|problem| DemoError::Other(format!("scenario {name}: {problem}")))
    }

    /// The scenario of a replay: the driver answers from the recording, and the host has none of its processes.
    pub(super) fn of_recording() -> Self {
        let document = serde_json::json!({ "gpus": [], "recording": RECORDING });
        Self { local: false, config: None, workloads: None, past: None, document }
    }

    /// The agent's configuration on its node.
    ///
    /// # Errors
    /// All mistakes in its own configuration.
    pub fn configuration(&self) -> Result<Config, DemoError> {
        let text = self.config.as_deref().unwrap_or(CONFIG);
        Config::parse(text, "the demo's configuration")
            .map_err(|problems| DemoError::Other(problems.to_string()))
    }

    /// Its past up to `end`, for a demo of that configuration.
    ///
    /// # Errors
    /// It describes none, or makes a mistake in it.
    pub fn history(
        &self,
        config: &Config,
        extent: HistoryExtent,
        end: Utc,
    ) -> Result<DemoHistory, DemoError> {
        let past = self.past.as_ref().ok_or_else(|| {
            let message = "--history: the scenario has no history; the scenario cluster has one, and a file may have the key \"history\"";
            DemoError::Other(message.to_owned())
        })?;
        DemoHistory::plan(past, config, extent, end)
            .map_err(|problem| DemoError::Other(format!("scenario: {problem}")))
    }

    /// The number from which everything random follows.
    pub(super) fn seed(&self) -> u64 {
        self.document.get("seed").and_then(Value::as_u64).unwrap_or(0)
    }

    pub(super) fn set_seed(&mut self, seed: u64) {
        self.document["seed"] = seed.into();
    }

    pub(super) fn is_recording(&self) -> bool {
        self.document.get(RECORDING).is_some()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Self::of_document(serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    /// A built-in scenario whose past is in a file of its own.
    fn parse_with_past(text: &str, past: &str) -> Result<Self, String> {
        let read = |text| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        let mut document = read(text)?;
        document["history"] = read(past)?;
        Self::of_document(document)
    }

    fn of_document(mut document: Value) -> Result<Self, String> {
        if !document.get("gpus").is_some_and(Value::is_array) {
            return Err("has no list \"gpus\"; give one, as [{\"profile\": \"h100\", \"count\": 8}]".into());
        }
        let has_workloads = ["pods", "jobs"].iter().any(|key| document.get(key).is_some());
        let workloads = has_workloads.then(|| ScenarioWorkloads::deserialize(&document));
        let workloads = workloads.transpose().map_err(|error| format!("pods, replicas or jobs: {error}"))?;
        Ok(Self {
            workloads,
            local: document.get("local").and_then(Value::as_bool).unwrap_or(false),
            config: document.get("config").and_then(Value::as_str).map(Into::into),
            past: ScenarioPast::take(&mut document),
            document,
        })
    }

    pub fn text(&self) -> String {
        format!("{:#}\n", self.document)
    }

    /// The processes of the host; one without a `host` entry is not visible there.
    pub fn processes(&self) -> impl Iterator<Item = HostProcess> {
        self.list("processes").filter_map(|process| {
            let host = process.get("host")?;
            let name = process.get("name").and_then(Value::as_str).unwrap_or_default();
            Some(HostProcess {
                pid: number(process.get("pid")?)?,
                comm: name.rsplit('/').next().unwrap_or_default().chars().take(15).collect(),
                uid: number(host.get("uid")?)?,
                cgroup: host.get("cgroup").and_then(Value::as_str).unwrap_or("/").into(),
            })
        })
    }

    pub fn users(&self) -> impl Iterator<Item = (u32, String)> {
        self.list("users")
            .filter_map(|user| Some((number(user.get("uid")?)?, user.get("name")?.as_str()?.to_owned())))
    }

    pub(super) fn assign_pids(
        &mut self,
        mut pid: impl FnMut() -> std::io::Result<u32>,
    ) -> std::io::Result<()> {
        if let Some(processes) = self.document.get_mut("processes").and_then(Value::as_array_mut) {
            for process in processes {
                process["pid"] = pid()?.into();
            }
        }
        Ok(())
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &Value> {
        self.document.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}
