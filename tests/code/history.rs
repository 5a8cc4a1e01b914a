//! The past of a demo: its account obeys the laws of an agent's, is what its description says, and is the same in ledger and
//! exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use gpumeter::accounting::billing::{
    Bill, BillLine, BillRequest, ExactMoney, Explanation, GpuRecord, LineFilter, TenantBasis, only_bill,
};
use gpumeter::accounting::day_files::{ExportDirectory, ExportSource, make_bills, write_day, write_file};
use gpumeter::accounting::ledger::Reader;
use gpumeter::cli::demo::{DemoScenario, HistoryExtent, HistoryPaths};
use gpumeter::model::{Amounts, DAY, Holder, MINUTE, PARTS, USES, Utc};
use serde_json::{Value, json};

use crate::meter::world::World;

/// 2026-11-28T00:00:00Z, a Saturday: the histories here end with a Friday.
pub(crate) const END: Utc = Utc(1_795_824_000_000_000_000);

const HOUR: u64 = 60 * MINUTE.0;

/// Prices in EUR, as in a configuration.
fn prices(rates: Value) -> Value {
    json!({ "currency": "EUR", "rates": rates })
}

/// A node with an H100, which the tenant lab has at night, and another one with everything else; and a further node.
pub(crate) fn scenario() -> Value {
    json!({
        "seed": 3,
        "gpus": [{ "profile": "h100", "count": 2 }],
        "config": "node: {name: past}\nattribution: {presence: true, standing: [{gpu: 1, fraction: 1/4, user: bob}]}\nprices: {currency: EUR, rates: [{gpu_hour: 2.00}]}\n",
        "history": {
            "settings": [
                { "recorded": "-20d", "prices": prices(json!([{ "gpu_hour": "3.00" }])) },
                { "recorded": "-6d", "prices": prices(json!([{ "gpu_hour": "2.00" }])) },
                { "recorded": "-3d 12:00", "prices": prices(json!([{ "gpu_hour": "2.00" }, { "gpu_hour": "2.50", "from": "-4d" }])) }
            ],
            "nodes": [
                {
                    "gaps": [{ "from": "-2d 21:00", "to": "-2d 23:00" }],
                    "off": [{ "from": "-7d 10:00", "to": "-7d 10:40" }],
                    "failures": [{ "gpu": 0, "from": "-5d 22:00", "to": "-4d" }],
                    "workloads": [
                        {
                            "holder": { "job": { "cluster": "c", "account": "lab", "user": "ada", "first": 100 } },
                            "gpus": [0], "memory_gib": 40, "memory_jitter": 5,
                            "runs": { "days": "mon-fri", "at": "20:00", "minutes": 600 },
                            "activity": [{ "last_minutes": 120, "busy": 0 }, { "busy": 90 }]
                        },
                        {
                            "holder": { "user": { "user": "bob", "uid": 7 } },
                            "gpus": [1], "memory_gib": 10,
                            "activity": [{ "hours": "8-18", "busy": 60, "jitter": 30 }, { "busy": 0, "memory_gib": 0 }]
                        },
                        {
                            "holder": { "pod": { "namespace": "web", "name": "serve", "owner_kind": "Deployment", "owner": "serve" } },
                            "gpus": [1], "share": [1, 2], "memory_gib": 20, "memory_jitter": 5,
                            "activity": [{ "every_minutes": 50, "for_minutes": 7, "busy": 80, "jitter": 20 }, { "busy": 5, "jitter": 5 }]
                        },
                        {
                            "holder": { "pod": { "namespace": "web", "name": "greedy" } },
                            "gpus": [1], "share": [3, 4], "memory_gib": 8,
                            "runs": { "days": "wed", "at": "03:10", "minutes": 95, "jitter_minutes": 30 },
                            "activity": [{ "busy": 50, "jitter": 50 }]
                        }
                    ]
                },
                {
                    "config": { "node": { "name": "second", "pool": "spot", "spot": true }, "attribution": { "presence": true } },
                    "gpus": [{ "profile": "l4", "count": 1 }],
                    "claimed": [{ "node": 0, "gpu": 1, "from": "-3d", "to": "-2d 12:00" }],
                    "to": "-1d 12:00",
                    "workloads": [
                        { "holder": { "unit": { "unit": "a.service" } }, "gpus": [0, 1], "memory_gib": 9, "activity": [{ "busy": 30, "jitter": 9 }] }
                    ]
                }
            ]
        }
    })
}

/// A written history, and where it is.
pub(crate) struct Written {
    directory: tempfile::TempDir,
}

impl Written {
    pub(crate) fn new(scenario: &Value, extent: HistoryExtent) -> Self {
        Self::at(scenario, extent, END)
    }

