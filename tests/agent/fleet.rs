//! The server of a fleet: the real binary over the exports of a made-up past.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::LazyLock;

use base64::Engine;
use gpumeter::cli::demo::{DemoScenario, HistoryExtent, HistoryPaths};
use gpumeter::config::Config;
use gpumeter::model::DAY;
use gpumeter::output::serve::fleet_paths;
use gpumeter::runtime::clock::system_now;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::running::{Agent, PATIENCE, output, program, wait_until};

/// Exports of three nodes and three days up to this one.
static EXPORTS: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    let scenario = DemoScenario::load("cluster").unwrap();
    let extent = HistoryExtent { days: 3, nodes: 3, seed: 1 };
    let end = system_now().utc.floor(DAY);
    let mut config = scenario.configuration().unwrap();
    config.prices = Config::parse("prices: {currency: USD, rates: [{gpu_hour: 2.3}]}", "c").unwrap().prices;
    let history = scenario.history(&config, extent, end).unwrap();
    std::fs::create_dir(place.path().join("exports")).unwrap();
    let [ledger, exports] = ["ledger.db", "exports"].map(|name| place.path().join(name));
    history
        .write(HistoryPaths { ledger: &ledger, directory: place.path(), exports: &exports }, None)
        .unwrap();
    place
});

fn exports() -> String {
    EXPORTS.path().join("exports").display().to_string()
}

fn start(place: &Path, arguments: &[&str]) -> Agent {
    let mut command = program();
    command.args(["fleet", "--exports", &exports(), "--listen", "127.0.0.1:0"]).args(arguments);
    command.env("CACHE_DIRECTORY", place.join("cache")).env("NOTIFY_SOCKET", place.join("notify"));
    Agent::start(command)
}

/// A period in which all of the exports are.
fn period() -> String {
    let day = |days: u64| system_now().utc.0 / DAY.0 * DAY.0 + days * DAY.0;
    let date = |at: u64| gpumeter::model::Utc(at).to_string().chars().take(10).collect::<String>();
    format!("{}..{}", date(day(0) - 4 * DAY.0), date(day(1)))
}

fn parsed(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).unwrap()
}

