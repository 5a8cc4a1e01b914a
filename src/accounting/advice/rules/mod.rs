//! The rules, each a pure function over the workloads of one name and tenant.

mod commitment;
mod fault;
mod free_nodes;
mod idle_end;
mod no_process;
mod open_session;
mod runs;
mod shallow;
mod shapes;
mod slowed;
mod smaller_instance;
mod spare_replicas;
mod unused_gpus;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::evidence::{AdviceEvidence, IdleStretch, SlotEvidence, SlotKey, WorkloadEvidence, WorkloadKey};
use super::finding::FindingKind;
use super::gates::{NEWEST, is_wait_known, lasts};
use crate::accounting::billing::ExactMoney;
use crate::model::{Grade, Nanoseconds, Series, Shape, Utc, WorkloadClass};

/// A rule, with what it says of each of its findings.
pub(super) struct AdviceRule {
    pub(super) kind: FindingKind,
    /// Begins the ids of its findings.
    pub(super) code: &'static str,
    pub(super) rule: &'static str,
    pub(super) risk: &'static str,
    pub(super) how: &'static str,
    pub(super) is_credit: bool,
    pub(super) find: for<'a> fn(&Known<'a>, &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>>,
}

/// In order: time that one of them found is in no finding of a later one.
pub(super) const RULES: &[AdviceRule] = &[
    fault::RULE,
    unused_gpus::RULE,
    spare_replicas::RULE,
    idle_end::RULE,
    open_session::RULE,
    no_process::RULE,
    smaller_instance::RULE,
    slowed::RULE,
    shallow::RULE,
];

/// A rule about the organisation, with what it says of each of its findings.
pub(super) struct FleetRule {
    pub(super) kind: FindingKind,
    /// Begins the ids of its findings.
    pub(super) code: &'static str,
    pub(super) rule: &'static str,
    pub(super) risk: &'static str,
    pub(super) how: &'static str,
    pub(super) find: fn(&AdviceEvidence) -> Vec<FleetFound>,
}

pub(super) const FLEET_RULES: &[FleetRule] = &[free_nodes::RULE, commitment::RULE];

/// What a rule found of a node or a model.
pub(super) struct FleetFound {
    pub(super) subject: String,
    pub(super) what: String,
    /// By UUID.
    pub(super) gpus: Vec<Arc<str>>,
    /// GPU time that nobody held.
    pub(super) time: Nanoseconds,
    /// What the organisation stops paying; none where a rate is not known.
    pub(super) money: Option<ExactMoney>,
    /// The GPU time that it speaks of, or an hour for each GPU that it counts.
    pub(super) extent: Nanoseconds,
    /// Since when it was looked at.
    pub(super) from: Utc,
}

/// The workloads of one tenant that have the same name.
pub(super) struct WorkloadGroup<'a> {
    pub(super) tenant: &'a str,
    pub(super) name: &'a str,
    pub(super) class: WorkloadClass,
    workloads: &'a [(&'a WorkloadKey, &'a WorkloadEvidence)],
}

/// What the rules know.
pub(super) struct Known<'a> {
    pub(super) evidence: &'a AdviceEvidence,
    /// Whether the reader may see only a part of the account.
    pub(super) is_partial: bool,
    claimed: BTreeMap<(&'a WorkloadKey, &'a SlotKey), Vec<[Utc; 2]>>,
    /// The groups that would fit on a smaller instance, by tenant and name.
    smaller: BTreeSet<(&'a str, &'a str)>,
}

/// What a rule found of a group.
pub(super) struct FoundAdvice<'a> {
    pub(super) what: String,
    /// What of it a person would decide upon: with other facts it is another finding.
    pub(super) facts: String,
    pub(super) runs: usize,
    pub(super) grade: Grade,
    pub(super) stretches: Vec<FoundStretch<'a>>,
    /// Where, if there are no stretches.
    pub(super) slots: Vec<(&'a WorkloadKey, &'a SlotKey)>,
    /// When, if there are no stretches.
    pub(super) seen: Option<[Utc; 2]>,
    /// The GPU time that it speaks of, by which a dismissal knows more of it from the same.
    pub(super) extent: Nanoseconds,
}

