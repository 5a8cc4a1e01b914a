//! Ledgers that earlier builds wrote, and copies that an upgrade saved.

use std::path::Path;
use std::process::Command;

use gpumeter::accounting::batches::LedgerBatch;
use gpumeter::accounting::billing::{PriceBook, Rate};
use gpumeter::accounting::ledger::{Cause, Ledger, Opening, Reader, Retention, restore};
use gpumeter::model::{Nanoseconds, Stamp, Utc};

use super::world::*;

/// When the ledger was last committed to.
const COMMITTED: Utc = Utc(1_795_400_030_023_371_747);

/// A ledger of version 13 that a newer release has upgraded to version 14, after a copy.
fn upgraded() -> World {
    let world = World::of_rows(include_str!("../../fixtures/ledger/version-1.sql"));
    std::fs::copy(world.path(), copy_of(&world, 13)).unwrap();
    let later = COMMITTED.0 + 60_000_000_000;
    let newer = rusqlite::Connection::open(world.path()).unwrap();
    newer
        .execute_batch(&format!("UPDATE ledger SET last_commit_ns = {later}; PRAGMA user_version = 14"))
        .unwrap();
    world
}

fn number(path: &Path, sql: &str) -> i64 {
    rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn copy_of(world: &World, version: i64) -> std::path::PathBuf {
    world.directory.path().join(format!("ledger.db.v{version}"))
}

#[test]
fn a_restore_can_be_undone() {
    let world = upgraded();
    let error = Ledger::open(&world.path(), &opening(0, PriceBook::default())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("gpumeter ledger restore"), "{error}");
    let restored = restore(&world.path(), None).unwrap();
    let later = COMMITTED.plus(Nanoseconds::from_seconds(60));
    let told =
        format!("at {COMMITTED}, schema version 13\nnot in the restored ledger: {COMMITTED} to {later}; ");
    assert!(restored.contains(&told), "{restored}");
    assert_eq!(number(&copy_of(&world, 14), "PRAGMA user_version"), 14);
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 13);
    assert_eq!(world.sql::<i64>("SELECT last_commit_ns FROM ledger") as u64, COMMITTED.0);
    assert_eq!(world.sql::<String>("PRAGMA integrity_check"), "ok");
    let none = restore(&world.path(), None).unwrap_err();
    assert!(
        matches!(&none.cause, Cause::NoCopy { present: 13, copies, .. } if *copies == [13, 14]),
        "{none}"
    );
    let again = restore(&world.path(), Some(14)).unwrap();
    assert!(again.contains(&format!("at {later}, schema version 14\n")), "{again}");
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 14);
}

#[test]
fn a_ledger_that_an_agent_writes_is_not_restored() {
    let world = World::new();
    let (ledger, _) = world.open(0, PriceBook::default());
    let owned = restore(&world.path(), None).unwrap_err();
    assert!(matches!(owned.cause, Cause::Owned { .. }), "{owned}");
    drop(ledger);
}

#[test]
fn a_ledger_whose_directory_is_missing_has_nothing_to_restore() {
    let place = tempfile::tempdir().unwrap();
    let error = restore(&place.path().join("missing/ledger.db"), None).unwrap_err();
    assert!(matches!(error.cause, Cause::Missing), "{error}");
}

#[test]
fn a_file_that_is_not_a_ledger_is_not_restored() {
    let world = World::new();
    assert!(matches!(restore(&world.path(), None).unwrap_err().cause, Cause::Missing));
    std::fs::write(world.path(), "prices: 13\n").unwrap();
    assert!(matches!(restore(&world.path(), None).unwrap_err().cause, Cause::Foreign));
    assert_eq!(bytes(&world.path()), b"prices: 13\n");
    assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1);
}

#[test]
fn the_restore_command_prints_what_is_lost() {
    let world = upgraded();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
        command.args(["ledger", "restore", "--ledger"]).arg(world.path()).output().unwrap()
    };
    let done = run();
    assert!(done.status.success(), "{done:?}");
    let output = String::from_utf8(done.stdout).unwrap();
    for part in [
        "ledger.db: restored as it was at 2026-",
        "schema version 13",
        "not in the restored ledger",
        "ledger.db.v14",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let refused = run();
    assert_eq!(refused.status.code(), Some(2));
    let output = String::from_utf8(refused.stderr).unwrap();
    assert!(
        output.contains("there is no saved copy to restore: the ledger has schema version 13"),
        "{output}"
    );
}

/// A ledger that an earlier build wrote, in the schema of today, and the bill by tenant and the CSV by GPU that that build made
/// of it.
struct Fixture {
    rows: &'static str,
    text: &'static str,
    csv: &'static str,
}

const FIXTURES: [Fixture; 3] = [
    Fixture {
        rows: include_str!("../../fixtures/ledger/version-3.sql"),
        text: include_str!("../../fixtures/ledger/version-3.txt"),
        csv: include_str!("../../fixtures/ledger/version-3.csv"),
    },
    Fixture {
        rows: include_str!("../../fixtures/ledger/version-4.sql"),
        text: include_str!("../../fixtures/ledger/version-4.txt"),
        csv: include_str!("../../fixtures/ledger/version-4.csv"),
    },
    Fixture {
        rows: include_str!("../../fixtures/ledger/version-7.sql"),
        text: include_str!("../../fixtures/ledger/version-7.txt"),
        csv: include_str!("../../fixtures/ledger/version-7.csv"),
    },
];

#[test]
fn the_bills_of_earlier_builds_stay_the_same() {
    let mut rolled_up = Vec::<bool>::new();
    for fixture in FIXTURES {
        let world = World::of_rows(fixture.rows);
        let bill = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
            command.env("TZ", "UTC").args(["bill", "--ledger"]).arg(world.path()).args(arguments);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        assert_eq!(bill(&[]), fixture.text);
        assert_eq!(bill(&["--by", "gpu", "--csv"]), fixture.csv);
        // Once an agent has opened it, too.
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
        // A rate of version 4 begins inside a quarter hour, which none does any more.
        if fixture.rows == FIXTURES[1].rows {
            continue;
        }
        // Rolled up, too.
        let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
        let later = now.utc.plus(Nanoseconds::from_seconds(3_600));
        ledger.commit(&LedgerBatch { now: later, ..LedgerBatch::default() }).unwrap();
        let retention = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
        while ledger.retain(retention).unwrap() {}
        drop(ledger);
        rolled_up.push(world.sql("SELECT rolled_until_ns > 0 FROM ledger"));
        assert_eq!(bill(&["--by", "gpu", "--csv"]), fixture.csv);
    }
    assert_eq!(rolled_up, [false, true], "the first one has no whole quarter hour");
}

#[test]
fn the_time_that_an_older_agent_settled_keeps_its_prices() {
    let world = World::of_rows(FIXTURES[1].rows);
    let (mut ledger, recovered) = Ledger::open(&world.path(), &opening(0, PriceBook::default())).unwrap();
    let bill = |world: &World| Reader::open(&world.path()).unwrap().bill(&between(None, None)).unwrap();
    let before = bill(&world).reconciliation;
    let rate = Rate { from: Some(Utc(0)), ..book(&[(0, 9_000_000_000)]).rates.remove(0) };
    let mut late = PriceBook { rates: vec![rate], ..PriceBook::default() };
    late.rates[0].tariff.currency = "CHF".into();
    ledger.reprice(&late, Nanoseconds(1)).unwrap();
    assert_eq!(bill(&world).reconciliation, before);
    assert!(recovered.rates.rates.entries().iter().any(|rate| rate.entry.from.is_some()));
}