#[test]
fn a_fleet_serves_costs_bills_and_explanations_and_obeys_its_service_manager() {
    let place = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(place.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut buffer = [0; 4096];
        let count = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let config = place.path().join("fleet.yaml");
    std::fs::write(&config, "billing: {time_zone: UTC}\n").unwrap();
    let mut fleet = start(place.path(), &["--config", config.to_str().unwrap()]);
    assert!(told().contains("READY=1"));
    assert_eq!(fleet.get("/-/healthy").0, 200);
    wait_until("a first look", || fleet.get("/-/ready").0 == 200);
    let period = period();
    let costs = parsed(fleet.get(&format!("/api/v1/costs?group=node&period={period}")));
    assert_eq!(
        (&costs["source"]["kind"], &costs["source"]["nodes"]),
        (&"fleet".into(), &3.into()),
        "{costs}"
    );
    assert_eq!(costs["command"].as_str().unwrap().split(' ').take(4).last(), Some("DIR"));
    let (from, to) = period.split_once("..").unwrap();
    let query = format!("from={from}T00:00:00Z&to={to}T00:00:00Z");
    let bill = parsed(fleet.get(&format!("/api/v1/bill?{query}")));
    let (from, to) = (format!("{from}T00:00:00Z"), format!("{to}T00:00:00Z"));
    let made = output(&[
        "bill",
        "--exports",
        &exports(),
        "--json",
        "--time-zone",
        "UTC",
        "--from",
        &from,
        "--to",
        &to,
    ]);
    assert_eq!(bill, serde_json::from_slice::<Value>(&made.stdout).unwrap());
    assert_eq!(costs["total"]["money"], bill["reconciliation"]["line_money"]);
    let line = &bill["lines"][0];
    let holder = line["holder"].as_str().unwrap();
    let explained = parsed(fleet.get(&format!("/api/v1/explain?{query}&workload={holder}")));
    assert_eq!(explained["lines"][0]["holder"], line["holder"]);
    for (path, status) in [
        ("/", 200),
        ("/costs", 200),
        ("/api/v1/costs?grop=node", 400),
        ("/api/v1/costs?period=2999-01", 400),
        ("/api/v1/summary", 404),
        ("/api/v1/snapshot", 404),
    ] {
        assert_eq!(fleet.get(path).0, status, "{path}");
    }
    assert_eq!(fleet.get("/").1, fleet.get("/costs").1);
    let page = fleet.get("/metrics").1;
    assert!(page.contains("\ngpumeter_fleet_unreadable_files 0\n"), "{page}");
    fleet.signal(Signal::HUP);
    assert!(told().contains("RELOADING=1"));
    assert!(told().contains("READY=1"));
    assert!(fleet.terminate().success());
    assert!(told().contains("STOPPING=1"));
}

#[test]
fn a_fleet_reports_a_job_as_its_files_do() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("fleet.yaml");
    std::fs::write(&config, "billing: {time_zone: UTC}\n").unwrap();
    let fleet = start(place.path(), &["--config", config.to_str().unwrap()]);
    wait_until("a first look", || fleet.get("/-/ready").0 == 200);
    let (url, exports) = (format!("http://{}", fleet.address), exports());
    let report = |source: [&str; 2], more: &[&str]| {
        let arguments = ["job", source[0], source[1], "--time-zone", "UTC", "--last", "5d"];
        let ended = output(&[&arguments[..], more].concat());
        assert!(ended.status.success(), "{more:?}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let list: Value = serde_json::from_str(&report(["--url", &url], &["--json"])).unwrap();
    let jobs = list["jobs"].as_array().unwrap();
    let of = |label: &str, job: &Value| {
        let labels = job["labels"].as_array().unwrap().iter();
        labels.clone().find(|pair| pair[0] == label).map(|pair| pair[1].as_str().unwrap().to_owned())
    };
    let job = jobs.first().unwrap_or_else(|| panic!("{list}"));
    let (id, user) = (job["job"].as_str().unwrap(), of("slurm_user", job).unwrap());
    for more in [&["--json", id][..], &[id], &["--user", &user], &["--user", &user, "--json"]] {
        let [of_server, of_files] =
            [["--url", &*url], ["--exports", &*exports]].map(|from| report(from, more));
        let parts = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        // The files of a list of all jobs are searched up to their end, and the server up to now.
        let is_of_period =
            |line: &String| ["\"from\"", "\"to\"", ", time zone"].iter().any(|part| line.contains(part));
        let [of_server, of_files] = [of_server, of_files]
            .map(|text| parts(&text).into_iter().filter(|line| !is_of_period(line)).collect::<Vec<_>>());
        assert_eq!(of_server, of_files, "{more:?}");
    }
    for (path, status) in [
        ("/api/v1/jobs?job=..%2F..%2Fx", 400),
        ("/api/v1/jobs?job=99999999999", 400),
        ("/api/v1/jobs?job=ml%2Fa%0Ab", 400),
        ("/api/v1/jobs?jobs=1", 400),
        ("/api/v1/jobs?job=1&by=day", 400),
        ("/api/v1/jobs?job=1", 200),
        ("/api/v1/jobs?slurm_user=%27%20OR%201%3D1%20--", 200),
    ] {
        assert_eq!(fleet.get(path).0, status, "{path}");
    }
    let unknown = output(&["job", "1", "--url", &url]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    let by_environment = program().args(["job", "1"]).env("GPUMETER_URL", &url).output().unwrap();
    assert_eq!(by_environment.status.code(), Some(1), "{by_environment:?}");
    let with_password =
        program().args(["job", "1"]).env("GPUMETER_URL", "http://a:b@localhost:1").output().unwrap();
    let told = String::from_utf8_lossy(&with_password.stderr).into_owned();
    assert!(with_password.status.code() == Some(2) && !told.contains("a:b"), "{told}");
}

/// Status and body of a path, asked by another user of this host.
fn ask_as_nobody(fleet: &Agent, path: &str) -> (u16, String) {
    const NOBODY: u32 = 65_534;
    let (_, port) = fleet.address.rsplit_once(':').unwrap();
    let script = "exec 3<>/dev/tcp/127.0.0.1/$1; printf 'GET %s HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' \"$2\" >&3; cat <&3";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, "ask", port, path]).uid(NOBODY).gid(NOBODY).current_dir("/");
    let answer = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn another_user_of_the_host_sees_nothing_but_his_own_jobs_of_the_configured_cluster() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("fleet.yaml");
    for (text, of_jobs) in [("billing: {time_zone: UTC}\n", 403), ("node: {cluster: alpha}\n", 200)] {
        std::fs::write(&config, text).unwrap();
        let fleet = start(place.path(), &["--config", config.to_str().unwrap()]);
        wait_until("a first look", || fleet.get("/-/ready").0 == 200);
        for path in fleet_paths() {
            let (status, body) = ask_as_nobody(&fleet, path);
            let expected = match path {
                // They tell nothing of anybody's costs.
                "/-/healthy" | "/-/ready" | "/metrics" => 200,
                "/api/v1/jobs" => of_jobs,
                _ => 403,
            };
            assert_eq!(status, expected, "{text}: {path}: {body}");
            assert!(path != "/api/v1/jobs" || of_jobs == 403 || body.contains("\"jobs\":[]"), "{body}");
        }
        assert!(fleet.get("/api/v1/jobs").1.contains("\"job\":\""), "root sees all");
    }
}

#[test]
fn a_fleet_bills_with_the_prices_of_a_book() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let config = file("fleet.yaml", "billing: {time_zone: UTC}\n");
    let rates = "[{gpu_hour: 3.337}, {model: '*L40S*', gpu_hour: 0.7}]";
    let book = file(
        "book.yaml",
        &format!(
            "prices: {{currency: USD, rates: {rates}}}\nterms: [{{tenant: '*', basis: used, discount: 12.5}}]\n"
        ),
    );
    let euros = file("euros.yaml", &format!("prices: {{currency: EUR, rates: {rates}}}\n"));
    let fleet = start(place.path(), &["--config", &config]);
    let url = format!("http://{}", fleet.address);
    let period = period();
    let (from, to) = period.split_once("..").unwrap();
    let bill = |source: [&str; 2], more: &[&str]| {
        let arguments = ["bill", source[0], source[1], "--time-zone", "UTC", "--from", from, "--to", to];
        output(&[&arguments[..], more].concat())
    };
    let exports = exports();
    let (of_server, of_files) = (["--url", &*url], ["--exports", &*exports]);
    for more in [
        &["--book", &*book, "--json"][..],
        &["--book", &book, "--compare-book"],
        &["--book", &book, "--compare-book", "--by", "node,model"],
    ] {
        let [one, other] = [of_server, of_files].map(|source| bill(source, more));
        assert!(one.status.success() && other.status.success(), "{one:?}\n{other:?}");
        assert!(one.stdout == other.stdout, "{more:?}: {one:?}\n{other:?}");
    }
    // What a part is made of adds up to the bill.
    let date = |at: u64| gpumeter::model::Utc(at).to_string().chars().take(10).collect::<String>();
    let [day, next] = [2, 1].map(|days| date(system_now().utc.0 / DAY.0 * DAY.0 - days * DAY.0));
    let explain = |source: [&str; 2], more: &[&str]| {
        let arguments = ["explain", source[0], source[1], "--time-zone", "UTC", "--from", from, "--to", to];
        output(&[&arguments[..], more].concat())
    };
    let lines = |[from, to]: [&str; 2]| {
        let ended = output(&[
            "bill",
            "--exports",
            &exports,
            "--json",
            "--time-zone",
            "UTC",
            "--from",
            from,
            "--to",
            to,
        ]);
        serde_json::from_slice::<Value>(&ended.stdout).unwrap()["lines"].as_array().unwrap().clone()
    };
    let nano = |money: &Value| money.as_str().unwrap().replace('.', "").parse::<i128>().unwrap();
    for (subject, tenant, span) in [
        (&["--tenant", "team-b"][..], Some("team-b"), [from, to]),
        (&["__unallocated__"], Some("__unallocated__"), [from, to]),
        (&[&*day], None, [&*day, &*next]),
        (&[&*day, "--tenant", "team-b"], Some("team-b"), [&*day, &*next]),
    ] {
        let [json, text] = [&["--json"][..], &[]].map(|form| {
            let [one, other] = [of_server, of_files].map(|source| explain(source, &[subject, form].concat()));
            assert!(one.status.success() && one.stdout == other.stdout, "{subject:?}: {one:?}\n{other:?}");
            String::from_utf8(one.stdout).unwrap()
        });
        let whole: Value = serde_json::from_str(&json).unwrap();
        let billed = lines(span);
        let own = billed.iter().filter(|line| tenant.is_none_or(|tenant| line["tenant"] == tenant));
        let money: i128 = own.clone().map(|line| nano(&line["money"])).sum();
        assert_eq!(
            (nano(&whole["total"]["money"]), &whole["total"]["lines"]),
            (money, &own.count().into()),
            "{subject:?}"
        );
        let parts = whole["priced"].as_array().unwrap().iter().map(|part| nano(&part["money"]));
        assert_eq!(parts.sum::<i128>(), money, "{subject:?}");
        for inside in whole["inside"].as_array().unwrap() {
            let rows = inside["rows"].as_array().unwrap().iter().map(|row| nano(&row["money"]));
            let rest = inside["rest"]["money"].as_str().map_or(0, |_| nano(&inside["rest"]["money"]));
            assert_eq!(rows.sum::<i128>() + rest, money, "{subject:?}: {inside}");
        }
        assert!(
            text.contains(" s x 2.30 USD per GPU-hour = ") && text.contains(", as in the bill\n"),
            "{text}"
        );
    }
    let by_node = parsed(
        fleet.get(&format!("/api/v1/explain/whole?from={from}&to={to}&node=demo-node&class=on_demand")),
    );
    assert!(nano(&by_node["total"]["money"]) > 0, "{by_node}");
    assert_eq!(fleet.get("/api/v1/explain/whole?team=x").0, 400);
    let refused = bill(of_server, &["--book", &euros]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("the book has prices in EUR, and the account in USD"), "{told}");
}

