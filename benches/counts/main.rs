//! Instruction and allocation counts, compared with `benches/budgets.toml`.
//!
//! `cargo bench --bench counts` fails when a budget is exceeded. It needs valgrind and gungraun-runner of the
//! same version as the crate (`GUNGRAUN_RUNNER` names it if it is not on the path). To add a benchmark: a
//! function in the file of its module, a section in the budgets, and, for a new module, its group below.
#![allow(clippy::panic, clippy::expect_used, unreachable_pub)]

mod account;
mod budget;
mod export;
#[path = "../../tests/code/export/fixture.rs"]
mod fixture;
mod made;

use account::account_path;
use export::encoders;
use gungraun::main;

main!(library_benchmark_groups = [account_path, encoders]);
