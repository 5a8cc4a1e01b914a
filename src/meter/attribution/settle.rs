//! Settles one window of one GPU: checks its spans, cuts them into segments, splits each segment and adds up the rows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::carries::{Carries, Owed, USED};
use super::check::check_window;
use super::claims::SlotGrants;
use super::energy::{EnergySplit, GpuEnergy};
use super::evidence::{find_evidence, waiting_energy};
use super::fallback::UseFallback;
use super::parts::{HeldTime, SettledParts, UsedTime, split_busy_time};
use super::window::{WindowSegment, segments};
use super::{ROOT, SLOT, SettleError};
use crate::model::{
    AMOUNTS, ActivitySource, Carry, HolderId, Microjoules, MigLayout, Nanoseconds, Parts, Row, Settlement,
    SlotId, SlotState, Span, Utc,
};

/// Settles the window from `from` to `to`, which `spans` cover exactly and in order.
///
/// `carry` and `previous` are `carry` and `weights` of the settlement before, empty where there is none. The held parts of
/// the rows sum to the window, their use to the busy time.
///
/// # Errors
/// Spans that no account can hold; then nothing is settled.
pub fn settle(
    from: Utc,
    to: Utc,
    spans: &[Span],
    carry: &Carry,
    previous: &BTreeMap<HolderId, u64>,
) -> Result<Settlement, SettleError> {
    check_window(from, to, spans)?;
    let mut window = OpenWindow::new(carry);
    let mut rows = WindowRows::default();
    for segment in segments(spans) {
        let settled = match &segment.constant.instances {
            Some(mig) => window.settle_instances(&segment, &mig.layout),
            None => window.settle_whole(&segment, || UseFallback::of_gpu(spans, previous)),
        };
        rows.add(&segment, &settled);
        if let Some(energy) = GpuEnergy::sum(segment.spans) {
            rows.add_energy(&segment, &settled.split_energy(energy));
        }
    }
    rows.add_waiting_energy(spans);
    let rows = rows.into_rows();
    let evidence = find_evidence(spans, &rows);
    Ok(Settlement { evidence, ..window.close(from, to, rows) })
}

pub(super) struct OpenWindow<'a> {
    /// The slots that its segments have had, by name.
    slots: BTreeMap<Arc<str>, OpenSlot<'a>>,
    /// Carries of the window before, for slots that no segment has had yet; none once it shows that they are gone.
    stored: Option<&'a Carry>,
    /// Carries of the split of the GPU among its slots.
    pub(super) root: Owed,
    pub(super) flags: Vec<String>,
}

pub(super) struct OpenSlot<'a> {
    fallback: UseFallback<'a>,
    pub(super) carries: Carries,
}

pub(super) struct SettledSlot<'a> {
    pub(super) name: Arc<str>,
    /// Its spans, in the GPU's time.
    pub(super) spans: Cow<'a, [Span]>,
    pub(super) state: SlotState,
    pub(super) held: HeldTime,
    pub(super) used: BTreeMap<HolderId, UsedTime>,
    pub(super) settled: SettledParts,
}

pub(super) struct SettledSegment<'a> {
    pub(super) slots: Vec<SettledSlot<'a>>,
    /// Time that belongs to no slot, by remainder.
    pub(super) free: Vec<(HolderId, u64)>,
}

impl<'a> OpenWindow<'a> {
    pub(super) fn new(carry: &'a Carry) -> Self {
        let root = carry.get(ROOT).cloned().unwrap_or_default();
        Self { slots: BTreeMap::new(), stored: Some(carry), root, flags: Vec::new() }
    }

