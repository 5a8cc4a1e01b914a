//! The page with dcgm-exporter's names, in text 0.0.4: DCGM's counters lack `_total`, which OpenMetrics demands.
//!
//! Which series there are, and in which order, depends on the roster and the options alone, as in [`super::walk`], so heads
//! and labels are kept rendered in the same way. As in dcgm-exporter, a GPU with MIG instances has series of its instances
//! only, with the GPU's value repeated where an instance has none of its own; `corrected` gives each its own.

use std::ops::Range;
use std::sync::Arc;

use super::json::node;
use super::label_cache::LabelCache;
use super::text::{append, escape};
use crate::catalogue::{
    CLOCK_EVENTS, DcgmLabel, DcgmMetric, DcgmValues, EventPeriod, InstanceValue, ScaledValues, ValuePlace,
    WINDOW_MS, first_point, xid,
};
use crate::model::frame::InstanceFrame;
use crate::model::frame::Tier;
use crate::model::snapshot::{DcgmState, GpuEntry, GpuState, ProcessEntry, ProcessState, Roster, Snapshot};
use crate::model::{Fact, GpuIdentity};

/// What is on the page.
#[derive(Clone, Debug, Default)]
pub struct DcgmOptions {
    /// The metrics, in the order of the page.
    pub counters: Vec<DcgmCounter>,
    /// Static properties that every series has as labels.
    pub labels: Vec<(String, DcgmLabel)>,
    /// The name of the label with the node's name.
    pub host_label: &'static str,
    /// Whether a MIG GPU and its instances have each their own values.
    pub corrected: bool,
    /// Whether snapshots list processes, by which shares of pods are told apart.
    pub has_processes: bool,
}

/// A metric of the page.
#[derive(Clone, Debug)]
pub struct DcgmCounter {
    /// Its name.
    pub name: String,
    /// Its Prometheus type, as in the file of counters.
    pub kind: String,
    /// Its help.
    pub help: String,
    /// What it shows.
    pub metric: DcgmMetric,
}

/// Renders the page.
#[derive(Debug)]
pub(super) struct DcgmRenderer {
    options: Arc<DcgmOptions>,
    cache: LabelCache,
    /// What has series, for the roster of the cache.
    entities: Vec<Entity>,
    /// The name of the node on that roster.
    host: String,
}

/// A GPU or a MIG instance, with the containers that hold it.
#[derive(Debug)]
struct Entity {
    /// Position of the GPU on the roster.
    gpu: usize,
    /// Position of the instance among those of the GPU.
    instance: Option<usize>,
    /// Whether it is a GPU whose instances have series of their own.
    is_parent: bool,
    pods: Vec<PodContainer>,
}

/// A container of a pod that holds a GPU or an instance, with the positions of its processes there on the roster.
#[derive(Debug)]
struct PodContainer {
    /// Values of the labels `container`, `namespace`, `pod`.
    labels: [Arc<str>; 3],
    uid: Arc<str>,
    processes: Vec<usize>,
}

/// A value as it is printed.
#[derive(Clone, Copy)]
enum Printed {
    Integer(i128),
    /// In millionths.
    Double(i128),
}

/// The label of the `…_COUNT` metrics of events.
const WINDOW: (&str, &str) = ("window_size_in_ms", "300000");
const _: () = assert!(WINDOW_MS == 300_000);

const MEMORY_TOTAL: usize = first_point("gpu_memory_total_bytes");
const MEMORY_USED: usize = first_point("gpu_memory_used_bytes");
const MEMORY_RESERVED: usize = first_point("gpu_memory_reserved_bytes");

impl DcgmRenderer {
    pub(super) fn new(options: Arc<DcgmOptions>) -> Self {
        Self { options, cache: LabelCache::default(), entities: Vec::new(), host: String::new() }
    }

    /// Appends the snapshot's page to `page`.
    pub(super) fn render(&mut self, snapshot: &Snapshot, page: &mut Vec<u8>) {
        if !self.cache.is_of(&snapshot.roster) {
            self.entities = entities(&snapshot.roster, self.options.corrected);
            self.host = node(snapshot).get("name").copied().unwrap_or_default().to_owned();
        }
        self.cache.begin(&snapshot.roster);
        let Self { options, cache, entities, host } = self;
        let notes = cache.next_entry(|out| write_notes(out, options, &snapshot.roster));
        page.extend_from_slice(cache.entry(notes));
        for counter in &options.counters {
            let head = cache.next_entry(|out| write_head(out, counter));
            let mut writer = CounterWriter { snapshot, options, counter, host, cache, page, head };
            entities.iter().for_each(|entity| writer.entity(entity));
        }
        self.cache.finish(&snapshot.roster);
    }
}

