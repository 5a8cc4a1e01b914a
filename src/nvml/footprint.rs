//! Memory in use on a GPU, as a cheap sign that somebody came or went: every context takes some.
//!
//! In goes what the driver says, of the GPU or of each of its instances; out comes whether it moved since a list
//! of processes was taken. It does not know who uses it.

use super::calls;
use super::door::{Door, Handle};
use crate::catalogue::CallValue;
use crate::model::Absence;

/// Memory in use now, and when the lists were taken.
#[derive(Default)]
pub(super) struct Footprint {
    /// By instance; none where the driver did not tell.
    now: Option<Vec<u64>>,
    compute: Option<Vec<u64>>,
    graphics: Option<Vec<u64>>,
    /// Whether the driver will never tell.
    mute: bool,
}

impl Footprint {
    /// Asks for it, of each of these devices.
    pub(super) fn read(&mut self, door: &mut Door, devices: impl Iterator<Item = Handle>) {
        self.now = None;
        if self.mute {
            return;
        }
        let used = |device| calls::memory(door, device).and_then(|memory| memory.get(CallValue::MemoryUsed));
        self.take(devices.map(used).collect());
    }

    /// Takes what was answered; what cannot be had now moves by that.
    pub(super) fn take(&mut self, answer: Result<Vec<u64>, Absence>) {
        self.mute = answer.as_ref().is_err_and(|absence| absence.is_permanent());
        self.now = answer.ok();
    }

    /// Forgets what was read: it is not of this tick.
    pub(super) fn pass(&mut self) {
        self.now = None;
    }

    /// Whether the driver told in this tick.
    pub(super) fn is_known(&self) -> bool {
        self.now.is_some()
    }

    /// Whether it is other than when the compute list was taken.
    pub(super) fn moved(&self) -> bool {
        self.now != self.compute
    }

    /// Whether it is other than when the graphics list was taken.
    pub(super) fn moved_since_graphics(&self) -> bool {
        self.now != self.graphics
    }

    /// The compute list was taken just now.
    pub(super) fn listed(&mut self) {
        self.compute.clone_from(&self.now);
    }

    /// The graphics list was.
    pub(super) fn listed_graphics(&mut self) {
        self.graphics.clone_from(&self.now);
    }
}
