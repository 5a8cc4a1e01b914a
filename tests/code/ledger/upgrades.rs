//! Ledgers of earlier releases: upgraded after a backup, read without an upgrade, and restored.

use std::path::Path;
use std::process::Command;

use gpumeter::account::LedgerBatch;
use gpumeter::billing::{PriceBook, Rate};
use gpumeter::ledger::{Cause, Ledger, Opening, Reader, Retention, restore};
use gpumeter::model::{Nanoseconds, Stamp, Utc};

use super::world::*;

/// The ledger of a killed demo of the last release without migrations, with every table that it added on opening.
const VERSION_1: &str = include_str!("../../fixtures/ledger/version-1.sql");
const COMMITTED: Utc = Utc(1_795_400_030_023_371_747);
const BOOT: &str = "demo-18ea8a0fc69a865b";
const OFFSET: u64 = 1_795_398_201_821_722_203;

/// Tables that an earlier agent may not have added yet.
const ADDITIONS: [&str; 6] = [
    "DROP TABLE expected",
    "DROP TABLE latch",
    "DROP TABLE node",
    "DROP TABLE provisional_boot",
    "DROP TABLE xid_sum",
    "DROP INDEX holder_tenant; ALTER TABLE holder DROP COLUMN tenant",
];

fn version_1(without: impl Iterator<Item = &'static str>) -> World {
    let world = World::new();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    connection.execute_batch(VERSION_1).unwrap();
    for statement in without {
        connection.execute_batch(statement).unwrap();
    }
    world
}

fn complete() -> World {
    version_1(std::iter::empty())
}

/// Two seconds after the last commit, in the same boot.
fn later() -> Opening {
    let utc = COMMITTED.plus(Nanoseconds::from_seconds(2));
    let now = Stamp { boottime: Nanoseconds(utc.0 - OFFSET), utc };
    Opening { boot_id: BOOT.into(), now, ..Opening::default() }
}

fn number(path: &Path, sql: &str) -> i64 {
    rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn copy_of(world: &World, version: i64) -> std::path::PathBuf {
    world.directory.path().join(format!("ledger.db.v{version}"))
}

fn upgraded(world: &World) {
    let was_old = world.sql::<i64>("PRAGMA user_version") == 1;
    let (ledger, recovered) = Ledger::open(&world.path(), &later()).unwrap();
    assert_eq!(recovered.upgraded_from, was_old.then(|| copy_of(world, 1)));
    assert_eq!((recovered.imbalance, recovered.gpus.len(), recovered.inventory.len()), (0, 8, 8));
    for (uuid, gpu) in &recovered.gpus {
        assert_eq!((gpu.spans.len(), gpu.spans[0].from), (20, gpu.settled_until), "{uuid}");
    }
    let tenants: std::collections::BTreeSet<&str> =
        recovered.counters.values().map(|counter| &*counter.tenant).collect();
    assert!(tenants.contains("train-llm.service"), "{tenants:?}");
    drop(ledger);
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 9);
    assert!(Reader::open(&world.path()).unwrap().bill(None, None).unwrap().is_balanced());
}

#[test]
fn a_version_1_ledger_is_upgraded_after_a_backup() {
    for subset in 0..1 << ADDITIONS.len() {
        let missing = ADDITIONS.into_iter().enumerate().filter(|(index, _)| subset >> index & 1 == 1);
        let world = version_1(missing.map(|(_, statement)| statement));
        upgraded(&world);
        let copy = copy_of(&world, 1);
        assert_eq!(number(&copy, "PRAGMA user_version"), 1);
        assert_eq!(number(&copy, "SELECT count(*) FROM raw"), 160);
        // An upgraded ledger is not backed up again.
        std::fs::remove_file(&copy).unwrap();
        upgraded(&world);
        assert!(!copy.exists());
    }
}

#[test]
fn a_backup_includes_the_write_ahead_log_and_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let world = complete();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
    connection.execute("INSERT INTO clock_step VALUES (1, 2)", []).unwrap();
    let killed = world.copy_as_killed();
    drop(connection);
    assert!(killed.directory.path().join("ledger.db-wal").metadata().unwrap().len() > 0);
    drop(Ledger::open(&killed.path(), &later()).unwrap());
    let copy = copy_of(&killed, 1);
    assert_eq!(number(&copy, "SELECT count(*) FROM clock_step"), 1);
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o007, 0);
    assert!(!killed.directory.path().join("ledger.db.part").exists());
    // A backup is one file, also while and after it is read.
    Reader::open(&copy).unwrap().bill(None, None).unwrap();
    for suffix in ["-wal", "-shm"] {
        assert!(!killed.directory.path().join(format!("ledger.db.v1{suffix}")).exists(), "{suffix}");
    }
}

