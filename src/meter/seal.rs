//! The last step: everything that is known, sealed.
//!
//! Labels go into a roster, values into vectors beside it. A roster equal to the last one is the last one,
//! so that encoders keep what they rendered of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::accounts::TenantAccount;
use super::budget::{self, Cost, Purse};
use super::sources::sources;
use super::{Gpu, Meter, Services, numbers};
use crate::catalogue::{Family, HoldingValue, Level, Rows, device_points, families};
use crate::holders::Identities;
use crate::ledger::Tariff;
use crate::model::frame::Tier;
use crate::model::snapshot::{
    AccountEntry, AccountState, AgentEntry, AgentNumber, GpuEntry, GpuState, HoldingEntry, HoldingState,
    InstanceEntry, ProcessEntry, ProcessState, Roster, Snapshot, WorkloadEntry,
};
use crate::model::{
    Absence, Facts, Frame, GpuIdentity, GpuProcess, Holder, HolderId, HolderKind, Nanoseconds, Stamp,
    Whereabouts,
};
use crate::nvml::InFlight;
use crate::tenants::tenant;

impl Meter {
    pub(super) fn seal(
        &mut self,
        now: Stamp,
        identities: &Identities,
        in_flight: &BTreeMap<Arc<str>, InFlight>,
        services: &Services,
    ) -> Arc<Snapshot> {
        let expected = self.gpus.values().filter(|gpu| gpu.place.whereabouts != Whereabouts::Forgotten);
        let mut gpus: Vec<&Gpu> = expected.collect();
        gpus.sort_by(|left, right| left.id.cmp(&right.id));
        let places: BTreeMap<&str, usize> =
            gpus.iter().enumerate().map(|(place, gpu)| (&*gpu.id.uuid, place)).collect();
        let states: Vec<GpuState> =
            gpus.iter().map(|gpu| self.state(gpu, now, in_flight.get(&gpu.id.uuid))).collect();
        let (agent_entries, agent) = self.agent(now, &gpus, &states, services);
        let level = self.policy.level;
        let of_gpus: usize =
            gpus.iter().zip(&states).map(|(gpu, state)| budget::of_gpu(gpu, state, level)).sum();
        let mut budget = std::mem::take(&mut self.budget);
        let mut purse = budget.purse(self.policy.series, of_gpus + agent.iter().map(series).sum::<usize>());
        let (account_entries, accounts) = self.accounts(now, &places, &mut purse);
        let (holding_entries, holdings) = holdings(&gpus, identities, &mut purse, level);
        let workloads = workloads(&gpus, identities, &holding_entries);
        let workloads = purse.first(workloads, &of_holding(level, HoldingValue::WorkloadInfo));
        let (process_entries, processes) = self.processes(&gpus, &states, identities, &mut purse);
        let roster = Roster {
            gpus: gpus.iter().map(|gpu| entry(gpu)).collect(),
            processes: process_entries,
            accounts: account_entries,
            holdings: holding_entries,
            workloads,
            price: self.policy.price(self.timeline.at(now.boottime)).cloned(),
            agent: agent_entries,
        };
        if *self.roster != roster {
            self.roster = Arc::new(roster);
        }
        self.budget = budget;
        self.sequence += 1;
        Arc::new(Snapshot {
            sequence: self.sequence,
            at: now,
            roster: Arc::clone(&self.roster),
            started: self.started.utc,
            ledger_started: self.ledger,
            gpus: states,
            processes,
            accounts,
            holdings,
            agent,
        })
    }

    fn state(&self, gpu: &Gpu, now: Stamp, in_flight: Option<&InFlight>) -> GpuState {
        let late = in_flight.and_then(|call| {
            let lasting = now.boottime.0.saturating_sub(call.since.0);
            let interval = self.policy.intervals[Tier::Fast as usize];
            (lasting > interval.0).then_some((call.function, Nanoseconds(lasting)))
        });
        let slot = self.accounts.slots.get(&gpu.id.uuid).map(|total| total.slot.0);
        GpuState {
            present: gpu.place.is_there(),
            frame: gpu.frame.clone(),
            fresh: gpu.fresh(now, &self.policy),
            integrals: gpu.integrals.clone(),
            instances: gpu.instances.clone(),
            busy: gpu.busy,
            slot: slot
                .map_or(Err(Absence::NotYet), |slot| i64::try_from(slot).map_err(|_| Absence::Rejected)),
            in_flight: late,
            xids: gpu.xids.codes.values().map(|code| (code.count, code.last)).collect(),
            xid_actions: gpu.xids.actions.clone(),
            health: Arc::clone(&gpu.bench.verdict),
        }
    }

