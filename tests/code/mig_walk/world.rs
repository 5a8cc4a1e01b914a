//! Two simulated GPUs, of which the second changes its MIG layout; their samplers, a meter and a ledger.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpumeter::accounting::batches::Acknowledged;
use gpumeter::accounting::ledger::{Ledger, LedgerQueue, Opening};
use gpumeter::driver::nvml::{CallSlot, Library, Sampler, find};
use gpumeter::holders::{IdentifiedProcess, Identities};
use gpumeter::meter::{Inputs, Meter, Policy, SamplerNews};
use gpumeter::model::catalogue::Level;
use gpumeter::model::snapshot::Snapshot;
use gpumeter::model::{Frame, Holder, HowHeld, Nanoseconds, Utc};
use gpumeter::runtime::clock::{Clock, ClockPage, PageState};
use tempfile::TempDir;

use super::layout::Layout;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// The index of the GPU whose layout changes.
pub(crate) const MIG_GPU: usize = 1;
const GPUS: u32 = 2;
/// The number of processes on that GPU, one per instance; most layouts have fewer instances.
const JOBS: u32 = 7;
const UTC: Utc = Utc(1_767_225_600_000_000_000);
const BOOTTIME: Nanoseconds = Nanoseconds::from_seconds(1_000);
/// The share of wall time that the driver may take, in millionths: all of it, or calls that a busy machine slows down would
/// stretch the tiers, and a new layout would be seen later than in the next tick.
const WHOLE_SHARE: u32 = 1_000_000;

/// The result of a tick: the frames by GPU, the snapshot, and what the ledger committed.
pub(crate) struct TickResult {
    pub(crate) frames: Vec<Frame>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) committed: Acknowledged,
}

pub(crate) struct World {
    page: Arc<ClockPage>,
    samplers: Vec<Sampler>,
    meter: Meter,
    ledger: Ledger,
    queue: LedgerQueue,
    identities: Arc<Identities>,
    acknowledged: Vec<Acknowledged>,
    found: Vec<SamplerNews>,
    second: u64,
    /// The last field, so that it is removed after library and ledger, which are in it, are closed.
    directory: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libnvidia-ml.so.1");
        fs::write(&path, LIBRARY).unwrap();
        fs::write(directory.path().join("scenario"), scenario().to_string()).unwrap();
        let page = Arc::new(ClockPage::create(&directory.path().join("clock"), held(10)).unwrap());
        let clock = Clock::Page(Arc::clone(&page));
        let library = Library::open(Some(&path)).unwrap();
        let (mut samplers, mut found) = (Vec::new(), Vec::new());
        for index in 0..GPUS {
            let slot = CallSlot::default();
            let gpu = find(&library, index, &slot, &clock).unwrap();
            found.push(SamplerNews::Found { gpu: gpu.id.clone(), bus: Arc::clone(&gpu.bus) });
            let mut sampler = Sampler::new(Arc::clone(&library), &gpu, slot, clock.clone(), Level::Full);
            sampler.configure(Level::Full, true, WHOLE_SHARE);
            samplers.push(sampler);
        }
        found.push(SamplerNews::Counted);
        let opening = Opening { boot_id: "boot".into(), now: clock.now(), ..Opening::default() };
        let (ledger, recovered) = Ledger::open(&directory.path().join("ledger.db"), &opening).unwrap();
        let meter = Meter::new(Arc::new(policy()), clock.now(), Some(recovered));
        Self {
            page,
            samplers,
            meter,
            ledger,
            queue: LedgerQueue::default(),
            identities: Arc::new(identities()),
            acknowledged: Vec::new(),
            found,
            second: 10,
            directory,
        }
    }

    /// Changes the layout of the GPU.
    pub(crate) fn set_layout(&self, placed: &Layout) {
        let instances: Vec<_> = placed
            .iter()
            .flatten()
            .map(|(profile, start)| serde_json::json!({ "profile": profile, "start": start }))
            .collect();
        let mode = if placed.is_some() { "on" } else { "off" };
        let layout = serde_json::json!({ "mode": mode, "instances": instances });
        let state = serde_json::json!({ "mig": { MIG_GPU.to_string(): layout } });
        fs::write(self.path("state.new"), state.to_string()).unwrap();
        fs::rename(self.path("state.new"), self.path("state")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs the next second from the samplers to the ledger.
    pub(crate) fn tick(&mut self) -> TickResult {
        self.second += 1;
        self.page.set(held(self.second)).unwrap();
        let frames: Vec<Frame> =
            self.samplers.iter_mut().map(|sampler| sampler.tick([true; 3]).unwrap()).collect();
        let mut news = std::mem::take(&mut self.found);
        news.extend(frames.iter().map(|frame| SamplerNews::Frame(Box::new(frame.clone()))));
        let inputs = Inputs {
            news,
            identities: Arc::clone(&self.identities),
            acknowledged: std::mem::take(&mut self.acknowledged),
            ..Inputs::default()
        };
        let tick = self.meter.tick(self.page.now(), inputs);
        self.queue.offer(tick.batch);
        let batch = self.queue.wait_for_batch(Duration::ZERO).unwrap();
        let committed = self.ledger.commit(&batch).unwrap();
        self.acknowledged.push(committed.clone());
        TickResult { frames, snapshot: tick.snapshot, committed }
    }
}

fn held(second: u64) -> PageState {
    PageState::held_at(Nanoseconds::from_seconds(second), UTC, BOOTTIME)
}

fn scenario() -> serde_json::Value {
    let job = |gpu: usize, pid: u32, instance: Option<u32>| {
        serde_json::json!({
            "pid": pid, "name": "/usr/bin/job", "gpu": gpu, "instance": instance,
            "phases": [{ "from": 0, "to": 600, "demand": 0.7, "memory_bytes": 1 << 30 }]
        })
    };
    let jobs = (0..JOBS).map(|number| job(MIG_GPU, 10_000 + number, Some(number)));
    // The first layout has an instance for each of them.
    let begin: Vec<_> =
        (0..JOBS).map(|start| serde_json::json!({ "profile": "1g.10gb", "start": start })).collect();
    serde_json::json!({
        "cycle_seconds": 600,
        "gpus": [{ "profile": "h100" }, { "profile": "h100", "mig": begin }],
        "processes": jobs.chain([job(0, 9_000, None)]).collect::<Vec<_>>()
    })
}

fn identities() -> Identities {
    let user = |pid: u32| {
        let user = Holder::user(&format!("user{}", pid % 3), Some(1_000 + pid % 3));
        (pid, IdentifiedProcess { holder: Arc::new(user), name: "job".into(), start_time: 1 })
    };
    (10_000..10_000 + JOBS).chain([9_000]).map(user).collect()
}

fn policy() -> Policy {
    Policy {
        level: Level::Full,
        dcgm: false,
        workload_counters: false,
        intervals: [Nanoseconds::SECOND; 3],
        standing: Vec::new(),
        allocations: std::sync::Arc::default(),
        how_held: HowHeld::Presence,
        birth_delay: Nanoseconds(0),
        processes: 100,
        series: 20_000,
        rates: Default::default(),
        tenant_rules: Default::default(),
    }
}
