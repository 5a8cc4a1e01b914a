//! Reads what fit and demand are answered from: rows of the account of some holders, sums of quarter hours, shapes and runs.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, params};

use super::advice::source;
use super::billing::{HOLDERS, StoredAccount, load_profiles};
use super::column::{loaded, loaded_instance, loaded_optional, rows, stored};
use super::error::Cause;
use super::evidence::loaded_series;
use super::node::NodeHistory;
use super::reader;
use crate::accounting::advice::PERIOD;
use crate::accounting::billing::{DayGpu, ExactMoney, PricedSlot, SlotRates};
use crate::accounting::planning::{
    Demand, DemandDraft, DemandQuarter, DemandRequest, DemandRun, Fit, FitDraft, FitRequest, FitRow,
    LastPrice,
};
use crate::accounting::tenants::recurring_name;
use crate::model::{Bytes, HolderId, MigProfile, Nanoseconds, QUARTER_HOUR, SHAPE_COLUMNS, Shape, Utc};

/// Held time of a row of the account.
const HELD: &str = "within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns";
const USED: &str = "used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns";

pub(super) fn make_fit(connection: &Connection, request: &FitRequest) -> Result<Fit, Cause> {
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS, [])?)?;
    let to = account.closed_until();
    let from = Utc(to.0.saturating_sub(PERIOD.0)).max(account.rolled.deleted_until).floor(QUARTER_HOUR);
    let mut draft = FitDraft::new(request.clone(), [from, to]);
    let prices = Prices::load(&account, to)?;
    draft.currency = prices.currency.clone();
    for (_, gpu) in &account.gpus {
        draft.add_gpu(&gpu.gpu.uuid, &gpu.model, gpu.memory);
        draft.add_price(&gpu.model, None, LastPrice::at(to, prices.rate(&account, gpu, 0, to)));
        for (key, profile) in &prices.profiles {
            let price = LastPrice::at(to, prices.rate(&account, gpu, *key, to));
            draft.add_price(&gpu.model, Some(profile), price);
        }
    }
    let mut parts = HashMap::<i64, (usize, Arc<str>)>::new();
    let sql = "SELECT id, name, version FROM holder";
    let keys: Vec<(i64, HolderId)> = rows(connection, sql, [], |row| {
        let name: String = row.get(1)?;
        Ok((row.get(0)?, HolderId::new(name).with_version(loaded(row, 2)?)))
    })?;
    for (key, id) in keys.iter().filter(|(_, id)| !id.is_remainder()) {
        let holder = account.holder(id);
        let part = request.part_of(&holder, &recurring_name(&holder)).map_err(Cause::Request)?;
        parts.extend(part.map(|part| (*key, (part, id.name().into()))));
    }
    read_fit(&account, &prices, &parts, &mut draft, [from, to])?;
    draft.finish(source(&account)?).map_err(Cause::Request)
}

/// Reads the rows and shapes of some holders, each with its part.
fn read_fit(
    account: &StoredAccount<'_>,
    prices: &Prices,
    parts: &HashMap<i64, (usize, Arc<str>)>,
    draft: &mut FitDraft,
    [from, to]: [Utc; 2],
) -> Result<(), Cause> {
    let keys = serde_json::to_string(&parts.keys().collect::<Vec<_>>())?;
    let gpus: HashMap<i64, &DayGpu> = account.gpus.iter().map(|(key, gpu)| (*key, gpu)).collect();
    let sql = format!(
        "SELECT minute_ns, gpu, gpu_instance, profile, holder, {HELD}, {USED}, unmeasured_ns + unavailable_ns, memory_peak_kib
         FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2 AND holder IN (SELECT value FROM json_each(?3))
         ORDER BY minute_ns"
    );
    for [begin, end] in account.spans([from, to], []) {
        let mut rates = HashMap::<(i64, i64), Option<i64>>::new();
        let mut statement = account.connection.prepare_cached(&sql)?;
        let mut found = statement.query(params![stored(begin.0)?, stored(end.0)?, keys])?;
        while let Some(row) = found.next()? {
            let (key, profile): (i64, i64) = (row.get(1)?, row.get(3)?);
            let Some(gpu) = gpus.get(&key) else { continue };
            let Some((part, holder)) = parts.get(&row.get(4)?) else { continue };
            let peak: u64 = loaded(row, 8)?;
            // While minutes are rolled up, some are still there beside the sum of their quarter hour.
            let from = account.rolled.row_of(Utc(loaded(row, 0)?));
            let rate =
                rates.entry((key, profile)).or_insert_with(|| prices.rate(account, gpu, profile, begin));
            draft.add(&FitRow {
                from,
                to: account.rolled.end_of(from),
                part: *part,
                uuid: Arc::clone(&gpu.gpu.uuid),
                gpu_instance: loaded_instance(row, 2)?,
                holder: Arc::clone(holder),
                held: Nanoseconds(loaded(row, 5)?),
                used: Nanoseconds(loaded(row, 6)?),
                unknown: Nanoseconds(loaded(row, 7)?),
                memory_peak: Bytes(peak.saturating_mul(1024)),
                rate: *rate,
            });
        }
    }
    let sql = format!(
        "SELECT holder, series, {} FROM shape WHERE begin_ns >= ?1 AND holder IN (SELECT value FROM json_each(?2))",
        SHAPE_COLUMNS.join(",")
    );
    let shapes: Vec<_> = rows(account.connection, &sql, params![stored(from.0)?, keys], |row| {
        let mut shape = Shape::default();
        for (place, time) in shape.0.iter_mut().enumerate() {
            *time = loaded(row, 2 + place)?;
        }
        Ok((row.get::<_, i64>(0)?, loaded_series(row, 1)?, shape))
    })?;
    for (holder, series, shape) in shapes {
        if let Some((part, _)) = parts.get(&holder) {
            draft.add_shape(*part, series, &shape);
        }
    }
    Ok(())
}

