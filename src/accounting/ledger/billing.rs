//! Makes the bill of a span of whole minutes from the rows of the ledger. Minutes that are not closed are left for the next
//! bill.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rusqlite::{Connection, params};

use super::amounts::{self, ACCOUNT, names};
use super::column::{
    grantors_of, loaded, loaded_grade, loaded_id, loaded_method, loaded_optional, rows, sources_of, stored,
};
use super::error::Cause;
use super::rolled::RolledTime;
use super::{MINUTE, history, node, reader};
use crate::accounting::billing::{
    Bill, BillDraft, BillLine, BillRequest, ClaimConflict, DayGpu, Month, PricedSlot, PricedSpan, Rate,
    RateKind, RateSchedule, Recorded, days_between, local_time,
};
use crate::accounting::tenants::{RuleSchedule, tenant};
use crate::model::{
    Amounts, Bytes, GpuId, Grade, Holder, HolderId, Method, MigProfile, Nanoseconds, QUARTER_HOUR, SlotId,
    Utc,
};

/// A GPU whose account ends this long before that of another is gone, and does not delay bills.
pub(super) const GONE_AFTER: Nanoseconds = Nanoseconds::from_seconds(3600);

pub(super) const SIMULATED: &str = "(simulated)";

pub(super) struct StoredAccount<'a> {
    pub(super) connection: &'a Connection,
    pub(super) rates: RateSchedule,
    pub(super) rules: RuleSchedule,
    /// By key in the file.
    pub(super) gpus: Vec<(i64, DayGpu)>,
    pub(super) holders: BTreeMap<HolderId, Holder>,
    pub(super) rolled: RolledTime,
}

/// What a GPU's holders are charged for a time in which no rate, no terms and no tenant rule begins or ends.
pub(super) struct GpuSpan<'a> {
    pub(super) from: Utc,
    pub(super) to: Utc,
    pub(super) gpu: &'a DayGpu,
    pub(super) slot: Nanoseconds,
    pub(super) rate: Option<i64>,
    pub(super) lines: Vec<BillLine>,
}

impl<'a> StoredAccount<'a> {
    pub(super) fn load(connection: &'a Connection, holders: Vec<Holder>) -> Result<Self, Cause> {
        let (rates, rules) = history::load(connection)?;
        let rolled = RolledTime::load(connection)?;
        let holders = holders.into_iter().map(|holder| (holder.id.clone(), holder)).collect();
        Ok(Self { connection, gpus: load_gpus(connection)?, rates, rules, holders, rolled })
    }

    /// What a bill is made from, at the prices of its request, and its period.
    pub(super) fn open(connection: &'a Connection, request: &BillRequest) -> Result<(Self, [Utc; 2]), Cause> {
        let mut account = Self::load(connection, reader::holders(connection, HOLDERS, [])?)?;
        let closed_until = account.closed_until();
        let [from, to] = request.period(closed_until);
        if from > closed_until.max(request.now) {
            return Err(Cause::Future { from: local_time(from, &request.zone), closed_until });
        }
        account.rolled.check_period(from, to)?;
        if let Some(book) = &request.book {
            book.check_currency(account.rates.currencies(from, to))?;
            account.rates = RateSchedule::always(book, &node::load(connection)?);
        }
        Ok((account, [from, to]))
    }

    /// A period, divided where a rate, terms or a tenant rule begins or ends, and at these times.
    pub(super) fn spans(&self, [from, to]: [Utc; 2], more: impl IntoIterator<Item = Utc>) -> Vec<[Utc; 2]> {
        let changes = self.rates.changes_between(from, to).into_iter();
        let changes = changes.chain(self.rules.changes_between(from, to)).chain(more);
        let inside = changes.filter(|at| from < *at && *at < to);
        let edges: BTreeSet<Utc> = inside.chain([from, to.max(from)]).collect();
        edges.iter().zip(edges.iter().skip(1)).map(|(from, to)| [*from, *to]).collect()
    }

    pub(super) fn read(
        &self,
        spans: &[[Utc; 2]],
        mut take: impl FnMut(GpuSpan<'_>) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        for &[from, to] in spans {
            let times = load_times(self.connection, [from, to])?;
            let mut lines = load_lines(self.connection, [from, to], &self.gpus)?;
            for (key, gpu) in &self.gpus {
                let Some(slot) = times.get(key).copied() else { continue };
                let mut of_gpu = lines.remove(key).unwrap_or_default();
                for line in &mut of_gpu {
                    line.tenant = tenant(&self.holder(&line.holder), self.rules.rules(from)).to_string();
                }
                let (schedule, model) = (&self.rates, &*gpu.model);
                let whole = PricedSlot { uuid: &gpu.gpu.uuid, model, profile: None };
                let rate = schedule.rate(RateKind::GpuHour, whole, from).map(|rate| rate.id);
                let mut lines = PricedSpan { schedule, gpu: &gpu.gpu, model, at: from }.price(of_gpu)?;
                lines.iter_mut().for_each(|line| line.labels = labels(&self.holder(&line.holder)));
                take(GpuSpan { from, to, gpu, slot, rate, lines })?;
            }
        }
        Ok(())
    }

