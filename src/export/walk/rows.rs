//! How each kind of rows becomes series: which entries of the roster, with which labels, and where the value
//! of each stands in the snapshot.

use std::ops::Range;

use super::{Labels, MOST_LABELS, Sample, Sink, Value};
use crate::catalogue::xid::{self, Action};
use crate::catalogue::{
    AccountPoint, Family, HoldingValue, IdentityValue, InstancePoint, PROCESS_LABELS, Point, ProcessPoint,
    Rows, XidValue,
};
use crate::model::snapshot::{AgentNumber, GpuEntry, GpuState, InstanceEntry, PriceEntry, Snapshot};
use crate::model::{Fraction, HealthState, HolderId, PodLabel, Reading, UnattributedReason, Unit, Utc};

/// Label names and values that the catalogue writes.
type Pairs = &'static [(&'static str, &'static str)];

/// One family of one snapshot on its way into a sink.
pub(super) struct FamilyWalk<'a, S> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) family: &'static Family,
    pub(super) sink: &'a mut S,
}

impl<'a, S: Sink> FamilyWalk<'a, S> {
    /// Visits the family's series; `own` are the numbers of its values where it is numbered.
    pub(super) fn rows(&mut self, own: Range<usize>) {
        match &self.family.rows {
            Rows::Device(points) => self.device(own.start, points, |_| true),
            Rows::State(points) => self.device(own.start, points, |value| value == 1),
            Rows::Integral(integrals) => {
                self.integral(own.start, integrals.iter().map(|integral| integral.labels));
            }
            Rows::Flow(points) => self.integral(own.start, points.iter().map(|point| point.labels)),
            Rows::Identity(value) => self.identity(*value),
            Rows::Xid(value) => self.xid(*value),
            Rows::Instance(points) => self.instance(points),
            Rows::InstanceIntegral(points) => self.instance_integral(points),
            Rows::Process(points) => self.process(points),
            Rows::Account(points) => self.account(points),
            Rows::WorkloadAccount(points) => self.workload_account(points),
            Rows::Slot => self.slots(),
            Rows::Unattributed => self.unattributed(),
            Rows::Holding(HoldingValue::Ratio) => self.holding(),
            Rows::Holding(HoldingValue::WorkloadInfo) => self.workload(),
            Rows::Holding(HoldingValue::CostPerHour) => self.cost(),
            Rows::Agent => self.agent(own),
        }
    }

    /// Every point is visited; values that are not shown are none.
    fn device(&mut self, first: usize, points: &'static [Point], is_shown: impl Fn(i64) -> bool) {
        let tier = self.family.tier;
        for (gpu, state) in gpus(self.snapshot) {
            for (number, point) in (first..).zip(points) {
                let value = state.and_then(|state| state.reading(number, tier).ok());
                let value = value.filter(|value| is_shown(*value));
                self.labelled(gpu, point.labels, value);
            }
        }
    }

    fn integral(&mut self, first: usize, labels: impl Iterator<Item = Pairs> + Clone) {
        for (gpu, state) in gpus(self.snapshot) {
            for (place, labels) in (first..).zip(labels.clone()) {
                let value = state.and_then(|state| state.integrals.get(place)).and_then(|value| value.ok());
                self.labelled(gpu, labels, value);
            }
        }
    }

    /// A series of a GPU with labels of its own.
    fn labelled(&mut self, gpu: &GpuEntry, labels: Pairs, value: Option<i64>) {
        let mut values = [""; MOST_LABELS];
        values[0] = &gpu.index;
        values[1] = &gpu.id.uuid;
        let count = fill(&mut values, 2, labels.iter().map(|label| label.1));
        self.visit(&values[..count], value.map(i128::from));
    }

    fn identity(&mut self, value: IdentityValue) {
        match value {
            IdentityValue::Info => self.info(),
            IdentityValue::PlatformInfo => self.platform(),
            IdentityValue::FabricInfo => self.fabric(),
            IdentityValue::Present => self.per_gpu(|_, state| Some(i128::from(state?.present))),
            IdentityValue::Absence => self.absence(),
            IdentityValue::Up => self.per_gpu(|_, state| Some(i128::from(state?.is_up()))),
            IdentityValue::Busy => self.per_gpu(|_, state| number(state?.busy)),
            IdentityValue::Unsupported => self.unsupported(),
            IdentityValue::MigInfo => self.mig_info(),
            IdentityValue::Health => self.health(),
        }
    }

