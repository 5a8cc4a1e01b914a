//! The windows of an account: naming late who was there, settling what is over, and what the ledger lacks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Account, ClosedWindows, EarlierGrant, OpenSpan, SpanUsers};
use crate::attribution::{settle, split, window_end};
use crate::holders::{GrantedSlot, Granting, Identities, SessionGpu, are_configured_alike, holdings};
use crate::meter::Policy;
use crate::meter::integrate::{PresentBySlot, add};
use crate::model::{
    Holder, HolderId, Microjoules, MigSpan, Nanoseconds, Presence, Settlement, SlotState, Span, Utc,
};

/// How long after its end a window may at least still learn who was there.
const CLOSING_DELAY: Nanoseconds = Nanoseconds::from_seconds(10);

/// The most windows that one tick settles for one GPU: an hour, so that a long gap delays no tick.
const WINDOWS_PER_PULSE: usize = 240;

impl Account {
    /// Names processes that were unknown when their span was made, under the grants of that time: a reload since
    /// changes nothing of it. To which groups their users belong may have become known since.
    pub(in crate::meter) fn identify(&mut self, identities: &Identities, current: &Policy) {
        for open in &mut self.open {
            if open.users.unnamed.is_empty()
                && open.of_instances.values().all(|users| users.unnamed.is_empty())
            {
                continue;
            }
            let OpenSpan { span, users, of_instances, granted, sent } = open;
            let late = granted.as_ref().map(|(gpu, policy)| {
                let same = are_configured_alike(&policy.standing, &current.standing);
                let standing = if same { &current.standing } else { &policy.standing };
                (gpu, Granting { standing, ..policy.granting() })
            });
            if users.identify(&mut span.present, identities) {
                *sent = false;
                if let Some((gpu, granting)) = late {
                    let (held, covered_by) = holdings(gpu, granting, users.who());
                    (span.holdings, span.covered_by) = (held.into(), covered_by);
                }
            }
            let Some(MigSpan { layout, slots }) = span.instances.as_deref_mut() else { continue };
            for (name, users) in of_instances {
                let (Some(slot), Some(place)) = (slots.get_mut(name), layout.slots.get(name)) else {
                    continue;
                };
                if !users.identify(&mut slot.present, identities) {
                    continue;
                }
                *sent = false;
                if let Some((gpu, granting)) = late {
                    let granted = GrantedSlot::Instance { gpu, id: name, slot: place };
                    let (held, covered_by) = holdings(granted, granting, users.who());
                    (slot.holdings, slot.covered_by) = (held.into(), covered_by);
                }
            }
        }
    }

    /// Adds grants to the open spans that lie behind their beginning, where others leave room for them.
    pub(in crate::meter) fn backfill(&mut self, grants: &[EarlierGrant]) {
        for open in &mut self.open {
            let Some((_, policy)) = &open.granted else { continue };
            let mut allocations = policy.allocations.to_vec();
            for grant in grants.iter().filter(|grant| grant.from <= open.span.from) {
                let is_there = policy.allocations.iter().any(|known| known.is_same_grant(&grant.allocation));
                if !is_there && grant.allocation.fits_beside(&allocations) {
                    allocations.push(grant.allocation.clone());
                }
            }
            if allocations.len() > policy.allocations.len() {
                let policy = Policy { allocations: allocations.into(), ..(**policy).clone() };
                open.grant(Arc::new(policy));
            }
        }
    }

