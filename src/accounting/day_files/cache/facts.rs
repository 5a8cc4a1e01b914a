//! What is known of the dates of a period beside their sums, and what a reader is told of them.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::CacheError;
use super::fill::{DateFacts, DateTotal, date_facts};
use super::report::nodes_of;
use super::store::{KeyReader, date_number};
use crate::accounting::billing::costs::{
    CostFacts, CostNotice, CostRanges, CostRequest, CostSource, CostTenants,
};
use crate::accounting::billing::{ExactMoney, GpuConflict, StatedBudgets, list_first};
use crate::accounting::day_files::directory::date_of;
use crate::model::{DAY, QUARTER_HOUR, Utc};

#[derive(Debug, Default)]
pub(super) struct PeriodFacts {
    all: DateFacts,
    compares_money: bool,
    /// The dates of each ledger, by its id.
    dates: BTreeMap<String, LedgerDates>,
    conflicts: Vec<GpuConflict>,
    unreadable: Vec<String>,
    changed: Vec<ChangedDate>,
}

#[derive(Debug, Default)]
struct LedgerDates {
    node: String,
    first: i64,
    last: Option<i64>,
    end: Utc,
    /// Dates between its first and its last one that it does not have, or not whole.
    missing: Vec<i64>,
}

#[derive(Debug)]
struct ChangedDate {
    date: i64,
    before: DateTotal,
    after: DateTotal,
}

impl PeriodFacts {
    /// From where to where there are exports; none while nothing is filled.
    pub(super) fn account(connection: &Connection) -> Result<Option<[Utc; 2]>, CacheError> {
        let sql = "SELECT min(date), max(date) FROM date";
        let found = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((Some(first), Some(last))) = found else { return Ok(None) };
        let facts = date_facts(connection, last)?.unwrap_or_default();
        let begin = |date: i64| Utc(date.unsigned_abs() * DAY.0);
        let end = facts.ledgers.values().map(|(end, _)| *end).max();
        Ok(Some([begin(first), end.unwrap_or_else(|| begin(last))]))
    }

    pub(super) fn read(connection: &Connection, ranges: &CostRanges) -> Result<Self, CacheError> {
        let mut facts = Self::default();
        let [from, to] = ranges.period;
        if from >= to {
            return Ok(facts);
        }
        let [first, last] = [from, Utc(to.0 - 1)].map(date_number);
        for date in first..=last {
            if let Some(found) = date_facts(connection, date)? {
                facts.add(date, found)?;
            }
        }
        let others = ranges.before.iter().chain(&ranges.weeks);
        facts.compares_money = true;
        for [from, to] in others {
            let sql =
                "SELECT DISTINCT currency FROM date WHERE date BETWEEN ? AND ? AND currency IS NOT NULL";
            let dates = [*from, Utc(to.0.saturating_sub(1))].map(date_number);
            let mut select = connection.prepare_cached(sql)?;
            let found = select.query_map(dates, |row| row.get::<_, String>(0))?;
            for currency in found {
                facts.compares_money &= Some(currency?) == facts.all.currency;
            }
        }
        facts.read_problems(connection, [first, last])?;
        Ok(facts)
    }

    fn add(&mut self, date: i64, found: DateFacts) -> Result<(), CacheError> {
        match (&self.all.currency, &found.currency) {
            (Some(first), Some(second)) if first != second => {
                return Err(CacheError::Request(format!(
                    "period: prices are in {first} and, since {}, in {second}; ask for a period in one currency",
                    name_of(date)
                )));
            }
            (None, Some(_)) => self.all.currency.clone_from(&found.currency),
            _ => {}
        }
        for (ledger, (end, node)) in found.ledgers {
            let known = self.dates.entry(ledger).or_default();
            if let Some(last) = known.last {
                known.missing.extend(last + 1..date);
                // It has a later date, so that this one will not grow any more.
                if known.end < Utc((last + 1).unsigned_abs() * DAY.0) && !known.missing.contains(&last) {
                    known.missing.push(last);
                }
            } else {
                known.first = date;
            }
            (known.node, known.last, known.end) = (node, Some(date), end);
        }
        self.all.simulated |= found.simulated;
        self.all.example |= found.example;
        self.all.clusters.extend(found.clusters);
        self.all.attributes.extend(found.attributes);
        for (tenant, stated) in found.budgets {
            self.all.budgets.entry(tenant).or_default().merge(stated);
        }
        self.conflicts.extend(found.conflicts);
        Ok(())
    }

