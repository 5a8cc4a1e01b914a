//! The last ten minutes of each GPU, and what tenants held and used in the last minutes, for people who look.
//!
//! Each GPU has four series of 120 points, one per 5 s, with mean and maximum of the ticks in it: 3,840 bytes, allocated
//! when the GPU is first seen and dropped with it. Of tenants there are six sums of the account, one a minute.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::model::catalogue::{AccountValue, KnownPoint, known_point};
use crate::model::snapshot::{AccountState, GpuState, Snapshot};
use crate::model::{Nanoseconds, Utc};

pub const HISTORY_POINTS: usize = 120;

pub const HISTORY_STEP: Nanoseconds = Nanoseconds::from_seconds(5);

/// Activity at or above this share counts as activity, in billionths; below it a GPU is idle.
const ACTIVE: i64 = 10_000_000;

/// A GPU becomes busy at this share of time, and stays busy until its activity falls below `NOT_BUSY`.
const BUSY: f64 = 0.9;
const NOT_BUSY: f64 = 0.85;

/// How many sums of the account are kept, and the time between two of them.
const SUMS: usize = 11;
const SUM_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(30);

const MEMORY: KnownPoint = known_point("gpu_memory_used_bytes", None);
const POWER: KnownPoint = known_point("gpu_power_watts", None);
const TEMPERATURE: KnownPoint = known_point("gpu_temperature_celsius", Some("gpu"));

pub const HISTORY_SERIES: [&str; 4] = ["activity", "memory", "power", "temperature"];

/// One point: mean and maximum of the ticks in it; not a number where there was no value.
#[derive(Clone, Copy, Debug)]
pub struct HistoryPoint {
    pub mean: f32,
    pub most: f32,
}

const NO_POINT: HistoryPoint = HistoryPoint { mean: f32::NAN, most: f32::NAN };

/// The last ten minutes of one GPU.
#[derive(Clone, Debug)]
pub struct GpuHistory {
    points: Box<[[HistoryPoint; HISTORY_POINTS]; HISTORY_SERIES.len()]>,
    /// The number of the newest point; its place is the remainder by the number of points.
    newest: u64,
    counts: [u32; HISTORY_SERIES.len()],
    /// When it was last active; none since the first record.
    active: Option<Utc>,
    busy: bool,
}

impl GpuHistory {
    fn new(step: u64) -> Self {
        Self {
            points: Box::new([[NO_POINT; HISTORY_POINTS]; HISTORY_SERIES.len()]),
            newest: step,
            counts: [0; HISTORY_SERIES.len()],
            active: None,
            busy: false,
        }
    }

    fn record(&mut self, step: u64, values: [Option<f64>; HISTORY_SERIES.len()]) {
        let missed = step.saturating_sub(self.newest).min(HISTORY_POINTS as u64);
        for number in (step + 1 - missed)..=step {
            self.points.iter_mut().for_each(|series| series[place(number)] = NO_POINT);
            self.counts = [0; HISTORY_SERIES.len()];
        }
        self.newest = self.newest.max(step);
        // A GPU around one threshold would change its words with each tick.
        self.busy = values[0].is_some_and(|activity| activity >= if self.busy { NOT_BUSY } else { BUSY });
        for ((series, count), value) in self.points.iter_mut().zip(&mut self.counts).zip(values) {
            let Some(value) = value else { continue };
            let (point, value) = (&mut series[place(self.newest)], value as f32);
            *count += 1;
            *point = match *count {
                1 => HistoryPoint { mean: value, most: value },
                count => HistoryPoint {
                    mean: point.mean + (value - point.mean) / count as f32,
                    most: point.most.max(value),
                },
            };
        }
    }

    /// The points of a series by its place in [`HISTORY_SERIES`], oldest first.
    pub fn points(&self, series: usize) -> impl Iterator<Item = HistoryPoint> {
        let first = place(self.newest + 1);
        (0..HISTORY_POINTS).map(move |number| self.points[series][(first + number) % HISTORY_POINTS])
    }

