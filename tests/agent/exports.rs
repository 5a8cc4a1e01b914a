//! The export thread of the real binary: what is closed is in the directory while it runs, and all of it after it has ended.

use std::path::Path;

use crate::running::{Demo, output};

/// The amounts by tenant of a bill, and its total.
fn bill(arguments: &[&str]) -> Vec<String> {
    let made = output(&[&["bill", "--csv", "--by", "tenant,gpu", "--time-zone", "UTC"], arguments].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = String::from_utf8(made.stdout).unwrap();
    // Of node, cluster, rate and id of a line, all of which differ, only the numbers between them are compared.
    let numbers = |line: &str| line.split(',').skip(5).collect::<Vec<_>>().join(",");
    let lines = page.lines().map(|line| numbers(line.rsplit_once(',').unwrap().0));
    let mut lines: Vec<String> = lines.map(|line| line.replace(",1,", ",").replace(",2,", ",")).collect();
    lines.sort();
    lines
}

/// When the account of a bill ends.
fn end(source: &[&str]) -> String {
    let made = output(&[&["bill", "--json"], source].concat());
    let bill: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    bill["closed_until"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_closed_is_exported_while_the_agent_runs_and_all_of_it_when_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let (exports, config) = (directory.path().join("exports"), directory.path().join("config.yaml"));
    let text = format!(
        "ledger: {{export: {{directory: {}, interval: 1s, on_stop: 1m}}}}\nattribution: {{presence: true}}\n",
        exports.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut demo = Demo::start(&["--speed", "60", "--config", config.to_str().unwrap()]);
    let log = demo.agent.wait_for_log("exports cannot be written");
    assert!(log.contains("No such file or directory"), "{log}");
    let age = |page: &crate::scrape::Scrape| -> f64 {
        page.value("gpumeter_ledger_export_age_seconds", &[]).unwrap().parse().unwrap()
    };
    demo.agent.wait_for("exports that grow old", |page| age(page) > 60.0);
    std::fs::create_dir(&exports).unwrap();
    demo.agent.wait_for_log("exports are written again");
    demo.agent.wait_for("exports that are young", |page| age(page) < 3_600.0);
    let committed = end(&["--url", &format!("http://{}", demo.agent.address)]);
    assert!(demo.agent.terminate().success());
    let of_exports = ["--exports", exports.to_str().unwrap()];
    let to = end(&of_exports);
    assert!(to >= committed, "exports end at {to}, and {committed} was committed before the stop");
    let of_exports = bill(&of_exports);
    let ledger = demo.directory.path().join("ledger.db");
    assert!(of_exports.len() > 10, "{of_exports:?}");
    // On a busy machine the ledger's last commit comes after the exports.
    assert_eq!(of_exports, bill(&["--ledger", ledger.to_str().unwrap(), "--to", &to]));
    assert!(!has_part(&exports), "no file is half written");
}

fn has_part(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().map(Result::unwrap).any(|entry| {
        let is_part = entry.file_name().to_string_lossy().ends_with(".part");
        is_part || (entry.path().is_dir() && has_part(&entry.path()))
    })
}
