//! Makes the report of costs from the cache.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use rusqlite::{Connection, OpenFlags};

use super::facts::PeriodFacts;
use super::rank::{GroupFinder, Ranked, Ranking, RowNames, is_ranked};
use super::reduce::ReducedKeys;
use super::store::{
    BY_HOUR, BY_NODE, BY_WORKLOAD, KeyReader, SumTable, date_number, day_number, day_of, ids_of,
    read_amounts, read_rows,
};
use super::{BUSY, CacheError};
use crate::accounting::billing::costs::{
    CostDraft, CostKey, CostRanges, CostReport, CostRequest, CostSums, HourSums, LocalHour, local_hours,
};
use crate::accounting::billing::day_begin;
use crate::model::Utc;

/// Reads the cache of a fleet while another thread fills it.
#[derive(Clone, Debug)]
pub struct CostCacheReader {
    pub(super) path: PathBuf,
    pub(super) zone: TimeZone,
}

impl CostCacheReader {
    /// The zone of its days, in which requests are meant.
    pub const fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The costs that are asked for. `is_cancelled` is asked often, and ends it. `refused` is what the last look found and did
    /// not read.
    ///
    /// # Errors
    /// The request is of a time that the exports do not have, or that has two currencies; nothing is filled yet; the cache
    /// cannot be read.
    pub fn costs(
        &self,
        request: &CostRequest,
        refused: &[String],
        is_cancelled: impl FnMut() -> bool + Send + 'static,
    ) -> Result<CostReport, CacheError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch("PRAGMA temp_store = MEMORY")?;
        connection.progress_handler(10_000, Some(is_cancelled))?;
        // All of it is of one commit.
        let connection = connection.unchecked_transaction()?;
        let account = PeriodFacts::account(&connection)?.ok_or(CacheError::Unfilled)?;
        let mut ranges = request.ranges(account).map_err(CacheError::Request)?;
        let by_hour = ranges.before.is_some_and(|[_, to]| !self.is_day_begin(to));
        ranges.before = ranges.before.and_then(|before| self.comparable(before, by_hour, request));
        let facts = PeriodFacts::read(&connection, &ranges)?;
        let tenants = facts.tenants();
        let keys = KeyReader::new(&connection);
        let finder = is_ranked(request).then(|| GroupFinder::new(request, &tenants.attributes, &keys));
        let mut feed = Feed {
            connection: &connection,
            zone: &self.zone,
            request,
            keys,
            reduced: ReducedKeys::of(request),
            ranked: finder.transpose()?.map(|finder| (finder, Ranked::default())),
            draft: CostDraft::new(request, &ranges, &tenants),
        };
        feed.add(&ranges, by_hour, facts.has_money())?;
        let Feed { keys, draft, .. } = feed;
        let cost_facts = facts.cost_facts(request, &ranges, &keys, refused);
        Ok(draft.finish(cost_facts)?)
    }

    fn is_day_begin(&self, at: Utc) -> bool {
        day_begin(date_in(at, &self.zone), &self.zone) == Some(at)
    }

    /// The period before, as far as the cache has it: within a day it has hours of tenants only.
    fn comparable(&self, [from, to]: [Utc; 2], by_hour: bool, request: &CostRequest) -> Option<[Utc; 2]> {
        if !by_hour {
            return Some([from, to]);
        }
        let keeps_rows = !request.group.needs_days() && !request.group.detail().workload;
        if !request.filters_tenants_only() || (keeps_rows && !request.groups_tenants_only()) {
            return None;
        }
        let hours = local_hours([from, to], &self.zone);
        let whole = hours.iter().rev().find(|hour| !self.is_cut(hour, to))?;
        Some([from, whole.end])
    }

    /// Whether an hour is cut at that time.
    fn is_cut(&self, hour: &LocalHour, at: Utc) -> bool {
        const SECOND: u64 = 1_000_000_000;
        hour.end == at && local_hours([hour.begin, Utc(at.0 + SECOND)], &self.zone).len() == 1
    }
}

fn date_in(at: Utc, zone: &TimeZone) -> Date {
    Timestamp::from(at).to_zoned(zone.clone()).date()
}

/// Which sums of a report are fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fed {
    Period,
    Before,
}

/// Feeds the rows of the cache into a report.
struct Feed<'a, 'd> {
    connection: &'a Connection,
    zone: &'a TimeZone,
    request: &'d CostRequest,
    keys: KeyReader<'a>,
    reduced: ReducedKeys,
    /// Which of millions of groups are named.
    ranked: Option<(GroupFinder<'d>, Ranked)>,
    draft: CostDraft<'d>,
}

/// The ids of the rows of a time and the numbers of its local days; none of an empty time.
fn rows_of([from, to]: [Utc; 2], zone: &TimeZone) -> Option<([i64; 2], RangeInclusive<i64>)> {
    let last = Utc(to.0.checked_sub(1).filter(|last| from.0 <= *last)?);
    let [first_day, last_day] = [from, last].map(|at| day_number(date_in(at, zone)));
    Some((ids_of([from, last].map(date_number)), first_day..=last_day))
}

impl Feed<'_, '_> {
    fn add(&mut self, ranges: &CostRanges, by_hour: bool, has_money: bool) -> Result<(), CacheError> {
        let CostRanges { period, before, weeks, .. } = ranges;
        if let Some((mut finder, _)) = self.ranked.take() {
            let ranked = self.rank(&mut finder, *period, has_money)?;
            self.draft.count_rest(ranked.others);
            self.ranked = Some((finder, ranked));
        }
        self.add_days(*period, Fed::Period)?;
        match before {
            Some(before) if by_hour => {
                self.add_hours(*before, |draft, key, _, sums| {
                    draft.add_before(key, sums).map_err(Into::into)
                })?;
            }
            Some(before) => self.add_days(*before, Fed::Before)?,
            None => {}
        }
        if self.request.filters_tenants_only() {
            let from = weeks.iter().chain([period]).map(|[from, _]| *from).min().unwrap_or_default();
            self.add_hours([from, period[1]], |draft, key, hour, sums| {
                Ok(draft.add_hour(key, hour, &HourSums::of(&key.tenant, sums))?)
            })?;
        }
        Ok(())
    }

