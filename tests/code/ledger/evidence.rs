//! Evidence in the ledger: nothing twice and nothing lost by kills, and sums that roll-ups keep.

use std::collections::BTreeMap;

use gpumeter::accounting::batches::{ClosedWindow, LedgerBatch, OpenIncidents, Resumed, SeenXids};
use gpumeter::accounting::billing::DayEvidence;
use gpumeter::accounting::day_files::{DayFile, DayPath, ExportDirectory, read_evidence, write_days};
use gpumeter::accounting::ledger::{Ledger, Opening, Reader, Retention};
use gpumeter::meter::attribution;
use gpumeter::model::{
    ActivitySource, Carry, DAY, Fraction, HOUR, HolderId, Holding, HoldingSource, Microjoules, Nanoseconds,
    Presence, Run, RunKey, SHAPE_COLUMNS, Series, ShapeKey, SlotState, Span, TickShares,
};
use proptest::prelude::*;

use super::world::*;

/// A window of a whole GPU in one tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) seconds: u64,
    /// In ten-thousandths.
    pub(super) busy: u16,
    /// Whether the first user, then the second, has a process; the first holds as long as one has.
    pub(super) present: [bool; 2],
    pub(super) sm: Option<u16>,
}

/// The settlement of windows, one after another.
fn windows(ticks: &[Tick]) -> Vec<ClosedWindow> {
    windows_of(["user:a", "user:b"], ticks)
}

pub(super) fn windows_of(users: [&str; 2], ticks: &[Tick]) -> Vec<ClosedWindow> {
    let (mut carry, mut weights, mut from) = (Carry::new(), BTreeMap::new(), 0);
    let mut windows = Vec::new();
    for tick in ticks {
        let present = users.iter().zip(tick.present).filter(|(_, present)| *present);
        let presence = Presence { weight: None, memory: Some(tick.seconds << 30) };
        let present: BTreeMap<_, _> = present.map(|(user, _)| (holder(user), presence.clone())).collect();
        let holding = Holding {
            holder: holder(users[0]),
            fraction: Fraction::WHOLE,
            source: HoldingSource::Presence,
            rank: Some(0),
        };
        let time = Nanoseconds::from_seconds(tick.seconds);
        let span = Span {
            source: ActivitySource::Gpm,
            holdings: present.keys().take(1).map(|_| holding.clone()).collect(),
            busy: time.0 / 10_000 * u64::from(tick.busy),
            shares: TickShares([None, tick.sm, None, None, None]),
            present,
            energy: Some(Microjoules(100 * tick.seconds)),
            idle_energy: Microjoules(60 * tick.seconds),
            ..Span::empty(after(from), after(from + tick.seconds), SlotState::Measured)
        };
        let settlement = attribution::settle(span.from, span.to, &[span], &carry, &weights).unwrap();
        from += tick.seconds;
        (carry, weights) = (settlement.carry.clone(), settlement.weights.clone());
        windows.push(ClosedWindow { gpu: uuid(0), settlement, coarse: false });
    }
    windows
}

fn commit(ledger: &mut Ledger, window: &ClosedWindow) {
    let batch =
        LedgerBatch { now: window.settlement.to, closed: vec![window.clone()], ..LedgerBatch::default() };
    ledger.commit(&batch).unwrap();
}

/// All rows of evidence, and what is open.
fn rows(world: &World) -> Vec<String> {
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let mut rows = Vec::new();
    for sql in ["SELECT * FROM shape", "SELECT * FROM run", "SELECT evidence FROM gpu"] {
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let value = |index| format!("{:?}", row.get::<_, rusqlite::types::Value>(index).unwrap());
            rows.push(format!("{sql} {}", (0..columns).map(value).collect::<Vec<_>>().join(" ")));
        }
    }
    rows
}