/// Everything that has series, in the order of the page.
fn entities(roster: &Roster, corrected: bool) -> Vec<Entity> {
    let mut entities = Vec::new();
    for (gpu, entry) in roster.gpus.iter().enumerate() {
        let is_first = |position: usize| {
            let at = |position: usize| &entry.instances[position].gpu_instance;
            position == 0 || at(position) != at(position - 1)
        };
        let instances: Vec<usize> = (0..entry.instances.len()).filter(|place| is_first(*place)).collect();
        let is_parent = !instances.is_empty();
        if !is_parent || corrected {
            entities.push(Entity { gpu, instance: None, is_parent, pods: pods(roster, gpu, "") });
        }
        entities.extend(instances.into_iter().map(|instance| {
            let pods = pods(roster, gpu, &entry.instances[instance].gpu_instance);
            Entity { gpu, instance: Some(instance), is_parent: false, pods }
        }));
    }
    entities
}

/// The containers that hold a GPU or an instance, whether the kubelet responds now or not.
fn pods(roster: &Roster, gpu: usize, gpu_instance: &str) -> Vec<PodContainer> {
    let held = roster.holdings.iter().filter(|held| held.gpu == gpu && *held.gpu_instance == *gpu_instance);
    let pods = held.filter_map(|held| {
        let workload = roster.workloads.iter().find(|workload| workload.workload == held.workload)?;
        let fact = |fact| workload.facts.get(fact).map(Arc::clone).unwrap_or_default();
        workload.facts.get(Fact::Pod)?;
        let is_own = |process: &&ProcessEntry| {
            process.gpu == gpu && *process.gpu_instance == *gpu_instance && process.workload == held.workload
        };
        let places = roster.processes.iter().enumerate().filter(|(_, process)| is_own(process));
        Some(PodContainer {
            labels: [Fact::PodContainer, Fact::Namespace, Fact::Pod].map(fact),
            uid: fact(Fact::PodUid),
            processes: places.map(|(place, _)| place).collect(),
        })
    });
    pods.collect()
}

/// Says what cannot be on the page on this node.
fn write_notes(out: &mut Vec<u8>, options: &DcgmOptions, roster: &Roster) {
    let is_profiled = |counter: &&DcgmCounter| counter.name.starts_with("DCGM_FI_PROF_");
    if options.counters.iter().find(is_profiled).is_none() {
        return;
    }
    for gpu in roster.gpus.iter().filter(|gpu| !has_gpm(&gpu.identity)) {
        append(out, ["# GPU ", &gpu.index, " ("]);
        escape(out, &gpu.identity.model, false);
        append(
            out,
            [
                ") has no DCGM_FI_PROF_* without DCGM: NVML reports these values from Hopper on. DCGM_FI_DEV_GPU_UTIL is there.\n",
            ],
        );
    }
}

/// Whether the board can have GPU performance monitoring, which began with compute capability 9.0.
fn has_gpm(identity: &GpuIdentity) -> bool {
    let major = identity.compute_capability.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_none_or(|major| major >= 9)
}

fn write_head(out: &mut Vec<u8>, counter: &DcgmCounter) {
    append(out, ["# HELP ", &counter.name, " "]);
    escape(out, &counter.help, false);
    append(out, ["\n# TYPE ", &counter.name, " ", &counter.kind, "\n"]);
}

/// Writes the series of one metric.
struct CounterWriter<'a> {
    snapshot: &'a Snapshot,
    options: &'a DcgmOptions,
    counter: &'a DcgmCounter,
    host: &'a str,
    cache: &'a mut LabelCache,
    page: &'a mut Vec<u8>,
    /// The lines before the first series, until it is written: a metric without series is left out.
    head: Range<usize>,
}

