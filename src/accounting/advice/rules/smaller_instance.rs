//! A6: workloads that would fit on a smaller MIG instance. Memory is taken by its maximum, since one run with more fails, and shares by
//! the busiest hundredth of the working time. Each board has its own profiles, so only those count that were seen or are sold on its
//! model.

use super::runs::{WholeRun, runs};
use super::shapes::{LEAST_ALONE, alone, at_work, is_mostly_alone, most_at_work};
use super::{AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, hours, sum};
use crate::accounting::advice::evidence::{
    ChargedTime, IdleStretch, ProcessPresence, ProfilePrice, SlotRun, WorkloadKey,
};
use crate::accounting::advice::finding::FindingKind;
use crate::accounting::advice::gates::{LEAST_TIME, Recurrence};
use crate::accounting::advice::job_notes::gibibytes;
use crate::accounting::billing::WHOLE_RATE;
use crate::model::{Bytes, HolderKind, Microjoules, MigProfile, Nanoseconds, Series, Shape, WorkloadClass};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::SmallerInstance,
    code: "A6",
    rule: "each run held one GPU or MIG instance, alone for 95 % of the time; the most memory of all runs and a tenth more fit on the \
           instance; multiprocessors and memory bandwidth were below four fifths of the instance's in 99 % of the working time; 3 runs or 7 \
           days, and 24 GPU-hours",
    risk: "bursts take longer, a later run may need more memory, and instances have no NVLink; of a job on several nodes, a ledger knows \
           one. The time is there for others only if the slices that become free are used",
    how: "ask for an instance of this profile (nvidia.com/mig-PROFILE of a pod, the type that gres.conf gives it for a job), first for one run",
    is_credit: false,
    find,
};

/// What instances have at least of their slices' part of the board's memory: 86 % on a GB200, 91 % on an H200, 98 % on an H100.
const PART_OF_MEMORY: [u128; 2] = [6, 7];

/// What the memory is multiplied by.
const MORE_MEMORY: [u128; 2] = [11, 10];

/// The part of an instance's multiprocessors and bandwidth that may be needed. It has 83 % or more of the multiprocessors that its
/// compute slices make it seem to have: 18 of 152 on a GB200, as one slice of seven.
const MOST_NEEDED: [u128; 2] = [4, 5];

/// What a group needs of its slots, which are alike.
struct SlotNeed<'a> {
    model: &'a str,
    /// Of the board.
    memory: Bytes,
    /// None of whole GPUs.
    profile: Option<&'a MigProfile>,
    peak: Bytes,
    /// The percentages of the slot's multiprocessors and memory bandwidth that it hardly ever exceeds at work.
    sm: u16,
    dram: u16,
    alone: Nanoseconds,
}

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let mut recurrence = Recurrence::default();
    let runs = runs(group);
    runs.iter().for_each(|run| run.add_to(&mut recurrence));
    if !may_wait(group) || has_pods_at_once(group) || !recurrence.is_enough(known.evidence.to) {
        return None;
    }
    let need = SlotNeed::of(known, group, &runs)?;
    let offered = known.evidence.profiles.get(need.model)?.iter();
    let order = |(profile, _): &(&MigProfile, &ProfilePrice)| {
        // A media engine, or graphics, is on few instances.
        (profile.name.contains(['+', '-']), profile.size, profile.compute_slices(), profile.name.clone())
    };
    let (profile, price) = offered.filter(|(profile, _)| need.fits(profile)).min_by_key(order)?;
    let stretches = saved(known, group, [need.size(profile), profile.size], *price)?;
    if sum(&stretches) < LEAST_TIME {
        return None;
    }
    let what = format!(
        "would fit on a MIG instance {}: at most {} GiB of memory in any reading, and in 99 % of the working time below {} % of the \
         multiprocessors and {} % of the memory bandwidth, over {} alone there",
        profile.name,
        gibibytes(need.peak.0),
        need.sm,
        need.dram,
        hours(need.alone),
    );
    let facts = profile.name.to_string();
    Some(FoundAdvice::idle(what, facts, recurrence.runs, recurrence.grade, stretches))
}