fn ticks() -> impl Strategy<Value = Vec<Tick>> {
    let seconds = prop_oneof![3 => Just(15), 2 => 100..400_u64, 1 => 1_000..9_000_u64];
    let busy = prop_oneof![1 => Just(0), 1 => 0..=10_000_u16];
    let tick = (seconds, busy, any::<[bool; 2]>(), prop::option::of(0..=10_000_u16));
    let tick = tick.prop_map(|(seconds, busy, present, sm)| Tick { seconds, busy, present, sm });
    prop::collection::vec(tick, 20..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_whose_agent_is_killed_after_every_window_has_the_same_evidence(ticks in ticks()) {
        let world = World::new();
        let (mut ledger, _) = world.open(0, Default::default());
        register_gpus(&mut ledger, 1);
        let mut killed = world.copy_as_killed();
        for window in &windows(&ticks) {
            commit(&mut ledger, window);
            let seconds = window.settlement.to.since(after(0)).0 / SECOND;
            let (mut other, _) = killed.open(seconds, Default::default());
            commit(&mut other, window);
            // It settles a window again that is committed.
            commit(&mut other, window);
            let files = killed.copy_as_killed();
            drop(other);
            killed = files;
        }
        prop_assert_eq!(rows(&killed), rows(&world));
    }

    #[test]
    fn days_have_the_sums_of_their_hours_and_rows_go_with_the_account(ticks in ticks(), steps in 1..5_usize) {
        let world = World::new();
        let (mut ledger, _) = world.open(0, Default::default());
        register_gpus(&mut ledger, 1);
        windows(&ticks).iter().for_each(|window| commit(&mut ledger, window));
        let end = ticks.iter().map(|tick| tick.seconds).sum::<u64>();
        let sums: Vec<String> = SHAPE_COLUMNS.iter().map(|name| format!("sum({name})")).collect();
        let sums = || world.sql::<String>(&format!(
            "SELECT group_concat(sums, ' ') FROM (SELECT concat_ws(' ', begin_ns / 86400000000000, holder, series, {}) AS sums
             FROM shape GROUP BY begin_ns / 86400000000000, holder, series ORDER BY 1)", sums.join(",")));
        // A day later all hours are of days that are over; some are summed up before, by another agent.
        ledger.commit(&LedgerBatch { now: after(end + 2 * 86_400), ..LedgerBatch::default() }).unwrap();
        let before = (world.sql::<i64>("SELECT count(*) FROM shape") > 0).then(sums);
        let keep = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
        for _ in 0..steps {
            ledger.retain(keep).unwrap();
        }
        drop(ledger);
        let (mut ledger, _) = world.open(end + 2 * 86_400, Default::default());
        while ledger.retain(keep).unwrap() {}
        prop_assert_eq!(world.sql::<i64>("SELECT count(*) FROM shape WHERE hours = 1"), 0);
        if let Some(before) = before {
            prop_assert_eq!(sums(), before);
        }
        while ledger.retain(Retention { quarter_hours: Nanoseconds(0), ..keep }).unwrap() {}
        prop_assert_eq!(world.sql::<i64>("SELECT (SELECT count(*) FROM shape) + (SELECT count(*) FROM run)"), 0);
    }
}

#[test]
fn a_run_ends_when_its_workload_was_not_seen_for_five_minutes_and_has_what_it_did() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let tick =
        |seconds, busy, is_present: bool| Tick { seconds, busy, present: [is_present, false], sm: None };
    let ticks = [
        tick(60, 0, true),
        tick(30, 5_000, true),
        // A restart of the unit.
        tick(200, 0, false),
        tick(400, 99, true),
        tick(10, 10_000, true),
        tick(45, 0, true),
        tick(299, 0, false),
    ];
    windows(&ticks).iter().for_each(|window| commit(&mut ledger, window));
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM run"), 0);
    windows(&[ticks.as_slice(), &[tick(1, 0, false)]].concat())
        .iter()
        .for_each(|window| commit(&mut ledger, window));
    let text = |sql: &str| {
        world.sql::<String>(&format!("SELECT {sql} FROM run JOIN holder ON holder.id = run.holder"))
    };
    assert_eq!(text("concat_ws(' ', holder.name, run.name, gpu_instance)"), "user:a user:a -1");
    let seconds = |column: &str| format!("({column} - {}) / 1000000000", after(0).0);
    let times = ["begin_ns", "first_use_ns", "last_use_ns", "end_ns"].map(seconds).join(",");
    assert_eq!(text(&format!("concat_ws(' ', {times})")), "0 60 700 745");
    let gigabyte = 1_i64 << 20;
    let sums = "concat_ws(' ', idle_1m, idle_5m, idle_5m_ns / 1000000000, (within_ns + idle_ns) / 1000000000, energy_waiting_uj, memory_peak_kib)";
    let waiting = 40 * (60 + 400 + 45);
    assert_eq!(text(sums), format!("0 1 400 545 {waiting} {}", 400 * gigabyte));
    // The memory of a moment is that of one tick, and the use of others is none of the run's.
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM run"), 1);
}

#[test]
fn the_shapes_of_an_hour_are_stored_when_it_is_over_or_the_account_is_suspended() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    let tick = |seconds, present| Tick { seconds, busy: 2_500, present, sm: Some(1_000) };
    let all = windows(&[tick(1_000, [true, false]), tick(600, [true, true]), tick(2_000, [true, false])]);
    // The world begins at 13 minutes and 20 seconds past an hour.
    commit(&mut ledger, &all[0]);
    commit(&mut ledger, &all[1]);
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM shape"), 0);
    commit(&mut ledger, &all[2]);
    let of = |series, columns: &str| {
        world.sql::<String>(&format!(
            "SELECT concat_ws(' ', {columns}) FROM shape JOIN holder ON holder.id = holder WHERE name = 'user:a' AND series = {series}"
        ))
    };
    let columns = "from_10_ns / 1000000000, from_20_ns / 1000000000, shared_ns / 1000000000, unknown_ns";
    let first = 3_600 - after(0).0 / SECOND % 3_600;
    assert_eq!(of(0, columns), format!("0 {} 600 0", first - 600));
    assert_eq!(of(1, columns), format!("{} 0 600 0", first - 600));
    assert_eq!(
        world.sql::<i64>("SELECT count(*) FROM shape WHERE series > 1"),
        0,
        "nothing reported the others"
    );
    let resumed = vec![Resumed { gpu: uuid(0), at: after(9_000) }];
    ledger.commit(&LedgerBatch { now: after(9_000), resumed, ..LedgerBatch::default() }).unwrap();
    let all = "SELECT sum(from_20_ns + shared_ns) / 1000000000 FROM shape JOIN holder ON holder.id = holder WHERE name = 'user:a' AND series = 0";
    assert_eq!(world.sql::<i64>(all), 3_600);
    assert_eq!(
        world.sql::<String>("SELECT group_concat(name) FROM (SELECT run.name FROM run ORDER BY end_ns, 1)"),
        "user:b,user:a"
    );
    assert_eq!(world.sql::<String>("SELECT evidence FROM gpu"), "{}");
}

