//! The accounts that have no series for want of room, as one tenant `__other__` on each slot.
//!
//! In go all accounts at each change, and which of them have series. Out come the sums of what those grew by since
//! they were first left off: increments, not totals, so that no series jumps when a tenant gets or loses its own. The
//! sums begin at 0 with the agent. It does not know how many series fit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::accounts::TenantAccount;
use crate::catalogue::AccountValue;
use crate::ledger::Tariff;
use crate::model::HolderId;
use crate::model::snapshot::AccountState;

/// The values of an account, by [`AccountValue::ALL`].
type AccountValues = [Option<i128>; AccountValue::ALL.len()];

/// A tenant on a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountKey {
    pub(super) tenant: Arc<str>,
    /// Of the GPU.
    pub(super) uuid: Arc<str>,
    /// GPU instance id; none for a whole GPU.
    pub(super) gpu_instance: Option<u32>,
}

/// UUID of a GPU and GPU instance id.
type SlotKey = (Arc<str>, Option<u32>);

/// What is remembered from one change of the accounts to the next.
#[derive(Debug, Default)]
pub(super) struct Folded {
    /// In what the costs are.
    tariff: Option<Tariff>,
    /// What each account came to at the last change.
    last: BTreeMap<AccountKey, AccountValues>,
    sums: BTreeMap<SlotKey, AccountValues>,
}

impl Folded {
    /// Adds what the accounts without series grew by; the accounts of `__other__`.
    pub(super) fn fold(
        &mut self,
        accounts: &[TenantAccount],
        shown: &BTreeSet<AccountKey>,
        tariff: Option<&Tariff>,
    ) -> Vec<TenantAccount> {
        if self.tariff.as_ref() != tariff {
            // Costs under another tariff have series of their own, which begin at 0.
            self.tariff = tariff.cloned();
            self.last.values_mut().chain(self.sums.values_mut()).for_each(forget_costs);
        }
        let mut now = BTreeMap::new();
        for account in accounts {
            let key = account.key();
            if !shown.contains(&key) {
                let sums = self.sums.entry((Arc::clone(&account.uuid), account.gpu_instance)).or_default();
                // One that is new has grown by nothing: a sum begins at 0.
                let last = self.last.get(&key).unwrap_or(&account.state.values);
                add_growth(sums, last, &account.state.values);
            }
            now.insert(key, account.state.values);
        }
        self.last = now;
        let account = |((uuid, gpu_instance), values): (&SlotKey, &AccountValues)| TenantAccount {
            tenant: HolderId::OTHER.into(),
            uuid: Arc::clone(uuid),
            gpu_instance: *gpu_instance,
            state: AccountState { values: *values },
        };
        self.sums.iter().map(account).collect()
    }
}

fn add_growth(sums: &mut AccountValues, last: &AccountValues, values: &AccountValues) {
    for ((sum, last), value) in sums.iter_mut().zip(last).zip(values) {
        if let Some(value) = value {
            let growth = last.map_or(0, |last| (value - last).max(0));
            *sum = Some(sum.unwrap_or(0) + growth);
        }
    }
}

fn forget_costs(values: &mut AccountValues) {
    for (value, kind) in values.iter_mut().zip(AccountValue::ALL) {
        if matches!(kind, AccountValue::HeldCost | AccountValue::UsedCost) {
            *value = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(tenant: &str, held: i128, cost: i128) -> TenantAccount {
        let values = AccountValue::ALL.map(|kind| match kind {
            AccountValue::Held => Some(held),
            AccountValue::HeldCost => Some(cost),
            _ => None,
        });
        let state = AccountState { values };
        TenantAccount { tenant: tenant.into(), uuid: "GPU-0".into(), gpu_instance: None, state }
    }

    fn shown(tenants: &[&str]) -> BTreeSet<AccountKey> {
        let key =
            |tenant: &&str| AccountKey { tenant: (*tenant).into(), uuid: "GPU-0".into(), gpu_instance: None };
        tenants.iter().map(key).collect()
    }

    /// Held time and cost of `__other__`.
    fn other(accounts: &[TenantAccount]) -> Option<[Option<i128>; 2]> {
        let [account] = accounts else { return None };
        let value = |of| AccountValue::ALL.iter().position(|kind| *kind == of);
        Some([AccountValue::Held, AccountValue::HeldCost].map(|of| account.state.values[value(of)?]))
    }

    #[test]
    fn increments_are_folded_from_when_a_tenant_has_no_series_until_it_has_one() {
        let mut folded = Folded::default();
        let euros = Tariff { currency: "EUR".into(), class: "spot".into() };
        let mut fold = |held: [i128; 2], with: &[&str]| {
            let accounts = [account("alice", held[0], 7 * held[0]), account("bob", held[1], 0)];
            other(&folded.fold(&accounts, &shown(with), Some(&euros)))
        };
        assert_eq!(fold([100, 200], &["alice", "bob"]), None);
        assert_eq!(fold([110, 200], &["bob"]), Some([Some(10), Some(70)]), "not the total of 110");
        assert_eq!(fold([110, 205], &[]), Some([Some(15), Some(70)]));
        assert_eq!(
            fold([150, 215], &["alice"]),
            Some([Some(25), Some(70)]),
            "alice counts for herself again"
        );
        assert_eq!(fold([160, 216], &[]), Some([Some(36), Some(140)]));
    }

    #[test]
    fn costs_under_another_tariff_begin_at_nothing() {
        let mut folded = Folded::default();
        let tariff = |currency: &str| Tariff { currency: currency.into(), class: "spot".into() };
        let mut fold = |held, cost, currency| {
            let accounts = [account("alice", held, cost)];
            other(&folded.fold(&accounts, &shown(&[]), Some(&tariff(currency))))
        };
        assert_eq!(fold(10, 5, "EUR"), Some([Some(0), Some(0)]), "a series begins at 0");
        assert_eq!(fold(20, 9, "EUR"), Some([Some(10), Some(4)]));
        assert_eq!(fold(30, 900, "USD"), Some([Some(20), Some(0)]));
        assert_eq!(fold(40, 907, "USD"), Some([Some(30), Some(7)]));
    }
}
