//! `dashboards/`: each a function here, written as the JSON that Grafana imports.
//!
//! A dashboard asks three questions and answers them in its first row. Panels that several dashboards have are in
//! `shared`; what a panel says of its sources and its level follows from its queries.

mod agent;
mod fleet;
mod gpu;
mod health;
mod node;
mod panel;
mod shared;
mod tenants;
mod unit_cost;
mod workload;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::check::{Outcome, check};
use panel::{Panel, datasource};

/// A dashboard.
struct Dashboard {
    /// Its file below `dashboards/`, and its address in Grafana after `gpumeter-`.
    name: &'static str,
    title: &'static str,
    summary: &'static str,
    /// What its words mean, above everything else.
    terms: &'static [(&'static str, &'static str)],
    questions: [Question; 3],
    variables: Vec<Variable>,
    annotations: Vec<Annotation>,
    rows: Vec<Row>,
    from: &'static str,
}

/// A question that a dashboard answers in its first row, by panels of 8 columns in all.
struct Question {
    text: &'static str,
    panels: Vec<Panel>,
}

/// Panels below a heading, from left to right.
struct Row {
    title: &'static str,
    panels: Vec<Panel>,
}

/// A variable that is filled with the values of a label.
struct Variable {
    name: &'static str,
    label: &'static str,
    /// The series whose labels are listed.
    selector: &'static str,
    /// What `All` matches; without it one value is chosen.
    all: Option<&'static str>,
}

/// Moments that are marked in all panels.
struct Annotation {
    name: &'static str,
    expression: String,
    title: &'static str,
    text: &'static str,
    colour: &'static str,
    /// Whether the value is the moment.
    is_moment: bool,
    is_shown: bool,
}

fn dashboards() -> [Dashboard; 8] {
    [
        fleet::dashboard(),
        node::dashboard(),
        gpu::dashboard(),
        tenants::dashboard(),
        unit_cost::dashboard(),
        workload::dashboard(),
        health::dashboard(),
        agent::dashboard(),
    ]
}

impl Dashboard {
    fn json(&self) -> Value {
        let questions: Vec<&str> = self.questions.iter().map(|question| question.text).collect();
        json!({
            "__requires": [
                { "type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.0.0" },
                { "type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0" },
            ],
            "id": null,
            "uid": format!("gpumeter-{}", self.name),
            "title": format!("gpumeter / {}", self.title),
            "description": format!("{} {}", self.summary, questions.join(" ")),
            "tags": ["gpu", "gpumeter"],
            "schemaVersion": 39,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "timezone": "browser",
            "time": { "from": self.from, "to": "now" },
            "refresh": "30s",
            "annotations": { "list": self.annotations.iter().map(Annotation::json).collect::<Vec<_>>() },
            "links": [{
                "type": "dashboards", "tags": ["gpumeter"], "title": "gpumeter", "asDropdown": true,
                "includeVars": true, "keepTime": true, "icon": "external link", "targetBlank": false,
            }],
            "templating": { "list": self.templating() },
            "panels": self.panels(),
        })
    }

    fn templating(&self) -> Vec<Value> {
        let source = json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
        });
        std::iter::once(source).chain(self.variables.iter().map(Variable::json)).collect()
    }

    /// A line for each term.
    fn meanings(&self) -> String {
        let lines: Vec<String> =
            self.terms.iter().map(|(term, meaning)| format!("- **{term}**: {meaning}")).collect();
        lines.join("\n")
    }

    /// The meanings of terms, the questions and their answers, then the rows; every row begins at the left.
    fn panels(&self) -> Vec<Value> {
        let variables: Vec<&str> = std::iter::once("datasource")
            .chain(self.variables.iter().map(|variable| variable.name))
            .collect();
        let (mut panels, mut y) = (Vec::new(), 0);
        if !self.terms.is_empty() {
            let height = 7;
            panels.push(json!({
                "id": 1, "type": "text", "title": "", "transparent": true,
                "gridPos": { "x": 0, "y": 0, "w": 24, "h": height },
                "options": { "mode": "markdown", "content": self.meanings() },
            }));
            y = height;
        }
        for (question, x) in self.questions.iter().zip([0, 8, 16]) {
            let at = json!({ "x": x, "y": y, "w": 8, "h": 2 });
            panels.push(json!({
                "id": panels.len() + 1, "type": "text", "title": "", "transparent": true, "gridPos": at,
                "options": { "mode": "markdown", "content": format!("**{}**", question.text) },
            }));
            let mut left = x;
            for panel in &question.panels {
                panels.push(panel.json(panels.len() + 1, (left, y + 2), &variables));
                left += panel.width;
            }
        }
        y += 6;
        for row in &self.rows {
            let at = json!({ "x": 0, "y": y, "w": 24, "h": 1 });
            panels.push(json!({
                "id": panels.len() + 1, "type": "row", "title": row.title, "gridPos": at, "collapsed": false,
                "panels": [],
            }));
            y += 1;
            let (mut x, mut tallest) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > 24 {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                panels.push(panel.json(panels.len() + 1, (x, y), &variables));
                (x, tallest) = (x + panel.width, tallest.max(panel.height));
            }
            y += tallest;
        }
        panels
    }
}

impl Variable {
    fn json(&self) -> Value {
        let query = format!("label_values({}, {})", panel::expand(self.selector), self.name);
        let mut variable = json!({
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": datasource(),
            "query": { "query": query, "refId": self.name },
            "definition": query,
            "refresh": 2,
            "sort": 3,
            "multi": self.all.is_some(),
            "includeAll": self.all.is_some(),
        });
        if let Some(all) = self.all {
            variable["allValue"] = json!(all);
            variable["current"] = json!({ "text": ["All"], "value": ["$__all"] });
        }
        variable
    }
}

impl Annotation {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "datasource": datasource(),
            "enable": self.is_shown,
            "expr": self.expression,
            "iconColor": self.colour,
            "titleFormat": self.title,
            "textFormat": self.text,
            "useValueForTime": self.is_moment,
        })
    }
}

/// The name and the text of each file.
pub(super) fn files() -> [(String, String); 8] {
    dashboards().map(|dashboard| (format!("{}.json", dashboard.name), format!("{:#}\n", dashboard.json())))
}

#[test]
fn the_dashboards_are_what_their_functions_write() -> Outcome {
    let all = files();
    for (name, text) in &all {
        check(&format!("dashboards/{name}"), text)?;
    }
    let mut files = Vec::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards"))? {
        files.push(file?.file_name().to_string_lossy().into_owned());
    }
    files.sort();
    let mut expected = all.map(|(name, _)| name);
    expected.sort();
    assert_eq!(files, expected);
    Ok(())
}

#[test]
fn each_question_is_answered_in_the_first_row() {
    for dashboard in dashboards() {
        for question in &dashboard.questions {
            let width: u32 = question.panels.iter().map(|panel| panel.width).sum();
            assert_eq!(width, 8, "{}: {}", dashboard.name, question.text);
            assert!(question.panels.iter().all(|panel| panel.height == 4), "{}", question.text);
            assert!(question.text.ends_with('?'), "{}", question.text);
        }
    }
}