#[test]
fn what_is_open_of_a_gpu_ends_where_its_account_was_suspended_and_when_it_has_been_gone_for_an_hour() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let tick = |seconds| Tick { seconds, busy: 2_500, present: [true, false], sm: None };
    let all = windows(&[tick(600), tick(15), tick(600)]);
    commit(&mut ledger, &all[0]);
    // It was away for 15 s, and both the end of that and what follows come at once.
    let resumed = vec![Resumed { gpu: uuid(0), at: all[2].settlement.from }];
    let batch =
        LedgerBatch { now: after(1_215), resumed, closed: vec![all[2].clone()], ..LedgerBatch::default() };
    ledger.commit(&batch).unwrap();
    let runs = format!(
        "SELECT group_concat(times) FROM (SELECT concat_ws(' ', (begin_ns - {begin}) / {SECOND}, (end_ns - {begin}) / {SECOND}) AS times
         FROM run ORDER BY end_ns)",
        begin = after(0).0
    );
    assert_eq!(world.sql::<String>(&runs), "0 600");
    // Another GPU goes on.
    let settle = |ledger: &mut Ledger, end: u64| {
        let closed = vec![whole(1, (after(end - 900), after(end)), "user:b", 0)];
        ledger.commit(&LedgerBatch { now: after(end), closed, ..LedgerBatch::default() }).unwrap();
    };
    for end in (900..=4_500).step_by(900) {
        settle(&mut ledger, end);
        assert_eq!(world.sql::<String>(&runs), "0 600", "it may be back");
    }
    settle(&mut ledger, 5_400);
    assert_eq!(world.sql::<String>(&runs), "0 600,615 1215");
    assert_eq!(world.sql::<String>("SELECT evidence FROM gpu WHERE id = 1"), "{}");
}

