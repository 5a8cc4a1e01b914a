//! The page with dcgm-exporter's names, in text 0.0.4: DCGM's counters lack `_total`, which OpenMetrics demands.
//!
//! Which series there are, and in which order, depends on the roster and the options alone, as in [`super::walk`], so heads
//! and labels are kept rendered in the same way. As in dcgm-exporter, a GPU with MIG instances has series of its instances
//! only, with the GPU's value repeated where an instance has none of its own; `corrected` prints each value once.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::json::node;
use super::label_cache::LabelCache;
use super::text::{append, escape, with_room};
use crate::model::catalogue::{
    CLOCK_EVENT_REASONS, CLOCK_EVENTS, DcgmMetric, DcgmValues, EventPeriod, InstanceValue, ProcessUse,
    ScaledValues, ValuePlace, WINDOW_MS, first_point, xid,
};
use crate::model::frame::InstanceFrame;
use crate::model::frame::Tier;
use crate::model::snapshot::{GpuEntry, GpuState, ProcessEntry, Roster, Snapshot};
use crate::model::{Absence, Fact, GpuIdentity, Reading, SumOfReadings};

#[derive(Clone, Debug, Default)]
pub struct DcgmOptions {
    /// The metrics, in the order of the page.
    pub counters: Vec<DcgmCounter>,
    /// Names of those that are absent since the page is not configured.
    pub unconfigured: Vec<String>,
    pub labels: Vec<(String, DcgmLabel)>,
    pub host_label: &'static str,
    /// Whether each value of a MIG GPU stands once: with its instances where they report it, else with the GPU.
    pub corrected: bool,
}

#[derive(Clone, Debug)]
pub struct DcgmCounter {
    pub name: String,
    /// Its Prometheus type, as in the file of counters.
    pub kind: String,
    pub help: String,
    pub metric: DcgmMetric,
}

#[derive(Debug)]
pub(super) struct DcgmRenderer {
    options: Arc<DcgmOptions>,
    cache: LabelCache,
    entities: Vec<Entity>,
    host: String,
    /// Bytes of the last page.
    length: usize,
}

#[derive(Debug)]
struct Entity {
    /// Position of the GPU on the roster.
    gpu: usize,
    /// Position of the instance among those of the GPU.
    instance: Option<usize>,
    /// Whether it is a GPU whose instances have series of their own.
    is_parent: bool,
    /// How many processes of the GPU the roster lists; none if it lists several as one.
    processes: Option<usize>,
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

#[derive(Clone, Copy)]
struct EventLabels {
    period: EventPeriod,
    /// The label that distinguishes them.
    name: &'static str,
}

#[derive(Clone, Copy)]
enum Printed {
    Integer(i128),
    /// In millionths.
    Double(i128),
}

const WINDOW: (&str, &str) = ("window_size_in_ms", "300000");
const _: () = assert!(WINDOW_MS == 300_000);

const CLOCKS: usize = first_point(CLOCK_EVENT_REASONS);
const MEMORY_TOTAL: usize = first_point("gpu_memory_total_bytes");
const MEMORY_USED: usize = first_point("gpu_memory_used_bytes");
const MEMORY_RESERVED: usize = first_point("gpu_memory_reserved_bytes");

impl DcgmRenderer {
    pub(super) fn new(options: Arc<DcgmOptions>) -> Self {
        Self { options, cache: LabelCache::default(), entities: Vec::new(), host: String::new(), length: 0 }
    }

