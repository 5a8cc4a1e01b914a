//! The account of one GPU over time: a contiguous sequence of spans, of which the open ones wait until their window is
//! settled.

mod energy;
mod open_span;
mod slots;
mod windows;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Policy;
use super::identify::{PresentBySlot, PresentHolders, is_list_missing};
use super::integrate::{activity, instance_activity, instance_shares, share, tick_shares};
use crate::accounting::batches::{Boot, RecoveredGpu};
use crate::holders::{GrantedSlot, Identities, SessionGpu, holdings};
use crate::model::{
    ActivitySource, Carry, Frame, HolderId, HoldingSource, Method, Microjoules, MigSpan, Nanoseconds,
    SlotState, Span, Utc,
};
use energy::{EnergyDelta, EnergyMeter};
use open_span::{OpenSpan, SpanGrants};
use slots::{Division, Slots};

pub(super) use energy::{ENERGY, idle_power_of};

pub(super) struct Account {
    /// End of the last span.
    cursor: Utc,
    /// End of the last settled window.
    pub(super) settled: Utc,
    open: VecDeque<OpenSpan>,
    carry: Carry,
    weights: BTreeMap<HolderId, u64>,
    energy: EnergyMeter,
    /// The last frame; none if no activity or counter difference may be measured from it to the next frame.
    last: Option<LastFrame>,
    /// The processes of the forgotten last frame; used only while `last` is none.
    last_present: PresentBySlot,
    /// When this agent began to watch the GPU.
    watched: Utc,
    /// Account time of the boot, until the first frame after it; a gap with a boot in it is not bridged.
    rebooted: Option<Utc>,
    pub(super) slots: Slots,
    layout_changes: u64,
    lost: bool,
    /// Whether the hardware has failed; the GPU's time is then unavailable even if it responds.
    pub(super) failed: bool,
    gap: Gap,
}

/// GPU time without a running agent that is not logged yet, by how it was booked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gap {
    /// To those who held before and after it.
    pub(super) bridged: Nanoseconds,
    /// To `__unobserved__`.
    pub(super) unobserved: Nanoseconds,
    /// To `__unavailable__`: the node was off.
    pub(super) unavailable: Nanoseconds,
}

struct LastFrame {
    generation: u32,
    /// The processes of the last list that did not fail, without weights.
    present: PresentBySlot,
    /// Since when all frames are known to show no process.
    empty_since: Option<Utc>,
}

/// A frame of a GPU, with its account time.
#[derive(Clone, Copy)]
pub(super) struct TimedFrame<'a> {
    pub(super) gpu: &'a SessionGpu,
    pub(super) at: Utc,
    pub(super) frame: &'a Frame,
}