/// The prices of slots in the currency of the last ones.
struct Prices {
    currency: Option<String>,
    profiles: HashMap<i64, MigProfile>,
}

impl Prices {
    fn load(account: &StoredAccount<'_>, to: Utc) -> Result<Self, Cause> {
        Ok(Self { currency: account.currency(to), profiles: load_profiles(account.connection)? })
    }

    /// Nano-units per GPU-hour of a GPU, or of an instance of a profile on it; none without a price in that currency.
    fn rate(&self, account: &StoredAccount<'_>, gpu: &DayGpu, profile: i64, at: Utc) -> Option<i64> {
        let profile = self.profiles.get(&profile);
        let slot = PricedSlot { uuid: &gpu.gpu.uuid, model: &gpu.model, profile };
        let rates = SlotRates::find(&account.rates, slot, at);
        let is_known = self.currency.as_deref() == Some(&*rates.tariff()?.currency);
        is_known.then(|| rates.nano_per_gpu_hour())
    }
}

pub(super) fn make_demand(connection: &Connection, request: &DemandRequest) -> Result<Demand, Cause> {
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS, [])?)?;
    let [from, to] = request.period(account.closed_until());
    let from = from.max(account.rolled.deleted_until);
    let mut draft = DemandDraft::new(request.clone(), [from, to]);
    let nodes = NodeHistory::load(connection)?;
    let prices = Prices::load(&account, to)?;
    draft.currency = prices.currency.clone();
    read_times(&account, request, &prices, &nodes, &mut draft, [from, to])?;
    let sql = format!(
        "SELECT minute_ns / ?3 * ?3,
                sum(CASE WHEN kind <> 'remainder' THEN {HELD} ELSE 0 END), sum({USED}),
                sum(CASE WHEN kind <> 'remainder' THEN idle_ns ELSE 0 END),
                sum(CASE WHEN name = '__unallocated__' THEN {HELD} ELSE 0 END)
         FROM account JOIN holder ON holder.id = holder WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY 1"
    );
    let period = params![stored(from.0)?, stored(to.0)?, stored(QUARTER_HOUR.0)?];
    let quarters: Vec<(Utc, DemandQuarter)> = rows(connection, &sql, period, |row| {
        let quarter = DemandQuarter {
            held: loaded(row, 1)?,
            used: loaded(row, 2)?,
            idle: loaded(row, 3)?,
            unallocated: loaded(row, 4)?,
            ..DemandQuarter::default()
        };
        Ok((Utc(loaded(row, 0)?), quarter))
    })?;
    for (at, quarter) in quarters {
        if request.counts(nodes.at(at).pool.as_deref()) {
            draft.add(at, &quarter);
        }
    }
    let sql = "SELECT run.name, holder.name, begin_ns, first_use_ns FROM run JOIN holder ON holder.id = holder WHERE end_ns >= ?1";
    let runs: Vec<DemandRun> = rows(connection, sql, [stored(from.0)?], |row| {
        Ok(DemandRun {
            name: row.get(0)?,
            workload: row.get(1)?,
            begin: Utc(loaded(row, 2)?),
            first_use: loaded_optional(row, 3)?.map(Utc),
        })
    })?;
    for run in runs {
        if request.counts(nodes.at(run.begin).pool.as_deref()) {
            draft.add_run(run);
        }
    }
    draft.finish(source(&account)?).map_err(Cause::Request)
}

/// Reads the time of all GPUs, with what it cost.
fn read_times(
    account: &StoredAccount<'_>,
    request: &DemandRequest,
    prices: &Prices,
    nodes: &NodeHistory,
    draft: &mut DemandDraft,
    [from, to]: [Utc; 2],
) -> Result<(), Cause> {
    let gpus: HashMap<i64, &DayGpu> = account.gpus.iter().map(|(key, gpu)| (*key, gpu)).collect();
    for [begin, end] in account.spans([from, to], []) {
        let sql = "SELECT minute_ns / ?3 * ?3, gpu, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY 1, 2";
        let period = params![stored(begin.0)?, stored(end.0)?, stored(QUARTER_HOUR.0)?];
        let times: Vec<(Utc, i64, u64)> = rows(account.connection, sql, period, |row| {
            Ok((Utc(loaded(row, 0)?), row.get(1)?, loaded(row, 2)?))
        })?;
        let mut rates = HashMap::<i64, Option<i64>>::new();
        for (at, key, all) in times {
            let Some(gpu) = gpus.get(&key) else { continue };
            let rate = *rates.entry(key).or_insert_with(|| prices.rate(account, gpu, 0, begin));
            if request.counts(nodes.at(at).pool.as_deref()) {
                let priced = rate.map_or(0, |_| all);
                let money = ExactMoney::of_time(rate.unwrap_or_default(), all);
                draft.add(at, &DemandQuarter { all, priced, money, ..DemandQuarter::default() });
            }
        }
    }
    Ok(())
}