/// Whether nobody waits for its answers. Of others that is not known.
fn may_wait(group: &WorkloadGroup<'_>) -> bool {
    use WorkloadClass::{Batch, Interactive, Interruptible};
    group.slots().all(|(_, class, ..)| matches!(class, Batch | Interruptible | Interactive))
}

/// Whether pods of one owner held slots at one time: they may be ranks of one program, which need each other's GPUs.
fn has_pods_at_once(group: &WorkloadGroup<'_>) -> bool {
    let pods = group.slots().filter(|(key, ..)| key.workload.kind() == HolderKind::Pod);
    let mut runs: Vec<(&SlotRun, &WorkloadKey)> =
        pods.flat_map(|(key, _, _, evidence)| evidence.runs.iter().map(move |run| (run, key))).collect();
    runs.sort_by_key(|(run, _)| run.begin);
    let mut last: Option<(&SlotRun, &WorkloadKey)> = None;
    runs.into_iter().any(|(run, key)| {
        // Rows of one quarter hour may be of pods that followed each other.
        let is_later = last.is_none_or(|(before, of)| *of == *key || before.end <= run.begin.plus(run.grid));
        if last.is_none_or(|(before, _)| before.end < run.end) {
            last = Some((run, key));
        }
        !is_later
    })
}

impl<'a> SlotNeed<'a> {
    /// None where it is not known, or the runs did not have one slot each, of one kind.
    fn of(known: &Known<'a>, group: &WorkloadGroup<'a>, runs: &[WholeRun<'a>]) -> Option<Self> {
        let (model, memory) = board(known, group)?;
        let held: Vec<&ChargedTime> = group.slots().flat_map(|(.., evidence)| &evidence.held).collect();
        let profile = held.first()?.rates.profile.as_ref();
        let is_alike = held.iter().all(|one| one.rates.profile.as_ref() == profile)
            && group.slots().all(|(_, _, slot, _)| slot.gpu_instance.is_some() == profile.is_some());
        let [size, total] = profile.map_or([1, 1], |profile| [profile.size.max(1), profile.total]);
        let is_one = |run: &WholeRun<'_>| matches!(&run.slots[..], [(.., of_slot)] if is_whole(of_slot, [size, total]) && is_known(of_slot));
        let time: Nanoseconds = held.iter().map(|one| one.held).sum();
        let time = u128::from(time.0) * u128::from(total) / u128::from(size);
        let [sm, dram] = known.shapes(group, [Series::Sm, Series::Dram])?;
        let is_alone = |shape: &Shape| is_mostly_alone(shape) && alone(shape) * 20 >= time * 19;
        let is_enough = alone(sm) >= LEAST_ALONE.0.into() && at_work(sm) >= LEAST_TIME.0.into();
        let peak = runs.iter().flat_map(|run| &run.slots).map(|(.., of_slot)| of_slot.memory_peak).max()?;
        let is_clear = is_alike && peak.0 > 0 && !has_parts_at_once(known, group);
        (is_clear && is_enough && is_alone(sm) && is_alone(dram) && runs.iter().all(is_one)).then(|| Self {
            model,
            memory,
            profile,
            peak,
            sm: most_at_work(sm),
            dram: most_at_work(dram),
            alone: Nanoseconds(u64::try_from(alone(sm)).unwrap_or(u64::MAX)),
        })
    }

    /// Memory slices of its slots, where the GPU has as many as with that profile.
    fn size(&self, of: &MigProfile) -> u64 {
        self.profile.map_or(of.total, |own| own.size)
    }

    fn fits(&self, smaller: &MigProfile) -> bool {
        let own = match self.profile {
            Some(own) if own.total != smaller.total => None,
            Some(own) => own.compute_slices(),
            None => smaller.compute_slices().map(|[_, all]| [all, all]),
        };
        let Some(([own, _], [compute, _])) = own.zip(smaller.compute_slices()) else { return false };
        let size = self.size(smaller);
        smaller.size < size
            && has_room(self.peak, self.memory, [smaller.size, smaller.total])
            && is_below(self.sm, [compute, own])
            && is_below(self.dram, [smaller.size, size])
    }
}

/// The model of the boards, with the least memory of one; none where they differ, or do not report the memory of processes.
fn board<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<(&'a str, Bytes)> {
    let boards = group.slots().map(|(_, _, slot, _)| {
        let gpu = known.evidence.gpus.get(&slot.uuid).filter(|gpu| gpu.reports_memory)?;
        Some((&*gpu.model, gpu.memory?))
    });
    let boards: Vec<(&str, Bytes)> = boards.collect::<Option<_>>()?;
    let (model, _) = *boards.first()?;
    let memory = boards.iter().map(|(_, memory)| *memory).min()?;
    boards.iter().all(|(other, _)| *other == model).then_some((model, memory))
}

/// Whether parts of a workload may have had memory on a slot at one time: how much together is not recorded.
fn has_parts_at_once(known: &Known<'_>, group: &WorkloadGroup<'_>) -> bool {
    let shared = &known.evidence.shared_parts;
    group.slots().any(|(key, ..)| shared.get(key).is_some_and(|parts| parts.len() > 1))
}

/// Whether a run held all of a slot with so many slices of a GPU's.
fn is_whole(run: &SlotRun, [size, total]: [u64; 2]) -> bool {
    let length = u128::from(run.end.since(run.begin).0.saturating_sub(2 * run.grid.0));
    u128::from(run.held.0) * u128::from(total) * 20 >= length * u128::from(size) * 19
}

/// Whether the memory was reported if it was used.
const fn is_known(run: &SlotRun) -> bool {
    run.memory_peak.0 > 0 || run.used.0 == 0
}

fn has_room(peak: Bytes, board: Bytes, [size, total]: [u64; 2]) -> bool {
    let ([part, of_part], [more, of_more]) = (PART_OF_MEMORY, MORE_MEMORY);
    let needed = u128::from(peak.0) * more * of_part * u128::from(total);
    needed <= u128::from(board.0) * of_more * part * u128::from(size)
}

/// Whether a percentage of so many slices is little of fewer.
fn is_below(percent: u16, [smaller, own]: [u64; 2]) -> bool {
    let [most, of_most] = MOST_NEEDED;
    u128::from(percent) * u128::from(own) * of_most <= 100 * u128::from(smaller) * most
}

/// The time on slots of so many slices that is not needed on fewer, without what findings have; none where an instance might cost more.
fn saved<'a>(
    known: &Known<'a>,
    group: &WorkloadGroup<'a>,
    [own, smaller]: [u64; 2],
    price: ProfilePrice,
) -> Option<Vec<FoundStretch<'a>>> {
    let mut found = Vec::new();
    for (key, _, slot, evidence) in group.slots() {
        for ChargedTime { from, to, held, rates } in &evidence.held {
            let idle = |stretch: IdleStretch| stretch.between(*from, *to).map_or(0, |part| part.idle.0);
            let all: u64 = evidence.stretches.iter().map(|stretch| idle(*stretch)).sum();
            let free: u64 = known.free(key, slot, evidence).map(idle).sum();
            let left = held.0.saturating_sub(all.saturating_sub(free));
            let time = u128::from(left) * u128::from(own - smaller) / u128::from(own);
            let [most, of_slot] = [price.most(rates.gpu), rates.slot].map(|nano| nano.map(i128::from));
            // Also where the tenant pays for used time: his part of the saving is 0, but an instance may cost more.
            let less = of_slot
                .zip(most)
                .map(|(of_slot, most)| of_slot * i128::from(own) - most * i128::from(smaller));
            if less.is_some_and(|less| less < 0) {
                return None;
            }
            let rate = less.map(|less| {
                let paid = less * i128::from(rates.paid);
                paid.div_euclid(i128::from(own - smaller) * i128::from(WHOLE_RATE))
            });
            let stretch = IdleStretch {
                from: *from,
                to: *to,
                grid: Nanoseconds(0),
                idle: Nanoseconds(u64::try_from(time).unwrap_or(0)),
                unknown: Nanoseconds(0),
                process: ProcessPresence::Present,
                waiting: Microjoules(0),
                rate: rate.and_then(|rate| i64::try_from(rate).ok()),
                is_alone: true,
            };
            found.extend((stretch.idle.0 > 0).then_some(FoundStretch { key, slot, stretch }));
        }
    }
    Some(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accounting::advice::evidence::{
        AdviceEvidence, ChargedRates, EvidenceGpu, SlotEvidence, SlotKey, WorkloadEvidence, WorkloadKey,
    };
    use crate::accounting::advice::rules::{grouped, groups};
    use crate::accounting::billing::RateKind;
    use crate::model::{DAY, HOUR, HolderId, Utc};

    const MIB: u64 = 1 << 20;

    fn profile(name: &str, size: u64) -> MigProfile {
        MigProfile { name: name.into(), size, total: 8 }
    }

    fn shape(times: &[(usize, u64)]) -> Shape {
        let mut shape = Shape::default();
        times.iter().for_each(|(place, hours)| shape.0[*place] = hours * HOUR.0);
        shape
    }

    fn run(day: u64, mebibytes: u64) -> SlotRun {
        let (begin, held) = (Utc(day * DAY.0), Nanoseconds(6 * HOUR.0));
        let memory_peak = Bytes(mebibytes * MIB);
        SlotRun { begin, end: begin.plus(held), held, used: held, memory_peak, ..SlotRun::default() }
    }

    fn workload(slots: Vec<(SlotKey, SlotEvidence)>) -> WorkloadEvidence {
        WorkloadEvidence { name: "slurm:c/it".into(), class: WorkloadClass::Batch, slots }
    }

    fn held(run: &SlotRun) -> ChargedTime {
        let rates = ChargedRates { profile: None, slot: Some(800), gpu: Some(800), paid: WHOLE_RATE.into() };
        ChargedTime { from: run.begin, to: run.end, held: run.held, rates: rates.into() }
    }

    /// Twenty jobs of six hours on an H100, each with 7 GiB, at 5 to 10 % of multiprocessors and bandwidth.
    fn evidence() -> AdviceEvidence {
        let mut evidence = AdviceEvidence { to: Utc(20 * DAY.0), ..AdviceEvidence::default() };
        let known = EvidenceGpu {
            model: "H100".to_owned(),
            memory: Some(Bytes(81_559 * MIB)),
            reports_memory: true,
            ..EvidenceGpu::default()
        };
        evidence.gpus.insert("GPU-0".into(), known);
        let slot = SlotKey { uuid: "GPU-0".into(), gpu_instance: None };
        for day in 0..20 {
            let run = run(day, 7 << 10);
            let of_slot = SlotEvidence { runs: vec![run], held: vec![held(&run)], ..SlotEvidence::default() };
            let key = WorkloadKey::of("lab".into(), &HolderId::new(format!("slurm:c/{day}")));
            evidence.workloads.insert(key, workload(vec![(slot.clone(), of_slot)]));
        }
        let mut shapes = [shape(&[(2, 120)]); Series::ALL.len()];
        shapes[Series::Busy as usize] = shape(&[(11, 120)]);
        evidence.shapes.insert(("lab".into(), "slurm:c/it".into()), shapes);
        offer(&mut evidence, "1g.10gb", 1, None);
        evidence
    }

    /// Makes a profile known, with the price of an instance; without one it costs its part of the GPU.
    fn offer(evidence: &mut AdviceEvidence, name: &str, size: u64, nano: Option<i64>) {
        let mut price = ProfilePrice::default();
        price.add(nano.map_or(RateKind::GpuHour, |_| RateKind::InstanceHour), nano.unwrap_or(800));
        evidence.profiles.entry("H100".to_owned()).or_default().insert(profile(name, size), price);
    }

    /// The profile, GPU time in hours and rate of a finding.
    fn found(evidence: &AdviceEvidence) -> Option<(String, u64, Option<i64>)> {
        let (known, grouped) = (Known::new(evidence, false), grouped(evidence));
        let group = groups(&grouped).next().unwrap();
        let found = find(&known, &group)?;
        let rate = found.stretches[0].stretch.rate;
        Some((found.facts.clone(), sum(&found.stretches).0 / HOUR.0, rate))
    }

    fn changed(change: impl Fn(&mut AdviceEvidence)) -> Option<(String, u64, Option<i64>)> {
        let mut evidence = evidence();
        change(&mut evidence);
        found(&evidence)
    }

    fn with_runs(change: impl Fn(usize, &mut SlotRun)) -> Option<(String, u64, Option<i64>)> {
        changed(|evidence| {
            for (place, workload) in evidence.workloads.values_mut().enumerate() {
                change(place, &mut workload.slots[0].1.runs[0]);
            }
        })
    }

    fn with_shape(series: Series, times: &[(usize, u64)]) -> Option<(String, u64, Option<i64>)> {
        changed(|evidence| {
            let shapes = evidence.shapes.values_mut().next().unwrap();
            shapes[series as usize] = shape(times);
        })
    }

    #[test]
    fn what_fits_is_told_with_the_time_that_is_not_needed() {
        // 120 h, of which seven eighths are not needed.
        assert_eq!(found(&evidence()), Some(("1g.10gb".to_owned(), 105, Some(800))));
        // An idle notebook hides nothing, and neither does a hundredth of the work.
        let mostly_idle = with_shape(Series::Sm, &[(0, 118), (2, 1), (1, 1)]);
        assert!(mostly_idle.is_some());
        assert!(with_shape(Series::Sm, &[(2, 119), (11, 1)]).is_some());
    }

    #[test]
    fn memory_counts_by_the_most_of_all_runs() {
        let all = |mebibytes: u64| with_runs(|_, run| run.memory_peak = Bytes(mebibytes * MIB));
        // Six sevenths of an eighth of 81559 MiB, less an eleventh.
        assert!(all(7_944).is_some());
        assert_eq!(all(7_945), None);
        // 9.6 GiB, on an instance with 9.75.
        assert_eq!(all(9_830), None);
        let one_of_twenty = |place, run: &mut SlotRun| {
            if place == 11 {
                run.memory_peak = Bytes(9_830 * MIB);
            }
        };
        assert_eq!(with_runs(one_of_twenty), None);
        // Nine tenths of the board.
        assert_eq!(all(73_403), None);
        assert_eq!(all(0), None, "not reported");
        assert_eq!(with_runs(|place, run| run.memory_peak.0 *= u64::from(place != 3)), None, "once not");
    }

    #[test]
    fn shares_count_by_the_upper_edge_of_their_bin() {
        for series in [Series::Sm, Series::Dram] {
            assert_eq!(with_shape(series, &[(2, 118), (3, 2)]), None, "10 to 20 % of {series:?}");
            assert_eq!(with_shape(series, &[(2, 120), (12, 7)]), None, "more than 5 % shared");
            assert_eq!(with_shape(series, &[(2, 120), (13, 7)]), None, "more than 5 % unknown");
            assert!(with_shape(series, &[(2, 120), (12, 3), (13, 3)]).is_some());
            assert_eq!(with_shape(series, &[(2, 113)]), None, "less than 95 % of what it held");
            assert_eq!(with_shape(series, &[]), None, "no GPM");
        }
        assert_eq!(with_shape(Series::Sm, &[(0, 120)]), None, "never at work");
        assert!(with_shape(Series::Dram, &[(0, 120)]).is_some());
    }

    #[test]
    fn what_others_are_for_or_have_besides_is_not_judged() {
        for class in WorkloadClass::ALL {
            let of_class =
                changed(|evidence| evidence.workloads.values_mut().for_each(|one| one.class = class));
            let is_judged = matches!(
                class,
                WorkloadClass::Batch | WorkloadClass::Interruptible | WorkloadClass::Interactive
            );
            assert_eq!(of_class.is_some(), is_judged, "{class:?}");
        }
        let two_gpus = changed(|evidence| {
            let (workload, other) = (evidence.workloads.values_mut().next().unwrap(), "GPU-1".into());
            let of_slot = workload.slots[0].1.clone();
            workload.slots.push((SlotKey { uuid: other, gpu_instance: None }, of_slot));
            evidence.gpus.insert("GPU-1".into(), evidence.gpus["GPU-0"].clone());
        });
        assert_eq!(two_gpus, None);
        assert_eq!(with_runs(|_, run| run.held.0 /= 2), None, "half a GPU");
        assert_eq!(changed(|evidence| evidence.profiles.clear()), None);
        let of_board =
            |change: fn(&mut EvidenceGpu)| changed(|evidence| evidence.gpus.values_mut().for_each(change));
        assert_eq!(of_board(|gpu| gpu.model = "L40S".to_owned()), None, "no profile of it is known");
        assert_eq!(of_board(|gpu| gpu.memory = None), None);
        assert_eq!(of_board(|gpu| gpu.reports_memory = false), None);
        let with_parts = |names: &[&str]| {
            changed(|evidence| {
                let key = evidence.workloads.keys().next().unwrap().clone();
                evidence.shared_parts.insert(key, names.iter().map(|name| (*name).into()).collect());
            })
        };
        assert!(with_parts(&["slurm:c/0.0"]).is_some());
        assert_eq!(with_parts(&["slurm:c/0.0", "slurm:c/0.1"]), None, "two steps at once");
    }

    #[test]
    fn the_smallest_that_fits_is_told_and_one_with_attributes_only_if_nothing_else_does() {
        let with = |offers: &[(&str, u64)]| {
            changed(|evidence| {
                evidence.profiles.clear();
                offers.iter().for_each(|(name, size)| offer(evidence, name, *size, None));
            })
            .map(|(name, ..)| name)
        };
        assert_eq!(with(&[("1g.10gb", 1), ("1g.20gb", 2), ("2g.20gb", 2)]).as_deref(), Some("1g.10gb"));
        assert_eq!(with(&[("1g.10gb+me", 1), ("2g.20gb", 2)]).as_deref(), Some("2g.20gb"));
        assert_eq!(with(&[("1g.10gb+me", 1)]).as_deref(), Some("1g.10gb+me"));
        // All of the GPU; a part whose compute slices, or whose board, is not known.
        assert_eq!(with(&[("7g.80gb", 8), ("", 1), ("1c.3g.40gb", 4)]), None);
        let of_sixteen = changed(|evidence| {
            let of_model = evidence.profiles.values_mut().next().unwrap();
            let price = of_model.pop_first().unwrap().1;
            of_model.insert(MigProfile { name: "1g.10gb".into(), size: 2, total: 16 }, price);
        });
        assert_eq!(of_sixteen, None);
    }

    #[test]
    fn an_instance_costs_its_part_of_the_gpu_or_its_own_rate_and_never_more() {
        let at = |nano: Option<i64>| {
            changed(|evidence| {
                evidence.profiles.clear();
                offer(evidence, "1g.10gb", 1, nano);
            })
            .map(|(.., rate)| rate)
        };
        // 800 of a GPU-hour; of an instance 100, 50 and 900 per hour.
        assert_eq!([at(None), at(Some(800)), at(Some(400))], [Some(800), Some(800), Some(857)].map(Some));
        assert_eq!(at(Some(7_200)), None, "it would cost more");
        let rates = |change: fn(&mut ChargedRates)| {
            let all = changed(|evidence| {
                let workloads = evidence.workloads.values_mut();
                workloads.for_each(|one| change(Arc::make_mut(&mut one.slots[0].1.held[0].rates)));
            });
            all.map(|(.., rate)| rate)
        };
        assert_eq!(rates(|rates| rates.slot = None), Some(None));
        assert_eq!(rates(|rates| rates.paid /= 2), Some(Some(400)));
        assert_eq!(rates(|rates| rates.paid = 0), Some(Some(0)));
        let dear = changed(|evidence| {
            evidence.profiles.clear();
            offer(evidence, "1g.10gb", 1, Some(7_200));
            let workloads = evidence.workloads.values_mut();
            workloads.for_each(|one| Arc::make_mut(&mut one.slots[0].1.held[0].rates).paid = 0);
        });
        assert_eq!(dear, None, "it would cost more than the GPU, whoever pays");
        let mut both = ProfilePrice::default();
        assert_eq!(both.most(Some(800)), None, "without a price");
        both.add(RateKind::InstanceHour, 400);
        assert_eq!((both.most(Some(800)), both.most(None)), (Some(400), Some(400)));
        both.add(RateKind::GpuHour, 800);
        assert_eq!(
            (both.most(Some(300)), both.most(Some(800)), both.most(None)),
            (Some(400), Some(800), None)
        );
    }

    #[test]
    fn an_instance_is_compared_with_its_own_slices() {
        let on_instance = |own: (&str, u64), hours: &[(usize, u64)]| {
            changed(|evidence| {
                let workloads = std::mem::take(&mut evidence.workloads).into_iter();
                let moved = workloads.map(|(key, mut one)| {
                    let (slot, of_slot) = &mut one.slots[0];
                    slot.gpu_instance = Some(2);
                    of_slot.runs[0].held.0 = of_slot.runs[0].held.0 / 8 * own.1;
                    of_slot.held[0].held = of_slot.runs[0].held;
                    Arc::make_mut(&mut of_slot.held[0].rates).profile = Some(profile(own.0, own.1));
                    (key, one)
                });
                evidence.workloads = moved.collect();
                let shapes = evidence.shapes.values_mut().next().unwrap();
                shapes[Series::Sm as usize] = shape(hours);
                shapes[Series::Dram as usize] = shape(&[(2, 120)]);
            })
        };
        // 60 h of GPU time on a half, of which three quarters are not needed; 20 of 33 % of its compute slices.
        let fitting = on_instance(("3g.40gb", 4), &[(3, 120)]);
        assert_eq!(fitting, Some(("1g.10gb".to_owned(), 45, Some(800))));
        assert_eq!(on_instance(("3g.40gb", 4), &[(4, 120)]), None);
        assert_eq!(on_instance(("1g.10gb", 1), &[(3, 120)]), None, "it has the smallest");
        let mixed = changed(|evidence| {
            let slots = &mut evidence.workloads.values_mut().next().unwrap().slots;
            slots[0].0.gpu_instance = Some(2);
            Arc::make_mut(&mut slots[0].1.held[0].rates).profile = Some(profile("3g.40gb", 4));
        });
        assert_eq!(mixed, None);
    }

    /// Sizes that drivers list (`nvidia-smi mig -lgip`): profile, slices, MiB and multiprocessors; the board's MiB and multiprocessors.
    #[test]
    fn instances_of_known_boards_have_more_than_is_taken_of_them() {
        type Listed = (&'static str, [u64; 2], [u64; 2], [u64; 2]);
        const LISTED: [Listed; 16] = [
            ("1g.10gb", [1, 8], [9_984, 16], [81_559, 132]),
            ("1g.20gb", [2, 8], [20_096, 26], [81_559, 132]),
            ("2g.20gb", [2, 8], [20_096, 32], [81_559, 132]),
            ("3g.40gb", [4, 8], [40_448, 60], [81_559, 132]),
            ("4g.40gb", [4, 8], [40_448, 64], [81_559, 132]),
            ("1g.18gb", [1, 8], [16_384, 16], [143_771, 132]),
            ("2g.35gb", [2, 8], [33_024, 32], [143_771, 132]),
            ("3g.71gb", [4, 8], [71_168, 60], [143_771, 132]),
            ("1g.23gb", [1, 8], [20_992, 18], [183_359, 148]),
            ("4g.90gb", [4, 8], [91_136, 72], [183_359, 148]),
            ("1g.24gb", [1, 8], [20_480, 18], [189_471, 152]),
            ("2g.47gb", [2, 8], [46_592, 38], [189_471, 152]),
            ("1g.5gb", [1, 8], [4_864, 14], [40_960, 108]),
            ("1g.6gb", [1, 4], [5_952, 14], [24_576, 56]),
            ("2g.12gb", [2, 4], [11_968, 28], [24_576, 56]),
            ("1g.24gb", [3, 12], [23_680, 46], [97_887, 188]),
        ];
        for (name, [size, total], [memory, sms], [of_memory, of_sms]) in LISTED {
            let listed = MigProfile { name: name.into(), size, total };
            let fitting = memory * 10 / 11;
            assert!(!has_room(Bytes(fitting * MIB), Bytes(of_memory * MIB), [size, total]), "{name}");
            let [compute, all] = listed.compute_slices().unwrap();
            let most = (1..=100).rev().find(|percent| is_below(*percent, [compute, all])).unwrap();
            assert!(u64::from(most) * of_sms <= 100 * sms, "{name}: {most} %");
            let sold = MigProfile::by_name(name, Bytes(of_memory * MIB)).unwrap();
            assert_eq!(sold.size * total, size * sold.total, "{name}");
        }
    }

    #[test]
    fn time_that_findings_have_is_left_out() {
        let mut evidence = evidence();
        let stretch = IdleStretch {
            from: Utc(0),
            to: Utc(4 * HOUR.0),
            grid: Nanoseconds(0),
            idle: Nanoseconds(4 * HOUR.0),
            unknown: Nanoseconds(0),
            process: ProcessPresence::Present,
            waiting: Microjoules(0),
            rate: Some(800),
            is_alone: true,
        };
        evidence.workloads.values_mut().next().unwrap().slots[0].1.stretches.push(stretch);
        let grouped = grouped(&evidence);
        let group = groups(&grouped).next().unwrap();
        let mut known = Known::new(&evidence, false);
        assert_eq!(sum(&find(&known, &group).unwrap().stretches).0, 105 * HOUR.0);
        let (key, _, slot, _) = group.slots().next().unwrap();
        let claimed = vec![FoundStretch { key, slot, stretch }];
        let found = FoundAdvice::idle(String::new(), String::new(), 1, Default::default(), claimed);
        known.claim(FindingKind::OpenSession, &group, &found);
        // Seven eighths of 116 h.
        assert_eq!(sum(&find(&known, &group).unwrap().stretches).0 * 2, 203 * HOUR.0);
        assert!(!known.has_smaller(&group));
        known.claim(FindingKind::SmallerInstance, &group, &found);
        assert!(known.has_smaller(&group));
    }

    #[test]
    fn ranks_of_one_program_in_several_pods_are_silent() {
        let with_pods = |begins: [u64; 2]| {
            changed(|evidence| {
                let workloads = std::mem::take(&mut evidence.workloads);
                let (_, one) = workloads.into_iter().next().unwrap();
                for (pod, begin) in begins.into_iter().enumerate() {
                    let runs = (0..10).map(|day| run(begin + 2 * day, 7 << 10));
                    let mut of_pod = one.clone();
                    of_pod.slots[0].1.held = runs.clone().map(|run| held(&run)).collect();
                    of_pod.slots[0].1.runs = runs.collect();
                    let key = WorkloadKey::of("lab".into(), &HolderId::new(format!("k8s:u{pod}")));
                    evidence.workloads.insert(key, of_pod);
                }
            })
        };
        assert_eq!(
            with_pods([0, 1]).map(|(profile, ..)| profile).as_deref(),
            Some("1g.10gb"),
            "one after the other"
        );
        assert_eq!(with_pods([0, 0]), None);
    }
}
