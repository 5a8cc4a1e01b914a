//! `gpumeter top --once` of a running agent, and by itself where none runs.

use crate::running::{Demo, output, wait_until};

fn printed(arguments: &[&str]) -> String {
    let output = output(&[&["top", "--once"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn top_prints_a_running_agent_and_beside_it_looks_itself_without_disturbing_it() {
    let mut demo = Demo::start(&["--speed", "10"]);
    let url = format!("http://{}", demo.agent.address);
    // A new user reads it last.
    demo.agent.wait_for_log(&format!("open {url}, then gpumeter top --url {url}"));
    assert_eq!(demo.agent.get("/-/ready").0, 200);
    // The account is settled after some windows, and tenants then have a bill.
    wait_until("a page with processes and money", || {
        let page = printed(&["--url", &url]);
        ["demo-node", "SIMULATED", "GPUs\n", "alice", "held: 50 % by bob", "jupyter", "account ok"]
            .iter()
            .all(|text| page.contains(text))
            && page.lines().any(|line| {
                line.starts_with("alice") && line.split_whitespace().nth(5).is_some_and(|today| today != "–")
            })
    });
    // Its own look at the same driver needs neither lock nor ledger.
    let library = demo.driver("libnvidia-ml.so.1");
    let mut page = String::new();
    // On a busy machine not every GPU is read by the time at which it prints.
    wait_until("a look at every GPU", || {
        page = printed(&["--nvml-library", library.to_str().unwrap()]);
        page.contains("  7 ok")
    });
    for text in ["NO ACCOUNT", "GPUs\nGPU", "unknown owner"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("!  no account"), "{page}");
    assert_eq!(demo.agent.get("/-/ready").1, "ready\n");
    assert!(demo.agent.terminate().success());
}

#[test]
fn top_without_agent_or_terminal_says_what_to_do() {
    let refused = |arguments: &[&str]| {
        let output = output(&[&["top"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(
        refused(&[]).contains("standard input or output is no terminal; gpumeter top --once prints text")
    );
    assert!(refused(&["--once", "--url", "http://127.0.0.1:1"]).contains("is the agent running?"));
    let missing = refused(&["--once", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    assert!(missing.contains("no agent runs here, and no GPU can be read; see gpumeter doctor"), "{missing}");
}
