//! Prints documents as text, CSV and HTML: the numbers of the document, in the forms of the bill.

use std::path::PathBuf;
use std::slice::from_ref;

use clap::Args;

use super::{StatementFile, check_unchanged, read_file};
use crate::accounting::billing::excerpt::{Excerpt, StoredExcerpt};
use crate::accounting::billing::statement::{
    Credit, Document, DocumentId, GrantedCredit, Issued, Statement, StoredDocument,
};
use crate::accounting::billing::{Bill, BillGrouping, NONE, print_money};
use crate::cli::bill::text::list_names;
use crate::cli::bill::view::{BillForm, BillView, SplitDirectory, period, print_bills, within};
use crate::cli::{Failure, print, print_data};
use crate::model::{Money, printable, shown};

/// Options of `show`.
#[derive(Args, Debug)]
pub(super) struct ShowOptions {
    /// The document, or an excerpt of a statement.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the lines are grouped by, as in gpumeter bill.
    #[arg(long, default_value = "tenant", value_name = "WHAT")]
    by: BillGrouping,
    /// Print an excerpt: the lines and credits of this tenant, and nothing of others.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Write the excerpt of each tenant into a directory, as an HTML file and as the JSON file that verify checks. WHAT is
    /// tenant, or tenant,attribute:NAME, which adds that attribute to the names of the files and of the list.
    #[arg(long, num_args = 2, value_names = ["WHAT", "DIRECTORY"], conflicts_with_all = ["tenant", "csv", "html", "json"])]
    split_by: Option<Vec<String>>,
    /// Print CSV; credits are lines with a negative amount.
    #[arg(long, conflicts_with_all = ["html", "json"])]
    csv: bool,
    /// Print one HTML file to send on.
    #[arg(long, conflicts_with = "json")]
    html: bool,
    /// Columns of the table, as in gpumeter bill.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["csv", "json"])]
    columns: Vec<String>,
    /// Print the document itself.
    #[arg(long)]
    json: bool,
}

impl ShowOptions {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (text, file) = read_file(&self.file)?;
        check_unchanged(&self.file, file.is_unchanged())?;
        let StatementFile::Document(StoredDocument { document, digest, .. }) = file else {
            return self.show_other(&text, file);
        };
        match document {
            Document::Statement(statement) if self.split_by.is_some() => self.split(&statement, &digest),
            Document::Statement(statement) if self.tenant.is_some() => self.one_tenant(&statement, &digest),
            _ if self.json => print_data(&text),
            Document::Statement(statement) => self.print(&self.statement(&statement, &digest)?),
            Document::Credit(_) if self.has_lines() => Err(Failure::wrong(format!(
                "{}: it is a credit, which has no lines; the next statement shows it",
                self.file.display()
            ))),
            Document::Credit(credit) => print(&credit_text(&credit, &digest)),
        }
    }

    /// Whether a form is asked for that is made of lines.
    const fn has_lines(&self) -> bool {
        self.csv || self.html || self.tenant.is_some() || self.split_by.is_some()
    }

    /// Shows an excerpt that was read, which has no excerpts itself.
    fn show_other(&self, text: &str, file: StatementFile) -> Result<(), Failure> {
        let StatementFile::Excerpt(stored) = file else { return Ok(()) };
        let StoredExcerpt { excerpt, digest, .. } = *stored;
        if self.split_by.is_some() || self.tenant.as_ref().is_some_and(|tenant| *tenant != excerpt.tenant) {
            let whose = shown(&excerpt.tenant);
            let path = self.file.display();
            return Err(Failure::wrong(format!(
                "{path}: it is an excerpt and has only {whose}; give the statement"
            )));
        }
        if self.json {
            print_data(text)
        } else {
            self.print(&self.excerpt(&excerpt, &digest, &self.form())?)
        }
    }

    fn print(&self, page: &str) -> Result<(), Failure> {
        if self.csv || self.html { print_data(page) } else { print(page) }
    }

    fn form(&self) -> BillForm {
        BillForm::new(self.csv, self.html, &self.columns)
    }

    fn statement(&self, statement: &Statement, digest: &str) -> Result<String, Failure> {
        let head = [format!("Statement {}, {digest}", shown(&statement.number)), closed(&statement.issued)];
        let mut tail = credit_lines(&statement.bill, &statement.credits);
        if !statement.files.is_empty() {
            tail.push(format!(
                "made from {} files of exports, which the document lists",
                statement.files.len()
            ));
        }
        tail.extend(statement.gaps.iter().map(|gap| format!("gap: {gap}")));
        self.warn_of_unknown(&statement.bill);
        let view = BillView { head: &head, tail: &tail, credits: &statement.credits };
        print_bills(from_ref(&statement.bill), &self.by, &view, &self.form())
    }

    fn warn_of_unknown(&self, bill: &Bill) {
        if let Some(problem) = self.by.unknown(std::iter::once(bill)) {
            tracing::warn!("--by: {problem}");
        }
    }

    fn one_tenant(&self, statement: &Statement, digest: &str) -> Result<(), Failure> {
        let tenant = self.tenant.as_deref().unwrap_or_default();
        let mut excerpts = statement.excerpts(digest);
        let Some(excerpt) = excerpts.remove(tenant) else {
            let known = list_names(excerpts.keys());
            let number = &statement.number;
            return Err(Failure::wrong(format!(
                "--tenant: statement {number} has no line and no credit of {}; it has {known}",
                shown(tenant)
            )));
        };
        self.warn_without_digests(statement);
        let (text, digest) = excerpt.with_digest().map_err(Failure::found)?;
        if self.json {
            return print_data(&text);
        }
        self.warn_of_unknown(&excerpt.bill);
        self.print(&self.excerpt(&excerpt, &digest, &self.form())?)
    }

    /// Statements of earlier versions have no digests of excerpts.
    fn warn_without_digests(&self, statement: &Statement) {
        if statement.excerpts.is_empty() {
            tracing::warn!(
                "{}: it has no digests of tenants, as documents of earlier versions; its excerpts are compared line by line",
                self.file.display()
            );
        }
    }

    fn split(&self, statement: &Statement, digest: &str) -> Result<(), Failure> {
        let Some([what, directory]) = self.split_by.as_deref() else { return Ok(()) };
        let wrong = |problem: String| Failure::wrong(format!("--split-by: {problem}"));
        let what: BillGrouping = what.parse().map_err(wrong)?;
        if !what.is_one_tenant() {
            return Err(wrong(
                "a statement has an excerpt of each tenant; give tenant, or tenant,attribute:NAME".into(),
            ));
        }
        if let Some(problem) = what.unknown(std::iter::once(&statement.bill)) {
            tracing::warn!("--split-by: {problem}");
        }
        self.warn_without_digests(statement);
        let mut directory = SplitDirectory::open(directory.as_ref())?;
        let form = BillForm::new(false, true, &self.columns);
        for (tenant, excerpt) in statement.excerpts(digest) {
            let attributes = excerpt.bill.tenant_attributes.get(&tenant);
            let attribute =
                |name: &str| attributes.and_then(|all| all.get(name)).map_or(NONE, String::as_str);
            let is_tenant = |place| what.place_of("tenant") == Some(place);
            let names = what.names().into_iter().enumerate();
            let names: Vec<&str> = names
                .map(|(place, name)| if is_tenant(place) { tenant.as_str() } else { attribute(name) })
                .collect();
            let (text, digest) = excerpt.with_digest().map_err(Failure::found)?;
            let page = self.excerpt(&excerpt, &digest, &form)?;
            directory.write(&names, &[("html", page), ("json", text)])?;
        }
        print_data(&directory.list())
    }

    fn excerpt(&self, excerpt: &Excerpt, digest: &str, form: &BillForm) -> Result<String, Failure> {
        let Excerpt { statement: DocumentId { number, digest: whole }, tenant, bill, credits, .. } = excerpt;
        let attributes = bill.tenant_attributes.get(tenant).into_iter().flatten();
        let attributes = attributes.map(|(name, value)| format!(", {} {}", shown(name), shown(value)));
        let head = [
            format!("Excerpt of statement {}, {}", shown(number), shown(whole)),
            format!("only lines and credits of {}{}", shown(tenant), attributes.collect::<String>()),
            closed(&excerpt.issued),
        ];
        let mut tail = credit_lines(bill, credits);
        tail.push(format!("excerpt {digest}"));
        let by = self.by_within(bill)?;
        print_bills(from_ref(bill), &by, &BillView { head: &head, tail: &tail, credits }, form)
    }

    /// What lines of one tenant are grouped by; those of a fleet's statement have no workloads.
    fn by_within(&self, bill: &Bill) -> Result<BillGrouping, Failure> {
        let parse = |word: &str| word.parse::<BillGrouping>().map_err(Failure::wrong);
        let tenant = parse("tenant")?;
        if bill.fleet.is_some() && self.by == tenant {
            return parse("node");
        }
        Ok(within(&tenant, &self.by))
    }
}

