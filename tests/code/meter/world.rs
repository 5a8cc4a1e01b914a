//! One GPU, one agent, one ledger, and a clock that only the test sets.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpumeter::accounting::advice::AdviceRequest;
use gpumeter::accounting::batches::{CounterKey, Recovered};
use gpumeter::accounting::billing::{BillLine, BillRequest};
use gpumeter::accounting::ledger::{Cause, Ledger, LedgerQueue, Opening, Reader, Retention};
use gpumeter::holders::host::Pci;
use gpumeter::holders::{Allocation, IdentifiedProcess, Identities};
use gpumeter::meter::{Inputs, Meter, Policy, SamplerNews};
use gpumeter::model::catalogue::{AccountValue, Level};
use gpumeter::model::snapshot::{AgentNumber, Snapshot};
use gpumeter::model::{
    Amounts, Fraction, Frame, GpuId, GpuName, GpuSelector, HealthState, Holder, HolderId, HoldingSource,
    HowHeld, Nanoseconds, Parts, PciAddress, Remedy, Selector, Stamp, StandingGrant, UnattributedReason, Use,
    Utc, XidCount, XidSource,
};
use tempfile::TempDir;

use super::frame_builder::FrameBuilder;

const SECOND: u64 = 1_000_000_000;
pub(crate) const BUS: &str = "00000000:0F:00.0";
pub(crate) const UUID: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// One holder's sums in the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) parts: Parts,
    pub(crate) used: Use,
    pub(crate) energy: u64,
    pub(crate) dynamic: u64,
}

pub(crate) struct World {
    directory: TempDir,
    standing: Vec<StandingGrant>,
    presence: bool,
    identities: Arc<Identities>,
    allocations: Vec<Allocation>,
    ended: Vec<Allocation>,
    now: Stamp,
    /// From one tick to the next.
    step: u64,
    generation: u32,
    meter: Meter,
    ledger: Option<Ledger>,
    /// The account's end in a ledger that was opened late.
    opened_late: Option<Box<Recovered>>,
    /// Whether each tick tries to open the ledger, which waits for the clock.
    awaits_clock: bool,
    queue: LedgerQueue,
    /// Whether the disk hangs.
    is_held: bool,
    acknowledged: Vec<gpumeter::accounting::batches::Acknowledged>,
    snapshot: Option<Arc<Snapshot>>,
    /// What the ledger has committed, by slot and holder.
    of_slots: BTreeMap<CounterKey, Amounts>,
    /// What the ledger has committed, by holder.
    counters: BTreeMap<HolderId, Row>,
    slots: BTreeMap<Arc<str>, u64>,
    imbalance: i128,
    pci: Option<Arc<Pci>>,
    /// The number of the driver's load.
    pub(crate) module: Option<u64>,
    metered: bool,
    /// The number of the node's boots.
    boots: u32,
    /// Whether the kernel reports the wall clock as synchronised.
    pub(crate) synchronised: bool,
}

impl World {
    /// A world in which these users hold equal shares of the GPU, and pid 7 is the first of them.
    pub(crate) fn new(users: &[&str]) -> Self {
        Self::with(users, false)
    }

    /// A world with presence holdings, in which pid 7 is this user.
    pub(crate) fn of_presence(user: &str) -> Self {
        let mut world = Self::with(&[], true);
        world.identify(7, user);
        world
    }

    fn with(users: &[&str], presence: bool) -> Self {
        let standing = equal_shares(users);
        let directory = tempfile::tempdir().unwrap();
        // On the grid of windows, so that expected values are whole.
        let now = Stamp { boottime: Nanoseconds(1_000 * SECOND), utc: Utc(1_800_000_000 * SECOND) };
        let (ledger, recovered) = open_ledger(&directory, 0, (now, true)).unwrap();
        let meter = Meter::new(Arc::new(policy(&standing, presence)), now, Some(recovered));
        let mut world = Self {
            directory,
            standing,
            presence,
            identities: Arc::default(),
            allocations: Vec::new(),
            ended: Vec::new(),
            now,
            step: SECOND,
            generation: 1,
            meter,
            ledger: Some(ledger),
            opened_late: None,
            awaits_clock: false,
            queue: LedgerQueue::default(),
            is_held: false,
            acknowledged: Vec::new(),
            snapshot: None,
            of_slots: BTreeMap::new(),
            counters: BTreeMap::new(),
            slots: BTreeMap::new(),
            imbalance: 0,
            pci: None,
            module: None,
            metered: true,
            boots: 0,
            synchronised: true,
        };
        if let Some(user) = users.first() {
            world.identify(7, user);
        }
        world.first_frame();
        world
    }

