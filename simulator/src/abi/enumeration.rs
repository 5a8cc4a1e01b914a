//! Finding GPUs: counts and handles.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::answer::{Answer, GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND};
use super::buffers::{Out, Text};
use super::{handle, node_calls};
use crate::node::{Gpu, Node};

node_calls! {
    fn nvmlDeviceGetCount_v2(node, _, count: Out<c_uint>) {
        count.put(node.gpus.len().try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetCount(node, _, count: Out<c_uint>) {
        count.put(node.gpus.len().try_into().unwrap_or(c_uint::MAX))
    }

    fn nvmlDeviceGetHandleByIndex_v2(node, _, index: c_uint, device: Out<nvmlDevice_t>) {
        by_index(node, index, device)
    }

    fn nvmlDeviceGetHandleByIndex(node, _, index: c_uint, device: Out<nvmlDevice_t>) {
        by_index(node, index, device)
    }

    fn nvmlDeviceGetHandleByUUID(node, _, uuid: Text, device: Out<nvmlDevice_t>) {
        let uuid = uuid.get()?;
        for gpu in &node.gpus {
            if gpu.uuid == uuid {
                return put(gpu, None, device);
            }
            if let Some(position) = gpu.instances.iter().position(|instance| instance.uuid == uuid) {
                return put(gpu, Some(position), device);
            }
        }
        Err(NOT_FOUND)
    }

    fn nvmlDeviceGetHandleBySerial(node, _, serial: Text, device: Out<nvmlDevice_t>) {
        let serial = serial.get()?;
        by(node, device, |gpu| gpu.board.part.is_some() && gpu.serial == serial)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(node, _, bus: Text, device: Out<nvmlDevice_t>) {
        by_bus(node, bus, device)
    }

    fn nvmlDeviceGetHandleByPciBusId(node, _, bus: Text, device: Out<nvmlDevice_t>) {
        by_bus(node, bus, device)
    }
}

fn by_index(node: &Node, index: c_uint, device: Out<nvmlDevice_t>) -> Answer {
    let gpu = node.gpus.get(index as usize).ok_or(INVALID_ARGUMENT)?;
    put(gpu, None, device)
}

/// The handle; a GPU that is lost has none.
fn put(gpu: &Gpu, instance: Option<usize>, device: Out<nvmlDevice_t>) -> Answer {
    match gpu.fate {
        Some(GPU_IS_LOST) => Err(GPU_IS_LOST),
        _ => device.put(handle(gpu, instance)),
    }
}

fn by(node: &Node, device: Out<nvmlDevice_t>, which: impl Fn(&Gpu) -> bool) -> Answer {
    let gpu = node.gpus.iter().find(|gpu| which(gpu)).ok_or(NOT_FOUND)?;
    put(gpu, None, device)
}

/// Takes `domain:bus:device.function` or `domain:bus:device` with any number of leading zeros.
fn by_bus(node: &Node, text: Text, device: Out<nvmlDevice_t>) -> Answer {
    let text = text.get()?;
    let place = text.split_once('.').map_or(text, |(place, _)| place);
    let numbers: Result<Vec<u32>, _> = place.split(':').map(|part| u32::from_str_radix(part, 16)).collect();
    let (domain, bus, slot) = match numbers.map_err(|_| INVALID_ARGUMENT)?.as_slice() {
        [domain, bus, slot] => (*domain, *bus, *slot),
        [bus, slot] => (0, *bus, *slot),
        _ => return Err(INVALID_ARGUMENT),
    };
    by(node, device, |gpu| gpu.domain == domain && gpu.bus == bus && slot == 0)
}
