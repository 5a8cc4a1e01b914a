//! What the page with dcgm-exporter's names needs beyond one snapshot: rates of counters, and events in a window.

use std::collections::{BTreeMap, VecDeque};

use super::TrackedGpu;
use crate::accounting::batches::XidSums;
use crate::model::catalogue::{CLOCK_EVENT_REASONS, RATED, RatedValue, ValuePlace, WINDOW_MS, first_point};
use crate::model::frame::Tier;
use crate::model::snapshot::{CLOCK_EVENT_COUNT, DcgmState};
use crate::model::{Absence, Frame, Nanoseconds, Reading, Utc};

const WINDOW: Nanoseconds = Nanoseconds(WINDOW_MS * 1_000_000);

const CLOCKS: usize = first_point(CLOCK_EVENT_REASONS);

#[derive(Debug, Default)]
pub(super) struct DcgmHistory {
    /// By the catalogue's rated values.
    rated: Vec<Rated>,
    /// New XIDs: when, code, how many.
    xids: VecDeque<(Nanoseconds, u32, u64)>,
    /// How many of each code were counted at the last tick; none before the first one.
    counted: Option<BTreeMap<u32, u64>>,
    /// Readings of the clocks: when, and the mask.
    clocks: VecDeque<(Nanoseconds, i64)>,
    clocks_read: Option<Nanoseconds>,
    /// Readings with each reason since the agent's start.
    clock_events: [u64; CLOCK_EVENT_COUNT],
}

/// A value when it was last read, and its rate since the time before.
#[derive(Debug)]
struct Rated {
    last: Option<(Nanoseconds, i64)>,
    /// The plan that read it: counters of different plans must not be subtracted.
    generation: u32,
    rate: Reading,
}

impl Default for Rated {
    fn default() -> Self {
        Self { last: None, generation: 0, rate: Err(Absence::NotYet) }
    }
}

impl Rated {
    fn update(&mut self, read: Nanoseconds, generation: u32, value: Reading) {
        let value = match value {
            Ok(value) => value,
            Err(absence) => {
                *self = Self { rate: Err(absence), ..Self::default() };
                return;
            }
        };
        match self.last {
            Some((last, _)) if last == read => return,
            Some((last, before)) if generation == self.generation && value >= before => {
                let grown = i128::from(value - before) * 1_000_000_000;
                let rate = grown.checked_div(read.0.saturating_sub(last.0).into());
                self.rate = rate.and_then(|rate| i64::try_from(rate).ok()).ok_or(Absence::Rejected);
            }
            _ => self.rate = Err(Absence::NotYet),
        }
        (self.last, self.generation) = (Some((read, value)), generation);
    }
}

impl DcgmHistory {
    /// Adds what the last frame says, and forgets what is older than the window.
    fn update(&mut self, now: Nanoseconds, frame: &Frame, totals: &[Reading]) {
        self.rated.resize_with(RATED.len(), Rated::default);
        for (rated, RatedValue { place, tier }) in self.rated.iter_mut().zip(&*RATED) {
            let value = match place {
                ValuePlace::Total(number) => totals.get(*number),
                ValuePlace::Reading(point) => frame.readings.get(*point),
                ValuePlace::Rate(_) | ValuePlace::Instance(_) => None,
            };
            let Some(read) = frame.tiers[*tier as usize] else { continue };
            rated.update(read.boottime, frame.generation, value.copied().unwrap_or(Err(Absence::NotYet)));
        }
        let clocks_read = frame.tiers[Tier::Medium as usize].map(|read| read.boottime);
        if self.clocks_read != clocks_read
            && let Some(Ok(mask)) = frame.readings.get(CLOCKS)
        {
            self.clocks.push_back((now, *mask));
            self.clocks_read = clocks_read;
            for (bit, count) in self.clock_events.iter_mut().enumerate() {
                *count += u64::from(mask >> bit & 1 == 1);
            }
        }
        while self.clocks.front().is_some_and(|(at, _)| is_over(*at, now)) {
            self.clocks.pop_front();
        }
    }

    fn count_xids(&mut self, now: Nanoseconds, published: &XidSums) {
        let counts: BTreeMap<u32, u64> =
            published.codes.iter().map(|(code, sum)| (*code, sum.count)).collect();
        // Those of the first tick may be of an earlier agent.
        let before = self.counted.as_ref().unwrap_or(&counts);
        for (code, count) in &counts {
            let new = count.saturating_sub(before.get(code).copied().unwrap_or(0));
            if new > 0 {
                self.xids.push_back((now, *code, new));
            }
        }
        self.counted = Some(counts);
        while self.xids.front().is_some_and(|(at, ..)| is_over(*at, now)) {
            self.xids.pop_front();
        }
    }

