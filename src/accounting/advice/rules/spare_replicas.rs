//! A14: replicas of a service that were never needed together. Means cannot show it: a service with a mean of 8 busy replicas may need
//! 97 at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::runs::runs;
use super::{AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup};
use crate::accounting::advice::evidence::WorkloadKey;
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::Recurrence;
use crate::model::{Nanoseconds, WorkloadClass};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::SpareReplicas,
    code: "A14",
    rule: "in every quarter hour of four weeks at least so many replicas of the service used nothing; more than a fifth of them, and two or \
           more are left",
    risk: "later peaks may be higher, replicas may serve different models, and one that fails is missed more",
    how: "lower the replicas, or the minimum of the autoscaler, by at most this number; a replica that fails is among those that stay",
    is_credit: false,
    find,
};

/// Quarter hours in which it must have been there: four weeks.
const LEAST: usize = 28 * 96;

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let fleet = known.evidence.fleet.as_ref().filter(|_| group.class == WorkloadClass::Service)?;
    let service = fleet.services.get(&(Arc::from(group.tenant), group.name.to_owned()))?;
    let (spare, most) = spare(&service.counts)?;
    let mut recurrence = Recurrence::default();
    runs(group).iter().for_each(|run| run.add_to(&mut recurrence));
    let mut replicas = BTreeMap::<&WorkloadKey, (Nanoseconds, Nanoseconds)>::new();
    for (key, _, slot, evidence) in group.slots() {
        let (held, idle) = replicas.entry(key).or_default();
        *held += evidence.runs.iter().map(|run| run.held).sum();
        *idle += known.free(key, slot, evidence).map(|stretch| stretch.idle).sum();
    }
    if !recurrence.is_enough(known.evidence.to) {
        return None;
    }
    // Those that were there longest, of these the ones with the least idle time: at least theirs is spared.
    let mut replicas: Vec<_> = replicas.into_iter().collect();
    replicas.sort_unstable_by_key(|(key, (held, idle))| (Reverse(*held), *idle, *key));
    let spared: BTreeSet<&WorkloadKey> = replicas.into_iter().take(spare).map(|(key, _)| key).collect();
    let slots = group.slots().filter(|(key, ..)| spared.contains(key));
    let stretches = slots.flat_map(|(key, _, slot, evidence)| {
        known.free(key, slot, evidence).map(move |stretch| FoundStretch { key, slot, stretch })
    });
    let what = format!("{spare} of {most} replicas were never needed at the same time as the others");
    let facts = format!("{spare}/{most}");
    Some(FoundAdvice::idle(what, facts, recurrence.runs, recurrence.grade, stretches.collect()))
        .filter(|found| !found.stretches.is_empty())
}

/// How many replicas were spare in every quarter hour, of how many at most; none where that is too few to say.
fn spare(counts: &[[u16; 2]]) -> Option<(usize, usize)> {
    let held = counts.iter().filter(|[held, _]| *held > 0);
    if held.clone().count() < LEAST {
        return None;
    }
    let spare = held.clone().map(|[held, busy]| held.saturating_sub(*busy)).min()?;
    let (least, most) = (held.clone().map(|[held, _]| *held).min()?, held.map(|[held, _]| *held).max()?);
    // One that fails must not be the last.
    let spare = spare.min(least.saturating_sub(2));
    (u32::from(spare) * 5 > u32::from(most)).then_some((spare.into(), most.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(count: usize, of: impl Fn(usize) -> [u16; 2]) -> Vec<[u16; 2]> {
        (0..count).map(of).collect()
    }

    #[test]
    fn replicas_are_spare_only_if_they_are_in_every_quarter_hour_and_some_are_left() {
        assert_eq!(spare(&counts(LEAST, |_| [10, 6])), Some((4, 10)));
        // One peak, as of 97 of 109, is enough to need them.
        assert_eq!(spare(&counts(LEAST, |at| [109, if at == 7 { 97 } else { 8 }])), None);
        assert_eq!(spare(&counts(LEAST, |at| [10, if at == 7 { 9 } else { 1 }])), None);
        assert_eq!(spare(&counts(LEAST, |_| [2, 0])), None, "none would be left");
        assert_eq!(spare(&counts(LEAST, |_| [3, 1])), Some((1, 3)), "two are left");
        assert_eq!(spare(&counts(LEAST, |_| [6, 1])), Some((4, 6)));
        assert_eq!(spare(&counts(LEAST - 1, |_| [10, 6])), None, "less than four weeks");
        assert_eq!(spare(&counts(LEAST, |at| if at < 9 { [4, 3] } else { [10, 1] })), None, "few at times");
    }
}
