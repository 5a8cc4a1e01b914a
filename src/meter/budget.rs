//! The limit on the series of a snapshot, and what is left off above it.
//!
//! The series of GPUs and of the agent itself are always published. What remains of the limit goes to tenants' accounts
//! first, then to workloads' accounts, budgets and costs of the month, what is held without use, holdings, workloads and processes. Series that are left off are counted by family.

use std::collections::{BTreeMap, BTreeSet};

use super::TrackedGpu;
use super::committed::AccountKey;
use crate::model::catalogue::{
    AccountRows, Family, GpuRows, InstanceRows, Level, Point, PointId, Rows, families, numbered_families,
};
use crate::model::snapshot::GpuState;
use crate::model::{Absence, Reading, UnattributedReason};

/// A list of which entries may be left off.
#[derive(Clone, Copy)]
pub(super) enum SeriesList {
    Accounts,
    WorkloadAccounts,
    Budgets,
    MonthCosts,
    Unused,
    Holdings,
    Workloads,
    Processes,
}

impl SeriesList {
    /// How many series one of its entries has in a family of these rows.
    const fn series_in(self, rows: &Rows) -> usize {
        match (self, rows) {
            (Self::Accounts, Rows::Account(AccountRows::Tenant(points)))
            | (Self::WorkloadAccounts, Rows::Account(AccountRows::Workload(points))) => points.len(),
            (Self::Processes, Rows::Process(points)) => points.len(),
            (Self::Budgets, Rows::Account(AccountRows::Budget))
            | (Self::MonthCosts, Rows::Account(AccountRows::MonthCost))
            | (Self::Unused, Rows::Account(AccountRows::Unused))
            | (Self::Holdings, Rows::Account(AccountRows::Holding))
            | (Self::Workloads, Rows::Account(AccountRows::WorkloadInfo)) => 1,
            _ => 0,
        }
    }
}

/// Series left off since the agent's start, by family.
pub(super) type DroppedSeries = BTreeMap<&'static str, u64>;

pub(super) struct SeriesBudget<'a> {
    pub(super) level: Level,
    pub(super) dropped: &'a mut DroppedSeries,
    pub(super) left: usize,
}

impl SeriesBudget<'_> {
    fn series_of(&self, list: SeriesList) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        let level = self.level;
        let published = families().filter(move |family| family.level <= level);
        published.map(move |family| (family.name, list.series_in(&family.rows)))
    }

    pub(super) fn entries_left(&self, list: SeriesList) -> usize {
        let each: usize = self.series_of(list).map(|(_, count)| count).sum();
        self.left.checked_div(each).unwrap_or(usize::MAX)
    }

    /// Charges the budget for entries, and counts the series of those that are left off.
    pub(super) fn charge(&mut self, list: SeriesList, entries: usize, left_off: usize) {
        for (family, count) in self.series_of(list).filter(|(_, count)| *count > 0) {
            self.left = self.left.saturating_sub(entries * count);
            if left_off > 0 {
                *self.dropped.entry(family).or_default() += (left_off * count) as u64;
            }
        }
    }

    /// Charges for as many of the entries as fit, counts the others as left off, and returns how many fit.
    pub(super) fn admit(&mut self, list: SeriesList, entries: usize) -> usize {
        let fit = entries.min(self.entries_left(list));
        self.charge(list, fit, entries - fit);
        fit
    }
}

/// Selects the accounts that get series: those that had them before, then new ones, each in the order of `keys`. So an
/// account keeps its series when others come.
pub(super) fn select_accounts(
    before: &BTreeSet<AccountKey>,
    mut keys: Vec<AccountKey>,
    room: usize,
) -> BTreeSet<AccountKey> {
    if keys.len() > room {
        let known = keys.iter().filter(|key| before.contains(*key)).count();
        let (mut old, mut new) = (known.min(room), room.saturating_sub(known));
        keys.retain(|key| {
            let places = if before.contains(key) { &mut old } else { &mut new };
            let fits = *places > 0;
            *places = places.saturating_sub(1);
            fits
        });
    }
    keys.into_iter().collect()
}

/// The most processes per GPU that get a row of their own so that all rows fit; a GPU with more has one row for the
/// others. None where not even those rows fit.
pub(super) fn most_processes(counts: &[usize], wanted: usize, room: usize) -> Option<usize> {
    let most = counts.iter().copied().max().unwrap_or(0).min(wanted);
    (0..=most).rev().find(|limit| process_rows(counts, *limit) <= room)
}