    /// Processes by GPU and pid, the largest first into the limit; what is above it is one row per GPU.
    fn processes(
        &self,
        gpus: &[&Gpu],
        states: &[GpuState],
        identities: &Identities,
        purse: &mut Purse<'_>,
    ) -> (Vec<ProcessEntry>, Vec<ProcessState>) {
        if self.policy.level < Level::Full {
            return (Vec::new(), Vec::new());
        }
        let lists: Vec<Vec<&GpuProcess>> =
            gpus.iter().zip(states).map(|(gpu, state)| by_size(gpu, state)).collect();
        let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
        let cost = Cost::at(Level::Full, |rows| usize::from(matches!(rows, Rows::Process(_))));
        let limit = budget::most_processes(&counts, self.policy.processes, purse.room(&cost));
        let mut rows = Vec::new();
        for (place, (gpu, processes)) in gpus.iter().zip(&lists).enumerate() {
            let (Some(frame), Some(limit)) = (gpu.frame.as_deref(), limit) else { continue };
            let (largest, rest) = processes.split_at(limit.min(processes.len()));
            let mut named = largest.to_vec();
            named.sort_by_key(|process| (process.pid, process.gpu_instance));
            rows.extend(named.iter().map(|process| process_row(place, process, frame, identities)));
            if !rest.is_empty() {
                let memory = rest.iter().filter_map(|process| process.memory).map(|memory| memory.0);
                rows.push(other_row(place, memory.fold(0, u64::saturating_add)));
            }
        }
        let wanted = budget::rows(&counts, self.policy.processes);
        purse.pay(&cost, rows.len(), wanted.saturating_sub(rows.len()));
        rows.into_iter().unzip()
    }

    fn accounts(
        &self,
        now: Stamp,
        places: &BTreeMap<&str, usize>,
        purse: &mut Purse<'_>,
    ) -> (Vec<AccountEntry>, Vec<AccountState>) {
        let at = self.timeline.at(now.boottime);
        let tariff = self
            .policy
            .price(at)
            .map(|price| Tariff { currency: Arc::clone(&price.currency), class: Arc::clone(&price.class) });
        let mut accounts =
            self.accounts.by_tenant(&self.holders, (at, self.policy.birth_delay), tariff.as_ref());
        // Of a GPU that is forgotten nothing is shown, and nothing is left off.
        accounts.retain(|account| places.contains_key(&*account.uuid));
        let cost = Cost::at(self.policy.level, |rows| match rows {
            Rows::Account(points) => points.len(),
            _ => 0,
        });
        let key = |account: &TenantAccount| (Arc::clone(&account.tenant), Arc::clone(&account.uuid));
        purse
            .accounts(accounts, &cost, key)
            .into_iter()
            .filter_map(|account| {
                let gpu = *places.get(&*account.uuid)?;
                Some((AccountEntry { tenant: account.tenant, gpu }, account.state))
            })
            .unzip()
    }

    fn agent(
        &self,
        now: Stamp,
        gpus: &[&Gpu],
        states: &[GpuState],
        services: &Services,
    ) -> (Vec<AgentEntry>, Vec<AgentNumber>) {
        let mut own = services.clone();
        for tier in Tier::ALL {
            // The longest in force on any GPU.
            let frames = gpus.iter().filter_map(|gpu| gpu.frame.as_deref());
            let stretch = frames.map(|frame| frame.stretch.of(tier)).max().unwrap_or(1);
            let interval = self.policy.intervals[tier as usize].0 * u64::from(stretch);
            own.add(
                "gpumeter_sampling_interval_seconds",
                vec![("tier", tier.name().into())],
                whole(interval),
            );
        }
        let lead = self.timeline.lead(now);
        own.add("gpumeter_clock_step_seconds", Vec::new(), lead);
        own.add(
            "gpumeter_ledger_imbalance_seconds",
            Vec::new(),
            i64::try_from(self.accounts.imbalance).unwrap_or(i64::MAX),
        );
        if let Some(bytes) = self.accounts.bytes {
            own.add("gpumeter_ledger_bytes", Vec::new(), whole(bytes));
        }
        for (family, count) in self.budget.dropped() {
            own.add("gpumeter_series_dropped_total", vec![("family", family.into())], whole(count));
        }
        for (gpu, state) in gpus.iter().zip(states) {
            gpu_numbers(&mut own, gpu, state, self.policy.level);
        }
        let mut series = self.counters.gather();
        series.extend(own.series.into_iter().map(|(entry, value)| (entry, AgentNumber::Integer(value))));
        numbers::sort(&mut series);
        series.into_iter().unzip()
    }
}

