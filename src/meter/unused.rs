//! What is held and not used, judged live by the limits of advice: without a process, or by an interactive process that does nothing.
//!
//! Each settled window says what the holders of a GPU used in it. The ledger keeps since when a run uses nothing, so a restart of the
//! agent does not begin that time again. It does not keep when the last process of a run ended: that time begins again, unless the run
//! never had a process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::TrackedGpu;
use super::budget::{SeriesBudget, SeriesList};
use super::published_accounts::instance_label;
use super::versions::HolderVersions;
use crate::accounting::advice::{
    grace_without_process, grace_without_use, is_wait_known, is_work_by_power, unknown_part,
};
use crate::accounting::tenants::{TenantRules, class, tenant};
use crate::model::snapshot::{UnusedEntry, UnusedKind};
use crate::model::{
    Absence, Evidence, GpuProcess, HolderId, Nanoseconds, Parts, Row, Run, Settlement, Utc, WorkloadClass,
};

/// A slot, by its GPU instance, and a workload that holds of it.
type WaitingSlot = (Option<u32>, HolderId);

/// The holdings of one GPU of which nothing was used in the last window.
#[derive(Default)]
pub(super) struct UnusedHoldings {
    waits: BTreeMap<WaitingSlot, UnusedTime>,
    found: Vec<Unused>,
    /// When the list of processes was not read, or did not say of each how much memory it has: no process looks the same. Times of
    /// windows that are not settled yet.
    unclear: BTreeSet<Utc>,
}

/// A time in which a workload held and used nothing.
struct UnusedTime {
    /// Whose facts are those of the workload.
    holder: HolderId,
    kind: UnusedKind,
    since: Utc,
    until: Utc,
    /// The part of it in which use was not known.
    unknown: Nanoseconds,
    /// Whether it held in the last window.
    is_held: bool,
}

/// A wait that is longer than it is right for the workload.
struct Unused {
    slot: WaitingSlot,
    tenant: Arc<str>,
    kind: UnusedKind,
    since: Utc,
}

/// What a window says of a holding.
enum WindowUse {
    Unused(UnusedKind),
    /// Used, of no use to its holder, or not to be judged.
    Other,
    Unknown,
}

impl UnusedHoldings {
    /// Goes on with the runs of a ledger, whose account ended at that time.
    pub(super) fn recover(evidence: &Evidence, settled: Utc) -> Self {
        // A failed GPU ends a wait, and it is not known when it failed.
        let runs = evidence.runs.iter().filter(|(_, run)| run.amounts.parts.unavailable == 0);
        let waits = runs.filter_map(|(key, run)| {
            let had_process = run.amounts.memory_peak > 0;
            let wait = UnusedTime {
                holder: run.holder.clone(),
                kind: if had_process { UnusedKind::OpenSession } else { UnusedKind::HeldWithoutProcess },
                since: run.last_use.unwrap_or(run.begin),
                until: settled,
                is_held: true,
                // Of the whole run, so at least that since the last use.
                unknown: unknown_of(run.end.since(run.begin), &run.amounts.parts),
            };
            let worked = is_work_by_power(run.amounts.energy_waiting.into(), wait.length());
            (!worked).then(|| ((key.gpu_instance, key.workload.clone()), wait))
        });
        Self { waits: waits.collect(), ..Self::default() }
    }

    pub(super) fn note_processes(&mut self, at: Utc, processes: &Result<Arc<[GpuProcess]>, Absence>) {
        if !matches!(processes, Ok(list) if list.iter().all(|process| process.memory.is_some())) {
            self.unclear.insert(at);
        }
    }

