//! Reading a recording, as far as the agent needs it: what it is, and how long.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Entry, FORMAT, Head};

/// A recording that cannot be played.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("recording {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is none of a recording.
    #[error("recording {path}:{line}: {problem}; was it written by gpumeter record?")]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

/// What a recording spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first line.
    pub head: Head,
    /// From the beginning to the last entry, in nanoseconds.
    pub length: u64,
}

/// Reads a recording once, whole: a broken line is found before anything is played.
pub fn span(path: &Path) -> Result<Span, ReadError> {
    let unreadable = |source| ReadError::Unreadable { path: path.into(), source };
    let file = File::open(path).map_err(unreadable)?;
    let (mut head, mut length) = (None, 0);
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(unreadable)?;
        let broken = |problem: String| ReadError::Broken { path: path.into(), line: index + 1, problem };
        if index == 0 {
            head = Some(first(&line).map_err(broken)?);
            continue;
        }
        let entry: Entry = serde_json::from_str(&line).map_err(|error| broken(error.to_string()))?;
        length = length.max(entry.at);
    }
    let head =
        head.ok_or_else(|| ReadError::Broken { path: path.into(), line: 1, problem: "is empty".into() })?;
    Ok(Span { head, length })
}

fn first(line: &str) -> Result<Head, String> {
    let head: Head = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if head.gpumeter_recording == FORMAT {
        Ok(head)
    } else {
        Err(format!("is of format {}; this version reads {FORMAT}", head.gpumeter_recording))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(text: &str) -> Result<Span, ReadError> {
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
    fn what_is_no_recording_is_named_by_its_line() {
        for (text, line, told) in [
            (String::new(), 1, "is empty"),
            ("gpus: []\n".to_owned(), 1, "expected"),
            (HEAD.replace(":1,", ":2,"), 1, "is of format 2; this version reads 1"),
            (format!("{HEAD}\n{{\"at\":5}}\n"), 2, "missing field `call`"),
        ] {
            let error = over(&text).unwrap_err().to_string();
            assert!(error.contains(&format!(":{line}: ")) && error.contains(told), "{error}");
        }
    }
}