#[test]
fn a_ledger_that_cannot_be_backed_up_is_not_upgraded() {
    let world = complete();
    // A directory in the place of the backup, which stops root too.
    std::fs::create_dir(world.directory.path().join("ledger.db.part")).unwrap();
    let error = Ledger::open(&world.path(), &later()).map(|_| ()).unwrap_err();
    assert!(matches!(error.cause, Cause::Upgrade { from: 1, to: 9, .. }), "{error}");
    assert!(error.to_string().contains("ledger.db.v1"), "{error}");
    assert!(!error.is_wrong_ledger(), "the agent tries again");
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 1);
    assert!(!copy_of(&world, 1).exists());
    std::fs::remove_dir(world.directory.path().join("ledger.db.part")).unwrap();
    upgraded(&world);
}

#[test]
fn an_older_ledger_can_be_read_without_a_change() {
    let world = version_1(ADDITIONS.into_iter());
    let before = bytes(&world.path());
    let mut reader = Reader::open(&world.path()).unwrap();
    assert!(reader.bill(None, None).unwrap().is_balanced());
    assert_eq!(reader.inventory().unwrap().len(), 8);
    assert_eq!(reader.node().unwrap().name, "");
    drop(reader);
    assert_eq!(bytes(&world.path()), before);
    assert!(!copy_of(&world, 1).exists());
}

#[test]
fn a_restore_can_be_undone() {
    let world = complete();
    let (mut ledger, recovered) = Ledger::open(&world.path(), &later()).unwrap();
    let now = recovered.timeline.at(later().now.boottime);
    ledger.commit(&LedgerBatch { now, ..LedgerBatch::default() }).unwrap();
    let owned = restore(&world.path(), None).unwrap_err();
    assert!(matches!(owned.cause, Cause::Owned { .. }), "{owned}");
    drop(ledger);
    let restored = restore(&world.path(), None).unwrap();
    assert_eq!((restored.version, restored.until, restored.replaced_until), (1, COMMITTED, now));
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 1);
    assert_eq!(world.sql::<i64>("SELECT last_commit_ns FROM ledger") as u64, COMMITTED.0);
    assert_eq!(world.sql::<String>("PRAGMA integrity_check"), "ok");
    let none = restore(&world.path(), None).unwrap_err();
    assert!(matches!(&none.cause, Cause::NoCopy { present: 1, copies, .. } if *copies == [1, 9]), "{none}");
    let again = restore(&world.path(), Some(9)).unwrap();
    assert_eq!((again.version, again.until), (9, now));
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 9);
    upgraded(&world);
}

#[test]
fn a_ledger_whose_directory_is_missing_has_nothing_to_restore() {
    let place = tempfile::tempdir().unwrap();
    let error = restore(&place.path().join("missing/ledger.db"), None).unwrap_err();
    assert!(matches!(error.cause, Cause::Missing), "{error}");
}

#[test]
fn a_ledger_of_a_newer_release_can_be_restored_too_and_its_refusal_says_so() {
    let world = complete();
    upgraded(&world);
    rusqlite::Connection::open(world.path()).unwrap().execute_batch("PRAGMA user_version = 10").unwrap();
    let error = Ledger::open(&world.path(), &later()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("gpumeter ledger restore"), "{error}");
    assert_eq!(restore(&world.path(), Some(1)).unwrap().version, 1);
    assert_eq!(number(&copy_of(&world, 10), "PRAGMA user_version"), 10);
    upgraded(&world);
}

#[test]
fn a_file_that_is_not_a_ledger_is_not_restored() {
    let world = World::new();
    assert!(matches!(restore(&world.path(), None).unwrap_err().cause, Cause::Missing));
    std::fs::write(world.path(), "prices: 12\n").unwrap();
    assert!(matches!(restore(&world.path(), None).unwrap_err().cause, Cause::Foreign));
    assert_eq!(bytes(&world.path()), b"prices: 12\n");
    assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1);
}

