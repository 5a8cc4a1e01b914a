//! Finds the files that have nothing of a job, which need not be read to report it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, params};

use super::report::CostCacheReader;
use super::store::{date_number, ids_of};
use super::{BUSY, CacheError};
use crate::accounting::billing::BillRequest;
use crate::accounting::day_files::fleet::FileContent;
use crate::accounting::day_files::tree::state_of;
use crate::model::Utc;

/// The GPUs that had something on a date.
type FoundGpus = BTreeSet<(i64, Arc<str>)>;

impl CostCacheReader {
    /// The files of a period, below that directory, of whose GPUs none had a line with that text in a label on the date. What the cache
    /// does not know as it is now is not among them, nor is the last file of a ledger that has another one: it says up to when its node
    /// is settled.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn files_without(
        &self,
        label: &str,
        request: &BillRequest,
        exports: &Path,
    ) -> Result<BTreeSet<PathBuf>, CacheError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        let connection = connection.unchecked_transaction()?;
        let begin = request.from.unwrap_or_default();
        let end = request.to.unwrap_or(request.now).max(begin);
        let dates = [date_number(begin), date_number(Utc(end.0.saturating_sub(1)))];
        let found = gpus_with(&connection, label, dates)?;
        let files = known_files(&connection, dates)?;
        let is_found = |file: &KnownContent| {
            file.content.gpus.keys().any(|uuid| found.contains(&(file.date, Arc::clone(uuid))))
        };
        let (with_it, without) = files.into_iter().partition::<Vec<_>, _>(is_found);
        let mut last = BTreeMap::<&str, i64>::new();
        for file in with_it.iter().chain(&without) {
            let known = last.entry(&file.content.ledger).or_insert(file.date);
            *known = file.date.max(*known);
        }
        let ledgers: BTreeSet<&str> = with_it.iter().map(|file| &*file.content.ledger).collect();
        let is_end = |file: &KnownContent| {
            let ledger = &*file.content.ledger;
            ledgers.contains(ledger) && last.get(ledger) == Some(&file.date)
        };
        let paths =
            without.iter().filter(|file| !is_end(file)).map(|file| (exports.join(&file.path), &file.state));
        let unchanged =
            paths.filter(|(path, state)| matches!(state_of(path), Ok(Some(Some(now))) if now == **state));
        Ok(unchanged.map(|(path, _)| path).collect())
    }
}

/// A file that was read.
struct KnownContent {
    date: i64,
    /// Below the directory.
    path: String,
    state: String,
    content: FileContent,
}

fn gpus_with(connection: &Connection, label: &str, dates: [i64; 2]) -> Result<FoundGpus, CacheError> {
    // Labels are kept as JSON.
    let sql = "SELECT DISTINCT sums.id >> 32, gpu.text FROM by_workload sums JOIN name gpu ON gpu.id = sums.gpu
               WHERE sums.id BETWEEN ?1 AND ?2
                 AND sums.labels IN (SELECT id FROM name WHERE substr(text, 1, 1) = '{' AND instr(text, ?3) > 0)";
    let [first, last] = ids_of(dates);
    let mut select = connection.prepare(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?.into()));
    let found = select.query_map(params![first, last, serde_json::to_string(label)?], read)?;
    Ok(found.collect::<Result<_, _>>()?)
}

fn known_files(connection: &Connection, [first, last]: [i64; 2]) -> Result<Vec<KnownContent>, CacheError> {
    let sql =
        "SELECT date, path, state, content FROM file WHERE date BETWEEN ? AND ? AND content IS NOT NULL";
    let mut select = connection.prepare(sql)?;
    let mut rows = select.query([first, last])?;
    let mut files = Vec::new();
    while let Some(row) = rows.next()? {
        let content = serde_json::from_str(&row.get::<_, String>(3)?)?;
        files.push(KnownContent { date: row.get(0)?, path: row.get(1)?, state: row.get(2)?, content });
    }
    Ok(files)
}
