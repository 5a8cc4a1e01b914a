//! The SQLite file of the sums: its tables, and how sums and keys are written to it and read again.
//!
//! Rows are found by date: their ids begin with its number, so that those of a span are one range and a date is removed by its
//! own. Money and emissions are two integers each, whole nano-units and the rest, and are added up in Rust.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::civil::Date;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::CacheError;
use crate::accounting::billing::costs::{CostKey, CostSums};
use crate::accounting::billing::{ExactMoney, MoneyOverflow};
use crate::model::{EnergySum, Money, NodeIdentity, TimeSum, Utc};

/// Another one is deleted and filled again.
pub(super) const SCHEMA: i64 = 4;

pub(super) const TABLES: &str = "
    CREATE TABLE made_for (text TEXT NOT NULL);
    CREATE TABLE name (id INTEGER PRIMARY KEY, digest INTEGER NOT NULL, text TEXT NOT NULL);
    CREATE INDEX name_digest ON name (digest);
    CREATE TABLE cost_key (
        id INTEGER PRIMARY KEY, node INTEGER NOT NULL, model INTEGER NOT NULL, tenant INTEGER NOT NULL,
        class INTEGER NOT NULL, UNIQUE (node, model, tenant, class)
    );
    CREATE TABLE date (
        date INTEGER PRIMARY KEY, currency TEXT, is_past INTEGER NOT NULL, facts TEXT NOT NULL
    );
    CREATE TABLE file (
        date INTEGER NOT NULL, path TEXT NOT NULL, state TEXT NOT NULL, content TEXT, problem TEXT,
        PRIMARY KEY (date, path)
    ) WITHOUT ROWID;
    CREATE TABLE changed_date (date INTEGER PRIMARY KEY, before TEXT NOT NULL, after TEXT NOT NULL);
    CREATE TABLE gpu (gpu INTEGER PRIMARY KEY, place INTEGER NOT NULL, date INTEGER NOT NULL);";

/// A table of sums and the columns that tell its rows apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumTable {
    pub(super) name: &'static str,
    pub(super) keys: &'static [&'static str],
}

/// With the labels that many workloads share.
pub(super) const BY_NODE: SumTable = SumTable { name: "by_node", keys: &["day", "key", "labels"] };
pub(super) const BY_WORKLOAD: SumTable =
    SumTable { name: "by_workload", keys: &["day", "key", "gpu", "holder", "version", "labels"] };
/// By the begin of a local hour, or of what the date has of it, in seconds.
pub(super) const BY_HOUR: SumTable = SumTable { name: "by_hour", keys: &["hour", "tenant"] };

const TIMES: [&str; 9] = [
    "within",
    "lent",
    "idle",
    "unmeasured",
    "unavailable",
    "used_within",
    "used_beyond",
    "used_outside",
    "used_unheld",
];

const AMOUNTS: [&str; 9] = [
    "charged",
    "unpriced",
    "energy",
    "money",
    "money_rest",
    "energy_money",
    "energy_money_rest",
    "emissions",
    "emissions_rest",
];

impl SumTable {
    pub(super) fn create(self) -> String {
        let column = |name: &&str| format!("{name} INTEGER");
        let columns: Vec<String> = self.columns().map(|name| column(&name)).collect();
        format!("CREATE TABLE {} (id INTEGER PRIMARY KEY, {});", self.name, columns.join(", "))
    }

    fn columns(self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().copied().chain(TIMES).chain(AMOUNTS)
    }

    pub(super) fn insert(self) -> String {
        let columns: Vec<&str> = self.columns().collect();
        let places = ", ?".repeat(columns.len());
        format!("INSERT INTO {} (id, {}) VALUES (?{places})", self.name, columns.join(", "))
    }

    /// The keys, and an amount alone.
    fn select_amount(self, amount: &str) -> String {
        let Self { name, keys } = self;
        format!(
            "SELECT {}, {amount} FROM {name} WHERE id BETWEEN ? AND ? AND {} BETWEEN ? AND ? ORDER BY id",
            keys.join(", "),
            keys[0]
        )
    }

    fn select(self, condition: &str) -> String {
        let columns: Vec<&str> = self.columns().collect();
        format!(
            "SELECT {} FROM {} WHERE id BETWEEN ? AND ? {condition} ORDER BY id",
            columns.join(", "),
            self.name
        )
    }

    pub(super) fn delete(self) -> String {
        format!("DELETE FROM {} WHERE id BETWEEN ? AND ?", self.name)
    }
}

/// The ids of the rows of these dates, given by their numbers.
pub(super) fn ids_of([first, last]: [i64; 2]) -> [i64; 2] {
    [first << 32, (last << 32) | 0xffff_ffff]
}