#[test]
fn a_reader_of_one_tenant_gets_nothing_of_others_on_any_path() {
    let place = tempfile::tempdir().unwrap();
    let hash = bcrypt::hash("x", 4).unwrap();
    let password = place.path().join("hash");
    std::fs::write(&password, hash).unwrap();
    let config = place.path().join("fleet.yaml");
    let with_tenants = |tenants: &str| {
        let file = password.display();
        let users = format!("users: {{root: {file}, one: {file}, none: {file}}}");
        format!("billing: {{time_zone: UTC}}\nweb: {{open_probes: true, {users}, tenants: {tenants}}}\n")
    };
    std::fs::write(&config, with_tenants("{root: \"*\", one: nobody}")).unwrap();
    let fleet = start(place.path(), &["--config", config.to_str().unwrap()]);
    let ask = |user: &str, path: &str| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:x"));
        fleet.get_with(path, &format!("Authorization: Basic {encoded}\r\n"))
    };
    wait_until("a first look", || fleet.get("/-/ready").0 == 200);
    let costs = |user: &str, group: &str| {
        parsed(ask(user, &format!("/api/v1/costs?period={}&group={group}", period())))
    };
    let names = |costs: &Value| -> BTreeSet<String> {
        let rows = costs["rows"].as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let tenants = names(&costs("root", "tenant"));
    // One that is not on every node.
    let nodes_of = |tenant: &str| names(&costs("root", &format!("node&tenant={tenant}")));
    let all_nodes = names(&costs("root", "node"));
    let own = tenants.iter().filter(|name| !name.starts_with("__")).min_by_key(|name| nodes_of(name).len());
    let own = own.unwrap().clone();
    std::fs::write(&config, with_tenants(&format!("{{root: \"*\", one: {own}}}"))).unwrap();
    wait_until("a reload", || names(&costs("one", "tenant")).contains(&own));
    let own_nodes = nodes_of(&own);
    let hidden = tenants.iter().filter(|name| **name != own).chain(all_nodes.difference(&own_nodes));
    let hidden: Vec<String> = hidden.map(|name| format!("\"{name}\"")).collect();
    let period = period();
    let (from, to) = period.split_once("..").unwrap();
    let bills = format!("from={from}&to={to}");
    for path in fleet_paths() {
        let query = match path {
            // They are the same for everybody, or of nobody's costs.
            "/-/healthy" | "/-/ready" => continue,
            "/metrics" | "/api/v1/demand" => {
                assert_eq!(["root", "one", "none"].map(|user| ask(user, path).0), [200, 403, 403], "{path}");
                continue;
            }
            "/api/v1/fit" => {
                assert_eq!(["root", "one", "none"].map(|user| ask(user, path).0), [400, 403, 403]);
                continue;
            }
            "/api/v1/costs" => format!("?period={period}"),
            "/api/v1/bill" | "/api/v1/explain" | "/api/v1/explain/whole" => format!("?{bills}"),
            // What is found of a tenant need not be anything.
            "/api/v1/advice" => {
                wait_until("advice", || ask("root", path).0 == 200);
                String::new()
            }
            // Nor need he have jobs.
            "/api/v1/jobs" => format!("?{bills}"),
            _ => panic!("say what a reader of one tenant gets of {path}"),
        };
        let path = format!("{path}{query}");
        assert_eq!(fleet.get(&path).0, 401, "{path}");
        let (status, body) = ask("one", &path);
        assert_eq!(status, 200, "{path}: {body}");
        // A whole names what it has several of, and a tenant need not have any findings.
        let is_unnamed = ["/api/v1/advice", "/whole?", "/jobs?"].iter().any(|part| path.contains(part));
        assert!(is_unnamed || body.contains(&format!("\"{own}\"")), "{path}");
        for name in &hidden {
            assert!(!body.contains(name.as_str()), "{path}: {name}: {body}");
        }
        let (_, nothing) = ask("none", &path);
        assert!(!nothing.contains(&format!("\"{own}\"")), "{path}: {nothing}");
    }
    // Nor by asking at which prices others would have been billed.
    let rates = all_nodes.iter().map(|node| {
        json!({"kind": "gpu_hour", "selector": {"node": format!("{node}*")}, "nano": 1, "currency": "USD", "class": "spot"})
    });
    let book = json!({"rates": rates.collect::<Vec<_>>()}).to_string();
    let path = format!("/api/v1/bill?{bills}");
    let [of_one, of_root] = ["one", "root"].map(|user| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:x"));
        let (status, body) = fleet.post_with(&path, &format!("Authorization: Basic {encoded}\r\n"), &book);
        assert_eq!(status, 200, "{body}");
        body
    });
    assert!(of_one.contains(&format!("\"{own}\"")), "{of_one}");
    for node in &all_nodes {
        let rate = format!("\"{node}*\"");
        assert_eq!(of_one.contains(&rate), own_nodes.contains(node), "{node}: {of_one}");
        assert!(of_root.contains(&rate), "{node}");
    }
    assert_eq!(fleet.post_with(&path, "", &book).0, 401);
}

