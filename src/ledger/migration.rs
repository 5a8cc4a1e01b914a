//! Migrations of the schema; `PRAGMA user_version` counts those that a file has had.
//!
//! A new file gets all of them, an older one those that it lacks, in one transaction. An older file is first copied to
//! `<ledger>.v<version>` and synced, and `restore` puts such a copy back. A file that is only read is migrated in a copy in
//! memory.
//!
//! A released migration is never changed; another one follows it. It may replace tables, since foreign keys are not enforced
//! while it runs, and it keeps the keys that other tables refer to.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};

use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::files::with_suffix;
use super::{files, owner, reader, schema};
use crate::model::Utc;
use crate::tenants::{TenantRules, tenant};

/// A step from one version to the next.
struct Migration {
    sql: &'static str,
    /// Runs after `sql`, for what SQL cannot do.
    then: fn(&Transaction<'_>) -> Result<(), Cause>,
}

/// The migrations to version 1, 2 and so on.
const MIGRATIONS: &[Migration] = &[
    Migration { sql: include_str!("schema/1.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/2.sql"), then: add_tenants },
    Migration { sql: include_str!("schema/3.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/4.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/5.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/6.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/7.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/8.sql"), then: |_| Ok(()) },
    Migration { sql: include_str!("schema/9.sql"), then: |_| Ok(()) },
];

/// The newest version.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Brings the file at `path` to the newest version; a new one is created at `now`. Returns the copy of an upgraded file.
pub(super) fn migrate(connection: &mut Connection, path: &Path, now: Utc) -> Result<Option<PathBuf>, Cause> {
    let found = schema::check_version(connection)?;
    if found == VERSION {
        return Ok(None);
    }
    let copy = match found {
        0 => None,
        _ => Some(save_copy(connection, path, found).map_err(|cause| Cause::Upgrade {
            copy: copy_path(path, found),
            from: found,
            to: VERSION,
            cause: Box::new(cause),
        })?),
    };
    apply(connection, MIGRATIONS, now)?;
    Ok(copy)
}

/// A copy in memory, at the newest version.
pub(super) fn migrated_copy(connection: &Connection) -> Result<Connection, Cause> {
    let mut copy = Connection::open_in_memory()?;
    copy_to(connection, &mut copy)?;
    apply(&mut copy, MIGRATIONS, Utc(0))?;
    Ok(copy)
}

/// Runs the migrations that the file lacks, in one transaction.
fn apply(connection: &mut Connection, migrations: &[Migration], now: Utc) -> Result<(), Cause> {
    // With foreign keys a table cannot be replaced; inside a transaction the pragma has no effect.
    connection.execute_batch("PRAGMA foreign_keys = OFF")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = usize::try_from(schema::version(&transaction)?).unwrap_or(usize::MAX);
    for migration in migrations.iter().skip(found) {
        transaction.execute_batch(migration.sql)?;
        (migration.then)(&transaction)?;
    }
    if found == 0 {
        let now = stored(now.0)?;
        transaction
            .execute("INSERT INTO ledger (id, created_ns, last_commit_ns) VALUES (1, ?1, ?1)", [now])?;
        transaction.pragma_update(None, "application_id", schema::APPLICATION)?;
    }
    transaction.pragma_update(None, "user_version", migrations.len() as i64)?;
    Ok(transaction.commit()?)
}

/// Adds the column `tenant` to ledgers without it, and fills it where it is empty.
fn add_tenants(transaction: &Transaction<'_>) -> Result<(), Cause> {
    let is_there: bool = transaction.query_row(
        "SELECT count(*) > 0 FROM pragma_table_info('holder') WHERE name = 'tenant'",
        [],
        |row| row.get(0),
    )?;
    if !is_there {
        transaction.execute_batch("ALTER TABLE holder ADD COLUMN tenant TEXT")?;
    }
    transaction.execute_batch("CREATE INDEX IF NOT EXISTS holder_tenant ON holder (tenant)")?;
    for holder in reader::holders(transaction, "SELECT name, 0, facts FROM holder WHERE tenant IS NULL", [])?
    {
        transaction
            .prepare_cached("UPDATE holder SET tenant = ?2 WHERE name = ?1")?
            .execute(params![holder.id.as_str(), tenant(&holder, &TenantRules::default())])?;
    }
    Ok(())
}

/// Path of the copy of that version.
fn copy_path(path: &Path, version: i64) -> PathBuf {
    with_suffix(path, &format!(".v{version}"))
}

/// Copies the ledger with its write-ahead log, in place of an earlier copy of that version, and syncs the copy.
fn save_copy(connection: &Connection, path: &Path, version: i64) -> Result<PathBuf, Cause> {
    let copy = copy_path(path, version);
    save_as(connection, &with_suffix(path, ".part"), &copy)?;
    Ok(copy)
}

/// Writes a copy to the file `part`, syncs it, and renames it.
pub(super) fn save_as(connection: &Connection, part: &Path, copy: &Path) -> Result<(), Cause> {
    let written = write_copy(connection, part, copy);
    if written.is_err() {
        let _ = fs::remove_file(part);
    }
    written
}

fn write_copy(connection: &Connection, part: &Path, copy: &Path) -> Result<(), Cause> {
    match fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Cause::Unwritable(error)),
        _ => files::create(part).map_err(Cause::Unwritable)?,
    }
    let mut target = Connection::open(part)?;
    copy_to(connection, &mut target)?;
    // A copy has no log, or SQLite would apply the log of an earlier copy to it.
    target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    target.close().map_err(|(_, error)| error)?;
    let directory = copy.parent().unwrap_or(Path::new("/"));
    File::open(part)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(part, copy))
        .and_then(|()| File::open(directory)?.sync_all())
        .map_err(Cause::Unwritable)
}

