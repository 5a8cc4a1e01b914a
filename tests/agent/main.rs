//! The real binary over the simulated driver library, with scripted faults and bad input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test may panic")]

mod account;
mod bad_input;
mod device;
mod doctor;
mod faults;
mod health;
mod lifecycle;
mod overload;
mod reload;
mod replay;
mod running;
mod scrape;
mod systemd;
mod unread;
