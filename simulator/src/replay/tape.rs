//! A recording in memory: what was asked, and what was answered when.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use serde::{Deserialize, Deserializer};

use super::apart::RecordedSample;
use super::argument::Argument;
use crate::handles::Handles;

/// The one format that is read.
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
    question: Vec<Value>,
    #[serde(default)]
    code: Option<u32>,
    #[serde(default)]
    out: Vec<Value>,
}

/// An argument, on its way in or out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Value {
    None,
    Number(u64),
    Text(String),
    Handle(u32),
    Bytes(Hex),
}

/// Bytes, from two digits each.
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

impl Value {
    /// The number, where it is one or four bytes that may be one.
    pub(super) fn number(&self) -> Option<usize> {
        match self {
            Self::Number(number) => usize::try_from(*number).ok(),
            Self::Bytes(Hex(bytes)) => {
                bytes.as_slice().try_into().ok().map(|bytes| u32::from_ne_bytes(bytes) as usize)
            }
            _ => None,
        }
    }

    /// The 64 bits of a number; 0 for what is none.
    pub(super) fn bits(&self) -> u64 {
        if let Self::Number(number) = self { *number } else { 0 }
    }
}

/// An answer from its time on.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) at: u64,
    pub(super) code: Option<u32>,
    pub(super) out: Vec<Value>,
}

/// What came of looking for a question.
pub(super) enum Asked<'a> {
    Answered(&'a Told),
    /// Only of other arguments.
    Otherwise,
    Never,
}

/// Everything that is known of a function.
#[derive(Default)]
struct Known {
    /// Arguments that are no part of a question, such as since when: none was taken down.
    left_out: Vec<bool>,
    answers: HashMap<Vec<Value>, Vec<Told>>,
}

/// A recording.
pub(crate) struct Replay {
    known: HashMap<String, Known>,
    /// By time.
    pub(super) events: Vec<(u64, Vec<Value>, Vec<Value>)>,
    /// GPM samples of clients, absent until they are taken.
    pub(super) samples: Handles<Option<RecordedSample>>,
    /// Event sets of clients: how many events each has delivered or skipped.
    pub(super) sets: Handles<usize>,
}

/// Of an event's structure, each happened by itself.
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

    /// The index of a GPU by its handle; none for a MIG instance's or a foreign handle.
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
        // A place that was none once and something another time, such as the instance of a GPM sample, is one.
        let left_out = question.iter().map(|value| *value == Value::None);
        if known.answers.is_empty() {
            known.left_out = left_out.collect();
        } else {
            known.left_out.iter_mut().zip(left_out).for_each(|(known, now)| *known &= now);
        }
        known.answers.entry(question).or_default().push(Told { at, code, out });
    }

    /// Whether a number was recorded at a place: where a structure goes in, that is its version.
    pub(super) fn is_versioned(&self, function: &str, place: usize) -> bool {
        let question = self.known.get(function).and_then(|known| known.answers.keys().next());
        question.is_some_and(|question| matches!(question.get(place), Some(Value::Number(_))))
    }

    /// What was answered last at that time; before the first answer, the first.
    pub(super) fn at(&self, function: &str, mut question: Vec<Value>, elapsed: u64) -> Asked<'_> {
        let Some(known) = self.known.get(function) else { return Asked::Never };
        for (value, left_out) in question.iter_mut().zip(&known.left_out) {
            if *left_out {
                *value = Value::None;
            }
        }
        let Some(answers) = known.answers.get(&question) else { return Asked::Otherwise };
        let before = answers.partition_point(|told| told.at <= elapsed);
        answers.get(before.saturating_sub(1)).map_or(Asked::Otherwise, Asked::Answered)
    }
}

fn first(line: &str) -> Result<(), String> {
    let head: Head = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if head.gpumeter_recording == FORMAT {
        Ok(())
    } else {
        Err(format!("is of format {}; {FORMAT} is read", head.gpumeter_recording))
    }
}
