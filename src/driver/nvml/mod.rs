//! The only code that knows the driver. nvml-wrapper loads and initialises the library; every other call goes
//! through its raw function table and `DriverApi::call`.
//!
//! The catalogue's rows go in; frames come out, with readings as integers of their family's unit or typed
//! absences. No NVML type, handle or code leaves this module.
//!
//! The crate's methods are not used: those named like the C functions panic on a missing symbol, and its
//! safe layer reads fields without a scope and refuses signed values.

#![allow(unsafe_code, reason = "the driver is a C library; every call goes through `DriverApi::call`")]

mod activity;
mod calls;
mod driver_api;
mod driver_budget;
mod events;
mod fields;
mod file_ownership;
mod gpm;
mod identity;
mod inventory;
mod library;
mod mig_instances;
mod mig_placements;
mod plan;
mod plausibility;
mod probe;
mod process_lists;
mod process_samples;
mod process_schedule;
mod quirks;
mod readings;
mod recording;
mod sampler;
mod utilization_ring;

pub use driver_api::CallSlot;
pub use events::{DriverEvent, DriverEventKind, EventSet, EventWait};
pub use inventory::{FoundGpu, count, driver_version, find};
pub use library::{Library, OpenError};
pub use recording::Recorder;
pub use sampler::Sampler;
