//! The limit on the series of a snapshot, and what is left off above it.
//!
//! The series of GPUs and of the agent itself are always published. What remains of the limit goes to tenants' accounts
//! first, then to workloads' accounts, budgets and costs of the month, holdings, workloads and processes. Series that are left off are counted by family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::TrackedGpu;
use super::committed::AccountKey;
use crate::catalogue::{
    AccountRows, Family, GpuRows, InstanceRows, Level, Point, Rows, families, numbered_families,
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
            | (Self::Holdings, Rows::Account(AccountRows::Holding))
            | (Self::Workloads, Rows::Account(AccountRows::WorkloadInfo)) => 1,
            _ => 0,
        }
    }
}

/// Series left off since the agent's start, by family.
pub(super) type DroppedSeries = BTreeMap<&'static str, u64>;

/// The series that a tick may still use.
pub(super) struct SeriesBudget<'a> {
    pub(super) level: Level,
    pub(super) dropped: &'a mut DroppedSeries,
    pub(super) left: usize,
}

impl SeriesBudget<'_> {
    /// The families in which an entry of the list has series, and how many in each.
    fn series_of(&self, list: SeriesList) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        let level = self.level;
        let published = families().filter(move |family| family.level <= level);
        published.map(move |family| (family.name, list.series_in(&family.rows)))
    }

    /// How many entries of the list still fit.
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

/// Upper bounds of the series of one GPU, by what its plan reads.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnSeries {
    fixed: usize,
    per_instance: usize,
    per_xid: usize,
    per_xid_action: usize,
}

impl OwnSeries {
    /// The series of a GPU with these readings; `readings` is empty for one without a frame.
    pub(super) fn of(readings: &[Reading], level: Level) -> Self {
        let mut readings = readings.iter();
        let mut read = |points: &[Point]| {
            let own = readings.by_ref().take(points.len());
            own.filter(|reading| !reading.is_err_and(Absence::is_permanent)).count()
        };
        let mut own = Self::default();
        // Families of higher levels are visited too: readings are in the order of all families.
        for (family, numbers) in numbered_families() {
            let series = series_of(family, numbers.integrals, &mut read);
            if family.level <= level {
                own.fixed += series.fixed;
                own.per_instance += series.per_instance;
                own.per_xid += series.per_xid;
                own.per_xid_action += series.per_xid_action;
            }
        }
        own
    }

    /// How many series the GPU has now.
    pub(super) fn count(self, gpu: &TrackedGpu, state: &GpuState) -> usize {
        let instances = gpu.frame.as_ref().map_or(0, |frame| frame.instances.len());
        let (codes, actions) = (state.xids.len(), state.xid_actions.len());
        // Slot time has a series for each instance that was ever in the account.
        let slots = state.instance_slots.len();
        self.fixed
            + slots
            + self.per_instance * instances
            + self.per_xid * codes
            + self.per_xid_action * actions
    }
}

/// The families of which `gpu_unsupported` may say that a GPU does not have them.
static ANSWERED_FAMILIES: LazyLock<usize> = LazyLock::new(|| {
    let is_answered =
        |family: &&Family| !family.rows.points().is_empty() || matches!(family.rows, Rows::Process(_));
    families().filter(is_answered).count()
});

fn series_of(family: &Family, integrals: usize, read: &mut impl FnMut(&[Point]) -> usize) -> OwnSeries {
    let none = OwnSeries::default();
    match &family.rows {
        Rows::Gpu(GpuRows::Read(points) | GpuRows::Flow(points)) => OwnSeries { fixed: read(points), ..none },
        // Only the current state is published.
        Rows::Gpu(GpuRows::State(points)) => OwnSeries { fixed: read(points).min(1), ..none },
        Rows::Gpu(GpuRows::Integrals { .. }) => OwnSeries { fixed: integrals, ..none },
        // `gpu_unsupported` has at most one series per family.
        Rows::Gpu(GpuRows::Unsupported) => OwnSeries { fixed: *ANSWERED_FAMILIES, ..none },
        Rows::Gpu(GpuRows::XidActionErrors) => OwnSeries { per_xid_action: 1, ..none },
        Rows::Gpu(GpuRows::XidErrors | GpuRows::XidLastTimestamp | GpuRows::XidInfo) => {
            OwnSeries { per_xid: 1, ..none }
        }
        Rows::Instance(InstanceRows::Info) => OwnSeries { per_instance: 1, ..none },
        Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
            OwnSeries { per_instance: points.len(), ..none }
        }
        Rows::Account(AccountRows::Unattributed) => {
            OwnSeries { fixed: UnattributedReason::ALL.len(), ..none }
        }
        Rows::Gpu(_) | Rows::Account(AccountRows::Slot) => OwnSeries { fixed: 1, ..none },
        Rows::Process(_) | Rows::Account(_) | Rows::Agent => none,
    }
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