    /// Settles a segment of a GPU that is one slot.
    fn settle_whole<'s>(
        &mut self,
        segment: &WindowSegment<'s>,
        fallback: impl FnOnce() -> UseFallback<'a>,
    ) -> SettledSegment<'s> {
        let name = Arc::from(SLOT);
        let (slot, flags) = self.open_slot(&name, fallback);
        let settled = slot.settle(&name, segment, Cow::Borrowed(segment.spans), flags);
        let settled = SettledSegment { slots: vec![settled], free: Vec::new() };
        if segment.shows_departures() {
            self.drop_other_slots(&settled);
        }
        settled
    }

    /// The slot of that name, opened if no segment has had it yet, and the window's flags.
    pub(super) fn open_slot(
        &mut self,
        name: &Arc<str>,
        fallback: impl FnOnce() -> UseFallback<'a>,
    ) -> (&mut OpenSlot<'a>, &mut Vec<String>) {
        let slot = self.slots.entry(Arc::clone(name)).or_insert_with(|| OpenSlot {
            fallback: fallback(),
            carries: self.stored.map(|carry| Carries::from_stored(name, carry)).unwrap_or_default(),
        });
        (slot, &mut self.flags)
    }

    pub(super) fn drop_other_slots(&mut self, settled: &SettledSegment<'_>) {
        self.slots.retain(|name, _| settled.slots.iter().any(|slot| slot.name == *name));
        self.stored = None;
        if settled.slots.iter().all(|slot| &*slot.name == SLOT) {
            self.root.clear();
        }
    }

    pub(super) fn close(self, from: Utc, to: Utc, rows: Vec<Row>) -> Settlement {
        let mut carry = self.stored.cloned().unwrap_or_default();
        carry.remove(ROOT);
        if self.root.values().any(|units| *units != 0) {
            carry.insert(ROOT.to_owned(), self.root);
        }
        let mut weights = BTreeMap::new();
        for (name, slot) in self.slots {
            carry.retain(|node, _| !node.strip_prefix(&*name).is_some_and(|rest| rest.starts_with('/')));
            carry.extend(slot.carries.into_stored(&name));
            if &*name == SLOT {
                weights = slot.fallback.into_weights();
            }
        }
        Settlement { from, to, rows, carry, weights, flags: self.flags, ..Settlement::default() }
    }
}

impl OpenSlot<'_> {
    /// Settles a segment of the slot; `segment` is in slot time, `spans` are the same in the GPU's time.
    pub(super) fn settle<'s>(
        &mut self,
        name: &Arc<str>,
        segment: &WindowSegment<'_>,
        spans: Cow<'s, [Span]>,
        flags: &mut Vec<String>,
    ) -> SettledSlot<'s> {
        let state = segment.constant.state;
        let grants = SlotGrants::new(&segment.constant.holdings, &segment.constant.covered_by);
        for holder in &grants.conflicts {
            add_flag(flags, format!("{name}: conflict {holder}"));
        }
        for (holder, earlier) in &grants.yields {
            let earlier = earlier.iter().map(HolderId::to_string).collect::<Vec<_>>().join(", ");
            add_flag(flags, format!("{name}: yield {holder} to {earlier}"));
        }
        let held = HeldTime::split(segment.length(), state, &grants, &mut self.carries);
        let is_measured = state == SlotState::Measured;
        let (used, settled) = if is_measured {
            let used = split_busy_time(segment, &grants, &self.fallback, self.carries.owed(USED));
            let settled = SettledParts::of_measured(&held, &used, &grants, &mut self.carries);
            (used, settled)
        } else {
            if segment.busy() > 0 {
                add_flag(flags, format!("{name}: activity while not measured"));
            }
            (BTreeMap::new(), SettledParts::of_unmeasured(&held, state))
        };
        if segment.shows_departures() {
            self.carries.drop_holders(&grants);
        }
        // Where activity is unknown, users may still be there.
        if segment.shows_departures() && is_measured {
            let is_present =
                |user: &HolderId| segment.spans.iter().any(|span| span.present.contains_key(user));
            self.carries
                .drop_users(|user| grants.has_claim(user) || used.contains_key(user) || is_present(user));
        }
        SettledSlot { name: Arc::clone(name), spans, state, held, used, settled }
    }
}

/// Adds a flag once per window.
pub(super) fn add_flag(flags: &mut Vec<String>, flag: String) {
    if !flags.contains(&flag) {
        flags.push(flag);
    }
}

#[derive(Debug, Default)]
struct WindowRows(BTreeMap<(SlotId, HolderId), RowSum>);

#[derive(Debug)]
struct RowSum {
    row: Row,
    /// Memory x time in byte-nanoseconds, rounded once in [`WindowRows::into_rows`].
    memory: u128,
}

