//! A configuration that changes under a running agent.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{Agent, Demo, set_first_clock};
use crate::scrape::Scrape;

/// What the demo grants and charges.
const DEMO: &str = include_str!("../../src/cli/demo/config.yaml");

/// A demo with a configuration file of its own.
struct Configured {
    directory: TempDir,
    agent: Agent,
}

impl Configured {
    fn start(text: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.yaml");
        std::fs::write(&path, text).unwrap();
        let agent = Self::launch(&directory, arguments);
        Self { directory, agent }
    }

    fn launch(directory: &TempDir, arguments: &[&str]) -> Agent {
        let path = directory.path().join("c.yaml");
        let mut arguments = arguments.to_vec();
        arguments.extend(["--config", path.to_str().unwrap()]);
        let state = directory.path().join("state");
        set_first_clock(&state);
        Agent::start(Demo::command(&state, &arguments))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("c.yaml")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }

    fn swap(&self, target: &Path) {
        let new = self.directory.path().join("new");
        std::os::unix::fs::symlink(target, &new).unwrap();
        std::fs::rename(new, self.path()).unwrap();
    }
}

fn interval(page: &Scrape) -> Option<&str> {
    page.value("gpumeter_sampling_interval_seconds", &["tier=\"fast\""])
}

fn success(page: &Scrape) -> Option<&str> {
    page.value("gpumeter_config_reload_success", &[])
}

/// The collector label of a GPU whose sampler delivers frames.
fn busy(page: &Scrape) -> i128 {
    page.nano_sum("gpu_busy_seconds_total", &["gpu=\"0\""])
}

#[test]
fn a_changed_file_takes_effect_within_seconds_and_an_invalid_one_does_not() {
    let demo = Configured::start("sampling: {interval: 1s, level: full}", &[]);
    let up = |page: &Scrape| page.series_of("gpu_up", &[]).filter(|(_, up)| *up == "1").count() == 8;
    let page =
        demo.agent.wait_for("a first page", |page| up(page) && page.has("gpu_process_memory_bytes", &[]));
    assert_eq!((interval(&page), success(&page)), (Some("1"), Some("1")));
    demo.write("sampling: {interval: 500ms, level: lean}");
    let page = demo.agent.wait_for("the new interval", |page| interval(page) == Some("0.5"));
    assert!(!page.has("gpu_process_memory_bytes", &[]), "the level has changed too");
    let log = demo.agent.wait_for_log("configuration reloaded");
    assert!(log.contains("configuration keys changed: sampling.interval, sampling.level"), "{log}");
    demo.agent.wait_for("frames of the new plan", |later| up(later) && busy(later) > busy(&page));
    demo.write("sampling:\n  interval: soon\n  levle: lean\n");
    let page = demo.agent.wait_for("the refused file", |page| success(page) == Some("0"));
    assert_eq!(interval(&page), Some("0.5"));
    let log = demo.agent.wait_for_log("not reloaded");
    assert!(log.contains("c.yaml:2:13: sampling.interval: \"soon\" is not a duration"), "{log}");
    assert!(log.contains("c.yaml:3:3: sampling.levle: unknown key; did you mean `level`?"), "{log}");
    assert!(log.contains("2 problems; the former one stays in force"), "{log}");
    demo.write("sampling: {interval: 2s}");
    demo.agent
        .wait_for("the next valid file", |page| success(page) == Some("1") && interval(page) == Some("2"));
}

#[test]
fn a_symlinked_file_is_followed_and_its_loss_is_reported() {
    let demo = Configured::start("sampling: {interval: 1s}", &[]);
    demo.agent.wait_for("a first page", |page| interval(page) == Some("1"));
    let [one, two] = ["..one", "..two"].map(|name| demo.directory.path().join(name));
    std::fs::write(&one, "sampling: {interval: 500ms}").unwrap();
    std::fs::write(&two, "sampling: {interval: 200ms}").unwrap();
    demo.swap(&one);
    demo.agent.wait_for("the first link", |page| interval(page) == Some("0.5"));
    demo.swap(&two);
    demo.agent.wait_for("the second link", |page| interval(page) == Some("0.2"));
    std::fs::remove_file(&two).unwrap();
    let page = demo.agent.wait_for("the loss", |page| success(page) == Some("0"));
    assert_eq!(interval(&page), Some("0.2"));
}

