//! A bill by tenant, as it is shown: times, hours and money in words that need no program to be read.
//!
//! Sums of bill lines and nothing else; what a tenant is asked to pay under terms comes later.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bill::{Bill, Line};
use crate::model::{Holder, HolderId, HolderKind, Money, Utc};
use crate::tenants::tenant;

/// The account of a span of time, by tenant, holder and GPU. Times are nanoseconds, energies microjoules,
/// money a decimal of [`Statement::currency`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// First minute.
    pub from: String,
    /// End of the last minute.
    pub to: String,
    /// Up to here every GPU's minutes are closed.
    pub closed_until: String,
    /// Of all money here; absent where no price was in force.
    pub currency: Option<String>,
    /// By tenant, GPU and holder; remainders have lines too.
    pub lines: Vec<StatementLine>,
    /// By GPU.
    pub gpus: Vec<StatementGpu>,
    /// Sums that were made separately and must agree.
    pub reconciliation: StatementProof,
}

/// What one holder held and used on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of the account's parts; units are in their ends")]
pub struct StatementLine {
    pub tenant: String,
    pub holder: String,
    pub gpu: u32,
    pub uuid: String,
    pub held_ns: u64,
    pub within_ns: u64,
    pub lent_ns: u64,
    pub waste_ns: u64,
    pub unmeasured_ns: u64,
    pub unavailable_ns: u64,
    pub idle_ns: u64,
    pub used_ns: u64,
    pub beyond_share_ns: u64,
    pub outside_holding_ns: u64,
    pub unheld_ns: u64,
    /// None where nobody measured the GPU's energy.
    pub energy_static_uj: Option<u64>,
    pub energy_dynamic_uj: Option<u64>,
    pub grade: String,
    pub measured_ns: u64,
    pub method: String,
    pub sources: Vec<String>,
    /// The time that `money` is for: held less unavailable, and for `__unavailable__` all unavailable time.
    #[serde(default)]
    pub charged_ns: u64,
    pub money: Option<String>,
}

/// One GPU's total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it; units are in their ends")]
pub struct StatementGpu {
    pub gpu: u32,
    pub uuid: String,
    pub model: String,
    pub slot_ns: u64,
    pub settled_until: String,
    pub money: Option<String>,
}

/// Sums that were made separately and must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it; units are in their ends")]
pub struct StatementProof {
    pub slot_ns: u64,
    pub held_ns: u64,
    pub imbalance_ns: String,
    pub gpu_money: String,
    pub line_money: String,
    pub imbalance_money: String,
}

impl Statement {
    /// A bill by tenant, with the facts of its holders.
    pub fn new(bill: &Bill, holders: &[Holder]) -> Self {
        let known: BTreeMap<&HolderId, &Holder> = holders.iter().map(|holder| (&holder.id, holder)).collect();
        let mut lines: Vec<StatementLine> = bill
            .lines
            .iter()
            .map(|line| {
                let tenant =
                    known.get(&line.holder).map_or_else(|| unknown(&line.holder), |holder| tenant(holder));
                statement_line(line, &tenant)
            })
            .collect();
        lines.sort_by(|left, right| {
            (&left.tenant, left.gpu, &left.holder).cmp(&(&right.tenant, right.gpu, &right.holder))
        });
        let proof = &bill.reconciliation;
        Self {
            from: time(bill.from),
            to: time(bill.to),
            closed_until: time(bill.closed_until),
            currency: bill.currency.clone(),
            lines,
            gpus: bill
                .gpus
                .iter()
                .map(|total| StatementGpu {
                    gpu: total.gpu.index,
                    uuid: total.gpu.uuid.to_string(),
                    model: total.model.clone(),
                    slot_ns: total.slot.0,
                    settled_until: time(total.settled_until),
                    money: total.money.map(decimal),
                })
                .collect(),
            reconciliation: StatementProof {
                slot_ns: proof.slot.0,
                held_ns: proof.held.0,
                imbalance_ns: proof.imbalance.to_string(),
                gpu_money: decimal(proof.gpu_money),
                line_money: decimal(proof.line_money),
                imbalance_money: decimal(proof.imbalance_money),
            },
        }
    }

    /// Whether every sum agrees.
    pub fn is_balanced(&self) -> bool {
        let proof = &self.reconciliation;
        proof.imbalance_ns == "0" && proof.slot_ns == proof.held_ns && proof.gpu_money == proof.line_money
    }
}

fn unknown(id: &HolderId) -> Arc<str> {
    let kind = if id.is_remainder() { HolderKind::Remainder } else { HolderKind::User };
    tenant(&Holder { id: id.clone(), kind, facts: crate::model::Facts::default() })
}

fn statement_line(line: &Line, tenant: &str) -> StatementLine {
    StatementLine {
        tenant: tenant.into(),
        holder: line.holder.to_string(),
        gpu: line.gpu.index,
        uuid: line.gpu.uuid.to_string(),
        held_ns: line.parts.held(),
        within_ns: line.parts.within,
        lent_ns: line.parts.lent,
        waste_ns: line.parts.waste,
        unmeasured_ns: line.parts.unmeasured,
        unavailable_ns: line.parts.unavailable,
        idle_ns: line.parts.idle(),
        used_ns: line.used.total(),
        beyond_share_ns: line.used.beyond,
        outside_holding_ns: line.used.outside,
        unheld_ns: line.used.unheld,
        energy_static_uj: line.energy_static.map(|energy| energy.0),
        energy_dynamic_uj: line.energy_dynamic.map(|energy| energy.0),
        grade: line.grade.name().into(),
        measured_ns: line.measured.0,
        method: line.method.name().into(),
        sources: line.sources.iter().map(|source| source.name().into()).collect(),
        charged_ns: line.charged.0,
        money: line.money.map(decimal),
    }
}

/// RFC 3339 in UTC.
fn time(at: Utc) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.0))
        .map_or_else(|_| at.0.to_string(), |time| time.to_string())
}

/// Nano-units as a decimal with all nine places.
fn decimal(money: Money) -> String {
    const UNIT: u128 = 1_000_000_000;
    let sign = if money.0 < 0 { "-" } else { "" };
    let amount = money.0.unsigned_abs();
    format!("{sign}{}.{:09}", amount / UNIT, amount % UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_a_decimal_with_every_place() {
        assert_eq!(decimal(Money(2_500_000_000)), "2.500000000");
        assert_eq!(decimal(Money(-1)), "-0.000000001");
    }
}
