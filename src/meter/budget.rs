//! How many series a snapshot may have, and what is left off when there are more.
//!
//! What a GPU and the agent say of themselves always stands. Of the rest tenants' accounts come first, then
//! workloads' accounts, holdings and workloads, processes. What is left off is counted by family. An account that
//! is shown is shown for as long as it lasts, and with its whole value: a newcomer never takes its place. What tenants
//! without series grow by is the tenant `__other__`'s ([`super::folded`]).

use std::collections::{BTreeMap, BTreeSet};

use super::TrackedGpu;
use super::accounts::WorkloadKey;
use super::folded::{AccountKey, Folded};
use crate::catalogue::{AccountRows, Family, GpuRows, InstanceRows, Level, Point, Rows, families};
use crate::model::snapshot::GpuState;
use crate::model::{Absence, Reading, UnattributedReason};

/// What is kept from one tick to the next.
#[derive(Debug, Default)]
pub(super) struct BudgetHistory {
    shown: BTreeSet<AccountKey>,
    shown_workloads: BTreeSet<WorkloadKey>,
    /// What the accounts that are not shown grow by.
    pub(super) folded: Folded,
    /// Series left off, summed over the ticks.
    dropped: BTreeMap<&'static str, u64>,
}

/// The families of which each entry of a list has series, and how many.
pub(super) struct EntrySeries(Vec<(&'static str, usize)>);

impl EntrySeries {
    /// What an entry costs at a level; `series` says how many of a family are its.
    fn at(level: Level, series: impl Fn(&Rows) -> usize) -> Self {
        let counted = families().filter(|family| family.level <= level);
        Self(
            counted
                .map(|family| (family.name, series(&family.rows)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        )
    }

    fn series(&self) -> usize {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

/// What the entries of each list cost at a level.
pub(super) struct SeriesPerEntry {
    pub(super) account: EntrySeries,
    pub(super) workload_account: EntrySeries,
    pub(super) holding: EntrySeries,
    pub(super) workload: EntrySeries,
    pub(super) process: EntrySeries,
}

impl SeriesPerEntry {
    pub(super) fn at(level: Level) -> Self {
        Self {
            account: EntrySeries::at(level, |rows| match rows {
                Rows::Account(AccountRows::Tenant(points)) => points.len(),
                _ => 0,
            }),
            workload_account: EntrySeries::at(level, |rows| match rows {
                Rows::Account(AccountRows::Workload(points)) => points.len(),
                _ => 0,
            }),
            holding: EntrySeries::at(level, |rows| {
                usize::from(matches!(rows, Rows::Account(AccountRows::Holding)))
            }),
            workload: EntrySeries::at(level, |rows| {
                usize::from(matches!(rows, Rows::Account(AccountRows::WorkloadInfo)))
            }),
            process: EntrySeries::at(level, |rows| match rows {
                Rows::Process(points) => points.len(),
                _ => 0,
            }),
        }
    }
}

/// The series that a tick may still use.
pub(super) struct SeriesBudget<'a> {
    pub(super) budget: &'a mut BudgetHistory,
    left: usize,
}

impl BudgetHistory {
    /// Series left off so far, by family.
    pub(super) fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.dropped.iter().map(|(family, count)| (*family, *count))
    }

    /// The series budget of a tick, less the series that are always shown.
    pub(super) fn series_budget(&mut self, limit: usize, fixed: usize) -> SeriesBudget<'_> {
        SeriesBudget { budget: self, left: limit.saturating_sub(fixed) }
    }
}

impl SeriesBudget<'_> {
    /// How many entries of that cost still fit.
    pub(super) fn entries_left(&self, cost: &EntrySeries) -> usize {
        self.left.checked_div(cost.series()).unwrap_or(usize::MAX)
    }

    /// Charges the budget for so many entries, and counts those that are left off.
    pub(super) fn charge(&mut self, cost: &EntrySeries, entries: usize, left_off: usize) {
        self.left = self.left.saturating_sub(entries * cost.series());
        if left_off > 0 {
            for (family, count) in &cost.0 {
                *self.budget.dropped.entry(family).or_default() += (left_off * count) as u64;
            }
        }
    }

    /// Admits as many of the entries as fit; charges for them, and counts the others as left off.
    pub(super) fn admit(&mut self, cost: &EntrySeries, entries: usize) -> usize {
        let fit = entries.min(self.entries_left(cost));
        self.charge(cost, fit, entries - fit);
        fit
    }

    /// The accounts that fit into so many places: those that were shown before, then newcomers, each in their order.
    pub(super) fn admit_accounts(&mut self, entries: Vec<AccountKey>, room: usize) -> BTreeSet<AccountKey> {
        self.budget.shown = keep_shown_first(&self.budget.shown, entries, room);
        self.budget.shown.clone()
    }

    /// The workloads' accounts that fit, by the same rule; charges for them, and counts the others as left off.
    pub(super) fn admit_workloads(
        &mut self,
        cost: &EntrySeries,
        entries: Vec<WorkloadKey>,
    ) -> BTreeSet<WorkloadKey> {
        let room = self.admit(cost, entries.len());
        self.budget.shown_workloads = keep_shown_first(&self.budget.shown_workloads, entries, room);
        self.budget.shown_workloads.clone()
    }
}

/// So many of the entries as there is room for: those that were shown before, then newcomers, each in their order.
fn keep_shown_first<K: Ord>(shown: &BTreeSet<K>, mut entries: Vec<K>, room: usize) -> BTreeSet<K> {
    if entries.len() > room {
        let known = entries.iter().filter(|entry| shown.contains(*entry)).count();
        let (mut old, mut new) = (known.min(room), room.saturating_sub(known));
        entries.retain(|entry| {
            let places = if shown.contains(entry) { &mut old } else { &mut new };
            let fits = *places > 0;
            *places = places.saturating_sub(1);
            fits
        });
    }
    entries.into_iter().collect()
}

/// The most processes of each GPU that get a row of their own, so that all rows fit: a GPU with more of them
/// has one row for the rest. None where not even those fit.
pub(super) fn most_processes(counts: &[usize], wanted: usize, room: usize) -> Option<usize> {
    let most = counts.iter().copied().max().unwrap_or(0).min(wanted);
    (0..=most).rev().find(|limit| rows(counts, *limit) <= room)
}

/// The rows of that many processes per GPU.
pub(super) fn rows(counts: &[usize], limit: usize) -> usize {
    counts.iter().map(|count| (*count).min(limit) + usize::from(*count > limit)).sum()
}

/// At most so many series a GPU has of its own, by what its plan reads.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnSeries {
    fixed: usize,
    /// For each of its instances, XIDs, and actions on XIDs.
    instance: usize,
    code: usize,
    action: usize,
}

impl OwnSeries {
    /// Those of a GPU that answers so; without answers, of one that has said nothing yet.
    pub(super) fn of(readings: &[Reading], level: Level) -> Self {
        let mut readings = readings.iter();
        let mut read = |points: &[Point]| {
            let own = readings.by_ref().take(points.len());
            own.filter(|reading| !reading.is_err_and(Absence::is_permanent)).count()
        };
        let has_answer =
            |family: &&Family| !family.rows.points().is_empty() || matches!(family.rows, Rows::Process(_));
        let unsupported = families().filter(has_answer).count();
        let mut own = Self::default();
        // All of them in their order, since that is the order of the readings.
        for family in families() {
            let series = of_family(family, unsupported, &mut read);
            if family.level <= level {
                own.fixed += series.fixed;
                own.instance += series.instance;
                own.code += series.code;
                own.action += series.action;
            }
        }
        own
    }

    /// How many these are at the moment.
    pub(super) fn count(self, gpu: &TrackedGpu, state: &GpuState) -> usize {
        let instances = gpu.frame.as_ref().map_or(0, |frame| frame.instances.len());
        let (codes, actions) = (state.xids.len(), state.xid_actions.len());
        // Slot time has a series for each instance that ever had any.
        let slots = state.instance_slots.len();
        self.fixed + slots + self.instance * instances + self.code * codes + self.action * actions
    }
}

fn of_family(family: &Family, unsupported: usize, read: &mut impl FnMut(&[Point]) -> usize) -> OwnSeries {
    let none = OwnSeries::default();
    match &family.rows {
        Rows::Gpu(GpuRows::Read(points) | GpuRows::Flow(points)) => OwnSeries { fixed: read(points), ..none },
        // Only the one that holds is shown.
        Rows::Gpu(GpuRows::State(points)) => OwnSeries { fixed: read(points).min(1), ..none },
        Rows::Gpu(GpuRows::Integrals { .. }) => {
            OwnSeries { fixed: family.rows.integrated_points().len(), ..none }
        }
        // A family is read or it is unsupported: one for each that has no reading. Others have a series where they
        // are answered, and it is counted as theirs.
        Rows::Gpu(GpuRows::Unsupported) => OwnSeries { fixed: unsupported, ..none },
        Rows::Instance(InstanceRows::Info) => OwnSeries { instance: 1, ..none },
        Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
            OwnSeries { instance: points.len(), ..none }
        }
        Rows::Account(AccountRows::Unattributed) => {
            OwnSeries { fixed: UnattributedReason::ALL.len(), ..none }
        }
        Rows::Gpu(GpuRows::XidActionErrors) => OwnSeries { action: 1, ..none },
        Rows::Gpu(GpuRows::XidErrors | GpuRows::XidLastTimestamp | GpuRows::XidInfo) => {
            OwnSeries { code: 1, ..none }
        }
        Rows::Gpu(_) | Rows::Account(AccountRows::Slot) => OwnSeries { fixed: 1, ..none },
        Rows::Process(_) | Rows::Account(_) | Rows::Agent => none,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<AccountKey> {
        let key =
            |name: &&str| AccountKey { tenant: (*name).into(), uuid: "GPU-0".into(), gpu_instance: None };
        names.iter().map(key).collect()
    }

    fn cost() -> EntrySeries {
        EntrySeries(vec![("gpu_tenant_held_seconds_total", 2)])
    }

    #[test]
    fn an_account_that_is_shown_stays_when_others_come_before_it() {
        let mut budget = BudgetHistory::default();
        let mut show = |limit, tenants: &[&str]| {
            let mut series_budget = budget.series_budget(limit, 10);
            let room = series_budget.entries_left(&cost());
            let shown = series_budget.admit_accounts(names(tenants), room);
            series_budget.charge(&cost(), shown.len(), tenants.len() - shown.len());
            shown.into_iter().map(|key| key.tenant.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(show(14, &["bob", "dave"]), ["bob", "dave"]);
        assert_eq!(show(14, &["alice", "bob", "carol", "dave"]), ["bob", "dave"]);
        assert_eq!(show(14, &["alice", "carol", "dave"]), ["alice", "dave"], "a place that is free is given");
        assert_eq!(show(18, &["alice", "bob", "carol", "dave"]), ["alice", "bob", "carol", "dave"]);
        assert_eq!(show(12, &["alice", "bob", "carol", "dave"]), ["alice"]);
        let dropped: Vec<_> = budget.dropped().collect();
        assert_eq!(dropped, [("gpu_tenant_held_seconds_total", (2 + 1 + 3) * 2)]);
    }

    #[test]
    fn a_workload_that_is_shown_keeps_its_series_when_others_come() {
        let mut budget = BudgetHistory::default();
        let mut show = |workloads: &[&str]| {
            let key = |name: &&str| ((*name).into(), "GPU-0".into(), None);
            let shown =
                budget.series_budget(4, 0).admit_workloads(&cost(), workloads.iter().map(key).collect());
            shown.into_iter().map(|(workload, _, _): WorkloadKey| workload.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(show(&["unit:b", "unit:d"]), ["unit:b", "unit:d"]);
        assert_eq!(show(&["unit:a", "unit:b", "unit:c", "unit:d"]), ["unit:b", "unit:d"]);
        assert_eq!(show(&["unit:a", "unit:c", "unit:d"]), ["unit:a", "unit:d"]);
    }

    #[test]
    fn what_always_stands_may_leave_nothing_for_the_rest() {
        let mut budget = BudgetHistory::default();
        assert_eq!(budget.series_budget(10, 99).admit(&cost(), 2), 0);
        assert!(budget.series_budget(10, 99).admit_accounts(names(&["alice"]), 0).is_empty());
    }

    #[test]
    fn processes_are_cut_evenly_and_the_rest_has_a_row() {
        assert_eq!(most_processes(&[5, 100, 0], 200, 200), Some(100));
        assert_eq!(most_processes(&[5, 100, 0], 20, 200), Some(20));
        assert_eq!(most_processes(&[5, 100, 0], 200, 16), Some(10));
        assert_eq!(rows(&[5, 100, 0], 10), 16);
        assert_eq!(most_processes(&[5, 100, 0], 200, 2), Some(0));
        assert_eq!(most_processes(&[5, 100, 0], 200, 1), None);
    }
}
