//! The real binary over the simulated driver library, with scripted faults and bad input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod account;
mod advice;
mod bad_input;
mod containers;
mod device;
mod docker;
mod doctor;
mod explain;
mod exports;
mod faults;
mod fleet;
mod generated;
mod health;
mod history;
mod jobs;
mod kubelet;
mod kubelet_clients;
mod kubernetes_api;
mod lifecycle;
mod mig;
mod overload;
mod own_families;
mod pods;
mod reload;
mod replay;
mod running;
mod scrape;
mod serve;
mod slurm_health;
mod slurm_summary;
mod systemd;
mod top;
mod unread;
mod web;
mod what_if;
