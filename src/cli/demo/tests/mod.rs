//! Pages of simulated nodes, compared with those below `tests/golden`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod dcgm_page;
mod held;
mod nodes;
