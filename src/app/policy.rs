//! From the operator's words to what the rooms need: policy, price book, standing holdings.

use std::sync::Arc;

use crate::config::{Book as ConfigBook, Config, GpuChoice, Grantee, Standing as ConfigStanding};
use crate::holders::{GpuSelector, Selector, Standing};
use crate::ledger::{Book, Price};
use crate::meter::Policy;
use crate::model::Utc;
use crate::model::snapshot::PriceEntry;

/// The example price, so that a demo shows money: nano-units per GPU-hour.
const EXAMPLE: i128 = 2_500_000_000;

/// What the pulse needs of the configuration.
pub(super) fn policy(config: &Config) -> Policy {
    Policy {
        level: config.sampling.level,
        // A tier cannot be faster than the tick.
        intervals: [config.sampling.interval, config.sampling.medium, config.sampling.slow]
            .map(|interval| interval.max(config.sampling.interval)),
        standing: (1..)
            .zip(&config.attribution.standing)
            .map(|(place, entry)| standing(place, entry))
            .collect(),
        presence: config.attribution.presence,
        birth_delay: config.limits.birth_delay,
        processes: config.limits.processes as usize,
        prices: prices(config),
    }
}

/// A grant without a name is called by its place in the list.
fn standing(place: usize, standing: &ConfigStanding) -> Standing {
    Standing {
        id: standing.id.clone().unwrap_or_else(|| place.to_string()),
        gpu: match &standing.gpu {
            GpuChoice::All => GpuSelector::All,
            GpuChoice::Index(index) => GpuSelector::Index(*index),
            GpuChoice::Uuid(uuid) => GpuSelector::Uuid(uuid.clone()),
        },
        fraction: standing.fraction,
        selector: match &standing.holder {
            Grantee::User(name) => Selector::User(name.clone()),
            Grantee::Unit(name) => Selector::Unit(name.clone()),
        },
    }
}

/// The operator's prices as the ledger keeps them.
pub(super) fn book(config: &Config) -> Option<Book> {
    match config.prices.as_ref()? {
        ConfigBook::Example => Some(Book {
            currency: "USD".into(),
            prices: vec![Price { from: Utc(0), nano_per_gpu_hour: EXAMPLE, class: "example".into() }],
        }),
        ConfigBook::Own { currency, rates } => Some(Book {
            currency: currency.clone(),
            prices: rates
                .iter()
                .map(|rate| Price {
                    from: rate.from.unwrap_or_default(),
                    nano_per_gpu_hour: rate.gpu_hour.0,
                    class: rate.class.name().into(),
                })
                .collect(),
        }),
    }
}

/// The prices that label the account's money, in order of time.
fn prices(config: &Config) -> Vec<(Utc, PriceEntry)> {
    let Some(book) = book(config) else { return Vec::new() };
    let currency: Arc<str> = book.currency.as_str().into();
    let mut prices: Vec<_> = book
        .prices
        .iter()
        .map(|price| {
            let entry = PriceEntry {
                currency: Arc::clone(&currency),
                class: price.class.as_str().into(),
                nano_per_gpu_hour: price.nano_per_gpu_hour,
            };
            (price.from, entry)
        })
        .collect();
    prices.sort_by_key(|(from, _)| *from);
    prices
}
