//! The dashboards in `dashboards/`, as Grafana gets them: the rules of Grafana's dashboard-linter, and ours.
//!
//! The linter's rules are written again here, since it is a program of its own and small: which they are is said at each
//! check. Where one is not kept, `EXCLUDED` has the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use gpumeter::model::Unit;
use gpumeter::model::catalogue::Level;
use promql_parser::label::MatchOp;
use promql_parser::parser::{Expr, LabelModifier};
use serde_json::Value;

use crate::promql::{self, Needs};

/// Rules of the linter that something need not keep, and why.
const EXCLUDED: &[(&str, &str, &str)] = &[
    ("template-instance", "fleet", "its panels read sums of all nodes, which have no instance"),
    ("template-instance", "tenants", "its panels read sums of all nodes, which have no instance"),
    ("template-instance", "unit-cost", "its panels read sums of all nodes, which have no instance"),
    ("template-job", "unit-cost", "the pods of an owner may be on agents of several jobs"),
    ("template-instance", "health", "it lists the GPUs of all nodes"),
    ("template-instance", "node", "it shows one node, so that a line for each GPU stays readable"),
    ("template-instance", "gpu", "it shows one GPU"),
    ("target-job", "ALERTS", "alerts on a whole cluster have no job"),
    (
        "target-job",
        "tenant_window:gpu_tenant_unavailable_seconds:ratio",
        "an objective is of all jobs of a cluster",
    ),
    ("target-job", "tenant_month:gpu_tenant_cost:sum", OF_ALL_CLUSTERS),
    ("target-job", "tenant_month:gpu_tenant_budget:spent_ratio", OF_ALL_CLUSTERS),
    ("target-job", "tenant_month:gpu_tenant_budget:projected_ratio", OF_ALL_CLUSTERS),
    ("target-job", "gpu_tenant_budget", OF_ALL_CLUSTERS),
    ("target-job", "gpumeter_billing_period_end_timestamp_seconds", OF_ALL_CLUSTERS),
    ("uuid-column", "GPUs that are absent", "a board that is gone and the one in its place have one index"),
];

const OF_ALL_CLUSTERS: &str = "a budget is of all clusters";

fn is_excluded(rule: &str, what: &str) -> bool {
    EXCLUDED.iter().any(|(excluded, place, _)| (*excluded, *place) == (rule, what))
}

/// A dashboard's name and what is in its file.
struct Dashboard {
    name: String,
    json: Value,
}

/// A query of a panel.
struct Target<'a> {
    panel: &'a Value,
    expression: &'a str,
    legend: &'a str,
}

fn dashboards() -> Vec<Dashboard> {
    let mut all = Vec::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards")).unwrap() {
        let path = file.unwrap().path();
        let json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        all.push(Dashboard { name: path.file_stem().unwrap().to_string_lossy().into_owned(), json });
    }
    assert!(all.len() >= 7);
    all
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Dashboard {
    fn variables(&self) -> &[Value] {
        list(&self.json["templating"]["list"])
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        self.variables().iter().find(|variable| variable["name"] == name)
    }

    /// Panels with queries.
    fn panels(&self) -> impl Iterator<Item = &Value> {
        list(&self.json["panels"]).iter().filter(|panel| !["row", "text"].contains(&text(&panel["type"])))
    }

    fn targets(&self) -> impl Iterator<Item = Target<'_>> {
        self.panels().flat_map(|panel| {
            list(&panel["targets"]).iter().map(move |target| Target {
                panel,
                expression: text(&target["expr"]),
                legend: text(&target["legendFormat"]),
            })
        })
    }

    fn place(&self, panel: &Value) -> String {
        format!("{}, {}", self.name, text(&panel["title"]))
    }
}

