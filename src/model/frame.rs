//! What a sampler read from one GPU in one tick.

use std::sync::Arc;

use super::{Absence, Bytes, GpuId, GpuIdentity, InstanceIdentity, Nanoseconds, Reading, Stamp, named};

named! {
    /// The cadences at which readings are taken, fastest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Tier {
        /// Every tick: what the account integrates.
        Fast = "fast",
        /// Every few ticks: what changes within seconds.
        Medium = "medium",
        /// About every minute: what rarely changes.
        Slow = "slow",
    }
    fn name
}

/// Everything read from one GPU, with its own time stamps; immutable once the sampler has sent it.
#[derive(Clone, Debug)]
pub struct Frame {
    pub gpu: GpuId,
    pub identity: Arc<GpuIdentity>,
    /// Number of the GPU's plan; counters of frames with different plans must not be subtracted.
    pub generation: u32,
    /// When the first call of the tick began.
    pub begun: Stamp,
    /// When the last call of the tick returned.
    pub ended: Stamp,
    /// When each tier was last read, by [`Tier`] order.
    pub tiers: [Option<Stamp>; 3],
    /// The latest value of every device point, by catalogue point number.
    pub readings: Box<[Reading]>,
    /// GPM's counters since the GPU was started, by the catalogue's counter order.
    pub counters: Box<[Reading]>,
    /// The MIG instances, by id.
    pub instances: Arc<[InstanceFrame]>,
    /// Mean activity by the driver's own sample ring, where the board has one and no GPM.
    pub sampled: Option<Sampled>,
    /// The processes that have a context on the GPU, by pid.
    pub processes: Result<Arc<[GpuProcess]>, Absence>,
    /// When that list was read, which is not done in every tick; none before the first one.
    pub listed: Option<Stamp>,
    /// Boot time at which it was read: it has no process that started later.
    pub list_read: Option<Nanoseconds>,
    /// Whether the GPU is known to have no process in this tick: the empty list is of this tick, or memory use has not
    /// changed since it was read.
    pub known_empty: bool,
    /// Utilization samples per process that are new since the last frame; empty when nothing ran.
    pub samples: Result<Vec<ProcessSample>, Absence>,
    /// Factors by which intervals are longer than configured, so that the sampler stays within its share of driver
    /// time.
    pub stretch: Stretch,
    pub rejected: Vec<(Rejection, u64)>,
    pub calls: Vec<CallTime>,
}

impl Frame {
    pub fn list_read_at(&self) -> Nanoseconds {
        self.list_read.unwrap_or(self.ended.boottime)
    }
}

#[cfg(test)]
impl Frame {
    pub(crate) fn with(readings: Box<[Reading]>) -> Self {
        Self {
            gpu: GpuId { index: 0, uuid: "GPU-1".into() },
            identity: Arc::default(),
            generation: 1,
            begun: Stamp::default(),
            ended: Stamp::default(),
            tiers: [None; 3],
            readings,
            counters: Box::default(),
            instances: Arc::default(),
            sampled: None,
            processes: Ok(Arc::default()),
            listed: None,
            list_read: None,
            known_empty: false,
            samples: Ok(Vec::new()),
            stretch: Stretch::default(),
            rejected: Vec::new(),
            calls: Vec::new(),
        }
    }
}

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Rejection {
        /// A reading outside what its quantity can be, or a counter that jumped further than it can count.
        OutOfRange = "out_of_range",
        /// A counter that went back, until a reset of it is confirmed.
        CounterBack = "counter_back",
        /// A utilization sample above 100 % or of the future.
        Sample = "sample",
        /// More processes or samples than any GPU has.
        Count = "count",
        /// Activity of a GPU without processes, from a stale utilization flag.
        GhostBusy = "ghost_busy",
    }
    fn reason
}

/// Factors on the intervals of readings that may be less frequent; 1 while driver time is within its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    pub medium: u32,
    pub slow: u32,
    /// On the calls of both tiers that no rule of health needs, on top of their tier's.
    pub others: u32,
    /// On the process lists, unless one is due at once.
    pub lists: u32,
}

impl Default for Stretch {
    fn default() -> Self {
        Self { medium: 1, slow: 1, others: 1, lists: 1 }
    }
}

impl Stretch {
    /// The factor on a tier; the fast tier is never stretched.
    pub const fn of(self, tier: Tier) -> u32 {
        match tier {
            Tier::Fast => 1,
            Tier::Medium => self.medium,
            Tier::Slow => self.slow,
        }
    }

    /// The factor on those of the tier's calls that are made least often.
    pub const fn most_of(self, tier: Tier) -> u32 {
        match tier {
            Tier::Fast => 1,
            Tier::Medium | Tier::Slow => self.of(tier) * self.others,
        }
    }
}

/// Activity from the driver's sample ring, since the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Mean share of time busy, in billionths.
    pub ratio: u64,
    /// The time that new samples cover; 0 where none is new and the last ratio is repeated.
    pub covered: Nanoseconds,
}

#[derive(Clone, Debug)]
pub struct InstanceFrame {
    pub identity: InstanceIdentity,
    /// Its values, by the order of the catalogue's instance values.
    pub readings: Box<[Reading]>,
    /// GPM's counters of it since the GPU was started, by the catalogue's counter order.
    pub counters: Box<[Reading]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id in the driver's pid namespace.
    pub pid: u32,
    pub gpu_instance: Option<u32>,
    /// Memory that it holds; absent where the driver does not report it.
    pub memory: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub pid: u32,
    /// How long the sample's window is, in microseconds.
    pub window: u64,
    /// Percent of the sample window in which its kernels ran.
    pub sm: u32,
    /// Percent of the window in which device memory was read or written for it; absent where it is implausible.
    pub memory: Option<u32>,
    /// Percent of the window in which the encoder worked for it.
    pub encoder: u32,
    /// Percent of the window in which the decoder worked for it.
    pub decoder: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallInFlight {
    pub function: &'static str,
    /// The boot time at which it was called.
    pub since: Nanoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTime {
    pub function: &'static str,
    pub took: Nanoseconds,
}

/// The cost of a tick without a frame, since the tick failed or came too late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unframed {
    pub rejected: Vec<(Rejection, u64)>,
    pub calls: Vec<CallTime>,
}
