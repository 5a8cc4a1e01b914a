//! The simulated host's GPUs, made from a scenario.
//!
//! In: the directory. Out: `Node` with every GPU's identity, instances and timeline, the clock and the
//! faults. It knows what there is and when, not how NVML asks for it.

mod identity;
mod instances;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::abi::events::EventSets;
use crate::abi::gpm::Samples;
use crate::board::{self, Board};
use crate::channel::conditions::{ProcessKind, UseOf};
use crate::channel::faults::Faults;
use crate::channel::report::{GpuTruth, ProcessTruth, Report, Truth};
use crate::channel::scenario::{Gpus, Process, Scenario, Throttle};
use crate::clock::{Clock, Now};
use crate::condition::Condition;
use crate::schedule::{self, Brake, Cycle, Face, Kind, PowerModel, Script, Span, Timeline, Worker};
use crate::surprise::Surprise;

pub(crate) use instances::Instance;

/// A physical GPU.
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) board: &'static Board,
    pub(crate) uuid: String,
    pub(crate) serial: String,
    pub(crate) minor: u32,
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) module: u32,
    pub(crate) warmer: u32,
    /// PCIe replays: boards in good health have 0 to 174.
    pub(crate) replays: u32,
    /// How it misleads its readers, as some real boards do.
    pub(crate) surprise: Option<Surprise>,
    /// By GPU instance id, as the driver numbers MIG devices; empty without MIG.
    pub(crate) instances: Vec<Instance>,
    pub(crate) timeline: Timeline,
    pub(crate) condition: Condition,
}

/// Something critical at a time within the cycle.
pub(crate) struct Mishap {
    /// Nanoseconds into the cycle.
    pub(crate) at: u64,
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
}

/// The simulated host.
pub(crate) struct Node {
    pub(crate) driver_version: String,
    pub(crate) cuda_version: i32,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) names: BTreeMap<u32, String>,
    /// By time.
    pub(crate) mishaps: Vec<Mishap>,
    /// Nanoseconds.
    pub(crate) cycle: u64,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    pub(crate) report: Report,
    pub(crate) samples: Samples,
    pub(crate) event_sets: EventSets,
}

impl Node {
    /// Reads a directory's scenario and clock; the error says what is wrong and where.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        let path = directory.join("scenario");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scenario = Scenario::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let page = directory.join("clock");
        let clock = Clock::open(&page).map_err(|error| format!("{}: {error}", page.display()))?;
        let gpus = gpus(&scenario).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut mishaps = Vec::new();
        for xid in &scenario.xids {
            mishaps.push(Mishap {
                at: schedule::slices(xid.at) * schedule::SLICE,
                gpu: xid.gpu,
                xid: xid.xid,
            });
        }
        mishaps.sort_by_key(|mishap| mishap.at);
        let names = scenario.processes.iter().map(|process| (process.pid, process.name.clone()));
        Ok(Self {
            names: names.collect(),
            gpus,
            mishaps,
            cycle: schedule::slices(scenario.cycle_seconds).max(1) * schedule::SLICE,
            clock,
            faults: Faults::new(directory.join("faults")),
            report: Report::new(directory),
            samples: Samples::default(),
            event_sets: EventSets::default(),
            driver_version: scenario.driver_version,
            cuda_version: scenario.cuda_version,
        })
    }

    /// Whether the driver has the field ids of 580.82, which moved 251-273.
    pub(crate) fn renumbered_fields(&self) -> bool {
        let mut parts = self.driver_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (580, 82)
    }

    /// Writes truth and calls if it is time.
    pub(crate) fn report(&self, now: Now) {
        if self.report.due(now) {
            self.report.write(&self.truth(now));
        }
    }

    /// Writes truth and calls, due or not.
    pub(crate) fn report_now(&self) {
        self.report.write(&self.truth(self.clock.now()));
    }

    fn truth(&self, now: Now) -> Truth<'_> {
        let mut truth = Truth { elapsed_ns: now.elapsed, gpus: Vec::new(), processes: Vec::new() };
        for gpu in &self.gpus {
            let totals = gpu.timeline.totals(now.elapsed);
            truth.gpus.push(GpuTruth {
                uuid: &gpu.uuid,
                busy_ns: totals.busy,
                energy_uj: totals.energy,
                engines: totals.engines,
            });
            for (worker, work) in gpu.timeline.workers().iter().zip(&totals.workers) {
                let instance = gpu.instances.iter().find(|instance| instance.engine == worker.engine);
                let instance = instance.map(|instance| instance.entry);
                truth.processes.push(ProcessTruth {
                    pid: worker.pid,
                    gpu: gpu.index,
                    instance,
                    busy_ns: work.busy,
                    used: *work,
                });
            }
        }
        truth
    }
}

