//! What any daemon needs and nothing about GPUs: time, threads, log, files, systemd, HTTP as a client.
//!
//! Comes in: nothing but the machine. Goes out: the one clock, named threads, log lines, opened and replaced files, TLS of a client.
//! Does not know: GPUs, holders, money, configuration. Of `model` it takes `Nanoseconds`, `Utc` and `Stamp` alone, which
//! `tests/architecture` checks, so that it becomes no drawer.
//!
//! - [`clock`]: the one source of time; demo and tests set it by a file.
//! - [`thread`]: starts named threads, and ends the agent when a vital one fails.
//! - [`log`]: writes log lines to standard error on a thread of its own.
//! - [`trace`]: spans of the agent's own work.
//! - [`systemd`]: tells systemd of readiness, reloads and stop, and feeds its watchdog.
//! - [`file`]: opens, replaces, locks and owns files.
//! - [`http`]: PEM files, a client's TLS, one HTTP request on its own connection.

pub mod clock;
pub mod file;
pub mod http;
pub mod log;
pub mod systemd;
pub mod thread;
pub mod trace;
