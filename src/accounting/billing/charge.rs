//! For which time each holder is charged.

use std::collections::BTreeMap;

use crate::model::{HolderId, Parts, SlotId};

#[derive(Clone, Copy, Debug)]
pub struct ChargedSlot<'a> {
    pub slot: &'a SlotId,
    pub holder: &'a HolderId,
    pub parts: &'a Parts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub slot: SlotId,
    pub holder: HolderId,
    /// In nanoseconds.
    pub time: u64,
}

/// The charge of each holder, in the order of `held`: held less unavailable time. `__unavailable__` is charged for the
/// unavailable time, since a lost or broken GPU is shown to its holders but not charged; on slots where it held nothing it
/// comes last.
pub fn charges<'a>(held: impl IntoIterator<Item = ChargedSlot<'a>>) -> Vec<Charge> {
    let mut unavailable: BTreeMap<&SlotId, (u64, Option<usize>)> = BTreeMap::new();
    let mut charges: Vec<Charge> = Vec::new();
    for (place, ChargedSlot { slot, holder, parts }) in held.into_iter().enumerate() {
        if parts.unavailable > 0 {
            unavailable.entry(slot).or_default().0 += parts.unavailable;
        }
        if holder.as_str() == HolderId::UNAVAILABLE {
            unavailable.entry(slot).or_default().1 = Some(place);
        }
        let time = parts.held() - parts.unavailable;
        charges.push(Charge { slot: slot.clone(), holder: holder.clone(), time });
    }
    for (slot, (time, place)) in unavailable {
        match place.and_then(|place| charges.get_mut(place)) {
            Some(charge) => charge.time += time,
            None => {
                let holder = HolderId::new(HolderId::UNAVAILABLE);
                charges.push(Charge { slot: slot.clone(), holder, time });
            }
        }
    }
    charges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_time_is_charged_to_the_remainder_of_that_name() {
        let charged = |held: &[(&str, u64, u64)]| {
            let held: Vec<_> = held
                .iter()
                .map(|&(id, idle, unavailable)| {
                    (HolderId::new(id), Parts { idle, unavailable, ..Parts::default() })
                })
                .collect();
            let slot = SlotId::default();
            let held = held.iter().map(|(holder, parts)| ChargedSlot { slot: &slot, holder, parts });
            charges(held)
                .into_iter()
                .map(|charge| (charge.holder.to_string(), charge.time))
                .collect::<Vec<_>>()
        };
        let times = |times: &[(&str, u64)]| {
            times.iter().map(|(id, time)| ((*id).to_owned(), *time)).collect::<Vec<_>>()
        };
        assert_eq!(charged(&[("a", 3, 0)]), times(&[("a", 3)]));
        assert_eq!(charged(&[("a", 3, 4)]), times(&[("a", 3), ("__unavailable__", 4)]));
        let with_remainder = charged(&[("__unavailable__", 0, 2), ("a", 3, 4), ("b", 0, 5)]);
        assert_eq!(with_remainder, times(&[("__unavailable__", 11), ("a", 3), ("b", 0)]));
    }
}
