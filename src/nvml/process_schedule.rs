//! Decides when the process lists and the utilization samples per process are read.
//!
//! They are the most expensive calls (a graphics list took 4.5 ms on one board) and mostly repeat what is known.
//! The inputs are what a tick has read without them and the stretch of the driver-time budget. docs/sampling.md
//! says why the account stays exact. No driver is called here.

use std::collections::{BTreeMap, BTreeSet};

use super::calls;
use super::driver_api::{DriverApi, Handle};
use crate::catalogue::CallValue;
use crate::model::{Absence, Nanoseconds, ProcessSample};

/// How long a process must have had no sample before its list is read again; sample windows of some boards are
/// longer than a short tick.
const IDLE_AFTER: Nanoseconds = Nanoseconds(500_000_000);

/// The most unlisted pids that are remembered.
const MOST_UNLISTED: usize = 1_024;

/// While memory does not change, the graphics list is read on every fifth slow tick only.
const GRAPHICS_EVERY: u64 = 5;

/// The longest stretch of the graphics list, which is read with the slow tier already.
const MOST_GRAPHICS: u32 = 4;

/// What a tick knows before it reads anything about processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickState {
    pub(super) now: Nanoseconds,
    /// Whether the medium and the slow tier are due, however far they are stretched.
    pub(super) medium: bool,
    pub(super) slow: bool,
    /// Whether the medium tier was read in this tick.
    pub(super) read: bool,
    /// Whether an event such as an XID requires everything to be read.
    pub(super) all: bool,
    /// Whether the driver is known to return samples per process, or may do so.
    pub(super) may_have_samples: bool,
    /// Whether samples are published even if only one process is there.
    pub(super) shown: bool,
    /// Whether the GPU did anything; absent if that is not known for the whole tick.
    pub(super) busy: Option<bool>,
}

/// What a tick knows before it reads lists.
pub(super) struct ScheduleInputs<'a> {
    pub(super) state: TickState,
    /// New samples per process; absent if the driver has none or they were not read.
    pub(super) samples: Option<&'a [ProcessSample]>,
}

/// Pids of the lists as last read; absent if a list failed and may work later.
pub(super) struct ListedPids {
    pub(super) compute: Option<BTreeSet<u32>>,
    pub(super) graphics: Option<BTreeSet<u32>>,
    /// Whether compute processes are listed at all; some drivers refuse that list for good.
    pub(super) lists_compute: bool,
}

/// Calls of which the stretch lets one in so many be made.
#[derive(Clone, Copy)]
enum Ration {
    /// The compute list, with the medium tier.
    Compute,
    /// The compute list, on any tick.
    Tick,
    /// The graphics list, with the slow tier.
    Graphics,
}

/// Lists to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListsDue {
    pub(super) compute: bool,
    pub(super) graphics: bool,
}

/// State between ticks.
#[derive(Default)]
pub(super) struct ProcessSchedule {
    /// Whether the presence of a process decides who holds the GPU.
    pub(super) presence: bool,
    /// One in so many rationed calls is made.
    stretch: u32,
    due_counts: [u64; Ration::Graphics as usize + 1],
    /// Slow ticks since the graphics list was last read.
    slow_ticks: u64,
    memory: MemoryWatch,
    /// Whether memory changed since the compute list was last due.
    memory_keeps_changing: bool,
    /// Whether the last samples named no process and the GPU has been idle since.
    was_idle: bool,
    /// When a listed process last had a sample.
    last_sample_at: BTreeMap<u32, Nanoseconds>,
    /// Pids that have samples but are on no list: of other PID namespaces, or just ended.
    unlisted: BTreeSet<u32>,
    /// Whether the GPU was already busy without listed processes on the tick before.
    was_unexplained: bool,
    /// Lists that were due in the last tick and exceeded its calls.
    postponed: ListsDue,
}

impl ProcessSchedule {
    pub(super) fn new(presence: bool) -> Self {
        Self { presence, stretch: 1, ..Self::default() }
    }

    /// Sets the stretch of rationed calls; under presence nothing is rationed.
    pub(super) fn stretch(&mut self, stretch: u32) {
        self.stretch = if self.presence { 1 } else { stretch.max(1) };
    }

    /// Memory in use.
    pub(super) fn memory(&mut self) -> &mut MemoryWatch {
        &mut self.memory
    }

    /// Whether memory in use must be read in this tick.
    pub(super) fn needs_memory(&self, state: &TickState, known: &ListedPids) -> bool {
        let tier = state.medium || state.slow || state.all;
        tier || self.presence || !state.may_have_samples || known.count().is_none_or(|count| count < 2)
    }

