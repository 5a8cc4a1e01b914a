//! Step 3 of a tick: settles the windows of all accounts that are over, and collects for the ledger what it lacks.

use std::sync::Arc;

use super::account::Gap;
use super::numbers::MeterCounters;
use super::unused::UnusedHoldings;
use super::{Meter, Policy, TrackedGpu};
use crate::accounting::batches::{ClosedWindow, LedgerBatch};
use crate::holders::Identities;
use crate::model::{Nanoseconds, Utc};

impl Meter {
    pub(super) fn settle(&mut self, identities: &Identities, batch: &mut LedgerBatch) {
        let rules = Arc::clone(self.tenant_rules(batch.now));
        for (uuid, gpu) in &mut self.gpus {
            if gpu.location.paused_since().is_some_and(|since| gpu.account.settled >= since) {
                gpu.unused = UnusedHoldings::default();
                continue;
            }
            gpu.account.identify(identities, &self.policy);
            if gpu.settle_windows(batch.now, &self.policy, &mut self.counters, batch) {
                gpu.unused.judge(&self.versions, &rules);
            }
            batch.open.extend(gpu.account.take_unsent(uuid));
        }
        self.log_gap();
    }

    /// Logs how the time without a running agent was booked.
    fn log_gap(&mut self) {
        let (mut gpus, mut longest, mut sum) = (0, Nanoseconds(0), Gap::default());
        for gpu in self.gpus.values_mut() {
            let gap = gpu.account.take_gap();
            let whole = gap.bridged + gap.unobserved + gap.unavailable;
            gpus += u32::from(whole.0 > 0);
            longest = longest.max(whole);
            sum.bridged += gap.bridged;
            sum.unobserved += gap.unobserved;
            sum.unavailable += gap.unavailable;
        }
        if gpus > 0 {
            tracing::info!(
                gpus,
                seconds = %in_seconds(longest),
                bridged_gpu_seconds = %in_seconds(sum.bridged),
                unobserved_gpu_seconds = %in_seconds(sum.unobserved),
                unavailable_gpu_seconds = %in_seconds(sum.unavailable),
                "GPU time in which no agent ran was added to the account"
            );
        }
    }
}

impl TrackedGpu {
    /// Settles the windows that are over at `now`, at most up to where the account is paused; whether there were any.
    pub(super) fn settle_windows(
        &mut self,
        now: Utc,
        policy: &Arc<Policy>,
        counters: &mut MeterCounters,
        batch: &mut LedgerBatch,
    ) -> bool {
        let closed = self.account.settle(now, self.location.paused_since(), &self.in_session, policy);
        counters.unsettled += closed.failed;
        let any = !closed.settlements.is_empty();
        closed.settlements.iter().for_each(|settlement| self.unused.add(settlement));
        batch.closed.extend(closed.settlements.into_iter().map(|mut settlement| {
            settlement.flags.extend(self.health.remarks(settlement.to));
            ClosedWindow { gpu: Arc::clone(&self.id.uuid), settlement, coarse: false }
        }));
        any
    }
}

/// In seconds, with one decimal.
fn in_seconds(time: Nanoseconds) -> String {
    format!("{}.{}", time.0 / 1_000_000_000, time.0 / 100_000_000 % 10)
}
