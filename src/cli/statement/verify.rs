//! `gpumeter statement verify`: checks documents by themselves, as a chain, and against a ledger or exports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use super::directory::document_files;
use super::excerpt::CheckedExcerpt;
use super::{Failure, StatementFile, print, read_file};
use crate::accounting::billing::chain::{chain_order, chain_problems};
use crate::accounting::billing::statement::{
    ChangedField, Document, Statement, StoredDocument, changed_fields,
};
use crate::accounting::billing::{Bill, BillRequest, LineDetail, account_change, zone_of};
use crate::accounting::day_files::ExportSource;
use crate::accounting::ledger::{self, Cause, Reader, RecordedDocuments};
use crate::cli::bill::{fleet_bills, in_one_currency};
use crate::model::shown;

/// Options of `verify`.
#[derive(Args, Debug)]
pub(super) struct VerifyOptions {
    /// The documents, or a directory of them, of which none may be missing; and excerpts, which are looked up in the statements
    /// among them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also check that the ledger of their node recorded these documents, and still has the same account. It must not be in use;
    /// of a running agent's ledger give a copy (gpumeter ledger snapshot).
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Also check that a fleet's statements are what these exports add up to.
    #[arg(long, value_name = "DIRECTORY")]
    exports: Option<PathBuf>,
}

pub(super) struct CheckedFile {
    path: PathBuf,
    pub(super) stored: Option<StoredDocument>,
    pub(super) problems: Vec<String>,
    notes: Vec<String>,
}

#[derive(Default)]
struct ReadFiles {
    files: Vec<CheckedFile>,
    /// Which of the files form one chain, by directory.
    chains: BTreeMap<PathBuf, ChainFiles>,
    excerpts: Vec<CheckedExcerpt>,
}

/// Files of one directory, by place.
#[derive(Default)]
struct ChainFiles {
    places: Vec<usize>,
    /// Whether the directory itself was given.
    is_whole: bool,
}

struct CheckedLedger<'a> {
    path: &'a Path,
    recorded: RecordedDocuments,
}

impl VerifyOptions {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let ReadFiles { mut files, chains, excerpts } = self.read()?;
        let ledger = self.ledger.as_deref().map(CheckedLedger::open).transpose()?;
        let mut page = String::new();
        let mut refused = 0;
        for (directory, chain) in &chains {
            chain.check(&mut files);
            if let Some(ledger) = &ledger
                && let Some(missing) = ledger.check(chain, &mut files)?
            {
                refused += 1;
                page += &format!("{}: {missing}\n", directory.display());
            }
        }
        if let Some(ledger) =
            ledger.as_ref().filter(|_| refused == 0 && chains.values().any(|chain| chain.is_whole))
        {
            let all: Vec<&StoredDocument> = files.iter().filter_map(|file| file.stored.as_ref()).collect();
            if let Some(missing) = ledger.recorded.missing(&all) {
                refused += 1;
                page += &format!(
                    "{}: {missing}, or give its directory too if it is in another one\n",
                    ledger.path.display()
                );
            }
        }
        if let Some(exports) = &self.exports {
            files.iter_mut().try_for_each(|file| file.check_exports(exports))?;
        }
        for file in &files {
            refused += file.problems.len();
            page += &file.told();
        }
        for excerpt in &excerpts {
            let (problems, text) = excerpt.check(&files)?;
            refused += problems;
            page += &text;
        }
        print(&page)?;
        match refused {
            0 => Ok(()),
            1 => Err(Failure::found("1 problem was found")),
            _ => Err(Failure::found(format!("{refused} problems were found"))),
        }
    }

    fn read(&self) -> Result<ReadFiles, Failure> {
        let mut read = ReadFiles::default();
        for path in &self.files {
            let listed = if path.is_dir() {
                read.chains.entry(path.clone()).or_default().is_whole = true;
                document_files(path)
                    .map_err(|error| Failure::wrong(format!("{}: cannot be read: {error}", path.display())))?
            } else {
                vec![path.clone()]
            };
            listed.into_iter().try_for_each(|path| read.add(path))?;
        }
        Ok(read)
    }
}