#[test]
fn thousands_of_short_steps_leave_little_open_and_all_of_them_have_their_rows() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 1);
    // Two short jobs in each window.
    let mut longest = 0;
    for place in 0..400 {
        let mut window =
            windows(&[Tick { seconds: 15, busy: 2_500, present: [true, true], sm: Some(100) }]).remove(0);
        let length = window.settlement.to.since(window.settlement.from);
        let from = after(15 * place);
        (window.settlement.from, window.settlement.to) = (from, from.plus(length));
        let id = |user: &HolderId| {
            if user.is_remainder() { user.clone() } else { holder(&format!("{user}{place}")) }
        };
        window.settlement.rows.iter_mut().for_each(|row| row.holder = id(&row.holder));
        let evidence = std::mem::take(&mut window.settlement.evidence);
        for (key, shapes) in evidence.shapes {
            let key = ShapeKey { hour: from.floor(HOUR), holder: id(&key.holder), ..key };
            window.settlement.evidence.shapes.insert(key, shapes);
        }
        for (key, run) in evidence.runs {
            let run = Run { holder: id(&run.holder), begin: from, end: from.plus(length), ..run };
            let key = RunKey { workload: id(&key.workload), begin: from, ..key };
            window.settlement.evidence.runs.insert(key, run);
        }
        commit(&mut ledger, &window);
        longest = longest.max(world.sql::<i64>("SELECT length(evidence) FROM gpu"));
    }
    assert!(longest < 40_000, "{longest} characters");
    commit(&mut ledger, &whole(0, (after(6_000), after(9_600)), "user:z", 0));
    let sums = "SELECT concat_ws(' ', count(*), sum(shared_ns) / 1000000000) FROM shape WHERE series = ";
    assert_eq!([0, 1].map(|series| world.sql::<String>(&format!("{sums}{series}"))), ["800 12000"; 2]);
    let sums = "SELECT concat_ws(' ', count(*), sum(within_ns + used_beyond_ns + used_outside_ns) / 100000000) FROM run";
    let of_rows = "SELECT concat_ws(' ', count(*), sum(within_ns + used_beyond_ns + used_outside_ns) / 100000000) FROM account
        JOIN holder ON holder.id = holder WHERE name GLOB 'user:[ab]*'";
    assert_eq!(world.sql::<String>(sums), world.sql::<String>(of_rows));
}

#[test]
fn evidence_that_is_stored_after_its_day_was_exported_is_exported() {
    let world = World::new();
    let opening = Opening { machine_id: "a".repeat(32), ..opening(0, Default::default()) };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    register_gpus(&mut ledger, 1);
    let tick = Tick { seconds: 3_600, busy: 2_500, present: [true, false], sm: None };
    windows(&[tick]).iter().for_each(|window| commit(&mut ledger, window));
    let directory = tempfile::tempdir().unwrap();
    let shapes = || -> u64 {
        let exports = ExportDirectory(directory.path());
        write_days(&mut Reader::open(&world.path()).unwrap(), exports, || false).unwrap();
        let day = &exports.days().unwrap()[0];
        let revision = DayFile::open(&day.path).unwrap().header().revision;
        let evidence = read_evidence(&ExportDirectory::evidence_beside(&day.path), &revision).unwrap();
        let shapes = evidence.expect("evidence of the account's revision").shapes;
        shapes.iter().map(|shape| shape.shape.0.iter().sum::<u64>() / SECOND).sum()
    };
    assert_eq!(shapes(), 45 * 60, "the hour that is over");
    ledger.commit(&LedgerBatch { now: after(2 * 86_400), ..LedgerBatch::default() }).unwrap();
    assert_eq!(shapes(), 3_600);
}

#[test]
fn incidents_begin_and_end_with_the_verdict_and_xids_of_a_storm_are_one() {
    let world = World::new();
    let (mut ledger, _) = world.open(0, Default::default());
    register_gpus(&mut ledger, 2);
    let open = |seconds, kinds: &[&str]| OpenIncidents {
        gpu: uuid(1),
        at: after(seconds),
        kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
    };
    let xids = |from, to| vec![SeenXids { gpu: uuid(1), code: 79, from: after(from), to: after(to) }];
    let commit = |ledger: &mut Ledger, incidents: Vec<OpenIncidents>, seen_xids: Vec<SeenXids>| {
        let batch = LedgerBatch { now: after(3_600), incidents, seen_xids, ..LedgerBatch::default() };
        ledger.commit(&batch).unwrap();
    };
    commit(&mut ledger, vec![open(10, &["lost"])], xids(10, 10));
    commit(&mut ledger, vec![open(18, &["lost", "hot"]), open(20, &["hot"])], Vec::new());
    drop(ledger);
    // After a restart the agent tells all that is open.
    let (mut ledger, _) = world.open(30, Default::default());
    commit(&mut ledger, vec![open(30, &["hot"])], xids(300, 309));
    // A reading at its limit.
    let flaps = (40..600).step_by(40).flat_map(|at| [open(at, &[]), open(at + 20, &["hot"])]);
    commit(&mut ledger, flaps.collect(), xids(609, 609));
    commit(&mut ledger, vec![open(620, &[]), open(919, &["hot", "lost"]), open(930, &[])], Vec::new());
    commit(&mut ledger, vec![open(1_230, &["hot"]), open(1_240, &[])], Vec::new());
    let seconds = |column: &str| format!("({column} - {}) / 1000000000", after(0).0);
    let sql = format!(
        "SELECT group_concat(incident, ', ') FROM (SELECT concat_ws(' ', kind, code, {}, {}) AS incident FROM incident
         WHERE gpu = 2 ORDER BY kind, from_ns)",
        seconds("from_ns"),
        seconds("to_ns")
    );
    assert_eq!(
        world.sql::<String>(&sql),
        "hot 0 18 930, hot 0 1230 1240, lost 0 10 20, lost 0 919 930, xid 79 10 309, xid 79 609 609"
    );
    let retention = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(0) };
    ledger.commit(&LedgerBatch { now: after(2 * 86_400), ..LedgerBatch::default() }).unwrap();
    while ledger.retain(retention).unwrap() {}
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM incident"), 0);
}

