//! A directory of documents, of which none is ever changed or overwritten.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{Failure, read};
use crate::billing::statement::{Document, StoredDocument};

/// The directory, locked against others that write documents into it.
pub(super) struct StatementDirectory {
    path: PathBuf,
    lock: File,
    documents: Vec<StoredDocument>,
}

impl StatementDirectory {
    /// Opens a directory, which is made where it is missing, and reads its documents.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| {
            Failure::wrong(format!("--statements {}: cannot be used: {error}", path.display()))
        };
        fs::create_dir_all(path).map_err(fail)?;
        let lock = File::open(path).map_err(fail)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| fail(error.into()))?;
        let mut documents = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let name = name.to_string_lossy();
            let is_document = ["statement-", "credit-"].iter().any(|kind| name.starts_with(kind));
            if is_document && name.ends_with(".json") {
                documents.push(read(&path.join(&*name))?.1);
            }
        }
        documents.sort_by(|one, other| one.document.number().cmp(other.document.number()));
        Ok(Self { path: path.to_owned(), lock, documents })
    }

    /// Its documents, by number.
    pub(super) fn documents(&self) -> &[StoredDocument] {
        &self.documents
    }

    /// A number that no document has.
    pub(super) fn next_number(&self) -> String {
        let numbers = self.documents.iter().filter_map(|known| known.document.number().parse::<u32>().ok());
        format!("{:04}", numbers.max().unwrap_or(0).saturating_add(1))
    }

    /// Writes a document, whole or not at all. Returns its path.
    pub(super) fn write(&self, text: &str, stored: &StoredDocument) -> Result<PathBuf, Failure> {
        let kind = match &stored.document {
            Document::Statement(_) => "statement",
            Document::Credit(_) => "credit",
        };
        let number = stored.document.number();
        let path = self.path.join(format!("{kind}-{number}.json"));
        let part = self.path.join(format!(".{kind}-{number}.part"));
        let written = self.write_new(&part, &path, text);
        let _ = fs::remove_file(&part);
        match written {
            Ok(()) => Ok(path),
            Err(error) => Err(Failure::found(format!("{}: cannot be written: {error}", path.display()))),
        }
    }

    fn write_new(&self, part: &Path, path: &Path, text: &str) -> std::io::Result<()> {
        // A killed command may have left one.
        let _ = fs::remove_file(part);
        let mut file = OpenOptions::new().write(true).create_new(true).open(part)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o444))?;
        file.sync_all()?;
        // A link, unlike a rename, fails where there is a file.
        fs::hard_link(part, path)?;
        self.lock.sync_all()
    }
}
