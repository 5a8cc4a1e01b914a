//! What follows from the configuration: sampling schedule, policy, price book, tenant rules and standing holdings.
//!
//! In: a configuration and the users of the host. Out: [`AgentPolicy`], the settings that hold now; a reload
//! replaces them as a whole, and each tick reads them once.

mod current;
mod dcgm;
mod prices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::accounting::billing::{PriceBook, RateSchedule, TenantBudget};
use crate::accounting::tenants::{Decision, RuleSchedule, TenantRules};
use crate::config::{BadVariable, Config, NodeConfig, OtlpPlan, TenantsConfig};
use crate::meter::Policy;
use crate::model::catalogue::Level;
use crate::model::{HowHeld, Money, Nanoseconds, NodeIdentity, Selector};
use crate::output::render::{OtlpResource, PageCache};

pub(crate) use current::{CurrentPolicy, Wait};
pub use dcgm::{dcgm_options, refused_counters};
pub(crate) use prices::price_in_words;
pub use prices::price_warning;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolvedGrantees {
    /// Names by uid; the number if there is no such user.
    pub(crate) names: BTreeMap<u32, Arc<str>>,
    /// Uids of members by the name of the group.
    pub(crate) members: BTreeMap<String, Arc<BTreeSet<u32>>>,
}

/// The settings that hold now: the configuration, and what follows from it.
#[derive(Clone)]
pub(crate) struct AgentPolicy {
    pub(crate) config: Config,
    /// The scheduler that was found on the node, as the reason for no presence under `auto`; once found it stays.
    scheduler: Option<HowHeld>,
    /// What is read; more than what is exported where the page with dcgm-exporter's names needs it.
    pub(crate) level: Level,
    /// The part that the meter needs.
    pub(crate) meter: Arc<Policy>,
    /// The prices and tenant rules that the ledger records: those of the agent's start, and all since, in order.
    pub(crate) decisions: Vec<Decision>,
    pub(crate) page_cache: Arc<PageCache>,
}

impl AgentPolicy {
    /// Ticks per tier.
    pub(crate) fn ticks_per_tier(&self) -> [u64; 3] {
        self.meter.intervals.map(|interval| interval.0 / self.config.sampling.interval.0)
    }

    /// Ticks between two pushes.
    pub(crate) fn ticks_per_push(&self) -> u64 {
        (self.config.otlp.interval.0 / self.config.sampling.interval.0).max(1)
    }

    pub(crate) const fn book(&self) -> &PriceBook {
        &self.config.prices
    }

    pub(crate) fn tenant_rules(&self) -> Arc<TenantRules> {
        self.decisions.last().and_then(|decision| decision.rules.clone()).unwrap_or_default()
    }

    /// The configuration at the agent's start, where `scheduler` was found on the node.
    pub(crate) fn new(config: Config, scheduler: Option<HowHeld>) -> Self {
        let how_held = how_held(&config, scheduler);
        Self::holding(config, how_held, scheduler)
    }

    fn holding(config: Config, how_held: HowHeld, scheduler: Option<HowHeld>) -> Self {
        Self {
            scheduler,
            level: dcgm::read_level(&config),
            meter: Arc::new(policy(&config, how_held)),
            decisions: vec![decision(&config, Nanoseconds(0))],
            page_cache: Arc::new(PageCache::new(
                config.sampling.level,
                config.web.created,
                dcgm_options(&config),
            )),
            config,
        }
    }

