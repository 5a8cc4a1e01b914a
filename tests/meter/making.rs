//! Frames made by hand.

use std::sync::Arc;

use gpumeter::catalogue::{PointId, device_points, first_point};
use gpumeter::model::{
    Absence, Bytes, Frame, GpuIdentity, GpuProcess, Nanoseconds, ProcessSample, Sampled, Stamp, Stretch,
};

use crate::world::{BUS, id};

const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");
const UTILIZATION: PointId = first_point("gpu_utilization_ratio");
const PENDING: PointId = first_point("gpu_row_remap_pending");
const ENERGY: PointId = first_point("gpu_energy_joules_total");

/// A frame in the making.
pub(crate) struct Making {
    readings: Vec<Result<i64, Absence>>,
    processes: Vec<GpuProcess>,
    samples: Vec<ProcessSample>,
    sampled: Option<Sampled>,
    stretch: Stretch,
    mig: bool,
    list_fails: bool,
    old_list: bool,
}

impl Default for Making {
    /// A GPU that does nothing, on which nobody is.
    fn default() -> Self {
        let mut readings: Vec<_> = device_points().map(|_| Err(Absence::NotSupported)).collect();
        readings[GR_ENGINE] = Ok(0);
        Self {
            readings,
            processes: Vec::new(),
            samples: Vec::new(),
            sampled: None,
            stretch: Stretch::default(),
            mig: false,
            list_fails: false,
            old_list: false,
        }
    }
}

impl Making {
    /// The driver cannot list processes this time.
    pub(crate) fn without_list(mut self) -> Self {
        self.list_fails = true;
        self
    }

    /// The list is of a former tick, and somebody may have come since.
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

    /// Beside utilization, the driver's ring tells of so many seconds.
    pub(crate) fn ring(mut self, percent: u64, seconds: u64) -> Self {
        self.sampled =
            Some(Sampled { ratio: percent * 10_000_000, covered: Nanoseconds::from_seconds(seconds) });
        self
    }

    /// The medium tier is read so many times less often.
    pub(crate) fn stretched(mut self, medium: u32) -> Self {
        self.stretch.medium = medium;
        self
    }

    /// A process that is on the list and gave no sample.
    pub(crate) fn silent(mut self, pid: u32) -> Self {
        self.processes.push(GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(1 << 30)) });
        self
    }

    /// The driver's energy counter, in joules.
    pub(crate) fn counter(mut self, joules: i64) -> Self {
        self.readings[ENERGY] = Ok(joules * 1_000_000);
        self
    }

    pub(crate) fn process(mut self, pid: u32, sm: u32) -> Self {
        self.processes.push(GpuProcess { pid, gpu_instance: None, memory: Some(Bytes(1 << 30)) });
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

    /// A memory row waits for a reset.
    pub(crate) fn pending_row(mut self) -> Self {
        self.readings[PENDING] = Ok(1);
        self
    }

    pub(crate) fn mig(mut self) -> Self {
        self.mig = true;
        self
    }

    /// The frame of that moment, under that plan.
    pub(crate) fn frame(self, now: Stamp, generation: u32) -> Frame {
        let identity = GpuIdentity {
            model: "test".into(),
            pci_bus_id: BUS.into(),
            mig: self.mig,
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
            instances: Arc::default(),
            sampled: self.sampled,
            deserted: self.processes.is_empty() && !self.list_fails && !self.old_list,
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
