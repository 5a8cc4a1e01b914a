//! Claims of one rank that do not fit together on a slot, as those of two schedulers that both grant one GPU: each pays a part
//! of what it claims, so a conflict is logged when it begins and when it ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Meter, TrackedGpu};
use crate::model::snapshot::{CONFLICT_ADVICE, HoldingConflict};
use crate::model::{HolderId, shown};

#[derive(Default)]
pub(super) struct Conflicts(BTreeMap<Arc<str>, Vec<HolderId>>);

impl Meter {
    pub(super) fn find_conflicts(&mut self) {
        for (uuid, gpu) in &self.gpus {
            let found = gpu.account.slots.conflicts();
            if self.conflicts.0.get(uuid).map_or(&[][..], Vec::as_slice) == found {
                continue;
            }
            let index = gpu.id.index;
            if found.is_empty() {
                tracing::info!(gpu = index, %uuid, "the claims on a GPU fit again");
                self.conflicts.0.remove(uuid);
                continue;
            }
            let holders = found.iter().map(|id| shown(id.name())).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                gpu = index,
                %uuid,
                holders,
                "these claims on a GPU do not fit together, so each is charged for a part of what it claims; {CONFLICT_ADVICE}"
            );
            self.conflicts.0.insert(Arc::clone(uuid), found);
        }
        self.conflicts.0.retain(|uuid, _| self.gpus.contains_key(uuid));
    }

    /// The conflicts on these GPUs, by position.
    pub(super) fn list_conflicts(&self, gpus: &[&TrackedGpu]) -> Vec<HoldingConflict> {
        let of_gpu = |(position, gpu): (usize, &&TrackedGpu)| {
            let holders = self.conflicts.0.get(&gpu.id.uuid)?;
            Some(HoldingConflict {
                gpu: position,
                workloads: holders.iter().map(HolderId::workload).collect(),
            })
        };
        gpus.iter().enumerate().filter_map(of_gpu).collect()
    }

    pub(super) fn count_conflicts(&self, gpu: &TrackedGpu) -> usize {
        self.conflicts.0.get(&gpu.id.uuid).map_or(0, Vec::len)
    }
}
