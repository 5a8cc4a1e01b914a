//! A whole node in one thread: samplers, events, names, meter, ledger and page, in time that moves from tick to tick.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::super::{DemoScenario, install_library, library, make, node, write};
use crate::accounting::batches::Acknowledged;
use crate::accounting::ledger::{Ledger, Opening};
use crate::agent::policy::AgentPolicy;
use crate::agent::session::{EventBatch, Received};
use crate::config::{Config, ConfigFile};
use crate::driver::nvml::{CallSlot, EventSet, EventWait, Library, Sampler, count, find};
use crate::holders::host::{Host, UserDatabase};
use crate::holders::{BelievedCgroups, Identities, ProcessDirectory, ResolvedWorkloads};
use crate::meter::{Inputs, Meter, SamplerNews, Services};
use crate::model::catalogue::{AgentFamily, Level};
use crate::model::{Nanoseconds, NodeIdentity, Utc};
use crate::output::render::{PageFormat, PublishedSnapshot};
use crate::runtime::clock::{Clock, ClockPage, PageState};

/// The node to run.
pub(super) struct HeldNode<'a> {
    pub(super) scenario: &'a Path,
    pub(super) level: Level,
    pub(super) ticks: u64,
    /// The file of counters of the page with dcgm-exporter's names, if not the default.
    pub(super) dcgm_counters: Option<&'a Path>,
}

/// What an agent serves after the node's ticks, without what only a running agent knows of itself.
pub(super) struct Pages {
    pub(super) native: String,
    /// With dcgm-exporter's names.
    pub(super) dcgm: String,
}

/// The tick loop runs a fifth of an interval after the samplers.
const TICK_DELAY: Nanoseconds = Nanoseconds(Nanoseconds::SECOND.0 / 5);
/// 2026-03-01T00:00:00Z, on the grid of the account's windows.
const BEGIN: Utc = Utc(1_772_323_200_000_000_000);
const BOOT: Nanoseconds = Nanoseconds::from_seconds(1_000);

fn held(elapsed: Nanoseconds) -> PageState {
    PageState::held_at(elapsed, BEGIN, BOOT)
}

impl<'a> HeldNode<'a> {
    pub(super) fn new(scenario: &'a Path, level: Level, ticks: u64) -> Self {
        Self { scenario, level, ticks, dcgm_counters: None }
    }

    pub(super) fn pages(&self) -> Pages {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::start(self, directory);
        let mut last = run.tick(0);
        for tick in 1..=self.ticks {
            last = run.tick(tick);
        }
        let page = |format| String::from_utf8(last.page(format).to_vec()).unwrap();
        Pages { native: page(PageFormat::Text), dcgm: page(PageFormat::Dcgm) }
    }

    fn config(&self) -> Config {
        let level = self.level.name();
        let counters =
            self.dcgm_counters.map_or(String::new(), |path| format!("  dcgm_counters: {}\n", path.display()));
        // The samplers may take all of the driver's time, or calls that a busy machine slows down would stretch the tiers.
        let text = format!(
            "web:\n  dcgm_listen: 127.0.0.1:0\n{counters}sampling:\n  level: {level}\n  driver_share: 1000000\n\
             attribution:\n  presence: true\nprices:\n  currency: EUR\n  rates:\n    - gpu_hour: 2.4\n\
             limits:\n  birth_delay: 0s\n"
        );
        parse(&text)
    }
}

/// The configuration with the files that it names.
pub(super) fn parse(text: &str) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    ConfigFile::open(file.path()).unwrap().1
}

struct Run {
    page: Arc<ClockPage>,
    policy: AgentPolicy,
    host: Host,
    samplers: Vec<Sampler>,
    events: Option<EventSet>,
    received: Received,
    processes: ProcessDirectory,
    workloads: ResolvedWorkloads,
    identities: Arc<Identities>,
    meter: Meter,
    ledger: Ledger,
    acknowledged: Vec<Acknowledged>,
    news: Vec<SamplerNews>,
    /// The last field, so that it is removed after library and ledger, which are in it, are closed.
    _directory: TempDir,
}

impl Run {
    fn start(node: &HeldNode<'_>, directory: TempDir) -> Self {
        let driver = directory.path().join("driver");
        make(&driver).unwrap();
        let faults = node.scenario.with_extension("faults");
        if faults.exists() {
            std::fs::copy(faults, driver.join("faults")).unwrap();
        }
        let page = Arc::new(ClockPage::create(&driver.join("clock"), held(Nanoseconds(0))).unwrap());
        let scenario = DemoScenario::load(node.scenario.to_str().unwrap()).unwrap();
        write(&driver.join("scenario"), scenario.text().as_bytes()).unwrap();
        let path = library(directory.path());
        install_library(&path).unwrap();
        let root = node::write(directory.path(), &scenario, &page).unwrap();
        let host = Host::with_users(&root, UserDatabase::of_host(&root));
        let policy = AgentPolicy::new(node.config(), None);
        let (samplers, events, news) = open(&path, &Clock::Page(Arc::clone(&page)), policy.level);
        let (ledger, recovered) =
            Ledger::open(&directory.path().join("ledger.db"), &opening(&policy, &page)).unwrap();
        let cgroups = BelievedCgroups::new(&[], &[], &host);
        Self {
            samplers,
            events,
            received: Received::default(),
            processes: ProcessDirectory::new(host.clone(), None, 0),
            host,
            workloads: ResolvedWorkloads { cgroups: cgroups.into(), ..ResolvedWorkloads::default() },
            identities: Arc::default(),
            meter: Meter::new(Arc::clone(&policy.meter), page.now(), Some(recovered)),
            ledger,
            acknowledged: Vec::new(),
            news,
            policy,
            page,
            _directory: directory,
        }
    }