/// Copies a database over another one in one step: all of it or nothing.
fn copy_to(from: &Connection, to: &mut Connection) -> Result<(), Cause> {
    match Backup::new(from, to)?.step(-1)? {
        StepResult::Done => Ok(()),
        _ => Err(Cause::Busy),
    }
}

/// Result of [`restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The ledger.
    pub path: PathBuf,
    /// Its schema version now.
    pub version: i64,
    /// Time of its last commit.
    pub until: Utc,
    /// Copy of the replaced ledger.
    pub replaced: PathBuf,
    /// Time of the last commit of the replaced ledger.
    pub replaced_until: Utc,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, version, until, replaced, replaced_until } = self;
        writeln!(f, "{}: restored as it was at {until}, schema version {version}", path.display())?;
        writeln!(
            f,
            "not in the restored ledger: {until} to {replaced_until}; the replaced ledger is {}",
            replaced.display()
        )?;
        writeln!(f, "start the release that knows version {version}; a newer one upgrades the ledger again")
    }
}

/// Replaces a ledger that no agent is using by a copy that an upgrade saved: the newest of an older version, or that of
/// version `to`. The present ledger is copied the same way, so it can be restored too.
///
/// # Errors
/// A running agent owns the ledger; the file is no ledger; there is no such copy; the disk.
pub fn restore(path: &Path, to: Option<i64>) -> Result<Restored, Error> {
    restore_copy(path, to).map_err(|cause| cause.at(path, "restore the ledger"))
}

fn restore_copy(path: &Path, to: Option<i64>) -> Result<Restored, Cause> {
    let (path, _lock, mut connection) = owner::open_unused(path)?;
    let present = schema::ledger_version(&connection)?;
    let copies = copies(&path)?;
    let found = match to {
        Some(to) => copies.iter().copied().find(|version| *version == to && to != present),
        None => copies.iter().copied().filter(|version| *version < present).max(),
    };
    let version = found.ok_or_else(|| Cause::NoCopy { path: path.clone(), present, copies })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(copy_path(&path, version), flags)?;
    if schema::ledger_version(&copy)? != version {
        return Err(Cause::Foreign);
    }
    let (until, replaced_until) = (last_commit(&copy)?, last_commit(&connection)?);
    let replaced = save_copy(&connection, &path, present)?;
    copy_to(&copy, &mut connection)?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(Restored { path, version, until, replaced, replaced_until })
}