    pub(super) fn render(&mut self, snapshot: &Snapshot) -> Bytes {
        if !self.cache.is_of(&snapshot.roster) {
            self.entities = entities(&snapshot.roster, self.options.corrected);
            self.host = node(snapshot).get("name").copied().unwrap_or_default().to_owned();
        }
        self.cache.begin(&snapshot.roster);
        let Self { options, cache, entities, host, length } = self;
        let mut page = with_room(*length);
        let notes = cache.next_entry(|out| write_notes(out, options, &snapshot.roster));
        page.extend_from_slice(cache.entry(notes));
        for counter in &options.counters {
            let head = cache.next_entry(|out| write_head(out, counter));
            let mut writer = CounterWriter { snapshot, options, counter, host, cache, page: &mut page, head };
            entities.iter().for_each(|entity| writer.entity(entity));
        }
        self.cache.finish(&snapshot.roster);
        self.length = page.len();
        page.into()
    }
}

fn entities(roster: &Roster, corrected: bool) -> Vec<Entity> {
    let mut entities = Vec::new();
    for (gpu, entry) in roster.gpus.iter().enumerate() {
        let is_first = |position: usize| {
            let at = |position: usize| &entry.instances[position].gpu_instance;
            position == 0 || at(position) != at(position - 1)
        };
        let instances: Vec<usize> = (0..entry.instances.len()).filter(|place| is_first(*place)).collect();
        let is_parent = !instances.is_empty();
        let mut own = roster.processes.iter().filter(|process| process.gpu == gpu);
        let processes =
            own.try_fold(0, |count, process| (*process.pid != *ProcessEntry::OTHERS).then_some(count + 1));
        if !is_parent || corrected {
            entities.push(Entity { gpu, instance: None, is_parent, processes, pods: pods(roster, gpu, "") });
        }
        entities.extend(instances.into_iter().map(|instance| {
            let pods = pods(roster, gpu, &entry.instances[instance].gpu_instance);
            Entity { gpu, instance: Some(instance), is_parent: false, processes, pods }
        }));
    }
    entities
}

/// The containers that hold a GPU or an instance, whether the kubelet responds now or not; each once, however often it holds.
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
    let mut pods: Vec<PodContainer> = pods.collect();
    pods.sort_by(|left, right| left.labels.cmp(&right.labels));
    // Prometheus refuses a page on which a series stands twice.
    pods.dedup_by(|next, pod| next.labels == pod.labels);
    pods
}

