//! The agents themselves.

use super::panel::{Panel, TO_NODE, ZERO_IS_BEST, ZERO_IS_WELL};
use super::shared::{self, GPU};
use super::{Dashboard, Question, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "agent",
        title: "Agent",
        summary: "The agents: whether every node is watched, whether their numbers can be trusted, and what they take of their nodes.",
        terms: &[],
        questions: questions(),
        variables: shared::down_to_node(Some(".+")),
        annotations: shared::annotations("$node", true),
        rows: vec![agents(), sampling(), account(), road(), footprint()],
        from: "now-6h",
    }
}

/// Median and highest over the chosen agents: a fleet has too many for a line each.
fn spread(title: &'static str, answers: &'static str, expression: &str) -> Panel {
    Panel::lines(title, answers)
        .zero_based()
        .query(&format!("quantile by (cluster) (0.5, {expression})"), "median {{cluster}}")
        .query(&format!("max by (cluster) ({expression})"), "highest {{cluster}}")
}

fn questions() -> [Question; 3] {
    [
        Question {
            text: "Is every node watched?",
            panels: vec![
                Panel::stat("Agents", "Agents that report, and targets that were agents within an hour and do not answer now.")
                    .query("count(gpumeter_build_info{$node})", "report")
                    .query(
                        "count(up{$node} == 0 and on (cluster, job, instance) last_over_time(gpumeter_build_info{$node}[1h])) or 0 * count(gpumeter_build_info{$node})",
                        "unwatched",
                    ),
                Panel::stat("Simulated agents", "Agents on a simulated driver: demos and replays, which belong in no bill.")
                    .colours(ZERO_IS_BEST)
                    .query("sum(gpumeter_simulated{$node})", "simulated"),
            ],
        },
        Question {
            text: "Can their numbers be trusted?",
            panels: vec![
                Panel::stat("GPUs that do not answer", "GPUs that are there and whose readings are withheld because they are too old.")
                    .colours(ZERO_IS_WELL)
                    .query(&shared::count_or_zero("(gpu_up{$node} == 0)", "$node"), "GPUs"),
                Panel::stat("Agents with a complaint", "Agents whose account is out of balance or closed, whose configuration was refused, which leave out series, or with a resolver that fails.")
                    .colours(ZERO_IS_WELL)
                    .query(
                        r#"count(group by (cluster, job, instance) (
                            gpumeter_ledger_imbalance_seconds{$node} != 0
                            or on (cluster, job, instance) gpumeter_ledger_open{$node} == 0
                            or on (cluster, job, instance) gpumeter_config_reload_success{$node} == 0
                            or on (cluster, job, instance) sum by (cluster, job, instance) (increase(gpumeter_series_dropped_total{$node}[15m])) > 0
                            or on (cluster, job, instance) group by (cluster, job, instance) (gpumeter_resolver_success{$node} == 0)
                        )) or 0 * count(gpumeter_build_info{$node})"#,
                        "agents",
                    ),
            ],
        },
        Question {
            text: "What do they take of their nodes?",
            panels: vec![
                Panel::stat("Processor of an agent", "Processor cores that an agent uses: the median, and the most.")
                    .unit("percentunit")
                    .decimals(2)
                    .query("quantile(0.5, rate(process_cpu_seconds_total{$node}[$__rate_interval]) and on (cluster, job, instance) gpumeter_build_info{$node})", "median")
                    .query("max(rate(process_cpu_seconds_total{$node}[$__rate_interval]) and on (cluster, job, instance) gpumeter_build_info{$node})", "most"),
                Panel::stat("Memory of an agent", "Resident memory of an agent: the median, and the most.")
                    .unit("bytes")
                    .query("quantile(0.5, process_resident_memory_bytes{$node} and on (cluster, job, instance) gpumeter_build_info{$node})", "median")
                    .query("max(process_resident_memory_bytes{$node} and on (cluster, job, instance) gpumeter_build_info{$node})", "most"),
            ],
        },
    ]
}

