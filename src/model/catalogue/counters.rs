//! The counters that GPM keeps since the GPU was started: which there are, and which a level needs.
//!
//! Drivers have them since 590, for the GPU and for each MIG instance, in a sample that is taken anyway. The difference of
//! two readings is exact however long ago the first one was; a rate between two samples misses what happened around a
//! sample that failed. Bytes over NVLink are [sources](super::Source::GpmLinks) of their families instead.

use super::{Family, GpuRows, InstanceRows, InstanceValue, Level, Rows, Source, families, listed};

listed! {
    /// A counter; the order is that of [`crate::model::Frame::counters`] and of the driver's ids.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Counter {
        /// All cycles that passed; the cycles of the pipes are parts of them.
        Elapsed,
        SmActive,
        Tensor,
        TensorDmma,
        TensorHmma,
        TensorImma,
        TensorDfma,
        PcieTransmit,
        PcieReceive,
        Integer,
        Fp64,
        Fp32,
        Fp16,
    }
}

/// The driver's id of [`Counter::Elapsed`]; the others follow.
const FIRST: u32 = 248;

/// The first driver that is asked for them; the headers of older ones end below their ids.
pub const COUNTING: (u32, u32) = (590, 0);

impl Counter {
    pub const fn id(self) -> u32 {
        FIRST + self as u32
    }

    /// Whether it counts cycles; the others count bytes.
    pub const fn is_of_time(self) -> bool {
        !matches!(self, Self::PcieTransmit | Self::PcieReceive)
    }
}

impl InstanceValue {
    /// The counter of the same time as this ratio of a MIG instance; absent where GPM has none.
    pub const fn counter(self) -> Option<Counter> {
        match self {
            Self::SmActive => Some(Counter::SmActive),
            Self::TensorActive => Some(Counter::Tensor),
            Self::Integer => Some(Counter::Integer),
            Self::Fp16 => Some(Counter::Fp16),
            Self::Fp32 => Some(Counter::Fp32),
            Self::Fp64 => Some(Counter::Fp64),
            Self::TensorDfma => Some(Counter::TensorDfma),
            Self::TensorDmma => Some(Counter::TensorDmma),
            Self::TensorHmma => Some(Counter::TensorHmma),
            Self::TensorImma => Some(Counter::TensorImma),
            _ => None,
        }
    }
}

fn counters_of(family: &Family) -> Vec<Counter> {
    match &family.rows {
        Rows::Gpu(GpuRows::Integrals { counters, .. }) => counters.to_vec(),
        Rows::Instance(InstanceRows::Integrals(points)) => {
            points.iter().filter_map(|point| point.value.counter()).collect()
        }
        Rows::Gpu(GpuRows::Flow(points)) => {
            let sources = points.iter().flat_map(|point| point.sources);
            sources
                .filter_map(
                    |source| if let Source::GpmCounter(counter) = source { Some(*counter) } else { None },
                )
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The counters by which the families up to a level grow, of GPUs or of MIG instances; with [`Counter::Elapsed`] where
/// one of them counts cycles.
pub fn counters(level: Level, of_instances: bool) -> Vec<Counter> {
    let is_exported = |family: &&Family| {
        family.level <= level
            && matches!(family.rows, Rows::Instance(InstanceRows::Integrals(_))) == of_instances
    };
    let wanted: Vec<Counter> = families().filter(is_exported).flat_map(counters_of).collect();
    let is_wanted = |counter: &Counter| match counter {
        Counter::Elapsed => wanted.iter().any(|one| one.is_of_time()),
        counter => wanted.contains(counter),
    };
    Counter::ALL.into_iter().filter(is_wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_header() {
        let ids = Counter::ALL.map(Counter::id);
        assert!(ids.iter().copied().eq(248..=260));
        let known = [
            (Counter::SmActive, 249),
            (Counter::Tensor, 250),
            (Counter::TensorDfma, 254),
            (Counter::PcieTransmit, 255),
            (Counter::PcieReceive, 256),
            (Counter::Integer, 257),
            (Counter::Fp16, 260),
        ];
        assert!(known.iter().all(|(counter, id)| counter.id() == *id));
    }

    #[test]
    fn a_level_needs_the_counters_by_which_its_families_grow() {
        use Counter::{Elapsed, PcieReceive, PcieTransmit, SmActive, Tensor};
        assert_eq!(counters(Level::Lean, false), []);
        assert_eq!(counters(Level::Standard, false), [Elapsed, SmActive, Tensor, PcieTransmit, PcieReceive]);
        assert_eq!(counters(Level::Full, false), Counter::ALL);
        assert_eq!(counters(Level::Standard, true), [Elapsed, SmActive, Tensor]);
        let of_time: Vec<Counter> = Counter::ALL.into_iter().filter(|counter| counter.is_of_time()).collect();
        assert_eq!(counters(Level::Full, true), of_time);
    }
}
