//! Reads PromQL: which metrics an expression needs, and whether it fits the catalogue.
//!
//! A parser checks syntax and types. Here each metric is looked up in the catalogue, each label is followed through
//! aggregations and joins, and a function gets the kind of metric that it is for. Prometheus itself is not needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use gpumeter::model::catalogue::{Family, Kind, Level, family, values_of};
use promql_parser::label::{MatchOp, Matchers};
use promql_parser::parser::{
    AggregateExpr, BinModifier, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality,
    VectorSelector, parse,
};

use crate::rules::{self, Rule};

/// Labels that a target adds to every series.
pub const OF_THE_TARGET: [&str; 3] = ["cluster", "job", "instance"];

/// Series that others write.
struct Foreign {
    name: &'static str,
    is_counter: bool,
    labels: &'static [&'static str],
}

const fn foreign(name: &'static str, labels: &'static [&'static str]) -> Foreign {
    Foreign { name, is_counter: false, labels }
}

const fn foreign_counter(name: &'static str, labels: &'static [&'static str]) -> Foreign {
    Foreign { name, is_counter: true, labels }
}

/// Labels of vLLM's series, and of TensorRT-LLM's and NIM's as far as the rules read them.
const MODEL: &[&str] = &["namespace", "pod", "model_name", "engine"];
const FINISHED: &[&str] = &["namespace", "pod", "model_name", "finished_reason"];
/// Labels of SGLang's counters, which its tokenizer keeps, and of its gauges, which each rank may have.
const SGLANG: &[&str] = &["namespace", "pod", "model_name", "engine_type"];
const SGLANG_RANK: &[&str] =
    &["namespace", "pod", "model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "priority"];
const TGI: &[&str] = &["namespace", "pod"];
const TRITON: &[&str] = &["namespace", "pod", "model", "version"];

/// Where engines' names and labels come from, `docs/unit-cost.md` says.
const FOREIGN: &[Foreign] = &[
    // Its target's labels, as on what the target answers.
    foreign("up", &["namespace", "pod"]),
    foreign("scrape_samples_scraped", &[]),
    foreign("kube_node_spec_unschedulable", &["node"]),
    foreign("kube_pod_status_ready", &["namespace", "pod", "condition"]),
    foreign("kube_pod_owner", &["namespace", "pod", "owner_kind", "owner_name"]),
    foreign("kube_replicaset_owner", &["namespace", "replicaset", "owner_kind", "owner_name"]),
    foreign("kube_deployment_spec_replicas", &["namespace", "deployment"]),
    foreign("kube_deployment_status_replicas_ready", &["namespace", "deployment"]),
    foreign("kueue_pending_workloads", &["cluster_queue", "status"]),
    // slurmctld's own, from Slurm 25.11 on.
    foreign("slurm_jobs_pending", &[]),
    foreign("slurm_jobs_hold", &[]),
    foreign("slurm_node_cpu_total", &["node", "status"]),
    // The flow control of the Gateway API's inference extension.
    foreign("inference_extension_flow_control_queue_size", &["namespace", "inference_pool"]),
    foreign_counter("vllm:prompt_tokens_total", MODEL),
    foreign_counter("vllm:generation_tokens_total", MODEL),
    foreign_counter("vllm:request_success_total", FINISHED),
    foreign("vllm:num_requests_running", MODEL),
    foreign("vllm:num_requests_waiting", MODEL),
    foreign_counter("sglang:prompt_tokens_total", SGLANG),
    foreign_counter("sglang:generation_tokens_total", SGLANG),
    foreign_counter("sglang:num_requests_total", SGLANG),
    foreign("sglang:num_running_reqs", SGLANG_RANK),
    foreign("sglang:num_queue_reqs", SGLANG_RANK),
    foreign_counter("trtllm_prompt_tokens_total", MODEL),
    foreign_counter("trtllm_generation_tokens_total", MODEL),
    foreign_counter("trtllm_request_success_total", FINISHED),
    foreign_counter("trtllm:request_success_total", FINISHED),
    foreign("trtllm_num_requests_running", MODEL),
    foreign("trtllm_num_requests_waiting", MODEL),
    foreign_counter("prompt_tokens_total", MODEL),
    foreign_counter("generation_tokens_total", MODEL),
    foreign_counter("request_finish_total", FINISHED),
    foreign("num_requests_running", MODEL),
    foreign("num_requests_waiting", MODEL),
    foreign_counter("tgi_request_generated_tokens_sum", TGI),
    foreign_counter("tgi_request_input_length_sum", TGI),
    foreign_counter("tgi_request_count", TGI),
    foreign("tgi_batch_current_size", TGI),
    foreign("tgi_queue_size", TGI),
    foreign_counter("nv_inference_request_success", TRITON),
    foreign("nv_inference_pending_request_count", TRITON),
];

/// Which metrics expressions need, and from which level on they are exported.
pub struct Needs {
    pub metrics: BTreeSet<String>,
    pub level: Level,
}

impl Default for Needs {
    fn default() -> Self {
        Self { metrics: BTreeSet::new(), level: Level::Lean }
    }
}

impl Needs {
    pub fn add(&mut self, expression: &str) {
        for (name, _) in selectors(&parsed(expression)) {
            self.level = self.level.max(level(&name));
            self.metrics.insert(name);
        }
    }
}

fn level(name: &str) -> Level {
    match known(name) {
        Ok(Known::Family(family)) => family.level,
        Ok(Known::Recorded(recorded)) => recorded.level,
        _ => Level::Lean,
    }
}

/// Parses an expression, in which Grafana's own variables stand for spans.
///
/// # Panics
///
/// If it is no PromQL.
pub fn parsed(expression: &str) -> Expr {
    let spans = [("$__rate_interval", "1m"), ("$__interval", "1m"), ("$__range", "1h")];
    let text = spans.iter().fold(expression.to_owned(), |text, (name, span)| text.replace(name, span));
    parse(&text).unwrap_or_else(|problem| panic!("{expression}: {problem}"))
}

/// The metric and the matchers of each selector.
pub fn selectors(expression: &Expr) -> Vec<(String, Matchers)> {
    let mut found = Vec::new();
    visit(expression, &mut Vec::new(), &mut |node, _| {
        let selector = match node {
            Expr::VectorSelector(selector) => selector,
            Expr::MatrixSelector(matrix) => &matrix.vs,
            _ => return,
        };
        found.push((selector.name.clone().unwrap_or_default(), selector.matchers.clone()));
    });
    found
}

/// Calls a function with each node and its ancestors, the nearest last.
pub fn visit<'a>(
    node: &'a Expr,
    ancestors: &mut Vec<&'a Expr>,
    function: &mut impl FnMut(&'a Expr, &[&'a Expr]),
) {
    function(node, ancestors);
    ancestors.push(node);
    let mut children: Vec<&Expr> = Vec::new();
    match node {
        Expr::Aggregate(aggregate) => {
            children.push(&aggregate.expr);
            children.extend(aggregate.param.as_deref());
        }
        Expr::Unary(unary) => children.push(&unary.expr),
        Expr::Binary(binary) => children.extend([&*binary.lhs, &*binary.rhs]),
        Expr::Paren(paren) => children.push(&paren.expr),
        Expr::Subquery(subquery) => children.push(&subquery.expr),
        Expr::Call(call) => children.extend(call.args.args.iter().map(|argument| &**argument)),
        _ => {}
    }
    for child in children {
        visit(child, ancestors, function);
    }
    ancestors.pop();
}

/// A metric that may be named.
enum Known {
    Family(&'static Family),
    Recorded(&'static Recorded),
    Foreign(&'static Foreign),
    Alerts,
}

/// What a recording rule writes.
#[derive(Debug)]
pub struct Recorded {
    labels: BTreeSet<String>,
    level: Level,
}

/// All recorded series, by name. A rule may read those above it, and itself.
static RECORDED: LazyLock<BTreeMap<String, Recorded>> = LazyLock::new(|| {
    let mut all: BTreeMap<String, Recorded> = BTreeMap::new();
    for Rule { record, expr, labels, .. } in rules::all().into_iter().chain(rules::of_autoscaling()) {
        let Some(name) = record else { continue };
        let mut level = Level::Lean;
        for (metric, _) in selectors(&parsed(&expr)).iter().filter(|(metric, _)| *metric != name) {
            level = level.max(all.get(metric).map_or_else(|| family_level(metric), |known| known.level));
        }
        let series = Inference { recorded: &all, own: Some(&name) }.infer(&parsed(&expr));
        let mut found = series.unwrap_or_else(|problem| panic!("{name}: {problem}")).labels;
        found.extend(labels.into_keys());
        all.entry(name).or_insert(Recorded { labels: found, level });
    }
    all
});

fn family_level(name: &str) -> Level {
    known_family(name).map_or(Level::Lean, |family| family.level)
}

/// The family of that name; histograms by the names of their series.
pub fn known_family(name: &str) -> Option<&'static Family> {
    family(name).or_else(|| {
        let ends = ["_bucket", "_sum", "_count"];
        let stem = ends.iter().find_map(|end| name.strip_suffix(end))?;
        family(stem).filter(|family| family.kind == Kind::Histogram)
    })
}

fn known(name: &str) -> Result<Known, String> {
    if let Some(recorded) = RECORDED.get(name) {
        return Ok(Known::Recorded(recorded));
    }
    unrecorded(name)
}

fn unrecorded(name: &str) -> Result<Known, String> {
    if name == "ALERTS" {
        return Ok(Known::Alerts);
    }
    if let Some(foreign) = FOREIGN.iter().find(|foreign| foreign.name == name) {
        return Ok(Known::Foreign(foreign));
    }
    known_family(name).map(Known::Family).ok_or_else(|| format!("there is no metric {name}"))
}

/// What is known of the result of an expression.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The labels that its series can have; none of a scalar.
    pub labels: BTreeSet<String>,
    /// Those that a matcher gives one value.
    pub fixed: BTreeSet<String>,
    is_scalar: bool,
    is_counter: bool,
    is_alerts: bool,
}

/// Checks an expression against the catalogue and the recorded series, and returns what its result is.
pub fn check(expression: &str) -> Result<Series, String> {
    let series = Inference { recorded: &RECORDED, own: None }.infer(&parsed(expression))?;
    if series.is_counter {
        return Err("a counter is shown as it stands".into());
    }
    Ok(series)
}

/// Functions of counters, and of gauges.
const OF_COUNTERS: [&str; 4] = ["rate", "irate", "increase", "resets"];
const OF_GAUGES: [&str; 7] =
    ["delta", "deriv", "avg_over_time", "sum_over_time", "max_over_time", "min_over_time", "changes"];

struct Inference<'a> {
    recorded: &'a BTreeMap<String, Recorded>,
    /// The series that the rule writes itself.
    own: Option<&'a str>,
}

impl Inference<'_> {
    fn infer(&self, node: &Expr) -> Result<Series, String> {
        match node {
            Expr::Paren(paren) => self.infer(&paren.expr),
            Expr::Unary(unary) => self.infer(&unary.expr),
            Expr::Subquery(subquery) => self.infer(&subquery.expr),
            Expr::VectorSelector(selector) => self.selected(selector),
            Expr::MatrixSelector(matrix) => self.selected(&matrix.vs),
            Expr::Call(call) => self.called(call),
            Expr::Aggregate(aggregate) => self.aggregated(aggregate),
            Expr::Binary(binary) => self.combined(binary),
            _ => Ok(Series { is_scalar: true, ..Series::default() }),
        }
    }

    fn selected(&self, selector: &VectorSelector) -> Result<Series, String> {
        let name = selector.name.as_deref().unwrap_or_default();
        let target = OF_THE_TARGET.map(str::to_owned);
        let mut series = Series::default();
        if self.own == Some(name) {
            // What it adds to itself has the labels of the other operand.
            return Ok(Series { is_alerts: true, ..series });
        }
        let known = match self.recorded.get(name) {
            Some(recorded) => {
                series.labels = recorded.labels.clone();
                None
            }
            None => Some(unrecorded(name)?),
        };
        match known {
            Some(Known::Family(family)) => {
                series.labels.extend(family.labels.iter().map(|label| (*label).to_owned()));
                series.labels.extend(target);
                series.is_counter = family.kind != Kind::Gauge;
                if name.ends_with("_bucket") && family.kind == Kind::Histogram {
                    series.labels.insert("le".into());
                }
                check_values(family, &selector.matchers)?;
            }
            Some(Known::Foreign(foreign)) => {
                series.labels.extend(foreign.labels.iter().map(|label| (*label).to_owned()));
                series.labels.extend(target);
                series.is_counter = foreign.is_counter;
            }
            Some(Known::Alerts) => series.is_alerts = true,
            Some(Known::Recorded(_)) | None => {}
        }
        for matcher in &selector.matchers.matchers {
            if !series.is_alerts && !series.labels.contains(&matcher.name) {
                return Err(format!("{name} has no label {}", matcher.name));
            }
            if matcher.op == MatchOp::Equal {
                series.fixed.insert(matcher.name.clone());
            }
        }
        Ok(series)
    }

    fn called(&self, call: &Call) -> Result<Series, String> {
        let (name, arguments) = (call.func.name, &call.args.args);
        let vector = arguments
            .iter()
            .find(|argument| !matches!(argument.as_ref(), Expr::NumberLiteral(_) | Expr::StringLiteral(_)));
        let Some(vector) = vector else { return Ok(Series { is_scalar: true, ..Series::default() }) };
        let mut series = self.infer(vector)?;
        if OF_COUNTERS.contains(&name) && !series.is_counter && !series.is_alerts {
            return Err(format!("{name} is for counters: {vector}"));
        }
        if OF_GAUGES.contains(&name) && series.is_counter {
            return Err(format!("{name} is for gauges: {vector}"));
        }
        if name == "histogram_quantile" && !series.labels.remove("le") {
            return Err(format!("histogram_quantile needs the label le: {vector}"));
        }
        if let ("label_replace" | "label_join", Some(Expr::StringLiteral(label))) =
            (name, arguments.get(1).map(|a| &**a))
        {
            series.labels.insert(label.val.clone());
        }
        if name == "absent" {
            series.labels = series.fixed.clone();
        }
        if name == "vector" {
            series.is_scalar = false;
        }
        if name == "scalar" {
            return Ok(Series { is_scalar: true, ..Series::default() });
        }
        series.is_counter = series.is_counter && name == "last_over_time";
        Ok(series)
    }

    fn aggregated(&self, aggregate: &AggregateExpr) -> Result<Series, String> {
        let inner = self.infer(&aggregate.expr)?;
        let operation = aggregate.op.to_string();
        let kept = |labels: &BTreeSet<String>| match &aggregate.modifier {
            None => BTreeSet::new(),
            Some(LabelModifier::Include(by)) => by.labels.iter().cloned().collect(),
            Some(LabelModifier::Exclude(without)) => {
                labels.iter().filter(|label| !without.labels.contains(label)).cloned().collect()
            }
        };
        if let Some(modifier) = &aggregate.modifier {
            for label in &modifier.labels().labels {
                if !inner.is_alerts && !inner.labels.contains(label) {
                    return Err(format!(
                        "{operation} names the label {label}, which is not there: {aggregate}"
                    ));
                }
            }
        }
        if inner.is_counter && !["count", "group", "topk", "bottomk"].contains(&&*operation) {
            return Err(format!("a counter is aggregated as it stands: {aggregate}"));
        }
        let mut series = inner.clone();
        if !["topk", "bottomk"].contains(&&*operation) {
            series.labels = kept(&inner.labels);
            series.fixed.retain(|label| series.labels.contains(label));
            series.is_counter = false;
            series.is_alerts = false;
        }
        if let ("count_values", Some(Expr::StringLiteral(label))) = (&*operation, aggregate.param.as_deref())
        {
            series.labels.insert(label.val.clone());
        }
        Ok(series)
    }

    fn combined(&self, binary: &BinaryExpr) -> Result<Series, String> {
        let (left, right) = (self.infer(&binary.lhs)?, self.infer(&binary.rhs)?);
        if right.is_scalar || left.is_scalar {
            let mut series = if left.is_scalar { right } else { left };
            if series.is_counter && !binary.op.is_comparison_operator() {
                return Err(format!("a counter is calculated with as it stands: {binary}"));
            }
            series.is_counter = series.is_counter && binary.op.is_comparison_operator();
            return Ok(series);
        }
        let on = matched(binary.modifier.as_ref());
        for (label, side) in on.iter().flatten().flat_map(|label| [(label, &left), (label, &right)]) {
            let may_lack = label == "cluster" || side.is_alerts;
            if !may_lack && !side.labels.contains(label) {
                return Err(format!("the join is on {label}, which one side lacks: {binary}"));
            }
        }
        let is_set = binary.op.is_set_operator();
        if on.is_none() && !is_set && left.labels != right.labels && !left.is_alerts && !right.is_alerts {
            return Err(format!(
                "the sides have the labels {:?} and {:?}, and no `on` says which are joined: {binary}",
                left.labels, right.labels
            ));
        }
        joined(binary, left, right, on)
    }
}

