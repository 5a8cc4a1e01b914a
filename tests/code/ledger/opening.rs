//! Which files can be opened as a ledger, and which are refused without a change.

use std::collections::BTreeMap;

use gpumeter::accounting::batches::{AccountTimeline, LedgerBatch};
use gpumeter::accounting::ledger::{
    Cause, ClosedPeriod, Ledger, Opening, Reader, StatementOrder, check_unowned, forget, record_statement,
    restore, snapshot,
};
use gpumeter::model::{Holder, Nanoseconds, Stamp, Utc};

use super::world::*;

fn refusal(path: &std::path::Path) -> gpumeter::accounting::ledger::Error {
    Ledger::open(path, &opening(0, Default::default())).map(|_| ()).unwrap_err()
}

#[test]
fn a_new_ledger_begins_now_and_is_known_by_its_application_id() {
    let world = World::new();
    let (ledger, recovered) = world.open(0, Default::default());
    assert_eq!(recovered.created, START);
    assert!(recovered.gpus.is_empty() && recovered.counters.is_empty());
    drop(ledger);
    assert_eq!(&world.sql::<i64>("PRAGMA application_id").to_be_bytes()[4..], b"GPMT");
    assert_eq!(world.sql::<i64>("PRAGMA user_version"), 13);
    let (_, again) = world.open(60, Default::default());
    assert_eq!(again.created, START);
}

#[test]
fn a_ledger_knows_that_a_pod_or_job_has_held_a_gpu_in_it() {
    for (name, is_scheduled) in [("user:alice", false), ("k8s:11/main", true), ("slurm:alpha/7", true)] {
        let world = World::new();
        let (mut ledger, _) = world.open(0, Default::default());
        register_gpus(&mut ledger, 1);
        settle(&mut ledger, 0, 0..60, name);
        drop(ledger);
        let (_, recovered) = world.open(120, Default::default());
        assert_eq!(recovered.has_scheduled, is_scheduled, "{name}");
        assert_eq!(Reader::open(&world.path()).unwrap().has_scheduled().unwrap(), is_scheduled, "{name}");
    }
}

#[test]
fn the_last_name_of_each_uid_is_recovered_and_a_number_is_no_name() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    let holders = vec![
        Holder::user("alice", Some(1000)),
        Holder::unit("train.service", Some("bob"), Some(1001)),
        Holder::user("2000", Some(2000)),
        Holder::user("alicia", Some(1000)),
        Holder::user("granted", None),
    ];
    ledger.commit(&LedgerBatch { holders, ..LedgerBatch::default() }).unwrap();
    drop(ledger);
    let (_, recovered) = world.open(60, Default::default());
    let users: Vec<(u32, &str)> = recovered.users.iter().map(|(uid, name)| (*uid, &**name)).collect();
    assert_eq!(users, [(1000, "alicia"), (1001, "bob")]);
}

#[test]
fn an_empty_file_is_a_new_ledger_only_where_none_was_made() {
    let world = World::new();
    let lock = world.directory.path().join(format!("{}.lock", world.path().file_name().unwrap().display()));
    // Killed between the creation of the file and the first commit.
    std::fs::write(&lock, "4711\n").unwrap();
    std::fs::write(world.path(), "").unwrap();
    world.open(0, Default::default());
    // A restart keeps the note, and so does a refused start.
    world.open(1, Default::default());
    std::fs::write(world.path(), "").unwrap();
    for _ in 0..2 {
        let error = refusal(&world.path());
        assert!(matches!(error.cause, Cause::Emptied) && !error.is_wrong_ledger(), "{error}");
        assert!(error.to_string().contains("remove the empty file"), "{error}");
    }
    assert_eq!(std::fs::metadata(world.path()).unwrap().len(), 0);
    std::fs::remove_file(world.path()).unwrap();
    // A start that can write nothing leaves no empty file behind.
    let journal = world.directory.path().join("ledger.db-journal");
    std::fs::create_dir(&journal).unwrap();
    let error = refusal(&world.path());
    assert!(!matches!(error.cause, Cause::Emptied) && !world.path().exists(), "{error}");
    std::fs::remove_dir(&journal).unwrap();
    world.open(2, Default::default());
}