    /// Adds the next window.
    pub(super) fn add(&mut self, window: &Settlement) {
        let length = window.to.since(window.from);
        let slots = |is: fn(&Row) -> bool| -> BTreeSet<Option<u32>> {
            window.rows.iter().filter(|row| is(row)).map(|row| row.slot.gpu_instance).collect()
        };
        let unclear = slots(|row| row.amounts.memory_byte_seconds > 0 && row.holder.may_work_for_others());
        let unmeasured = slots(|row| row.amounts.parts.unmeasured > 0);
        let later = self.unclear.split_off(&window.to.plus(Nanoseconds(1)));
        let is_unlisted = self.unclear.last().is_some_and(|at| *at > window.from);
        self.unclear = later;
        let mut waits = BTreeMap::new();
        for (key, run) in &window.evidence.runs {
            let slot = (key.gpu_instance, key.workload.clone());
            let before = self.waits.remove(&slot);
            let has_memory = run.amounts.memory_byte_seconds > 0;
            let speaks_against =
                |wait: &UnusedTime| has_memory && wait.kind == UnusedKind::HeldWithoutProcess;
            let is_unclear = unclear.contains(&key.gpu_instance) || (is_unlisted && !has_memory);
            let unknown = if is_unclear { length } else { unknown_of(length, &run.amounts.parts) };
            let wait = match judge_window(window, run, unknown.0 > 0) {
                WindowUse::Unused(kind) => Some(UnusedTime::of(before, kind, run, window)),
                WindowUse::Unknown => before
                    .filter(|wait| !speaks_against(wait))
                    .map(|wait| wait.without_knowledge(window, unknown, true)),
                WindowUse::Other => None,
            };
            waits.extend(wait.map(|wait| (slot, wait)));
        }
        // Who holds by presence holds nothing while it is not known who is there.
        let gone = std::mem::take(&mut self.waits).into_iter();
        let is_unknown = |slot: &WaitingSlot| unclear.contains(&slot.0) || unmeasured.contains(&slot.0);
        let gone = gone.filter(|(slot, _)| is_unlisted || is_unknown(slot));
        waits.extend(gone.map(|(slot, wait)| (slot, wait.without_knowledge(window, length, false))));
        self.waits = waits;
    }

    /// Finds the holdings that are unused for longer than the classes of their workloads allow, and forgets those of which too little
    /// is known.
    pub(super) fn judge(&mut self, versions: &HolderVersions, rules: &TenantRules) {
        let Self { waits, found, .. } = self;
        found.clear();
        waits.retain(|slot, wait| {
            let holder = versions.holder(&wait.holder);
            let grace = grace(wait.kind, class(&holder, rules));
            let is_known = is_wait_known(wait.unknown, wait.length(), grace.unwrap_or_default());
            let is_long = grace.is_some_and(|grace| wait.length() > grace);
            found.extend((is_known && is_long && wait.is_held).then(|| Unused {
                slot: slot.clone(),
                tenant: tenant(&holder, rules),
                kind: wait.kind,
                since: wait.since,
            }));
            is_known
        });
    }
}

fn judge_window(window: &Settlement, run: &Run, is_unknown: bool) -> WindowUse {
    let (parts, used) = (&run.amounts.parts, run.amounts.used.total());
    let is_working = is_work_by_power(run.amounts.energy_waiting.into(), window.to.since(window.from));
    if parts.unavailable > 0 || parts.within + used > 0 || is_working {
        return WindowUse::Other;
    }
    match run.amounts.memory_byte_seconds {
        _ if is_unknown => WindowUse::Unknown,
        // All of it is lent, or nothing is held.
        _ if parts.idle == 0 => WindowUse::Other,
        0 => WindowUse::Unused(UnusedKind::HeldWithoutProcess),
        _ => WindowUse::Unused(UnusedKind::OpenSession),
    }
}

/// The part of a time that is unknown, by the parts of what was held in it.
fn unknown_of(time: Nanoseconds, parts: &Parts) -> Nanoseconds {
    let measured = Nanoseconds(parts.within + parts.idle);
    unknown_part(time, measured, Nanoseconds(parts.unmeasured)).unwrap_or_default()
}

const fn grace(kind: UnusedKind, class: WorkloadClass) -> Option<Nanoseconds> {
    match kind {
        UnusedKind::HeldWithoutProcess => grace_without_process(class),
        UnusedKind::OpenSession => grace_without_use(class),
    }
}

impl UnusedTime {
    /// The same wait with one window more; another begins if it was of another kind.
    fn of(before: Option<Self>, kind: UnusedKind, run: &Run, window: &Settlement) -> Self {
        let before = before.filter(|wait| wait.kind == kind);
        let (since, unknown) =
            before.map_or((window.from, Nanoseconds(0)), |wait| (wait.since, wait.unknown));
        Self { holder: run.holder.clone(), kind, since, until: window.to, unknown, is_held: true }
    }

    fn without_knowledge(self, window: &Settlement, unknown: Nanoseconds, is_held: bool) -> Self {
        Self { until: window.to, unknown: self.unknown + unknown, is_held, ..self }
    }

    const fn length(&self) -> Nanoseconds {
        self.until.since(self.since)
    }
}

