//! Reads a ledger, whether an agent owns it or not. A bill is made in one read transaction, so it never has half a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Params};

use super::advice::make_advice;
use super::billing::{HOLDERS, closed_time, make_bill, make_bills};
use super::column::{self, loaded_id, loaded_json};
use super::costs::make_costs;
use super::error::{Cause, Error};
use super::expected::{self, InventoryRow};
use super::explain::{explain, report_jobs};
use super::planning::{make_demand, make_fit};
use super::statements::{self, RecordedDocuments};
use super::{counters, day, evidence, history, node, schema};
use crate::accounting::advice::{Advice, AdviceRequest};
use crate::accounting::billing::costs::{CostReport, CostRequest};
use crate::accounting::billing::{
    Bill, BillRequest, DayAccount, DayEvidence, DayRevision, Explanation, JobReport, RulesVersion,
};
use crate::accounting::planning::{Demand, DemandRequest, Fit, FitRequest};
use crate::model::{Holder, NodeIdentity, Utc};

/// A read-only connection. Its calls may block on the disk.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

impl Reader {
    /// Opens a ledger for reading. A program other than the agent calls [`super::check_unowned`] first.
    ///
    /// # Errors
    /// The file is missing or no ledger; a newer schema.
    pub fn open(path: &Path) -> Result<Self, Error> {
        schema::open_reader(path)
            .map(|connection| Self { connection, path: path.to_owned() })
            .map_err(|cause| cause.at(path, "open the ledger for reading"))
    }

    /// Interrupts a query once `is_unwanted` returns true; it is called every 10,000 steps of SQLite's virtual machine, about
    /// once per millisecond.
    pub fn interrupt_when(
        &mut self,
        is_unwanted: impl FnMut() -> bool + Send + 'static,
    ) -> Result<(), Error> {
        const STEPS: i32 = 10_000;
        self.connection
            .progress_handler(STEPS, Some(is_unwanted))
            .map_err(|error| Cause::from(error).at(&self.path, "prepare to make a bill"))
    }

    /// The bill of closed minutes, in one currency.
    ///
    /// # Errors
    /// A period in the future or in which rows are deleted or rolled up, two currencies, the disk, and holders' facts that
    /// this agent cannot read.
    pub fn bill(&mut self, request: &BillRequest) -> Result<Bill, Error> {
        self.read("make a bill", |transaction| make_bill(transaction, request))
            .map(|bill| bill.visible_to(&request.visible))
    }

    /// Such bills, one after the other, each of a span in one currency.
    ///
    /// # Errors
    /// Those of [`Reader::bill`], but two currencies only where both are in force at one time.
    pub fn bills(&mut self, request: &BillRequest) -> Result<Vec<Bill>, Error> {
        let bills = self.read("make a bill", |transaction| make_bills(transaction, request))?;
        Ok(bills.into_iter().map(|bill| bill.visible_to(&request.visible)).collect())
    }

    /// The costs of a period, as their reader may see them.
    ///
    /// # Errors
    /// Those of [`Reader::bill`].
    pub fn costs(&mut self, request: &CostRequest) -> Result<CostReport, Error> {
        self.read("add up costs", |transaction| make_costs(transaction, request))
    }

    /// Explains the lines of a bill.
    ///
    /// # Errors
    /// Those of [`Reader::bill`].
    pub fn explain(&mut self, request: &BillRequest) -> Result<Explanation, Error> {
        self.read("explain a bill", |transaction| explain(transaction, request))
    }

    /// What jobs held, used and cost.
    ///
    /// # Errors
    /// Those of [`Reader::bill`].
    pub fn jobs(&mut self, request: &BillRequest) -> Result<JobReport, Error> {
        self.read("report jobs", |transaction| report_jobs(transaction, request))
    }

    /// The findings of advice of the last four weeks.
    ///
    /// # Errors
    /// The disk, and holders' facts that this agent cannot read.
    pub fn advice(&mut self, request: &AdviceRequest) -> Result<Advice, Error> {
        self.read("look for advice", |transaction| make_advice(transaction, request))
    }

    /// Whether workloads would have fitted together in the last four weeks.
    ///
    /// # Errors
    /// The disk, and a request to which there is no answer.
    pub fn fit(&mut self, request: &FitRequest) -> Result<Fit, Error> {
        self.read("look whether they fit", |transaction| make_fit(transaction, request))
    }

    /// How many GPUs were wanted when, in the last eight weeks.
    ///
    /// # Errors
    /// The disk, and a request to which there is no answer.
    pub fn demand(&mut self, request: &DemandRequest) -> Result<Demand, Error> {
        self.read("add up demand", |transaction| make_demand(transaction, request))
    }

