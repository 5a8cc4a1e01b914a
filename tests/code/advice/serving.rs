//! Advice, and the live judge, over a generated service: its pods have the statistics of GenTD26, a day of image generation at
//! Alibaba. None of it was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumeter::accounting::advice::{
    AdviceEvidence, AdviceRequest, AdviceSource, EvidenceGpu, FindingKind, FleetEvidence, SlotEvidence,
    SlotKey, SlotRow, SlotRun, SlotTime, WorkloadKey, advise, least_idle,
};
use gpumeter::accounting::tenants::{TenantRules, class};
use gpumeter::model::{
    DAY, Fact, Facts, Fraction, GpuId, HOUR, Holder, HolderKind, MINUTE, Microjoules, Nanoseconds,
    QUARTER_HOUR, Utc, WorkloadClass,
};
use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::{quantiles, shown_in_document};
use crate::history::END;
use crate::meter::world::{UUID, World};

/// Pods at a time, and how many of them are busy in the same minute at most.
const PODS: usize = 109;
const PEAK: usize = 97;

const DAYS: u64 = 28;

/// Idle stretches that end in work, in minutes. The shortest is a sample of the trace; the longest is not known.
const IDLE: [(f64, f64); 5] = [(0.0, 0.95), (0.5, 1.9), (0.9, 14.3), (0.99, 58.0), (1.0, 240.0)];

/// Minutes and percent of a busy stretch, so that 70 % of the time are idle and the mean is 7 %.
const BUSY_MINUTES: [f64; 2] = [0.95, 5.25];
const DUTY: [f64; 2] = [1.0, 46.0];

/// When nearly all pods are needed at once, in seconds of the day.
const RUSH: [u64; 2] = [9 * 3_600, 9 * 3_600 + 15 * 60];

/// A time of a day in which a pod worked, in seconds, and the percentage of it in which its GPU was busy.
#[derive(Clone, Copy)]
struct Work {
    from: u64,
    to: u64,
    duty: u64,
}

/// A day of a pod.
fn day(random: &mut TestRng, pod: usize) -> Vec<Work> {
    let minutes = |minutes: f64| (minutes * 60.0).round() as u64;
    let mut works = Vec::new();
    let mut at = 0;
    while at < 86_400 {
        let idle = IDLE.map(|(place, minutes)| (place, minutes.ln()));
        let from = at + minutes(quantiles::at(&idle, random.random()).exp());
        let to = from + minutes(random.random_range(BUSY_MINUTES[0]..BUSY_MINUTES[1]));
        let duty = random.random_range(DUTY[0]..DUTY[1]) as u64;
        works.extend([Work { from, to: to.min(RUSH[0]), duty }, Work { from: from.max(RUSH[1]), to, duty }]);
        at = to;
    }
    if pod < PEAK {
        works.push(Work { from: RUSH[0], to: RUSH[1], duty: 60 });
    }
    let inside = works.into_iter().map(|work| Work { to: work.to.min(86_400), ..work });
    let mut works: Vec<Work> = inside.filter(|work| work.from < work.to).collect();
    works.sort_by_key(|work| work.from);
    works
}

/// All days of a pod.
fn days(pod: usize) -> Vec<Vec<Work>> {
    let mut seed = [7; 32];
    seed[0] = pod as u8;
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    (0..DAYS).map(|_| day(&mut random, pod)).collect()
}

/// Thousandths of each minute of a day in which it was busy.
fn busy_minutes(works: &[Work]) -> Vec<u64> {
    let mut minutes = vec![0; 1_440];
    for work in works {
        for second in work.from..work.to {
            minutes[second as usize / 60] += work.duty;
        }
    }
    // Seconds x percent of 60 seconds.
    minutes.iter().map(|busy| busy * 10 / 60).collect()
}

