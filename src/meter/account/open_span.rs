//! Spans that are not settled yet: processes that are identified late, and grants that become known late.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::holders::{
    Allocation, GrantedSlot, Granting, Identities, SessionGpu, are_configured_alike, holdings,
};
use crate::meter::Policy;
use crate::meter::identify::{
    HolderList, PresentBySlot, PresentHolders, ReadPid, Unidentified, add_presence,
};
use crate::model::{Holder, HolderId, Holding, MigSpan, Presence, Span};

/// A span that is not settled, with the processes that are not identified yet.
#[derive(Clone)]
pub(super) struct OpenSpan {
    pub(super) span: Span,
    /// Whether the ledger has it as it is.
    pub(super) sent: bool,
    users: SlotUsers,
    /// Those of MIG instances, by GPU instance id.
    instance_users: BTreeMap<Arc<str>, SlotUsers>,
    /// None where the span lists no processes.
    grants: Option<SpanGrants>,
}

/// The grants from which the holdings of a span are computed again when one of its processes is identified late.
#[derive(Clone)]
pub(super) struct SpanGrants {
    pub(super) gpu: SessionGpu,
    pub(super) policy: Arc<Policy>,
}

#[derive(Clone, Default)]
struct SlotUsers {
    holders: HolderList,
    unidentified: Unidentified,
}

struct SpanSlot<'a> {
    granted: GrantedSlot<'a>,
    users: &'a mut SlotUsers,
    present: &'a mut BTreeMap<HolderId, Presence>,
    holdings: &'a mut Arc<[Holding]>,
    covered_by: &'a mut BTreeMap<HolderId, HolderId>,
}

impl OpenSpan {
    /// A span without unidentified processes; `sent` is whether the ledger has it.
    pub(super) fn new(span: Span, sent: bool) -> Self {
        let (users, instance_users) = (SlotUsers::default(), BTreeMap::new());
        Self { span, sent, users, instance_users, grants: None }
    }

    pub(super) fn of_frame(span: Span, present: &PresentBySlot, grants: SpanGrants) -> Self {
        let instances = present.instances.iter();
        Self {
            users: SlotUsers::new(&present.whole),
            instance_users: instances.map(|(id, slot)| (Arc::clone(id), SlotUsers::new(slot))).collect(),
            grants: Some(grants),
            ..Self::new(span, false)
        }
    }

    /// The same span, or a part of it, with its unidentified processes under `__unattributed__`.
    pub(super) fn with_unidentified(&self, mut span: Span) -> Span {
        self.users.add_unidentified(&mut span.present);
        for (id, slot) in span.instances.iter_mut().flat_map(|mig| &mut mig.slots) {
            if let Some(users) = self.instance_users.get(id) {
                users.add_unidentified(&mut slot.present);
            }
        }
        span
    }

    /// Identifies processes that were unknown when the span was made. The grants of the span's time apply, except that
    /// members of groups may have become known since.
    pub(super) fn identify(&mut self, identities: &Identities, current: &Policy) {
        let Some(SpanGrants { policy, .. }) = &self.grants else { return };
        let is_complete = |users: &SlotUsers| users.unidentified.is_empty();
        if is_complete(&self.users) && self.instance_users.values().all(is_complete) {
            return;
        }
        let policy = Arc::clone(policy);
        let mut standing = policy.standing.clone();
        if are_configured_alike(&standing, &current.standing) {
            let grants = standing.iter_mut().zip(&current.standing);
            grants.for_each(|(grant, current)| grant.selector = current.selector.clone());
        }
        let granting = Granting { standing: &standing, ..policy.granting() };
        self.update_slots(|slot| {
            let any = slot.users.identify(slot.present, identities);
            if any {
                let (held, covered_by) = holdings(slot.granted, granting, slot.users.holders());
                (*slot.holdings, *slot.covered_by) = (held.into(), covered_by);
            }
            any
        });
    }

