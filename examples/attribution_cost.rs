//! Measures what attribution costs beside 250 pods and 3,000 processes: processor time of each process and tick, of each
//! new process, of each refresh of the pods, and memory.
//!
//! `cargo run --release --features examples --example attribution_cost` prints the rows of `docs/figures.md`. The processes are real and idle,
//! and held by descriptors as in the agent. Their `/proc` files are the kernel's, except for their cgroups, which are those
//! of pods in a directory of this program; the kubelet is a gRPC server in this program. Times are processor time of the
//! measuring thread; meter and ledger run in virtual time.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a measuring program, not the agent"
)]

#[allow(dead_code, reason = "another program uses the rest")]
mod counting;
#[path = "../tests/agent/kubelet.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod kubelet;
#[path = "../benches/counts/made.rs"]
#[allow(dead_code, reason = "another program uses the rest")]
mod made;

use std::collections::BTreeSet;
use std::io::PipeWriter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpumeter::accounting::batches::Acknowledged;
use gpumeter::accounting::ledger::{Ledger, LedgerQueue, Opening};
use gpumeter::holders::host::{Host, agent_usage};
use gpumeter::holders::kubelet::KubeletSocket;
use gpumeter::holders::{
    PodHoldings, PodMetadata, PodObservation, PodTracker, ProcessDirectory, ResolvedWorkloads, Resources,
};
use gpumeter::meter::{Inputs, Meter, Policy, SamplerNews};
use gpumeter::model::catalogue::Level;
use gpumeter::model::{Frame, HoldingSource, HowHeld, Nanoseconds, Stamp};
use gpumeter::runtime::clock::system_now;
use rustix::time::{ClockId, clock_gettime};

use kubelet::{Answers, Kubelet};
use made::id;

const GPUS: u32 = 8;
const PODS: usize = 250;
const PROCESSES: usize = 3_000;
/// Processes that are added one by one afterwards.
const NEWCOMERS: usize = 20;
/// Ticks of each measurement: several windows of the account.
const TICKS: u64 = 60;
const REFRESHES: u32 = 50;

fn main() {
    let processes = IdleProcesses::start(PROCESSES + NEWCOMERS);
    // Afterwards, since children inherit it.
    agent_usage::raise_open_files_limit().unwrap();
    let fixture = Fixture::make(&processes);
    println!("| | what | aim | measured | |\n|---|---|---|---|---|");
    let mut empty = Node::new(&fixture.root.path().join("empty"));
    empty.measure_ticks(&[]);
    let (resident_of_empty, heap_of_empty) = (counting::resident(), empty.heap());
    drop(empty);
    let mut full = Node::new(fixture.root.path());
    full.heap_before += heap_of_empty;
    full.measure_pods();
    full.measure_processes(&processes.pids());
    show("live heap for all of them", "<= 2 MiB", mebibytes(full.heap()));
    let resident = counting::resident().saturating_sub(resident_of_empty) * 1_024;
    show("resident memory for all of them", "<= 8 MiB", mebibytes(resident));
}

/// Prints a row; the measured value has the unit of the aim.
fn show(what: &str, aim: &str, measured: f64) {
    let mut words = aim.split(' ').skip(1);
    let most: f64 = words.next().unwrap().parse().unwrap();
    let unit = words.next().unwrap();
    let verdict = if measured <= most { "ok" } else { "missed" };
    println!("| P11 | {what} | {aim} | {measured:.2} {unit} | {verdict} |");
}

/// Prints a row without an aim.
fn tell(what: &str, measured: f64, unit: &str) {
    println!("| P11 | {what} | | {measured:.2} {unit} | |");
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// Processes that wait for the end of a pipe, which closes whenever this program ends.
struct IdleProcesses {
    children: Vec<Child>,
    pipe: Option<PipeWriter>,
}

impl IdleProcesses {
    fn start(count: usize) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let start = |_| Command::new("cat").stdin(Stdio::from(reader.try_clone().unwrap())).spawn().unwrap();
        Self { children: (0..count).map(start).collect(), pipe: Some(writer) }
    }

    fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }
}