#[test]
fn the_generated_pods_have_the_statistics_of_the_trace_and_the_former_rule_fires_on_nearly_all() {
    let mut idle = Vec::new();
    let (mut duty, mut idle_minutes, mut episodes, mut accused) = (0, 0, 0, 0);
    let mut at_once = vec![0; 1_440];
    for pod in 0..PODS {
        let works = &days(pod)[0];
        idle.extend(works.windows(2).map(|pair| pair[1].from - pair[0].to).filter(|time| *time > 0));
        let minutes = busy_minutes(works);
        duty += minutes.iter().sum::<u64>();
        idle_minutes += minutes.iter().filter(|busy| **busy < 10).count();
        at_once.iter_mut().zip(&minutes).for_each(|(count, busy)| *count += usize::from(*busy > 0));
        // On average less than a tenth busy over 30 minutes, for five of them.
        let is_low: Vec<bool> =
            minutes.windows(30).map(|window| window.iter().sum::<u64>() < 30 * 100).collect();
        let of_pod = is_low.chunk_by(|one, next| one == next).filter(|run| run[0] && run.len() >= 5).count();
        episodes += of_pod;
        accused += usize::from(of_pod > 0);
    }
    idle.sort_unstable();
    let at = |place: f64| idle[(idle.len() as f64 * place) as usize];
    let minutes = [0.5, 0.9, 0.99].map(|place| at(place) as f64 / 60.0);
    assert!(minutes[0] > 1.7 && minutes[0] < 2.1, "{minutes:?}");
    assert!(minutes[1] > 12.9 && minutes[1] < 15.7, "{minutes:?}");
    assert!(minutes[2] > 50.0 && minutes[2] < 66.0, "{minutes:?}");
    let all = PODS as u64 * 1_440;
    assert!((60..80).contains(&(duty / all)), "{} thousandths are busy", duty / all);
    let share = idle_minutes as u64 * 100 / all;
    assert!((50..75).contains(&share), "{share} % of the minutes are idle");
    assert_eq!(at_once.iter().max(), Some(&PEAK));
    assert!(episodes > 300 && accused > 100, "{episodes} episodes of {accused} pods");
}

fn holder(pod: usize, owner_kind: Option<&str>) -> Holder {
    let mut facts = Facts::new([
        (Fact::Namespace, "images"),
        (Fact::Pod, &format!("serve-{pod:03}")),
        (Fact::PodUid, &format!("00000000-0000-0000-0000-{pod:012}")),
        (Fact::PodContainer, "main"),
    ]);
    if let Some(kind) = owner_kind {
        facts.set(Fact::OwnerKind, kind.into());
        facts.set(Fact::OwnerName, "serve".into());
    }
    Holder::new(HolderKind::Pod, facts)
}

/// What a ledger would say of them, each on a GPU of its own, and of the whole service.
fn evidence(owner_kind: Option<&str>, has_memory: bool) -> AdviceEvidence {
    let from = Utc(END.0 - DAYS * DAY.0);
    let mut evidence =
        AdviceEvidence { from, to: END, currency: Some("EUR".to_owned()), ..AdviceEvidence::default() };
    let mut fleet = FleetEvidence { begin: from, models_begin: from, ..FleetEvidence::default() };
    for pod in 0..PODS {
        let holder = holder(pod, owner_kind);
        let class = class(&holder, &TenantRules::default());
        assert_eq!(class == WorkloadClass::Service, owner_kind.is_some());
        let key = WorkloadKey::of("images".into(), &holder.id);
        let uuid: Arc<str> = format!("GPU-{pod}").into();
        let gpu = GpuId { index: pod as u32, uuid: Arc::clone(&uuid) };
        let known =
            EvidenceGpu { gpu, model: "L20".to_owned(), reports_memory: true, ..EvidenceGpu::default() };
        evidence.gpus.insert(Arc::clone(&uuid), known);
        evidence.workloads.entry(key.clone()).or_default().describe(&key, &holder, class);
        let (slot, busy_quarters) = slot(from, class, &days(pod), has_memory);
        *evidence.slot(&key, SlotKey { uuid, gpu_instance: None }) = slot;
        let name = evidence.workloads[&key].name.clone();
        for quarter in 0..DAYS * 96 {
            let at = from.plus(Nanoseconds(quarter * QUARTER_HOUR.0));
            let [held, busy] =
                fleet.service_quarter((Arc::clone(&key.tenant), name.to_string()), at).unwrap();
            *held += 1;
            *busy += u16::from(busy_quarters.contains(&quarter));
        }
    }
    evidence.fleet = Some(fleet);
    evidence
}

