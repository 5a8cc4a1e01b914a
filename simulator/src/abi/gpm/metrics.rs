//! GPM's metrics between two samples.
//!
//! Percent from 0 to 100, traffic in MiB/s. Two samples of one time give NaN, as DCGM has found. The driver reads
//! its counters every 100 ms: for samples closer than that it answers with its last interval, however old.

use std::cell::OnceCell;
use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlGpmMetric_t, nvmlGpmMetric_t__bindgen_ty_1};

use super::super::answer::{INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code};
use super::super::pcie;
use super::counters;
use crate::board::family;
use crate::condition::{Traffic, part};
use crate::handles::{GpmSample, Part};
use crate::node::{Gpu, Instance, Node};
use crate::schedule::{Totals, Work};

/// Nanoseconds between two reads of the counters by the driver.
const LOOK: u64 = 100_000_000;
/// NVDEC engines of a whole Hopper or Blackwell, and as many JPEG engines.
const DECODERS: u32 = 7;
/// Nanoseconds that a context switch takes.
const SWITCH: u64 = 20_000;
/// Percent of C2C traffic that is data, and of accesses to host and peer memory that hit a cache.
const C2C_DATA: u64 = 94;
const CACHE_HITS: u64 = 75;

/// What happened between two samples.
pub(super) struct Between<'a> {
    pub(super) gpu: &'a Gpu,
    /// The instances that are asked about; empty: the whole GPU.
    pub(super) instances: Vec<&'a Instance>,
    /// Elapsed nanoseconds of the second sample.
    pub(super) elapsed: u64,
    /// Elapsed nanoseconds between which the driver has read its counters.
    first: u64,
    second: u64,
    before: Totals,
    after: Totals,
    work: Work,
    /// Nanoseconds at which the work would be 100 percent.
    whole: f64,
    /// What each link carried between them; computed on first use.
    links: OnceCell<Vec<Traffic>>,
    /// Whether the driver is 590 or later and has the counters.
    pub(super) counters: bool,
}

impl<'a> Between<'a> {
    pub(super) fn new(node: &'a Node, first: GpmSample, second: GpmSample) -> Result<Self, Refused> {
        if first.subject != second.subject || second.elapsed < first.elapsed {
            return Err(INVALID_ARGUMENT);
        }
        let subject = first.subject;
        let gpu = node.in_slot(subject.slot).ok_or(INVALID_ARGUMENT)?;
        // The work of a former board or layout is no longer known.
        if (gpu.life, gpu.cut) != (subject.life, subject.cut) {
            return Err(INVALID_ARGUMENT);
        }
        let instances = instances(gpu, subject.part);
        let (begin, end) = counter_reads(first.elapsed, second.elapsed);
        let (before, after) = (gpu.timeline.lifetime(begin), gpu.timeline.lifetime(end));
        let work = weighed(gpu, &instances, &after) - weighed(gpu, &instances, &before);
        Ok(Self {
            gpu,
            instances,
            elapsed: second.elapsed,
            first: begin,
            second: end,
            before,
            after,
            work,
            whole: (end - begin) as f64,
            links: OnceCell::new(),
            counters: node.driver_major() >= 590,
        })
    }

    pub(super) fn answer(&self, metric: c_uint) -> nvmlGpmMetric_t {
        let (nvmlReturn, value) = match self.value(metric) {
            Ok(value) => (0, value),
            Err(refused) => (code(Err(refused)), 0.0),
        };
        let none = std::ptr::null_mut();
        let metricInfo = nvmlGpmMetric_t__bindgen_ty_1 { shortName: none, longName: none, unit: none };
        nvmlGpmMetric_t { metricId: metric, nvmlReturn, value, metricInfo }
    }