impl CounterWriter<'_> {
    fn entity(&mut self, entity: &Entity) {
        let snapshot = self.snapshot;
        let gpu = snapshot.roster.gpus.get(entity.gpu);
        let (Some(gpu), Some(state)) = (gpu, snapshot.gpus.get(entity.gpu)) else { return };
        let dcgm = state.dcgm.as_ref();
        // Events are of the whole GPU.
        let is_whole = entity.instance.is_none() || !self.options.corrected;
        match &self.counter.metric {
            DcgmMetric::Values(values) => {
                let value = self.value(entity, values, gpu, state);
                match process_value(&self.counter.name) {
                    Some(place) if entity.pods.len() > 1 => self.shares(entity, place, value),
                    _ => self.series(entity, &[], value),
                }
            }
            DcgmMetric::UsedMemoryRatio => {
                let ratio = used_memory_ratio(gpu, entity.instance, state).map(Printed::Double);
                self.series(entity, &[], if entity.is_parent { None } else { ratio });
            }
            DcgmMetric::GpuCount => {
                let count = self.snapshot.gpus.iter().filter(|state| state.present).count();
                let count = i128::try_from(count).ok().filter(|_| is_whole);
                self.series(entity, &[], count.map(Printed::Integer));
            }
            DcgmMetric::LastXid if is_whole => self.last_xid(entity, gpu, dcgm),
            DcgmMetric::Xids(span) if is_whole => self.xids(entity, gpu, *span, state),
            DcgmMetric::ClockEvents(span) if is_whole => self.clock_events(entity, *span, dcgm),
            _ => {}
        }
    }

    /// The value of a GPU or an instance.
    fn value(
        &self,
        entity: &Entity,
        values: &DcgmValues,
        gpu: &GpuEntry,
        state: &GpuState,
    ) -> Option<Printed> {
        let DcgmValues { gpu: of_gpu, instance: of_instance, is_double } = values;
        let (value, scaled) = match (entity.instance, of_instance) {
            (Some(place), Some(own)) => {
                let frame = instance_frame(gpu, place, state, own.family.tier)?;
                (sum_of_instance(own, frame), own)
            }
            // DCGM measures activity by instance; everything else that an instance has none of is the GPU's.
            (Some(_), None) if self.options.corrected || self.counter.name.contains("_PROF_") => return None,
            (None, Some(_)) if entity.is_parent => return None,
            _ => {
                let own = of_gpu.as_ref()?;
                (sum_of_gpu(own, state), own)
            }
        };
        value.map(|value| print(value, scaled.scale, *is_double))
    }

    /// Writes the value of a GPU that several containers share, and what each of them has of it.
    fn shares(&mut self, entity: &Entity, place: usize, whole: Option<Printed>) {
        self.write(entity, None, &[], whole);
        for pod in &entity.pods {
            let own = pod.processes.iter().filter_map(|process| self.snapshot.processes.get(*process));
            let value = |process: &ProcessState| process.values.get(place).copied()?.ok().map(i128::from);
            let sum: i128 = own.filter_map(value).sum();
            let divisor = if place == 0 { 1 << 20 } else { 10_000_000 };
            let is_known = self.options.has_processes && whole.is_some();
            let value = is_known.then_some(Printed::Integer(sum / divisor));
            self.write(entity, Some(pod), &[("pod_uid", &pod.uid)], value);
        }
    }

    fn last_xid(&mut self, entity: &Entity, gpu: &GpuEntry, dcgm: Option<&DcgmState>) {
        let last = dcgm.map(|dcgm| dcgm.last_xid.unwrap_or(0));
        let none = (0, "0");
        let codes = gpu.xids.iter().map(|(code, text)| (*code, &**text));
        for (code, text) in std::iter::once(none).chain(codes) {
            let message = if code == 0 { "No Error" } else { xid::find(code).text };
            let value = (last == Some(code)).then_some(Printed::Integer(code.into()));
            self.series(entity, &[("err_code", text), ("err_msg", message)], value);
        }
    }

    fn xids(&mut self, entity: &Entity, gpu: &GpuEntry, span: EventPeriod, state: &GpuState) {
        let count = |place: usize| match span {
            EventPeriod::Window => state.dcgm.as_ref()?.recent_xids.get(place).copied(),
            EventPeriod::Total => state.xids.get(place).map(|(count, _)| *count),
        };
        let counts = gpu.xids.iter().enumerate().map(|(place, (_, text))| (&**text, count(place)));
        self.events(entity, span, "xid", counts);
    }

    fn clock_events(&mut self, entity: &Entity, span: EventPeriod, dcgm: Option<&DcgmState>) {
        let counts = dcgm.map(|dcgm| match span {
            EventPeriod::Window => dcgm.recent_clock_events,
            EventPeriod::Total => dcgm.clock_events,
        });
        let count = |place: usize| counts.map(|counts| counts[place]);
        let events = CLOCK_EVENTS.into_iter().enumerate().map(|(place, event)| (event, count(place)));
        self.events(entity, span, "clock_event", events);
    }

    /// Writes how often each event was there; where none was, one series without the label is 0.
    fn events<'a>(
        &mut self,
        entity: &Entity,
        span: EventPeriod,
        label: &'static str,
        counts: impl Iterator<Item = (&'a str, Option<u64>)> + Clone,
    ) {
        let begin = if span == EventPeriod::Window { 0 } else { 1 };
        let is_none = counts.clone().all(|(_, count)| count.unwrap_or(0) == 0);
        self.series(entity, &[WINDOW][begin..], is_none.then_some(Printed::Integer(0)));
        for (event, count) in counts {
            let value = count.filter(|count| *count > 0).map(|count| Printed::Integer(count.into()));
            self.series(entity, &[WINDOW, (label, event)][begin..], value);
        }
    }

    /// Writes a series for each container that holds the entity; where none does, one without their labels.
    fn series(&mut self, entity: &Entity, labels: &[(&str, &str)], value: Option<Printed>) {
        if entity.pods.is_empty() {
            self.write(entity, None, labels, value);
        }
        for pod in &entity.pods {
            self.write(entity, Some(pod), labels, value);
        }
    }

    fn write(
        &mut self,
        entity: &Entity,
        pod: Option<&PodContainer>,
        labels: &[(&str, &str)],
        value: Option<Printed>,
    ) {
        let Self { snapshot, options, counter, host, cache, page, head } = self;
        let entry = cache.next_entry(|out| {
            let Some(gpu) = snapshot.roster.gpus.get(entity.gpu) else { return };
            append(out, [&counter.name]);
            SeriesLabels { options, host, gpu, entity, pod, others: labels }.write(out);
        });
        let Some(value) = value else { return };
        page.extend_from_slice(cache.entry(std::mem::take(head)));
        page.extend_from_slice(cache.entry(entry));
        match value {
            Printed::Integer(number) => super::decimal::write(page, number, 0),
            Printed::Double(number) => super::decimal::write_fixed(page, number, 6),
        }
        page.push(b'\n');
    }
}

