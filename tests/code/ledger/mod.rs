//! The ledger over real files: opening and refusing, commits and kills, prices and bills, and its laws.

mod bills;
mod commits;
mod copies;
mod damaged_exports;
mod evidence;
mod excerpts;
mod explanations;
mod exports;
mod focus;
mod inventory;
mod laws;
mod month;
mod month_costs;
mod opening;
mod page;
mod retention;
mod statements;
mod sticky_faults;
mod upgrades;
mod versions;
mod world;
mod xids;
