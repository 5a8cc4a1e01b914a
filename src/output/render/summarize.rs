//! Makes the [`Summary`] of a snapshot, as its reader may see it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::health::report;
use super::history::{GpuHistory, HISTORY_POINTS, HISTORY_SERIES, HISTORY_STEP, History, RecentUse};
use super::json::{SeriesFilter, node, simulated};
use super::limits::{limit, read_gpu};
use super::problems::problems;
use super::summary::*;
use crate::model::catalogue::{AgentFamily, InstanceValue, ProcessValue};
use crate::model::frame::Tier;
use crate::model::snapshot::{
    GpuEntry, GpuState, HoldingEntry, ProcessEntry, ProcessState, Snapshot, WorkloadEntry,
};
use crate::model::{
    Absence, Decimal, Fraction, HolderId, Nanoseconds, Price, Reading, Release, Remedy, Utc, VisibleAccount,
};
use crate::output::events::{Event, Party};

pub const MOST_LISTED: usize = 50;

pub struct SummarySource<'a> {
    pub snapshot: &'a Snapshot,
    pub visible: &'a VisibleAccount,
    pub history: &'a History,
    pub release: Option<Release>,
    pub no_account: Option<String>,
}

pub fn summarize(source: &SummarySource<'_>) -> Summary {
    let view = View::new(source.snapshot, source.visible);
    let gpus: Vec<SummaryGpu> = (0..source.snapshot.roster.gpus.len())
        .filter_map(|position| summarize_gpu(position, source, &view))
        .collect();
    let (recent_seconds, tenants) = summarize_tenants(source, &view);
    let mut summary = Summary {
        at: Some(source.snapshot.at.utc.to_string()),
        sequence: source.snapshot.sequence,
        watched_since: Some(source.snapshot.started.to_string()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        partial: view.filter.is_some(),
        processes_listed: source.snapshot.processes_listed,
        node: summarize_node(source, &view, &gpus),
        workloads: summarize_workloads(&view),
        gpus,
        tenants,
        recent_seconds,
        problems: Vec::new(),
    };
    summary.problems = problems(&summary);
    summary
}

/// The largest processes by memory, of one GPU or of all.
pub fn list_processes(snapshot: &Snapshot, visible: &VisibleAccount, uuid: Option<&str>) -> ProcessList {
    let view = View::new(snapshot, visible);
    let is_listed = |process: &ProcessEntry| {
        let gpu = snapshot.roster.gpus.get(process.gpu);
        gpu.is_some_and(|gpu| uuid.is_none_or(|uuid| *gpu.id.uuid == *uuid)) && view.shows(&process.workload)
    };
    let mut all: Vec<_> = view.processes().filter(|(process, _)| is_listed(process)).collect();
    let total = all.len();
    all.sort_by_key(|(process, state)| {
        (Reverse(state.values[ProcessValue::Memory as usize].ok()), process.gpu)
    });
    all.truncate(MOST_LISTED);
    let line = |(process, state): (&ProcessEntry, &ProcessState)| {
        let share = |value: ProcessValue| ratio(state.values[value as usize]);
        SummaryProcess {
            gpu: snapshot.roster.gpus.get(process.gpu).map_or(0, |gpu| gpu.id.index),
            gpu_instance: process.gpu_instance.to_string(),
            pid: process.pid.to_string(),
            name: process.process.to_string(),
            workload: process.workload.to_string(),
            title: view.title(&process.workload),
            tenant: process.tenant.to_string(),
            memory: count(state.values[ProcessValue::Memory as usize]),
            sm: share(ProcessValue::Sm),
            encoder: share(ProcessValue::Encoder),
            decoder: share(ProcessValue::Decoder),
        }
    };
    let processes = all.into_iter().map(line).collect();
    ProcessList {
        at: Some(snapshot.at.utc.to_string()),
        processes_listed: snapshot.processes_listed,
        total,
        processes,
    }
}

/// The last ten minutes of the GPUs whose values the reader may see, since it holds them.
pub fn report_history(snapshot: &Snapshot, visible: &VisibleAccount, history: &History) -> HistoryReport {
    let view = View::new(snapshot, visible);
    let of_gpu = |(position, entry): (usize, &GpuEntry)| {
        let kept = history.gpu(&entry.id.uuid)?;
        let first = view.shown_since(position, None)?;
        let is_shown = |number: usize| {
            let age = (HISTORY_POINTS - 1 - number) as u64 * HISTORY_STEP.0;
            snapshot.at.utc.0.saturating_sub(age) >= first.0
        };
        let known = |number: usize, value: f32| (!value.is_nan() && is_shown(number)).then_some(value);
        let series = HISTORY_SERIES.iter().enumerate().map(|(place, name)| {
            let points = || kept.points(place).enumerate();
            let series = ReportedSeries {
                mean: points().map(|(number, point)| known(number, point.mean)).collect(),
                max: points().map(|(number, point)| known(number, point.most)).collect(),
            };
            ((*name).to_owned(), series)
        });
        Some(ReportedHistory { uuid: entry.id.uuid.to_string(), series: series.collect() })
    };
    HistoryReport {
        at: Some(snapshot.at.utc.to_string()),
        step_seconds: seconds(HISTORY_STEP.0.into()),
        gpus: snapshot.roster.gpus.iter().enumerate().filter_map(of_gpu).collect(),
    }
}

pub(super) struct View<'a> {
    snapshot: &'a Snapshot,
    /// Absent where everything is shown.
    filter: Option<SeriesFilter<'a>>,
    workloads: BTreeMap<&'a str, &'a WorkloadEntry>,
}

