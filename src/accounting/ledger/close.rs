//! Closes a period: reads its bill, has its prices made final, and returns what a statement needs.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ClosedPeriod, Reader, StatementOrder};
use crate::accounting::billing::statement::check_closable;
use crate::accounting::billing::{Bill, BillRequest, RulesVersion, only_bill};
use crate::model::Utc;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedBill {
    pub bill: Bill,
    pub rules: Vec<RulesVersion>,
    /// When it was closed, account time.
    #[serde(with = "crate::accounting::billing::time")]
    pub at: Utc,
}

/// Closes the period of a request in the name of a user. `order` has the ledger's owner record it.
///
/// # Errors
/// The period is not over, not closed by all GPUs, closed already or does not reconcile; the ledger cannot be read or written.
pub fn close_period(
    path: &Path,
    request: &BillRequest,
    by: String,
    order: impl FnOnce(StatementOrder) -> Result<Utc, String>,
) -> Result<ClosedBill, String> {
    let read = || {
        let bills = Reader::open(path).and_then(|mut reader| reader.bills(request));
        let bill = only_bill(bills.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        check_closable(&bill).map_err(|error| error.to_string())?;
        Ok::<_, String>(bill)
    };
    let Bill { from, to, .. } = read()?;
    let at = order(StatementOrder::Close(ClosedPeriod { from, to, by }))?;
    // A rate that was recorded just before is in this bill.
    let bill = read()?;
    let rules = Reader::open(path).and_then(|reader| reader.rules_between(from, to));
    Ok(ClosedBill { bill, rules: rules.map_err(|error| error.to_string())?, at })
}
