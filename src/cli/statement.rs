//! `gpumeter statement`: closes a month with a document that never changes, shows and verifies documents, and gives credits.

mod directory;
mod excerpt;
mod verify;
mod view;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rustix::process::geteuid;

use super::bill::text::counted;
use super::bill::{check_unowned, days_of, fleet_bills, in_one_currency, request_of};
use super::socket::AgentSocket;
use super::{Failure, print};
use crate::accounting::billing::chain::{self, check_overlap};
use crate::accounting::billing::excerpt::{Excerpt, StoredExcerpt};
use crate::accounting::billing::statement::{
    Credit, Document, DocumentId, Issued, Statement, StatementError, StoredDocument, check_credit,
    check_reason, open_credits, parse_amount,
};
use crate::accounting::billing::{Bill, BillRequest, ExportedFile, Fleet, LineDetail, account_change};
use crate::accounting::day_files::{ExportSource, read_expected};
use crate::accounting::ledger::{
    self, ClosedBill, ClosedPeriod, Reader, RecordProblem, RecordedDocument, RecordedDocuments,
    StatementOrder, close_period,
};
use crate::agent::control::{ControlReply, ControlRequest};
use crate::holders::host::UserDatabase;
use crate::model::{Money, shown};
use crate::runtime::clock::system_now;
use crate::runtime::file;
use directory::StatementDirectory;

#[derive(Args, Debug)]
pub(super) struct StatementCommand {
    #[command(subcommand)]
    action: StatementAction,
}

#[derive(Subcommand, Debug)]
enum StatementAction {
    /// Close a month: its prices and tenants become final, and its bill is written into a document that never changes.
    Close(CloseOptions),
    /// Print a statement, a credit or an excerpt, as it was closed; or make the excerpt of one tenant, or of each.
    Show(view::ShowOptions),
    /// Check that documents are as they were written, that their sums follow from their lines, that they are one chain, and that
    /// excerpts stand in the statements that are given too; exit with status 1 if not.
    Verify(verify::VerifyOptions),
    /// Give a tenant an amount of a statement back; it stands below the total of the next statement.
    // On one line it is too long.
    #[command(
        override_usage = "gpumeter statement credit [OPTIONS] --tenant <TENANT> --amount <AMOUNT> \\\n       --reason <TEXT> --statements <DIR> <FILE>"
    )]
    Credit(CreditOptions),
}

const OTHER_VERSION: &str = "the agent does not answer this; it is of another version";

/// Where periods are closed.
#[derive(Args, Debug)]
struct LedgerOwner {
    #[command(flatten)]
    socket: AgentSocket,
    /// A ledger file that no agent is using, instead of the running agent, which is asked over its local socket.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "socket"])]
    ledger: Option<PathBuf>,
    /// Directory of the documents.
    #[arg(long, value_name = "DIR")]
    statements: PathBuf,
    /// Who does this, for the document; by default the name of this user.
    #[arg(long, value_name = "NAME")]
    closed_by: Option<String>,
}

#[derive(Args, Debug)]
struct CloseOptions {
    /// The month in --time-zone, such as 2026-10.
    #[arg(long, value_name = "MONTH")]
    month: String,
    /// Time zone of the month, such as Europe/Zurich; by default billing.time_zone of the agent, else that of this machine.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// A directory of exports of any number of nodes, instead of one node. Their ledgers are not told, so that late rates stay
    /// possible there; the statement stays as it is.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["ledger", "config", "socket"])]
    exports: Option<PathBuf>,
    /// With --exports, a CSV file of the nodes that should be in it: node,from,to and possibly gpus,model.
    #[arg(long, value_name = "FILE", requires = "exports")]
    expect: Option<PathBuf>,
    /// With --exports, close although nodes did not report, or without a list of nodes.
    #[arg(long, requires = "exports")]
    accept_gaps: bool,
    #[command(flatten)]
    owner: LedgerOwner,
}

#[derive(Args, Debug)]
struct CreditOptions {
    /// The statement.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: String,
    /// The amount in the currency of the statement, such as 12.50.
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    amount: String,
    /// Why, in a sentence.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    owner: LedgerOwner,
}

impl StatementCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.action {
            StatementAction::Close(options) => options.run(),
            StatementAction::Show(options) => options.run(),
            StatementAction::Verify(options) => options.run(),
            StatementAction::Credit(options) => options.run(),
        }
    }
}

