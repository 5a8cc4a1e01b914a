//! When to ask the driver who is on a GPU. Its process lists are the dearest calls there are (4.5 ms were seen
//! for the graphics list), and mostly tell what was known before.
//!
//! In go what a tick knows without them; out comes which list to ask for. Lists have their turn with the medium
//! tier (compute) and the slow tier (graphics), and are due at once when something says that somebody came or
//! went. A compute list is due in every tick where nothing else could tell: while presence decides who holds,
//! where the driver gives no samples per process, and while nobody is there, which costs nobody anything, lets
//! idle power be learned and sees the first one come. It calls no driver.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Nanoseconds, ProcessSample};

/// How long a process that worked must have been silent before it is looked for: some boards' sample windows
/// are longer than a short tick.
const SILENCE: Nanoseconds = Nanoseconds(500_000_000);

/// The most pids that are remembered as being on no list.
const MOST_STRANGERS: usize = 1_024;

/// What a tick knows before it asks for lists.
pub(super) struct Signs<'a> {
    pub(super) now: Nanoseconds,
    /// Whether the medium and the slow tier had their turn in this tick.
    pub(super) medium: bool,
    pub(super) slow: bool,
    /// Samples per process that are new; none where the driver gives none.
    pub(super) samples: Option<&'a [ProcessSample]>,
    /// Whether the GPU did anything.
    pub(super) busy: bool,
}

/// Pids on the lists as they were last answered; none where a list could not be had and may yet.
pub(super) struct Known {
    pub(super) compute: Option<BTreeSet<u32>>,
    pub(super) graphics: Option<BTreeSet<u32>>,
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
    turns: [u64; 3],
    /// When a listed process was last heard working.
    heard: BTreeMap<u32, Nanoseconds>,
    /// Pids with samples that no list names: other namespaces, and who has just ended.
    strangers: BTreeSet<u32>,
    /// Whether a busy GPU without processes was already wondered at.
    wondered: bool,
}

impl Attention {
    pub(super) fn new(presence: bool) -> Self {
        Self { presence, stretch: 1, ..Self::default() }
    }

    /// Lets only every so manieth turn be taken; what is due at once is not touched, nor is presence.
    pub(super) fn stretch(&mut self, stretch: u32) {
        self.stretch = if self.presence { 1 } else { stretch.max(1) };
    }

    /// What to ask for, before anything was.
    pub(super) fn look(&mut self, signs: &Signs<'_>, known: &Known) -> Look {
        if signs.slow {
            self.strangers.clear();
        }
        let (Some(compute), Some(graphics)) = (&known.compute, &known.graphics) else {
            return Look { compute: known.compute.is_none(), graphics: known.graphics.is_none() };
        };
        let nobody = compute.is_empty() && graphics.is_empty();
        let every = self.takes(0, true) && (signs.samples.is_none() || nobody);
        let mut look = Look {
            compute: self.presence || every || self.takes(1, signs.medium),
            graphics: self.takes(2, if self.presence { signs.medium } else { signs.slow }),
        };
        let wondering = signs.busy && nobody;
        look.graphics |= wondering && !self.wondered;
        self.wondered = wondering;
        for pid in self.silent(signs) {
            look.compute |= compute.contains(&pid);
            look.graphics |= graphics.contains(&pid);
        }
        look.compute |= signs.samples.unwrap_or_default().iter().any(|sample| self.is_new(sample.pid, known));
        look
    }

    /// Whether the graphics list is needed too, now that the compute list was asked for.
    pub(super) fn look_further(&self, samples: &[ProcessSample], known: &Known) -> bool {
        samples.iter().any(|sample| self.is_new(sample.pid, known))
    }

    /// Remembers who worked, and who is on no list; whether one of these was not known.
    pub(super) fn settle(&mut self, signs: &Signs<'_>, known: &Known) -> bool {
        let mut strange = false;
        for pid in signs.samples.unwrap_or_default().iter().map(|sample| sample.pid) {
            if known.has(pid) {
                self.heard.insert(pid, signs.now);
            } else if self.strangers.len() < MOST_STRANGERS {
                strange |= self.strangers.insert(pid);
            }
        }
        self.heard.retain(|pid, _| known.has(*pid));
        strange
    }

    fn takes(&mut self, which: usize, turn: bool) -> bool {
        let Some(turns) = self.turns.get_mut(which).filter(|_| turn) else { return false };
        *turns += 1;
        (*turns - 1).is_multiple_of(self.stretch.max(1).into())
    }

    fn is_new(&self, pid: u32, known: &Known) -> bool {
        !known.has(pid) && !self.strangers.contains(&pid) && self.strangers.len() < MOST_STRANGERS
    }