struct HeldShare<'a> {
    position: usize,
    workload: &'a str,
    tenant: &'a str,
    /// Share of the whole GPU.
    share: f64,
    since: Utc,
    nano_per_hour: Option<i128>,
}

impl<'a> View<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, visible: &'a VisibleAccount) -> Self {
        let workloads = snapshot.roster.workloads.iter().map(|entry| (&*entry.workload, entry));
        Self { snapshot, filter: SeriesFilter::new(snapshot, visible), workloads: workloads.collect() }
    }

    fn shows(&self, workload: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.shows_workload(workload))
    }

    fn shows_tenant(&self, tenant: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.shows_tenant(tenant))
    }

    /// From when on the values of a GPU, or one of its instances, is this reader's: since the last of its holders came. Absent where it is
    /// not his alone.
    pub(super) fn shown_since(&self, position: usize, gpu_instance: Option<&str>) -> Option<Utc> {
        if self.filter.is_none() {
            return Some(Utc(0));
        }
        // What is on the whole GPU is on each of its instances.
        let overlaps = |of: &str| gpu_instance.is_none_or(|wanted| of.is_empty() || of == wanted);
        let holdings = self.snapshot.roster.holdings.iter();
        let mut held = holdings.filter(|entry| entry.gpu == position && overlaps(&entry.gpu_instance));
        let mut processes = self.processes().map(|(process, _)| process);
        let is_strangers = |process: &ProcessEntry| {
            let is_known = process.workload.as_ref() == HolderId::SYSTEM || self.shows(&process.workload);
            process.gpu == position && overlaps(&process.gpu_instance) && !is_known
        };
        let is_own = self.snapshot.processes_listed && !processes.any(is_strangers);
        let later = |last: Option<Utc>, entry: &HoldingEntry| {
            self.shows(&entry.workload).then(|| last.max(Some(entry.since)))
        };
        // Absent too where nobody holds it.
        held.try_fold(None, later).flatten().filter(|_| is_own)
    }

    /// Whether an event is shown: one of a GPU, or of an instance that it names, only if that is the reader's alone and was
    /// then. Events of tenants are filtered by these.
    pub(super) fn shows_event(&self, event: &Event, parties: &[Party]) -> bool {
        let Some(gpu) = event.gpu.as_ref().filter(|_| self.filter.is_some() && !event.kind.is_of_tenant)
        else {
            return true;
        };
        let Some(position) = self.snapshot.roster.gpus.iter().position(|entry| entry.id.uuid == gpu.uuid)
        else {
            return false;
        };
        let named = event.attributes.iter().find(|(name, _)| *name == "gpu_instance");
        let instance = named.map(|(_, text)| text.as_str());
        // Those of joined events were there before.
        let is_foreign = |party: &Party| *party.workload != *HolderId::SYSTEM && !parties.contains(party);
        let was_shared = instance.is_none() && event.parties.iter().any(is_foreign);
        !was_shared && self.shown_since(position, instance).is_some_and(|since| event.at >= since)
    }

    fn processes(&self) -> impl Iterator<Item = (&'a ProcessEntry, &'a ProcessState)> + use<'a> {
        self.snapshot.roster.processes.iter().zip(&self.snapshot.processes)
    }

    fn price(&self, position: usize) -> Option<&'a Price> {
        self.snapshot.roster.prices.get(position)?.as_ref()
    }

    /// The currency of the sums: that of the first GPU with a price.
    fn currency(&self) -> Option<&'a str> {
        Some(&self.snapshot.roster.prices.iter().flatten().next()?.tariff.currency)
    }

    /// The price of a GPU per hour, if it is in the currency of the sums.
    fn nano_per_hour(&self, position: usize) -> Option<i128> {
        let price = self.price(position).filter(|price| Some(&*price.tariff.currency) == self.currency())?;
        Some(price.nano_per_gpu_hour.into())
    }

    /// The shares that workloads hold and the reader may see.
    fn shares(&self) -> impl Iterator<Item = HeldShare<'a>> + use<'a, '_> {
        let holdings = self.snapshot.roster.holdings.iter().zip(&self.snapshot.holdings);
        holdings.filter(|(entry, _)| self.shows(&entry.workload)).map(|(entry, state)| {
            let layout = self.snapshot.gpus.get(entry.gpu).and_then(|state| state.layout.as_deref());
            let slot =
                layout.and_then(|layout| Some((layout.slots.get(&entry.gpu_instance)?.size, layout.total)));
            let (size, total) = slot.unwrap_or((u64::from(entry.gpu_instance.is_empty()), 1));
            let Fraction { numerator, denominator } = state.fraction;
            let whole = i128::from(total.max(1)) * i128::from(denominator.max(1));
            let part = i128::from(size) * i128::from(numerator);
            HeldShare {
                position: entry.gpu,
                workload: &entry.workload,
                tenant: &entry.tenant,
                share: part as f64 / whole as f64,
                since: entry.since,
                nano_per_hour: self.nano_per_hour(entry.gpu).map(|nano| nano * part / whole),
            }
        })
    }

    fn title(&self, workload: &str) -> String {
        self.workloads.get(workload).map_or_else(|| workload.to_owned(), |entry| title(entry))
    }
}

