//! Reads what kind of recording a file is and how long it lasts.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{FORMAT, RecordedAnswer, RecordingHead};
use crate::runtime::file;

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("recording {path}: {source}; name a file that gpumeter record wrote")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("recording {path}:{line}: {problem}")]
    Broken {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        problem: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingSpan {
    pub head: RecordingHead,
    /// From the beginning to the last entry, in nanoseconds.
    pub length: u64,
    /// Bytes of complete lines; an interrupted recording may end within a line, which is ignored.
    pub whole: u64,
}

/// Reads a whole recording, so that a broken line is found before it is played.
pub fn span(path: &Path) -> Result<RecordingSpan, ReadError> {
    let unreadable = |source| ReadError::Unreadable { path: path.into(), source };
    let file = file::open(path).map_err(unreadable)?;
    let mut file = BufReader::new(file);
    let (mut head, mut length, mut whole) = (None, 0, 0);
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let read = file.read_line(&mut line).map_err(unreadable)?;
        if !line.ends_with('\n') && (read == 0 || head.is_some()) {
            break;
        }
        let broken = |problem: String| ReadError::Broken { path: path.into(), line: number, problem };
        if head.is_none() {
            head = Some(first(&line).map_err(broken)?);
        } else {
            let entry: RecordedAnswer = serde_json::from_str(&line)
                .map_err(|error| broken(format!("{}; {OTHER}", without_position(&error))))?;
            length = length.max(entry.at);
        }
        whole += read as u64;
    }
    let head = head.ok_or_else(|| ReadError::Broken {
        path: path.into(),
        line: 1,
        problem: format!("is empty; {OTHER}"),
    })?;
    Ok(RecordingSpan { head, length, whole })
}

const OTHER: &str = "give a file that gpumeter record wrote, as it wrote it";

fn first(line: &str) -> Result<RecordingHead, String> {
    let head: RecordingHead = serde_json::from_str(line)
        .map_err(|error| format!("is no recording: {}; {OTHER}", without_position(&error)))?;
    if head.gpumeter_recording == FORMAT {
        return Ok(head);
    }
    let found = head.gpumeter_recording;
    Err(format!(
        "is of format {found}, and this version reads {FORMAT}; play it with the version that wrote it"
    ))
}

/// The error without its position, which is within the one line that was parsed.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(message, _)| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(text: &str) -> Result<RecordingSpan, ReadError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        span(file.path())
    }

    const HEAD: &str =
        r#"{"gpumeter_recording":1,"utc_ns":7,"interval_ns":1000,"driver_version":"","simulated":true}"#;

    #[test]
    fn a_recording_is_as_long_as_its_last_entry() {
        let text = format!("{HEAD}\n{{\"at\":5,\"call\":\"a\"}}\n{{\"at\":9,\"call\":\"b\",\"code\":3}}\n");
        assert_eq!(over(&text).unwrap().length, 9);
        assert_eq!(over(HEAD).unwrap().length, 0);
    }

    #[test]
    fn a_line_that_was_cut_off_is_no_part_of_it_and_any_other_broken_one_is_told() {
        let whole = format!("{HEAD}\n{{\"at\":5,\"call\":\"a\"}}\n");
        let span = over(&format!("{whole}{{\"at\":9,\"call\":\"b")).unwrap();
        assert_eq!((span.length, span.whole), (5, whole.len() as u64));
        let error = over(&format!("{HEAD}\n{{\"at\":9,\"ca\n{{\"at\":5,\"call\":\"a\"}}\n")).unwrap_err();
        assert!(error.to_string().contains(":2: "), "{error}");
    }

    #[test]
    fn what_is_no_recording_is_named_by_its_line() {
        for (text, line, expected) in [
            (String::new(), 1, "is empty"),
            ("gpus: []\n".to_owned(), 1, "expected"),
            (HEAD.replace(":1,", ":2,"), 1, "is of format 2, and this version reads 1; play it with"),
            (format!("{HEAD}\n{{\"at\":5}}\n"), 2, "missing field `call`"),
        ] {
            let error = over(&text).unwrap_err().to_string();
            assert!(error.contains(&format!(":{line}: ")) && error.contains(expected), "{error}");
        }
    }
}
