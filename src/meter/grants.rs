//! Which standing holdings match no GPU that the driver counts.
//!
//! In: the standing holdings, and the GPUs with their index in the current driver session, once the driver has told of
//! all. Out: how many holdings match none, and a line of the log for each that begins or ends to. It grants nothing.

use super::Meter;
use crate::holders::{Standing, unmatched};

/// What is known of the standing holdings that match no GPU.
#[derive(Default)]
pub(super) struct GrantMatches {
    /// Whether the driver has listed all its GPUs since its library was last opened.
    told: bool,
    /// Those that matched none when the driver had last told of all; none before that.
    unmatched: Option<Vec<Standing>>,
}

impl GrantMatches {
    /// The driver's library was opened: until the driver has told of all its GPUs, what was known stands.
    pub(super) fn begin(&mut self) {
        self.told = false;
    }

    /// Whether the driver has listed all its GPUs.
    pub(super) const fn has_told(&self) -> bool {
        self.told
    }

    /// The driver has told of all its GPUs.
    pub(super) fn all_told(&mut self) {
        self.told = true;
    }
}

impl Meter {
    /// Finds the standing holdings that match no GPU, and logs those that did not before.
    pub(super) fn match_grants(&mut self) {
        if !self.grants.told {
            return;
        }
        let gpus = self.gpus.values().map(|gpu| &gpu.in_session).filter(|gpu| gpu.index.is_some());
        let found: Vec<Standing> = unmatched(&self.policy.standing, gpus).cloned().collect();
        let known = self.grants.unmatched.take().unwrap_or_default();
        for grant in found.iter().filter(|grant| !known.contains(grant)) {
            tracing::warn!(
                grant = grant.id,
                gpu = %grant.gpu,
                holder = %grant.selector.holder().as_str(),
                "a standing holding matches no GPU that the driver counts; see nvidia-smi -L and correct attribution.standing"
            );
        }
        let matched = known.iter().filter(|grant| !found.contains(grant));
        for grant in matched.filter(|grant| self.policy.standing.contains(grant)) {
            tracing::info!(grant = grant.id, gpu = %grant.gpu, "a standing holding matches a GPU again");
        }
        self.grants.unmatched = Some(found);
    }

    /// How many standing holdings match no GPU; none without any, and until the driver has told of all its GPUs.
    pub(super) fn unmatched_grants(&self) -> Option<usize> {
        let unmatched = self.grants.unmatched.as_ref()?;
        let standing = &self.policy.standing;
        (!standing.is_empty()).then(|| standing.iter().filter(|grant| unmatched.contains(grant)).count())
    }
}