    /// Whether samples must be read; called after memory was read.
    pub(super) fn needs_samples(&self, state: &TickState, known: &ListedPids) -> bool {
        // If memory differs from when a list was read, an unlisted process may be there.
        let still = self.memory.is_known() && !self.memory.changed() && !self.memory.changed_since_graphics();
        let alone =
            known.count() == Some(1) && known.lists_compute && self.unlisted.is_empty() && !state.shown;
        let checked = state.read || state.slow;
        !(self.is_idle(state) || still && alone && !checked && state.busy.is_some())
    }

    /// Whether the next answer must leave out the time in which samples were not read: either nothing ran, or
    /// other processes did, next to which a new one would get too little weight.
    pub(super) fn drops_deferred_samples(&self, state: &TickState) -> bool {
        self.is_idle(state) || self.memory.changed()
    }

    fn is_idle(&self, state: &TickState) -> bool {
        state.busy == Some(false) && self.was_idle
    }

    /// Selects the lists to read.
    pub(super) fn select_lists(&mut self, inputs: &ScheduleInputs<'_>, known: &ListedPids) -> ListsDue {
        let state = &inputs.state;
        if state.slow {
            self.unlisted.clear();
        }
        let (Some(compute), Some(graphics)) = (&known.compute, &known.graphics) else {
            return ListsDue { compute: known.compute.is_none(), graphics: known.graphics.is_none() };
        };
        let nobody = compute.is_empty() && graphics.is_empty();
        let mut lists = std::mem::take(&mut self.postponed);
        lists.compute |= self.compute_is_due(state, known.count().unwrap_or(0));
        lists.graphics |= self.graphics_is_due(state);
        let is_unexplained = state.busy == Some(true) && nobody;
        lists.graphics |= is_unexplained && !self.was_unexplained;
        self.was_unexplained = is_unexplained;
        for pid in self.newly_idle(inputs) {
            lists.compute |= compute.contains(&pid);
            lists.graphics |= graphics.contains(&pid);
        }
        lists.compute |=
            inputs.samples.unwrap_or_default().iter().any(|sample| self.is_unknown(sample.pid, known));
        lists
    }

    fn compute_is_due(&mut self, state: &TickState, count: usize) -> bool {
        let without_samples = self.presence || !state.may_have_samples;
        let by_tier = self.ration(Ration::Compute, state.medium);
        if !self.memory.is_known() {
            return by_tier
                || state.all
                || self.presence
                || ((without_samples || count == 0) && self.ration(Ration::Tick, true));
        }
        let changed = self.memory.changed();
        self.memory_keeps_changing &= !by_tier;
        // Memory may change for ever: by the driver's housekeeping on an empty GPU, or by tenants that keep
        // allocating where there are no samples (MIG). The first change is followed at once, later ones by
        // ration.
        let rationed = (!state.may_have_samples || count == 0)
            && self.ration(Ration::Tick, changed && self.memory_keeps_changing);
        let first = (!state.may_have_samples || count < 2) && !self.memory_keeps_changing;
        let at_once = self.presence || rationed || first;
        self.memory_keeps_changing |= changed && !by_tier;
        (changed && (at_once || by_tier)) || (without_samples && by_tier) || state.slow || state.all
    }

    fn graphics_is_due(&mut self, state: &TickState) -> bool {
        let changed = !self.memory.is_known() || self.memory.changed_since_graphics();
        let by_tier = self.ration(Ration::Graphics, state.slow);
        self.slow_ticks += u64::from(state.slow);
        by_tier && changed || self.slow_ticks >= GRAPHICS_EVERY || self.presence && changed && state.medium
    }

    /// Whether the graphics list is needed too, after the compute list was read.
    pub(super) fn needs_graphics_too(&self, samples: &[ProcessSample], known: &ListedPids) -> bool {
        let unexplained = self.memory.is_known() && self.memory.changed_since_graphics();
        (unexplained && known.count() == Some(0))
            || samples.iter().any(|sample| self.is_unknown(sample.pid, known))
    }

    /// Postpones lists to the next tick.
    pub(super) fn postpone(&mut self, lists: ListsDue) {
        self.postponed = lists;
    }

    /// Records which lists were read.
    pub(super) fn note_read(&mut self, lists: ListsDue) {
        if lists.compute {
            self.memory.compute.clone_from(&self.memory.now);
        }
        if lists.graphics {
            self.slow_ticks = 0;
            self.memory.graphics.clone_from(&self.memory.now);
        }
    }

