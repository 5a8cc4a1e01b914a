//! Step 5 of a tick: builds the snapshot that is published.
//!
//! Labels go into a roster, values into vectors parallel to it. The roster stays the same `Arc` while it does not change,
//! so that encoders keep what they rendered of it.

use std::sync::Arc;

use super::budget::{DroppedSeries, SeriesBudget, own_series};
use super::integrate::shown_activity;
use super::numbers::whole;
use super::published_accounts::{AccountPublisher, AccountSources, instance_label};
use super::published_month::PublishedMonth;
use super::roster::RosterEntries;
use super::support::sources;
use super::unused::unused_entries;
use super::{Inputs, Meter, Policy, Services, TrackedGpu};
use crate::accounting::batches::SlotTotal;
use crate::accounting::billing::{Month, PricedSlot, RateKind, RateSchedule};
use crate::model::catalogue::{AgentFamily, Level};
use crate::model::frame::Tier;
use crate::model::snapshot::{AgentNumber, GpuEntry, GpuState, InstanceEntry, Roster, SeenXid, Snapshot};
use crate::model::{Absence, Attachment, CallInFlight, GpuIdentity, Nanoseconds, Price, Stamp, Utc};

/// A holding that is first seen within this time after the agent's start may be older: resolvers need a first round.
const FIRST_LOOK: Nanoseconds = Nanoseconds::from_seconds(60);

#[derive(Default)]
pub(super) struct Publisher {
    sequence: u64,
    roster: Arc<Roster>,
    entries: RosterEntries,
    pub(super) accounts: AccountPublisher,
    month: PublishedMonth,
    dropped: DroppedSeries,
}

impl Publisher {
    fn build_snapshot(&mut self, meter: &Meter, now: Stamp, inputs: &Inputs) -> Snapshot {
        let policy = &*meter.policy;
        let at = meter.timeline.at(now.boottime);
        let gpus = meter.published_gpus();
        let states: Vec<GpuState> = gpus.iter().map(|gpu| meter.gpu_state(gpu, now, inputs)).collect();
        let prices = self.update_prices(meter, &gpus, at);
        let (agent_entries, agent) = self.agent_numbers(meter, now, inputs, &gpus, &states).sorted();
        let own = gpus.iter().zip(&states).map(|(gpu, state)| own_series(gpu, state, policy.level));
        let left = policy.series.saturating_sub(own.chain(agent.iter().map(series)).sum());
        let mut budget = SeriesBudget { level: policy.level, dropped: &mut self.dropped, left };
        let sources = AccountSources { committed: &meter.accounts, policy, at, gpus: &gpus, prices: &prices };
        let accounts = self.accounts.update(sources, &mut budget);
        let month = self.month.update(meter.rule_schedule(), meter.accounts.month.as_ref(), &mut budget);
        self.entries.set_holders(&inputs.identities, &policy.allocations, meter.tenant_rules(at));
        let unused = unused_entries(&gpus, &mut budget);
        let (holding_entries, holdings) = self.entries.holdings(&gpus, meter.first_seen(now), &mut budget);
        let mut lists = self.entries.list_processes(&gpus);
        let workloads = self.entries.workloads(&lists, &holding_entries, &mut budget);
        let down = lists.iter_mut().zip(&states).filter(|(_, state)| !state.is_up());
        down.for_each(|(list, _)| list.clear());
        let processes_listed = policy.level == Level::Full || policy.dcgm || inputs.wants_processes;
        let listed = || self.entries.processes(&gpus, lists, policy.processes, &mut budget);
        let (process_entries, processes) = processes_listed.then(listed).unwrap_or_default();
        let roster = Roster {
            gpus: gpus.iter().map(|gpu| gpu.entry()).collect(),
            processes: process_entries,
            accounts: Arc::clone(&accounts.tenants.entries),
            workload_accounts: Arc::clone(&accounts.workloads.entries),
            holdings: holding_entries,
            unused,
            workloads,
            prices,
            month_costs: month.entries,
            budgets: month.budgets,
            agent: agent_entries,
        };
        if *self.roster != roster {
            self.roster = Arc::new(roster);
        }
        Snapshot {
            sequence: self.sequence,
            at: now,
            roster: Arc::clone(&self.roster),
            started: meter.started.utc,
            ledger_started: meter.ledger,
            gpus: states,
            how_held: policy.how_held,
            last_hour: meter.last_hour.sum(),
            conflicts: meter.list_conflicts(&gpus),
            sxids: meter.sxids.list(),
            processes_listed,
            processes,
            accounts: Arc::clone(&accounts.tenants.states),
            workload_accounts: Arc::clone(&accounts.workloads.states),
            unattributed: Arc::clone(&accounts.unattributed),
            holdings,
            month_costs: month.costs,
            agent,
        }
    }

    /// The price in force of each GPU. Where one has changed, or the GPUs have, accounts are built again.
    fn update_prices(&mut self, meter: &Meter, gpus: &[&TrackedGpu], at: Utc) -> Arc<[Option<Price>]> {
        let prices: Arc<[Option<Price>]> = gpus.iter().map(|gpu| gpu.price(meter.rates(), at)).collect();
        let known = self.roster.gpus.iter().map(|gpu| &gpu.id);
        if prices != self.roster.prices || !known.eq(gpus.iter().map(|gpu| &gpu.id)) {
            self.accounts.invalidate();
        }
        prices
    }

