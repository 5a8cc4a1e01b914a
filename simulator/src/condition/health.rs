//! Memory health by script: errors, rows replaced, pages retired, what the driver asks for.
//!
//! In: the scenario's entries for one GPU. Out: counts between two elapsed times and states at one. Which
//! board answers which of them is not known here.

use super::{Event, Lasting};
use crate::channel::incidents::{ErrorKind, Incidents, RemapCause};
use crate::schedule::hash;

/// Boards with so many banks have HBM, and show in the histogram what was remapped; the others do not.
pub(crate) const HBM_BANKS: u32 = 640;
/// The driver keeps no more retired pages.
const MOST_PAGES: usize = 64;

/// One GPU's memory.
pub(crate) struct Health {
    errors: Vec<Event<(ErrorKind, Option<usize>)>>,
    remaps: Vec<Event<Remapped>>,
    actions: Vec<Lasting<u32>>,
    banks: u32,
    seed: u64,
    cycle: u64,
    /// Elapsed nanoseconds at which the board came: what was before happened to another.
    came: u64,
}

#[derive(Clone, Copy)]
struct Remapped {
    cause: RemapCause,
    pending: bool,
    failure: bool,
    bank: u32,
}

/// Rows replaced up to a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remaps {
    pub(crate) correctable: u32,
    pub(crate) uncorrectable: u32,
    pub(crate) pending: bool,
    pub(crate) failure: bool,
}

/// Banks by how many spare rows they have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    pub(crate) max: u32,
    pub(crate) high: u32,
    pub(crate) partial: u32,
    pub(crate) low: u32,
    pub(crate) none: u32,
}

impl Health {
    pub(super) fn new(
        script: &Incidents,
        (gpu, seed): (u32, u64),
        banks: u32,
        cycle: u64,
        came: u64,
    ) -> Self {
        let errors = script.memory_errors.iter().filter(|entry| entry.gpu == gpu);
        let actions = script.recoveries.iter().filter(|entry| entry.gpu == gpu);
        let mut remaps = Vec::new();
        for (number, entry) in (0_u64..).zip(script.remaps.iter().filter(|entry| entry.gpu == gpu)) {
            let drawn = hash(seed ^ hash(number)) % u64::from(banks.max(1));
            let bank = entry.bank.unwrap_or(u32::try_from(drawn).unwrap_or(0));
            let what = Remapped { cause: entry.cause, pending: entry.pending, failure: entry.failure, bank };
            remaps.push(Event::new(entry.at, 1, what));
        }
        Self {
            errors: errors
                .map(|entry| Event::new(entry.at, entry.count, (entry.kind, entry.instance)))
                .collect(),
            remaps,
            actions: actions.map(|entry| Lasting::new(entry.from, entry.to, entry.action as u32)).collect(),
            banks,
            seed,
            cycle,
            came,
        }
    }

    /// Errors of some kinds after a time (0: ever) and up to another; of one instance if it is named.
    pub(crate) fn errors(
        &self,
        kinds: &[ErrorKind],
        instance: Option<usize>,
        (after, until): (u64, u64),
    ) -> u64 {
        let span = (after.max(self.came), until);
        let mut sum = 0_u64;
        for event in &self.errors {
            let (kind, place) = event.what;
            if kinds.contains(&kind) && instance.is_none_or(|asked| place == Some(asked)) {
                sum = sum.saturating_add(event.counted(span, self.cycle));
            }
        }
        sum
    }

    /// Rows replaced since ever; those after `loaded` may wait for the next load of the driver.
    pub(crate) fn remaps(&self, loaded: u64, elapsed: u64) -> Remaps {
        let mut remaps = Remaps::default();
        for event in &self.remaps {
            let times = event.counted((self.came, elapsed), self.cycle);
            let rows = u32::try_from(times).unwrap_or(u32::MAX);
            match event.what.cause {
                RemapCause::Correctable => remaps.correctable = remaps.correctable.saturating_add(rows),
                RemapCause::Uncorrectable => remaps.uncorrectable = remaps.uncorrectable.saturating_add(rows),
            }
            remaps.pending |= event.what.pending && event.counted((loaded, elapsed), self.cycle) > 0;
            remaps.failure |= event.what.failure && times > 0;
        }
        remaps
    }

    /// Banks by what is left; on boards without HBM all of them at the most, whatever was remapped.
    pub(crate) fn histogram(&self, elapsed: u64) -> Histogram {
        let mut histogram = Histogram { max: self.banks, ..Histogram::default() };
        if self.banks < HBM_BANKS {
            return histogram;
        }
        let mut banks: Vec<u32> = self.remaps.iter().map(|event| event.what.bank).collect();
        banks.sort_unstable();
        banks.dedup();
        for bank in banks {
            let here = self.remaps.iter().filter(|event| event.what.bank == bank);
            let rows: u64 = here.map(|event| event.counted((self.came, elapsed), self.cycle)).sum();
            let place = match rows {
                0 => continue,
                1 => &mut histogram.high,
                2..=4 => &mut histogram.partial,
                5..=7 => &mut histogram.low,
                _ => &mut histogram.none,
            };
            *place += 1;
            histogram.max = histogram.max.saturating_sub(1);
        }
        histogram
    }

