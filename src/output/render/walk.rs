//! The one walk over every series of a snapshot, in the catalogue's order.
//!
//! In: a snapshot and a level. Out: calls of a [`Sink`], family by family, series by series, in the order of the roster, which
//! is the list of everything that has series in a snapshot ([`crate::model::snapshot::Roster`]). A visit is one call of the
//! sink. The head of a family is its HELP and TYPE lines, or what stands for them in OTLP.
//! Which series are visited, and in which order, depends on roster, catalogue and level alone: an absent value is visited
//! as `None`. So a sink may number the visits, and keep what it made of the labels for as long as the roster is the same
//! `Arc`. It does not know how anything is written.

use std::ops::Range;

use crate::model::catalogue::xid::{self, Action, Xid};
use crate::model::catalogue::{
    AccountRows, AccountValue, FAMILIES, Family, GpuRows, InstanceRows, InstanceValue, LabelPair, Labelled,
    Level, Origin, PROCESS_LABELS, PointId, ProcessValue, Rows, numbered_families,
};
use crate::model::snapshot::{
    AccountEntry, AccountState, AgentNumber, GpuEntry, GpuState, Histogram, InstanceEntry, Snapshot,
    UnusedEntry,
};
use crate::model::{
    Fraction, HealthState, HolderId, MemoryKind, PodLabel, Price, Reading, UnattributedReason, Unit, Utc,
};

pub trait Sink {
    /// A family begins; its series follow, if it has any.
    fn family(&mut self, family: &'static Family);
    fn sample(&mut self, sample: Sample<'_>);
}

#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub labels: Labels<'a>,
    /// Its value; absent ones are visited too.
    pub value: Option<Value<'a>>,
    /// When it began to count, where that is later than the family's start.
    pub start: Option<Utc>,
}

#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    names: &'a [&'a str],
    /// The values of the first names.
    values: &'a [&'a str],
    /// The values of the others, as the catalogue writes them.
    point: &'static [LabelPair],
    /// Whether an empty GPU instance is left out.
    is_of_account: bool,
}

impl<'a> Labels<'a> {
    /// Labels that the catalogue does not have.
    pub(super) const fn new(names: &'a [&'a str], values: &'a [&'a str]) -> Self {
        Self { names, values, point: &[], is_of_account: false }
    }

    /// Names with values, unescaped, in the family's order.
    pub fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let values = self.values.iter().copied().chain(self.point.iter().map(|(_, value)| *value));
        let is_left_out =
            move |name, value: &str| self.is_of_account && value.is_empty() && name == "gpu_instance";
        self.names.iter().copied().zip(values).filter(move |(name, value)| !is_left_out(*name, value))
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// An integer of the family's unit ([`crate::model::Unit::decimals`]).
    Number(i128),
    Histogram(&'a Histogram),
}

const MOST_LABELS: usize = 36;

const _: () = {
    let mut place = 0;
    while place < FAMILIES.len() {
        assert!(FAMILIES[place].labels.len() <= MOST_LABELS, "raise MOST_LABELS");
        place += 1;
    }
};

pub fn walk<S: Sink>(snapshot: &Snapshot, level: Level, sink: &mut S) {
    let mut agent = 0;
    for (family, first) in numbered_families() {
        let agent_series = snapshot.roster.agent.get(agent..).unwrap_or_default();
        let agent_series = agent_series.iter().take_while(|entry| entry.family == family.name).count();
        if family.level <= level {
            sink.family(family);
            let mut walk = FamilyWalk { snapshot, family, sink };
            match &family.rows {
                Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_)) => walk.integrals(first.integral),
                Rows::Gpu(GpuRows::Read(_) | GpuRows::State(_)) => walk.device(first.point),
                Rows::Gpu(rows) => walk.gpu(rows),
                Rows::Instance(InstanceRows::Info) => walk.instance_info(),
                Rows::Instance(InstanceRows::Read(points)) => walk.instance(points),
                Rows::Instance(InstanceRows::Integrals(points)) => walk.instance_integrals(points),
                Rows::Process(points) => walk.process(points),
                Rows::Account(rows) => walk.account(rows),
                Rows::Agent => walk.agent(agent..agent + agent_series),
            }
        }
        agent += agent_series;
    }
    debug_assert_eq!(agent, snapshot.roster.agent.len(), "the agent's series stand in the catalogue's order");
}

