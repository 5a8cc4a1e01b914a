//! The file `error`: one line for each other file that is invalid.
//!
//! Best effort: no call fails because `error` could not be written.

use std::fs;
use std::path::Path;

/// Replaces the line of a file.
pub(crate) fn complain(file: &Path, reason: &str) {
    put(file, Some(reason));
}

/// Removes the line of a file.
pub(crate) fn withdraw(file: &Path) {
    put(file, None);
}

fn put(file: &Path, reason: Option<&str>) {
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
        complain(&state, "one");
        complain(&faults, "two\nlines");
        complain(&state, "three");
        let said = fs::read_to_string(&error).unwrap();
        assert_eq!(said, format!("{}: two lines\n{}: three\n", faults.display(), state.display()));
        withdraw(&state);
        withdraw(&faults);
        withdraw(&faults);
        assert!(!error.exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
