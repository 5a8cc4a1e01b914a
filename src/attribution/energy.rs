//! The energy of a segment to rows: the idle floor along held time, the rest along use.
//!
//! In go a segment (differences of the driver's counter, idle power x time), what was held and what was used;
//! out come integer microjoules that sum to the difference (L5). Splits once per segment, without a carry. It
//! does not know power: a difference is never an integrated reading.

use std::collections::BTreeMap;

use super::apportion::apportion_once;
use super::held::Held;
use super::segment::Segment;
use super::shares::Shares;
use super::used::Used;
use crate::model::{HolderId, SlotState, Span};

/// The energy of a segment by holder, in microjoules.
#[derive(Clone, Debug, Default)]
pub(super) struct Energy {
    /// What an idle GPU would have drawn.
    pub(super) floor: BTreeMap<HolderId, u64>,
    /// What was drawn above that.
    pub(super) dynamic: BTreeMap<HolderId, u64>,
}

impl Energy {
    /// Splits the energy of a segment; spans without a counter difference bring none.
    pub(super) fn of(segment: &Segment<'_>, held: &Held, used: &BTreeMap<HolderId, Used>) -> Self {
        let known = || segment.spans.iter().filter(|span| span.energy.is_some());
        let total: u64 = known().filter_map(|span| span.energy).map(|energy| energy.0).sum();
        if total == 0 {
            return Self::default();
        }
        let floor = known().map(|span| span.idle_energy.0).sum::<u64>().min(total);
        let as_held = Shares::by(held.with_remainder().map(|(holder, time)| (holder.clone(), time.into())))
            .unwrap_or_else(|| Shares::all(held.remainder.clone()));
        let dynamic = active(segment.constant().state, held, used)
            .or_else(|| keepers(segment.spans))
            .unwrap_or_else(|| as_held.clone());
        Self { floor: along(&as_held, floor), dynamic: along(&dynamic, total - floor) }
    }
}

/// Who was busy, or, where that is unknown, who held.
fn active(state: SlotState, held: &Held, used: &BTreeMap<HolderId, Used>) -> Option<Shares> {
    match state {
        SlotState::Measured => Shares::by(used.iter().map(|(user, used)| (user.clone(), used.time.into()))),
        _ => Shares::by(held.parts.iter().map(|(holder, time)| (holder.clone(), (*time).into()))),
    }
}

/// The energy of a GPU with several slots, by slot and holder.
pub(super) struct OfSlots {
    /// What was held, with the remainders.
    pub(super) held: Vec<(HolderId, u64)>,
    /// Use of measured slots, and what was held of others.
    pub(super) active: Vec<(HolderId, u64)>,
    /// Memory x time of those who keep a context.
    pub(super) memory: Vec<(HolderId, u128)>,
}

impl OfSlots {
    /// Splits energy of which at most `idle` is floor.
    pub(super) fn split(self, total: u64, idle: u64) -> Energy {
        let floor = idle.min(total);
        let wide = |times: Vec<(HolderId, u64)>| times.into_iter().map(|(id, time)| (id, u128::from(time)));
        let as_held = Shares::by(wide(self.held)).unwrap_or_else(|| Shares::all(HolderId::new("")));
        let equal = self.memory.iter().map(|(id, _)| (id.clone(), 1)).collect::<Vec<_>>();
        let dynamic = Shares::by(wide(self.active))
            .or_else(|| Shares::by(self.memory))
            .or_else(|| Shares::by(equal))
            .unwrap_or_else(|| as_held.clone());
        Energy { floor: along(&as_held, floor), dynamic: along(&dynamic, total - floor) }
    }
}

/// Those who keep a context while nothing is busy: by memory x time, else equally.
fn keepers(spans: &[Span]) -> Option<Shares> {
    let present = || spans.iter().flat_map(|span| span.present.iter().map(move |user| (span, user)));
    Shares::by(present().map(|(span, (user, presence))| {
        let memory = u128::from(presence.memory.unwrap_or(0));
        (user.clone(), memory.saturating_mul(span.length().0.into()))
    }))
    .or_else(|| Shares::by(present().map(|(span, (user, _))| (user.clone(), span.length().0.into()))))
}

fn along(shares: &Shares, total: u64) -> BTreeMap<HolderId, u64> {
    let quotas = shares.quotas(total).map(|(holder, quota)| (holder.clone(), quota)).collect();
    apportion_once(total, &quotas)
}
