//! Standing grants that name GPUs which are not there: how many for a metric, and a log line when one begins or ceases to.

use std::collections::BTreeMap;

use super::Meter;
use crate::holders::in_words;
use crate::model::{GpuSelector, StandingGrant, shown};

#[derive(Default)]
pub(super) struct GrantMatches {
    /// Whether the driver has listed all its GPUs since its library was last opened.
    pub(super) all_listed: bool,
    /// Those grants by position, as of when all GPUs were last listed; none before that.
    unmatched: Option<BTreeMap<usize, Unmatched>>,
}

struct Unmatched {
    grant: StandingGrant,
    missing: Vec<GpuSelector>,
}

impl Meter {
    pub(super) fn match_grants(&mut self) {
        if !self.grants.all_listed {
            return;
        }
        let gpus = self.gpus.values().map(|gpu| &gpu.in_session).filter(|gpu| gpu.index.is_some());
        let known = self.grants.unmatched.take().unwrap_or_default();
        let mut found = BTreeMap::new();
        for (position, grant) in self.policy.standing.iter().enumerate() {
            let missing = grant.unmatched(gpus.clone());
            // The id of a grant without a name is its position, so another grant may have it after a reload.
            let before = known.get(&position).filter(|known| known.grant.has_id_and_holder_of(grant));
            if missing.is_empty() {
                if before.is_some() {
                    tracing::info!(
                        grant = grant.id,
                        gpu = in_words(&grant.gpus),
                        "all GPUs of a standing grant are present now"
                    );
                }
                continue;
            }
            if before.is_none_or(|known| known.missing != missing) {
                tracing::warn!(
                    grant = grant.id,
                    gpu = in_words(&missing),
                    holder = &*shown(grant.selector.holder().id.name()),
                    "a standing grant names GPUs that the driver does not list; compare nvidia-smi -L, and correct attribution.standing"
                );
            }
            found.insert(position, Unmatched { grant: grant.clone(), missing });
        }
        self.grants.unmatched = Some(found);
    }

    /// How many standing grants name missing GPUs; none without grants, and until the driver has listed all its GPUs.
    pub(super) fn unmatched_grants(&self) -> Option<usize> {
        let unmatched = self.grants.unmatched.as_ref()?;
        (!self.policy.standing.is_empty()).then_some(unmatched.len())
    }
}