    pub(crate) fn at(scenario: &Value, extent: HistoryExtent, end: Utc) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scenario.json");
        std::fs::write(&file, scenario.to_string()).unwrap();
        let scenario = DemoScenario::load(file.to_str().unwrap()).unwrap();
        let history = scenario.history(&scenario.configuration().unwrap(), extent, end).unwrap();
        let written = Self { directory };
        let (directory, exports) = (written.directory.path(), written.exports());
        std::fs::create_dir(&exports).unwrap();
        let paths = HistoryPaths { ledger: &written.ledger(), directory, exports: &exports };
        history.write(paths, None).unwrap();
        written
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.directory.path().join("ledger.db")
    }

    pub(crate) fn exports(&self) -> PathBuf {
        self.directory.path().join("exports")
    }

    fn of_second_node(&self) -> PathBuf {
        self.directory.path().join("nodes/second/ledger.db")
    }

    fn bill(&self) -> Bill {
        ledger_bill(&self.ledger())
    }
}

fn ledger_bill(ledger: &Path) -> Bill {
    Reader::open(ledger).unwrap().bill(&request()).unwrap()
}

fn request() -> BillRequest {
    BillRequest { from: Some(Utc(END.0 - 10 * DAY.0)), ..BillRequest::default() }
}

const TEN_DAYS: HistoryExtent = HistoryExtent { days: 10, nodes: 2, seed: 3 };

static WRITTEN: LazyLock<Written> = LazyLock::new(|| Written::new(&scenario(), TEN_DAYS));

fn lines<'a>(bill: &'a Bill, tenant: &str) -> Vec<&'a BillLine> {
    bill.lines.iter().filter(|line| line.tenant == tenant).collect()
}

fn amounts(lines: &[&BillLine]) -> Amounts {
    let mut sum = Amounts::default();
    lines.iter().for_each(|line| sum.add(&line.amounts));
    sum
}

fn money(lines: &[&BillLine]) -> ExactMoney {
    ExactMoney::sum(lines.iter().map(|line| line.exact)).unwrap()
}

#[test]
fn the_laws_hold_and_each_gpu_is_accounted_for_from_begin_to_end() {
    for (ledger, gpus) in [(WRITTEN.ledger(), 2), (WRITTEN.of_second_node(), 2)] {
        let bill = ledger_bill(&ledger);
        assert!(bill.is_balanced(), "{:?}", bill.reconciliation);
        assert_eq!(bill.gpus.len(), gpus);
        for line in &bill.lines {
            assert!(line.amounts.measured <= line.amounts.used.total(), "{line:?}");
        }
    }
    let bill = WRITTEN.bill();
    assert_eq!((bill.to, bill.closed_until, bill.simulated), (END, END, true));
    let held: u64 = bill.lines.iter().map(|line| line.amounts.parts.held()).sum();
    assert_eq!(held, 2 * 10 * DAY.0);
    // Who claims three quarters beside a half is in conflict, and it is told.
    assert!(!bill.claim_conflicts.is_empty());
    assert!(amounts(&lines(&bill, "bob")).used.beyond > 0, "bob holds a quarter and uses more");
}

#[test]
fn the_month_of_a_tenant_is_what_the_description_says() {
    // The nights from Wednesday the 18th to Friday the 27th: seven of 10 h, and 4 h of the last: held 74 h. Of each night the
    // last 2 h are idle, but of the last one, which goes on; of the others 0.9 is busy: 0.9 x (7 x 8 h + 4 h), less
    // 0.9 x 2 h in the gap and 0.9 x 2 h while the GPU had failed.
    let bill = WRITTEN.bill();
    let lab = lines(&bill, "lab");
    let Amounts { parts, used, .. } = amounts(&lab);
    let tenths = |time: u64| time * 10 / HOUR;
    assert_eq!(parts.held(), 74 * HOUR);
    assert_eq!((parts.unmeasured, parts.unavailable), (2 * HOUR, 2 * HOUR));
    assert_eq!((tenths(used.within), tenths(parts.within)), (504, 504));
    assert_eq!((used.total() - used.within, tenths(parts.idle)), (0, 196));
    // 3.00 until the 22nd, 00:15: three nights, 30 h. 2.00 until the 24th: 4 h of Monday's night, of which 2 h unavailable. From
    // then on the late rate of 2.50: 6 h, three nights and 4 h. 30 x 3 + 2 x 2 + 40 x 2.50 = 194.
    assert_eq!(money(&lab).floor().0, 194_000_000_000);
    // Its unavailable time is on the bill of the failure: 2 h at 2.00, and the 40 minutes in which both GPUs were off.
    let off = 3 * 2 * 40 * 1_000_000_000 / 60;
    let unavailable = money(&lines(&bill, "__unavailable__")).floor().0;
    assert_eq!(unavailable, 4_000_000_000 + off);
    // Eight jobs have a line for each rate and GPU.
    let jobs: BTreeSet<_> = lab.iter().map(|line| &line.labels["slurm_job_id"]).collect();
    assert_eq!(jobs.len(), 8);
}

