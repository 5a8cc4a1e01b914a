//! The library itself and the system: init, shutdown, versions, names of processes.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::answer::{self, INVALID_ARGUMENT, NOT_FOUND, code};
use super::buffers::{Out, text};
use super::{begin_call, node_calls};
use crate::state;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    initialise("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    initialise("nvmlInit")
}

/// The flags (no GPUs, no attach) are ignored: the simulated GPUs are always attached.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    initialise("nvmlInitWithFlags")
}

/// Faults are applied after the scenario is read.
fn initialise(function: &'static str) -> nvmlReturn_t {
    code(state::initialise().and_then(|()| {
        let node = state::any_node()?;
        // A failed init is not counted as a user.
        begin_call(&node, function, None, false).map(|_| ()).or_else(|refused| {
            state::shut_down()?;
            Err(refused)
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(state::any_node().and_then(|node| {
        begin_call(&node, "nvmlShutdown", None, false)?;
        drop(node);
        state::shut_down()
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    answer::text(result).as_ptr()
}

node_calls! {
    fn nvmlSystemGetDriverVersion(node, _, version: Out<c_char>, length: c_uint) {
        text(version, length, &node.driver_version)
    }

    fn nvmlSystemGetNVMLVersion(node, _, version: Out<c_char>, length: c_uint) {
        let major = node.cuda_version / 1000;
        text(version, length, &format!("{major}.{}", node.driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion(node, _, version: Out<c_int>) {
        version.put(node.cuda_version)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(node, _, version: Out<c_int>) {
        version.put(node.cuda_version)
    }

    fn nvmlSystemGetProcessName(node, _, pid: c_uint, name: Out<c_char>, length: c_uint) {
        let known = node.name(pid).ok_or(NOT_FOUND)?;
        if length == 0 {
            return Err(INVALID_ARGUMENT);
        }
        // Cut to the buffer, as the header says.
        let cut: String = known.chars().scan(0, |used, letter| {
            *used += letter.len_utf8();
            (*used < length as usize).then_some(letter)
        }).collect();
        text(name, length, &cut)
    }
}