impl Drop for IdleProcesses {
    fn drop(&mut self) {
        drop(self.pipe.take());
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// A directory that stands for `/` of a node with pods, and its kubelet.
struct Fixture {
    root: tempfile::TempDir,
    _kubelet: Kubelet,
}

impl Fixture {
    fn make(processes: &IdleProcesses) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        symlink("/proc/self", root.path().join("proc/self")).unwrap();
        for (number, pid) in processes.pids().into_iter().enumerate() {
            let directory = root.path().join(format!("proc/{pid}"));
            std::fs::create_dir(&directory).unwrap();
            for file in ["stat", "status"] {
                symlink(format!("/proc/{pid}/{file}"), directory.join(file)).unwrap();
            }
            let pod = number % PODS;
            let cgroup = format!("0::/kubepods/burstable/pod{}/{}\n", uid(pod), container_id(pod));
            std::fs::write(directory.join("cgroup"), cgroup).unwrap();
        }
        for pod in 0..PODS {
            let (name, uid, id) = (format!("train-{pod}"), uid(pod), container_id(pod));
            kubelet::log(root.path(), ("ml", &name, &uid), ("main", &id));
        }
        let answers = Answers {
            pods: (0..PODS)
                .map(|pod| kubelet::pod("ml", &format!("train-{pod}"), "main", &[&device(pod)]))
                .collect(),
            allocatable: Some((0..PODS).map(|pod| kubelet::gpus(&[&device(pod)])).collect()),
            ..Answers::default()
        };
        let kubelet = Kubelet::start(&socket(root.path()), answers);
        Self { root, _kubelet: kubelet }
    }
}

fn socket(root: &Path) -> PathBuf {
    root.join("kubelet.sock")
}

fn uid(pod: usize) -> String {
    format!("3cae2e45-052c-4b11-80d3-{pod:012x}")
}

fn container_id(pod: usize) -> String {
    format!("{pod:064x}")
}

/// The replica of a GPU that is allocated to the pod.
fn device(pod: usize) -> String {
    let gpus = usize::try_from(GPUS).unwrap();
    format!("{}::{}", id(u32::try_from(pod % gpus).unwrap()).uuid, pod / gpus)
}

/// The agent's state of a node: its pods, processes and account.
struct Node {
    heap_before: u64,
    host: Host,
    client: KubeletSocket,
    pods: PodTracker,
    resources: Resources,
    workloads: ResolvedWorkloads,
    directory: ProcessDirectory,
    seen: BTreeSet<u32>,
    meter: Meter,
    ledger: Ledger,
    _ledger_directory: tempfile::TempDir,
    acknowledged: Vec<Acknowledged>,
    began: Stamp,
    ticks: u64,
}

impl Node {
    fn new(root: &Path) -> Self {
        let heap_before = counting::live();
        let host = Host::at(root);
        let began = system_now();
        let ledger_directory = tempfile::tempdir().unwrap();
        let opening = Opening { boot_id: "cost".into(), now: began, ..Opening::default() };
        let (ledger, recovered) = Ledger::open(&ledger_directory.path().join("ledger.db"), &opening).unwrap();
        let policy = Policy { level: Level::Standard, how_held: HowHeld::Grants, ..made::policy([1, 5, 60]) };
        Self {
            heap_before,
            client: KubeletSocket::new(&socket(root)).unwrap(),
            pods: PodTracker::default(),
            resources: Resources { names: vec!["nvidia.com/*".into()], replicas: None, ignored: Vec::new() },
            workloads: ResolvedWorkloads::default(),
            directory: ProcessDirectory::new(host.clone(), None, 8_192),
            host,
            seen: BTreeSet::new(),
            meter: Meter::new(Arc::new(policy), began, Some(recovered)),
            ledger,
            _ledger_directory: ledger_directory,
            acknowledged: Vec::new(),
            began,
            ticks: 0,
        }
    }

    /// Refreshes the pods as the agent's thread does, and applies the result.
    fn refresh_pods(&mut self) {
        let listed = self.client.list().unwrap();
        let needs = self.pods.needs_allocatable(&listed, &self.resources);
        let allocatable = needs.then(|| self.client.allocatable().unwrap());
        let known: PodHoldings = self.pods.observe(PodObservation {
            listed: Some(&listed),
            allocatable: allocatable.as_ref(),
            logs: &self.host.pod_logs(),
            metadata: &PodMetadata::default(),
            running: None,
            now: gpumeter::runtime::clock::system_now().utc,
            minors: &self.host.gpu_minors(),
            administrative: &BTreeSet::new(),
            resources: &self.resources,
        });
        assert_eq!((known.allocations.len(), known.problems.len()), (PODS, 0));
        self.workloads.allocate(HoldingSource::Kubernetes, &known.allocations);
        if *self.workloads.pods != known.map {
            self.workloads.pods = Arc::new(known.map);
        }
    }

