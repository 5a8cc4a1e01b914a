//! Settles segments of one GPU as the agent's account does, to check a case by hand.
//!
//! `cargo run --features examples --example settle -- FILE...` reads segments as JSON, in the format of
//! `tests/fixtures/account-examples.json`: a list of them, or one; each by itself, or as `segment` beside a `note` and a
//! `result`, which are not read. It prints the result of each on a line of its own, in the form of `result` there, as far
//! as rows of the account have it: held time without what is nested in it, use within holdings as one number.
//! Times are integers in nanoseconds, energies in microjoules, fractions and carries "n/d". A segment has:
//!
//! - `t0`, `t1`; `mig`: whether the slots are MIG instances, which have no weights;
//! - `layout`: the placements of the GPU (`total`) and of each of its `slots`, `unallocated` and `stranded`; null between
//!   two epochs, when all time is unavailable and `slots` is empty;
//! - `covered_by`: user or holder to the holder whose holding covers it; a covered holding is nested;
//! - `slots`: of each its `state` (measured, unmeasured, unavailable), `holdings` (`holder`, `fraction`, `rank`; those of
//!   equal rank, or without any, that do not fit together share equally, none above its claim) and `ticks`. A tick has
//!   `busy`, `weights`, `memory` and `present`, `blind` where processes cannot be seen, `previous` (the weights of the
//!   window before) and `length`; without a length ticks are equal parts of the segment. `memory`, `present` and
//!   `previous` may be given for the whole slot; a tick with `present` has nobody else. Instances are named `gi1`, a
//!   whole GPU `gpu`; `u_kind` `__unobserved__` marks unobserved time;
//! - `energy`: `delta` of the driver's counter and `floor`, the most that can be idle energy;
//! - `carry`: what the segment before printed.
//!
//! An invalid file ends the program with status 1 and the place of the error; earlier results are printed.
#![allow(clippy::print_stderr, unreachable_pub, reason = "a program for people")]

mod print;
mod read;

use std::io::Write;
use std::process::ExitCode;

use gpumeter::meter::attribution::settle;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() || files.iter().any(|file| file.starts_with('-')) {
        eprintln!("usage: settle FILE...");
        return ExitCode::from(2);
    }
    for file in &files {
        if let Err(problem) = settle_file(file) {
            eprintln!("{file}: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn settle_file(file: &str) -> Result<(), read::Problem> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))?;
    for (place, segment) in read::segments(&text)?.iter().enumerate() {
        let read::Segment { spans, carry, previous, .. } = segment;
        let (from, to) = (spans[0].from, spans[spans.len() - 1].to);
        let settled =
            settle(from, to, spans, carry, previous).map_err(|error| format!("segment {place}: {error}"))?;
        writeln!(std::io::stdout(), "{}", print::result(segment, &settled))
            .map_err(|error| format!("segment {place}: cannot be printed: {error}"))?;
    }
    Ok(())
}
