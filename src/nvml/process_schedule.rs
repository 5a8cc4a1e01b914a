//! Decides when the process lists and the utilization samples per process are read.
//!
//! They are the most expensive calls (a graphics list took 4.5 ms on one board) and mostly repeat what is known.
//! The inputs are what a tick has read without them and the stretch of the driver-time budget. docs/sampling.md
//! says why the account stays exact. No driver is called here.

use std::collections::{BTreeMap, BTreeSet};

use super::memory_watch::MemoryWatch;
use crate::model::{Nanoseconds, ProcessSample};

/// How long a process must have had no sample before its list is read again; sample windows of some boards are
/// longer than a short tick.
const SILENCE: Nanoseconds = Nanoseconds(500_000_000);

/// The most unlisted pids that are remembered.
const MOST_STRANGERS: usize = 1_024;

/// While memory does not change, the graphics list is read on every fifth slow tick only.
const SELDOM: u64 = 5;

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
    pub(super) gives_samples: bool,
    /// Whether samples are published even if only one process is there.
    pub(super) shown: bool,
    /// Whether the GPU did anything; absent if that is not known for the whole tick.
    pub(super) busy: Option<bool>,
}

/// What a tick knows before it reads lists.
pub(super) struct TickSamples<'a> {
    pub(super) occasion: TickState,
    /// New samples per process; absent if the driver has none or they were not read.
    pub(super) samples: Option<&'a [ProcessSample]>,
}

/// Pids of the lists as last read; absent if a list failed and may work later.
pub(super) struct ListedPids {
    pub(super) compute: Option<BTreeSet<u32>>,
    pub(super) graphics: Option<BTreeSet<u32>>,
    /// Whether compute processes are listed at all; some drivers refuse that list for good.
    pub(super) names_all: bool,
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
    presence: bool,
    /// One in so many rationed calls is made.
    stretch: u32,
    turns: [u64; Ration::Graphics as usize + 1],
    /// Slow ticks since the graphics list was last read.
    passed: u64,
    memory: MemoryWatch,
    /// Whether memory changed since the compute list was last due.
    restless: bool,
    /// Whether the last samples named no process and the GPU has been idle since.
    hushed: bool,
    /// When a listed process last had a sample.
    heard: BTreeMap<u32, Nanoseconds>,
    /// Pids that have samples but are on no list: of other PID namespaces, or just ended.
    strangers: BTreeSet<u32>,
    /// Whether the GPU was already busy without listed processes on the tick before.
    wondered: bool,
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
    pub(super) fn needs_memory(&self, occasion: &TickState, known: &ListedPids) -> bool {
        let tier = occasion.medium || occasion.slow || occasion.all;
        tier || self.presence || !occasion.gives_samples || known.count().is_none_or(|count| count < 2)
    }

    /// Whether samples must be read; called after memory was read.
    pub(super) fn needs_samples(&self, occasion: &TickState, known: &ListedPids) -> bool {
        // If memory differs from when a list was read, an unlisted process may be there.
        let still = self.memory.is_known() && !self.memory.moved() && !self.memory.moved_since_graphics();
        let alone =
            known.count() == Some(1) && known.names_all && self.strangers.is_empty() && !occasion.shown;
        let checked = occasion.read || occasion.slow;
        !(self.does_nothing(occasion) || still && alone && !checked && occasion.busy.is_some())
    }

    /// Whether the next answer must leave out the time in which samples were not read: either nothing ran, or
    /// other processes did, next to which a new one would get too little weight.
    pub(super) fn counts_anew(&self, occasion: &TickState) -> bool {
        self.does_nothing(occasion) || self.memory.moved()
    }

    fn does_nothing(&self, occasion: &TickState) -> bool {
        occasion.busy == Some(false) && self.hushed
    }

    /// Selects the lists to read.
    pub(super) fn select_lists(&mut self, signs: &TickSamples<'_>, known: &ListedPids) -> ListsDue {
        let occasion = &signs.occasion;
        if occasion.slow {
            self.strangers.clear();
        }
        let (Some(compute), Some(graphics)) = (&known.compute, &known.graphics) else {
            return ListsDue { compute: known.compute.is_none(), graphics: known.graphics.is_none() };
        };
        let nobody = compute.is_empty() && graphics.is_empty();
        let mut look = std::mem::take(&mut self.postponed);
        look.compute |= self.compute_is_due(occasion, known.count().unwrap_or(0));
        look.graphics |= self.graphics_is_due(occasion);
        let wondering = occasion.busy == Some(true) && nobody;
        look.graphics |= wondering && !self.wondered;
        self.wondered = wondering;
        for pid in self.silent(signs) {
            look.compute |= compute.contains(&pid);
            look.graphics |= graphics.contains(&pid);
        }
        look.compute |= signs.samples.unwrap_or_default().iter().any(|sample| self.is_new(sample.pid, known));
        look
    }