    /// Whether it is busy: at 90 % of the time or more, and then until it falls below 85 %.
    pub const fn is_busy(&self) -> bool {
        self.busy
    }

    /// Since when it has been idle, where `watched` is when the record began; none while it is active.
    pub fn idle_since(&self, watched: Utc, state: &GpuState) -> Option<Utc> {
        state.activity.ok().filter(|activity| state.is_up() && *activity < ACTIVE)?;
        Some(self.active.unwrap_or(watched))
    }
}

const fn place(number: u64) -> usize {
    (number % HISTORY_POINTS as u64) as usize
}

/// Held, used and idle time of a tenant, in nanoseconds.
type TenantSums = [i128; 3];

/// What a tenant held, used and left idle in the last minutes, in GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecentUse {
    pub held: f64,
    pub used: f64,
    /// Held and used by nobody.
    pub idle: f64,
    /// Account time that these are means over.
    pub span: Nanoseconds,
}

#[derive(Clone, Debug)]
struct AccountSums {
    at: Nanoseconds,
    slots: BTreeMap<Arc<str>, i64>,
    tenants: BTreeMap<Arc<str>, TenantSums>,
}

impl AccountSums {
    fn of(snapshot: &Snapshot) -> Self {
        let gpus = snapshot.roster.gpus.iter().zip(&snapshot.gpus);
        let slot = |state: &GpuState| {
            state.slot.unwrap_or(0) + state.instance_slots.iter().map(|(_, time)| time).sum::<i64>()
        };
        let mut tenants: BTreeMap<Arc<str>, TenantSums> = BTreeMap::new();
        for (entry, AccountState { values }) in snapshot.roster.accounts.iter().zip(&*snapshot.accounts) {
            let sums = tenants.entry(Arc::clone(&entry.owner)).or_default();
            let kinds = [AccountValue::Held, AccountValue::Used, AccountValue::Idle];
            for (sum, kind) in sums.iter_mut().zip(kinds) {
                *sum += values[kind as usize].unwrap_or(0);
            }
        }
        Self {
            at: snapshot.at.boottime,
            slots: gpus.map(|(entry, state)| (Arc::clone(&entry.id.uuid), slot(state))).collect(),
            tenants,
        }
    }
}

/// What people see beside the current snapshot; recorded at every tick.
#[derive(Clone, Debug, Default)]
pub struct History {
    gpus: BTreeMap<Arc<str>, GpuHistory>,
    sums: VecDeque<AccountSums>,
    /// The accounts of the last tick, to detect that they have changed.
    accounts: Arc<[AccountState]>,
}

impl History {
    pub fn record(&mut self, snapshot: &Snapshot) {
        let step = snapshot.at.boottime.0 / HISTORY_STEP.0;
        if self.gpus.len() > snapshot.roster.gpus.len() {
            let is_known = |uuid: &Arc<str>| snapshot.roster.gpus.iter().any(|gpu| gpu.id.uuid == *uuid);
            self.gpus.retain(|uuid, _| is_known(uuid));
        }
        for (entry, state) in snapshot.roster.gpus.iter().zip(&snapshot.gpus) {
            let value = |point: KnownPoint| {
                let value = state.reading(point.id, point.tier).ok()? as f64;
                Some(value / 10_f64.powi(point.unit.decimals().into()))
            };
            let activity = state.activity.ok().filter(|_| state.is_up());
            let ratio = activity.map(|activity| activity as f64 / 1e9);
            let values = [ratio, value(MEMORY), value(POWER), value(TEMPERATURE)];
            if !self.gpus.contains_key(&entry.id.uuid) {
                self.gpus.insert(Arc::clone(&entry.id.uuid), GpuHistory::new(step));
            }
            let Some(history) = self.gpus.get_mut(&entry.id.uuid) else { continue };
            history.record(step, values);
            if activity.is_some_and(|activity| activity >= ACTIVE) {
                history.active = Some(snapshot.at.utc);
            }
        }
        self.record_accounts(snapshot);
    }

