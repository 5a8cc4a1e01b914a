//! The exported functions, by subject, and the one way into each.
//!
//! In: calls of the C interface. Out: its codes and buffers. Every call goes through `on_node` or
//! `on_device`, which count it, let it suffer its faults and check the handle; what a function answers is
//! taken from the node and its meters, and may be spoilt on its way out. Signatures and structures are those of nvml-wrapper-sys.

#![allow(non_snake_case, reason = "the C names of NVML")]

pub(crate) mod answer;
pub(crate) mod buffers;
pub(crate) mod events;
pub(crate) mod gpm;

mod accounting;
mod affinity;
mod clocks;
mod compute_instances;
mod engines;
mod enumeration;
mod fields;
mod gpu_instances;
mod health;
mod identity;
mod library;
mod link_fields;
mod links;
mod memory;
mod mig;
mod pcie;
mod place;
mod power;
mod processes;
mod refusals;
mod samples;
mod spoil;
mod system;
mod temperature;
mod utilization;
mod violations;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::channel::faults::{Call, Suffered};
use crate::clock::Now;
use crate::meters::Meters;
use crate::node::{Gpu, Instance, Node};
use crate::persona::Persona;
use crate::replay::Arguments;
use crate::state;
use answer::{Answer, FUNCTION_NOT_FOUND, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code};
use spoil::Temper;

/// A GPU or MIG instance that a call is about, and the one time at which it is answered.
pub(crate) struct Device<'a> {
    pub(crate) node: &'a Node,
    pub(crate) gpu: &'a Gpu,
    /// Set for the handle of a MIG device.
    pub(crate) instance: Option<&'a Instance>,
    pub(crate) now: Now,
}

impl Device<'_> {
    pub(crate) fn meters(&self) -> Meters<'_> {
        let Gpu { timeline, board, warmer, surprise, .. } = self.gpu;
        Meters { timeline, board, warmer: *warmer, surprise: *surprise, elapsed: self.now.elapsed }
    }

    /// Refuses what a GPU does not answer while it is cut into MIG instances.
    pub(crate) fn undivided(&self) -> Answer {
        if self.gpu.divided { Err(NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// Handles are numbers, not addresses: a wrong one is recognised instead of followed. From below: the part of
/// the GPU, its place, the life of its board, the loading of the driver, the mark, the MIG layout.
const HANDLE_MARK: usize = 0x6E76;
const PLACES: usize = 0x3FF;

/// The handle of a GPU, or of the instance at a position in its list.
pub(crate) fn handle(gpu: &Gpu, instance: Option<usize>) -> nvmlDevice_t {
    let part = instance.map_or(0, |position| position + 1) & 0x3F;
    let place = (gpu.slot as usize + 1) & PLACES;
    let (life, loads) = (gpu.life as usize & 0xFF, gpu.loads as usize & 0xFF);
    // Handles of GPUs outlive their layout, those of instances do not.
    let cut = if instance.is_some() { gpu.cut as usize & 0x3FF } else { 0 };
    let number = cut << 48 | HANDLE_MARK << 32 | loads << 24 | life << 16 | place << 6 | part;
    std::ptr::without_provenance_mut(number)
}

fn find(node: &Node, device: nvmlDevice_t) -> Result<(&Gpu, Option<&Instance>), Refused> {
    let number = device.addr();
    let slot = (number >> 6 & PLACES).checked_sub(1).and_then(|slot| u32::try_from(slot).ok());
    let place =
        slot.filter(|slot| number >> 32 & 0xFFFF == HANDLE_MARK && (*slot as usize) < node.slots.len());
    let slot = place.ok_or(INVALID_ARGUMENT)?;
    let gpu = node.in_slot(slot).ok_or(GPU_IS_LOST)?;
    let part = number & 0x3F;
    if number >> 24 & 0xFF != gpu.loads as usize & 0xFF {
        return Err(INVALID_ARGUMENT);
    }
    if number >> 16 & 0xFF != gpu.life as usize & 0xFF {
        return Err(GPU_IS_LOST);
    }
    if part == 0 {
        return Ok((gpu, None));
    }
    let same_layout = number >> 48 == gpu.cut as usize & 0x3FF;
    let instance = gpu.instances.get(part - 1).filter(|_| same_layout).ok_or(INVALID_ARGUMENT)?;
    Ok((gpu, Some(instance)))
}

/// Counts a call and lets it suffer faults and delays; tells how what it writes is spoilt, and whether it
/// has waited, so that the state may be another now.
fn suffer(
    node: &Node,
    function: &'static str,
    slot: Option<u32>,
    of_instance: bool,
) -> Result<(Temper, bool), Refused> {
    let number = node.report.count(function);
    let persona = node.scenario.persona;
    if persona.lacks(function) {
        return Err(FUNCTION_NOT_FOUND);
    }
    if let Some(debt) = node.debt(slot) {
        node.report.owe(function, debt.call(function));
    }
    let elapsed = || node.clock.now().elapsed;
    let call = Call { function, gpu: slot, of_instance, seed: node.scenario.seed, number, elapsed: &elapsed };
    let Suffered { garbage, waited } = node.faults.suffer(call)?;
    if persona.refuses(function) {
        return Err(NOT_SUPPORTED);
    }
    let temper = Temper {
        garbage: garbage.then_some(node.scenario.seed ^ number),
        percent: function.contains("Utilization"),
        wide_processes: persona.widens(function),
        double_temperature: persona == Persona::R545DoubleTag,
    };
    Ok((temper, waited || node.debt(slot).is_some()))
}

/// The way into a function that concerns no GPU.
pub(crate) fn on_node(
    function: &'static str,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Node, Now) -> Answer,
) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        let (temper, waited) = suffer(&node, function, None, false)?;
        let node = if waited { state::node()? } else { node };
        let now = node.clock.now();
        node.report(now);
        spoil::with(temper, || match &node.replay {
            Some(replay) => replay.answer(function, arguments, || node.clock.now().elapsed),
            None => body(&node, now),
        })
    }))
}