/// The labels of `on`.
fn matched(modifier: Option<&BinModifier>) -> Option<Vec<String>> {
    match modifier?.matching.as_ref()? {
        LabelModifier::Include(on) => Some(on.labels.clone()),
        LabelModifier::Exclude(_) => None,
    }
}

fn joined(
    binary: &BinaryExpr,
    left: Series,
    right: Series,
    on: Option<Vec<String>>,
) -> Result<Series, String> {
    if binary.op.is_set_operator() {
        let mut series = left;
        if binary.op.to_string() == "or" {
            series.labels.extend(right.labels);
            series.fixed.retain(|label| right.fixed.contains(label));
            series.is_alerts = series.is_alerts && right.is_alerts;
        }
        return Ok(series);
    }
    if left.is_counter || right.is_counter {
        return Err(format!("a counter is calculated with as it stands: {binary}"));
    }
    let (mut many, one, extra) = match binary.modifier.as_ref().map(|modifier| &modifier.card) {
        Some(VectorMatchCardinality::ManyToOne(extra)) => (left, right, extra),
        Some(VectorMatchCardinality::OneToMany(extra)) => (right, left, extra),
        _ => {
            let mut series = left;
            if let Some(on) = on {
                series.labels.retain(|label| on.contains(label));
            }
            return Ok(series);
        }
    };
    for label in &extra.labels {
        if !one.labels.contains(label) && !one.is_alerts {
            return Err(format!("{label} is to come from a side that lacks it: {binary}"));
        }
        many.labels.insert(label.clone());
    }
    Ok(many)
}

