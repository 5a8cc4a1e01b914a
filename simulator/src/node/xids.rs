//! XIDs over time: those of the scenario, of storms, and of GPUs that were lost or need a reset.
//!
//! In: a node and elapsed times. Out: which XIDs happened between two times, and how often each happened in all.
//! It is arithmetic over the settled state; nothing is queued.

use serde::{Deserialize, Serialize};

use super::{Mishap, Node, settle};
use crate::channel::settled::{Fired, RunningStorm, What};

/// The most records that the log takes from one source at once; older ones are lost, as from a ring.
const MOST: u64 = 4_096;
/// XIDs of one storm that reach the log per second.
const LOGGED: u64 = 100;
const SECOND: u64 = 1_000_000_000;

/// An XID that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) at: u64,
    pub(crate) gpu: u32,
    pub(crate) xid: u64,
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the state's check has bounded it"
)]
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9).round() as u64
}

impl RunningStorm {
    /// XIDs per 1000 seconds.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the state's check bounds it")]
    fn rate(&self) -> u128 {
        ((self.storm.per_second * 1e3).round() as u128).max(1)
    }

    /// How many have fired up to an elapsed time.
    pub(crate) fn fired(&self, elapsed: u64) -> u64 {
        let Some(since) = elapsed.checked_sub(self.from) else { return 0 };
        let fired = ((u128::from(since) + 1) * self.rate() - 1) / 1_000_000_000_000 + 1;
        u64::try_from(fired).unwrap_or(u64::MAX).min(self.storm.count)
    }

    /// Elapsed nanoseconds at which an XID fires; the first is number 0.
    pub(crate) fn at(&self, number: u64) -> u64 {
        let after = u128::from(number) * 1_000_000_000_000 / self.rate();
        self.from.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// Whether an XID reaches the log: those that are first in each second do.
    fn logged(&self, number: u64) -> bool {
        let second = (self.at(number) - self.from) / SECOND * SECOND;
        let before = if second == 0 { 0 } else { self.fired(self.from.saturating_add(second) - 1) };
        number.saturating_sub(before) < LOGGED
    }
}

impl Mishap {
    fn fired(&self, cycle: u64, elapsed: u64) -> u64 {
        elapsed.checked_sub(self.at).map_or(0, |since| since / cycle + 1)
    }
}

/// How far the log has come: a time, and the number of the first moment or storm that is not logged yet. The
/// number is needed because what is settled while a clock is held happens at a time already logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Upto {
    pub(crate) elapsed: u64,
    pub(crate) number: u64,
}

/// How often each XID has fired since elapsed 0.
pub(crate) fn fired(node: &Node, elapsed: u64) -> Vec<Fired> {
    let mut all = node.settled.fired.clone();
    for mishap in &node.mishaps {
        let fired = mishap.fired(node.cycle, elapsed);
        settle::count(&mut all, Fired { gpu: mishap.gpu, xid: mishap.xid, fired });
    }
    for running in &node.settled.storms {
        let fired = running.fired(elapsed);
        settle::count(&mut all, Fired { gpu: running.storm.gpu, xid: running.storm.xid, fired });
    }
    for moment in &node.settled.moments {
        if let What::Xid(xid) = moment.what {
            settle::count(&mut all, Fired { gpu: moment.gpu, xid, fired: 1 });
        }
    }
    all.retain(|one| one.fired > 0);
    all.sort_by_key(|one| (one.gpu, one.xid));
    all
}

/// The XIDs that the kernel log gets after `from` and up to a time, oldest first.
pub(crate) fn logged(node: &Node, from: Upto, to: u64) -> Vec<Happened> {
    let mut all = Vec::new();
    for mishap in &node.mishaps {
        let last = mishap.fired(node.cycle, to);
        let first = mishap.fired(node.cycle, from.elapsed).max(last.saturating_sub(MOST));
        let at = |number: u64| mishap.at + number * node.cycle;
        let one = |number| Happened { at: at(number), gpu: mishap.gpu, xid: mishap.xid };
        all.extend((first..last).map(one));
    }
    for running in &node.settled.storms {
        let last = running.fired(to);
        let seen = if running.number < from.number { running.fired(from.elapsed) } else { 0 };
        let mut number = seen.max(last.saturating_sub(MOST * LOGGED));
        while number < last {
            if running.logged(number) {
                let (gpu, xid) = (running.storm.gpu, running.storm.xid);
                all.push(Happened { at: running.at(number), gpu, xid });
            }
            number += 1;
        }
    }
    for moment in node.settled.moments.iter().filter(|moment| moment.number >= from.number) {
        if let What::Xid(xid) = moment.what {
            all.push(Happened { at: moment.at, gpu: moment.gpu, xid });
        }
    }
    all.sort_by_key(|one| one.at);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::hardware::Storm;

    fn storm(per_second: f64, count: u64) -> RunningStorm {
        let storm = Storm { gpu: 0, xid: 13, per_second, from: None, count };
        RunningStorm { number: 0, from: 5 * SECOND, storm }
    }

    #[test]
    fn a_storm_fires_at_its_rate_and_ends_at_its_count() {
        let storm = storm(10_000.0, 25_000);
        assert_eq!((storm.fired(5 * SECOND - 1), storm.fired(5 * SECOND)), (0, 1));
        assert_eq!(storm.fired(6 * SECOND - 1), 10_000);
        assert_eq!((storm.fired(60 * SECOND), storm.at(10_000)), (25_000, 6 * SECOND));
        let odd = self::storm(3.7, 1_000);
        for number in 0..1_000 {
            assert_eq!((odd.fired(odd.at(number)), odd.fired(odd.at(number) - 1)), (number + 1, number));
        }
    }

    #[test]
    fn the_log_gets_a_hundred_xids_of_a_storm_per_second() {
        let storm = storm(1_000.0, 2_500);
        let logged: Vec<u64> = (0..2_500).filter(|number| storm.logged(*number)).collect();
        assert_eq!(logged.len(), 300);
        assert!(logged.contains(&99) && !logged.contains(&100) && logged.contains(&1_000));
        for slow in [0.7, 3.7, 50.0] {
            assert!((0..100).all(|number| self::storm(slow, 100).logged(number)), "{slow}");
        }
    }
}
