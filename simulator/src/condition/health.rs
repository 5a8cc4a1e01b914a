//! Memory health by script: errors, replaced rows, retired pages, recovery actions.
//!
//! In: the scenario's entries for one GPU. Out: counts between two elapsed times and states at one. Which
//! board reports which of them is not known here.

use super::{Event, Lasting};
use crate::channel::incidents::{ErrorKind, Incidents, RemapCause};
use crate::schedule::hash;

/// Boards with at least this many banks have HBM. Only these show remapped rows in the histogram.
pub(crate) const HBM_BANKS: u32 = 640;
/// The most retired pages that the driver keeps.
const MOST_PAGES: usize = 64;

/// One GPU's memory.
pub(crate) struct Health {
    errors: Vec<Event<(ErrorKind, Option<usize>)>>,
    remaps: Vec<Event<RemappedRow>>,
    actions: Vec<Lasting<u32>>,
    memory: BoardMemory,
}

/// What is known of a board's memory beside the script.
pub(super) struct BoardMemory {
    pub(super) banks: u32,
    pub(super) seed: u64,
    pub(super) cycle: u64,
    /// Elapsed nanoseconds at which the board was put in: what happened before happened to another one.
    pub(super) came: u64,
}

#[derive(Clone, Copy)]
struct RemappedRow {
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
pub(crate) struct BankHistogram {
    pub(crate) max: u32,
    pub(crate) high: u32,
    pub(crate) partial: u32,
    pub(crate) low: u32,
    pub(crate) none: u32,
}

impl Health {
    pub(super) fn new(script: &Incidents, gpu: u32, memory: BoardMemory) -> Self {
        let errors = script.memory_errors.iter().filter(|entry| entry.gpu == gpu);
        let actions = script.recoveries.iter().filter(|entry| entry.gpu == gpu);
        let mut remaps = Vec::new();
        for (number, entry) in (0_u64..).zip(script.remaps.iter().filter(|entry| entry.gpu == gpu)) {
            let drawn = hash(memory.seed ^ hash(number)) % u64::from(memory.banks.max(1));
            let bank = entry.bank.unwrap_or(u32::try_from(drawn).unwrap_or(0));
            let what =
                RemappedRow { cause: entry.cause, pending: entry.pending, failure: entry.failure, bank };
            remaps.push(Event::new(entry.at, 1, what));
        }
        Self {
            errors: errors
                .map(|entry| Event::new(entry.at, entry.count, (entry.kind, entry.instance)))
                .collect(),
            remaps,
            actions: actions.map(|entry| Lasting::new(entry.from, entry.to, entry.action as u32)).collect(),
            memory,
        }
    }

    /// Errors of these kinds after one time (0: ever) and up to another; only those of `instance` if it is given.
    pub(crate) fn errors(
        &self,
        kinds: &[ErrorKind],
        instance: Option<usize>,
        (after, until): (u64, u64),
    ) -> u64 {
        let span = (after.max(self.memory.came), until);
        let mut sum = 0_u64;
        for event in &self.errors {
            let (kind, place) = event.what;
            if kinds.contains(&kind) && instance.is_none_or(|asked| place == Some(asked)) {
                sum = sum.saturating_add(event.counted(span, self.memory.cycle));
            }
        }
        sum
    }

    /// Rows replaced in the board's life; those after `loaded` may still wait for a reload of the driver.
    pub(crate) fn remaps(&self, loaded: u64, elapsed: u64) -> Remaps {
        let mut remaps = Remaps::default();
        for event in &self.remaps {
            let times = event.counted((self.memory.came, elapsed), self.memory.cycle);
            let rows = u32::try_from(times).unwrap_or(u32::MAX);
            match event.what.cause {
                RemapCause::Correctable => remaps.correctable = remaps.correctable.saturating_add(rows),
                RemapCause::Uncorrectable => remaps.uncorrectable = remaps.uncorrectable.saturating_add(rows),
            }
            remaps.pending |= event.what.pending && event.counted((loaded, elapsed), self.memory.cycle) > 0;
            remaps.failure |= event.what.failure && times > 0;
        }
        remaps
    }