fn title(entry: &WorkloadEntry) -> String {
    let named = entry.kind.title(|fact| entry.facts.get(fact).map(|text| &**text));
    named.unwrap_or_else(|| entry.workload.to_string())
}

fn summarize_node(source: &SummarySource<'_>, view: &View<'_>, gpus: &[SummaryGpu]) -> SummaryNode {
    let snapshot = source.snapshot;
    let names = node(snapshot);
    let name = |key| names.get(key).map(|name| (*name).to_owned()).unwrap_or_default();
    let (account, account_reason) = account_state(source);
    let sum =
        |value: fn(&SummaryGpu) -> Option<f64>| gpus.iter().filter_map(value).reduce(|sum, one| sum + one);
    let of_hour = |used: Nanoseconds| view.filter.is_none().then(|| rounded(seconds(used.0.into())));
    let price = |position| view.nano_per_hour(position);
    let all = (0..snapshot.roster.gpus.len()).filter_map(price).reduce(|sum, one| sum + one);
    let held = view.shares().filter_map(|held| held.nano_per_hour).reduce(|sum, one| sum + one);
    SummaryNode {
        name: name("name"),
        cluster: name("cluster"),
        simulated: simulated(snapshot),
        quiesced: source.release.map(|release| release.words().trim().to_owned()),
        account,
        account_reason,
        ok: gpus.iter().filter(|gpu| gpu.health.state == "ok").count(),
        held: rounded(view.shares().map(|held| held.share).sum()),
        used: sum(|gpu| gpu.readings.activity).map(rounded),
        how_held: snapshot.how_held.describe(),
        how_held_advice: snapshot.how_held.advice().to_owned(),
        used_last_hour: of_hour(snapshot.last_hour.used),
        unheld_last_hour: of_hour(snapshot.last_hour.unheld),
        sxids: recent_sxids(snapshot),
        power: sum(|gpu| gpu.readings.power).map(rounded),
        power_limit: sum(|gpu| gpu.readings.power_limit).map(rounded),
        currency: view.currency().map(str::to_owned),
        per_hour: all.map(money),
        held_per_hour: view.currency().map(|_| money(held.unwrap_or(0))),
    }
}

