//! Settles one window of one GPU: checks, cuts into segments, splits each, adds rows.
//!
//! The order is that of the account's section 3: held, used, parts, energy. This file only leads; each split
//! has its own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::carries::{Carries, Owed};
use super::check::check;
use super::claims::SlotGrants;
use super::energy::{EnergyPool, MeteredEnergy};
use super::fallback::UseFallback;
use super::held::HeldTime;
use super::parts::{Covers, SettledParts, measured_parts, unmeasured_parts};
use super::rows::WindowRows;
use super::segment::{WindowSegment, segments};
use super::used::{Used, split_busy_time};
use super::{ROOT, SLOT, SettleError};
use crate::model::{Carry, HolderId, Settlement, SlotState, Span, Utc};

/// Settles the window from `from` to `to`, which `spans` cover exactly and in order.
///
/// `carry` and `previous` are the `carry` and `weights` of the settlement before, empty where there is none.
/// The held parts of the rows sum to the window, their use to the time busy. Input that fits no account is
/// refused whole.
pub fn settle(
    from: Utc,
    to: Utc,
    spans: &[Span],
    carry: &Carry,
    previous: &BTreeMap<HolderId, u64>,
) -> Result<Settlement, SettleError> {
    check(from, to, spans)?;
    let mut window = OpenWindow::open(carry);
    let mut rows = WindowRows::default();
    for segment in segments(spans) {
        let settled = match &segment.constant().instances {
            Some(mig) => window.settle_instances(&segment, &mig.layout),
            None => window.settle_whole(&segment, || UseFallback::new(spans, previous)),
        };
        rows.add(&segment, &settled);
        if let Some(drawn) = MeteredEnergy::of(segment.spans) {
            rows.add_energy(&segment, &settled.energy_pool().split(drawn));
        }
    }
    let WindowCarry { carry, weights, flags } = window.close();
    Ok(Settlement { from, to, rows: rows.close(), carry, weights, flags })
}

/// A window while it is settled.
pub(super) struct OpenWindow<'a> {
    pub(super) slots: OpenSlots<'a>,
    /// The debts of the root split.
    pub(super) root: Owed,
    pub(super) flags: Vec<String>,
}

/// What a window leaves to the next one.
pub(super) struct WindowCarry {
    pub(super) carry: Carry,
    /// Of the whole GPU; there are none of instances.
    pub(super) weights: BTreeMap<HolderId, u64>,
    pub(super) flags: Vec<String>,
}

/// The slots that segments of a window have had.
pub(super) struct OpenSlots<'a> {
    open: BTreeMap<Arc<str>, OpenSlot<'a>>,
    /// What the window before left, for slots that are not open yet; none once it is seen that they are gone.
    carry: Option<&'a Carry>,
}

/// A slot while a window is settled.
pub(super) struct OpenSlot<'a> {
    fallback: UseFallback<'a>,
    pub(super) carries: Carries,
}

/// What was held and used of a slot in a segment.
pub(super) struct SettledSlot<'a> {
    pub(super) name: Arc<str>,
    /// Its spans, in the GPU's time.
    pub(super) spans: Cow<'a, [Span]>,
    pub(super) state: SlotState,
    /// Slot time, and how much of it was busy.
    pub(super) time: u64,
    pub(super) busy: u64,
    pub(super) held: HeldTime,
    pub(super) used: BTreeMap<HolderId, Used>,
    pub(super) settled: SettledParts,
}

/// What was held and used of a GPU in a segment.
pub(super) struct SettledSegment<'a> {
    pub(super) slots: Vec<SettledSlot<'a>>,
    /// Time that is no slot's, by remainder.
    pub(super) free: Vec<(HolderId, u64)>,
}

impl SettledSegment<'_> {
    /// Those among whom the energy of the segment is split.
    pub(super) fn energy_pool(&self) -> EnergyPool<'_> {
        EnergyPool { slots: &self.slots, free: &self.free }
    }
}

impl<'a> OpenWindow<'a> {
    /// A window that goes on from what the one before left.
    pub(super) fn open(carry: &'a Carry) -> Self {
        let root = carry.get(ROOT).cloned().unwrap_or_default();
        Self { slots: OpenSlots { open: BTreeMap::new(), carry: Some(carry) }, root, flags: Vec::new() }
    }