    /// NVML's number of the recovery action asked for.
    pub(crate) fn action(&self, elapsed: u64) -> u32 {
        let now = self.actions.iter().filter(|lasting| lasting.at(elapsed, self.cycle));
        now.map(|lasting| lasting.what).max().unwrap_or(0)
    }

    /// Addresses of the pages retired for a cause, and the elapsed time of each.
    pub(crate) fn pages(&self, cause: ErrorKind, elapsed: u64) -> Vec<(u64, u64)> {
        let mut pages = Vec::new();
        for (number, event) in (0_u64..).zip(&self.errors).filter(|(_, event)| event.what.0 == cause) {
            let before = if self.came == 0 { 0 } else { event.times(self.came, self.cycle) };
            for time in (before..event.times(elapsed, self.cycle)).take(MOST_PAGES) {
                for page in (0..event.count).take(MOST_PAGES) {
                    let address = hash(self.seed ^ hash(number << 40 | time << 20 | page)) % (1 << 22);
                    pages.push((address << 12, time * self.cycle + event.at));
                }
            }
        }
        pages.truncate(MOST_PAGES);
        pages
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn health(script: &str) -> Health {
        Health::new(&serde_json::from_str(script).unwrap(), (0, 7), 640, 60 * SECOND, 0)
    }

    #[test]
    fn pages_have_an_address_and_the_time_of_their_end() {
        let health = health(
            r#"{"memory_errors":[{"at":5,"gpu":0,"kind":"page_retired_corrected","count":2},
                {"at":9,"gpu":0,"kind":"page_retired_uncorrected"},
                {"at":9,"gpu":1,"kind":"page_retired_uncorrected"}]}"#,
        );
        let corrected = |elapsed| health.pages(ErrorKind::PageRetiredCorrected, elapsed * SECOND);
        assert!(corrected(4).is_empty());
        let pages = corrected(66);
        let mut addresses: Vec<u64> = pages.iter().map(|(address, _)| *address).collect();
        assert!(addresses.iter().all(|address| address.is_multiple_of(4096)));
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 4);
        assert_eq!(pages.iter().map(|(_, at)| at / SECOND).collect::<Vec<_>>(), [5, 5, 65, 65]);
        assert_eq!(health.pages(ErrorKind::PageRetiredUncorrected, 9 * SECOND).len(), 1);
        // The driver keeps 64, however often the cycle turns.
        assert_eq!(corrected(60 * 100).len(), 64);
    }

    #[test]
    fn what_happens_at_the_beginning_has_happened_since() {
        let health = health(r#"{"memory_errors":[{"at":0,"gpu":0,"kind":"dram_corrected","count":5}]}"#);
        let errors = |span| health.errors(&[ErrorKind::DramCorrected], None, span);
        assert_eq!((errors((0, 0)), errors((0, 59 * SECOND)), errors((0, 60 * SECOND))), (5, 5, 10));
        assert_eq!(errors((60 * SECOND, 61 * SECOND)), 0);
    }

    #[test]
    fn a_board_that_came_later_has_no_errors_of_the_one_before_it() {
        let script = r#"{"memory_errors":[{"at":5,"gpu":0,"kind":"dram_corrected"},
            {"at":5,"gpu":0,"kind":"page_retired_corrected"}],"remaps":[{"at":5,"gpu":0,"cause":"correctable"}]}"#;
        let script = serde_json::from_str(script).unwrap();
        let health = Health::new(&script, (0, 7), 640, 60 * SECOND, 10 * SECOND);
        let seen = |elapsed: u64| {
            let errors = health.errors(&[ErrorKind::DramCorrected], None, (0, elapsed * SECOND));
            let pages = health.pages(ErrorKind::PageRetiredCorrected, elapsed * SECOND).len();
            (
                errors,
                pages,
                health.remaps(0, elapsed * SECOND).correctable,
                health.histogram(elapsed * SECOND).max,
            )
        };
        assert_eq!((seen(20), seen(70)), ((0, 0, 0, 640), (1, 1, 1, 639)));
    }

    #[test]
    fn a_bank_follows_from_the_seed_and_stays() {
        let health = health(r#"{"remaps":[{"at":1,"gpu":0,"cause":"correctable"}]}"#);
        assert_eq!(health.histogram(2 * SECOND), Histogram { max: 639, high: 1, ..Histogram::default() });
        assert_eq!(health.histogram(62 * SECOND), Histogram { max: 639, partial: 1, ..Histogram::default() });
    }
}