    /// The groups of the period that cost most.
    fn rank(
        &mut self,
        finder: &mut GroupFinder<'_>,
        period: [Utc; 2],
        has_money: bool,
    ) -> Result<Ranked, CacheError> {
        let mut ranking = Ranking::default();
        if let Some((ids, days)) = rows_of(period, self.zone) {
            let amount = if has_money { "money" } else { "within + lent + idle + unmeasured + unavailable" };
            if self.reduced.needs_workloads() {
                self.rank_rows::<6>((BY_WORKLOAD, amount), (ids, days), finder, &mut ranking)?;
            } else {
                self.rank_rows::<3>((BY_NODE, amount), (ids, days), finder, &mut ranking)?;
            }
        }
        Ok(ranking.finish(self.request.top))
    }

    fn rank_rows<const KEYS: usize>(
        &mut self,
        amount: (SumTable, &str),
        (ids, days): ([i64; 2], RangeInclusive<i64>),
        finder: &mut GroupFinder<'_>,
        ranking: &mut Ranking,
    ) -> Result<(), CacheError>
    where
        RowNames: From<[i64; KEYS]>,
    {
        let Self { connection, keys, request, .. } = self;
        read_amounts(connection, amount, ids, days, |row: [i64; KEYS], sum| {
            let names = RowNames::from(row);
            let of_tenant = keys.key(names.key)?;
            if request.visible.shows(&of_tenant.tenant, |_| None)
                && let Some(group) = finder.group(keys, &of_tenant, names)?
            {
                ranking.add(group, sum);
            }
            Ok(())
        })
    }

    fn add_days(&mut self, range: [Utc; 2], fed: Fed) -> Result<(), CacheError> {
        let Some(rows) = rows_of(range, self.zone) else { return Ok(()) };
        if self.reduced.needs_workloads() {
            self.add_rows::<6>(BY_WORKLOAD, rows, fed)
        } else {
            self.add_rows::<3>(BY_NODE, rows, fed)
        }
    }

    fn add_rows<const KEYS: usize>(
        &mut self,
        table: SumTable,
        (ids, days): ([i64; 2], RangeInclusive<i64>),
        fed: Fed,
    ) -> Result<(), CacheError>
    where
        RowNames: From<[i64; KEYS]>,
    {
        let Self { connection, request, keys, reduced, ranked, draft, .. } = self;
        read_rows(connection, table, ids, days, |row: [i64; KEYS], sums| {
            let names = RowNames::from(row);
            let of_tenant = keys.key(names.key)?;
            if !request.visible.shows(&of_tenant.tenant, |_| None) {
                return Ok(());
            }
            let day = day_of(names.day);
            if let Some((finder, ranked)) = ranked {
                match finder.group(keys, &of_tenant, names)? {
                    Some(group) if ranked.names(group) => {}
                    group => {
                        match fed {
                            Fed::Period => draft.add_rest(&of_tenant, day, &sums, group.is_some())?,
                            Fed::Before if group.is_some() => draft.add_rest_before(&sums)?,
                            Fed::Before => {}
                        }
                        return Ok(());
                    }
                }
            }
            let key = if reduced.has_labels() { reduced.key(keys, &of_tenant, names)? } else { of_tenant };
            match fed {
                Fed::Period => draft.add(&key, day, &sums)?,
                Fed::Before => draft.add_before(&key, &sums)?,
            }
            Ok(())
        })
    }

    fn add_hours(
        &mut self,
        range: [Utc; 2],
        mut add: impl FnMut(&mut CostDraft<'_>, &Arc<CostKey>, &LocalHour, &CostSums) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        let [from, to] = range;
        if from >= to {
            return Ok(());
        }
        let hours = local_hours(range, self.zone);
        let seconds = |at: Utc| (at.0 / 1_000_000_000).cast_signed();
        let ids = ids_of([from, Utc(to.0 - 1)].map(date_number));
        let Self { connection, keys, draft, .. } = self;
        let mut tenants = HashMap::<i64, Arc<CostKey>>::new();
        read_rows(connection, BY_HOUR, ids, seconds(from)..=seconds(to) - 1, |[at, tenant], sums| {
            let place = hours.partition_point(|hour| seconds(hour.begin) <= at).saturating_sub(1);
            let Some(hour) = hours.get(place) else { return Ok(()) };
            if let std::collections::hash_map::Entry::Vacant(vacant) = tenants.entry(tenant) {
                let key = CostKey { tenant: keys.name(tenant)?, ..CostKey::default() };
                vacant.insert(Arc::new(key));
            }
            let key = Arc::clone(&tenants[&tenant]);
            add(draft, &key, hour, &sums)
        })
    }
}

/// Nodes by cluster and name.
pub(super) type NodeNames = BTreeSet<(Option<String>, String)>;

/// What a reader knows of keys.
pub(super) fn nodes_of(keys: &KeyReader<'_>, request: &CostRequest) -> NodeNames {
    let visible = keys.all().filter(|key| request.visible.shows(&key.tenant, |_| None));
    visible.map(|key| (key.node.cluster.clone(), key.node.name.clone())).collect()
}

/// The labels of a holder, by name.
pub(super) type Labels = BTreeMap<String, String>;