/// A day as a number, such as 20261101.
pub(super) fn day_number(day: Date) -> i64 {
    i64::from(day.year()) * 10_000 + i64::from(day.month()) * 100 + i64::from(day.day())
}

pub(super) fn day_of(number: i64) -> Date {
    let part = |number: i64| i8::try_from(number % 100).unwrap_or_default();
    let year = i16::try_from(number / 10_000).unwrap_or_default();
    Date::new(year, part(number / 100), part(number)).unwrap_or_default()
}

fn integer(sum: u128) -> Result<Value, MoneyOverflow> {
    i64::try_from(sum).map(Value::Integer).map_err(|_| MoneyOverflow)
}

fn money(exact: Option<ExactMoney>) -> Result<[Value; 2], MoneyOverflow> {
    let Some(exact) = exact else { return Ok([Value::Null, Value::Null]) };
    let (Money(nano), rest) = exact.into_parts();
    Ok([i64::try_from(nano).map(Value::Integer).map_err(|_| MoneyOverflow)?, Value::Integer(rest)])
}

/// The cells of sums, in the order of the columns.
fn cells(sums: &CostSums) -> Result<Vec<Value>, MoneyOverflow> {
    let mut cells = Vec::with_capacity(TIMES.len() + AMOUNTS.len());
    for time in sums.times.iter().chain([&sums.charged, &sums.unpriced]) {
        cells.push(integer(time.0)?);
    }
    cells.push(sums.energy.map_or(Ok(Value::Null), |energy| integer(energy.0))?);
    for exact in [Some(sums.money), sums.energy_money, sums.emissions] {
        cells.extend(money(exact)?);
    }
    Ok(cells)
}

/// Reads sums from a row whose keys are as many.
pub(super) fn read_sums(row: &Row<'_>, keys: usize) -> Result<CostSums, CacheError> {
    let cell = |place: usize| row.get::<_, Option<i64>>(keys + place);
    let time = |place: usize| -> Result<TimeSum, CacheError> {
        Ok(TimeSum(cell(place)?.unwrap_or(0).unsigned_abs().into()))
    };
    let money = |place: usize| -> Result<Option<ExactMoney>, CacheError> {
        let Some(nano) = cell(place)? else { return Ok(None) };
        Ok(Some(ExactMoney::from_parts(Money(nano.into()), cell(place + 1)?.unwrap_or(0))?))
    };
    let mut sums = CostSums { charged: time(9)?, unpriced: time(10)?, ..CostSums::default() };
    for (place, sum) in sums.times.iter_mut().enumerate() {
        *sum = time(place)?;
    }
    sums.energy = cell(11)?.map(|energy| EnergySum(energy.unsigned_abs().into()));
    sums.money = money(12)?.unwrap_or_default();
    (sums.energy_money, sums.emissions) = (money(14)?, money(16)?);
    Ok(sums)
}

/// The number of a text; none of one that nothing has.
///
/// Texts are found by their digests, since an index of the texts themselves would be larger than all sums.
fn find_name(connection: &Connection, text: &str) -> Result<Option<i64>, CacheError> {
    let mut find = connection.prepare_cached("SELECT id FROM name WHERE digest = ? AND text = ?")?;
    Ok(find.query_row(params![name_digest(text), text], |row| row.get(0)).optional()?)
}

fn name_digest(text: &str) -> i64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().first_chunk().copied().map_or(0, i64::from_be_bytes)
}

/// Writes the rows of one date.
pub(super) struct DateWriter<'a> {
    connection: &'a Connection,
    date: i64,
    names: HashMap<String, i64>,
    keys: BTreeMap<CostKey, i64>,
    /// The last one; that of the next row is mostly the same.
    last_key: Option<(CostKey, i64)>,
}

impl<'a> DateWriter<'a> {
    pub(super) fn new(connection: &'a Connection, date: i64) -> Self {
        Self { connection, date, names: HashMap::new(), keys: BTreeMap::new(), last_key: None }
    }

    /// Removes what the date had, perhaps without its hours.
    pub(super) fn clear(&self, keeps_hours: bool) -> Result<(), CacheError> {
        let [first, last] = ids_of([self.date; 2]);
        for table in [BY_NODE, BY_WORKLOAD, BY_HOUR].into_iter().take(if keeps_hours { 2 } else { 3 }) {
            self.connection.prepare_cached(&table.delete())?.execute([first, last])?;
        }
        Ok(())
    }