    fn read_problems(&mut self, connection: &Connection, dates: [i64; 2]) -> Result<(), CacheError> {
        let sql = "SELECT path, problem FROM file WHERE date BETWEEN ? AND ? AND problem IS NOT NULL ORDER BY date, path";
        let mut select = connection.prepare_cached(sql)?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(format!("{}: {}", row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        };
        self.unreadable = select.query_map(params![dates[0], dates[1]], read)?.collect::<Result<_, _>>()?;
        let sql = "SELECT date, before, after FROM changed_date WHERE date BETWEEN ? AND ? ORDER BY date";
        let mut select = connection.prepare_cached(sql)?;
        let mut rows = select.query(dates)?;
        while let Some(row) = rows.next()? {
            let total = |place: usize| -> Result<DateTotal, CacheError> {
                Ok(serde_json::from_str(&row.get::<_, String>(place)?)?)
            };
            self.changed.push(ChangedDate { date: row.get(0)?, before: total(1)?, after: total(2)? });
        }
        Ok(())
    }

    pub(super) const fn has_money(&self) -> bool {
        self.all.currency.is_some()
    }

    pub(super) fn tenants(&self) -> CostTenants {
        let currency = self.all.currency.as_deref();
        let budgets = StatedBudgets::all_counting(&self.all.budgets, currency);
        CostTenants { attributes: self.all.attributes.clone(), budgets }
    }

    pub(super) fn cost_facts(
        self,
        request: &CostRequest,
        ranges: &CostRanges,
        keys: &KeyReader<'_>,
        refused: &[String],
    ) -> CostFacts {
        let notices = self.notices(request, ranges, refused);
        let (nodes, clusters) = if request.is_partial() {
            let own = nodes_of(keys, request);
            (own.len(), own.into_iter().filter_map(|(cluster, _)| cluster).collect())
        } else {
            let nodes: BTreeSet<&str> = self.dates.values().map(|ledger| &*ledger.node).collect();
            (nodes.len(), self.all.clusters.clone())
        };
        CostFacts {
            source: CostSource {
                kind: "fleet",
                node: None,
                nodes: nodes as u64,
                clusters: clusters.into_iter().collect(),
                simulated: self.all.simulated,
            },
            currency: self.all.currency,
            compares_money: self.compares_money,
            notices,
            statement: None,
            options: "--exports DIR".to_owned(),
        }
    }

    fn notices(&self, request: &CostRequest, ranges: &CostRanges, refused: &[String]) -> Vec<CostNotice> {
        let mut notices = Vec::new();
        let mut tell = |kind: &'static str, text: String| notices.push(CostNotice { kind, text });
        let [_, to] = ranges.period;
        // They name nodes, of which a reader of some tenants sees only his.
        for (tenant, stated) in self.all.budgets.iter().filter(|_| !request.is_partial()) {
            if let Some(differing) = stated.difference(tenant, self.all.currency.as_deref()) {
                tell("budgets_differ", format!("{differing}."));
            }
        }
        let late = self.begun_after(date_number(ranges.period[0]));
        let behind = self.dates.values().filter(|ledger| ledger.end.plus(QUARTER_HOUR) < to);
        let behind =
            behind.map(|ledger| format!("{} (up to {})", ledger.node, ledger.end)).collect::<Vec<_>>();
        let open = self.dates.values().filter(|ledger| !ledger.missing.is_empty());
        let open = open.map(|ledger| {
            let days: Vec<String> = ledger.missing.iter().map(|date| name_of(*date)).collect();
            format!("{} ({})", ledger.node, list_first(&days))
        });
        let open: Vec<String> = open.collect();
        if self.all.example {
            let text = "The prices are made up by gpumeter, not the operator's.";
            tell("example_prices", text.to_owned());
        }
        if request.is_partial() {
            let text = "Only lines that you may see are here, and all sums are of these lines.";
            tell("partial", text.to_owned());
            let is_incomplete = [&behind, &open, &self.unreadable].iter().any(|found| !found.is_empty());
            if is_incomplete {
                tell(
                    "open_days",
                    "Some of this period is not there yet, so that these costs may grow.".to_owned(),
                );
            }
            let changed: BTreeSet<String> = self.changed.iter().map(|one| name_of(one.date)).collect();
            if !changed.is_empty() {
                let days = list_first(changed);
                tell("changed_day", format!("Exports of past days were changed: {days}."));
            }
            return notices;
        }
        for (kind, text, found) in [
            ("missing_node", "Exports begin after the period does", late),
            ("missing_node", "Exports end before the period does", behind),
            ("open_days", "Days are missing or not whole", open),
            (
                "unreadable_file",
                "Files cannot be read, and what they had last is counted",
                self.unreadable.clone(),
            ),
            ("unreadable_file", "Not read", refused.to_vec()),
            ("conflict", "Left out, since two ledgers hold a GPU at one time", conflicts(&self.conflicts)),
            ("changed_day", "Past days were changed", self.changed.iter().map(ChangedDate::told).collect()),
        ] {
            if !found.is_empty() {
                tell(kind, format!("{text}: {}.", list_first(&found)));
            }
        }
        notices
    }
}

impl PeriodFacts {
    /// Nodes of which no ledger has that date or an earlier one of the period.
    fn begun_after(&self, date: i64) -> Vec<String> {
        let mut firsts = BTreeMap::<&str, i64>::new();
        for ledger in self.dates.values() {
            let first = firsts.entry(&ledger.node).or_insert(ledger.first);
            *first = ledger.first.min(*first);
        }
        let late = firsts.into_iter().filter(|(_, first)| *first > date);
        late.map(|(node, first)| format!("{node} (from {})", name_of(first))).collect()
    }
}

fn conflicts(all: &[GpuConflict]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

impl ChangedDate {
    fn told(&self) -> String {
        let of = |total: &DateTotal| {
            let held = total.held.parse::<u128>().unwrap_or(0) / 36_000_000_000;
            let hours = format!("{}.{:02} GPU-hours", held / 100, held % 100);
            let money = ExactMoney::of_parts(total.money.parse().unwrap_or(0)).floor().0 / 10_000_000;
            match &total.currency {
                Some(currency) => format!("{}.{:02} {currency}, {hours}", money / 100, (money % 100).abs()),
                None => hours,
            }
        };
        format!("{} from {} to {}", name_of(self.date), of(&self.before), of(&self.after))
    }
}

fn name_of(date: i64) -> String {
    date_of(Utc(date.unsigned_abs() * DAY.0))
}