/// The way into a function about a GPU or a MIG device.
pub(crate) fn on_device(
    function: &'static str,
    device: nvmlDevice_t,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Device<'_>) -> Answer,
) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        if let Some(replay) = &node.replay {
            let (temper, _) = suffer(&node, function, replay.index(device), false)?;
            return spoil::with(temper, || replay.answer(function, arguments, || node.clock.now().elapsed));
        }
        // Faults have the number of the scenario, which the handle has too, whatever became of the GPU.
        let found = find(&node, device);
        let of_instance = found.is_ok_and(|(_, instance)| instance.is_some());
        let slot = found.map(|(gpu, _)| gpu.slot);
        if slot == Err(INVALID_ARGUMENT) {
            node.report.count(function);
            return Err(INVALID_ARGUMENT);
        }
        let (temper, waited) = suffer(&node, function, slot.ok(), of_instance)?;
        let node = if waited { state::node()? } else { node };
        let (gpu, instance) = find(&node, device)?;
        let now = node.clock.now();
        node.report(now);
        if let Some(refused) = gpu.fate {
            return Err(refused);
        }
        spoil::with(temper, || body(&Device { node: &node, gpu, instance, now }))
    }))
}

/// Exports functions that concern no GPU; the body sees the node and the time.
macro_rules! node_calls {
    ($(fn $name:ident($node:ident, $now:pat $(, $argument:ident: $kind:ty)*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let arguments: $crate::replay::Arguments<'_> = &[$(&$argument),*];
            $crate::abi::on_node(stringify!($name), arguments, |$node, $now| $body)
        }
    )* };
}

/// Exports functions about a GPU or a MIG device.
macro_rules! device_calls {
    ($(fn $name:ident($at:pat $(, $argument:ident: $kind:ty)*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            device: nvml_wrapper_sys::bindings::nvmlDevice_t,
            $($argument: $kind),*
        ) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            let arguments: $crate::replay::Arguments<'_> = &[&device, $(&$argument),*];
            $crate::abi::on_device(stringify!($name), device, arguments, |$at| $body)
        }
    )* };
}

/// Exports functions about a whole GPU, which MIG devices do not answer.
macro_rules! gpu_calls {
    ($(fn $name:ident($at:ident $(, $argument:ident: $kind:ty)*) $body:block)*) => {
        $crate::abi::device_calls! { $(
            fn $name($at $(, $argument: $kind)*) {
                if $at.instance.is_some() {
                    return Err($crate::abi::answer::NOT_SUPPORTED);
                }
                $body
            }
        )* }
    };
}

pub(crate) use {device_calls, gpu_calls, node_calls};
