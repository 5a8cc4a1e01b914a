//! The account of one GPU in time: a contiguous sequence of spans, of which the settled ones are gone and
//! the open ones wait for their window to close.

mod slots;
mod windows;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Policy;
use super::idle::{IdlePower, Occupancy};
use super::integrate::{
    HolderList, PresentBySlot, PresentHolders, Unnamed, activity, add, instance_activity, present_by_slot,
    share,
};
use crate::catalogue::{PointId, first_point};
use crate::holders::{Allocation, GrantedSlot, Identities, SessionGpu, holdings};
use crate::ledger::{Anchor, Boot, RecoveredGpu};
use crate::model::{
    ActivitySource, Carry, Fraction, Frame, HolderId, Holding, HoldingSource, Method, Microjoules, MigSpan,
    Nanoseconds, Presence, Settlement, SlotState, Span, Utc,
};
use slots::{Claims, Division, Slots};

/// No GPU draws more, in microjoules per second: a difference above it is a counter that jumped.
const MOST_POWER: u64 = 20_000_000_000;

pub(super) const ENERGY: PointId = first_point("gpu_energy_joules_total");

/// One GPU's account.
pub(super) struct Account {
    /// End of the last span.
    cursor: Utc,
    /// End of the last settled window.
    settled: Utc,
    open: VecDeque<OpenSpan>,
    carry: Carry,
    weights: BTreeMap<HolderId, u64>,
    energy: Option<EnergyReading>,
    idle: IdlePower,
    /// The last frame, while nothing came between.
    last: Option<LastFrame>,
    /// Who was there in the last frame, when `last` is none because time without frames followed it.
    last_present: PresentBySlot,
    /// When this agent began to look.
    watched: Utc,
    /// Account time of the boot, until the first frame after it: over a boot nothing is bridged.
    rebooted: Option<Utc>,
    slots: Slots,
    /// How often they were found to be others.
    layout_changes: u64,
    lost: bool,
    /// Whether broken hardware has taken the GPU from its holders.
    failed: bool,
    /// What was booked because no agent looked, and not logged yet.
    gap: Gap,
}

/// Time of one GPU in which no agent looked, by how it was booked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gap {
    /// To those who held on both sides.
    pub(super) bridged: Nanoseconds,
    /// To `__unobserved__`.
    pub(super) unobserved: Nanoseconds,
    /// To `__unavailable__`: the node was off.
    pub(super) unavailable: Nanoseconds,
}

/// What the next frame may go on from.
struct LastFrame {
    generation: u32,
    /// Who was there by the last list that did not fail, without weights.
    present: PresentBySlot,
    /// Since when every frame has said for sure that nobody was.
    empty_since: Option<Utc>,
}

/// What a scheduler granted before it was known here.
pub(super) struct EarlierGrant {
    pub(super) allocation: Allocation,
    /// Account time since which it counts.
    pub(super) from: Utc,
}

/// A span that is not settled, with the processes that nobody has named yet.
#[derive(Clone)]
struct OpenSpan {
    span: Span,
    users: SpanUsers,
    /// Those of MIG instances, by GPU instance id.
    of_instances: BTreeMap<Arc<str>, SpanUsers>,
    /// The GPU and the policy of the span's time, by which its holdings are computed again when one of its processes is
    /// named later. None where the span lists no processes.
    granted: Option<(SessionGpu, Arc<Policy>)>,
    sent: bool,
}

/// Who was there on a slot during an open span.
#[derive(Clone, Default)]
struct SpanUsers {
    /// The holders, with their facts.
    holders: HolderList,
    unnamed: Unnamed,
}

impl SpanUsers {
    fn of(present: &PresentHolders) -> Self {
        Self { holders: Arc::clone(&present.holders), unnamed: present.unnamed.clone() }
    }

    /// Adds those whom nobody has named yet under `__unattributed__`.
    fn add_unnamed(&self, present: &mut BTreeMap<HolderId, Presence>) {
        for presence in self.unnamed.values() {
            let entry = present.entry(HolderId::new(HolderId::UNATTRIBUTED)).or_default();
            add(entry, presence);
        }
    }
}

