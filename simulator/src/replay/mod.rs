//! Answers from a recording of another driver, instead of from a scenario.
//!
//! In: the file that the scenario names under `recording`, as `gpumeter record` writes it, and the arguments
//! of a call. Out: what that driver had last answered to the same question at the same time since the
//! beginning; before its first answer the first, after the end the last. What was never asked is not supported.
//!
//! It knows bytes and names, and of the C interface only what a recording takes apart: batched fields, GPM
//! samples and event sets (`apart`).

mod apart;
mod argument;
mod tape;

pub(crate) use argument::Argument;
pub(crate) use tape::Replay;
use tape::{Asked, Value};

use crate::abi::answer::{
    Answer, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_SUPPORTED, Refused, code,
};

/// The arguments of one call, in their order.
pub(crate) type Arguments<'a> = &'a [&'a dyn Argument];

impl Replay {
    /// Answers a call; the time is that since the beginning of the recording.
    pub(crate) fn answer(&self, function: &str, arguments: Arguments<'_>, now: impl Fn() -> u64) -> Answer {
        if function.starts_with("nvmlEventSetWait") {
            return self.wait(arguments, now);
        }
        let elapsed = now();
        let apart = self.apart(function, arguments, elapsed);
        apart.unwrap_or_else(|| self.plain(function, arguments, elapsed))
    }

    /// A call whose arguments stand in the recording one by one.
    fn plain(&self, function: &str, arguments: Arguments<'_>, elapsed: u64) -> Answer {
        let question = arguments.iter().enumerate().map(|(place, argument)| match argument.place() {
            // The first word of such a structure says which version of it is wanted.
            Some(structure) if self.is_versioned(function, place) => {
                // SAFETY: not null, so by NVML's contract the caller's structure, whose version is set.
                Ok(Value::Number(unsafe { structure.cast::<u32>().read_unaligned() }.into()))
            }
            _ => argument.question(),
        });
        let question = question.collect::<Result<Vec<_>, _>>()?;
        let answer = match self.at(function, question, elapsed) {
            Asked::Answered(answer) => answer,
            // Asked about something else: an index above the count, say.
            Asked::Otherwise => return Err(INVALID_ARGUMENT),
            Asked::Never => return Err(NOT_SUPPORTED),
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

/// Which argument of a function is an array, and which says for how many items there is room.
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

/// By NVML's custom: more items than the caller has room for are not told, only how many they are.
fn fits(arguments: Arguments<'_>, out: &[Value], count: usize) -> Answer {
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
