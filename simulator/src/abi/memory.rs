//! Frame buffer and BAR1, of GPUs and MIG devices.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use super::buffers::{Out, expect_version};
use super::{Device, device_calls};
use crate::node::Instance;
use crate::surprise::Surprise;

const MIB: u64 = 1 << 20;

struct Memory {
    total: u64,
    reserved: u64,
    used: u64,
}

impl Memory {
    fn of(at: &Device<'_>) -> Self {
        match at.instance {
            // Instances report no reserved memory.
            Some(instance) => Self {
                total: instance.profile.memory_mib * MIB,
                reserved: 0,
                used: instance_used(at, instance),
            },
            None => {
                let board = at.gpu.board;
                let room = board.memory_total - board.memory_reserved;
                let used: u64 = if !at.gpu.divided {
                    at.gpu.timeline.present(at.now.elapsed).map(|(_, _, span)| span.memory).sum()
                } else {
                    let first = |instance: &&Instance| instance.compute == 0;
                    at.gpu.instances.iter().filter(first).map(|instance| instance_used(at, instance)).sum()
                };
                let used = used + at.gpu.surprise.map_or(0, Surprise::hidden_memory);
                Self { total: board.memory_total, reserved: board.memory_reserved, used: used.min(room) }
            }
        }
    }

    fn free(&self) -> u64 {
        self.total - self.reserved - self.used
    }
}

/// Used bytes of the GPU instance; all its compute instances report the same.
fn instance_used(at: &Device<'_>, instance: &Instance) -> u64 {
    let present = at.gpu.timeline.present(at.now.elapsed);
    let together =
        |engine| at.gpu.instances.iter().any(|other| other.entry == instance.entry && other.engine == engine);
    let held: u64 =
        present.filter(|(_, worker, _)| together(worker.engine)).map(|(_, _, span)| span.memory).sum();
    (instance.profile.idle_mib * MIB + held).min(instance.profile.memory_mib * MIB)
}

device_calls! {
    // The first version counts reserved memory as used; before driver 510 it is left out of the total too.
    fn nvmlDeviceGetMemoryInfo(at, memory: Out<nvmlMemory_t>) {
        let all = Memory::of(at);
        if at.node.driver_major() < 510 {
            let total = all.total - all.reserved;
            return memory.put(nvmlMemory_t { total, free: all.free(), used: all.used });
        }
        memory.put(nvmlMemory_t { total: all.total, free: all.free(), used: all.used + all.reserved })
    }

    fn nvmlDeviceGetMemoryInfo_v2(at, memory: Out<nvmlMemory_v2_t>) {
        let version = memory.version()?;
        expect_version::<nvmlMemory_v2_t>(version, 2)?;
        let all = Memory::of(at);
        memory.put(nvmlMemory_v2_t {
            version,
            total: all.total,
            reserved: all.reserved,
            free: all.free(),
            used: all.used,
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(at, memory: Out<nvmlBAR1Memory_t>) {
        let board = at.gpu.board;
        let contexts = at.gpu.timeline.present(at.now.elapsed).count() as u64;
        let (total, used) = match at.instance {
            Some(instance) => (instance.profile.bar1_mib * MIB, 0),
            // MIG maps the whole frame buffer; otherwise the driver uses a few MiB.
            None if !at.gpu.divided => (board.bar1_total, (1 + 2 * contexts) * MIB),
            None => (board.bar1_total, board.memory_total - board.memory_reserved),
        };
        memory.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
    }
}