/// Calls a function with every query and the words for where it stands.
fn each_target(mut function: impl FnMut(&Dashboard, &Target<'_>, &str)) {
    for dashboard in &dashboards() {
        for target in dashboard.targets() {
            let place = format!("{}: {}", dashboard.place(target.panel), target.expression);
            function(dashboard, &target, &place);
        }
    }
}

#[test]
fn variables_are_those_that_the_linter_asks_for() {
    for dashboard in &dashboards() {
        let name = &dashboard.name;
        // template-datasource
        let sources: Vec<&Value> =
            dashboard.variables().iter().filter(|variable| variable["type"] == "datasource").collect();
        assert_eq!(sources.len(), 1, "{name}");
        assert_eq!(
            (text(&sources[0]["name"]), text(&sources[0]["label"]), text(&sources[0]["query"])),
            ("datasource", "Data source", "prometheus"),
            "{name}"
        );
        // template-job, template-instance
        for (rule, variable, label) in
            [("template-job", "job", "Job"), ("template-instance", "instance", "Instance")]
        {
            if is_excluded(rule, name) {
                continue;
            }
            let found =
                dashboard.variable(variable).unwrap_or_else(|| panic!("{name}: no variable {variable}"));
            assert_eq!(found["type"], "query", "{name}");
            assert_eq!(found["label"], label, "{name}");
            assert_eq!(found["multi"], true, "{name}");
            assert_eq!(found["allValue"], ".+", "{name}");
        }
        // A target need not have a cluster, so All has to match its absence, too.
        assert_eq!(dashboard.variable("cluster").unwrap()["allValue"], ".*", "{name}");
        for variable in dashboard.variables().iter().filter(|variable| variable["type"] == "query") {
            // template-on-time-change-reload
            assert_eq!(variable["refresh"], 2, "{name}: {}", variable["name"]);
            // template-label-promql
            let query = text(&variable["query"]["query"]);
            let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (selector, label) = inner.rsplit_once(", ").unwrap();
            let series = promql::check(selector).or_else(|_| promql::check(&format!("group({selector})")));
            series.unwrap_or_else(|problem| panic!("{name}: {query}: {problem}"));
            assert_eq!(label, text(&variable["name"]), "{name}");
        }
    }
}

#[test]
fn a_variable_is_there_where_it_is_named_and_named_where_it_is_there() {
    for dashboard in &dashboards() {
        let known: BTreeSet<&str> =
            dashboard.variables().iter().map(|variable| text(&variable["name"])).collect();
        let mut named: BTreeSet<String> = BTreeSet::from(["datasource".into()]);
        let queries = dashboard.variables().iter().map(|variable| text(&variable["query"]["query"]));
        let annotations = list(&dashboard.json["annotations"]["list"]);
        let expressions = dashboard.targets().map(|target| target.expression);
        for query in queries.chain(expressions).chain(annotations.iter().map(|one| text(&one["expr"]))) {
            for part in query.split('$').skip(1) {
                let is_letter = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '_';
                let name: String = part.chars().take_while(is_letter).collect();
                if !name.starts_with("__") {
                    assert!(
                        known.contains(&*name),
                        "{}: no variable is called {name}: {query}",
                        dashboard.name
                    );
                    named.insert(name);
                }
            }
        }
        let named: BTreeSet<&str> = named.iter().map(String::as_str).collect();
        assert_eq!(named, known, "{}", dashboard.name);
    }
}

/// Units of Grafana that the panels use; panel-units asks for one of Grafana's list.
const UNITS: &[&str] = &[
    "none",
    "percentunit",
    "watt",
    "celsius",
    "bytes",
    "Bps",
    "hertz",
    "joule",
    "s",
    "ops",
    "reqps",
    "locale",
    "dateTimeAsIso",
    "bool_yes_no",
];

#[test]
fn panels_have_what_the_linter_asks_for() {
    for dashboard in &dashboards() {
        // uneditable-dashboard
        assert_eq!(dashboard.json["editable"], false, "{}", dashboard.name);
        assert_eq!(dashboard.json["id"], Value::Null);
        assert!(dashboard.json.get("__inputs").is_none(), "only the import dialog resolves inputs");
        let mut titles = BTreeSet::new();
        for panel in dashboard.panels() {
            let place = dashboard.place(panel);
            assert!(
                ["stat", "timeseries", "table", "state-timeline"].contains(&text(&panel["type"])),
                "{place}"
            );
            // panel-datasource
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{place}");
            // panel-title-description
            assert!(!text(&panel["title"]).is_empty() && text(&panel["description"]).len() > 20, "{place}");
            // panel-units
            let defaults = &panel["fieldConfig"]["defaults"];
            assert!(UNITS.contains(&text(&defaults["unit"])), "{place}: {}", defaults["unit"]);
            for property in
                list(&panel["fieldConfig"]["overrides"]).iter().flat_map(|one| list(&one["properties"]))
            {
                assert!(property["id"] != "unit" || UNITS.contains(&text(&property["value"])), "{place}");
            }
            // panel-no-targets
            assert!(!list(&panel["targets"]).is_empty(), "{place}");
            for target in list(&panel["targets"]) {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{place}");
            }
            assert!(titles.insert(text(&panel["title"])), "{place}: the title is given twice");
            // What is empty when all is well says so, in the panel and in its description.
            let meaning = text(&defaults["noValue"]);
            assert_eq!(
                text(&panel["description"]).contains(&format!("Empty: {meaning}.")),
                !meaning.is_empty(),
                "{place}"
            );
        }
    }
}

#[test]
fn panels_fill_a_grid_of_24_columns_and_do_not_overlap() {
    for dashboard in &dashboards() {
        let panels = list(&dashboard.json["panels"]);
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{}", dashboard.name);
        let mut taken = BTreeMap::new();
        for panel in panels {
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{}", dashboard.place(panel));
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    let other = taken.insert((x, y), text(&panel["title"]));
                    assert!(other.is_none(), "{} overlaps {other:?}", dashboard.place(panel));
                }
            }
        }
    }
}

