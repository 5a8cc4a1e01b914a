//! Files that are generated from what the agent shows.

mod held;
mod nodes;
mod personas;