    fn measure_pods(&mut self) {
        let first = microseconds(|| self.refresh_pods());
        show(&format!("the first list of {PODS} pods"), "<= 5 ms", first / 1e3);
        let refreshes = microseconds(|| (0..REFRESHES).for_each(|_| self.refresh_pods()));
        show("each further refresh", "<= 5 ms", refreshes / f64::from(REFRESHES) / 1e3);
        let looks = microseconds(|| {
            for _ in 0..REFRESHES {
                self.host.pod_logs_modified();
            }
        });
        show("between refreshes, each second", "<= 0.01 ms", looks / f64::from(REFRESHES) / 1e3);
    }

    fn measure_processes(&mut self, pids: &[u32]) {
        let (known, newcomers) = pids.split_at(PROCESSES);
        let tick_of_empty = self.measure_ticks(&[]);
        tell("a tick in which 250 pods hold and nobody is there", tick_of_empty, "us");
        tell("of the live heap, what 250 pods take", mebibytes(self.heap()), "MiB");
        let first = self.measure_round(known);
        show("a process that is new, of 3,000 in one round", "<= 100 us", first / PROCESSES as f64);
        tell("of the live heap, with identities", mebibytes(self.heap()), "MiB");
        let tick = self.measure_ticks(known);
        let each = (tick - tick_of_empty) / PROCESSES as f64;
        show("a known process that does nothing, in a tick", "<= 1.5 us", each);
        let round = (0..TICKS).map(|_| self.measure_round(known)).sum::<f64>() / TICKS as f64;
        tell("of that, whether it is still the same", round / PROCESSES as f64, "us");
        let mut present = known.to_vec();
        let with_newcomers = newcomers.iter().map(|pid| {
            present.push(*pid);
            self.measure_round(&present)
        });
        let newcomer = with_newcomers.sum::<f64>() / NEWCOMERS as f64 - round;
        show("a process that is new beside 3,000 known ones", "<= 100 us", newcomer);
    }

    /// Live heap of the node's state in bytes.
    fn heap(&self) -> u64 {
        counting::live().saturating_sub(self.heap_before)
    }

    /// Processor time of a round of identification, in microseconds.
    fn measure_round(&mut self, pids: &[u32]) -> f64 {
        self.seen = pids.iter().copied().collect();
        let now = self.now();
        microseconds(|| drop(self.directory.refresh(&self.seen, &self.workloads, now)))
    }

    /// Processor time of a tick with these processes on the GPUs, in microseconds: identification and meter.
    fn measure_ticks(&mut self, pids: &[u32]) -> f64 {
        let mut total = 0.0;
        for tick in 0..2 * TICKS {
            let frames = self.frames(pids);
            self.seen = pids.iter().copied().collect();
            let (now, queue) = (self.now(), LedgerQueue::default());
            let spent = microseconds(|| {
                let identities = self.directory.refresh(&self.seen, &self.workloads, now);
                assert_eq!(identities.len(), pids.len());
                let inputs = Inputs {
                    news: frames,
                    identities,
                    allocations: Arc::clone(&self.workloads.allocations),
                    acknowledged: std::mem::take(&mut self.acknowledged),
                    ..Inputs::default()
                };
                queue.offer(self.meter.tick(now, inputs).batch);
            });
            total += if tick < TICKS { 0.0 } else { spent };
            self.acknowledged
                .push(self.ledger.commit(&queue.wait_for_batch(Duration::ZERO).unwrap()).unwrap());
            self.ticks += 1;
        }
        total / TICKS as f64
    }

    /// The samplers' news of this tick; the first tick finds the GPUs.
    fn frames(&self, pids: &[u32]) -> Vec<SamplerNews> {
        let found = (0..GPUS).map(|gpu| SamplerNews::Found { gpu: id(gpu), bus: "".into() });
        let now = self.now();
        let frames = (0..GPUS).map(|gpu| {
            let share =
                pids.iter().skip(usize::try_from(gpu).unwrap()).step_by(usize::try_from(GPUS).unwrap());
            let frame = made::frame(id(gpu), self.ticks, &share.copied().collect::<Vec<_>>(), 0);
            SamplerNews::Frame(Box::new(Frame {
                begun: now,
                ended: now,
                tiers: [Some(now); 3],
                listed: Some(now),
                samples: Ok([].into()),
                ..frame
            }))
        });
        found.filter(|_| self.ticks == 0).chain(frames).collect()
    }

    /// The virtual time of the tick.
    fn now(&self) -> Stamp {
        let passed = Nanoseconds::from_seconds(self.ticks);
        Stamp { boottime: self.began.boottime + passed, utc: self.began.utc.plus(passed) }
    }
}

/// Processor time of `work` on this thread, in microseconds.
fn microseconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let began = now();
    work();
    now() - began
}
