//! The only code that knows the driver: nvml-wrapper opens and initialises it, its raw function table does
//! the rest, through one door.
//!
//! In go catalogue rows, out come frames with readings as integers of their family's unit, or typed
//! absences. No NVML type, handle or code leaves this room; it knows no tenant, no price and no wire.
//!
//! The crate's methods are not used: those named like the C functions panic on a missing symbol, and its
//! safe layer asks for fields without a scope and refuses signed values.

#![allow(unsafe_code, reason = "the driver is a C library; every call goes through `Door::call`")]

mod activity;
mod attention;
mod belief;
mod calls;
mod door;
mod events;
mod fields;
mod footprint;
mod governor;
mod gpm;
mod identity;
mod instances;
mod inventory;
mod lane;
mod library;
mod lists;
mod placements;
mod plan;
mod probe;
mod processes;
mod quirks;
mod readings;
mod recording;
mod samples;
mod trust;

pub use door::{CallSlot, InFlight};
pub use events::{Event, Events, Told, Waited};
pub use inventory::{Found, count, driver_version, find};
pub use lane::Lane;
pub use library::{Library, OpenError};
pub use recording::Recorder;