impl ReadFiles {
    fn add(&mut self, path: PathBuf) -> Result<(), Failure> {
        let (stored, problems) = match read_file(&path) {
            Ok((text, StatementFile::Excerpt(stored))) => {
                self.excerpts.push(CheckedExcerpt { path, text, stored });
                return Ok(());
            }
            Ok((text, StatementFile::Document(stored))) => {
                let problems = problems(&text, &stored)?;
                (Some(stored), problems)
            }
            Err(failure) => {
                let message = failure.message.trim_start_matches(&format!("{}: ", path.display())).to_owned();
                (None, vec![message])
            }
        };
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        self.chains.entry(directory).or_default().places.push(self.files.len());
        self.files.push(CheckedFile { path, stored, problems, notes: Vec::new() });
        Ok(())
    }
}

impl CheckedFile {
    pub(super) fn statement(&self) -> Option<&Statement> {
        match &self.stored.as_ref()?.document {
            Document::Statement(statement) => Some(statement),
            Document::Credit(_) => None,
        }
    }

    fn add(&mut self, AccountCheck { is_problem, text }: AccountCheck) {
        if is_problem { &mut self.problems } else { &mut self.notes }.push(text);
    }

    fn check_exports(&mut self, exports: &Path) -> Result<(), Failure> {
        if let Some(statement) = self.statement().filter(|statement| statement.bill.fleet.is_some()) {
            let checked = compare_exports(statement, exports)?;
            self.add(checked);
        }
        Ok(())
    }

    fn told(&self) -> String {
        let unchanged = self.stored.iter().filter(|_| self.problems.is_empty()).map(unchanged);
        let lines = unchanged.chain(self.problems.iter().cloned()).chain(self.notes.iter().cloned());
        lines.map(|line| format!("{}: {line}\n", self.path.display())).collect()
    }
}

impl ChainFiles {
    /// The places of the documents that can be read, in the order of their numbers, and the documents.
    fn ordered<'a>(&self, files: &'a [CheckedFile]) -> (Vec<usize>, Vec<&'a StoredDocument>) {
        let read = self.places.iter().filter_map(|place| Some((*place, files.get(*place)?.stored.as_ref()?)));
        let mut ordered: Vec<(usize, &StoredDocument)> = read.collect();
        ordered.sort_by(|(_, one), (_, other)| chain_order(one).cmp(&chain_order(other)));
        ordered.into_iter().unzip()
    }

    fn check(&self, files: &mut [CheckedFile]) {
        let (places, documents) = self.ordered(files);
        for (at, problem) in chain_problems(&documents, self.is_whole) {
            add_problem(files, places.get(at), &problem);
        }
    }
}

fn add_problem(files: &mut [CheckedFile], place: Option<&usize>, problem: &dyn std::fmt::Display) {
    if let Some(file) = place.and_then(|place| files.get_mut(*place)) {
        file.problems.push(problem.to_string());
    }
}

impl<'a> CheckedLedger<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        ledger::check_unowned(path).map_err(|error| match error.cause {
            Cause::Owned { .. } => Failure::wrong(format!(
                "{}: a running agent writes it; give a copy of it, as gpumeter ledger snapshot makes one",
                path.display()
            )),
            _ => Failure::wrong(error),
        })?;
        let recorded = Reader::open(path).and_then(|reader| reader.documents()).map_err(Failure::wrong)?;
        Ok(Self { path, recorded })
    }

    /// Compares documents with what the ledger recorded, and statements with its account. Returns what is missing in a whole
    /// chain.
    fn check(&self, chain: &ChainFiles, files: &mut [CheckedFile]) -> Result<Option<String>, Failure> {
        let (places, documents) = chain.ordered(files);
        let found = documents.iter().zip(&places).map(|(stored, place)| {
            let problem = self.recorded.problem(stored, &documents).map(|problem| problem.to_string());
            let is_own = self.recorded.has(stored) || self.recorded.is_own(stored, &documents);
            (*place, problem, is_own)
        });
        let found: Vec<(usize, Option<String>, bool)> = found.collect();
        let missing = self.recorded.missing_among(&documents, true).filter(|_| chain.is_whole);
        let missing = missing.map(|problem| problem.to_string());
        for (place, problem, is_own) in found {
            let Some(file) = files.get_mut(place) else { continue };
            file.problems.extend(problem);
            if let Some(statement) = file.statement().filter(|_| is_own) {
                let checked = self.compare(&statement.bill)?;
                file.add(checked);
            }
        }
        Ok(missing)
    }

    fn compare(&self, closed: &Bill) -> Result<AccountCheck, Failure> {
        let by_day = closed.lines.iter().any(|line| line.day.is_some());
        let request = BillRequest {
            from: Some(closed.from),
            to: Some(closed.to),
            zone: zone_of(&closed.time_zone),
            detail: LineDetail { day: by_day, ..LineDetail::whole() },
            ..BillRequest::default()
        };
        let mut reader = Reader::open(self.path).map_err(Failure::wrong)?;
        let found = match reader.bill(&request) {
            Ok(now) if now.to < closed.to => {
                AccountCheck::problem(format!("changed: the account of the ledger ends at {}", now.to))
            }
            Ok(now) => compare_bills(closed, &now, false, "the ledger")?,
            Err(error) => match error.cause {
                Cause::Deleted { until, .. } => AccountCheck::note(format!(
                    "no longer kept in the ledger: its rows before {until} are deleted"
                )),
                Cause::RolledUp { until, .. } => AccountCheck::note(format!(
                    "no longer kept in the ledger: its minutes before {until} are rolled up"
                )),
                _ => AccountCheck::problem(error.to_string()),
            },
        };
        Ok(found)
    }
}