#[test]
fn queries_fit_the_catalogue_and_need_no_more_than_standard_unless_they_say_so() {
    let mut queries = 0;
    each_target(|_, target, place| {
        queries += 1;
        // target-promql, target-counter-agg: a counter stands in rate or increase, and much more.
        promql::check(target.expression).unwrap_or_else(|problem| panic!("{place}: {problem}"));
        let mut needs = Needs::default();
        needs.add(target.expression);
        let says = text(&target.panel["description"]).contains("Needs level full.");
        assert!(needs.level <= Level::Standard || says, "{place}: needs level {}", needs.level.name());
    });
    assert!(queries > 150, "{queries}");
    for dashboard in &dashboards() {
        for annotation in list(&dashboard.json["annotations"]["list"]) {
            let checked = promql::check(text(&annotation["expr"]));
            let labels = checked.unwrap_or_else(|problem| panic!("{}: {problem}", dashboard.name)).labels;
            for name in placeholders(text(&annotation["titleFormat"]))
                .chain(placeholders(text(&annotation["textFormat"])))
            {
                assert!(labels.contains(name), "{}: {annotation:#}", dashboard.name);
            }
        }
    }
}

#[test]
fn every_query_chooses_its_targets_by_the_variables() {
    each_target(|dashboard, target, place| {
        for (metric, matchers) in promql::selectors(&promql::parsed(target.expression)) {
            let has = |label: &str| {
                matchers.matchers.iter().any(|matcher| {
                    matcher.name == label
                        && matcher.value == format!("${label}")
                        && matches!(matcher.op, MatchOp::Re(_))
                })
            };
            let is_of_all =
                EXCLUDED.iter().any(|(_, name, reason)| (*name, *reason) == (&*metric, OF_ALL_CLUSTERS));
            assert!(has("cluster") != is_of_all, "{place}: {metric} is of any cluster");
            // target-job, target-instance; recorded sums have no instance.
            let is_of_jobs = dashboard.variable("job").is_some() && !is_excluded("target-job", &metric);
            assert!(has("job") || !is_of_jobs, "{place}: {metric} is of any job");
            let is_of_nodes = dashboard.variable("instance").is_some() && !metric.starts_with("model:");
            assert!(has("instance") || !is_of_nodes, "{place}: {metric} is of any instance");
        }
    });
}

#[test]
fn rates_are_over_the_rate_interval_of_grafana() {
    // target-rate-interval
    each_target(|_, target, place| {
        for function in ["rate(", "irate("] {
            for (at, _) in target.expression.match_indices(function) {
                let is_whole_word = !target.expression[..at]
                    .ends_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
                let (range, _) = target.expression[at..].split_once(']').unwrap();
                assert!(!is_whole_word || range.ends_with("[$__rate_interval"), "{place}");
            }
        }
    });
}

/// The sets of labels that series are joined on.
const JOINS: [&[&str]; 10] = [
    &[],
    &["namespace", "owner"],
    &["cluster", "namespace", "owner"],
    &["month"],
    &["cluster", "job", "instance"],
    &["cluster", "job", "instance", "uuid"],
    &["cluster", "job", "instance", "uuid", "tenant"],
    &["cluster", "job", "instance", "uuid", "xid"],
    &["cluster", "job", "instance", "workload"],
    &["cluster", "job", "workload"],
];