/// The labels of a series.
struct SeriesLabels<'a> {
    options: &'a DcgmOptions,
    host: &'a str,
    gpu: &'a GpuEntry,
    entity: &'a Entity,
    pod: Option<&'a PodContainer>,
    others: &'a [(&'a str, &'a str)],
}

impl SeriesLabels<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let Self { options, host, gpu, entity, pod, others } = self;
        let mut write = |separator: &str, name: &str, values: &[&str]| {
            append(out, [separator, name, "=\""]);
            values.iter().for_each(|value| escape(out, value, true));
            out.push(b'"');
        };
        write("{", "gpu", &[&gpu.index]);
        write(",", "UUID", &[&gpu.id.uuid]);
        write(",", "pci_bus_id", &[&gpu.identity.pci_bus_id]);
        write(",", "device", &["nvidia", &gpu.index]);
        write(",", "modelName", &[&gpu.identity.model]);
        if let Some(instance) = entity.instance.and_then(|place| gpu.instances.get(place)) {
            write(",", "GPU_I_PROFILE", &[&instance.identity.profile]);
            write(",", "GPU_I_ID", &[&instance.gpu_instance]);
        }
        if !host.is_empty() {
            write(",", options.host_label, &[host]);
        }
        for (name, label) in &options.labels {
            write(",", name, &[&property(gpu, *label)]);
        }
        for (name, value) in *others {
            write(",", name, &[value]);
        }
        let of_pod = pod.iter().flat_map(|pod| &pod.labels);
        for (name, value) in ["container", "namespace", "pod"].into_iter().zip(of_pod) {
            write(",", name, &[value]);
        }
        append(out, ["} "]);
    }
}

