//! A simulated `libnvidia-ml.so.1`: it implements NVML's C interface for GPUs that do not exist.
//!
//! In: `scenario`, `clock`, `faults` and `state` in the directory of this library.
//! Out: the C functions of NVML, and in the same directory `truth` (what the GPUs really did) and `calls`.
//! Every answer follows from these files and the time, so restarts and several readers agree.
//!
//! It shares no code with the agent, so that it can judge it: its truth comes from a scheduler of slices
//! (`schedule`), and clients see meters (`meters`) with the distortions of real ones. README.md describes
//! the files.
//!
//! The library must stay unloadable: no thread-local with a destructor and nothing that reaches `thread::current()`
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

/// Marks a simulated library for clients; the real one has no such symbol.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C symbol")]
pub static gpumeter_simulated: u32 = 1;