    /// The same with names of users and members of groups set in the grants; none if that changes nothing.
    pub(crate) fn with_grantees(&self, resolved: &ResolvedGrantees) -> Option<Self> {
        let mut policy = (*self.meter).clone();
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
                Selector::User(_) | Selector::Unit(_) | Selector::Namespace(_) | Selector::Team { .. } => {}
            }
        }
        let changed = policy.standing != self.meter.standing;
        changed.then(|| Self { meter: Arc::new(policy), ..self.clone() })
    }

    pub(crate) fn how_held(&self) -> HowHeld {
        self.meter.how_held
    }

    /// The same where a scheduler is found on the node: under `auto`, presence no longer holds.
    fn with_scheduler(self, found: HowHeld) -> Self {
        if self.scheduler.is_some() {
            return self;
        }
        let how_held = match self.how_held() {
            HowHeld::NothingGrants => found,
            other => other,
        };
        let meter = Arc::new(Policy { how_held, ..(*self.meter).clone() });
        Self { scheduler: Some(found), meter, ..self }
    }

    /// The state after a reload of the configuration at that boot time. What `auto` decides turns presence off, never on.
    pub(crate) fn replaced_by(&self, config: Config, now: Nanoseconds) -> Self {
        let how_held = match how_held(&config, self.scheduler) {
            HowHeld::NothingGrants if !self.how_held().is_by_presence() => HowHeld::WasOff,
            decided => decided,
        };
        let mut next = Self::holding(config, how_held, self.scheduler);
        let mut decisions = self.decisions.clone();
        if next.book() != self.book() || next.tenant_rules() != self.tenant_rules() {
            decisions.push(decision(&next.config, now));
        }
        next.decisions = decisions;
        next
    }
}

/// The destinations of OTLP by the configuration and this process' environment.
///
/// # Errors
/// A variable that cannot be used.
pub(crate) fn otlp_plan(config: &Config) -> Result<OtlpPlan, BadVariable> {
    config.otlp_plan(|name| std::env::var(name).ok())
}

/// The attributes of what a node sends. Those in the configuration come before those in the environment.
pub(crate) fn otlp_resource(config: &Config, node: &str, plan: &OtlpPlan) -> OtlpResource {
    let NodeConfig { name, cluster, instance_type, .. } = &config.node;
    let mut resource = OtlpResource::new(node, cluster.as_deref().unwrap_or_default());
    resource.set("host.type", instance_type.as_deref().unwrap_or_default());
    // The manifest sets it from the pod's spec.
    resource.set("k8s.node.name", &std::env::var("NODE_NAME").unwrap_or_default());
    let configured = [
        ("service.instance.id", name.is_some()),
        ("host.name", name.is_some()),
        ("k8s.cluster.name", cluster.is_some()),
        ("host.type", instance_type.is_some()),
        ("service.version", true),
    ];
    for (key, value) in &plan.resource {
        if !configured.contains(&(key.as_str(), true)) {
            resource.set(key, value);
        }
    }
    resource
}

/// The name of the node: as configured, else `NODE_NAME` of the DaemonSet, else the host name, which in a pod is that of the
/// pod.
pub(crate) fn node_name(config: &Config, host_name: impl FnOnce() -> Option<String>) -> String {
    let of_pod = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    config.node.name.clone().or_else(of_pod).or_else(host_name).unwrap_or_default()
}

pub(crate) fn node_identity(config: &Config, name: &str) -> NodeIdentity {
    let NodeConfig { cluster, pool, instance_type, spot, .. } = config.node.clone();
    NodeIdentity { name: name.to_owned(), cluster, pool, instance_type, spot, simulated: false }
}

fn decision(config: &Config, decided: Nanoseconds) -> Decision {
    Decision { book: Some(config.prices.clone()), rules: Some(Arc::new(tenant_rules(config))), decided }
}

pub(crate) fn tenant_rules(config: &Config) -> TenantRules {
    let TenantsConfig { rules, attributes, budgets } = &config.tenants;
    let currency = config.prices.currency();
    let budgets = currency.into_iter().flat_map(|currency| {
        let budget = |amount: &Money| TenantBudget { amount: *amount, currency: Arc::clone(currency) };
        budgets.iter().map(move |(tenant, amount)| (tenant.clone(), budget(amount)))
    });
    TenantRules {
        rules: rules.clone(),
        attributes: attributes.clone(),
        budgets: budgets.collect(),
        classes: config.advice.classes.clone(),
    }
}

pub(crate) fn how_held(config: &Config, scheduler: Option<HowHeld>) -> HowHeld {
    match config.attribution.presence {
        Some(true) => HowHeld::Presence,
        Some(false) => HowHeld::Grants,
        None => match scheduler {
            Some(found) => found,
            None if !config.attribution.standing.is_empty() => HowHeld::Standing,
            None => HowHeld::NothingGrants,
        },
    }
}

