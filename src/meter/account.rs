//! The account of one GPU in time: a contiguous sequence of spans, of which the settled ones are gone and
//! the open ones wait for their window to close.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Policy;
use super::idle::IdlePower;
use super::integrate::{activity, add, present, share};
use crate::attribution::{settle, split, window_end};
use crate::catalogue::{PointId, first_point};
use crate::holders::{Identities, holdings};
use crate::ledger::RecoveredGpu;
use crate::model::{
    ActivitySource, Carry, Frame, GpuId, Holder, HolderId, Holding, Method, Microjoules, Nanoseconds,
    Presence, Settlement, SlotState, Span, Utc,
};

/// How long after its end a window may still learn who was there.
const CLOSING_DELAY: Nanoseconds = Nanoseconds::from_seconds(10);

/// The most windows that one pulse settles for one GPU: an hour, so that a long gap delays no tick.
const WINDOWS_PER_PULSE: usize = 240;

const ENERGY: PointId = first_point("gpu_energy_joules_total");

/// One GPU's account.
pub(super) struct Account {
    /// End of the last span.
    cursor: Utc,
    /// End of the last settled window.
    settled: Utc,
    open: VecDeque<OpenSpan>,
    carry: Carry,
    weights: BTreeMap<HolderId, u64>,
    energy: Option<Energy>,
    idle: IdlePower,
    /// The plan generation of the last frame, while nothing came between.
    generation: Option<u32>,
    /// Who held when the agent stopped.
    before: Arc<[Holding]>,
    /// When this agent began to look.
    watched: Utc,
    /// Who holds, as of the last frame.
    holdings: Arc<[Holding]>,
    covered_by: BTreeMap<HolderId, HolderId>,
    lost: bool,
}

/// A span that is not settled, with the processes that nobody has named yet.
struct OpenSpan {
    span: Span,
    /// The holders that are present, with their facts.
    who: BTreeMap<HolderId, Arc<Holder>>,
    unnamed: BTreeMap<u32, Presence>,
    sent: bool,
}

/// The driver's counter when it was last read.
#[derive(Clone, Copy)]
struct Energy {
    counter: Microjoules,
    at: Utc,
}

