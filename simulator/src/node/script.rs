//! The processes and throttles of one GPU as the script of a cycle.
//!
//! In: scenario, board and instances. Out: a summed cycle, or which process has no place.

use super::identity::Marks;
use super::instances::{self, Instance};
use crate::board::Board;
use crate::channel::hardware::Hardware;
use crate::channel::layout::Layout;
use crate::channel::scenario::{Process, Scenario, Throttle};
use crate::channel::sharing::{ProcessKind, UseOf};
use crate::schedule::{self, Brake, Cycle, Face, ListedKind, NOWHERE, PowerModel, Script, WorkSpan, Worker};

/// What the script of one GPU is made from.
pub(super) struct GpuScript<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) hardware: &'a Hardware,
    /// The scenario's number of the GPU.
    pub(super) gpu: u32,
    pub(super) use_of: UseOf,
    pub(super) board: &'static Board,
    pub(super) instances: &'a [Instance],
    pub(super) marks: &'a Marks,
    pub(super) layout: &'a Layout,
    /// Whether the layout is the scenario's own: then every process must have its instance.
    pub(super) is_scenario_layout: bool,
}

impl GpuScript<'_> {
    /// The summed cycle, or which process has no place.
    pub(super) fn cycle(&self) -> Result<Cycle, String> {
        let Self { scenario, board, instances, .. } = self;
        let mut workers = Vec::new();
        for process in scenario.processes.iter().filter(|process| process.gpu == self.gpu) {
            let engine = match self.engine(process) {
                Err(error) if self.is_scenario_layout => return Err(error),
                engine => engine.unwrap_or(NOWHERE),
            };
            let pid = self.hardware.pid(process.pid);
            workers.push(Worker {
                pid: pid.unwrap_or(process.pid),
                engine: if pid.is_none() { NOWHERE } else { engine },
                spans: process.phases.iter().map(WorkSpan::new).collect(),
                face: face(process, self.use_of),
            });
        }
        let throttles = scenario.throttles.iter().filter(|throttle| throttle.gpu == self.gpu);
        let idle = u64::from(self.marks.between(1, board.power.idle)) * 1_000;
        let dynamic = u64::from(board.power.limit_default) * 1_000 - idle;
        Ok(Cycle::new(Script {
            seed: self.marks.seed(),
            cycle_seconds: scenario.cycle_seconds,
            engines: if instances.is_empty() { vec![1_000_000] } else { instances::shares(board, instances) },
            workers,
            brakes: throttles.map(brake).collect(),
            power: PowerModel { idle, dynamic },
            together: self.use_of.mps,
        }))
    }

    /// The engine on which a process runs, or why there is none.
    fn engine(&self, process: &Process) -> Result<usize, String> {
        let place = format!("process {} on gpu {}", process.pid, process.gpu);
        match (process.instance, self.layout.is_on()) {
            (None, false) => Ok(0),
            (None, true) => Err(format!("{place}: name its instance, the GPU is in MIG mode")),
            (Some(_), false) => Err(format!("{place}: has an instance, but the GPU is not in MIG mode")),
            (Some(entry), true) => {
                let is_asked = |instance: &&Instance| {
                    instance.entry == entry as usize && instance.compute == process.compute
                };
                let found = self.instances.iter().find(is_asked).map(|instance| instance.engine);
                found.ok_or_else(|| {
                    format!("{place}: there is no instance {entry} with compute {}", process.compute)
                })
            }
        }
    }
}

fn face(process: &Process, use_of: UseOf) -> Face {
    let listing = &process.listing;
    let kind = match listing.kind {
        ProcessKind::C if use_of.mps && !listing.server => ListedKind::Client,
        ProcessKind::C => ListedKind::Compute,
        ProcessKind::G => ListedKind::Graphics,
        ProcessKind::Both => ListedKind::Both,
    };
    Face {
        kind,
        memory_unknown: listing.memory_unknown,
        linger: listing.zombie_ms.saturating_mul(1_000_000),
        garbage: listing.garbage_sm,
    }
}

fn brake(throttle: &Throttle) -> Brake {
    let Throttle { from, to, reason, .. } = *throttle;
    Brake { from: schedule::slices(from), to: schedule::slices(to), reason: reason as u64 }
}