impl LedgerOwner {
    fn user(&self) -> Result<String, Failure> {
        let is_name =
            |name: &str| !name.trim().is_empty() && !name.contains(char::is_control) && name.len() <= 200;
        if self.closed_by.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(Failure::wrong("--closed-by: give a name of 1 to 200 printable characters"));
        }
        let uid = geteuid().as_raw();
        let name = || UserDatabase::of_host(Path::new("/")).look_up(uid).ok().flatten();
        let unnamed = || name().map_or_else(|| format!("user {uid}"), |name| name.to_string());
        Ok(self.closed_by.clone().unwrap_or_else(unnamed))
    }

    fn documents(&self) -> Result<RecordedDocuments, Failure> {
        let Some(path) = &self.ledger else {
            let documents = self.socket.send(&ControlRequest::Documents)?.documents;
            return documents.ok_or_else(|| Failure::found(OTHER_VERSION));
        };
        check_unowned(path, "statement")?;
        Reader::open(path).and_then(|reader| reader.documents()).map_err(Failure::wrong)
    }

    /// Closes a month that `request` is for; the agent reads its days in its own time zone where none is given.
    fn close(
        &self,
        request: &BillRequest,
        [from, to]: [String; 2],
        time_zone: Option<String>,
        by: String,
    ) -> Result<ClosedBill, Failure> {
        if let Some(path) = &self.ledger {
            let order = |order| ledger::record_statement(path, &order).map_err(|error| error.to_string());
            return close_period(path, request, by, order).map_err(Failure::found);
        }
        let ControlReply { closed, .. } =
            self.socket.send(&ControlRequest::ClosePeriod { from, to, time_zone, by })?;
        closed.ok_or_else(|| Failure::found(OTHER_VERSION))
    }

    fn record(&self, document: RecordedDocument) -> Result<(), Failure> {
        match &self.ledger {
            Some(path) => {
                let order = StatementOrder::Record(document);
                ledger::record_statement(path, &order).map(drop).map_err(Failure::found)
            }
            None => self.socket.send(&ControlRequest::RecordDocument { document }).map(drop),
        }
    }
}

impl CloseOptions {
    fn run(&self) -> Result<(), Failure> {
        let days = days_of("--month", &self.month)?;
        let [first, next] = &days;
        let mut request = request_of([Some(first), Some(next)], self.time_zone.as_deref())?;
        request.detail.day = true;
        let directory = StatementDirectory::open(&self.owner.statements)?;
        let by = self.owner.user()?;
        if self.exports.is_none() {
            let recorded = self.owner.documents()?;
            directory.check_recorded(&recorded)?;
            directory.check_complete(&recorded, true)?;
            self.check_period(&request, &recorded, directory.documents())?;
        }
        let (ClosedBill { bill, rules, at }, files, gaps) = match &self.exports {
            Some(exports) => self.fleet(exports, request)?,
            None => {
                let closed = self.owner.close(&request, days, self.time_zone.clone(), by.clone())?;
                (closed, Vec::new(), Vec::new())
            }
        };
        let period = ClosedPeriod { from: bill.from, to: bill.to, by: by.clone() };
        // A kill may have come after the document was written and before the ledger knew of it.
        if let Some((stored, written)) =
            written_before(&bill, directory.documents()).filter(|_| self.exports.is_none())
        {
            let told = told_of_statement(written);
            self.owner.record(record_of(stored, period, false))?;
            return print(&format!("written before: {told}\n"));
        }
        check_overlap(&bill, directory.documents()).map_err(Failure::found)?;
        let statement = Statement {
            number: chain::next_number(directory.documents()),
            before: directory.documents().last().map(StoredDocument::id),
            issued: Issued { by, at, version: env!("CARGO_PKG_VERSION").to_owned() },
            credits: open_credits(&bill, directory.documents()),
            rules,
            files,
            gaps,
            bill,
            excerpts: BTreeMap::new(),
        };
        let excerpts = statement.excerpt_digests().map_err(Failure::found)?;
        let statement = Statement { excerpts, ..statement };
        let told = told_of_statement(&statement);
        let document = Document::Statement(Box::new(statement));
        let (text, stored) = document.with_digest().map_err(Failure::found)?;
        let path = directory.write(&text, &stored)?;
        if self.exports.is_none() {
            self.owner.record(record_of(&stored, period, false))?;
        }
        print(&format!("{}: {told}\n", path.display()))
    }

    /// Refuses a month that a document covers before the ledger closes it, where its time zone is known here.
    fn check_period(
        &self,
        request: &BillRequest,
        recorded: &RecordedDocuments,
        documents: &[StoredDocument],
    ) -> Result<(), Failure> {
        if self.owner.ledger.is_none() && self.time_zone.is_none() {
            return Ok(());
        }
        let (Some(from), Some(to)) = (request.from, request.to) else { return Ok(()) };
        // Its document may have been written before a kill.
        if recorded.unfinished.iter().any(|period| (period.from, period.to) == (from, to)) {
            return Ok(());
        }
        chain::check_period(&recorded.node, recorded.cluster.as_deref(), [from, to], documents)
            .map_err(Failure::found)
    }

