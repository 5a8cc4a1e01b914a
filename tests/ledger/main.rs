//! The ledger over real files: opening and refusing, commits and kills, prices and bills, and its laws.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod bills;
mod commits;
mod inventory;
mod latches;
mod laws;
mod opening;
mod upgrades;
mod world;
mod xids;
