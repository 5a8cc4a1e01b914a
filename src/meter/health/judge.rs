//! The health judge of one GPU: applies every rule in every tick and keeps the state that each needs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use super::inputs::{HealthInput, HealthInputs};
use super::rules::{ClearedBy, HealthCondition, RULES, Rule};
use crate::model::catalogue::xid;
use crate::model::{HealthState, Nanoseconds, Notice, Reason, Remedy, Stamp, StickyFault, Utc, Verdict};

/// The events that were received of a GPU since it was last judged.
#[derive(Clone, Debug, Default)]
pub struct ReceivedEvents {
    /// XIDs by code: how many, and the GPU instance of the last one that named one.
    pub xids: BTreeMap<u32, (u64, Option<u32>)>,
    pub notices: BTreeMap<Notice, u64>,
}

const MOST_CODES: usize = 16;

#[derive(Debug)]
pub struct Judge {
    states: Vec<RuleState>,
    reset_count: u64,
    verdict: Arc<Verdict>,
}

#[derive(Clone, Debug, Default)]
struct RuleState {
    /// Since when the rule is in force; none while it is not.
    open: Option<Utc>,
    /// Since when the condition holds, on both clocks.
    begun: Option<Stamp>,
    /// Boot time at which the condition last held.
    last: Nanoseconds,
    /// Reference value of a growing counter, and its boot time.
    anchor: Option<(Nanoseconds, i64)>,
    /// XIDs by code: how many, and the last instance.
    codes: BTreeMap<u32, (u64, Option<u32>)>,
    /// Two numbers for the evidence; the condition defines their meaning.
    seen: (i64, i64),
    evidence: Arc<str>,
}

impl Default for Judge {
    fn default() -> Self {
        Self { states: vec![RuleState::default(); RULES.len()], reset_count: 0, verdict: Arc::default() }
    }
}

impl Judge {
    /// Applies all rules. An unknown input changes nothing, nor does one that is known in part, unless the known part alone
    /// meets a condition.
    pub fn judge(&mut self, now: Stamp, inputs: &HealthInputs, received: &ReceivedEvents) -> Arc<Verdict> {
        let was_reset = inputs.reset_count != self.reset_count;
        self.reset_count = inputs.reset_count;
        let mut changed = self.verdict.reasons.is_empty();
        for (rule, state) in RULES.iter().zip(&mut self.states) {
            if was_reset && rule.clears == ClearedBy::Reset {
                changed |= state.open.is_some();
                *state = RuleState::default();
            }
            changed |= state.apply(rule, now, inputs, received);
        }
        if changed {
            let verdict = self.build_verdict();
            if verdict != *self.verdict {
                self.verdict = Arc::new(verdict);
            }
        }
        Arc::clone(&self.verdict)
    }

    /// The reasons that only a reset clears.
    pub fn sticky_faults(&self) -> Vec<StickyFault> {
        let rules = RULES.iter().zip(&self.states).filter(|(rule, _)| rule.clears == ClearedBy::Reset);
        rules.filter_map(|(rule, state)| state.sticky_fault(rule)).collect()
    }

    /// Restores the sticky faults of the agent's last run. A fault of an unknown rule, or of one that something else
    /// clears now, is ignored.
    pub fn restore(&mut self, sticky_faults: &[StickyFault]) {
        for (rule, state) in RULES.iter().zip(&mut self.states) {
            let known = sticky_faults.iter().find(|fault| *fault.rule == *rule.name);
            if let Some(fault) = known.filter(|_| rule.clears == ClearedBy::Reset) {
                state.restore(rule, fault);
            }
        }
    }

