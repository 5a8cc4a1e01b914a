//! The versions of the tenant rules of a node in its ledger. A recorded version never changes.

use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use super::column::{loaded, loaded_json, stored};
use super::error::Cause;
use super::timeline::stored_until;
use crate::account::AccountTimeline;
use crate::model::{Nanoseconds, Utc};
use crate::tenants::{RecordedRules, RuleSchedule, RulesAt, TenantRules};

/// Tenant rules that the operator put in force.
#[derive(Debug)]
pub(super) struct RulesChange {
    pub(super) rules: Arc<TenantRules>,
    /// Time since boot at which they were put in force.
    pub(super) decided: Nanoseconds,
}

/// Records rules in the file, one set after the other.
pub(super) fn record(
    transaction: &Transaction<'_>,
    changes: &[RulesChange],
    timeline: AccountTimeline,
) -> Result<(), Cause> {
    let (last, covered_until) = stored_until(transaction)?;
    let mut schedule = load(transaction)?;
    for RulesChange { rules, decided } in changes {
        let now = timeline.at(*decided).max(last.unwrap_or_default());
        if schedule.record(rules, RulesAt { now, is_new: last.is_none(), covered_until })
            && let Some(version) = schedule.versions().last()
        {
            transaction.execute(
                "INSERT INTO tenant_rules (id, begin_ns, recorded_ns, rules, covered_until_ns)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    version.id,
                    stored(version.begin.0)?,
                    stored(version.recorded.0)?,
                    serde_json::to_string(&*version.rules)?,
                    stored(covered_until.0)?
                ],
            )?;
        }
    }
    Ok(())
}

/// All recorded versions.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<RuleSchedule> {
    let versions = connection
        .prepare("SELECT id, begin_ns, recorded_ns, rules, covered_until_ns FROM tenant_rules ORDER BY id")?
        .query_map([], |row| {
            Ok(RecordedRules {
                id: row.get(0)?,
                begin: Utc(loaded(row, 1)?),
                recorded: Utc(loaded(row, 2)?),
                rules: Arc::new(loaded_json(row, 3)?),
                covered_until: Utc(loaded(row, 4)?),
            })
        })?
        .collect::<Result<_, _>>()?;
    Ok(RuleSchedule::new(versions))
}
