//! Advice through the whole agent, from what the driver says to the answer: the kinds of a node in short form, each beside a case that
//! looks like it and is silent. The test moves the time, by a tick when the last one is published.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gpumeter::model::Nanoseconds;
use gpumeter::runtime::clock::{ClockPage, PageState, system_now};
use serde_json::{Value, json};

use crate::running::{Demo, output, wait_until};
use crate::scrape::Scrape;

/// That of the configuration.
const TICK: u64 = 30_000_000_000;

/// As often as the agent looks at a clock that stands still.
const POLL: Duration = Duration::from_millis(6);

const MOMENT: Duration = Duration::from_secs(2);

const CONFIG: &str = "
attribution:
  presence: false
  standing: [{gpu: 6, fraction: 1, user: alice}, {gpu: 7, fraction: 1, user: bob}]
limits: {birth_delay: 0s}
prices: {currency: EUR, rates: [{gpu_hour: 2.00}]}
sampling: {interval: 30s, medium: 30s}
";

const GPUS: usize = 12;

/// The jobs, with their GPUs; each has its account for a tenant.
const JOBS: [(u32, &str, &[usize]); 8] = [
    (101, "a1-true", &[0]),
    (102, "a1-silent", &[1]),
    (201, "a2-true", &[2, 3]),
    (202, "a2-silent", &[4, 5]),
    (301, "a3-true", &[10]),
    (302, "a3-silent", &[11]),
    (801, "a8-true", &[8]),
    (802, "a8-silent", &[9]),
];

/// The jobs of A2 and A3 end after so many minutes; a note is about jobs that were.
const END_OF_JOBS: u64 = 60;