fn write_notes(out: &mut Vec<u8>, options: &DcgmOptions, roster: &Roster) {
    if !options.unconfigured.is_empty() {
        let names = options.unconfigured.join(", ");
        append(
            out,
            ["# Only with web.dcgm_listen or web.dcgm_counters in the configuration: ", &names, "\n"],
        );
    }
    if !options.counters.iter().any(|counter| counter.metric.needs_gpm()) {
        return;
    }
    for gpu in roster.gpus.iter().filter(|gpu| !has_gpm(&gpu.identity)) {
        append(out, ["# GPU ", &gpu.index, " ("]);
        escape(out, &gpu.identity.model, false);
        append(
            out,
            [
                ") has no DCGM_FI_PROF_* of its engines, pipes and memory without DCGM: NVML reports them from Hopper on. \
                 DCGM_FI_DEV_GPU_UTIL is there.\n",
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
        // Events are of the whole GPU.
        let is_whole = entity.instance.is_none() || !self.options.corrected;
        match &self.counter.metric {
            DcgmMetric::Values(values) => {
                let value = self.value(entity, values, gpu, state);
                match values.of_process {
                    Some(share) if entity.pods.len() > 1 => self.shares(entity, share, value),
                    _ => self.series(entity, &[], value),
                }
            }
            DcgmMetric::UsedMemoryRatio => {
                let ratio = used_memory_ratio(gpu, entity.instance, state).map(Printed::Double);
                self.series(entity, &[], if entity.is_parent { None } else { ratio });
            }
            DcgmMetric::GpuCount => {
                let count = self.snapshot.gpus.iter().filter(|state| state.present).count();
                let count = i128::try_from(count).ok().filter(|_| is_whole && state.present);
                self.series(entity, &[], count.map(Printed::Integer));
            }
            DcgmMetric::LastXid if is_whole => self.last_xid(entity, gpu, state),
            DcgmMetric::Xids(period) if is_whole => self.xids(entity, gpu, *period, state),
            DcgmMetric::ClockEvents(period) if is_whole => self.clock_events(entity, *period, state),
            _ => {}
        }
    }

    fn value(
        &self,
        entity: &Entity,
        values: &DcgmValues,
        gpu: &GpuEntry,
        state: &GpuState,
    ) -> Option<Printed> {
        let DcgmValues { gpu: of_gpu, instance: of_instance, is_double, is_profiling, .. } = values;
        let (value, scaled) = match (entity.instance, of_instance) {
            (Some(place), Some(own)) => {
                let id = gpu.instances.get(place)?.identity.id.gpu_instance;
                let frame = state.instance(id, own.family.tier)?;
                (sum_of_instance(own, frame), own)
            }
            // DCGM measures activity by instance; everything else that an instance has none of is the GPU's.
            (Some(_), None) if self.options.corrected || *is_profiling => return None,
            (None, Some(_)) if entity.is_parent => return None,
            _ => {
                let own = of_gpu.as_ref()?;
                (sum_of_gpu(own, state), own)
            }
        };
        value.map(|value| print(value, scaled.scale, *is_double))
    }

    fn shares(&mut self, entity: &Entity, share: ProcessUse, whole: Option<Printed>) {
        self.write(entity, None, &[], whole);
        for pod in &entity.pods {
            let value = whole.and_then(|_| self.share(entity, pod, share));
            self.write(entity, Some(pod), &[("pod_uid", &pod.uid)], value);
        }
    }

    /// What the processes of a container use together; absent unless it is known of each of them.
    fn share(&self, entity: &Entity, pod: &PodContainer, share: ProcessUse) -> Option<Printed> {
        let frame = self.snapshot.gpus.get(entity.gpu)?.frame.as_deref()?;
        if frame.processes.as_ref().ok()?.len() != entity.processes? {
            return None;
        }
        let own = pod.processes.iter().map(|process| self.snapshot.processes.get(*process));
        let sum: Option<i128> = match share {
            ProcessUse::Memory => own.map(|process| process?.values[0].ok().map(i128::from)).sum(),
            ProcessUse::Multiprocessors => {
                // A process without a sample ran nothing.
                frame.samples.as_ref().ok()?;
                own.map(|process| Some(process?.values[1].map_or(0, i128::from))).sum()
            }
        };
        let unit = match share {
            ProcessUse::Memory => 1 << 20,
            ProcessUse::Multiprocessors => 10_000_000,
        };
        Some(Printed::Integer(sum? / unit))
    }

    /// Writes the last XID, also of a GPU that is gone; of one that is there, 0 before the first.
    fn last_xid(&mut self, entity: &Entity, gpu: &GpuEntry, state: &GpuState) {
        let last = state.dcgm.as_ref().and_then(|dcgm| dcgm.last_xid.or(state.present.then_some(0)));
        let codes = gpu.xids.iter().map(|(code, text)| (*code, &**text));
        for (code, text) in std::iter::once((0, "0")).chain(codes) {
            let message = if code == 0 { "No Error" } else { xid::find(code).text };
            let value = (last == Some(code)).then_some(Printed::Integer(code.into()));
            self.series(entity, &[("err_code", text), ("err_msg", message)], value);
        }
    }

    fn xids(&mut self, entity: &Entity, gpu: &GpuEntry, period: EventPeriod, state: &GpuState) {
        let count = |place: usize| match period {
            EventPeriod::Window => state.dcgm.as_ref()?.recent_xids.get(place).copied(),
            EventPeriod::Total => state.xids.get(place).map(|seen| seen.count),
        };
        let counts = gpu.xids.iter().enumerate().map(|(place, (_, text))| (&**text, count(place)));
        let is_counted = state.present && state.dcgm.is_some();
        self.events(entity, EventLabels { period, name: "xid" }, is_counted, counts);
    }

    /// Writes in how many readings the clocks had each reason; nothing where the reasons cannot be read now.
    fn clock_events(&mut self, entity: &Entity, period: EventPeriod, state: &GpuState) {
        let is_read = state.reading(CLOCKS, Tier::Medium).is_ok();
        let counts = state.dcgm.as_ref().filter(|_| is_read).map(|dcgm| match period {
            EventPeriod::Window => dcgm.recent_clock_events,
            EventPeriod::Total => dcgm.clock_events,
        });
        let count = |place: usize| counts.map(|counts| counts[place]);
        let events = CLOCK_EVENTS.into_iter().enumerate().map(|(place, event)| (event, count(place)));
        self.events(entity, EventLabels { period, name: "clock_event" }, counts.is_some(), events);
    }

    /// Writes how often each event was there; where none was and they are counted, one series without the label is 0.
    fn events<'a>(
        &mut self,
        entity: &Entity,
        EventLabels { period, name }: EventLabels,
        is_counted: bool,
        counts: impl Iterator<Item = (&'a str, Option<u64>)> + Clone,
    ) {
        let begin = if period == EventPeriod::Window { 0 } else { 1 };
        let is_none = is_counted && counts.clone().all(|(_, count)| count.unwrap_or(0) == 0);
        self.series(entity, &[WINDOW][begin..], is_none.then_some(Printed::Integer(0)));
        for (event, count) in counts {
            let value = count.filter(|count| *count > 0).map(|count| Printed::Integer(count.into()));
            self.series(entity, &[WINDOW, (name, event)][begin..], value);
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
            write(",", name, &[&label(gpu)]);
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

/// A static property of a GPU that a row of type `label` adds to every series; an unknown one is empty.
pub type DcgmLabel = fn(&GpuEntry) -> Arc<str>;

/// The static property of that name; none if it is not served.
pub fn dcgm_label(name: &str) -> Option<DcgmLabel> {
    let label: DcgmLabel = match name {
        "DCGM_FI_DRIVER_VERSION" => |gpu| Arc::clone(&gpu.identity.driver_version),
        // The newest CUDA version of the driver.
        "DCGM_FI_CUDA_DRIVER_VERSION" => |gpu| cuda_number(&gpu.identity.cuda_version).unwrap_or_default(),
        "DCGM_FI_DEV_NAME" => |gpu| Arc::clone(&gpu.identity.model),
        "DCGM_FI_DEV_SERIAL" => |gpu| Arc::clone(&gpu.identity.serial),
        "DCGM_FI_DEV_UUID" => |gpu| Arc::clone(&gpu.id.uuid),
        "DCGM_FI_DEV_MINOR_NUMBER" => |gpu| Arc::clone(&gpu.identity.minor_number),
        "DCGM_FI_DEV_PCI_BUSID" => |gpu| Arc::clone(&gpu.identity.pci_bus_id),
        "DCGM_FI_DEV_VBIOS_VERSION" => |gpu| Arc::clone(&gpu.identity.vbios_version),
        _ => return None,
    };
    Some(label)
}

/// A version of CUDA as its API numbers it: 12040 for 12.4.
fn cuda_number(version: &str) -> Option<Arc<str>> {
    let (major, minor) = version.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some((major.checked_mul(1_000)?.checked_add(minor.checked_mul(10)?)?).to_string().into())
}

/// The sum of the values that the board has; none if it has none, or one cannot be read now.
fn sum_of_gpu(scaled: &ScaledValues, state: &GpuState) -> Option<i128> {
    let tier = scaled.family.tier;
    let is_fresh = state.fresh[tier as usize];
    let parts = scaled.places.iter().map(|place| match place {
        ValuePlace::Reading(point) => state.reading(*point, tier),
        ValuePlace::Total(number) => reading(&state.integrals, *number),
        ValuePlace::Rate(number) if is_fresh => {
            state.dcgm.as_ref().map_or(Err(Absence::NotYet), |dcgm| reading(&dcgm.rates, *number))
        }
        ValuePlace::Rate(_) => Err(Absence::Stale),
        ValuePlace::Instance(_) => Err(Absence::NotSupported),
    });
    parts.collect::<SumOfReadings>().whole()
}

fn sum_of_instance(scaled: &ScaledValues, instance: &InstanceFrame) -> Option<i128> {
    let parts = scaled.places.iter().map(|place| match place {
        ValuePlace::Instance(value) => reading(&instance.readings, *value),
        _ => Err(Absence::NotSupported),
    });
    parts.collect::<SumOfReadings>().whole()
}

fn reading(readings: &[Reading], place: usize) -> Reading {
    readings.get(place).copied().unwrap_or(Err(Absence::NotYet))
}

/// Used memory as a share of the memory that is not reserved, in millionths.
fn used_memory_ratio(gpu: &GpuEntry, instance: Option<usize>, state: &GpuState) -> Option<i128> {
    let (used, usable) = match instance {
        Some(place) => {
            let id = gpu.instances.get(place)?.identity.id.gpu_instance;
            let frame = state.instance(id, Tier::Medium)?;
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

/// A value in the unit of its name: integers are cut off as in DCGM, doubles rounded.
fn print(value: i128, scale: (i128, i128), is_double: bool) -> Printed {
    let (factor, divisor) = scale;
    match is_double {
        false => Printed::Integer(value * factor / divisor),
        true => Printed::Double((value * factor * 2_000_000 + divisor).div_euclid(2 * divisor)),
    }
}