#[test]
fn keys_that_need_a_restart_are_named_and_the_others_take_effect() {
    let demo = Configured::start("sampling: {interval: 1s}", &[]);
    demo.agent.wait_for("a first page", |page| interval(page) == Some("1"));
    demo.write("node: {name: other}\nledger: {enabled: false}\nsampling: {interval: 500ms}\n");
    demo.agent.signal(Signal::HUP);
    let log = demo.agent.wait_for_log("configuration reloaded");
    assert!(log.contains("a restart is needed for node.name, ledger.enabled"), "{log}");
    let page = demo.agent.wait_for("the rest", |page| interval(page) == Some("0.5"));
    assert_eq!(success(&page), Some("1"));
    assert_eq!(demo.agent.get("/api/v1/bill").0, 200, "the ledger is still written");
}

#[test]
fn without_a_file_sighup_does_not_end_the_agent() {
    let demo = Demo::start(&[]);
    // Signals are handled before the first page is served.
    demo.agent.wait_for("a first page", |_| true);
    demo.agent.signal(Signal::HUP);
    demo.agent.wait_for_log("there is no configuration file to reload");
    assert_eq!(demo.agent.get("/-/healthy").0, 200);
}

fn settled(page: &Scrape) -> i128 {
    page.series_of("gpu_slot_seconds_total", &[])
        .map(|(_, value)| crate::scrape::nano(value))
        .min()
        .unwrap_or(0)
        / 1_000_000_000
}

/// That of a time such as 2026-11-01T00:15:00Z.
fn second_of_the_hour(time: &Value) -> i64 {
    let time = time.as_str().unwrap();
    time[14..16].parse::<i64>().unwrap() * 60 + time[17..19].parse::<i64>().unwrap()
}

fn priced(rate: u32) -> String {
    DEMO.replace("book: example", &format!("currency: CHF\n  rates: [{{gpu_hour: {rate}}}]"))
}

#[test]
fn a_new_price_applies_from_the_next_quarter_hour_on() {
    let demo = Configured::start(&priced(1), &["--speed", "60"]);
    let page = demo.agent.wait_for("account at the first price", |page| settled(page) >= 150);
    assert!(page.value("gpu_cost_per_hour", &["currency=\"CHF\""]).is_some(), "the demo has a price");
    let before = settled(&page);
    demo.write(&priced(3));
    demo.agent.wait_for_log("the new prices and tenant rules are recorded");
    let recorded: Value = serde_json::from_str(&demo.agent.get("/api/v1/health").1).unwrap();
    // A quarter hour, and as much for an account that a busy machine closes late.
    let after = settled(&demo.agent.wait_for("the account then", |_| true));
    demo.agent.wait_for("account at the second price", |page| settled(page) >= after + 1_800);
    let (status, body) = demo.agent.get("/api/v1/bill?from=2026-01-01T00:00:00Z");
    assert_eq!(status, 200, "{body}");
    let bill: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(bill["reconciliation"]["imbalance_money"], "0.000000000");
    let gpus = bill["gpus"].as_array().unwrap();
    let hours = gpus.iter().map(|gpu| gpu["slot_ns"].as_str().unwrap().parse::<u64>().unwrap()).sum::<u64>()
        as f64
        / 3.6e12;
    let money = |gpu: &Value| gpu["money"].as_str().unwrap().parse::<f64>().unwrap();
    let money: f64 = gpus.iter().map(money).sum();
    let first = before as f64 * 8.0 / 3600.0;
    assert!(money > hours + 1e-6, "{money} for {hours} GPU-hours: the second price never came");
    let second = ((money - hours) / 2.0 * 3600.0 / 8.0).round() as i64;
    let [end, next] = [&bill["to"], &recorded["at"]].map(second_of_the_hour);
    let [begin, next] = [end - second, (next + 899) / 900 * 900];
    // The next mark, or the one that passed between the record and the question for the time.
    assert!(
        [0, 900].contains(&(next - begin).rem_euclid(3600)),
        "the second price is in force since second {begin}, not {next}, of an hour"
    );
    assert!(
        money <= 3.0 * hours - 2.0 * first + 1e-6,
        "{money} for {hours}: the first {first} h were restated"
    );
}