/// The driver's counter when it was last read.
#[derive(Clone, Copy)]
struct EnergyReading {
    counter: Microjoules,
    at: Utc,
}

/// Energy since the counter was last read.
#[derive(Clone, Copy)]
struct EnergyDelta {
    total: Microjoules,
    /// The most of it that an idle GPU would have drawn.
    idle: Microjoules,
}

/// A frame of a GPU, with its account time.
#[derive(Clone, Copy)]
pub(super) struct TimedFrame<'a> {
    pub(super) gpu: &'a SessionGpu,
    pub(super) at: Utc,
    pub(super) frame: &'a Frame,
}

/// How time without a frame is booked.
#[derive(Clone, Copy)]
struct GapState {
    state: SlotState,
    method: Method,
}

/// The windows that a tick settled.
#[derive(Default)]
pub(super) struct ClosedWindows {
    pub(super) windows: Vec<Settlement>,
    /// Windows whose spans did not fit together and were settled as unmeasured: a defect, counted.
    pub(super) failed: u64,
}

impl Account {
    /// An account that begins now.
    pub(super) fn begin(at: Utc) -> Self {
        Self {
            cursor: at,
            settled: at,
            open: VecDeque::new(),
            carry: Carry::new(),
            weights: BTreeMap::new(),
            energy: None,
            idle: IdlePower::default(),
            last: None,
            last_present: PresentBySlot::default(),
            watched: at,
            rebooted: None,
            slots: Slots::default(),
            layout_changes: 0,
            lost: false,
            failed: false,
            gap: Gap::default(),
        }
    }

    /// An account that goes on after a gap of the agent, which it begins to watch at `watched`.
    pub(super) fn recover(known: RecoveredGpu, watched: Utc, boot: Boot) -> Self {
        let cursor = known.spans.last().map_or(known.settled_until, |span| span.to);
        let rebooted = (cursor <= boot.first_seen).then_some(boot.booted);
        let slots = match rebooted {
            Some(_) => Slots::default(),
            None => Slots::recover(known.spans.last(), known.holdings),
        };
        let open = known.spans.into_iter().map(|span| OpenSpan { sent: true, ..OpenSpan::of(span) });
        Self {
            cursor,
            settled: known.settled_until,
            open: open.collect(),
            carry: known.carry,
            weights: known.weights,
            energy: known.energy_counter.map(|counter| EnergyReading { counter, at: cursor }),
            slots,
            watched,
            rebooted,
            ..Self::begin(cursor)
        }
    }

    /// Forgets who held before the agent began to watch: nothing is bridged.
    pub(super) fn bridge_nothing(&mut self) {
        self.slots.retain(|_, _| false);
    }

    /// Moves what happened in this boot from the provisional axis to the real one.
    pub(super) fn apply_anchor(&mut self, anchor: &Anchor) {
        self.rebooted = self.rebooted.map(|_| anchor.booted);
        for at in [&mut self.cursor, &mut self.settled, &mut self.watched] {
            *at = anchor.moved(*at);
        }
        if let Some(energy) = &mut self.energy {
            energy.at = anchor.moved(energy.at);
        }
        if let Some(deserted) = self.last.as_mut().and_then(|last| last.empty_since.as_mut()) {
            *deserted = anchor.moved(*deserted);
        }
        for open in std::mem::take(&mut self.open) {
            let (before_boot, span) = anchor.moved_span(open.span.clone());
            if anchor.since.is_none_or(|since| open.span.from <= since) && span.state == SlotState::Unobserved
            {
                let Gap { unobserved, unavailable, .. } = &mut self.gap;
                let before = open.span.to.since(open.span.from);
                *unobserved = Nanoseconds(unobserved.0.saturating_sub(before.0)) + span.to.since(span.from);
                *unavailable += before_boot.as_ref().map_or(Nanoseconds(0), |span| span.to.since(span.from));
            }
            // The ledger moves what it was given by the same rule.
            self.open.extend(before_boot.map(|span| OpenSpan { sent: open.sent, ..OpenSpan::of(span) }));
            self.open.push_back(OpenSpan { span, ..open });
        }
    }

    /// The driver says that the GPU is gone: until a frame comes its time is unavailable.
    pub(super) fn mark_lost(&mut self) {
        self.lost = true;
        self.forget_last_frame();
    }

