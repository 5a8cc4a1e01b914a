//! The exported functions, by subject, and the one way into each.
//!
//! In: calls of the C interface. Out: its codes and buffers. Every call goes through `on_node` or
//! `on_device`, which count it, let it suffer its faults and check the handle; what a function answers is
//! taken from the node and its meters. Signatures and structures are those of nvml-wrapper-sys.

#![allow(non_snake_case, reason = "the C names of NVML")]

pub(crate) mod answer;
pub(crate) mod buffers;
pub(crate) mod events;
pub(crate) mod gpm;

mod accounting;
mod affinity;
mod clocks;
mod compute;
mod engines;
mod enumeration;
mod fields;
mod health;
mod identity;
mod instances;
mod library;
mod links;
mod memory;
mod partitions;
mod pcie;
mod place;
mod power;
mod processes;
mod refusals;
mod samples;
mod system;
mod temperature;
mod utilization;
mod violations;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::clock::Now;
use crate::meters::Meters;
use crate::node::{Gpu, Instance, Node};
use crate::state;
use answer::{Answer, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code};

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
        if self.gpu.instances.is_empty() { Ok(()) } else { Err(NOT_SUPPORTED) }
    }
}

/// Handles are numbers, not addresses: a wrong one is recognised instead of followed.
const HANDLE_MARK: usize = 0x6E76_0000_0000;

/// The handle of a GPU, or of the instance at a position in its list.
pub(crate) fn handle(gpu: &Gpu, instance: Option<usize>) -> nvmlDevice_t {
    let part = instance.map_or(0, |position| position + 1);
    std::ptr::without_provenance_mut(HANDLE_MARK | (gpu.index as usize + 1) << 8 | part)
}

fn find(node: &Node, device: nvmlDevice_t) -> Result<(&Gpu, Option<&Instance>), Refused> {
    let number = device.addr() ^ HANDLE_MARK;
    let gpu = (number >> 8).checked_sub(1).and_then(|index| node.gpus.get(index)).ok_or(INVALID_ARGUMENT)?;
    let instance = match number & 0xFF {
        0 => None,
        part => Some(gpu.instances.get(part - 1).ok_or(INVALID_ARGUMENT)?),
    };
    Ok((gpu, instance))
}

/// The way into a function that concerns no GPU.
pub(crate) fn on_node(function: &'static str, body: impl FnOnce(&Node, Now) -> Answer) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        node.report.count(function);
        node.faults.suffer(function, None)?;
        let now = node.clock.now();
        node.report(now);
        body(&node, now)
    }))
}

/// The way into a function about a GPU or a MIG device.
pub(crate) fn on_device(
    function: &'static str,
    device: nvmlDevice_t,
    body: impl FnOnce(&Device<'_>) -> Answer,
) -> nvmlReturn_t {
    code(state::node().and_then(|node| {
        node.report.count(function);
        let (gpu, instance) = find(&node, device)?;
        node.faults.suffer(function, Some(gpu.index))?;
        let now = node.clock.now();
        node.report(now);
        body(&Device { node: &node, gpu, instance, now })
    }))
}

/// Exports functions that concern no GPU; the body sees the node and the time.
macro_rules! node_calls {
    ($(fn $name:ident($node:ident, $now:pat $(, $argument:ident: $kind:ty)*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::abi::on_node(stringify!($name), |$node, $now| $body)
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
            $crate::abi::on_device(stringify!($name), device, |$at| $body)
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