    fn record_accounts(&mut self, snapshot: &Snapshot) {
        if Arc::ptr_eq(&self.accounts, &snapshot.accounts) {
            return;
        }
        self.accounts = Arc::clone(&snapshot.accounts);
        let last = self.sums.back().map(|sums| snapshot.at.boottime.0.saturating_sub(sums.at.0));
        if last.is_none_or(|age| age >= SUM_INTERVAL.0) {
            if self.sums.len() == SUMS {
                self.sums.pop_front();
            }
            self.sums.push_back(AccountSums::of(snapshot));
        }
    }

    pub fn gpu(&self, uuid: &str) -> Option<&GpuHistory> {
        self.gpus.get(uuid)
    }

    /// What each tenant held and used since the oldest sums that have it. The first increments of a new series are held
    /// back and come at once, so sums of 0 do not count.
    pub fn recent(&self, snapshot: &Snapshot) -> BTreeMap<Arc<str>, RecentUse> {
        let now = AccountSums::of(snapshot);
        let recent = now.tenants.iter().filter_map(|(tenant, sums)| {
            let has_tenant =
                |before: &&AccountSums| before.tenants.get(tenant).is_some_and(|sums| sums[0] + sums[1] > 0);
            let before = self.sums.iter().find(has_tenant)?;
            let grown = |(uuid, slot): (&Arc<str>, &i64)| slot - before.slots.get(uuid).unwrap_or(slot);
            let span = u64::try_from(now.slots.iter().map(grown).max()?).ok().filter(|span| *span > 0)?;
            let then = before.tenants.get(tenant)?;
            let [held, used, idle] =
                [0, 1, 2].map(|kind| (sums[kind] - then[kind]).max(0) as f64 / span as f64);
            let idle = idle.min(held);
            Some((Arc::clone(tenant), RecentUse { held, used, idle, span: Nanoseconds(span) }))
        });
        recent.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(history: &GpuHistory) -> Vec<f32> {
        history.points(0).map(|point| point.mean).filter(|mean| !mean.is_nan()).collect()
    }

    #[test]
    fn a_point_has_mean_and_maximum_of_its_ticks() {
        let mut history = GpuHistory::new(7);
        for value in [0.25, 0.75, 0.5] {
            history.record(7, [Some(value), None, None, None]);
        }
        let newest = history.points(0).last();
        assert_eq!(newest.map(|point| (point.mean, point.most)), Some((0.5, 0.75)));
        assert!(history.points(1).all(|point| point.mean.is_nan()), "without a value there is no point");
        history.record(8, [None; 4]);
        assert!(history.points(0).last().is_some_and(|point| point.mean.is_nan()));
        assert_eq!(means(&history), [0.5]);
    }

    #[test]
    fn a_gpu_is_busy_from_90_percent_on_until_it_falls_below_85() {
        let mut history = GpuHistory::new(7);
        let busy = [0.89, 0.9, 0.86, 0.91, 0.85, 0.84, 0.89].map(|activity| {
            history.record(7, [Some(activity), None, None, None]);
            history.is_busy()
        });
        assert_eq!(busy, [false, true, true, true, true, false, false]);
        history.record(7, [Some(0.95), None, None, None]);
        history.record(7, [None; 4]);
        assert!(!history.is_busy(), "what is not measured is not busy");
    }

    #[test]
    fn a_series_has_its_last_points_only_and_gaps_where_there_was_no_tick() {
        let mut history = GpuHistory::new(0);
        for step in 0..1_000 {
            history.record(step, [Some(step as f64), None, None, None]);
        }
        assert_eq!(means(&history), (880..1_000).map(|step| step as f32).collect::<Vec<_>>());
        history.record(1_060, [Some(1.0), None, None, None]);
        assert_eq!(means(&history).len(), 60, "59 of the old points, and the new one");
        history.record(9_999, [Some(2.0), None, None, None]);
        assert_eq!(means(&history), [2.0]);
    }

    #[test]
    fn the_memory_of_a_gpu_is_what_the_page_says() {
        assert_eq!(size_of::<[[HistoryPoint; HISTORY_POINTS]; HISTORY_SERIES.len()]>(), 3_840);
    }
}
