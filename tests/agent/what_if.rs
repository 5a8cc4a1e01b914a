//! `gpumeter bill --book` beside a running agent, and on the ledger that it left.

use serde_json::Value;

use crate::running::{Demo, output, seconds};

#[test]
fn an_agent_bills_with_the_prices_of_a_book_as_its_ledger_does() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let config =
        "attribution: {standing: [{gpu: 0, user: alice}]}\nprices: {currency: USD, rates: [{gpu_hour: 2}]}\n";
    let mut demo = Demo::start(&["--speed", "30", "--config", &file("config.yaml", config)]);
    demo.agent.wait_for("two minutes of a user", |page| {
        seconds(page, "gpu_tenant_held_seconds_total", "alice") >= 150
    });
    let url = format!("http://{}", demo.agent.address);
    let rates = "rates: [{gpu_hour: 1.937}], energy: {kwh: 0.31}";
    let book = file(
        "book.yaml",
        &format!("prices: {{currency: USD, {rates}}}\nterms: [{{tenant: alice, discount: 33.3333333}}]\n"),
    );
    let euros = file("euros.yaml", &format!("prices: {{currency: EUR, {rates}}}\n"));
    let many: Vec<String> = (0..1_000)
        .map(|node| format!("{{node: 'a-rather-long-name-of-a-node-{node}', gpu_hour: 1}}"))
        .collect();
    let many = file("many.yaml", &format!("prices: {{currency: USD, rates: [{}]}}\n", many.join(", ")));
    let first = output(&["bill", "--json", "--url", &url]);
    let first: Value = serde_json::from_slice(&first.stdout).unwrap();
    let [from, to] = ["from", "to"].map(|name| first[name].as_str().unwrap());
    let bill = |source: [&str; 2], more: &[&str]| {
        let arguments = ["bill", source[0], source[1], "--time-zone", "UTC", "--from", from, "--to", to];
        output(&[&arguments[..], more].concat())
    };
    let asked = [
        &["--book", &*book, "--json"][..],
        &["--book", &book, "--compare-book"],
        &["--book", &book, "--csv"],
    ];
    let of_agent = asked.map(|more| bill(["--url", &url], more));
    let explain = |source: [&str; 2], subject: &[&str]| {
        let arguments = ["explain", source[0], source[1], "--time-zone", "UTC", "--from", from, "--to", to];
        let ended = output(&[&arguments[..], subject].concat());
        assert!(ended.status.success(), "{subject:?}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let subjects = [&["--tenant", "alice"][..], &["__unallocated__"]];
    let explained = subjects.map(|subject| explain(["--url", &url], subject));
    for (refused, words) in [
        (bill(["--url", &url], &["--book", &euros]), "the book has prices in EUR, and the account in USD"),
        (bill(["--url", &url], &["--book", &many]), "bytes as JSON, and a server takes 65536"),
    ] {
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && told.contains(words), "{told}");
    }
    // The account goes on between the two bills.
    let open = output(&["bill", "--book", &book, "--compare-book", "--url", &url]);
    assert!(open.status.success(), "{open:?}");
    demo.agent.kill();
    let stored = demo.directory.path().join("ledger.db");
    for (one, more) in of_agent.iter().zip(asked) {
        let other = bill(["--ledger", stored.to_str().unwrap()], more);
        assert!(one.status.success() && other.status.success(), "{one:?}\n{other:?}");
        let [mut one, mut other] =
            [one, &other].map(|ended| String::from_utf8(ended.stdout.clone()).unwrap());
        if more.contains(&"--json") {
            // The account went on until the agent was killed.
            for text in [&mut one, &mut other] {
                let mut bill: Value = serde_json::from_str(text).unwrap();
                bill["closed_until"] = Value::Null;
                for gpu in bill["gpus"].as_array_mut().unwrap() {
                    gpu["settled_until"] = Value::Null;
                }
                *text = bill.to_string();
            }
            assert!(one.contains("\"energy_money\""), "{one}");
        }
        assert_eq!(one, other, "{more:?}");
    }
    for (one, subject) in explained.iter().zip(subjects) {
        assert_eq!(*one, explain(["--ledger", stored.to_str().unwrap()], subject), "{subject:?}");
    }
    for words in ["Tenant alice\n", "of the bill\n", "2.00 USD per GPU-hour", " s x 2.00 USD per GPU-hour = "]
    {
        assert!(explained[0].contains(words), "{words}: {}", explained[0]);
    }
    assert!(explained[1].contains("meaning    time that nobody held"), "{}", explained[1]);
    let compared = String::from_utf8_lossy(&of_agent[1].stdout).into_owned();
    for words in ["USD old", "USD new", "change", "alice", "__terms__", "total"] {
        assert!(compared.contains(words), "{words}: {compared}");
    }
}
