//! The rooms under `src/`, in order: what each is for and what it may import.

pub(crate) struct Room {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    pub(crate) may_import: &'static [&'static str],
}

impl Room {
    pub(crate) fn may_import(&self, other: &str) -> bool {
        self.may_import.contains(&other) || self.may_import == ["*"]
    }
}

const fn room(name: &'static str, may_import: &'static [&'static str], purpose: &'static str) -> Room {
    Room { name, purpose, may_import }
}

pub(crate) const ROOMS: &[Room] = &[
    room(
        "model",
        &[],
        "readings, frames, holders, holdings, spans, rows, snapshots, and quantities as types",
    ),
    room("clock", &["model"], "the one source of time; in demo and tests it reads a file that the test sets"),
    room("catalogue", &["model"], "every metric as a row of a table, and the XID table"),
    room("record", &["model"], "the file format of recorded driver answers"),
    room(
        "nvml",
        &["model", "clock", "catalogue", "record"],
        "the only code that knows the driver: call wrapper, plan per GPU, sampler",
    ),
    room("host", &["model", "clock"], "what /proc, cgroups and the kernel log say, below a root path"),
    room(
        "kubelet",
        &[],
        "clients of the kubelet and the API server: devices of containers, pods of the node",
    ),
    room("docker", &[], "client of Docker's API: names and images of containers"),
    room(
        "holders",
        &["model", "clock", "host", "kubelet", "docker"],
        "resolves a process to its holder; finds out who holds which GPU",
    ),
    room("tenants", &["model"], "maps a holder's facts to a tenant"),
    room("attribution", &["model"], "pure: settles a window's integrals into account rows"),
    room(
        "ledger",
        &["model", "clock", "attribution", "tenants"],
        "the durable account in SQLite: prices, bills, migrations",
    ),
    room("health", &["model", "catalogue"], "pure: readings and XIDs to a verdict, by a table of rules"),
    room(
        "meter",
        &[
            "model",
            "clock",
            "catalogue",
            "nvml",
            "host",
            "holders",
            "tenants",
            "attribution",
            "ledger",
            "health",
        ],
        "one tick: identify, integrate, settle, judge, publish",
    ),
    room("export", &["model", "catalogue"], "pure: prints a snapshot as text, OpenMetrics, OTLP, JSON"),
    room("push", &["model", "clock", "export"], "sends OTLP over HTTP to a collector"),
    room(
        "serve",
        &["model", "export", "ledger", "clock", "config"],
        "the HTTP server: TLS, users, metrics, health, API",
    ),
    room("config", &["model", "catalogue"], "YAML to a validated configuration; each key is declared once"),
    room("app", &["*"], "wiring and all threads; doctor and demo"),
    room("cli", &["*"], "the command line: parse, call, exit status"),
];

/// The table as ARCHITECTURE.md prints it.
pub(crate) fn table() -> String {
    let head = "| module | purpose | may import |\n|---|---|---|\n".to_owned();
    ROOMS.iter().fold(head, |table, room| {
        let imports = match room.may_import {
            [] => "–".to_owned(),
            ["*"] => "all".to_owned(),
            names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
        };
        table + &format!("| `{}` | {} | {imports} |\n", room.name, room.purpose)
    })
}