/// How long an SXID is shown: the reset of the switch that ends it is not reported.
const SXIDS_SHOWN: Nanoseconds = Nanoseconds::from_seconds(24 * 3_600);

fn recent_sxids(snapshot: &Snapshot) -> Vec<SummarySxid> {
    let recent = snapshot.sxids.iter().filter(|seen| snapshot.at.utc.since(seen.last) <= SXIDS_SHOWN);
    recent
        .map(|seen| SummarySxid {
            pci_bus_id: seen.sxid.switch.to_string(),
            sxid: seen.sxid.code,
            fatal: seen.sxid.is_fatal,
            count: seen.count,
            last: seen.last.to_string(),
        })
        .collect()
}

fn account_state(source: &SummarySource<'_>) -> (String, Option<String>) {
    let number = |family: AgentFamily| source.snapshot.agent_integer(family.name());
    let imbalance = number(AgentFamily::LedgerImbalance).filter(|imbalance| *imbalance != 0);
    if let Some(reason) = &source.no_account {
        return ("none".to_owned(), Some(reason.clone()));
    }
    let wrong = if let Some(imbalance) = imbalance {
        format!("its sums differ by {imbalance} ns; see gpumeter_ledger_imbalance_seconds")
    } else if number(AgentFamily::LedgerDurable) == Some(0) {
        "its file system is lost with the next reboot; see gpumeter_ledger_durable".to_owned()
    } else {
        return ("ok".to_owned(), None);
    };
    ("wrong".to_owned(), Some(wrong))
}