#[test]
fn series_are_joined_on_the_node_and_the_gpu_or_workload_only() {
    each_target(|_, target, place| {
        let expression = promql::parsed(target.expression);
        promql::visit(&expression, &mut Vec::new(), &mut |node, _| {
            let Expr::Binary(binary) = node else { return };
            let Some(modifier) = &binary.modifier else { return };
            match &modifier.matching {
                Some(LabelModifier::Include(on)) => {
                    let on: Vec<&str> = on.labels.iter().map(String::as_str).collect();
                    assert!(JOINS.contains(&&*on), "{place}: joined on {on:?}");
                }
                Some(LabelModifier::Exclude(_)) => panic!("{place}: joined by what is ignored"),
                None => {}
            }
        });
    });
}

/// Labels that need not be in a legend: those of the scrape, and the UUID beside a GPU's index.
const NOT_SHOWN: [&str; 2] = ["job", "uuid"];

#[test]
fn legends_tell_all_series_apart_and_name_labels_that_are_there() {
    each_target(|dashboard, target, place| {
        if target.panel["type"] == "table" {
            return;
        }
        let series = promql::check(target.expression).unwrap();
        for name in placeholders(target.legend) {
            assert!(series.labels.contains(name), "{place}: the legend names {name}, which its series lack");
        }
        let chosen: BTreeSet<&str> = match &*dashboard.name {
            // One GPU is chosen, so its own labels tell nothing.
            "gpu" => BTreeSet::from(["cluster", "instance", "gpu"]),
            _ => BTreeSet::new(),
        };
        let shown: BTreeSet<&str> = placeholders(target.legend).collect();
        for label in &series.labels {
            let is_told =
                shown.contains(&**label) || series.fixed.contains(label) || NOT_SHOWN.contains(&&**label);
            // An instance of MIG refuses what the families without its label answer.
            assert!(
                is_told || chosen.contains(&**label),
                "{place}: series that differ in {label} look alike"
            );
        }
    });
}

fn placeholders(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).map(|part| part.split("}}").next().unwrap().trim())
}

#[test]
fn the_keys_of_a_table_are_labels_of_a_query_and_links_lead_somewhere() {
    let all = dashboards();
    let variables: BTreeMap<&str, BTreeSet<&str>> = all
        .iter()
        .map(|one| {
            (text(&one.json["uid"]), one.variables().iter().map(|variable| text(&variable["name"])).collect())
        })
        .collect();
    for dashboard in &all {
        for panel in dashboard.panels().filter(|panel| panel["type"] == "table") {
            let place = dashboard.place(panel);
            let mut labels: BTreeSet<String> = BTreeSet::from(["Value".into()]);
            for target in list(&panel["targets"]) {
                labels.insert(format!("Value #{}", text(&target["refId"])));
                labels.extend(promql::check(text(&target["expr"])).unwrap().labels);
            }
            let organize =
                list(&panel["transformations"]).iter().find(|one| one["id"] == "organize").unwrap();
            let headings = organize["options"]["renameByName"].as_object().unwrap();
            for name in headings.keys() {
                assert!(labels.contains(name), "{place}: no query has {name}");
            }
            let matchers = list(&panel["fieldConfig"]["overrides"]).iter().map(|one| &one["matcher"]);
            for matcher in matchers.filter(|one| one["id"] == "byName") {
                let name = &matcher["options"];
                assert!(headings.values().any(|one| one == name), "{place}: no column {name}");
            }
            let sorted = list(&panel["options"]["sortBy"]);
            assert!(
                sorted.iter().all(|by| headings.values().any(|one| *one == by["displayName"])),
                "{place}"
            );
            for property in
                list(&panel["fieldConfig"]["overrides"]).iter().flat_map(|one| list(&one["properties"]))
            {
                for link in list(&property["value"]).iter().filter(|_| property["id"] == "links") {
                    check_link(dashboard, text(&link["url"]), &variables);
                    for field in text(&link["url"]).split("${__data.fields.").skip(1) {
                        let field = field.split('}').next().unwrap();
                        assert!(headings.values().any(|one| *one == field), "{place}: no column {field}");
                    }
                }
            }
        }
    }
}

