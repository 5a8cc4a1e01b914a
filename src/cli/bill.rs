//! `gpumeter bill`: asks the running agent, or opens a ledger that nobody owns, and prints a table that
//! ends with its reconciliation.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{Failure, print};
use crate::app;
use crate::ledger::{self, Cause, Statement, StatementLine};

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct Bill {
    /// The running agent.
    #[arg(long, default_value = "http://127.0.0.1:9855", value_name = "URL")]
    url: String,
    /// A ledger file that no agent is using, instead of a running agent.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    ledger: Option<PathBuf>,
    /// Begin of the period, e.g. 2026-01-01T00:00:00Z; by default the begin (UTC) of the month in which the period ends.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period; by default the end of the last complete minute.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Print JSON: every line, in nanoseconds.
    #[arg(long)]
    json: bool,
}

impl Bill {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let statement = match &self.ledger {
            Some(path) => {
                unowned(path, "bill")?;
                app::statement(path, self.from.as_deref(), self.to.as_deref(), || false)
                    .map_err(Failure::wrong)?
            }
            None => self.ask()?,
        };
        if self.json {
            let text = serde_json::to_string_pretty(&statement).map_err(Failure::found)?;
            print(&(text + "\n"))?;
        } else {
            print(&(table(&statement) + &clipped(&statement, self.to.as_deref())))?;
        }
        if statement.is_balanced() { Ok(()) } else { Err(Failure::found("the bill does not reconcile")) }
    }

    fn ask(&self) -> Result<Statement, Failure> {
        let mut path = "/api/v1/bill".to_owned();
        let times = [("from", &self.from), ("to", &self.to)];
        for (name, value) in times.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            path += if path.contains('?') { "&" } else { "?" };
            path += &format!("{name}={}", value.replace('+', "%2B"));
        }
        let body = get(&self.url, &path)?;
        serde_json::from_str(&body)
            .map_err(|error| Failure::found(format!("{}{path}: the answer is not a bill: {error}", self.url)))
    }
}

/// One request on loopback, closed by the server: a client library would be the larger half of the command.
pub(super) fn get(url: &str, path: &str) -> Result<String, Failure> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let wrong =
        |problem: &dyn std::fmt::Display| Failure::wrong(format!("{url}: {problem}; is the agent running?"));
    let host = host(url).map_err(|problem| {
        Failure::wrong(format!("{url}: {problem}; write it like http://127.0.0.1:9855"))
    })?;
    let mut stream = TcpStream::connect(host).map_err(|error| wrong(&error))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| wrong(&error))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|error| wrong(&error))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| wrong(&error))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| wrong(&"the answer is not HTTP"))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    match error_of(body) {
        _ if status == "200" => Ok(body.to_owned()),
        Some(error) if status != "404" => Err(Failure::wrong(format!("{url}: {error}"))),
        // The agent has every path that is asked for here, and its errors are JSON.
        _ => Err(Failure::wrong(format!(
            "{url}: this is not a gpumeter agent: it answers {status} to {path}; check host and port"
        ))),
    }
}

/// Host and port of the agent; `http://` may be left out.
fn host(url: &str) -> Result<&str, &'static str> {
    let host = match url.split_once("://") {
        None => url,
        Some(("http", rest)) => rest,
        Some(("https", _)) => return Err("the agent serves plain HTTP, without TLS"),
        Some(_) => return Err("the scheme is not http"),
    };
    let host = host.trim_end_matches('/');
    let port = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map(|(_, port)| port);
    if host.contains(['/', '?', '#']) {
        Err("there is something after the port")
    } else if port.is_none_or(|port| port.parse::<u16>().is_err()) {
        Err("the port is missing, or is not a number from 1 to 65535")
    } else {
        Ok(host)
    }
}

/// What the agent says is wrong; absent where the answer is not its JSON.
fn error_of(body: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(json.get("error")?.as_str()?.to_owned())
}

/// A ledger that can be read here; one that an agent writes is that agent's to tell of.
pub(super) fn unowned(path: &Path, command: &str) -> Result<(), Failure> {
    ledger::unowned(path).map_err(|error| match error.cause {
        Cause::Owned { .. } => Failure::wrong(format!(
            "{}: a running agent writes it; ask that one: `gpumeter {command}` without --ledger",
            path.display()
        )),
        _ => Failure::wrong(error),
    })
}

/// A tenant's sums over all its lines.
#[derive(Default)]
struct Sum {
    held: u64,
    used: u64,
    idle: u64,
    unmeasured: u64,
    unavailable: u64,
    charged: u64,
    /// None while no line's energy was measured.
    energy: Option<u64>,
    money: i128,
}

