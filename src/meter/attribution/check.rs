//! Refuses spans that no account can hold, before anything is settled.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SettleError;
use crate::model::{Holding, InstanceSpan, Microjoules, MigLayout, MigSpan, Span, Utc};

/// Checks that spans follow one another, cover the window from `from` to `to` exactly, and are valid.
pub(super) fn check_window(from: Utc, to: Utc, spans: &[Span]) -> Result<(), SettleError> {
    if from >= to {
        return Err(SettleError::Window { from, to });
    }
    let mut reached = from;
    let (mut energy, mut idle_energy) = (0, 0);
    for span in spans {
        check_span(span, reached)?;
        reached = span.to;
        energy = add_energy(span, energy, span.energy.unwrap_or_default())?;
        idle_energy = add_energy(span, idle_energy, span.idle_energy)?;
        check_holdings(&span.holdings)?;
        if let Some(mig) = &span.instances {
            check_instances(span, mig)?;
        }
    }
    match spans.last() {
        Some(last) if reached > to => Err(SettleError::Overlap { from: last.from, at: to }),
        _ if reached < to => Err(SettleError::Gap { from: reached, to }),
        _ => Ok(()),
    }
}

fn check_instances(span: &Span, MigSpan { layout, slots }: &MigSpan) -> Result<(), SettleError> {
    check_layout(layout, slots)?;
    for slot in slots.values() {
        if slot.busy > span.length().0 {
            return Err(SettleError::Busy { from: span.from, busy: slot.busy, length: span.length() });
        }
        check_holdings(&slot.holdings)?;
    }
    Ok(())
}

/// Checks that the parts of a layout sum to the GPU, and that the slots are those of the layout.
fn check_layout(layout: &MigLayout, slots: &BTreeMap<Arc<str>, InstanceSpan>) -> Result<(), SettleError> {
    if let Some(slot) = slots.keys().find(|name| !layout.slots.contains_key(*name)) {
        return Err(SettleError::UnknownSlot { slot: Arc::clone(slot) });
    }
    if let Some(slot) = layout.slots.keys().find(|name| !slots.contains_key(*name)) {
        return Err(SettleError::MissingSlot { slot: Arc::clone(slot) });
    }
    let sizes = layout.slots.values().map(|slot| slot.size);
    let sizes = sizes.chain([layout.unallocated, layout.stranded.unwrap_or(0)]);
    let sum: u128 = sizes.map(u128::from).sum();
    if sum == 0 || sum != u128::from(layout.total) {
        return Err(SettleError::Layout { total: layout.total, sum });
    }
    Ok(())
}

fn check_span(span: &Span, reached: Utc) -> Result<(), SettleError> {
    if span.to < span.from {
        return Err(SettleError::Backwards { from: span.from, to: span.to });
    }
    if span.from > reached {
        return Err(SettleError::Gap { from: reached, to: span.from });
    }
    if span.from < reached {
        return Err(SettleError::Overlap { from: span.from, at: reached });
    }
    if span.busy > span.length().0 {
        return Err(SettleError::Busy { from: span.from, busy: span.busy, length: span.length() });
    }
    Ok(())
}

fn add_energy(span: &Span, sum: u64, energy: Microjoules) -> Result<u64, SettleError> {
    sum.checked_add(energy.0).ok_or(SettleError::Energy { from: span.from, energy })
}

fn check_holdings(holdings: &[Holding]) -> Result<(), SettleError> {
    for (place, Holding { holder, fraction, .. }) in holdings.iter().enumerate() {
        if holder.is_remainder() {
            return Err(SettleError::Reserved { holder: holder.clone() });
        }
        if fraction.denominator == 0 || fraction.numerator > fraction.denominator {
            return Err(SettleError::Share { holder: holder.clone(), fraction: *fraction });
        }
        if holdings.iter().take(place).any(|other| other.holder == *holder) {
            return Err(SettleError::HeldTwice { holder: holder.clone() });
        }
    }
    Ok(())
}
