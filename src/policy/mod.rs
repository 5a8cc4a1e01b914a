//! What follows from the configuration: sampling schedule, policy, price book and standing holdings.
//!
//! In: a configuration, the users of the host and the account's time axis. Out: [`ActiveConfig`], which a reload replaces
//! as a whole.

mod current;
mod dcgm;
mod prices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::Level;
use crate::config::{Config, GpuChoice, GrantConfig, Grantee, PriceBookConfig, UserChoice};
use crate::export::PageCache;
use crate::holders::{GpuSelector, Selector, StandingGrant};
use crate::ledger::{AccountTimeline, Price, PriceBook};
use crate::meter::Policy;
use crate::model::snapshot::PriceEntry;
use crate::model::{Nanoseconds, Utc};

pub(crate) use current::{CurrentConfig, Wait};
pub use dcgm::{dcgm_options, refused_counters};
pub(crate) use prices::price_in_words;
pub use prices::price_warning;

/// The ledger changes prices on this grid.
const MINUTE: Nanoseconds = Nanoseconds::from_seconds(60);

/// The example price, so that a demo shows money: nano-units per GPU-hour.
const EXAMPLE: i128 = 2_500_000_000;

/// How often and how much samplers read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cadence {
    /// What is read; more than what is exported where the page with dcgm-exporter's names needs it.
    pub(crate) level: Level,
    pub(crate) interval: Nanoseconds,
    /// Ticks per tier.
    pub(crate) every: [u64; 3],
    /// Whether presence decides who holds.
    pub(crate) presence: bool,
    /// Whether the use of each process is published at every level.
    pub(crate) shows_processes: bool,
    /// The share of wall time that all samplers may spend inside the driver, in millionths.
    pub(crate) driver_share: u32,
}

impl Cadence {
    fn new(config: &Config) -> Self {
        let sampling = &config.sampling;
        let ticks = |span: Nanoseconds| (span.0 / sampling.interval.0).max(1);
        Self {
            level: dcgm::read_level(config),
            interval: sampling.interval,
            every: [1, ticks(sampling.medium), ticks(sampling.slow)],
            presence: config.attribution.presence,
            shows_processes: dcgm::is_configured(config),
            driver_share: sampling.driver_share,
        }
    }
}

/// Names of the users and members of the groups in grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolvedGrantees {
    /// Names by uid; the number if there is no such user.
    pub(crate) names: BTreeMap<u32, Arc<str>>,
    /// Uids of members by the name of the group.
    pub(crate) members: BTreeMap<String, Arc<BTreeSet<u32>>>,
}

/// Everything that follows from the configuration; a reload replaces it as a whole.
#[derive(Clone)]
pub(crate) struct ActiveConfig {
    pub(crate) config: Config,
    pub(crate) cadence: Cadence,
    pub(crate) policy: Arc<Policy>,
    /// The prices that the ledger charges: those at the agent's start, and each change since, in order.
    pub(crate) charges: Vec<Charge>,
    pub(crate) page_cache: Arc<PageCache>,
    /// Ticks between two pushes.
    pub(crate) push_every: u64,
}

/// Prices that were set at one moment; page and ledger apply them from the next whole minute on.
#[derive(Clone)]
pub(crate) struct Charge {
    pub(crate) book: Option<PriceBook>,
    /// Boot time of the moment, since its account time may not be known yet.
    pub(crate) decided: Nanoseconds,
}

impl ActiveConfig {
    /// The prices in force.
    pub(crate) fn book(&self) -> Option<&PriceBook> {
        self.charges.last().and_then(|charge| charge.book.as_ref())
    }

    pub(crate) fn new(config: Config) -> Self {
        let sampling = &config.sampling;
        Self {
            cadence: Cadence::new(&config),
            policy: Arc::new(policy(&config)),
            charges: vec![Charge { book: price_book(&config), decided: Nanoseconds(0) }],
            page_cache: Arc::new(PageCache::new(sampling.level, config.web.created, dcgm_options(&config))),
            push_every: (config.otlp.interval.0 / sampling.interval.0).max(1),
            config,
        }
    }

    /// The same with names of users and members of groups set in the grants; none if that changes nothing.
    pub(crate) fn with_grantees(&self, resolved: &ResolvedGrantees) -> Option<Self> {
        let mut policy = (*self.policy).clone();
        for standing in &mut policy.standing {
            match &mut standing.selector {
                Selector::Uid { uid, name } => {
                    if let Some(known) = resolved.names.get(uid) {
                        name.clone_from(known);
                    }
                }
                Selector::Group { name, members } => {
                    if let Some(known) = resolved.members.get(name) {
                        members.clone_from(known);
                    }
                }
                Selector::User(_) | Selector::Unit(_) | Selector::Team { .. } => {}
            }
        }
        let changed = policy.standing != self.policy.standing;
        changed.then(|| Self { policy: Arc::new(policy), ..self.clone() })
    }

