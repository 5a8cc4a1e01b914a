//! The simulated host's GPUs, made from the scenario and the state file.
//!
//! In: the directory. Out: `Node`, the current state: every GPU's identity, instances and timeline. A node is
//! never changed: when the state file changes, another node is made over the same `SimulatedHost` (clock, faults,
//! event sets), which lives from init to shutdown. NVML's types and calls are not known here.

mod identity;
mod instances;
mod open;
mod script;
mod settle;
pub(crate) mod xids;

pub(crate) use open::mark_in;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use crate::abi::answer::{GPU_IS_LOST, Refused};
use crate::board::{self, Board};
use crate::channel::delays::Debt;
use crate::channel::devices::Devices;
use crate::channel::faults::Faults;
use crate::channel::hardware::Hardware;
use crate::channel::kmsg::Log;
use crate::channel::report::{GpuTruth, ProcessTruth, Report, Truth};
use crate::channel::scenario::{Gpus, Scenario};
use crate::channel::settled::{Settled, Slot, StateFiles, Version};
use crate::clock::{Now, SimulatedClock};
use crate::condition::{Condition, ConditionInputs};
use crate::handles::{ClientEventSet, GpmSample, Handles};
use crate::replay::Replay;
use crate::schedule::{Timeline, hash};
use crate::surprise::Surprise;

pub(crate) use instances::Instance;

/// A physical GPU.
#[derive(Clone)]
pub(crate) struct Gpu {
    /// The index that clients see: GPUs that are away are not counted.
    pub(crate) index: u32,
    /// The scenario's number, which faults and the state file use.
    pub(crate) slot: u32,
    pub(crate) board: &'static Board,
    pub(crate) uuid: String,
    pub(crate) serial: String,
    pub(crate) minor: u32,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) module: u32,
    pub(crate) warmer: u32,
    /// PCIe replays from before the script, until the driver is reloaded: healthy boards have 0 to 174.
    pub(crate) replays: u32,
    /// A misleading reading of some real boards that this one shows.
    pub(crate) surprise: Option<Surprise>,
    /// Whether it is in MIG mode, with or without instances.
    pub(crate) divided: bool,
    /// By GPU instance id, as the driver numbers MIG devices; empty without MIG.
    pub(crate) instances: Vec<Instance>,
    pub(crate) timeline: Arc<Timeline>,
    /// The error of every call about it, if it is lost or needs a reset.
    pub(crate) fate: Option<Refused>,
    /// Counts the boards in this place, its MIG layouts, and the loads of the driver. Handles hold all three.
    pub(crate) life: u32,
    pub(crate) cut: u32,
    pub(crate) loads: u32,
    identity: u64,
    renamed: u32,
    pub(crate) condition: Arc<Condition>,
}

/// An XID of the scenario.
pub(crate) struct Mishap {
    /// Nanoseconds into the cycle.
    pub(crate) at: u64,
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
}

/// What lives from the first init to the last shutdown.
pub(crate) struct SimulatedHost {
    pub(crate) scenario: Scenario,
    /// A hash of the scenario's text.
    fingerprint: u64,
    pub(crate) cuda_version: i32,
    pub(crate) names: BTreeMap<u32, String>,
    /// In ascending time.
    pub(crate) mishaps: Vec<Mishap>,
    /// Nanoseconds until the script repeats.
    pub(crate) cycle: u64,
    pub(crate) clock: SimulatedClock,
    pub(crate) faults: Faults,
    pub(crate) report: Report,
    /// Absent until the sample is taken.
    pub(crate) samples: Handles<Option<GpmSample>>,
    pub(crate) event_sets: Handles<ClientEventSet>,
    /// A recording that answers in place of the scenario.
    pub(crate) replay: Option<Replay>,
    pub(crate) log: Log,
    /// Simulated call times: one debt for each GPU of the scenario, the last for calls without a GPU.
    debts: Vec<Debt>,
    record: StateFiles,
    watch: Mutex<Watch>,
    /// Unset until init is over.
    session: OnceLock<Session>,
    /// The driver was unloaded meanwhile: every call fails until shutdown and init.
    dead: AtomicBool,
}

/// What was there at init.
struct Session {
    /// The GPUs that were counted: slot and life.
    members: Vec<(u32, u32)>,
    /// How often the driver had been reloaded.
    loads: u32,
    #[allow(dead_code, reason = "held, not read")]
    devices: Devices,
}

