//! What a GPU of the scenario works: its processes and brakes as the script of a cycle.
//!
//! In: scenario, board and instances. Out: a summed cycle, or which process has no place. It knows no state.

use super::identity::Marks;
use super::instances::{self, Instance};
use crate::board::Board;
use crate::channel::hardware::Hardware;
use crate::channel::layout::Layout;
use crate::channel::scenario::{Gpus, Process, Scenario, Throttle};
use crate::channel::sharing::{ProcessKind, UseOf};
use crate::schedule::{self, Brake, Cycle, Face, Kind, NOWHERE, PowerModel, Script, Span, Worker};

/// The script of a GPU as it is cut; in the scenario's own layout every process must have its place.
pub(super) fn cycle(
    (scenario, hardware): (&Scenario, &Hardware),
    (index, group): (u32, &Gpus),
    board: &'static Board,
    instances: &[Instance],
    (marks, layout, own): (&Marks, &Layout, bool),
) -> Result<Cycle, String> {
    let mut engines: Vec<u64> = vec![1_000_000];
    if !instances.is_empty() {
        engines = instances::shares(board, instances);
    }
    let mut workers = Vec::new();
    for process in scenario.processes.iter().filter(|process| process.gpu == index) {
        let placed = worker(process, group.use_of, (layout, instances));
        let placed = if own { placed? } else { placed.unwrap_or_else(|_| nowhere(process)) };
        workers.push(match hardware.pid(process.pid) {
            Some(pid) => Worker { pid, ..placed },
            None => nowhere(process),
        });
    }
    let mut brakes = Vec::new();
    for throttle in scenario.throttles.iter().filter(|throttle| throttle.gpu == index) {
        brakes.push(brake(throttle)?);
    }
    let idle = u64::from(marks.between(1, board.power.idle)) * 1_000;
    let dynamic = u64::from(board.power.limit_default) * 1_000 - idle;
    let power = PowerModel { idle, dynamic };
    let seed = marks.seed();
    let together = group.use_of.mps;
    let cycle_seconds = scenario.cycle_seconds;
    Ok(Cycle::new(Script { seed, cycle_seconds, engines, workers, brakes, power, together }))
}

/// A process whose place the layout does not have.
fn nowhere(process: &Process) -> Worker {
    Worker {
        pid: process.pid,
        engine: NOWHERE,
        spans: process.phases.iter().map(Span::new).collect(),
        face: Face::default(),
    }
}

fn worker(
    process: &Process,
    use_of: UseOf,
    (layout, instances): (&Layout, &[Instance]),
) -> Result<Worker, String> {
    let place = format!("process {} on gpu {}", process.pid, process.gpu);
    let engine = match (process.instance, !layout.is_on()) {
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