/// Number of rows if each GPU has at most `limit` processes with rows of their own, and one row for the others.
pub(super) fn process_rows(counts: &[usize], limit: usize) -> usize {
    counts.iter().map(|count| (*count).min(limit) + usize::from(*count > limit)).sum()
}

/// The most series that one GPU may have now, by what its plan reads.
pub(super) fn own_series(gpu: &TrackedGpu, state: &GpuState, level: Level) -> usize {
    let frame = gpu.frame.as_deref();
    let readings = frame.map_or(&[] as &[Reading], |frame| &frame.readings);
    let instances = frame.map_or(0, |frame| frame.instances.len());
    let read = |first: PointId, points: &[Point]| {
        let own = readings.iter().skip(first).take(points.len());
        own.filter(|reading| !reading.is_err_and(Absence::is_permanent)).count()
    };
    let is_answered =
        |family: &&Family| !family.rows.points().is_empty() || matches!(family.rows, Rows::Process(_));
    let published = numbered_families().filter(|(family, _)| family.level <= level);
    let series = published.map(|(family, numbers)| match &family.rows {
        Rows::Gpu(GpuRows::Read(points) | GpuRows::Flow(points)) => read(numbers.point, points),
        // Only the current state is published.
        Rows::Gpu(GpuRows::State(points)) => read(numbers.point, points).min(1),
        Rows::Gpu(GpuRows::Integrals { .. }) => numbers.integrals,
        // It has at most one of each family that is read.
        Rows::Gpu(GpuRows::Unsupported) => families().filter(is_answered).count(),
        Rows::Gpu(GpuRows::XidActionErrors) => state.xid_actions.len(),
        Rows::Gpu(GpuRows::XidErrors | GpuRows::XidLastTimestamp | GpuRows::XidInfo) => state.xids.len(),
        Rows::Instance(InstanceRows::Info) => instances,
        Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
            points.len() * instances
        }
        Rows::Account(AccountRows::Unattributed) => UnattributedReason::ALL.len(),
        // One for each instance that was ever in the account.
        Rows::Account(AccountRows::Slot) => 1 + state.instance_slots.len(),
        Rows::Gpu(_) => 1,
        Rows::Process(_) | Rows::Account(_) | Rows::Agent => 0,
    });
    series.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_with_series_keeps_them_when_others_come_before_it() {
        let mut before = BTreeSet::new();
        let mut select = |room, tenants: &[&str]| {
            let key =
                |name: &&str| AccountKey { owner: (*name).into(), uuid: "GPU-0".into(), gpu_instance: None };
            before = select_accounts(&before, tenants.iter().map(key).collect(), room);
            before.iter().map(|key| key.owner.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(select(2, &["bob", "dave"]), ["bob", "dave"]);
        assert_eq!(select(2, &["alice", "bob", "carol", "dave"]), ["bob", "dave"]);
        assert_eq!(select(2, &["alice", "carol", "dave"]), ["alice", "dave"], "a free place is filled");
        assert_eq!(select(4, &["alice", "bob", "carol", "dave"]), ["alice", "bob", "carol", "dave"]);
        assert_eq!(select(1, &["alice", "bob", "carol", "dave"]), ["alice"]);
        assert!(select(0, &["alice"]).is_empty());
    }

    #[test]
    fn series_above_the_limit_are_left_off_and_counted_by_family() {
        let mut dropped = DroppedSeries::new();
        let mut admit = |left, entries| {
            let mut budget = SeriesBudget { level: Level::Full, dropped: &mut dropped, left };
            budget.admit(SeriesList::Holdings, entries)
        };
        assert_eq!([admit(2, 2), admit(2, 3), admit(0, 2)], [2, 2, 0]);
        assert_eq!(dropped, BTreeMap::from([("gpu_holding_ratio", 1 + 2)]));
    }

    #[test]
    fn processes_without_rows_of_their_own_share_one_row_per_gpu() {
        assert_eq!(most_processes(&[5, 100, 0], 200, 200), Some(100));
        assert_eq!(most_processes(&[5, 100, 0], 20, 200), Some(20));
        assert_eq!(most_processes(&[5, 100, 0], 200, 16), Some(10));
        assert_eq!(process_rows(&[5, 100, 0], 10), 16);
        assert_eq!(most_processes(&[5, 100, 0], 200, 2), Some(0));
        assert_eq!(most_processes(&[5, 100, 0], 200, 1), None);
    }
}
