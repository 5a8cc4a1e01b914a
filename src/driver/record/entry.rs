//! A line of a recording.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The format that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The first line: what was recorded, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHead {
    /// [`FORMAT`].
    pub gpumeter_recording: u32,
    /// When the recording began, in nanoseconds since 1970.
    pub utc_ns: u64,
    /// The interval of the fast tier, in nanoseconds.
    pub interval_ns: u64,
    /// Version of the driver; "" if it is not reported.
    pub driver_version: String,
    /// Whether the driver was simulated, so that nothing was measured.
    pub simulated: bool,
}

/// A driver call and its result.
///
/// `arguments` and `out` have one place per argument of the function, so that a reader need not know its
/// signature: inputs are in the first, outputs in the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedAnswer {
    /// When the call returned, in nanoseconds since the recording began.
    pub at: u64,
    /// The function; for a value of a batched call, its structure.
    pub call: Cow<'static, str>,
    #[serde(rename = "in", default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<RecordedValue>,
    /// The return code; absent if the library has no such function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub out: Vec<RecordedValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedValue {
    None,
    /// A number; negative ones as their 64 bits.
    Number(u64),
    /// A text without its NUL.
    Text(String),
    /// A device, event set or sample, numbered in order of first use.
    Handle(u32),
    /// A structure or an array of them, as two hexadecimal digits per byte.
    Bytes(String),
}

impl RecordedValue {
    pub fn bytes(bytes: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0'));
        Self::Bytes(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_asked_and_what_came() {
        let entry = RecordedAnswer {
            at: 5,
            call: "nvmlDeviceGetPowerUsage".into(),
            arguments: vec![RecordedValue::Handle(0), RecordedValue::None],
            code: Some(0),
            out: vec![RecordedValue::None, RecordedValue::bytes(&[0xa0, 0x86, 1, 0])],
        };
        let line = serde_json::to_string(&entry).unwrap();
        let told = r#"{"at":5,"call":"nvmlDeviceGetPowerUsage","in":[{"handle":0},"none"],"code":0,"out":["none",{"bytes":"a0860100"}]}"#;
        assert_eq!(line, told);
        assert_eq!(serde_json::from_str::<RecordedAnswer>(&line).unwrap(), entry);
    }

    #[test]
    fn a_function_that_is_missing_has_no_code() {
        let entry = RecordedAnswer {
            at: 0,
            call: "nvmlDeviceGetFanSpeed".into(),
            arguments: Vec::new(),
            code: None,
            out: Vec::new(),
        };
        assert_eq!(serde_json::to_string(&entry).unwrap(), r#"{"at":0,"call":"nvmlDeviceGetFanSpeed"}"#);
    }
}
