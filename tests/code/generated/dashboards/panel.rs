//! A panel as data, and as what Grafana reads.
//!
//! Queries are written with `$fleet`, `$node` and `$device` for the matchers that choose targets or one GPU.

use serde_json::{Value, json};

use crate::promql;

/// How a panel shows its series.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Stat,
    Lines,
    Stacked,
    Table,
    States,
}

/// A query and what each of its series is called.
pub(super) struct Query {
    pub(super) expression: String,
    pub(super) legend: String,
}

/// A column of a table beside the labels of its rows.
struct Column {
    title: &'static str,
    unit: &'static str,
    decimals: Option<u32>,
    steps: &'static [(f64, &'static str)],
    /// What a cell without a value says.
    absent: &'static str,
    /// What it shows in place of values, each text up to a value.
    words: &'static [(f64, &'static str)],
}

impl Column {
    fn new(title: &'static str, unit: &'static str) -> Self {
        Self { title, unit, decimals: None, steps: PLAIN, absent: "", words: &[] }
    }
}

/// A panel.
pub(super) struct Panel {
    pub(super) view: View,
    pub(super) title: &'static str,
    /// What it answers, and the limits of that; source and level are added.
    answers: &'static str,
    unit: &'static str,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) queries: Vec<Query>,
    /// What it means that the panel is empty.
    pub(super) empty: Option<&'static str>,
    bounds: (Option<f64>, Option<f64>),
    decimals: Option<u32>,
    steps: &'static [(f64, &'static str)],
    columns: Vec<Column>,
    /// Labels that a table shows, in order, each with its heading and a link.
    keys: Vec<Key>,
    /// The columns by which a table is sorted, the largest first.
    sorted_by: &'static [&'static str],
    /// Whether a table says how many rows it has, and shows one page of them.
    is_paged: bool,
    /// Columns that need another width than an equal part of the table, in pixels.
    widths: &'static [(&'static str, u32)],
    /// States: each with its value, its name, and its colour.
    mappings: &'static [(&'static str, &'static str, &'static str)],
    /// Series that are limits, drawn as dashes: a regular expression of their names.
    limits: Option<&'static str>,
    shown: Shown,
}

/// What a stat shows of each series.
#[derive(Clone, Copy)]
enum Shown {
    Value,
    /// Its legend too, which has the unit.
    ValueAndLegend,
    /// A label alone.
    Label(&'static str),
}

/// A label of a table's rows: its name, its heading, and where a click leads.
struct Key {
    label: &'static str,
    heading: &'static str,
    link: Option<Link>,
    /// Whether only links and the merging of rows need it.
    is_hidden: bool,
}

/// The dashboard that a cell leads to, with the variable that the row's label of that name sets.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) dashboard: &'static str,
    pub(super) variable: &'static str,
}

pub(super) const TO_NODE: Link = Link { dashboard: "gpumeter-node", variable: "instance" };
pub(super) const TO_GPU: Link = Link { dashboard: "gpumeter-gpu", variable: "uuid" };
pub(super) const TO_TENANT: Link = Link { dashboard: "gpumeter-tenants", variable: "tenant" };
pub(super) const TO_WORKLOAD: Link = Link { dashboard: "gpumeter-workload", variable: "workload" };

/// Colours of a number that should be 0.
pub(super) const ZERO_IS_WELL: &[(f64, &str)] = &[(f64::NEG_INFINITY, "green"), (1.0, "red")];
/// The same, where it is no emergency.
pub(super) const ZERO_IS_BEST: &[(f64, &str)] = &[(f64::NEG_INFINITY, "green"), (1.0, "orange")];
/// Degrees to a limit of the board: at 0 it acts.
pub(super) const MARGIN: &[(f64, &str)] = &[(f64::NEG_INFINITY, "red"), (0.1, "orange"), (5.0, "green")];
const PLAIN: &[(f64, &str)] = &[(f64::NEG_INFINITY, "text")];

impl Panel {
    fn new(view: View, title: &'static str, answers: &'static str, (width, height): (u32, u32)) -> Self {
        Self {
            view,
            title,
            answers,
            unit: "none",
            width,
            height,
            queries: Vec::new(),
            empty: None,
            bounds: (None, None),
            decimals: None,
            steps: PLAIN,
            columns: Vec::new(),
            keys: Vec::new(),
            sorted_by: &[],
            is_paged: false,
            widths: &[],
            mappings: &[],
            limits: None,
            shown: Shown::Value,
        }
    }

