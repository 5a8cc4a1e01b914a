//! Frames made by hand.

use std::sync::Arc;

use gpumeter::model::catalogue::{InstanceValue, PointId, device_points, first_point};
use gpumeter::model::{
    Absence, Bytes, Frame, GpuIdentity, GpuProcess, InstanceFrame, InstanceId, InstanceIdentity, MigSlices,
    Nanoseconds, ProcessSample, Reading, Sampled, Stamp, Stretch,
};

use super::world::{BUS, id};

const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
const SM_ACTIVE: PointId = first_point("gpu_sm_active_ratio");
const DRAM_ACTIVE: PointId = first_point("gpu_dram_active_ratio");
const UTILIZATION: PointId = first_point("gpu_utilization_ratio");
const PENDING: PointId = first_point("gpu_row_remap_pending");
const ENERGY: PointId = first_point("gpu_energy_joules_total");
const LINKS_UP: PointId = first_point("gpu_nvlink_links_up");
const FABRIC_COMPLETED: PointId = first_point("gpu_fabric_state") + 2;
/// Errors of DRAM, then of SRAM, after the corrected ones.
const ECC_UNCORRECTED: PointId = first_point("gpu_ecc_errors_total") + 2;

/// A frame under construction.
pub(crate) struct FrameBuilder {
    readings: Vec<Result<i64, Absence>>,
    processes: Vec<GpuProcess>,
    samples: Vec<ProcessSample>,
    sampled: Option<Sampled>,
    stretch: Stretch,
    instances: Vec<InstanceFrame>,
    /// Free and stranded memory slices of a GPU in MIG mode.
    slices: Option<MigSlices>,
    mig: bool,
    nvlinks: u32,
    list_fails: bool,
    old_list: bool,
}

impl Default for FrameBuilder {
    /// An idle GPU without processes.
    fn default() -> Self {
        let mut readings: Vec<_> = device_points().map(|_| Err(Absence::NotSupported)).collect();
        readings[GR_ENGINE] = Ok(0);
        Self {
            readings,
            processes: Vec::new(),
            samples: Vec::new(),
            sampled: None,
            stretch: Stretch::default(),
            instances: Vec::new(),
            slices: None,
            mig: false,
            nvlinks: 0,
            list_fails: false,
            old_list: false,
        }
    }
}

impl FrameBuilder {
    /// The driver's process list fails.
    pub(crate) fn without_list(mut self) -> Self {
        self.list_fails = true;
        self
    }

    /// The list is from a former tick, and processes may have started since.
    pub(crate) fn old_list(mut self) -> Self {
        self.old_list = true;
        self
    }

    /// Only the driver's utilization is known, no GPM.
    pub(crate) fn utilization(mut self, percent: i64) -> Self {
        self.readings[GR_ENGINE] = Err(Absence::NotSupported);
        self.readings[UTILIZATION] = Ok(percent * 10_000_000);
        self
    }

    /// The driver's ring of utilization samples covers this many seconds.
    pub(crate) fn sample_ring(mut self, percent: u64, seconds: u64) -> Self {
        self.sampled =
            Some(Sampled { ratio: percent * 10_000_000, covered: Nanoseconds::from_seconds(seconds) });
        self
    }

    /// The medium tier is read this many times less often.
    pub(crate) fn stretched(mut self, medium: u32) -> Self {
        self.stretch.medium = medium;
        self
    }