fn summarize_gpu(position: usize, source: &SummarySource<'_>, view: &View<'_>) -> Option<SummaryGpu> {
    let snapshot = source.snapshot;
    let (entry, state) = (snapshot.roster.gpus.get(position)?, snapshot.gpus.get(position)?);
    let shown_since = view.shown_since(position, None);
    let is_shown = shown_since.is_some();
    let users = users(view, position);
    let (readings, (limit_kind, limit)) = if is_shown {
        let readings = read_gpu(state);
        let is_busy = source.history.gpu(&entry.id.uuid).is_some_and(GpuHistory::is_busy);
        let limit = limit(state, &readings, is_busy, users.is_empty());
        (readings, limit)
    } else {
        (GpuReadings::default(), ("unknown", "shown to who holds this GPU alone".to_owned()))
    };
    let kept = source.history.gpu(&entry.id.uuid).filter(|_| is_shown);
    let idle_since = kept.and_then(|kept| kept.idle_since(snapshot.started, state));
    let idle_since = idle_since.zip(shown_since).map(|(since, first)| since.max(first));
    let identity = &entry.identity;
    let price = view.price(position);
    Some(SummaryGpu {
        gpu: entry.id.index,
        uuid: entry.id.uuid.to_string(),
        model: identity.model.to_string(),
        pci_bus_id: identity.pci_bus_id.to_string(),
        driver_version: identity.driver_version.to_string(),
        status: match entry.absence {
            Some(absence) => absence.to_owned(),
            None if state.is_up() => "up".to_owned(),
            None => "silent".to_owned(),
        },
        call: state.in_flight.map(|(call, lasting)| (call.to_owned(), lasting.0 / 1_000_000_000)),
        read_at: state.frame.as_ref().map(|frame| frame.ended.utc.to_string()),
        withheld: !is_shown,
        health: report(&state.health, source.release, shown_since),
        advice: state.health.remedy.words().to_owned(),
        command: command(state.health.remedy, position, snapshot),
        limit,
        limit_kind: limit_kind.to_owned(),
        readings,
        idle_since: idle_since.map(|at| at.to_string()),
        idle_seconds: idle_since.map(|since| snapshot.at.utc.since(since).0 / 1_000_000_000),
        memory_left_since: state.memory_left_since.filter(|_| is_shown).map(|since| since.to_string()),
        mig: identity.mig.then(|| mig(entry, state, is_shown)),
        holders: holders(view, position),
        conflicts: conflicts(view, position),
        unused: unused(view, position),
        users,
        per_hour: price.map(|price| money(price.nano_per_gpu_hour.into())),
        price_class: price.map(|price| price.tariff.class.to_string()),
        xids: xids(entry, state, view, shown_since),
    })
}

/// The XIDs since a time. How often one was seen is a sum over all who held the GPU.
fn xids(
    entry: &GpuEntry,
    state: &GpuState,
    view: &View<'_>,
    since: Option<Utc>,
) -> Vec<(u32, Option<u64>, Option<String>)> {
    let seen = entry.xids.iter().zip(&state.xids);
    let shown = seen.filter(|(_, seen)| since.is_some_and(|since| seen.last >= since));
    let count = |count: u64| view.filter.is_none().then_some(count);
    shown.map(|((code, _), seen)| (*code, count(seen.count), Some(seen.last.to_string()))).collect()
}

/// The command that a remedy begins with, where there is one that fits this node: what runs on the GPU, or on the node before a
/// reboot, is drained first.
fn command(remedy: Remedy, position: usize, snapshot: &Snapshot) -> Option<String> {
    let index = snapshot.roster.gpus.get(position)?.id.index;
    let roster = &snapshot.roster;
    let holders = roster.holdings.iter().map(|one| (one.gpu, &one.workload));
    let users = roster.processes.iter().map(|one| (one.gpu, &one.workload));
    let here = holders.chain(users).filter(|(gpu, _)| *gpu == position);
    let here: BTreeSet<&Arc<str>> = here.map(|(_, workload)| workload).collect();
    let is_here = |workload: &&WorkloadEntry| here.contains(&workload.workload);
    let on_gpu = || drain(snapshot, index, roster.workloads.iter().filter(is_here));
    let on_node = || drain(snapshot, index, roster.workloads.iter());
    let after = |drain: Vec<String>, command: &str| {
        Some(drain.into_iter().chain([command.to_owned()]).collect::<Vec<_>>().join(" && "))
    };
    match remedy {
        Remedy::ResetGpu => {
            after(on_gpu(), &format!("sudo gpumeter quiesce -- nvidia-smi --gpu-reset -i {index}"))
        }
        Remedy::RebootNode => after(on_node(), "sudo systemctl reboot"),
        Remedy::ContactSupport => Some("sudo nvidia-bug-report.sh".to_owned()),
        Remedy::Drain => on_node().into_iter().next(),
        _ => None,
    }
}

