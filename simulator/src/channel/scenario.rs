//! The scenario file: which GPUs there are, which processes run on them when, what goes wrong.
//!
//! In: JSON text. Out: a checked `Scenario`, or what is wrong and where. Unknown keys are ignored: the demo
//! keeps the keys of its host side in the same file.

use serde::Deserialize;

use crate::persona::Persona;
use crate::surprise::Surprise;

/// The most GPUs that handles can tell apart.
const MOST: u32 = 1_022;

use super::incidents::Incidents;
use super::layout::Layout;
use super::pipes::Pipes;
use super::sharing::{Listing, UseOf};

/// The whole file; times are seconds within a cycle, which repeats for ever.
#[derive(Debug, Deserialize)]
pub(crate) struct Scenario {
    #[serde(default)]
    pub(crate) seed: u64,
    #[serde(default = "ten_minutes")]
    pub(crate) cycle_seconds: f64,
    /// None: the persona's.
    #[serde(default)]
    pub(crate) driver_version: Option<String>,
    #[serde(default)]
    pub(crate) cuda_version: Option<i32>,
    #[serde(default)]
    pub(crate) persona: Persona,
    /// How long calls take that no fault slows down.
    #[serde(default)]
    pub(crate) delays: Delays,
    pub(crate) gpus: Vec<Gpus>,
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    #[serde(default)]
    pub(crate) xids: Vec<ScriptedXid>,
    #[serde(default)]
    pub(crate) throttles: Vec<Throttle>,
    /// A recording in the same directory that answers instead of this scenario.
    #[serde(default)]
    pub(crate) recording: Option<String>,
    #[serde(flatten)]
    pub(crate) incidents: Incidents,
}

/// Whether calls take the time of real ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delays {
    #[default]
    None,
    Realistic,
}

/// `count` GPUs of one board, all with the same MIG layout.
#[derive(Debug, Deserialize)]
pub(crate) struct Gpus {
    pub(crate) profile: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) mig: Layout,
    #[serde(flatten)]
    pub(crate) use_of: UseOf,
    /// Degrees by which their place in the chassis is warmer than the coolest; none: 0 to 6, from the seed.
    #[serde(default)]
    pub(crate) warmer: Option<u32>,
    /// A misleading reading that these boards show.
    #[serde(default)]
    pub(crate) surprise: Option<Surprise>,
}

/// A process on one GPU; a process on several has several entries.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) gpu: u32,
    /// Position in the `mig` list of its GPU; none on a GPU without MIG.
    #[serde(default)]
    pub(crate) instance: Option<u32>,
    /// The compute instance's id within that instance.
    #[serde(default)]
    pub(crate) compute: u32,
    pub(crate) phases: Vec<Phase>,
    #[serde(flatten)]
    pub(crate) listing: Listing,
}

/// What a process does between two times; outside of its phases it does not exist.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Phase {
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// The share of slices in which it wants the engine.
    #[serde(default)]
    pub(crate) demand: f64,
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// Shares of the time in which it has the engine.
    #[serde(default = "whole")]
    pub(crate) sm: f64,
    #[serde(default)]
    pub(crate) tensor: f64,
    #[serde(default)]
    pub(crate) dram: f64,
    /// Shares of the phase: these engines work beside the SMs.
    #[serde(default)]
    pub(crate) encoder: f64,
    #[serde(default)]
    pub(crate) decoder: f64,
    #[serde(flatten)]
    pub(crate) pipes: Pipes,
}

/// A critical error, once in every cycle.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct ScriptedXid {
    pub(crate) at: f64,
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
}

/// A time in which something holds the clocks down.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Throttle {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) gpu: u32,
    pub(crate) reason: ThrottleReason,
}

/// NVML's bits of the reasons for lower clocks.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ThrottleReason {
    ApplicationsClocks = 0x2,
    SwPowerCap = 0x4,
    HwSlowdown = 0x8,
    SyncBoost = 0x10,
    SwThermal = 0x20,
    HwThermal = 0x40,
    HwPowerBrake = 0x80,
}

fn ten_minutes() -> f64 {
    600.0
}

fn one() -> u32 {
    1
}

fn whole() -> f64 {
    1.0
}

impl Scenario {
    /// Reads and checks the text of a scenario file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut scenario: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        scenario.check()?;
        scenario.incidents.check(scenario.cycle_seconds)?;
        scenario.share_gpus()?;
        Ok(scenario)
    }

    /// What the driver calls itself.
    pub(crate) fn driver_version(&self) -> &str {
        self.driver_version.as_deref().unwrap_or_else(|| self.persona.driver_version())
    }

    fn check(&self) -> Result<(), String> {
        let cycle = self.cycle_seconds;
        if !(0.01..=86_400.0).contains(&cycle) {
            return Err(format!("cycle_seconds: {cycle} is not between 0.01 and 86400"));
        }
        let count = self.gpus.iter().fold(0_u32, |sum, group| sum.saturating_add(group.count));
        if count > MOST {
            return Err(format!("gpus: {count} are more than the {MOST} that handles tell apart"));
        }
        let within = |place: String, from: f64, to: f64| {
            if from >= 0.0 && from < to && to <= cycle {
                return Ok(());
            }
            Err(format!("{place}: from {from} to {to} is not a span within the cycle of {cycle} s"))
        };
        for (index, process) in self.processes.iter().enumerate() {
            for (number, phase) in process.phases.iter().enumerate() {
                let place = format!("processes[{index}] (pid {}) phases[{number}]", process.pid);
                within(place.clone(), phase.from, phase.to)?;
                phase.check(&place)?;
            }
        }
        for (index, throttle) in self.throttles.iter().enumerate() {
            within(format!("throttles[{index}]"), throttle.from, throttle.to)?;
        }
        for (index, xid) in self.xids.iter().enumerate() {
            if !(0.0..cycle).contains(&xid.at) {
                return Err(format!("xids[{index}]: at {} is not within the cycle of {cycle} s", xid.at));
            }
        }
        Ok(())
    }
}

impl Phase {
    fn check(&self, place: &str) -> Result<(), String> {
        let shares = [
            ("demand", self.demand),
            ("sm", self.sm),
            ("tensor", self.tensor),
            ("dram", self.dram),
            ("encoder", self.encoder),
            ("decoder", self.decoder),
        ];
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{place}: {name} {share} is not between 0 and 1"));
            }
        }
        self.pipes.check(place)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_ignored_and_missing_ones_have_defaults() {
        let text = r#"{"gpus":[{"profile":"h100"}],"hosts":1,
            "processes":[{"pid":1,"gpu":0,"cgroup":"x","phases":[{"from":0,"to":1}]}]}"#;
        let scenario = Scenario::parse(text).unwrap();
        assert_eq!(scenario.gpus.first().unwrap().count, 1);
        assert_eq!(scenario.driver_version(), "580.105.08");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_place() {
        let text = r#"{"gpus":[],"processes":[{"pid":7,"gpu":0,"phases":[{"from":0,"to":1,"demand":1.5}]}]}"#;
        assert_eq!(
            Scenario::parse(text).unwrap_err(),
            "processes[0] (pid 7) phases[0]: demand 1.5 is not between 0 and 1"
        );
        let text = r#"{"gpus":[],"cycle_seconds":10,
            "throttles":[{"from":5,"to":11,"gpu":0,"reason":"sw_power_cap"}]}"#;
        assert!(Scenario::parse(text).unwrap_err().starts_with("throttles[0]: from 5 to 11"));
        assert!(Scenario::parse("{").unwrap_err().contains("line 1"));
    }
}
