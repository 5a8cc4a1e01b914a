//! Sums of work: for how long each unit was in use, of workers, engines and a whole GPU.

use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Declares `Work` and the operations that treat all its parts alike.
macro_rules! work {
    ($($(#[$note:meta])* $part:ident),* $(,)?) => {
        /// Nanoseconds in which each unit was in use, and bytes transferred.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The share of the warps that an SM can hold.
    occupancy,
    /// Any kind of tensor instruction; `dfma` and `imma` are parts of it, the rest is half precision.
    tensor, dfma, imma,
    integer, fp64, fp32, fp16,
    dram, encoder, decoder, jpeg, ofa,
    /// Bytes.
    pcie_tx, pcie_rx, nvlink_tx, nvlink_rx,
}

impl Work {
    /// A share of the work: an engine's part of the whole GPU.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares are between 0 and 1")]
    pub(crate) fn scaled(self, share: f64) -> Self {
        self.map(|time| (time as f64 * share) as u64)
    }

    /// The work with no unit in use for longer than its engine: shares of processes that run side by side
    /// can add up to more. Traffic and media engines are not bounded.
    pub(super) fn within(self, busy: u64) -> Self {
        let Self { pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, encoder, decoder, jpeg, ofa, .. } = self;
        let bounded = self.map(|time| time.min(busy));
        Self { pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, encoder, decoder, jpeg, ofa, ..bounded }
    }
}

/// Everything a GPU has done since elapsed 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Nanoseconds in which any engine was busy.
    pub(crate) busy: u64,
    /// Microjoules.
    pub(crate) energy: u64,
    /// By engine, in the script's order.
    pub(crate) engines: Vec<Work>,
    /// The part of it done under former MIG layouts, which is counted on the first engine.
    #[serde(default)]
    pub(crate) carried: Work,
    /// The same for the whole GPU, with each former engine weighted by its share.
    #[serde(default)]
    pub(crate) former: Work,
    /// Context switches by engine.
    pub(crate) switches: Vec<u64>,
    /// By worker, in the script's order.
    pub(crate) workers: Vec<Work>,
}

impl Totals {
    /// The sum over all engines.
    pub(crate) fn all(&self) -> Work {
        let mut all = Work::default();
        for engine in &self.engines {
            all += *engine;
        }
        all
    }

    /// Adds what was done between two sums of one MIG layout.
    pub(super) fn grown(&self, from: &Self, to: &Self) -> Self {
        let mut sum = self.clone();
        sum.busy += to.busy.saturating_sub(from.busy);
        sum.energy += to.energy.saturating_sub(from.energy);
        let engines = sum.engines.iter_mut().zip(from.engines.iter().zip(&to.engines));
        engines.for_each(|(mine, (before, after))| *mine += *after - *before);
        let workers = sum.workers.iter_mut().zip(from.workers.iter().zip(&to.workers));
        workers.for_each(|(mine, (before, after))| *mine += *after - *before);
        sum
    }

    /// Subtracts what is no longer counted.
    pub(super) fn without(&self, forgotten: &Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(forgotten.busy),
            energy: self.energy.saturating_sub(forgotten.energy),
            engines: less(&self.engines, &forgotten.engines),
            carried: self.carried - forgotten.carried,
            former: self.former - forgotten.former,
            switches: self.switches.clone(),
            workers: less(&self.workers, &forgotten.workers),
        }
    }

    /// What an engine has done under the current MIG layout.
    pub(crate) fn of_engine(&self, place: usize) -> Work {
        let done = self.engines.get(place).copied().unwrap_or_default();
        if place == 0 { done - self.carried } else { done }
    }

    /// What the whole GPU has done under all MIG layouts, each engine weighted by its share.
    pub(crate) fn of_whole(&self, share: impl Fn(usize) -> f64) -> Work {
        let mut whole = self.former;
        for place in 0..self.engines.len() {
            let share = if self.engines.len() == 1 { 1.0 } else { share(place) };
            let done = self.of_engine(place);
            whole += if share < 1.0 { done.scaled(share) } else { done };
        }
        whole
    }

    /// The same work under a layout of `engines` engines: the first one carries the sum. `share` is that of the
    /// former engines.
    pub(crate) fn laid_out(&self, engines: usize, share: impl Fn(usize) -> f64) -> Self {
        let all = self.all();
        let mut laid = vec![Work::default(); engines];
        if let Some(first) = laid.first_mut() {
            *first = all;
        }
        let former = self.of_whole(share);
        Self { engines: laid, carried: all, former, switches: vec![0; engines], ..self.clone() }
    }
}

/// Subtracts element by element; a missing element of `what` counts as 0.
fn less(from: &[Work], what: &[Work]) -> Vec<Work> {
    let rest = what.iter().copied().chain(std::iter::repeat(Work::default()));
    from.iter().zip(rest).map(|(mine, theirs)| *mine - theirs).collect()
}
