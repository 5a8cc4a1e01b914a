//! Which GPUs that standing holdings name are not there.
//!
//! In: the standing holdings, and the GPUs with their index in the current driver session, once the driver has told of
//! all. Out: how many holdings name a GPU that is not there, and a line of the log for each that begins or ends to. It
//! grants nothing.

use std::collections::BTreeMap;

use super::Meter;
use crate::holders::{GpuSelector, StandingGrant, in_words};

/// What is known of the GPUs that standing holdings name and that are not there.
#[derive(Default)]
pub(super) struct GrantMatches {
    /// Whether the driver has listed all its GPUs since its library was last opened.
    all_listed: bool,
    /// Those holdings by their place in the list, when the driver had last told of all; none before that.
    unmatched: Option<BTreeMap<usize, Unmatched>>,
}

/// A standing holding with the GPUs that it names and that are not there.
struct Unmatched {
    grant: StandingGrant,
    missing: Vec<GpuSelector>,
}

impl GrantMatches {
    /// The driver's library was opened; until it has listed all its GPUs, the last result stays.
    pub(super) fn library_opened(&mut self) {
        self.all_listed = false;
    }

    /// Whether the driver has listed all its GPUs.
    pub(super) const fn has_all_listed(&self) -> bool {
        self.all_listed
    }

    /// The driver has listed all its GPUs.
    pub(super) fn set_all_listed(&mut self) {
        self.all_listed = true;
    }
}

impl Meter {
    /// Finds the standing holdings that name a GPU which is not there, and logs those that did not before.
    pub(super) fn match_grants(&mut self) {
        if !self.grants.all_listed {
            return;
        }
        let gpus = self.gpus.values().map(|gpu| &gpu.in_session).filter(|gpu| gpu.index.is_some());
        let known = self.grants.unmatched.take().unwrap_or_default();
        let mut found = BTreeMap::new();
        for (place, grant) in self.policy.standing.iter().enumerate() {
            let missing = grant.unmatched(gpus.clone());
            // A holding without a name has its place as id, so another one may have that id after a reload.
            let before = known.get(&place).filter(|known| known.grant.has_id_and_holder_of(grant));
            if missing.is_empty() {
                if before.is_some() {
                    tracing::info!(
                        grant = grant.id,
                        gpu = in_words(&grant.gpus),
                        "a standing holding matches its GPUs now"
                    );
                }
                continue;
            }
            if before.is_none_or(|known| known.missing != missing) {
                tracing::warn!(
                    grant = grant.id,
                    gpu = in_words(&missing),
                    holder = %grant.selector.holder().id,
                    "a standing holding names GPUs that the driver does not count; see nvidia-smi -L and correct attribution.standing"
                );
            }
            found.insert(place, Unmatched { grant: grant.clone(), missing });
        }
        self.grants.unmatched = Some(found);
    }

    /// How many standing holdings name a GPU that is not there; none without any, and until the driver has told of all
    /// its GPUs.
    pub(super) fn unmatched_grants(&self) -> Option<usize> {
        let unmatched = self.grants.unmatched.as_ref()?;
        (!self.policy.standing.is_empty()).then_some(unmatched.len())
    }
}
