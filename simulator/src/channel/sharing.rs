//! How processes share a GPU, and how the driver lists them.
//!
//! A scenario gets a server process for each GPU under MPS, and is refused if processes share an exclusive GPU.

use serde::Deserialize;

use super::scenario::{Phase, Process, Scenario};

const SERVER: &str = "nvidia-cuda-mps-server";
/// The memory that real nodes show for a server.
const SERVER_BYTES: u64 = 28 << 20;

/// How the GPUs of a scenario entry are used.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct UseOf {
    /// Clients of one MPS server run side by side.
    #[serde(default)]
    pub(crate) mps: bool,
    /// The server's pid; otherwise 9000 and the GPU's index.
    #[serde(default)]
    pub(crate) mps_server_pid: Option<u32>,
    /// One process at a time; a scenario with two is refused.
    #[serde(default)]
    pub(crate) exclusive: bool,
    #[serde(default)]
    pub(crate) accounting: bool,
    /// Elapsed seconds, not of a cycle, at which accounting is turned off.
    #[serde(default)]
    pub(crate) accounting_until: Option<f64>,
}

/// How the driver lists a process.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Listing {
    #[serde(default, rename = "type")]
    pub(crate) kind: ProcessKind,
    #[serde(default)]
    pub(crate) memory_unknown: bool,
    /// Milliseconds for which it stays listed after its end.
    #[serde(default)]
    pub(crate) zombie_ms: u64,
    /// The SM percentage of its utilization samples, in place of the truth.
    #[serde(default)]
    pub(crate) garbage_sm: Option<u32>,
    /// Whether it is the MPS server, which is added to the scenario.
    #[serde(skip)]
    pub(crate) server: bool,
}

/// The types as nvidia-smi names them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(crate) enum ProcessKind {
    #[default]
    C,
    G,
    #[serde(rename = "C+G")]
    Both,
}

impl Scenario {
    pub(super) fn share_gpus(&mut self) -> Result<(), String> {
        let mut uses: Vec<UseOf> = Vec::new();
        for (entry, group) in self.gpus.iter().enumerate() {
            if group.use_of.mps && group.mig.is_on() {
                return Err(format!("gpus[{entry}]: mps with mig is not simulated"));
            }
            uses.extend(std::iter::repeat_n(group.use_of, group.count as usize));
        }
        for (gpu, use_of) in (0..).zip(&uses) {
            if use_of.exclusive {
                self.check_alone(gpu)?;
            }
            if use_of.mps {
                let pid = use_of.mps_server_pid.unwrap_or(9_000 + gpu);
                self.processes.push(server(pid, gpu, self.cycle_seconds));
            }
        }
        Ok(())
    }

    /// Refuses two processes on a GPU at the same time.
    fn check_alone(&self, gpu: u32) -> Result<(), String> {
        let mut spans: Vec<(f64, f64, u32)> = Vec::new();
        for process in self.processes.iter().filter(|process| process.gpu == gpu) {
            spans.extend(process.phases.iter().map(|phase| (phase.from, phase.to, process.pid)));
        }
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        for pair in spans.windows(2) {
            if let [(_, to, first), (from, _, second)] = pair
                && from < to
                && first != second
            {
                return Err(format!(
                    "gpu {gpu} is exclusive: pid {second} comes at {from} s, while pid {first} stays until {to} s"
                ));
            }
        }
        Ok(())
    }
}

/// The MPS server of a GPU: always present, with a little memory, without work of its own.
fn server(pid: u32, gpu: u32, cycle: f64) -> Process {
    Process {
        pid,
        name: SERVER.to_owned(),
        gpu,
        phases: vec![Phase { to: cycle, memory_bytes: SERVER_BYTES, ..Phase::default() }],
        listing: Listing { server: true, ..Listing::default() },
        ..Process::default()
    }
}