/// The commands after which the schedulers of these workloads have nothing on this node. Slurm lets its jobs end.
fn drain<'a>(
    snapshot: &Snapshot,
    gpu: u32,
    workloads: impl Iterator<Item = &'a WorkloadEntry>,
) -> Vec<String> {
    let kinds: BTreeSet<&str> = workloads.map(|workload| workload.kind.name()).collect();
    let name = node(snapshot).get("name").copied().unwrap_or_default();
    // The command is copied into a shell.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let name = if !name.is_empty() && name.bytes().all(is_plain) { name } else { "NODE" };
    let mut commands = Vec::new();
    if kinds.contains("k8s") {
        commands.push(format!("kubectl drain {name} --ignore-daemonsets --delete-emptydir-data"));
    }
    if kinds.contains("slurm") {
        commands.push(format!("scontrol update NodeName={name} State=DRAIN Reason=\"GPU {gpu}\""));
        commands.push(format!("until [ -z \"$(squeue -h -w {name} || echo unknown)\" ]; do sleep 10; done"));
    }
    commands
}

fn mig(entry: &GpuEntry, state: &GpuState, is_shown: bool) -> SummaryMig {
    let Some(layout) = state.layout.as_deref() else { return SummaryMig::default() };
    let instance = |(id, slot): (&Arc<str>, &crate::model::MigSlot)| {
        let of_id = |one: &&crate::model::snapshot::InstanceEntry| one.gpu_instance == *id;
        let identity = entry.instances.iter().find(of_id).map(|instance| &instance.identity);
        let shown = identity.filter(|_| is_shown);
        let frame = shown.and_then(|identity| state.instance(identity.id.gpu_instance, Tier::Fast));
        let read = |value: InstanceValue| {
            let reading = frame.and_then(|frame| frame.readings.get(value as usize).copied());
            reading.unwrap_or(Err(Absence::NotYet))
        };
        SummaryInstance {
            gpu_instance: id.to_string(),
            profile: identity.map(|identity| identity.profile.to_string()).unwrap_or_default(),
            start: slot.start,
            slices: slot.size,
            activity: ratio(read(InstanceValue::GrEngineActive)),
            memory_used: count(read(InstanceValue::MemoryUsed)),
            memory_total: count(read(InstanceValue::MemoryTotal)),
        }
    };
    let mut instances: Vec<SummaryInstance> = layout.slots.iter().map(instance).collect();
    instances.sort_by_key(|instance| instance.start);
    let stranded = layout.stranded.unwrap_or(0);
    SummaryMig { slices: layout.total, free: layout.unallocated, stranded, instances }
}

fn holders(view: &View<'_>, position: usize) -> Vec<SummaryHolder> {
    let snapshot = view.snapshot;
    let all = snapshot.roster.holdings.iter().zip(&snapshot.holdings);
    let shown = all.filter(|(entry, _)| entry.gpu == position && view.shows(&entry.workload));
    let holder = shown.map(|(entry, state)| SummaryHolder {
        workload: entry.workload.to_string(),
        title: view.title(&entry.workload),
        tenant: entry.tenant.to_string(),
        gpu_instance: entry.gpu_instance.to_string(),
        share: rounded(f64::from(state.fraction.numerator) / f64::from(state.fraction.denominator.max(1))),
        source: entry.source.name().to_owned(),
        since: Some(entry.since.to_string()),
    });
    holder.collect()
}

fn unused(view: &View<'_>, position: usize) -> Vec<SummaryUnused> {
    let snapshot = view.snapshot;
    let all = snapshot.roster.unused.iter();
    let shown = all.filter(|entry| entry.gpu == position && view.shows(&entry.workload));
    let unused = shown.map(|entry| SummaryUnused {
        workload: entry.workload.to_string(),
        title: view.title(&entry.workload),
        tenant: entry.tenant.to_string(),
        gpu_instance: entry.gpu_instance.to_string(),
        kind: entry.kind.name().to_owned(),
        since: entry.since.to_string(),
        seconds: snapshot.at.utc.since(entry.since).0 / 1_000_000_000,
    });
    unused.collect()
}

