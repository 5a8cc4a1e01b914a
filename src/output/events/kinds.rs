//! The kinds of events: one row each.

use super::Severity;

#[derive(Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Its name, which is OTLP's event name.
    pub name: &'static str,
    /// The severity of most such events.
    pub severity: Severity,
    pub when: &'static str,
    /// Attributes beside those of all events.
    pub attributes: &'static [&'static str],
    /// Whether it is about a tenant: a reader who may not see that tenant does not get it. Of events of GPUs such a reader gets
    /// those of GPUs and instances that are his alone, and since they are; of the agent's all.
    pub is_of_tenant: bool,
    /// Whether repetitions within a minute are joined.
    pub joins: bool,
}

const fn kind(name: &'static str, severity: Severity, when: &'static str) -> EventKind {
    EventKind { name, severity, when, attributes: &[], is_of_tenant: false, joins: true }
}

impl EventKind {
    const fn attributes(self, attributes: &'static [&'static str]) -> Self {
        Self { attributes, ..self }
    }

    const fn of_tenant(self) -> Self {
        Self { is_of_tenant: true, joins: false, ..self }
    }

    const fn alone(self) -> Self {
        Self { joins: false, ..self }
    }
}

macro_rules! kinds {
    ($($name:ident = $kind:expr;)+) => {
        $(pub(super) static $name: EventKind = $kind;)+

        /// All kinds, in the order of the documentation.
        pub static EVENT_KINDS: &[&EventKind] = &[$(&$name),+];
    };
}

use Severity::{Error, Info, Warn};

kinds! {
    XID = kind("gpu.xid", Error, "The driver reported an XID. WARN if the application must be restarted, \
        INFO if nothing is to be done. On a GPU with MIG it has the GPU instance. It has the workloads that \
        hold the GPU or have processes on it.")
        .attributes(&["xid", "class", "action", "gpu_instance"]);
    LOST = kind("gpu.lost", Error, "The GPU is missing: lost by the driver, gone from the bus, passed to a \
        guest, or replaced by another one.").attributes(&["attachment"]);
    BACK = kind("gpu.back", Info, "A missing GPU is back.").attributes(&["attachment"]);
    FOUND = kind("gpu.found", Info, "A new GPU was found; with the GPU that it replaces, if any.")
        .attributes(&["replaces"]);
    RESHAPED = kind("gpu.mig.reshaped", Info, "The GPU has other MIG instances, or MIG mode was switched.")
        .attributes(&["instances"]);
    DRIVER = kind("gpu.driver.changed", Warn, "Another version of the driver was loaded.")
        .attributes(&["driver", "before"]).alone();
    THROTTLED = kind("gpu.throttle.started", Warn, "The clocks have been held down for 10 s for that \
        reason. INFO for the power cap, which is normal on a busy board.").attributes(&["reason"]);
    UNTHROTTLED = kind("gpu.throttle.ended", Info, "The clocks have not been held down for 30 s.")
        .attributes(&["reason", "seconds"]);
    HEALTH = kind("gpu.health.changed", Warn, "The verdict on the GPU has changed. ERROR for failed, INFO for ok.")
        .attributes(&["state", "before", "action", "rule", "evidence"]);
    GAP = kind("gpu.gap", Warn, "The GPU was present and could not be read for a while.").attributes(&["seconds"]);
    SXID = kind("nvswitch.sxid", Error, "The driver wrote an SXID, an error of an NVSwitch, to the kernel \
        log. WARN if it is not fatal.").attributes(&["pci_bus_id", "sxid", "severity"]);
    QUIESCED = kind("gpumeter.quiesced", Info, "The agent released the driver on request.").alone();
    RESUMED = kind("gpumeter.resumed", Info, "The agent uses the driver again.").alone();
    CONFIG = kind("gpumeter.config.reloaded", Info, "The configuration was read again. WARN if it has a \
        mistake and the former one stays in force.").attributes(&["success"]).alone();
    BUDGET = kind("gpumeter.budget.passed", Warn, "A tenant costs more in this month than its budget on this node.")
        .attributes(&["month", "currency", "budget", "cost"]).of_tenant();
    GRANTED = kind("gpu.holding.granted", Info, "A workload holds the GPU, or a share of it.")
        .attributes(&["gpu_instance", "share", "source"]).of_tenant();
    ENDED = kind("gpu.holding.ended", Info, "The workload no longer holds it; by presence, after it is away \
        for 15 s.").attributes(&["gpu_instance", "source", "seconds"]).of_tenant();
}

pub fn reference() -> String {
    let mut page = String::from(PREFACE);
    for kind in EVENT_KINDS {
        let attributes: Vec<String> = kind.attributes.iter().map(|name| format!("`{name}`")).collect();
        let whose = match kind.name.strip_prefix("gpu.") {
            _ if kind.is_of_tenant => "the tenant",
            Some(_) => "who holds it alone",
            None => "all",
        };
        page.push_str(&format!(
            "| `{}` | {} | {} | {} | {whose} |\n",
            kind.name,
            kind.severity.text(),
            kind.when,
            attributes.join(", "),
        ));
    }
    page
}

const PREFACE: &str = "\
# Events

For the person who reads events of GPUs, tenants and the agent. Each event is an entry of `/api/v1/events` and a line of the log. A demo or
replay faster than real time logs no events. For destinations with `events: true` ([otlp.md](otlp.md)) it is also an OTLP log record,
through the same spool as the metrics.

Every event has:

- a name (OTLP's event name), a severity (INFO 9, WARN 13, ERROR 17), a sentence and a `count`;
- the time when it happened, and the time when it was found;
- an id (`event.id`) that is the same in every copy, also if it is sent twice.

Events of a GPU also have `gpu`, `uuid`, `workloads` and `tenants`: those that hold the GPU or had processes on it.

**Repetitions.** The first event of a GPU is reported at once. Repetitions within a minute are reported after the minute, as one event with
their `count`. Events of tenants are never joined. They are kept in a separate ring (500 of each), so many short workloads never evict an XID.

**Access.** Some readers may see only some tenants (`web.tenants`), or only what they run. They see events of these, and events of GPUs that
these hold alone, since the last of the holders came. An XID of a MIG instance needs that instance, all others the whole GPU.

| event | severity | when | attributes | shown to |
|---|---|---|---|---|
";
