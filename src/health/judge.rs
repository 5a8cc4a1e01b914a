//! The judge of one GPU: applies every rule at every tick, and remembers what it must.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use super::inputs::{HealthInput, HealthInputs};
use super::rules::{ClearedBy, Condition, RULES, Rule};
use crate::catalogue::xid;
use crate::model::{HealthState, Nanoseconds, Notice, Reason, Remedy, Stamp, StickyFault, Utc, Verdict};

/// What was heard of a GPU since it was last judged.
#[derive(Clone, Debug, Default)]
pub struct ReceivedEvents {
    /// XIDs by code: how many, and the GPU instance of the last one that named one.
    pub xids: BTreeMap<u32, (u64, Option<u32>)>,
    /// Notices of the driver, and how many.
    pub notices: BTreeMap<Notice, u64>,
}

/// No reason names more codes than this; a driver that sends more sends garbage.
const MOST_CODES: usize = 16;

/// Judges one GPU.
#[derive(Debug)]
pub struct Judge {
    states: Vec<RuleState>,
    life: u64,
    verdict: Arc<Verdict>,
}

/// What is remembered for one rule.
#[derive(Clone, Debug, Default)]
struct RuleState {
    /// Since when it counts, if it does.
    open: Option<Utc>,
    /// Since when it is so, on both clocks.
    begun: Option<Stamp>,
    /// Condition it was last so.
    last: Nanoseconds,
    /// Where a growing counter stood, and when.
    anchor: Option<(Nanoseconds, i64)>,
    /// XIDs by code: how many, and the last instance.
    codes: BTreeMap<u32, (u64, Option<u32>)>,
    /// What is told of it: two numbers, whose meaning is the rule's.
    seen: (i64, i64),
    evidence: Arc<str>,
}

impl Default for Judge {
    fn default() -> Self {
        Self { states: vec![RuleState::default(); RULES.len()], life: 0, verdict: Arc::default() }
    }
}

impl Judge {
    /// Judges by what is known now. A sign that is not known changes nothing.
    pub fn judge(&mut self, now: Stamp, signs: &HealthInputs, heard: &ReceivedEvents) -> Arc<Verdict> {
        let reborn = signs.life != self.life;
        self.life = signs.life;
        let mut changed = self.verdict.reasons.is_empty();
        for (rule, state) in RULES.iter().zip(&mut self.states) {
            if reborn && rule.clears == ClearedBy::Reset {
                changed |= state.open.is_some();
                *state = RuleState::default();
            }
            changed |= state.apply(rule, now, signs, heard);
        }
        if changed {
            let verdict = self.sum_up();
            if verdict != *self.verdict {
                self.verdict = Arc::new(verdict);
            }
        }
        Arc::clone(&self.verdict)
    }

    /// What of it only a reset ends.
    pub fn latches(&self) -> Vec<StickyFault> {
        let rules = RULES.iter().zip(&self.states).filter(|(rule, _)| rule.clears == ClearedBy::Reset);
        rules.filter_map(|(rule, state)| state.latch(rule)).collect()
    }

    /// Goes on from what was latched in the agent's last life. A rule that is not known any more, or that
    /// something else ends now, is passed over.
    pub fn recover(&mut self, latches: &[StickyFault]) {
        for (rule, state) in RULES.iter().zip(&mut self.states) {
            let known = latches.iter().find(|latch| *latch.rule == *rule.name);
            if let Some(latch) = known.filter(|_| rule.clears == ClearedBy::Reset) {
                state.recover(rule, latch);
            }
        }
    }

    fn sum_up(&self) -> Verdict {
        let mut reasons: Vec<Reason> = RULES
            .iter()
            .zip(&self.states)
            .filter_map(|(rule, state)| {
                Some(Reason {
                    rule: rule.name,
                    state: rule.state,
                    remedy: rule.remedy,
                    what: rule.what,
                    evidence: Arc::clone(&state.evidence),
                    since: state.open?,
                    clears: rule.clears.words(),
                })
            })
            .collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse((reason.state, reason.remedy)));
        let worst = reasons.first();
        Verdict {
            state: worst.map_or(HealthState::Ok, |reason| reason.state),
            remedy: worst.map_or(Remedy::None, |reason| reason.remedy),
            reasons,
        }
    }
}

impl RuleState {
    fn latch(&self, rule: &Rule) -> Option<StickyFault> {
        let (count, _) = self.seen;
        Some(StickyFault {
            rule: rule.name.into(),
            since: self.open?,
            count: u64::try_from(count).unwrap_or(0),
            xids: self.codes.clone(),
        })
    }

    fn recover(&mut self, rule: &Rule, latch: &StickyFault) {
        self.open = Some(latch.since);
        self.seen = (i64::try_from(latch.count).unwrap_or(i64::MAX), 0);
        self.codes = latch.xids.iter().take(MOST_CODES).map(|(code, seen)| (*code, *seen)).collect();
        self.tell(&rule.when);
    }