/// The versions of the copies beside the ledger, in order.
fn copies(path: &Path) -> Result<Vec<i64>, Cause> {
    let (directory, prefix) = (path.parent().unwrap_or(Path::new("/")), with_suffix(path, ".v"));
    let prefix = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut versions = Vec::new();
    for entry in fs::read_dir(directory).map_err(Cause::Unwritable)? {
        let name = entry.map_err(Cause::Unwritable)?.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        versions.extend(version.filter(|version: &i64| *version > 0));
    }
    versions.sort_unstable();
    Ok(versions)
}

/// Time of the last commit.
pub(super) fn last_commit(connection: &Connection) -> Result<Utc, Cause> {
    Ok(connection.query_row("SELECT last_commit_ns FROM ledger", [], |row| Ok(Utc(loaded(row, 0)?)))?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Adds a column to the key of a table, which replaces tables.
    const ADD_KEY_COLUMN: Migration = Migration {
        sql: "CREATE TABLE new (
                  gpu INTEGER NOT NULL REFERENCES gpu (id),
                  gpu_instance TEXT NOT NULL DEFAULT '',
                  holder INTEGER NOT NULL REFERENCES holder (id),
                  currency TEXT NOT NULL, class TEXT NOT NULL, born_ns INTEGER NOT NULL,
                  held_units INTEGER NOT NULL, held_nanos INTEGER NOT NULL,
                  used_units INTEGER NOT NULL, used_nanos INTEGER NOT NULL,
                  PRIMARY KEY (gpu, gpu_instance, holder, currency, class)
              ) STRICT, WITHOUT ROWID;
              INSERT INTO new (gpu, holder, currency, class, born_ns, held_units, held_nanos, used_units, used_nanos)
                  SELECT * FROM cost;
              DROP TABLE cost;
              ALTER TABLE new RENAME TO cost;
              CREATE TABLE holder_new (
                  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, facts TEXT NOT NULL,
                  first_seen_ns INTEGER NOT NULL, tenant TEXT
              ) STRICT;
              INSERT INTO holder_new SELECT id, name, kind, facts, first_seen_ns, tenant FROM holder;
              DROP TABLE holder;
              ALTER TABLE holder_new RENAME TO holder;",
        then: |_| Ok(()),
    };

    #[test]
    fn a_migration_can_replace_tables_even_those_that_others_refer_to() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../../tests/fixtures/ledger/version-1.sql")).unwrap();
        let sums =
            "SELECT count(*), sum(held_nanos), sum(used_nanos) FROM cost JOIN holder ON holder.id = holder";
        let sums = |connection: &Connection| -> (i64, i64, i64) {
            connection.query_row(sums, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
        };
        let before = sums(&connection);
        assert!(before.0 > 0);
        let [first, second] = [0, 1].map(|index| &MIGRATIONS[index]);
        let copy = |migration: &Migration| Migration { sql: migration.sql, then: migration.then };
        apply(&mut connection, &[copy(first), copy(second), ADD_KEY_COLUMN], Utc(0)).unwrap();
        assert_eq!(schema::version(&connection).unwrap(), 3);
        assert_eq!(sums(&connection), before);
        let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(number("SELECT count(*) FROM pragma_foreign_key_check"), 0);
        let key = "SELECT count(*) FROM pragma_table_info('cost') WHERE pk > 0";
        assert_eq!(number(key), 5);
        let references = "SELECT count(*) FROM pragma_foreign_key_list('account') WHERE \"table\" = 'holder'";
        assert_eq!(number(references), 1);
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../../tests/fixtures/ledger/version-1.sql")).unwrap();
        let broken = Migration { sql: "DROP TABLE raw; DROP TABLE no_such_table", then: |_| Ok(()) };
        let none = || Migration { sql: "", then: |_| Ok(()) };
        assert!(apply(&mut connection, &[none(), broken], Utc(0)).is_err());
        assert_eq!(schema::version(&connection).unwrap(), 1);
        let raw: i64 = connection.query_row("SELECT count(*) FROM raw", [], |row| row.get(0)).unwrap();
        assert_eq!(raw, 160);
    }
}