fn agents() -> Row {
    let node = "cluster, job, instance";
    let of_agents = format!("and on ({node}) gpumeter_build_info{{$node}}");
    Row {
        title: "Agents",
        panels: vec![
            Panel::table("Agents one by one", "One row for each agent that reports.")
                .height(12)
                .key("cluster", "Cluster")
                .linked_key("instance", "Node", TO_NODE)
                .label_column("version", "Version", "gpumeter_build_info{$node}")
                .column("Running for", "s", &format!("sum by ({node}) (time() - process_start_time_seconds{{$node}} {of_agents})"))
                .column("GPUs", "none", &format!("sum by ({node}) (gpu_present{{$node}})"))
                .column("Series", "none", &format!("sum by ({node}) (scrape_samples_scraped{{$node}} {of_agents})"))
                .column("Processor", "percentunit", &format!("sum by ({node}) (rate(process_cpu_seconds_total{{$node}}[$__rate_interval]) {of_agents})"))
                .column("Memory", "bytes", &format!("sum by ({node}) (process_resident_memory_bytes{{$node}} {of_agents})"))
                .column("Ledger", "bytes", &format!("sum by ({node}) (gpumeter_ledger_bytes{{$node}})"))
                .column("Quiesced", "bool_yes_no", &format!("sum by ({node}) (gpumeter_quiesced{{$node}})"))
                .coloured_column("Config refused", "bool_yes_no", &format!("sum by ({node}) (1 - gpumeter_config_reload_success{{$node}})"), ZERO_IS_WELL),
        ],
    }
}

fn sampling() -> Row {
    Row {
        title: "Sampling",
        panels: vec![
            Panel::lines("Driver call time", "Mean and 99th percentile of all calls; a rise comes before a hang.")
                .unit("s")
                .query(
                    "sum by (cluster) (rate(gpumeter_driver_call_duration_seconds_sum{$node}[$__rate_interval])) / (sum by (cluster) (rate(gpumeter_driver_call_duration_seconds_count{$node}[$__rate_interval])) > 0)",
                    "mean {{cluster}}",
                )
                .query(
                    "histogram_quantile(0.99, sum by (cluster, le) (rate(gpumeter_driver_call_duration_seconds_bucket{$node}[$__rate_interval])))",
                    "p99 {{cluster}}",
                ),
            spread("Share of time inside the driver", "By node; each call delays those of tenants.", "rate(gpumeter_driver_call_duration_seconds_sum{$node}[$__rate_interval])")
                .unit("percentunit"),
            Panel::lines("Oldest sample", "Age of the oldest sample at its scrape, over the chosen agents' GPUs.")
                .unit("s")
                .zero_based()
                .query(
                    "max by (cluster) (clamp_min(timestamp(gpumeter_last_sample_timestamp_seconds{$node}) - gpumeter_last_sample_timestamp_seconds{$node}, 0))",
                    "oldest {{cluster}}",
                ),
            Panel::lines("Calls in flight", "Driver calls that are late, by name, and for how long; the ten longest.")
                .unit("s")
                .empty("no call is late; that is good")
                .query(
                    "topk(10, gpumeter_driver_call_in_flight_seconds{$node})",
                    &format!("{GPU} {{{{call}}}}"),
                ),
            Panel::lines("Sampling intervals", "How often each tier is read; longer than configured where reading would take too much of the driver's time.")
                .unit("s")
                .zero_based()
                .query("max by (cluster, tier) (gpumeter_sampling_interval_seconds{$node})", "{{tier}} {{cluster}}"),
            Panel::lines("Collector errors", "Per second, by collector and reason.")
                .unit("ops")
                .empty("no error of a collector; that is good")
                .query(
                    "topk(10, sum by (cluster, instance, collector, reason) (rate(gpumeter_collector_errors_total{$node}[$__rate_interval])) > 0)",
                    "{{instance}} {{collector}} {{reason}} {{cluster}}",
                ),
            Panel::lines("Answers dropped as implausible", "Per second, by reason: impossible values, counters that fell.")
                .unit("ops")
                .zero_based()
                .query("sum by (cluster, reason) (rate(gpumeter_samples_rejected_total{$node}[$__rate_interval]))", "{{reason}} {{cluster}}"),
            Panel::table("Resolvers", "Parts of the agents that find out whose a process is: whether the last run succeeded, and how old its data is at most.")
                .width(16)
                .height(8)
                .key("cluster", "Cluster")
                .key("resolver", "Resolver")
                .column("Agents", "none", "count by (cluster, resolver) (gpumeter_resolver_success{$node})")
                .coloured_column("Failing", "none", "sum by (cluster, resolver) (gpumeter_resolver_success{$node} == bool 0)", ZERO_IS_WELL)
                .column("Oldest data", "s", "max by (cluster, resolver) (gpumeter_resolver_age_seconds{$node})"),
        ],
    }
}