#[test]
fn a_second_owner_is_refused_with_the_pid_of_the_first() {
    let world = World::new();
    let (ledger, _) = world.open(0, Default::default());
    let link = world.directory.path().join("other-name.db");
    std::os::unix::fs::symlink(world.path(), &link).unwrap();
    for path in [world.path(), link] {
        let error = refusal(&path);
        assert!(matches!(error.cause, Cause::Owned { pid: Some(pid) } if pid == std::process::id()));
        assert!(error.to_string().contains(path.to_str().unwrap()));
        assert!(error.to_string().contains(&std::process::id().to_string()));
    }
    assert!(check_unowned(&world.path()).is_err());
    drop(ledger);
    check_unowned(&world.path()).unwrap();
    world.open(1, Default::default());
}

#[test]
fn a_file_that_is_not_a_database_is_refused_and_unchanged() {
    let world = World::new();
    std::fs::write(world.path(), "prices: 12\n").unwrap();
    let error = refusal(&world.path());
    assert!(matches!(error.cause, Cause::Foreign), "{error}");
    assert!(matches!(Reader::open(&world.path()).unwrap_err().cause, Cause::Foreign));
    assert_eq!(bytes(&world.path()), b"prices: 12\n");
    assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1);
}

#[test]
fn a_damaged_database_header_is_refused() {
    let world = World::new();
    let mut damaged = b"SQLite format 3\0".to_vec();
    damaged.resize(8192, 0xA5);
    std::fs::write(world.path(), &damaged).unwrap();
    let error = refusal(&world.path());
    assert!(matches!(error.cause, Cause::Foreign), "{error}");
    assert_eq!(bytes(&world.path()), damaged);
}

#[test]
fn a_database_of_another_program_is_refused_and_unchanged() {
    let world = World::new();
    rusqlite::Connection::open(world.path()).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = bytes(&world.path());
    assert!(matches!(refusal(&world.path()).cause, Cause::Foreign));
    assert_eq!(bytes(&world.path()), before);
}

fn set_version(world: &World, version: i64) -> Vec<u8> {
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.pragma_update(None, "user_version", version).unwrap();
    drop(connection);
    bytes(&world.path())
}

#[test]
fn a_newer_schema_is_refused_and_unchanged() {
    let world = World::new();
    drop(world.open(0, Default::default()));
    let before = set_version(&world, 99);
    assert!(matches!(refusal(&world.path()).cause, Cause::Newer { found: 99, known: 13 }));
    assert!(matches!(Reader::open(&world.path()).unwrap_err().cause, Cause::Newer { .. }));
    assert_eq!(bytes(&world.path()), before);
}

#[test]
fn a_schema_of_before_the_first_release_is_refused_and_unchanged() {
    let world = World::new();
    drop(world.open(0, Default::default()));
    let path = world.path();
    let copy = world.directory.path().join("copy.db");
    for version in 1..=12 {
        let before = set_version(&world, version);
        let period = ClosedPeriod { from: Utc(0), to: Utc(1), by: "ada".to_owned() };
        for error in [
            refusal(&path),
            Reader::open(&path).unwrap_err(),
            snapshot(&path, &copy).unwrap_err(),
            restore(&path, None).unwrap_err(),
            forget(&path, "GPU-1", "boot", Nanoseconds(50)).unwrap_err(),
            record_statement(&path, &StatementOrder::Close(period)).unwrap_err(),
        ] {
            assert!(
                matches!(error.cause, Cause::Unreleased { found, first: 13 } if found == version),
                "{error}"
            );
            assert!(error.is_wrong_ledger(), "{error}");
        }
        assert_eq!(bytes(&path), before);
    }
    assert!(!copy.exists());
    let mut bill = std::process::Command::new(env!("CARGO_BIN_EXE_gpumeter"));
    let refused = bill.args(["bill", "--ledger"]).arg(&path).output().unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(
        text.contains("its schema is version 12, which only builds before the first release wrote"),
        "{text}"
    );
    assert!(text.contains("make its bills with the build that wrote it"), "{text}");
}