    /// Banks by the spare rows they have left; on boards without HBM all banks count as full.
    pub(crate) fn histogram(&self, elapsed: u64) -> BankHistogram {
        let mut histogram = BankHistogram { max: self.memory.banks, ..BankHistogram::default() };
        if self.memory.banks < HBM_BANKS {
            return histogram;
        }
        let mut banks: Vec<u32> = self.remaps.iter().map(|event| event.what.bank).collect();
        banks.sort_unstable();
        banks.dedup();
        for bank in banks {
            let here = self.remaps.iter().filter(|event| event.what.bank == bank);
            let rows: u64 =
                here.map(|event| event.counted((self.memory.came, elapsed), self.memory.cycle)).sum();
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

    /// The recovery action that the driver reports, as NVML numbers it.
    pub(crate) fn action(&self, elapsed: u64) -> u32 {
        let now = self.actions.iter().filter(|lasting| lasting.at(elapsed, self.memory.cycle));
        now.map(|lasting| lasting.what).max().unwrap_or(0)
    }

    /// Address and elapsed time of each page retired for a cause.
    pub(crate) fn pages(&self, cause: ErrorKind, elapsed: u64) -> Vec<(u64, u64)> {
        let BoardMemory { seed, cycle, came, .. } = self.memory;
        let mut pages = Vec::new();
        for (number, event) in (0_u64..).zip(&self.errors).filter(|(_, event)| event.what.0 == cause) {
            let before = if came == 0 { 0 } else { event.times(came, cycle) };
            for time in (before..event.times(elapsed, cycle)).take(MOST_PAGES) {
                for page in (0..event.count).take(MOST_PAGES) {
                    let address = hash(seed ^ hash(number << 40 | time << 20 | page)) % (1 << 22);
                    pages.push((address << 12, time * cycle + event.at));
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

    fn health(script: &str, came: u64) -> Health {
        let memory = BoardMemory { banks: 640, seed: 7, cycle: 60 * SECOND, came };
        Health::new(&serde_json::from_str(script).unwrap(), 0, memory)
    }

    #[test]
    fn retired_pages_have_an_address_and_a_time() {
        let health = health(
            r#"{"memory_errors":[{"at":5,"gpu":0,"kind":"page_retired_corrected","count":2},
                {"at":9,"gpu":0,"kind":"page_retired_uncorrected"},
                {"at":9,"gpu":1,"kind":"page_retired_uncorrected"}]}"#,
            0,
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
        // The driver keeps 64, however often the cycle repeats.
        assert_eq!(corrected(60 * 100).len(), 64);
    }

    #[test]
    fn errors_at_elapsed_zero_are_counted() {
        let health = health(r#"{"memory_errors":[{"at":0,"gpu":0,"kind":"dram_corrected","count":5}]}"#, 0);
        let errors = |span| health.errors(&[ErrorKind::DramCorrected], None, span);
        assert_eq!((errors((0, 0)), errors((0, 59 * SECOND)), errors((0, 60 * SECOND))), (5, 5, 10));
        assert_eq!(errors((60 * SECOND, 61 * SECOND)), 0);
    }

    #[test]
    fn a_replaced_board_has_no_errors_of_the_one_before_it() {
        let script = r#"{"memory_errors":[{"at":5,"gpu":0,"kind":"dram_corrected"},
            {"at":5,"gpu":0,"kind":"page_retired_corrected"}],"remaps":[{"at":5,"gpu":0,"cause":"correctable"}]}"#;
        let health = health(script, 10 * SECOND);
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
    fn the_bank_of_a_remapped_row_follows_from_the_seed_and_stays() {
        let health = health(r#"{"remaps":[{"at":1,"gpu":0,"cause":"correctable"}]}"#, 0);
        assert_eq!(
            health.histogram(2 * SECOND),
            BankHistogram { max: 639, high: 1, ..BankHistogram::default() }
        );
        assert_eq!(
            health.histogram(62 * SECOND),
            BankHistogram { max: 639, partial: 1, ..BankHistogram::default() }
        );
    }
}
