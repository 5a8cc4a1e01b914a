//! Writes a copy of the simulated library that lacks what an older driver's lacks.
//!
//! `cargo run -p gpumeter-simulator --example persona -- r470 libnvidia_ml.so node/libnvidia-ml.so.1`

use std::io::Write;
use std::process::ExitCode;

use nvidia_ml::persona::{Persona, without};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match copy(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "{reason}");
            ExitCode::FAILURE
        }
    }
}

fn copy(arguments: &[String]) -> Result<(), String> {
    let names = Persona::names().collect::<Vec<_>>().join(", ");
    let [name, from, to] = arguments else {
        return Err(format!("usage: persona NAME LIBRARY COPY; the names are {names}"));
    };
    let persona =
        Persona::named(name).ok_or_else(|| format!("{name}: no such persona; there are {names}"))?;
    let library = std::fs::read(from).map_err(|error| format!("{from}: {error}"))?;
    let copy = without(&library, &persona.missing()).map_err(|reason| format!("{from}: {reason}"))?;
    std::fs::write(to, copy).map_err(|error| format!("{to}: {error}"))
}