/// The part of the configuration that the meter needs.
fn policy(config: &Config, how_held: HowHeld) -> Policy {
    Policy {
        level: config.sampling.level,
        dcgm: dcgm::is_configured(config),
        workload_counters: config.sampling.workload_counters,
        // A tier cannot be faster than the tick.
        intervals: [config.sampling.interval, config.sampling.medium, config.sampling.slow]
            .map(|interval| interval.max(config.sampling.interval)),
        standing: config.attribution.standing.clone(),
        allocations: Arc::default(),
        how_held,
        birth_delay: config.limits.birth_delay,
        processes: config.limits.processes as usize,
        series: config.limits.series as usize,
        // As a new ledger would record them; they are shown until a ledger has.
        rates: Arc::new(RateSchedule::always(
            &config.prices,
            &node_identity(config, config.node.name.as_deref().unwrap_or_default()),
        )),
        tenant_rules: Arc::new(RuleSchedule::always(&tenant_rules(config))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::holders::{Granting, SessionGpu, holdings};

    #[test]
    fn a_reload_adds_a_price_book_only_where_it_changed() {
        let config = |text: &str| Config::parse(text, "test").unwrap();
        let active = AgentPolicy::new(config("prices: {currency: USD, rates: [{gpu_hour: 1}]}"), None);
        let same = config("limits: {processes: 7}\nprices: {currency: USD, rates: [{gpu_hour: 1}]}");
        let active = active.replaced_by(same, Nanoseconds(1));
        assert_eq!((active.decisions.len(), active.meter.processes), (1, 7));
        let active = active.replaced_by(config(""), Nanoseconds(2));
        assert_eq!(active.decisions.iter().map(|decision| decision.decided.0).collect::<Vec<_>>(), [0, 2]);
        assert!(*active.book() == PriceBook::default() && !active.meter.rates.has_prices());
    }

    #[test]
    fn auto_turns_presence_off_while_the_agent_runs_and_never_on() {
        let config = |text: &str| Config::parse(text, "test").unwrap();
        let (auto, on, off) =
            (config(""), config("attribution: {presence: true}"), config("attribution: {presence: false}"));
        let granted = config("attribution: {standing: [{gpu: 0, user: alice}]}");
        let start = |config: &Config, scheduler| AgentPolicy::new(config.clone(), scheduler);
        let reload =
            |active: &AgentPolicy, config: &Config| active.replaced_by(config.clone(), Nanoseconds(1));
        let by_presence = start(&auto, None);
        assert!(by_presence.how_held() == HowHeld::NothingGrants);
        assert_eq!(start(&auto, Some(HowHeld::Kubelet)).how_held(), HowHeld::Kubelet);
        assert_eq!(start(&on, Some(HowHeld::Kubelet)).how_held(), HowHeld::Presence);
        let by_grants = reload(&by_presence, &granted);
        assert_eq!(by_grants.how_held(), HowHeld::Standing);
        assert_eq!(reload(&by_grants, &auto).how_held(), HowHeld::WasOff);
        assert_eq!(reload(&start(&off, None), &auto).how_held(), HowHeld::WasOff);
        assert_eq!(reload(&by_grants, &on).how_held(), HowHeld::Presence, "the operator decides");
        let scheduled = start(&auto, None).with_scheduler(HowHeld::Scheduled);
        assert_eq!(scheduled.how_held(), HowHeld::Scheduled);
        assert_eq!(reload(&scheduled, &auto).how_held(), HowHeld::Scheduled);
        let current = CurrentPolicy::new(start(&auto, None));
        let reread = reload(&current.now(), &auto);
        assert_eq!(current.find_scheduler(), Some(HowHeld::Scheduled));
        assert_eq!(current.find_scheduler(), None, "it is told once");
        current.replace(reread);
        assert_eq!(current.now().how_held(), HowHeld::Scheduled, "a reload beside it loses nothing");
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
                let (held, _) = holdings(&gpu, Granting { allocations: &[], standing: &config.attribution.standing, presence: false }, []);
                let eighths = held.iter().map(|one| one.fraction.numerator * 8 / one.fraction.denominator);
                prop_assert_eq!(eighths.sum::<u32>(), granted(index), "{} of GPU {}", text, index);
                let exact = held.iter().all(|one| 8 % one.fraction.denominator == 0);
                prop_assert!(exact, "{}", text);
            }
        }
    }
}