    /// From the next tick on these users hold equal shares.
    pub(crate) fn reload(&mut self, users: &[&str]) {
        self.grant(equal_shares(users));
    }

    /// From the next tick on this unit holds the GPU.
    pub(crate) fn grant_unit(&mut self, unit: &str) {
        let grant =
            StandingGrant { selector: Selector::Unit(unit.into()), ..equal_shares(&["unit"]).remove(0) };
        self.grant(vec![grant]);
    }

    fn grant(&mut self, standing: Vec<StandingGrant>) {
        self.standing = standing;
        self.meter.apply_policy(Arc::new(policy(&self.standing, self.presence)));
    }

    /// From the next tick on schedulers have no allocations.
    pub(crate) fn clear_allocations(&mut self) {
        self.allocations.clear();
    }

    /// From the next tick on a scheduler has allocated that share of a device, since this many seconds ago.
    pub(crate) fn allocate(&mut self, holder: &str, device: &str, fraction: Fraction, age: u64) {
        let holder = Holder::from_id(HolderId::new(holder));
        let allocation = Allocation::new(&holder, device, fraction, HoldingSource::Kubernetes);
        let since = Some(Utc(self.now.utc.0 - age * SECOND));
        self.allocations.push(Allocation { since, ..allocation });
    }

    /// From the next tick on the last allocation has ended, this many seconds ago.
    pub(crate) fn end_allocation(&mut self, age: u64) {
        let until = Utc(self.now.utc.0 - age * SECOND);
        let ended = self.allocations.pop().unwrap();
        self.ended.push(Allocation { until: Some(until), ..ended });
    }

    /// From the next tick on this job alone is allocated, the whole GPU, and pid 7 is its process.
    pub(crate) fn run_job(&mut self, job: &Holder) {
        self.identify_holders(&[(7, job.clone())]);
        self.allocations = vec![Allocation::new(job, UUID, Fraction::WHOLE, HoldingSource::Slurm)];
    }

    /// The page's values of a workload.
    pub(crate) fn workload_value(&self, workload: &str, value: AccountValue) -> Option<i128> {
        let snapshot = self.snapshot.as_ref()?;
        let accounts = &snapshot.roster.workload_accounts;
        let place = accounts.iter().position(|account| &*account.owner == workload)?;
        snapshot.workload_accounts[place].values
            [AccountValue::ALL.iter().position(|other| *other == value)?]
    }

    /// From the next tick on a snapshot has at most this many series.
    pub(crate) fn limit_series(&mut self, series: usize) {
        self.meter.apply_policy(Arc::new(Policy { series, ..policy(&self.standing, self.presence) }));
    }

    /// Whether series of a family were dropped.
    pub(crate) fn has_dropped(&self, family: &str) -> bool {
        self.page().roster.agent.iter().any(|entry| {
            entry.family == "gpumeter_series_dropped_total"
                && entry.labels.iter().any(|(_, of)| **of == *family)
        })
    }

    pub(crate) fn identify(&mut self, pid: u32, user: &str) {
        self.identify_holders(&[(pid, Holder::user(user, Some(1)))]);
    }

    /// Sets the users of these processes; all other processes are not identified.
    pub(crate) fn identify_holders(&mut self, holders: &[(u32, Holder)]) {
        let started: Vec<_> = holders.iter().map(|(pid, holder)| (*pid, 1, holder.clone())).collect();
        self.identify_started(&started);
    }

    /// The same with the clock ticks between boot and the start of each process.
    pub(crate) fn identify_started(&mut self, processes: &[(u32, u64, Holder)]) {
        let identified = |start_time: u64, holder: &Holder| IdentifiedProcess {
            holder: Arc::new(holder.clone()),
            name: "python3".into(),
            start_time,
        };
        let processes = processes.iter();
        self.identities =
            Arc::new(processes.map(|(pid, start, holder)| (*pid, identified(*start, holder))).collect());
    }