/// The workloads with processes on a GPU, those with the most memory first.
fn users(view: &View<'_>, position: usize) -> Vec<SummaryUser> {
    let mut users: BTreeMap<(&str, &str), SummaryUser> = BTreeMap::new();
    let own =
        view.processes().filter(|(process, _)| process.gpu == position && view.shows(&process.workload));
    for (process, state) in own {
        let user = users.entry((&process.gpu_instance, &process.workload)).or_insert_with(|| SummaryUser {
            workload: process.workload.to_string(),
            title: view.title(&process.workload),
            tenant: process.tenant.to_string(),
            gpu_instance: process.gpu_instance.to_string(),
            ..SummaryUser::default()
        });
        user.processes += 1;
        add(&mut user.memory, count(state.values[ProcessValue::Memory as usize]));
        add(&mut user.sm, ratio(state.values[ProcessValue::Sm as usize]));
    }
    let mut users: Vec<SummaryUser> = users.into_values().collect();
    users.sort_by_key(|user| Reverse(user.memory));
    users
}

fn conflicts(view: &View<'_>, position: usize) -> Vec<String> {
    let of_gpu = view.snapshot.conflicts.iter().filter(|conflict| conflict.gpu == position);
    let shown = of_gpu.flat_map(|conflict| &conflict.workloads).filter(|workload| view.shows(workload));
    shown.map(|workload| view.title(workload)).collect()
}