/// A static property of a GPU; an unknown one is empty.
fn property(gpu: &GpuEntry, label: DcgmLabel) -> Arc<str> {
    let identity = &gpu.identity;
    Arc::clone(match label {
        DcgmLabel::DriverVersion => &identity.driver_version,
        DcgmLabel::CudaVersion => return cuda_number(&identity.cuda_version).unwrap_or_default(),
        DcgmLabel::Name => &identity.model,
        DcgmLabel::Serial => &identity.serial,
        DcgmLabel::Uuid => &gpu.id.uuid,
        DcgmLabel::MinorNumber => &identity.minor_number,
        DcgmLabel::PciBusId => &identity.pci_bus_id,
        DcgmLabel::VbiosVersion => &identity.vbios_version,
    })
}

/// A version of CUDA as its API numbers it: 12040 for 12.4.
fn cuda_number(version: &str) -> Option<Arc<str>> {
    let (major, minor) = version.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some((major.checked_mul(1_000)?.checked_add(minor.checked_mul(10)?)?).to_string().into())
}

/// The sum of the values that are there; none if none is.
fn sum_of_gpu(scaled: &ScaledValues, state: &GpuState) -> Option<i128> {
    let tier = scaled.family.tier;
    let is_fresh = state.fresh[tier as usize];
    let value = |place: &ValuePlace| match place {
        ValuePlace::Reading(point) => state.reading(*point, tier).ok(),
        ValuePlace::Total(number) => state.integrals.get(*number)?.as_ref().ok().copied(),
        ValuePlace::Rate(number) => {
            state.dcgm.as_ref()?.rates.get(*number)?.as_ref().ok().copied().filter(|_| is_fresh)
        }
        ValuePlace::Instance(_) => None,
    };
    sum(scaled.places.iter().filter_map(value))
}

fn sum_of_instance(scaled: &ScaledValues, instance: &InstanceFrame) -> Option<i128> {
    let value = |place: &ValuePlace| match place {
        ValuePlace::Instance(value) => instance.readings.get(*value)?.ok(),
        _ => None,
    };
    sum(scaled.places.iter().filter_map(value))
}

fn sum(values: impl Iterator<Item = i64>) -> Option<i128> {
    values.map(i128::from).reduce(|sum, value| sum + value)
}

/// What was read of the instance at that place of the GPU's list, unless it is too old. The frame may have other
/// instances than the roster, so they are matched by id.
fn instance_frame<'a>(
    gpu: &GpuEntry,
    place: usize,
    state: &'a GpuState,
    tier: Tier,
) -> Option<&'a InstanceFrame> {
    let id = gpu.instances.get(place)?.identity.id.gpu_instance;
    let frame = state.frame.as_deref().filter(|_| state.fresh[tier as usize])?;
    frame.instances.iter().find(|instance| instance.identity.id.gpu_instance == id)
}

/// Used memory as a share of the memory that is not reserved, in millionths.
fn used_memory_ratio(gpu: &GpuEntry, instance: Option<usize>, state: &GpuState) -> Option<i128> {
    let (used, usable) = match instance {
        Some(place) => {
            let frame = instance_frame(gpu, place, state, Tier::Medium)?;
            let read = |value: InstanceValue| frame.readings.get(value as usize)?.ok();
            (read(InstanceValue::MemoryUsed)?, read(InstanceValue::MemoryTotal)?)
        }
        None => {
            let read = |point| state.reading(point, Tier::Medium);
            let reserved = read(MEMORY_RESERVED).unwrap_or(0);
            (read(MEMORY_USED).ok()?, read(MEMORY_TOTAL).ok()?.checked_sub(reserved)?)
        }
    };
    (usable > 0).then(|| i128::from(used) * 1_000_000 / i128::from(usable))
}

/// The position among a process' values of what dcgm-exporter tells apart by pod: its memory, and its use of the
/// multiprocessors.
fn process_value(name: &str) -> Option<usize> {
    match name {
        "DCGM_FI_DEV_FB_USED" => Some(0),
        "DCGM_FI_DEV_GPU_UTIL" => Some(1),
        _ => None,
    }
}

/// A value in the unit of its name: integers are cut off as in DCGM, doubles rounded.
fn print(value: i128, scale: (i128, i128), is_double: bool) -> Printed {
    let (factor, divisor) = scale;
    match is_double {
        false => Printed::Integer(value * factor / divisor),
        true => Printed::Double((value * factor * 2_000_000 + divisor).div_euclid(2 * divisor)),
    }
}