#[test]
fn the_node_and_its_cluster_are_named_on_the_page_and_in_the_api() {
    let demo = Configured::start("node: {name: gpu-node-7, cluster: zurich-1}\n", &[]);
    let labels = ["node_name=\"gpu-node-7\"", "cluster_name=\"zurich-1\""];
    demo.agent.wait_for("the node's name", |page| page.value("gpumeter_node_info", &labels) == Some("1"));
    for path in ["/api/v1/snapshot", "/api/v1/health"] {
        let (status, body) = demo.agent.get(path);
        assert_eq!(status, 200, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["node"], serde_json::json!({"name": "gpu-node-7", "cluster": "zurich-1"}), "{path}");
    }
}

#[test]
fn a_demo_uses_web_listen_and_web_control_of_its_file_and_refuses_another_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let [file, state, socket, ledger] =
        ["c.yaml", "state", "own.sock", "ledger.db"].map(|name| directory.path().join(name));
    let demo = || {
        let mut command = crate::running::program();
        command.arg("demo").arg("--state-dir").arg(&state).arg("--config").arg(&file);
        command
    };
    std::fs::write(&file, format!("ledger: {{path: {}}}\n", ledger.display())).unwrap();
    let refused = demo().output().unwrap();
    let output = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{output}");
    assert!(output.contains("ledger.path") && output.contains("--state-dir"), "{output}");
    assert!(!ledger.exists() && !state.exists(), "nothing was written");
    let listen = crate::running::free_address();
    let web = format!("web: {{listen: \"{listen}\", control: {}}}\n", socket.display());
    std::fs::write(&file, web).unwrap();
    let agent = Agent::start(demo());
    assert_eq!(agent.address, listen.to_string());
    agent.wait_for("the first page", |page| page.has("gpumeter_build_info", &[]));
    assert!(socket.exists() && !state.join("control.sock").exists());
}

#[test]
fn a_group_holds_for_its_members_and_a_team_for_those_in_its_list() {
    let grants = "sampling: {level: full}\nattribution:\n  standing:\n    - {gpu: [0, \"4-7\"], group: lab, fraction: 1}\n    \
                  - {id: pair, gpu: 1, user: [bob, carol], fraction: 0.5}\n";
    let demo = Configured::start(grants, &["--speed", "30"]);
    let log = demo.agent.wait_for_log("cannot be looked up");
    assert!(log.contains("group lab: cannot be looked up (the host's group file cannot be read"), "{log}");
    // On GPU 0 alice runs a unit.
    let group = demo.directory.path().join("state/host/etc/group");
    std::fs::write(&group, "lab:x:4242:alice\n").unwrap();
    let inside = |page: &Scrape, tenant: &str, gpu: &str| {
        let (tenant, gpu) = (format!("tenant=\"{tenant}\""), format!("gpu=\"{gpu}\""));
        let of = |family: &str| page.nano_sum(family, &[&tenant, &gpu]);
        of("gpu_tenant_held_seconds_total")
            - of("gpu_tenant_lent_seconds_total")
            - of("gpu_tenant_idle_seconds_total")
    };
    demo.agent.wait_for("use inside both holdings", |page| {
        page.has("gpu_workload_info", &["kind=\"group\"", "workload=\"group:lab\""])
            && inside(page, "lab", "0") > 0
            && page.has("gpu_workload_info", &["kind=\"team\"", "workload=\"team:pair\""])
            && inside(page, "pair", "1") > 0
    });
    let (status, bill) = demo.agent.get("/api/v1/bill");
    assert_eq!(status, 200, "{bill}");
    let bill: Value = serde_json::from_str(&bill).unwrap();
    let lines = bill["lines"].as_array().unwrap();
    let held = |holder: &str| lines.iter().filter(|line| line["holder"] == *holder).count();
    assert_eq!((held("group:lab"), held("team:pair")), (5, 1), "{bill}");
}