/// The seconds that the account's means are over, and the tenants, the largest first.
fn summarize_tenants(source: &SummarySource<'_>, view: &View<'_>) -> (f64, Vec<SummaryTenant>) {
    let recent = source.history.recent(source.snapshot);
    let mut tenants: BTreeMap<&str, (SummaryTenant, Option<i128>)> = BTreeMap::new();
    let index = |position: usize| source.snapshot.roster.gpus.get(position).map(|gpu| gpu.id.index);
    for held in view.shares() {
        let (tenant, nano) = tenants.entry(held.tenant).or_default();
        tenant.held += held.share;
        add(nano, held.nano_per_hour);
        tenant.gpus.extend(index(held.position));
    }
    for (process, _) in view.processes().filter(|(process, _)| !process.tenant.is_empty()) {
        tenants.entry(&process.tenant).or_default().0.gpus.extend(index(process.gpu));
    }
    for (tenant, RecentUse { held, used, idle, .. }) in
        recent.iter().filter(|(_, one)| one.held + one.used > 0.0)
    {
        let line = &mut tenants.entry(tenant).or_default().0;
        (line.held_recently, line.used) = (Some(rounded(*held)), Some(rounded(*used)));
        // A remainder is not idle.
        line.idle = Some(rounded(*idle)).filter(|_| !tenant.starts_with("__"));
    }
    let roster = &source.snapshot.roster;
    for budget in roster.budgets.iter().filter(|budget| Some(&*budget.currency) == view.currency()) {
        let line = &mut tenants.entry(&budget.tenant).or_default().0;
        line.budget = Some(money(budget.amount.0));
        let costs = roster.month_costs.iter().zip(&*source.snapshot.month_costs);
        let mut own =
            costs.filter(|(entry, _)| (&entry.tenant, &entry.currency) == (&budget.tenant, &budget.currency));
        let spent = own.next().map(|(_, cost)| *cost);
        line.spent = spent.map(money);
        line.over_budget = spent.is_some_and(|spent| spent > budget.amount.0);
    }
    tenants.retain(|tenant, _| view.shows_tenant(tenant));
    let line = |(name, (tenant, nano)): (&str, (SummaryTenant, Option<i128>))| SummaryTenant {
        tenant: name.to_owned(),
        remainder: name.starts_with("__"),
        held: rounded(tenant.held),
        per_hour: nano.map(money),
        ..tenant
    };
    let mut tenants: Vec<SummaryTenant> = tenants.into_iter().map(line).collect();
    tenants.sort_by(|one, other| {
        (one.remainder, other.held)
            .partial_cmp(&(other.remainder, one.held))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let longest = recent.values().map(|one| one.span.0).max().unwrap_or(0);
    (seconds(longest.into()), tenants)
}

fn summarize_workloads(view: &View<'_>) -> Vec<SummaryWorkload> {
    let index = |position: usize| view.snapshot.roster.gpus.get(position).map(|gpu| gpu.id.index);
    let shown = view.workloads.values().filter(|entry| view.shows(&entry.workload));
    let mut lines: BTreeMap<&str, (SummaryWorkload, Option<i128>)> = shown
        .map(|entry| {
            let labels = entry.facts.iter().map(|(fact, text)| (fact.label().to_owned(), text.to_owned()));
            let pod_labels = entry.facts.pod_labels().iter();
            let line = SummaryWorkload {
                workload: entry.workload.to_string(),
                title: title(entry),
                kind: entry.kind.name().to_owned(),
                tenant: entry.tenant.to_string(),
                class: entry.class,
                labels: labels
                    .chain(pod_labels.map(|one| (one.name.to_string(), one.value.to_string())))
                    .collect(),
                ..SummaryWorkload::default()
            };
            (&*entry.workload, (line, None))
        })
        .collect();
    let mut since: BTreeMap<&str, Utc> = BTreeMap::new();
    for held in view.shares() {
        let Some((line, nano)) = lines.get_mut(held.workload) else { continue };
        line.held += held.share;
        line.gpus.extend(index(held.position));
        add(nano, held.nano_per_hour);
        let first = since.entry(held.workload).or_insert(held.since);
        *first = held.since.min(*first);
    }
    for (process, state) in view.processes() {
        // Use of a step is use of its job too.
        let outer = HolderId::new(Arc::clone(&process.workload)).outer();
        for workload in [Some(&*process.workload), outer.as_ref().map(HolderId::as_str)].into_iter().flatten()
        {
            let Some((line, _)) = lines.get_mut(workload) else { continue };
            line.processes += 1;
            line.gpus.extend(index(process.gpu));
            add(&mut line.memory, count(state.values[ProcessValue::Memory as usize]));
            add(&mut line.sm, ratio(state.values[ProcessValue::Sm as usize]));
        }
    }
    let line = |(name, (line, nano)): (&str, (SummaryWorkload, Option<i128>))| SummaryWorkload {
        held: rounded(line.held),
        since: since.get(name).map(Utc::to_string),
        per_hour: nano.map(money),
        ..line
    };
    lines.into_iter().map(line).collect()
}

fn add<T: std::ops::Add<Output = T> + Copy>(sum: &mut Option<T>, value: Option<T>) {
    *sum = match (*sum, value) {
        (Some(sum), Some(value)) => Some(sum + value),
        (sum, value) => sum.or(value),
    };
}

fn money(nano: i128) -> String {
    Decimal::of_nano(nano).to_string()
}

/// Billionths as a share with four decimals.
pub(super) fn ratio(reading: Reading) -> Option<f64> {
    reading.ok().map(|ratio| rounded(ratio as f64 / 1e9))
}

pub(super) fn count(reading: Reading) -> Option<u64> {
    u64::try_from(reading.ok()?).ok()
}

fn seconds(nanoseconds: i128) -> f64 {
    nanoseconds as f64 / 1e9
}

pub(super) fn rounded(value: f64) -> f64 {
    // A sum of nothing is -0.
    (value * 1e4).round() / 1e4 + 0.0
}