    fn value(&self, metric: c_uint) -> Result<f64, Refused> {
        match metric {
            1..=13 => self.pipe(metric),
            20 => self.pcie(|bytes| bytes.sent),
            21 => self.pcie(|bytes| bytes.received),
            30..=51 | 166..=169 => self.media(metric),
            60 => self.link(None, |bytes| bytes.received),
            61 => self.link(None, |bytes| bytes.sent),
            62..=97 => self.numbered_link(metric - 62),
            100..=159 => self.c2c(metric - 100),
            160..=165 => self.cache(metric - 160),
            170..=209 => self.switches((metric - 170) / 5, (metric - 170) % 5),
            // Links 18 to 35 came with the counters.
            212..=247 if self.counters => self.numbered_link(metric - 212 + 36),
            248..=332 if self.counters => counters::value(self, metric),
            0 => Err(INVALID_ARGUMENT),
            210.. if !self.counters || metric > 332 => Err(INVALID_ARGUMENT),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Whether only a part of the GPU is asked about.
    pub(super) fn divided(&self) -> bool {
        !self.instances.is_empty()
    }

    fn pipe(&self, metric: c_uint) -> Result<f64, Refused> {
        let work = &self.work;
        Ok(self.percent(match metric {
            1 => work.busy,
            2 => work.sm,
            3 => work.occupancy,
            4 => work.integer,
            5 => work.tensor,
            6 => work.dfma,
            7 => half_precision(work),
            // New with the counters.
            8 if self.counters => work.dfma,
            9 => work.imma,
            10 => work.dram,
            11 => work.fp64,
            12 => work.fp32,
            13 => work.fp16,
            _ => return Err(NOT_SUPPORTED),
        }))
    }

    /// Decoders, JPEG, optical flow and encoders; the load is spread over all of a kind.
    fn media(&self, metric: c_uint) -> Result<f64, Refused> {
        let profile = self.instances.first().map(|instance| instance.profile);
        let decoders = profile.map_or(DECODERS, |profile| profile.decoders);
        let flows = profile.map_or(1, |profile| profile.ofa);
        match metric {
            30..=37 if metric - 30 < decoders => Ok(self.percent(self.work.decoder)),
            40..=47 if metric - 40 < decoders => Ok(self.percent(self.work.jpeg)),
            50..=51 if metric - 50 < flows => Ok(self.percent(self.work.ofa)),
            166..=169 => Ok(self.percent(self.work.encoder)),
            _ => Err(NOT_SUPPORTED),
        }
    }

    pub(super) fn percent(&self, part: u64) -> f64 {
        // Zero over zero is the NaN of two samples at one time.
        part as f64 * 100.0 / self.whole
    }

    /// MiB/s.
    fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / 1_048_576.0 * 1e9 / self.whole
    }

    /// PCIe traffic in one direction; not reported by instance.
    fn pcie(&self, direction: impl Fn(Traffic) -> u64) -> Result<f64, Refused> {
        if self.divided() {
            return Err(NOT_SUPPORTED);
        }
        let (before, after) = (pcie::traffic(self.gpu, self.first), pcie::traffic(self.gpu, self.second));
        Ok(self.rate(direction(after.since(before))))
    }

    /// Traffic of one link; received and sent alternate.
    fn numbered_link(&self, place: c_uint) -> Result<f64, Refused> {
        let sent = !place.is_multiple_of(2);
        self.link(Some(place / 2), |bytes| if sent { bytes.sent } else { bytes.received })
    }

    /// One link, or all of them; in MIG mode there are none.
    fn link(&self, link: Option<u32>, direction: impl Fn(Traffic) -> u64) -> Result<f64, Refused> {
        let links = self.gpu.board.nvlinks;
        if links == 0 || self.gpu.divided || link.is_some_and(|link| link >= links) {
            return Err(NOT_SUPPORTED);
        }
        let mut bytes = 0;
        for (number, carried) in (0..).zip(self.carried()) {
            if link.is_none_or(|link| link == number) {
                bytes += direction(*carried);
            }
        }
        Ok(self.rate(bytes))
    }

    fn carried(&self) -> &[Traffic] {
        self.links.get_or_init(|| {
            let by = |elapsed| self.gpu.condition.links.lifetime(&self.gpu.timeline, elapsed);
            let pairs = by(self.first).into_iter().zip(by(self.second));
            pairs.map(|(before, after)| after.since(before)).collect()
        })
    }

    /// C2C traffic of Grace: all and data, sent and received; first of all links, then link by link.
    fn c2c(&self, place: c_uint) -> Result<f64, Refused> {
        let links = family::c2c_links(self.gpu.board);
        let (link, what) = ((place / 4).checked_sub(1), place % 4);
        if links == 0 || self.divided() || link.is_some_and(|link| link >= links) {
            return Err(NOT_SUPPORTED);
        }
        let (before, after) = (self.before.all(), self.after.all());
        let sent = what.is_multiple_of(2);
        let all = if sent { after.pcie_tx - before.pcie_tx } else { after.pcie_rx - before.pcie_rx };
        let bytes = link.map_or(all, |link| part(all, link.into(), links.into()));
        Ok(self.rate(if what < 2 { bytes } else { bytes / 100 * C2C_DATA }))
    }

    /// Percent of cache hits and misses alternately: of the host's memory, of peers' and of DRAM; 0 without accesses.
    fn cache(&self, place: c_uint) -> Result<f64, Refused> {
        if family::c2c_links(self.gpu.board) == 0 || self.divided() {
            return Err(NOT_SUPPORTED);
        }
        let (before, after) = (self.before.all(), self.after.all());
        let accesses = match place / 2 {
            0 => after.pcie_rx - before.pcie_rx,
            1 => after.nvlink_rx - before.nvlink_rx,
            _ => after.dram - before.dram,
        };
        let share = if place.is_multiple_of(2) { CACHE_HITS } else { 100 - CACHE_HITS };
        Ok(if accesses == 0 { 0.0 } else { share as f64 })
    }

    /// Context switches of one graphics engine: elapsed cycles, cycles spent switching, switches, cycles of each,
    /// percent of the time. Every compute instance has one engine.
    fn switches(&self, engine: c_uint, what: c_uint) -> Result<f64, Refused> {
        let engine = if self.divided() {
            self.instances.get(engine as usize).ok_or(NOT_SUPPORTED)?.engine
        } else {
            engine as usize
        };
        let (before, after) = (self.before.switches.get(engine), self.after.switches.get(engine));
        let (Some(before), Some(after)) = (before, after) else { return Err(NOT_SUPPORTED) };
        let switches = after - before;
        Ok(match what {
            0 => self.cycles(self.second - self.first),
            1 => self.cycles(switches * SWITCH),
            2 => switches as f64,
            3 if switches == 0 => 0.0,
            3 => self.cycles(SWITCH),
            _ => self.percent(switches * SWITCH),
        })
    }

    /// Cycles of the SM clock at its highest.
    pub(super) fn cycles(&self, nanoseconds: u64) -> f64 {
        nanoseconds as f64 * f64::from(self.gpu.board.clocks.sm.1) / 1_000.0
    }
}

/// The times for which the driver has counters: those of the samples, or of its last two reads.
fn counter_reads(first: u64, second: u64) -> (u64, u64) {
    if second == first || second - first > LOOK {
        return (first, second);
    }
    let end = second / LOOK * LOOK;
    (end.saturating_sub(LOOK), end)
}

/// The compute instances of a part; empty for the whole GPU.
fn instances(gpu: &Gpu, part: Part) -> Vec<&Instance> {
    let asked = |instance: &&Instance| match part {
        Part::Whole => false,
        Part::Instance(id) => instance.id == id,
        Part::Compute(engine) => instance.engine == engine,
    };
    gpu.instances.iter().filter(asked).collect()
}

/// The work of instances, each weighted by its share of its GPU instance; without instances that of the whole GPU.
pub(super) fn weighed(gpu: &Gpu, instances: &[&Instance], totals: &Totals) -> Work {
    let one = match instances {
        [] => return totals.of_whole(|place| gpu.timeline.share(place)),
        [_] => true,
        _ => false,
    };
    let mut work = Work::default();
    for instance in instances {
        let share = f64::from(instance.compute_slices) / f64::from(instance.profile.slices.max(1));
        let done = totals.of_engine(instance.engine);
        work += if one || share >= 1.0 { done } else { done.scaled(share) };
    }
    work
}

/// Tensor work that is neither double precision nor integer.
pub(super) fn half_precision(work: &Work) -> u64 {
    work.tensor.saturating_sub(work.dfma + work.imma)
}
