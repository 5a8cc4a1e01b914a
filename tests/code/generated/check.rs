//! Compares a generated file with its generator's output, or writes it.
//!
//! In: a path below the repository and the expected contents. Out: the first line that differs and how to write the
//! file. With `UPDATE` set in the environment it writes the file and passes.

use std::path::Path;
use std::{env, fs};

/// The result of a test of a generated file.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Checks that the file at that path below the repository has these contents.
pub(crate) fn check(path: &str, contents: &str) -> Outcome {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let written = fs::read_to_string(&file).unwrap_or_default();
    if written == contents {
        return Ok(());
    }
    if env::var_os("UPDATE").is_some() {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        return Ok(fs::write(&file, contents)?);
    }
    Err(difference(path, &written, contents).into())
}

fn difference(path: &str, written: &str, contents: &str) -> String {
    let same = written.lines().zip(contents.lines()).take_while(|(old, new)| old == new).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(end of file)").to_owned();
    format!(
        "{path}:{}: is not what its generator writes; run `UPDATE=1 cargo test generated`\n\
         in the file: {}\ngenerated:   {}",
        same + 1,
        line(written),
        line(contents),
    )
}
