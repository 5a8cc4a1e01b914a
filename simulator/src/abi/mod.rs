//! The exported functions, by subject.
//!
//! In: calls of the C interface. Out: its codes and buffers. Every call goes through `on_node` or `on_device`,
//! which count it, apply its faults and check the handle. The answer comes from the node and its meters, and a
//! fault may corrupt it. Signatures and structures are those of nvml-wrapper-sys.

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

use crate::board::family;
use crate::channel::faults::{Call, FaultEffect};
use crate::clock::Now;
use crate::meters::Meters;
use crate::node::{Gpu, Instance, Node};
use crate::persona::Persona;
use crate::replay::Arguments;
use crate::state;
use answer::{Answer, FUNCTION_NOT_FOUND, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code};
use spoil::Distortion;

/// The GPU or MIG instance of a call, and the time at which the whole call is answered.
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

    /// Refuses calls that a GPU does not support in MIG mode.
    pub(crate) fn undivided(&self) -> Answer {
        if self.gpu.divided { Err(NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// Handles are numbers, not addresses: a wrong one is refused instead of followed. From the low bits: MIG device,
/// place, life of the board, load of the driver, this mark, MIG layout.
const HANDLE_MARK: usize = 0x6E76;
const PLACES: usize = 0x3FF;

/// The handle of a GPU, or of the instance at a position in its list.
pub(crate) fn handle(gpu: &Gpu, instance: Option<usize>) -> nvmlDevice_t {
    let part = instance.map_or(0, |position| position + 1) & 0x3F;
    let place = (gpu.slot as usize + 1) & PLACES;
    let (life, loads) = (gpu.life as usize & 0xFF, gpu.loads as usize & 0xFF);
    // Handles of GPUs outlive a MIG layout, those of instances do not.
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

/// Counts a call and applies its faults and delays. Returns how its answer is corrupted, and whether it has
/// waited: then the state may have changed.
fn begin_call(
    node: &Node,
    function: &'static str,
    slot: Option<u32>,
    of_instance: bool,
) -> Result<(Distortion, bool), Refused> {
    let number = node.report.count(function);
    let persona = node.scenario.persona;
    if persona.lacks(function) {
        return Err(FUNCTION_NOT_FOUND);
    }
    if let Some(debt) = node.debt(slot) {
        node.report.owe(function, debt.call(function));
    }
    let now = || node.clock.now();
    let call = Call { function, gpu: slot, of_instance, seed: node.scenario.seed, number, now: &now };
    let FaultEffect { garbage, waited } = node.faults.apply(call)?;
    let distortion = Distortion {
        garbage: garbage.then_some(node.scenario.seed ^ number),
        percent: function.contains("Utilization"),
        wide_processes: persona.widens(function),
        double_temperature: persona == Persona::R545DoubleTag,
    };
    Ok((distortion, waited || node.debt(slot).is_some()))
}

/// Answers a function without a GPU.
pub(crate) fn on_node(
    function: &'static str,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Node, Now) -> Answer,
) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        let (distortion, waited) = begin_call(&node, function, None, false)?;
        let node = if waited { state::node()? } else { node };
        let now = node.clock.now();
        node.report(now);
        spoil::with(distortion, || match &node.replay {
            Some(replay) => replay.answer(function, arguments, || node.clock.now().elapsed),
            None => body(&node, now),
        })
    }))
}

/// Answers a function about a GPU or a MIG device.
pub(crate) fn on_device(
    function: &'static str,
    device: nvmlDevice_t,
    arguments: Arguments<'_>,
    body: impl FnOnce(&Device<'_>) -> Answer,
) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        if let Some(replay) = &node.replay {
            let (distortion, _) = begin_call(&node, function, replay.index(device), false)?;
            return spoil::with(distortion, || {
                replay.answer(function, arguments, || node.clock.now().elapsed)
            });
        }
        // Faults name the scenario's number of the GPU, which the handle holds even if the GPU is lost.
        let found = find(&node, device);
        let of_instance = found.is_ok_and(|(_, instance)| instance.is_some());
        let slot = found.map(|(gpu, _)| gpu.slot);
        if slot == Err(INVALID_ARGUMENT) {
            node.report.count(function);
            return Err(INVALID_ARGUMENT);
        }
        let (distortion, waited) = begin_call(&node, function, slot.ok(), of_instance)?;
        let node = if waited { state::node()? } else { node };
        let (gpu, instance) = find(&node, device)?;
        let now = node.clock.now();
        node.report(now);
        if let Some(refused) = gpu.fate {
            return Err(refused);
        }
        if family::refuses(gpu.board, function) {
            return Err(NOT_SUPPORTED);
        }
        spoil::with(distortion, || body(&Device { node: &node, gpu, instance, now }))
    }))
}

/// Exports functions without a GPU; the body gets the node and the time.
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

/// Exports functions about a whole GPU, which MIG devices do not support.
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
