//! The scenario's errors, link failures, PCIe downgrades and driver reloads, checked against the cycle.
//!
//! `condition` computes their effects.

use serde::Deserialize;

use crate::board::{Board, family};

/// What happens to GPUs once in every cycle; times are seconds within a cycle unless said otherwise.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Incidents {
    #[serde(default)]
    pub(crate) memory_errors: Vec<MemoryErrors>,
    #[serde(default)]
    pub(crate) remaps: Vec<Remap>,
    #[serde(default)]
    pub(crate) recoveries: Vec<Recovery>,
    #[serde(default)]
    pub(crate) link_errors: Vec<LinkErrors>,
    #[serde(default)]
    pub(crate) links_down: Vec<LinkDown>,
    #[serde(default)]
    pub(crate) fabric: Vec<FabricTrouble>,
    #[serde(default)]
    pub(crate) pcie: Vec<Downgrade>,
    #[serde(default)]
    pub(crate) replays: Vec<Replays>,
    /// Elapsed seconds, not of a cycle, at which the driver is reloaded.
    #[serde(default)]
    pub(crate) driver_loads: Vec<f64>,
}

/// `count` memory errors of a kind at one time.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct MemoryErrors {
    pub(crate) at: f64,
    pub(crate) gpu: u32,
    /// Position in the `mig` list, for errors of the SRAM in an instance.
    #[serde(default)]
    pub(crate) instance: Option<usize>,
    pub(crate) kind: ErrorKind,
    #[serde(default = "one")]
    pub(crate) count: u64,
}

/// The kind of a memory error.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorKind {
    DramCorrected,
    DramUncorrected,
    SramCorrected,
    SramUncorrectedParity,
    SramUncorrectedSecded,
    /// The flag for too many uncorrected SRAM errors, which stays set.
    SramThreshold,
    /// A page taken out of use, before Ampere.
    PageRetiredCorrected,
    PageRetiredUncorrected,
}

/// A row replaced by a spare one.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Remap {
    pub(crate) at: f64,
    pub(crate) gpu: u32,
    pub(crate) cause: RemapCause,
    /// Whether it waits for the next reload of the driver.
    #[serde(default)]
    pub(crate) pending: bool,
    #[serde(default)]
    pub(crate) failure: bool,
    /// Which bank; `None`: one that follows from the seed.
    #[serde(default)]
    pub(crate) bank: Option<u32>,
}

/// Why a row was replaced.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RemapCause {
    Correctable,
    Uncorrectable,
}

/// The recovery action that the driver reports between two times.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Recovery {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) gpu: u32,
    pub(crate) action: RecoveryAction,
}

/// NVML's recovery actions, in its order.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecoveryAction {
    None,
    GpuReset,
    NodeReboot,
    DrainP2p,
    DrainAndReset,
}

/// `count` NVLink errors at one time.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LinkErrors {
    pub(crate) at: f64,
    pub(crate) gpu: u32,
    pub(crate) link: u32,
    pub(crate) kind: LinkErrorKind,
    #[serde(default = "one")]
    pub(crate) count: u64,
}

/// The kind of an NVLink error. Up to the fourth generation links count the first five; from the fifth on
/// recoveries and the later ones.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LinkErrorKind {
    Replay,
    Recovery,
    CrcFlit,
    CrcData,
    EccData,
    /// The link went down for good.
    RecoveryFailed,
    /// Received packets by what was wrong with them; the first is any other error.
    Receive,
    MalformedPacket,
    BufferOverrun,
    ReceiveRemote,
    ReceiveGeneral,
    /// The link exceeded its error limit.
    LocalIntegrity,
    TransmitDiscard,
    /// Errors left after error correction, in packets and in symbols.
    Effective,
    Symbol,
}

impl LinkErrorKind {
    /// Whether links that count by packets (or not) count it.
    fn is_counted(self, by_packets: bool) -> bool {
        match self {
            Self::Recovery => true,
            Self::Replay | Self::CrcFlit | Self::CrcData | Self::EccData => !by_packets,
            _ => by_packets,
        }
    }
}

/// A link without connection; without `link` all of them, as with a dead bridge.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LinkDown {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) gpu: u32,
    #[serde(default)]
    pub(crate) link: Option<u32>,
}

/// What the NVLink fabric says of a GPU between two times, in place of all being well.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct FabricTrouble {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) gpu: u32,
    pub(crate) trouble: Trouble,
}

/// Of these the first is a registration that does not end; the others are parts of the health mask.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    InProgress,
    DegradedBandwidth,
    RouteRecovery,
    RouteUnhealthy,
    AccessTimeout,
    /// No partition.
    Misconfigured,
}

/// A PCIe link below its maximum.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Downgrade {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) gpu: u32,
    #[serde(default)]
    pub(crate) generation: Option<u32>,
    #[serde(default)]
    pub(crate) width: Option<u32>,
}

