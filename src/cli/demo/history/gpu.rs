//! The past of one GPU: what it did in a quarter hour or minute, as spans that are settled as those of an agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::boards::{CONTEXT_WATTS, PastBoard};
use super::description::PastWorkload;
use super::random::{mixed, up_to};
use super::runs::PastRun;
use crate::holders::{Allocation, Granting, SessionGpu, holdings};
use crate::meter::attribution::settle;
use crate::model::catalogue::xid::{self, Xid};
use crate::model::{
    ActivitySource, Carry, HolderId, Holding, MINUTE, Method, Microjoules, Nanoseconds, Presence, Series,
    Settlement, SlotState, Span, StandingGrant, TickShares, Utc, WHOLE_SHARE,
};

/// A GPU while its past is settled.
pub(super) struct PastGpu {
    pub(super) session: SessionGpu,
    pub(super) board: &'static PastBoard,
    /// When the node had it.
    pub(super) from: Utc,
    pub(super) to: Utc,
    /// The runs on it that are not over, in order of time, as places in the node's list.
    runs: Vec<usize>,
    carry: Carry,
    weights: BTreeMap<HolderId, u64>,
    held: Option<PastHeld>,
}

/// What a GPU of a node needs to know of its node.
pub(super) struct NodeContext<'a> {
    pub(super) workloads: &'a [PastWorkload],
    pub(super) runs: &'a [PastRun],
    pub(super) standing: &'a [StandingGrant],
    pub(super) presence: bool,
    pub(super) outages: &'a [Outage],
}

/// A time in which a GPU was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) kind: OutageKind,
    /// Which GPU; none: all of the node.
    pub(super) gpu: Option<u32>,
    pub(super) from: Utc,
    pub(super) to: Utc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutageKind {
    /// No agent ran.
    Gap,
    /// The node was off.
    Off,
    /// The GPU's hardware had failed, as an XID reported.
    Failed { xid: u32 },
}

impl Outage {
    /// The XID that reported it.
    pub(super) const fn xid(&self) -> Option<u32> {
        match self.kind {
            OutageKind::Failed { xid } => Some(xid),
            OutageKind::Gap | OutageKind::Off => None,
        }
    }
}

/// What was constant on a GPU in a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MinuteState {
    outage: Option<Outage>,
    runs: Vec<ActiveRun>,
}

/// A run, and what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ActiveRun {
    run: usize,
    /// The GPU's place in the run's list.
    place: usize,
    activity: Option<usize>,
}

/// The holdings of a state, which many minutes share.
struct PastHeld {
    /// The run, and whether it had a process.
    runs: Vec<(usize, bool)>,
    holdings: Arc<[Holding]>,
    covered_by: BTreeMap<HolderId, HolderId>,
}

/// What a run did in a span.
struct PastUse {
    busy_permille: u64,
    /// In bytes; 0 without a process.
    memory: u64,
}

impl PastGpu {
    pub(super) fn new(
        session: SessionGpu,
        board: &'static PastBoard,
        [from, to]: [Utc; 2],
        runs: &[PastRun],
    ) -> Self {
        let own =
            runs.iter().enumerate().filter(|(_, run)| run.gpus.iter().any(|gpu| session.index == Some(*gpu)));
        let runs = own.map(|(place, _)| place).collect();
        let (carry, weights) = Default::default();
        Self { session, board, from, to, runs, carry, weights, held: None }
    }

    /// Settles the time up to the next whole minute or quarter hour.
    ///
    /// # Errors
    /// Spans that no account can hold: a defect.
    pub(super) fn settle(
        &mut self,
        node: &NodeContext<'_>,
        from: Utc,
        to: Utc,
    ) -> Result<Settlement, String> {
        self.runs.retain(|run| from < node.runs[*run].to);
        let mut spans = Vec::new();
        let mut begin = from;
        while begin < to {
            let state = self.state(node, begin);
            let mut end = next_minute(begin);
            while end < to && self.state(node, end) == state {
                end = next_minute(end);
            }
            let end = end.min(to);
            spans.push(self.span(node, &state, [begin, end], from));
            begin = end;
        }
        let settled = settle(from, to, &spans, &self.carry, &self.weights);
        let mut settlement = settled.map_err(|error| error.to_string())?;
        settlement.flags.extend(self.failure(node, from, to).map(|xid| {
            let Xid { text, action, .. } = xid::find(xid);
            format!("gpu: health failed ({}): XID {xid} ({text}) once", action.name())
        }));
        self.carry.clone_from(&settlement.carry);
        self.weights.clone_from(&settlement.weights);
        Ok(settlement)
    }

