//! Decides when the process lists and the utilization samples per process are read.
//!
//! They are the most expensive calls (a graphics list took 4.5 ms on one board) and mostly repeat what is known.
//! The inputs are what a tick has read without them and the stretch of the driver-time budget. docs/contributing/sampling.md
//! explains why the account stays exact. No driver is called here.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Absence, Nanoseconds, ProcessSample, Stamp};

/// How long a process must have had no sample before its list is read again; sample windows of some boards are
/// longer than a short tick.
const IDLE_AFTER: Nanoseconds = Nanoseconds(500_000_000);

const MOST_UNLISTED: usize = 1_024;

/// While memory does not change, the graphics list is read on every fifth slow tick only.
const GRAPHICS_EVERY: u64 = 5;

/// The longest stretch of the graphics list, which is read with the slow tier already.
const MOST_GRAPHICS: u32 = 4;

/// What a tick knows before it reads process lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickState<'a> {
    pub(super) begun: Stamp,
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
    /// New samples per process; absent if the driver has none, or they were not read.
    pub(super) samples: Option<&'a [ProcessSample]>,
}

/// Pids of the lists as last read; absent if a list failed and may work later.
#[derive(Clone, Default)]
pub(super) struct ListedPids {
    pub(super) compute: Option<BTreeSet<u32>>,
    pub(super) graphics: Option<BTreeSet<u32>>,
    /// Whether the driver refuses the compute list for good, as some do; then it is empty here.
    pub(super) is_compute_refused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryChange {
    Unknown,
    None,
    First,
    /// It has changed before, since the list was last due with the medium tier.
    Further,
}

/// Counts due calls of which every nth is made.
#[derive(Default)]
struct Ration(u64);

impl Ration {
    fn take(&mut self, stretch: u32) -> bool {
        self.0 += 1;
        (self.0 - 1).is_multiple_of(stretch.max(1).into())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListsDue {
    pub(super) compute: bool,
    pub(super) graphics: bool,
}

#[derive(Default)]
pub(super) struct ProcessSchedule {
    /// Whether the presence of a process decides who holds the GPU.
    pub(super) presence: bool,
    pub(super) listed: ListedPids,
    pub(super) memory: MemoryWatch,
    /// Every `stretch`-th due rationed call is made.
    stretch: u32,
    /// Rations of the compute list with the medium tier and on any tick, and of the graphics list.
    compute_turns: Ration,
    compute_ticks: Ration,
    graphics_turns: Ration,
    /// Slow ticks since the graphics list was last read.
    slow_ticks: u64,
    /// Whether memory changed since the compute list was last due.
    memory_keeps_changing: bool,
    /// Whether the last samples named no process and the GPU has been idle since.
    was_idle: bool,
    last_sample_at: BTreeMap<u32, Nanoseconds>,
    /// Pids that have samples but are on no list: of other PID namespaces, or just ended.
    unlisted: BTreeSet<u32>,
    /// Whether the GPU was already busy without listed processes on the tick before.
    was_unexplained: bool,
    postponed: ListsDue,
}

impl ProcessSchedule {
    pub(super) fn new(presence: bool) -> Self {
        Self { presence, stretch: 1, ..Self::default() }
    }

    pub(super) fn stretch(&mut self, stretch: u32) {
        self.stretch = stretch.max(1);
    }

    pub(super) fn needs_memory(&self, state: &TickState<'_>) -> bool {
        let tier = state.medium || state.slow || state.all;
        tier || self.presence || !state.may_have_samples || self.listed.count().is_none_or(|count| count < 2)
    }

    /// Whether samples must be read; called after memory was read.
    pub(super) fn needs_samples(&self, state: &TickState<'_>) -> bool {
        // If memory differs from when a list was read, an unlisted process may be there.
        let still = self.memory.is_unchanged() && self.memory.now == self.memory.graphics;
        let is_listed_alone = self.listed.count() == Some(1) && !self.listed.is_compute_refused;
        let alone = is_listed_alone && self.unlisted.is_empty() && !state.shown;
        let checked = state.read || state.slow;
        !(self.is_idle(state) || still && alone && !checked && state.busy.is_some())
    }

    /// Whether the next answer must leave out the time in which samples were not read: either nothing ran, or
    /// other processes did, next to which a new one would get too little weight.
    pub(super) fn drops_deferred_samples(&self, state: &TickState<'_>) -> bool {
        self.is_idle(state) || self.memory.now != self.memory.compute
    }

    fn is_idle(&self, state: &TickState<'_>) -> bool {
        state.busy == Some(false) && self.was_idle
    }

    pub(super) fn select_lists(&mut self, state: &TickState<'_>) -> ListsDue {
        if state.slow {
            self.unlisted.clear();
        }
        let Some(count) = self.listed.count() else {
            let ListedPids { compute, graphics, .. } = &self.listed;
            return ListsDue { compute: compute.is_none(), graphics: graphics.is_none() };
        };
        let is_compute_turn = state.medium && self.compute_turns.take(self.stretch);
        let is_graphics_turn = (state.slow || self.presence && state.medium)
            && self.graphics_turns.take(self.stretch.min(MOST_GRAPHICS));
        let memory = self.memory_change(is_compute_turn);
        let has_graphics_memory = self.memory.now.is_some() && self.memory.now == self.memory.graphics;
        let is_unsampled = self.presence || !state.may_have_samples;
        self.slow_ticks += u64::from(state.slow);
        let is_unexplained = state.busy == Some(true) && count == 0;
        let was_unexplained = std::mem::replace(&mut self.was_unexplained, is_unexplained);
        let stopped = self.take_newly_idle(state);
        let has_stopped = |list| stopped.iter().any(|pid| contains(list, *pid));
        let postponed = std::mem::take(&mut self.postponed);
        // One row for each period and condition under which a list is due.
        let compute = [
            // Any tick.
            postponed.compute,
            state.all,
            self.has_unknown_pid(state),
            has_stopped(&self.listed.compute),
            memory == MemoryChange::First && (is_unsampled || count < 2),
            // The medium tier, rationed.
            is_compute_turn && (is_unsampled || memory != MemoryChange::None),
            // The slow tier.
            state.slow && memory != MemoryChange::Unknown,
        ];
        // Any tick, rationed: memory may change for ever, by the driver's housekeeping on an empty GPU, or by tenants that
        // keep allocating where there are no samples (MIG) or presence decides who holds.
        let may_change_for_ever = matches!(memory, MemoryChange::Further | MemoryChange::Unknown);
        let is_rationed = may_change_for_ever && (is_unsampled || count == 0);
        let graphics = [
            // Any tick.
            postponed.graphics,
            is_unexplained && !was_unexplained,
            has_stopped(&self.listed.graphics),
            // The slow tier, under presence the medium one too, rationed.
            is_graphics_turn && !has_graphics_memory,
            // Every fifth slow tick.
            self.slow_ticks >= GRAPHICS_EVERY,
        ];
        ListsDue {
            compute: compute.contains(&true) || is_rationed && self.compute_ticks.take(self.stretch),
            graphics: graphics.contains(&true),
        }
    }

    /// How memory has changed in this tick; `is_compute_turn` is whether it is the compute list's turn with the medium
    /// tier, from which on the first change is followed at once again.
    fn memory_change(&mut self, is_compute_turn: bool) -> MemoryChange {
        if self.memory.now.is_none() {
            return MemoryChange::Unknown;
        }
        let keeps_changing = self.memory_keeps_changing && !is_compute_turn;
        let change = match self.memory.is_unchanged() {
            true => MemoryChange::None,
            false if keeps_changing => MemoryChange::Further,
            false => MemoryChange::First,
        };
        self.memory_keeps_changing = keeps_changing || change == MemoryChange::First && !is_compute_turn;
        change
    }

    /// Whether the graphics list is needed too, after the compute list was read.
    pub(super) fn needs_graphics_too(&self, state: &TickState<'_>) -> bool {
        let unexplained = self.memory.now.is_some() && self.memory.now != self.memory.graphics;
        (unexplained && self.listed.count() == Some(0)) || self.has_unknown_pid(state)
    }

    /// Records a tick: for each list that was read, remembers the memory in use; lists that were due but not read stay
    /// due.
    pub(super) fn note_tick(&mut self, state: &TickState<'_>, due: ListsDue, read: ListsDue) {
        if read.compute {
            self.memory.compute.clone_from(&self.memory.now);
        }
        if read.graphics {
            self.slow_ticks = 0;
            self.memory.graphics.clone_from(&self.memory.now);
        }
        self.postponed =
            ListsDue { compute: due.compute && !read.compute, graphics: due.graphics && !read.graphics };
        // The driver reports the sample of work late in a tick only in the next tick.
        let names_nobody = state.samples.map_or(self.was_idle, <[_]>::is_empty);
        self.was_idle = names_nobody && state.busy == Some(false);
        for pid in state.samples.unwrap_or_default().iter().map(|sample| sample.pid) {
            if self.listed.has(pid) {
                self.last_sample_at.insert(pid, state.begun.boottime);
            } else if self.unlisted.len() < MOST_UNLISTED && self.postponed == ListsDue::default() {
                self.unlisted.insert(pid);
            }
        }
        self.last_sample_at.retain(|pid, _| self.listed.has(*pid));
    }

    fn has_unknown_pid(&self, state: &TickState<'_>) -> bool {
        let is_unknown = |pid| !self.listed.has(pid) && !self.unlisted.contains(&pid);
        self.unlisted.len() < MOST_UNLISTED
            && state.samples.unwrap_or_default().iter().any(|sample| is_unknown(sample.pid))
    }

    /// Listed processes that stopped having samples; each is returned once.
    fn take_newly_idle(&mut self, state: &TickState<'_>) -> Vec<u32> {
        let Some(samples) = state.samples else { return Vec::new() };
        let active: BTreeSet<u32> = samples.iter().map(|sample| sample.pid).collect();
        let is_idle = |pid: &u32, at: &mut Nanoseconds| {
            !active.contains(pid) && state.begun.boottime.0.saturating_sub(at.0) >= IDLE_AFTER.0
        };
        self.last_sample_at.extract_if(.., is_idle).map(|(pid, _)| pid).collect()
    }
}

impl ListedPids {
    /// How many processes are listed; absent while a list is missing.
    pub(super) fn count(&self) -> Option<usize> {
        let (compute, graphics) = (self.compute.as_ref()?, self.graphics.as_ref()?);
        Some(compute.union(graphics).count())
    }

    fn has(&self, pid: u32) -> bool {
        contains(&self.compute, pid) || contains(&self.graphics, pid)
    }
}

fn contains(list: &Option<BTreeSet<u32>>, pid: u32) -> bool {
    list.as_ref().is_some_and(|pids| pids.contains(&pid))
}

/// Memory in use now and when each list was last read, by device; a change is a cheap sign that a process came or
/// went, since every context allocates some.
#[derive(Default)]
pub(super) struct MemoryWatch {
    /// Absent if it is not known for this tick.
    now: Option<Vec<u64>>,
    compute: Option<Vec<u64>>,
    graphics: Option<Vec<u64>>,
    pub(super) is_refused: bool,
}

impl MemoryWatch {
    /// Sets memory in use from this tick's answer; without one, or after a failed read, it is unknown.
    pub(super) fn set(&mut self, answer: Option<Result<Vec<u64>, Absence>>) {
        if let Some(answer) = &answer {
            self.is_refused = answer.as_ref().is_err_and(|absence| absence.is_permanent());
        }
        self.now = answer.and_then(Result::ok);
    }

    /// Whether it is known to be what it was when the compute list was read.
    pub(super) fn is_unchanged(&self) -> bool {
        self.now.is_some() && self.now == self.compute
    }
}

#[cfg(test)]
mod tests;