    /// The bill of a fleet's month, which must be complete unless gaps are accepted; the files that it was made from; the gaps.
    fn fleet(
        &self,
        directory: &Path,
        request: BillRequest,
    ) -> Result<(ClosedBill, Vec<ExportedFile>, Vec<String>), Failure> {
        let expected = self.expect.as_deref().map(read_expected).transpose().map_err(Failure::wrong)?;
        let expected = expected.unwrap_or_default();
        let source = ExportSource { expected, digests: true, ..ExportSource::of(directory) };
        let request = BillRequest { detail: LineDetail::of_tenants(), ..request };
        let bill = in_one_currency(fleet_bills(&source, &request)?)?;
        let Fleet { files, mut gaps, .. } = bill.fleet.clone().unwrap_or_default();
        if let Some(asked) = &bill.asked_to {
            let text = format!(
                "the month ends at {asked}, and exports at {}; wait until it is exported",
                bill.to_local
            );
            return Err(Failure::found(text));
        }
        if bill.lines.is_empty() {
            return Err(Failure::found(
                "no node has reported any time of this month; there is nothing to close",
            ));
        }
        if !bill.is_balanced() {
            return Err(Failure::found("the bill does not reconcile; gpumeter bill --exports shows it"));
        }
        if self.expect.is_none() {
            gaps.push("no list of the nodes that should have reported (--expect)".to_owned());
        }
        if !gaps.is_empty() && !self.accept_gaps {
            let shown = gaps.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
            return Err(Failure::found(format!(
                "the exports are not complete ({} gaps; close with --accept-gaps to bill without them):\n  {shown}",
                gaps.len()
            )));
        }
        let at = system_now().utc;
        Ok((ClosedBill { bill, rules: Vec::new(), at }, files, gaps))
    }
}

/// The statement of the same account of the same period.
fn written_before<'a>(
    bill: &Bill,
    documents: &'a [StoredDocument],
) -> Option<(&'a StoredDocument, &'a Statement)> {
    let is_same = |known: &Bill| {
        (known.from, known.to, &known.node, &known.cluster) == (bill.from, bill.to, &bill.node, &bill.cluster)
            && account_change(known, bill, false).is_ok_and(|change| change.count == 0)
    };
    documents.iter().find_map(|stored| match &stored.document {
        Document::Statement(known) if is_same(&known.bill) => Some((stored, &**known)),
        _ => None,
    })
}

fn told_of_statement(statement: &Statement) -> String {
    let Statement { number, bill, credits, .. } = statement;
    let total = view::amount(bill.reconciliation.line_money, bill.currency.as_deref());
    let credits = match credits.len() {
        0 => String::new(),
        count => format!(", {}", counted(count as u64, "credit")),
    };
    format!("statement {number}, {}, {total}{credits}", view::whose(bill))
}

fn told_of_credit(credit: &Credit) -> String {
    let Credit { number, tenant, amount, currency, statement, .. } = credit;
    let amount = view::amount(*amount, Some(currency));
    format!("credit {number}, {amount} to {} of statement {}", shown(tenant), statement.number)
}

