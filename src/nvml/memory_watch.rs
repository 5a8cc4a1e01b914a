//! Memory in use on a GPU or on each of its MIG instances, read as a cheap sign that a process came or went:
//! every context allocates some.

use super::calls;
use super::driver_api::{DriverApi, Handle};
use crate::catalogue::CallValue;
use crate::model::Absence;

/// Memory in use now, and when each list was last read.
#[derive(Default)]
pub(super) struct MemoryWatch {
    /// By device; absent if it is not known for this tick.
    now: Option<Vec<u64>>,
    compute: Option<Vec<u64>>,
    graphics: Option<Vec<u64>>,
    /// Whether the driver refused for good.
    mute: bool,
}

impl MemoryWatch {
    /// Reads the memory in use of each device.
    pub(super) fn read(&mut self, api: &mut DriverApi, devices: impl Iterator<Item = Handle>) {
        self.now = None;
        if self.mute {
            return;
        }
        let used = |device| calls::memory(api, device).and_then(|memory| memory.get(CallValue::MemoryUsed));
        self.take(devices.map(used).collect());
    }

    /// Sets memory in use from an answer; a failed read leaves it unknown.
    pub(super) fn take(&mut self, answer: Result<Vec<u64>, Absence>) {
        self.mute = answer.as_ref().is_err_and(|absence| absence.is_permanent());
        self.now = answer.ok();
    }

    /// Clears the value of the tick before.
    pub(super) fn pass(&mut self) {
        self.now = None;
    }

    /// Whether it was read in this tick.
    pub(super) fn is_known(&self) -> bool {
        self.now.is_some()
    }

    /// Whether it differs from when the compute list was read.
    pub(super) fn moved(&self) -> bool {
        self.now != self.compute
    }

    /// Whether it differs from when the graphics list was read.
    pub(super) fn moved_since_graphics(&self) -> bool {
        self.now != self.graphics
    }

    /// Records that the compute list was read.
    pub(super) fn listed(&mut self) {
        self.compute.clone_from(&self.now);
    }

    /// Records that the graphics list was read.
    pub(super) fn listed_graphics(&mut self) {
        self.graphics.clone_from(&self.now);
    }
}
