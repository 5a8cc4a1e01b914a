//! The library's modules without a running agent: pure code, files and the simulated driver, in time that the test moves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    unreachable_pub,
    unsafe_code,
    reason = "a test may panic"
)]

mod advice;
mod alerts;
mod attribution;
mod attribution_cases;
mod config;
mod config_mistakes;
mod costs;
mod dashboards;
mod events;
mod export;
mod fleet_costs;
mod generated;
mod health;
mod history;
mod holders;
mod holders_holdings;
mod host;
mod jobs;
mod laws;
mod ledger;
mod meter;
mod mig_walk;
mod names;
mod planning;
mod promql;
mod push;
mod rules;
mod sampler;
mod web_access;
