//! The last step of a tick: builds the snapshot that is published.
//!
//! Labels go into a roster, values into vectors beside it. A roster equal to the last one is the last one,
//! so that encoders keep what they rendered of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::numbers::AgentSeries;
use super::shown::instance_label;
use super::sources::sources;
use super::{Meter, Services, TrackedGpu};
use crate::catalogue::{AgentFamily, Level};
use crate::holders::Identities;
use crate::model::frame::Tier;
use crate::model::snapshot::{AgentNumber, GpuEntry, GpuState, InstanceEntry, Roster, Snapshot};
use crate::model::{Absence, Attachment, Frame, GpuIdentity, Nanoseconds, Stamp};
use crate::nvml::InFlight;

impl Meter {
    pub(super) fn build_snapshot(
        &mut self,
        now: Stamp,
        identities: &Arc<Identities>,
        in_flight: &BTreeMap<Arc<str>, InFlight>,
        services: &Services,
    ) -> Arc<Snapshot> {
        let expected = self.gpus.values().filter(|gpu| gpu.location.attachment != Attachment::Forgotten);
        let mut gpus: Vec<&TrackedGpu> = expected.collect();
        gpus.sort_by(|left, right| left.id.cmp(&right.id));
        let states: Vec<GpuState> =
            gpus.iter().map(|gpu| self.state(gpu, now, in_flight.get(&gpu.id.uuid))).collect();
        let own = self.agent(now, &gpus, &states, services);
        let of_gpus: usize = gpus.iter().zip(&states).map(|(gpu, state)| gpu.series.count(gpu, state)).sum();
        let mut budget = std::mem::take(&mut self.budget);
        let mut named = std::mem::take(&mut self.named);
        named.know(identities, &self.policy.allocations);
        let mut order = std::mem::take(&mut self.order);
        let (agent_entries, agent) = order.sort(own);
        let costs = &self.costs;
        let mut series_budget =
            budget.series_budget(self.policy.series, of_gpus + agent.iter().map(series).sum::<usize>());
        let shown = self.shown.take();
        let shown = self.shown(shown, (now, &gpus), &mut series_budget);
        let (holding_entries, holdings) = named.holdings(&gpus, (&mut series_budget, costs));
        let listed = named.list(&gpus);
        let workloads = named.workloads(&listed, &holding_entries, (&mut series_budget, costs));
        let (process_entries, processes) = if self.policy.level < Level::Full {
            Default::default()
        } else {
            named.processes((&gpus, &states), listed, self.policy.processes, (&mut series_budget, costs))
        };
        let roster = Roster {
            gpus: gpus.iter().map(|gpu| entry(gpu)).collect(),
            processes: process_entries,
            accounts: Arc::clone(&shown.entries),
            workload_accounts: Arc::clone(&shown.workloads.entries),
            holdings: holding_entries,
            workloads,
            price: self.policy.price(self.timeline.at(now.boottime)).cloned(),
            agent: agent_entries,
        };
        if *self.roster != roster {
            self.roster = Arc::new(roster);
        }
        let (accounts, unattributed) = (Arc::clone(&shown.states), Arc::clone(&shown.unattributed));
        let workload_accounts = Arc::clone(&shown.workloads.states);
        (self.budget, self.named, self.order, self.shown) = (budget, named, order, Some(shown));
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
            workload_accounts,
            unattributed,
            holdings,
            agent,
        })
    }

    fn state(&self, gpu: &TrackedGpu, now: Stamp, in_flight: Option<&InFlight>) -> GpuState {
        let late = in_flight.and_then(|call| {
            let lasting = now.boottime.0.saturating_sub(call.since.0);
            let interval = self.policy.intervals[Tier::Fast as usize];
            (lasting > interval.0).then_some((call.function, Nanoseconds(lasting)))
        });
        let total = self.accounts.slots.get(&gpu.id.uuid);
        let of_instances = || total.into_iter().flat_map(|total| &total.instances);
        let slot = total
            .map(|total| of_instances().fold(total.slot.0, |rest, (_, time)| rest.saturating_sub(time.0)));
        let instance_slots = of_instances().map(|(id, time)| (instance_label(Some(*id)), whole(time.0)));
        GpuState {
            present: gpu.location.is_there(),
            frame: gpu.frame.clone(),
            fresh: gpu.fresh(now, &self.policy),
            integrals: gpu.integrals.clone(),
            instances: gpu.instances.clone(),
            busy: gpu.busy,
            slot: slot
                .map_or(Err(Absence::NotYet), |slot| i64::try_from(slot).map_err(|_| Absence::Rejected)),
            instance_slots: instance_slots.collect(),
            in_flight: late,
            xids: gpu.xids.shown().codes.values().map(|code| (code.count, code.last)).collect(),
            xid_actions: gpu.xids.actions(),
            xids_since: gpu.xids.shown().since,
            health: Arc::clone(&gpu.health.verdict),
        }
    }

    fn agent(
        &self,
        now: Stamp,
        gpus: &[&TrackedGpu],
        states: &[GpuState],
        services: &Services,
    ) -> Vec<(AgentSeries, AgentNumber)> {
        let mut own = services.clone();
        for tier in Tier::ALL {
            // The longest in force on any GPU.
            let frames = gpus.iter().filter_map(|gpu| gpu.frame.as_deref());
            let stretch = frames.map(|frame| frame.stretch.of(tier)).max().unwrap_or(1);
            let interval = self.policy.intervals[tier as usize].0 * u64::from(stretch);
            own.add(AgentFamily::SamplingInterval, vec![("tier", tier.name().into())], whole(interval));
        }
        let fixed = !self.timeline.is_provisional();
        own.add(AgentFamily::ClockAnchored, Vec::new(), fixed.into());
        if fixed {
            own.add(AgentFamily::ClockStep, Vec::new(), self.timeline.lead(now));
        }
        own.add(
            AgentFamily::LedgerImbalance,
            Vec::new(),
            i64::try_from(self.accounts.imbalance).unwrap_or(i64::MAX),
        );
        if let Some(bytes) = self.accounts.bytes {
            own.add(AgentFamily::LedgerBytes, Vec::new(), whole(bytes));
        }
        if let Some(count) = self.unmatched_grants() {
            own.add(AgentFamily::StandingUnmatched, Vec::new(), i64::try_from(count).unwrap_or(i64::MAX));
        }
        if let Some(missing) = self.policy.price_missing(self.timeline.at(now.boottime)) {
            own.add(AgentFamily::PriceMissing, Vec::new(), missing.into());
        }
        for (family, count) in self.budget.dropped() {
            own.add(AgentFamily::SeriesDropped, vec![("family", family.into())], whole(count));
        }
        for (collector, count) in self.unplaced.given_up() {
            let labels = vec![("collector", collector.into()), ("reason", "unknown_gpu".into())];
            own.add(AgentFamily::CollectorErrors, labels, whole(count));
        }
        for (gpu, state) in gpus.iter().zip(states) {
            gpu_numbers(&mut own, gpu, state, self.policy.level);
        }
        let mut series = self.counters.gather();
        series.extend(own.series.into_iter().map(|(series, value)| (series, AgentNumber::Integer(value))));
        series
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

fn gpu_numbers(own: &mut Services, gpu: &TrackedGpu, state: &GpuState, level: Level) {
    let labels = || vec![("gpu", Arc::clone(&gpu.labels.index)), ("uuid", Arc::clone(&gpu.id.uuid))];
    let with = |name, value: &str| {
        let mut labels = labels();
        labels.push((name, value.into()));
        labels
    };
    let collector = || vec![("collector", Arc::clone(&gpu.labels.collector))];
    // Without a UUID the label can only be of the GPU that has the index now.
    let has_index = gpu.in_session.index.is_some();
    if has_index {
        own.add(AgentFamily::CollectorSuccess, collector(), i64::from(state.is_up()));
    }
    if let Some(frame) = &gpu.frame {
        let took = frame.ended.since(frame.begun);
        if has_index {
            own.add(AgentFamily::CollectorDuration, collector(), whole(took.0));
        }
        own.add(AgentFamily::LastSampleTimestamp, labels(), whole(frame.ended.utc.0));
    }
    if let Some((call, lasting)) = state.in_flight {
        own.add(AgentFamily::DriverCallInFlight, with("call", call), whole(lasting.0));
    }
    if let Some(changes) = gpu.account.layout_changes() {
        own.add(AgentFamily::MigLayoutChanges, labels(), whole(changes));
    }
    for (metric, source) in sources(gpu, level) {
        let (index, uuid) = (Arc::clone(&gpu.labels.index), Arc::clone(&gpu.id.uuid));
        let labels = vec![("gpu", index), ("uuid", uuid), ("metric", metric), ("source", source)];
        own.add(AgentFamily::SourceInfo, labels, 1);
    }
}

/// As the integer of a series.
pub(super) fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn entry(gpu: &TrackedGpu) -> GpuEntry {
    let frame = gpu.frame.as_deref();
    GpuEntry {
        id: gpu.id.clone(),
        index: Arc::clone(&gpu.labels.index),
        identity: frame.map_or_else(|| Arc::new(GpuIdentity::default()), |frame| Arc::clone(&frame.identity)),
        instances: frame.map(instances).unwrap_or_default(),
        unsupported: gpu.unsupported.clone(),
        xids: gpu.xids.shown().codes.keys().map(|xid| (*xid, xid.to_string().into())).collect(),
        absence: gpu.location.absence(),
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