/// A process on a GPU, with its minutes from and to, and how busy it was.
fn process(gpu: usize, phases: &[(u64, u64, f64)]) -> Value {
    let phase = |(from, to, demand): &(u64, u64, f64)| json!({ "from": from * 60, "to": to * 60, "demand": demand, "memory_bytes": 8_u64 << 30 });
    let job = JOBS.iter().find(|(_, _, gpus)| gpus.contains(&gpu));
    let (uid, cgroup) = match job {
        Some((job, ..)) => (0, format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_{gpu}")),
        None => (1_000 + gpu, format!("/user.slice/user-{}.slice/session-1.scope", 1_000 + gpu)),
    };
    let phases: Vec<Value> = phases.iter().map(phase).collect();
    json!({ "pid": 4_000 + gpu, "name": "python3", "gpu": gpu, "phases": phases, "host": { "uid": uid, "cgroup": cgroup } })
}

fn scenario() -> Value {
    const ALL: u64 = 1_440;
    let processes = [
        // Its image is loaded for 20 minutes.
        process(1, &[(20, ALL, 0.9)]),
        process(2, &[(0, END_OF_JOBS, 0.9)]),
        process(4, &[(0, END_OF_JOBS, 0.9)]),
        // A rank that starts late.
        process(5, &[(20, END_OF_JOBS, 0.9)]),
        process(6, &[(0, ALL, 0.0)]),
        process(7, &[(0, 70, 0.0), (70, 80, 0.5), (80, ALL, 0.0)]),
        // The links are down from minute 40 to 70: this one stops with them, and that one was idle before.
        process(8, &[(0, 40, 0.9), (40, 75, 0.0), (75, ALL, 0.9)]),
        process(9, &[(0, 10, 0.9), (10, ALL, 0.0)]),
        // One ends with half an hour of nothing, and one with a checkpoint.
        process(10, &[(0, 30, 0.9), (30, END_OF_JOBS, 0.0)]),
        process(11, &[(0, END_OF_JOBS - 5, 0.9), (END_OF_JOBS - 5, END_OF_JOBS, 0.0)]),
    ];
    let down = |gpu: u32| json!({ "from": 40 * 60, "to": 70 * 60, "gpu": gpu });
    json!({
        "driver_version": "590.48.01", "cycle_seconds": ALL * 60,
        "gpus": [{ "profile": "h100", "count": GPUS }],
        "users": [{ "uid": 1_006, "name": "alice" }, { "uid": 1_007, "name": "bob" }],
        "processes": processes, "links_down": [down(8), down(9)], "config": CONFIG,
    })
}

/// Waits for a moment in which the agent may be late.
fn while_not(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() && begun.elapsed() < MOMENT {
        std::thread::sleep(POLL);
    }
}

struct Node {
    demo: Demo,
    clock: ClockPage,
    /// UUIDs by index.
    gpus: Vec<String>,
    _scenario: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("scenario.json");
        std::fs::write(&file, scenario().to_string()).unwrap();
        let demo = Demo::start(&["--scenario", file.to_str().unwrap()]);
        let records = demo.directory.path().join("host/run/gpumeter");
        std::fs::create_dir_all(&records).unwrap();
        wait_until("the map of GPUs", || records.join("gpus").exists());
        let clock = ClockPage::open(&demo.driver("clock")).unwrap();
        let elapsed = clock.state().elapsed_at(system_now().boottime);
        // Between two ticks, so that each step has one.
        let state = clock.state();
        let since_tick = (state.boottime + elapsed).0 % TICK;
        let elapsed = Nanoseconds(elapsed.0 + TICK + TICK / 2 - since_tick);
        clock.set(PageState { held: true, elapsed, ..state }).unwrap();
        let page =
            demo.agent.wait_for("all GPUs", |page| page.series_of("gpu_up", &["uuid"]).count() == GPUS);
        let label = |name: &str| name.split("uuid=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let index = |name: &str| -> usize {
            name.split("gpu=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        let mut gpus = vec![String::new(); GPUS];
        for (name, _) in page.series_of("gpu_up", &[]) {
            gpus[index(name)] = label(name);
        }
        Self { demo, clock, gpus, _scenario: directory }
    }

    /// Runs the prolog or epilog of Slurm for a job, which tells GPUs by minor number.
    fn hook(&self, script: &str, (job, account, gpus): (u32, &str, &[usize])) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/slurm").join(script);
        let records = self.demo.directory.path().join("host/run/gpumeter");
        let map = std::fs::read_to_string(records.join("gpus")).unwrap();
        let minor =
            |gpu: &usize| map.lines().find_map(|line| line.strip_suffix(&self.gpus[*gpu])).unwrap().trim();
        let minors = gpus.iter().map(minor).collect::<Vec<_>>().join(",");
        let command = Command::new("sh")
            .arg(script)
            .env_clear()
            .envs([
                ("SLURMD_NODENAME", "node1"),
                ("SLURM_CLUSTER_NAME", "alpha"),
                ("SLURM_JOB_ACCOUNT", account),
            ])
            .envs([
                ("SLURM_JOB_USER", "ada"),
                ("SLURM_JOB_UID", "1000"),
                ("SLURM_JOB_START_TIME", "1700000000"),
            ])
            .env("GPUMETER_DIRECTORY", records)
            .env("SLURM_JOB_ID", job.to_string())
            .env("SLURM_JOB_GPUS", minors)
            .status();
        assert!(command.unwrap().success());
    }

    /// How often each sampler has gone to sleep.
    fn sleeps(&self) -> Vec<u64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.demo.agent.id())).unwrap();
        let statuses = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")));
        let sampler = |text: &String| text.starts_with("Name:\tsampler\n");
        let count = |text: String| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse().unwrap()
        };
        statuses.flatten().filter(sampler).map(count).collect()
    }

    /// Moves the time on by a tick: first the samplers are due, which sleep when they have read, then the tick loop. A frame that comes
    /// too late is in the next tick.
    fn step(&self) {
        let state = self.clock.state();
        let set =
            |elapsed: u64| self.clock.set(PageState { elapsed: Nanoseconds(elapsed), ..state }).unwrap();
        let before = self.clock.now().utc.0;
        set(state.elapsed.0 + TICK / 2 + TICK / 15);
        let slept = self.sleeps();
        // The first time may be from before.
        let have_read = || self.sleeps().iter().zip(&slept).all(|(now, slept)| *now >= slept + 2);
        while_not(have_read);
        set(state.elapsed.0 + TICK);
        let is_published = |line: &str| {
            let seconds = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
            seconds.is_some_and(|seconds| seconds >= before as f64 / 1e9)
        };
        while_not(|| {
            let (_, page) = self.demo.agent.get("/metrics");
            let lines =
                page.lines().filter(|line| line.starts_with("gpumeter_last_sample_timestamp_seconds{"));
            lines.filter(|line| is_published(line)).count() == GPUS
        });
    }

    /// Moves the time on until the page has so many holdings. Records are looked for in the host's time.
    fn wait_for_holdings(&self, count: usize) {
        wait_until("the holdings", || {
            std::thread::sleep(Duration::from_millis(300));
            self.step();
            let (_, page) = self.demo.agent.get("/metrics");
            page.lines().filter(|line| line.starts_with("gpu_holding_ratio{")).count() == count
        });
    }

    /// Moves the time on to a minute of the scenario.
    fn run_to(&self, minute: u64) {
        while self.clock.state().elapsed.0 < minute * 60_000_000_000 {
            self.step();
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.demo.agent.address)
    }

    /// The GPUs that the page and the gauge name as held without use, each with the reason.
    fn unused(&self) -> BTreeSet<(usize, String)> {
        let summary: Value = serde_json::from_str(&self.demo.agent.get("/api/v1/summary").1).unwrap();
        let problems = summary["problems"].as_array().unwrap().clone();
        let told = problems.iter().filter(|one| one["title"].as_str().unwrap().ends_with("held without use"));
        let place = |uuid: &str| self.gpus.iter().position(|known| known == uuid).unwrap();
        let told: BTreeSet<usize> = told.map(|problem| place(problem["gpu"].as_str().unwrap())).collect();
        let page = Scrape::parse(&self.demo.agent.get("/metrics").1);
        let label = |series: &str, name: &str| {
            let text = series.split(&format!("{name}=\"")).nth(1).unwrap();
            text.split('"').next().unwrap().to_owned()
        };
        let gauge = page.series_of("gpu_held_without_use", &[]);
        let gauge: BTreeSet<(usize, String)> =
            gauge.map(|(series, _)| (place(&label(series, "uuid")), label(series, "kind"))).collect();
        assert_eq!(told, gauge.iter().map(|(gpu, _)| *gpu).collect(), "{problems:?}");
        gauge
    }

    /// The notes of a job, but for that of its memory.
    fn notes(&self, job: u32) -> Vec<(String, String)> {
        let made = output(&["job", &job.to_string(), "--url", &self.url(), "--json"]);
        let made: Value = serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
        let notes = made["notes"].as_array().unwrap().clone();
        let text = |note: &Value, key: &str| note[key].as_str().unwrap().to_owned();
        let notes = notes.iter().map(|note| (text(note, "kind"), text(note, "text")));
        notes.filter(|(kind, _)| kind != "memory").collect()
    }
}

