//! A node under a held clock: the test sets the time tick by tick, so that every value is the same in every run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::path::Path;
use std::time::{Duration, Instant};

use gpumeter::model::catalogue::Level;
use gpumeter::model::{Nanoseconds, Utc};
use gpumeter::runtime::clock::{ClockPage, PageState};

use crate::running::{Agent, PATIENCE};

/// The node to run.
pub(crate) struct Node<'a> {
    pub(crate) scenario: &'a Path,
    pub(crate) level: Level,
    pub(crate) ticks: u64,
    /// The file of counters of the page with dcgm-exporter's names, if not the default.
    pub(crate) dcgm_counters: Option<&'a Path>,
}

impl<'a> Node<'a> {
    pub(crate) fn new(scenario: &'a Path, level: Level, ticks: u64) -> Self {
        Self { scenario, level, ticks, dcgm_counters: None }
    }
}

const SECOND: u64 = 1_000_000_000;
/// The tick loop runs a fifth of an interval after the samplers.
const TICK_DELAY: u64 = SECOND / 5;
/// 2026-03-01T00:00:00Z, on the grid of the account's windows.
const BEGIN: Utc = Utc(1_772_323_200 * SECOND);
const BOOT: u64 = 1_000 * SECOND;
/// The name of the threads that read a GPU each.
const SAMPLER: &str = "sampler";
/// The threads that work on what the samplers and the last tick gave them, and then wait.
const WAITING: [&str; 5] = ["host", "ledger", "users", "pods", "jobs"];

/// What the agent serves after the node's ticks.
pub(crate) struct Pages {
    pub(crate) native: String,
    /// With dcgm-exporter's names.
    pub(crate) dcgm: String,
}

/// The pages after the node's ticks. If a sampler was late for a tick and read at another time, everything is repeated
/// more slowly.
pub(crate) fn pages(node: &Node<'_>) -> Pages {
    const TRIES: u32 = 12;
    let mut problems = Vec::new();
    for attempt in 0..TRIES {
        match try_pages(node, attempt / 2) {
            Ok(pages) => return pages,
            Err(problem) => problems.push(problem),
        }
    }
    panic!("{}: {TRIES} tries:\n{}", node.scenario.display(), problems.join("\n"))
}

/// Waits at every tick twice as long for each step of `patience`.
fn try_pages(node: &Node<'_>, patience: u32) -> Result<Pages, String> {
    let directory = tempfile::tempdir().unwrap();
    let demo = directory.path().join("demo");
    std::fs::create_dir_all(demo.join("driver")).unwrap();
    // A demo uses a directory that is not empty only where it finds this file.
    std::fs::write(demo.join(".gpumeter-demo"), "").unwrap();
    let faults = node.scenario.with_extension("faults");
    if faults.exists() {
        std::fs::copy(faults, demo.join("driver/faults")).unwrap();
    }
    let state = PageState::held_at(Nanoseconds(0), BEGIN, Nanoseconds(BOOT));
    let clock = ClockPage::create(&demo.join("driver/clock"), state).unwrap();
    let set = |elapsed: u64| clock.set(PageState { elapsed: Nanoseconds(elapsed), ..state }).unwrap();
    let agent = start(node, directory.path());
    let mut native = page_of_tick(&agent, 0)?;
    for tick in 1..=node.ticks {
        set(tick * SECOND);
        wait_for_samplers(&agent, patience);
        wait_for_others(&agent, patience);
        set(tick * SECOND + TICK_DELAY);
        native = page_of_tick(&agent, tick)?;
    }
    let (_, dcgm) = agent.get("/metrics?profile=dcgm");
    Ok(Pages { native, dcgm })
}

