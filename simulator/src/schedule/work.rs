//! Sums of work: nanoseconds by kind, for workers, engines and a whole GPU.
//!
//! They add and subtract; who worked when, and why, they do not know.

use std::ops::{AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Nanoseconds for which something was in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) busy: u64,
    pub(crate) sm: u64,
    pub(crate) tensor: u64,
    pub(crate) dram: u64,
    pub(crate) encoder: u64,
    pub(crate) decoder: u64,
}

impl Work {
    pub(super) fn map(self, change: impl Fn(u64) -> u64) -> Self {
        Self {
            busy: change(self.busy),
            sm: change(self.sm),
            tensor: change(self.tensor),
            dram: change(self.dram),
            encoder: change(self.encoder),
            decoder: change(self.decoder),
        }
    }
}

impl Work {
    /// A share of the work, for an engine that is a part of the GPU.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares are between 0 and 1")]
    pub(crate) fn scaled(self, share: f64) -> Self {
        self.map(|time| (time as f64 * share) as u64)
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.busy += other.busy;
        self.sm += other.sm;
        self.tensor += other.tensor;
        self.dram += other.dram;
        self.encoder += other.encoder;
        self.decoder += other.decoder;
    }
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(earlier.busy),
            sm: self.sm.saturating_sub(earlier.sm),
            tensor: self.tensor.saturating_sub(earlier.tensor),
            dram: self.dram.saturating_sub(earlier.dram),
            encoder: self.encoder.saturating_sub(earlier.encoder),
            decoder: self.decoder.saturating_sub(earlier.decoder),
        }
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
    /// By worker, in the order given.
    pub(crate) workers: Vec<Work>,
}

impl Totals {
    pub(super) fn nothing(engines: usize, workers: usize) -> Self {
        Self {
            busy: 0,
            energy: 0,
            engines: vec![Work::default(); engines],
            workers: vec![Work::default(); workers],
        }
    }

    pub(super) fn add(&mut self, other: &Self, times: u64) {
        self.busy += other.busy * times;
        self.energy += other.energy * times;
        for (mine, theirs) in self.engines.iter_mut().zip(&other.engines) {
            *mine += theirs.map(|time| time * times);
        }
        for (mine, theirs) in self.workers.iter_mut().zip(&other.workers) {
            *mine += theirs.map(|time| time * times);
        }
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
            workers: less(&self.workers, &forgotten.workers),
        }
    }

    /// The same work seen by another number of engines: the sum stays, on the first of them.
    pub(crate) fn laid_out(&self, engines: usize) -> Self {
        let mut all = Work::default();
        self.engines.iter().for_each(|work| all += *work);
        let mut laid = vec![Work::default(); engines];
        if let Some(first) = laid.first_mut() {
            *first = all;
        }
        Self { engines: laid, ..self.clone() }
    }
}

/// Place by place; what the second does not have stays as it is.
fn less(from: &[Work], what: &[Work]) -> Vec<Work> {
    let rest = what.iter().copied().chain(std::iter::repeat(Work::default()));
    from.iter().zip(rest).map(|(mine, theirs)| *mine - theirs).collect()
}