    /// Forgets the last frame, so that the next one only begins.
    fn forget_last_frame(&mut self) {
        if let Some(last) = self.last.take() {
            self.last_present = last.present;
        }
    }

    /// The driver counts the GPU again, through another sampler: until now it was unavailable if it was lost, and
    /// the next frame only begins.
    pub(super) fn mark_found(&mut self, at: Utc) {
        self.forget_last_frame();
        if self.lost && self.cursor < at {
            let held = self.slots.claims();
            self.fill_gap(at, &held, None);
        }
        self.lost = false;
    }

    /// Grants select the GPU otherwise from now on: until its next frame those hold who are granted it before and after.
    pub(super) fn select_gpu(&mut self, gpu: &SessionGpu, policy: &Policy) {
        let granted = |slot: GrantedSlot<'_>| holdings(slot, policy.granting(), []).0;
        self.slots.retain(|slot, held| {
            let instance = |(id, slot)| GrantedSlot::Instance { gpu, id, slot };
            let slot = slot.map_or(GrantedSlot::Whole(gpu), instance);
            held.source != HoldingSource::Standing || granted(slot).contains(held)
        });
    }

    /// The driver was loaded anew: its energy counter began at 0.
    pub(super) fn forget_energy(&mut self) {
        self.energy = None;
    }

    /// The end of the last settled window.
    pub(super) fn settled(&self) -> Utc {
        self.settled
    }

    /// Says whether the hardware has failed: until it has not, the GPU's time is unavailable, whatever it does.
    pub(super) fn set_failed(&mut self, failed: bool) {
        self.failed = failed;
    }

    /// Adds the time up to a frame; how much of it was busy, in nanoseconds.
    pub(super) fn advance(
        &mut self,
        timed: TimedFrame<'_>,
        identities: &Identities,
        policy: &Arc<Policy>,
    ) -> u64 {
        let TimedFrame { gpu, at, frame } = timed;
        let is_divided = self.slots.division().layout().is_some();
        let goes_on =
            |last: &LastFrame| last.generation == frame.generation && is_divided == frame.identity.mig;
        let last = self.last.take().filter(goes_on);
        let before = self.slots.claims();
        if last.is_none() {
            // Under one plan it stays.
            self.slots.divide(Division::of(frame));
        }
        let present = self.present(frame, identities, last.as_ref());
        self.slots.update_holdings(gpu, &present, policy);
        let before_it = last.as_ref().and_then(|last| last.empty_since);
        let drawn = self.read_energy(timed, before_it, policy);
        let deserted = frame.deserted.then(|| before_it.unwrap_or(at));
        if self.rebooted.is_some() {
            // Before the first frame of a boot neither holdings nor activity are known.
            self.watched = at;
        }
        let busy = if last.is_some() && !self.failed {
            self.add_frame_span(timed, &present, drawn, policy)
        } else {
            // What the first frame of a plan says of activity covers nothing: it only begins. What broken
            // hardware computes is charged to nobody.
            let claims = self.slots.claims();
            match last {
                Some(_) => self.fill_gap(at, &claims, drawn),
                None if claims.division.differs_from(&before.division) => {
                    self.fill_reshape(gpu, at, &before, drawn);
                }
                None => self.fill_gap(at, &claims.also_of(&before), drawn),
            }
            0
        };
        self.lost = false;
        let present = if has_failed(frame) {
            // The last list stands alone: whom a sample named since is not there for good.
            last.map(|last| last.present).unwrap_or_default()
        } else {
            present.without_weights()
        };
        self.last = Some(LastFrame { generation: frame.generation, present, empty_since: deserted });
        busy
    }

    /// Who was there. A list that failed for now is not an empty one: the last one stands.
    fn present(&self, frame: &Frame, identities: &Identities, last: Option<&LastFrame>) -> PresentBySlot {
        let known = last.filter(|_| has_failed(frame)).map(|last| &last.present);
        let layout = self.slots.division().layout().map(|layout| &**layout);
        let mut present = present_by_slot(known, frame, identities, layout);
        if let Some(last) = last {
            present.share(&last.present);
        }
        present
    }