/// When the files `state` and `settled` were last checked, and their versions then.
#[derive(Default)]
struct Watch {
    looked: Option<u64>,
    state: Version,
    settled: Version,
}

/// The simulated host in its current state.
pub(crate) struct Node {
    host: Arc<SimulatedHost>,
    /// The GPUs that clients of this session count.
    pub(crate) gpus: Vec<Gpu>,
    /// All places of the scenario.
    pub(crate) slots: Vec<Gpu>,
    pub(crate) driver_version: String,
    pub(crate) settled: Settled,
}

impl Deref for Node {
    type Target = SimulatedHost;

    fn deref(&self) -> &SimulatedHost {
        &self.host
    }
}

impl Node {
    fn new(host: Arc<SimulatedHost>, settled: Settled, slots: Vec<Gpu>) -> Self {
        let mut gpus = Vec::new();
        let members = host.session.get().map_or([].as_slice(), |session| &session.members);
        for (slot, life) in members {
            let Some(gpu) = slots.get(*slot as usize) else { continue };
            let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
            let fate = if gpu.life == *life { gpu.fate } else { Some(GPU_IS_LOST) };
            gpus.push(Gpu { index, fate, ..gpu.clone() });
        }
        let version = settled.hardware.driver.version.as_deref();
        let driver_version = version.unwrap_or_else(|| host.scenario.driver_version()).to_owned();
        Self { host, gpus, slots, driver_version, settled }
    }

    /// The first field id that the driver does not know.
    pub(crate) fn fields(&self) -> u32 {
        self.host.scenario.persona.fields(self.driver_major())
    }

    /// The first number of the driver's version.
    pub(crate) fn driver_major(&self) -> u32 {
        self.driver_version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0)
    }

    /// The first of the three fields of slowdown time: driver 575 put them before the power-smoothing fields,
    /// 580.82 after them, and older drivers have none.
    pub(crate) fn slowdown_field(&self) -> Option<u32> {
        let mut parts = self.driver_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        match (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) {
            version if version >= (580, 82) => Some(269),
            version if version >= (575, 0) => Some(251),
            _ => None,
        }
    }

    /// The debt of calls about a GPU, or of those without one; `None` where calls take no time.
    pub(crate) fn debt(&self, slot: Option<u32>) -> Option<&Debt> {
        slot.map_or(self.debts.last(), |slot| self.debts.get(slot as usize))
    }

    /// The GPU in a place of the scenario, if this session counts it.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.slot == slot)
    }

    /// The name of a process by its current pid.
    pub(crate) fn name(&self, pid: u32) -> Option<&str> {
        let renamed = self.settled.hardware.pids.iter().find(|(_, now)| **now == Some(pid));
        self.names.get(renamed.map_or(&pid, |(scripted, _)| scripted)).map(String::as_str)
    }

    /// Writes truth, calls and kernel log if they are due.
    pub(crate) fn report(&self, now: Now) {
        if self.report.due(now) {
            self.report.write(&self.truth(now));
        }
        self.log.flush(self, now);
    }

    /// Writes truth, calls and kernel log, due or not.
    pub(crate) fn report_now(&self) {
        let now = self.clock.now();
        self.report.write(&self.truth(now));
        self.log.flush_now(self, now);
    }

    fn truth(&self, now: Now) -> Truth<'_> {
        let xids = xids::fired(self, now.elapsed);
        let mut truth = Truth { elapsed_ns: now.elapsed, gpus: Vec::new(), processes: Vec::new(), xids };
        for gpu in &self.slots {
            let totals = gpu.timeline.lifetime(now.elapsed);
            truth.gpus.push(GpuTruth {
                uuid: &gpu.uuid,
                busy_ns: totals.busy,
                energy_uj: totals.energy,
                engines: totals.engines,
            });
            for (worker, work) in gpu.timeline.workers().iter().zip(&totals.workers) {
                let instance = gpu.instances.iter().find(|instance| instance.engine == worker.engine);
                truth.processes.push(ProcessTruth {
                    pid: worker.pid,
                    gpu: gpu.slot,
                    instance: instance.map(|instance| instance.entry),
                    busy_ns: work.busy,
                    used: *work,
                });
            }
        }
        truth
    }
}

