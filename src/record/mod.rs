//! The file format of what passes the door to the driver.
//!
//! A recording is text, one JSON object per line: first a [`Head`], then an [`Entry`] for every answer that
//! differs from the last one to the same question. What was asked and not written again has not changed, so
//! a board's identity takes a line and an idle meter none. The simulated driver library reads recordings and
//! answers from them; `docs/recording.md` describes the format for others.
//!
//! It knows bytes and names, not what they mean: functions and structures are the driver's.

mod entry;
mod read;
mod write;

pub use entry::{Entry, FORMAT, Head, Value};
pub use read::{ReadError, Span, span};
pub use write::Writer;
