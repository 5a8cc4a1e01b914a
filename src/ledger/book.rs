//! The operator's prices, and their versions in the ledger.
//!
//! A changed price is a new version from the next whole minute on, and what was settled before is never restated. A version
//! that has not begun yet may be replaced.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use super::MINUTE;
use super::column::{loaded, stored};
use super::error::Cause;
use super::timeline::AccountTimeline;
use crate::model::{Nanoseconds, Utc};

/// The operator's prices, in one currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriceBook {
    /// ISO 4217 code, or the operator's own name of a currency.
    pub currency: String,
    /// Prices in any order; each is in force until the next begins.
    pub prices: Vec<Price>,
}

/// A price of GPU time from some time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// Begin, on a whole minute; 0 means always.
    pub from: Utc,
    /// Billionths of the currency per GPU-hour, at least 0.
    pub nano_per_gpu_hour: i128,
    /// `on_demand`, `spot`, `committed`, ...
    pub class: String,
}

/// Labels of a cost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tariff {
    /// The currency.
    pub currency: Arc<str>,
    /// The price class.
    pub class: Arc<str>,
}

/// A rate with its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PriceRate {
    pub(super) tariff: Tariff,
    /// Billionths of the currency per GPU-hour; 63 bits allow 9.2e9 units.
    pub(super) nano_per_gpu_hour: i64,
}

/// A stored version of the price; without a rate nothing was charged.
#[derive(Clone, Debug)]
pub(super) struct PriceVersion {
    pub(super) id: i64,
    pub(super) from: Utc,
    pub(super) rate: Option<PriceRate>,
}

/// The version in force at a time.
pub(super) fn in_force(versions: &[PriceVersion], at: Utc) -> Option<&PriceVersion> {
    versions.iter().rev().find(|version| version.from <= at)
}

/// All versions, in order of time.
pub(super) fn versions(connection: &Connection) -> rusqlite::Result<Vec<PriceVersion>> {
    connection
        .prepare("SELECT id, from_ns, currency, class, nano_per_gpu_hour FROM price ORDER BY from_ns")?
        .query_map([], |row| {
            let parts: (Option<String>, Option<String>, Option<i64>) =
                (row.get(2)?, row.get(3)?, row.get(4)?);
            let rate = match parts {
                (Some(currency), Some(class), Some(nano_per_gpu_hour)) => Some(PriceRate {
                    tariff: Tariff { currency: currency.into(), class: class.into() },
                    nano_per_gpu_hour,
                }),
                _ => None,
            };
            Ok(PriceVersion { id: row.get(0)?, from: Utc(loaded(row, 1)?), rate })
        })?
        .collect()
}

/// A price book that the operator put in force; none ends all charges.
#[derive(Debug)]
pub(super) struct PriceChange {
    book: Option<PriceBook>,
    /// Time since boot at which it was put in force.
    decided: Nanoseconds,
}

impl PriceChange {
    /// Refuses prices that cannot be stored.
    pub(super) fn checked(book: Option<&PriceBook>, decided: Nanoseconds) -> Result<Self, Cause> {
        book.map(schedule).transpose()?;
        Ok(Self { book: book.cloned(), decided })
    }

    /// Stores the prices from the next whole minute on, or after the last settled minute where that is later; in a ledger
    /// without settled time, from the beginning.
    pub(super) fn store(
        &self,
        transaction: &Transaction<'_>,
        timeline: AccountTimeline,
    ) -> Result<(), Cause> {
        let now = timeline.at(self.decided);
        let wanted = self.book.as_ref().map(schedule).transpose()?.unwrap_or_default();
        let settled: Option<i64> =
            transaction.query_row("SELECT max(minute_ns) FROM minute", [], |row| row.get(0))?;
        let start =
            settled.map_or(Utc(0), |last| now.floor(MINUTE).max(Utc(last.unsigned_abs())).plus(MINUTE));
        let known: Schedule =
            versions(transaction)?.into_iter().map(|version| (version.from, version.rate)).collect();
        let (before, known) = changes_from(&known, start);
        let (_, wanted) = changes_from(&wanted, start);
        if known == wanted {
            return Ok(());
        }
        transaction.execute("DELETE FROM price WHERE from_ns >= ?1", [stored(start.0)?])?;
        let mut last = before;
        for (from, rate) in wanted {
            if rate != last {
                insert(transaction, from, rate.as_ref(), now)?;
            }
            last = rate;
        }
        Ok(())
    }
}

/// Rates with their begin, in order of time.
type Schedule = Vec<(Utc, Option<PriceRate>)>;

/// The schedule of a valid book.
fn schedule(book: &PriceBook) -> Result<Schedule, Cause> {
    let mut rates = Schedule::new();
    for price in &book.prices {
        let refuse = |problem| Cause::Price { at: price.from, problem };
        let nano_per_gpu_hour = i64::try_from(price.nano_per_gpu_hour)
            .map_err(|_| refuse("is above 9.2e9 units per GPU-hour; use a larger currency unit"))?;
        if nano_per_gpu_hour < 0 {
            return Err(refuse("is negative; give a price per GPU-hour >= 0"));
        }
        if price.from.floor(MINUTE) != price.from {
            return Err(refuse("does not begin on a whole minute; give a time on the 15-minute grid"));
        }
        let tariff = Tariff { currency: book.currency.as_str().into(), class: price.class.as_str().into() };
        rates.push((price.from, Some(PriceRate { tariff, nano_per_gpu_hour })));
    }
    rates.sort_by_key(|(from, _)| *from);
    match rates.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => {
            Err(Cause::Price { at: pair[0].0, problem: "is given twice; keep one price for that time" })
        }
        None => Ok(rates),
    }
}

/// The rate in force just before `start`, and the rates from `start` on.
fn changes_from(schedule: &Schedule, start: Utc) -> (Option<PriceRate>, Schedule) {
    let before = schedule.iter().rev().find(|(from, _)| *from < start).and_then(|(_, rate)| rate.clone());
    let at = schedule.iter().rev().find(|(from, _)| *from <= start).and_then(|(_, rate)| rate.clone());
    let mut changes = vec![(start, at)];
    for (from, rate) in schedule.iter().filter(|(from, _)| *from > start) {
        if changes.last().is_none_or(|(_, last)| last != rate) {
            changes.push((*from, rate.clone()));
        }
    }
    (before, changes)
}

fn insert(connection: &Connection, from: Utc, rate: Option<&PriceRate>, now: Utc) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO price (from_ns, currency, class, nano_per_gpu_hour, recorded_ns)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            stored(from.0)?,
            rate.map(|rate| &*rate.tariff.currency),
            rate.map(|rate| &*rate.tariff.class),
            rate.map(|rate| rate.nano_per_gpu_hour),
            stored(now.0)?,
        ],
    )?;
    Ok(())
}
