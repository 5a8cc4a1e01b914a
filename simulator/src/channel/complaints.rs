//! The file `error`: one line for each other file that is invalid.
//!
//! Best effort: no call fails because `error` could not be written.

use std::fs;
use std::path::Path;

/// Replaces the line of a file; without a reason removes it.
pub(crate) fn report_error(file: &Path, reason: Option<&str>) {
    let error = file.with_file_name("error");
    let before = fs::read_to_string(&error).unwrap_or_default();
    let mine = format!("{}: ", file.display());
    let mut lines: Vec<String> =
        before.lines().filter(|line| !line.starts_with(&mine)).map(str::to_owned).collect();
    lines.extend(reason.map(|reason| format!("{mine}{}", reason.replace('\n', " "))));
    let after: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if after == before {
        return;
    }
    let _ = if after.is_empty() { fs::remove_file(&error) } else { fs::write(&error, after) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn every_invalid_file_has_a_line_until_it_is_valid() {
        let directory = std::env::temp_dir().join(format!("gpumeter-complaints-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (state, faults, error) =
            (directory.join("state"), directory.join("faults"), directory.join("error"));
        report_error(&state, Some("one"));
        report_error(&faults, Some("two\nlines"));
        report_error(&state, Some("three"));
        let said = fs::read_to_string(&error).unwrap();
        assert_eq!(said, format!("{}: two lines\n{}: three\n", faults.display(), state.display()));
        report_error(&state, None);
        report_error(&faults, None);
        report_error(&faults, None);
        assert!(!error.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
