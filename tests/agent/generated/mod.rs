//! Files that are generated from the agent's output.

mod personas;
