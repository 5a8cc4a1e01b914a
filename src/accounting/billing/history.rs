//! Collects an explanation from the minutes of the account, in order of time.

use std::collections::{BTreeMap, BTreeSet};

use super::bill::BillLine;
use super::explanation::{ExplainedLine, GpuEvent, GpuEventKind, LineSpan, WorkloadUsage};
use crate::model::{
    ActivitySource, Amounts, GpuId, Grade, HolderId, HoldingSource, Method, Microjoules, Nanoseconds, SlotId,
    Utc,
};

/// Shares of two minutes that differ by less than this part of a slot are equal: settlement divides in whole nanoseconds.
const SHARE_TOLERANCE: u128 = 1_000_000;

/// A minute of one GPU, or a quarter hour of which only the sum is kept.
#[derive(Clone, Copy, Debug)]
pub struct GpuMinute<'a> {
    pub uuid: &'a str,
    pub minute: Utc,
    pub to: Utc,
    pub slot: Nanoseconds,
    pub coarse: bool,
    pub rows: &'a [MinuteRow],
}

#[derive(Clone, Debug)]
pub struct MinuteRow {
    pub slot: SlotId,
    pub holder: HolderId,
    pub amounts: Amounts,
    pub grade: Grade,
    pub method: Method,
    pub sources: Vec<ActivitySource>,
    pub granted_by: Vec<HoldingSource>,
}

impl MinuteRow {
    /// Whether the GPU had a fault or a gap in it.
    pub fn has_event(&self) -> bool {
        let parts = &self.amounts.parts;
        parts.unmeasured > 0 || parts.unavailable > 0 || self.method == Method::Bridged
    }
}

#[derive(Debug, Default)]
pub struct HistoryDraft {
    lines: Vec<LineDraft>,
    usage: UsageHistory,
    /// By UUID.
    gpus: BTreeMap<String, GpuDraft>,
}

#[derive(Debug)]
struct LineDraft {
    line: BillLine,
    /// Its own workload, and the one that this is part of.
    workloads: Vec<HolderId>,
    spans: Vec<LineSpan>,
    /// What it held of the slot in the first minute of the last span.
    share: [u64; 2],
}

/// What happened to a GPU from the first to the last minute of the lines on it.
#[derive(Debug, Default)]
struct GpuDraft {
    /// The slots of the lines up to now.
    slots: BTreeSet<Option<u32>>,
    events: Vec<GpuEvent>,
    /// Those since the last minute of a line.
    later: Vec<GpuEvent>,
}

#[derive(Debug, Default)]
struct UsageDraft {
    from: Utc,
    to: Utc,
    memory_peak_bytes: u64,
    last_use: Option<Utc>,
    unknown_after_use: u64,
    waiting_after_use: u64,
    alone: Vec<[Utc; 2]>,
    inner: BusyTime,
    /// The last minute, which counts once the next one follows it.
    last: BusyTime,
    /// Whether the minute before the last one was one of its minutes too.
    has_before_last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct BusyTime {
    busy: u64,
    measured_slot: u64,
}

/// What workloads did on one GPU in a minute, or a quarter hour of which only the sum is kept.
#[derive(Debug, Default)]
struct MinuteUses {
    from: Utc,
    to: Utc,
    slot: Nanoseconds,
    measured: BTreeMap<Option<u32>, u64>,
    workloads: BTreeMap<HolderId, MinuteUsage>,
}

/// What workloads did on GPUs, from minutes in order of time.
#[derive(Debug, Default)]
struct UsageHistory(BTreeMap<(HolderId, GpuId), UsageDraft>);

#[derive(Debug, Default)]
struct MinuteUsage {
    busy: u64,
    memory_byte_seconds: u128,
    /// Most memory of a tick of one of its parts.
    memory_peak: u64,
    /// Held while its use was not known.
    unknown: u64,
    waiting: u64,
    /// Whether nobody else held or used any of the GPU.
    is_alone: bool,
    slots: BTreeSet<Option<u32>>,
}

impl MinuteUses {
    /// Adds what a holder had on a slot; `is_found` if the holder's use is asked for.
    fn add(&mut self, slot: &SlotId, holder: &HolderId, amounts: &Amounts, is_found: bool) {
        let parts = &amounts.parts;
        *self.measured.entry(slot.gpu_instance).or_default() += parts.within + parts.lent + parts.idle;
        if !is_found {
            return;
        }
        for workload in workloads(holder) {
            let sum = self.workloads.entry(workload).or_default();
            sum.busy += amounts.used.total();
            sum.memory_byte_seconds += u128::from(amounts.memory_byte_seconds);
            sum.memory_peak = amounts.memory_peak.max(sum.memory_peak);
            sum.unknown += parts.unmeasured + parts.unavailable;
            sum.waiting = sum.waiting.saturating_add(amounts.energy_waiting.0);
            sum.slots.insert(slot.gpu_instance);
        }
    }

