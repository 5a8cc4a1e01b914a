//! Sums of work: what was in use for how long, for workers, engines and a whole GPU.
//!
//! They add and subtract; who worked when, and why, they do not know.

use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Declares `Work` and everything that is done with each of its parts alike.
macro_rules! work {
    ($($(#[$note:meta])* $part:ident),* $(,)?) => {
        /// Nanoseconds for which something was in use, and bytes that passed.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Nanoseconds in which any engine was busy.
    pub(crate) busy: u64,
    /// Microjoules.
    pub(crate) energy: u64,
    /// By engine, in the order given.
    pub(crate) engines: Vec<Work>,
    /// Of that what was done under former layouts, which the first engine bears.
    #[serde(default)]
    pub(crate) carried: Work,
    /// The same of the whole GPU, each former engine by the share that it was.
    #[serde(default)]
    pub(crate) former: Work,
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

    /// What was done between two sums of one layout, put on top of what was done before.
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

    /// Without what is no longer counted.
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

    /// What an engine has done under this layout.
    pub(crate) fn of_engine(&self, place: usize) -> Work {
        let done = self.engines.get(place).copied().unwrap_or_default();
        if place == 0 { done - self.carried } else { done }
    }

    /// What the whole GPU has done over all layouts, each engine by its share.
    pub(crate) fn of_whole(&self, share: impl Fn(usize) -> f64) -> Work {
        let mut whole = self.former;
        for place in 0..self.engines.len() {
            let share = if self.engines.len() == 1 { 1.0 } else { share(place) };
            let done = self.of_engine(place);
            whole += if share < 1.0 { done.scaled(share) } else { done };
        }
        whole
    }

    /// The same work seen by another number of engines: the sum stays, on the first of them. `share` is that of
    /// the engines until now.
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

/// Place by place; what the second does not have stays as it is.
fn less(from: &[Work], what: &[Work]) -> Vec<Work> {
    let rest = what.iter().copied().chain(std::iter::repeat(Work::default()));
    from.iter().zip(rest).map(|(mine, theirs)| *mine - theirs).collect()
}