    /// The XID of a failure within a time.
    fn failure(&self, node: &NodeContext<'_>, from: Utc, to: Utc) -> Option<u32> {
        let own = node.outages.iter().filter(|outage| outage.gpu == self.session.index);
        own.filter(|outage| outage.from < to && from < outage.to).find_map(Outage::xid)
    }

    fn state(&self, node: &NodeContext<'_>, at: Utc) -> MinuteState {
        let outage = node.outages.iter().copied().find(|outage| {
            outage.from <= at && at < outage.to && (outage.gpu.is_none() || outage.gpu == self.session.index)
        });
        if outage.is_some_and(|outage| outage.kind == OutageKind::Off) {
            return MinuteState { outage, runs: Vec::new() };
        }
        let mut runs = Vec::new();
        for run in &self.runs {
            let of = &node.runs[*run];
            if at < of.from {
                break;
            }
            // Over a gap, only who held before and after it is known to have held.
            let is_known = outage.is_none_or(|Outage { kind, from, to, .. }| {
                kind != OutageKind::Gap || (of.from < from && to < of.to)
            });
            if of.is_at(at) && is_known {
                let place = of.gpus.iter().position(|gpu| self.session.index == Some(*gpu)).unwrap_or(0);
                let activity = |at| of.activity(&node.workloads[of.workload], place, at);
                let activity = match outage {
                    None => activity(at),
                    // What went on before an agent's gap is taken to go on.
                    Some(Outage { kind: OutageKind::Gap, from, .. }) => activity(from),
                    Some(_) => None,
                };
                runs.push(ActiveRun { run: *run, place, activity });
            }
        }
        MinuteState { outage, runs }
    }

    /// The span of a state; random numbers are those of the minute or quarter hour that begins at `cell`.
    fn span(&mut self, node: &NodeContext<'_>, state: &MinuteState, [from, to]: [Utc; 2], cell: Utc) -> Span {
        let kind = state.outage.map(|outage| outage.kind);
        let slot = match kind {
            None => SlotState::Measured,
            Some(OutageKind::Gap) => SlotState::Unobserved,
            Some(OutageKind::Off | OutageKind::Failed { .. }) => SlotState::Unavailable,
        };
        let mut span = Span::empty(from, to, slot);
        if kind == Some(OutageKind::Gap) {
            span.method = Method::Bridged;
        }
        let length = span.length();
        let uses: Vec<PastUse> = state.runs.iter().map(|active| past_use(node, *active, cell)).collect();
        // Without a look at the GPU, its processes are not known.
        let is_present = |used: &PastUse| kind.is_none() && used.memory > 0;
        let is_failed = slot == SlotState::Unavailable;
        self.hold(node, state, uses.iter().map(|used| used.memory > 0 && !is_failed).collect(), &mut span);
        let mut busy_permille = 0;
        for (active, used) in state.runs.iter().zip(&uses).filter(|(_, used)| is_present(used)) {
            busy_permille += used.busy_permille;
            let weight = used.busy_permille * (length.0 / 10_000);
            let presence = span.present.entry(node.runs[active.run].user.id.clone()).or_default();
            let Presence { weight: known, memory } = presence;
            *known = Some(known.unwrap_or(0) + weight);
            *memory = Some(memory.unwrap_or(0) + used.memory);
        }
        if kind.is_none() {
            span.source = if self.board.gpm { ActivitySource::Gpm } else { ActivitySource::Samples };
            span.busy = share(length.0, busy_permille.min(1_000));
            if self.board.gpm {
                span.shares = shares(node, &state.runs, &uses);
            }
        }
        if matches!(kind, None | Some(OutageKind::Gap)) {
            self.draw(&mut span, busy_permille.min(1_000));
        }
        span
    }