    fn build_verdict(&self) -> Verdict {
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
    fn sticky_fault(&self, rule: &Rule) -> Option<StickyFault> {
        let (count, _) = self.seen;
        Some(StickyFault {
            rule: rule.name.into(),
            since: self.open?,
            count: u64::try_from(count).unwrap_or(0),
            xids: self.codes.clone(),
        })
    }

    fn restore(&mut self, rule: &Rule, fault: &StickyFault) {
        self.open = Some(fault.since);
        self.seen = (i64::try_from(fault.count).unwrap_or(i64::MAX), 0);
        self.codes = fault.xids.iter().take(MOST_CODES).map(|(code, seen)| (*code, *seen)).collect();
        self.update_evidence(&rule.when);
    }

    /// Applies a rule; whether its reason or evidence has changed.
    fn apply(&mut self, rule: &Rule, now: Stamp, inputs: &HealthInputs, received: &ReceivedEvents) -> bool {
        let Some(holds) = self.evaluate(&rule.when, now, inputs, received) else { return false };
        if holds {
            let begun = *self.begun.get_or_insert(now);
            self.last = now.boottime;
            let opens = self.open.is_none() && now.since(begun) >= rule.after;
            if opens {
                self.open = Some(begun.utc);
            }
            let evidence_changed = self.open.is_some() && self.update_evidence(&rule.when);
            return opens || evidence_changed;
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

    /// Whether the condition holds; none where that is not known.
    fn evaluate(
        &mut self,
        when: &HealthCondition,
        now: Stamp,
        inputs: &HealthInputs,
        received: &ReceivedEvents,
    ) -> Option<bool> {
        match *when {
            HealthCondition::Is(presence) => Some(inputs.presence == presence),
            HealthCondition::Positive(input) => self.is_positive(inputs, input),
            HealthCondition::Below(less, more) => {
                self.seen = (inputs.get(less)?, inputs.get(more)?);
                Some(self.seen.0 < self.seen.1)
            }
            HealthCondition::Grows(input, by, within) => {
                self.grows(now.boottime, inputs.get(input)?, by, within)
            }
            HealthCondition::Xid(which) => Some(self.count_xids(which, received)),
            HealthCondition::Noticed(notice) => {
                let count = received.notices.get(&notice).copied().unwrap_or(0);
                let before = if self.open.is_some() { self.seen.0 } else { 0 };
                self.seen = (before.saturating_add(i64::try_from(count).unwrap_or(i64::MAX)), 0);
                Some(count > 0)
            }
        }
    }

    /// Whether an input is above 0. While a part of it is missing, the others may prove that, but not the contrary, and the
    /// evidence does not fall.
    fn is_positive(&mut self, inputs: &HealthInputs, input: HealthInput) -> Option<bool> {
        let Some(value) = inputs.get(input) else {
            let least = inputs.at_least(input).filter(|least| *least > 0)?;
            self.seen = (if self.begun.is_some() { least.max(self.seen.0) } else { least }, 0);
            return Some(true);
        };
        self.seen = (value, 0);
        Some(value > 0)
    }

    /// Whether a counter has grown by so much; a counter that went back sets a new reference.
    fn grows(&mut self, now: Nanoseconds, value: i64, by: i64, within: Nanoseconds) -> Option<bool> {
        let Some((at, reference)) = self.anchor.filter(|(_, reference)| *reference <= value) else {
            self.anchor = Some((now, value));
            return None;
        };
        let grown = value.saturating_sub(reference);
        if grown >= by {
            let before = if self.open.is_some() { self.seen.0 } else { 0 };
            self.seen = (before.saturating_add(grown), value);
            self.anchor = Some((now, value));
        } else if now.0.saturating_sub(at.0) >= within.0 {
            self.anchor = Some((now, value));
        }
        Some(grown >= by)
    }

    fn count_xids(&mut self, which: fn(&xid::Xid) -> bool, received: &ReceivedEvents) -> bool {
        let mut any = false;
        for (code, (count, instance)) in &received.xids {
            if *count == 0 || !which(&xid::find(*code)) {
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

    /// Writes the evidence; whether it has changed.
    fn update_evidence(&mut self, when: &HealthCondition) -> bool {
        let (first, second) = self.seen;
        let words = match *when {
            HealthCondition::Is(_) => String::new(),
            HealthCondition::Positive(input) => positive(input, first),
            HealthCondition::Below(..) => format!("{first} of {second}"),
            HealthCondition::Grows(..) => format!("{first} more, {second} in all"),
            HealthCondition::Xid(_) => self.xids(),
            HealthCondition::Noticed(_) => times(u64::try_from(first).unwrap_or(0)),
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
            let _ = write!(words, "{comma}XID {code} ({}) {}", xid::find(*code).text, times(*count));
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

fn positive(input: HealthInput, value: i64) -> String {
    match input {
        HealthInput::EccUncorrectable => format!("{value} errors"),
        _ => String::new(),
    }
}
