//! `gpumeter explain` beside a running agent, and on the ledger that it left.

use serde_json::Value;

use crate::running::{Demo, output, seconds};

fn text(arguments: &[&str]) -> String {
    let ended = output(arguments);
    assert!(ended.status.success(), "{arguments:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap()
}

fn integer(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value}"))
}

/// The sum of a field of the lines of an explanation.
fn sum(explanation: &Value, field: &str) -> u64 {
    explanation["lines"].as_array().unwrap().iter().map(|line| integer(&line[field])).sum()
}

#[test]
fn a_line_of_a_csv_bill_is_explained_by_its_id_from_the_agent_and_from_its_ledger() {
    let mut demo = Demo::start(&["--speed", "30"]);
    demo.agent.wait_for("two minutes of a user", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "alice") >= 150
    });
    let url = format!("http://{}", demo.agent.address);
    let bill: Value = serde_json::from_str(&text(&["bill", "--json", "--url", &url])).unwrap();
    let to = bill["to"].as_str().unwrap();
    let csv = text(&["bill", "--csv", "--by", "tenant,gpu", "--to", to, "--url", &url]);
    let heads: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let row: Vec<&str> = csv.lines().find(|line| line.contains(",alice,")).unwrap().split(',').collect();
    let cell = |name: &str| row[heads.iter().position(|head| *head == name).unwrap()];
    let id = cell("line");
    let page = text(&["explain", id, "--to", to, "--url", &url]);
    assert!(id.starts_with("tenant+gpu=alice+GPU-"), "{id}");
    assert!(page.starts_with(&format!("Line {id}\n")), "{page}");
    for words in [
        "SIMULATED",
        "EXAMPLE PRICES",
        "tenant     alice from ",
        "rate       ",
        "in force always",
        ", granted by standing\n",
    ] {
        assert!(page.contains(words), "{words:?} in {page}");
    }
    assert!(!page.contains("bob") && !page.contains("carol"), "{page}");
    let explained = text(&["explain", id, "--to", to, "--json", "--url", &url]);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let billed = bill["lines"].as_array().unwrap().iter();
    let gpu: u64 = cell("gpu").parse().unwrap();
    let billed = billed.filter(|line| line["tenant"] == "alice" && line["gpu"] == gpu);
    let billed: u64 = billed.map(|line| integer(&line["held_ns"])).sum();
    assert_eq!(sum(&explained, "held_ns"), billed, "{explained}");
    let by_day =
        text(&["bill", "--csv", "--by", "day,tenant", "--to", to, "--time-zone", "UTC", "--url", &url]);
    let of_day = by_day.lines().rfind(|line| line.contains(",alice,")).unwrap().rsplit(',').next().unwrap();
    let page_of_day = text(&["explain", of_day, "--to", to, "--time-zone", "UTC", "--url", &url]);
    assert!(of_day.starts_with("day+tenant=20") && of_day.contains("+alice+"), "{of_day}");
    assert!(page_of_day.starts_with(&format!("Line {of_day}\n")), "{page_of_day}");
    assert!(page_of_day.contains("tenant     alice from "), "{page_of_day}");
    let stored = demo.directory.path().join("ledger.db");
    let stored = stored.to_str().unwrap();
    let running = output(&["explain", id, "--to", to, "--ledger", stored]);
    assert_eq!(running.status.code(), Some(2), "{running:?}");
    demo.agent.kill();
    let from_ledger =
        ["explain", id, "--from", bill["from"].as_str().unwrap(), "--to", to, "--ledger", stored];
    // A fault that goes on has another end later, and on a busy machine a simulated GPU may be silent.
    let without_faults = |page: &str| {
        page.lines().filter(|line| !line.contains(": fault ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(without_faults(&text(&from_ledger)), without_faults(&page));
    let json = text(&[&from_ledger[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    for field in ["spans", "rate", "charged_ns", "tenancies"] {
        let of = |from: &Value| {
            let lines = from["lines"].as_array().unwrap().iter();
            lines.map(|line| line[field].clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(&json), of(&explained), "{field}");
    }
    let held = sum(&json, "held_ns");
    let spans = json["lines"].as_array().unwrap().iter().flat_map(|line| line["spans"].as_array().unwrap());
    let parts = spans.map(|span| {
        let parts = span["held"].as_object().unwrap();
        parts.values().map(integer).sum::<u64>()
    });
    assert_eq!(held, parts.sum::<u64>());
    assert!(json["lines"][0]["labels"].get("user_name").is_none(), "{json}");
    let with_names = text(&[&from_ledger[..], &["--json", "--names"]].concat());
    assert!(with_names.contains("\"user_name\": \"alice\""), "{with_names}");
    let other = "tenant+gpu=nobody+0+1";
    let other = output(&["explain", other, "--from", "2020-01-01", "--to", to, "--ledger", stored]);
    let problem = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(1));
    let told = "Line tenant+gpu=nobody+0+1 has no line in the bill from 2020-01-01";
    assert!(problem.contains(told), "{problem}");
    let old = output(&["explain", "880589090336ad6c", "--ledger", stored]);
    assert_eq!(old.status.code(), Some(2), "{old:?}");
    let unit = output(&["explain", "unit:nobody.service", "--ledger", stored]);
    assert_eq!(unit.status.code(), Some(1), "{unit:?}");
}
