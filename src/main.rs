//! The gpumeter program: parse, call, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpumeter::cli::main()
}