#[test]
fn the_error_names_a_read_only_ledger_directory() {
    let world = World::new();
    std::fs::write(world.path(), "x").unwrap();
    // Tests may run as root, which ignores permission bits; these paths fail for every user.
    for path in [world.path().join("below-a-file.db"), "/proc/self/ledger.db".into()] {
        let error = refusal(&path);
        assert!(matches!(error.cause, Cause::Unwritable(_)), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
    assert!(matches!(refusal(world.directory.path()).cause, Cause::Irregular(_)));
}

/// Permission bits of the ledger's files, all of which exist while it is open.
fn modes(world: &World) -> [u32; 4] {
    ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"].map(|name| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(world.directory.path().join(name)).unwrap().permissions().mode() & 0o777
    })
}

#[test]
fn no_other_user_can_read_the_ledger_or_open_its_lock() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let (ledger, _) = world.open(0, Default::default());
    assert!(modes(&world).iter().all(|mode| mode & 0o007 == 0));
    // As left by a killed agent of a version before this rule.
    let killed = world.copy_as_killed();
    drop(ledger);
    for name in ["ledger.db", "ledger.db-wal", "ledger.db.lock"] {
        let file = killed.directory.path().join(name);
        std::fs::OpenOptions::new().append(true).create(true).open(&file).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let (_ledger, _) = killed.open(1, Default::default());
    assert!(modes(&killed).iter().all(|mode| mode & 0o007 == 0));
}

#[test]
fn a_lock_file_of_another_user_is_refused() {
    // Only root can give a file away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::new();
    let lock = world.directory.path().join("ledger.db.lock");
    std::fs::write(&lock, "").unwrap();
    std::os::unix::fs::chown(&lock, Some(12_345), None).unwrap();
    let error = refusal(&world.path());
    assert!(matches!(error.cause, Cause::LockOwner { owner: 12_345, .. }), "{error}");
    assert!(error.to_string().contains("ledger.db.lock"), "{error}");
    assert!(!world.path().exists());
}

#[test]
fn a_missing_ledger_is_not_created_by_reading() {
    let world = World::new();
    assert!(matches!(Reader::open(&world.path()).unwrap_err().cause, Cause::Missing));
    assert!(!world.path().exists());
}

#[test]
fn a_stepped_clock_moves_no_account_time_within_a_boot() {
    let world = World::new();
    let (mut ledger, recovered) = world.open(0, Default::default());
    let timeline = recovered.timeline;
    let stepped = Stamp { boottime: Nanoseconds::from_seconds(1010), utc: after(3610) };
    assert_eq!(timeline.at(stepped.boottime), after(10));
    assert_eq!(timeline.lead(stepped), 3600 * SECOND as i64);
    assert_eq!(ledger.watch_clock(stepped).unwrap(), Some(timeline.lead(stepped)));
    drop(ledger);
    let mut opening = opening(0, Default::default());
    opening.now = stepped;
    let (_, again) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(again.timeline, timeline);
    assert_eq!(world.sql::<i64>("SELECT step_ns FROM clock_step"), 3600 * SECOND as i64);
}

#[test]
fn a_ledger_is_not_made_before_the_clock_is_set() {
    let world = World::new();
    let now = Stamp { boottime: Nanoseconds::from_seconds(119), utc: after(0) };
    let opening = Opening { now, unsynchronised: true, ..opening(0, Default::default()) };
    let error = Ledger::open(&world.path(), &opening).unwrap_err();
    assert!(matches!(error.cause, Cause::ClockNotSet) && !error.is_wrong_ledger(), "{error}");
    assert!(std::fs::read_dir(world.directory.path()).unwrap().next().is_none());
}

