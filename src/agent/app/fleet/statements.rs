//! The closed statements of the fleet, beside which a month is shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::accounting::billing::costs::{CostReport, CostRequest, CostStatement};
use crate::accounting::billing::print_money;
use crate::accounting::billing::statement::Document;
use crate::model::{Money, Utc};
use crate::runtime::file::{self, FileState};

/// What is remembered of the documents of a directory, so that each is read once.
pub(super) struct KnownStatements {
    directory: Option<PathBuf>,
    known: BTreeMap<PathBuf, (FileState, Option<KnownStatement>)>,
}

#[derive(Clone, Debug)]
struct KnownStatement {
    number: u64,
    period: [Utc; 2],
    currency: Option<String>,
    amount: Money,
}

impl KnownStatements {
    pub(super) const fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, known: BTreeMap::new() }
    }

    /// The statement of the whole period that a report is of, beside what the files make now; none for a part of it.
    pub(super) fn compared(&mut self, request: &CostRequest, report: &CostReport) -> Option<CostStatement> {
        let is_whole = !request.is_partial() && request.filters.properties().next().is_none();
        let now = report.total.amounts.rounded.money.filter(|_| is_whole)?;
        let period = request.period.bounds(&request.zone)?;
        self.refresh();
        let found = self.known.values().filter_map(|(_, statement)| statement.as_ref());
        let found = found.filter(|one| one.period == period && one.currency == report.currency);
        let statement = found.max_by_key(|one| one.number)?;
        Some(CostStatement {
            number: statement.number,
            amount: print_money(statement.amount),
            now: print_money(now),
            difference: print_money(Money(now.0 - statement.amount.0)),
        })
    }

    fn refresh(&mut self) {
        let Some(directory) = &self.directory else { return };
        let entries = std::fs::read_dir(directory).map(|entries| entries.flatten().collect::<Vec<_>>());
        let entries = entries.unwrap_or_else(|error| {
            tracing::warn!(%error, directory = %directory.display(), "statements cannot be read");
            Vec::new()
        });
        let is_statement = |name: &str| name.starts_with("statement-") && name.ends_with(".json");
        let named = entries.iter().filter(|entry| entry.file_name().to_str().is_some_and(is_statement));
        let files: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
        self.known.retain(|path, _| files.contains(path));
        for path in files {
            let Some(state) = FileState::of(&path) else { continue };
            if self.known.get(&path).is_none_or(|(known, _)| *known != state) {
                self.known.insert(path.clone(), (state, read(&path)));
            }
        }
    }
}

/// A statement of a fleet that is as it was written; none of a credit and of what was changed.
fn read(path: &Path) -> Option<KnownStatement> {
    let text = file::open_regular(path).and_then(std::io::read_to_string).ok()?;
    let stored = Document::read(&text).ok().filter(|stored| stored.is_unchanged)?;
    let Document::Statement(statement) = stored.document else { return None };
    let bill = &statement.bill;
    bill.fleet.as_ref()?;
    Some(KnownStatement {
        number: statement.number.parse().ok()?,
        period: [bill.from, bill.to],
        currency: bill.currency.clone(),
        amount: bill.reconciliation.line_money,
    })
}