impl CreditOptions {
    fn run(&self) -> Result<(), Failure> {
        let amount =
            parse_amount(&self.amount).map_err(|error| Failure::wrong(format!("--amount: {error}")))?;
        check_reason(&self.reason).map_err(|error| Failure::wrong(format!("--reason: {error}")))?;
        let directory = StatementDirectory::open(&self.owner.statements)?;
        let stored = read(&self.file)?.1;
        let Document::Statement(statement) = &stored.document else {
            return Err(Failure::wrong(format!(
                "{}: it is a credit; give the statement",
                self.file.display()
            )));
        };
        if !directory.documents().iter().any(|known| known.id() == stored.id()) {
            return Err(Failure::wrong(format!(
                "{}: it is not in {}, where the next statement looks for credits",
                self.file.display(),
                self.owner.statements.display()
            )));
        }
        let by = self.owner.user()?;
        let period = ClosedPeriod { from: statement.bill.from, to: statement.bill.to, by: by.clone() };
        // A fleet's is in no ledger.
        let has_ledger = statement.bill.fleet.is_none();
        if has_ledger {
            let recorded = self.owner.documents()?;
            // A kill may have come before the ledger knew of it, or an older copy of the ledger was put back.
            let same =
                directory.unrecorded(&recorded).find(|(_, credit)| self.is_same(credit, &stored, amount));
            if let Some((written, credit)) = same {
                let told = told_of_credit(credit);
                self.owner.record(record_of(written, period, true))?;
                return print(&format!("written before: {told}\n"));
            }
            directory.check_recorded(&recorded)?;
            directory.check_complete(&recorded, false)?;
            if !recorded.has(&stored) {
                let Bill { from, to, .. } = statement.bill;
                let problem = recorded.problem(&stored, &[]).unwrap_or(RecordProblem::Foreign { from, to });
                return Err(Failure::found(format!("{}: {problem}", self.file.display())));
            }
        }
        check_credit(&stored, statement, &self.tenant, amount, directory.documents())
            .map_err(Failure::found)?;
        let credit = self.credit(&stored, &statement.bill, &directory, amount, by)?;
        let told = told_of_credit(&credit);
        let (text, written) = Document::Credit(Box::new(credit)).with_digest().map_err(Failure::found)?;
        let path = directory.write(&text, &written)?;
        if has_ledger {
            self.owner.record(record_of(&written, period, true)).map_err(|failure| {
                let path = path.display();
                let problem = failure.message;
                Failure::found(format!(
                    "{problem}; {path} is not recorded: give the same credit again, which records it"
                ))
            })?;
        }
        print(&format!("{}: {told}\n", path.display()))
    }

    fn is_same(&self, credit: &Credit, stored: &StoredDocument, amount: Money) -> bool {
        (&credit.statement, &credit.tenant, credit.amount, &credit.reason)
            == (&stored.id(), &self.tenant, amount, &self.reason)
    }

    fn credit(
        &self,
        stored: &StoredDocument,
        bill: &Bill,
        directory: &StatementDirectory,
        amount: Money,
        by: String,
    ) -> Result<Credit, Failure> {
        let none = StatementError::NoTenant { number: stored.id().number, tenant: self.tenant.clone() };
        Ok(Credit {
            number: chain::next_number(directory.documents()),
            before: directory.documents().last().map(StoredDocument::id),
            issued: Issued { by, at: system_now().utc, version: env!("CARGO_PKG_VERSION").to_owned() },
            node: bill.node.clone(),
            cluster: bill.cluster.clone(),
            statement: stored.id(),
            tenant: self.tenant.clone(),
            amount,
            currency: bill.currency.clone().ok_or_else(|| Failure::found(none))?,
            reason: self.reason.clone(),
        })
    }
}

fn record_of(stored: &StoredDocument, period: ClosedPeriod, is_credit: bool) -> RecordedDocument {
    let DocumentId { number, digest } = stored.id();
    RecordedDocument { period, is_credit, number, digest }
}

/// What a file of statements has.
enum StatementFile {
    Document(StoredDocument),
    Excerpt(Box<StoredExcerpt>),
}

impl StatementFile {
    const fn is_unchanged(&self) -> bool {
        match self {
            Self::Document(stored) => stored.is_unchanged,
            Self::Excerpt(stored) => stored.is_unchanged,
        }
    }
}

/// The text of a document and what it is; an error where it is not as it was written.
fn read(path: &Path) -> Result<(String, StoredDocument), Failure> {
    let (text, file) = read_file(path)?;
    check_unchanged(path, file.is_unchanged())?;
    match file {
        StatementFile::Document(stored) => Ok((text, stored)),
        StatementFile::Excerpt(excerpt) => Err(Failure::wrong(format!(
            "{}: it is an excerpt; give statement {} itself",
            path.display(),
            shown(&excerpt.excerpt.statement.number)
        ))),
    }
}

fn check_unchanged(path: &Path, is_unchanged: bool) -> Result<(), Failure> {
    if is_unchanged {
        return Ok(());
    }
    Err(Failure::found(format!(
        "{}: it was changed after it was written; gpumeter statement verify says how, and a copy from before restores it",
        path.display()
    )))
}

fn read_file(path: &Path) -> Result<(String, StatementFile), Failure> {
    let text = file::read_text(path)
        .map_err(|error| Failure::wrong(format!("{}: cannot be read: {error}", path.display())))?;
    let read = match Excerpt::read(&text) {
        Some(excerpt) => excerpt.map(|stored| StatementFile::Excerpt(Box::new(stored))),
        None => Document::read(&text).map(StatementFile::Document),
    };
    let file = read.map_err(|error| Failure::found(format!("{}: {error}", path.display())))?;
    Ok((text, file))
}
