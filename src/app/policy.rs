//! From the operator's words to what the rooms need: policy, price book, standing holdings.

use std::sync::Arc;

use super::grants::Names;
use super::lanes::Cadence;
use crate::config::{Book as ConfigBook, Config, GpuChoice, Grantee, Standing as ConfigStanding};
use crate::export::Press;
use crate::holders::{GpuSelector, Selector, Standing};
use crate::ledger::{Book, Price};
use crate::meter::Policy;
use crate::model::snapshot::PriceEntry;
use crate::model::{Nanoseconds, Utc};

/// The ledger changes prices on this grid.
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// The example price, so that a demo shows money: nano-units per GPU-hour.
const EXAMPLE: i128 = 2_500_000_000;

/// Everything that follows from the configuration while the agent runs: what a reload swaps, whole.
#[derive(Clone)]
pub(super) struct InForce {
    pub(super) config: Config,
    pub(super) cadence: Cadence,
    pub(super) policy: Arc<Policy>,
    /// What the ledger is to charge: the prices of the agent's start, and each change since, in order.
    pub(super) charges: Vec<Charge>,
    pub(super) press: Arc<Press>,
    /// Pulses between two pushes.
    pub(super) push_every: u64,
}

/// Prices that were put in force at a moment of the account, which page and ledger count the next minute from.
#[derive(Clone)]
pub(super) struct Charge {
    pub(super) book: Option<Book>,
    pub(super) decided: Utc,
}

impl InForce {
    /// The prices in force.
    pub(super) fn book(&self) -> Option<&Book> {
        self.charges.last().and_then(|charge| charge.book.as_ref())
    }

    /// What follows from that configuration.
    pub(super) fn new(config: Config) -> Self {
        let sampling = &config.sampling;
        Self {
            cadence: Cadence::of(&config),
            policy: Arc::new(policy(&config)),
            charges: vec![Charge { book: book(&config), decided: Utc(0) }],
            press: Arc::new(Press::new(sampling.level, config.web.created)),
            push_every: (config.otlp.interval.0 / sampling.interval.0).max(1),
            config,
        }
    }

    /// The same, with grants to these uids held under these names; whether that changes anything.
    pub(super) fn renamed(&self, names: &Names) -> Option<Self> {
        let mut policy = (*self.policy).clone();
        let mut changed = false;
        for standing in &mut policy.standing {
            if let Selector::Uid { uid, name } = &mut standing.selector
                && let Some(known) = names.get(uid).filter(|known| *known != name)
            {
                name.clone_from(known);
                changed = true;
            }
        }
        changed.then(|| Self { policy: Arc::new(policy), ..self.clone() })
    }

    /// What follows from a configuration that takes the place of this one, at that account time: prices that
    /// were in force until then stay the prices of that time, as in the ledger, whenever that comes to it.
    pub(super) fn succeeded_by(&self, config: Config, now: Utc) -> Self {
        let mut next = Self::new(config);
        let book = next.charges.pop().and_then(|charge| charge.book);
        let changed = book.as_ref() != self.book();
        next.charges.clone_from(&self.charges);
        if changed {
            next.charges.push(Charge { book, decided: now });
            let mut policy = policy(&next.config);
            policy.prices = succeed(&self.policy.prices, &policy.prices, now.floor(MINUTE).plus(MINUTE));
            next.policy = Arc::new(policy);
        } else if next.policy.prices != self.policy.prices {
            let policy = Policy { prices: self.policy.prices.clone(), ..policy(&next.config) };
            next.policy = Arc::new(policy);
        }
        next
    }
}

/// A price holds from a time on; none says that from then on there is no money.
type Prices = Vec<(Utc, Option<PriceEntry>)>;

/// The old prices up to `start`, the new ones from there on.
fn succeed(old: &Prices, new: &Prices, start: Utc) -> Prices {
    let at_start = new.iter().rev().find(|(from, _)| *from <= start).and_then(|(_, price)| price.clone());
    let before = old.iter().filter(|(from, _)| *from < start).cloned();
    let after = new.iter().filter(|(from, _)| *from > start).cloned();
    before.chain([(start, at_start)]).chain(after).collect()
}

/// What the pulse needs of the configuration.
fn policy(config: &Config) -> Policy {
    Policy {
        level: config.sampling.level,
        // A tier cannot be faster than the tick.
        intervals: [config.sampling.interval, config.sampling.medium, config.sampling.slow]
            .map(|interval| interval.max(config.sampling.interval)),
        standing: grants(config),
        presence: config.attribution.presence,
        birth_delay: config.limits.birth_delay,
        processes: config.limits.processes as usize,
        series: config.limits.series as usize,
        prices: prices(config),
    }
}

/// The standing holdings.
pub(super) fn grants(config: &Config) -> Vec<Standing> {
    (1..).zip(&config.attribution.standing).map(|(place, entry)| standing(place, entry)).collect()
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
            Grantee::Uid(uid) => Selector::Uid { uid: *uid, name: uid.to_string().into() },
            Grantee::Unit(name) => Selector::Unit(name.clone()),
        },
    }
}

/// The operator's prices as the ledger keeps them.
fn book(config: &Config) -> Option<Book> {
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
fn prices(config: &Config) -> Prices {
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
            (price.from, Some(entry))
        })
        .collect();
    prices.sort_by_key(|(from, _)| *from);
    prices
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn in_force(before: Option<&InForce>, text: &str, minute: u64) -> InForce {
        let config = Config::parse(text, "test").unwrap();
        let now = Utc(minute * MINUTE.0 + 1);
        before.map_or_else(|| InForce::new(config.clone()), |before| before.succeeded_by(config.clone(), now))
    }

    fn schedule(in_force: &InForce) -> Vec<(u64, Option<i128>)> {
        let price = |price: &Option<PriceEntry>| price.as_ref().map(|price| price.nano_per_gpu_hour);
        in_force.policy.prices.iter().map(|(from, entry)| (from.0 / MINUTE.0, price(entry))).collect()
    }

    #[test]
    fn a_changed_price_holds_from_the_next_minute_on_and_not_before() {
        let one = in_force(None, "prices: {currency: USD, rates: [{gpu_hour: 1}]}", 0);
        assert_eq!(schedule(&one), [(0, Some(1_000_000_000))]);
        let two = in_force(Some(&one), "prices: {currency: USD, rates: [{gpu_hour: 2}]}", 10);
        assert_eq!(schedule(&two), [(0, Some(1_000_000_000)), (11, Some(2_000_000_000))]);
        let same = in_force(
            Some(&two),
            "limits: {processes: 7}\nprices: {currency: USD, rates: [{gpu_hour: 2}]}",
            15,
        );
        assert_eq!(schedule(&same), schedule(&two));
        assert_eq!(same.policy.processes, 7);
        let none = in_force(Some(&same), "", 20);
        assert_eq!(schedule(&none).last(), Some(&(21, None)));
    }
}