    /// A process on the list without a sample.
    pub(crate) fn process_without_sample(mut self, pid: u32) -> Self {
        self.processes.push(GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(1 << 30)) });
        self
    }

    /// The driver's energy counter, in joules.
    pub(crate) fn energy_counter(mut self, joules: i64) -> Self {
        self.readings[ENERGY] = Ok(joules * 1_000_000);
        self
    }

    /// A process on the list with a sample.
    pub(crate) fn process(self, pid: u32, sm: u32) -> Self {
        self.process_without_sample(pid).unlisted_process(pid, sm)
    }

    /// A process that only a sample names: it is no longer listed.
    pub(crate) fn unlisted_process(mut self, pid: u32, sm: u32) -> Self {
        self.samples.push(ProcessSample {
            pid,
            window: 1_000_000,
            sm,
            memory: Some(sm / 2),
            encoder: 0,
            decoder: 0,
        });
        self
    }

    pub(crate) fn busy(mut self, percent: i64) -> Self {
        self.readings[GR_ENGINE] = Ok(percent * 10_000_000);
        self
    }

    /// GPM's shares of multiprocessors in use and of memory bandwidth, in percent.
    pub(crate) fn gpm(mut self, sm: i64, dram: i64) -> Self {
        self.readings[SM_ACTIVE] = Ok(sm * 10_000_000);
        self.readings[DRAM_ACTIVE] = Ok(dram * 10_000_000);
        self
    }

    /// A memory row waits for a reset.
    pub(crate) fn pending_row(mut self) -> Self {
        self.readings[PENDING] = Ok(1);
        self
    }

    /// Uncorrected memory errors since the driver was loaded, of DRAM and of SRAM.
    pub(crate) fn uncorrected(mut self, errors: [Reading; 2]) -> Self {
        self.readings[ECC_UNCORRECTED..][..2].copy_from_slice(&errors);
        self
    }

    /// So many NVLinks are up, and the board has so many, of which the driver does not say how many are connected.
    pub(crate) fn links(mut self, up: u32, of: u32) -> Self {
        self.readings[LINKS_UP] = Ok(up.into());
        self.nvlinks = of;
        self
    }

    /// The GPU is registered with a fabric of NVSwitches.
    pub(crate) fn registered(mut self) -> Self {
        self.readings[FABRIC_COMPLETED] = Ok(1);
        self
    }

    /// These reasons hold the clocks down, and no others.
    pub(crate) fn throttled(mut self, reasons: &[&str]) -> Self {
        for (place, (family, point)) in device_points().enumerate() {
            if family.name == "gpu_throttle_active" {
                let is_active = point.labels.iter().any(|(_, reason)| reasons.contains(reason));
                self.readings[place] = Ok(is_active.into());
            }
        }
        self
    }

    /// MIG mode with this many memory slices, of which these are free or stranded.
    pub(crate) fn mig(mut self, total: u32, free: u32, stranded: u32) -> Self {
        self.mig = true;
        self.slices = Some(MigSlices { total, free, stranded });
        self
    }

    /// The driver reports no placements.
    pub(crate) fn without_placements(mut self) -> Self {
        self.slices = None;
        self
    }

    /// A MIG instance of this many memory slices, with its activity in percent if known.
    pub(crate) fn instance(mut self, id: u32, slices: u32, busy: Option<i64>) -> Self {
        let mut readings = [Err(Absence::NotSupported); InstanceValue::ALL.len()];
        readings[InstanceValue::GrEngineActive as usize] =
            busy.map(|percent| percent * 10_000_000).ok_or(Absence::NotSupported);
        self.instances.push(InstanceFrame {
            identity: InstanceIdentity {
                id: InstanceId { gpu_instance: id, compute_instance: 0 },
                uuid: format!("MIG-{id}-{slices}").into(),
                profile: format!("{slices}g.{slices}0gb").into(),
                placement: format!("0:{slices}").into(),
                memory: Bytes(u64::from(slices) * (10 << 30)),
            },
            readings: readings.into(),
            counters: Box::default(),
        });
        self
    }

    /// A process on a MIG instance with that much memory.
    pub(crate) fn process_on(mut self, instance: u32, pid: u32, gibibytes: u64) -> Self {
        let memory = Some(Bytes(gibibytes << 30));
        self.processes.push(GpuProcess { pid, gpu_instance: Some(instance), memory });
        self
    }

    /// The frame of that time and plan.
    pub(crate) fn frame(self, now: Stamp, generation: u32) -> Frame {
        let identity = GpuIdentity {
            model: "test".into(),
            pci_bus_id: BUS.into(),
            mig: self.mig,
            nvlinks: self.nvlinks,
            mig_slices: self.slices,
            ..GpuIdentity::default()
        };
        Frame {
            gpu: id(),
            identity: Arc::new(identity),
            generation,
            begun: now,
            ended: now,
            tiers: [Some(now); 3],
            readings: self.readings.into(),
            counters: Box::default(),
            instances: self.instances.into(),
            sampled: self.sampled,
            known_empty: self.processes.is_empty() && !self.list_fails && !self.old_list,
            processes: if self.list_fails { Err(Absence::Failed) } else { Ok(self.processes.into()) },
            listed: Some(now),
            list_read: None,
            samples: Ok(self.samples),
            stretch: self.stretch,
            rejected: Vec::new(),
            calls: Vec::new(),
        }
    }
}