#[test]
fn what_is_held_and_not_used_is_told_from_the_driver_to_the_answer_and_what_looks_like_it_is_not() {
    let node = Node::start();
    JOBS.iter().for_each(|job| node.hook("prolog.sh", *job));
    node.wait_for_holdings(GPUS);
    node.run_to(20);
    assert_eq!(node.unused(), BTreeSet::new(), "images are loaded, and sessions were used lately");
    node.run_to(END_OF_JOBS);
    JOBS[2..6].iter().for_each(|job| node.hook("epilog.sh", *job));
    node.wait_for_holdings(GPUS - 6);
    node.run_to(END_OF_JOBS + 10);
    let notes = [201, 202, 301, 302].map(|job| node.notes(job));
    assert_eq!(notes[0], [("unused_gpus".to_owned(), "1 of 2 GPUs never used".to_owned())]);
    assert_eq!(notes[1], []);
    assert!(
        matches!(&notes[2][..], [(kind, text)] if kind == "idle_end" && text.starts_with("idle after 20")),
        "{notes:?}"
    );
    assert_eq!(notes[3], []);
    let waits = ["held_without_process", "open_session"].map(str::to_owned);
    let [without_process, session] = [(0, waits[0].clone()), (6, waits[1].clone())];
    for minute in (75..=115).step_by(5) {
        node.run_to(minute);
        assert_eq!(node.unused(), BTreeSet::from([without_process.clone()]));
    }
    node.run_to(190);
    assert_eq!(node.unused(), BTreeSet::from([without_process, session]));
    let mut advised = Value::Null;
    wait_until("the answer of the last commit", || {
        let told = output(&["advise", "--json", "--url", &node.url()]);
        advised = serde_json::from_slice(&told.stdout).unwrap_or_else(|_| panic!("{told:?}"));
        let served: Value = serde_json::from_str(&node.demo.agent.get("/api/v1/advice").1).unwrap();
        advised == served
    });
    let findings = advised["findings"].as_array().unwrap();
    let found: BTreeSet<(&str, &str)> = findings
        .iter()
        .map(|finding| (finding["tenant"].as_str().unwrap(), finding["kind"].as_str().unwrap()))
        .collect();
    let expected =
        [("a1-true", "held_without_process"), ("a8-true", "held_beside_fault"), ("alice", "open_session")];
    assert_eq!(found, BTreeSet::from(expected), "{advised}");
}