    /// Adds the grants that began before the span, where earlier known ones leave room for them, and removes those that
    /// ended before it. Their times are of the account.
    pub(super) fn apply_late_grants(&mut self, late: &[Allocation]) {
        let Some(SpanGrants { policy, .. }) = &mut self.grants else { return };
        let begin = self.span.from;
        let mut allocations = policy.allocations.to_vec();
        for over in late.iter().filter(|grant| grant.until.is_some_and(|until| until <= begin)) {
            allocations.retain(|known| !known.is_same_grant(over));
        }
        let holds = |grant: &&Allocation| {
            grant.since.is_none_or(|since| since <= begin) && grant.until.is_none_or(|until| begin < until)
        };
        for grant in late.iter().filter(holds) {
            let is_known = allocations.iter().any(|known| known.is_same_grant(grant));
            if !is_known && grant.fits_beside(&allocations) {
                allocations.push(grant.clone());
            }
        }
        if *allocations == *policy.allocations {
            return;
        }
        *policy = Arc::new(Policy { allocations: allocations.into(), ..(**policy).clone() });
        let policy = Arc::clone(policy);
        self.update_slots(|slot| {
            let (held, covered_by) = holdings(slot.granted, policy.granting(), slot.users.holders());
            let changed = **slot.holdings != *held;
            if changed {
                (*slot.holdings, *slot.covered_by) = (held.into(), covered_by);
            }
            changed
        });
    }

    /// Updates every slot; if any has changed, the span is sent to the ledger again.
    fn update_slots(&mut self, mut update: impl FnMut(SpanSlot<'_>) -> bool) {
        let Self { span, sent, users, instance_users, grants: Some(SpanGrants { gpu, .. }) } = self else {
            return;
        };
        let Some(MigSpan { layout, slots }) = span.instances.as_deref_mut() else {
            let Span { present, holdings, covered_by, .. } = span;
            let granted = GrantedSlot::Whole(gpu);
            *sent &= !update(SpanSlot { granted, users, present, holdings, covered_by });
            return;
        };
        for (id, slot) in slots {
            let (Some(users), Some(mig_slot)) = (instance_users.get_mut(id), layout.slots.get(id)) else {
                continue;
            };
            *sent &= !update(SpanSlot {
                granted: GrantedSlot::Instance { gpu, id, slot: mig_slot },
                users,
                present: &mut slot.present,
                holdings: &mut slot.holdings,
                covered_by: &mut slot.covered_by,
            });
        }
    }
}

impl SlotUsers {
    fn new(present: &PresentHolders) -> Self {
        Self { holders: Arc::clone(&present.holders), unidentified: present.unidentified.clone() }
    }

    fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.iter().map(|holder| &**holder)
    }

    fn add_unidentified(&self, present: &mut BTreeMap<HolderId, Presence>) {
        for presence in self.unidentified.values() {
            let entry = present.entry(HolderId::new(HolderId::UNATTRIBUTED)).or_default();
            add_presence(entry, presence);
        }
    }

    /// Moves processes that are identified now to their holders; whether there were any.
    fn identify(&mut self, present: &mut BTreeMap<HolderId, Presence>, identities: &Identities) -> bool {
        let mut found = Vec::new();
        self.unidentified.retain(|ReadPid { pid, read }, presence| {
            let Some(identified) = identities.get(*pid, *read) else { return true };
            let holder = &identified.holder;
            add_presence(present.entry(holder.id.clone()).or_default(), presence);
            found.push(Arc::clone(holder));
            false
        });
        if found.is_empty() {
            return false;
        }
        let mut holders: BTreeMap<HolderId, Arc<Holder>> = BTreeMap::new();
        for holder in self.holders.iter().chain(&found) {
            holders.entry(holder.id.clone()).or_insert_with(|| Arc::clone(holder));
        }
        self.holders = holders.into_values().collect();
        true
    }
}
