//! What work costs, by what controls the pods that do it.

use super::panel::Panel;
use super::shared;
use super::{Dashboard, Question, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let mut variables = shared::cluster_and_job();
    for (name, label, selector) in [
        ("namespace", "Namespace", "namespace_owner:gpu_workload_held_seconds:increase1h{$fleet}"),
        (
            "owner",
            "Owner",
            r#"namespace_owner:gpu_workload_held_seconds:increase1h{$fleet, namespace=~"$namespace"}"#,
        ),
    ] {
        variables.push(Variable { name, label, selector, all: Some(".*") });
    }
    Dashboard {
        name: "unit-cost",
        title: "Unit cost",
        summary: "What tokens and requests cost in money and joules, by owner: the controller of the pods. Each point is of the hour before it; needs alerts/unit_cost.yaml and sampling.workload_counters. Money here is an estimate: gpumeter bill prints the amounts that count.",
        questions: questions(),
        variables,
        annotations: shared::annotations("$fleet", true),
        rows: vec![by_owner(), over_time(), load(), everything()],
        from: "now-24h",
    }
}

const SCOPE: &str = r#"$fleet, namespace=~"$namespace", owner=~"$owner""#;

/// An expression in which `$own` stands for the matchers of the chosen owners.
fn own(expression: &str) -> String {
    expression.replace("$own", SCOPE)
}

const NO_WORK: &str = "no server of the chosen owners counted a token in the last hour";
const NO_MONEY: &str = "no prices are configured, or no server counted a token in the last hour";

/// Money or energy of the owners that have it and produced units, divided by their units: a ratio of sums, so that it is right over
/// several owners, clusters and jobs, too.
fn per_unit(metric: &str, unit: &str, by: &str) -> String {
    let ratio = format!("namespace_owner_unit:gpu_workload_{metric}:per_unit1h{{$own, unit=\"{unit}\"}}");
    let units = format!(
        "on (cluster, job, namespace, owner) group_left () namespace_owner_unit:work_units:increase1h{{$own, unit=\"{unit}\"}}"
    );
    own(&format!("sum by ({by}) ({ratio} * {units}) / sum by ({by}) (0 * {ratio} + {units})"))
}

fn per_million(basis: &str, by: &str) -> String {
    format!("1e6 * {}", per_unit(&format!("{basis}_cost"), "output_tokens", by))
}

fn per_token(energy: &str, by: &str) -> String {
    per_unit(&format!("{energy}_joules"), "output_tokens", by)
}

const OWNER: &str = "namespace, owner";
const PRICED_OWNER: &str = "namespace, owner, currency";

fn questions() -> [Question; 3] {
    [
        Question {
            text: "What does a million output tokens cost?",
            panels: vec![
                Panel::stat("Per million, held (estimate)", "Price of what the owners held in the last hour, by their output tokens: what you pay, and the number to compare with an API's price; an estimate beside the bill.")
                    .unit("locale")
                    .decimals(2)
                    .shows_legend()
                    .query(&per_million("held", "currency"), "{{currency}}, held")
                    .empty(NO_MONEY),
                Panel::stat("Per million, used (estimate)", "The same for the time that the work kept GPUs busy: what it would cost if they never waited; an estimate.")
                    .unit("locale")
                    .decimals(2)
                    .shows_legend()
                    .query(&per_million("used", "currency"), "{{currency}}, used")
                    .empty(NO_MONEY),
            ],
        },
        Question {
            text: "What energy does an output token take?",
            panels: vec![
                Panel::stat("Joules per output token", "Energy of the GPUs, by output tokens; all, and without their idle power.")
                    .unit("joule")
                    .decimals(3)
                    .shows_legend()
                    .query(&per_token("energy", ""), "all")
                    .query(&per_token("dynamic_energy", ""), "dynamic")
                    .width(8)
                    .empty(NO_WORK),
            ],
        },
        Question {
            text: "How well are the held GPUs kept?",
            panels: vec![
                Panel::stat("Used of held", "Low: the model waits, so consolidate. High and dear: reconsider the model, its precision, its batches. High and cheap: well kept. Above 100 %: it also used what others held.")
                    .unit("percentunit")
                    .query(
                        &own("sum(namespace_owner:gpu_workload_used_seconds:increase1h{$own}) / (sum(namespace_owner:gpu_workload_held_seconds:increase1h{$own}) > 0)"),
                        "used",
                    )
                    .empty("the chosen owners held no GPU in the last hour"),
                Panel::stat("Requests running and waiting", "Now, over the chosen owners; the same GPU costs many times more per token at one request than at fifty.")
                    .query(&own("sum(namespace_owner_model:llm_requests_running:sum{$own})"), "running")
                    .query(&own("sum(namespace_owner_model:llm_requests_waiting:sum{$own})"), "waiting")
                    .shows_legend()
                    .empty("no server of the chosen owners reports its load"),
            ],
        },
    ]
}