fn closed(issued: &Issued) -> String {
    format!("closed at {} by {}, gpumeter {}", issued.at, shown(&issued.by), shown(&issued.version))
}

pub(super) fn amount(money: Money, currency: Option<&str>) -> String {
    format!("{} {}", print_money(money), currency.unwrap_or("without a price"))
}

pub(super) fn whose(bill: &Bill) -> String {
    let nodes = bill.fleet.as_ref().map(|fleet| format!("{} nodes", fleet.nodes));
    let node = nodes.as_deref().unwrap_or(if bill.node.is_empty() { "unknown node" } else { &*bill.node });
    format!("{}, {}", shown(node), period(bill))
}

/// The credits below the reconciled total, and what is left of it.
fn credit_lines(bill: &Bill, credits: &[GrantedCredit]) -> Vec<String> {
    let line =
        |GrantedCredit { credit, statement, tenant, amount: given, currency, reason }: &GrantedCredit| {
            format!(
                "credit {} to {}, of statement {}: {}: {}",
                shown(&credit.number),
                shown(tenant),
                shown(statement),
                amount(Money(-given.0), Some(currency)),
                printable(reason)
            )
        };
    let mut lines: Vec<String> = credits.iter().map(line).collect();
    let is_same = credits.iter().all(|credit| Some(&credit.currency) == bill.currency.as_ref());
    if !credits.is_empty() && is_same {
        let given: Money = credits.iter().map(|credit| credit.amount).sum();
        let total = bill.reconciliation.line_money;
        let left = amount(Money(total.0 - given.0), bill.currency.as_deref());
        lines.push(format!("total less credits: {left}"));
    }
    lines
}

fn credit_text(credit: &Credit, digest: &str) -> String {
    let Credit { number, issued, node, statement, tenant, amount: given, currency, reason, .. } = credit;
    format!(
        "Credit {}, {digest}\ngiven at {} by {}, gpumeter {}\n{} to {}, of statement {} of {}, {}\n{}\n",
        shown(number),
        issued.at,
        shown(&issued.by),
        shown(&issued.version),
        amount(*given, Some(currency)),
        shown(tenant),
        shown(&statement.number),
        shown(node),
        shown(&statement.digest),
        printable(reason)
    )
}