/// What is found out about the account of a statement.
struct AccountCheck {
    /// Whether it is not that of the statement; otherwise it is, or cannot be told any more.
    is_problem: bool,
    text: String,
}

impl AccountCheck {
    const fn problem(text: String) -> Self {
        Self { is_problem: true, text }
    }

    const fn note(text: String) -> Self {
        Self { is_problem: false, text }
    }
}

fn compare_bills(closed: &Bill, now: &Bill, has_gaps: bool, of: &str) -> Result<AccountCheck, Failure> {
    let change = account_change(closed, now, has_gaps).map_err(Failure::found)?;
    Ok(match change.count {
        0 => AccountCheck::note(format!("the same account in {of}")),
        1 => AccountCheck::problem(format!("changed in {of}: {}", change.first)),
        count => {
            AccountCheck::problem(format!("changed in {of}: {}; and {} sums more", change.first, count - 1))
        }
    })
}

fn compare_exports(statement: &Statement, exports: &Path) -> Result<AccountCheck, Failure> {
    let gone: Vec<&str> =
        statement.files.iter().map(|file| &*file.path).filter(|path| !exports.join(path).exists()).collect();
    if let Some(first) = gone.first() {
        return Ok(AccountCheck::note(format!(
            "no longer kept in the exports: {} of {} files, the first is {first}",
            gone.len(),
            statement.files.len()
        )));
    }
    let source = ExportSource { digests: true, ..ExportSource::of(exports) };
    let request = BillRequest {
        from: Some(statement.bill.from),
        to: Some(statement.bill.to),
        detail: LineDetail::of_tenants(),
        ..BillRequest::default()
    };
    let bill = match fleet_bills(&source, &request).and_then(in_one_currency) {
        Ok(made) => made,
        Err(failure) => return Ok(AccountCheck::problem(failure.message)),
    };
    let files = bill.fleet.iter().flat_map(|fleet| &fleet.files);
    let others = files.filter(|file| !statement.files.contains(file)).count();
    let mut checked = compare_bills(&statement.bill, &bill, !statement.gaps.is_empty(), "the exports")?;
    if others > 0 {
        checked.text += &format!("; {others} files were written anew since, or are new");
    }
    Ok(checked)
}

fn unchanged(stored: &StoredDocument) -> String {
    let (kind, issued) = match &stored.document {
        Document::Statement(statement) => ("statement", &statement.issued),
        Document::Credit(credit) => ("credit", &credit.issued),
    };
    let id = stored.id();
    format!("unchanged: {kind} {}, by {} at {}, {}", id.number, shown(&issued.by), issued.at, id.digest)
}

/// Fields that are other ones than what `of` makes of them.
pub(super) fn told_of_fields(fields: &[ChangedField], of: &str) -> Vec<String> {
    let told = fields.iter();
    told.map(|field| format!("{} is {}, and {of} makes it {}", field.path, field.found, field.expected))
        .collect()
}

pub(super) fn changed_by_hand(digest: &str) -> String {
    format!("changed by hand: its content is not that of {digest}")
}

pub(super) fn problems(text: &str, stored: &StoredDocument) -> Result<Vec<String>, Failure> {
    let fields = changed_fields(text, &stored.document).map_err(Failure::found)?;
    let mut problems = told_of_fields(&fields, "the rest of the document");
    if let Document::Statement(statement) = &stored.document
        && problems.is_empty()
        && !statement.bill.is_balanced()
    {
        problems.push("its sums do not agree".to_owned());
    }
    if !stored.is_unchanged {
        problems.push(changed_by_hand(&stored.digest));
    }
    Ok(problems)
}