    /// Adds the energy of a span: that of the idle board, of its contexts and of its use.
    fn draw(&self, span: &mut Span, busy_permille: u64) {
        let PastBoard { idle_watts, full_watts, .. } = *self.board;
        let context = if span.present.is_empty() { 0 } else { CONTEXT_WATTS };
        let dynamic = full_watts.saturating_sub(idle_watts + context) * busy_permille / 1_000;
        // Watts x nanoseconds are nanojoules.
        let energy = |watts: u64| Microjoules(watts * (span.length().0 / 1_000));
        (span.energy, span.idle_energy) = (Some(energy(idle_watts + context + dynamic)), energy(idle_watts));
    }

    /// Sets the holdings of a span by the rules of an agent; `present` tells which runs have a process.
    fn hold(&mut self, node: &NodeContext<'_>, state: &MinuteState, present: Vec<bool>, span: &mut Span) {
        let runs: Vec<(usize, bool)> = state.runs.iter().map(|active| active.run).zip(present).collect();
        if state.outage.is_some_and(|outage| outage.kind == OutageKind::Off) {
            return;
        }
        if self.held.as_ref().is_none_or(|held| held.runs != runs) {
            let allocations: Vec<Allocation> = runs
                .iter()
                .filter_map(|(run, _)| {
                    let run = &node.runs[*run];
                    let (fraction, source) = run.grant?;
                    Some(Allocation::new(&run.holder, &*self.session.uuid, fraction, source))
                })
                .collect();
            let granting =
                Granting { allocations: &allocations, standing: node.standing, presence: node.presence };
            let users = runs.iter().filter(|(_, present)| *present).map(|(run, _)| &*node.runs[*run].user);
            let (holdings, covered_by) = holdings(&self.session, granting, users);
            self.held = Some(PastHeld { runs, holdings: holdings.into(), covered_by });
        }
        if let Some(held) = &self.held {
            span.holdings = Arc::clone(&held.holdings);
            span.covered_by.clone_from(&held.covered_by);
        }
    }
}

fn next_minute(at: Utc) -> Utc {
    at.floor(MINUTE).plus(MINUTE)
}

fn past_use(node: &NodeContext<'_>, ActiveRun { run, place, activity }: ActiveRun, cell: Utc) -> PastUse {
    let run = &node.runs[run];
    let workload = &node.workloads[run.workload];
    let activity = activity.map(|place| &workload.activity[place]);
    let random = |which, jitter| {
        let number = mixed(&[run.salt, place as u64, cell.0]);
        up_to(2 * jitter, &[number, which])
    };
    let (busy, jitter) = activity.map_or((0, 0), |activity| (activity.busy * 10, activity.jitter * 10));
    let busy_permille = (busy + random(0, jitter)).saturating_sub(jitter).min(1_000);
    let gib = activity.and_then(|activity| activity.memory_gib).unwrap_or(workload.memory_gib);
    let jitter = if busy_permille > 0 { workload.memory_jitter * 10 } else { 0 };
    // At most what is given: the board has no more.
    let permille = 1_000_u64.saturating_sub(random(1, jitter) / 2);
    PastUse { busy_permille, memory: ((gib << 20) * permille / 1_000) << 10 }
}

/// What GPM would report beside busy time: the shares of those who were busy together.
fn shares(node: &NodeContext<'_>, runs: &[ActiveRun], uses: &[PastUse]) -> TickShares {
    let share = |percent: fn(&PastWorkload) -> u64| {
        let of_run = |(active, used): (&ActiveRun, &PastUse)| {
            // Thousandths x percent are hundred-thousandths.
            used.busy_permille * percent(&node.workloads[node.runs[active.run].workload]) / 10
        };
        let sum: u64 = runs.iter().zip(uses).map(of_run).sum();
        Some(u16::try_from(sum).unwrap_or(WHOLE_SHARE).min(WHOLE_SHARE))
    };
    TickShares(Series::ALL.map(|series| match series {
        // It is that of the span.
        Series::Busy => None,
        Series::Sm => share(|workload| workload.sm),
        Series::Tensor => share(|workload| workload.tensor),
        Series::Fp64 => share(|workload| workload.fp64),
        Series::Dram => share(|workload| workload.dram),
    }))
}

/// `permille` thousandths of a time.
fn share(time: u64, permille: u64) -> u64 {
    Nanoseconds(time / 1_000 * permille).0
}
