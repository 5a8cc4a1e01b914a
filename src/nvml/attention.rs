//! When to ask the driver who is on a GPU, and how busy each process kept it: the dearest calls there are (4.5 ms were
//! seen for the graphics list), which mostly tell what was known before.
//!
//! In go what a tick knows without them and how far lists are stretched; out comes what to ask for. Why the account
//! gets what it needs all the same is told in docs/sampling.md. It calls no driver and knows neither
//! holders nor what a list costs.

use std::collections::{BTreeMap, BTreeSet};

use super::footprint::Footprint;
use crate::model::{Nanoseconds, ProcessSample};

/// How long a process that worked must have been silent before it is looked for: some boards' sample windows
/// are longer than a short tick.
const SILENCE: Nanoseconds = Nanoseconds(500_000_000);

/// The most pids that are remembered as being on no list.
const MOST_STRANGERS: usize = 1_024;

/// The graphics list has one in so many of its turns while memory stands still.
const SELDOM: u64 = 5;

/// The most that graphics lists are stretched: their turn is with the slow tier already.
const MOST_GRAPHICS: u32 = 4;

/// What a tick knows before it asks for anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasion {
    pub(super) now: Nanoseconds,
    /// Whether the medium and the slow tier are due, however far they are stretched.
    pub(super) medium: bool,
    pub(super) slow: bool,
    /// Whether the medium tier was read, stretched as it is.
    pub(super) read: bool,
    /// Whether something happened after which everything is looked at.
    pub(super) all: bool,
    /// Whether the driver may give samples per process.
    pub(super) gives_samples: bool,
    /// Whether somebody wants to see the samples of one who is alone, too.
    pub(super) shown: bool,
    /// Whether the GPU did anything; none where that is not known of the whole tick.
    pub(super) busy: Option<bool>,
}

/// What a tick knows before it asks for lists.
pub(super) struct Signs<'a> {
    pub(super) occasion: Occasion,
    /// Samples per process that are new; none where the driver gives none, and where they rested.
    pub(super) samples: Option<&'a [ProcessSample]>,
}

/// Pids on the lists as they were last answered; none where a list could not be had and may yet.
pub(super) struct Known {
    pub(super) compute: Option<BTreeSet<u32>>,
    pub(super) graphics: Option<BTreeSet<u32>>,
    /// Whether who computes is on a list at all; some drivers never give it.
    pub(super) names_all: bool,
}

/// What comes up again and again, of which only so many are taken.
#[derive(Clone, Copy)]
enum Turn {
    /// The compute list, with the medium tier.
    Compute,
    /// The compute list in a tick of its own.
    Tick,
    /// The graphics list, with the slow tier.
    Graphics,
}

/// Which lists are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) compute: bool,
    pub(super) graphics: bool,
}

/// What is remembered from tick to tick.
#[derive(Default)]
pub(super) struct Attention {
    /// Whether presence decides who holds.
    presence: bool,
    /// How many turns go by for one that is taken.
    stretch: u32,
    turns: [u64; Turn::Graphics as usize + 1],
    /// Turns of the graphics list since it was last asked for.
    passed: u64,
    memory: Footprint,
    /// Whether memory moved since the compute list had its turn.
    restless: bool,
    /// Whether the samples told of nobody when they were last asked for, and nothing was done since.
    hushed: bool,
    /// When a listed process was last heard working.
    heard: BTreeMap<u32, Nanoseconds>,
    /// Pids with samples that no list names: other namespaces, and who has just ended.
    strangers: BTreeSet<u32>,
    /// Whether a busy GPU without processes was already wondered at.
    wondered: bool,
    /// What was due and had no room in its tick.
    postponed: Look,
}

impl Attention {
    pub(super) fn new(presence: bool) -> Self {
        Self { presence, stretch: 1, ..Self::default() }
    }

    /// Lets only one in so many turns be taken; what is due at once is not touched, nor is presence.
    pub(super) fn stretch(&mut self, stretch: u32) {
        self.stretch = if self.presence { 1 } else { stretch.max(1) };
    }

    /// Memory in use.
    pub(super) fn memory(&mut self) -> &mut Footprint {
        &mut self.memory
    }

    /// Whether memory in use is to be read in this tick.
    pub(super) fn needs_memory(&self, occasion: &Occasion, known: &Known) -> bool {
        let tier = occasion.medium || occasion.slow || occasion.all;
        tier || self.presence || !occasion.gives_samples || known.count().is_none_or(|count| count < 2)
    }

    /// Whether samples are to be asked for, after memory was read where it is needed.
    pub(super) fn needs_samples(&self, occasion: &Occasion, known: &Known) -> bool {
        // All lists were taken under this very memory, or somebody may be there whom none names yet.
        let still = self.memory.is_known() && !self.memory.moved() && !self.memory.moved_since_graphics();
        let alone =
            known.count() == Some(1) && known.names_all && self.strangers.is_empty() && !occasion.shown;
        let checked = occasion.read || occasion.slow;
        !(self.does_nothing(occasion) || still && alone && !checked && occasion.busy.is_some())
    }

