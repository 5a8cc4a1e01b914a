//! The file format of recorded driver calls.
//!
//! A recording is text, one JSON object per line: first a [`RecordingHead`], then a [`RecordedAnswer`] for every
//! result that differs from the last one of the same call. A call without a new line has the same result, so a
//! board's identity takes one line and an idle meter none. The simulated driver library replays recordings;
//! `docs/recording.md` describes the format.
//!
//! This module knows bytes and names only; their meaning is the driver's.

mod entry;
mod read;
mod write;

pub use entry::{FORMAT, RecordedAnswer, RecordedValue, RecordingHead};
pub use read::{ReadError, RecordingSpan, span};
pub use write::RecordingWriter;