impl WindowRows {
    /// Adds what a segment settled, without its energy.
    fn add(&mut self, segment: &WindowSegment<'_>, settled: &SettledSegment<'_>) {
        let layout = segment.layout();
        for slot in &settled.slots {
            self.add_slot(slot, layout);
        }
        for (remainder, time) in &settled.free {
            let parts = match remainder.as_str() {
                HolderId::UNAVAILABLE => Parts { unavailable: *time, ..Parts::default() },
                HolderId::UNOBSERVED => Parts { unmeasured: *time, ..Parts::default() },
                _ => Parts { idle: *time, ..Parts::default() },
            };
            let row = &mut self.entry(&SlotId::default(), remainder, None).row;
            row.method = row.method.max(segment.constant.method);
            row.amounts.parts.add(&parts);
        }
    }

    fn add_slot(&mut self, slot: &SettledSlot<'_>, layout: Option<&MigLayout>) {
        let Some(constant) = slot.spans.first() else { return };
        let id = slot_id(&slot.name, layout);
        for (holder, parts) in &slot.settled.parts {
            let row = &mut self.entry(&id, holder, Some(constant)).row;
            row.amounts.parts.add(parts);
            let holding = constant.holdings.iter().find(|one| one.holder == *holder && parts.held() > 0);
            row.granted_by = holding.map(|one| one.source).or(row.granted_by);
        }
        for (user, used) in &slot.settled.users {
            self.entry(&id, user, Some(constant)).row.amounts.used.add(used);
        }
        for (user, used) in &slot.used {
            let row = &mut self.entry(&id, user, Some(constant)).row;
            row.amounts.measured += used.measured;
            row.grade = row.grade.max(used.grade);
        }
        for span in &*slot.spans {
            for (user, presence) in &span.present {
                let Some(memory) = presence.memory else { continue };
                let product = u128::from(memory).saturating_mul(span.length().0.into());
                let entry = self.entry(&id, user, Some(constant));
                entry.memory = entry.memory.saturating_add(product);
                entry.row.amounts.memory_peak = memory.max(entry.row.amounts.memory_peak);
            }
        }
    }

    fn add_energy(&mut self, segment: &WindowSegment<'_>, energy: &EnergySplit) {
        // Holders on a MIG instance already have a row with the instance's source.
        let constant = segment.constant.instances.is_none().then_some(segment.constant);
        let layout = segment.layout();
        for (id, energy) in &energy.floor {
            let row = &mut self.entry(&slot_id(&id.slot, layout), &id.holder, constant).row;
            row.amounts.energy_static += Microjoules(*energy);
        }
        for (id, energy) in &energy.dynamic {
            let row = &mut self.entry(&slot_id(&id.slot, layout), &id.holder, constant).row;
            row.amounts.energy_dynamic += Microjoules(*energy);
        }
    }

    fn add_waiting_energy(&mut self, spans: &[Span]) {
        for ((slot, holder), energy) in waiting_energy(spans) {
            self.entry(&slot, &holder, None).row.amounts.energy_waiting += energy;
        }
    }

    /// The rows with any amount, ordered by slot and holder.
    fn into_rows(self) -> Vec<Row> {
        let rows = self.0.into_values().map(|RowSum { mut row, memory }| {
            let byte_seconds = memory / u128::from(Nanoseconds::SECOND.0);
            row.amounts.memory_byte_seconds = u64::try_from(byte_seconds).unwrap_or(u64::MAX);
            row
        });
        rows.filter(|row| !is_empty(row)).collect()
    }

    /// The holder's sum, to which a segment with these constants is added.
    fn entry(&mut self, slot: &SlotId, holder: &HolderId, constant: Option<&Span>) -> &mut RowSum {
        let entry = self.0.entry((slot.clone(), holder.clone())).or_insert_with(|| RowSum {
            row: Row { slot: slot.clone(), ..Row::empty(holder.clone()) },
            memory: 0,
        });
        if let Some(constant) = constant {
            entry.row.method = entry.row.method.max(constant.method);
            if constant.state == SlotState::Measured {
                entry.row.source = coarser(entry.row.source, constant.source);
            }
        }
        entry
    }
}

fn slot_id(name: &str, layout: Option<&MigLayout>) -> SlotId {
    layout.map(|layout| layout.slot_id(name)).unwrap_or_default()
}

/// The coarser of two sources; none at all does not count beside one that measured.
fn coarser(one: ActivitySource, other: ActivitySource) -> ActivitySource {
    match (one, other) {
        (ActivitySource::None, known) | (known, ActivitySource::None) => known,
        (one, other) => one.max(other),
    }
}

fn is_empty(row: &Row) -> bool {
    AMOUNTS.iter().all(|amount| amount.of(&row.amounts) == 0)
}