    /// Finds who was alone on the GPU, which has these rows. Faults of a GPU with MIG may be of instances that nobody had.
    fn mark_alone(&mut self, rows: &[MinuteRow]) {
        let is_busy = |row: &&MinuteRow| {
            let is_held = row.amounts.parts.held() > 0 && !row.holder.is_remainder();
            is_held || row.amounts.used.total() > 0
        };
        for (workload, usage) in &mut self.workloads {
            let is_own =
                |row: &MinuteRow| row.holder.name() == workload.name() || row.holder.is_within(workload);
            usage.is_alone =
                usage.slots.iter().all(Option::is_none) && rows.iter().filter(is_busy).all(is_own);
        }
    }
}

impl UsageHistory {
    fn add(&mut self, gpu: &GpuId, minute: &MinuteUses) {
        for (workload, usage) in &minute.workloads {
            let draft = self.0.entry((workload.clone(), gpu.clone())).or_default();
            draft.add(minute, usage);
        }
    }

    fn finish(self) -> Vec<WorkloadUsage> {
        let usage = self.0.into_iter().map(|((workload, gpu), draft)| WorkloadUsage {
            workload,
            gpu,
            from: draft.from,
            to: draft.to,
            memory_peak_bytes: draft.memory_peak_bytes,
            busy: Nanoseconds(draft.inner.busy),
            measured_slot: Nanoseconds(draft.inner.measured_slot),
            last_use: draft.last_use,
            unknown_after_use: Nanoseconds(draft.unknown_after_use),
            waiting_after_use: Microjoules(draft.waiting_after_use),
            alone: draft.alone,
        });
        usage.collect()
    }
}

fn workloads(holder: &HolderId) -> Vec<HolderId> {
    let own = HolderId::new(holder.name());
    let outer = own.outer();
    [Some(own), outer].into_iter().flatten().collect()
}

impl HistoryDraft {
    pub fn new(lines: Vec<BillLine>) -> Self {
        Self { lines: lines.into_iter().map(LineDraft::new).collect(), ..Self::default() }
    }

    /// Adds a line; returns its place.
    pub fn add_line(&mut self, line: BillLine) -> usize {
        self.lines.push(LineDraft::new(line));
        self.lines.len() - 1
    }

    pub fn lines(&self) -> impl Iterator<Item = &BillLine> {
        self.lines.iter().map(|draft| &draft.line)
    }

    /// Adds the next minute of a GPU; `place` finds the line of a row by the row's place.
    pub fn add(&mut self, minute: &GpuMinute<'_>, place: impl Fn(usize) -> Option<usize>) {
        let mut times = BTreeMap::<Option<u32>, u64>::new();
        for row in minute.rows {
            *times.entry(row.slot.gpu_instance).or_default() += row.amounts.parts.held();
        }
        let (from, to, slot) = (minute.minute, minute.to, minute.slot);
        let mut uses = MinuteUses { from, to, slot, ..MinuteUses::default() };
        let mut gpu = None;
        let mut slots = BTreeSet::new();
        for (at, row) in minute.rows.iter().enumerate() {
            let draft = place(at).and_then(|at| self.lines.get_mut(at));
            uses.add(&row.slot, &row.holder, &row.amounts, draft.is_some());
            if let Some(draft) = draft {
                draft.add_row(minute, row, times[&row.slot.gpu_instance]);
                gpu = gpu.or(Some(draft.line.gpu.clone()));
                slots.insert(row.slot.gpu_instance);
            }
        }
        if let Some(gpu) = gpu {
            uses.mark_alone(minute.rows);
            self.usage.add(&gpu, &uses);
            self.gpus.entry(minute.uuid.to_owned()).or_default().add_own(minute, slots);
        } else if let Some(known) = self.gpus.get_mut(minute.uuid) {
            known.add_between(minute);
        }
    }