    pub(super) fn write<const KEYS: usize>(
        &self,
        table: SumTable,
        rows: impl Iterator<Item = ([i64; KEYS], CostSums)>,
    ) -> Result<(), CacheError> {
        let [first, _] = ids_of([self.date; 2]);
        let mut insert = self.connection.prepare_cached(&table.insert())?;
        for (id, (keys, sums)) in (first..).zip(rows) {
            let keys = [id].into_iter().chain(keys).map(Value::Integer);
            insert.execute(params_from_iter(keys.chain(cells(&sums)?)))?;
        }
        Ok(())
    }

    /// The number of a text.
    pub(super) fn name(&mut self, text: &str) -> Result<i64, CacheError> {
        if let Some(id) = self.names.get(text) {
            return Ok(*id);
        }
        let id = match find_name(self.connection, text)? {
            Some(id) => id,
            None => {
                let insert = "INSERT INTO name (digest, text) VALUES (?, ?)";
                self.connection.prepare_cached(insert)?.execute(params![name_digest(text), text])?;
                self.connection.last_insert_rowid()
            }
        };
        self.names.insert(text.to_owned(), id);
        Ok(id)
    }

    /// The number of a key without its workload.
    pub(super) fn key(&mut self, key: &CostKey) -> Result<i64, CacheError> {
        if let Some((last, id)) = &self.last_key
            && last.is_same_without_workload(key)
        {
            return Ok(*id);
        }
        let key = CostKey { workload: None, ..key.clone() };
        if let Some(id) = self.keys.get(&key) {
            self.last_key = Some((key, *id));
            return Ok(*id);
        }
        let class = key.class.as_deref().map_or(Ok(0), |class| self.name(class))?;
        let ids =
            [self.name(&node_text(&key.node)?)?, self.name(&key.model)?, self.name(&key.tenant)?, class];
        let find = "SELECT id FROM cost_key WHERE node = ? AND model = ? AND tenant = ? AND class = ?";
        let known = self.connection.prepare_cached(find)?.query_row(ids, |row| row.get(0)).optional()?;
        let id = match known {
            Some(id) => id,
            None => {
                let insert = "INSERT INTO cost_key (node, model, tenant, class) VALUES (?, ?, ?, ?)";
                self.connection.prepare_cached(insert)?.execute(ids)?;
                self.connection.last_insert_rowid()
            }
        };
        self.keys.insert(key.clone(), id);
        self.last_key = Some((key, id));
        Ok(id)
    }
}

fn node_text(node: &NodeIdentity) -> serde_json::Result<String> {
    let NodeIdentity { name, cluster, pool, instance_type, spot, .. } = node;
    serde_json::to_string(&(name, cluster, pool, instance_type, spot))
}

fn node_of(text: &str) -> serde_json::Result<NodeIdentity> {
    let (name, cluster, pool, instance_type, spot) = serde_json::from_str(text)?;
    Ok(NodeIdentity { name, cluster, pool, instance_type, spot, simulated: false })
}

/// Reads keys, each once.
pub(super) struct KeyReader<'a> {
    connection: &'a Connection,
    names: HashMap<i64, Arc<str>>,
    nodes: HashMap<i64, Arc<NodeIdentity>>,
    keys: HashMap<i64, Arc<CostKey>>,
}

impl<'a> KeyReader<'a> {
    pub(super) fn new(connection: &'a Connection) -> Self {
        Self { connection, names: HashMap::new(), nodes: HashMap::new(), keys: HashMap::new() }
    }

    /// The number of a text, 0 of one that nothing has.
    pub(super) fn find(&self, text: &str) -> Result<i64, CacheError> {
        Ok(find_name(self.connection, text)?.unwrap_or(0))
    }

    /// A text that is read once only.
    pub(super) fn text(&self, id: i64) -> Result<String, CacheError> {
        let mut find = self.connection.prepare_cached("SELECT text FROM name WHERE id = ?")?;
        Ok(find.query_row([id], |row| row.get(0))?)
    }

    pub(super) fn name(&mut self, id: i64) -> Result<Arc<str>, CacheError> {
        if let Some(name) = self.names.get(&id) {
            return Ok(Arc::clone(name));
        }
        let name: Arc<str> = self.text(id)?.into();
        self.names.insert(id, Arc::clone(&name));
        Ok(name)
    }

