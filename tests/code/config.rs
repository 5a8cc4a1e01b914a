//! The configuration: what is accepted, and the error of each mistake.

use std::fmt::Write as _;

use gpumeter::accounting::billing::{Basis, PriceBook, Rate, RateKind, RateSelector, Terms};
use gpumeter::config::{Config, Endpoint, Problems, default_yaml, key_descriptions};
use gpumeter::model::catalogue::Level;
use gpumeter::model::{Fraction, GpuSelector, Nanoseconds, Selector, StandingGrant, Tariff, Utc};

/// A rate of all GPUs without a begin.
fn rate(nano: i64) -> Rate {
    Rate {
        kind: RateKind::GpuHour,
        selector: RateSelector::default(),
        from: None,
        nano,
        tariff: Tariff { currency: "EUR".into(), class: "on_demand".into() },
        derivation: None,
    }
}
use proptest::prelude::*;

/// All errors of a text, as they are printed.
fn problems(text: &str) -> String {
    Config::parse(text, "c.yaml").err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn a_standing_grant_to_digits_is_to_a_uid() {
    let read = |user: &str| {
        let text = format!("attribution: {{standing: [{{gpu: all, user: {user}}}]}}");
        Config::parse(&text, "test").map(|config| config.attribution.standing[0].selector.clone())
    };
    assert_eq!(read("1000").unwrap(), Selector::Uid { uid: 1000, name: "1000".into() });
    assert_eq!(read("u1000").unwrap(), Selector::User("u1000".into()));
    let problem = read("99999999999").unwrap_err().to_string();
    assert!(problem.contains("is not a uid; give a number below 2^32"), "{problem}");
}

#[test]
fn a_grant_is_for_a_team_or_group_on_several_gpus() {
    let text = r#"attribution:
  standing:
    - {id: lab, gpu: "4-5", user: [ada, 1001]}
    - {gpu: [0, GPU-0123abcd-0000-1111-2222-333344445555], group: research, fraction: 0.5}"#;
    let standing = Config::parse(text, "test").unwrap().attribution.standing;
    let team = Selector::Team { name: "lab".into(), users: ["ada".to_owned()].into(), uids: [1001].into() };
    assert_eq!(standing[0].selector, team);
    assert_eq!(standing[0].gpus, [GpuSelector::Index(4), GpuSelector::Index(5)]);
    assert_eq!(
        standing[1].selector,
        Selector::Group { name: "research".into(), members: Default::default() }
    );
    let uuid = "GPU-0123abcd-0000-1111-2222-333344445555".to_owned();
    assert_eq!(standing[1].gpus, [GpuSelector::Index(0), GpuSelector::Uuid(uuid)]);
    assert_eq!(standing[1].fraction, Fraction { numerator: 1, denominator: 2 });
}

#[test]
fn the_example_of_the_document_on_holders_is_accepted() {
    let document = include_str!("../../docs/holders.md");
    let example = document.split("```").nth(1).unwrap().strip_prefix("yaml\n").unwrap();
    assert_eq!(problems(example), "");
    assert_eq!(Config::parse(example, "test").unwrap().attribution.standing.len(), 4);
}

#[test]
fn the_printed_defaults_are_those_without_a_file() {
    assert_eq!(Config::parse(&default_yaml(), "c.yaml"), Ok(Config::default()));
    assert_eq!(Config::parse("", "c.yaml"), Ok(Config::default()));
    let config = Config::default();
    assert_eq!(config.sampling.interval, Nanoseconds::SECOND);
    assert_eq!(config.sampling.level, Level::Standard);
    assert_eq!(config.ledger.path.to_str(), Some("/var/lib/gpumeter/ledger.db"));
    assert_eq!(config.web.listen.iter().map(ToString::to_string).collect::<Vec<_>>(), ["[::]:9855"]);
    assert_eq!((config.ledger.enabled, config.attribution.presence, config.web.created), (true, None, false));
    assert_eq!((config.limits.processes, config.limits.series), (200, 20_000));
    assert_eq!(config.limits.birth_delay, Nanoseconds::from_seconds(60));
    assert_eq!(config.prices, PriceBook::default());
}

/// Uncomments every example of the printed file: together they must be a valid file, except for examples that
/// exclude each other.
#[test]
fn every_example_of_the_printed_defaults_is_accepted() {
    let mut text = String::new();
    for line in default_yaml().lines() {
        let code = line.replacen("# ", "", 1);
        let hidden = line.trim_start().starts_with("# ");
        let is_other_price = code.contains("_hour:") && !code.contains("gpu_hour:")
            || [
                "upfront:",
                "term_years:",
                "node_price:",
                "years:",
                "residual_value:",
                "yearly_cost:",
                "gpus:",
                "gpu_share:",
            ]
            .iter()
            .chain(&["mig_profile:"])
            .any(|key| code.trim_start().starts_with(key));
        let rival = ["book:", "group:", "namespace:", "unit:", "outside_use:"]
            .iter()
            .any(|key| code.trim_start().starts_with(key));
        let line = if rival || is_other_price {
            ""
        } else if hidden {
            &code
        } else {
            line
        };
        let _ = writeln!(text, "{line}");
    }
    assert_eq!(problems(&text), "", "{text}");
}

#[test]
fn every_key_has_a_help_sentence_of_one_line() {
    for row in key_descriptions() {
        assert!(row.help.ends_with('.') && row.help.len() <= 90, "{}", row.path);
        assert!(row.is_list == row.example.is_empty(), "{} has no example", row.path);
    }
}

#[test]
fn every_key_of_a_full_file_is_read() -> Result<(), Problems> {
    let text = r#"
node: {name: gpu-7, cluster: zurich}
sampling: {interval: 250ms, medium: 2s, slow: 1h, level: full}
nvml: {library: /opt/libnvidia-ml.so.1}
attribution:
  presence: true
  standing:
    - {id: condo, gpu: all, fraction: 1/2, user: alice}
    - {gpu: 3, fraction: 0.25, unit: serve.service}
    - {gpu: GPU-0123ABCD-0000-1111-2222-333344445555, user: bob, fraction: 0001/0002}
prices:
  currency: EUR
  rates:
    - {from: 2026-01-01T00:15:00Z, gpu_hour: 1.10, class: spot, model: "*H100*"}
    - {gpu_hour: 2}
otlp: {endpoint: "http://[::1]:4318/", interval: 1m30s}
limits: {birth_delay: 0s, processes: 7}
web: {listen: [127.0.0.1:9855, "[::1]:9855"], created: true}
"#;
    let config = Config::parse(text, "c.yaml")?;
    assert_eq!(config.node.name.as_deref(), Some("gpu-7"));
    assert_eq!(config.sampling.interval, Nanoseconds(250_000_000));
    assert_eq!(config.sampling.level, Level::Full);
    assert_eq!(config.nvml.library.as_deref(), Some(std::path::Path::new("/opt/libnvidia-ml.so.1")));
    let half = Fraction { numerator: 1, denominator: 2 };
    let standing = |id: &str, gpu, fraction, selector| StandingGrant {
        id: id.to_owned(),
        gpus: vec![gpu],
        fraction,
        selector,
        version: 0,
    };
    let quarter = Fraction { numerator: 1, denominator: 4 };
    let uuid = "GPU-0123abcd-0000-1111-2222-333344445555".to_owned();
    assert_eq!(
        config.attribution.standing,
        [
            standing("condo", GpuSelector::All, half, Selector::User("alice".into())),
            standing("2", GpuSelector::Index(3), quarter, Selector::Unit("serve.service".into())),
            standing("3", GpuSelector::Uuid(uuid), half, Selector::User("bob".into())),
        ]
    );
    let rates = vec![
        Rate {
            selector: RateSelector { model: Some("*H100*".into()), ..RateSelector::default() },
            from: Some(Utc(1_767_226_500_000_000_000)),
            tariff: Tariff { currency: "EUR".into(), class: "spot".into() },
            ..rate(1_100_000_000)
        },
        rate(2_000_000_000),
    ];
    assert_eq!(config.prices, PriceBook { rates, ..PriceBook::default() });
    assert_eq!(
        config.otlp.endpoint,
        Some(Endpoint { tls: false, host: "[::1]".into(), port: 4318, base: String::new(), is_whole: false })
    );
    assert_eq!(config.otlp.interval, Nanoseconds::from_seconds(90));
    assert_eq!((config.limits.processes, config.web.created, config.web.listen.len()), (7, true, 2));
    let of_node = "prices: {currency: EUR, rates: [{node_hour: 9.80, gpus: 8, gpu_share: 0.9}]}";
    let derivation = Some("9.8 per node-hour x 0.9 / 8 GPUs".into());
    assert_eq!(Config::parse(of_node, "c.yaml")?.prices.rates, [Rate { derivation, ..rate(1_102_500_000) }]);
    let example = Config::parse("prices: {book: example}", "c.yaml")?.prices;
    assert!(example.is_example() && example.rates.len() == 9, "{example:?}");
    assert_eq!(Config::parse("web: {listen: 127.0.0.1:1}", "c.yaml")?.web.listen.len(), 1);
    let web = Config::parse("web: {external_url: \"https://node7.example/gpus/\"}", "c.yaml")?.web;
    assert_eq!(web.external_url.as_deref(), Some("https://node7.example/gpus"));
    let hints = Config::parse("sampling: {interval: 2s, medium: 1s}", "c.yaml")?.hints();
    assert_eq!(hints, ["sampling.medium, 1s, is shorter than sampling.interval, 2s: it is read every 2s"]);
    let text = "prices: {book: example}
tenants: {rules: [{match: {slurm_account: \"phys*\"}, tenant: physics}], budgets: {pysics: 1, physics: 2, bio: 3}}";
    assert_eq!(
        Config::parse(text, "c.yaml")?.hints(),
        ["tenants.budgets.pysics: no rule yields this tenant; did you mean `physics`?"]
    );
    assert_eq!(Config::default().hints(), Vec::<String>::new());
    let local = Config::parse("web: {listen: localhost:9855}", "c.yaml")?.web.listen;
    assert_eq!(local, ["127.0.0.1:9855".parse().unwrap()]);
    Ok(())
}

/// All errors in the order of the file.
#[test]
fn all_errors_are_reported_at_once() {
    let text = "\
web: {listen: nowhere, craeted: yes}
sampling:
  interval: fast
  levle: full
  interval: 2s
prices:
  rates:
    - gpu_hour: -2.1
    - class: spott
attribution: {standing: [{fraction: 3/2}]}
ledger: [1]
";
    let expected = r#"
c.yaml:1:15: web.listen: "nowhere" is not an IP address with a port; give IP:port, such as 127.0.0.1:9855, or ":9855" for all interfaces
c.yaml:1:24: web.craeted: unknown key; did you mean `created`?
c.yaml:3:13: sampling.interval: "fast" is not a duration; give a number with its unit, such as 500ms, 1s, 2m or 1h
c.yaml:4:3: sampling.levle: unknown key; did you mean `level`?
c.yaml:5:3: sampling.interval: is given twice, first on line 3; keep one
c.yaml:7:3: prices.rates: has no currency; give prices.currency, such as USD
c.yaml:8:17: prices.rates[0].gpu_hour: "-2.1" is negative; give a number >= 0
c.yaml:9:7: prices.rates[1].gpu_hour: is missing; give it, or another price: instance_hour, node_hour or node_price
c.yaml:9:14: prices.rates[1].class: "spott" is not known here; did you mean `spot`?
c.yaml:10:26: attribution.standing[0].gpu: is missing; give all, an index, a range such as 4-7, or a UUID, or a list of them
c.yaml:10:26: attribution.standing[0]: has no holder; give user: NAME, group: NAME, namespace: NAME or unit: NAME.service
c.yaml:10:37: attribution.standing[0].fraction: "3/2" is more than one GPU; give a fraction such as 1/2 or 0.5, or 1 for the whole GPU
c.yaml:11:9: ledger: is not a mapping; give keys with values: enabled, path, retention, export"#;
    assert_eq!(problems(text), expected.trim_start());
}

#[test]
fn an_unreadable_file_is_an_error() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("c.yaml");
    let errors = || Config::read(&file).err().map(|problems| problems.to_string()).unwrap_or_default();
    let absent = errors();
    assert!(
        absent.ends_with(
            "c.yaml: cannot be read: No such file or directory (os error 2); name a file that can be read"
        ),
        "{absent}"
    );
    std::fs::write(&file, b"web: {created: true}\nnode: {name: \xff}")?;
    assert!(errors().ends_with("c.yaml:2:14: is not UTF-8 text; save the file as UTF-8"), "{}", errors());
    std::fs::write(&file, "#".repeat(2_000_000))?;
    assert!(errors().ends_with("c.yaml: is longer than 1 MiB; name a configuration file"));
    std::fs::write(&file, "node: {name: seven}")?;
    assert_eq!(Config::read(&file)?.node.name.as_deref(), Some("seven"));
    Ok(())
}

/// Words with which a random file gets past the first checks.
fn fragment() -> impl Strategy<Value = String> {
    let names: Vec<String> = key_descriptions()
        .iter()
        .flat_map(|row| {
            row.path.split('.').map(|part| part.replace("[]", "")).chain([row.example.to_owned()])
        })
        .chain(
            [
                "\n", "\n  ", "\n    ", ": ", "- ", "[", "]", "{", "}", ", ", "&a ", "*a", "<<", "'", "\"",
                "~", "1/0", "-1", "#",
            ]
            .map(str::to_owned),
        )
        .collect();
    prop_oneof![8 => prop::sample::select(names), 1 => any::<String>()]
}

#[test]
fn prices_of_nodes_instances_energy_and_emissions_are_rates_that_say_how_they_follow() -> Result<(), Problems>
{
    let text = "
prices:
  currency: EUR
  energy: {kwh: 0.21, pue: 1.3}
  rates:
    - {upfront: 100000, node_hour: 5, term_years: 3, gpus: 8}
    - {pool: own-*, node_price: 280000, residual_value: 20000, years: 5, yearly_cost: 30000, gpus: 8, gpu_share: 0.9}
    - {mig_profile: 1g.10gb, instance_hour: 0.55, spot: true, class: spot}
carbon: {grams_per_kwh: 380, pue: 1.3, source: a study}
terms: [{tenant: ml, basis: used, discount: 10}, {tenant: \"*\", outside_use: charge}]
";
    let book = Config::parse(text, "c.yaml")?.prices;
    let told: Vec<_> = book
        .rates
        .iter()
        .map(|rate| {
            (rate.kind, rate.nano, &*rate.tariff.class, rate.derivation.as_deref().unwrap_or_default())
        })
        .collect();
    assert_eq!(
        told,
        [
            // (100000 / 26280 + 5) / 8
            (
                RateKind::GpuHour,
                1_100_646_880,
                "committed",
                "(100000 upfront / 3 years + 5 per node-hour) / 8 GPUs"
            ),
            // ((280000 - 20000) / 5 + 30000) / 8760 x 0.9 / 8
            (
                RateKind::GpuHour,
                1_053_082_192,
                "owned",
                "((280000 - 20000) / 5 years + 30000 per year) x 0.9 / 8 GPUs"
            ),
            (RateKind::InstanceHour, 550_000_000, "spot", ""),
            (RateKind::Kwh, 273_000_000, "energy", "0.21 per kWh x PUE 1.3"),
            (RateKind::CarbonKwh, 494_000_000_000, "energy", "380 g per kWh x PUE 1.3; source: a study"),
        ]
    );
    assert_eq!(book.rates.iter().filter(|rate| &*rate.tariff.currency == "EUR").count(), 4);
    let ml = Terms { tenant: "ml".into(), basis: Basis::Used, discount: 100_000_000, ..Terms::default() };
    let all = Terms { tenant: "*".into(), charges_outside_use: true, ..Terms::default() };
    assert_eq!(book.terms, [ml, all]);
    Ok(())
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = Config::parse(&text, "c.yaml");
    }

    #[test]
    fn no_file_of_known_words_makes_the_parser_panic(words in prop::collection::vec(fragment(), 0..60)) {
        let _ = Config::parse(&words.concat(), "c.yaml");
    }

    #[test]
    fn no_value_of_any_key_makes_the_parser_panic(index in any::<prop::sample::Index>(), value in any::<String>()) {
        let rows = key_descriptions();
        let path = &rows[index.index(rows.len())].path;
        let quoted = serde_json::to_string(&value).unwrap_or_default();
        let text = match path.split_once("[].") {
            Some((list, key)) => list.replace('.', ": {") + ": [{" + key + ": " + &quoted + "}]}",
            None => path.replace('.', ": {") + ": " + &quoted + "}",
        };
        if let Err(problems) = Config::parse(&text, "c.yaml") {
            prop_assert!(problems.list.iter().all(|problem| problem.place.is_some_and(|place| place.line == 1)), "{}", problems);
        }
    }

    #[test]
    fn prices_are_read_exactly(whole in 0_u32..999_999_999, nano in 0_u32..1_000_000_000) {
        let text = format!("prices: {{currency: EUR, rates: [{{gpu_hour: {whole}.{nano:09}}}]}}");
        let prices = Config::parse(&text, "c.yaml").map(|config| config.prices);
        let rates = vec![rate(i64::from(whole) * 1_000_000_000 + i64::from(nano))];
        prop_assert_eq!(prices, Ok(PriceBook { rates, ..PriceBook::default() }));
    }
}