    fn agent_numbers(
        &self,
        meter: &Meter,
        now: Stamp,
        inputs: &Inputs,
        gpus: &[&TrackedGpu],
        states: &[GpuState],
    ) -> Services {
        let mut numbers = inputs.services.clone();
        meter.counters.add_to(&mut numbers);
        meter.sxids.add_to(&mut numbers);
        for tier in Tier::ALL {
            let interval = meter.policy.intervals[tier as usize].0;
            numbers.add(AgentFamily::SamplingInterval, vec![("tier", tier.name().into())], interval);
        }
        numbers.set(AgentFamily::ClockAnchored, (!inputs.awaits_clock).into());
        if !inputs.awaits_clock {
            numbers.set_signed(AgentFamily::ClockStep, meter.timeline.lead(now));
        }
        let imbalance = i64::try_from(meter.accounts.imbalance).unwrap_or(i64::MAX);
        numbers.set_signed(AgentFamily::LedgerImbalance, imbalance);
        if let Some(bytes) = meter.accounts.bytes {
            numbers.set(AgentFamily::LedgerBytes, bytes);
        }
        if let Some(count) = meter.unmatched_grants() {
            numbers.set(AgentFamily::StandingUnmatched, count as u64);
        }
        if meter.rates().is_configured() {
            let at = meter.timeline.at(now.boottime);
            let is_any_missing = gpus.iter().any(|gpu| gpu.price(meter.rates(), at).is_none());
            numbers.set(AgentFamily::PriceMissing, is_any_missing.into());
        }
        if let Some(Month { name, begin, end }) = meter.accounts.month.as_ref().map(|costs| &costs.month) {
            let labels = || vec![("month", Arc::clone(name))];
            numbers.add(AgentFamily::BillingPeriodStart, labels(), begin.0);
            numbers.add(AgentFamily::BillingPeriodEnd, labels(), end.0);
        }
        for (family, count) in &self.dropped {
            numbers.add(AgentFamily::SeriesDropped, vec![("family", (*family).into())], *count);
        }
        for (collector, count) in meter.unplaced.given_up() {
            let labels = vec![("collector", collector.into()), ("reason", "unknown_gpu".into())];
            numbers.add(AgentFamily::CollectorErrors, labels, count);
        }
        for (gpu, state) in gpus.iter().zip(states) {
            let conflicts = meter.count_conflicts(gpu);
            if conflicts > 0 {
                let labels = vec![("gpu", Arc::clone(&gpu.labels.index)), ("uuid", Arc::clone(&gpu.id.uuid))];
                numbers.add(AgentFamily::HoldingConflicts, labels, conflicts as u64);
            }
            gpu.add_numbers(state, &meter.policy, &mut numbers);
        }
        numbers
    }
}

impl Meter {
    /// Step 5: the snapshot of the tick.
    pub(super) fn publish(&mut self, now: Stamp, inputs: &Inputs) -> Arc<Snapshot> {
        if self.policy.dcgm {
            self.gpus.values_mut().for_each(|gpu| gpu.update_dcgm(now.boottime));
        }
        // The publisher is taken out, since it borrows the rest of the meter.
        let mut publisher = std::mem::take(&mut self.publisher);
        publisher.sequence += 1;
        let snapshot = publisher.build_snapshot(self, now, inputs);
        self.publisher = publisher;
        Arc::new(snapshot)
    }

    /// When a holding that is new and without a recorded begin was first seen.
    fn first_seen(&self, now: Stamp) -> Utc {
        let is_first_look = now.since(self.started) < FIRST_LOOK;
        if is_first_look { self.started.utc } else { now.utc }
    }

    fn gpu_state(&self, gpu: &TrackedGpu, now: Stamp, inputs: &Inputs) -> GpuState {
        let uuid = &gpu.id.uuid;
        let state = gpu.state(now, &self.policy, self.accounts.slots.get(uuid), inputs.in_flight.get(uuid));
        GpuState { dcgm: self.policy.dcgm.then(|| gpu.dcgm_state(self.started.utc)), ..state }
    }

    /// The GPUs of a snapshot, by index and UUID.
    fn published_gpus(&self) -> Vec<&TrackedGpu> {
        let expected = self.gpus.values().filter(|gpu| gpu.location.attachment != Attachment::Forgotten);
        let mut gpus: Vec<&TrackedGpu> = expected.collect();
        gpus.sort_by(|left, right| left.id.cmp(&right.id));
        gpus
    }
}

impl TrackedGpu {
    pub(super) fn model(&self) -> Option<&Arc<str>> {
        self.frame.as_ref().map(|frame| &frame.identity.model)
    }

    fn price(&self, rates: &RateSchedule, at: Utc) -> Option<Price> {
        let model = self.model().map_or("", |model| model);
        let slot = PricedSlot { uuid: &self.id.uuid, model, profile: None };
        rates.rate(RateKind::GpuHour, slot, at).map(|rate| rate.entry.price())
    }

