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
    room("model", &[], "the nouns: readings, frames, holders, holdings, spans, rows, snapshots, quantities"),
    room("clock", &["model"], "the one source of time; a page in a file for demo and tests"),
    room("catalogue", &["model"], "every metric as a row, and the XID table"),
    room("record", &["model"], "the file format of what passes the door to the driver"),
    room(
        "nvml",
        &["model", "clock", "catalogue", "record"],
        "the only code that knows the driver: one door, plans, lanes",
    ),
    room("host", &["model", "clock"], "what Linux says of a pid and in its log, rooted at a path"),
    room(
        "kubelet",
        &[],
        "clients of the kubelet and the API server: devices of containers, pods of the node",
    ),
    room("docker", &[], "client of Docker's API: names and images of containers"),
    room("holders", &["model", "clock", "host", "kubelet", "docker"], "who a process is, and who holds what"),
    room("tenants", &["model"], "from a holder's facts to a tenant"),
    room("attribution", &["model"], "pure: a window's raw integrals to rows; the laws"),
    room("ledger", &["model", "clock", "attribution", "tenants"], "the durable account, prices, bills"),
    room("health", &["model", "catalogue"], "pure: signs and XIDs to a verdict, by a table of rules"),
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
        "the pulse: identify, integrate, settle, judge, seal",
    ),
    room("export", &["model", "catalogue"], "pure: a snapshot to text, OpenMetrics, OTLP, JSON"),
    room("push", &["model", "clock", "export"], "OTLP over HTTP to a collector"),
    room("serve", &["model", "export", "ledger", "clock"], "HTTP: pages, health, the API"),
    room("config", &["model", "catalogue"], "YAML to a validated configuration, by a key table"),
    room("app", &["*"], "the only wiring and the only threads; the demo"),
    room("cli", &["*"], "parse, call, exit status"),
];

/// The table as ARCHITECTURE.md prints it.
pub(crate) fn table() -> String {
    let head = "| room | what it is for | may import |\n|---|---|---|\n".to_owned();
    ROOMS.iter().fold(head, |table, room| {
        let imports = match room.may_import {
            [] => "–".to_owned(),
            ["*"] => "all".to_owned(),
            names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
        };
        table + &format!("| `{}` | {} | {imports} |\n", room.name, room.purpose)
    })
}