/// PCIe packets that are sent again.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Replays {
    pub(crate) at: f64,
    pub(crate) gpu: u32,
    #[serde(default = "one")]
    pub(crate) count: u64,
}

fn one() -> u64 {
    1
}

impl Incidents {
    /// The GPU of every entry, with the entry's key.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let errors = self.memory_errors.iter().map(|entry| ("memory_errors", entry.gpu));
        let remaps = self.remaps.iter().map(|entry| ("remaps", entry.gpu));
        let recoveries = self.recoveries.iter().map(|entry| ("recoveries", entry.gpu));
        let links = self.link_errors.iter().map(|entry| ("link_errors", entry.gpu));
        let down = self.links_down.iter().map(|entry| ("links_down", entry.gpu));
        let fabric = self.fabric.iter().map(|entry| ("fabric", entry.gpu));
        let pcie = self.pcie.iter().map(|entry| ("pcie", entry.gpu));
        let replays = self.replays.iter().map(|entry| ("replays", entry.gpu));
        errors
            .chain(remaps)
            .chain(recoveries)
            .chain(links)
            .chain(down)
            .chain(fabric)
            .chain(pcie)
            .chain(replays)
    }

    /// Refuses what cannot happen to a GPU of that board with `instances` MIG instances.
    pub(crate) fn fit(&self, gpu: u32, board: &Board, instances: usize) -> Result<(), String> {
        let (links, banks) = (board.nvlinks, board.remap_banks);
        let errors = self.link_errors.iter().map(|entry| ("link_errors", entry.gpu, Some(entry.link)));
        let down = self.links_down.iter().map(|entry| ("links_down", entry.gpu, entry.link));
        for (key, of, link) in errors.chain(down).filter(|(_, of, _)| *of == gpu) {
            if let Some(link) = link.filter(|link| *link >= links) {
                return Err(format!("{key}: gpu {of} has no link {link}; it has {links}"));
            }
        }
        for entry in self.link_errors.iter().filter(|entry| entry.gpu == gpu) {
            if !entry.kind.is_counted(family::counts_packets(board)) {
                let profile = board.profile;
                return Err(format!(
                    "link_errors: gpu {gpu} is a {profile}, whose NVLinks count other kinds"
                ));
            }
        }
        if self.fabric.iter().any(|entry| entry.gpu == gpu) && board.fabric.is_none() {
            return Err(format!("fabric: gpu {gpu} is a {}, which is on no fabric", board.profile));
        }
        for entry in self.remaps.iter().filter(|entry| entry.gpu == gpu) {
            if let Some(bank) = entry.bank.filter(|bank| *bank >= banks) {
                return Err(format!("remaps: gpu {gpu} has no bank {bank} that remaps; it has {banks}"));
            }
        }
        for entry in self.memory_errors.iter().filter(|entry| entry.gpu == gpu) {
            if let Some(instance) = entry.instance.filter(|instance| *instance >= instances) {
                return Err(format!("memory_errors: gpu {gpu} has no instance {instance} in its mig list"));
            }
        }
        Ok(())
    }

    pub(super) fn check(&self, cycle: f64) -> Result<(), String> {
        let errors = self.memory_errors.iter().map(|entry| ("memory_errors", entry.at));
        let remaps = self.remaps.iter().map(|entry| ("remaps", entry.at));
        let links = self.link_errors.iter().map(|entry| ("link_errors", entry.at));
        let replays = self.replays.iter().map(|entry| ("replays", entry.at));
        let mut points = errors.chain(remaps).chain(links).chain(replays);
        if let Some((key, at)) = points.find(|(_, at)| !(0.0..cycle).contains(at)) {
            return Err(format!("{key}: at {at} is not within the cycle of {cycle} s"));
        }
        let recoveries = self.recoveries.iter().map(|entry| ("recoveries", entry.from, entry.to));
        let down = self.links_down.iter().map(|entry| ("links_down", entry.from, entry.to));
        let fabric = self.fabric.iter().map(|entry| ("fabric", entry.from, entry.to));
        let pcie = self.pcie.iter().map(|entry| ("pcie", entry.from, entry.to));
        let within = |from: f64, to: f64| from >= 0.0 && from < to && to <= cycle;
        match recoveries.chain(down).chain(fabric).chain(pcie).find(|(_, from, to)| !within(*from, *to)) {
            Some((key, from, to)) => {
                Err(format!("{key}: from {from} to {to} is not a span within the cycle of {cycle} s"))
            }
            None => match self.driver_loads.iter().find(|at| !(0.0..1e9).contains(*at)) {
                Some(at) => Err(format!("driver_loads: {at} is not between 0 and 1e9 s")),
                None => Ok(()),
            },
        }
    }
}
