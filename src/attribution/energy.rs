//! The energy of a segment to rows: the idle floor along held time, the rest along use.
//!
//! In go differences of the driver's counter, idle power x time, what was held and what was used of each slot; out come
//! integer microjoules that sum to the difference (L5). All slots of a GPU share one pool. Splits once per segment,
//! without a carry. It does not know power: a difference is never an integrated reading.

use std::collections::BTreeMap;

use super::apportion::apportion_once;
use super::settle::SettledSlot;
use super::shares::Shares;
use super::{ROOT, SLOT};
use crate::model::{HolderId, SlotState, Span};

/// Separates slot and holder in the ids of the split; no id contains it.
const SEPARATOR: char = '\0';

/// What the driver's counter says of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeteredEnergy {
    /// Its difference, in microjoules.
    pub(super) total: u64,
    /// The most of it that can be floor.
    pub(super) idle: u64,
}

/// The energy of a segment by slot and holder ([`slot_and_holder`]), in microjoules.
#[derive(Clone, Debug, Default)]
pub(super) struct EnergySplit {
    /// What an idle GPU would have drawn.
    pub(super) floor: BTreeMap<HolderId, u64>,
    /// What was drawn above that.
    pub(super) dynamic: BTreeMap<HolderId, u64>,
}

/// Those among whom the energy of a GPU is split.
pub(super) struct EnergyPool<'a> {
    pub(super) slots: &'a [SettledSlot<'a>],
    /// Time that is no slot's, by remainder.
    pub(super) free: &'a [(HolderId, u64)],
}

impl MeteredEnergy {
    /// What the spans tell; none where no counter moved. Spans without a counter difference bring nothing.
    pub(super) fn of(spans: &[Span]) -> Option<Self> {
        let known = || spans.iter().filter(|span| span.energy.is_some());
        let total = known().filter_map(|span| span.energy).map(|energy| energy.0).sum();
        (total > 0).then(|| Self { total, idle: known().map(|span| span.idle_energy.0).sum() })
    }
}

impl EnergyPool<'_> {
    /// Splits what was drawn.
    pub(super) fn split(&self, MeteredEnergy { total, idle }: MeteredEnergy) -> EnergySplit {
        let floor = idle.min(total);
        let as_held = Shares::by(self.held()).unwrap_or_else(|| {
            // Only a segment without length has no time.
            let remainder = self.slots.first().map(|slot| in_slot(&slot.name, &slot.held.remainder));
            Shares::all(remainder.unwrap_or_else(|| in_slot(ROOT, &HolderId::new(HolderId::UNAVAILABLE))))
        });
        let dynamic = Shares::by(self.active())
            .or_else(|| Shares::by(self.keepers(|memory, time| u128::from(memory).saturating_mul(time))))
            .or_else(|| Shares::by(self.keepers(|_, time| time)))
            .unwrap_or_else(|| as_held.clone());
        EnergySplit { floor: along(&as_held, floor), dynamic: along(&dynamic, total - floor) }
    }

    /// What was held, the remainders among it.
    fn held(&self) -> impl Iterator<Item = (HolderId, u128)> {
        let of_slot = |slot: &SettledSlot<'_>| {
            let held = slot.held.with_remainder().map(|(holder, time)| (in_slot(&slot.name, holder), time));
            held.collect::<Vec<_>>()
        };
        let free = self.free.iter().map(|(remainder, time)| (in_slot(ROOT, remainder), *time));
        self.slots.iter().flat_map(of_slot).chain(free).map(|(id, time)| (id, time.into()))
    }

    /// Who was busy, or, where that is unknown, who held.
    fn active(&self) -> impl Iterator<Item = (HolderId, u128)> {
        self.slots.iter().flat_map(|slot| {
            let id = |holder: &HolderId| in_slot(&slot.name, holder);
            match slot.state {
                SlotState::Measured => {
                    slot.used.iter().map(|(user, used)| (id(user), used.time.into())).collect::<Vec<_>>()
                }
                _ => slot.held.parts.iter().map(|(holder, time)| (id(holder), (*time).into())).collect(),
            }
        })
    }

    /// Those who keep a context, each weighed by memory and time.
    fn keepers(&self, weigh: impl Fn(u64, u128) -> u128) -> Vec<(HolderId, u128)> {
        let mut keepers = Vec::new();
        for slot in self.slots {
            for span in &*slot.spans {
                keepers.extend(span.present.iter().map(|(user, presence)| {
                    let memory = presence.memory.unwrap_or(0);
                    (in_slot(&slot.name, user), weigh(memory, span.length().0.into()))
                }));
            }
        }
        keepers
    }
}

/// The id of a holder on a slot; of one on a whole GPU simply its own.
fn in_slot(slot: &str, holder: &HolderId) -> HolderId {
    if slot == SLOT { holder.clone() } else { HolderId::new(format!("{slot}{SEPARATOR}{holder}")) }
}

/// The slot and the holder of an id of the split.
pub(super) fn slot_and_holder(id: &HolderId) -> (&str, HolderId) {
    match id.as_str().split_once(SEPARATOR) {
        Some((slot, holder)) => (slot, HolderId::new(holder)),
        None => (SLOT, id.clone()),
    }
}

fn along(shares: &Shares, total: u64) -> BTreeMap<HolderId, u64> {
    let quotas = shares.quotas(total).map(|(holder, quota)| (holder.clone(), quota)).collect();
    apportion_once(total, &quotas)
}