/// Each value that a matcher names is one that the label can have.
fn check_values(family: &Family, matchers: &Matchers) -> Result<(), String> {
    for matcher in &matchers.matchers {
        let set = values_of(family, &matcher.name);
        let values: Vec<&str> = match &matcher.op {
            MatchOp::Equal | MatchOp::NotEqual => vec![&matcher.value],
            MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').collect(),
        };
        let is_plain =
            |value: &&str| value.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
        for value in values.into_iter().filter(is_plain) {
            if !set.is_empty() && !set.contains(&value) {
                return Err(format!("{}: {} is never {value}", family.name, matcher.name));
            }
        }
    }
    Ok(())
}

#[test]
fn expressions_that_do_not_fit_the_catalogue_are_refused() {
    for (expression, problem) in [
        ("sum(rate(gpu_power_watts[5m]))", "rate is for counters"),
        ("avg_over_time(gpu_energy_joules_total[5m])", "is for gauges"),
        ("gpu_energy_joules_total > 0", "a counter is shown"),
        ("sum(gpu_energy_joules_total)", "a counter is aggregated"),
        ("gpu_powr_watts", "there is no metric"),
        (r#"gpu_health{status="ok"}"#, "has no label status"),
        (r#"gpu_health{state="well"}"#, "is never well"),
        (r#"gpu_health{state=~"ok|well"}"#, "is never well"),
        ("sum by (tenant) (gpu_power_watts)", "the label tenant"),
        ("gpu_power_watts / gpu_power_limit_watts", "no `on`"),
        ("gpu_power_watts * on (tenant) gpu_info", "on tenant"),
        ("gpu_power_watts * on (uuid) group_left (tenant) gpu_info", "lacks it"),
        (
            "histogram_quantile(0.9, rate(gpumeter_driver_call_duration_seconds_sum[5m]))",
            "needs the label le",
        ),
    ] {
        let found = check(expression).map(|series| format!("{series:?}")).unwrap_or_else(|problem| problem);
        assert!(found.contains(problem), "{expression}: {found}");
    }
}

#[test]
fn labels_are_followed_through_joins_and_aggregations() {
    let labels = |expression| check(expression).unwrap().labels.into_iter().collect::<Vec<_>>();
    assert_eq!(labels("sum by (cluster) (gpu_power_watts)"), ["cluster"]);
    assert_eq!(labels("gpu_power_watts / on (cluster, uuid) gpu_power_watts"), ["cluster", "uuid"]);
    assert_eq!(
        labels("gpu_power_watts * on (uuid) group_left (model) gpu_info"),
        ["cluster", "gpu", "instance", "job", "model", "uuid"]
    );
    assert_eq!(labels(r#"count_values("month", month(vector(1)))"#), ["month"]);
}