#[test]
fn advice_is_made_after_the_first_look_with_the_nodes_that_are_expected() {
    let place = tempfile::tempdir().unwrap();
    let nodes = place.path().join("nodes.csv");
    let start = || start(place.path(), &["--expect", nodes.to_str().unwrap()]);
    let advice = |fleet: &Agent| -> Value {
        wait_until("advice", || fleet.get("/api/v1/advice").0 == 200);
        parsed(fleet.get("/api/v1/advice"))
    };
    std::fs::write(&nodes, "node,from,to\n").unwrap();
    let made = advice(&start());
    assert_eq!((&made["source"]["nodes"], &made["source"]["kind"]), (&3.into(), &"fleet".into()), "{made}");
    assert!(made["notes"][0].as_str().unwrap().contains("--expect FILE"), "{made}");
    let of_command = output(&["advise", "--exports", &exports(), "--json"]);
    assert_eq!(made, serde_json::from_slice::<Value>(&of_command.stdout).unwrap());
    std::fs::write(&nodes, "gone,2020-01-01T00:00:00Z,2099-01-01T00:00:00Z,8,NVIDIA H100\n").unwrap();
    let fleet = start();
    let made = advice(&fleet);
    assert!(made["notes"][0].as_str().unwrap().contains("a node is not expected"), "{made}");
    // The times of a finding are read from the files.
    let finding = &made["findings"][0];
    assert_eq!(finding["stretches"], Value::Null, "{finding}");
    let explained = parsed(fleet.get(&format!("/api/v1/advice?explain={}", finding["id"].as_str().unwrap())));
    let stretches = explained["findings"][0]["stretches"].as_array().unwrap();
    assert!(!stretches.is_empty(), "{explained}");
    std::fs::write(&nodes, "gone\n").unwrap();
    let mut command = program();
    command.args([
        "fleet",
        "--exports",
        &exports(),
        "--listen",
        "127.0.0.1:0",
        "--expect",
        nodes.to_str().unwrap(),
    ]);
    let refused = command.env("CACHE_DIRECTORY", place.path().join("other")).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("nodes.csv:1: "), "{text}");
}