    /// A number of the present.
    pub(super) fn stat(title: &'static str, answers: &'static str) -> Self {
        Self::new(View::Stat, title, answers, (4, 4))
    }

    /// Series over time.
    pub(super) fn lines(title: &'static str, answers: &'static str) -> Self {
        Self::new(View::Lines, title, answers, (8, 8))
    }

    /// Series over time, one on top of the other.
    pub(super) fn stacked(title: &'static str, answers: &'static str) -> Self {
        Self::new(View::Stacked, title, answers, (8, 8))
    }

    /// States over time.
    pub(super) fn states(
        title: &'static str,
        answers: &'static str,
        mappings: &'static [(&str, &str, &str)],
    ) -> Self {
        Self { mappings, ..Self::new(View::States, title, answers, (8, 8)) }
    }

    /// Rows by label of the present; each query is a column.
    pub(super) fn table(title: &'static str, answers: &'static str) -> Self {
        Self::new(View::Table, title, answers, (24, 9))
    }

    pub(super) fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    pub(super) fn height(self, height: u32) -> Self {
        Self { height, ..self }
    }

    pub(super) fn decimals(self, decimals: u32) -> Self {
        Self { decimals: Some(decimals), ..self }
    }

    /// A share from 0 to 1.
    pub(super) fn share(self) -> Self {
        Self { unit: "percentunit", bounds: (Some(0.0), Some(1.0)), ..self }
    }

    pub(super) fn zero_based(self) -> Self {
        Self { bounds: (Some(0.0), None), ..self }
    }

