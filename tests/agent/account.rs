//! The account of the real binary: law L1 in the API and on the page, and across a kill.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::running::{Agent, Demo, output, wait_until};

/// Fast enough for minutes of account in seconds, slow enough that a busy machine misses no tick.
const FAST: &[&str] = &["--speed", "30"];

fn bill(agent: &Agent) -> Value {
    let (status, body) = agent.get("/api/v1/bill");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_str().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Asserts L1 and L2 on every line and GPU, exactly, and that what was held says who granted it.
fn check(bill: &Value) {
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    for line in bill["lines"].as_array().unwrap() {
        let uuid = line["uuid"].as_str().unwrap();
        let parts = ["within_ns", "lent_ns", "idle_ns", "unmeasured_ns", "unavailable_ns"];
        assert_eq!(number(line, "held_ns"), parts.iter().map(|part| number(line, part)).sum::<u64>());
        let is_granted = number(line, "held_ns") > 0 && !line["holder"].as_str().unwrap().starts_with("__");
        assert_eq!(line["granted_by"].is_array(), is_granted, "{line}");
        *held.entry(uuid).or_default() += number(line, "held_ns");
        *used.entry(uuid).or_default() += number(line, "used_ns");
    }
    for gpu in bill["gpus"].as_array().unwrap() {
        let uuid = gpu["uuid"].as_str().unwrap();
        assert_eq!(held[uuid], number(gpu, "slot_ns"), "held of {uuid}");
        assert!(used[uuid] <= held[uuid], "used of {uuid}");
    }
    assert_eq!(bill["reconciliation"]["imbalance_ns"], "0");
    assert_eq!(bill["reconciliation"]["imbalance_money"], "0.000000000");
}

fn settled_seconds(page: &crate::scrape::Scrape) -> i128 {
    page.series_of("gpu_slot_seconds_total", &[])
        .map(|(_, value)| crate::scrape::nano(value))
        .min()
        .unwrap_or(0)
        / 1_000_000_000
}

#[test]
fn every_gpu_second_is_in_the_bill_exactly_once_and_on_the_page_too() {
    let demo = Demo::start(FAST);
    let page = demo.agent.wait_for("five minutes of account", |page| settled_seconds(page) >= 300);
    check(&bill(&demo.agent));
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
    assert_eq!(page.value("gpumeter_account_unsettled_windows_total", &[]), Some("0"));
    // On GPUs whose tenants are all known for longer than the birth delay L1 holds on the page.
    for gpu in [0, 2, 7] {
        let label = format!("gpu=\"{gpu}\"");
        assert_eq!(
            page.nano_sum("gpu_tenant_held_seconds_total", &[&label]),
            page.nano_sum("gpu_slot_seconds_total", &[&label]),
            "{label}"
        );
    }
    let bill = bill(&demo.agent);
    let tenants: Vec<&str> =
        bill["lines"].as_array().unwrap().iter().map(|line| line["tenant"].as_str().unwrap()).collect();
    for tenant in [
        "train-llm.service",
        "alice",
        "bob",
        "carol",
        "inference.service",
        "dave",
        "erin",
        "__unallocated__",
        "__unattributed__",
    ] {
        assert!(tenants.contains(&tenant), "{tenant} in {tenants:?}");
    }
}

#[test]
fn every_kind_of_workload_of_the_demo_has_its_line() {
    let demo = Demo::start(&["--speed", "30", "--scenario", "cluster"]);
    let page = demo.agent.wait_for("three minutes of account", |page| settled_seconds(page) >= 180);
    let bill = bill(&demo.agent);
    check(&bill);
    // Holder, tenant, GPU, and whether it had a grant there.
    for (holder, tenant, gpu, held) in [
        ("unit:train-llm.service", "train-llm.service", 0, true),
        ("user:alice", "alice", 2, true),
        ("user:dave", "dave", 3, false),
        ("k8s:6f1c2a9e-3d0b-4b57-9a55-0c7e1a2b3c40/main", "research", 8, true),
        ("k8s:1c9e7f40-5a6b-4c7d-8e9f-0a1b2c3d4e5f/main", "team-b", 7, true),
        ("k8s:a41d7c52-8e0f-4f0c-b1f3-5d6e7f801122/notebook", "team-a", 9, true),
        ("k8s:c0ffee11-2233-4455-8677-8899aabbccdd/triton", "team-b", 9, true),
        ("slurm:alpha/211", "research", 10, true),
        ("slurm:alpha/211.0", "research", 10, false),
        (&format!("container:docker/{}", "4".repeat(64)), "docker", 10, false),
    ] {
        let lines = bill["lines"].as_array().unwrap();
        let line = lines.iter().find(|line| line["holder"] == holder && line["gpu"] == gpu);
        let line = line.unwrap_or_else(|| panic!("{holder} on GPU {gpu} in {lines:?}"));
        assert_eq!((&line["tenant"], number(line, "held_ns") > 0), (&tenant.into(), held), "{line}");
        let workload = format!("workload=\"{holder}\"");
        assert!(page.has("gpu_workload_held_seconds_total", &[&workload]), "{holder}");
    }
    for (tenant, share) in [("team-a", "0.25"), ("team-b", "0.5")] {
        let tenant = format!("tenant=\"{tenant}\"");
        assert_eq!(page.value("gpu_holding_ratio", &["gpu=\"9\"", &tenant]), Some(share), "replicas of four");
    }
    let by = |what: &str| {
        let url = format!("http://{}", demo.agent.address);
        let output = output(&["bill", "--url", &url, "--by", what, "--csv"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let csv = String::from_utf8(output.stdout).unwrap();
        let names: Vec<String> = csv.lines().map(|line| line.split(',').nth(5).unwrap().to_owned()).collect();
        names
    };
    assert_eq!(by("account")[0], "slurm_account");
    for (what, name) in [
        ("namespace", "team-b"),
        ("account", "physics"),
        ("workload", "slurm:alpha/211.0"),
        ("k8s_pod_name", "train-0"),
        ("gpu", "10"),
        ("namespace", "__unallocated__"),
    ] {
        assert!(by(what).iter().any(|line| line == name), "{name} by {what}");
    }
}

#[test]
fn the_bill_command_prints_text_csv_and_json_for_a_month_or_between_dates() {
    let demo = Demo::start(FAST);
    demo.agent.wait_for("two minutes of account", |page| settled_seconds(page) >= 120);
    let url = format!("http://{}", demo.agent.address);
    let printed = |options: &[&str]| {
        let output = output(&[&["bill", "--url", &*url], options].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let text = printed(&[]);
    for words in [
        "Bill of demo-node\n",
        "SIMULATED: ",
        "EXAMPLE PRICES: ",
        "tenant",
        "idle",
        "USD",
        "total",
        "price: 2.50 USD per GPU-hour, class example_on_demand: ",
        "reconciles",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    let csv = printed(&["--csv"]);
    assert!(csv.starts_with("node,cluster,from,to,time_zone,tenant,rate,held_hours,"), "{csv}");
    assert!(csv.lines().skip(1).all(|line| line.starts_with("demo-node,,")), "{csv}");
    let month = bill(&demo.agent)["from_local"].as_str().unwrap()[..7].to_owned();
    let json: Value = serde_json::from_str(&printed(&["--json", "--month", &month])).unwrap();
    check(&json);
    assert!(json["asked_to"].is_string(), "the month is not over: {json}");
    let earlier = printed(&["--from", "2020-01-01", "--to", "2020-01-15"]);
    assert!(earlier.contains("no GPU time was accounted for in this period"), "{earlier}");
}

#[test]
fn a_kill_loses_no_committed_second_and_doubles_none() {
    let mut demo = Demo::start(FAST);
    let mut last = BTreeMap::new();
    for _ in 0..5 {
        let seconds = last.values().copied().min().unwrap_or(0) + 30;
        let page = demo.agent.wait_for("more account", |page| settled_seconds(page) >= seconds);
        for (name, value) in page.series_of("gpu_tenant_held_seconds_total", &[]) {
            let value = crate::scrape::nano(value) / 1_000_000_000;
            let before = last.insert(name.to_owned(), value).unwrap_or(0);
            assert!(value >= before, "{name} went from {before} to {value}");
        }
        last.retain(|name, _| name.contains("gpu=\"7\""));
        check(&bill(&demo.agent));
        demo.kill_and_restart(FAST);
    }
    let page = demo.agent.wait_for("the account after the last kill", |page| settled_seconds(page) >= 30);
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
    check(&bill(&demo.agent));
}

/// Repeats the last whole minutes of a ledger forty days before, for two days; returns begin and end of that time.
fn repeat_long_ago(ledger: &Path) -> [String; 2] {
    const QUARTER: i64 = 900_000_000_000;
    let connection = rusqlite::Connection::open(ledger).unwrap();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let last = number("SELECT max(minute_ns) FROM minute") - 60_000_000_000;
    let begin = (last / QUARTER - 40 * 96) * QUARTER;
    let steps = format!("WITH n(i) AS (VALUES(0) UNION ALL SELECT i + 1 FROM n WHERE i < {})", 2 * 1_440 - 1);
    for table in ["minute", "account", "remark"] {
        let mut columns =
            connection.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
        let columns: Vec<String> =
            columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let columns = columns[1..].join(",");
        let sql = format!(
            "{steps} INSERT INTO {table} SELECT {begin} + i * 60000000000, {columns} FROM n, {table} WHERE minute_ns = {last}"
        );
        connection.execute(&sql, []).unwrap();
    }
    let time = |at: i64| jiff::Timestamp::from_nanosecond(at.into()).unwrap().to_string();
    [time(begin), time(begin + 2 * 96 * QUARTER)]
}

#[test]
fn a_long_backlog_is_summed_up_beside_the_commits_and_over_a_kill_and_no_bill_changes() {
    let mut demo = Demo::start(FAST);
    demo.agent.wait_for("two minutes of account", |page| settled_seconds(page) >= 180);
    demo.agent.kill();
    let ledger = demo.directory.path().join("ledger.db");
    let [from, to] = repeat_long_ago(&ledger);
    let bill = |source: &[&str]| {
        let period = ["bill", "--from", &from, "--to", &to, "--by", "workload,gpu", "--csv"];
        String::from_utf8(output(&[&period, source].concat()).stdout).unwrap()
    };
    let before = bill(&["--ledger", ledger.to_str().unwrap()]);
    assert!(before.lines().count() > 8, "{before}");
    let minutes = |ledger: &Path| {
        let sql = "SELECT count(*) FROM minute WHERE minute_ns < (SELECT max(minute_ns) FROM minute) - 35 * 86400 * 1000000000";
        let connection = rusqlite::Connection::open(ledger).unwrap();
        connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let all = minutes(&ledger);
    demo.kill_and_restart(&["--speed", "1"]);
    let settled = settled_seconds(&demo.agent.wait_for("a page", |_| true));
    demo.agent.wait_for("some steps", |_| minutes(&ledger) < all - 5_000);
    assert_eq!(bill(&["--url", &format!("http://{}", demo.agent.address)]), before);
    demo.kill_and_restart(&["--speed", "1"]);
    let page = demo
        .agent
        .wait_for("the last step", |page| minutes(&ledger) == all / 15 && settled_seconds(page) > settled);
    assert_eq!(page.value("gpumeter_ledger_errors_total", &[]), Some("0"));
    assert_eq!(page.value("gpumeter_ledger_imbalance_seconds", &[]), Some("0"));
    assert_eq!(bill(&["--url", &format!("http://{}", demo.agent.address)]), before);
}

/// A demo of two users on a node with neither a kubelet nor Slurm, of which the first is alone on GPU 0, with this more.
fn bare_metal(more: &str) -> (Demo, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let process = |pid: u32, gpu: u32, uid: u32| {
        serde_json::json!({
            "pid": pid, "name": "python3", "gpu": gpu,
            "phases": [{"from": 0, "to": 600, "demand": 0.5, "memory_bytes": 8_589_934_592_u64}],
            "host": {"uid": uid, "cgroup": format!("/user.slice/user-{uid}.slice/session-3.scope")},
        })
    };
    let text = serde_json::json!({
        "driver_version": "590.48.01", "cycle_seconds": 600,
        "gpus": [{"profile": "h100", "count": 2}],
        "users": [{"uid": 1001, "name": "ada"}, {"uid": 1002, "name": "ben"}],
        "processes": [process(4001, 0, 1001), process(4002, 1, 1001), process(4003, 1, 1002)],
        "config": format!("limits: {{birth_delay: 0s}}\nprices: {{currency: EUR, rates: [{{gpu_hour: 2}}]}}\n{more}"),
    });
    let file = directory.path().join("scenario.json");
    std::fs::write(&file, text.to_string()).unwrap();
    (Demo::start(&["--speed", "30", "--scenario", file.to_str().unwrap()]), directory)
}

/// The charged nanoseconds of each tenant.
fn charged(agent: &Agent) -> BTreeMap<String, u64> {
    let mut charged = BTreeMap::new();
    for line in bill(agent)["lines"].as_array().unwrap() {
        *charged.entry(line["tenant"].as_str().unwrap().to_owned()).or_default() +=
            number(line, "charged_ns");
    }
    charged
}

fn summary(agent: &Agent) -> Value {
    serde_json::from_str(&agent.get("/api/v1/summary").1).unwrap()
}

#[test]
fn on_bare_metal_with_a_price_and_nothing_else_those_who_are_there_pay() {
    let (demo, _scenario) = bare_metal("");
    let pays =
        |charged: &BTreeMap<String, u64>, tenant: &str| charged.get(tenant).is_some_and(|time| *time > 0);
    // On GPU 1 both have one half; on a busy machine it takes a while until both are identified.
    wait_until("ada, who is on two GPUs, pays more than ben", || {
        let charged = charged(&demo.agent);
        pays(&charged, "ben") && charged["ada"] > 2 * charged["ben"]
    });
    assert!(
        (demo.agent.first_lines.clone() + &demo.agent.log_so_far()).contains("GPUs are held by presence: ")
    );
    assert_eq!(bill(&demo.agent)["how_held"], "nothing_grants");
    assert!(
        summary(&demo.agent)["node"]["how_held"].as_str().unwrap().starts_with("GPUs are held by presence")
    );
}

#[test]
fn where_nobody_holds_the_page_and_the_bill_say_so_with_the_remedy() {
    let (demo, _scenario) = bare_metal("attribution: {presence: false}\n");
    let advice = || {
        let summary = summary(&demo.agent);
        // Before the first tick the page has an error instead.
        let problems = summary["problems"].as_array()?;
        let problem = problems.iter().find(|one| one["title"] == "use that nobody holds");
        problem.map(|problem| problem["advice"].as_str().unwrap().to_owned())
    };
    // On a busy machine processes are identified late, and until then their use is nobody's: each wait is for what is judged.
    let mut told = None;
    wait_until("the problem on the page", || {
        told = advice();
        told.is_some()
    });
    assert!(told.as_ref().is_some_and(|told| told.contains("set attribution.presence: true")), "{told:?}");
    let url = format!("http://{}", demo.agent.address);
    let printed = || String::from_utf8(output(&["bill", "--url", &url]).stdout).unwrap();
    wait_until("the footnote of the bill", || {
        printed().contains("charged to nobody: nobody held the GPU meanwhile")
    });
    let mut charged_to_ada = None;
    wait_until("ada on the bill", || {
        charged_to_ada = charged(&demo.agent).get("ada").copied();
        charged_to_ada.is_some()
    });
    assert_eq!(charged_to_ada, Some(0));
}
