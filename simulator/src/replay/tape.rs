//! A recording in memory: questions, and their answers over time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use serde::{Deserialize, Deserializer};

use super::apart::RecordedSample;
use super::argument::Argument;
use crate::handles::Handles;

/// The only format that can be read.
const FORMAT: u32 = 1;

/// The first line.
#[derive(Deserialize)]
struct Head {
    gpumeter_recording: u32,
}

/// Any other line.
#[derive(Deserialize)]
struct Line {
    at: u64,
    call: String,
    #[serde(rename = "in", default)]
    question: Vec<TapeValue>,
    #[serde(default)]
    code: Option<u32>,
    #[serde(default)]
    out: Vec<TapeValue>,
}

/// An argument, as input or output.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TapeValue {
    None,
    Number(u64),
    Text(String),
    Handle(u32),
    Bytes(Hex),
}

/// Bytes, written as two hexadecimal digits each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hex(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let bytes: Option<Vec<u8>> = (0..digits.len().div_ceil(2))
            .map(|byte| u8::from_str_radix(digits.get(2 * byte..2 * byte + 2)?, 16).ok())
            .collect();
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("bytes are pairs of hexadecimal digits"))
    }
}

impl TapeValue {
    /// The number, if the value is one or consists of four bytes.
    pub(super) fn number(&self) -> Option<usize> {
        match self {
            Self::Number(number) => usize::try_from(*number).ok(),
            Self::Bytes(Hex(bytes)) => {
                bytes.as_slice().try_into().ok().map(|bytes| u32::from_ne_bytes(bytes) as usize)
            }
            _ => None,
        }
    }

    /// The 64 bits of a number; 0 for other values.
    pub(super) fn bits(&self) -> u64 {
        if let Self::Number(number) = self { *number } else { 0 }
    }
}

/// An answer, valid from its time on.
#[derive(Debug)]
pub(super) struct TimedAnswer {
    pub(super) at: u64,
    pub(super) code: Option<u32>,
    pub(super) out: Vec<TapeValue>,
}

/// The result of looking up a question.
pub(super) enum AnswerLookup<'a> {
    Answered(&'a TimedAnswer),
    /// The function was recorded, but only with other arguments.
    OtherArguments,
    Never,
}

/// The recorded answers of a function.
#[derive(Default)]
struct RecordedFunction {
    /// Arguments that were not recorded and are ignored, such as the last seen time.
    left_out: Vec<bool>,
    answers: HashMap<Vec<TapeValue>, Vec<TimedAnswer>>,
}

/// A recording.
pub(crate) struct Replay {
    known: HashMap<String, RecordedFunction>,
    /// In ascending time.
    pub(super) events: Vec<(u64, Vec<TapeValue>, Vec<TapeValue>)>,
    /// GPM samples of clients, absent until they are taken.
    pub(super) samples: Handles<Option<RecordedSample>>,
    /// Event sets of clients: how many events each has delivered or skipped.
    pub(super) sets: Handles<usize>,
}

/// Lines of this call are events, which are kept apart from answers.
const EVENT: &str = "nvmlEventData_t";

impl Replay {
    /// Reads a recording; the error says what is wrong and where.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut replay = Self {
            known: HashMap::new(),
            events: Vec::new(),
            samples: Handles::default(),
            sets: Handles::default(),
        };
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let told = |problem: String| format!("{}:{}: {problem}", path.display(), index + 1);
            let line = line.map_err(|error| told(error.to_string()))?;
            if index == 0 {
                first(&line).map_err(told)?;
            } else {
                replay.add(serde_json::from_str(&line).map_err(|error| told(error.to_string()))?);
            }
        }
        Ok(replay)
    }

    /// The index of a GPU by its handle; `None` for handles of MIG instances and unknown ones.
    pub(crate) fn index(&self, device: nvmlDevice_t) -> Option<u32> {
        let handle = device.question().ok()?;
        let known = self.known.get("nvmlDeviceGetHandleByIndex_v2")?;
        known.answers.iter().find_map(|(question, told)| {
            let given = told.iter().any(|told| told.out.contains(&handle));
            given.then(|| question.first()?.number()?.try_into().ok()).flatten()
        })
    }

    fn add(&mut self, line: Line) {
        let Line { at, call, question, code, out } = line;
        if call == EVENT {
            return self.events.push((at, question, out));
        }
        let known = self.known.entry(call).or_default();
        // An argument that was recorded at least once, such as the instance of a GPM sample, is part of questions.
        let left_out = question.iter().map(|value| *value == TapeValue::None);
        if known.answers.is_empty() {
            known.left_out = left_out.collect();
        } else {
            known.left_out.iter_mut().zip(left_out).for_each(|(known, now)| *known &= now);
        }
        known.answers.entry(question).or_default().push(TimedAnswer { at, code, out });
    }

    /// Whether the argument is a versioned structure: then the recording has a number there.
    pub(super) fn is_versioned(&self, function: &str, place: usize) -> bool {
        let question = self.known.get(function).and_then(|known| known.answers.keys().next());
        question.is_some_and(|question| matches!(question.get(place), Some(TapeValue::Number(_))))
    }

    /// The last answer at that time; before the first answer, the first.
    pub(super) fn at(&self, function: &str, mut question: Vec<TapeValue>, elapsed: u64) -> AnswerLookup<'_> {
        let Some(known) = self.known.get(function) else { return AnswerLookup::Never };
        for (value, left_out) in question.iter_mut().zip(&known.left_out) {
            if *left_out {
                *value = TapeValue::None;
            }
        }
        let Some(answers) = known.answers.get(&question) else { return AnswerLookup::OtherArguments };
        let before = answers.partition_point(|told| told.at <= elapsed);
        answers.get(before.saturating_sub(1)).map_or(AnswerLookup::OtherArguments, AnswerLookup::Answered)
    }
}

fn first(line: &str) -> Result<(), String> {
    let head: Head = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if head.gpumeter_recording == FORMAT {
        Ok(())
    } else {
        Err(format!("has format {}; only format {FORMAT} can be read", head.gpumeter_recording))
    }
}