#[test]
fn the_page_reports_that_configured_prices_are_not_in_force_yet() {
    let missing = |page: &Scrape| page.value("gpumeter_price_missing", &[]).map(str::to_owned);
    let later = "prices: {currency: CHF, rates: [{gpu_hour: 1, from: \"2200-01-01T00:00:00Z\"}]}";
    let demo = Configured::start(later, &["--speed", "30"]);
    let page = demo.agent.wait_for("no price", |page| missing(page).as_deref() == Some("1"));
    assert!(!page.has("gpu_cost_per_hour", &[]));
    demo.write("prices: {currency: CHF, rates: [{gpu_hour: 1}]}");
    demo.agent.wait_for("a price", |page| missing(page).as_deref() == Some("0"));
    demo.write("sampling: {interval: 1s}");
    demo.agent.wait_for("a configuration without prices", |page| missing(page).is_none());
}

#[test]
fn the_agent_answers_with_a_bill_for_each_currency() {
    let prices = |currency: &str| format!("prices: {{currency: {currency}, rates: [{{gpu_hour: 1}}]}}");
    let demo = Configured::start(&prices("CHF"), &["--speed", "60"]);
    let cost = |page: &Scrape, currency: &str| {
        page.has("gpu_tenant_held_cost_total", &[&format!("currency=\"{currency}\"")])
    };
    demo.agent.wait_for("costs", |page| cost(page, "CHF"));
    demo.write(&prices("USD"));
    let answer = || demo.agent.get("/api/v1/bill").1;
    demo.agent.wait_for("a minute in the other currency", |page| {
        cost(page, "USD") && answer().contains("\"currency\":\"USD\"")
    });
    let body = answer();
    let bills: Value = serde_json::from_str(&body).unwrap();
    let currencies: Vec<&Value> = bills.as_array().unwrap().iter().map(|bill| &bill["currency"]).collect();
    assert_eq!(currencies, ["CHF", "USD"]);
    assert_eq!(bills[0]["to"], bills[1]["from"]);
}

#[test]
fn a_grant_that_matches_no_gpu_is_logged_and_counted_until_corrected() {
    let grant =
        |gpu: u32| format!("attribution: {{standing: [{{id: lab, gpu: {gpu}, user: alice, fraction: 1}}]}}");
    let unmatched = |page: &Scrape| page.value("gpumeter_standing_unmatched", &[]).map(str::to_owned);
    let demo = Configured::start(&grant(8), &[]);
    demo.agent.wait_for("a grant that matches nothing", |page| unmatched(page).as_deref() == Some("1"));
    let log = demo.agent.wait_for_log("a standing grant names GPUs that the driver does not list");
    let lines =
        log.lines().filter(|line| line.contains("a standing grant names GPUs that the driver does not list"));
    assert!(lines.clone().count() == 1 && lines.clone().all(|line| line.contains("lab")), "{log}");
    demo.write(&grant(7));
    demo.agent.wait_for("its correction", |page| {
        unmatched(page).as_deref() == Some("0")
            && page.has("gpu_holding_ratio", &["gpu=\"7\"", "tenant=\"alice\""])
    });
}

#[test]
fn the_log_does_not_confuse_two_grants_with_one_id() {
    let unmatched = |page: &Scrape| page.value("gpumeter_standing_unmatched", &[]).map(str::to_owned);
    let mut demo = Configured::start(
        "attribution: {standing: [{gpu: 8, user: alice}, {gpu: [7, 9], user: bob}, {id: 2, gpu: 10, user: carol}]}",
        &[],
    );
    demo.agent.wait_for("three such grants", |page| unmatched(page).as_deref() == Some("3"));
    demo.write("attribution: {standing: [{gpu: 7, user: bob}]}");
    demo.agent.wait_for("no such grant", |page| unmatched(page).as_deref() == Some("0"));
    demo.agent.terminate();
    let log = demo.agent.log_to_end();
    assert_eq!(log.matches("names GPUs that the driver does not list").count(), 3, "{log}");
    assert!(!log.contains("all GPUs of a standing grant are present now"), "{log}");
}