#[test]
fn the_ledger_has_the_evidence_of_runs_shapes_and_faults_that_an_agent_would_leave() {
    let connection = rusqlite::Connection::open(WRITTEN.ledger()).unwrap();
    let numbers = |sql: &str| -> Vec<Vec<i64>> {
        let mut statement = connection.prepare(sql).unwrap();
        let columns = statement.column_count();
        let read = |row: &rusqlite::Row<'_>| (0..columns).map(|column| row.get(column)).collect();
        statement.query_map([], read).unwrap().map(Result::unwrap).collect()
    };
    // Seven jobs have ended, each with two hours of idle tail; the eighth goes on.
    let runs = numbers(
        "SELECT end_ns - begin_ns, end_ns - last_use_ns, memory_peak_kib >> 20 FROM run JOIN holder ON holder.id = holder
         WHERE holder.name LIKE 'slurm:c/%' ORDER BY end_ns",
    );
    assert_eq!(runs.len(), 7, "{runs:?}");
    for run in &runs {
        assert_eq!(run[..2], [10 * HOUR as i64, 2 * HOUR as i64]);
        assert!((38..=40).contains(&run[2]), "{run:?}");
    }
    // 90 % busy, of which 60 % of the multiprocessors: 54 %.
    let shapes = numbers(
        "SELECT series, sum(from_90_ns), sum(from_50_ns) FROM shape JOIN holder ON holder.id = holder
         WHERE holder.name LIKE 'slurm:c/%' AND series < 2 GROUP BY series ORDER BY series",
    );
    let busy = (56 * HOUR) as i64;
    assert_eq!(shapes, [vec![0, busy, 0], vec![1, 0, busy]]);
    let failed = (END.0 - 5 * DAY.0 + 22 * HOUR) as i64;
    let incidents = numbers("SELECT code, from_ns, to_ns FROM incident ORDER BY code");
    assert_eq!(incidents, [vec![0, failed, failed + 2 * HOUR as i64], vec![79, failed, failed]]);
}

#[test]
fn the_same_seed_makes_the_same_bill_to_the_byte_and_another_one_other_gpus() {
    let short = |seed| Written::new(&scenario(), HistoryExtent { days: 1, nodes: 1, seed });
    let json = |written: &Written| serde_json::to_string(&ledger_bill(&written.ledger())).unwrap();
    let (first, again, other) = (short(3), short(3), short(4));
    assert_eq!(json(&first), json(&again));
    assert!([&first, &other].iter().all(|written| ledger_bill(&written.ledger()).is_balanced()));
    let uuids = |written: &Written| -> Vec<_> {
        ledger_bill(&written.ledger()).gpus.iter().map(|gpu| gpu.gpu.uuid.clone()).collect()
    };
    assert!(uuids(&first).iter().all(|uuid| !uuids(&other).contains(uuid)));
    // A longer history is of the same GPUs.
    assert_eq!(uuids(&first), uuids(&WRITTEN));
}

#[test]
fn exports_have_the_bill_of_the_ledgers_but_for_the_gpu_that_two_of_them_have() {
    let exports = WRITTEN.exports();
    let source = ExportSource::of(&exports);
    let fleet = make_bills(&source, &request(), |_, _| {}).map(|made| only_bill(made).unwrap()).unwrap();
    assert!(fleet.is_balanced());
    let of_ledgers = [WRITTEN.bill(), ledger_bill(&WRITTEN.of_second_node())];
    for tenant in ["lab", "a.service"] {
        let own: Vec<&BillLine> = of_ledgers.iter().flat_map(|bill| lines(bill, tenant)).collect();
        let exported = lines(&fleet, tenant);
        if tenant == "lab" {
            assert_eq!((amounts(&exported), money(&exported)), (amounts(&own), money(&own)));
        } else {
            assert!(
                amounts(&exported).parts.held() < amounts(&own).parts.held(),
                "its claimed GPU is set aside"
            );
        }
    }
    let conflicts = &fleet.fleet.as_ref().unwrap().conflicts;
    assert_eq!(conflicts.len(), 2, "the GPU was in two ledgers on two days: {conflicts:?}");
    let held = amounts(&lines(&fleet, "a.service")).parts.held();
    assert_eq!(held, 9 * DAY.0 + 12 * HOUR, "the node went at noon of the last day");
}

#[test]
fn a_node_without_time_in_the_history_has_no_ledger() {
    for [key, time] in [["to", "-20d"], ["from", "0d 01:00"]] {
        let mut document = scenario();
        let node = &mut document["history"]["nodes"][1];
        node.as_object_mut().unwrap().remove("to");
        node[key] = json!(time);
        let written = Written::new(&document, TEN_DAYS);
        assert!(written.bill().is_balanced() && !written.of_second_node().exists(), "{key} {time}");
    }
}

#[test]
fn a_claimed_gpu_has_its_place_in_the_list_whether_or_not_the_one_before_is_left_out() {
    let mut document = scenario();
    let node = &mut document["history"]["nodes"][1];
    let [early, late] = [["-20d", "-15d"], ["-3d", "-2d 12:00"]];
    let claim = |gpu: u32, [from, to]: [&str; 2]| json!({ "node": 0, "gpu": gpu, "from": from, "to": to });
    node["claimed"] = json!([claim(0, early), claim(1, late)]);
    node["workloads"][0]["gpus"] = json!([2]);
    let bill = ledger_bill(&Written::new(&document, TEN_DAYS).of_second_node());
    assert_eq!(bill.gpus.len(), 2);
    assert_eq!(amounts(&lines(&bill, "a.service")).parts.held(), 36 * HOUR);
}

