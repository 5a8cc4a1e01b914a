//! The copies of alerts, dashboards and version in the Helm chart and the kustomize components.
//!
//! Neither can read files outside of its own directory.

use std::path::Path;
use std::{env, fs, io};

use super::check::{Outcome, check};
use super::dashboards;

const CHART: &str = "packaging/helm/gpumeter";
const COMPONENTS: &str = "packaging/kubernetes/components";

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
}

/// The names of the files in a directory, sorted.
fn names(directory: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The files of rules that hold where a Prometheus scrapes the agents, in the order in which Helm lists them.
fn rules() -> Vec<String> {
    let mut rules = crate::rules::files();
    rules.retain(|file| file != "pushed.yaml");
    rules.sort();
    rules
}

/// The groups of a file of rules, indented as the items of a PrometheusRule.
fn groups(rules: &str) -> String {
    let groups = rules.split_once("\ngroups:\n").map_or("", |(_, groups)| groups);
    groups.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect()
}

#[test]
fn the_chart_has_the_alerts_and_the_dashboards() -> Outcome {
    for name in rules() {
        check(&format!("{CHART}/files/alerts/{name}"), &read(&format!("alerts/{name}"))?)?;
    }
    assert_eq!(names(&format!("{CHART}/files/alerts"))?, rules());
    for (name, dashboard) in dashboards::files() {
        check(&format!("{CHART}/files/dashboards/{name}"), &dashboard)?;
        check(&format!("{COMPONENTS}/dashboards/{name}"), &dashboard)?;
    }
    assert_eq!(names(&format!("{CHART}/files/dashboards"))?, names("dashboards")?);
    Ok(())
}

#[test]
fn the_chart_has_the_keys_that_need_a_restart() -> Outcome {
    let rows = gpumeter::config::key_descriptions();
    let paths: Vec<&str> = rows.iter().filter(|row| row.needs_restart).map(|row| &*row.path).collect();
    check(&format!("{CHART}/files/restart-keys.txt"), &(paths.join("\n") + "\n"))
}

#[test]
fn the_prices_that_the_values_show_are_a_configuration() -> Outcome {
    let values = read(&format!("{CHART}/values.yaml"))?;
    let shown = values.lines().skip_while(|line| *line != "#   config:").skip(1);
    let example: Vec<&str> = shown.map_while(|line| line.strip_prefix("#     ")).collect();
    let config = gpumeter::config::Config::parse(&example.join("\n"), "values.yaml")?;
    assert!(config.prices.currency().is_some(), "{example:?}");
    Ok(())
}

#[test]
fn every_dashboard_has_a_config_map() -> Outcome {
    let component = read(&format!("{COMPONENTS}/dashboards/kustomization.yaml"))?;
    for name in names("dashboards")? {
        let stem = name.trim_end_matches(".json");
        assert!(component.contains(&format!("name: gpumeter-dashboard-{stem}\n")), "{name}");
        assert!(component.contains(&format!("- {name}\n")), "{name}");
    }
    Ok(())
}

#[test]
fn the_prometheus_rule_has_the_alerts() -> Outcome {
    let mut all = String::new();
    for name in rules() {
        all += &groups(&read(&format!("alerts/{name}"))?);
    }
    let labels = "    app.kubernetes.io/name: gpumeter\n    app.kubernetes.io/instance: gpumeter\n";
    let rule = format!(
        "# Written from alerts/ by `UPDATE=1 cargo test generated`.\n\
         apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: gpumeter\n  namespace: gpumeter\n  \
         labels:\n{labels}spec:\n  groups:\n{all}"
    );
    check(&format!("{COMPONENTS}/monitoring/rules.yaml"), &rule)
}

#[test]
fn chart_base_and_fleet_have_the_version_of_the_crate() -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let chart = read(&format!("{CHART}/Chart.yaml"))?;
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
    assert!(chart.contains(&format!("\nappVersion: {version}\n")), "{chart}");
    // A component gets no tag from the base.
    for name in ["packaging/kubernetes/base", &format!("{COMPONENTS}/fleet")] {
        let text = read(&format!("{name}/kustomization.yaml"))?;
        assert!(text.contains(&format!("newTag: {version}\n")), "{text}");
    }
    Ok(())
}