    pub(super) fn colours(self, steps: &'static [(f64, &'static str)]) -> Self {
        Self { steps, ..self }
    }

    /// Series that are named like these states have their colours.
    pub(super) fn coloured_like(self, states: &'static [(&str, &str, &str)]) -> Self {
        Self { mappings: states, ..self }
    }

    pub(super) fn limits(self, names: &'static str) -> Self {
        Self { limits: Some(names), ..self }
    }

    /// Shows a label of the series, not its value.
    pub(super) fn shows_label(self, label: &'static str) -> Self {
        Self { shown: Shown::Label(label), ..self }
    }

    /// Shows the legend of a series beside its value.
    pub(super) fn shows_legend(self) -> Self {
        Self { shown: Shown::ValueAndLegend, ..self }
    }

    /// What it means that it is empty.
    pub(super) fn empty(self, meaning: &'static str) -> Self {
        Self { empty: Some(meaning), ..self }
    }

    pub(super) fn query(mut self, expression: &str, legend: &str) -> Self {
        self.queries.push(Query { expression: expand(expression), legend: legend.into() });
        self
    }

    /// A label that each row of a table shows.
    pub(super) fn key(mut self, label: &'static str, heading: &'static str) -> Self {
        self.keys.push(Key { label, heading, link: None, is_hidden: false });
        self
    }

    /// A label that leads to another dashboard.
    pub(super) fn linked_key(mut self, label: &'static str, heading: &'static str, link: Link) -> Self {
        self.keys.push(Key { label, heading, link: Some(link), is_hidden: false });
        self
    }

    /// The GPU of each row by its index, which leads to its dashboard. Its UUID, which that needs, is shown on hover only.
    pub(super) fn gpu_key(mut self) -> Self {
        self = self.linked_key("gpu", "GPU", TO_GPU);
        self.keys.push(Key { label: "uuid", heading: "UUID", link: None, is_hidden: true });
        self
    }

    /// A column of a table: the value of a query.
    pub(super) fn column(self, title: &'static str, unit: &'static str, expression: &str) -> Self {
        self.coloured_column(title, unit, expression, PLAIN)
    }

    pub(super) fn coloured_column(
        mut self,
        title: &'static str,
        unit: &'static str,
        expression: &str,
        steps: &'static [(f64, &'static str)],
    ) -> Self {
        self.columns.push(Column { steps, ..Column::new(title, unit) });
        self.query(expression, "")
    }

    /// A column of amounts of money.
    pub(super) fn money_column(self, title: &'static str, expression: &str) -> Self {
        self.number_column(title, 2, expression)
    }

    /// A column of numbers whose unit is in its heading.
    pub(super) fn number_column(mut self, title: &'static str, decimals: u32, expression: &str) -> Self {
        self.columns.push(Column { decimals: Some(decimals), ..Column::new(title, "locale") });
        self.query(expression, "")
    }

    /// A column that says what its value means: the first text whose limit the value does not exceed.
    pub(super) fn words_column(
        mut self,
        title: &'static str,
        expression: &str,
        words: &'static [(f64, &'static str)],
    ) -> Self {
        self.columns.push(Column { words, ..Column::new(title, "none") });
        self.query(expression, "")
    }

    /// What a cell of the last column says where the row has no value for it.
    pub(super) fn absent(mut self, text: &'static str) -> Self {
        if let Some(column) = self.columns.last_mut() {
            column.absent = text;
        }
        self
    }

    /// Shows pages of a table, and how many rows it has.
    pub(super) fn paged(self) -> Self {
        Self { is_paged: true, ..self }
    }

    pub(super) fn widths(self, widths: &'static [(&'static str, u32)]) -> Self {
        Self { widths, ..self }
    }

    pub(super) fn sorted_by(self, columns: &'static [&'static str]) -> Self {
        Self { sorted_by: columns, ..self }
    }

    /// Restricts each query's rows to those with a label, which the table shows; its value says nothing.
    pub(super) fn label_column(self, label: &'static str, heading: &'static str, expression: &str) -> Self {
        self.column("", "none", expression).key(label, heading)
    }

    /// The level that its queries need, and its sources.
    pub(super) fn needs(&self) -> promql::Needs {
        let mut needs = promql::Needs::default();
        for query in &self.queries {
            needs.add(&query.expression);
        }
        needs
    }

    /// What the panel says about itself.
    pub(super) fn description(&self) -> String {
        let needs = self.needs();
        let sources: Vec<&str> = needs.metrics.iter().map(|name| &**name).collect();
        let level = match needs.level {
            gpumeter::model::catalogue::Level::Full => " Needs level full.",
            _ => "",
        };
        let empty = self.empty.map(|meaning| format!(" Empty: {meaning}.")).unwrap_or_default();
        format!("{}{empty}{level} Source: {}.", self.answers, sources.join(", "))
    }

    /// The panel as Grafana reads it, on a dashboard with these variables.
    pub(super) fn json(&self, id: usize, (x, y): (u32, u32), variables: &[&str]) -> Value {
        let mut panel = json!({
            "id": id,
            "type": self.kind(),
            "title": self.title,
            "description": self.description(),
            "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height },
            "datasource": datasource(),
            "fieldConfig": { "defaults": self.defaults(), "overrides": self.overrides(variables) },
            "options": self.options(),
            "targets": self.targets(),
        });
        if self.view == View::Table {
            panel["transformations"] = self.transformations();
        }
        panel
    }

    fn kind(&self) -> &'static str {
        match self.view {
            View::Stat => "stat",
            View::Lines | View::Stacked => "timeseries",
            View::Table => "table",
            View::States => "state-timeline",
        }
    }

    fn targets(&self) -> Vec<Value> {
        let is_instant = matches!(self.view, View::Stat | View::Table);
        let is_table = self.view == View::Table || matches!(self.shown, Shown::Label(_));
        let format = if is_table { "table" } else { "time_series" };
        let letters = (b'A'..=b'Z').map(|letter| char::from(letter).to_string());
        letters
            .zip(&self.queries)
            .map(|(letter, query)| {
                json!({
                    "refId": letter,
                    "datasource": datasource(),
                    "expr": query.expression,
                    "legendFormat": query.legend,
                    "instant": is_instant,
                    "range": !is_instant,
                    "format": format,
                })
            })
            .collect()
    }

    fn defaults(&self) -> Value {
        let mut defaults = json!({
            "unit": self.unit,
            "thresholds": { "mode": "absolute", "steps": steps(self.steps) },
        });
        for (key, bound) in [("min", self.bounds.0), ("max", self.bounds.1)] {
            if let Some(bound) = bound {
                defaults[key] = json!(bound);
            }
        }
        if let Some(decimals) = self.decimals {
            defaults["decimals"] = json!(decimals);
        }
        if let Some(meaning) = self.empty {
            defaults["noValue"] = json!(meaning);
        }
        match self.view {
            View::Lines => defaults["custom"] = json!({ "showPoints": "never", "spanNulls": false }),
            View::Stacked => {
                defaults["custom"] = json!({
                    "showPoints": "never", "spanNulls": false, "fillOpacity": 40,
                    "stacking": { "mode": "normal", "group": "A" },
                });
            }
            View::States => defaults["mappings"] = json!([{ "type": "value", "options": self.mapped() }]),
            View::Stat | View::Table => {}
        }
        // Where all are 0, Grafana draws an axis up to 100, which are 10,000 %.
        if self.unit == "percentunit" && self.bounds.1.is_none() && defaults["custom"].is_object() {
            defaults["custom"]["axisSoftMax"] = json!(1);
        }
        defaults
    }

    /// The texts of the values of a state.
    fn mapped(&self) -> Value {
        let rows = self.mappings.iter().enumerate();
        rows.map(|(at, (value, text, colour))| {
            ((*value).to_owned(), json!({ "text": text, "color": colour, "index": at }))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
    }

    fn overrides(&self, variables: &[&str]) -> Vec<Value> {
        let by_name = |name: &str, properties: Value| json!({ "matcher": { "id": "byName", "options": name }, "properties": properties });
        let mut overrides = Vec::new();
        for column in self.columns.iter().filter(|column| !column.title.is_empty()) {
            let mut properties = vec![
                json!({ "id": "unit", "value": column.unit }),
                json!({ "id": "thresholds", "value": { "mode": "absolute", "steps": steps(column.steps) } }),
                json!({ "id": "custom.cellOptions", "value": { "type": "color-text" } }),
            ];
            if let Some(decimals) = column.decimals {
                properties.push(json!({ "id": "decimals", "value": decimals }));
            }
            if !column.words.is_empty() {
                properties.push(json!({ "id": "mappings", "value": ranges(column.words) }));
                properties.push(json!({ "id": "custom.align", "value": "left" }));
            }
            overrides.push(by_name(column.title, json!(properties)));
        }
        for key in &self.keys {
            if let Some(link) = key.link {
                let links = json!([self.link(key, link, variables)]);
                overrides.push(by_name(key.heading, json!([{ "id": "links", "value": links }])));
            }
            if key.is_hidden {
                overrides.push(by_name(key.heading, json!([{ "id": "custom.hidden", "value": true }])));
            }
        }
        if self.view == View::Table && self.empty.is_some() {
            // The meaning of an empty table is not that of an empty cell.
            overrides.push(json!({
                "matcher": { "id": "byRegexp", "options": "/.*/" },
                "properties": [{ "id": "noValue", "value": "" }],
            }));
        }
        for column in self.columns.iter().filter(|column| !column.absent.is_empty()) {
            overrides.push(by_name(column.title, json!([{ "id": "noValue", "value": column.absent }])));
        }
        for (name, width) in self.widths {
            overrides.push(by_name(name, json!([{ "id": "custom.width", "value": width }])));
        }
        if self.view == View::Stacked {
            for (_, name, colour) in self.mappings {
                let fixed = json!({ "mode": "fixed", "fixedColor": colour });
                overrides.push(by_name(name, json!([{ "id": "color", "value": fixed }])));
            }
        }
        if let Some(names) = self.limits {
            overrides.push(json!({
                "matcher": { "id": "byRegexp", "options": format!("/{names}/") },
                "properties": [
                    { "id": "custom.lineStyle", "value": { "fill": "dash", "dash": [8, 8] } },
                    { "id": "custom.fillOpacity", "value": 0 },
                    { "id": "color", "value": { "mode": "fixed", "fixedColor": "red" } },
                ],
            }));
        }
        overrides
    }

    /// Keeps the time and the variables; a label of the row sets one, and the row's node another.
    fn link(&self, key: &Key, Link { dashboard, variable }: Link, variables: &[&str]) -> Value {
        let other = self.keys.iter().find(|other| other.label == variable && key.label != variable);
        let title = format!("{} ${{__value.text}}", key.heading);
        let (title, value) = match other {
            Some(Key { heading, .. }) => {
                let value = format!("${{__data.fields.{heading}}}");
                (format!("{title}, {heading} {value}"), value)
            }
            None => (title, "${__value.text}".into()),
        };
        // That of tenants is of all nodes.
        let is_of_nodes = !["instance", "tenant"].contains(&variable);
        let node = self.keys.iter().find(|key| key.label == "instance" && is_of_nodes);
        let mut url = format!("/d/{dashboard}?${{__url_time_range}}");
        for kept in variables.iter().filter(|kept| **kept != variable) {
            if *kept != "instance" || node.is_none() {
                url += &format!("&${{{kept}:queryparam}}");
            }
        }
        if let Some(node) = node {
            url += &format!("&var-instance=${{__data.fields.{}}}", node.heading);
        }
        json!({ "title": title, "url": format!("{url}&var-{variable}={value}") })
    }

    fn options(&self) -> Value {
        match self.view {
            View::Stat => {
                let (text_mode, fields, values) = match self.shown {
                    Shown::Value => ("auto", String::new(), false),
                    Shown::ValueAndLegend => ("value_and_name", String::new(), false),
                    Shown::Label(label) => ("value", format!("/^{label}$/"), true),
                };
                json!({
                    "colorMode": "value",
                    "graphMode": "none",
                    "textMode": text_mode,
                    "reduceOptions": { "calcs": ["lastNotNull"], "fields": fields, "values": values },
                })
            }
            View::Lines | View::Stacked => json!({
                "legend": { "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"],
                            "sortBy": "Last *", "sortDesc": true },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            View::Table => {
                let mut options = json!({ "cellHeight": "sm", "showHeader": true });
                if !self.sorted_by.is_empty() {
                    let descending = |title| json!({ "displayName": title, "desc": true });
                    options["sortBy"] = self.sorted_by.iter().map(descending).collect();
                }
                if self.is_paged {
                    // Grafana 11 reads it in the footer.
                    options["enablePagination"] = json!(true);
                    options["footer"] = json!({ "show": false, "reducer": [], "enablePagination": true });
                }
                options
            }
            View::States => {
                json!({ "mergeValues": true, "showValue": "auto", "legend": { "showLegend": true } })
            }
        }
    }

    /// One row for equal labels, with headings in order; what is not named is hidden.
    fn transformations(&self) -> Value {
        let letters: Vec<String> = (b'A'..=b'Z').map(|letter| char::from(letter).to_string()).collect();
        let value = |at: usize| match self.queries.len() {
            1 => "Value".to_owned(),
            _ => format!("Value #{}", letters[at]),
        };
        let (mut renamed, mut order, mut kept) = (json!({}), json!({}), Vec::new());
        for key in &self.keys {
            renamed[key.label] = json!(key.heading);
            order[key.label] = json!(kept.len());
            kept.push(key.label.to_owned());
        }
        for (at, column) in self.columns.iter().enumerate().filter(|(_, column)| !column.title.is_empty()) {
            renamed[value(at)] = json!(column.title);
            order[value(at)] = json!(kept.len());
            kept.push(value(at));
        }
        json!([
            { "id": "merge", "options": {} },
            { "id": "filterFieldsByName", "options": { "include": { "names": kept } } },
            { "id": "organize", "options": {
                "excludeByName": {}, "indexByName": order, "renameByName": renamed,
            } },
        ])
    }
}

/// The data source that the dashboard's first variable chooses.
pub(super) fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn steps(steps: &[(f64, &str)]) -> Vec<Value> {
    steps.iter().map(|(from, colour)| json!({ "value": limit(*from), "color": colour })).collect()
}

/// A limit that is none is written as null.
fn limit(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

/// Texts in place of values, each from the limit before it up to its own.
fn ranges(words: &[(f64, &str)]) -> Vec<Value> {
    let mut from = f64::NEG_INFINITY;
    let mut ranges = Vec::new();
    for (index, (to, text)) in words.iter().enumerate() {
        let result = json!({ "text": text, "index": index });
        ranges.push(json!({ "type": "range", "options": { "from": limit(from), "to": limit(*to), "result": result } }));
        from = *to;
    }
    ranges
}

/// Writes out the matchers that are written short, and puts the query on one line.
pub(super) fn expand(expression: &str) -> String {
    let fleet = r#"cluster=~"$cluster", job=~"$job""#;
    let node = format!(r#"{fleet}, instance=~"$instance""#);
    let device = format!(r#"{node}, uuid=~"$uuid""#);
    let words: Vec<&str> = expression.split_whitespace().collect();
    words.join(" ").replace("$fleet", fleet).replace("$node", &node).replace("$device", &device)
}
