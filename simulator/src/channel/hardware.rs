//! The state file: changes of the hardware and its driver while clients run.
//!
//! In: JSON text. Out: `Hardware`. An absent file is the default: healthy, and as in the scenario. `settled` records
//! when a change came into force, so that several readers agree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::layout::Layout;

/// The contents of the state file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Hardware {
    pub(crate) driver: Driver,
    /// By the scenario's number of the GPU.
    pub(crate) gpus: BTreeMap<u32, Fate>,
    /// The MIG layout in place of the scenario's.
    pub(crate) mig: BTreeMap<u32, Layout>,
    /// The current pid of a process by its scenario pid; `None`: it does not run.
    pub(crate) pids: BTreeMap<u32, Option<u32>>,
    pub(crate) xids: Vec<Storm>,
}

/// The kernel driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Driver {
    pub(crate) loaded: bool,
    /// In place of the scenario's.
    pub(crate) version: Option<String>,
    /// A new number means that the driver was unloaded and loaded again.
    pub(crate) epoch: u64,
    /// `old`: the library file is older than the driver, as in a container that was started before an update.
    pub(crate) library: Option<LibraryAge>,
}

impl Default for Driver {
    fn default() -> Self {
        Self { loaded: true, version: None, epoch: 1, library: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LibraryAge {
    Old,
}

/// What happened to a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fate {
    pub(crate) state: Standing,
    /// The seed of the names of a replaced board.
    #[serde(default)]
    pub(crate) uuid_seed: u64,
    /// No XID is raised.
    #[serde(default)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    #[default]
    Well,
    /// Fallen off the bus: still counted, but every call fails.
    Lost,
    /// Removed: from the next init on it is not counted.
    Gone,
    /// Given to a virtual machine; for NVML the same as gone.
    Guest,
    /// Another board in the same place.
    Replaced,
    /// Until a reset every call fails except those about its place.
    ResetRequired,
}

/// XIDs at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storm {
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
    pub(crate) per_second: f64,
    /// Elapsed seconds of its beginning; `None`: when it was first read from the file.
    #[serde(default)]
    pub(crate) from: Option<f64>,
    pub(crate) count: u64,
}

impl Hardware {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let hardware: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (index, storm) in hardware.xids.iter().enumerate() {
            let from = storm.from.unwrap_or(0.0);
            if !(storm.per_second > 0.0 && storm.per_second <= 1e6 && (0.0..1e9).contains(&from)) {
                return Err(format!(
                    "xids[{index}]: per_second must be in (0, 1000000] and from in [0, 1e9)"
                ));
            }
        }
        Ok(hardware)
    }

    /// The current pid of a process of the scenario; `None` if it does not run.
    pub(crate) fn pid(&self, scripted: u32) -> Option<u32> {
        self.pids.get(&scripted).copied().unwrap_or(Some(scripted))
    }

    pub(crate) fn fate(&self, gpu: u32) -> Fate {
        self.gpus.get(&gpu).copied().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_mean_a_healthy_gpu() {
        assert_eq!(Hardware::parse("{}").unwrap(), Hardware::default());
        let some = Hardware::parse(r#"{"driver":{"epoch":2},"gpus":{"3":{"state":"lost"}}}"#).unwrap();
        assert!(some.driver.loaded && some.driver.epoch == 2);
        assert_eq!((some.fate(3).state, some.fate(4).state), (Standing::Lost, Standing::Well));
    }

    #[test]
    fn impossible_states_are_refused() {
        assert!(Hardware::parse(r#"{"gpus":{"3":{"state":"sad"}}}"#).unwrap_err().contains("sad"));
        let storm =
            |rate: &str| format!(r#"{{"xids":[{{"gpu":0,"xid":13,"per_second":{rate},"count":1}}]}}"#);
        assert!(Hardware::parse(&storm("0")).unwrap_err().starts_with("xids[0]"));
        assert!(Hardware::parse(&storm("10000")).is_ok());
    }
}