#[test]
fn the_settings_of_the_configuration_hold_before_the_first_of_a_history() {
    let mut document = scenario();
    document["history"]["settings"] =
        json!([{ "recorded": "-6d", "prices": prices(json!([{ "gpu_hour": "3.00" }])) }]);
    let bill = Written::new(&document, TEN_DAYS).bill();
    // Three nights of 10 h at 2.00 before the 22nd, then 44 h at 3.00, of which 2 h were unavailable.
    assert_eq!(money(&lines(&bill, "lab")).floor().0, 186_000_000_000);
}

#[test]
fn a_failure_from_before_the_history_is_an_incident_from_its_begin_on() {
    let mut document = scenario();
    document["history"]["nodes"][0]["failures"] = json!([{ "gpu": 0, "from": "-20d", "to": "-9d" }]);
    let written = Written::new(&document, TEN_DAYS);
    let connection = rusqlite::Connection::open(written.ledger()).unwrap();
    let mut statement =
        connection.prepare("SELECT code, from_ns, to_ns FROM incident ORDER BY code").unwrap();
    let read = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
    let incidents: Vec<[i64; 3]> = statement.query_map([], read).unwrap().map(Result::unwrap).collect();
    let (begin, day) = ((END.0 - 10 * DAY.0) as i64, DAY.0 as i64);
    assert_eq!(incidents, [[0, begin, begin + day], [79, begin, begin]]);
}

#[test]
fn old_time_is_stored_by_quarter_hours_and_the_last_three_days_by_minutes() {
    let mut reader = Reader::open(&WRITTEN.ledger()).unwrap();
    let mut at = |minutes: u64| {
        let from = Utc(END.0 - 4 * DAY.0 + minutes * MINUTE.0);
        reader.bill(&BillRequest { from: Some(from), ..request() }).map(|bill| bill.from)
    };
    assert!(at(15).is_ok() && at(24 * 60 + 1).is_ok());
    let refused = at(1).unwrap_err().to_string();
    assert!(refused.contains("quarter"), "{refused}");
}