    /// The currency of the last prices that begin up to a time.
    pub(super) fn currency(&self, to: Utc) -> Option<String> {
        let prices = self.rates.rates.entries().iter().filter(|rate| rate.begin <= to);
        let prices = prices.filter(|rate| rate.entry.kind != RateKind::CarbonKwh);
        let last = prices.max_by_key(|rate| (rate.begin, rate.id));
        last.map(|rate| rate.entry.tariff.currency.to_string())
    }

    pub(super) fn closed_until(&self) -> Utc {
        closed_until(self.gpus.iter().map(|(_, gpu)| gpu.settled_until))
    }

    pub(super) fn holder(&self, id: &HolderId) -> Cow<'_, Holder> {
        let known = self.holders.get(id).map(Cow::Borrowed);
        known.unwrap_or_else(|| Cow::Owned(Holder::from_id(id.clone())))
    }

    /// The bill of a period without sums and facts, whose lines are in the order of tenants, GPUs and holders.
    pub(super) fn draft(&self, request: &BillRequest, period: [Utc; 2]) -> Result<Bill, Cause> {
        let mut draft = BillDraft::of_ledger(request, &self.rates);
        self.gpus.iter().for_each(|(_, gpu)| draft.add_gpu(gpu));
        let [from, to] = period;
        let days = if request.detail.day { days_between(from, to, &request.zone) } else { Vec::new() };
        self.read(&self.spans(period, days), |span| {
            draft.add_time(&span.gpu.gpu.uuid, span.slot, span.rate)?;
            for line in span.lines {
                draft.add_line(span.from, None, line)?;
            }
            Ok(())
        })?;
        let mut bill = draft.finish(period, self.closed_until());
        bill.lines.sort_by(|one, other| order(one).cmp(&order(other)));
        Ok(bill)
    }

    pub(super) fn bill(&self, request: &BillRequest, [from, to]: [Utc; 2]) -> Result<Bill, Cause> {
        let (connection, rules) = (self.connection, &self.rules);
        let node = node::load(connection)?;
        let bill = self.draft(request, [from, to])?;
        let used = used_rates(&self.rates, &bill.rates.iter().map(|rate| rate.id).collect());
        let month = Month::containing(Utc(to.0.saturating_sub(1)), &request.zone);
        let last = rules.versions().entries().last();
        let is_simulated = bill.gpus.iter().any(|gpu| gpu.model.ends_with(SIMULATED));
        let mut bill = Bill {
            simulated: node.simulated || is_simulated,
            node: node.name,
            cluster: node.cluster,
            how_held: node::load_how_held(connection, from)?,
            claim_conflicts: load_conflicts(connection, [from, to])?,
            currency: find_currency(&used, from)?,
            unpriced: bill.unpriced.filter(|_| self.rates.has_prices()),
            tenant_attributes: last.map(|last| last.entry.attributes.clone()).unwrap_or_default(),
            tenant_budgets: rules.budgets_until(month.map_or(to, |month| month.end)).clone(),
            ..bill
        };
        bill.keep_tenants();
        bill.add_up()?;
        Ok(bill)
    }
}

fn labels(holder: &Holder) -> BTreeMap<String, String> {
    let labels = holder.facts.iter().map(|(fact, text)| (fact.label().to_owned(), text.to_owned()));
    let of_pod = holder.facts.pod_labels().iter();
    labels.chain(of_pod.map(|label| (label.name.to_string(), label.value.to_string()))).collect()
}

fn order(line: &BillLine) -> impl Ord + '_ {
    let slot = (line.gpu.index, line.slot.gpu_instance);
    (&line.tenant, slot, line.holder.name(), (&line.gpu, &line.holder, &line.slot, line.rates, &line.day))
}

pub(super) fn make_bill(connection: &Connection, request: &BillRequest) -> Result<Bill, Cause> {
    let (account, period) = StoredAccount::open(connection, request)?;
    account.bill(request, period)
}

/// Makes the bills of a request one after the other, each of a span in one currency.
pub(super) fn make_bills(connection: &Connection, request: &BillRequest) -> Result<Vec<Bill>, Cause> {
    request.by_currency(
        |request| make_bill(connection, request),
        |cause| match cause {
            Cause::Currencies { since, .. } => Some(*since),
            _ => None,
        },
    )
}

