//! What tenants are charged in the current calendar month: from the rows of the month once, then from each commit.

use std::sync::Arc;

use jiff::tz::TimeZone;
use rusqlite::Connection;

use super::billing::{HOLDERS, StoredAccount};
use super::error::{Cause, Error};
use super::owner::Ledger;
use super::reader;
use super::state::LedgerState;
use crate::accounting::batches::MonthCosts;
use crate::accounting::billing::{BillRequest, Month};
use crate::model::Utc;

impl Ledger {
    /// What tenants are charged so far in the month of the newest settled time; none without prices, and before the first
    /// window. The rows of the month are read where rates, terms, tenant rules or month have changed; that takes up to a
    /// second.
    ///
    /// # Errors
    /// The disk.
    pub fn month_costs(&mut self) -> Result<Option<Arc<MonthCosts>>, Error> {
        if self.state.month.is_none() && self.state.rates.has_prices() {
            let loaded = load(&self.connection, &self.state, &self.zone);
            let loaded = loaded.map_err(|cause| cause.at(&self.path, "add up the month"))?;
            self.state.month = loaded.map(Arc::new);
        }
        Ok(self.state.month.clone())
    }
}

fn load(connection: &Connection, state: &LedgerState, zone: &TimeZone) -> Result<Option<MonthCosts>, Cause> {
    let newest = state.gpus.values().map(|gpu| gpu.settled_until).max();
    let last = newest.map(|newest| Utc(newest.0.saturating_sub(1)));
    let Some(month) = last.and_then(|last| Month::containing(last, zone)) else { return Ok(None) };
    let account = StoredAccount::load(connection, reader::holders(connection, HOLDERS, [])?)?;
    let bill = account.draft(&BillRequest::default(), [month.begin, month.end])?;
    let mut costs = MonthCosts::new(month);
    costs.charge(&bill.lines, &state.rates);
    Ok(Some(costs))
}