fn by_owner() -> Row {
    Row {
        title: "By owner. Held dear, used cheap: consolidate. Both dear: reconsider the model. Both cheap: well kept",
        panels: vec![
            Panel::table("Money by owner, of the last hour (estimate)", "Per million output tokens by what is held and what is used, per million of input and output together, and per thousand requests; an estimate beside the bill.")
                .width(14)
                .empty(NO_MONEY)
                .key("namespace", "Namespace")
                .key("owner", "Owner")
                .key("currency", "Currency")
                .money_column("Held, per million", &per_million("held", PRICED_OWNER))
                .money_column("Used, per million", &per_million("used", PRICED_OWNER))
                .money_column("Held, input too", &format!("1e6 * {}", per_unit("held_cost", "tokens", PRICED_OWNER)))
                .money_column("Held, per thousand requests", &format!("1e3 * {}", per_unit("held_cost", "requests", PRICED_OWNER)))
                .sorted_by(&["Held, per million"]),
            Panel::table("Energy and use by owner, of the last hour", "Joules per output token, and the share of held time that the work kept GPUs busy.")
                .width(10)
                .empty("nobody held a GPU in the last hour")
                .key("namespace", "Namespace")
                .key("owner", "Owner")
                .column("Joules per token", "joule", &per_token("energy", OWNER))
                .column("Dynamic", "joule", &per_token("dynamic_energy", OWNER))
                .column(
                    "Used of held",
                    "percentunit",
                    &own("sum by (namespace, owner) (namespace_owner:gpu_workload_used_seconds:increase1h{$own}) / on (namespace, owner) (sum by (namespace, owner) (namespace_owner:gpu_workload_held_seconds:increase1h{$own}) > 0)"),
                ),
        ],
    }
}

fn over_time() -> Row {
    let lines = |title, answers, basis: &str| {
        Panel::lines(title, answers).unit("locale").zero_based().empty(NO_MONEY).query(
            &format!("topk(10, {})", per_million(basis, PRICED_OWNER)),
            "{{namespace}} {{owner}} {{currency}}",
        )
    };
    Row {
        title: "Over time, the ten dearest at each moment",
        panels: vec![
            lines(
                "Held, per million output tokens (estimate)",
                "What you pay; high at night, if nobody scales in. An estimate.",
                "held",
            ),
            lines(
                "Used, per million output tokens (estimate)",
                "What the work alone would cost. It changes with model, precision and batches. An estimate.",
                "used",
            ),
            Panel::lines(
                "Joules per output token, by owner",
                "Energy of the GPUs, their idle power included.",
            )
            .unit("joule")
            .zero_based()
            .empty(NO_WORK)
            .query(&format!("topk(10, {})", per_token("energy", OWNER)), "{{namespace}} {{owner}}"),
        ],
    }
}

fn load() -> Row {
    let requests = |title, answers, state: &str| {
        Panel::lines(title, answers)
            .zero_based()
            .empty("no server of the chosen owners reports its load")
            .query(
                &own(&format!(
                    "topk(10, sum by (namespace, owner, model) (namespace_owner_model:llm_requests_{state}:sum{{$own}}))"
                )),
                "{{namespace}} {{owner}} {{model}}",
            )
    };
    Row {
        title: "Load, by owner and model",
        panels: vec![
            requests("Requests running", "What the servers work at now.", "running"),
            requests("Requests waiting", "What waits for a server; with GPUs busy it asks for more replicas.", "waiting"),
            Panel::lines("Output tokens per second", "Mean of the hour before.")
                .zero_based()
                .empty(NO_WORK)
                .query(
                    &own(r#"topk(10, sum by (namespace, owner) (namespace_owner_unit:work_units:increase1h{$own, unit="output_tokens"})) / 3600"#),
                    "{{namespace}} {{owner}}",
                ),
        ],
    }
}

fn everything() -> Row {
    Row {
        title: "Where the money is, with and without units",
        panels: vec![
            Panel::table("All owners, of the last hour (estimate)", "Price of what each held and used, those without units of work among them: with the remainders it is the whole account. An estimate beside the bill.")
                .width(24)
                .empty("no prices are configured, or nobody held a GPU in the last hour")
                .key("namespace", "Namespace")
                .key("owner", "Owner")
                .key("currency", "Currency")
                .money_column("Held", &own("sum by (namespace, owner, currency) (namespace_owner:gpu_workload_held_cost:increase1h{$own})"))
                .money_column("Used", &own("sum by (namespace, owner, currency) (namespace_owner:gpu_workload_used_cost:increase1h{$own})"))
                .sorted_by(&["Held"]),
        ],
    }
}