fn table(statement: &Statement) -> String {
    let mut tenants: BTreeMap<&str, Sum> = BTreeMap::new();
    for line in &statement.lines {
        tenants.entry(&line.tenant).or_default().add(line);
    }
    let currency = statement.currency.as_deref();
    let width = tenants.keys().map(|name| name.len()).max().unwrap_or(0).max("tenant".len());
    let mut page = format!("{} to {}\n\n", statement.from, statement.to);
    let money_head = currency.map(|code| format!("{code:>16}")).unwrap_or_default();
    page += &format!(
        "{:width$} {:>12} {:>12} {:>12} {:>12} {:>13} {:>12} {:>10}{money_head}\n",
        "tenant", "held h", "used h", "idle h", "unmeasured h", "unavailable h", "charged h", "kWh"
    );
    let mut all = Sum::default();
    for (tenant, sum) in &tenants {
        page += &sum.row(tenant, width, currency.is_some());
        all.merge(sum);
    }
    page += &all.row("total", width, currency.is_some());
    page += &unmetered(statement);
    page += &reconciliation(statement);
    page
}

/// Says so where the bill ends before the time that was asked for.
fn clipped(statement: &Statement, to: Option<&str>) -> String {
    let time = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let Some(asked) = to.filter(|to| time(to) > time(&statement.to)) else { return String::new() };
    format!(
        "ends at {} instead of {asked}: later minutes are not complete yet; ask again then\n",
        statement.to
    )
}

/// Which GPUs the energy above leaves out.
fn unmetered(statement: &Statement) -> String {
    let lines = statement.lines.iter().filter(|line| line.energy_static_uj.is_none());
    let gpus: BTreeSet<(u32, &str)> = lines.map(|line| (line.gpu, &*line.uuid)).collect();
    if gpus.is_empty() {
        return String::new();
    }
    let gpus: Vec<String> = gpus.iter().map(|(gpu, uuid)| format!("GPU {gpu} ({uuid})")).collect();
    format!("\nenergy not measured, and in no kWh above: {}\n", gpus.join(", "))
}

fn total(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.zip(other).map(|(one, other)| one + other).or(one).or(other)
}

fn reconciliation(statement: &Statement) -> String {
    let proof = &statement.reconciliation;
    let verdict = if statement.is_balanced() { "reconciles" } else { "DOES NOT RECONCILE" };
    let money = statement
        .currency
        .as_ref()
        .map(|code| format!(", money {} of {} {code}", proof.line_money, proof.gpu_money))
        .unwrap_or_default();
    format!(
        "\n{verdict}: held {} s of {} s GPU time{money}\n",
        seconds(proof.held_ns),
        seconds(proof.slot_ns)
    )
}

impl Sum {
    fn add(&mut self, line: &StatementLine) {
        self.held += line.held_ns;
        self.used += line.used_ns;
        self.idle += line.idle_ns;
        self.unmeasured += line.unmeasured_ns;
        self.unavailable += line.unavailable_ns;
        self.charged += line.charged_ns;
        let energy = line.energy_static_uj.zip(line.energy_dynamic_uj).map(|(floor, rest)| floor + rest);
        self.energy = total(self.energy, energy);
        self.money += line.money.as_deref().map_or(0, nano);
    }

    fn merge(&mut self, other: &Self) {
        self.held += other.held;
        self.used += other.used;
        self.idle += other.idle;
        self.unmeasured += other.unmeasured;
        self.unavailable += other.unavailable;
        self.charged += other.charged;
        self.energy = total(self.energy, other.energy);
        self.money += other.money;
    }

    fn row(&self, tenant: &str, width: usize, money: bool) -> String {
        let money = if money { format!("{:>16}", fixed(self.money, 9, 4)) } else { String::new() };
        format!(
            "{tenant:width$} {:>12} {:>12} {:>12} {:>12} {:>13} {:>12} {:>10}{money}\n",
            hours(self.held),
            hours(self.used),
            hours(self.idle),
            hours(self.unmeasured),
            hours(self.unavailable),
            hours(self.charged),
            // A kilowatt-hour is 3.6e12 microjoules.
            self.energy.map_or("-".into(), |energy| fixed(i128::from(energy) * 1_000 / 3_600_000, 9, 4)),
        )
    }
}

fn hours(nanoseconds: u64) -> String {
    fixed(i128::from(nanoseconds) / 3_600, 9, 4)
}

fn seconds(nanoseconds: u64) -> String {
    fixed(nanoseconds.into(), 9, 9)
}

