//! The counters of the account: what each holder and tenant held, used and cost on a slot since the ledger was created.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounting::billing::ExactMoney;
use crate::model::{Amounts, HolderId, Row, Tariff, Utc};

/// Key of a counter: a holder on a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    pub holder: HolderId,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantKey {
    pub gpu: Arc<str>,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    pub tenant: Arc<str>,
}

impl CounterKey {
    pub const fn of_gpu(gpu: Arc<str>, holder: HolderId) -> Self {
        Self { gpu, gpu_instance: None, holder }
    }

    pub fn of_row(gpu: &Arc<str>, row: &Row) -> Self {
        Self { gpu: Arc::clone(gpu), gpu_instance: row.slot.gpu_instance, holder: row.holder.clone() }
    }

    pub fn with_tenant(&self, tenant: &Arc<str>) -> TenantKey {
        TenantKey { gpu: Arc::clone(&self.gpu), gpu_instance: self.gpu_instance, tenant: Arc::clone(tenant) }
    }
}

/// The account of one holder on one GPU since the ledger was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderCounter {
    pub tenant: Arc<str>,
    /// Time of the batch in which it was first above zero.
    pub born: Utc,
    /// What was held, used and drawn; memory and measured time stay 0.
    pub amounts: Amounts,
    /// Money, by currency and class; empty where no price was ever in force.
    pub costs: BTreeMap<Tariff, AccruedCost>,
}

/// Money at the prices then in force. A rate that is recorded later changes bills, and never this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccruedCost {
    /// Time of the batch that added the first money.
    pub born: Utc,
    pub held: ExactMoney,
    pub used: ExactMoney,
}

impl HolderCounter {
    pub fn add(&mut self, other: &Self) {
        self.amounts.add(&other.amounts);
        for (tariff, cost) in &other.costs {
            let sum = self.costs.entry(tariff.clone()).or_default();
            sum.held = sum.held.saturating_plus(cost.held);
            sum.used = sum.used.saturating_plus(cost.used);
        }
    }

    /// Subtracts a counter that is contained in this one.
    pub fn remove(&mut self, part: &Self) {
        self.amounts.remove(&part.amounts);
        for (tariff, cost) in &part.costs {
            if let Some(sum) = self.costs.get_mut(tariff) {
                sum.held = sum.held.saturating_minus(cost.held);
                sum.used = sum.used.saturating_minus(cost.used);
            }
        }
    }
}
