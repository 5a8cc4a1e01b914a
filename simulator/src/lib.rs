//! A simulated `libnvidia-ml.so.1`: GPUs that are not there, answering the real NVML C interface.
//!
//! In: a directory (the one this library lies in) with a `scenario`, a `clock` page, `faults` and `state`.
//! Out: the C functions of NVML, and in the same directory `truth` (what the GPUs really did) and `calls`.
//! Every answer is a function of these files, so restarts and several readers agree.
//!
//! It deliberately knows nothing of the agent: it shares no code with it, and its truth comes from a
//! scheduler of slices (`schedule`), while what clients see are meters (`meters`) with the distortions of
//! the real ones. See README.md for the files.
//!
//! Must stay unloadable: no thread-local with a destructor and nothing that reaches `thread::current()`
//! (`thread::spawn`, `mpsc`, `catch_unwind`): the first pins the library, the second crashes the client
//! when a thread ends after `dlclose`.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod abi;
mod board;
mod channel;
mod clock;
mod condition;
mod handles;
mod meters;
mod mig;
mod node;
pub mod persona;
mod replay;
mod schedule;
mod state;
mod surprise;

/// Locks a mutex, even after another holder panicked: nothing here is left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells a client that the GPUs behind this library are simulated; the real library has no such symbol.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C symbol")]
pub static gpumeter_simulated: u32 = 1;
