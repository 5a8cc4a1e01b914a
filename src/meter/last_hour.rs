//! What was used in the last hour, and which part of it nobody held and nobody is charged for.

use std::collections::BTreeMap;

use crate::accounting::batches::ClosedWindow;
use crate::model::snapshot::HourlyUse;
use crate::model::{HolderId, MINUTE, Nanoseconds, Utc};

const HOUR: Nanoseconds = Nanoseconds(60 * MINUTE.0);

/// Sums by the minute in which a window ended; at most one hour of them.
#[derive(Default)]
pub(super) struct LastHour(BTreeMap<Utc, HourlyUse>);

impl LastHour {
    /// Adds the windows that were settled, and drops what is older than an hour. `is_charged` says whether the terms of a holder
    /// charge, at a time, for use while nobody held the GPU.
    pub(super) fn add(
        &mut self,
        now: Utc,
        closed: &[ClosedWindow],
        is_charged: impl Fn(&HolderId, Utc) -> bool,
    ) {
        for settlement in closed.iter().map(|window| &window.settlement) {
            let sum = self.0.entry(settlement.to.floor(MINUTE)).or_default();
            for row in &settlement.rows {
                let used = &row.amounts.used;
                sum.used.0 = sum.used.0.saturating_add(used.total());
                // The driver's own processes and those of unknown owners never hold.
                let is_free = used.unheld > 0
                    && !row.holder.is_remainder()
                    && !is_charged(&row.holder, settlement.from);
                if is_free {
                    sum.unheld.0 = sum.unheld.0.saturating_add(used.unheld);
                }
            }
        }
        let first = Utc(now.0.saturating_sub(HOUR.0));
        self.0.retain(|minute, _| *minute >= first);
    }

    pub(super) fn sum(&self) -> HourlyUse {
        self.0.values().fold(HourlyUse::default(), |sum, one| HourlyUse {
            used: sum.used + one.used,
            unheld: sum.unheld + one.unheld,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amounts, Row, Settlement, Use};

    fn window(to: u64, rows: &[(&str, u64, u64)]) -> ClosedWindow {
        let row = |&(holder, unheld, outside): &(&str, u64, u64)| Row {
            amounts: Amounts { used: Use { unheld, outside, ..Use::default() }, ..Amounts::default() },
            ..Row::empty(HolderId::new(holder))
        };
        let (carry, weights, flags) = Default::default();
        let (from, to) = (Utc(to - 15), Utc(to * Nanoseconds::SECOND.0));
        let rows = rows.iter().map(row).collect();
        let settlement = Settlement { from, to, rows, carry, weights, flags, ..Settlement::default() };
        ClosedWindow { gpu: "GPU-0".into(), settlement, coarse: false }
    }

    #[test]
    fn use_without_a_holder_is_summed_over_an_hour_without_remainders_and_without_what_terms_charge() {
        let mut hour = LastHour::default();
        let is_charged = |holder: &HolderId, _| holder.as_str() == "user:cy";
        let at = |second: u64| Utc(second * Nanoseconds::SECOND.0);
        hour.add(at(30), &[window(15, &[("user:ada", 7, 1), ("__system__", 100, 0)])], is_charged);
        hour.add(
            at(90),
            &[window(75, &[("user:ada", 3, 0)]), window(75, &[("user:ben", 0, 20), ("user:cy", 50, 0)])],
            is_charged,
        );
        let sum = hour.sum();
        assert_eq!((sum.used.0, sum.unheld.0), (181, 10));
        hour.add(at(3_601), &[], is_charged);
        let sum = hour.sum();
        assert_eq!((sum.used.0, sum.unheld.0), (73, 3), "the first minute is over");
    }
}