fn gpus(scenario: &Scenario) -> Result<Vec<Gpu>, String> {
    let mut gpus = Vec::new();
    for (entry, group) in scenario.gpus.iter().enumerate() {
        let row = board::board(&group.profile).ok_or_else(|| {
            format!("gpus[{entry}]: unknown profile {:?}; there are {}", group.profile, board::profiles())
        })?;
        for _ in 0..group.count {
            let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
            gpus.push(gpu(scenario, index, row, group).map_err(|error| format!("gpus[{entry}]: {error}"))?);
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
    match xids.chain(throttles).chain(scenario.conditions.gpus()).find(|(_, gpu)| !exists(*gpu)) {
        Some((place, gpu)) => Err(format!("{place}: there is no gpu {gpu}")),
        None => Ok(gpus),
    }
}

fn gpu(scenario: &Scenario, index: u32, board: &'static Board, group: &Gpus) -> Result<Gpu, String> {
    let marks = identity::Marks::new(scenario.seed, index);
    let surprise = group.surprise.as_deref().map(Surprise::named).transpose()?;
    let instances = instances::instances(board, &group.mig, &marks)?;
    let mut engines: Vec<u64> = vec![1_000_000];
    if !instances.is_empty() {
        engines = instances::shares(board, &instances);
    }
    let mut workers = Vec::new();
    for process in scenario.processes.iter().filter(|process| process.gpu == index) {
        workers.push(worker(process, group.use_of, &instances)?);
    }
    let mut brakes = Vec::new();
    for throttle in scenario.throttles.iter().filter(|throttle| throttle.gpu == index) {
        brakes.push(brake(throttle)?);
    }
    let idle = u64::from(marks.between(1, board.power.idle)) * 1_000;
    let dynamic = u64::from(board.power.limit_default) * 1_000 - idle;
    let power = PowerModel { idle, dynamic };
    let cycle = Arc::new(Cycle::new(Script {
        seed: marks.seed(),
        cycle_seconds: scenario.cycle_seconds,
        engines,
        workers,
        brakes,
        power,
        together: group.use_of.mps,
    }));
    Ok(Gpu {
        index,
        board,
        uuid: marks.uuid("GPU"),
        serial: identity::serial(board, scenario.seed, index),
        minor: identity::minor(board, index),
        domain: identity::domain(board, index),
        bus: identity::bus(board, index),
        module: board.modules.get(index as usize % 8).copied().unwrap_or(1),
        warmer: marks.between(2, (0, 6)),
        replays: marks.between(3, if surprise == Some(Surprise::ManyReplays) { (106, 174) } else { (0, 15) }),
        surprise,
        instances,
        condition: Condition::new(scenario, (index, marks.seed()), group.use_of, board, &cycle),
        timeline: Timeline::going_on(cycle),
    })
}

fn worker(process: &Process, use_of: UseOf, instances: &[Instance]) -> Result<Worker, String> {
    let place = format!("process {} on gpu {}", process.pid, process.gpu);
    let engine = match (process.instance, instances.is_empty()) {
        (None, true) => 0,
        (None, false) => return Err(format!("{place}: name its instance, the GPU is in MIG mode")),
        (Some(_), true) => return Err(format!("{place}: has an instance, but the GPU is not in MIG mode")),
        (Some(entry), false) => {
            let here = |instance: &&Instance| {
                instance.entry == entry as usize && instance.compute == process.compute
            };
            let missing =
                || format!("{place}: there is no instance {entry} with compute {}", process.compute);
            instances.iter().find(here).ok_or_else(missing)?.engine
        }
    };
    let spans = process.phases.iter().map(Span::new).collect();
    Ok(Worker { pid: process.pid, engine, spans, face: face(process, use_of) })
}

fn face(process: &Process, use_of: UseOf) -> Face {
    let listing = &process.listing;
    let kind = match listing.kind {
        ProcessKind::C if use_of.mps && !listing.server => Kind::Client,
        ProcessKind::C => Kind::Compute,
        ProcessKind::G => Kind::Graphics,
        ProcessKind::Both => Kind::Both,
    };
    Face {
        kind,
        memory_unknown: listing.memory_unknown,
        linger: listing.zombie_ms.saturating_mul(1_000_000),
        garbage: listing.garbage_sm,
    }
}

fn brake(throttle: &Throttle) -> Result<Brake, String> {
    let reason = match throttle.reason.as_str() {
        "applications_clocks" => 0x2,
        "sw_power_cap" => 0x4,
        "hw_slowdown" => 0x8,
        "sync_boost" => 0x10,
        "sw_thermal" => 0x20,
        "hw_thermal" => 0x40,
        "hw_power_brake" => 0x80,
        other => {
            return Err(format!(
                "throttle of gpu {}: unknown reason {other:?}; there are applications_clocks, sw_power_cap, \
                 hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake",
                throttle.gpu
            ));
        }
    };
    Ok(Brake { from: schedule::slices(throttle.from), to: schedule::slices(throttle.to), reason })
}