#[test]
fn the_evidence_of_a_day_lies_beside_its_account_and_is_the_same_once_hours_are_days() {
    let world = World::new();
    let machine_id = "a".repeat(32);
    let opening = Opening { machine_id, ..opening(0, Default::default()) };
    let (mut ledger, _) = Ledger::open(&world.path(), &opening).unwrap();
    register_gpus(&mut ledger, 1);
    let tick = |seconds, present| Tick { seconds, busy: 2_500, present, sm: Some(9_999) };
    // The last use ends 200 s before midnight.
    let before_midnight = DAY.0 / SECOND - after(0).0 / SECOND % (DAY.0 / SECOND) - 300;
    let ticks = [
        tick(before_midnight - 900, [true, false]),
        tick(900, [true, true]),
        tick(100, [false, true]),
        tick(7_200, [false, false]),
    ];
    windows(&ticks).iter().for_each(|window| commit(&mut ledger, window));
    let directory = tempfile::tempdir().unwrap();
    let read = || -> Vec<DayEvidence> {
        write_days(&mut Reader::open(&world.path()).unwrap(), ExportDirectory(directory.path()), || false)
            .unwrap();
        let days = ExportDirectory(directory.path()).days().unwrap();
        let of_day = |day: &DayPath| {
            let revision = DayFile::open(&day.path).unwrap().header().revision;
            read_evidence(&ExportDirectory::evidence_beside(&day.path), &revision).unwrap()
        };
        days.iter().map(|day| of_day(day).expect("evidence of the account's revision")).collect()
    };
    let days = read();
    let shapes: Vec<_> = days[0]
        .shapes
        .iter()
        .map(|shape| (shape.owner.holder.as_str(), shape.series, shape.shape.0))
        .collect();
    let alone = |bin: usize, alone: u64, shared: u64| {
        let mut times = [0; SHAPE_COLUMNS.len()];
        (times[bin], times[12]) = (alone * SECOND, shared * SECOND);
        times
    };
    let expected = [
        ("user:a", Series::Busy, alone(4, before_midnight - 900, 1_000)),
        ("user:a", Series::Sm, alone(11, before_midnight - 900, 1_000)),
        ("user:b", Series::Busy, alone(4, 100, 900)),
        ("user:b", Series::Sm, alone(11, 100, 900)),
    ];
    assert_eq!(shapes, expected);
    // Only on the next day they are known to have ended.
    let runs = |day: &DayEvidence| day.runs.iter().map(|run| run.owner.tenant.clone()).collect::<Vec<_>>();
    assert_eq!(days.iter().map(runs).collect::<Vec<_>>(), [vec![], vec!["a".to_owned(), "b".to_owned()]]);
    assert_eq!(days[1].runs[0].run.amounts.memory_peak, (before_midnight - 900) << 30);
    let keep = Retention { minutes: Nanoseconds(0), quarter_hours: Nanoseconds(u64::MAX) };
    ledger.commit(&LedgerBatch { now: after(5 * 86_400), ..LedgerBatch::default() }).unwrap();
    while ledger.retain(keep).unwrap() {}
    assert_eq!(world.sql::<i64>("SELECT count(*) FROM shape WHERE hours = 1"), 0);
    assert_eq!(read(), days);
}
