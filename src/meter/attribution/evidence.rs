//! Evidence of a window, from its spans: how busy holders alone kept their slots, when they used them, and the energy above
//! idle power while they waited.
//!
//! Each tick counts with its own share of busy time, also where a window cuts it, so no cut moves time from one bin to another.

use std::collections::{BTreeMap, HashMap};

use super::apportion::Shares;
use crate::model::{
    DAY, Evidence, HOUR, HolderId, Holding, Microjoules, Presence, Row, Run, RunKey, Series, Shape, ShapeKey,
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
    let [from, to] = [spans.first().map(|span| span.from), spans.last().map(|span| span.to)]
        .map(Option::unwrap_or_default);
    for row in rows.iter().filter(|row| !row.holder.is_remainder()) {
        let place = window.find_place(row.slot.gpu_instance, &row.holder, from);
        let run = &mut window.runs[window.holders[place].run].run;
        if run.end == run.begin {
            // It has a row, and neither held nor was present in any tick of this slot.
            run.end = to;
        }
        run.amounts.add(&row.amounts);
    }
    window.finish()
}

/// The evidence of a window while its ticks are added. Holders are found by place, since each is in every tick.
#[derive(Default)]
struct WindowEvidence<'a> {
    /// The places of holders on slots.
    places: HashMap<(Option<u32>, &'a HolderId), usize>,
    holders: Vec<HolderEvidence<'a>>,
    runs: Vec<OpenRun>,
}

struct HolderEvidence<'a> {
    gpu_instance: Option<u32>,
    holder: &'a HolderId,
    /// Its shapes by hour.
    hours: Vec<(Utc, [Shape; Series::ALL.len()])>,
    /// Place of the run that it is a part of.
    run: usize,
}

struct OpenRun {
    key: RunKey,
    run: Run,
    /// Whether it is in use in the present tick; none while that is not known to have any part of it.
    is_used: Option<bool>,
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
        let users =
            tick.present.keys().filter(|user| !tick.blind && user.as_str() != HolderId::SYSTEM).count();
        let use_of = tick.use_of();
        let (mut seen, mut hint) = (Vec::new(), 0);
        for (holder, presence) in tick.present.iter().filter(|(user, _)| !user.is_remainder()) {
            let place = self.place(&tick, holder, &mut hint);
            if !tick.blind {
                self.holders[place].add_shapes(&tick, users == 1);
            }
            self.note_use(place, use_of(holder, Some(presence)), &mut seen);
        }
        let holdings = tick.holdings.iter().map(|holding| &holding.holder);
        for holder in holdings.filter(|holder| !holder.is_remainder()) {
            let is_user = tick.present.contains_key(holder);
            if is_user && !tick.blind {
                continue;
            }
            let place = self.place(&tick, holder, &mut hint);
            // A blind slot has no users; what is busy is its holders'.
            if tick.blind || !tick.covers_user(holder) {
                self.holders[place]
                    .add_shapes(&tick, users == 0 && (!tick.blind || tick.holdings.len() == 1));
            }
            if !is_user {
                self.note_use(place, use_of(holder, None), &mut seen);
            }
        }
        for run in seen {
            let OpenRun { run, is_used, .. } = &mut self.runs[run];
            let is_used = is_used.take().unwrap_or(false);
            run.end = tick.to;
            if tick.busy.is_some() {
                run.add_measured(tick.from, tick.to, is_used);
            }
        }
    }

    /// Notes whether a part of a run is in use in a tick; `seen` has the runs of the tick.
    fn note_use(&mut self, place: usize, is_used: bool, seen: &mut Vec<usize>) {
        let run = self.holders[place].run;
        if self.runs[run].is_used.is_none() {
            seen.push(run);
        }
        *self.runs[run].is_used.get_or_insert(false) |= is_used;
    }

    /// The place of a holder on the slot of a tick. Ticks have the same holders in the same order, so it is mostly at the hint.
    fn place(&mut self, tick: &SlotTick<'a>, holder: &'a HolderId, hint: &mut usize) -> usize {
        let at_hint = self.holders.get(*hint);
        let place = match at_hint {
            Some(known) if known.holder == holder && known.gpu_instance == tick.gpu_instance => *hint,
            _ => self.find_place(tick.gpu_instance, holder, tick.from),
        };
        *hint = place + 1;
        place
    }

    fn find_place(&mut self, gpu_instance: Option<u32>, holder: &'a HolderId, from: Utc) -> usize {
        if let Some(place) = self.places.get(&(gpu_instance, holder)) {
            return *place;
        }
        let workload = holder.whole();
        let is_of = |open: &OpenRun| open.key.gpu_instance == gpu_instance && open.key.workload == workload;
        let run = self.runs.iter().position(is_of).unwrap_or_else(|| {
            let key = RunKey { gpu_instance, workload: workload.clone(), begin: from };
            self.runs.push(OpenRun { key, run: Run::new(holder.clone(), from), is_used: None });
            self.runs.len() - 1
        });
        // The workload itself sorts before its parts.
        if *holder < self.runs[run].run.holder {
            self.runs[run].run.holder = holder.clone();
        }
        self.holders.push(HolderEvidence { gpu_instance, holder, hours: Vec::new(), run });
        self.places.insert((gpu_instance, holder), self.holders.len() - 1);
        self.holders.len() - 1
    }

    fn finish(self) -> Evidence {
        let of_holder = |one: HolderEvidence<'_>| {
            let HolderEvidence { gpu_instance, holder, hours, .. } = one;
            let key = |hour| ShapeKey { hour, gpu_instance, holder: holder.clone() };
            hours.into_iter().map(|(hour, shapes)| (key(hour), shapes)).collect::<Vec<_>>()
        };
        Evidence {
            shapes: self.holders.into_iter().flat_map(of_holder).collect(),
            runs: self.runs.into_iter().map(|open| (open.key, open.run)).collect(),
        }
    }
}