#[test]
fn a_new_boot_uses_the_wall_clock_but_never_a_time_before_the_last_commit() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    settle(&mut ledger, 0, 0..60, "user:a");
    drop(ledger);
    let mut opening = opening(0, Default::default());
    opening.boot_id = "second".into();
    opening.now = Stamp { boottime: Nanoseconds::from_seconds(5), utc: after(500) };
    let (ledger, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(recovered.timeline.at(opening.now.boottime), after(500));
    drop(ledger);
    opening.boot_id = "third, without a battery".into();
    opening.now = Stamp { boottime: Nanoseconds::from_seconds(7), utc: gpumeter::model::Utc(0) };
    opening.unsynchronised = true;
    assert!(matches!(Ledger::open(&world.path(), &opening).unwrap_err().cause, Cause::ClockNotSet));
    opening.now.boottime = Nanoseconds::from_seconds(120);
    let (_, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    // The last commit was made at second 61.
    assert_eq!(recovered.timeline.at(opening.now.boottime), after(61));
    assert_ne!(recovered.timeline, AccountTimeline::default());
}

/// A time at which the wall clock is `lead` milliseconds ahead of the account.
fn ahead(seconds: u64, lead: i64) -> Stamp {
    let mut now = opening(seconds, Default::default()).now;
    now.utc.0 = now.utc.0.saturating_add_signed(lead * 1_000_000);
    now
}

#[test]
fn a_step_of_the_clock_is_recorded_once_and_a_slewed_clock_is_not() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    let mut look = |seconds, lead| ledger.watch_clock(ahead(seconds, lead)).unwrap();
    assert_eq!(look(0, 0), None);
    assert_eq!(look(1, 1_000), None);
    assert_eq!(look(2, 1_001), Some(1_001_000_000));
    assert_eq!(look(3, 1_001), None);
    assert_eq!(look(4, 1_900), None);
    assert_eq!(look(5, -3_000), Some(-3_000_000_000));
    drop(ledger);
    // Another agent in the same boot knows the recorded steps, and finds new ones.
    let mut opening = opening(0, Default::default());
    opening.now = ahead(6, -3_000);
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(ledger.watch_clock(ahead(7, -3_000)).unwrap(), None);
    assert_eq!(ledger.watch_clock(ahead(8, 5)).unwrap(), Some(5_000_000));
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM clock_step"), 3);
    // A new boot accepts the wall clock as it is.
    drop(ledger);
    opening.boot_id = "second".into();
    opening.now = ahead(20, 7_000);
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(ledger.watch_clock(opening.now).unwrap(), None);
}

#[test]
fn the_drivers_energy_counter_does_not_survive_a_reboot() {
    for (before, after_it, kept) in [("first", "first", true), ("first", "second", false), ("", "", false)] {
        let world = World::new();
        let mut opening = opening(0, Default::default());
        opening.boot_id = before.into();
        let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
        register_gpus(&mut ledger, 1);
        let open = vec![open(0, vec![span(0, 1)])];
        ledger.commit(&LedgerBatch { now: after(1), open, ..LedgerBatch::default() }).unwrap();
        drop(ledger);
        opening.boot_id = after_it.into();
        opening.now = ahead(10, 0);
        let (_, recovered) = Ledger::open(&world.path(), &opening).unwrap();
        assert_eq!(recovered.gpus[&uuid(0)].energy_counter.is_some(), kept, "{before:?} to {after_it:?}");
        assert_eq!(recovered.gpus[&uuid(0)].spans, [span(0, 1)]);
    }
}

