//! The simulated driver library, called through NVML's C interface. Every test has its own copy of the library, with its
//! own state.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accounting;
mod boards;
mod buffers;
mod channel;
mod clients;
mod families;
mod faults;
mod gpm;
mod header;
mod health;
mod links;
mod mig;
mod node;
mod persona;
mod place;
mod processes;
mod random;
mod raw;
mod samples;
mod state;
mod support;
mod symbols;
mod walk;
mod xids;