fn account() -> Row {
    Row {
        title: "Ledger",
        panels: vec![
            Panel::lines("Age of the last commit", "At the scrape; the oldest of the chosen agents. It commits once a second.")
                .unit("s")
                .zero_based()
                .query(
                    "max by (cluster) (clamp_min(timestamp(gpumeter_ledger_last_commit_timestamp_seconds{$node}) - gpumeter_ledger_last_commit_timestamp_seconds{$node}, 0))",
                    "oldest {{cluster}}",
                ),
            spread("Windows that wait for the disk", "More than a few for each GPU: the disk is slow or stuck.", "gpumeter_ledger_queue_windows{$node}"),
            spread("Size of the ledger", "On disk.", "gpumeter_ledger_bytes{$node}").unit("bytes"),
            Panel::lines("Commits that failed", "New failures; what could not be written is kept and tried again.")
                .zero_based()
                .query("sum by (cluster) (round(increase(gpumeter_ledger_errors_total{$node}[$__rate_interval])))", "{{cluster}} failed"),
            Panel::lines("Steps of the clock", "How far steps have moved the wall clock ahead of the time that bills use.")
                .unit("s")
                .query("max by (cluster) (abs(gpumeter_clock_step_seconds{$node}))", "largest {{cluster}}"),
            Panel::lines("Imbalance", "What the parts of an account miss of the whole; anything but 0 is a defect of gpumeter.")
                .unit("s")
                .query("max by (cluster) (abs(gpumeter_ledger_imbalance_seconds{$node}))", "largest {{cluster}}"),
        ],
    }
}

fn road() -> Row {
    let points = |operation: &str| {
        format!(
            "sum by (cluster, destination) (rate(gpumeter_otlp_points_{operation}_total{{$node}}[$__rate_interval]))"
        )
    };
    Row {
        title: "On the way to Prometheus",
        panels: vec![
            Panel::lines("Series left out", "Series that limits.series keeps off the page, counted at each tick.")
                .unit("ops")
                .empty("no series is left out; that is good")
                .query("sum by (cluster, family) (rate(gpumeter_series_dropped_total{$node}[$__rate_interval])) > 0", "{{family}} {{cluster}}"),
            Panel::lines("OTLP points", "Data points per second by destination: accepted, refused, and not delivered. The last two are lost.")
                .unit("ops")
                .empty("nothing is pushed")
                .query(&points("sent"), "{{destination}} sent {{cluster}}")
                .query(&points("rejected"), "{{destination}} refused {{cluster}}")
                .query(&points("dropped"), "{{destination}} dropped {{cluster}}"),
            Panel::lines("HTTP requests", "Per second, by status.")
                .unit("reqps")
                .zero_based()
                .query("sum by (cluster, code) (rate(gpumeter_http_requests_total{$node}[$__rate_interval]))", "{{code}} {{cluster}}"),
        ],
    }
}

fn footprint() -> Row {
    let of_agents = "and on (cluster, job, instance) gpumeter_build_info{$node}";
    let spread_of =
        |title, answers, expression: &str| spread(title, answers, &format!("{expression} {of_agents}"));
    Row {
        title: "Footprint",
        panels: vec![
            spread_of(
                "Processor",
                "Cores that an agent uses.",
                "rate(process_cpu_seconds_total{$node}[$__rate_interval])",
            )
            .unit("percentunit"),
            spread_of("Resident memory", "Of an agent.", "process_resident_memory_bytes{$node}")
                .unit("bytes"),
            spread_of("Open file descriptors", "Of an agent.", "process_open_fds{$node}"),
        ],
    }
}
