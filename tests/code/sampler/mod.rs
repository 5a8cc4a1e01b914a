//! A sampler over the simulated driver: how few calls it makes, what it still sees, and how it stretches.

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