    fn state(
        &self,
        now: Stamp,
        policy: &Policy,
        slots: Option<&SlotTotal>,
        in_flight: Option<&CallInFlight>,
    ) -> GpuState {
        let late = in_flight.and_then(|call| {
            let lasting = now.boottime.0.saturating_sub(call.since.0);
            let interval = policy.intervals[Tier::Fast as usize];
            (lasting > interval.0).then_some((call.function, Nanoseconds(lasting)))
        });
        let instances = || slots.into_iter().flat_map(|slots| &slots.instances);
        let slot =
            slots.map(|slots| instances().fold(slots.slot.0, |rest, (_, time)| rest.saturating_sub(time.0)));
        let slot = slot.ok_or(Absence::NotYet);
        let xids = &self.xids.published;
        let (frame, layout) = (self.frame.as_deref(), self.account.slots.layout());
        GpuState {
            present: self.location.is_there(),
            frame: self.frame.clone(),
            fresh: self.fresh(now, policy),
            integrals: self.integrals.clone(),
            instances: self.instances.clone(),
            busy: self.busy,
            activity: frame
                .map_or(Err(Absence::NotYet), |frame| shown_activity(frame, layout.map(|layout| &**layout))),
            layout: layout.map(Arc::clone),
            slot: slot.and_then(|slot| i64::try_from(slot).map_err(|_| Absence::Rejected)),
            instance_slots: instances()
                .map(|(id, time)| (instance_label(Some(*id)), whole(time.0)))
                .collect(),
            in_flight: late,
            xids: xids
                .codes
                .values()
                .map(|sum| SeenXid { count: sum.count, last: sum.last, gpu_instance: sum.gpu_instance })
                .collect(),
            xid_actions: self.xids.actions(),
            xids_since: xids.since,
            health: Arc::clone(&self.health.verdict),
            memory_left_since: self.left_memory.since(),
            dcgm: None,
        }
    }

    fn entry(&self) -> GpuEntry {
        let frame = self.frame.as_deref();
        let instances = frame.into_iter().flat_map(|frame| &*frame.instances);
        GpuEntry {
            id: self.id.clone(),
            index: Arc::clone(&self.labels.index),
            identity: frame
                .map_or_else(|| Arc::new(GpuIdentity::default()), |frame| Arc::clone(&frame.identity)),
            instances: instances
                .map(|instance| InstanceEntry {
                    identity: instance.identity.clone(),
                    gpu_instance: instance.identity.id.gpu_instance.to_string().into(),
                    compute_instance: instance.identity.id.compute_instance.to_string().into(),
                })
                .collect(),
            unsupported: self.unsupported.clone(),
            xids: self.xids.published.codes.keys().map(|xid| (*xid, xid.to_string().into())).collect(),
            absence: self.location.absence(),
            activity_source: self.account.source().map(|source| source.name()),
        }
    }

    fn add_numbers(&self, state: &GpuState, policy: &Policy, numbers: &mut Services) {
        let labels = || vec![("gpu", Arc::clone(&self.labels.index)), ("uuid", Arc::clone(&self.id.uuid))];
        let collector = || vec![("collector", Arc::clone(&self.labels.collector))];
        // The collector label has the index and no UUID, so it belongs to the GPU that has the index now.
        let has_index = self.in_session.index.is_some();
        if has_index {
            numbers.add(AgentFamily::CollectorSuccess, collector(), state.is_up().into());
        }
        if let Some(frame) = &self.frame {
            if has_index {
                let took = frame.ended.since(frame.begun);
                numbers.add(AgentFamily::CollectorDuration, collector(), took.0);
            }
            numbers.add(AgentFamily::LastSampleTimestamp, labels(), frame.ended.utc.0);
            for tier in Tier::ALL.into_iter().filter(|tier| frame.stretch.most_of(*tier) > 1) {
                let interval = policy.intervals[tier as usize].0 * u64::from(frame.stretch.most_of(tier));
                let labels = [vec![("tier", tier.name().into())], labels()].concat();
                numbers.add(AgentFamily::SamplingInterval, labels, interval);
            }
        }
        if let Some((call, lasting)) = state.in_flight {
            let labels = [labels(), vec![("call", call.into())]].concat();
            numbers.add(AgentFamily::DriverCallInFlight, labels, lasting.0);
        }
        if let Some(changes) = self.account.layout_changes() {
            numbers.add(AgentFamily::MigLayoutChanges, labels(), changes);
        }
        for (metric, source) in sources(self, policy.level) {
            let (index, uuid) = (Arc::clone(&self.labels.index), Arc::clone(&self.id.uuid));
            let labels = vec![("gpu", index), ("uuid", uuid), ("metric", metric), ("source", source)];
            numbers.add(AgentFamily::SourceInfo, labels, 1);
        }
    }
}

fn series(number: &AgentNumber) -> usize {
    match number {
        AgentNumber::Integer(_) => 1,
        // One per bound, the infinite bucket, count and sum.
        AgentNumber::Histogram(histogram) => histogram.bounds.len() + 3,
    }
}