#[test]
fn without_a_boot_id_every_start_is_a_new_boot() {
    let world = World::new();
    let mut opening = opening(0, Default::default());
    opening.boot_id.clear();
    drop(Ledger::open(&world.path(), &opening).unwrap());
    // After a reboot the time since boot begins at 0, and the wall clock continues.
    opening.now = Stamp { boottime: Nanoseconds::from_seconds(5), utc: after(500) };
    let (_, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(recovered.timeline.at(opening.now.boottime), after(500));
}

/// A demo that was killed after some minutes.
const DEMO: &str = include_str!("../../fixtures/ledger/version-1.sql");
const DEMO_COMMITTED: Utc = Utc(1_795_400_030_023_371_747);
const DEMO_OFFSET: u64 = 1_795_398_201_821_722_203;

#[test]
fn the_ledger_of_a_killed_agent_continues_with_its_open_spans_and_its_bill() {
    let world = World::of_rows(DEMO);
    let utc = DEMO_COMMITTED.plus(Nanoseconds::from_seconds(2));
    let now = Stamp { boottime: Nanoseconds(utc.0 - DEMO_OFFSET), utc };
    let opening = Opening { boot_id: "demo-18ea8a0fc69a865b".into(), now, ..Opening::default() };
    let (ledger, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!(recovered.imbalance, 0);
    assert_eq!(recovered.gpus.len(), 8);
    for (uuid, gpu) in &recovered.gpus {
        assert_eq!(gpu.spans.len(), 20, "{uuid}");
        assert_eq!(gpu.spans[0].from, gpu.settled_until, "{uuid}");
    }
    let held: u64 = recovered.counters.values().map(|counter| counter.amounts.parts.held()).sum();
    assert_eq!(held, recovered.gpus.values().map(|gpu| gpu.slot.0).sum::<u64>());
    assert_eq!(recovered.users.iter().find(|(uid, _)| *uid == 1001).map(|(_, name)| &**name), Some("alice"));
    drop(ledger);
    let mut reader = Reader::open(&world.path()).unwrap();
    let holders = reader.holders().unwrap();
    assert_eq!(
        holders.iter().find(|holder| holder.id.as_str() == "unit:train-llm.service"),
        Some(&Holder::unit("train-llm.service", Some("alice"), Some(1001)))
    );
    let statement = reader.bill(&between(None, None)).unwrap();
    assert!(statement.is_balanced());
    let tenants: std::collections::BTreeSet<&str> =
        statement.lines.iter().map(|line| line.tenant.as_str()).collect();
    assert!(tenants.contains("train-llm.service") && tenants.contains("__unallocated__"), "{tenants:?}");
}

/// A demo with pods, Slurm jobs and MIG instances that was killed; every field of a stored span occurs in it.
const VERSION_3: &str = include_str!("../../fixtures/ledger/version-3.sql");
const VERSION_3_COMMITTED: Utc = Utc(1_795_433_073_112_387_337);
const VERSION_3_OFFSET: u64 = 1_795_431_933_908_048_097;

fn version_3() -> (World, Opening) {
    let world = World::of_rows(VERSION_3);
    let utc = VERSION_3_COMMITTED.plus(Nanoseconds::from_seconds(2));
    let now = Stamp { boottime: Nanoseconds(utc.0 - VERSION_3_OFFSET), utc };
    (world, Opening { boot_id: "demo-18eaa8bda3a068e1".into(), now, ..Opening::default() })
}

#[test]
fn stored_spans_carries_and_weights_are_read_back_as_they_were_written() {
    let (world, opening) = version_3();
    let (ledger, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    assert_eq!((recovered.upgraded_from, recovered.imbalance, recovered.gpus.len()), (None, 0, 12));
    drop(ledger);
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    for (uuid, gpu) in &recovered.gpus {
        let mut statement = connection
            .prepare("SELECT span FROM raw JOIN gpu ON gpu.id = gpu WHERE uuid = ?1 ORDER BY from_ns")
            .unwrap();
        let stored: Vec<String> =
            statement.query_map([uuid], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let read: Vec<String> = gpu.spans.iter().map(|span| serde_json::to_string(span).unwrap()).collect();
        assert_eq!(read, stored, "{uuid}");
        assert_eq!(gpu.spans[0].from, gpu.settled_until, "{uuid}");
        let [carry, weights, holdings] = ["carry", "weights", "holdings"].map(|column| -> String {
            let sql = format!("SELECT {column} FROM gpu WHERE uuid = ?1");
            connection.query_row(&sql, [uuid], |row| row.get(0)).unwrap()
        });
        assert_eq!(serde_json::to_string(&gpu.carry).unwrap(), carry);
        assert_eq!(serde_json::to_string(&gpu.weights).unwrap(), weights);
        assert_eq!(serde_json::to_string(&gpu.holdings).unwrap(), holdings);
    }
    assert_eq!(recovered.gpus.values().map(|gpu| gpu.spans.len()).sum::<usize>(), 217);
    let mig = recovered.gpus.values().filter_map(|gpu| gpu.spans.last()?.instances.as_ref()).next().unwrap();
    assert_eq!((mig.layout.total, mig.slots.len()), (8, 2));
    assert_eq!(mig.slots["2"].holdings[0].holder.as_str(), "user:carol");
}

/// What each holder held and used in closed minutes.
fn held_and_used(world: &World) -> BTreeMap<String, (u64, u64)> {
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let mut statement = connection
        .prepare(
            "SELECT name, sum(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns),
                    sum(used_within_ns + used_beyond_ns + used_outside_ns + used_unheld_ns)
             FROM account JOIN holder ON holder.id = holder
             WHERE minute_ns + 60000000000 <= (SELECT min(settled_until_ns) FROM gpu)
             GROUP BY name",
        )
        .unwrap();
    let rows = statement.query_map([], |row| {
        let [held, used] = [1, 2].map(|column| row.get::<_, i64>(column).unwrap().unsigned_abs());
        Ok((row.get(0)?, (held, used)))
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn counters_facts_xid_sums_and_the_bill_are_read_back_as_they_were_written() {
    let (world, opening) = version_3();
    let before = held_and_used(&world);
    let (ledger, recovered) = Ledger::open(&world.path(), &opening).unwrap();
    drop(ledger);
    assert_eq!(recovered.counters.len(), 23);
    let held: u64 = recovered.counters.values().map(|counter| counter.amounts.parts.held()).sum();
    assert_eq!(held, 12 * 119_130_214_573);
    let sums = &recovered.xids[0];
    assert_eq!((&*sums.gpu, sums.actions["restart_app"]), ("GPU-255e81d8-42b3-916c-9252-615ea3abceeb", 1));
    let sum = sums.codes[&13];
    assert_eq!((sum.count, sum.events, sum.lines), (1, 1, 1));
    assert_eq!(sum.last, Utc(1_795_433_023_964_519_857));
    assert_eq!(serde_json::to_string(&sums.codes).unwrap(), world.sql::<String>("SELECT codes FROM xid_sum"));
    let mut reader = Reader::open(&world.path()).unwrap();
    for holder in reader.holders().unwrap() {
        let sql = format!("SELECT facts FROM holder WHERE name = '{}'", holder.id.as_str());
        assert_eq!(serde_json::to_string(&holder.facts).unwrap(), world.sql::<String>(&sql));
    }
    assert_eq!(reader.inventory().unwrap().len(), 12);
    let statement = reader.bill(&between(None, None)).unwrap();
    assert!(statement.is_balanced());
    let mut billed = BTreeMap::<String, (u64, u64)>::new();
    for line in &statement.lines {
        let sum = billed.entry(line.holder.to_string()).or_default();
        *sum = (sum.0 + line.amounts.parts.held(), sum.1 + line.amounts.used.total());
    }
    assert_eq!(billed, before);
    let line = statement.lines.iter().find(|line| line.holder.name() == "slurm:alpha/211").unwrap();
    assert_eq!(line.tenant, "physics");
    assert_eq!(line.labels["slurm_job_id"], "211");
}