#[test]
fn tables_show_nodes_and_indexes_and_keep_uuids_for_links() {
    for dashboard in &dashboards() {
        for panel in dashboard.panels() {
            let of_table = list(&panel["transformations"]).iter().find(|one| one["id"] == "organize");
            let heading =
                of_table.map(|one| text(&one["options"]["renameByName"]["uuid"])).unwrap_or_default();
            if heading.is_empty() || is_excluded("uuid-column", text(&panel["title"])) {
                continue;
            }
            let place = dashboard.place(panel);
            let overrides = list(&panel["fieldConfig"]["overrides"]);
            let properties = |name: &str| {
                let of_column = overrides.iter().filter(move |one| one["matcher"]["options"] == name);
                of_column.flat_map(|one| list(&one["properties"])).collect::<Vec<_>>()
            };
            let is_hidden =
                properties(heading).iter().any(|one| one["id"] == "custom.hidden" && one["value"] == true);
            assert!(is_hidden, "{place}: shows UUIDs");
            let links = properties("GPU").into_iter().flat_map(|one| list(&one["value"]));
            let mut leads = links.map(|link| text(&link["url"]));
            assert!(leads.any(|url| url.ends_with("&var-uuid=${__data.fields.UUID}")), "{place}");
        }
    }
}

fn check_link(dashboard: &Dashboard, url: &str, variables: &BTreeMap<&str, BTreeSet<&str>>) {
    let (path, query) = url.split_once('?').unwrap();
    let target = variables.get(path.strip_prefix("/d/").unwrap());
    let target = target.unwrap_or_else(|| panic!("{}: {url} leads nowhere", dashboard.name));
    assert!(query.contains("${__url_time_range}"), "{url} forgets the time");
    for part in query.split('&').skip(1) {
        if let Some(kept) = part.strip_suffix(":queryparam}").and_then(|part| part.strip_prefix("${")) {
            assert!(dashboard.variable(kept).is_some(), "{}: {url}: no variable {kept}", dashboard.name);
        } else {
            let (set, value) = part.split_once('=').unwrap();
            let set = set.strip_prefix("var-").unwrap();
            assert!(target.contains(set), "{}: {url}: {path} has no variable {set}", dashboard.name);
            assert!(value.starts_with("${__"), "{url}");
        }
    }
}

#[test]
fn the_unit_of_a_panel_is_that_of_its_metric() {
    let mut checked = 0;
    each_target(|_, target, place| {
        let Expr::VectorSelector(selector) = promql::parsed(target.expression) else { return };
        let Some(family) = selector.name.as_deref().and_then(promql::known_family) else { return };
        let unit = match family.unit {
            Unit::Ratio => "percentunit",
            Unit::Watts => "watt",
            Unit::Celsius => "celsius",
            Unit::Bytes => "bytes",
            Unit::Hertz => "hertz",
            Unit::Seconds => "s",
            _ => return,
        };
        checked += 1;
        let overrides = list(&target.panel["fieldConfig"]["overrides"]);
        let in_column =
            overrides.iter().flat_map(|one| list(&one["properties"])).any(|one| one["value"] == unit);
        assert!(target.panel["fieldConfig"]["defaults"]["unit"] == unit || in_column, "{place}: {unit}");
    });
    assert!(checked > 10, "{checked}");
}

#[test]
fn money_is_called_an_estimate() {
    each_target(|_, target, place| {
        let needs_money = target.expression.contains("_cost");
        let says = text(&target.panel["description"]).contains("estimate")
            || target.panel["title"] == "Prices in force"
            || list(&target.panel["targets"]).iter().any(|one| !text(&one["expr"]).contains("_cost"));
        assert!(!needs_money || says, "{place}");
    });
}

#[test]
fn the_page_of_dashboards_has_every_panel_and_query() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dashboards.md")).unwrap();
    for dashboard in &dashboards() {
        let (_, title) = text(&dashboard.json["title"]).split_once(" / ").unwrap();
        let (_, rest) =
            page.split_once(&format!("\n## {title}\n\n{}\n", text(&dashboard.json["description"]))).unwrap();
        let part = rest.split("\n## ").next().unwrap();
        let mut titles = part.split("\n### ").skip(1);
        for panel in dashboard.panels() {
            let place = dashboard.place(panel);
            let written = titles
                .next()
                .unwrap_or_else(|| panic!("{place} is missing; run UPDATE=1 .ci/interop stack unit_cost"));
            let head = format!("{}\n\n{}\n", text(&panel["title"]), text(&panel["description"]));
            assert!(
                written.starts_with(&head),
                "{place} is another; run UPDATE=1 .ci/interop stack unit_cost"
            );
            let queries: Vec<&str> = written.lines().filter(|line| !line.starts_with('#')).collect();
            for target in list(&panel["targets"]) {
                assert!(queries.contains(&text(&target["expr"])), "{place}: {}", target["expr"]);
            }
        }
        assert_eq!(titles.next(), None, "{}", dashboard.name);
    }
}
