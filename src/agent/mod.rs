//! The running agent: threads, and what follows from a configuration.
//!
//! Comes in: a validated configuration and the machine. Goes out: a daemon that samples, keeps the account and answers.
//! Does not know: the command line. Only this folder wires the others together.
//!
//! - [`policy`]: what follows from a configuration: sampling schedule, grants, prices.
//! - [`resolvers`]: threads that ask /proc, kubelet, Slurm, runtimes and the name service.
//! - [`session`]: opens and closes the driver; samplers, events, kernel log, recordings.
//! - [`control`]: the local socket: quiesce, probe, inventory, statements.
//! - [`app`]: wiring: starts and ends the threads, reloads the configuration.

pub mod app;
pub mod control;
pub mod policy;
pub mod resolvers;
pub mod session;