#[test]
fn the_restore_command_prints_what_is_lost() {
    let world = complete();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
        command.args(["ledger", "restore", "--ledger"]).arg(world.path()).output().unwrap()
    };
    let refused = run();
    assert_eq!(refused.status.code(), Some(2));
    let output = String::from_utf8(refused.stderr).unwrap();
    assert!(
        output.contains("there is no saved copy to restore: the ledger has schema version 1"),
        "{output}"
    );
    upgraded(&world);
    let done = run();
    assert!(done.status.success(), "{done:?}");
    let output = String::from_utf8(done.stdout).unwrap();
    for part in [
        "ledger.db: restored as it was at 2026-",
        "schema version 1",
        "not in the restored ledger",
        "ledger.db.v9",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

/// A ledger of an older version, and the bill by tenant and the CSV by GPU that an agent of that version made of it.
struct Fixture {
    sql: &'static str,
    text: &'static str,
    csv: &'static str,
}

const FIXTURES: [Fixture; 3] = [
    Fixture {
        sql: include_str!("../../fixtures/ledger/version-3.sql"),
        text: include_str!("../../fixtures/ledger/version-3.txt"),
        csv: include_str!("../../fixtures/ledger/version-3.csv"),
    },
    Fixture {
        sql: include_str!("../../fixtures/ledger/version-4.sql"),
        text: include_str!("../../fixtures/ledger/version-4.txt"),
        csv: include_str!("../../fixtures/ledger/version-4.csv"),
    },
    Fixture {
        sql: include_str!("../../fixtures/ledger/version-7.sql"),
        text: include_str!("../../fixtures/ledger/version-7.txt"),
        csv: include_str!("../../fixtures/ledger/version-7.csv"),
    },
];

#[test]
fn the_bill_of_an_older_ledger_stays_the_same() {
    let mut rolled_up = Vec::<bool>::new();
    for fixture in FIXTURES {
        let world = World::new();
        rusqlite::Connection::open(world.path()).unwrap().execute_batch(fixture.sql).unwrap();
        let bill = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
            command.env("TZ", "UTC").args(["bill", "--ledger"]).arg(world.path()).args(arguments);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!(bill(&[]), fixture.text);
        assert_eq!(bill(&["--by", "gpu", "--csv"]), fixture.csv);
        // Upgraded in place, too.
        let now = rusqlite::Connection::open(world.path()).unwrap();
        let last =
            now.query_row("SELECT last_commit_ns FROM ledger", [], |row| row.get::<_, i64>(0)).unwrap();
        let now = Stamp { boottime: Nanoseconds(1), utc: Utc(last.unsigned_abs()) };
        let node = Reader::open(&world.path()).unwrap().node().unwrap();
        let opening = Opening { boot_id: "another".into(), now, node, ..Opening::default() };
        let (ledger, recovered) = Ledger::open(&world.path(), &opening).unwrap();
        assert_eq!(recovered.imbalance, 0);
        drop(ledger);
        assert_eq!(bill(&["--by", "gpu", "--csv"]), fixture.csv);
        // Rolled up, too; a rate of version 4 begins inside a quarter hour.
        let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
        let later = now.utc.plus(Nanoseconds::from_seconds(3_600));
        ledger.commit(&LedgerBatch { now: later, ..LedgerBatch::default() }).unwrap();
        let retention = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
        while ledger.retain(retention).unwrap() {}
        drop(ledger);
        rolled_up.push(world.sql("SELECT rolled_until_ns > 0 FROM ledger"));
        assert_eq!(bill(&["--by", "gpu", "--csv"]), fixture.csv);
    }
    assert_eq!(rolled_up, [false, true, true], "the first one has no whole quarter hour");
}

#[test]
fn the_time_that_an_older_agent_settled_keeps_its_prices() {
    let world = World::new();
    rusqlite::Connection::open(world.path()).unwrap().execute_batch(FIXTURES[1].sql).unwrap();
    let (mut ledger, recovered) = Ledger::open(&world.path(), &opening(0, PriceBook::default())).unwrap();
    let bill = |world: &World| Reader::open(&world.path()).unwrap().bill(None, None).unwrap();
    let before = bill(&world).reconciliation;
    let rate = Rate { from: Some(Utc(0)), ..book(&[(0, 9_000_000_000)]).rates.remove(0) };
    let mut late = PriceBook { rates: vec![rate], ..PriceBook::default() };
    late.rates[0].tariff.currency = "CHF".into();
    ledger.reprice(&late, Nanoseconds(1)).unwrap();
    assert_eq!(bill(&world).reconciliation, before);
    assert!(recovered.rates.rates.entries().iter().any(|rate| rate.entry.from.is_some()));
}