    /// Use by processes without an owner on the page, by reason, in nanoseconds.
    pub(crate) fn unattributed(&self) -> BTreeMap<&'static str, u64> {
        let values = self.page().unattributed[0];
        let named = UnattributedReason::ALL.map(UnattributedReason::name).into_iter().zip(values);
        named.filter_map(|(reason, value)| Some((reason, value?))).collect()
    }

    /// Sets the time up to which the known pids are confirmed.
    pub(crate) fn confirm_identities(&mut self) {
        self.identities = Arc::new(self.identities.until(vec![self.now.boottime; 1]));
    }

    pub(crate) fn forget_identities(&mut self) {
        self.identities = Arc::default();
    }

    /// Delivers the first frame of the GPU, which covers no time yet.
    pub(crate) fn first_frame(&mut self) {
        let frame = self.frame(|frame| frame.process(7, 0));
        self.tick(vec![
            SamplerNews::Found { gpu: id(), bus: BUS.into() },
            SamplerNews::Counted,
            SamplerNews::Frame(Box::new(frame)),
        ]);
    }

    /// Changes the GPU's layout: the next frames have another plan.
    pub(crate) fn change_layout(&mut self, make: impl Fn(FrameBuilder) -> FrameBuilder) {
        self.change_plan();
        self.run(1, make);
    }

    /// From now on a tick is this many seconds after the last.
    pub(crate) fn sample_every(&mut self, seconds: u64) {
        self.step = seconds * SECOND;
        let intervals = [Nanoseconds(self.step), Nanoseconds(self.step), Nanoseconds::from_seconds(60)];
        let policy = Policy { intervals, ..policy(&self.standing, self.presence) };
        self.meter.apply_policy(Arc::new(policy));
    }

    /// Runs this many ticks with a frame each.
    pub(crate) fn run(&mut self, ticks: u64, make: impl Fn(FrameBuilder) -> FrameBuilder) {
        for _ in 0..ticks {
            self.advance(self.step);
            let frame = self.frame(&make);
            self.tick(vec![SamplerNews::Frame(Box::new(frame))]);
        }
    }

    /// Runs this many seconds without frames.
    pub(crate) fn run_without_frames(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.advance(SECOND);
            self.tick(Vec::new());
        }
    }

    /// The driver reports an XID.
    pub(crate) fn xid(&mut self, xid: u32) {
        self.report_xid(xid, GpuName::Uuid(UUID.into()), XidSource::Events, None);
    }

    /// The driver reports an XID of a GPU instance.
    pub(crate) fn xid_on(&mut self, xid: u32, instance: u32) {
        self.report_xid(xid, GpuName::Uuid(UUID.into()), XidSource::Events, Some(instance));
    }

    /// The GPU instances of the XIDs on the page.
    pub(crate) fn xid_instances(&self) -> Vec<Option<u32>> {
        self.page().gpus[0].xids.iter().map(|seen| seen.gpu_instance).collect()
    }

    /// The kernel log has an XID.
    pub(crate) fn logged_xid(&mut self, xid: u32) {
        self.report_xid(xid, GpuName::Pci(PciAddress::parse(BUS).unwrap()), XidSource::KernelLog, None);
    }

    /// The kernel log has an XID of another GPU.
    pub(crate) fn logged_xid_of(&mut self, bus: &str, xid: u32) {
        self.report_xid(xid, GpuName::Pci(PciAddress::parse(bus).unwrap()), XidSource::KernelLog, None);
    }

    fn report_xid(&mut self, xid: u32, gpu: GpuName, source: XidSource, gpu_instance: Option<u32>) {
        let compute_instance = None;
        let (last, received_at) = (self.now, self.now.boottime);
        let counted =
            XidCount { gpu, xid, source, gpu_instance, compute_instance, count: 1, last, received_at };
        self.tick_with(Vec::new(), vec![counted]);
    }

    pub(crate) fn page(&self) -> &Snapshot {
        self.snapshot.as_ref().unwrap()
    }

    /// The counts of XIDs on the page, by code.
    pub(crate) fn xids(&self) -> Vec<(u32, u64)> {
        let snapshot = self.page();
        let codes = snapshot.roster.gpus[0].xids.iter().map(|(code, _)| *code);
        codes.zip(snapshot.gpus[0].xids.iter().map(|seen| seen.count)).collect()
    }

    /// The time of the last XID on the page.
    pub(crate) fn last_xid(&self) -> Option<Utc> {
        self.page().gpus[0].xids.iter().map(|seen| seen.last).max()
    }

    /// The counts of XIDs on the page, summed over actions.
    pub(crate) fn xid_actions(&self) -> u64 {
        self.page().gpus[0].xid_actions.iter().sum()
    }

    /// The start time of the XID counts.
    pub(crate) fn xids_since(&self) -> Option<Utc> {
        self.page().gpus[0].xids_since
    }

    pub(crate) fn verdict(&self) -> (HealthState, Remedy) {
        let health = &self.page().gpus[0].health;
        (health.state, health.remedy)
    }

    /// The active rules, what each has counted, and since when.
    pub(crate) fn reasons(&self) -> Vec<(&'static str, String, Utc)> {
        let reasons = &self.page().gpus[0].health.reasons;
        reasons.iter().map(|reason| (reason.rule, reason.evidence.to_string(), reason.since)).collect()
    }

    /// From now on the board has no energy counter.
    pub(crate) fn without_energy(&mut self) {
        self.metered = false;
    }

    /// The page's values of a tenant.
    pub(crate) fn value(&self, tenant: &str, value: AccountValue) -> Option<i128> {
        let snapshot = self.snapshot.as_ref()?;
        let place = snapshot.roster.accounts.iter().position(|account| &*account.owner == tenant)?;
        snapshot.accounts[place].values[AccountValue::ALL.iter().position(|other| *other == value)?]
    }

    /// The lines of a bill over all that is settled.
    pub(crate) fn bill(&self) -> Vec<BillLine> {
        Reader::open(&self.directory.path().join("ledger.db"))
            .unwrap()
            .bill(&BillRequest::default())
            .unwrap()
            .lines
    }

    /// What the ledger's advice finds, each with the workload.
    pub(crate) fn advised(&self) -> Vec<String> {
        let mut reader = Reader::open(&self.directory.path().join("ledger.db")).unwrap();
        let found = reader.advice(&AdviceRequest::default()).unwrap().findings.into_iter();
        found.map(|finding| format!("{} {}", finding.kind.name(), finding.workload)).collect()
    }

    /// Executes SQL on the ledger's file; returns the number of changed rows.
    pub(crate) fn execute_sql(&self, statement: &str) -> usize {
        self.connection().execute(statement, []).unwrap()
    }

    /// The one value of a query.
    pub(crate) fn query<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.connection().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn connection(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.directory.path().join("ledger.db")).unwrap()
    }

    pub(crate) fn lose_gpu(&mut self) {
        self.tick(vec![SamplerNews::Lost(id())]);
    }

    pub(crate) fn finish_counting_gpus(&mut self) {
        self.tick(vec![SamplerNews::Counted]);
    }

    /// From the next tick on these users hold the whole GPU with that index.
    pub(crate) fn grant_by_index(&mut self, grants: &[(u32, &str)]) {
        let grant = |(index, user): &(u32, &str)| StandingGrant {
            id: format!("grant-{user}"),
            gpus: vec![GpuSelector::Index(*index)],
            fraction: Fraction { numerator: 1, denominator: 1 },
            selector: Selector::User((*user).into()),
            version: 0,
        };
        self.grant(grants.iter().map(grant).collect());
    }

    /// From the next tick on the known members of a group hold every GPU whole.
    pub(crate) fn grant_to_group(&mut self, group: &str, members: &[u32]) {
        let members = Arc::new(members.iter().copied().collect());
        self.grant(vec![StandingGrant {
            id: "grant".into(),
            gpus: vec![GpuSelector::All],
            fraction: Fraction { numerator: 1, denominator: 1 },
            selector: Selector::Group { name: group.into(), members },
            version: 0,
        }]);
    }

    /// Reopens the driver, which then counts these GPUs, each at its own PCI address.
    pub(crate) fn reopen_with(&mut self, gpus: &[(u32, &str)]) {
        let bus = |uuid: &str| if uuid == UUID { BUS } else { "00000000:10:00.0" };
        self.open_driver(false, gpus.iter().map(|(index, uuid)| (*index, *uuid, bus(uuid))));
    }

    /// Runs this many seconds in which each of these GPUs delivers a frame.
    pub(crate) fn run_gpus(&mut self, gpus: &[(u32, &str)], seconds: u64) {
        for _ in 0..seconds {
            self.advance(SECOND);
            let frame = |(index, uuid): &(u32, &str)| {
                let gpu = GpuId { index: *index, uuid: (*uuid).into() };
                SamplerNews::Frame(Box::new(Frame {
                    gpu,
                    ..self.frame(|frame| frame.process(7, 100).busy(100))
                }))
            };
            let frames = gpus.iter().map(frame).collect();
            self.tick(frames);
        }
    }

    /// The current holders of a GPU.
    pub(crate) fn holders_of(&self, uuid: &str) -> Vec<&str> {
        let roster = &self.page().roster;
        let its = roster.holdings.iter().filter(|entry| *roster.gpus[entry.gpu].id.uuid == *uuid);
        its.map(|entry| &*entry.tenant).collect()
    }

    /// The samplers for which the page reports whether they deliver frames.
    pub(crate) fn collectors(&self) -> Vec<&str> {
        let agent = &self.page().roster.agent;
        let entries = agent.iter().filter(|entry| entry.family == "gpumeter_collector_success");
        entries.map(|entry| &*entry.labels[0].1).collect()
    }

    /// How many claims are in conflict by the metric, and the workloads of each conflict.
    pub(crate) fn conflicts(&self) -> (Option<i64>, Vec<Vec<Arc<str>>>) {
        let told = self.page().conflicts.iter().map(|conflict| conflict.workloads.clone());
        (self.agent_value("gpumeter_holding_conflicts", &["0", UUID]), told.collect())
    }

    /// The number of grants that match no GPU, if it is published.
    pub(crate) fn unmatched_grants(&self) -> Option<i64> {
        self.agent_value("gpumeter_standing_unmatched", &[])
    }

    /// Whole seconds that a user has held a GPU, in the ledger.
    pub(crate) fn held_by(&self, user: &str, uuid: &str) -> i64 {
        let connection = self.connection();
        let sql =
            "SELECT total(within_ns + lent_ns + idle_ns + unmeasured_ns + unavailable_ns) / 1e9 FROM counter
                   JOIN gpu ON gpu.id = gpu JOIN holder ON holder.id = holder WHERE uuid = ?1 AND name = ?2";
        let seconds: f64 =
            connection.query_row(sql, [uuid, &format!("user:{user}")], |row| row.get(0)).unwrap();
        seconds as i64
    }

    /// Reopens the driver, which then counts these GPUs, all at our PCI address.
    pub(crate) fn reopen(&mut self, anew: bool, uuids: &[&str]) {
        self.open_driver(anew, uuids.iter().map(|uuid| (0, *uuid, BUS)));
    }

    /// Opens the driver, which then counts these GPUs: index, UUID and PCI address.
    fn open_driver<'a>(&mut self, anew: bool, gpus: impl Iterator<Item = (u32, &'a str, &'a str)>) {
        let mut news = vec![SamplerNews::Opened { anew, module: self.module }];
        news.extend(gpus.map(|(index, uuid, bus)| SamplerNews::Found {
            gpu: GpuId { index, uuid: uuid.into() },
            bus: bus.into(),
        }));
        news.push(SamplerNews::Counted);
        self.tick(news);
    }

    /// The PCI bus, with our GPU bound to a driver, without one, or absent.
    pub(crate) fn set_pci_bus(&mut self, ours: Option<Option<&str>>) {
        let ours = ours.map(|driver| ("0000:0f:00.0".into(), driver.map(Into::into)));
        self.pci = Some(Arc::new(Pci::of(ours)));
    }

    pub(crate) fn forget_gpu(&mut self) {
        self.tick(vec![SamplerNews::Forget(UUID.into())]);
    }

    /// Whether our GPU has series, whether it is present, and the reason if not.
    pub(crate) fn presence(&self) -> Option<(bool, Option<&'static str>)> {
        let snapshot = self.page();
        let place = snapshot.roster.gpus.iter().position(|gpu| &*gpu.id.uuid == UUID)?;
        Some((snapshot.gpus[place].present, snapshot.roster.gpus[place].absence))
    }

    /// The index of a GPU.
    pub(crate) fn index(&self, uuid: &str) -> Option<u32> {
        let gpus = &self.page().roster.gpus;
        Some(gpus.iter().find(|gpu| &*gpu.id.uuid == uuid)?.id.index)
    }

    pub(crate) fn change_plan(&mut self) {
        self.generation += 1;
    }

    /// Kills the agent and starts it again later.
    pub(crate) fn restart(&mut self, seconds: u64) {
        self.restart_without_frame(seconds);
        self.first_frame();
    }

    /// The same, before the driver has answered.
    pub(crate) fn restart_without_frame(&mut self, seconds: u64) {
        self.advance(seconds * SECOND);
        self.ledger = None;
        self.queue = LedgerQueue::default();
        self.acknowledged.clear();
        self.generation = 1;
        let opened = open_ledger(&self.directory, self.boots, (self.now, self.synchronised));
        self.awaits_clock = opened.is_none();
        let (ledger, recovered) = opened.unzip();
        self.ledger = ledger;
        self.meter = Meter::new(Arc::new(policy(&self.standing, self.presence)), self.now, recovered);
    }

    /// Kills the agent and starts it again later without its ledger.
    pub(crate) fn restart_without_ledger(&mut self, seconds: u64) {
        self.restart_without_frame(seconds);
        self.ledger = None;
        self.meter = Meter::new(Arc::new(policy(&self.standing, self.presence)), self.now, None);
    }

    /// Opens the ledger, which the next tick continues.
    pub(crate) fn open_ledger(&mut self) {
        let opened = open_ledger(&self.directory, self.boots, (self.now, self.synchronised));
        self.awaits_clock = opened.is_none();
        let (ledger, recovered) = opened.unzip();
        self.ledger = ledger;
        self.opened_late = recovered.map(Box::new);
    }

    /// A value of the ledger's file.
    pub(crate) fn stored<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.connection().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// What schedulers had granted, as the ledger that was opened late has it.
    pub(crate) fn recovered_shares(&self) -> Vec<(&str, Fraction)> {
        let recovered = self.opened_late.iter().flat_map(|recovered| &recovered.shares);
        recovered.map(|share| (share.holder.id.as_str(), share.fraction)).collect()
    }

    /// The node is off for this many seconds and boots; the agent starts 20 s later with a wall clock that is wrong by
    /// this many seconds and not synchronised.
    pub(crate) fn reboot(&mut self, off: u64, wrong: i64) {
        self.synchronised = false;
        self.step_clock(wrong);
        self.reboot_synchronised(off);
    }

    /// The same with the right wall clock.
    pub(crate) fn reboot_synchronised(&mut self, off: u64) {
        self.advance(off * SECOND);
        self.boots += 1;
        self.now.boottime = Nanoseconds(0);
        self.restart(20);
    }

    /// Sets the wall clock.
    pub(crate) fn step_clock(&mut self, seconds: i64) {
        self.now.utc.0 = self.now.utc.0.saturating_add_signed(seconds * 1_000_000_000);
    }

    /// Deletes the ledger: the next start creates a new one.
    pub(crate) fn delete_ledger(&mut self) {
        self.ledger = None;
        self.directory = tempfile::tempdir().unwrap();
        self.of_slots.clear();
        self.slots.clear();
    }

    /// Seconds by which the wall clock is ahead of the account, if published.
    pub(crate) fn clock_lead(&self) -> Option<i64> {
        Some(self.agent_value("gpumeter_clock_step_seconds", &[])? / 1_000_000_000)
    }

    /// Whether the account's time in this boot is fixed.
    pub(crate) fn is_anchored(&self) -> bool {
        self.agent_value("gpumeter_clock_anchored", &[]) == Some(1)
    }

    /// Begin and end of our GPU's account in the ledger, in seconds since 1970.
    pub(crate) fn account_span(&self) -> (u64, u64) {
        let connection = self.connection();
        let sql = "SELECT first_seen_ns / 1000000000, settled_until_ns / 1000000000 FROM gpu";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (first, end) = connection.query_row(sql, [], row).unwrap();
        (first.unsigned_abs(), end.unsigned_abs())
    }

    /// The current time by the wall clock, in seconds since 1970.
    pub(crate) fn wall_seconds(&self) -> u64 {
        self.now.utc.0 / SECOND
    }

    /// Takes all steps of retention.
    pub(crate) fn retain(&mut self, retention: Retention) {
        while self.ledger.as_mut().unwrap().retain(retention).unwrap() {}
    }

    /// From the next tick on batches wait.
    pub(crate) fn hold_commits(&mut self) {
        self.is_held = true;
    }

    /// The next tick commits all that waits.
    pub(crate) fn release_commits(&mut self) {
        self.is_held = false;
    }

    /// Advances time without a tick.
    pub(crate) fn skip_ticks(&mut self, seconds: u64) {
        self.advance(seconds * SECOND);
    }

    fn advance(&mut self, nanoseconds: u64) {
        self.now.boottime.0 += nanoseconds;
        self.now.utc.0 += nanoseconds;
    }

    fn frame(&self, make: impl Fn(FrameBuilder) -> FrameBuilder) -> Frame {
        // 100 W since boot.
        let joules = i64::try_from(self.now.boottime.0 / SECOND * 100).unwrap();
        let made = FrameBuilder::default();
        make(if self.metered { made.energy_counter(joules) } else { made }).frame(self.now, self.generation)
    }

    fn tick(&mut self, news: Vec<SamplerNews>) {
        self.tick_with(news, Vec::new());
    }

    fn tick_with(&mut self, news: Vec<SamplerNews>, xids: Vec<XidCount>) {
        if self.awaits_clock {
            self.open_ledger();
        }
        let inputs = Inputs {
            news,
            xids,
            identities: Arc::clone(&self.identities),
            allocations: self.allocations.clone().into(),
            ended: Arc::new(self.ended.clone()),
            pci: self.pci.clone(),
            acknowledged: std::mem::take(&mut self.acknowledged),
            awaits_clock: self.awaits_clock,
            opened_late: self.opened_late.take(),
            ..Inputs::default()
        };
        let ticked = self.meter.tick(self.now, inputs);
        self.snapshot = Some(ticked.snapshot);
        let Some(ledger) = &mut self.ledger else { return };
        self.queue.offer(ticked.batch);
        if self.is_held {
            return;
        }
        let batch = self.queue.wait_for_batch(std::time::Duration::ZERO).unwrap();
        let acknowledged = ledger.commit(&batch).unwrap();
        let own = acknowledged.counters.iter().filter(|(key, _)| *key.gpu == *UUID);
        self.of_slots.extend(own.map(|(key, counter)| (key.clone(), counter.amounts)));
        self.counters.clear();
        for (key, amounts) in &self.of_slots {
            let row = self.counters.entry(key.holder.clone()).or_default();
            row.parts.add(&amounts.parts);
            row.used.add(&amounts.used);
            row.dynamic += amounts.energy_dynamic.0;
            row.energy += amounts.energy_static.0 + amounts.energy_dynamic.0;
        }
        let slots = acknowledged.slots.iter().map(|(uuid, total)| (Arc::clone(uuid), total.slot.0));
        self.slots.extend(slots);
        self.imbalance = acknowledged.imbalance;
        self.acknowledged.push(acknowledged);
    }

    /// What the ledger has committed, by holder.
    pub(crate) fn settled(&self) -> &BTreeMap<HolderId, Row> {
        &self.counters
    }

    pub(crate) fn settled_seconds(&self) -> u64 {
        self.seconds_of(UUID)
    }

    /// Settled time of a GPU.
    pub(crate) fn seconds_of(&self, uuid: &str) -> u64 {
        self.slots.get(uuid).map_or(0, |slot| slot / SECOND)
    }

    /// Asserts L1 over all settled time.
    pub(crate) fn assert_balanced(&self) {
        let held: u64 = self.counters.values().map(|row| row.parts.held()).sum();
        assert_eq!(Some(&held), self.slots.get(UUID));
        assert_eq!(self.imbalance, 0);
    }

    /// The held nanoseconds of a tenant on the page.
    pub(crate) fn published(&self, tenant: &str) -> Option<i128> {
        self.value(tenant, AccountValue::ALL[0])
    }

    /// How often the page reports a new layout of the GPU.
    pub(crate) fn layout_changes(&self) -> Option<i64> {
        self.agent_value("gpumeter_mig_layout_changes_total", &["0", UUID])
    }

    /// Slot seconds on the page, of each GPU instance and outside of instances.
    pub(crate) fn slot_seconds(&self) -> (BTreeMap<String, u64>, u64) {
        let state = &self.page().gpus[0];
        let seconds = |time: i64| time.unsigned_abs() / SECOND;
        let instances = state.instance_slots.iter().map(|(id, time)| (id.to_string(), seconds(*time)));
        (instances.collect(), seconds(state.slot.unwrap()))
    }

    /// GPU instances of the tenant's accounts on the page; "" is outside of instances.
    pub(crate) fn instances_of(&self, tenant: &str) -> Vec<String> {
        let accounts = self.page().roster.accounts.iter();
        let own = accounts.filter(|account| &*account.owner == tenant);
        own.map(|account| account.gpu_instance.to_string()).collect()
    }

    /// The configured interval of a tier, and that of the GPU where it differs, in nanoseconds.
    pub(crate) fn intervals(&self, tier: &str) -> [Option<i64>; 2] {
        let of = |labels: &[&str]| self.agent_value("gpumeter_sampling_interval_seconds", labels);
        [of(&[tier]), of(&[tier, "0", UUID])]
    }

    /// How many XIDs of that source were dropped.
    pub(crate) fn dropped_xids(&self, source: &str) -> Option<i64> {
        self.agent_value("gpumeter_collector_errors_total", &[source, "unknown_gpu"])
    }

    /// One of the agent's own metrics, by family and label values.
    fn agent_value(&self, family: &str, labels: &[&str]) -> Option<i64> {
        let snapshot = self.snapshot.as_ref()?;
        let mut series = snapshot.roster.agent.iter().zip(&snapshot.agent);
        series.find_map(|(entry, number)| {
            let named = entry.family == family
                && labels.iter().all(|label| entry.labels.iter().any(|(_, value)| &**value == *label));
            match number {
                AgentNumber::Integer(value) if named => Some(*value),
                _ => None,
            }
        })
    }

    /// Busy nanoseconds on the page.
    pub(crate) fn busy(&self) -> u64 {
        u64::try_from(self.page().gpus[0].busy.unwrap()).unwrap()
    }

    /// Whether the readings of each tier are shown.
    pub(crate) fn shown(&self) -> [bool; 3] {
        self.page().gpus[0].fresh
    }

    pub(crate) fn is_up(&self) -> bool {
        self.page().gpus[0].is_up()
    }
}