    /// Reads all GPUs at that second, and publishes what the meter makes of it once the ledger has the tick before.
    fn tick(&mut self, tick: u64) -> PublishedSnapshot {
        let read = Nanoseconds::from_seconds(tick);
        self.page.set(held(read)).unwrap();
        let pids = self.sample(tick);
        self.receive_events();
        self.identify(&pids);
        // The first tick comes with the first frames.
        self.page.set(held(if tick == 0 { read } else { read + TICK_DELAY })).unwrap();
        let (xids, notices) = self.received.take();
        let inputs = Inputs {
            news: std::mem::take(&mut self.news),
            wants_processes: !xids.is_empty(),
            xids,
            notices,
            identities: Arc::clone(&self.identities),
            acknowledged: std::mem::take(&mut self.acknowledged),
            pci: self.host.pci().map(Arc::new),
            host_memory: self.host.memory(),
            services: services(),
            ..Inputs::default()
        };
        let output = self.meter.tick(self.page.now(), inputs);
        let committed = self.ledger.commit(&output.batch).unwrap();
        self.acknowledged.push(Acknowledged { month: self.ledger.month_costs().unwrap(), ..committed });
        PublishedSnapshot::new(output.snapshot, Arc::clone(&self.policy.page_cache))
    }

    /// The pids that the samplers saw.
    fn sample(&mut self, tick: u64) -> BTreeSet<u32> {
        let due = self.policy.ticks_per_tier().map(|every| tick.is_multiple_of(every));
        let mut pids = BTreeSet::new();
        for sampler in &mut self.samplers {
            let hint = self.received.take_hint(&sampler.gpu().uuid);
            if hint.read_all {
                sampler.read_all_tiers_next();
            }
            sampler.configure(self.policy.level, true, self.policy.config.sampling.driver_share);
            sampler.show_processes(self.policy.meter.dcgm);
            let frame = sampler.tick(due).unwrap();
            pids.extend(frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid));
            pids.extend(frame.samples.iter().flatten().map(|sample| sample.pid));
            self.news.push(SamplerNews::Frame(Box::new(frame)));
        }
        pids
    }

    fn receive_events(&mut self) {
        let mut batch = EventBatch::default();
        while let Some(events) = &mut self.events
            && let EventWait::Event(event) = events.wait(0).unwrap()
        {
            batch.event(event);
        }
        self.received.add(batch, self.page.now());
    }

    /// Names the processes, and their users for the next tick.
    fn identify(&mut self, pids: &BTreeSet<u32>) {
        self.identities = self.processes.refresh(pids, &self.workloads, self.page.now());
        while let Some(uid) = self.host.users().next_due(Duration::ZERO) {
            self.host.users().refresh(uid, |_| ()).unwrap();
        }
    }
}

/// The name of the node, which the page with dcgm-exporter's names has in each series.
fn services() -> Services {
    let mut services = Services::default();
    let labels = vec![("node_name", "demo-node".into()), ("cluster_name", "".into())];
    services.add(AgentFamily::NodeInfo, labels, 1);
    services
}

/// The samplers of all GPUs, the events of those where the node has GPUs, and the news of both.
fn open(path: &Path, clock: &Clock, level: Level) -> (Vec<Sampler>, Option<EventSet>, Vec<SamplerNews>) {
    let library = Library::open(Some(path)).unwrap();
    let gpus = count(&library, &CallSlot::default(), clock).unwrap();
    let (mut samplers, mut news) = (Vec::new(), vec![SamplerNews::Opened { anew: false, module: None }]);
    let mut events = (gpus > 0).then(|| EventSet::new(&library, CallSlot::default(), clock.clone()).unwrap());
    for index in 0..gpus {
        let slot = CallSlot::default();
        let found = find(&library, index, &slot, clock).unwrap();
        if let Some(events) = &mut events {
            events.register(&found).unwrap();
        }
        news.push(SamplerNews::Found { gpu: found.id.clone(), bus: Arc::clone(&found.bus) });
        samplers.push(Sampler::new(Arc::clone(&library), &found, slot, clock.clone(), level));
    }
    news.push(SamplerNews::Counted);
    (samplers, events, news)
}

fn opening(policy: &AgentPolicy, page: &ClockPage) -> Opening {
    Opening {
        boot_id: "boot".into(),
        now: page.now(),
        book: policy.book().clone(),
        tenant_rules: policy.tenant_rules(),
        node: NodeIdentity { name: "demo-node".into(), simulated: true, ..NodeIdentity::default() },
        ..Opening::default()
    }
}