    /// The state after a reload of the configuration at that boot time. Its policy has only the new prices, until
    /// [`ActiveConfig::dated_by`] adds the earlier ones.
    pub(crate) fn replaced_by(&self, config: Config, now: Nanoseconds) -> Self {
        let mut next = Self::new(config);
        let book = next.charges.pop().and_then(|charge| charge.book);
        let changed = book.as_ref() != self.book();
        next.charges.clone_from(&self.charges);
        if changed {
            next.charges.push(Charge { book, decided: now });
        }
        next
    }

    /// The same with all prices by account time: as in the ledger, a changed price stays in force for its own time.
    pub(crate) fn dated_by(mut self, timeline: AccountTimeline) -> Self {
        let mut charges = self.charges.iter();
        let first = charges.next().map(|charge| prices(charge.book.as_ref())).unwrap_or_default();
        let prices = charges.fold(first, |before, Charge { book, decided }| {
            let start = timeline.at(*decided).floor(MINUTE).plus(MINUTE);
            change_prices(&before, &prices(book.as_ref()), start)
        });
        if prices != self.policy.prices {
            self.policy = Arc::new(Policy { prices, ..(*self.policy).clone() });
        }
        self
    }
}

/// Prices in order of time, each from a time on; none means no costs from then on.
type PriceSchedule = Vec<(Utc, Option<PriceEntry>)>;

/// The old prices before `start`, the new ones from then on.
fn change_prices(old: &PriceSchedule, new: &PriceSchedule, start: Utc) -> PriceSchedule {
    let at_start = new.iter().rev().find(|(from, _)| *from <= start).and_then(|(_, price)| price.clone());
    let before = old.iter().filter(|(from, _)| *from < start).cloned();
    let after = new.iter().filter(|(from, _)| *from > start).cloned();
    let mut prices: PriceSchedule = before.chain([(start, at_start)]).chain(after).collect();
    // A reload without a change of the price adds no entry.
    prices.dedup_by(|next, known| next.1 == known.1);
    prices
}

/// The part of the configuration that a tick needs.
fn policy(config: &Config) -> Policy {
    Policy {
        level: config.sampling.level,
        dcgm: dcgm::is_configured(config),
        // A tier cannot be faster than the tick.
        intervals: [config.sampling.interval, config.sampling.medium, config.sampling.slow]
            .map(|interval| interval.max(config.sampling.interval)),
        standing: grants(config),
        allocations: Arc::default(),
        presence: config.attribution.presence,
        birth_delay: config.limits.birth_delay,
        processes: config.limits.processes as usize,
        series: config.limits.series as usize,
        prices: prices(price_book(config).as_ref()),
    }
}

/// The standing holdings.
pub(crate) fn grants(config: &Config) -> Vec<StandingGrant> {
    (1..).zip(&config.attribution.standing).map(|(position, grant)| standing_grant(position, grant)).collect()
}

/// The id of a grant without a name is its position in the list.
fn standing_grant(position: usize, grant: &GrantConfig) -> StandingGrant {
    let id = grant.id.clone().unwrap_or_else(|| position.to_string());
    StandingGrant {
        gpus: grant.gpus.iter().map(gpu_selector).collect(),
        fraction: grant.fraction,
        selector: selector(&grant.holder, &id),
        version: 0,
        id,
    }
}

/// Who holds a grant of that id; a team holds under the id.
fn selector(holder: &Grantee, id: &str) -> Selector {
    match holder {
        Grantee::User(UserChoice::Name(name)) => Selector::User(name.clone()),
        Grantee::User(UserChoice::Uid(uid)) => Selector::Uid { uid: *uid, name: uid.to_string().into() },
        Grantee::Unit(name) => Selector::Unit(name.clone()),
        Grantee::Group(name) => Selector::Group { name: name.clone(), members: Arc::default() },
        Grantee::Team(members) => {
            let (mut users, mut uids) = (BTreeSet::new(), BTreeSet::new());
            for member in members {
                match member {
                    UserChoice::Name(name) => drop(users.insert(name.clone())),
                    UserChoice::Uid(uid) => drop(uids.insert(*uid)),
                }
            }
            Selector::Team { name: id.to_owned(), users, uids }
        }
    }
}

fn gpu_selector(choice: &GpuChoice) -> GpuSelector {
    match choice {
        GpuChoice::All => GpuSelector::All,
        GpuChoice::Index(index) => GpuSelector::Index(*index),
        GpuChoice::Uuid(uuid) => GpuSelector::Uuid(uuid.clone()),
    }
}