#[test]
fn a_mistake_in_a_history_is_named_with_its_key() {
    let problem = |path: &str, value: Value| {
        let mut document = scenario();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = document.pointer_mut(parent).unwrap();
        match key.parse::<usize>() {
            Ok(place) => parent[place] = value,
            Err(_) => parent[key] = value,
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scenario.json");
        std::fs::write(&file, document.to_string()).unwrap();
        let scenario = DemoScenario::load(file.to_str().unwrap()).unwrap();
        let config = scenario.configuration().unwrap();
        match scenario.history(&config, TEN_DAYS, END) {
            Ok(_) => panic!("{path} is accepted"),
            Err(error) => error.to_string(),
        }
    };
    let own = "/history/nodes/0";
    for (path, value, expected) in [
        ("/history/nodes", json!([]), "history.nodes: is empty"),
        ("/history/nodes", json!(7), "history.nodes: invalid type: integer `7`"),
        ("/history/gap", json!([]), "history.gap: unknown field `gap`"),
        (&format!("{own}/gaps"), json!([{ "from": "-1d" }]), "history.nodes[0].gaps[0]: missing field `to`"),
        (
            &format!("{own}/from"),
            json!("yesterday"),
            "history.nodes[0].from: \"yesterday\" is no time of a history",
        ),
        (
            &format!("{own}/gpus"),
            json!([{ "profile": "h100", "count": 1 }]),
            "history.nodes[0].gpus: the first node has",
        ),
        (
            &format!("{own}/failures/0/gpu"),
            json!(2),
            "history.nodes[0].failures[0].gpu: GPU 2 does not exist; the node has 2",
        ),
        (
            &format!("{own}/workloads/0/runs/minutes"),
            json!(u64::MAX),
            "workloads[0].runs.minutes: 18446744073709551615 is too long",
        ),
        (
            &format!("{own}/workloads/2/activity/0/every_minutes"),
            json!(u64::MAX),
            "workloads[2].activity[0].every_minutes: 184",
        ),
        (
            &format!("{own}/workloads/0/holder/job/user"),
            json!(""),
            "workloads[0].holder.job.user: \"\" is no name",
        ),
        (
            &format!("{own}/workloads/1/holder/user/user"),
            json!("a\nb"),
            "workloads[1].holder.user.user: \"a\\nb\" is no name",
        ),
        (
            "/history/nodes/1/gpus",
            json!([{ "profile": "l4", "count": u32::MAX }]),
            "history.nodes[1].gpus: a node has at most 1000",
        ),
        (
            "/history/nodes/1/config/node/name",
            json!("past"),
            "history.nodes[1].config.node.name: \"past\" is the name of another",
        ),
        (
            "/history/nodes/1/config/node/name",
            json!("../x"),
            "history.nodes[1].config.node.name: \"../x\" is no name of a directory",
        ),
        (&format!("{own}/failures/0/xid"), json!(13), "history.nodes[0].failures[0].xid: 13 ("),
        (
            &format!("{own}/workloads/0/gpus"),
            json!([0, 0]),
            "history.nodes[0].workloads[0].gpus: give at least one",
        ),
        (
            &format!("{own}/workloads/0/gpus"),
            json!([9]),
            "history.nodes[0].workloads[0].gpus: GPU 9 does not exist",
        ),
        (
            &format!("{own}/workloads/0/memory_gib"),
            json!(80),
            "history.nodes[0].workloads[0].memory_gib: 80 GiB are more than the 79",
        ),
        (
            &format!("{own}/workloads/0/share"),
            json!([2, 1]),
            "history.nodes[0].workloads[0].share: give two numbers",
        ),
        (
            &format!("{own}/workloads/1/share"),
            json!([1, 2]),
            "history.nodes[0].workloads[1].share: a unit or user holds",
        ),
        (
            &format!("{own}/workloads/0/replicas"),
            json!(true),
            "history.nodes[0].workloads[0].replicas: only a pod",
        ),
        (
            &format!("{own}/workloads/0/runs/days"),
            json!("funday"),
            "history.nodes[0].workloads[0].runs.days: \"funday\" are no days",
        ),
        (
            &format!("{own}/workloads/0/runs/minutes"),
            json!(0),
            "history.nodes[0].workloads[0].runs.minutes: is 0",
        ),
        (
            &format!("{own}/workloads/0/activity/1/busy"),
            json!(101),
            "history.nodes[0].workloads[0].activity[1].busy: 101 is no percentage",
        ),
        (
            &format!("{own}/workloads/1/activity/1/busy"),
            json!(1),
            "history.nodes[0].workloads[1].activity[1].busy: nothing is busy without",
        ),
        (
            &format!("{own}/workloads/2/activity/0/for_minutes"),
            json!(50),
            "history.nodes[0].workloads[2].activity[0].every_minutes: goes with",
        ),
        (
            &format!("{own}/workloads/2/activity/0/busi"),
            json!(5),
            "history.nodes[0].workloads[2].activity[0].busi: unknown field `busi`",
        ),
        (&format!("{own}/workloads/0/holder"), json!({ "gang": {} }), "history.nodes[0].workloads[0].holder"),
        (
            "/history/nodes/1/gpus",
            json!([{ "profile": "h900", "count": 1 }]),
            "history.nodes[1].gpus: a history knows no board \"h900\"",
        ),
        ("/history/nodes/1/gpus", json!([]), "history.nodes[1].gpus: is missing"),
        ("/history/nodes/1/claimed/0/gpu", json!(2), "history.nodes[1].claimed[0]: node 0 has no GPU 2"),
        ("/history/nodes/1/config", json!({ "nodes": {} }), "history.nodes[1].config"),
        (&format!("{own}/gaps/0/to"), json!("-3d"), "history.nodes[0].gaps[0].to: is not after `from`"),
        (&format!("{own}/off/0/to"), json!("-7d 10:00"), "history.nodes[0].off[0].to: is not after `from`"),
        (&format!("{own}/failures/0/to"), json!("-6d"), "history.nodes[0].failures[0].to: is not after"),
        ("/history/nodes/1/claimed/0/to", json!("-4d"), "history.nodes[1].claimed[0].to: is not after"),
        ("/history/nodes/1/from", json!("-1d 13:00"), "history.nodes[1].to: is not after `from`"),
        (
            &format!("{own}/workloads/3"),
            json!({ "holder": { "user": { "user": "bob", "uid": 7 } }, "gpus": [1], "memory_gib": 1, "from": "-2d", "to": "-3d" }),
            "history.nodes[0].workloads[3].to: is not after `from`",
        ),
        (&format!("{own}/from"), json!("12d"), "history.nodes[0].from: \"12d\" is no time of a history"),
        (
            "/history/nodes/1",
            json!({
                "config": { "node": { "name": "second" } },
                "gpus": [{ "profile": "l4", "count": 1_000 }],
                "workloads": vec![json!({
                    "holder": { "pod": { "namespace": "a", "name": "b" } },
                    "gpus": (0..1_000).collect::<Vec<_>>(), "replicas": true, "memory_gib": 1,
                    "runs": { "days": "mon-sun", "at": "01:00", "minutes": 5 }
                }); 9]
            }),
            "history.nodes[1].workloads[8]: up to here the node may have 108000 runs in 10 days",
        ),
        (
            "/history/settings/1/recorded",
            json!("-20d"),
            "history.settings[1].recorded: is not after the one before",
        ),
        ("/history/settings/1/prices", json!({ "rates": [{ "gpu_hour": "x" }] }), "history.settings[1]"),
    ] {
        let problem = problem(path, value);
        assert!(problem.contains(expected), "{path}: {problem}");
    }
}

#[test]
fn an_hour_of_a_running_agent_and_of_a_history_agree_within_a_tick() {
    const TICK: u64 = 1_000_000_000;
    // The agent: alice and bob hold halves. Alice is idle, from 08:20 on 60 % busy and from 08:40 on 90 %; bob comes at 08:30 and
    // wants 30 %, so that in the end both want more than there is.
    let mut world = World::new(&["alice", "bob"]);
    let [alice, bob] = ["alice", "bob"].map(|user| Holder::user(user, Some(1)));
    world.identify_holders(&[(7, alice), (8, bob)]);
    world.run(20 * 60, |frame| frame.process(7, 0).busy(0));
    world.run(10 * 60, |frame| frame.process(7, 60).busy(60));
    world.run(10 * 60, |frame| frame.process(7, 60).process(8, 30).busy(90));
    // A window is settled ten seconds after its end.
    world.run(20 * 60 + 12, |frame| frame.process(7, 90).process(8, 30).busy(100));
    let agent = world.bill();
    let begin = Utc(1_800_000_000 * TICK);
    let user = |name: &str, activity: Value| json!({ "holder": { "user": { "user": name, "uid": 1 } }, "gpus": [0], "memory_gib": 1, "from": "0d 08:00", "activity": activity });
    let past = Written::at(
        &json!({
            "gpus": [{ "profile": "h100" }],
            "config": "attribution: {standing: [{gpu: 0, fraction: 1/2, user: alice}, {gpu: 0, fraction: 1/2, user: bob}]}",
            "history": { "nodes": [{ "workloads": [
                user("alice", json!([{ "after_minutes": 40, "busy": 90 }, { "after_minutes": 20, "busy": 60 }])),
                user("bob", json!([{ "after_minutes": 30, "busy": 30 }, { "busy": 0, "memory_gib": 0 }]))
            ] }] }
        }),
        HistoryExtent { days: 1, nodes: 1, seed: 1 },
        Utc(begin.0 + HOUR),
    );
    let request = BillRequest { from: Some(begin), ..BillRequest::default() };
    let history = Reader::open(&past.ledger()).unwrap().bill(&request).unwrap();
    for tenant in ["alice", "bob"] {
        let of =
            |all: &[BillLine]| amounts(&all.iter().filter(|line| line.tenant == tenant).collect::<Vec<_>>());
        let (agent, history) = (of(&agent), of(&history.lines));
        let pairs = PARTS.iter().chain(USES).map(|amount| [amount.of(&agent), amount.of(&history)]);
        for [agent, history] in pairs.chain([[agent.parts.held(), history.parts.held()]]) {
            assert!(
                agent.abs_diff(history) <= TICK,
                "{tenant}: {agent} ns by the agent, {history} ns in the history"
            );
        }
        assert_eq!(agent.parts.held(), HOUR / 2);
        assert!(history.used.beyond > 0 || tenant == "bob");
    }
}

/// The pointers to all values within one.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(place, item)| pointers(item, &format!("{at}/{place}"), found));
        }
        Value::Object(pairs) => {
            pairs.iter().for_each(|(key, item)| pointers(item, &format!("{at}/{key}"), found))
        }
        _ => {}
    }
}