impl HolderEvidence<'_> {
    fn add_shapes(&mut self, tick: &SlotTick<'_>, is_alone: bool) {
        // Of a longer time all is in its first hour: no tick has one, and wrong times would make any number of hours.
        let is_one = tick.to.since(tick.from) > DAY;
        let mut from = tick.from;
        while from < tick.to {
            let hour = from.floor(HOUR);
            let to = if is_one { tick.to } else { hour.plus(HOUR).min(tick.to) };
            if self.hours.last().is_none_or(|(last, _)| *last != hour) {
                self.hours.push((hour, Default::default()));
            }
            let shapes = self.hours.last_mut().map(|(_, shapes)| shapes);
            for (series, shape) in Series::ALL.into_iter().zip(shapes.into_iter().flatten()) {
                let share = if series == Series::Busy { tick.busy } else { tick.shares.of(series) };
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

impl<'a> SlotTick<'a> {
    /// Whether a holder covers one who has a process.
    fn covers_user(&self, holder: &HolderId) -> bool {
        self.present.keys().any(|user| user.is_within(holder) || self.covered_by.get(user) == Some(holder))
    }

    /// Tells whether the slot was in use by a holder with or without a process, or by those whom it covers by configuration. Where
    /// several have processes, those with a sample are in use; without any sample all are.
    fn use_of(&self) -> impl Fn(&HolderId, Option<&Presence>) -> bool + use<'a> {
        let is_busy = self.busy.is_some_and(|busy| busy >= WAITING_SHARE);
        let weight = |presence: &Presence| presence.weight.unwrap_or(0);
        let are_all = self.present.len() == 1 || self.present.values().all(|presence| weight(presence) == 0);
        let Self { present, covered_by, blind, .. } = *self;
        let is_used = move |own: &Presence| are_all || weight(own) > 0;
        move |holder, own| {
            let is_covered = |(user, cover): (&HolderId, &HolderId)| {
                cover == holder && present.get(user).is_some_and(is_used)
            };
            is_busy && (blind || own.is_some_and(is_used) || covered_by.iter().any(is_covered))
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
