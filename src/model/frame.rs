//! What one lane brought home from one GPU in one tick.

use std::sync::Arc;

use super::{Absence, Bytes, GpuId, GpuIdentity, InstanceIdentity, Nanoseconds, Reading, Stamp};

/// The cadences at which readings are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Every tick: what the account integrates.
    Fast,
    /// Every few ticks: what moves within seconds.
    Medium,
    /// Every minute or so: what hardly moves.
    Slow,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Medium, Self::Slow];

    /// The value of the `tier` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Medium => "medium",
            Self::Slow => "slow",
        }
    }
}

/// Everything read from one GPU, under its own stamps; immutable once it leaves the lane.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The GPU.
    pub gpu: GpuId,
    /// What it says of itself.
    pub identity: Arc<GpuIdentity>,
    /// Counts the plans of this GPU; a frame of an older plan cannot be subtracted from this one.
    pub generation: u32,
    /// When the first call of the tick began.
    pub begun: Stamp,
    /// When the last call of the tick returned.
    pub ended: Stamp,
    /// When each tier was last read, by [`Tier`] order.
    pub tiers: [Option<Stamp>; 3],
    /// The latest value of every device point, by catalogue point number.
    pub readings: Box<[Reading]>,
    /// The MIG instances, by id.
    pub instances: Arc<[InstanceFrame]>,
    /// The processes that have a context on the GPU, by pid.
    pub processes: Result<Arc<[GpuProcess]>, Absence>,
    /// Utilization samples per process that are new since the last frame; empty when nothing ran.
    pub samples: Result<Vec<ProcessSample>, Absence>,
    /// How long each driver call of this tick took.
    pub calls: Vec<CallTime>,
}

/// Readings of one MIG instance.
#[derive(Clone, Debug)]
pub struct InstanceFrame {
    /// Which instance.
    pub identity: InstanceIdentity,
    /// Its values, by the order of the catalogue's instance values.
    pub readings: Box<[Reading]>,
}

/// A process that has a context on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id in the driver's pid namespace.
    pub pid: u32,
    /// GPU instance, on a MIG GPU.
    pub gpu_instance: Option<u32>,
    /// Memory that it holds; absent where the driver cannot tell.
    pub memory: Option<Bytes>,
}

/// One utilization sample of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// Process id.
    pub pid: u32,
    /// How long the sample's window is, in microseconds.
    pub window: u64,
    /// Percent of the sample window in which its kernels ran.
    pub sm: u32,
    /// Percent of the window in which the encoder worked for it.
    pub encoder: u32,
    /// Percent of the window in which the decoder worked for it.
    pub decoder: u32,
}

/// How long one driver call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTime {
    /// The function's name.
    pub function: &'static str,
    /// Time inside the driver.
    pub took: Nanoseconds,
}