#[test]
fn whatever_stands_in_a_history_it_is_planned_or_refused_with_a_key() {
    let document = scenario();
    let mut places = Vec::new();
    pointers(&document["history"], "/history", &mut places);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scenario.json");
    let hostile = [
        json!(null),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("-400d"),
        json!([]),
        json!({}),
    ];
    for place in &places {
        for value in &hostile {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = value.clone();
            std::fs::write(&file, changed.to_string()).unwrap();
            let scenario = DemoScenario::load(file.to_str().unwrap()).unwrap();
            if let Err(error) = scenario.history(&scenario.configuration().unwrap(), TEN_DAYS, END) {
                let error = error.to_string();
                assert!(error.starts_with("scenario: history"), "{place} as {value}: {error}");
            }
        }
    }
}

#[test]
fn the_past_of_the_cluster_is_valid_on_every_day_of_the_week_and_for_many_nodes() {
    let cluster = DemoScenario::load("cluster").unwrap();
    let config = cluster.configuration().unwrap();
    for day in 0..7 {
        let extent = HistoryExtent { days: 60, nodes: 20, seed: day };
        let planned = cluster.history(&config, extent, Utc(END.0 + day * DAY.0 + 7 * HOUR));
        assert!(planned.is_ok(), "{}", planned.err().unwrap());
    }
}

#[test]
fn a_scenario_without_a_past_refuses_one() {
    let node = DemoScenario::load("node").unwrap();
    let config = node.configuration().unwrap();
    let refused = node.history(&config, TEN_DAYS, END).err().unwrap().to_string();
    assert!(refused.contains("the scenario has no history"), "{refused}");
}

