//! A sampler over the simulated driver: its readings, its number of calls, and how it stretches intervals.

mod activity;
mod budget;
mod counters;
mod driver_budget;
mod driver_time;
mod fabric;
mod garbage;
mod gpm;
mod instances;
mod links;
mod presence;
mod quirks;
mod recording;
mod world;
