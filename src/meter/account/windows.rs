//! Step 3 of a tick: settles the windows of an account that are over, and finds the spans that the ledger lacks.

use std::sync::Arc;

use super::Account;
use crate::accounting::batches::OpenSpans;
use crate::holders::{Allocation, Identities, SessionGpu};
use crate::meter::Policy;
use crate::meter::attribution::{settle, split, window_end};
use crate::meter::identify::PresentBySlot;
use crate::model::{Microjoules, Nanoseconds, Settlement, SlotState, Span, Utc};

/// How long after its end a window stays open at least, so that its processes can still be identified.
const CLOSING_DELAY: Nanoseconds = Nanoseconds::from_seconds(10);

/// The most windows that a tick settles for a GPU, one hour's, so that a long gap delays no tick.
const WINDOWS_PER_TICK: usize = 240;

#[derive(Default)]
pub(in crate::meter) struct ClosedWindows {
    pub(in crate::meter) settlements: Vec<Settlement>,
    /// Windows whose spans did not fit together, and which were settled as unobserved: a defect.
    pub(in crate::meter) failed: u64,
}

impl Account {
    pub(in crate::meter) fn identify(&mut self, identities: &Identities, policy: &Policy) {
        self.open.iter_mut().for_each(|open| open.identify(identities, policy));
    }

    /// Applies grants whose begin or end was unknown so far to the open spans.
    pub(in crate::meter) fn apply_late_grants(&mut self, late: &[Allocation]) {
        self.open.iter_mut().for_each(|open| open.apply_late_grants(late));
    }

    /// Settles the windows whose closing delay is over, up to `last`, where the account ends.
    pub(in crate::meter) fn settle(
        &mut self,
        now: Utc,
        last: Option<Utc>,
        gpu: &SessionGpu,
        policy: &Arc<Policy>,
    ) -> ClosedWindows {
        let mut closed = ClosedWindows::default();
        let delay = CLOSING_DELAY.max(Nanoseconds(2 * policy.intervals[0].0));
        if self.last.is_none() && now < self.watched.plus(delay) {
            // Who holds after the gap is known from the first frame.
            return closed;
        }
        for _ in 0..WINDOWS_PER_TICK {
            let end = last.map_or(window_end(self.settled), |last| window_end(self.settled).min(last));
            if end <= self.settled || now < end.plus(delay) {
                break;
            }
            if self.cursor < end {
                // Frames that come later start after this window.
                self.fill_silence(end, gpu, policy);
            }
            let spans = self.take_spans(end);
            let settled = settle(self.settled, end, &spans, &self.carry, &self.weights).or_else(|_| {
                closed.failed += 1;
                settle(self.settled, end, &[self.unobserved(end, &spans)], &self.carry, &self.weights)
            });
            let Ok(settlement) = settled else { break };
            self.settled = settlement.to;
            self.carry.clone_from(&settlement.carry);
            self.weights.clone_from(&settlement.weights);
            closed.settlements.push(settlement);
        }
        closed
    }

    /// Fills the end of a window without a frame. Holdings before it continue, and those by presence of an earlier run
    /// of the agent end. Afterwards the current grants apply, so a grant that a reload removed ends within the closing
    /// delay even without a frame.
    fn fill_silence(&mut self, end: Utc, gpu: &SessionGpu, policy: &Arc<Policy>) {
        let before = self.slots.clone();
        if self.cursor < self.watched {
            self.slots.update_holdings(gpu, &PresentBySlot::default(), policy);
            let both = self.slots.intersect(&before);
            self.fill_gap(end, &both, None);
            if self.cursor < self.watched {
                // The next part of the gap is bridged from the same holdings.
                self.slots = before;
            }
        } else {
            self.fill_gap(end, &before, None);
            let present = self.last.as_ref().map_or(&self.last_present, |last| &last.present);
            self.slots.update_holdings(gpu, present, policy);
        }
    }

    /// A span over the whole window, of which only the energy is known.
    fn unobserved(&self, end: Utc, spans: &[Span]) -> Span {
        let energy = spans.iter().filter_map(|span| span.energy);
        let energy = energy.fold(0, |sum: u64, energy| sum.saturating_add(energy.0));
        Span { energy: Some(Microjoules(energy)), ..Span::empty(self.settled, end, SlotState::Unobserved) }
    }

    /// Removes the open spans up to the end of a window; of one that straddles it the second part stays.
    fn take_spans(&mut self, end: Utc) -> Vec<Span> {
        let mut spans = Vec::new();
        while let Some(mut open) = self.open.pop_front() {
            if open.span.to <= end {
                spans.push(open.with_unidentified(open.span.clone()));
                continue;
            }
            if open.span.from < end {
                let (first, second) = split(&open.span, end);
                spans.push(open.with_unidentified(first));
                (open.span, open.sent) = (second, false);
            }
            self.open.push_front(open);
            break;
        }
        spans
    }

    /// The spans that the ledger lacks, with the driver's energy counter at their end; none if there is neither.
    pub(in crate::meter) fn take_unsent(&mut self, gpu: &Arc<str>) -> Option<OpenSpans> {
        let unsent = self.open.iter_mut().filter(|open| !open.sent).map(|open| {
            open.sent = true;
            open.with_unidentified(open.span.clone())
        });
        let (spans, energy_counter): (Vec<Span>, _) = (unsent.collect(), self.energy.counter());
        let any = !spans.is_empty() || energy_counter.is_some();
        any.then(|| OpenSpans { gpu: Arc::clone(gpu), spans, energy_counter })
    }
}
