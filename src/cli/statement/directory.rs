//! A directory of documents, of which none is ever changed or overwritten.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::verify::problems;
use super::{Failure, read};
use crate::accounting::billing::chain::{ChainError, chain_order, chain_problems};
use crate::accounting::billing::statement::{Credit, Document, StatementError, StoredDocument};
use crate::accounting::ledger::{RecordProblem, RecordedDocuments};

/// The directory, locked against others that write documents into it.
pub(super) struct StatementDirectory {
    path: PathBuf,
    lock: File,
    /// In the order of their numbers.
    files: Vec<PathBuf>,
    documents: Vec<StoredDocument>,
}

/// The documents in a directory.
///
/// # Errors
/// It cannot be read.
pub(super) fn document_files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let is_document = ["statement-", "credit-"].iter().any(|kind| name.starts_with(kind));
        if is_document && name.ends_with(".json") {
            files.push(directory.join(&*name));
        }
    }
    files.sort();
    Ok(files)
}

impl StatementDirectory {
    /// Opens a directory, which is made where it is missing, and reads its documents, which must be as they were written and one
    /// chain. That two of them cover one time of a node, which was allowed once, is a finding of `verify` alone.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| {
            Failure::wrong(format!("--statements {}: cannot be used: {error}", path.display()))
        };
        fs::create_dir_all(path).map_err(fail)?;
        let lock = File::open(path).map_err(fail)?;
        lock.lock().map_err(fail)?;
        let mut found = Vec::new();
        for file in document_files(path).map_err(fail)? {
            let (text, stored) = read(&file)?;
            if let Some(problem) = problems(&text, &stored)?.first() {
                return Err(Failure::found(format!("{}: {problem}", file.display())));
            }
            found.push((file, stored));
        }
        found.sort_by(|(_, one), (_, other)| chain_order(one).cmp(&chain_order(other)));
        let (files, documents) = found.into_iter().unzip();
        let opened = Self { path: path.to_owned(), lock, files, documents };
        let problems = chain_problems(&opened.references(), true);
        let is_overlap =
            |problem: &ChainError| matches!(problem, ChainError::Statement(StatementError::Overlap { .. }));
        match problems.iter().find(|(_, problem)| !is_overlap(problem)) {
            Some((place, problem)) => Err(opened.refused(*place, problem)),
            None => Ok(opened),
        }
    }

    fn references(&self) -> Vec<&StoredDocument> {
        self.documents.iter().collect()
    }

    fn refused(&self, place: usize, problem: &dyn std::fmt::Display) -> Failure {
        let file = self.files.get(place).unwrap_or(&self.path);
        Failure::found(format!("{}: {problem}", file.display()))
    }

    /// Refuses documents that are not those that a ledger recorded. A statement that it has not recorded yet is recorded when
    /// its month is closed again, and what an earlier ledger of the node closed is in no later one.
    pub(super) fn check_recorded(&self, recorded: &RecordedDocuments) -> Result<(), Failure> {
        let all = self.references();
        for (place, stored) in all.iter().enumerate() {
            match recorded.problem(stored, &all) {
                None | Some(RecordProblem::Unfinished | RecordProblem::Foreign { .. }) => {}
                Some(problem) => return Err(self.refused(place, &problem)),
            }
        }
        Ok(())
    }

    /// Refuses a directory from which a statement was removed, or, for the next statement, a credit.
    pub(super) fn check_complete(
        &self,
        recorded: &RecordedDocuments,
        for_statement: bool,
    ) -> Result<(), Failure> {
        match recorded.missing_among(&self.references(), for_statement) {
            Some(problem) => Err(Failure::found(format!("--statements {}: {problem}", self.path.display()))),
            None => Ok(()),
        }
    }

    /// The credits that the ledger has not recorded, as after a kill or where an older copy of the ledger was put back.
    pub(super) fn unrecorded<'a>(
        &'a self,
        recorded: &RecordedDocuments,
    ) -> impl Iterator<Item = (&'a StoredDocument, &'a Credit)> {
        let all = self.references();
        self.documents.iter().filter_map(move |stored| match &stored.document {
            Document::Credit(credit) if recorded.problem(stored, &all) == Some(RecordProblem::Unrecorded) => {
                Some((stored, &**credit))
            }
            _ => None,
        })
    }

    pub(super) fn documents(&self) -> &[StoredDocument] {
        &self.documents
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