/// The configured prices for the ledger.
fn price_book(config: &Config) -> Option<PriceBook> {
    match config.prices.as_ref()? {
        PriceBookConfig::Example => Some(PriceBook {
            currency: "USD".into(),
            prices: vec![Price { from: Utc(0), nano_per_gpu_hour: EXAMPLE, class: "example".into() }],
        }),
        PriceBookConfig::Own { currency, rates } => Some(PriceBook {
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

/// The prices that label the costs on the page, in order of time.
fn prices(book: Option<&PriceBook>) -> PriceSchedule {
    let Some(book) = book else { return Vec::new() };
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
    use proptest::prelude::*;

    use super::*;
    use crate::holders::{Granting, SessionGpu, holdings};
    use crate::model::Stamp;

    fn active(before: Option<&ActiveConfig>, text: &str, minute: u64) -> ActiveConfig {
        let config = Config::parse(text, "test").unwrap();
        let now = Nanoseconds(minute * MINUTE.0 + 1);
        let next = before
            .map_or_else(|| ActiveConfig::new(config.clone()), |it| it.replaced_by(config.clone(), now));
        next.dated_by(AccountTimeline::default())
    }

    fn schedule(active: &ActiveConfig) -> Vec<(u64, Option<i128>)> {
        let price = |price: &Option<PriceEntry>| price.as_ref().map(|price| price.nano_per_gpu_hour);
        active.policy.prices.iter().map(|(from, entry)| (from.0 / MINUTE.0, price(entry))).collect()
    }

    #[test]
    fn a_changed_price_holds_from_the_next_minute_on_and_not_before() {
        let one = active(None, "prices: {currency: USD, rates: [{gpu_hour: 1}]}", 0);
        assert_eq!(schedule(&one), [(0, Some(1_000_000_000))]);
        let two = active(Some(&one), "prices: {currency: USD, rates: [{gpu_hour: 2}]}", 10);
        assert_eq!(schedule(&two), [(0, Some(1_000_000_000)), (11, Some(2_000_000_000))]);
        let same =
            active(Some(&two), "limits: {processes: 7}\nprices: {currency: USD, rates: [{gpu_hour: 2}]}", 15);
        assert_eq!(schedule(&same), schedule(&two));
        assert_eq!(same.policy.processes, 7);
        let future =
            "prices: {currency: USD, rates: [{gpu_hour: 2}, {gpu_hour: 9, from: 2030-01-01T00:00:00Z}]}";
        let announced = active(Some(&same), future, 17);
        assert_eq!(schedule(&announced)[..2], schedule(&two)[..]);
        assert_eq!(schedule(&announced).len(), 3, "the price of today began once");
        let none = active(Some(&same), "", 20);
        assert_eq!(schedule(&none).last(), Some(&(21, None)));
    }

    #[test]
    fn a_price_that_was_changed_on_a_provisional_time_holds_from_its_real_time_on() {
        let one = active(None, "prices: {currency: USD, rates: [{gpu_hour: 1}]}", 0);
        let two = active(Some(&one), "prices: {currency: USD, rates: [{gpu_hour: 2}]}", 10);
        let an_hour_ahead = Stamp { boottime: Nanoseconds(0), utc: Utc(60 * MINUTE.0) };
        let dated = two.dated_by(AccountTimeline::starting(an_hour_ahead));
        assert_eq!(schedule(&dated), [(0, Some(1_000_000_000)), (71, Some(2_000_000_000))]);
    }

    /// GPUs of four as an operator writes them, and which they are.
    fn any_gpus() -> impl Strategy<Value = (String, Vec<u32>)> {
        let list = prop::collection::btree_set(0..4_u32, 1..=4);
        prop_oneof![
            Just(("all".to_owned(), vec![0, 1, 2, 3])),
            (0..4_u32, 0..4_u32).prop_map(|(a, b)| {
                let (first, last) = (a.min(b), a.max(b));
                (format!("{first}-{last}"), (first..=last).collect())
            }),
            list.prop_map(|list| {
                let gpus: Vec<u32> = list.into_iter().collect();
                (format!("{gpus:?}"), gpus)
            }),
        ]
    }

    proptest! {
        #[test]
        fn the_shares_of_several_gpus_add_up_exactly_or_the_file_is_refused(
            grants in prop::collection::vec((any_gpus(), 1..=8_u32), 1..5)
        ) {
            // Eighths are decimals with three places.
            let entry = |(place, ((gpus, _), eighths)): (usize, &((String, Vec<u32>), u32))| {
                let fraction = eighths * 125;
                format!("{{gpu: {gpus}, user: u{place}, fraction: {}.{:03}}}", fraction / 1000, fraction % 1000)
            };
            let entries: Vec<String> = grants.iter().enumerate().map(entry).collect();
            let text = format!("attribution: {{standing: [{}]}}", entries.join(", "));
            let granted = |gpu: u32| -> u32 {
                grants.iter().filter(|((_, gpus), _)| gpus.contains(&gpu)).map(|(_, eighths)| eighths).sum()
            };
            let config = Config::parse(&text, "test");
            prop_assert_eq!(config.is_ok(), (0..4).all(|gpu| granted(gpu) <= 8), "{}", text);
            let Ok(config) = config else { return Ok(()) };
            for index in 0..4 {
                let gpu = SessionGpu { index: Some(index), uuid: format!("GPU-{index}").into() };
                let (held, _) = holdings(&gpu, Granting { allocations: &[], standing: &super::grants(&config), presence: false }, []);
                let eighths = held.iter().map(|one| one.fraction.numerator * 8 / one.fraction.denominator);
                prop_assert_eq!(eighths.sum::<u32>(), granted(index), "{} of GPU {}", text, index);
                let exact = held.iter().all(|one| 8 % one.fraction.denominator == 0);
                prop_assert!(exact, "{}", text);
            }
        }
    }
}
