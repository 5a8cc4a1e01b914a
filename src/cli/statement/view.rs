//! Prints documents as text, CSV and HTML: the numbers of the document, in the forms of the bill.

use std::path::PathBuf;
use std::slice::from_ref;

use clap::Args;

use super::read;
use crate::accounting::billing::statement::{Credit, Document, GrantedCredit, Statement, StoredDocument};
use crate::accounting::billing::{Bill, BillGrouping, print_money};
use crate::cli::bill::view::{BillView, period, print_bills};
use crate::cli::{Failure, print, print_data};
use crate::model::{Money, shown};

/// Options of `show`.
#[derive(Args, Debug)]
pub(super) struct ShowOptions {
    /// The document.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the lines are grouped by, as in gpumeter bill.
    #[arg(long, default_value = "tenant", value_name = "WHAT")]
    by: BillGrouping,
    /// Print CSV; credits are lines with a negative amount.
    #[arg(long, conflicts_with_all = ["html", "json"])]
    csv: bool,
    /// Print one HTML file to send on.
    #[arg(long, conflicts_with = "json")]
    html: bool,
    /// Print the document itself.
    #[arg(long)]
    json: bool,
}

impl ShowOptions {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (text, StoredDocument { document, digest, .. }) = read(&self.file)?;
        if self.json {
            return print_data(&text);
        }
        match document {
            Document::Statement(statement) => {
                let page = self.statement(&statement, &digest)?;
                if self.csv || self.html { print_data(&page) } else { print(&page) }
            }
            Document::Credit(_) if self.csv || self.html => Err(Failure::wrong(format!(
                "{}: it is a credit, which has no lines; the next statement shows it",
                self.file.display()
            ))),
            Document::Credit(credit) => print(&credit_text(&credit, &digest)),
        }
    }

    fn statement(&self, statement: &Statement, digest: &str) -> Result<String, Failure> {
        let head = format!("Statement {}, {digest}", statement.number);
        let issued = &statement.issued;
        let head =
            [head, format!("closed at {} by {}, gpumeter {}", issued.at, shown(&issued.by), issued.version)];
        let mut tail = credit_lines(statement);
        if !statement.files.is_empty() {
            tail.push(format!(
                "made from {} files of exports, which the document lists",
                statement.files.len()
            ));
        }
        tail.extend(statement.gaps.iter().map(|gap| format!("gap: {gap}")));
        if let Some(problem) = self.by.unknown(std::iter::once(&statement.bill)) {
            tracing::warn!("--by: {problem}");
        }
        let view = BillView { head: &head, tail: &tail, credits: &statement.credits };
        print_bills(from_ref(&statement.bill), &self.by, &view, self.csv, self.html)
    }
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
fn credit_lines(statement: &Statement) -> Vec<String> {
    let Statement { bill, credits, .. } = statement;
    let line =
        |GrantedCredit { credit, statement, tenant, amount: given, currency, reason }: &GrantedCredit| {
            format!(
                "credit {} to {}, of statement {statement}: {}: {reason}",
                credit.number,
                shown(tenant),
                amount(Money(-given.0), Some(currency))
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
        "Credit {number}, {digest}\ngiven at {} by {}, gpumeter {}\n{} to {}, of statement {} of {}, {}\n{reason}\n",
        issued.at,
        shown(&issued.by),
        issued.version,
        amount(*given, Some(currency)),
        shown(tenant),
        statement.number,
        shown(node),
        statement.digest
    )
}
