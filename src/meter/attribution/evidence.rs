//! Evidence of a window, from its spans: how busy holders alone kept their slots, when they used them, and the energy above
//! idle power while they waited.
//!
//! Each tick counts with its own share of busy time, also where a window cuts it, so no cut moves time from one bin to another.

use std::collections::{BTreeMap, HashMap};

use super::apportion::Shares;
use crate::model::{
    DAY, Evidence, HOUR, HolderId, Holding, Microjoules, Presence, Row, Run, RunKey, Series, ShapeKey,
    SlotId, SlotState, Span, TickShares, Utc, WAITING_SHARE,
};

/// What of a span is of one slot.
#[derive(Clone, Copy)]
struct SlotTick<'a> {
    gpu_instance: Option<u32>,
    from: Utc,
    to: Utc,
    /// Share of time busy; none unless measured.
    busy: Option<u16>,
    shares: TickShares,
    holdings: &'a [Holding],
    covered_by: &'a BTreeMap<HolderId, HolderId>,
    present: &'a BTreeMap<HolderId, Presence>,
    blind: bool,
}

/// The evidence of spans in order of time, of which these are the rows.
pub(super) fn find_evidence(spans: &[Span], rows: &[Row]) -> Evidence {
    let mut window = WindowEvidence::default();
    for tick in spans.iter().flat_map(ticks) {
        window.add_tick(tick);
    }
    for row in rows.iter().filter(|row| !row.holder.is_remainder()) {
        let key = window.run_key(row.slot.gpu_instance, &row.holder);
        if let Some(run) = window.evidence.runs.get_mut(&key) {
            run.amounts.add(&row.amounts);
        }
    }
    window.evidence
}

#[derive(Default)]
struct WindowEvidence<'a> {
    evidence: Evidence,
    /// The job or pod of each holder, or itself; each is parsed once.
    workloads: HashMap<&'a HolderId, HolderId>,
}

/// The ticks of a span's slots.
fn ticks(span: &Span) -> Vec<SlotTick<'_>> {
    let tick = SlotTick {
        gpu_instance: None,
        from: span.from,
        to: span.to,
        busy: (span.state == SlotState::Measured).then(|| span.busy_share()),
        shares: span.shares,
        holdings: &span.holdings,
        covered_by: &span.covered_by,
        present: &span.present,
        blind: span.blind,
    };
    let Some(mig) = &span.instances else { return vec![tick] };
    let slots = mig.slots.iter().map(|(name, slot)| SlotTick {
        gpu_instance: name.parse().ok(),
        busy: (slot.state == SlotState::Measured).then(|| slot.busy_share(span.length())),
        shares: slot.shares,
        holdings: &slot.holdings,
        covered_by: &slot.covered_by,
        present: &slot.present,
        blind: slot.blind,
        ..tick
    });
    slots.collect()
}

impl<'a> WindowEvidence<'a> {
    fn add_tick(&mut self, tick: SlotTick<'a>) {
        if tick.to <= tick.from {
            return;
        }
        let users = tick.users();
        let idle = tick.holders_without_user(&users);
        for holder in users.iter().copied().chain(idle).filter(|holder| !holder.is_remainder()) {
            // A blind slot has no users; what is busy is its holders'.
            let is_alone =
                if tick.blind { tick.holdings.len() == 1 } else { users.iter().all(|user| *user == holder) };
            tick.add_shapes(&mut self.evidence, holder, is_alone);
        }
        let parts = tick.present.keys().chain(tick.holdings.iter().map(|holding| &holding.holder));
        let mut runs: BTreeMap<RunKey, (&HolderId, bool)> = BTreeMap::new();
        for holder in parts.filter(|holder| !holder.is_remainder()) {
            let is_used = tick.is_used_by(holder);
            let run = runs.entry(self.run_key(tick.gpu_instance, holder)).or_insert((holder, false));
            *run = (run.0.min(holder), run.1 | is_used);
        }
        for (key, (holder, is_used)) in runs {
            let new = || Run::new(holder.clone(), tick.from);
            let run = self.evidence.runs.entry(key).or_insert_with(new);
            // The workload itself sorts before its parts.
            if *holder < run.holder {
                run.holder = holder.clone();
            }
            run.end = tick.to;
            if tick.busy.is_some() {
                run.add_measured(tick.from, tick.to, is_used);
            }
        }
    }

    /// The run that a holder is a part of.
    fn run_key(&mut self, gpu_instance: Option<u32>, holder: &'a HolderId) -> RunKey {
        let workload = self.workloads.entry(holder);
        let workload =
            workload.or_insert_with(|| holder.outer().unwrap_or_else(|| HolderId(holder.workload())));
        RunKey { gpu_instance, workload: workload.clone() }
    }
}