/// An integer of `scale` decimals, cut to `places`.
fn fixed(value: i128, scale: u32, places: u32) -> String {
    let (value, unit) = (value / 10_i128.pow(scale - places), 10_i128.pow(places));
    format!("{}.{:0places$}", value / unit, (value % unit).abs(), places = places as usize)
}

fn nano(decimal: &str) -> i128 {
    decimal.replace('.', "").parse().unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn energy_that_nobody_measured_is_no_zero() {
        let line = |tenant: &str, gpu: u32, energy: Option<u64>| {
            serde_json::json!({"tenant": tenant, "holder": tenant, "gpu": gpu, "uuid": format!("GPU-{gpu}"), "held_ns": 1,
                "within_ns": 0, "lent_ns": 0, "waste_ns": 1, "unmeasured_ns": 0, "unavailable_ns": 0, "idle_ns": 1,
                "used_ns": 0, "beyond_share_ns": 0, "outside_holding_ns": 0, "unheld_ns": 0, "energy_static_uj": energy,
                "energy_dynamic_uj": energy, "grade": "measured", "measured_ns": 0, "method": "observed",
                "sources": [], "money": null})
        };
        let proof = serde_json::json!({"slot_ns": 3, "held_ns": 3, "imbalance_ns": "0", "gpu_money": "0",
            "line_money": "0", "imbalance_money": "0"});
        let half = Some(1_800_000_000_000);
        let lines =
            [line("both", 0, half), line("both", 1, None), line("dark", 1, None), line("idle", 0, Some(0))];
        let statement = serde_json::json!({"from": "a", "to": "b", "closed_until": "b", "currency": null,
            "lines": lines, "gpus": [], "reconciliation": proof});
        let page = table(&serde_json::from_value(statement).unwrap());
        let energy = |tenant: &str| {
            page.lines().find(|line| line.starts_with(tenant)).and_then(|line| line.split(' ').next_back())
        };
        let energies = ["both", "dark", "idle", "total"].map(energy);
        assert_eq!(energies, [Some("1.0000"), Some("-"), Some("0.0000"), Some("1.0000")], "{page}");
        assert!(page.contains("energy not measured, and in no kWh above: GPU 1 (GPU-1)\n"), "{page}");
    }

    #[test]
    fn a_bill_that_ends_before_the_time_asked_for_says_so() {
        let statement = serde_json::json!({"from": "2026-11-01T00:00:00Z", "to": "2026-11-22T20:00:00Z",
            "closed_until": "2026-11-22T20:00:00Z", "currency": null, "lines": [], "gpus": [],
            "reconciliation": {"slot_ns": 0, "held_ns": 0, "imbalance_ns": "0", "gpu_money": "0",
            "line_money": "0", "imbalance_money": "0"}});
        let statement: Statement = serde_json::from_value(statement).unwrap();
        let told = clipped(&statement, Some("2026-12-01T00:00:00Z"));
        assert!(told.contains("ends at 2026-11-22T20:00:00Z instead of 2026-12-01T00:00:00Z"), "{told}");
        for to in [None, Some("2026-11-22T20:00:00Z"), Some("2026-11-22T21:00:00+01:00")] {
            assert_eq!(clipped(&statement, to), "", "{to:?}");
        }
    }

    #[test]
    fn hours_are_cut_to_four_places() {
        assert_eq!(hours(3_600_000_000_000), "1.0000");
        assert_eq!(hours(1_800_000_000_000), "0.5000");
        assert_eq!(nano("2.500000000"), 2_500_000_000);
    }

    #[test]
    fn what_the_agent_says_is_told_without_its_json() {
        let error = error_of("{\"error\":\"from: \\\"x\\\" is not a valid time\"}\n");
        assert_eq!(error.as_deref(), Some("from: \"x\" is not a valid time"));
        assert_eq!((error_of("Bad Gateway\n"), error_of("[1]")), (None, None));
    }

    #[test]
    fn an_agents_address_needs_a_port_and_no_scheme() {
        for url in ["http://localhost:9855", "localhost:9855", "http://localhost:9855/"] {
            assert_eq!(host(url), Ok("localhost:9855"), "{url}");
        }
        assert_eq!(host("[::1]:9855"), Ok("[::1]:9855"));
        for (url, problem) in [
            ("localhost", "port is missing"),
            ("http://localhost", "port is missing"),
            ("http://[::1]", "port is missing"),
            ("http://localhost:99999", "not a number from 1"),
            ("https://localhost:9855", "without TLS"),
            ("ftp://localhost:9855", "not http"),
            ("localhost:9855/metrics", "after the port"),
        ] {
            assert!(host(url).is_err_and(|told| told.contains(problem)), "{url}");
        }
    }
}