/// The windows that a pulse settled.
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
            generation: None,
            before: Arc::default(),
            watched: at,
            holdings: Arc::default(),
            covered_by: BTreeMap::new(),
            lost: false,
        }
    }

    /// An account that goes on after a gap of the agent.
    pub(super) fn recover(known: RecoveredGpu, watched: Utc) -> Self {
        let cursor = known.spans.last().map_or(known.settled_until, |span| span.to);
        let open = known.spans.into_iter().map(|span| OpenSpan { sent: true, ..OpenSpan::of(span) });
        Self {
            cursor,
            settled: known.settled_until,
            open: open.collect(),
            carry: known.carry,
            weights: known.weights,
            energy: known.energy_counter.map(|counter| Energy { counter, at: cursor }),
            before: known.holdings,
            watched,
            ..Self::begin(cursor)
        }
    }

    /// The driver says that the GPU is gone: until a frame comes its time is unavailable.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.generation = None;
    }

    /// The driver counts the GPU again.
    pub(super) fn find(&mut self) {
        self.lost = false;
    }

    /// Adds the time up to a frame.
    pub(super) fn advance(&mut self, at: Utc, frame: &Frame, identities: &Identities, policy: &Policy) {
        let present = present(frame, identities);
        if frame.identity.mig {
            // Its slots are instances; a share of the whole GPU is a share of nothing.
            self.holdings = Arc::default();
            self.covered_by.clear();
        } else {
            self.hold(&frame.gpu, &present.who, policy);
        }
        let continues = self.generation == Some(frame.generation);
        self.generation = Some(frame.generation);
        if !continues {
            // What the first frame of a plan says covers nothing: it only begins.
            self.fill(at);
        }
        self.lost = false;
        let (energy, idle_energy) = self.energy(at, frame);
        if at <= self.cursor {
            return;
        }
        let length = at.since(self.cursor);
        let known = activity(frame);
        let state = match known {
            _ if frame.identity.mig => SlotState::Unobserved,
            Some(_) => SlotState::Measured,
            None => SlotState::Unmeasured,
        };
        let span = Span {
            state,
            source: known.map_or(ActivitySource::None, |(source, _)| source),
            busy: known.map_or(0, |(_, ratio)| share(ratio, length)),
            present: present.holders,
            blind: frame.processes.as_ref().is_err_and(|absence| absence.is_permanent()),
            energy,
            idle_energy,
            ..self.blank(at)
        };
        self.cursor = at;
        self.open.push_back(OpenSpan { span, who: present.who, unnamed: present.unnamed, sent: false });
    }

    fn hold(&mut self, gpu: &GpuId, who: &BTreeMap<HolderId, Arc<Holder>>, policy: &Policy) {
        let (holdings, covered_by) =
            holdings(gpu, &policy.standing, policy.presence, who.values().map(|holder| &**holder));
        if *self.holdings != *holdings {
            self.holdings = holdings.into();
        }
        self.covered_by = covered_by;
    }

    /// A span from the cursor of which nothing but the holdings is known.
    fn blank(&self, to: Utc) -> Span {
        Span {
            from: self.cursor,
            to,
            state: SlotState::Unmeasured,
            source: ActivitySource::None,
            method: Method::Observed,
            holdings: Arc::clone(&self.holdings),
            covered_by: self.covered_by.clone(),
            busy: 0,
            present: BTreeMap::new(),
            blind: false,
            energy: None,
            idle_energy: Microjoules(0),
        }
    }

    /// Closes the time up to `to` in which no frame came: before the agent looked, what is known is who
    /// held on both sides; since, that the GPU did not answer or was lost.
    fn fill(&mut self, to: Utc) {
        if self.cursor < self.watched {
            let end = to.min(self.watched);
            let bridged: Vec<Holding> =
                self.holdings.iter().filter(|holding| self.before.contains(holding)).cloned().collect();
            let span = Span {
                state: SlotState::Unobserved,
                method: Method::Bridged,
                holdings: bridged.into(),
                ..self.blank(end)
            };
            self.push(span);
        }
        if self.cursor < to {
            let state = if self.lost { SlotState::Unavailable } else { SlotState::Unmeasured };
            self.push(Span { state, ..self.blank(to) });
        }
    }

    fn push(&mut self, span: Span) {
        if span.from < span.to {
            self.cursor = span.to;
            self.open.push_back(OpenSpan::of(span));
        }
    }

    /// The driver counter's difference since it was last read, however long ago; a counter that went back
    /// is a new driver epoch, whose first reading only begins.
    fn energy(&mut self, at: Utc, frame: &Frame) -> (Option<Microjoules>, Microjoules) {
        let Some(Ok(counter)) = frame.readings.get(ENERGY) else { return (None, Microjoules(0)) };
        let counter = Microjoules(u64::try_from(*counter).unwrap_or(0));
        let before = self.energy;
        if at > self.cursor || before.is_none() {
            self.energy = Some(Energy { counter, at });
        }
        let Some(before) = before.filter(|before| before.counter <= counter && before.at < at) else {
            return (None, Microjoules(0));
        };
        let delta = counter - before.counter;
        let empty = frame.processes.as_ref().is_ok_and(|list| list.is_empty());
        let idle = self.idle.energy(&frame.identity.model, delta, at.since(before.at), empty);
        (Some(delta), idle)
    }

    /// Names processes that were unknown when their span was made.
    pub(super) fn identify(&mut self, identities: &Identities, gpu: &GpuId, policy: &Policy) {
        for open in &mut self.open {
            let named: Vec<(u32, Arc<Holder>)> = open
                .unnamed
                .keys()
                .filter_map(|pid| Some((*pid, Arc::clone(&identities.get(*pid)?.holder))))
                .collect();
            if named.is_empty() {
                continue;
            }
            for (pid, holder) in named {
                if let Some(presence) = open.unnamed.remove(&pid) {
                    add(open.span.present.entry(holder.id.clone()).or_default(), &presence);
                    open.who.entry(holder.id.clone()).or_insert(holder);
                }
            }
            let who = open.who.values().map(|holder| &**holder);
            let (held, covered_by) = holdings(gpu, &policy.standing, policy.presence, who);
            open.span.holdings = held.into();
            open.span.covered_by = covered_by;
            open.sent = false;
        }
    }

    /// Settles the windows whose closing delay is over.
    pub(super) fn settle(&mut self, now: Utc, gpu: &GpuId, policy: &Policy) -> ClosedWindows {
        let mut closed = ClosedWindows::default();
        for _ in 0..WINDOWS_PER_PULSE {
            let end = window_end(self.settled);
            if now < end.plus(CLOSING_DELAY) {
                break;
            }
            if self.cursor < end {
                if self.generation.is_none() && self.holdings.is_empty() {
                    self.hold(gpu, &BTreeMap::new(), policy);
                }
                // A frame that comes later can only speak of the time that is still open.
                self.fill(end);
            }
            let spans = self.take_until(end);
            match settle(self.settled, end, &spans, &self.carry, &self.weights) {
                Ok(settlement) => closed.windows.push(self.keep(settlement)),
                Err(_) => {
                    closed.failed += 1;
                    let window = Span { from: self.settled, to: end, ..self.blank(end) };
                    if let Ok(settlement) = settle(self.settled, end, &[window], &self.carry, &self.weights) {
                        closed.windows.push(self.keep(settlement));
                    }
                }
            }
        }
        closed
    }

    fn keep(&mut self, settlement: Settlement) -> Settlement {
        self.settled = settlement.to;
        self.carry.clone_from(&settlement.carry);
        self.weights.clone_from(&settlement.weights);
        settlement
    }

    /// The spans up to the end of a window; one that straddles it is cut, its rest stays.
    fn take_until(&mut self, end: Utc) -> Vec<Span> {
        let mut spans = Vec::new();
        while let Some(open) = self.open.pop_front() {
            let span = open.named();
            if span.to <= end {
                spans.push(span);
                continue;
            }
            let rest = if span.from < end {
                let (first, rest) = split(&span, end);
                spans.push(first);
                OpenSpan::of(rest)
            } else {
                open
            };
            self.open.push_front(rest);
            break;
        }
        spans
    }

    /// The spans that the ledger has not been given, and the driver's energy counter at their end.
    pub(super) fn unsent(&mut self) -> (Vec<Span>, Option<Microjoules>) {
        let counter = self.energy.map(|energy| energy.counter);
        let unsent = self.open.iter_mut().filter(|open| !open.sent).map(|open| {
            open.sent = true;
            open.named()
        });
        (unsent.collect(), counter)
    }

    /// Who holds what at the moment.
    pub(super) fn holdings(&self) -> &Arc<[Holding]> {
        &self.holdings
    }

    /// By which meter activity was last known.
    pub(super) fn source(&self) -> Option<ActivitySource> {
        self.open.back().map(|open| open.span.source).filter(|source| *source != ActivitySource::None)
    }
}

impl OpenSpan {
    /// A span in which nobody is left to be named.
    fn of(span: Span) -> Self {
        Self { span, who: BTreeMap::new(), unnamed: BTreeMap::new(), sent: false }
    }

    /// The span with its unnamed processes under `__unattributed__`.
    fn named(&self) -> Span {
        let mut span = self.span.clone();
        for presence in self.unnamed.values() {
            let entry = span.present.entry(HolderId::new(HolderId::UNATTRIBUTED)).or_default();
            add(entry, presence);
        }
        span
    }
}
