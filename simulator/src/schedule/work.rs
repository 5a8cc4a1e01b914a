//! Sums of work: what was in use for how long, for workers, engines and a whole GPU.
//!
//! They add and subtract; who worked when, and why, they do not know.

use std::ops::{AddAssign, Sub};

use serde::Serialize;

/// Declares `Work` and everything that is done with each of its parts alike.
macro_rules! work {
    ($($(#[$note:meta])* $part:ident),* $(,)?) => {
        /// Nanoseconds for which something was in use, and bytes that passed.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub(crate) struct Work { $($(#[$note])* pub(crate) $part: u64),* }

        impl Work {
            pub(crate) fn map(self, change: impl Fn(u64) -> u64) -> Self {
                Self { $($part: change(self.$part)),* }
            }
        }

        impl AddAssign for Work {
            fn add_assign(&mut self, other: Self) {
                $(self.$part = self.$part.saturating_add(other.$part);)*
            }
        }

        impl Sub for Work {
            type Output = Self;

            fn sub(self, earlier: Self) -> Self {
                Self { $($part: self.$part.saturating_sub(earlier.$part)),* }
            }
        }
    };
}

work! {
    busy, sm,
    /// Of the resident warps that an SM can hold.
    occupancy,
    /// Any kind of tensor instruction; `dfma` and `imma` are parts of it, the rest is half precision.
    tensor, dfma, imma,
    integer, fp64, fp32, fp16,
    dram, encoder, decoder, jpeg, ofa,
    /// Bytes.
    pcie_tx, pcie_rx, nvlink_tx, nvlink_rx,
}

impl Work {
    /// A share of the work, for an engine that is a part of the GPU.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares are between 0 and 1")]
    pub(crate) fn scaled(self, share: f64) -> Self {
        self.map(|time| (time as f64 * share) as u64)
    }

    /// The same with no unit in use for longer than the engine: shares of processes that run side by side
    /// add up, but an SM is not more than active. Traffic is not bounded.
    pub(super) fn within(self, busy: u64) -> Self {
        let Self { pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, encoder, decoder, jpeg, ofa, .. } = self;
        let bounded = self.map(|time| time.min(busy));
        Self { pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, encoder, decoder, jpeg, ofa, ..bounded }
    }
}

/// Everything a GPU has done since elapsed 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Nanoseconds in which any engine was busy.
    pub(crate) busy: u64,
    /// Microjoules.
    pub(crate) energy: u64,
    /// By engine, in the order given.
    pub(crate) engines: Vec<Work>,
    /// Context switches by engine: slices shared by turns.
    pub(crate) switches: Vec<u64>,
    /// By worker, in the order given.
    pub(crate) workers: Vec<Work>,
}

impl Totals {
    /// Of all engines together.
    pub(crate) fn all(&self) -> Work {
        let mut all = Work::default();
        for engine in &self.engines {
            all += *engine;
        }
        all
    }
}