    /// The keys that were read.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<CostKey>> {
        self.keys.values()
    }

    /// The index that a GPU had last on its node.
    pub(super) fn gpu_index(&self, gpu: i64) -> Result<u32, CacheError> {
        let mut find = self.connection.prepare_cached("SELECT place FROM gpu WHERE gpu = ?")?;
        Ok(find.query_row([gpu], |row| row.get(0)).optional()?.unwrap_or(0))
    }

    pub(super) fn key(&mut self, id: i64) -> Result<Arc<CostKey>, CacheError> {
        if let Some(key) = self.keys.get(&id) {
            return Ok(Arc::clone(key));
        }
        let find = "SELECT node, model, tenant, class FROM cost_key WHERE id = ?";
        let read = |row: &Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]);
        let [node, model, tenant, class]: [i64; 4] =
            self.connection.prepare_cached(find)?.query_row([id], read)?;
        let node = match self.nodes.get(&node) {
            Some(node) => Arc::clone(node),
            None => {
                let read = Arc::new(node_of(&self.text(node)?)?);
                self.nodes.insert(node, Arc::clone(&read));
                read
            }
        };
        let class = if class == 0 { None } else { Some(self.name(class)?) };
        let (model, tenant) = (self.name(model)?, self.name(tenant)?);
        let key = Arc::new(CostKey { node, model, tenant, class, workload: None });
        self.keys.insert(id, Arc::clone(&key));
        Ok(key)
    }
}

/// Gives the rows of a table in a range of ids, and of local days where its rows have them, to `take`: keys, then sums.
pub(super) fn read_rows<const KEYS: usize>(
    connection: &Connection,
    table: SumTable,
    [first, last]: [i64; 2],
    between: RangeInclusive<i64>,
    mut take: impl FnMut([i64; KEYS], CostSums) -> Result<(), CacheError>,
) -> Result<(), CacheError> {
    let condition = format!("AND {} BETWEEN ? AND ?", table.keys[0]);
    let mut select = connection.prepare_cached(&table.select(&condition))?;
    let mut rows = select.query(params![first, last, between.start(), between.end()])?;
    while let Some(row) = rows.next()? {
        take(read_keys(row)?, read_sums(row, KEYS)?)?;
    }
    Ok(())
}

/// Gives the same rows with one amount alone, an expression of their columns.
pub(super) fn read_amounts<const KEYS: usize>(
    connection: &Connection,
    (table, amount): (SumTable, &str),
    [first, last]: [i64; 2],
    between: RangeInclusive<i64>,
    mut take: impl FnMut([i64; KEYS], i64) -> Result<(), CacheError>,
) -> Result<(), CacheError> {
    let mut select = connection.prepare_cached(&table.select_amount(amount))?;
    let mut rows = select.query(params![first, last, between.start(), between.end()])?;
    while let Some(row) = rows.next()? {
        take(read_keys(row)?, row.get(KEYS)?)?;
    }
    Ok(())
}

fn read_keys<const KEYS: usize>(row: &Row<'_>) -> rusqlite::Result<[i64; KEYS]> {
    let mut keys = [0; KEYS];
    for (place, key) in keys.iter_mut().enumerate() {
        *key = row.get(place)?;
    }
    Ok(keys)
}

/// The number of a date in UTC: days since 1970-01-01.
pub(super) fn date_number(at: Utc) -> i64 {
    (at.0 / crate::model::DAY.0).cast_signed()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::{PARTS, USES};

    #[test]
    fn sums_are_read_as_they_were_written_and_what_exceeds_64_bits_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&BY_HOUR.create()).unwrap();
        let sums = |energy| CostSums {
            times: std::array::from_fn(|place| TimeSum(place as u128 + 1)),
            charged: TimeSum(10),
            unpriced: TimeSum(11),
            energy,
            money: ExactMoney::of_parts(-12_345_678_901_234_567),
            energy_money: energy.map(|_| ExactMoney::of_parts(14)),
            emissions: energy.map(|_| ExactMoney::of_parts(15)),
        };
        let all = [sums(None), sums(Some(EnergySum(13)))];
        let writer = DateWriter::new(&connection, 20_000);
        writer.write(BY_HOUR, all.iter().map(|sums| ([7, 8], *sums))).unwrap();
        let mut read = Vec::new();
        let take = |keys: [i64; 2], sums| {
            read.push((keys, sums));
            Ok(())
        };
        read_rows(&connection, BY_HOUR, ids_of([20_000; 2]), 7..=7, take).unwrap();
        assert_eq!(read, all.map(|sums| ([7, 8], sums)));
        assert_eq!(TIMES.len(), PARTS.len() + USES.len());
        let much = CostSums { charged: TimeSum(1 << 64), ..CostSums::default() };
        assert!(cells(&much).is_err());
        assert_eq!(day_of(day_number("2026-10-09".parse().unwrap())).to_string(), "2026-10-09");
    }

    #[test]
    fn a_node_is_read_as_it_was_written() {
        let node = NodeIdentity {
            name: "a\"b".into(),
            pool: Some("p".into()),
            spot: Some(true),
            ..Default::default()
        };
        assert_eq!(node_of(&node_text(&node).unwrap()).unwrap(), node);
    }
}
