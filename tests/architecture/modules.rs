//! The modules under `src/` from the bottom up: the purpose of each, and what it may import.

pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    pub(crate) may_import: &'static [&'static str],
}

impl Module {
    pub(crate) fn may_import(&self, other: &str) -> bool {
        self.may_import.contains(&other) || self.may_import == ["*"]
    }
}

const fn module(name: &'static str, may_import: &'static [&'static str], purpose: &'static str) -> Module {
    Module { name, purpose, may_import }
}

pub(crate) const MODULES: &[Module] = &[
    module(
        "model",
        &[],
        "readings, frames, holders, holdings, spans, rows, snapshots, and quantities as types",
    ),
    module("clock", &["model"], "the one source of time; demo and tests set it by a file"),
    module("catalogue", &["model"], "every metric as a row of a table, and the XID table"),
    module("file", &[], "opens, replaces and locks files"),
    module("record", &["file"], "the file format of recorded driver answers"),
    module(
        "nvml",
        &["model", "clock", "catalogue", "record", "file"],
        "the only code that knows the driver: call wrapper, plan per GPU, sampler",
    ),
    module(
        "host",
        &["model", "clock", "file"],
        "what /proc, cgroups and the kernel log say, below a root path",
    ),
    module("http", &["file"], "PEM files, a client's TLS, one HTTP request on its own connection"),
    module("kubelet", &["http"], "clients of the kubelet and the API server"),
    module("docker", &["http"], "client of Docker's API"),
    module(
        "holders",
        &["model", "host", "kubelet", "docker"],
        "resolves a process to its holder; finds who holds which GPU",
    ),
    module("billing", &["model"], "pure: rates, exact money, bills, statements, FOCUS"),
    module("tenants", &["model", "billing"], "maps a holder's facts to a tenant"),
    module("attribution", &["model"], "pure: settles a window's integrals into account rows"),
    module(
        "account",
        &["model", "billing", "tenants"],
        "what `meter` and `ledger` exchange: batches, counters, time axis",
    ),
    module(
        "ledger",
        &["model", "billing", "tenants", "account", "file"],
        "account in SQLite: prices, bills, retention, migrations",
    ),
    module(
        "exports",
        &["model", "billing", "ledger", "thread", "file"],
        "Parquet files of closed days, and bills over many ledgers",
    ),
    module("health", &["model", "catalogue"], "pure: readings and XIDs to a verdict"),
    module(
        "meter",
        &["model", "catalogue", "host", "holders", "tenants", "billing", "attribution", "account", "health"],
        "one tick: identify, integrate, settle, judge, publish",
    ),
    module("events", &["model", "catalogue"], "pure: events in snapshots"),
    module(
        "export",
        &["model", "catalogue", "events"],
        "pure: prints a snapshot as text, OpenMetrics, OTLP, JSON",
    ),
    module(
        "push",
        &["model", "clock", "http", "config", "trace"],
        "OTLP: spool on disk, destinations over HTTP and gRPC",
    ),
    module(
        "serve",
        &["model", "clock", "http", "billing", "events", "export", "config"],
        "the HTTP server: TLS, users, metrics, health, API",
    ),
    module(
        "config",
        &["model", "catalogue", "tenants", "billing", "file"],
        "YAML to a validated configuration; each key is declared once",
    ),
    module("thread", &["clock"], "starts named threads, and ends the agent when a vital one fails"),
    module("trace", &["model", "clock"], "spans of the agent's own work"),
    module("log", &["model", "thread"], "writes log lines to standard error on a thread of its own"),
    module("systemd", &["model"], "tells systemd of readiness, reloads and stop, and feeds its watchdog"),
    module(
        "policy",
        &["model", "clock", "catalogue", "tenants", "billing", "config", "meter", "export"],
        "from a configuration: schedule, grants, prices",
    ),
    module(
        "resolvers",
        &[
            "model", "clock", "host", "kubelet", "docker", "holders", "account", "config", "thread", "trace",
            "policy", "file",
        ],
        "threads that ask /proc, kubelet, Slurm, runtimes and the name service",
    ),
    module(
        "session",
        &[
            "model",
            "clock",
            "catalogue",
            "record",
            "nvml",
            "host",
            "health",
            "meter",
            "config",
            "thread",
            "trace",
            "policy",
            "resolvers",
            "file",
        ],
        "opens and closes the driver; samplers, events, recordings",
    ),
    module(
        "control",
        &[
            "model", "clock", "host", "billing", "ledger", "meter", "export", "serve", "config", "thread",
            "session",
        ],
        "the local socket: quiesce, probe, inventory, statements",
    ),
    module("app", &["*"], "wiring: starts and ends the threads, reloads the configuration"),
    module(
        "demo",
        &["model", "clock", "record", "nvml", "host", "kubelet", "ledger", "config", "thread", "file", "app"],
        "the agent on a simulated node, and the replay of a recording",
    ),
    module(
        "doctor",
        &[
            "model",
            "clock",
            "catalogue",
            "nvml",
            "host",
            "kubelet",
            "docker",
            "holders",
            "tenants",
            "billing",
            "attribution",
            "ledger",
            "meter",
            "push",
            "config",
            "thread",
            "policy",
            "resolvers",
            "session",
            "demo",
        ],
        "examines a node as the agent would find it",
    ),
    module("cli", &["*"], "the command line: parse, call, exit status"),
];

/// The table as ARCHITECTURE.md prints it.
pub(crate) fn table() -> String {
    let head = "| module | purpose | may import |\n|---|---|---|\n".to_owned();
    MODULES.iter().fold(head, |table, module| {
        let imports = match module.may_import {
            [] => "–".to_owned(),
            ["*"] => "all".to_owned(),
            names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
        };
        table + &format!("| `{}` | {} | {imports} |\n", module.name, module.purpose)
    })
}
