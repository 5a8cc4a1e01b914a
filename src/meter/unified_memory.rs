//! The memory of GPUs that share the host's. Their driver reports none (GB10 and Jetson, on 580), but that of each process.

use crate::holders::host::HostMemory;
use crate::model::catalogue::{PointId, first_point};
use crate::model::{Absence, Bytes, Frame, MemoryKind, Reading};

const TOTAL: PointId = first_point("gpu_memory_total_bytes");
const USED: PointId = first_point("gpu_memory_used_bytes");
const FREE: PointId = first_point("gpu_memory_free_bytes");
const RESERVED: PointId = first_point("gpu_memory_reserved_bytes");

/// Sets the memory of such a GPU, so that total = used + free + reserved: used is the sum over its processes, total the
/// host's, free what the host still has, and reserved what its other programs hold. Other GPUs keep what was read.
pub fn set_unified_memory(frame: &mut Frame, host: Option<HostMemory>) {
    if frame.identity.memory != Some(MemoryKind::Unified) {
        return;
    }
    let used = used(frame);
    let total = host.ok_or(Absence::NotYet).and_then(|host| bytes(host.total));
    // Processes that share memory may have more together than there is.
    let others =
        used.and_then(|used| total?.checked_sub(used).filter(|rest| *rest >= 0).ok_or(Absence::Rejected));
    let available = host.ok_or(Absence::NotYet).and_then(|host| bytes(host.available));
    // The host is read at another moment than the processes.
    let free = others.and_then(|others| Ok(available?.min(others)));
    let reserved = free.and_then(|free| Ok(others? - free));
    for (point, reading) in [(TOTAL, total), (USED, used), (FREE, free), (RESERVED, reserved)] {
        frame.readings[point] = reading;
    }
}

/// The memory of a GPU, or of its host where it shares that; none where it is not known.
pub(super) fn total_memory(frame: &Frame) -> Option<Bytes> {
    let total = frame.readings.get(TOTAL).copied().and_then(Result::ok);
    total.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes)
}

/// The memory of all processes; absent while that of one is unknown.
fn used(frame: &Frame) -> Reading {
    let processes = frame.processes.as_ref().map_err(|absence| *absence)?;
    let sum = processes.iter().try_fold(0_u64, |sum, process| sum.checked_add(process.memory?.0));
    bytes(Bytes(sum.ok_or(Absence::NotSupported)?))
}

fn bytes(Bytes(bytes): Bytes) -> Reading {
    i64::try_from(bytes).map_err(|_| Absence::Rejected)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::catalogue::device_points;
    use crate::model::{GpuIdentity, GpuProcess};

    const GIB: u64 = 1 << 30;

    /// The memory of a GPU of that kind with processes that have so many GiB: total, used, free, reserved.
    fn memory(kind: MemoryKind, processes: &[Option<u64>], host: Option<HostMemory>) -> [Reading; 4] {
        let readings: Vec<Reading> = device_points().map(|_| Err(Absence::NotSupported)).collect();
        let listed = (1..).zip(processes).map(|(pid, gibibytes)| GpuProcess {
            pid,
            gpu_instance: None,
            memory: gibibytes.map(|gibibytes| Bytes(gibibytes * GIB)),
        });
        let mut frame = Frame {
            identity: Arc::new(GpuIdentity { memory: Some(kind), ..GpuIdentity::default() }),
            processes: Ok(listed.collect()),
            ..Frame::with(readings.into())
        };
        set_unified_memory(&mut frame, host);
        [TOTAL, USED, FREE, RESERVED].map(|point| frame.readings[point])
    }

    const fn host(total: u64, available: u64) -> Option<HostMemory> {
        Some(HostMemory { total: Bytes(total * GIB), available: Bytes(available * GIB) })
    }

    fn gibibytes(numbers: [i64; 4]) -> [Reading; 4] {
        numbers.map(|number| Ok(number << 30))
    }

    #[test]
    fn unified_memory_is_that_of_the_processes_and_the_rest_of_the_host() {
        let memory = |processes: &[Option<u64>], host| memory(MemoryKind::Unified, processes, host);
        assert_eq!(memory(&[Some(60), Some(18)], host(120, 30)), gibibytes([120, 78, 30, 12]));
        assert_eq!(memory(&[], host(120, 100)), gibibytes([120, 0, 100, 20]));
        assert_eq!(
            memory(&[Some(60)], host(120, 118)),
            gibibytes([120, 60, 60, 0]),
            "read before they allocated"
        );
        let more = memory(&[Some(90), Some(90)], host(120, 10));
        assert_eq!(more, [Ok(120 << 30), Ok(180 << 30), Err(Absence::Rejected), Err(Absence::Rejected)]);
    }

    #[test]
    fn unified_memory_that_is_not_known_is_absent() {
        let of_one = memory(MemoryKind::Unified, &[Some(1), None], host(120, 100));
        assert_eq!(
            (of_one[0], of_one[1], of_one[2].is_err()),
            (Ok(120 << 30), Err(Absence::NotSupported), true)
        );
        let without_host = memory(MemoryKind::Unified, &[Some(1)], None);
        assert_eq!((without_host[0], without_host[1]), (Err(Absence::NotYet), Ok(1 << 30)));
        let own = memory(MemoryKind::Device, &[Some(1)], host(120, 100));
        assert_eq!(own, [Err(Absence::NotSupported); 4], "a board with memory of its own");
    }
}
