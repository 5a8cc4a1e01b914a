//! Answers from a recording of another driver instead of a scenario.
//!
//! In: the file that the scenario names under `recording`, as `gpumeter record` writes it, and the arguments of a
//! call. Out: the last recorded answer to the same question at the same time since the beginning; before the
//! first answer the first, after the end the last. A function that was never recorded is not supported.
//!
//! Answers are bytes and names here; only batched fields, GPM samples and event sets are recorded in parts and
//! put together again (`apart`).

mod apart;
mod argument;
mod tape;

pub(crate) use argument::Argument;
pub(crate) use tape::Replay;
use tape::{AnswerLookup, TapeValue};

use crate::abi::answer::{
    Answer, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code,
};

/// The arguments of one call, in their order.
pub(crate) type Arguments<'a> = &'a [&'a dyn Argument];

impl Replay {
    /// Answers a call; `now` returns nanoseconds since the beginning of the recording.
    pub(crate) fn answer(&self, function: &str, arguments: Arguments<'_>, now: impl Fn() -> u64) -> Answer {
        if function.starts_with("nvmlEventSetWait") {
            return self.wait(arguments, now);
        }
        let elapsed = now();
        let apart = self.apart(function, arguments, elapsed);
        apart.unwrap_or_else(|| self.plain(function, arguments, elapsed))
    }

    /// Answers a call that is recorded argument by argument.
    fn plain(&self, function: &str, arguments: Arguments<'_>, elapsed: u64) -> Answer {
        let question = arguments.iter().enumerate().map(|(place, argument)| match argument.place() {
            // The first word of such a structure names its version.
            Some(structure) if self.is_versioned(function, place) => {
                // SAFETY: not null, so by NVML's contract the caller's structure, whose version is set.
                Ok(TapeValue::Number(unsafe { structure.cast::<u32>().read_unaligned() }.into()))
            }
            _ => argument.question(),
        });
        let question = question.collect::<Result<Vec<_>, _>>()?;
        let answer = match self.at(function, question, elapsed) {
            AnswerLookup::Answered(answer) => answer,
            // Recorded only with other arguments; this may be an index above the count.
            AnswerLookup::OtherArguments => return Err(INVALID_ARGUMENT),
            AnswerLookup::Never => return Err(NOT_SUPPORTED),
        };
        Refused::with(answer.code.unwrap_or(code(Err(FUNCTION_NOT_FOUND))))?;
        if let Some((_, count)) = array(function) {
            fits(arguments, &answer.out, count)?;
        }
        for (place, (argument, value)) in arguments.iter().zip(&answer.out).enumerate() {
            // The length of a text's buffer is the argument after it.
            let room = arguments.get(place + 1).and_then(|length| length.number()).unwrap_or(0);
            argument.fill(value, room)?;
        }
        Ok(())
    }
}

/// The positions of a function's array argument and of its count.
fn array(function: &str) -> Option<(usize, usize)> {
    match function {
        "nvmlDeviceGetProcessUtilization" => Some((1, 2)),
        "nvmlDeviceGetSamples" => Some((5, 4)),
        "nvmlDeviceGetAccountingPids" | "nvmlDeviceGetSupportedMemoryClocks" => Some((2, 1)),
        name if name.contains("RunningProcesses") => Some((2, 1)),
        name if name.contains("PossiblePlacements") => Some((2, 3)),
        _ => None,
    }
}

/// Fails if the array is too small, and writes how many items there are, as NVML does.
fn fits(arguments: Arguments<'_>, out: &[TapeValue], count: usize) -> Answer {
    let (Some(argument), Some(value)) = (arguments.get(count), out.get(count)) else {
        return Err(INVALID_ARGUMENT);
    };
    let room = argument.number().ok_or(INVALID_ARGUMENT)?;
    if value.number().is_some_and(|items| items <= room) {
        return Ok(());
    }
    argument.fill(value, 0)?;
    Err(INSUFFICIENT_SIZE)
}