pub(super) fn load_gpus(connection: &Connection) -> rusqlite::Result<Vec<(i64, DayGpu)>> {
    let sql = "SELECT id, gpu_index, uuid, model, settled_until_ns, first_seen_ns, memory_bytes FROM gpu ORDER BY gpu_index, uuid";
    rows(connection, sql, [], |row| {
        let gpu = DayGpu {
            gpu: GpuId { index: row.get(1)?, uuid: row.get::<_, String>(2)?.into() },
            model: row.get(3)?,
            settled_until: Utc(loaded(row, 4)?),
            accounted_since: Utc(loaded(row, 5)?),
            memory: loaded_optional(row, 6)?.map(Bytes),
        };
        Ok((row.get(0)?, gpu))
    })
}

/// The end of the minutes that are closed on all GPUs but those that are gone, from the ends of their accounts.
pub(super) fn closed_until(ends: impl Iterator<Item = Utc> + Clone) -> Utc {
    let newest = ends.clone().max().unwrap_or_default();
    ends.filter(|end| newest.since(*end) <= GONE_AFTER).min().unwrap_or_default().floor(MINUTE)
}

pub(super) fn closed_time(connection: &Connection) -> rusqlite::Result<Utc> {
    Ok(closed_until(load_gpus(connection)?.iter().map(|(_, gpu)| gpu.settled_until)))
}

pub(super) const HOLDERS: &str = "SELECT name, version, facts FROM holder ORDER BY name, id";

pub(super) const HOLDERS_BETWEEN: &str = "SELECT name, version, facts FROM holder
     WHERE id IN (SELECT holder FROM account WHERE minute_ns >= ?1 AND minute_ns < ?2) ORDER BY name, id";

fn load_times(connection: &Connection, [from, to]: [Utc; 2]) -> rusqlite::Result<BTreeMap<i64, Nanoseconds>> {
    let sql = "SELECT gpu, sum(slot_ns) FROM minute WHERE minute_ns >= ?1 AND minute_ns < ?2 GROUP BY gpu";
    rows(connection, sql, [stored(from.0)?, stored(to.0)?], |row| {
        Ok((row.get(0)?, Nanoseconds(loaded(row, 1)?)))
    })
}

pub(super) fn used_rates<'a>(schedule: &'a RateSchedule, ids: &BTreeSet<i64>) -> Vec<&'a Recorded<Rate>> {
    let rates = schedule.rates.entries().iter().filter(|rate| ids.contains(&rate.id));
    let mut rates: Vec<&Recorded<Rate>> = rates.collect();
    rates.sort_by_key(|rate| (rate.entry.kind, rate.begin, rate.entry.nano));
    rates
}

/// The currency of the rates of a period that begins at `from`; an error where there are several.
pub(super) fn find_currency(rates: &[&Recorded<Rate>], from: Utc) -> Result<Option<String>, Cause> {
    let prices = || rates.iter().filter(|rate| rate.entry.kind != RateKind::CarbonKwh);
    let currency = |rate: &Recorded<Rate>| rate.entry.tariff.currency.to_string();
    let Some(first) = prices().min_by_key(|rate| rate.begin) else { return Ok(None) };
    let others = prices().filter(|rate| currency(rate) != currency(first));
    let Some(other) = others.min_by_key(|rate| rate.begin) else { return Ok(Some(currency(first))) };
    let (first, second, since) = (currency(first), currency(other), other.begin);
    Err(if since > from {
        Cause::Currencies { first, second, since }
    } else {
        Cause::MixedCurrencies { first, second, since }
    })
}

/// What identifies the rows of one line: the keys of GPU, holder, GPU instance and profile.
type RowKey = (i64, i64, i64, i64);

struct LineSum {
    amounts: Amounts,
    grade: Grade,
    method: Method,
    /// Sets of bits.
    sources: i64,
    granted_by: i64,
}

/// The lines of each GPU, by its key in the file, without money. Rows are summed up here, since SQLite would sort all of them by
/// line first, on disk where a month has millions.
fn load_lines(
    connection: &Connection,
    span: [Utc; 2],
    gpus: &[(i64, DayGpu)],
) -> rusqlite::Result<BTreeMap<i64, Vec<BillLine>>> {
    let (sums, coarse) = (sum_rows(connection, span)?, coarse_rows(connection, span)?);
    let gpus: HashMap<i64, &GpuId> = gpus.iter().map(|(key, gpu)| (*key, &gpu.gpu)).collect();
    let profiles = load_profiles(connection)?;
    let mut named = Vec::with_capacity(sums.len());
    for (key, sum) in sums {
        named.push((load_holder_id(connection, key.1)?, key, sum));
    }
    named.sort_by(|(name, key, _), (other_name, other_key, _)| {
        (name.name(), key).cmp(&(other_name.name(), other_key))
    });
    let mut lines = BTreeMap::<i64, Vec<BillLine>>::new();
    for (holder, key, sum) in named {
        let Some(gpu) = gpus.get(&key.0) else { continue };
        lines.entry(key.0).or_default().push(BillLine {
            slot: SlotId { gpu_instance: u32::try_from(key.2).ok(), profile: profiles.get(&key.3).cloned() },
            amounts: sum.amounts,
            grade: sum.grade,
            method: sum.method,
            coarse: coarse.contains(&key),
            sources: sources_of(sum.sources),
            granted_by: grantors_of(sum.granted_by),
            ..BillLine::empty(GpuId::clone(gpu), holder)
        });
    }
    Ok(lines)
}