impl<'a> SlotTick<'a> {
    /// Those with processes, without the display server and the like.
    fn users(&self) -> Vec<&'a HolderId> {
        let users = self.present.keys().filter(|_| !self.blind);
        users.filter(|user| user.as_str() != HolderId::SYSTEM).collect()
    }

    /// Those who hold without a process of theirs or of one whom they cover.
    fn holders_without_user(&self, users: &[&HolderId]) -> Vec<&'a HolderId> {
        let has_user = |holder: &HolderId| users.iter().any(|user| self.is_covered(user, holder));
        self.holdings.iter().map(|holding| &holding.holder).filter(|holder| !has_user(holder)).collect()
    }

    fn is_covered(&self, user: &HolderId, holder: &HolderId) -> bool {
        user == holder || user.is_within(holder) || self.covered_by.get(user) == Some(holder)
    }

    /// Whether the slot was in use by a holder or those whom it covers. Where several have processes, those with a sample are in use; without any
    /// sample all are.
    fn is_used_by(&self, holder: &HolderId) -> bool {
        if self.busy.is_none_or(|busy| busy < WAITING_SHARE) {
            return false;
        }
        if self.blind {
            return true;
        }
        let weight = |presence: &Presence| presence.weight.unwrap_or(0);
        let is_sampled = self.present.values().any(|presence| weight(presence) > 0);
        let has_use = |presence: &Presence| !is_sampled || self.present.len() == 1 || weight(presence) > 0;
        self.present.iter().any(|(user, presence)| self.is_covered(user, holder) && has_use(presence))
    }

    fn add_shapes(&self, evidence: &mut Evidence, holder: &HolderId, is_alone: bool) {
        // Of a longer time all is in its first hour: no tick has one, and wrong times would make any number of hours.
        let is_one = self.to.since(self.from) > DAY;
        let mut from = self.from;
        while from < self.to {
            let hour = from.floor(HOUR);
            let to = if is_one { self.to } else { hour.plus(HOUR).min(self.to) };
            let key = ShapeKey { hour, gpu_instance: self.gpu_instance, holder: holder.clone() };
            let shapes = evidence.shapes.entry(key).or_default();
            for (series, shape) in Series::ALL.into_iter().zip(shapes) {
                let share = if series == Series::Busy { self.busy } else { self.shares.of(series) };
                match share {
                    Some(share) if is_alone => shape.add_alone(share, to.since(from)),
                    Some(_) => shape.add_shared(to.since(from)),
                    None => shape.add_unknown(to.since(from)),
                }
            }
            from = to;
        }
    }
}

/// Energy above idle power by slot and holder, of the spans in which the GPU was busy for less than 1 % of the time: along the
/// memory of those with processes, else equally. A board without known idle power has none.
pub(super) fn waiting_energy(spans: &[Span]) -> BTreeMap<(SlotId, HolderId), Microjoules> {
    let mut sums: BTreeMap<(SlotId, HolderId), Microjoules> = BTreeMap::new();
    for span in spans.iter().filter(|span| span.idle_energy.0 > 0) {
        let above = span.energy.map_or(0, |energy| energy.0.saturating_sub(span.idle_energy.0));
        let ticks = ticks(span);
        if above == 0 || !ticks.iter().all(|tick| tick.busy.is_some_and(|busy| busy < WAITING_SHARE)) {
            continue;
        }
        let layout = span.instances.as_ref().map(|mig| &mig.layout);
        let present = |weigh: fn(&Presence) -> u64| {
            let of_slot = |tick: &SlotTick<'_>| {
                let slot = tick.gpu_instance.map(|id| id.to_string());
                let slot = layout.zip(slot).map(|(layout, id)| layout.slot_id(&id)).unwrap_or_default();
                let users = tick.present.iter().filter(|(user, _)| user.as_str() != HolderId::SYSTEM);
                users
                    .map(|(user, presence)| ((slot.clone(), user.clone()), weigh(presence).into()))
                    .collect::<Vec<_>>()
            };
            Shares::from_weights(ticks.iter().flat_map(of_slot))
        };
        let shares = present(|presence| presence.memory.unwrap_or(0)).or_else(|| present(|_| 1));
        for (key, energy) in shares.map(|shares| shares.split(above)).into_iter().flatten() {
            *sums.entry(key).or_default() += Microjoules(energy);
        }
    }
    sums
}
