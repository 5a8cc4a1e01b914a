//! The schema of a ledger and its migrations; `PRAGMA user_version` is the version of a file.
//!
//! A new file gets the schema and all migrations, an older one the migrations that it lacks, in one transaction. An older file
//! is first copied to `<ledger>.v<version>` and synced, and `restore` puts such a copy back. A file that is only read is migrated
//! in a copy in memory. Versions before [`FIRST`] were never released and are refused.
//!
//! A released migration is never changed; another one follows it. It may replace tables, since foreign keys are not enforced
//! while it runs, and it keeps the keys that other tables refer to.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::column::{loaded, stored};
use super::error::{Cause, Error};
use super::files::with_suffix;
use super::{files, owner, schema};
use crate::model::Utc;
use crate::runtime::file::{self, Durability};

/// The tables of version [`FIRST`].
const SCHEMA: &str = include_str!("schema.sql");

/// The first released version.
pub(super) const FIRST: i64 = 13;

/// The migrations to the versions after [`FIRST`], in order.
const MIGRATIONS: &[&str] = &[];

pub(super) const VERSION: i64 = FIRST + MIGRATIONS.len() as i64;

/// Brings the file at `path` to the newest version; a new one is created at `now`. Returns the copy of an upgraded file.
pub(super) fn migrate(connection: &mut Connection, path: &Path, now: Utc) -> Result<Option<PathBuf>, Cause> {
    migrate_by(MIGRATIONS, connection, path, now)
}

fn migrate_by(
    migrations: &[&str],
    connection: &mut Connection,
    path: &Path,
    now: Utc,
) -> Result<Option<PathBuf>, Cause> {
    let (from, to) = (schema::check_version(connection)?, FIRST + migrations.len() as i64);
    let copy = match from {
        0 => None,
        from if from == to => return Ok(None),
        _ => Some(save_copy(connection, path, from).map_err(|cause| Cause::Upgrade {
            copy: copy_path(path, from),
            from,
            to,
            cause: Box::new(cause),
        })?),
    };
    apply(migrations, connection, now)?;
    Ok(copy)
}

pub(super) fn migrated_copy(connection: &Connection) -> Result<Connection, Cause> {
    let mut copy = Connection::open_in_memory()?;
    copy_to(connection, &mut copy)?;
    apply(MIGRATIONS, &mut copy, Utc(0))?;
    Ok(copy)
}

/// Runs what the file lacks, in one transaction.
fn apply(migrations: &[&str], connection: &mut Connection, now: Utc) -> Result<(), Cause> {
    // With foreign keys a table cannot be replaced; inside a transaction the pragma has no effect.
    connection.execute_batch("PRAGMA foreign_keys = OFF")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut version = schema::version(&transaction)?;
    if version == 0 {
        transaction.execute_batch(SCHEMA)?;
        let now = stored(now.0)?;
        transaction
            .execute("INSERT INTO ledger (id, created_ns, last_commit_ns) VALUES (1, ?1, ?1)", [now])?;
        transaction.pragma_update(None, "application_id", schema::APPLICATION)?;
        version = FIRST;
    }
    for migration in (FIRST..).zip(migrations).filter(|(from, _)| *from >= version).map(|(_, sql)| sql) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", FIRST + migrations.len() as i64)?;
    Ok(transaction.commit()?)
}

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
    file::replace(copy, part, files::MODE, Durability::PowerLoss, |_| {
        let mut target = Connection::open(part)?;
        copy_to(connection, &mut target)?;
        // A copy has no log, or SQLite would apply the log of an earlier copy to it.
        target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
        Ok(target.close().map_err(|(_, error)| error)?)
    })
}

/// Copies a database over another one in one step: all of it or nothing.
fn copy_to(from: &Connection, to: &mut Connection) -> Result<(), Cause> {
    match Backup::new(from, to)?.step(-1)? {
        StepResult::Done => Ok(()),
        _ => Err(Cause::Busy),
    }
}

/// Replaces a ledger that no agent is using by a copy that an upgrade saved: the newest of an older version, or that of
/// version `to`. The present ledger is copied the same way, so it can be restored too. Returns what was done, in words.
///
/// # Errors
/// A running agent owns the ledger; the file is no ledger; there is no such copy; the disk.
pub fn restore(path: &Path, to: Option<i64>) -> Result<String, Error> {
    restore_copy(path, to).map_err(|cause| cause.at(path, "restore the ledger"))
}

fn restore_copy(path: &Path, to: Option<i64>) -> Result<String, Cause> {
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
    Ok(format!(
        "{}: restored as it was at {until}, schema version {version}\n\
         not in the restored ledger: {until} to {replaced_until}; the replaced ledger is {}\n\
         start the release that knows version {version}; a newer one upgrades the ledger again\n",
        path.display(),
        replaced.display()
    ))
}

/// The versions of the copies beside the ledger, in order.
fn copies(path: &Path) -> Result<Vec<i64>, Cause> {
    let (directory, prefix) = (path.parent().unwrap_or(Path::new("/")), with_suffix(path, ".v"));
    let prefix = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut versions = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        versions.extend(version.filter(|version: &i64| *version > 0));
    }
    versions.sort_unstable();
    Ok(versions)
}

