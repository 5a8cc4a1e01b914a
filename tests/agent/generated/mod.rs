//! Files that are generated from the agent's output.

mod dcgm;
mod held;
mod nodes;
mod personas;