fn start(node: &Node<'_>, directory: &Path) -> Agent {
    let config = directory.join("config.yaml");
    let level = node.level.name();
    let counters =
        node.dcgm_counters.map_or(String::new(), |path| format!("  dcgm_counters: {}\n", path.display()));
    let text = format!(
        "web:\n  dcgm_listen: 127.0.0.1:0\n{counters}sampling:\n  level: {level}\nattribution:\n  presence: true\nprices:\n  currency: EUR\n  rates:\n    - gpu_hour: 2.4\nbilling:\n  time_zone: UTC\nlimits:\n  birth_delay: 0s\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = crate::running::program();
    command.args(["demo", "--listen", "127.0.0.1:0", "--state-dir"]).arg(directory.join("demo"));
    command.arg("--scenario").arg(node.scenario).arg("--config").arg(config);
    Agent::start(command)
}

/// Waits until every sampler has had time for its tick on a busy machine: a sampler sleeps between two reads of the
/// clock, so each has gone to sleep a few times. A sampler that waits for a lock sleeps too, so this waits for a minimum of
/// time as well, and one that waits to try again sleeps long, so this ends after some seconds. A sampler that is late
/// nevertheless is found by the time stamps on the page.
fn wait_for_samplers(agent: &Agent, patience: u32) {
    const CHECKS: usize = 1_000;
    let (minimum, more) = (Duration::from_millis(20 << patience), 4 << patience);
    let before = threads(agent, &[SAMPLER]);
    std::thread::sleep(minimum);
    for _ in 0..CHECKS {
        let now = threads(agent, &[SAMPLER]);
        let has_slept = |(id, thread): (&OsString, &Thread)| {
            now.get(id).is_none_or(|now| now.slept >= thread.slept + more)
        };
        if before.iter().all(has_slept) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the processes that the samplers saw are identified and the last tick's account is committed: the threads that do
/// it sleep, and have not woken for a while.
fn wait_for_others(agent: &Agent, patience: u32) {
    const CHECKS: usize = 250;
    let mut before = threads(agent, &WAITING);
    for _ in 0..CHECKS {
        std::thread::sleep(Duration::from_millis(20 << patience));
        let now = threads(agent, &WAITING);
        if now == before && now.values().all(|thread| thread.is_asleep) {
            return;
        }
        before = now;
    }
}

#[derive(PartialEq, Eq)]
struct Thread {
    is_asleep: bool,
    /// How often it has gone to sleep.
    slept: u64,
}

/// The agent's threads with these names, by id.
fn threads(agent: &Agent, names: &[&str]) -> BTreeMap<OsString, Thread> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", agent.id())).unwrap();
    let read = |thread: &DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_named = field("Name:").is_some_and(|name| names.contains(&name));
        let slept = field("voluntary_ctxt_switches:").filter(|_| is_named)?.parse().ok()?;
        Some(Thread { is_asleep: field("State:")?.starts_with('S'), slept })
    };
    threads.filter_map(|thread| thread.ok().and_then(|one| Some((one.file_name(), read(&one)?)))).collect()
}

/// The page of that tick; an error if a GPU was not read at that tick, or a call was late by the machine's clock.
fn page_of_tick(agent: &Agent, tick: u64) -> Result<String, String> {
    let read = (BEGIN.0 / SECOND + tick).to_string();
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        // Requested before the page, which is therefore of that snapshot or of a later one.
        let published = tick > 0 && agent.get("/api/v1/health").1.starts_with(&published_at(tick));
        let (status, page) = agent.get("/metrics");
        let stamps = values(&page, "gpumeter_last_sample_timestamp_seconds");
        let up = values(&page, "gpu_up").len();
        if status == 200 && stamps.len() == up && stamps.iter().all(|stamp| *stamp == read) {
            let is_late = |line: &str| {
                line.starts_with("gpumeter_collector_errors_total{") && line.contains("reason=\"no_answer\"")
            };
            if page.lines().any(is_late) {
                return Err(format!("a driver call was late at tick {tick}"));
            }
            return Ok(page);
        }
        if published {
            // The clock is held, so there will be no other snapshot of this tick.
            return Err(format!("a sampler was late for tick {tick}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("there was no page of tick {tick}"))
}

/// The beginning of the JSON of a snapshot of that tick.
fn published_at(tick: u64) -> String {
    let second = i64::try_from(BEGIN.0 / SECOND + tick).unwrap();
    let at = jiff::Timestamp::from_second(second).unwrap().to_string();
    format!("{{\"at\":\"{}", at.trim_end_matches('Z'))
}

fn values<'a>(page: &'a str, family: &str) -> Vec<&'a str> {
    page.lines()
        .filter(|line| line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{')))
        .filter_map(|line| line.rsplit_once(' ').map(|(_, value)| value))
        .collect()
}