    /// Settles the windows whose closing delay is over, up to the `last` moment of the account where it has one.
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
            // The first frame tells who holds on this side of the gap.
            return closed;
        }
        for _ in 0..WINDOWS_PER_PULSE {
            let end = last.map_or(window_end(self.settled), |last| window_end(self.settled).min(last));
            if end <= self.settled || now < end.plus(delay) {
                break;
            }
            if self.cursor < end {
                // A frame that comes later can only speak of the time that is still open.
                self.fill_silence(end, gpu, policy);
            }
            let spans = self.take_until(end);
            match settle(self.settled, end, &spans, &self.carry, &self.weights) {
                Ok(settlement) => closed.windows.push(self.keep(settlement)),
                Err(_) => {
                    closed.failed += 1;
                    let window = self.unknown(end, &spans);
                    match settle(self.settled, end, &[window], &self.carry, &self.weights) {
                        Ok(settlement) => closed.windows.push(self.keep(settlement)),
                        Err(_) => break,
                    }
                }
            }
        }
        closed
    }

    /// Closes a window's end in which no frame came: by those who held before it, as far as that can be
    /// known. Presence of another life of the agent cannot. From there on the operator's grants are those of
    /// now: one that a reload took back ends within the closing delay, though no frame tells of it.
    fn fill_silence(&mut self, end: Utc, gpu: &SessionGpu, policy: &Arc<Policy>) {
        let before = self.slots.claims();
        if self.cursor < self.watched {
            self.slots.update_holdings(gpu, &PresentBySlot::default(), policy);
            let both = self.slots.claims().also_of(&before);
            // The rest of the gap is bridged from the same side.
            self.fill_gap(end, &both, None);
            if self.cursor < self.watched {
                self.slots.restore(before);
            }
        } else {
            self.fill_gap(end, &before, None);
            let present = self.last.as_ref().map_or(&self.last_present, |last| &last.present);
            self.slots.update_holdings(gpu, present, policy);
        }
    }

    /// A window of which nothing is believed but its energy.
    fn unknown(&self, end: Utc, spans: &[Span]) -> Span {
        let energy = spans
            .iter()
            .filter_map(|span| span.energy)
            .fold(0, |sum: u64, energy| sum.saturating_add(energy.0));
        Span {
            from: self.settled,
            state: SlotState::Unobserved,
            holdings: Arc::default(),
            covered_by: BTreeMap::new(),
            energy: Some(Microjoules(energy)),
            ..self.blank(end)
        }
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
            if open.span.to <= end {
                spans.push(open.named());
                continue;
            }
            let rest = if open.span.from < end {
                let (first, rest) = split(&open.span, end);
                spans.push(open.name(first));
                // Who is named late is named in both halves.
                OpenSpan { span: rest, sent: false, ..open }
            } else {
                open
            };
            self.open.push_front(rest);
            break;
        }
        spans
    }

    /// The spans that the ledger has not been given, and the driver's energy counter at their end.
    pub(in crate::meter) fn unsent(&mut self) -> (Vec<Span>, Option<Microjoules>) {
        let counter = self.energy.map(|energy| energy.counter);
        let unsent = self.open.iter_mut().filter(|open| !open.sent).map(|open| {
            open.sent = true;
            open.named()
        });
        (unsent.collect(), counter)
    }
}

impl OpenSpan {
    /// Computes its holdings by another policy, which stays in force for it.
    fn grant(&mut self, by: Arc<Policy>) {
        let Self { span, users, of_instances, granted: Some((gpu, policy)), sent } = self else { return };
        *policy = by;
        let Some(MigSpan { layout, slots }) = span.instances.as_deref_mut() else {
            let (held, covered_by) = holdings(&*gpu, policy.granting(), users.who());
            if *span.holdings != *held {
                (span.holdings, span.covered_by, *sent) = (held.into(), covered_by, false);
            }
            return;
        };
        for (id, slot) in slots {
            let Some(place) = layout.slots.get(id) else { continue };
            let who = of_instances.get(id).into_iter().flat_map(SpanUsers::who);
            let granted = GrantedSlot::Instance { gpu, id, slot: place };
            let (held, covered_by) = holdings(granted, policy.granting(), who);
            if *slot.holdings != *held {
                (slot.holdings, slot.covered_by, *sent) = (held.into(), covered_by, false);
            }
        }
    }
}

impl SpanUsers {
    fn who(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().map(|holder| &**holder)
    }

    /// Names processes that were unknown, among those who are present; whether there were any.
    fn identify(&mut self, present: &mut BTreeMap<HolderId, Presence>, identities: &Identities) -> bool {
        let named: Vec<((u32, Nanoseconds), Arc<Holder>)> = self
            .unnamed
            .keys()
            .filter_map(|(pid, read)| {
                let identified = identities.get(*pid, *read)?;
                Some(((*pid, *read), Arc::clone(&identified.holder)))
            })
            .collect();
        if named.is_empty() {
            return false;
        }
        let who = self.holders.iter().map(|holder| (holder.id.clone(), Arc::clone(holder)));
        let mut who: BTreeMap<HolderId, Arc<Holder>> = who.collect();
        for (reading, holder) in named {
            if let Some(presence) = self.unnamed.remove(&reading) {
                add(present.entry(holder.id.clone()).or_default(), &presence);
                who.entry(holder.id.clone()).or_insert(holder);
            }
        }
        self.holders = who.into_values().collect();
        true
    }
}