/// The series of one of the agent's own numbers.
fn series(number: &AgentNumber) -> usize {
    match number {
        AgentNumber::Integer(_) => 1,
        // The infinite bucket, count and sum beside the others.
        AgentNumber::Histogram(histogram) => histogram.bounds.len() + 3,
    }
}

fn of_holding(level: Level, value: HoldingValue) -> Cost {
    Cost::at(level, |rows| usize::from(matches!(rows, Rows::Holding(of) if *of == value)))
}

/// The processes of a GPU that answers, largest first.
fn by_size<'a>(gpu: &'a Gpu, state: &GpuState) -> Vec<&'a GpuProcess> {
    let frame = gpu.frame.as_deref().filter(|_| state.is_up());
    let listed = frame.and_then(|frame| frame.processes.as_ref().ok());
    let mut processes: Vec<_> = listed.into_iter().flat_map(|list| list.iter()).collect();
    processes.sort_by_key(|process| (std::cmp::Reverse(process.memory), process.pid));
    processes
}

fn gpu_numbers(own: &mut Services, gpu: &Gpu, state: &GpuState, level: Level) {
    let index: Arc<str> = gpu.id.index.to_string().into();
    let labels = || vec![("gpu", Arc::clone(&index)), ("uuid", Arc::clone(&gpu.id.uuid))];
    let with = |name, value: &str| {
        let mut labels = labels();
        labels.push((name, value.into()));
        labels
    };
    let collector: Arc<str> = format!("gpu{index}").into();
    own.add(
        "gpumeter_collector_success",
        vec![("collector", Arc::clone(&collector))],
        i64::from(state.is_up()),
    );
    if let Some(frame) = &gpu.frame {
        let took = frame.ended.since(frame.begun);
        own.add("gpumeter_collector_duration_seconds", vec![("collector", collector)], whole(took.0));
        own.add("gpumeter_last_sample_timestamp_seconds", labels(), whole(frame.ended.utc.0));
    }
    if let Some((call, lasting)) = state.in_flight {
        own.add("gpumeter_driver_call_in_flight_seconds", with("call", call), whole(lasting.0));
    }
    for (metric, source) in sources(gpu, level) {
        let mut labels = with("metric", metric);
        labels.push(("source", source.into()));
        own.add("gpumeter_source_info", labels, 1);
    }
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn entry(gpu: &Gpu) -> GpuEntry {
    let frame = gpu.frame.as_deref();
    GpuEntry {
        id: gpu.id.clone(),
        index: gpu.id.index.to_string().into(),
        identity: frame.map_or_else(|| Arc::new(GpuIdentity::default()), |frame| Arc::clone(&frame.identity)),
        instances: frame.map(instances).unwrap_or_default(),
        unsupported: gpu.unsupported.clone(),
        xids: gpu.xids.codes.keys().map(|xid| (*xid, xid.to_string().into())).collect(),
        absence: gpu.place.absence(),
        activity_source: gpu.account.source().map(|source| source.name()),
    }
}

fn instances(frame: &Frame) -> Vec<InstanceEntry> {
    frame
        .instances
        .iter()
        .map(|instance| InstanceEntry {
            identity: instance.identity.clone(),
            gpu_instance: instance.identity.id.gpu_instance.to_string().into(),
            compute_instance: instance.identity.id.compute_instance.to_string().into(),
        })
        .collect()
}

/// Families up to that level of which the GPU can answer no point, ever, and why.
pub fn unsupported(frame: &Frame, level: Level) -> Vec<(&'static str, Absence)> {
    let mut answers: Vec<(&'static Family, Result<(), Absence>)> = Vec::new();
    for ((family, _), reading) in device_points().zip(&*frame.readings) {
        let absent = match reading {
            Err(absence) if absence.is_permanent() => Err(*absence),
            _ => Ok(()),
        };
        match answers.last_mut() {
            Some((last, answer)) if std::ptr::eq(*last, family) => *answer = answer.or(absent),
            _ => answers.push((family, absent)),
        }
    }
    let mut absent: Vec<_> =
        answers.into_iter().filter_map(|(family, answer)| Some((family, answer.err()?))).collect();
    for family in families() {
        let Rows::Integral([integral, ..]) = family.rows else { continue };
        if let Some((_, absence)) = absent.iter().find(|(of, _)| of.name == integral.of) {
            absent.push((family, *absence));
        }
    }
    let shown = absent.into_iter().filter(|(family, _)| family.level <= level);
    shown.map(|(family, absence)| (family.name, absence)).collect()
}

fn process_row(
    gpu: usize,
    process: &GpuProcess,
    frame: &Frame,
    identities: &Identities,
) -> (ProcessEntry, ProcessState) {
    let identified = identities.get(process.pid);
    let sample = frame
        .samples
        .iter()
        .flatten()
        .filter(|sample| sample.pid == process.pid)
        .map(|sample| sample.sm)
        .max();
    let entry = ProcessEntry {
        gpu,
        gpu_instance: process.gpu_instance.map(|id| id.to_string()).unwrap_or_default().into(),
        pid: process.pid.to_string().into(),
        process: identified.map(|known| Arc::clone(&known.name)).unwrap_or_default(),
        workload: identified.map(|known| Arc::clone(&known.holder.id.0)).unwrap_or_default(),
        tenant: identified.map(|known| tenant(&known.holder)).unwrap_or_default(),
    };
    let memory = process.memory.map_or(Err(Absence::NotSupported), |bytes| Ok(whole(bytes.0)));
    let sm_utilization = sample.map_or(Err(Absence::NotYet), |percent| Ok(i64::from(percent) * 10_000_000));
    (entry, ProcessState { memory, sm_utilization })
}

fn other_row(gpu: usize, memory: u64) -> (ProcessEntry, ProcessState) {
    let none: Arc<str> = "".into();
    let entry = ProcessEntry {
        gpu,
        gpu_instance: Arc::clone(&none),
        pid: "other".into(),
        process: Arc::clone(&none),
        workload: Arc::clone(&none),
        tenant: none,
    };
    (entry, ProcessState { memory: Ok(whole(memory)), sm_utilization: Err(Absence::NotYet) })
}

/// Who a holder is: as it was identified, else as the operator's grant names it.
fn holder(id: &HolderId, identities: &Identities) -> Holder {
    identities.holder(id).map(|holder| (**holder).clone()).unwrap_or_else(|| {
        match id.as_str().split_once(':') {
            Some(("unit", unit)) => Holder::unit(unit, None, None),
            Some(("user", user)) => Holder::user(user, None),
            _ => Holder { id: id.clone(), kind: HolderKind::Remainder, facts: Facts::default() },
        }
    })
}

fn holdings(
    gpus: &[&Gpu],
    identities: &Identities,
    purse: &mut Purse<'_>,
    level: Level,
) -> (Vec<HoldingEntry>, Vec<HoldingState>) {
    let entries = gpus.iter().enumerate().flat_map(|(gpu, state)| {
        state.account.holdings().iter().map(move |holding| {
            let entry = HoldingEntry {
                gpu,
                workload: Arc::clone(&holding.holder.0),
                tenant: tenant(&holder(&holding.holder, identities)),
                source: holding.source,
            };
            (entry, HoldingState { fraction: holding.fraction })
        })
    });
    purse.first(entries.collect(), &of_holding(level, HoldingValue::Ratio)).into_iter().unzip()
}

/// Everybody who holds or has a process on a GPU that answers.
fn workloads(gpus: &[&Gpu], identities: &Identities, holdings: &[HoldingEntry]) -> Vec<WorkloadEntry> {
    let pids: BTreeSet<u32> = gpus
        .iter()
        .filter_map(|gpu| gpu.frame.as_deref())
        .flat_map(|frame| frame.processes.iter().flat_map(|list| list.iter()))
        .map(|process| process.pid)
        .collect();
    let users = pids.iter().filter_map(|pid| identities.get(*pid)).map(|known| (*known.holder).clone());
    let holders = holdings.iter().map(|entry| holder(&HolderId(Arc::clone(&entry.workload)), identities));
    let all: BTreeMap<_, _> = holders.chain(users).map(|holder| (holder.id.clone(), holder)).collect();
    all.into_values()
        .map(|holder| WorkloadEntry {
            tenant: tenant(&holder),
            kind: holder.kind.name(),
            unit: holder.facts.unit.unwrap_or_default(),
            user: holder.facts.user.unwrap_or_default(),
            workload: holder.id.0,
        })
        .collect()
}