    /// Settles a segment of a whole GPU.
    fn settle_whole<'s>(
        &mut self,
        segment: &WindowSegment<'s>,
        fallback: impl FnOnce() -> UseFallback<'a>,
    ) -> SettledSegment<'s> {
        let (name, spans) = (Arc::from(SLOT), Cow::Borrowed(segment.spans));
        let slot = self.slots.open(&name, fallback);
        let settled = slot.settle(name, segment, spans, &mut self.flags);
        let settled = SettledSegment { slots: vec![settled], free: Vec::new() };
        if segment.shows_who_went() {
            self.keep_slots_of(&settled);
        }
        settled
    }

    /// Forgets what is owed on all slots but these.
    pub(super) fn keep_slots_of(&mut self, settled: &SettledSegment<'_>) {
        let stays = |name: &Arc<str>| settled.slots.iter().any(|slot| slot.name == *name);
        self.slots.open.retain(|name, _| stays(name));
        self.slots.carry = None;
        if settled.slots.iter().all(|slot| &*slot.name == SLOT) {
            self.root.clear();
        }
    }

    /// What is left when the last segment is settled.
    pub(super) fn close(self) -> WindowCarry {
        let mut carry = Carry::new();
        let unopened = self.slots.carry.into_iter().flatten();
        carry.extend(unopened.map(|(node, owed)| (node.clone(), owed.clone())));
        carry.remove(ROOT);
        if self.root.values().any(|units| *units != 0) {
            carry.insert(ROOT.to_owned(), self.root);
        }
        let mut weights = BTreeMap::new();
        for (name, slot) in self.slots.open {
            carry.retain(|node, _| !is_node_of(node, &name));
            carry.extend(slot.carries.close(&name));
            if &*name == SLOT {
                weights = slot.fallback.into_weights();
            }
        }
        WindowCarry { carry, weights, flags: self.flags }
    }
}

fn is_node_of(node: &str, slot: &str) -> bool {
    node.strip_prefix(slot).is_some_and(|rest| rest.starts_with('/'))
}

impl<'a> OpenSlots<'a> {
    /// The slot of that name, opened where it is not.
    pub(super) fn open(
        &mut self,
        name: &Arc<str>,
        fallback: impl FnOnce() -> UseFallback<'a>,
    ) -> &mut OpenSlot<'a> {
        let carry = self.carry;
        self.open.entry(Arc::clone(name)).or_insert_with(|| OpenSlot {
            fallback: fallback(),
            carries: carry.map(|carry| Carries::open(name, carry)).unwrap_or_default(),
        })
    }
}

impl OpenSlot<'_> {
    /// Settles a segment of the slot, in slot time; `spans` are the same in the GPU's time.
    pub(super) fn settle<'s>(
        &mut self,
        name: Arc<str>,
        segment: &WindowSegment<'_>,
        spans: Cow<'s, [Span]>,
        flags: &mut Vec<String>,
    ) -> SettledSlot<'s> {
        let constant = segment.constant();
        let grants = SlotGrants::of(&constant.holdings, &constant.covered_by);
        for holder in &grants.conflicts {
            add_flag(flags, format!("{name}: conflict {holder}"));
        }
        let held = HeldTime::of(segment.length(), constant.state, &grants, &mut self.carries);
        let is_measured = constant.state == SlotState::Measured;
        let (used, paid) = if is_measured {
            self.use_of(segment, &held, &grants)
        } else {
            if segment.busy() > 0 {
                add_flag(flags, format!("{name}: activity while not measured"));
            }
            (BTreeMap::new(), unmeasured_parts(&held, constant.state))
        };
        self.drop_debts(segment, &grants, &used);
        let busy = if is_measured { segment.busy() } else { 0 };
        SettledSlot {
            name,
            spans,
            state: constant.state,
            time: segment.length(),
            busy,
            held,
            used,
            settled: paid,
        }
    }

    /// Who used what of a measured segment, and what that makes of the holdings.
    fn use_of(
        &mut self,
        segment: &WindowSegment<'_>,
        held: &HeldTime,
        grants: &SlotGrants,
    ) -> (BTreeMap<HolderId, Used>, SettledParts) {
        let used = split_busy_time(segment, grants, &self.fallback, &mut self.carries.used);
        let covers = Covers { grants, covered_by: &segment.constant().covered_by };
        let paid = measured_parts(held, &used, &covers, &mut self.carries);
        (used, paid)
    }

    /// Forgets what is owed to those who went; where activity is unknown, users may still be there.
    fn drop_debts(
        &mut self,
        segment: &WindowSegment<'_>,
        grants: &SlotGrants,
        used: &BTreeMap<HolderId, Used>,
    ) {
        if !segment.shows_who_went() {
            return;
        }
        self.carries.drop_holders(grants);
        if segment.constant().state == SlotState::Measured {
            let is_present =
                |user: &HolderId| segment.spans.iter().any(|span| span.present.contains_key(user));
            self.carries
                .drop_users(|user| grants.claimed(user) || used.contains_key(user) || is_present(user));
        }
    }
}

/// Adds a remark, once a window.
pub(super) fn add_flag(flags: &mut Vec<String>, remark: String) {
    if !flags.contains(&remark) {
        flags.push(remark);
    }
}