    fn add_frame_span(
        &mut self,
        TimedFrame { gpu, at, frame }: TimedFrame<'_>,
        present: &PresentBySlot,
        drawn: Option<EnergyDelta>,
        policy: &Arc<Policy>,
    ) -> u64 {
        if at <= self.cursor {
            return 0;
        }
        let length = at.since(self.cursor);
        let known = activity(frame).filter(|(source, _)| covers(*source, length, frame, policy));
        let busy = known.map_or(0, |(_, ratio)| share(ratio, length));
        let instances = self.instances(frame, present, length);
        let is_measured = known.is_some() || instances.is_some();
        let span = Span {
            state: if is_measured { SlotState::Measured } else { SlotState::Unmeasured },
            source: known.map_or(ActivitySource::None, |(source, _)| source),
            busy,
            present: present.whole.by_holder(),
            blind: are_unseen(frame),
            energy: drawn.map(|drawn| drawn.total),
            idle_energy: drawn.map_or(Microjoules(0), |drawn| drawn.idle),
            instances,
            ..self.blank(at)
        };
        self.cursor = at;
        let of_instances = present.instances.iter();
        self.open.push_back(OpenSpan {
            users: SpanUsers::of(&present.whole),
            of_instances: of_instances
                .map(|(slot, present)| (Arc::clone(slot), SpanUsers::of(present)))
                .collect(),
            granted: Some((gpu.clone(), Arc::clone(policy))),
            ..OpenSpan::of(span)
        });
        busy
    }

    /// What a frame tells of the instances of a MIG GPU over the time before it.
    fn instances(&self, frame: &Frame, present: &PresentBySlot, length: Nanoseconds) -> Option<Box<MigSpan>> {
        let mut mig = self.slots.unknown_span(&self.slots.claims(), SlotState::Unmeasured)?;
        for (name, slot) in &mut mig.slots {
            slot.present = present.instances.get(name).map(PresentHolders::by_holder).unwrap_or_default();
            slot.blind = are_unseen(frame);
            if let Some(ratio) = instance_activity(frame, name) {
                slot.state = SlotState::Measured;
                slot.source = ActivitySource::Gpm;
                slot.busy = share(ratio, length);
            }
        }
        Some(mig)
    }

    /// A span from the cursor of which nothing but the holdings is known.
    fn blank(&self, to: Utc) -> Span {
        Span {
            from: self.cursor,
            to,
            state: SlotState::Unmeasured,
            source: ActivitySource::None,
            method: Method::Observed,
            holdings: Arc::clone(self.slots.whole()),
            covered_by: self.slots.covered_by().clone(),
            busy: 0,
            present: BTreeMap::new(),
            blind: false,
            energy: None,
            idle_energy: Microjoules(0),
            instances: None,
        }
    }

    /// Closes the time up to `to` in which no frame came, for those who held on both sides of it. Before the
    /// agent looked nobody else can be known; since, what they leave is unallocated or gone.
    fn fill_gap(&mut self, to: Utc, both: &Claims, drawn: Option<EnergyDelta>) {
        let whole = to.since(self.cursor);
        let mut drawn = drawn;
        if let Some(booted) = self.rebooted {
            let none = Claims::default();
            if self.cursor < booted {
                self.gap.unavailable += to.min(booted).since(self.cursor);
                self.push_span(
                    to.min(booted),
                    &none,
                    GapState { state: SlotState::Unavailable, method: Method::Observed },
                    None,
                );
            }
            if self.cursor < to.min(self.watched) {
                self.gap.unobserved += to.min(self.watched).since(self.cursor);
                self.push_span(
                    to.min(self.watched),
                    &none,
                    GapState { state: SlotState::Unobserved, method: Method::Observed },
                    None,
                );
            }
            self.rebooted = (self.cursor < self.watched).then_some(booted);
        } else if self.cursor < self.watched {
            let end = to.min(self.watched);
            let length = end.since(self.cursor);
            let held = both.held_of(length);
            self.gap.bridged += held;
            self.gap.unobserved += length - held;
            let first = take_energy(&mut drawn, length, whole);
            let state = GapState { state: SlotState::Unobserved, method: Method::Bridged };
            self.push_span(end, both, state, first);
        }
        if self.cursor < to {
            let state = if self.lost || self.failed { SlotState::Unavailable } else { SlotState::Unmeasured };
            self.push_span(to, both, GapState { state, method: Method::Observed }, drawn);
        }
    }