/// What is unused on all GPUs, as far as series are left for it.
pub(super) fn unused_entries(gpus: &[&TrackedGpu], budget: &mut SeriesBudget<'_>) -> Arc<[UnusedEntry]> {
    let of_gpu = |(gpu, tracked): (usize, &&TrackedGpu)| {
        let entry = move |unused: &Unused| UnusedEntry {
            gpu,
            gpu_instance: instance_label(unused.slot.0),
            workload: Arc::clone(&unused.slot.1.0),
            tenant: Arc::clone(&unused.tenant),
            kind: unused.kind,
            since: unused.since,
        };
        tracked.unused.found.iter().map(entry).collect::<Vec<_>>()
    };
    let mut entries: Vec<UnusedEntry> = gpus.iter().enumerate().flat_map(of_gpu).collect();
    entries.sort_by(|one, other| {
        let order = |entry: &UnusedEntry| (Arc::clone(&entry.tenant), entry.gpu, entry.kind);
        order(one).cmp(&order(other))
    });
    entries.truncate(budget.admit(SeriesList::Unused, entries.len()));
    entries.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::tenants::ClassRule;
    use crate::model::{Amounts, Bytes, MINUTE, RunKey, Use};

    const WINDOW: u64 = 15_000_000_000;

    /// What a test says of the windows of a time.
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Nothing,
        Process,
        Work,
        Power,
        Lent,
        Unmeasured,
        /// A part was not measured; in the rest there was a process, or one that worked by its power.
        LateProcess,
        LatePower,
        /// Half a second was not measured; in the rest there was nothing, or it was lent.
        LateNothing,
        LateLent,
        Failed,
        Server,
        Unlisted,
        /// A process of which it is not known whose it is, so that the holder by presence is not there.
        Unidentified,
    }

    struct Watched {
        unused: UnusedHoldings,
        now: u64,
        holder: HolderId,
        /// The part of the GPU that it holds is one of so many.
        part: u64,
    }

    impl Watched {
        fn new(holder: &str) -> Self {
            let (now, holder) = (1_000 * WINDOW, HolderId::new(holder));
            Self { unused: UnusedHoldings::default(), now, holder, part: 1 }
        }

        /// Adds windows for so many minutes.
        fn add(&mut self, minutes: u64, seen: Seen) {
            for _ in 0..4 * minutes {
                let (from, to) = (Utc(self.now), Utc(self.now + WINDOW));
                self.now = to.0;
                let with_memory = if seen == Seen::Unlisted { None } else { Some(Bytes(1)) };
                let process = GpuProcess { pid: 1, gpu_instance: None, memory: with_memory };
                self.unused.note_processes(to, &Ok([process].into()));
                self.unused.add(&self.window(from, to, seen));
            }
        }

        fn window(&self, from: Utc, to: Utc, seen: Seen) -> Settlement {
            let (mut parts, mut used) = (Parts::default(), Use::default());
            let part = match seen {
                Seen::Work => &mut parts.within,
                Seen::Lent => &mut parts.lent,
                Seen::Unmeasured => &mut parts.unmeasured,
                Seen::Failed => &mut parts.unavailable,
                _ => &mut parts.idle,
            };
            *part = WINDOW;
            if matches!(seen, Seen::LateProcess | Seen::LatePower) {
                (parts.idle, parts.unmeasured) = (WINDOW - 1, 1);
            }
            if matches!(seen, Seen::LateNothing | Seen::LateLent) {
                (parts.idle, parts.unmeasured) = (WINDOW / 30 * 29, WINDOW / 30);
            }
            if seen == Seen::LateLent {
                (parts.idle, parts.lent) = (0, parts.idle);
            }
            let [within, idle, lent, unmeasured] =
                [parts.within, parts.idle, parts.lent, parts.unmeasured].map(|part| part / self.part);
            parts = Parts { within, idle, lent, unmeasured, ..parts };
            used.within = parts.within;
            let is_working = matches!(seen, Seen::Power | Seen::LatePower);
            let has_memory = is_working || matches!(seen, Seen::Process | Seen::Work | Seen::LateProcess);
            let amounts = Amounts {
                parts,
                used,
                memory_byte_seconds: u64::from(has_memory),
                energy_waiting: crate::model::Microjoules(if is_working { 5_000_000_000 } else { 0 }),
                ..Amounts::default()
            };
            let key = RunKey { gpu_instance: None, workload: HolderId(self.holder.workload()), begin: from };
            let rows = vec![Row { amounts, ..Row::empty(self.holder.clone()) }];
            let run = Run { end: to, amounts, ..Run::new(self.holder.clone(), from) };
            let mut settlement = Settlement { from, to, rows, ..Settlement::default() };
            if seen != Seen::Unidentified {
                settlement.evidence.runs.insert(key, run);
            }
            if matches!(seen, Seen::Server | Seen::Unidentified) {
                let amounts = Amounts { memory_byte_seconds: 1, ..Amounts::default() };
                settlement.rows = vec![Row { amounts, ..Row::empty(HolderId::new(HolderId::SYSTEM)) }];
            }
            settlement
        }

        /// What is found now, with the minutes since when.
        fn found(&mut self, rules: &TenantRules) -> Option<(&'static str, u64)> {
            self.unused.judge(&HolderVersions::default(), rules);
            let minutes = |since: Utc| Utc(self.now).since(since).0 / MINUTE.0;
            self.unused.found.first().map(|found| (found.kind.name(), minutes(found.since)))
        }
    }

    /// Of a Slurm job, which is batch.
    const JOB: &str = "slurm:c/7";
    /// Of a user's session, which is interactive.
    const SESSION: &str = "user:ada";

    fn found(holder: &str, times: &[(u64, Seen)]) -> Option<(&'static str, u64)> {
        let mut watched = Watched::new(holder);
        times.iter().for_each(|(minutes, seen)| watched.add(*minutes, *seen));
        watched.found(&TenantRules::default())
    }

    #[test]
    fn a_job_without_a_process_is_found_after_30_minutes_and_a_session_after_two_hours() {
        assert_eq!(found(JOB, &[(30, Seen::Nothing)]), None, "its image is loaded");
        assert_eq!(found(JOB, &[(31, Seen::Nothing)]), Some(("held_without_process", 31)));
        assert_eq!(found(SESSION, &[(120, Seen::Nothing)]), None);
        assert_eq!(found(SESSION, &[(121, Seen::Nothing)]), Some(("held_without_process", 121)));
        assert_eq!(found(JOB, &[(60, Seen::Nothing), (1, Seen::Work), (29, Seen::Nothing)]), None);
        let later = [(60, Seen::Work), (40, Seen::Nothing)];
        assert_eq!(found(JOB, &later), Some(("held_without_process", 40)));
    }

    #[test]
    fn an_interactive_process_that_does_nothing_is_found_after_two_hours_and_one_of_a_job_never() {
        assert_eq!(found(SESSION, &[(120, Seen::Process)]), None);
        assert_eq!(found(SESSION, &[(60, Seen::Nothing), (121, Seen::Process)]), Some(("open_session", 121)));
        assert_eq!(found(SESSION, &[(60, Seen::Nothing), (100, Seen::Process)]), None);
        assert_eq!(found(JOB, &[(1_000, Seen::Process)]), None);
    }

    #[test]
    fn what_cannot_be_known_or_is_no_idle_time_is_never_found() {
        for seen in [Seen::Power, Seen::Lent, Seen::Unmeasured, Seen::Failed, Seen::Server, Seen::Unlisted] {
            for holder in [JOB, SESSION] {
                assert_eq!(found(holder, &[(300, seen)]), None);
                let between = [(200, Seen::Nothing), (20, seen), (10, Seen::Nothing)];
                assert_eq!(found(holder, &between), None);
            }
        }
    }

    #[test]
    fn a_wait_goes_on_while_a_twentieth_of_it_or_of_its_grace_is_unknown_and_else_begins_anew() {
        for seen in [Seen::Unmeasured, Seen::Unlisted, Seen::Server, Seen::Unidentified] {
            let with = |minutes| [(60, Seen::Nothing), (minutes, seen), (10, Seen::Nothing)];
            assert_eq!(found(JOB, &with(3)), Some(("held_without_process", 73)));
            assert_eq!(found(JOB, &with(5)), None);
            let early = |minutes| [(4, Seen::Process), (minutes, seen), (116, Seen::Process)];
            assert_eq!(found(SESSION, &early(6)), Some(("open_session", 126)));
            assert_eq!(found(SESSION, &early(7)), None);
            let mut share = Watched { part: 8, ..Watched::new(JOB) };
            with(5).iter().for_each(|(minutes, seen)| share.add(*minutes, *seen));
            assert_eq!(share.found(&TenantRules::default()), None, "of an instance too");
            let mut watched = Watched::new(JOB);
            with(5)[..2].iter().for_each(|(minutes, seen)| watched.add(*minutes, *seen));
            assert_eq!(watched.found(&TenantRules::default()), None);
            watched.add(31, Seen::Nothing);
            assert_eq!(watched.found(&TenantRules::default()), Some(("held_without_process", 31)));
        }
        let with = [(1, Seen::Nothing), (60, Seen::LateNothing)];
        assert_eq!(found(JOB, &with), Some(("held_without_process", 61)), "only what was not measured");
        let with = [(60, Seen::Nothing), (10, Seen::LateLent)];
        assert_eq!(found(JOB, &with), None, "nothing of it was seen idle");
        let with = |seen| [(60, Seen::Nothing), (1, seen), (20, Seen::Nothing)];
        assert_eq!(found(JOB, &with(Seen::LateProcess)), None, "a process was there");
        let with = |seen| [(119, Seen::Process), (1, seen), (20, Seen::Process)];
        assert_eq!(found(SESSION, &with(Seen::LateProcess)), Some(("open_session", 140)));
        assert_eq!(found(SESSION, &with(Seen::LatePower)), None, "it worked");
        let with = [(60, Seen::Nothing), (3, Seen::Unmeasured)];
        assert_eq!(found(JOB, &with), Some(("held_without_process", 63)), "while it is not known");
        let with = [(60, Seen::Nothing), (3, Seen::Unidentified)];
        assert_eq!(found(JOB, &with), None, "while it is not known whether it holds");
    }

    #[test]
    fn workloads_that_wait_on_purpose_are_never_found() {
        for class in [WorkloadClass::Service, WorkloadClass::Warm, WorkloadClass::Reserve] {
            let classes = vec![ClassRule { class, ..ClassRule::default() }];
            let rules = TenantRules { classes, ..TenantRules::default() };
            for seen in [Seen::Nothing, Seen::Process] {
                let mut watched = Watched::new(SESSION);
                watched.add(1_000, seen);
                assert_eq!(watched.found(&rules), None, "{class:?}");
            }
        }
    }

    #[test]
    fn a_wait_goes_on_from_the_runs_of_the_ledger() {
        let with_unmeasured = |unmeasured: u64, had_process: bool, last_use: Option<u64>, next: Seen| {
            let mut watched = Watched::new(SESSION);
            let settled = Utc(watched.now);
            let ago = |minutes: u64| Utc(settled.0 - minutes * MINUTE.0);
            let mut run = Run { end: settled, ..Run::new(watched.holder.clone(), ago(200)) };
            run.amounts.memory_peak = u64::from(had_process);
            run.last_use = last_use.map(ago);
            // Of an eighth of the GPU.
            run.amounts.parts.unmeasured = unmeasured * MINUTE.0 / 8;
            run.amounts.parts.idle = (200 - unmeasured) * MINUTE.0 / 8;
            let key = RunKey { gpu_instance: None, workload: watched.holder.clone(), begin: run.begin };
            let evidence = Evidence { runs: [(key, run)].into(), ..Evidence::default() };
            watched.unused = UnusedHoldings::recover(&evidence, settled);
            watched.add(1, next);
            watched.found(&TenantRules::default())
        };
        assert_eq!(with_unmeasured(10, false, None, Seen::Nothing), Some(("held_without_process", 201)));
        assert_eq!(with_unmeasured(11, false, None, Seen::Nothing), None);
        let after = |had_process, last_use, next| with_unmeasured(0, had_process, last_use, next);
        assert_eq!(after(false, None, Seen::Nothing), Some(("held_without_process", 201)));
        assert_eq!(after(true, None, Seen::Process), Some(("open_session", 201)));
        assert_eq!(after(true, Some(150), Seen::Process), Some(("open_session", 151)));
        assert_eq!(after(true, Some(100), Seen::Process), None);
        assert_eq!(after(true, Some(150), Seen::Nothing), None, "when its process ended is not known");
        assert_eq!(after(true, Some(150), Seen::Work), None);
    }

    #[test]
    fn a_holding_that_ends_is_forgotten() {
        let mut watched = Watched::new(JOB);
        watched.add(60, Seen::Nothing);
        watched.holder = HolderId::new("slurm:c/8");
        watched.add(20, Seen::Nothing);
        assert_eq!((watched.found(&TenantRules::default()), watched.unused.waits.len()), (None, 1));
    }
}