impl Account {
    pub(super) fn begin(at: Utc) -> Self {
        Self {
            cursor: at,
            settled: at,
            open: VecDeque::new(),
            carry: Carry::new(),
            weights: BTreeMap::new(),
            energy: EnergyMeter::default(),
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

    pub(super) fn recover(known: RecoveredGpu, watched: Utc, boot: Boot) -> Self {
        let cursor = known.spans.last().map_or(known.settled_until, |span| span.to);
        let rebooted = (cursor <= boot.first_seen).then_some(boot.booted);
        let slots = match rebooted {
            Some(_) => Slots::default(),
            None => Slots::recover(known.spans.last(), known.holdings),
        };
        let open = known.spans.into_iter().map(|span| OpenSpan::new(span, true));
        Self {
            settled: known.settled_until,
            open: open.collect(),
            carry: known.carry,
            weights: known.weights,
            energy: EnergyMeter::recover(known.energy_counter, cursor),
            slots,
            watched,
            rebooted,
            ..Self::begin(cursor)
        }
    }

    /// Forgets who held before the agent began to watch, so that no time is bridged.
    pub(super) fn bridge_nothing(&mut self) {
        self.slots.retain(|_, _| false);
    }

    /// The GPU is lost: its time is unavailable until its next frame.
    pub(super) fn mark_lost(&mut self) {
        self.lost = true;
        self.forget_last_frame();
    }

    fn forget_last_frame(&mut self) {
        if let Some(last) = self.last.take() {
            self.last_present = last.present;
        }
    }

    /// The driver lists the GPU again, with another sampler, so nothing is measured up to its next frame. If the GPU was
    /// lost, it was unavailable until now.
    pub(super) fn mark_found(&mut self, at: Utc) {
        self.forget_last_frame();
        if self.lost && self.cursor < at {
            let held = self.slots.clone();
            self.fill_gap(at, &held, None);
        }
        self.lost = false;
    }

    /// Applies another index of the GPU to its standing grants: until its next frame only those hold it who also hold it
    /// by the new index.
    pub(super) fn select_gpu(&mut self, gpu: &SessionGpu, policy: &Policy) {
        let granted = |slot: GrantedSlot<'_>| holdings(slot, policy.granting(), []).0;
        self.slots.retain(|slot, held| {
            let instance = |(id, slot)| GrantedSlot::Instance { gpu, id, slot };
            let slot = slot.map_or(GrantedSlot::Whole(gpu), instance);
            held.source != HoldingSource::Standing || granted(slot).contains(held)
        });
    }

    pub(super) fn restart_energy(&mut self) {
        self.energy.restart();
    }

    /// Steps 1 and 2 of a tick for this GPU: identifies the processes of a frame and adds a span up to it. Returns its
    /// busy time in nanoseconds.
    pub(super) fn add_frame(
        &mut self,
        timed: TimedFrame<'_>,
        identities: &Identities,
        policy: &Arc<Policy>,
    ) -> u64 {
        let TimedFrame { gpu, at, frame } = timed;
        let was_divided = self.slots.division.layout().is_some();
        let continues =
            |last: &LastFrame| last.generation == frame.generation && was_divided == frame.identity.mig;
        let last = self.last.take().filter(continues);
        let before = self.slots.clone();
        if last.is_none() {
            // The division is constant under one plan.
            self.slots.divide(Division::of_frame(frame));
        }
        let layout = self.slots.division.layout().map(|layout| &**layout);
        let last_present = last.as_ref().map(|last| &last.present);
        let present = PresentBySlot::identify(frame, identities, layout, last_present);
        self.slots.update_holdings(gpu, &present, policy);
        let empty_since = last.as_ref().and_then(|last| last.empty_since);
        let energy = self.energy.read(timed, self.cursor, empty_since, policy.intervals[0]);
        if self.rebooted.is_some() {
            // Before the first frame of a boot neither holdings nor activity are known.
            self.watched = at;
        }
        let mut busy = 0;
        // The activity in the first frame of a plan is not of the time before it. Use of failed hardware is not charged.
        match &last {
            Some(_) if !self.failed => busy = self.add_measured_span(timed, &present, energy, policy),
            Some(_) => {
                let held = self.slots.clone();
                self.fill_gap(at, &held, energy);
            }
            None if self.slots.division.differs_from(&before.division) => {
                self.fill_division_change(gpu, at, &before, energy);
            }
            None => {
                let both = self.slots.intersect(&before);
                self.fill_gap(at, &both, energy);
            }
        }
        self.lost = false;
        let present = if is_list_missing(frame) {
            // Processes that only samples show are not present in later frames.
            last.map(|last| last.present).unwrap_or_default()
        } else {
            present.without_weights()
        };
        let empty_since = frame.known_empty.then(|| empty_since.unwrap_or(at));
        self.last = Some(LastFrame { generation: frame.generation, present, empty_since });
        busy
    }

    /// Adds a span with the activity of a frame; returns its busy time in nanoseconds.
    fn add_measured_span(
        &mut self,
        TimedFrame { gpu, at, frame }: TimedFrame<'_>,
        present: &PresentBySlot,
        energy: Option<EnergyDelta>,
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
            shares: tick_shares(frame),
            present: present.whole.by_holder(),
            blind: hides_processes(frame),
            energy: energy.map(|energy| energy.total),
            idle_energy: energy.map_or(Microjoules(0), |energy| energy.idle),
            instances,
            ..self.blank(at)
        };
        self.cursor = at;
        let grants = SpanGrants { gpu: gpu.clone(), policy: Arc::clone(policy) };
        self.open.push_back(OpenSpan::of_frame(span, present, grants));
        busy
    }

    /// The spans of a frame's MIG instances; none on a GPU without MIG.
    fn instances(&self, frame: &Frame, present: &PresentBySlot, length: Nanoseconds) -> Option<Box<MigSpan>> {
        let mut mig = self.slots.unknown_span(&self.slots, SlotState::Unmeasured)?;
        for (name, slot) in &mut mig.slots {
            slot.present = present.instances.get(name).map(PresentHolders::by_holder).unwrap_or_default();
            slot.blind = hides_processes(frame);
            if let Some(ratio) = instance_activity(frame, name) {
                slot.state = SlotState::Measured;
                slot.source = ActivitySource::Gpm;
                slot.busy = share(ratio, length);
                slot.shares = instance_shares(frame, name);
            }
        }
        Some(mig)
    }

    /// A span from the cursor with nothing but the holdings.
    fn blank(&self, to: Utc) -> Span {
        Span {
            holdings: Arc::clone(&self.slots.whole.holdings),
            covered_by: self.slots.whole.covered_by.clone(),
            ..Span::empty(self.cursor, to, SlotState::Unmeasured)
        }
    }

    /// Adds spans up to `to`, for a time without frames; `both` are the holdings that existed before and after it. Time
    /// before the agent watched is unobserved, or unavailable if the node was off; later time is unmeasured, or unavailable
    /// if the GPU was lost.
    fn fill_gap(&mut self, to: Utc, both: &Slots, mut energy: Option<EnergyDelta>) {
        let whole = to.since(self.cursor);
        let end = to.min(self.watched);
        if let Some(booted) = self.rebooted {
            let none = Slots::default();
            if self.cursor < booted {
                let end = to.min(booted);
                self.gap.unavailable += end.since(self.cursor);
                self.add_span(end, &none, SlotState::Unavailable, None);
            }
            if self.cursor < end {
                self.gap.unobserved += end.since(self.cursor);
                self.add_span(end, &none, SlotState::Unobserved, None);
            }
            self.rebooted = (self.cursor < self.watched).then_some(booted);
        } else if self.cursor < self.watched {
            let length = end.since(self.cursor);
            let held = both.held_time(length);
            self.gap.bridged += held;
            self.gap.unobserved += length - held;
            let first = energy.as_mut().map(|energy| energy.split_off(length, whole));
            self.add_span(end, both, SlotState::Unobserved, first);
            if let Some(open) = self.open.back_mut() {
                open.span.method = Method::Bridged;
            }
        }
        if self.cursor < to {
            let state = if self.lost || self.failed { SlotState::Unavailable } else { SlotState::Unmeasured };
            self.add_span(to, both, state, energy);
        }
    }

    /// Adds spans up to `to`, when a frame shows another MIG mode or layout than before. Which slots existed meanwhile is
    /// unknown, so that time is unavailable.
    fn fill_division_change(
        &mut self,
        gpu: &SessionGpu,
        to: Utc,
        before: &Slots,
        energy: Option<EnergyDelta>,
    ) {
        self.layout_changes += 1;
        tracing::info!(
            gpu = gpu.index,
            uuid = &*gpu.uuid,
            before = %before.division,
            now = %self.slots.division,
            unavailable_ms = to.since(self.cursor).0 / 1_000_000,
            "the MIG layout of the GPU has changed"
        );
        let lost = std::mem::replace(&mut self.lost, true);
        self.fill_gap(to, &Slots::default(), energy);
        self.lost = lost;
    }

    fn add_span(&mut self, to: Utc, held: &Slots, state: SlotState, energy: Option<EnergyDelta>) {
        let span = Span {
            state,
            holdings: Arc::clone(&held.whole.holdings),
            instances: self.slots.unknown_span(held, state),
            energy: energy.map(|energy| energy.total),
            idle_energy: energy.map_or(Microjoules(0), |energy| energy.idle),
            ..self.blank(to)
        };
        self.cursor = to;
        self.open.push_back(OpenSpan::new(span, false));
    }

    pub(super) fn take_gap(&mut self) -> Gap {
        std::mem::take(&mut self.gap)
    }

    /// How often its MIG layout has changed since the agent's start; none on a GPU that never was in MIG mode.
    pub(super) fn layout_changes(&self) -> Option<u64> {
        let is_divided = self.slots.division.layout().is_some();
        (is_divided || self.layout_changes > 0).then_some(self.layout_changes)
    }

    pub(super) fn source(&self) -> Option<ActivitySource> {
        self.open.back().map(|open| open.span.source).filter(|source| *source != ActivitySource::None)
    }
}

/// Whether processes cannot be seen by construction.
fn hides_processes(frame: &Frame) -> bool {
    frame.processes.as_ref().is_err_and(|absence| absence.is_permanent())
}

/// Whether a meter's value applies to the whole span. The window of NVML utilization is shorter than a second, so it does
/// not apply over missed ticks; the driver's sample ring does as far as it reaches back.
fn covers(source: ActivitySource, length: Nanoseconds, frame: &Frame, policy: &Policy) -> bool {
    let reach = frame.sampled.map_or(0, |sampled| sampled.covered.0);
    match source {
        ActivitySource::Gpm => true,
        ActivitySource::Samples if reach >= length.0 / 2 => true,
        _ => length.0 <= 2 * policy.intervals[0].0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_booked_as_unobserved_after_a_restart_and_as_unavailable_until_a_boot() {
        let at = |second: u64| Utc(second * 1_000_000_000);
        let second = Nanoseconds::from_seconds;
        let mut account = Account { watched: at(30), ..Account::begin(at(10)) };
        account.fill_gap(at(31), &Slots::default(), None);
        let gap = Gap { unobserved: second(20), ..Gap::default() };
        assert_eq!((account.take_gap(), account.take_gap()), (gap, Gap::default()));
        let mut account = Account { watched: at(30), rebooted: Some(at(25)), ..Account::begin(at(10)) };
        account.fill_gap(at(31), &Slots::default(), None);
        let gap = Gap { unavailable: second(15), unobserved: second(5), ..Gap::default() };
        assert_eq!(account.take_gap(), gap);
    }
}