fn sum_rows(connection: &Connection, [from, to]: [Utc; 2]) -> rusqlite::Result<HashMap<RowKey, LineSum>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT gpu, holder, gpu_instance, profile, grade, method, source, granted_by, {} FROM account
         WHERE minute_ns >= ?1 AND minute_ns < ?2",
        names(ACCOUNT)
    ))?;
    let mut found = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    let mut sums = HashMap::<RowKey, LineSum>::new();
    while let Some(row) = found.next()? {
        let key = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (grade, method) = (loaded_grade(row, 4)?, loaded_method(row, 5)?);
        let (sources, granted_by): (i64, i64) = (row.get(6)?, row.get(7)?);
        let amounts = Amounts::default();
        let sum = sums.entry(key).or_insert(LineSum { amounts, grade, method, sources, granted_by });
        sum.amounts.add(&amounts::load(ACCOUNT, row, 8)?);
        sum.grade = sum.grade.max(grade);
        sum.method = sum.method.max(method);
        sum.sources |= sources;
        sum.granted_by |= granted_by;
    }
    Ok(sums)
}

/// The lines with a row of a coarse minute; there are few such minutes.
fn coarse_rows(connection: &Connection, [from, to]: [Utc; 2]) -> rusqlite::Result<HashSet<RowKey>> {
    let sql = "SELECT DISTINCT a.gpu, a.holder, a.gpu_instance, a.profile
               FROM minute m CROSS JOIN account a ON a.minute_ns = m.minute_ns AND a.gpu = m.gpu
               WHERE m.coarse AND m.minute_ns >= ?1 AND m.minute_ns < ?2";
    rows(connection, sql, [stored(from.0)?, stored(to.0)?], |row| row.try_into())
}

pub(super) fn load_holder_id(connection: &Connection, key: i64) -> rusqlite::Result<HolderId> {
    connection
        .prepare_cached("SELECT name, version FROM holder WHERE id = ?1")?
        .query_row([key], |row| loaded_id(row, 0))
}

/// The conflicts of claims between two times, by slot and holders. They count by quarter hours, which a roll-up keeps. A
/// holder alone was in no conflict: earlier releases wrote the same for a claim that yielded.
pub(super) fn load_conflicts(
    connection: &Connection,
    [from, to]: [Utc; 2],
) -> rusqlite::Result<Vec<ClaimConflict>> {
    let mut claims: BTreeMap<(GpuId, String, Utc), BTreeSet<String>> = BTreeMap::new();
    let mut statement = connection.prepare(
        "SELECT gpu_index, uuid, minute_ns, text FROM remark JOIN gpu ON id = gpu
         WHERE minute_ns >= ?1 AND minute_ns < ?2 AND text LIKE '%: conflict %'",
    )?;
    let mut found = statement.query(params![stored(from.0)?, stored(to.0)?])?;
    while let Some(row) = found.next()? {
        let gpu = GpuId { index: row.get(0)?, uuid: row.get::<_, String>(1)?.into() };
        let (at, text) = (Utc(loaded(row, 2)?).floor(QUARTER_HOUR), row.get::<_, String>(3)?);
        if let Some((slot, holder)) = text.split_once(": conflict ") {
            claims.entry((gpu, slot.to_owned(), at)).or_default().insert(holder.to_owned());
        }
    }
    let mut conflicts: BTreeMap<(GpuId, String, BTreeSet<String>), u64> = BTreeMap::new();
    for ((gpu, slot, _), holders) in claims {
        if holders.len() > 1 {
            *conflicts.entry((gpu, slot, holders)).or_default() += 1;
        }
    }
    let conflict =
        |((gpu, slot, holders), quarter_hours): ((GpuId, String, BTreeSet<String>), u64)| ClaimConflict {
            gpu,
            gpu_instance: slot.parse().ok(),
            holders: holders.into_iter().collect(),
            quarter_hours,
        };
    Ok(conflicts.into_iter().map(conflict).collect())
}

pub(super) fn load_profiles(connection: &Connection) -> rusqlite::Result<HashMap<i64, MigProfile>> {
    rows(connection, "SELECT id, name, size, total FROM mig_profile", [], |row| {
        let name = row.get::<_, String>(1)?.into();
        Ok((row.get(0)?, MigProfile { name, size: loaded(row, 2)?, total: loaded(row, 3)? }))
    })
}
