//! What a GPU draws when nobody uses it: learned from ticks in which nobody was there for
//! sure, else a table per model.

use crate::model::{Microjoules, Nanoseconds};

/// Idle power in milliwatts by model, as boards answered it in 2024-2026 with driver persistence on; the
/// least of the values seen, since what is above the floor belongs to use.
const MODELS: &[(&str, u64)] = &[
    ("A100-SXM4-40GB", 50_000),
    ("A100-SXM4-80GB", 59_000),
    ("H100 80GB HBM3", 67_000),
    ("H200", 78_000),
    ("B200", 194_000),
    ("L40S", 33_000),
    ("NVIDIA L4", 11_000),
    ("Tesla T4", 9_000),
];

/// The shortest time without a process from which idle power is learned.
const LONG_ENOUGH: Nanoseconds = Nanoseconds::from_seconds(30);

/// Whether anybody was on the GPU in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupancy {
    Occupied,
    Empty,
    /// The last list names nobody, or there is none, but nobody looked since, or not all the time.
    Unknown,
}

/// Idle power of one GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdlePower {
    /// Energy and time without a process since one was last seen.
    energy: u64,
    time: u64,
    learned: Option<u64>,
}

impl IdlePower {
    /// The most that can be floor in that time. Without a learned or tabled value nothing is: all energy
    /// is then dynamic and follows use.
    pub(super) fn energy(
        &mut self,
        model: &str,
        delta: Microjoules,
        time: Nanoseconds,
        occupancy: Occupancy,
    ) -> Microjoules {
        match occupancy {
            Occupancy::Empty => {
                self.energy = self.energy.saturating_add(delta.0);
                self.time = self.time.saturating_add(time.0);
                if self.time >= LONG_ENOUGH.0 {
                    self.learned = milliwatts(self.energy, self.time);
                }
            }
            Occupancy::Occupied => (self.energy, self.time) = (0, 0),
            Occupancy::Unknown => {}
        }
        let power = self.learned.unwrap_or_else(|| model_idle_power(model));
        // Milliwatts x nanoseconds are picojoules.
        let energy = u128::from(power) * u128::from(time.0) / 1_000_000;
        Microjoules(u64::try_from(energy).unwrap_or(u64::MAX))
    }
}

fn milliwatts(energy: u64, time: u64) -> Option<u64> {
    u64::try_from(u128::from(energy) * 1_000_000 / u128::from(time)).ok()
}

fn model_idle_power(model: &str) -> u64 {
    MODELS.iter().find(|(name, _)| model.contains(name)).map_or(0, |(_, power)| *power)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanoseconds = Nanoseconds::SECOND;

    #[test]
    fn a_model_in_the_table_has_a_floor_from_the_start() {
        let mut idle = IdlePower::default();
        let floor =
            idle.energy("NVIDIA H100 80GB HBM3", Microjoules(500_000_000), SECOND, Occupancy::Occupied);
        assert_eq!(floor, Microjoules(67_000_000));
    }

    #[test]
    fn half_a_minute_without_a_process_teaches_the_floor() {
        let mut idle = IdlePower::default();
        for _ in 0..30 {
            idle.energy("unknown", Microjoules(90_000_000), SECOND, Occupancy::Empty);
            idle.energy("unknown", Microjoules(300_000_000), SECOND, Occupancy::Unknown);
        }
        let floor = idle.energy("unknown", Microjoules(0), SECOND, Occupancy::Occupied);
        assert_eq!(floor, Microjoules(90_000_000));
    }

    #[test]
    fn an_unknown_model_has_no_floor() {
        let mut idle = IdlePower::default();
        let floor = idle.energy("unknown", Microjoules(9), SECOND, Occupancy::Occupied);
        assert_eq!(floor, Microjoules(0));
    }
}
