//! Memory that is in use on a GPU although nobody holds it and no process is listed: what a process that died has left behind.
//!
//! Where processes are hidden, as in a container without the host's pids, they look the same. So it is said only of a GPU on which a
//! process was listed before, and of boards whose idle power is known: a process, even one that does nothing, draws more.

use super::account::idle_power_of;
use crate::model::catalogue::{PointId, first_point};
use crate::model::{Frame, Nanoseconds, Utc};

const MEMORY: PointId = first_point("gpu_memory_used_bytes");
const POWER: PointId = first_point("gpu_power_watts");

/// The driver itself uses less.
const LEAST_MEMORY: i64 = 300 << 20;

/// A context alone draws 26 W or more above an idle board.
const MOST_WATTS: i64 = 10;

/// The driver frees the memory of a large process within minutes.
const LEAST_TIME: Nanoseconds = Nanoseconds::from_seconds(15 * 60);

#[derive(Default)]
pub(super) struct LeftMemory {
    has_listed: bool,
    since: Option<Utc>,
    until: Utc,
}

impl LeftMemory {
    pub(super) fn add(&mut self, at: Utc, frame: &Frame, is_held: bool) {
        self.has_listed |= frame.processes.as_ref().is_ok_and(|list| !list.is_empty());
        let is_left = self.has_listed && !is_held && frame.known_empty && is_left(frame);
        self.since = is_left.then(|| self.since.unwrap_or(at));
        self.until = at;
    }

    /// Since when, if it is there for so long that it will stay.
    pub(super) fn since(&self) -> Option<Utc> {
        self.since.filter(|since| self.until.since(*since) >= LEAST_TIME)
    }
}

fn is_left(frame: &Frame) -> bool {
    let reading = |point: PointId| frame.readings.get(point).copied().and_then(Result::ok);
    let idle = idle_power_of(&frame.identity.model).and_then(|power| i64::try_from(power).ok());
    let is_idle = reading(POWER).zip(idle).is_some_and(|(power, idle)| power < idle + MOST_WATTS * 1_000);
    !frame.identity.mig && is_idle && reading(MEMORY) > Some(LEAST_MEMORY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::catalogue::device_points;
    use crate::model::{Absence, Bytes, GpuIdentity, GpuProcess, MINUTE, Reading};

    fn frame(model: &str, memory: i64, milliwatts: i64, process: bool) -> Frame {
        let mut readings: Box<[Reading]> = vec![Err(Absence::NotYet); device_points().count()].into();
        (readings[MEMORY], readings[POWER]) = (Ok(memory), Ok(milliwatts));
        let list = process.then_some(GpuProcess { pid: 7, gpu_instance: None, memory: Some(Bytes(1)) });
        Frame {
            identity: Arc::new(GpuIdentity { model: model.into(), ..GpuIdentity::default() }),
            processes: Ok(list.into_iter().collect()),
            known_empty: !process,
            ..Frame::with(readings)
        }
    }

    #[test]
    fn memory_is_left_behind_if_a_process_was_listed_before_and_nothing_draws_power() {
        let model = "NVIDIA H100 80GB HBM3";
        let left = frame(model, 12 << 30, 70_000, false);
        let found = |first: &Frame, then: &Frame, minutes: u64, is_held: bool| {
            let mut memory = LeftMemory::default();
            memory.add(Utc(0), first, is_held);
            (1..=minutes + 1).for_each(|minute| memory.add(Utc(minute * MINUTE.0), then, is_held));
            memory.since()
        };
        let process = frame(model, 12 << 30, 300_000, true);
        assert_eq!(found(&process, &left, 15, false), Some(Utc(MINUTE.0)));
        assert_eq!(found(&process, &left, 14, false), None, "it may still be freed");
        assert_eq!(found(&process, &left, 15, true), None, "who holds it may load something");
        assert_eq!(found(&left, &left, 15, false), None, "its processes may be hidden");
        assert_eq!(found(&process, &process, 15, false), None);
        for other in [
            frame(model, 12 << 30, 93_000, false),
            frame(model, 299 << 20, 70_000, false),
            frame("unknown", 12 << 30, 1_000, false),
        ] {
            assert_eq!(found(&process, &other, 15, false), None);
        }
    }
}