/// The tenant rules of a history: none, then one for the jobs, then one more before it.
fn with_rules() -> Value {
    let mut document = scenario();
    let web = json!({ "match": { "k8s_namespace_name": "web" }, "tenant": "web-{k8s_pod_name}" });
    let lab = json!({ "match": { "slurm_account": "lab" }, "tenant": "night" });
    let settings = document["history"]["settings"].as_array_mut().unwrap();
    settings[1]["tenants"] = json!({ "rules": [lab.clone()] });
    settings.insert(2, json!({ "recorded": "-5d 21:00", "tenants": { "rules": [web, lab] } }));
    document
}

static WITH_RULES: LazyLock<Written> = LazyLock::new(|| Written::new(&with_rules(), TEN_DAYS));

fn request_for(filter: [&str; 2], to: Utc) -> BillRequest {
    let filter = LineFilter::of([(filter[0], filter[1])]).unwrap();
    BillRequest { filter, to: Some(to), ..request() }
}

fn explained_over(exports: &Path, request: &BillRequest) -> Explanation {
    let source = ExportSource::of(exports);
    make_bills(&source, request, |_, _| {})
        .map(|made| Explanation::of_bill(only_bill(made).unwrap()))
        .unwrap()
}

/// What an explanation says of these GPUs, without the numbers of rates, and without what only a ledger has.
fn facts(explanation: &Explanation, gpus: &BTreeSet<&str>) -> Value {
    let is_own = |uuid: &str| gpus.contains(uuid);
    let price = |id: Option<i64>| {
        let rate = explanation.bill.rates.iter().find(|rate| Some(rate.id) == id);
        rate.map(|rate| json!([rate.price.0.to_string(), rate.since, rate.recorded]))
    };
    let lines = explanation.lines.iter().filter(|line| is_own(&line.line.gpu.uuid)).map(|line| {
        let mut json = serde_json::to_value(line).unwrap();
        let keys = ["node", "rate", "energy_rate", "carbon_rate", "terms", "first_seen", "started"];
        let of_node = ["cluster", "pool", "instance_type", "spot"];
        for key in keys.into_iter().chain(of_node).chain(["money", "energy_money"]) {
            json.as_object_mut().unwrap().remove(key);
        }
        // A line with charges alone has no minutes in a ledger.
        let tenancies = Some(json["tenancies"].take()).filter(|_| !line.spans.is_empty());
        json["tenancies"] = tenancies.unwrap_or_default();
        json["price"] = price(line.line.rates.time).unwrap_or_default();
        json["exact"] = line.line.exact.parts().to_string().into();
        json
    });
    let records = explanation.gpus.iter().filter(|record| is_own(&record.gpu.uuid)).map(|record| {
        let GpuRecord { gpu, model, events, incidents, .. } = record;
        json!([gpu.uuid, model, events, incidents])
    });
    let sorted = |mut values: Vec<Value>| {
        values.sort_by_key(Value::to_string);
        values
    };
    let usage = explanation.usage.iter().filter(|usage| is_own(&usage.gpu.uuid));
    let usage = usage.map(|usage| serde_json::to_value(usage).unwrap());
    json!({ "lines": sorted(lines.collect()), "usage": sorted(usage.collect()), "gpus": sorted(records.collect()) })
}

#[test]
fn an_explanation_over_exports_is_that_of_the_ledgers_where_both_have_the_facts() {
    // The ledgers keep quarter hours up to here, and no GPU was in two of them.
    let to = Utc(END.0 - 4 * DAY.0);
    let filters = [
        ["gpu", "0"],
        ["gpu", "1"],
        ["workload", "__unallocated__"],
        ["workload", "__unavailable__"],
        ["workload", "__unobserved__"],
        ["slurm_account", "lab"],
        ["k8s_namespace_name", "web"],
        ["kind", "user"],
    ];
    let mut grants = BTreeMap::new();
    for filter in filters {
        let request = request_for(filter, to);
        let of_files = explained_over(&WITH_RULES.exports(), &request);
        assert!(of_files.lines.iter().all(|line| line.elsewhere.is_empty()));
        for line in &of_files.lines {
            let holder = &line.line.holder;
            for span in &line.spans {
                let is_held = span.held.held() > 0 && !holder.is_remainder();
                assert_eq!(!span.granted_by.is_empty(), is_held, "{line:?}");
                let names = span.granted_by.iter().map(|source| source.name());
                grants.entry(holder.kind().name()).or_insert_with(BTreeSet::new).extend(names);
            }
        }
        for ledger in [WITH_RULES.ledger(), WITH_RULES.of_second_node()] {
            let of_ledger = Reader::open(&ledger).unwrap().explain(&request).unwrap();
            let until = BillRequest { to: Some(to), ..self::request() };
            let bill = Reader::open(&ledger).unwrap().bill(&until).unwrap();
            let gpus: BTreeSet<&str> = bill.gpus.iter().map(|gpu| &*gpu.gpu.uuid).collect();
            let [files, own] = [&of_files, &of_ledger].map(|explanation| facts(explanation, &gpus));
            for part in ["lines", "usage", "gpus"] {
                assert_eq!(files[part], own[part], "{filter:?} {part}");
            }
        }
    }
    let told: Vec<_> = grants.into_iter().map(|(kind, names)| format!("{kind} {names:?}")).collect();
    assert_eq!(
        told,
        [
            "k8s {\"kubernetes\"}",
            "remainder {}",
            "slurm {\"slurm\"}",
            "unit {\"presence\"}",
            "user {\"standing\"}"
        ]
    );
    let of_jobs = explained_over(&WITH_RULES.exports(), &request_for(["slurm_account", "lab"], to));
    let tenancies: BTreeSet<_> = of_jobs
        .lines
        .iter()
        .flat_map(|line| line.tenancies.iter().map(|one| (&*line.line.tenant, one)))
        .map(|(tenant, one)| {
            let number = match &one.basis {
                TenantBasis::Rule { number, .. } => Some(*number),
                _ => None,
            };
            (tenant, one.version.as_ref().map(|version| version.id), number, one.class.name())
        })
        .collect();
    let batch = "batch";
    assert_eq!(
        tenancies.into_iter().collect::<Vec<_>>(),
        [("lab", None, None, batch), ("night", Some(1), Some(1), batch), ("night", Some(2), Some(2), batch)]
    );
    let incidents: Vec<_> = of_jobs.gpus[0].incidents.iter().map(|one| one.code).collect();
    assert_eq!(incidents, [Some(79), None], "an XID and a verdict: {:?}", of_jobs.gpus);
}