    /// Closes the time up to `to` between two epochs, in which the GPU had no slot; of the time before the agent looked
    /// nothing is known.
    fn fill_reshape(&mut self, gpu: &SessionGpu, to: Utc, before: &Claims, drawn: Option<EnergyDelta>) {
        self.layout_changes += 1;
        tracing::info!(
            gpu = gpu.index,
            uuid = &*gpu.uuid,
            before = %before.division,
            now = %self.slots.division(),
            unavailable_ms = to.since(self.cursor).0 / 1_000_000,
            "the GPU is divided otherwise"
        );
        let lost = std::mem::replace(&mut self.lost, true);
        self.fill_gap(to, &Claims::default(), drawn);
        self.lost = lost;
    }

    fn push_span(
        &mut self,
        to: Utc,
        held: &Claims,
        GapState { state, method }: GapState,
        drawn: Option<EnergyDelta>,
    ) {
        let span = Span {
            state,
            method,
            holdings: Arc::clone(held.whole()),
            instances: self.slots.unknown_span(held, state),
            energy: drawn.map(|drawn| drawn.total),
            idle_energy: drawn.map_or(Microjoules(0), |drawn| drawn.idle),
            ..self.blank(to)
        };
        self.cursor = to;
        self.open.push_back(OpenSpan::of(span));
    }

    /// The driver counter's difference since it was last read, for the time that is still open. A counter
    /// that went back or jumped is a new driver epoch or garbage, and only begins. `empty_since` is since when
    /// all frames before this one listed no process.
    fn read_energy(
        &mut self,
        TimedFrame { at, frame, .. }: TimedFrame<'_>,
        empty_since: Option<Utc>,
        policy: &Policy,
    ) -> Option<EnergyDelta> {
        let Some(Ok(counter)) = frame.readings.get(ENERGY) else { return None };
        let counter = Microjoules(u64::try_from(*counter).unwrap_or(0));
        let Some(before) = self.energy else {
            self.energy = Some(EnergyReading { counter, at });
            return None;
        };
        if at <= self.cursor || at <= before.at {
            // No open span can take it; the next frame's difference includes it.
            return None;
        }
        self.energy = Some(EnergyReading { counter, at });
        let time = at.since(before.at);
        let most = u128::from(MOST_POWER) * u128::from(time.0 + Nanoseconds::SECOND.0)
            / u128::from(Nanoseconds::SECOND.0);
        let delta = counter.0.checked_sub(before.counter.0).filter(|delta| u128::from(*delta) <= most)?;
        let alone = frame.deserted && empty_since.is_some_and(|since| since <= before.at);
        let occupancy = if frame.processes.as_ref().is_ok_and(|list| !list.is_empty()) {
            Occupancy::Occupied
        } else if alone && time.0 <= 2 * policy.intervals[0].0 {
            Occupancy::Empty
        } else {
            // Two readings that are empty do not prove that a longer time, as over a suspend, was.
            Occupancy::Unknown
        };
        let idle = self.idle.energy(&frame.identity.model, Microjoules(delta), time, occupancy);
        Some(EnergyDelta { total: Microjoules(delta), idle })
    }

    /// What was booked because no agent looked, since the last look.
    pub(super) fn take_gap(&mut self) -> Gap {
        std::mem::take(&mut self.gap)
    }

    /// Who holds what at the moment, each with what it grants and the GPU instance; that is empty for a whole GPU.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (Arc<str>, &Holding, Fraction)> {
        self.slots.holdings()
    }

    /// How many holdings there are.
    pub(super) fn count_holdings(&self) -> usize {
        self.slots.count_holdings()
    }

    /// How often the GPU was found divided otherwise since the agent's start; none of a GPU that never was in MIG mode.
    pub(super) fn layout_changes(&self) -> Option<u64> {
        let is_divided = self.slots.division().layout().is_some();
        (is_divided || self.layout_changes > 0).then_some(self.layout_changes)
    }

    /// By which meter activity was last known.
    pub(super) fn source(&self) -> Option<ActivitySource> {
        self.open.back().map(|open| open.span.source).filter(|source| *source != ActivitySource::None)
    }
}

