//! A lane over the simulated driver: how few calls it makes, what it sees by them, and that it gives way.

mod activity;
mod budget;
mod counters;
mod driver_budget;
mod driver_time;
mod garbage;
mod gpm;
mod instances;
mod links;
mod presence;
mod quirks;
mod recording;
mod world;