    /// What was found: the lines, the use of workloads, and the events of each GPU by UUID.
    pub fn finish(self) -> (Vec<ExplainedLine>, Vec<WorkloadUsage>, BTreeMap<String, Vec<GpuEvent>>) {
        let lines: Vec<ExplainedLine> =
            self.lines.into_iter().map(|one| ExplainedLine::new(one.line, one.spans)).collect();
        let events = self.gpus.into_iter().map(|(uuid, gpu)| (uuid, gpu.events)).collect();
        (lines, self.usage.finish(), events)
    }
}

impl LineDraft {
    fn new(line: BillLine) -> Self {
        let workloads = workloads(&line.holder);
        Self { line, workloads, spans: Vec::new(), share: [0; 2] }
    }

    fn add_row(&mut self, minute: &GpuMinute<'_>, row: &MinuteRow, slot: u64) {
        let next = LineSpan {
            from: minute.minute,
            to: minute.to,
            slot: Nanoseconds(slot),
            others: Nanoseconds(self.held_by_others(minute.rows, row.slot.gpu_instance)),
            held: row.amounts.parts,
            used: row.amounts.used,
            measured: Nanoseconds(row.amounts.measured),
            grade: row.grade,
            method: row.method,
            coarse: minute.coarse,
            sources: row.sources.clone(),
            granted_by: row.granted_by.clone(),
        };
        let share = [row.amounts.parts.held(), slot];
        match self.spans.last_mut() {
            Some(last)
                if last.to == next.from
                    && (last.method, last.coarse, &last.granted_by)
                        == (next.method, next.coarse, &next.granted_by)
                    && are_equal_shares(self.share, share) =>
            {
                last.add(&next);
            }
            _ => {
                self.spans.push(next);
                self.share = share;
            }
        }
    }

    fn held_by_others(&self, rows: &[MinuteRow], gpu_instance: Option<u32>) -> u64 {
        let Some(own) = self.workloads.last() else { return 0 };
        let is_other = |row: &&MinuteRow| {
            row.slot.gpu_instance == gpu_instance
                && !row.holder.is_remainder()
                && row.holder.name() != own.name()
                && !row.holder.is_within(own)
        };
        rows.iter().filter(is_other).map(|row| row.amounts.parts.held()).sum()
    }
}

fn are_equal_shares(one: [u64; 2], other: [u64; 2]) -> bool {
    let [held, slot, other_held, other_slot] = [one[0], one[1], other[0], other[1]].map(u128::from);
    (held * other_slot).abs_diff(other_held * slot) * SHARE_TOLERANCE <= slot * other_slot
}

impl LineSpan {
    fn add(&mut self, next: &Self) {
        self.to = next.to;
        self.slot += next.slot;
        self.others += next.others;
        self.held.add(&next.held);
        self.used.add(&next.used);
        self.measured += next.measured;
        self.grade = self.grade.max(next.grade);
        self.sources.extend(&next.sources);
        self.sources.sort();
        self.sources.dedup();
    }
}

impl UsageDraft {
    fn add(&mut self, minute: &MinuteUses, usage: &MinuteUsage) {
        let begin = minute.from;
        let is_next = self.to == begin && self.to > Utc(0);
        if is_next && self.has_before_last {
            self.inner.busy += self.last.busy;
            self.inner.measured_slot += self.last.measured_slot;
        }
        if self.to == Utc(0) {
            self.from = begin;
        }
        self.to = minute.to;
        self.has_before_last = is_next;
        let measured_slot = usage.slots.iter().filter_map(|slot| minute.measured.get(slot)).sum();
        self.last = BusyTime { busy: usage.busy, measured_slot };
        let byte_nanoseconds = usage.memory_byte_seconds * u128::from(Nanoseconds::SECOND.0);
        let mean = byte_nanoseconds.checked_div(minute.slot.0.into()).unwrap_or(0);
        // Parts may have had their peaks at different times, so together they had at least their mean.
        let mean = u64::try_from(mean).unwrap_or(u64::MAX);
        self.memory_peak_bytes = self.memory_peak_bytes.max(mean).max(usage.memory_peak);
        self.add_idle(minute, usage);
    }

