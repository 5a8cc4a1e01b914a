//! Checks excerpts, by themselves and against the statements that are given with them.

use std::path::PathBuf;

use super::Failure;
use super::verify::{CheckedFile, changed_by_hand, told_of_fields};
use crate::accounting::billing::excerpt::{Excerpt, StoredExcerpt};
use crate::accounting::billing::statement::{DocumentId, Statement};
use crate::model::shown;

pub(super) struct CheckedExcerpt {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) stored: Box<StoredExcerpt>,
}

/// What a statement says about an excerpt.
enum ExcerptOrigin {
    /// No statement was given.
    Unknown,
    Proved(String),
    Refused(Vec<String>),
}

impl CheckedExcerpt {
    /// How many problems it has, and all that is found out.
    pub(super) fn check(&self, files: &[CheckedFile]) -> Result<(usize, String), Failure> {
        let StoredExcerpt { excerpt, digest, is_unchanged } = &*self.stored;
        let Excerpt { statement: DocumentId { number, digest: whole }, tenant, issued, .. } = excerpt;
        let fields = excerpt.changed_fields(&self.text).map_err(Failure::found)?;
        let mut problems = told_of_fields(&fields, "the rest of the excerpt");
        problems.extend((!is_unchanged).then(|| changed_by_hand(digest)));
        let (number, tenant) = (shown(number), shown(tenant));
        let mut lines = Vec::new();
        if problems.is_empty() {
            let by = shown(&issued.by);
            lines.push(format!(
                "unchanged: excerpt of statement {number} for {tenant}, by {by} at {}, {digest}",
                issued.at
            ));
        }
        match self.origin(files)? {
            ExcerptOrigin::Unknown => lines.push(format!(
                "its origin is not proved: give statement {number} too, whose digest is to be {}",
                shown(whole)
            )),
            ExcerptOrigin::Proved(text) => lines.push(text),
            ExcerptOrigin::Refused(found) => problems.extend(found),
        }
        let told = problems.iter().chain(&lines).map(|line| format!("{}: {line}\n", self.path.display()));
        Ok((problems.len(), told.collect()))
    }

    fn origin(&self, files: &[CheckedFile]) -> Result<ExcerptOrigin, Failure> {
        let DocumentId { number, digest } = &self.stored.excerpt.statement;
        let refused = |problem: String| Ok(ExcerptOrigin::Refused(vec![problem]));
        let mut statements = files.iter().filter(|file| file.statement().is_some()).peekable();
        if statements.peek().is_none() {
            return Ok(ExcerptOrigin::Unknown);
        }
        let same_number: Vec<&CheckedFile> = statements
            .filter(|file| file.statement().is_some_and(|statement| statement.number == *number))
            .collect();
        let digest_of = |file: &CheckedFile| file.stored.as_ref().map(|stored| stored.digest.clone());
        let same = same_number.iter().find(|file| digest_of(file).as_ref() == Some(digest));
        match (same, same_number.first()) {
            (None, None) => refused(format!("no statement {} is among those that were given", shown(number))),
            (None, Some(other)) => refused(format!(
                "it names statement {} with {}, and that is {}",
                shown(number),
                shown(digest),
                digest_of(other).unwrap_or_default()
            )),
            (Some(file), _) if !file.problems.is_empty() => {
                refused(format!("statement {} has problems itself, and proves nothing", shown(number)))
            }
            (Some(file), _) => match file.statement() {
                Some(statement) => self.compare(statement),
                None => Ok(ExcerptOrigin::Unknown),
            },
        }
    }

    /// Looks for it in its statement. One of an earlier version has no digests, and is compared line by line.
    fn compare(&self, statement: &Statement) -> Result<ExcerptOrigin, Failure> {
        let excerpt = &self.stored.excerpt;
        let (number, tenant) = (shown(&statement.number), shown(&excerpt.tenant));
        let Some(known) = statement.excerpts(&excerpt.statement.digest).remove(&excerpt.tenant) else {
            let text = format!("statement {number} has no line and no credit of {tenant}");
            return Ok(ExcerptOrigin::Refused(vec![text]));
        };
        let differences = known.differences(&self.text).map_err(Failure::found)?;
        if !differences.is_empty() {
            return Ok(ExcerptOrigin::Refused(told_of_fields(&differences, &format!("statement {number}"))));
        }
        let without = if statement.excerpts.is_empty() { ", which has no digests of tenants" } else { "" };
        Ok(ExcerptOrigin::Proved(format!("stands in statement {number}{without}")))
    }
}