#[test]
fn an_explanation_over_exports_has_all_time_of_its_lines_and_none_that_is_set_aside() {
    for filter in [["gpu", "1"], ["workload", "unit:a.service"]] {
        let found = explained_over(&WITH_RULES.exports(), &request_for(filter, END));
        assert_eq!(found.bill.fleet.as_ref().unwrap().conflicts.len(), 2);
        for line in &found.lines {
            let held: u64 = line.spans.iter().map(|span| span.held.held()).sum();
            let used: u64 = line.spans.iter().map(|span| span.used.total()).sum();
            assert_eq!((held, used), (line.line.amounts.parts.held(), line.line.amounts.used.total()));
            assert!(line.spans.is_sorted_by(|one, next| one.to <= next.from), "{line:?}");
            assert!(!line.tenancies.is_empty() && line.elsewhere.is_empty());
        }
    }
}

#[test]
fn files_without_reasons_name_the_node_and_the_command_that_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut reader = Reader::open(&WITH_RULES.ledger()).unwrap();
    let days = reader.days().unwrap();
    let old = days[2].0;
    for (day, _) in days {
        let mut account = reader.day(day).unwrap();
        assert!(account.header.reasons.is_some());
        account.header.reasons = account.header.reasons.filter(|_| day != old);
        account.rows.iter_mut().filter(|_| day == old).for_each(|row| row.line.granted_by.clear());
        let bytes = write_day(&account).unwrap();
        write_file(ExportDirectory(directory.path()), &account.header, &bytes).unwrap();
    }
    let request = request_for(["kind", "user"], END);
    let [part, whole] =
        [directory.path(), &WITH_RULES.exports()].map(|exports| explained_over(exports, &request));
    let of_bob = |all: &Explanation| {
        let lines = all.lines.iter().filter(|line| line.line.tenant == "bob");
        lines.map(|line| (line.spans.clone(), line.line.exact)).collect::<Vec<_>>()
    };
    // GPU 1, which bob has, is in another ledger too in the whole.
    assert!(!of_bob(&part).is_empty() && of_bob(&part).len() == of_bob(&whole).len());
    let missing: Vec<_> = part.lines.iter().flat_map(|line| &line.elsewhere).collect();
    assert!(!missing.is_empty());
    for one in missing {
        assert_eq!((&*one.node, one.from.floor(DAY)), ("past", old), "{one:?}");
    }
    let exports = directory.path().to_str().unwrap();
    let arguments =
        ["explain", "user:bob", "--exports", exports, "--from", "2026-11-18", "--to", "2026-11-28"];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_gpumeter"))
        .args(arguments)
        .args(["--time-zone", "UTC"])
        .output()
        .unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "grants, rules and faults from 2026-11-20 00:00 Z to 2026-11-21 00:00 Z are not in the files; \
                on past: gpumeter explain user:bob --from 2026-11-20T00:00:00Z --to 2026-11-21T00:00:00Z";
    assert!(output.status.success() && page.contains(told), "{page}");
    assert!(page.contains("faults in a time without reasons are not listed"), "{page}");
    assert!(page.contains("user:bob on past, GPU 1 (GPU-"), "{page}");
    for told in [
        "holding 2026-11-18 00:00 Z to 2026-11-20 00:00 Z in 2 stretches, granted by standing",
        "holding 2026-11-21 00:00 Z to 2026-11-22 00:15 Z in 2 stretches, granted by standing",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
}