pub(crate) fn id() -> GpuId {
    GpuId { index: 0, uuid: UUID.into() }
}

/// Opens the ledger; none while that waits for the clock.
fn open_ledger(
    directory: &TempDir,
    boots: u32,
    (now, synchronised): (Stamp, bool),
) -> Option<(Ledger, Recovered)> {
    let boot_id = format!("boot {boots}");
    let opening = Opening { boot_id, now, unsynchronised: !synchronised, ..Opening::default() };
    match Ledger::open(&directory.path().join("ledger.db"), &opening) {
        Err(error) if matches!(error.cause, Cause::ClockNotSet) => None,
        opened => Some(opened.unwrap()),
    }
}

fn policy(standing: &[StandingGrant], presence: bool) -> Policy {
    Policy {
        level: Level::Full,
        dcgm: false,
        workload_counters: false,
        intervals: [Nanoseconds::SECOND, Nanoseconds::from_seconds(5), Nanoseconds::from_seconds(60)],
        standing: standing.to_vec(),
        allocations: Arc::default(),
        how_held: if presence { HowHeld::Presence } else { HowHeld::Grants },
        birth_delay: Nanoseconds::from_seconds(60),
        processes: 100,
        series: 20_000,
        rates: Default::default(),
        tenant_rules: Default::default(),
    }
}

fn equal_shares(users: &[&str]) -> Vec<StandingGrant> {
    let fraction = Fraction { numerator: 1, denominator: u32::try_from(users.len().max(1)).unwrap() };
    let share = |user: &&str| StandingGrant {
        id: (*user).into(),
        gpus: vec![GpuSelector::All],
        fraction,
        selector: Selector::User((*user).into()),
        version: 0,
    };
    users.iter().map(share).collect()
}