    fn info(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            let identity = &*gpu.identity;
            let mig = if identity.mig { "true" } else { "false" };
            let labels: [&str; 13] = [
                &gpu.index,
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
                mig,
            ];
            self.visit(&labels, Some(1));
        }
    }

    fn absence(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            if let Some(reason) = gpu.absence {
                self.visit(&[&gpu.index, &gpu.id.uuid, reason], Some(1));
            }
        }
    }

    fn platform(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            let Some(place) = &gpu.identity.platform else { continue };
            let labels: [&str; 7] = [
                &gpu.index,
                &gpu.id.uuid,
                &place.chassis_serial,
                &place.slot,
                &place.tray,
                &place.host_id,
                &place.module_id,
            ];
            self.visit(&labels, Some(1));
        }
    }

    fn fabric(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            let Some(place) = &gpu.identity.fabric else { continue };
            self.visit(&[&gpu.index, &gpu.id.uuid, &place.cluster_uuid, &place.clique], Some(1));
        }
    }

    fn unsupported(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            for (family, absence) in &gpu.unsupported {
                self.visit(&[&gpu.index, &gpu.id.uuid, family, absence.reason()], Some(1));
            }
        }
    }

    /// Every state is visited; all but the one that the GPU is in have no value.
    fn health(&mut self) {
        for (gpu, state) in gpus(self.snapshot) {
            for possible in HealthState::ALL {
                let is_so = state.is_some_and(|state| state.health.state == possible);
                self.visit(&[&gpu.index, &gpu.id.uuid, possible.name()], is_so.then_some(1));
            }
        }
    }

    fn mig_info(&mut self) {
        for gpu in &self.snapshot.roster.gpus {
            for instance in &gpu.instances {
                let labels: [&str; 7] = [
                    &gpu.index,
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

    fn xid(&mut self, value: XidValue) {
        if value == XidValue::ActionErrors {
            return self.xid_actions();
        }
        for (gpu, state) in gpus(self.snapshot) {
            for (position, (code, text)) in gpu.xids.iter().enumerate() {
                let seen = state.and_then(|state| state.xids.get(position));
                let (class, action) = xid::meaning(*code);
                let labels: [&str; 5] = [&gpu.index, &gpu.id.uuid, text, class.name(), action.name()];
                match value {
                    XidValue::Errors => {
                        let since = state.and_then(|state| state.xids_since);
                        self.visit_since(since, &labels[..3], seen.map(|seen| i128::from(seen.0)));
                    }
                    XidValue::LastTimestamp => {
                        self.visit(&labels[..3], seen.map(|seen| i128::from(seen.1.0)))
                    }
                    XidValue::Info | XidValue::ActionErrors => self.visit(&labels, Some(1)),
                }
            }
        }
    }

    fn xid_actions(&mut self) {
        for (gpu, state) in gpus(self.snapshot) {
            for (position, action) in Action::ALL.iter().enumerate() {
                let count = state.and_then(|state| state.xid_actions.get(position));
                let labels = [&*gpu.index, &gpu.id.uuid, action.name()];
                let since = state.and_then(|state| state.xids_since);
                self.visit_since(since, &labels, count.map(|count| i128::from(*count)));
            }
        }
    }

    fn instance(&mut self, points: &[InstancePoint]) {
        let tier = self.family.tier;
        for (gpu, state) in gpus(self.snapshot) {
            let frame =
                state.filter(|state| state.fresh[tier as usize]).and_then(|state| state.frame.as_deref());
            for instance in gpu_instances(gpu) {
                // The frame may be of an older shape than the roster: only the ids tell which is which.
                let readings = frame.and_then(|frame| {
                    let id = instance.identity.id.gpu_instance;
                    frame.instances.iter().find(|other| other.identity.id.gpu_instance == id)
                });
                for point in points {
                    let reading =
                        readings.and_then(|frame| number(*frame.readings.get(point.value as usize)?));
                    self.of_instance(None, (gpu, instance), point.labels, reading);
                }
            }
        }
    }

    fn instance_integral(&mut self, points: &[InstancePoint]) {
        for (gpu, state) in gpus(self.snapshot) {
            for instance in gpu_instances(gpu) {
                let kept = state.and_then(|state| state.instances.get(&instance.identity.id.gpu_instance));
                let since = kept.and_then(|kept| kept.since);
                for point in points {
                    let value = kept.and_then(|kept| number(*kept.values.get(point.value as usize)?));
                    self.of_instance(since, (gpu, instance), point.labels, value);
                }
            }
        }
    }

    /// A series of a MIG instance with labels of its own.
    fn of_instance(
        &mut self,
        since: Option<Utc>,
        (gpu, instance): (&GpuEntry, &InstanceEntry),
        labels: Pairs,
        value: Option<i128>,
    ) {
        let mut values = [""; MOST_LABELS];
        values[..3].copy_from_slice(&[&gpu.index, &gpu.id.uuid, &instance.gpu_instance]);
        let count = fill(&mut values, 3, labels.iter().map(|label| label.1));
        self.visit_since(since, &values[..count], value);
    }

    fn process(&mut self, points: &[ProcessPoint]) {
        let roster = &self.snapshot.roster;
        for (position, process) in roster.processes.iter().enumerate() {
            let Some(gpu) = roster.gpus.get(process.gpu) else { continue };
            let state = self.snapshot.processes.get(position);
            let whose: [&str; PROCESS_LABELS] = [
                &gpu.index,
                &gpu.id.uuid,
                &process.gpu_instance,
                &process.pid,
                &process.process,
                &process.workload,
                &process.tenant,
            ];
            for point in points {
                let reading = state.and_then(|state| number(state.values[point.value as usize]));
                let mut labels = [""; MOST_LABELS];
                labels[..PROCESS_LABELS].copy_from_slice(&whose);
                let count = fill(&mut labels, PROCESS_LABELS, point.labels.iter().map(|label| label.1));
                self.visit(&labels[..count], reading);
            }
        }
    }

    fn account(&mut self, points: &[AccountPoint]) {
        let roster = &self.snapshot.roster;
        let Some(price) = self.price_labels() else { return };
        for (position, account) in roster.accounts.iter().enumerate() {
            let Some(gpu) = roster.gpus.get(account.gpu) else { continue };
            let state = self.snapshot.accounts.get(position);
            // What is taken together begins with the agent, each tenant's own account with the ledger.
            let start = (&*account.tenant == HolderId::OTHER).then_some(self.snapshot.started);
            for point in points {
                let value = state.and_then(|state| state.values[point.value as usize]);
                let mut labels = [""; MOST_LABELS];
                let slot: [&str; 4] = [&account.tenant, &gpu.index, &gpu.id.uuid, &account.gpu_instance];
                labels[..4].copy_from_slice(&slot);
                let own = fill(&mut labels, 4, point.labels.iter().map(|label| label.1));
                let count = fill(&mut labels, own, price.into_iter().flatten());
                self.visit_slot(start, &labels[..count], value);
            }
        }
    }

    fn workload_account(&mut self, points: &[AccountPoint]) {
        let roster = &self.snapshot.roster;
        for (position, account) in roster.workload_accounts.iter().enumerate() {
            let Some(gpu) = roster.gpus.get(account.gpu) else { continue };
            let state = self.snapshot.workload_accounts.get(position);
            for point in points {
                let value = state.and_then(|state| state.values[point.value as usize]);
                let mut labels = [""; MOST_LABELS];
                let slot: [&str; 4] = [&account.workload, &gpu.index, &gpu.id.uuid, &account.gpu_instance];
                labels[..4].copy_from_slice(&slot);
                let count = fill(&mut labels, 4, point.labels.iter().map(|label| label.1));
                self.visit_slot(None, &labels[..count], value);
            }
        }
    }

    /// Every reason is visited; those that never applied have no value.
    fn unattributed(&mut self) {
        for (position, gpu) in self.snapshot.roster.gpus.iter().enumerate() {
            let values = self.snapshot.unattributed.get(position).copied().unwrap_or_default();
            for (reason, value) in UnattributedReason::ALL.iter().zip(values) {
                self.visit(&[&gpu.index, &gpu.id.uuid, reason.name()], value.map(i128::from));
            }
        }
    }

    fn holding(&mut self) {
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
            self.visit_slot(None, &labels, share);
        }
    }

    fn workload(&mut self) {
        for entry in self.snapshot.roster.workloads.iter() {
            let mut names = [""; MOST_LABELS + PodLabel::MOST];
            let mut values = [""; MOST_LABELS + PodLabel::MOST];
            let facts = entry.facts.iter().map(|(fact, text)| (fact.label(), text));
            let promoted = entry.facts.pod_labels().iter().map(PodLabel::name_and_value);
            let labels = [("workload", &*entry.workload), ("kind", entry.kind), ("tenant", &*entry.tenant)];
            let mut count = 0;
            for ((name, value), at) in labels.into_iter().chain(facts).chain(promoted).zip(0..names.len()) {
                (names[at], values[at]) = (name, value);
                count = at + 1;
            }
            let labels = Labels { names: &names[..count], values: &values[..count] };
            self.sink.sample(Sample { labels, value: Some(Value::Number(1)), start: None });
        }
    }

    fn cost(&mut self) {
        let roster = &self.snapshot.roster;
        let Some(price) = &roster.price else { return };
        for gpu in &roster.gpus {
            let labels: [&str; 4] = [&gpu.index, &gpu.id.uuid, &price.currency, &price.class];
            self.visit(&labels, Some(price.nano_per_gpu_hour));
        }
    }

    fn agent(&mut self, own: Range<usize>) {
        let snapshot = self.snapshot;
        for position in own {
            let Some(entry) = snapshot.roster.agent.get(position) else { continue };
            let value = snapshot.agent.get(position).map(|number| match number {
                AgentNumber::Integer(number) => Value::Number(i128::from(*number)),
                AgentNumber::Histogram(histogram) => Value::Histogram(histogram),
            });
            let mut values = [""; MOST_LABELS];
            let count = fill(&mut values, 0, entry.labels.iter().map(|label| &*label.1));
            let labels = Labels { names: self.family.labels, values: &values[..count] };
            debug_assert!(entry.labels.iter().map(|label| label.0).eq(labels.names.iter().copied()));
            self.sink.sample(Sample { labels, value, start: None });
        }
    }

    /// One series per GPU, labelled by it alone.
    fn per_gpu(&mut self, value: impl Fn(&GpuEntry, Option<&GpuState>) -> Option<i128>) {
        for (gpu, state) in gpus(self.snapshot) {
            self.visit(&[&gpu.index, &gpu.id.uuid], value(gpu, state));
        }
    }

    /// The labels that money adds; `None` withholds the family, as without a price there is no money.
    fn price_labels(&self) -> Option<Option<[&'a str; 2]>> {
        if self.family.unit != Unit::Money {
            return Some(None);
        }
        let snapshot: &'a Snapshot = self.snapshot;
        let PriceEntry { currency, class, .. } = snapshot.roster.price.as_ref()?;
        Some(Some([currency, class]))
    }

    fn visit(&mut self, values: &[&str], value: Option<i128>) {
        self.visit_since(None, values, value);
    }

    /// Slot time: of each GPU instance, and without that label of the rest, which is all of a whole GPU.
    fn slots(&mut self) {
        for (gpu, state) in gpus(self.snapshot) {
            let rest = state.and_then(|state| number(state.slot));
            self.visit_slot(None, &[&gpu.index, &gpu.id.uuid, ""], rest);
            for (gpu_instance, time) in state.into_iter().flat_map(|state| &*state.instance_slots) {
                self.visit_slot(None, &[&gpu.index, &gpu.id.uuid, gpu_instance], Some(i128::from(*time)));
            }
        }
    }

    /// A series of a slot: the label `gpu_instance` is left out where it is empty.
    fn visit_slot(&mut self, start: Option<Utc>, values: &[&str], value: Option<i128>) {
        let family = self.family.labels;
        let place = family.iter().position(|name| *name == "gpu_instance");
        let Some(place) = place.filter(|place| values.get(*place).is_some_and(|id| id.is_empty())) else {
            return self.visit_since(start, values, value);
        };
        debug_assert_eq!(values.len(), family.len(), "{}", self.family.name);
        let mut names = [""; MOST_LABELS];
        let mut others = [""; MOST_LABELS];
        let count = values.len() - 1;
        names[..place].copy_from_slice(&family[..place]);
        names[place..count].copy_from_slice(&family[place + 1..]);
        others[..place].copy_from_slice(&values[..place]);
        others[place..count].copy_from_slice(&values[place + 1..]);
        let labels = Labels { names: &names[..count], values: &others[..count] };
        self.sink.sample(Sample { labels, value: value.map(Value::Number), start });
    }

    fn visit_since(&mut self, start: Option<Utc>, values: &[&str], value: Option<i128>) {
        debug_assert_eq!(values.len(), self.family.labels.len(), "{}", self.family.name);
        let labels = Labels { names: self.family.labels, values };
        self.sink.sample(Sample { labels, value: value.map(Value::Number), start });
    }
}

fn gpus(snapshot: &Snapshot) -> impl Iterator<Item = (&GpuEntry, Option<&GpuState>)> {
    snapshot.roster.gpus.iter().enumerate().map(|(position, gpu)| (gpu, snapshot.gpus.get(position)))
}

/// The GPU instances on the roster: it lists compute instances, by id; the first of each stands for all.
fn gpu_instances(gpu: &GpuEntry) -> impl Iterator<Item = &InstanceEntry> {
    gpu.instances
        .chunk_by(|one, next| one.gpu_instance == next.gpu_instance)
        .filter_map(|instances| instances.first())
}

fn number(reading: Reading) -> Option<i128> {
    reading.ok().map(i128::from)
}

/// Puts texts into the slots from `first` on; how many slots are then used.
fn fill<'a>(slots: &mut [&'a str; MOST_LABELS], first: usize, texts: impl Iterator<Item = &'a str>) -> usize {
    let mut used = first;
    for (slot, text) in slots[first..].iter_mut().zip(texts) {
        *slot = text;
        used += 1;
    }
    used
}

/// The share in billionths, rounded half up.
fn billionths(fraction: Fraction) -> Option<i128> {
    let (part, whole) = (i128::from(fraction.numerator), i128::from(fraction.denominator));
    (part * 1_000_000_000 + whole / 2).checked_div(whole)
}