    /// Remembers which processes have samples, and which of them are unlisted.
    pub(super) fn note_samples(&mut self, inputs: &ScheduleInputs<'_>, known: &ListedPids) {
        // Work late in a tick has its sample in the next one.
        let names_nobody = inputs.samples.map_or(self.was_idle, <[_]>::is_empty);
        self.was_idle = names_nobody && inputs.state.busy == Some(false);
        for pid in inputs.samples.unwrap_or_default().iter().map(|sample| sample.pid) {
            if known.has(pid) {
                self.last_sample_at.insert(pid, inputs.state.now);
            } else if self.unlisted.len() < MOST_UNLISTED && self.postponed == ListsDue::default() {
                self.unlisted.insert(pid);
            }
        }
        self.last_sample_at.retain(|pid, _| known.has(*pid));
    }

    /// Whether a rationed call is made; `is_due` says whether it would be without one.
    fn ration(&mut self, call: Ration, is_due: bool) -> bool {
        if !is_due {
            return false;
        }
        let most = if matches!(call, Ration::Graphics) { MOST_GRAPHICS } else { u32::MAX };
        let count = &mut self.due_counts[call as usize];
        *count += 1;
        (*count - 1).is_multiple_of(self.stretch.clamp(1, most).into())
    }

    fn is_unknown(&self, pid: u32, known: &ListedPids) -> bool {
        !known.has(pid) && !self.unlisted.contains(&pid) && self.unlisted.len() < MOST_UNLISTED
    }

    /// Listed processes that stopped having samples; each is returned once.
    fn newly_idle(&mut self, inputs: &ScheduleInputs<'_>) -> Vec<u32> {
        let Some(samples) = inputs.samples else { return Vec::new() };
        let active: BTreeSet<u32> = samples.iter().map(|sample| sample.pid).collect();
        let now = inputs.state.now;
        let newly_idle: Vec<u32> = self
            .last_sample_at
            .iter()
            .filter(|(pid, at)| !active.contains(pid) && now.0.saturating_sub(at.0) >= IDLE_AFTER.0)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in &newly_idle {
            self.last_sample_at.remove(pid);
        }
        newly_idle
    }
}

impl ListedPids {
    /// How many processes are listed; absent while a list is missing.
    pub(super) fn count(&self) -> Option<usize> {
        let (compute, graphics) = (self.compute.as_ref()?, self.graphics.as_ref()?);
        Some(compute.union(graphics).count())
    }

    fn has(&self, pid: u32) -> bool {
        let on = |list: &Option<BTreeSet<u32>>| list.as_ref().is_some_and(|pids| pids.contains(&pid));
        on(&self.compute) || on(&self.graphics)
    }
}

/// Memory in use now and when each list was last read; a change is a cheap sign that a process came or went, since
/// every context allocates some.
#[derive(Default)]
pub(super) struct MemoryWatch {
    /// By device; absent if it is not known for this tick.
    now: Option<Vec<u64>>,
    compute: Option<Vec<u64>>,
    graphics: Option<Vec<u64>>,
    /// Whether the driver refused for good.
    refused: bool,
}

impl MemoryWatch {
    /// Reads the memory in use of each device.
    pub(super) fn read(&mut self, api: &mut DriverApi, devices: impl Iterator<Item = Handle>) {
        self.now = None;
        if self.refused {
            return;
        }
        let used = |device| calls::memory(api, device).and_then(|memory| memory.get(CallValue::MemoryUsed));
        self.set(devices.map(used).collect());
    }

    /// Sets memory in use from an answer; a failed read leaves it unknown.
    pub(super) fn set(&mut self, answer: Result<Vec<u64>, Absence>) {
        self.refused = answer.as_ref().is_err_and(|absence| absence.is_permanent());
        self.now = answer.ok();
    }

    /// Clears the value of the tick before.
    pub(super) fn clear(&mut self) {
        self.now = None;
    }

    /// Whether it was read in this tick.
    pub(super) fn is_known(&self) -> bool {
        self.now.is_some()
    }

    /// Whether it differs from when the compute list was read.
    pub(super) fn changed(&self) -> bool {
        self.now != self.compute
    }

    /// Whether it differs from when the graphics list was read.
    fn changed_since_graphics(&self) -> bool {
        self.now != self.graphics
    }
}

#[cfg(test)]
mod tests;