pub(super) fn last_commit(connection: &Connection) -> rusqlite::Result<Utc> {
    let sql = "SELECT last_commit_ns FROM ledger";
    connection.prepare_cached(sql)?.query_row([], |row| Ok(Utc(loaded(row, 0)?)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Version 13, which adds a column to the key of a table and replaces one that others refer to.
    const INVENTED: &str = "
        CREATE TABLE new (
            gpu INTEGER NOT NULL REFERENCES gpu (id),
            holder INTEGER NOT NULL REFERENCES holder (id),
            gpu_instance INTEGER NOT NULL,
            place TEXT NOT NULL DEFAULT '',
            currency TEXT NOT NULL, class TEXT NOT NULL, born_ns INTEGER NOT NULL,
            held_units INTEGER NOT NULL, held_nanos INTEGER NOT NULL,
            used_units INTEGER NOT NULL, used_nanos INTEGER NOT NULL,
            held_rest INTEGER NOT NULL, used_rest INTEGER NOT NULL,
            PRIMARY KEY (gpu, holder, gpu_instance, place, currency, class)
        ) STRICT, WITHOUT ROWID;
        INSERT INTO new SELECT gpu, holder, gpu_instance, '', currency, class, born_ns,
            held_units, held_nanos, used_units, used_nanos, held_rest, used_rest FROM cost;
        DROP TABLE cost;
        ALTER TABLE new RENAME TO cost;
        CREATE TABLE holder_new (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL, version INTEGER NOT NULL, kind TEXT NOT NULL, facts TEXT NOT NULL,
            first_seen_ns INTEGER NOT NULL, tenant TEXT NOT NULL, place TEXT, UNIQUE (name, version)
        ) STRICT;
        INSERT INTO holder_new SELECT *, NULL FROM holder;
        DROP TABLE holder;
        ALTER TABLE holder_new RENAME TO holder;";

    /// The account of a killed demo, in a file.
    fn demo() -> (tempfile::TempDir, PathBuf, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.db");
        let connection = Connection::open(&path).unwrap();
        let rows = include_str!("../../../tests/fixtures/ledger/version-7.sql");
        let marks =
            format!("PRAGMA application_id = {}; PRAGMA user_version = {FIRST};", schema::APPLICATION);
        connection.execute_batch(&format!("BEGIN; {SCHEMA} {rows} COMMIT; {marks}")).unwrap();
        (directory, path, connection)
    }

    fn number(connection: &Connection, sql: &str) -> i64 {
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_ledger_is_upgraded_after_a_copy_by_a_migration_that_replaces_tables() {
        let (_directory, path, mut connection) = demo();
        let sums = |connection: &Connection| {
            ["count(*)", "sum(held_nanos)", "sum(used_nanos)"].map(|sum| {
                number(connection, &format!("SELECT {sum} FROM cost JOIN holder ON holder.id = holder"))
            })
        };
        let before = sums(&connection);
        assert!(before[0] > 0);
        // The copy has what is still in the write-ahead log.
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;
                            INSERT INTO clock_step VALUES (1, 2)",
            )
            .unwrap();
        let copy = migrate_by(&[INVENTED], &mut connection, &path, Utc(0)).unwrap().unwrap();
        assert_eq!(copy, path.with_file_name("ledger.db.v13"));
        assert_eq!(schema::version(&connection).unwrap(), 14);
        assert_eq!(sums(&connection), before);
        assert_eq!(number(&connection, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
        let references = "SELECT count(*) FROM pragma_foreign_key_list('account') WHERE \"table\" = 'holder'";
        assert_eq!(number(&connection, references), 1);
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o007, 0);
        let saved = Connection::open(&copy).unwrap();
        assert_eq!((schema::version(&saved).unwrap(), sums(&saved)), (13, before));
        assert_eq!(number(&saved, "SELECT count(*) FROM clock_step WHERE at_ns = 1"), 1);
        // The copy is one file, and an upgraded ledger is not copied again.
        assert!(["-wal", "-shm", ".part"].iter().all(|suffix| !with_suffix(&copy, suffix).exists()));
        fs::remove_file(&copy).unwrap();
        let newer = schema::check_version(&connection).unwrap_err();
        assert!(matches!(newer, Cause::Newer { found: 14, known: 13 }), "{newer}");
        assert!(!copy.exists());
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let (_directory, path, mut connection) = demo();
        let count = "SELECT count(*) FROM raw";
        let before = number(&connection, count);
        assert!(before > 0);
        let broken = "DROP TABLE raw; DROP TABLE no_such_table";
        assert!(migrate_by(&[broken], &mut connection, &path, Utc(0)).is_err());
        assert_eq!((schema::version(&connection).unwrap(), number(&connection, count)), (FIRST, before));
    }

    #[test]
    fn a_ledger_that_cannot_be_copied_is_not_upgraded() {
        let (directory, path, mut connection) = demo();
        // A directory in the place of the copy, which stops root too.
        fs::create_dir(directory.path().join("ledger.db.part")).unwrap();
        let cause = migrate_by(&[INVENTED], &mut connection, &path, Utc(0)).unwrap_err();
        assert!(matches!(cause, Cause::Upgrade { from: 13, to: 14, .. }), "{cause}");
        let error = cause.at(&path, "open the ledger");
        assert!(error.to_string().contains("ledger.db.v13"), "{error}");
        assert!(!error.is_wrong_ledger(), "the agent tries again");
        assert_eq!(schema::version(&connection).unwrap(), FIRST);
        assert!(!path.with_file_name("ledger.db.v13").exists());
    }
}
