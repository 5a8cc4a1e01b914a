//! One phase of a process, in slices, and the work it does in its time.
//!
//! In: a phase of the scenario. Out: rates that turn time into work.

use super::{MILLION, SLICE, Work, millionths, slices};
use crate::channel::scenario::Phase;

/// Bytes per second of busy time where a phase does not say: results go out, input is read.
const PCIE_TX: f64 = 0.3e9;
const PCIE_RX: f64 = 1.5e9;
/// Bytes per second of tensor time, in each direction: gradients.
const NVLINK: f64 = 80e9;

/// A phase in slices and parts per million.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkSpan {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) demand: u64,
    /// Bytes of GPU memory held during the phase.
    pub(crate) memory: u64,
    /// Millionths of the time with the engine; traffic in bytes per millisecond of that time.
    held: Work,
    /// Millionths of the phase itself.
    present: Work,
}

/// A worker's nanoseconds in one span: with the engine, and in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpanTime {
    pub(super) held: u64,
    pub(super) present: u64,
}

impl WorkSpan {
    pub(crate) fn new(phase: &Phase) -> Self {
        let pipes = &phase.pipes;
        let share = |given: Option<f64>, otherwise: f64| millionths(given.unwrap_or(otherwise));
        let rate = |given: Option<f64>, otherwise: f64| super::rounded(given.unwrap_or(otherwise) / 1e3);
        let (sm, tensor) = (phase.sm, phase.tensor);
        let held = Work {
            busy: MILLION,
            sm: millionths(sm),
            // Half of the warps that fit are resident, a third of the instructions are integer, and a third
            // of the rest single precision; a tenth of tensor work is fed by half precision.
            occupancy: share(pipes.occupancy, sm / 2.0),
            tensor: millionths(tensor),
            dfma: share(pipes.dfma, 0.0),
            imma: share(pipes.imma, 0.0),
            integer: share(pipes.integer, sm / 3.0),
            fp64: share(pipes.fp64, 0.0),
            fp32: share(pipes.fp32, (sm - tensor).max(0.0) / 3.0),
            fp16: share(pipes.fp16, tensor / 10.0),
            dram: millionths(phase.dram),
            pcie_tx: rate(pipes.pcie_tx, PCIE_TX),
            pcie_rx: rate(pipes.pcie_rx, PCIE_RX),
            nvlink_tx: rate(pipes.nvlink_tx, NVLINK * tensor),
            nvlink_rx: rate(pipes.nvlink_rx, NVLINK * tensor),
            ..Work::default()
        };
        let present = Work {
            encoder: millionths(phase.encoder),
            decoder: millionths(phase.decoder),
            jpeg: share(pipes.jpeg, 0.0),
            ofa: share(pipes.ofa, 0.0),
            ..Work::default()
        };
        let (from, to) = (slices(phase.from), slices(phase.to));
        Self { from, to, demand: millionths(phase.demand), memory: phase.memory_bytes, held, present }
    }

    /// Millionths of the phase in which it encodes.
    pub(crate) fn encoder(&self) -> u64 {
        self.present.encoder
    }

    /// Whether it wants its engine in every slice or in none.
    pub(super) fn certain(&self) -> bool {
        self.demand == 0 || self.demand >= MILLION
    }

    /// Whether the phase includes a slice.
    pub(super) fn contains(&self, slice: u64) -> bool {
        (self.from..self.to).contains(&slice)
    }

    /// The work done in the given time.
    pub(super) fn work(&self, used: SpanTime) -> Work {
        // In two steps: years of nanoseconds times millionths do not fit in 64 bits.
        let of = |time: u64| {
            move |rate: u64| {
                (time / MILLION).saturating_mul(rate).saturating_add(time % MILLION * rate / MILLION)
            }
        };
        let mut work = self.held.map(of(used.held));
        work += self.present.map(of(used.present));
        work
    }

    /// Hundredths of nanoseconds at full heat in a slice in which the worker has `held` nanoseconds. Clocks and
    /// SMs give most of it, then tensor cores, then memory.
    pub(super) fn heat(&self, held: u64) -> u64 {
        let Work { sm, tensor, dram, .. } = self.held;
        let part = |share: u64| held * share / MILLION;
        30 * held
            + 30 * part(sm)
            + 25 * part(tensor)
            + 15 * part(dram)
            + 2 * (SLICE * (self.present.encoder + self.present.decoder) / MILLION)
    }
}
