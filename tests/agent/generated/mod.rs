//! Files that are generated from the agent's output.

mod held;
mod nodes;
mod personas;
