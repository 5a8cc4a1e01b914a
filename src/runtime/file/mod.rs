//! Files by their paths: opens those that users, configurations and other programs name, which are regular ones alone, after
//! following links; replaces files whole; locks them.
//!
//! Opening a named pipe waits for a writer, perhaps for ever, and opening a device may act on it. What the caller of a command
//! has opened itself, such as `/dev/stdin` or a shell's `<(...)`, is read whatever it is where he names it on the command
//! line; a key of a configuration names regular files alone, since an agent has nobody who writes to it.

mod lock;
mod replace;

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use lock::{LOOK, Lock, NotLocked, is_locked, owner};
pub use replace::{Durability, replace};

/// A value that changes with a file: editors replace it, or write it in place. Links are followed, so a link to another target
/// is another state, as when Kubernetes replaces a ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    /// The state now; none without a file.
    pub fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            file: (found.dev(), found.ino()),
            length: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Checks that a path leads to a regular file.
///
/// # Errors
/// There is none, or something else is there, which is named.
pub fn check(path: &Path) -> io::Result<()> {
    if is_inherited(path) {
        return Ok(());
    }
    refuse_others(std::fs::metadata(path)?.file_type())
}

/// Opens a regular file for reading, or what the caller of a command has opened.
///
/// # Errors
/// Those of [`check`]; the file cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    if is_inherited(path) {
        return File::open(path);
    }
    open_regular(path)
}

/// Opens a regular file for reading, as keys of a configuration name them.
///
/// # Errors
/// There is none, or something else is there, which is named; the file cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    refuse_others(std::fs::metadata(path)?.file_type())?;
    // Another file may be there by now; without the flag a pipe would be waited for.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_others(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file.
///
/// # Errors
/// Those of [`open`]; the file cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file as text.
///
/// # Errors
/// Those of [`read`]; it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

/// Whether the path is a descriptor that the program was started with.
fn is_inherited(path: &Path) -> bool {
    ["/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|inherited| path.starts_with(inherited))
}

fn refuse_others(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let name = match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a named pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {name}, and must be a regular file")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_also_behind_links() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(path("socket")).unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        for name in ["file", "pipe", "socket", "directory"] {
            symlink(name, path(&format!("link-{name}"))).unwrap();
        }
        symlink("/dev/null", path("link-device")).unwrap();
        assert_eq!(read_text(&path("link-file")).unwrap(), "text");
        assert_eq!(read(&path("file")).unwrap(), b"text");
        for (name, what) in [
            ("link-pipe", "a named pipe"),
            ("link-socket", "a socket"),
            ("link-directory", "a directory"),
            ("link-device", "a device"),
        ] {
            let error = open(&path(name)).unwrap_err();
            assert_eq!(error.to_string(), format!("it is {what}, and must be a regular file"));
        }
        assert_eq!(open(&path("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_that_the_caller_has_opened_is_read() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"text").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let refused = open_regular(Path::new(&path)).unwrap_err().to_string();
        assert_eq!(refused, "it is a named pipe, and must be a regular file", "as a key's value");
        assert_eq!(read_text(Path::new(&path)).unwrap(), "text");
    }
}