impl<'a> FoundAdvice<'a> {
    /// What idle time was found.
    fn idle(
        what: String,
        facts: String,
        runs: usize,
        grade: Grade,
        stretches: Vec<FoundStretch<'a>>,
    ) -> Self {
        let extent = sum(&stretches);
        Self { what, facts, runs, grade, stretches, slots: Vec::new(), seen: None, extent }
    }
}

#[derive(Clone, Copy)]
pub(super) struct FoundStretch<'a> {
    pub(super) key: &'a WorkloadKey,
    pub(super) slot: &'a SlotKey,
    pub(super) stretch: IdleStretch,
}

/// The workloads in order of tenant and name.
pub(super) fn grouped(evidence: &AdviceEvidence) -> Vec<(&WorkloadKey, &WorkloadEvidence)> {
    let mut all: Vec<_> = evidence.workloads.iter().collect();
    all.sort_by(|one, other| group_of(one).cmp(&group_of(other)));
    all
}

/// Tenant and name.
fn group_of<'a>((key, workload): &(&'a WorkloadKey, &'a WorkloadEvidence)) -> (&'a str, &'a str) {
    (&key.tenant, &workload.name)
}

/// The groups of workloads in that order. They are made one after the other: there are millions.
pub(super) fn groups<'a>(
    grouped: &'a [(&'a WorkloadKey, &'a WorkloadEvidence)],
) -> impl Iterator<Item = WorkloadGroup<'a>> {
    grouped.chunk_by(|one, other| group_of(one) == group_of(other)).filter_map(|workloads| {
        let ((tenant, name), (_, last)) = (group_of(workloads.first()?), workloads.last()?);
        Some(WorkloadGroup { tenant, name, class: last.class, workloads })
    })
}

impl<'a> WorkloadGroup<'a> {
    /// The slots of all workloads.
    fn slots(
        &self,
    ) -> impl Iterator<Item = (&'a WorkloadKey, WorkloadClass, &'a SlotKey, &'a SlotEvidence)> + '_ {
        self.workloads.iter().flat_map(|(key, workload)| {
            workload.slots.iter().map(|(slot, evidence)| (*key, workload.class, slot, evidence))
        })
    }
}

impl<'a> Known<'a> {
    pub(super) const fn new(evidence: &'a AdviceEvidence, is_partial: bool) -> Self {
        Self { evidence, is_partial, claimed: BTreeMap::new(), smaller: BTreeSet::new() }
    }

    /// Keeps the time of a finding from later rules.
    pub(super) fn claim(&mut self, kind: FindingKind, group: &WorkloadGroup<'a>, found: &FoundAdvice<'a>) {
        if kind == FindingKind::SmallerInstance {
            self.smaller.insert((group.tenant, group.name));
        }
        for FoundStretch { key, slot, stretch } in &found.stretches {
            self.claimed.entry((key, slot)).or_default().push([stretch.from, stretch.to]);
        }
    }

    /// The idle stretches of a workload on a slot, without the time that findings have.
    fn free(
        &self,
        key: &'a WorkloadKey,
        slot: &'a SlotKey,
        evidence: &'a SlotEvidence,
    ) -> impl Iterator<Item = IdleStretch> {
        self.unclaimed(key, slot, evidence).filter(|stretch| stretch.idle.0 > 0)
    }

    /// The same with times of which no idle time is known.
    fn unclaimed(
        &self,
        key: &'a WorkloadKey,
        slot: &'a SlotKey,
        evidence: &'a SlotEvidence,
    ) -> impl Iterator<Item = IdleStretch> {
        let mut claimed = self.claimed.get(&(key, slot)).cloned().unwrap_or_default();
        claimed.sort_unstable();
        evidence.stretches.iter().flat_map(move |stretch| without(*stretch, &claimed))
    }

