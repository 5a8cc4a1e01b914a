//! Splits the energy of a segment: the idle floor along held time, the rest along used time (law L5).
//!
//! Energy is a difference of the driver's counter, never integrated power. All slots of a GPU share one pool. It is split
//! once per segment, without a carry.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ROOT;
use super::apportion::Shares;
use super::settle::{SettledSegment, SettledSlot};
use crate::model::{HolderId, Microjoules, SlotState, Span};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuEnergy {
    /// Difference of the driver's counter.
    pub(super) delta: Microjoules,
    /// Idle power x time: the most of it that can be floor.
    pub(super) floor: Microjoules,
}

/// A holder on a slot; time that belongs to no slot is on the slot `root`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotHolder {
    pub(super) slot: Arc<str>,
    /// Holder, user or remainder.
    pub(super) holder: HolderId,
}

/// The energy of a segment by slot and holder, in microjoules.
#[derive(Clone, Debug)]
pub(super) struct EnergySplit {
    /// What an idle GPU would have drawn.
    pub(super) floor: BTreeMap<SlotHolder, u64>,
    /// What was drawn above that.
    pub(super) dynamic: BTreeMap<SlotHolder, u64>,
}

impl GpuEnergy {
    /// The sum over spans with a known counter difference; none where it is 0.
    pub(super) fn sum(spans: &[Span]) -> Option<Self> {
        let (mut delta, mut floor) = (Microjoules(0), Microjoules(0));
        for span in spans {
            if let Some(energy) = span.energy {
                delta += energy;
                floor += span.idle_energy;
            }
        }
        (delta.0 > 0).then_some(Self { delta, floor })
    }
}

impl SettledSegment<'_> {
    pub(super) fn split_energy(&self, energy: GpuEnergy) -> EnergySplit {
        let floor = energy.floor.min(energy.delta).0;
        let by_held_time = Shares::from_weights(self.held_time()).unwrap_or_else(|| {
            // Only a segment without length has no held time.
            Shares::single(match self.slots.first() {
                Some(slot) => slot.with_holder(&slot.held.remainder),
                None => SlotHolder { slot: ROOT.into(), holder: HolderId::new(HolderId::UNAVAILABLE) },
            })
        });
        let dynamic = Shares::from_weights(self.active_time())
            .or_else(|| Shares::from_weights(self.present(|memory, time| memory.saturating_mul(time))))
            .or_else(|| Shares::from_weights(self.present(|_, time| time)))
            .map(|shares| shares.split(energy.delta.0 - floor))
            .unwrap_or_else(|| by_held_time.split(energy.delta.0 - floor));
        EnergySplit { floor: by_held_time.split(floor), dynamic }
    }

    /// Held time, and unheld time under its remainder.
    fn held_time(&self) -> impl Iterator<Item = (SlotHolder, u128)> {
        let of_slot = |slot: &SettledSlot<'_>| {
            let held = slot.held.with_remainder();
            held.map(|(holder, time)| (slot.with_holder(holder), time.into())).collect::<Vec<_>>()
        };
        let free = self.free.iter().map(|(remainder, time)| {
            (SlotHolder { slot: ROOT.into(), holder: remainder.clone() }, u128::from(*time))
        });
        self.slots.iter().flat_map(of_slot).chain(free)
    }

    /// Used time of measured slots, and held time of the others.
    fn active_time(&self) -> impl Iterator<Item = (SlotHolder, u128)> {
        self.slots.iter().flat_map(|slot| -> Vec<_> {
            let time = |holder, time: u64| (slot.with_holder(holder), time.into());
            match slot.state {
                SlotState::Measured => slot.used.iter().map(|(user, used)| time(user, used.time)).collect(),
                _ => slot.held.parts.iter().map(|(holder, held)| time(holder, *held)).collect(),
            }
        })
    }

    /// Holders with a context on the GPU, weighed by memory in bytes and time in nanoseconds.
    fn present(&self, weigh: impl Fn(u128, u128) -> u128) -> Vec<(SlotHolder, u128)> {
        let mut present = Vec::new();
        for slot in &self.slots {
            for span in &*slot.spans {
                present.extend(span.present.iter().map(|(user, presence)| {
                    let memory = presence.memory.unwrap_or(0);
                    (slot.with_holder(user), weigh(memory.into(), span.length().0.into()))
                }));
            }
        }
        present
    }
}

impl SettledSlot<'_> {
    fn with_holder(&self, holder: &HolderId) -> SlotHolder {
        SlotHolder { slot: Arc::clone(&self.name), holder: holder.clone() }
    }
}
