//! The accounts as they are shown, kept for as long as nothing of them changes: windows close every 15 s, pulses come
//! every second.
//!
//! In: what the ledger has acknowledged, by tenant, and which of it fits. Out: entries of the roster with their values,
//! the same `Arc`s until the accounts, the holders, the policy, the GPUs or the room for series are others. It adds up
//! nothing itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::accounts::TenantAccount;
use super::budget::Purse;
use super::{Gpu, Meter};
use crate::ledger::Tariff;
use crate::model::snapshot::{AccountEntry, AccountState};
use crate::model::{Stamp, Utc};

/// What is shown, and what it was made for.
pub(super) struct Shown {
    /// When time alone changes it.
    until: Utc,
    /// UUIDs in the order of the roster.
    gpus: Vec<Arc<str>>,
    tariff: Option<Tariff>,
    room: usize,
    left_off: usize,
    pub(super) entries: Arc<[AccountEntry]>,
    pub(super) states: Arc<[AccountState]>,
}

impl Meter {
    /// The accounts by tenant and GPU that fit: those that were `shown`, where they still stand.
    pub(super) fn shown(
        &self,
        shown: Option<Shown>,
        (now, gpus): (Stamp, &[&Gpu]),
        purse: &mut Purse<'_>,
    ) -> Shown {
        let at = self.timeline.at(now.boottime);
        let price = self.policy.price(at);
        let stands = |shown: &Shown| {
            let tariff = shown.tariff.as_ref().map(|tariff| (&tariff.currency, &tariff.class));
            at < shown.until
                && shown.room == purse.room(&self.costs.account)
                && tariff == price.map(|price| (&price.currency, &price.class))
                && shown.gpus.iter().eq(gpus.iter().map(|gpu| &gpu.id.uuid))
        };
        if let Some(shown) = shown.filter(stands) {
            purse.pay(&self.costs.account, shown.entries.len(), shown.left_off);
            return shown;
        }
        let tariff = price
            .map(|price| Tariff { currency: Arc::clone(&price.currency), class: Arc::clone(&price.class) });
        self.show((at, tariff), gpus, purse)
    }

    fn show(&self, (at, tariff): (Utc, Option<Tariff>), gpus: &[&Gpu], purse: &mut Purse<'_>) -> Shown {
        let places: BTreeMap<&str, usize> =
            gpus.iter().enumerate().map(|(place, gpu)| (&*gpu.id.uuid, place)).collect();
        let delay = self.policy.birth_delay;
        let mut accounts = self.accounts.by_tenant(&self.holders, (at, delay), tariff.as_ref());
        // Of a GPU that is forgotten nothing is shown, and nothing is left off.
        accounts.retain(|account| places.contains_key(&*account.uuid));
        let key = |account: &TenantAccount| (Arc::clone(&account.tenant), Arc::clone(&account.uuid));
        let (all, room) = (accounts.len(), purse.room(&self.costs.account));
        let fit = purse.accounts(accounts, &self.costs.account, key);
        let (entries, states): (Vec<_>, Vec<_>) = fit
            .into_iter()
            .filter_map(|account| {
                let gpu = *places.get(&*account.uuid)?;
                Some((AccountEntry { tenant: account.tenant, gpu }, account.state))
            })
            .unzip();
        Shown {
            until: self.accounts.change_after(at, delay),
            gpus: gpus.iter().map(|gpu| Arc::clone(&gpu.id.uuid)).collect(),
            tariff,
            room,
            left_off: all - entries.len(),
            entries: entries.into(),
            states: states.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Acknowledged, Counter};
    use crate::meter::accounts::Accounts;
    use crate::model::{HolderId, Nanoseconds, Parts};

    #[test]
    fn what_is_shown_is_as_if_it_were_added_up_in_every_second() {
        const DELAY: Nanoseconds = Nanoseconds::from_seconds(60);
        let at = |second| Utc(0).plus(Nanoseconds::from_seconds(second));
        let mut accounts = Accounts::default();
        for (user, born) in [("user:alice", 100), ("user:bob", 130)] {
            let parts = Parts { waste: born, ..Parts::default() };
            let counter = Counter { born: at(born), parts, ..Counter::default() };
            let counters = BTreeMap::from([(("GPU-0".into(), HolderId::new(user)), counter)]);
            accounts.acknowledge(&Acknowledged { counters, ..Acknowledged::default() }, at(born));
        }
        let added_up = |now: Utc| -> Vec<_> {
            let accounts = accounts.by_tenant(&BTreeMap::new(), (now, DELAY), None);
            accounts.into_iter().map(|account| (account.tenant, account.state.values)).collect()
        };
        let (mut until, mut shown, mut changes) = (at(0), Vec::new(), Vec::new());
        for second in 130..800 {
            let now = at(second);
            if now >= until {
                changes.push(second);
                (until, shown) = (accounts.change_after(now, DELAY), added_up(now));
            }
            assert_eq!(shown, added_up(now), "{second}");
        }
        assert_eq!(changes, [130, 160, 190, 700, 730]);
    }
}
