//! `gpumeter ledger snapshot` and `gpumeter ledger compact`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use gpumeter::accounting::billing::PriceBook;
use gpumeter::accounting::ledger::{Cause, Reader, Retention, compact, snapshot};
use gpumeter::model::Nanoseconds;

use super::world::*;

const HOUR: u64 = 3_600;

fn run(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    command.arg("ledger").args(arguments).arg("--ledger").arg(world.path()).output().unwrap()
}

fn check_integrity(file: &Path) {
    let connection = rusqlite::Connection::open(file).unwrap();
    let result: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(result, "ok");
    let unbalanced: i64 = connection
        .query_row(
            "SELECT (SELECT sum(slot_ns) FROM gpu)
                    - (SELECT sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns) FROM account)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(unbalanced, 0, "the copy has half a commit");
}

#[test]
fn a_snapshot_of_a_ledger_that_is_written_is_consistent_and_private() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4_000_000_000)]));
    register_gpus(&mut ledger, 2);
    settle(&mut ledger, 0, 0..60, "user:a");
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for hour in 0..2 {
                for gpu in 0..2 {
                    let from = if gpu == 0 { 60 } else { 0 };
                    settle(&mut ledger, gpu, (hour * HOUR).max(from)..(hour + 1) * HOUR, "user:a");
                }
            }
            ledger
        });
        for number in 0.. {
            let file = world.directory.path().join(format!("copy-{number}.db"));
            snapshot(&world.path(), &file).unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o007, 0);
            check_integrity(&file);
            if writer.is_finished() && number > 2 {
                break;
            }
        }
        drop(writer.join().unwrap());
    });
    // The last one is the whole ledger, in one file.
    let output = run(&world, &["snapshot", world.directory.path().join("last.db").to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("last.db: the ledger as it was at 2025-11-15T00:15:01Z, 0."), "{printed}");
    let bill = |file: &str| {
        Reader::open(&world.directory.path().join(file)).unwrap().bill(&between(None, None)).unwrap()
    };
    assert_eq!(bill("last.db"), bill("ledger.db"));
    let left: Vec<_> =
        std::fs::read_dir(world.directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    let is_rest = |name: &&std::ffi::OsString| name.to_string_lossy().contains("part");
    assert_eq!(left.iter().find(is_rest), None);
    assert!(!left.iter().any(|name| name == "last.db-wal"));
}

#[test]
fn a_snapshot_replaces_no_file_and_says_what_is_wrong() {
    let world = World::new();
    let (ledger, _) = world.open(0, PriceBook::default());
    let file = world.directory.path().join("copy.db");
    std::fs::write(&file, "mine").unwrap();
    let error = snapshot(&world.path(), &file).unwrap_err();
    assert!(matches!(error.cause, Cause::Exists) && error.path == file, "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let nowhere = world.directory.path().join("missing/copy.db");
    let error = snapshot(&world.path(), &nowhere).unwrap_err().to_string();
    assert!(error.contains("missing/copy.db: cannot write a snapshot"), "{error}");
    let error = snapshot(&file, &world.directory.path().join("other.db")).unwrap_err();
    assert!(matches!(error.cause, Cause::Foreign), "{error}");
    let refused = run(&world, &["snapshot", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("copy.db: cannot write a snapshot: the file exists"), "{text}");
    drop(ledger);
    // Without an agent, too, and of a newer schema as it is.
    rusqlite::Connection::open(world.path()).unwrap().pragma_update(None, "user_version", 14).unwrap();
    let old = world.directory.path().join("old.db");
    snapshot(&world.path(), &old).unwrap();
    let version = rusqlite::Connection::open(&old).unwrap();
    let version: i64 = version.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 14);
}

#[test]
fn a_compacted_ledger_is_smaller_and_has_the_same_bill() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, book(&[(0, 4_000_000_000)]));
    register_gpus(&mut ledger, 1);
    let closed = vec![whole(0, (after(0), after(100 * HOUR)), "user:a", HOUR)];
    let batch =
        gpumeter::accounting::batches::LedgerBatch { now: after(100 * HOUR), closed, ..Default::default() };
    ledger.commit(&batch).unwrap();
    let keep = Nanoseconds::from_seconds(10 * HOUR);
    while ledger.retain(Retention { minutes: keep, quarter_hours: keep }).unwrap() {}
    assert!(matches!(compact(&world.path()).unwrap_err().cause, Cause::Owned { .. }));
    drop(ledger);
    let bill = || Reader::open(&world.path()).unwrap().bill(&between(Some(after(95 * HOUR)), None)).unwrap();
    let before = bill();
    let size = || world.path().metadata().unwrap().len();
    let at_first = size();
    let output = run(&world, &["compact"]);
    assert!(output.status.success(), "{output:?}");
    assert!(size() < at_first / 3, "{at_first} to {}", size());
    assert_eq!(bill(), before);
    check_version(&world);
    let printed = String::from_utf8(output.stdout).unwrap();
    let [before, now] =
        [at_first, size()].map(|size| format!("{}.{} MB", size / 1_000_000, size / 100_000 % 10));
    assert!(printed.ends_with(&format!("ledger.db: {before} before, {now} now\n")), "{printed}");
    // It opens as before.
    assert_eq!(world.open(100 * HOUR, book(&[(0, 4_000_000_000)])).1.imbalance, 0);
}

fn check_version(world: &World) {
    assert_eq!(&world.sql::<i64>("PRAGMA application_id").to_be_bytes()[4..], b"GPMT");
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 13);
    assert_eq!(world.sql::<i64>("PRAGMA freelist_count"), 0);
}