    /// Applies a rule; whether what is told of it has changed.
    fn apply(&mut self, rule: &Rule, now: Stamp, signs: &HealthInputs, heard: &ReceivedEvents) -> bool {
        let Some(so) = self.is_so(&rule.when, now, signs, heard) else { return false };
        if so {
            let begun = *self.begun.get_or_insert(now);
            self.last = now.boottime;
            let opens = self.open.is_none() && now.since(begun) >= rule.after;
            if opens {
                self.open = Some(begun.utc);
            }
            let retold = self.open.is_some() && self.tell(&rule.when);
            return opens || retold;
        }
        let quiet = Nanoseconds(now.boottime.0.saturating_sub(self.last.0));
        let over = match rule.clears {
            ClearedBy::AtOnce => true,
            ClearedBy::Quiet(long) => self.open.is_none() || quiet >= long,
            ClearedBy::Reset => self.open.is_none(),
        };
        if !over {
            return false;
        }
        self.begun = None;
        self.codes.clear();
        self.open.take().is_some()
    }

    /// Whether it is so now; absent when that is not known.
    fn is_so(
        &mut self,
        when: &Condition,
        now: Stamp,
        signs: &HealthInputs,
        heard: &ReceivedEvents,
    ) -> Option<bool> {
        match *when {
            Condition::Is(presence) => Some(signs.presence == presence),
            Condition::Positive(sign) => {
                let value = signs.get(sign)?;
                self.seen = (value, 0);
                Some(value > 0)
            }
            Condition::Below(less, more) => {
                self.seen = (signs.get(less)?, signs.get(more)?);
                Some(self.seen.0 < self.seen.1)
            }
            Condition::Grows(sign, by, within) => self.grows(now.boottime, signs.get(sign)?, by, within),
            Condition::Xid(which) => Some(self.hear(which, heard)),
            Condition::Noticed(notice) => {
                let count = heard.notices.get(&notice).copied().unwrap_or(0);
                let before = if self.open.is_some() { self.seen.0 } else { 0 };
                self.seen = (before.saturating_add(i64::try_from(count).unwrap_or(i64::MAX)), 0);
                Some(count > 0)
            }
        }
    }

    /// A counter that went back begins anew.
    fn grows(&mut self, now: Nanoseconds, value: i64, by: i64, within: Nanoseconds) -> Option<bool> {
        let Some((at, stood)) = self.anchor.filter(|(_, stood)| *stood <= value) else {
            self.anchor = Some((now, value));
            return None;
        };
        let grown = value.saturating_sub(stood);
        if grown >= by {
            let before = if self.open.is_some() { self.seen.0 } else { 0 };
            self.seen = (before.saturating_add(grown), value);
            self.anchor = Some((now, value));
        } else if now.0.saturating_sub(at.0) >= within.0 {
            self.anchor = Some((now, value));
        }
        Some(grown >= by)
    }

    fn hear(&mut self, which: fn(&xid::Xid) -> bool, heard: &ReceivedEvents) -> bool {
        let mut any = false;
        for (code, (count, instance)) in &heard.xids {
            if *count == 0 || !which(&xid::described(*code)) {
                continue;
            }
            any = true;
            if self.codes.len() < MOST_CODES || self.codes.contains_key(code) {
                let seen = self.codes.entry(*code).or_default();
                seen.0 = seen.0.saturating_add(*count);
                seen.1 = instance.or(seen.1);
            }
        }
        any
    }

    /// Puts into words what was seen; whether the words are new.
    fn tell(&mut self, when: &Condition) -> bool {
        let (first, second) = self.seen;
        let words = match *when {
            Condition::Is(_) => String::new(),
            Condition::Positive(sign) => positive(sign, first),
            Condition::Below(..) => format!("{first} of {second}"),
            Condition::Grows(..) => format!("{first} more, {second} in all"),
            Condition::Xid(_) => self.xids(),
            Condition::Noticed(_) => times(u64::try_from(first).unwrap_or(0)),
        };
        let new = *words != *self.evidence;
        if new {
            self.evidence = words.into();
        }
        new
    }

    fn xids(&self) -> String {
        self.codes.iter().fold(String::new(), |mut words, (code, (count, instance))| {
            let comma = if words.is_empty() { "" } else { "; " };
            // Writing to a string does not fail.
            let _ = write!(words, "{comma}XID {code} ({}) {}", xid::text(*code), times(*count));
            if let Some(instance) = instance {
                let _ = write!(words, ", last on GPU instance {instance}");
            }
            words
        })
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

fn positive(sign: HealthInput, value: i64) -> String {
    match sign {
        HealthInput::EccUncorrectable => format!("{value} errors"),
        _ => String::new(),
    }
}