    fn add_idle(&mut self, minute: &MinuteUses, usage: &MinuteUsage) {
        if usage.busy > 0 {
            (self.last_use, self.unknown_after_use, self.waiting_after_use) = (Some(minute.to), 0, 0);
        } else {
            self.unknown_after_use += usage.unknown;
            self.waiting_after_use = self.waiting_after_use.saturating_add(usage.waiting);
        }
        if usage.is_alone {
            match self.alone.last_mut() {
                Some(last) if last[1] == minute.from => last[1] = minute.to,
                _ => self.alone.push([minute.from, minute.to]),
            }
        }
    }
}

impl GpuDraft {
    /// Adds a minute in which lines have rows on these slots.
    fn add_own(&mut self, minute: &GpuMinute<'_>, slots: BTreeSet<Option<u32>>) {
        self.slots.extend(slots);
        for event in std::mem::take(&mut self.later).into_iter().chain(self.events_of(minute)) {
            add_event(&mut self.events, event);
        }
    }

    /// Adds a minute in which no line has a row; it counts once one has again.
    fn add_between(&mut self, minute: &GpuMinute<'_>) {
        for event in self.events_of(minute) {
            add_event(&mut self.later, event);
        }
    }

    fn events_of(&self, minute: &GpuMinute<'_>) -> Vec<GpuEvent> {
        let mut times = BTreeMap::<GpuEventKind, u64>::new();
        let is_here =
            |row: &&MinuteRow| row.slot.gpu_instance.is_none() || self.slots.contains(&row.slot.gpu_instance);
        for row in minute.rows.iter().filter(is_here) {
            let parts = &row.amounts.parts;
            let unmeasured = if row.holder.as_str() == HolderId::UNOBSERVED {
                GpuEventKind::Unobserved
            } else {
                GpuEventKind::Unmeasured
            };
            *times.entry(unmeasured).or_default() += parts.unmeasured;
            *times.entry(GpuEventKind::Unavailable).or_default() += parts.unavailable;
            if row.method == Method::Bridged {
                *times.entry(GpuEventKind::Bridged).or_default() += parts.held();
            }
        }
        let (from, to) = (minute.minute, minute.to);
        let events = times.into_iter().filter(|(_, time)| *time > 0);
        events.map(|(kind, time)| GpuEvent { from, to, kind, time: Nanoseconds(time) }).collect()
    }
}

/// Adds an event after the others, to the last one of its kind where it follows that.
fn add_event(events: &mut Vec<GpuEvent>, next: GpuEvent) {
    match events.iter_mut().rev().find(|event| event.kind == next.kind) {
        Some(last) if last.to == next.from => {
            last.to = next.to;
            last.time += next.time;
        }
        _ => events.push(next),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{MINUTE, Parts, Row, Use};

    const SECOND: u64 = 1_000_000_000;

    fn slot(gpu_instance: Option<u32>) -> SlotId {
        SlotId { gpu_instance, profile: None }
    }

    fn line(holder: &str, gpu_instance: Option<u32>) -> BillLine {
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        BillLine { slot: slot(gpu_instance), ..BillLine::empty(gpu, HolderId::new(holder)) }
    }

    fn empty(holder: &str) -> MinuteRow {
        let Row { slot, holder, amounts, grade, method, source, granted_by } =
            Row::empty(HolderId::new(holder));
        let granted_by = granted_by.into_iter().collect();
        MinuteRow { slot, holder, amounts, grade, method, sources: vec![source], granted_by }
    }

    fn row(holder: &str, idle: u64, used: u64) -> MinuteRow {
        let parts = Parts { within: used * SECOND, idle: idle * SECOND, ..Parts::default() };
        MinuteRow {
            amounts: Amounts {
                parts,
                used: Use { within: parts.within, ..Use::default() },
                memory_byte_seconds: 600,
                memory_peak: 12,
                ..Amounts::default()
            },
            sources: vec![ActivitySource::Gpm],
            ..empty(holder)
        }
    }

    /// The history of these lines from rows of consecutive minutes; an empty minute is left out.
    fn history(lines: Vec<BillLine>, minutes: &[Vec<MinuteRow>]) -> HistoryDraft {
        let places: Vec<_> = lines.iter().map(|line| (line.holder.clone(), line.slot.clone())).collect();
        let mut draft = HistoryDraft::new(lines);
        for (minute, rows) in (1..).zip(minutes).filter(|(_, rows)| !rows.is_empty()) {
            let minute = GpuMinute {
                uuid: "GPU-0",
                minute: Utc(minute * MINUTE.0),
                to: Utc((minute + 1) * MINUTE.0),
                slot: MINUTE,
                coarse: false,
                rows,
            };
            draft.add(&minute, |at| {
                places.iter().position(|place| *place == (rows[at].holder.clone(), rows[at].slot.clone()))
            });
        }
        draft
    }

    #[test]
    fn minutes_with_the_same_share_are_one_span_and_a_gap_or_another_share_begins_a_new_one() {
        let half = vec![row("user:a", 20, 10), row("user:b", 30, 0)];
        let odd = vec![row("user:a", 30, 0), row("user:b", 30, 0)];
        let whole = vec![row("user:a", 60, 0)];
        let minutes = [half.clone(), odd, vec![row("user:b", 60, 0)], half, whole];
        let (lines, ..) = history(vec![line("user:a", None)], &minutes).finish();
        let spans: Vec<_> =
            lines[0].spans.iter().map(|span| [span.from.0, span.to.0].map(|at| at / MINUTE.0)).collect();
        assert_eq!(spans, [[1, 3], [4, 5], [5, 6]]);
        let first = &lines[0].spans[0];
        assert_eq!((first.held.held(), first.slot), (60 * SECOND, Nanoseconds(120 * SECOND)));
        assert_eq!(lines[0].spans.iter().map(|span| span.others.0 / SECOND).collect::<Vec<_>>(), [60, 30, 0]);
    }

    #[test]
    fn activity_counts_minutes_between_two_others_and_memory_every_minute() {
        let minute = |used| vec![row("slurm:c/1", 60 - used, 0), row("slurm:c/1.0", 0, used)];
        let minutes = [minute(1), minute(30), minute(60), minute(1), vec![], minute(60), minute(60)];
        let lines = vec![line("slurm:c/1", None), line("slurm:c/1.0", None)];
        let (_, usage, _) = history(lines, &minutes).finish();
        let job = usage.iter().find(|usage| usage.workload.as_str() == "slurm:c/1").unwrap();
        assert_eq!((job.busy.0, job.measured_slot.0), (90 * SECOND, 120 * SECOND));
        assert_eq!((job.from, job.to), (Utc(MINUTE.0), Utc(8 * MINUTE.0)));
        assert_eq!(job.memory_peak_bytes, 20, "the mean of both rows");
        let step = usage.iter().find(|usage| usage.workload.as_str() == "slurm:c/1.0").unwrap();
        assert_eq!(step.memory_peak_bytes, 12, "the peak of its own");
    }

    #[test]
    fn faults_and_gaps_are_those_of_the_slots_of_the_lines() {
        let of = |holder: &str, instance, parts: Parts, method| MinuteRow {
            slot: slot(instance),
            amounts: Amounts { parts, ..Amounts::default() },
            method,
            ..empty(holder)
        };
        let unavailable = |time| Parts { unavailable: time, ..Parts::default() };
        let unmeasured = |time| Parts { unmeasured: time, ..Parts::default() };
        let minute = vec![
            of("user:a", Some(1), unmeasured(2), Method::Bridged),
            of("user:b", Some(2), unavailable(50), Method::Observed),
            of("__unobserved__", None, unmeasured(7), Method::Observed),
        ];
        let (_, _, events) = history(vec![line("user:a", Some(1))], &[minute.clone(), minute]).finish();
        let found: Vec<_> = events["GPU-0"].iter().map(|event| (event.kind, event.time.0)).collect();
        let expected =
            [(GpuEventKind::Unobserved, 14), (GpuEventKind::Unmeasured, 4), (GpuEventKind::Bridged, 4)];
        assert_eq!(found, expected);
        assert_eq!(events["GPU-0"][0].to, Utc(3 * MINUTE.0));
    }

    #[test]
    fn a_step_is_part_of_its_job_and_a_container_of_its_pod() {
        let outer = |id: &str| HolderId::new(id).outer().map(|outer| outer.to_string());
        assert_eq!(outer("slurm:my.cluster/7.batch").as_deref(), Some("slurm:my.cluster/7"));
        assert_eq!(outer("k8s:uid/main").as_deref(), Some("k8s:uid"));
        assert_eq!([outer("slurm:my.cluster/7"), outer("user:a.b/c")], [None, None]);
    }
}
