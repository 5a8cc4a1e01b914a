//! What work costs, by what controls the pods that do it.

use super::panel::Panel;
use super::shared;
use super::{Dashboard, Question, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let mut variables = vec![shared::CLUSTER];
    for (name, label, selector) in [
        (
            "namespace",
            "Namespace",
            r#"namespace_owner:gpu_workload_held_seconds:increase1h{cluster=~"$cluster"}"#,
        ),
        (
            "owner",
            "Owner",
            r#"namespace_owner:gpu_workload_held_seconds:increase1h{cluster=~"$cluster", namespace=~"$namespace"}"#,
        ),
    ] {
        variables.push(Variable { name, label, selector, all: Some(".*") });
    }
    Dashboard {
        name: "unit-cost",
        title: "Unit cost",
        summary: "What tokens and requests cost in money and joules, by owner: the controller of the pods. Each point is of the hour before it; needs alerts/unit_cost.yaml and sampling.workload_counters. Money here is an estimate: gpumeter bill prints the amounts that count.",
        terms: TERMS,
        questions: questions(),
        variables,
        annotations: shared::annotations(r#"cluster=~"$cluster""#, true),
        rows: vec![by_owner(), over_time(), load()],
        from: "now-24h",
    }
}

const SCOPE: &str = r#"cluster=~"$cluster", namespace=~"$namespace", owner=~"$owner""#;

/// An expression in which `$own` stands for the matchers of the chosen owners.
fn own(expression: &str) -> String {
    expression.replace("$own", SCOPE)
}

const NO_WORK: &str =
    "no server of the chosen owners counted a token in the last hour, or no agent saw its use";
const NO_MONEY: &str = "no prices are configured, or not for all GPUs of an owner, or no server counted a token in the last hour";

/// Money or energy of the owners that have it and produced units, divided by their units: a ratio of sums, so that it is right over
/// several owners and clusters, too.
fn per_unit(metric: &str, unit: &str, by: &str) -> String {
    let ratio = format!("namespace_owner_unit:gpu_workload_{metric}:per_unit1h{{$own, unit=\"{unit}\"}}");
    let units = format!(
        "on (cluster, namespace, owner) group_left () namespace_owner_unit:work_units:increase1h{{$own, unit=\"{unit}\"}}"
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

const TERMS: &[(&str, &str)] = &[
    (
        "Span",
        "numbers cover the last hour, each point of a graph the hour before it; \"now\" marks the exceptions. Money is an estimate: `gpumeter bill` prints the amounts that count.",
    ),
    (
        "Owner",
        "the controller of the pods, such as a Deployment; otherwise the pod, Slurm job, container, unit or user.",
    ),
    (
        "Held",
        "price of the GPU time granted to the owner, used or not. You pay for it, so compare it with the price of an API.",
    ),
    (
        "Used",
        "price of the time in which the owner's work kept a GPU busy: what you would pay if GPUs never waited.",
    ),
    (
        "Wasted",
        "held minus used, at least 0. It includes time that others used or that could not be measured.",
    ),
    (
        "Above 100 %, or used above held",
        "no error. The owner used more of a shared GPU than its share, or a GPU that it does not hold.",
    ),
    (
        "Joules, all",
        "energy of the GPUs with their idle power. **Dynamic**: only what the work adds to the idle power.",
    ),
    (
        "No tokens, no price",
        "the owner's servers counted none of that unit in the hour, or its GPUs have prices in two currencies, or one has none. No number by use or in joules: no agent saw who uses them.",
    ),
    (
        "Not counted",
        "Prometheus scrapes no server of the owner that counts output tokens, so they have no price. The first table has only owners whose servers count work.",
    ),
];

fn questions() -> [Question; 3] {
    [
        Question {
            text: "What does a million output tokens cost?",
            panels: vec![
                Panel::stat("Held per 1M output (estimate)", "Price of what the owners with output tokens held, by a million of those tokens: what you pay, and the number to compare with an API's price; an estimate beside the bill.")
                    .unit("locale")
                    .decimals(3)
                    .shows_legend()
                    .query(&per_million("held", "currency"), "{{currency}}, owners with tokens")
                    .empty(NO_MONEY),
                Panel::stat("Used per 1M output (estimate)", "The same for the time that the work kept GPUs busy: what it would cost if they never waited; an estimate.")
                    .unit("locale")
                    .decimals(3)
                    .shows_legend()
                    .query(&per_million("used", "currency"), "{{currency}}, owners with tokens")
                    .empty(NO_MONEY),
            ],
        },
        Question {
            text: "What energy does an output token take?",
            panels: vec![
                Panel::stat("Joules per output token, owners with tokens", "Energy of the GPUs of the owners with output tokens, by those tokens; all, and without their idle power.")
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
                Panel::stat("Used of held, chosen owners", "GPU time that the chosen owners used by what they held in the last hour, those without tokens too. Above 100 %: they also used what others held.")
                    .unit("percentunit")
                    .query(&format!("sum({}) / (sum({}) > 0)", own(USED_SECONDS), own(HELD_SECONDS)), "used")
                    .empty("the chosen owners held no GPU in the last hour"),
                Panel::stat("Requests now, chosen owners", "The same GPU costs many times more per token at one request than at fifty.")
                    .query(&own("sum(namespace_owner_model:llm_requests_running:sum{$own})"), "running")
                    .query(&own("sum(namespace_owner_model:llm_requests_waiting:sum{$own})"), "waiting")
                    .shows_legend()
                    .empty("no server of the chosen owners reports its load"),
            ],
        },
    ]
}

const HELD_SECONDS: &str = "namespace_owner:gpu_workload_held_seconds:increase1h{$own}";
const USED_SECONDS: &str = "namespace_owner:gpu_workload_used_seconds:increase1h{$own}";

const UNITS: &str = "namespace_owner_unit:work_units:increase1h{$own}";
const TOKENS: &str =
    r#"sum by (namespace, owner) (namespace_owner_unit:work_units:increase1h{$own, unit="output_tokens"})"#;

fn used_of_held() -> String {
    own(&format!("sum by ({OWNER}) ({USED_SECONDS}) / on ({OWNER}) (sum by ({OWNER}) ({HELD_SECONDS}) > 0)"))
}

/// What an owner may do, by the share of its held time that it used; below 0 where its servers counted no work, or work without use.
const TO_DO: &[(f64, &str)] = &[
    (-1.5, "use unknown: no agent sees its processes, or can measure them"),
    (-0.5, "no work: scale to zero; if GPUs are busy, look with what"),
    (0.05, "hardly works: scale in, or give it back"),
    (0.5, "waits: fewer replicas, smaller GPUs, or several models on one"),
    (1.05, "kept busy; if dear: reconsider model, precision, batch size"),
    (f64::INFINITY, "uses more than its share of a GPU; hold more if it is slow"),
];

fn by_owner() -> Row {
    Row { title: "By owner, of the last hour", panels: vec![price_per_unit(), waste()] }
}

fn price_per_unit() -> Panel {
    let per_request = format!("1e3 * {}", per_unit("held_cost", "requests", PRICED_OWNER));
    Panel::table("Price and energy of a unit of work, the dearest first (estimate)", "Owners whose servers Prometheus scrapes. Equal names in several clusters are one row: choose a cluster. If a server has several models, Model is the one with most requests now, and the price covers all. In + out: input and output tokens together. An estimate beside the bill.")
        .empty(NO_WORK)
        .key("namespace", "Namespace")
        .key("owner", "Owner")
        .label_column(
            "model",
            "Model",
            &own("topk by (namespace, owner) (1, sum by (namespace, owner, model) (namespace_owner_model:llm_requests_running:sum{$own}))"),
        )
        .key("currency", "Currency")
        .number_column("Held / 1M output", 3, &per_million("held", PRICED_OWNER))
        .absent("no price")
        .number_column("Used / 1M output", 3, &per_million("used", PRICED_OWNER))
        .absent("no price")
        .number_column("Held / 1M in + out", 3, &format!("1e6 * {}", per_unit("held_cost", "tokens", PRICED_OWNER)))
        .absent("no price")
        .number_column("Held / 1k requests", 3, &per_request)
        .absent("no price")
        .number_column("J / output token", 3, &per_token("energy", OWNER))
        .absent("no number")
        .number_column("Dynamic J / token", 3, &per_token("dynamic_energy", OWNER))
        .absent("no number")
        .column("Used of held", "percentunit", &format!("{} and on ({OWNER}) {}", used_of_held(), own(UNITS)))
        .absent("holds nothing")
        .number_column("Tokens / s", 1, &format!("{} / 3600", own(TOKENS)))
        .absent("no tokens")
        .sorted_by(&["Held / 1M output"])
        .paged()
        .widths(WIDTHS)
}

const WIDTHS: &[(&str, u32)] = &[
    ("Namespace", 110),
    ("Owner", 190),
    ("Model", 120),
    ("Currency", 90),
    ("Used of held", 105),
    ("Tokens / s", 85),
];

fn waste() -> Panel {
    let money = |basis: &str| {
        own(&format!(
            "sum by ({PRICED_OWNER}) (namespace_owner:gpu_workload_{basis}_cost:increase1h{{$own}})"
        ))
    };
    let (share, tokens) = (used_of_held(), own(TOKENS));
    let work = format!("sum by ({OWNER}) ({})", own(UNITS));
    let unseen = format!("({share} == 0 and on ({OWNER}) {work} > 0) - 2");
    let to_do = format!("{unseen} or ({share} unless on ({OWNER}) {work} == 0) or {share} * 0 - 1");
    Panel::table("Held, used and wasted, the most wasted first (estimate)", "All owners, those without units of work among them: with the remainders it is the whole account. What to do follows from Used of held, tokens and requests. It is a hint: a service may wait on purpose, and time that was not measured counts as not used. An estimate beside the bill.")
        .height(12)
        .empty("no prices are configured, or nobody held a GPU in the last hour")
        .key("namespace", "Namespace")
        .key("owner", "Owner")
        .key("currency", "Currency")
        .money_column("Held", &money("held"))
        .money_column("Used", &money("used"))
        .money_column("Wasted", &format!("clamp_min({} - {}, 0)", money("held"), money("used")))
        .column("Used of held", "percentunit", &share)
        .absent("holds nothing")
        .number_column("Output tokens", 0, &tokens)
        .absent("not counted")
        .words_column("What to do", &to_do, TO_DO)
        .absent("uses GPUs that it does not hold")
        .sorted_by(&["Wasted"])
        .paged()
        .widths(&[("Namespace", 110), ("Owner", 260), ("Currency", 90), ("What to do", 480)])
}

fn over_time() -> Row {
    let lines = |title, answers, basis: &str| {
        Panel::lines(title, answers).unit("locale").height(10).zero_based().empty(NO_MONEY).query(
            &format!("topk(10, {})", per_million(basis, PRICED_OWNER)),
            "{{currency}} {{namespace}} {{owner}}",
        )
    };
    Row {
        title: "Over time: each point of the hour before it, the ten dearest",
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
            .decimals(3)
            .height(10)
            .zero_based()
            .empty(NO_WORK)
            .query(&format!("topk(10, {})", per_token("energy", OWNER)), "{{namespace}} {{owner}}"),
        ],
    }
}

fn load() -> Row {
    let requests = |title, answers, state: &str| {
        Panel::lines(title, answers)
            .height(10)
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
        title: "Load by owner and model, the ten largest",
        panels: vec![
            requests("Requests running, now", "What the servers work at now.", "running"),
            requests(
                "Requests waiting, now",
                "What waits for a server; with GPUs busy it asks for more replicas.",
                "waiting",
            ),
            Panel::lines(
                "Output tokens per second, mean of an hour",
                "By what the servers counted in the hour before each point.",
            )
            .height(10)
            .zero_based()
            .empty(NO_WORK)
            .query(&format!("topk(10, {}) / 3600", own(TOKENS)), "{{namespace}} {{owner}}"),
        ],
    }
}