/// When the family's counters began; the driver does not report it.
pub(super) const fn start(snapshot: &Snapshot, family: &Family) -> Option<Utc> {
    match (family.origin(), snapshot.ledger_started) {
        (Origin::Driver, _) => None,
        (Origin::Agent, _) | (Origin::LedgerOrAgent, None) => Some(snapshot.started),
        (Origin::Ledger | Origin::LedgerOrAgent, started) => started,
    }
}

struct FamilyWalk<'a, S> {
    snapshot: &'a Snapshot,
    family: &'static Family,
    sink: &'a mut S,
}

impl<S: Sink> FamilyWalk<'_, S> {
    /// Visits what a plan reads; `first` is the number of the family's first point.
    fn device(&mut self, first: PointId) {
        let is_state = matches!(self.family.rows, Rows::Gpu(GpuRows::State(_)));
        for (gpu, state) in gpus(self.snapshot) {
            for (number, point) in (first..).zip(self.family.rows.points()) {
                let reading = state.and_then(|state| state.reading(number, self.family.tier).ok());
                // Of a state only the point that is 1 is exported.
                let reading = reading.filter(|reading| *reading == 1 || !is_state);
                self.visit_point(&[&gpu.index, &gpu.id.uuid], point.labels, None, reading.map(i128::from));
            }
        }
    }

    /// Visits what the agent integrates; `first` is the number of the family's first integral.
    fn integrals(&mut self, first: usize) {
        let points = self.family.rows.integrated_points();
        for (gpu, state) in gpus(self.snapshot) {
            for (place, point) in (first..).zip(points) {
                let value = state.and_then(|state| number(*state.integrals.get(place)?));
                self.visit_point(&[&gpu.index, &gpu.id.uuid], point.labels, None, value);
            }
        }
    }

    /// Visits what is known of GPUs beside their readings.
    fn gpu(&mut self, rows: &GpuRows) {
        for (gpu, state) in gpus(self.snapshot) {
            let labels: [&str; 2] = [&gpu.index, &gpu.id.uuid];
            match rows {
                GpuRows::Info => self.gpu_info(gpu),
                GpuRows::PlatformInfo => self.platform_info(gpu),
                GpuRows::FabricInfo => {
                    if let Some(place) = &gpu.identity.fabric {
                        self.visit(&[&gpu.index, &gpu.id.uuid, &place.cluster_uuid, &place.clique], Some(1));
                    }
                }
                GpuRows::Present => self.visit(&labels, state.map(|state| state.present.into())),
                GpuRows::Up => self.visit(&labels, state.map(|state| state.is_up().into())),
                GpuRows::Busy => self.visit(&labels, state.and_then(|state| number(state.busy))),
                GpuRows::Processes => {
                    self.visit(&labels, state.and_then(|state| Some(state.processes()?.len() as i128)));
                }
                GpuRows::Absence => {
                    if let Some(reason) = gpu.absence {
                        self.visit(&[&gpu.index, &gpu.id.uuid, reason], Some(1));
                    }
                }
                GpuRows::Unsupported => {
                    for (family, absence) in &gpu.unsupported {
                        self.visit(&[&gpu.index, &gpu.id.uuid, family, absence.reason()], Some(1));
                    }
                }
                GpuRows::Health => {
                    for possible in HealthState::ALL {
                        let is_so = state.is_some_and(|state| state.health.state == possible);
                        self.visit(&[&gpu.index, &gpu.id.uuid, possible.name()], is_so.then_some(1));
                    }
                }
                GpuRows::XidActionErrors => self.xid_actions(gpu, state),
                GpuRows::XidErrors | GpuRows::XidLastTimestamp | GpuRows::XidInfo => {
                    self.xids(rows, gpu, state);
                }
                // The others are numbered.
                GpuRows::Read(_) | GpuRows::State(_) | GpuRows::Flow(_) | GpuRows::Integrals { .. } => {}
            }
        }
    }

    fn gpu_info(&mut self, gpu: &GpuEntry) {
        let identity = &*gpu.identity;
        let labels = [
            &*gpu.index,
            &gpu.id.uuid,
            &identity.model,
            &identity.serial,
            &identity.board_part,
            &identity.pci_bus_id,
            &identity.minor_number,
            &identity.architecture,
            &identity.compute_capability,
            &identity.vbios_version,
            &identity.driver_version,
            &identity.cuda_version,
            if identity.mig { "true" } else { "false" },
            identity.memory.map_or("", MemoryKind::name),
        ];
        self.visit(&labels, Some(1));
    }

    fn platform_info(&mut self, gpu: &GpuEntry) {
        let Some(place) = &gpu.identity.platform else { return };
        let labels = [
            &*gpu.index,
            &gpu.id.uuid,
            &place.chassis_serial,
            &place.slot,
            &place.tray,
            &place.host_id,
            &place.module_id,
        ];
        self.visit(&labels, Some(1));
    }

    fn xids(&mut self, rows: &GpuRows, gpu: &GpuEntry, state: Option<&GpuState>) {
        for (position, (code, text)) in gpu.xids.iter().enumerate() {
            let seen = state.and_then(|state| state.xids.get(position));
            let Xid { class, action, .. } = xid::find(*code);
            let labels: [&str; 5] = [&gpu.index, &gpu.id.uuid, text, class.name(), action.name()];
            match rows {
                GpuRows::XidErrors => {
                    let since = state.and_then(|state| state.xids_since);
                    self.visit_point(&labels[..3], &[], since, seen.map(|seen| seen.count.into()));
                }
                GpuRows::XidLastTimestamp => self.visit(&labels[..3], seen.map(|seen| seen.last.0.into())),
                _ => self.visit(&labels, Some(1)),
            }
        }
    }

    fn xid_actions(&mut self, gpu: &GpuEntry, state: Option<&GpuState>) {
        for (position, action) in Action::ALL.iter().enumerate() {
            let count = state.and_then(|state| state.xid_actions.get(position));
            let since = state.and_then(|state| state.xids_since);
            let labels: [&str; 3] = [&gpu.index, &gpu.id.uuid, action.name()];
            self.visit_point(&labels, &[], since, count.map(|count| (*count).into()));
        }
    }

    fn instance_info(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            for instance in &gpu.instances {
                let labels = [
                    &*gpu.index,
                    &gpu.id.uuid,
                    &instance.gpu_instance,
                    &instance.compute_instance,
                    &instance.identity.uuid,
                    &instance.identity.profile,
                    &instance.identity.placement,
                ];
                self.visit(&labels, Some(1));
            }
        }
    }

    fn instance(&mut self, points: &[Labelled<InstanceValue>]) {
        for (gpu, state) in gpus(self.snapshot) {
            for instance in gpu_instances(gpu) {
                let id = instance.identity.id.gpu_instance;
                let frame = state.and_then(|state| state.instance(id, self.family.tier));
                for point in points {
                    let value = frame.and_then(|frame| number(*frame.readings.get(point.value as usize)?));
                    let labels: [&str; 3] = [&gpu.index, &gpu.id.uuid, &instance.gpu_instance];
                    self.visit_point(&labels, point.labels, None, value);
                }
            }
        }
    }

    fn instance_integrals(&mut self, points: &[Labelled<InstanceValue>]) {
        for (gpu, state) in gpus(self.snapshot) {
            for instance in gpu_instances(gpu) {
                let id = instance.identity.id.gpu_instance;
                let counters = state.and_then(|state| state.instances.get(&id));
                for point in points {
                    let value = counters.and_then(|own| number(*own.values.get(point.value as usize)?));
                    let labels: [&str; 3] = [&gpu.index, &gpu.id.uuid, &instance.gpu_instance];
                    self.visit_point(&labels, point.labels, counters.and_then(|own| own.since), value);
                }
            }
        }
    }

    fn process(&mut self, points: &[Labelled<ProcessValue>]) {
        let roster = &self.snapshot.roster;
        for (position, process) in roster.processes.iter().enumerate() {
            let Some(gpu) = roster.gpus.get(process.gpu) else { continue };
            let state = self.snapshot.processes.get(position);
            let labels: [&str; PROCESS_LABELS] = [
                &gpu.index,
                &gpu.id.uuid,
                &process.gpu_instance,
                &process.pid,
                &process.process,
                &process.workload,
                &process.tenant,
            ];
            for point in points {
                let value = state.and_then(|state| number(state.values[point.value as usize]));
                self.visit_point(&labels, point.labels, None, value);
            }
        }
    }

    fn account(&mut self, rows: &AccountRows) {
        let roster = &self.snapshot.roster;
        match rows {
            AccountRows::Tenant(points) => {
                for (position, entry) in roster.accounts.iter().enumerate() {
                    let state = self.snapshot.accounts.get(position);
                    // The tenant that stands for all without series begins with the agent.
                    let start = (&*entry.owner == HolderId::OTHER).then_some(self.snapshot.started);
                    self.totals(entry, points, state, start);
                }
            }
            AccountRows::Workload(points) => {
                for (position, entry) in roster.workload_accounts.iter().enumerate() {
                    let state = self.snapshot.workload_accounts.get(position);
                    self.totals(entry, points, state, None);
                }
            }
            AccountRows::Slot => self.slots(),
            AccountRows::Unattributed => self.unattributed(),
            AccountRows::Holding => self.holdings(),
            AccountRows::Unused => self.unused(),
            AccountRows::WorkloadInfo => self.workload_info(),
            AccountRows::MonthCost => {
                for (entry, cost) in roster.month_costs.iter().zip(&*self.snapshot.month_costs) {
                    self.visit(&[&entry.tenant, &entry.month, &entry.currency], Some(*cost));
                }
            }
            AccountRows::Budget => {
                for entry in roster.budgets.iter() {
                    self.visit(&[&entry.tenant, &entry.currency], Some(entry.amount.0));
                }
            }
            AccountRows::CostPerHour => {
                for (gpu, price) in roster.gpus.iter().zip(&*roster.prices) {
                    let Some(Price { tariff, nano_per_gpu_hour }) = price else { continue };
                    let labels: [&str; 4] = [&gpu.index, &gpu.id.uuid, &tariff.currency, &tariff.class];
                    self.visit(&labels, Some((*nano_per_gpu_hour).into()));
                }
            }
        }
    }

    /// Visits the totals of one account; those in money only where there is a price.
    fn totals(
        &mut self,
        account: &AccountEntry,
        points: &[Labelled<AccountValue>],
        state: Option<&AccountState>,
        start: Option<Utc>,
    ) {
        let roster = &self.snapshot.roster;
        let Some(gpu) = roster.gpus.get(account.gpu) else { return };
        let mut labels = [&account.owner, &gpu.index, &gpu.id.uuid, &account.gpu_instance, "", ""];
        let mut count = 4;
        if self.family.unit == Unit::Money {
            let Some(Price { tariff, .. }) = roster.prices.get(account.gpu).and_then(Option::as_ref) else {
                return;
            };
            (labels[4], labels[5], count) = (&tariff.currency, &tariff.class, 6);
        }
        for point in points {
            let value = state.and_then(|state| state.values[point.value as usize]);
            self.visit_point(&labels[..count], point.labels, start, value);
        }
    }

    /// Visits the slot time of each GPU instance, and of the rest, which is all of a GPU without instances.
    fn slots(&mut self) {
        for (gpu, state) in gpus(self.snapshot) {
            self.visit(&[&gpu.index, &gpu.id.uuid, ""], state.and_then(|state| number(state.slot)));
            for (gpu_instance, time) in state.into_iter().flat_map(|state| &*state.instance_slots) {
                self.visit(&[&gpu.index, &gpu.id.uuid, gpu_instance], Some((*time).into()));
            }
        }
    }

    fn unattributed(&mut self) {
        for (position, gpu) in self.snapshot.roster.gpus.iter().enumerate() {
            let values = self.snapshot.unattributed.get(position).copied().unwrap_or_default();
            for (reason, value) in UnattributedReason::ALL.iter().zip(values) {
                self.visit(&[&gpu.index, &gpu.id.uuid, reason.name()], value.map(i128::from));
            }
        }
    }

    fn holdings(&mut self) {
        let roster = &self.snapshot.roster;
        for (position, holding) in roster.holdings.iter().enumerate() {
            let Some(gpu) = roster.gpus.get(holding.gpu) else { continue };
            let share = self.snapshot.holdings.get(position).and_then(|state| billionths(state.fraction));
            let labels: [&str; 6] = [
                &gpu.index,
                &gpu.id.uuid,
                &holding.gpu_instance,
                &holding.workload,
                &holding.tenant,
                holding.source.name(),
            ];
            self.visit(&labels, share);
        }
    }

    /// Visits each tenant, GPU and kind once, however many workloads and instances there are.
    fn unused(&mut self) {
        let roster = &self.snapshot.roster;
        let of = |entry: &UnusedEntry| (entry.gpu, entry.kind);
        let is_same =
            |one: &UnusedEntry, next: &UnusedEntry| one.tenant == next.tenant && of(one) == of(next);
        for entry in roster.unused.chunk_by(is_same).filter_map(<[_]>::first) {
            let Some(gpu) = roster.gpus.get(entry.gpu) else { continue };
            self.visit(&[&entry.tenant, &gpu.index, &gpu.id.uuid, entry.kind.name()], Some(1));
        }
    }

    fn workload_info(&mut self) {
        for entry in self.snapshot.roster.workloads.iter() {
            let mut names = [""; MOST_LABELS + PodLabel::MOST];
            let mut values = [""; MOST_LABELS + PodLabel::MOST];
            let facts = entry.facts.iter().map(|(fact, text)| (fact.label(), text));
            let promoted = entry.facts.pod_labels().iter().map(PodLabel::name_and_value);
            let labels =
                [("workload", &*entry.workload), ("kind", entry.kind.name()), ("tenant", &*entry.tenant)];
            let mut count = 0;
            for ((name, value), at) in labels.into_iter().chain(facts).chain(promoted).zip(0..names.len()) {
                (names[at], values[at]) = (name, value);
                count = at + 1;
            }
            let labels =
                Labels { names: &names[..count], values: &values[..count], point: &[], is_of_account: false };
            self.sink.sample(Sample { labels, value: Some(Value::Number(1)), start: None });
        }
    }

    fn agent(&mut self, positions: Range<usize>) {
        let snapshot = self.snapshot;
        for position in positions {
            let Some(entry) = snapshot.roster.agent.get(position) else { continue };
            let value = snapshot.agent.get(position).map(|number| match number {
                AgentNumber::Integer(number) => Value::Number(i128::from(*number)),
                AgentNumber::Histogram(histogram) => Value::Histogram(histogram),
            });
            // The last labels are missing where a series stands for all GPUs.
            let names = self.family.labels.get(..entry.labels.len()).unwrap_or_default();
            debug_assert!(entry.labels.iter().map(|label| label.0).eq(names.iter().copied()));
            let mut values = [""; MOST_LABELS];
            values.iter_mut().zip(&entry.labels).for_each(|(value, label)| *value = &label.1);
            let labels = Labels { names, values: &values, point: &[], is_of_account: false };
            self.sink.sample(Sample { labels, value, start: None });
        }
    }

    fn visit(&mut self, labels: &[&str], value: Option<i128>) {
        self.visit_point(labels, &[], None, value);
    }

    /// Visits a series whose labels have these values and then those of its point.
    fn visit_point(
        &mut self,
        values: &[&str],
        point: &'static [LabelPair],
        start: Option<Utc>,
        value: Option<i128>,
    ) {
        let names = self.family.labels;
        debug_assert_eq!(values.len() + point.len(), names.len(), "{}", self.family.name);
        let labels =
            Labels { names, values, point, is_of_account: matches!(self.family.rows, Rows::Account(_)) };
        self.sink.sample(Sample { labels, value: value.map(Value::Number), start });
    }
}

fn gpus(snapshot: &Snapshot) -> impl Iterator<Item = (&GpuEntry, Option<&GpuState>)> {
    snapshot.roster.gpus.iter().enumerate().map(|(position, gpu)| (gpu, snapshot.gpus.get(position)))
}

/// The GPU instances on the roster, which lists their compute instances: the first of each stands for all.
fn gpu_instances(gpu: &GpuEntry) -> impl Iterator<Item = &InstanceEntry> {
    gpu.instances
        .chunk_by(|one, next| one.gpu_instance == next.gpu_instance)
        .filter_map(|instances| instances.first())
}

fn number(reading: Reading) -> Option<i128> {
    reading.ok().map(i128::from)
}

/// The share in billionths, rounded half up.
fn billionths(fraction: Fraction) -> Option<i128> {
    let (part, whole) = (i128::from(fraction.numerator), i128::from(fraction.denominator));
    (part * 1_000_000_000 + whole / 2).checked_div(whole)
}