    /// Who worked until lately and does not any more; each is told once.
    fn silent(&mut self, signs: &Signs<'_>) -> Vec<u32> {
        let samples = signs.samples.unwrap_or_default();
        let heard: BTreeSet<u32> = samples.iter().map(|sample| sample.pid).collect();
        let silent: Vec<u32> = self
            .heard
            .iter()
            .filter(|(pid, at)| !heard.contains(pid) && signs.now.0.saturating_sub(at.0) >= SILENCE.0)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in &silent {
            self.heard.remove(pid);
        }
        silent
    }
}

impl Known {
    fn has(&self, pid: u32) -> bool {
        let on = |list: &Option<BTreeSet<u32>>| list.as_ref().is_some_and(|pids| pids.contains(&pid));
        on(&self.compute) || on(&self.graphics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Look = Look { compute: false, graphics: false };
    const COMPUTE: Look = Look { compute: true, graphics: false };

    fn known(compute: &[u32], graphics: &[u32]) -> Known {
        let set = |pids: &[u32]| Some(pids.iter().copied().collect());
        Known { compute: set(compute), graphics: set(graphics) }
    }

    fn samples(pids: &[u32]) -> Vec<ProcessSample> {
        let of =
            |pid: &u32| ProcessSample { pid: *pid, window: 1, sm: 50, memory: None, encoder: 0, decoder: 0 };
        pids.iter().map(of).collect()
    }

    /// A tick of a second, in which these pids worked.
    fn tick(attention: &mut Attention, second: u64, pids: &[u32], known: &Known) -> Look {
        let samples = samples(pids);
        let signs = Signs {
            now: Nanoseconds::from_seconds(second),
            medium: second.is_multiple_of(5),
            slow: second.is_multiple_of(60),
            samples: Some(&samples),
            busy: !pids.is_empty(),
        };
        let look = attention.look(&signs, known);
        attention.settle(&signs, known);
        look
    }

    #[test]
    fn lists_have_their_turn_with_the_medium_and_the_slow_tier() {
        let mut attention = Attention::new(false);
        let known = known(&[7], &[]);
        let looks: Vec<_> = (1..=120).map(|second| tick(&mut attention, second, &[7], &known)).collect();
        assert_eq!(looks.iter().filter(|look| look.compute).count(), 24);
        assert_eq!(looks.iter().filter(|look| look.graphics).count(), 2);
    }

    #[test]
    fn a_pid_that_no_list_names_is_looked_for_at_once_and_only_once() {
        let mut attention = Attention::new(false);
        let known = known(&[7], &[]);
        assert_eq!(tick(&mut attention, 1, &[7], &known), NONE);
        assert_eq!(tick(&mut attention, 2, &[7, 8], &known), COMPUTE);
        assert_eq!(tick(&mut attention, 3, &[7, 8], &known), NONE);
    }

    #[test]
    fn who_worked_and_falls_silent_is_looked_for_in_the_next_tick() {
        let mut attention = Attention::new(false);
        let known = known(&[7, 8], &[9]);
        tick(&mut attention, 1, &[7, 8, 9], &known);
        assert_eq!(tick(&mut attention, 2, &[7, 9], &known), COMPUTE);
        assert_eq!(tick(&mut attention, 3, &[7, 9], &known), NONE, "it idles");
        assert_eq!(tick(&mut attention, 4, &[7], &known), Look { compute: false, graphics: true });
    }

    #[test]
    fn an_empty_gpu_is_asked_in_every_tick_and_a_busy_one_without_processes_wonders_once() {
        let mut attention = Attention::new(false);
        let nobody = known(&[], &[]);
        assert_eq!(tick(&mut attention, 1, &[], &nobody), COMPUTE);
        let wonder = |attention: &mut Attention, second| {
            let now = Nanoseconds::from_seconds(second);
            let signs = Signs { now, medium: false, slow: false, samples: Some(&[]), busy: true };
            attention.look(&signs, &nobody)
        };
        assert_eq!(wonder(&mut attention, 2), Look { compute: true, graphics: true });
        assert_eq!(wonder(&mut attention, 3), COMPUTE);
    }

    #[test]
    fn presence_is_asked_in_every_tick_however_far_lists_are_stretched() {
        let mut attention = Attention::new(true);
        attention.stretch(8);
        let known = known(&[7], &[]);
        assert!((1..20).all(|second| tick(&mut attention, second, &[7], &known).compute));
    }

    #[test]
    fn a_stretched_list_lets_turns_go_by_but_not_a_newcomer() {
        let mut attention = Attention::new(false);
        attention.stretch(4);
        let known = known(&[7], &[]);
        let looks = (1..=120).filter(|second| tick(&mut attention, *second, &[7], &known).compute).count();
        assert_eq!(looks, 6);
        assert_eq!(tick(&mut attention, 121, &[7, 8], &known), COMPUTE);
    }

    #[test]
    fn a_list_that_failed_for_now_is_asked_for_again_alone() {
        let mut attention = Attention::new(false);
        let failed = Known { compute: None, ..known(&[], &[9]) };
        assert_eq!(tick(&mut attention, 1, &[], &failed), COMPUTE);
    }
}