    fn state(&self, published: &XidSums, started: Utc) -> DcgmState {
        let recent =
            |code| self.xids.iter().filter(|(_, other, _)| *other == code).map(|(.., count)| count).sum();
        let since_start = published.codes.iter().filter(|(_, sum)| sum.last >= started);
        let mut recent_clock_events = [0; CLOCK_EVENT_COUNT];
        for (_, mask) in &self.clocks {
            for (bit, count) in recent_clock_events.iter_mut().enumerate() {
                *count += u64::from(mask >> bit & 1 == 1);
            }
        }
        DcgmState {
            rates: self.rated.iter().map(|rated| rated.rate).collect(),
            last_xid: since_start.max_by_key(|(_, sum)| sum.last).map(|(code, _)| *code),
            recent_xids: published.codes.keys().map(|code| recent(*code)).collect(),
            recent_clock_events,
            clock_events: self.clock_events,
        }
    }
}

fn is_over(at: Nanoseconds, now: Nanoseconds) -> bool {
    now.0.saturating_sub(at.0) > WINDOW.0
}

impl TrackedGpu {
    pub(super) fn update_dcgm(&mut self, now: Nanoseconds) {
        if let Some(frame) = &self.frame {
            self.dcgm.update(now, frame, &self.integrals);
        }
        self.dcgm.count_xids(now, &self.xids.published);
    }

    pub(super) fn dcgm_state(&self, started: Utc) -> DcgmState {
        self.dcgm.state(&self.xids.published, started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(number: u64) -> Nanoseconds {
        Nanoseconds::from_seconds(number)
    }

    #[test]
    fn a_rate_is_what_a_counter_grew_by_between_two_readings() {
        let mut rated = Rated::default();
        rated.update(seconds(1), 1, Ok(1_000));
        assert_eq!(rated.rate, Err(Absence::NotYet));
        rated.update(seconds(6), 1, Ok(2_000));
        assert_eq!(rated.rate, Ok(200));
        rated.update(seconds(6), 1, Ok(2_000));
        assert_eq!(rated.rate, Ok(200), "the same reading");
        rated.update(seconds(7), 1, Ok(5));
        assert_eq!(rated.rate, Err(Absence::NotYet), "a counter that began anew");
        rated.update(seconds(8), 1, Ok(15));
        assert_eq!(rated.rate, Ok(10));
        rated.update(seconds(9), 2, Ok(25));
        assert_eq!(rated.rate, Err(Absence::NotYet), "another plan");
        rated.update(seconds(10), 2, Err(Absence::Stale));
        assert_eq!(rated.rate, Err(Absence::Stale));
        rated.update(seconds(11), 2, Ok(45));
        assert_eq!(rated.rate, Err(Absence::NotYet), "after a gap");
        rated.update(seconds(12), 2, Err(Absence::NotSupported));
        assert_eq!(
            rated.rate,
            Err(Absence::NotSupported),
            "a board without it has no part in a sum of rates"
        );
    }

    fn sums(codes: &[(u32, u64, u64)]) -> XidSums {
        let mut sums = XidSums::default();
        for (code, count, last) in codes {
            let sum = sums.codes.entry(*code).or_default();
            (sum.count, sum.last) = (*count, Utc(*last));
        }
        sums
    }

    #[test]
    fn xids_of_an_earlier_agent_are_neither_recent_nor_the_last_one() {
        let mut history = DcgmHistory::default();
        history.count_xids(seconds(1), &sums(&[(31, 7, 50)]));
        let none = history.state(&sums(&[(31, 7, 50)]), Utc(100));
        assert_eq!((none.last_xid, &none.recent_xids[..]), (None, &[0][..]));
        let now = sums(&[(31, 9, 150), (79, 1, 120)]);
        history.count_xids(seconds(2), &now);
        let state = history.state(&now, Utc(100));
        assert_eq!((state.last_xid, &state.recent_xids[..]), (Some(31), &[2, 1][..]));
        history.count_xids(seconds(400), &now);
        let state = history.state(&now, Utc(100));
        assert_eq!((state.last_xid, &state.recent_xids[..]), (Some(31), &[0, 0][..]), "the window is over");
        history.count_xids(seconds(401), &sums(&[]));
        let anew = sums(&[(31, 1, 401)]);
        history.count_xids(seconds(402), &anew);
        assert_eq!(history.state(&anew, Utc(100)).recent_xids, [1], "the GPU was forgotten in between");
    }

    #[test]
    fn clock_events_are_counted_once_per_reading_and_leave_the_window() {
        let mut history = DcgmHistory::default();
        let mut readings = vec![Err(Absence::NotYet); CLOCKS + 1].into_boxed_slice();
        readings[CLOCKS] = Ok(0b101);
        let mut frame = Frame::with(readings);
        let mut read = |second| {
            frame.tiers[Tier::Medium as usize] =
                Some(crate::model::Stamp { boottime: seconds(second), ..Default::default() });
            history.update(seconds(second), &frame, &[]);
            history.state(&XidSums::default(), Utc(0))
        };
        read(1);
        assert_eq!(read(1).recent_clock_events[..3], [1, 0, 1], "the same reading");
        assert_eq!(read(6).recent_clock_events[..3], [2, 0, 2]);
        let late = read(305);
        assert_eq!((late.recent_clock_events[0], late.clock_events[0]), (2, 3));
    }
}