/// The GPUs of all places in their settled state; a cycle of `former` that did not change is used again.
fn gpus(scenario: &Scenario, settled: &Settled, former: &[Gpu]) -> Result<Vec<Gpu>, String> {
    let mut gpus = Vec::new();
    for (entry, group) in scenario.gpus.iter().enumerate() {
        let profile = scenario.persona.profile().unwrap_or(&group.profile);
        let row = board::board(profile).ok_or_else(|| {
            format!("gpus[{entry}]: unknown profile {profile:?}; there are {}", board::profiles())
        })?;
        for _ in 0..group.count {
            let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
            let became = Became::of(settled, index, former);
            let made = gpu(scenario, index, row, group, &became);
            gpus.push(made.map_err(|error| format!("gpus[{entry}]: {error}"))?);
            scenario.incidents.fit(index, row, group.mig.instances.len())?;
        }
    }
    let exists = |gpu: u32| (gpu as usize) < gpus.len();
    for (entry, process) in scenario.processes.iter().enumerate() {
        if !exists(process.gpu) {
            return Err(format!("processes[{entry}] (pid {}): there is no gpu {}", process.pid, process.gpu));
        }
    }
    let xids = scenario.xids.iter().map(|xid| ("xids", xid.gpu));
    let throttles = scenario.throttles.iter().map(|throttle| ("throttles", throttle.gpu));
    match xids.chain(throttles).chain(scenario.incidents.gpus()).find(|(_, gpu)| !exists(*gpu)) {
        Some((place, gpu)) => Err(format!("{place}: there is no gpu {gpu}")),
        None => Ok(gpus),
    }
}

/// The settled state of a place, and the GPU that was there before.
struct Became<'a> {
    slot: Slot,
    hardware: &'a Hardware,
    loads: u32,
    former: Option<&'a Gpu>,
}

impl<'a> Became<'a> {
    fn of(settled: &'a Settled, index: u32, former: &'a [Gpu]) -> Self {
        let slot = settled.slots.get(index as usize).cloned().unwrap_or_default();
        let former = former.get(index as usize);
        let former = former
            .filter(|gpu| (gpu.identity, gpu.cut, gpu.renamed) == (slot.identity, slot.cut, slot.renamed));
        Self { hardware: &settled.hardware, loads: settled.loads, slot, former }
    }
}

fn gpu(
    scenario: &Scenario,
    index: u32,
    board: &'static Board,
    group: &Gpus,
    became: &Became<'_>,
) -> Result<Gpu, String> {
    let slot = &became.slot;
    let seed = if slot.identity == 0 { scenario.seed } else { hash(scenario.seed ^ hash(slot.identity)) };
    let marks = identity::Marks::new(seed, index).cut(slot.cut);
    let surprise = group.surprise;
    let layout = slot.layout.as_ref().unwrap_or(&group.mig);
    let instances = instances::instances(board, layout, &marks)?;
    let cycle = match became.former {
        Some(former) => Arc::clone(former.timeline.cycle()),
        None => {
            let script = script::GpuScript {
                scenario,
                hardware: became.hardware,
                gpu: index,
                use_of: group.use_of,
                board,
                instances: &instances,
                marks: &marks,
                layout,
                is_scenario_layout: slot.layout.is_none(),
            };
            Arc::new(script.cycle()?)
        }
    };
    let inputs = ConditionInputs {
        gpu: index,
        seed: marks.seed(),
        board,
        use_of: group.use_of,
        work: &cycle,
        came: slot.came,
        links: slot.links.clone(),
    };
    let condition = Condition::new(&scenario.incidents, inputs);
    let timeline = Arc::new(Timeline::going_on(cycle, Condition::driver_loads(scenario), slot.since.clone()));
    Ok(Gpu {
        index,
        slot: index,
        board,
        uuid: marks.uuid("GPU"),
        serial: identity::serial(board, seed, index),
        minor: identity::minor(board, index),
        domain: identity::domain(board, index),
        bus: identity::bus(board, index),
        module: board.modules.get(index as usize % 8).copied().unwrap_or(1),
        warmer: group.warmer.unwrap_or_else(|| marks.between(2, (0, 6))),
        replays: marks.between(3, replays_of(surprise)),
        surprise,
        divided: layout.is_on(),
        instances,
        timeline,
        condition: Arc::new(condition),
        fate: settle::refusal(became.hardware.fate(index).state),
        life: slot.life,
        cut: slot.cut,
        loads: became.loads,
        identity: slot.identity,
        renamed: slot.renamed,
    })
}

/// The range of PCIe replays: of healthy boards, and of those whose captures show many.
fn replays_of(surprise: Option<Surprise>) -> (u32, u32) {
    if surprise == Some(Surprise::ManyReplays) { (106, 174) } else { (0, 15) }
}
