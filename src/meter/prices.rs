//! The prices in force of the published GPUs.

use std::sync::Arc;

use super::TrackedGpu;
use crate::billing::{PricedSlot, RateKind, RateSchedule};
use crate::model::{Price, Utc};

/// Prices by GPU, which stay the same `Arc` until one changes.
#[derive(Default)]
pub(super) struct PublishedPrices {
    /// What they were found for: rates, and UUID and product name of each GPU.
    rates: Arc<RateSchedule>,
    gpus: Vec<[Arc<str>; 2]>,
    /// When a rate next begins or ends.
    until: Utc,
    prices: Arc<[Option<Price>]>,
}

impl PublishedPrices {
    /// The price of each GPU at that account time.
    pub(super) fn update(
        &mut self,
        rates: &Arc<RateSchedule>,
        gpus: &[&TrackedGpu],
        at: Utc,
    ) -> Arc<[Option<Price>]> {
        let is_same = |(known, gpu): (&[Arc<str>; 2], &&TrackedGpu)| {
            known[0] == gpu.id.uuid && gpu.model().map_or("", |model| model) == &*known[1]
        };
        let is_current = at < self.until
            && Arc::ptr_eq(&self.rates, rates)
            && self.gpus.len() == gpus.len()
            && self.gpus.iter().zip(gpus).all(is_same);
        if !is_current {
            let names = |gpu: &&TrackedGpu| {
                [Arc::clone(&gpu.id.uuid), gpu.model().map(Arc::clone).unwrap_or_default()]
            };
            self.gpus = gpus.iter().map(names).collect();
            (self.rates, self.until) = (Arc::clone(rates), rates.next_change(at));
            let price = |[uuid, model]: &[Arc<str>; 2]| {
                let slot = PricedSlot { uuid, model, profile: None };
                rates.rate(RateKind::GpuHour, slot, at).map(|rate| rate.entry.price())
            };
            let prices: Vec<Option<Price>> = self.gpus.iter().map(price).collect();
            if *prices != *self.prices {
                self.prices = prices.into();
            }
        }
        Arc::clone(&self.prices)
    }

    /// Whether any GPU has no price.
    pub(super) fn is_any_missing(&self) -> bool {
        self.prices.iter().any(Option::is_none)
    }
}
