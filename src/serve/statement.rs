//! Closes periods: reads the bill, has its prices made final, and returns what a statement needs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bill::{BillQuery, read_bills};
use crate::billing::statement::check_closable;
use crate::billing::{Bill, RulesVersion, only_bill};
use crate::config::BillingConfig;
use crate::ledger::{ClosedPeriod, Reader, StatementOrder};
use crate::model::Utc;

/// A closed period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedBill {
    /// Its bill.
    pub bill: Bill,
    /// The versions of the tenant rules that held in it.
    pub rules: Vec<RulesVersion>,
    /// When it was closed, account time.
    #[serde(with = "crate::billing::time")]
    pub at: Utc,
}

/// Closes periods of a ledger.
#[derive(Clone, Debug)]
pub struct PeriodCloser {
    /// The ledger.
    pub path: PathBuf,
    /// How its bills are made.
    pub config: BillingConfig,
}

impl PeriodCloser {
    /// Closes the period of a query in the name of a user. `order` has the ledger's owner record it.
    ///
    /// # Errors
    /// The period is not over, not closed by all GPUs, closed already or does not reconcile; the ledger cannot be read or
    /// written.
    pub fn close(
        &self,
        query: &BillQuery,
        by: &str,
        order: impl FnOnce(StatementOrder) -> Result<Utc, String>,
    ) -> Result<ClosedBill, String> {
        let read = || {
            let bills = read_bills(&self.path, query, self.config.time_zone.as_ref(), None, || false);
            let bills = bills.map_err(|problem| problem.to_string())?;
            let bill = only_bill(bills).map_err(|error| error.to_string())?;
            check_closable(&bill).map_err(|error| error.to_string())?;
            Ok::<_, String>(bill)
        };
        let Bill { from, to, .. } = read()?;
        let at = order(StatementOrder::Close(ClosedPeriod { from, to, by: by.to_owned() }))?;
        // A rate that was recorded just before is in this bill.
        let bill = Bill {
            billing_account: self.config.account.clone(),
            invoice_issuer: self.config.invoice_issuer.clone(),
            ..read()?
        };
        let rules = Reader::open(&self.path).and_then(|reader| reader.rules_between(from, to));
        Ok(ClosedBill { bill, rules: rules.map_err(|error| error.to_string())?, at })
    }
}
