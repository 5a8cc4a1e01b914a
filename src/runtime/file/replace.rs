//! Replaces files whole.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A kill of this program. After a loss of power the file may be empty.
    Kill,
    /// A loss of power too: the file and its directory are synced.
    PowerLoss,
}

/// Puts a new file in the place of another one, or of none: at any time there is the old or the new one, whole. `fill` writes
/// it as `part`, a path in the same directory.
///
/// # Errors
/// Those of `fill`; the directory is missing, full or not writable. Then `part` is removed.
pub fn replace<E: From<io::Error>>(
    path: &Path,
    part: &Path,
    mode: u32,
    durability: Durability,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    // One that a kill left, or a link that somebody else made.
    let _ = fs::remove_file(part);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(part)?;
    let replaced = fill(&mut file).and_then(|()| {
        if durability == Durability::Kill {
            return Ok(fs::rename(part, path)?);
        }
        file.sync_all()?;
        fs::rename(part, path)?;
        Ok(File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?)
    });
    if replaced.is_err() {
        let _ = fs::remove_file(part);
    }
    replaced
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let [path, part] = ["file", "part"].map(|name| directory.path().join(name));
        fs::write(&part, "left by a kill").unwrap();
        for (text, durability) in [("old", Durability::Kill), ("new", Durability::PowerLoss)] {
            replace::<io::Error>(&path, &part, 0o600, durability, |file| file.write_all(text.as_bytes()))
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let failed = replace(&path, &part, 0o600, Durability::Kill, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(!part.exists());
    }
}