#[test]
fn the_start_log_has_version_configuration_and_ledger() {
    let text = "sampling: {level: lean}\nattribution: {standing: [{gpu: 0, user: alice, fraction: 1}]}\n\
                prices: {currency: CHF, rates: [{gpu_hour: 2}]}\n";
    let mut demo = Configured::start(text, &[]);
    let log = demo.agent.first_lines.clone() + &demo.agent.wait_for_log("first snapshot");
    for words in [
        format!(
            "gpumeter starts version=\"{}\" config=\"{}\" level=\"lean\" interval_ms=1000",
            env!("CARGO_PKG_VERSION"),
            demo.path().display()
        ),
        "grants and prices standing=1 presence=\"auto\" rates=1 currency=\"CHF\"".to_owned(),
        "GPUs are held by grants alone: who uses a GPU without a grant holds nothing \
         (attribution.presence: auto, and attribution.standing has grants); to let them hold it, "
            .to_owned(),
        format!(
            "ledger opened path={} last_commit=\"none: no GPU has an account in it yet\" gpus=0",
            demo.directory.path().join("state/ledger.db").display()
        ),
    ] {
        assert!(log.contains(&words), "{words:?} in {log}");
    }
    demo.agent.wait_for("a commit", |page| page.has("gpumeter_ledger_last_commit_timestamp_seconds", &[]));
    demo.agent.terminate();
    demo.agent = Configured::launch(&demo.directory, &[]);
    let log = demo.agent.wait_for_log("first snapshot");
    assert!(log.contains(" last_commit=\"20") && log.contains(" gpus=8 "), "{log}");
}

#[test]
fn a_budget_is_on_the_page_and_decides_who_is_listed_as_over_it() {
    let text = |budgets: &str| {
        format!(
            "prices: {{currency: EUR, rates: [{{gpu_hour: 2}}]}}\nbilling: {{time_zone: Asia/Kathmandu}}\n\
             tenants: {{budgets: {budgets}}}\nattribution: {{standing: [{{gpu: 0, unit: train-llm.service}}]}}\n"
        )
    };
    let tenant = "tenant=\"train-llm.service\"";
    let cost = |page: &Scrape| page.nano_sum("gpu_tenant_cost_month_to_date", &[tenant, "currency=\"EUR\""]);
    let budget = |page: &Scrape| page.value("gpu_tenant_budget", &[tenant]).map(str::to_owned);
    let listed = |agent: &Agent| {
        let url = format!("http://{}", agent.address);
        let output = crate::running::output(&["bill", "--url", &url, "--over-budget"]);
        let [page, log] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), page, log)
    };
    let mut demo = Configured::start(&text("{train-llm.service: 0.001, carol: 7.50}"), &["--speed", "30"]);
    // A minute costs 0.033 EUR.
    let page = demo.agent.wait_for("costs of a minute", |page| cost(page) > 33_000_000);
    assert_eq!(budget(&page).as_deref(), Some("0.001"));
    assert_eq!(page.value("gpu_tenant_budget", &["tenant=\"carol\"", "currency=\"EUR\""]), Some("7.5"));
    assert_eq!(page.nano_sum("gpu_tenant_cost_month_to_date", &["tenant=\"carol\""]), 0, "she holds nothing");
    let [begin, end] = ["start", "end"].map(|edge| {
        page.nano_sum(&format!("gpumeter_billing_period_{edge}_timestamp_seconds"), &[]) / 1_000_000_000
    });
    assert!((28..=31).contains(&((end - begin) / 86_400)), "{begin} to {end}");
    // Midnight in Kathmandu is at 18:15.
    assert_eq!((begin % 86_400, end % 86_400), (65_700, 65_700));
    let (status, text_of, log) = listed(&demo.agent);
    assert_eq!(status, Some(1), "{text_of}{log}");
    assert!(text_of.contains("\ntrain-llm.service  0.") && !text_of.contains("carol"), "{text_of}");
    assert!(log.contains("a tenant is over its budget"), "{log}");
    // The costs of the month go on after a restart.
    let before = cost(&page);
    demo.agent.kill();
    demo.agent = Configured::launch(&demo.directory, &["--speed", "30"]);
    let known = |page: &Scrape| page.has("gpu_tenant_cost_month_to_date", &[tenant]);
    let page = demo.agent.wait_for("the costs after a restart", known);
    assert!(cost(&page) >= before, "{} after {before}", cost(&page));
    demo.write(&text("{train-llm.service: 5000}"));
    demo.agent.wait_for("the new budget", |page| budget(page).as_deref() == Some("5000"));
    let (status, text_of, log) = listed(&demo.agent);
    assert_eq!(status, Some(0), "{text_of}{log}");
    assert!(text_of.ends_with("\nno tenant of this node is over its monthly budget\n"), "{text_of}");
    demo.write(&text("{}"));
    demo.agent.wait_for("no budget", |page| budget(page).is_none());
}