/// What is known of a pod, from its minutes, and the quarter hours in which it worked.
fn slot(
    begin: Utc,
    class: WorkloadClass,
    days: &[Vec<Work>],
    has_memory: bool,
) -> (SlotEvidence, BTreeSet<u64>) {
    let (mut slot, least) = (SlotEvidence::default(), least_idle(class));
    let mut run = SlotRun { begin, end: END, grid: MINUTE, goes_on: true, ..SlotRun::default() };
    let mut busy_quarters = BTreeSet::new();
    for (minute, busy) in (0..).zip(days.iter().flat_map(|works| busy_minutes(works))) {
        let times =
            [begin.plus(Nanoseconds(minute * MINUTE.0)), begin.plus(Nanoseconds((minute + 1) * MINUTE.0))];
        let used = Nanoseconds(MINUTE.0 / 1_000 * busy);
        run.held += MINUTE;
        run.used += used;
        if busy > 0 {
            run.first_use = run.first_use.or(Some(times[0]));
            run.last_use = Some(times[1]);
            busy_quarters.insert(minute / 15);
        }
        let mut time = SlotTime::default();
        time.add(SlotRow {
            idle: Nanoseconds(MINUTE.0 - used.0),
            unmeasured: Nanoseconds(0),
            is_quiet: busy == 0,
            has_memory,
            // A context that waits, at 30 W.
            waiting: Microjoules(30 * 60 * 1_000_000),
            rate: Some(2_000_000_000),
        });
        time.stretch(times, false, true).into_iter().for_each(|stretch| slot.add_idle(stretch, least));
    }
    slot.forget_short(least);
    slot.runs.push(run);
    (slot, busy_quarters)
}

#[test]
fn a_service_with_bursts_is_told_nothing_also_where_nobody_knows_that_it_is_one() {
    for owner_kind in [Some("Deployment"), None] {
        let evidence = evidence(owner_kind, true);
        let longest = evidence.workloads.values().flat_map(|one| &one.slots);
        let longest = longest.flat_map(|(_, slot)| &slot.stretches).map(|stretch| stretch.length()).max();
        assert!(longest > Some(Nanoseconds(2 * HOUR.0)), "{longest:?}");
        let found = advise(&evidence, &AdviceRequest::default(), AdviceSource::default());
        assert!(found.findings.is_empty(), "{owner_kind:?}: {:?}", found.findings);
    }
    // The same idle time without a process is told, so that silence is not for lack of evidence.
    let found = advise(&evidence(None, false), &AdviceRequest::default(), AdviceSource::default());
    assert!(found.findings.iter().any(|one| one.kind == FindingKind::HeldWithoutProcess), "{found:?}");
    shown_in_document("GenTD26", "109 pods, 28 days", &BTreeMap::new(), PODS);
}

#[test]
fn the_live_judge_is_silent_over_a_day_of_the_same_pods_and_finds_those_whose_process_is_gone() {
    /// Every seventh pod, which share a GPU here: what the judge says of one does not depend on others.
    const JUDGED: usize = 16;
    const EVERY: usize = 7;
    const STEP: u64 = 15;
    let works: Vec<Vec<Work>> = (0..JUDGED).map(|place| days(EVERY * place).swap_remove(0)).collect();
    let share = Fraction { numerator: 1, denominator: JUDGED as u32 };
    let mut world = World::new(&[]);
    let holders: Vec<Holder> = (0..JUDGED).map(|place| holder(EVERY * place, None)).collect();
    for holder in &holders {
        world.allocate(holder.id.as_str(), UUID, share, 0);
    }
    let pids = (1..).zip(holders).collect::<Vec<(u32, Holder)>>();
    world.identify_holders(&pids);
    world.sample_every(STEP);
    // The ledger has no part in it.
    world.hold_commits();
    for step in 0..86_400 / STEP {
        let at = step * STEP;
        let is_busy = |pod: &Vec<Work>| pod.iter().any(|work| work.from < at + STEP && at < work.to);
        let busy: Vec<bool> = works.iter().map(is_busy).collect();
        world.run(1, |frame| {
            let percent = |is_busy: bool| 3 * u32::from(is_busy);
            let frame =
                (1..).zip(&busy).fold(frame, |frame, (pid, is_busy)| frame.process(pid, percent(*is_busy)));
            frame.busy(busy.iter().map(|is_busy| i64::from(percent(*is_busy))).sum())
        });
        let unused = &world.page().roster.unused;
        assert!(unused.is_empty(), "after {at} s: {unused:?}");
    }
    world.run(2 * 3_600 / STEP + 8, |frame| frame);
    let found: Vec<&str> = world.page().roster.unused.iter().map(|entry| entry.kind.name()).collect();
    assert_eq!(found, ["held_without_process"; JUDGED]);
}