    /// Whether ticks in which samples rested weigh nothing in the next answer: nothing was done in them, or they
    /// were another company's, beside whom one who came just now would weigh too little.
    pub(super) fn counts_anew(&self, occasion: &Occasion) -> bool {
        self.does_nothing(occasion) || self.memory.moved()
    }

    fn does_nothing(&self, occasion: &Occasion) -> bool {
        occasion.busy == Some(false) && self.hushed
    }

    /// What to ask for, before any list was.
    pub(super) fn look(&mut self, signs: &Signs<'_>, known: &Known) -> Look {
        let occasion = &signs.occasion;
        if occasion.slow {
            self.strangers.clear();
        }
        let (Some(compute), Some(graphics)) = (&known.compute, &known.graphics) else {
            return Look { compute: known.compute.is_none(), graphics: known.graphics.is_none() };
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

    fn compute_is_due(&mut self, occasion: &Occasion, count: usize) -> bool {
        let deaf = self.presence || !occasion.gives_samples;
        let turn = self.takes(Turn::Compute, occasion.medium);
        if !self.memory.is_known() {
            return turn
                || occasion.all
                || self.presence
                || ((deaf || count == 0) && self.takes(Turn::Tick, true));
        }
        let moved = self.memory.moved();
        self.restless &= !turn;
        // Memory may move for ever: by the driver's own housekeeping on an empty GPU, by tenants that go on allocating
        // where samples cannot tell who works (MIG). The first move is followed, then one in so many ticks.
        let rationed =
            (!occasion.gives_samples || count == 0) && self.takes(Turn::Tick, moved && self.restless);
        let first = (!occasion.gives_samples || count < 2) && !self.restless;
        let at_once = self.presence || rationed || first;
        self.restless |= moved && !turn;
        (moved && (at_once || turn)) || (deaf && turn) || occasion.slow || occasion.all
    }

    fn graphics_is_due(&mut self, occasion: &Occasion) -> bool {
        let moved = !self.memory.is_known() || self.memory.moved_since_graphics();
        let turn = self.takes(Turn::Graphics, occasion.slow);
        self.passed += u64::from(occasion.slow);
        turn && moved || self.passed >= SELDOM || self.presence && moved && occasion.medium
    }

    /// Whether the graphics list is needed too, now that the compute list was asked for.
    pub(super) fn look_further(&self, samples: &[ProcessSample], known: &Known) -> bool {
        let unexplained = self.memory.is_known() && self.memory.moved_since_graphics();
        (unexplained && known.count() == Some(0))
            || samples.iter().any(|sample| self.is_new(sample.pid, known))
    }

    /// Whether a compute list is taken even where the tick has no room: under presence it says who holds.
    pub(super) fn cannot_wait(&self) -> bool {
        self.presence
    }

    /// Puts off what has no room in this tick.
    pub(super) fn postpone(&mut self, look: Look) {
        self.postponed = look;
    }

    /// Takes note of the lists that were taken.
    pub(super) fn looked(&mut self, look: Look) {
        if look.compute {
            self.memory.listed();
        }
        if look.graphics {
            self.passed = 0;
            self.memory.listed_graphics();
        }
    }

    /// Remembers who worked, and who is on no list.
    pub(super) fn settle(&mut self, signs: &Signs<'_>, known: &Known) {
        // What is done late in a tick has its sample in the next one.
        let told_of_nobody = signs.samples.map_or(self.hushed, <[_]>::is_empty);
        self.hushed = told_of_nobody && signs.occasion.busy == Some(false);
        for pid in signs.samples.unwrap_or_default().iter().map(|sample| sample.pid) {
            if known.has(pid) {
                self.heard.insert(pid, signs.occasion.now);
            } else if self.strangers.len() < MOST_STRANGERS && self.postponed == Look::default() {
                self.strangers.insert(pid);
            }
        }
        self.heard.retain(|pid, _| known.has(*pid));
    }

    /// Whether it is taken this time, if it comes up.
    fn takes(&mut self, turn: Turn, comes_up: bool) -> bool {
        if !comes_up {
            return false;
        }
        let most = if matches!(turn, Turn::Graphics) { MOST_GRAPHICS } else { u32::MAX };
        let turns = &mut self.turns[turn as usize];
        *turns += 1;
        (*turns - 1).is_multiple_of(self.stretch.clamp(1, most).into())
    }

    fn is_new(&self, pid: u32, known: &Known) -> bool {
        !known.has(pid) && !self.strangers.contains(&pid) && self.strangers.len() < MOST_STRANGERS
    }

    /// Who worked until lately and does not any more; each is told once, when samples could tell.
    fn silent(&mut self, signs: &Signs<'_>) -> Vec<u32> {
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

impl Known {
    /// How many processes there are; none while a list is missing.
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