    /// The shapes of a group; none where there are none.
    fn shapes<const N: usize>(
        &self,
        group: &WorkloadGroup<'a>,
        series: [Series; N],
    ) -> Option<[&'a Shape; N]> {
        let shapes = self.evidence.shapes.get(&(Arc::from(group.tenant), Arc::from(group.name)))?;
        Some(series.map(|series| &shapes[series as usize]))
    }

    fn has_smaller(&self, group: &WorkloadGroup<'a>) -> bool {
        self.smaller.contains(&(group.tenant, group.name))
    }

    fn is_recent(&self, at: Utc) -> bool {
        self.evidence.to.since(at) <= NEWEST
    }
}

/// The parts of a stretch that are in none of these times, which are in order.
fn without(stretch: IdleStretch, times: &[[Utc; 2]]) -> Vec<IdleStretch> {
    let (mut parts, mut begin) = (Vec::new(), stretch.from);
    for [from, to] in times {
        parts.extend(stretch.between(begin, *from));
        begin = begin.max(*to);
    }
    parts.extend(stretch.between(begin, stretch.to));
    parts
}

/// What is beyond a grace of waits that last longer than that. A wait goes on over times of which a part was not known, as it does live,
/// unless the rest of them speaks against it.
fn beyond(
    stretches: impl Iterator<Item = IdleStretch>,
    grace: Nanoseconds,
    is_wait: impl Fn(&IdleStretch) -> bool,
    speaks_against: impl Fn(&IdleStretch) -> bool,
) -> Vec<IdleStretch> {
    let mut waits = Vec::<Vec<IdleStretch>>::new();
    // The end of the last wait, and the part of it that is unknown, while it may go on.
    let mut open: Option<(Utc, Nanoseconds)> = None;
    for stretch in stretches {
        open = open.filter(|(end, _)| *end == stretch.from);
        match (open, waits.last_mut()) {
            (Some((_, unknown)), Some(wait)) if stretch.unknown.0 > 0 && !speaks_against(&stretch) => {
                let (unknown, begin) = (unknown + stretch.unknown, wait[0].from);
                let is_known = is_wait_known(unknown, stretch.to.since(begin), grace);
                open = is_known.then_some((stretch.to, unknown));
            }
            _ if stretch.unknown.0 > 0 || !is_wait(&stretch) => open = None,
            (Some((_, unknown)), Some(wait)) => {
                wait.push(stretch);
                open = Some((stretch.to, unknown));
            }
            _ => {
                waits.push(vec![stretch]);
                open = Some((stretch.to, Nanoseconds(0)));
            }
        }
    }
    let beyond = waits.iter().flat_map(|wait| {
        let whole = wait.first().zip(wait.last()).map(|(first, last)| IdleStretch { to: last.to, ..*first });
        let from = whole.filter(|whole| lasts(whole, grace)).map(|whole| whole.from.plus(grace));
        let parts = wait.iter().filter_map(move |stretch| stretch.between(from?, stretch.to));
        parts.collect::<Vec<_>>()
    });
    beyond.collect()
}

/// A time in hours with one decimal.
fn hours(time: Nanoseconds) -> String {
    let tenths = (u128::from(time.0) * 10 + 1_800_000_000_000) / 3_600_000_000_000;
    format!("{}.{} h", tenths / 10, tenths % 10)
}

fn sum(stretches: &[FoundStretch<'_>]) -> Nanoseconds {
    stretches.iter().map(|found| found.stretch.idle).sum()
}

fn count_gpus(stretches: &[FoundStretch<'_>]) -> usize {
    stretches.iter().map(|found| found.slot).collect::<BTreeSet<_>>().len()
}

fn count_workloads(stretches: &[FoundStretch<'_>]) -> usize {
    stretches.iter().map(|found| found.key).collect::<BTreeSet<_>>().len()
}

/// A number with its noun.
fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::advice::evidence::ProcessPresence;
    use crate::model::Microjoules;

    #[test]
    fn time_that_a_finding_has_is_cut_out_of_a_stretch() {
        let stretch = IdleStretch {
            from: Utc(10),
            to: Utc(20),
            grid: Nanoseconds(1),
            idle: Nanoseconds(10),
            unknown: Nanoseconds(0),
            process: ProcessPresence::Absent,
            waiting: Microjoules(0),
            rate: None,
            is_alone: true,
        };
        let left = |times: &[[u64; 2]]| -> Vec<[u64; 3]> {
            let times: Vec<[Utc; 2]> = times.iter().map(|time| time.map(Utc)).collect();
            let parts = without(stretch, &times).into_iter();
            parts.map(|part| [part.from.0, part.to.0, part.idle.0]).collect()
        };
        assert_eq!(left(&[]), [[10, 20, 10]]);
        assert_eq!(left(&[[0, 10], [20, 30]]), [[10, 20, 10]]);
        assert_eq!(left(&[[12, 14], [13, 15], [18, 30]]), [[10, 12, 2], [15, 18, 3]]);
        assert_eq!(left(&[[0, 12]]), [[12, 20, 8]]);
        assert_eq!(left(&[[0, 30], [12, 13]]), [[0; 3]; 0]);
    }

    #[test]
    fn a_wait_goes_on_over_a_twentieth_of_it_or_of_its_grace_that_is_unknown_and_not_over_use() {
        let grace = Nanoseconds(100);
        // Each from and to, with how much of it is unknown; what ends at such a time has a process.
        let beyond_with = |stretches: &[[u64; 3]], with_process: u64| -> Vec<[u64; 2]> {
            let stretches = stretches.iter().map(|[from, to, unknown]| IdleStretch {
                from: Utc(*from),
                to: Utc(*to),
                grid: Nanoseconds(0),
                idle: Nanoseconds(if *unknown == 0 { to - from } else { 0 }),
                unknown: Nanoseconds(*unknown),
                process: if *to == with_process { ProcessPresence::Present } else { ProcessPresence::Absent },
                waiting: Microjoules(0),
                rate: None,
                is_alone: true,
            });
            let is = |presence| move |one: &IdleStretch| one.process == presence;
            let found =
                super::beyond(stretches, grace, is(ProcessPresence::Absent), is(ProcessPresence::Present));
            found.iter().map(|part| [part.from.0, part.to.0]).collect()
        };
        let beyond = |stretches: &[[u64; 3]]| beyond_with(stretches, 0);
        assert_eq!(beyond(&[[0, 150, 0]]), [[100, 150]]);
        assert_eq!(beyond(&[[0, 20, 0], [20, 40, 5], [40, 150, 0]]), [[100, 150]]);
        assert_eq!(beyond(&[[0, 20, 0], [20, 40, 6], [40, 150, 0]]), [[140, 150]], "it begins anew");
        assert_eq!(beyond(&[[0, 300, 0], [300, 316, 15], [316, 320, 0]]), [[100, 300], [316, 320]]);
        assert_eq!(beyond(&[[0, 60, 0], [61, 161, 0]]), [[0; 2]; 0], "used meanwhile");
        assert_eq!(beyond(&[[0, 10, 1], [10, 110, 0], [110, 200, 3]]), [[0; 2]; 0], "unknown at both ends");
        let late = [[0, 20, 0], [20, 40, 1], [40, 150, 0]];
        assert_eq!(
            beyond_with(&late, 40),
            [[140, 150]],
            "there was a process, and a moment was not measured"
        );
    }

    #[test]
    fn times_are_said_in_tenths_of_hours() {
        assert_eq!(
            [0, 179, 181, 36_000].map(|time| hours(Nanoseconds::from_seconds(time))),
            ["0.0 h", "0.0 h", "0.1 h", "10.0 h"]
        );
    }
}
