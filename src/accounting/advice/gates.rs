//! What all rules demand before they say anything.

use super::evidence::{IdleStretch, SlotRun};
use crate::model::{DAY, EnergySum, Grade, Nanoseconds, Utc, WorkloadClass};

/// How much of the account advice looks at: four weeks, so that each hour of the week is in it as often.
pub const PERIOD: Nanoseconds = Nanoseconds(28 * DAY.0);

/// What happened last so long ago is no advice.
pub(super) const NEWEST: Nanoseconds = Nanoseconds(14 * DAY.0);

/// Less GPU time of one workload is not worth a sentence.
pub(super) const LEAST_TIME: Nanoseconds = Nanoseconds::from_seconds(3_600);

/// What recurs must have been seen in so many runs, or over so long, and in so much GPU time.
const LEAST_RUNS: usize = 3;
const LEAST_SPAN: Nanoseconds = Nanoseconds(7 * DAY.0);
const LEAST_HELD: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

/// A process that draws more than this above an idle board does something that no meter sees: a context alone draws up to 66 W.
const MOST_WATTS: u128 = 100;

const HALF_HOUR: Nanoseconds = Nanoseconds::from_seconds(30 * 60);
const TWO_HOURS: Nanoseconds = Nanoseconds::from_seconds(2 * 3_600);

/// How long a workload may hold a GPU without a process, as while its image or its data come; none where that is meant to be.
pub const fn grace_without_process(class: WorkloadClass) -> Option<Nanoseconds> {
    match class {
        WorkloadClass::Batch | WorkloadClass::Interruptible => Some(HALF_HOUR),
        WorkloadClass::Interactive | WorkloadClass::Unknown => Some(TWO_HOURS),
        WorkloadClass::Service | WorkloadClass::Warm | WorkloadClass::Reserve => None,
    }
}

/// How long a workload with a process may use nothing; none where waiting is its work, or nobody knows what it is for.
pub const fn grace_without_use(class: WorkloadClass) -> Option<Nanoseconds> {
    match class {
        WorkloadClass::Interactive => Some(TWO_HOURS),
        _ => None,
    }
}

/// Whether a stretch lasted at least so long, however its first and last row were filled.
pub(super) const fn lasts(stretch: &IdleStretch, least: Nanoseconds) -> bool {
    stretch.length().0 >= least.0 + 2 * stretch.grid.0
}

/// Whether power says that a process worked although no meter saw it.
pub(super) fn draws_power(stretch: &IdleStretch) -> bool {
    is_work_by_power(stretch.waiting.into(), stretch.length())
}

/// Whether that energy above an idle board's, in that time, is of a process that worked.
pub fn is_work_by_power(waiting: EnergySum, length: Nanoseconds) -> bool {
    // A watt is a microjoule per microsecond.
    waiting.0 > MOST_WATTS * u128::from(length.0 / 1_000)
}

/// The part of a time that is unknown where, of what was held in it, so much was measured and so much was not; none where nothing was
/// held. What was held may be a share of a GPU.
pub fn unknown_part(
    time: Nanoseconds,
    measured: Nanoseconds,
    unmeasured: Nanoseconds,
) -> Option<Nanoseconds> {
    let held = u128::from(measured.0) + u128::from(unmeasured.0);
    let part = (u128::from(time.0) * u128::from(unmeasured.0)).checked_div(held)?;
    Some(Nanoseconds(u64::try_from(part).unwrap_or(time.0)))
}

/// Whether at most a twentieth of a wait, or of the grace that it has at least, is unknown: else it begins anew after that.
pub fn is_wait_known(unknown: Nanoseconds, length: Nanoseconds, grace: Nanoseconds) -> bool {
    u128::from(unknown.0) * 20 <= u128::from(length.max(grace).0)
}

/// What was seen of a workload that recurs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recurrence {
    pub(super) runs: usize,
    pub(super) first: Option<Utc>,
    pub(super) last: Utc,
    pub(super) held: Nanoseconds,
    unknown: Nanoseconds,
    pub(super) grade: Grade,
}

impl Recurrence {
    /// Adds a run on one slot; `is_new` of the first slot of a run.
    pub(super) fn add(&mut self, run: &SlotRun, grade: Grade, is_new: bool) {
        self.runs += usize::from(is_new);
        self.first = Some(self.first.map_or(run.begin, |first| first.min(run.begin)));
        self.last = self.last.max(run.end);
        self.held += run.held;
        self.unknown += run.unknown;
        self.grade = self.grade.max(grade);
    }

    /// Whether it was seen often enough, lately, and known well enough to say what it will do again.
    pub(super) fn is_enough(&self, now: Utc) -> bool {
        let span = self.first.map_or(Nanoseconds(0), |first| self.last.since(first));
        (self.runs >= LEAST_RUNS || span >= LEAST_SPAN)
            && self.held >= LEAST_HELD
            && now.since(self.last) <= NEWEST
            && u128::from(self.unknown.0) * 20 <= u128::from(self.held.0)
            && self.grade <= Grade::SplitByActivity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HOUR;

    #[test]
    fn a_recurrence_needs_runs_or_days_and_hours_and_known_use_and_a_good_grade() {
        let run = |begin: u64, hours: u64| SlotRun {
            begin: Utc(begin * HOUR.0),
            end: Utc((begin + hours) * HOUR.0),
            held: Nanoseconds(hours * HOUR.0),
            ..SlotRun::default()
        };
        let of = |runs: &[SlotRun], grade| {
            let mut sum = Recurrence::default();
            runs.iter().for_each(|run| sum.add(run, grade, true));
            sum
        };
        let now = Utc(400 * HOUR.0);
        let is_enough = |runs: &[SlotRun]| of(runs, Grade::SplitByActivity).is_enough(now);
        assert!(is_enough(&[run(300, 8), run(320, 8), run(340, 8)]));
        assert!(!is_enough(&[run(300, 8), run(320, 8)]), "two runs in a day");
        assert!(is_enough(&[run(150, 8), run(320, 16)]), "two runs in seven days");
        assert!(!is_enough(&[run(300, 7), run(320, 8), run(340, 8)]), "23 hours");
        assert!(!is_enough(&[run(10, 8), run(20, 8), run(30, 8)]), "long ago");
        assert!(!of(&[run(300, 8), run(320, 8), run(340, 8)], Grade::SplitByMemory).is_enough(now));
        let unknown = SlotRun { unknown: Nanoseconds(2 * HOUR.0), ..run(300, 20) };
        assert!(!is_enough(&[unknown, run(330, 8), run(340, 8)]), "more than 5 % unmeasured");
    }
}