/// Whether the frame's list is missing for now.
fn has_failed(frame: &Frame) -> bool {
    frame.processes.as_ref().is_err_and(|absence| !absence.is_permanent())
}

/// Whether processes cannot be seen by construction.
fn are_unseen(frame: &Frame) -> bool {
    frame.processes.as_ref().is_err_and(|absence| absence.is_permanent())
}

/// Whether a meter speaks of the whole span. A window of less than a second says nothing of a time in which
/// ticks were missed; the driver's ring of samples does, as far as it reaches back.
fn covers(source: ActivitySource, length: Nanoseconds, frame: &Frame, policy: &Policy) -> bool {
    let reach = frame.sampled.map_or(0, |sampled| sampled.covered.0);
    match source {
        ActivitySource::Gpm => true,
        ActivitySource::Samples if reach >= length.0 / 2 => true,
        _ => length.0 <= 2 * policy.intervals[0].0,
    }
}

/// Takes the part of the energy that falls on a part of the time.
fn take_energy(
    drawn: &mut Option<EnergyDelta>,
    part: Nanoseconds,
    whole: Nanoseconds,
) -> Option<EnergyDelta> {
    let all = (*drawn)?;
    let share = |energy: Microjoules| {
        let share = u128::from(energy.0) * u128::from(part.0) / u128::from(whole.0.max(1));
        Microjoules(u64::try_from(share).unwrap_or(energy.0).min(energy.0))
    };
    let first = EnergyDelta { total: share(all.total), idle: share(all.idle) };
    *drawn = Some(EnergyDelta { total: all.total - first.total, idle: all.idle - first.idle });
    Some(first)
}

impl OpenSpan {
    /// A span in which nobody is left to be named.
    fn of(span: Span) -> Self {
        Self { span, users: SpanUsers::default(), of_instances: BTreeMap::new(), granted: None, sent: false }
    }

    /// The span with its unnamed processes under `__unattributed__`.
    fn named(&self) -> Span {
        self.name(self.span.clone())
    }

    /// The same of a part of the span.
    fn name(&self, mut span: Span) -> Span {
        self.users.add_unnamed(&mut span.present);
        for (name, slot) in span.instances.iter_mut().flat_map(|mig| &mut mig.slots) {
            if let Some(users) = self.of_instances.get(name) {
                users.add_unnamed(&mut slot.present);
            }
        }
        span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_counted_by_how_it_is_booked_over_a_restart_and_over_a_boot() {
        let at = |second: u64| Utc(second * 1_000_000_000);
        let second = Nanoseconds::from_seconds;
        let mut account = Account { watched: at(30), ..Account::begin(at(10)) };
        account.fill_gap(at(31), &Claims::default(), None);
        let gap = Gap { unobserved: second(20), ..Gap::default() };
        assert_eq!((account.take_gap(), account.take_gap()), (gap, Gap::default()));
        let mut account = Account { watched: at(30), rebooted: Some(at(25)), ..Account::begin(at(10)) };
        account.fill_gap(at(31), &Claims::default(), None);
        let gap = Gap { unavailable: second(15), unobserved: second(5), ..Gap::default() };
        assert_eq!(account.take_gap(), gap);
    }

    #[test]
    fn a_gap_over_a_boot_is_divided_once_it_is_known_when_the_boot_was() {
        let at = |second: u64| Utc(second * 1_000_000_000);
        let second = Nanoseconds::from_seconds;
        // The provisional axis goes on at the last commit, 10; the agent began to look 20 s after the boot.
        let mut account = Account { watched: at(30), rebooted: Some(Utc(0)), ..Account::begin(at(10)) };
        account.fill_gap(at(31), &Claims::default(), None);
        let anchor = Anchor { since: Some(at(10)), shift: 100_000_000_000, booted: at(110), offset: 0 };
        account.apply_anchor(&anchor);
        let gap = Gap { unavailable: second(100), unobserved: second(20), ..Gap::default() };
        assert_eq!(account.take_gap(), gap);
    }
}
