//! A demo with a past: the agent goes on where the history ends, and a history is written before all else or not at all.

use serde_json::Value;

use crate::running::Demo;

const PAST: &[&str] = &["--scenario", "cluster", "--history", "1d"];

/// The standard error of a demo that does not start.
fn refusal(demo: &Demo, arguments: &[&str]) -> String {
    let output = Demo::command(demo.directory.path(), arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_demo_goes_on_where_its_history_ends_and_is_not_given_another_one() {
    let mut demo = Demo::start(PAST);
    let bill = |demo: &Demo| -> Value {
        let (status, body) = demo.agent.get("/api/v1/bill?from=2000-01-01");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    demo.agent.wait_for("the account of the agent", |page| {
        page.series_of("gpu_slot_seconds_total", &[]).next().is_some()
    });
    let ended = demo.agent.terminate();
    assert!(ended.success());
    let log = demo.agent.log_to_end();
    // The moment between history and agent is one that nobody watched, and not one in which the node was off.
    let gap = log.split("GPU time in which no agent ran").nth(1).unwrap_or_default();
    let gap = gap.lines().next().unwrap_or_default();
    assert!(gap.contains("unavailable_gpu_seconds=0.0"), "{log}");
    assert!(demo.directory.path().join("exports").read_dir().unwrap().next().is_some());
    let again = refusal(&demo, PAST);
    assert!(again.contains("has an account already") && again.contains("--fresh"), "{again}");
    demo.kill_and_restart(&[PAST, &["--fresh", "--seed", "9"]].concat());
    assert_eq!(bill(&demo)["reconciliation"]["imbalance_ns"], "0");
    demo.agent.kill();
    // A history that was interrupted is not taken for a whole one.
    std::fs::write(demo.directory.path().join("history.part"), "").unwrap();
    let part = refusal(&demo, &["--scenario", "cluster"]);
    assert!(part.contains("was not finished"), "{part}");
}

#[test]
fn options_of_a_past_that_make_no_sense_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (&["--history", "0d"][..], "from 1d to 400d"),
        (&["--history", "60"], "from 1d to 400d"),
        (&["--history", "1d", "--nodes", "0"], "from 1 to 1000"),
        (&["--nodes", "2"], "--history"),
        (&["--history", "1d", "--scenario", "node"], "the scenario has no history"),
    ] {
        let output = Demo::command(directory.path(), arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is changed");
}
