//! Finds the dates whose files have changed, and sums them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::reduce::shared_labels;
use super::store::{
    BY_HOUR, BY_NODE, BY_WORKLOAD, DateWriter, KeyReader, date_number, day_number, day_of, ids_of, read_rows,
};
use super::sums::{DateSums, WorkloadSums};
use super::{CacheError, CostCache};
use crate::accounting::billing::costs::{CostKey, CostSums, CostWorkload, local_hours};
use crate::accounting::billing::{BillRequest, GpuConflict, StatedBudgets, day_begin};
use crate::accounting::day_files::error::{ExportError, FileProblem};
use crate::accounting::day_files::fleet::{ExportSource, FileContent, SummedDate, sum_date};
use crate::accounting::day_files::tree::{ExportTree, TreeFile};
use crate::model::{DAY, GpuId, HolderId, Utc};
use crate::runtime::clock::Stop;
use crate::runtime::thread::map_ahead;

/// Dates that are looked at often: nodes still write their files. A later change is listed.
const RECENT: i64 = 3;

/// Which dates are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookScope {
    /// The last three.
    Recent,
    All,
}

/// What a look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// How many dates were summed anew.
    pub filled: usize,
    /// What is in the directory and is not read, in words.
    pub refused: Vec<String>,
}

/// What is known of a date beside its sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DateFacts {
    pub(super) currency: Option<String>,
    pub(super) simulated: bool,
    pub(super) example: bool,
    pub(super) clusters: BTreeSet<String>,
    /// Up to where each ledger is exported, and its node.
    pub(super) ledgers: BTreeMap<String, (Utc, String)>,
    pub(super) attributes: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) budgets: BTreeMap<String, StatedBudgets>,
    pub(super) conflicts: Vec<GpuConflict>,
    pub(super) total: DateTotal,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DateTotal {
    /// In nanoseconds.
    pub(super) held: String,
    /// In parts of a nano-unit.
    pub(super) money: String,
    pub(super) currency: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownFile {
    /// Empty where the file is read again at each look.
    state: String,
    /// What it had when it could be read last.
    content: Option<FileContent>,
}

/// A date, its files, and those that it had when it was summed last, by path.
type DateFiles = (i64, Vec<TreeFile>, BTreeMap<String, KnownFile>);

/// What the files of a date make, before it is written.
struct NewDate {
    sums: DateSums,
    facts: DateFacts,
    files: Vec<NewFile>,
    /// Whether sums of hours stay as they were, since a part of them cannot be made again.
    keeps_hours: bool,
}

struct NewFile {
    path: String,
    state: String,
    content: Option<FileContent>,
    problem: Option<String>,
}

impl CostCache {
    /// Looks at the files of the directory, and sums those dates anew of which one has changed. `progress` is told how many of
    /// how many dates are done. Ends early where `stop` is called.
    ///
    /// # Errors
    /// The directory or one below it cannot be read, or it has no exports: then nothing is changed. The cache cannot be
    /// written.
    pub fn look(
        &mut self,
        scope: LookScope,
        now: Utc,
        stop: &Stop,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Looked, CacheError> {
        let today = date_number(now);
        let is_wanted = |date: i64| scope == LookScope::All || date > today - RECENT;
        let number = |day: Date| date_number(day_begin(day, &TimeZone::UTC).unwrap_or_default());
        let tree = ExportTree::read(&self.exports, now, |day| is_wanted(number(day)));
        let tree = tree.map_err(|(path, error)| CacheError::File { path, error })?;
        let dates = tree.dates.into_iter().map(|(day, files)| (number(day), files));
        let mut dates: BTreeMap<i64, Vec<TreeFile>> = dates.collect();
        let known = self.known_dates()?;
        // A directory that is not mounted has no files either.
        if tree.clusters == 0 || (dates.is_empty() && (scope == LookScope::All || known.is_empty())) {
            return Err(CacheError::Empty(self.exports.clone()));
        }
        // Where the clock was set back, nothing is known of the files of later dates.
        known.into_iter().filter(|date| is_wanted(*date) && *date <= today + 1).for_each(|date| {
            dates.entry(date).or_default();
        });
        let mut changed = Vec::new();
        for (date, files) in dates {
            let known = self.known_files(date)?;
            let found: BTreeMap<String, &str> =
                files.iter().map(|file| (self.relative(&file.day.path), file.known_state())).collect();
            let found = found.iter().map(|(path, state)| (path.as_str(), *state));
            if !found.eq(known.iter().map(|(path, file)| (path.as_str(), file.state.as_str()))) {
                changed.push((date, files, known));
            } else if date <= today - RECENT {
                let confirm = "UPDATE date SET is_past = TRUE WHERE date = ? AND NOT is_past";
                self.connection.prepare_cached(confirm)?.execute([date])?;
            }
        }
        let (total, mut filled, mut is_gone) = (changed.len(), 0, false);
        let (exports, zone) = (self.exports.clone(), self.zone.clone());
        let sum = |(date, files, _): &DateFiles| sum(&exports, &zone, *date, files, stop);
        // A date is summed while the one before is written.
        map_ahead(&changed, sum, |done, summed| {
            if stop.is_called() {
                return Ok(());
            }
            progress(done, total);
            let date = &changed[done];
            is_gone |= date.1.is_empty();
            filled += usize::from(self.fill(date, summed, today)?);
            Ok::<_, CacheError>(())
        })?;
        if is_gone {
            prune(&self.connection)?;
        }
        progress(total, total);
        Ok(Looked { filled, refused: tree.refused })
    }

    fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.exports).unwrap_or(path).display().to_string()
    }

    fn known_dates(&self) -> Result<Vec<i64>, CacheError> {
        let mut select = self
            .connection
            .prepare_cached("SELECT date FROM date UNION SELECT date FROM file ORDER BY date")?;
        let dates = select.query_map([], |row| row.get(0))?;
        Ok(dates.collect::<Result<_, _>>()?)
    }

    /// By path.
    fn known_files(&self, date: i64) -> Result<BTreeMap<String, KnownFile>, CacheError> {
        let sql = "SELECT path, state, content FROM file WHERE date = ?";
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query([date])?;
        let mut known = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let content: Option<String> = row.get(2)?;
            let content = content.as_deref().map(serde_json::from_str).transpose()?;
            known.insert(row.get(0)?, KnownFile { state: row.get(1)?, content });
        }
        Ok(known)
    }

    /// Sums a date anew, and returns whether it could. One that cannot be summed keeps what it had, and is summed again when one
    /// of its files changes.
    fn fill(
        &mut self,
        date: &DateFiles,
        summed: Result<SummedDate, ExportError>,
        today: i64,
    ) -> Result<bool, CacheError> {
        match summed.map_err(CacheError::from).and_then(|summed| self.store(date, summed, today)) {
            Ok(()) => Ok(true),
            Err(error @ (CacheError::Export(_) | CacheError::Sum(_))) => {
                self.keep(date, &error)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn store(
        &mut self,
        (date, files, known): &DateFiles,
        summed: SummedDate,
        today: i64,
    ) -> Result<(), CacheError> {
        let date = *date;
        let old = date_facts(&self.connection, date)?;
        let new = self.new_date(date, files, known, (summed, old.as_ref()))?;
        let is_past = date <= today - RECENT;
        let transaction = self.connection.transaction()?;
        let was_past = "SELECT is_past FROM date WHERE date = ?";
        let was_past = transaction.query_row(was_past, [date], |row| row.get(0)).optional()?.unwrap_or(false);
        if let Some(old) = old.filter(|_| was_past) {
            note_change(&transaction, date, [&old.total, &new.facts.total])?;
        }
        write(&transaction, date, &new, is_past)?;
        Ok(transaction.commit()?)
    }

    /// The sums of those files that could be read, and of the GPUs of the others what they were.
    fn new_date(
        &self,
        date: i64,
        files: &[TreeFile],
        known: &BTreeMap<String, KnownFile>,
        (summed, old): (SummedDate, Option<&DateFacts>),
    ) -> Result<NewDate, CacheError> {
        let SummedDate { mut sums, mut facts, conflicts, files: mut contents } = summed;
        let mut problems: BTreeMap<_, FileProblem> = std::mem::take(&mut facts.skipped).into_iter().collect();
        let irregular = files.iter().filter(|file| file.state.is_none());
        problems.extend(irregular.map(|file| (file.day.path.clone(), FileProblem::Irregular)));
        let mut kept = Vec::new();
        let mut new = Vec::new();
        for file in files {
            let path = self.relative(&file.day.path);
            let problem = problems.get(&file.day.path);
            let last = problem.and_then(|_| known.get(&path)?.content.clone());
            kept.extend(last.clone());
            // One that could not be opened may be readable later and be the same.
            let is_again = matches!(problem, Some(FileProblem::Io(_)));
            new.push(NewFile {
                path,
                state: if is_again { String::new() } else { file.known_state().to_owned() },
                content: contents.remove(&file.day.path).or(last),
                problem: problem.map(|problem| problem.without_option()),
            });
        }
        let gpus: BTreeSet<Arc<str>> = kept.iter().flat_map(|file| file.gpus.keys().cloned()).collect();
        if !gpus.is_empty() {
            sums.replace(&gpus, workloads_of(&self.connection, date, &gpus)?);
        }
        let mut ledgers = facts.ends;
        for file in &kept {
            let of_file = (file.settled_until, file.node.clone());
            ledgers.entry(file.ledger.clone()).or_insert(of_file);
        }
        let old = old.filter(|_| !kept.is_empty()).cloned().unwrap_or_default();
        let currency = facts.currency.or(old.currency);
        let total = sums.totals()?;
        let facts = DateFacts {
            total: DateTotal {
                held: total.held().to_string(),
                money: total.money.parts().to_string(),
                currency: currency.clone(),
            },
            currency,
            simulated: facts.is_simulated || old.simulated,
            example: sums.has_example || old.example,
            clusters: facts.clusters.into_iter().chain(old.clusters).collect(),
            ledgers,
            attributes: old.attributes.into_iter().chain(facts.attributes).collect(),
            budgets: old.budgets.into_iter().chain(facts.budgets).collect(),
            conflicts,
        };
        Ok(NewDate { sums, facts, files: new, keeps_hours: !kept.is_empty() })
    }

    /// Leaves a date as it was, and notes why.
    fn keep(&mut self, (date, files, known): &DateFiles, error: &CacheError) -> Result<(), CacheError> {
        tracing::warn!(%error, "a date of the exports keeps the sums that it had");
        let files = files.iter().enumerate().map(|(place, file)| {
            let path = self.relative(&file.day.path);
            let last = known.get(&path);
            // One that could not be opened is still read again at each look.
            let is_again = last.is_some_and(|last| last.state.is_empty());
            let state = if is_again { String::new() } else { file.known_state().to_owned() };
            let problem = (place == 0).then(|| format!("{error}; the day keeps the sums that it had"));
            NewFile { path, state, content: last.and_then(|last| last.content.clone()), problem }
        });
        let files: Vec<NewFile> = files.collect();
        let transaction = self.connection.transaction()?;
        write_files(&transaction, *date, &files)?;
        Ok(transaction.commit()?)
    }
}

fn sum(
    exports: &Path,
    zone: &TimeZone,
    date: i64,
    files: &[TreeFile],
    stop: &Stop,
) -> Result<SummedDate, ExportError> {
    let from = Utc(date.unsigned_abs() * DAY.0);
    let to = from.plus(DAY);
    let (zone, hours) = (zone.clone(), local_hours([from, to], zone));
    let request = BillRequest { from: Some(from), to: Some(to), zone, ..BillRequest::default() };
    let source = ExportSource { skip_damaged: true, ..ExportSource::of(exports) };
    let regular = files.iter().filter(|file| file.state.is_some());
    let files = regular.map(|file| file.day.clone()).collect();
    sum_date(&source, &request, files, hours, || stop.is_called())
}

pub(super) fn date_facts(connection: &Connection, date: i64) -> Result<Option<DateFacts>, CacheError> {
    let mut select = connection.prepare_cached("SELECT facts FROM date WHERE date = ?")?;
    let text: Option<String> = select.query_row([date], |row| row.get(0)).optional()?;
    Ok(text.as_deref().map(serde_json::from_str).transpose()?)
}

/// Remembers what a date had when it was past, beside what it has now; nothing where both are the same.
fn note_change(
    connection: &Connection,
    date: i64,
    [before, after]: [&DateTotal; 2],
) -> Result<(), CacheError> {
    let known = "SELECT before FROM changed_date WHERE date = ?";
    let known: Option<String> = connection.query_row(known, [date], |row| row.get(0)).optional()?;
    let before = known.map_or_else(|| serde_json::to_string(before), Ok)?;
    let after = serde_json::to_string(after)?;
    connection.execute("DELETE FROM changed_date WHERE date = ?", [date])?;
    if before != after {
        let insert = "INSERT INTO changed_date (date, before, after) VALUES (?, ?, ?)";
        connection.execute(insert, params![date, before, after])?;
    }
    Ok(())
}

/// Forgets what only dates had that are gone.
fn prune(connection: &Connection) -> Result<(), CacheError> {
    let of_workloads = ["gpu", "holder", "labels"].map(|name| format!("SELECT {name} FROM by_workload"));
    let of_keys = ["node", "model", "tenant", "class"].map(|name| format!("SELECT {name} FROM cost_key"));
    let others = ["SELECT labels FROM by_node", "SELECT tenant FROM by_hour"].map(str::to_owned);
    let names = of_workloads.into_iter().chain(of_keys).chain(others).collect::<Vec<_>>().join(" UNION ");
    connection.execute_batch(&format!(
        "BEGIN;
        DELETE FROM cost_key WHERE id NOT IN (SELECT key FROM by_node);
        DELETE FROM gpu WHERE gpu NOT IN (SELECT gpu FROM by_workload);
        DELETE FROM name WHERE id NOT IN ({names});
        COMMIT"
    ))?;
    Ok(())
}

fn write(connection: &Connection, date: i64, new: &NewDate, is_past: bool) -> Result<(), CacheError> {
    let mut writer = DateWriter::new(connection, date);
    writer.clear(new.keeps_hours)?;
    let (mut rows, mut by_node) = (Vec::new(), BTreeMap::<[i64; 3], CostSums>::new());
    for ((day, key), sums) in &new.sums.workloads {
        let Some(CostWorkload { gpu, holder, labels }) = &key.workload else { continue };
        let (day, key) = (day_number(*day), writer.key(key)?);
        let shared = writer.name(&serde_json::to_string(&shared_labels(labels))?)?;
        by_node.entry([day, key, shared]).or_default().add(sums)?;
        let [uuid, name] = [writer.name(&gpu.uuid)?, writer.name(holder.name())?];
        let labels = writer.name(&serde_json::to_string(labels)?)?;
        rows.push(([day, key, uuid, name, holder.version().cast_signed(), labels], *sums));
    }
    writer.write(BY_WORKLOAD, rows.into_iter())?;
    writer.write(BY_NODE, by_node.into_iter())?;
    if !new.keeps_hours {
        let mut rows = Vec::new();
        for ((hour, tenant), sums) in &new.sums.by_hour {
            let seconds = (hour.0 / 1_000_000_000).cast_signed();
            rows.push(([seconds, writer.name(tenant)?], *sums));
        }
        writer.write(BY_HOUR, rows.into_iter())?;
    }
    let indices = new.files.iter().filter_map(|file| file.content.as_ref()).flat_map(|file| &file.gpus);
    let upsert = "INSERT INTO gpu (gpu, place, date) VALUES (?1, ?2, ?3)
        ON CONFLICT (gpu) DO UPDATE SET place = ?2, date = ?3 WHERE date <= ?3";
    for (uuid, index) in indices {
        let gpu = writer.name(uuid)?;
        connection.prepare_cached(upsert)?.execute(params![gpu, index, date])?;
    }
    write_files(connection, date, &new.files)?;
    if new.files.is_empty() {
        connection.execute("DELETE FROM date WHERE date = ?", [date])?;
        return Ok(());
    }
    let facts = serde_json::to_string(&new.facts)?;
    let insert = "INSERT OR REPLACE INTO date (date, currency, is_past, facts) VALUES (?, ?, ?, ?)";
    connection.execute(insert, params![date, new.facts.currency, is_past, facts])?;
    Ok(())
}

fn write_files(connection: &Connection, date: i64, files: &[NewFile]) -> Result<(), CacheError> {
    connection.execute("DELETE FROM file WHERE date = ?", [date])?;
    let insert = "INSERT INTO file (date, path, state, content, problem) VALUES (?, ?, ?, ?, ?)";
    let mut insert = connection.prepare_cached(insert)?;
    for NewFile { path, state, content, problem } in files {
        let content = content.as_ref().map(serde_json::to_string).transpose()?;
        insert.execute(params![date, path, state, content, problem])?;
    }
    Ok(())
}

/// The sums of these GPUs on a date.
fn workloads_of(
    connection: &Connection,
    date: i64,
    gpus: &BTreeSet<Arc<str>>,
) -> Result<WorkloadSums, CacheError> {
    let mut keys = KeyReader::new(connection);
    let mut found = WorkloadSums::new();
    let all = i64::MIN..=i64::MAX;
    read_rows(
        connection,
        BY_WORKLOAD,
        ids_of([date; 2]),
        all,
        |[day, key, gpu, holder, version, labels], sums| {
            let uuid = keys.name(gpu)?;
            if gpus.contains(&uuid) {
                let holder = HolderId::new(keys.text(holder)?).with_version(version.unsigned_abs());
                let labels = Arc::new(serde_json::from_str(&keys.text(labels)?)?);
                let workload = Some(CostWorkload { gpu: GpuId { index: 0, uuid }, holder, labels });
                found
                    .entry((day_of(day), CostKey { workload, ..(*keys.key(key)?).clone() }))
                    .or_default()
                    .add(&sums)?;
            }
            Ok(())
        },
    )?;
    Ok(found)
}
