//! The energy of a GPU: differences of the driver's counter, and how much an idle GPU would have drawn.

use crate::meter::account::TimedFrame;
use crate::model::catalogue::{PointId, first_point};
use crate::model::{Microjoules, Nanoseconds, Utc};

pub(in crate::meter) const ENERGY: PointId = first_point("gpu_energy_joules_total");

/// No GPU draws more, in microjoules per second; a larger difference is a counter that jumped.
const MOST_POWER: u64 = 20_000_000_000;

/// Idle power in milliwatts by model, as boards reported it in 2024-2026 with driver persistence on. It is the least of
/// the values seen, since what is above the floor is charged by use.
const IDLE_POWER: &[(&str, u64)] = &[
    ("A100-SXM4-40GB", 50_000),
    ("A100-SXM4-80GB", 59_000),
    ("H100 80GB HBM3", 67_000),
    ("H200", 78_000),
    ("B200", 194_000),
    ("L40S", 33_000),
    ("NVIDIA L4", 11_000),
    ("Tesla T4", 9_000),
];

/// In milliwatts; none for an unknown model.
pub(in crate::meter) fn idle_power_of(model: &str) -> Option<u64> {
    IDLE_POWER.iter().find(|(name, _)| model.contains(name)).map(|(_, power)| *power)
}

/// The shortest time without a process from which idle power is learned.
const LEARNING_TIME: Nanoseconds = Nanoseconds::from_seconds(30);

#[derive(Default)]
pub(super) struct EnergyMeter {
    last: Option<EnergyReading>,
    idle: IdlePower,
}

#[derive(Clone, Copy)]
struct EnergyReading {
    counter: Microjoules,
    at: Utc,
}

#[derive(Clone, Copy)]
pub(super) struct EnergyDelta {
    pub(super) total: Microjoules,
    /// The energy that an idle GPU would have drawn.
    pub(super) idle: Microjoules,
}

impl EnergyMeter {
    pub(super) fn recover(counter: Option<Microjoules>, at: Utc) -> Self {
        let last = counter.map(|counter| EnergyReading { counter, at });
        Self { last, idle: IdlePower::default() }
    }

    /// The driver was loaded again: its counter began at 0.
    pub(super) fn restart(&mut self) {
        self.last = None;
    }

    pub(super) fn counter(&self) -> Option<Microjoules> {
        self.last.map(|last| last.counter)
    }

    /// The energy since the counter was last read; none where it went back or jumped. `cursor` is where the open span
    /// begins, `empty_since` since when all frames before this one showed no process, `interval` the time between ticks.
    pub(super) fn read(
        &mut self,
        TimedFrame { at, frame, .. }: TimedFrame<'_>,
        cursor: Utc,
        empty_since: Option<Utc>,
        interval: Nanoseconds,
    ) -> Option<EnergyDelta> {
        let counter = frame.readings.get(ENERGY).copied().and_then(Result::ok)?;
        let counter = Microjoules(u64::try_from(counter).unwrap_or(0));
        if self.last.is_some_and(|last| at <= cursor || at <= last.at) {
            // No new span ends at this frame, so the energy is left for the next one.
            return None;
        }
        let before = self.last.replace(EnergyReading { counter, at })?;
        let time = at.since(before.at);
        let most = u128::from(MOST_POWER) * u128::from(time.0 + Nanoseconds::SECOND.0)
            / u128::from(Nanoseconds::SECOND.0);
        let total = counter.0.checked_sub(before.counter.0).filter(|total| u128::from(*total) <= most)?;
        let was_empty = frame.known_empty && empty_since.is_some_and(|since| since <= before.at);
        let occupancy = if frame.processes.as_ref().is_ok_and(|list| !list.is_empty()) {
            Occupancy::Occupied
        } else if was_empty && time.0 <= 2 * interval.0 {
            Occupancy::Empty
        } else {
            // Two empty readings do not prove that a longer time between them, such as a suspend, was empty.
            Occupancy::Unknown
        };
        let idle = self.idle.energy(&frame.identity.model, Microjoules(total), time, occupancy);
        Some(EnergyDelta { total: Microjoules(total), idle })
    }
}

impl EnergyDelta {
    pub(super) fn split_off(&mut self, part: Nanoseconds, whole: Nanoseconds) -> Self {
        let share = |energy: Microjoules| {
            let share = u128::from(energy.0) * u128::from(part.0) / u128::from(whole.0.max(1));
            Microjoules(u64::try_from(share).unwrap_or(energy.0).min(energy.0))
        };
        let first = Self { total: share(self.total), idle: share(self.idle) };
        *self = Self { total: self.total - first.total, idle: self.idle - first.idle };
        first
    }
}

/// Whether processes were on the GPU in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occupancy {
    Occupied,
    Empty,
    /// Processes were not listed, or not often enough.
    Unknown,
}

/// Idle power of one GPU, learned from times without a process, else by its model.
#[derive(Clone, Copy, Debug, Default)]
struct IdlePower {
    /// Energy in microjoules and time in nanoseconds without a process since the last one.
    energy: u64,
    time: u64,
    /// In milliwatts.
    learned: Option<u64>,
}

impl IdlePower {
    /// The most of the energy that can be idle energy. It is 0 for a model of unknown idle power: all energy then follows
    /// use.
    fn energy(
        &mut self,
        model: &str,
        total: Microjoules,
        time: Nanoseconds,
        occupancy: Occupancy,
    ) -> Microjoules {
        match occupancy {
            Occupancy::Empty => {
                self.energy = self.energy.saturating_add(total.0);
                self.time = self.time.saturating_add(time.0);
                if self.time >= LEARNING_TIME.0 {
                    let power = u128::from(self.energy) * 1_000_000 / u128::from(self.time);
                    self.learned = u64::try_from(power).ok();
                }
            }
            Occupancy::Occupied => (self.energy, self.time) = (0, 0),
            Occupancy::Unknown => {}
        }
        let power = self.learned.or_else(|| idle_power_of(model)).unwrap_or(0);
        // Milliwatts x nanoseconds are picojoules.
        let energy = u128::from(power) * u128::from(time.0) / 1_000_000;
        Microjoules(u64::try_from(energy).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanoseconds = Nanoseconds::SECOND;

    #[test]
    fn idle_energy_is_known_by_model_from_the_start_and_0_for_an_unknown_one() {
        for (model, expected) in [("NVIDIA H100 80GB HBM3", 67_000_000), ("unknown", 0)] {
            let idle = IdlePower::default().energy(model, Microjoules(9), SECOND, Occupancy::Occupied);
            assert_eq!(idle, Microjoules(expected), "{model}");
        }
    }

    #[test]
    fn idle_power_is_learned_from_half_a_minute_without_a_process() {
        let mut idle = IdlePower::default();
        for _ in 0..30 {
            idle.energy("unknown", Microjoules(90_000_000), SECOND, Occupancy::Empty);
            idle.energy("unknown", Microjoules(300_000_000), SECOND, Occupancy::Unknown);
        }
        let floor = idle.energy("unknown", Microjoules(0), SECOND, Occupancy::Occupied);
        assert_eq!(floor, Microjoules(90_000_000));
    }
}