    fn read<T, E: Into<Cause>>(
        &self,
        doing: &'static str,
        read: impl FnOnce(&Connection) -> Result<T, E>,
    ) -> Result<T, Error> {
        // All queries see the same state.
        let read = || read(&*self.connection.unchecked_transaction()?).map_err(E::into);
        read().map_err(|cause| cause.at(&self.path, doing))
    }

    /// The end of what is closed.
    ///
    /// # Errors
    /// The disk.
    pub fn closed_until(&self) -> Result<Utc, Error> {
        self.read("read the end of its account", closed_time)
    }

    /// The days of the account that are exported, each with what it would be made from now.
    ///
    /// # Errors
    /// The disk.
    pub fn days(&mut self) -> Result<Vec<(Utc, DayRevision)>, Error> {
        self.read("list the days of its account", day::days)
    }

    /// The cluster of the node at the end of a day, and the id of the ledger, which name the file of the day.
    ///
    /// # Errors
    /// The disk.
    pub fn day_owner(&self, begin: Utc) -> Result<(Option<String>, String), Error> {
        self.read("read its node", |transaction| day::owner(transaction, begin))
    }

    /// Whether the node has, or once had, that name.
    ///
    /// # Errors
    /// The disk.
    pub fn was_node(&self, name: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM node WHERE name = ?1 UNION ALL SELECT 1 FROM past_node WHERE name = ?1)";
        self.read("read its node", |transaction| transaction.query_row(sql, [name], |row| row.get(0)))
    }

    /// The account of a day by quarter hours.
    ///
    /// # Errors
    /// Those of [`Reader::bill`].
    pub fn day(&mut self, begin: Utc) -> Result<DayAccount, Error> {
        self.read("export a day", |transaction| day::read_day(transaction, begin))
    }

    /// The evidence of a day.
    ///
    /// # Errors
    /// The disk.
    pub fn day_evidence(&mut self, begin: Utc) -> Result<DayEvidence, Error> {
        self.read("export the evidence of a day", |transaction| {
            evidence::read_day(transaction, begin, closed_time(transaction)?)
        })
    }

    /// The versions of the tenant rules that are in force between two times.
    ///
    /// # Errors
    /// The disk; rules that this agent cannot read.
    pub fn rules_between(&self, from: Utc, to: Utc) -> Result<Vec<RulesVersion>, Error> {
        let (_, schedule) = self.read("list its tenant rules", history::load)?;
        let times = [from].into_iter().chain(schedule.changes_between(from, to));
        let mut versions: Vec<RulesVersion> =
            times.filter_map(|at| schedule.in_force(at)).map(RulesVersion::new).collect();
        versions.dedup_by_key(|version| version.id);
        Ok(versions)
    }

    /// What the ledger has recorded of statements.
    ///
    /// # Errors
    /// The disk.
    pub fn documents(&self) -> Result<RecordedDocuments, Error> {
        self.read("list its statements", statements::recorded)
    }

    pub fn node(&self) -> Result<NodeIdentity, Error> {
        self.read("read its node", node::load)
    }

    /// Whether a pod or job of a scheduler has ever held a GPU.
    ///
    /// # Errors
    /// The disk.
    pub fn has_scheduled(&self) -> Result<bool, Error> {
        self.read("read the counters", counters::has_scheduled)
    }

    /// All GPUs of the ledger by index, with their attachment.
    pub fn inventory(&self) -> Result<Vec<InventoryRow>, Error> {
        self.read("list its GPUs", expected::list)
    }

    /// All versions of holders with their facts, by name and in the order in which they began.
    ///
    /// # Errors
    /// The disk; facts that this agent cannot read.
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        self.read("list its holders", |transaction| holders(transaction, HOLDERS, []))
    }
}

/// The last user name of each uid among the holders' facts, the latest first. A name that equals the uid is none.
pub(super) fn user_names(connection: &Connection) -> rusqlite::Result<Vec<(u32, Arc<str>)>> {
    let sql = "SELECT facts ->> 'uid' AS uid, facts ->> 'user' AS user, max(id) AS latest
               FROM holder
               WHERE uid IS NOT NULL AND user IS NOT NULL AND user <> CAST(uid AS TEXT)
               GROUP BY uid ORDER BY latest DESC LIMIT 4096";
    column::rows(connection, sql, [], |row| Ok((row.get(0)?, row.get::<_, String>(1)?.into())))
}

pub(super) fn holders(
    connection: &Connection,
    sql: &'static str,
    parameters: impl Params,
) -> rusqlite::Result<Vec<Holder>> {
    column::rows(connection, sql, parameters, |row| {
        Ok(Holder { id: loaded_id(row, 0)?, facts: loaded_json(row, 2)? })
    })
}