    fn compute_is_due(&mut self, occasion: &TickState, count: usize) -> bool {
        let deaf = self.presence || !occasion.gives_samples;
        let turn = self.takes(Ration::Compute, occasion.medium);
        if !self.memory.is_known() {
            return turn
                || occasion.all
                || self.presence
                || ((deaf || count == 0) && self.takes(Ration::Tick, true));
        }
        let moved = self.memory.moved();
        self.restless &= !turn;
        // Memory may change for ever: by the driver's housekeeping on an empty GPU, or by tenants that keep
        // allocating where there are no samples (MIG). The first change is followed at once, later ones by
        // ration.
        let rationed =
            (!occasion.gives_samples || count == 0) && self.takes(Ration::Tick, moved && self.restless);
        let first = (!occasion.gives_samples || count < 2) && !self.restless;
        let at_once = self.presence || rationed || first;
        self.restless |= moved && !turn;
        (moved && (at_once || turn)) || (deaf && turn) || occasion.slow || occasion.all
    }

    fn graphics_is_due(&mut self, occasion: &TickState) -> bool {
        let moved = !self.memory.is_known() || self.memory.moved_since_graphics();
        let turn = self.takes(Ration::Graphics, occasion.slow);
        self.passed += u64::from(occasion.slow);
        turn && moved || self.passed >= SELDOM || self.presence && moved && occasion.medium
    }

    /// Whether the graphics list is needed too, after the compute list was read.
    pub(super) fn needs_graphics_too(&self, samples: &[ProcessSample], known: &ListedPids) -> bool {
        let unexplained = self.memory.is_known() && self.memory.moved_since_graphics();
        (unexplained && known.count() == Some(0))
            || samples.iter().any(|sample| self.is_new(sample.pid, known))
    }

    /// Whether the compute list is read even if the tick has no calls left: under presence it decides who holds.
    pub(super) fn cannot_wait(&self) -> bool {
        self.presence
    }

    /// Postpones lists to the next tick.
    pub(super) fn postpone(&mut self, look: ListsDue) {
        self.postponed = look;
    }

    /// Records which lists were read.
    pub(super) fn note_read(&mut self, look: ListsDue) {
        if look.compute {
            self.memory.listed();
        }
        if look.graphics {
            self.passed = 0;
            self.memory.listed_graphics();
        }
    }

    /// Remembers which processes have samples, and which of them are unlisted.
    pub(super) fn settle(&mut self, signs: &TickSamples<'_>, known: &ListedPids) {
        // Work late in a tick has its sample in the next one.
        let told_of_nobody = signs.samples.map_or(self.hushed, <[_]>::is_empty);
        self.hushed = told_of_nobody && signs.occasion.busy == Some(false);
        for pid in signs.samples.unwrap_or_default().iter().map(|sample| sample.pid) {
            if known.has(pid) {
                self.heard.insert(pid, signs.occasion.now);
            } else if self.strangers.len() < MOST_STRANGERS && self.postponed == ListsDue::default() {
                self.strangers.insert(pid);
            }
        }
        self.heard.retain(|pid, _| known.has(*pid));
    }

    /// Whether a rationed call is made; `comes_up` says that it is due.
    fn takes(&mut self, turn: Ration, comes_up: bool) -> bool {
        if !comes_up {
            return false;
        }
        let most = if matches!(turn, Ration::Graphics) { MOST_GRAPHICS } else { u32::MAX };
        let turns = &mut self.turns[turn as usize];
        *turns += 1;
        (*turns - 1).is_multiple_of(self.stretch.clamp(1, most).into())
    }

    fn is_new(&self, pid: u32, known: &ListedPids) -> bool {
        !known.has(pid) && !self.strangers.contains(&pid) && self.strangers.len() < MOST_STRANGERS
    }

    /// Listed processes that stopped having samples; each is returned once.
    fn silent(&mut self, signs: &TickSamples<'_>) -> Vec<u32> {
        let Some(samples) = signs.samples else { return Vec::new() };
        let heard: BTreeSet<u32> = samples.iter().map(|sample| sample.pid).collect();
        let now = signs.occasion.now;
        let silent: Vec<u32> = self
            .heard
            .iter()
            .filter(|(pid, at)| !heard.contains(pid) && now.0.saturating_sub(at.0) >= SILENCE.0)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in &silent {
            self.heard.remove(pid);
        }
        silent
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

#[cfg(test)]
mod tests;
