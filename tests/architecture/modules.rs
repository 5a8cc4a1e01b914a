//! The folders under `src/` from the bottom up: what each is for, its modules, and which folders it may import.

pub(crate) struct Folder {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    /// Folders within it that other folders name; what lies beside them is the folder's own.
    pub(crate) modules: &'static [&'static str],
    /// `["*"]`: all above it.
    pub(crate) may_import: &'static [&'static str],
}

const fn folder(
    name: &'static str,
    purpose: &'static str,
    modules: &'static [&'static str],
    may_import: &'static [&'static str],
) -> Folder {
    Folder { name, purpose, modules, may_import }
}

pub(crate) const FOLDERS: &[Folder] = &[
    folder("model", "values that others exchange; every metric as a row of a table", &["catalogue"], &[]),
    folder(
        "runtime",
        "what any daemon needs: time, threads, log, files, systemd, HTTP as a client",
        &["clock", "file", "http", "log", "systemd", "thread", "trace"],
        &["model"],
    ),
    folder(
        "driver",
        "the only code that knows NVML: call wrapper, plan per GPU, sampler, recordings",
        &["nvml", "record"],
        &["model", "runtime"],
    ),
    folder(
        "holders",
        "who holds and who uses a GPU: /proc, cgroups, kubelet, Slurm, Docker",
        &["docker", "host", "kubelet"],
        &["model", "runtime"],
    ),
    folder(
        "accounting",
        "tenants, exact money, bills, the ledger in SQLite, day files",
        &["advice", "batches", "billing", "day_files", "ledger", "planning", "tenants"],
        &["model", "runtime"],
    ),
    folder(
        "meter",
        "one tick: identify, integrate, settle, judge, publish",
        &["attribution", "health"],
        &["model", "holders", "accounting"],
    ),
    folder(
        "config",
        "YAML to a validated configuration; each key is declared once",
        &[],
        &["model", "runtime", "accounting"],
    ),
    folder(
        "output",
        "what leaves: events, pages, the HTTP server, OTLP",
        &["events", "push", "render", "serve"],
        &["model", "runtime", "accounting", "config"],
    ),
    folder(
        "agent",
        "the running agent: threads, resolvers, the driver session, reload",
        &["app", "control", "policy", "resolvers", "session"],
        &["*"],
    ),
    folder("cli", "the command line, the demo, the doctor", &["demo", "doctor"], &["*"]),
];

/// The table as ARCHITECTURE.md prints it.
pub(crate) fn table() -> String {
    let head = "| folder | purpose | modules | may import |\n|---|---|---|---|\n".to_owned();
    FOLDERS.iter().fold(head, |table, folder| {
        let code = |names: &[&str]| match names {
            [] => "–".to_owned(),
            ["*"] => "all above".to_owned(),
            names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
        };
        let [modules, imports] = [folder.modules, folder.may_import].map(code);
        table + &format!("| `{}` | {} | {modules} | {imports} |\n", folder.name, folder.purpose)
    })
}
