//! What each GPU of this node costs now and by which rate, and by which rule each holder has its tenant.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, GpuDiagnosis, name_gpus};
use crate::accounting::billing::{Dated, PricedSlot, Rate, RateKind, RateSchedule, print_money};
use crate::accounting::tenants::{TenantRules, tenant};
use crate::agent::policy;
use crate::config::Config;
use crate::holders::host::Host;
use crate::holders::{ResolvedWorkloads, identify};
use crate::model::{Holder, Money, Utc};

#[derive(Debug, Default)]
pub(super) struct GpuPrices {
    /// A sentence for each price and the GPUs that have it.
    pub(super) rates: Vec<String>,
    pub(super) missing: Option<String>,
    /// Rates that price nothing here: no mistake in a file that all nodes have.
    pub(super) unused: Vec<String>,
}

pub(super) fn price_gpus(config: &Config, host: &Host, gpus: &[GpuDiagnosis], now: Utc) -> GpuPrices {
    let book = &config.prices;
    let mut prices = GpuPrices::default();
    if book.currency().is_none() || gpus.is_empty() {
        return prices;
    }
    let node = policy::node_identity(config, &policy::node_name(config, || host.host_name()));
    let schedule = RateSchedule::always(book, &node);
    let mut by_rate: BTreeMap<Option<i64>, BTreeMap<&str, BTreeSet<u32>>> = BTreeMap::new();
    for gpu in gpus {
        let slot = PricedSlot { uuid: &gpu.uuid, model: &gpu.model, profile: None };
        let rate = schedule.rate(RateKind::GpuHour, slot, now);
        let of_rate = by_rate.entry(rate.map(|rate| rate.id)).or_default();
        of_rate.entry(&gpu.model).or_default().insert(gpu.index);
    }
    for (id, gpus) in by_rate {
        let gpus = gpus.iter().map(|(model, gpus)| format!("{} ({model})", name_gpus(gpus)));
        let gpus = gpus.collect::<Vec<_>>().join(", ");
        match schedule.rates.entries().iter().find(|rate| Some(rate.id) == id) {
            Some(rate) => prices.rates.push(format!("{gpus}: {}", describe(&rate.entry))),
            None => {
                prices.missing = Some(format!(
                    "prices.rates: no rate is in force for {gpus}; their time costs nothing and is `unpriced` in the bill: \
                     add a rate that selects them"
                ));
            }
        }
    }
    for rate in book.prices().filter(|rate| rate.kind == RateKind::GpuHour) {
        let is_for = |gpu: &GpuDiagnosis| {
            let slot = PricedSlot { uuid: &gpu.uuid, model: &gpu.model, profile: None };
            rate.is_for(slot)
        };
        if !(rate.is_for_node(&node) && gpus.iter().any(is_for)) {
            prices.unused.push(format!("prices.rates: no GPU of this node has the rate {}", describe(rate)));
        }
    }
    prices
}

/// The finding about them; none without prices, or without GPUs.
pub(super) fn check_gpu_prices(prices: &GpuPrices) -> Option<Finding> {
    let why = prices.rates.iter().chain(&prices.missing).cloned().collect::<Vec<_>>().join("; ");
    (!why.is_empty()).then(|| Finding::new("rates", prices.missing.is_none(), why))
}

fn describe(rate: &Rate) -> String {
    let mut text = format!(
        "{} {} per GPU-hour, class {}",
        print_money(Money(rate.nano.into())),
        rate.tariff.currency,
        rate.tariff.class
    );
    if let Some(derivation) = &rate.derivation {
        text += &format!(" ({derivation})");
    }
    let selected = rate.selector.describe();
    text += &if selected.is_empty() {
        ", for every GPU".to_owned()
    } else {
        format!(", for {}", selected.join(", "))
    };
    if let Some(from) = rate.from {
        text += &format!(", from {from}");
    }
    text
}

/// The most holders that are listed.
const MOST: usize = 50;

/// A sentence for each workload that is on a GPU or was granted one: its tenant, and the rule that says so.
pub(super) fn tenants_of_holders(
    host: &Host,
    pids: &BTreeSet<u32>,
    workloads: &ResolvedWorkloads,
    rules: &TenantRules,
) -> Vec<String> {
    let processes = pids.iter().filter_map(|pid| host.process(*pid).ok());
    let users = processes.filter_map(|process| Some(identify(host, &process, workloads).ok()?.holder));
    let granted = workloads.allocations.iter().map(|allocation| allocation.holder.clone());
    let sentence = |holder: Holder| {
        let rule = match rules.rule_of(&holder) {
            Some((place, _)) => format!("tenants.rules[{place}]"),
            None => format!("no rule; the default of {}", holder.id.kind().name()),
        };
        format!("{}: tenant {} by {rule}", holder.id, tenant(&holder, rules))
    };
    let sentences: BTreeSet<String> = users.chain(granted).map(sentence).collect();
    let others = sentences.len().saturating_sub(MOST);
    let others = (others > 0).then(|| format!("and {others} others"));
    sentences.into_iter().take(MOST).chain(others).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn gpu(index: u32, model: &str) -> GpuDiagnosis {
        GpuDiagnosis { index, uuid: format!("GPU-{index}"), model: model.into(), families: Vec::new() }
    }

    #[test]
    fn each_gpu_has_its_rate_with_the_reason_and_gaps_and_rates_of_nothing_are_named() {
        let text = "
node: {name: n1, pool: spot-a}
prices:
  currency: EUR
  rates:
    - {model: \"*H100*\", node_hour: 9.80, gpus: 8, class: spot, pool: spot-*}
    - {model: \"*A100*\", gpu_hour: 2}
";
        let config = Config::parse(text, "c.yaml").unwrap();
        let gpus = [gpu(0, "NVIDIA H100"), gpu(1, "NVIDIA H100"), gpu(2, "NVIDIA L40S")];
        let prices = price_gpus(&config, &Host::at("/nowhere"), &gpus, Utc(1));
        assert_eq!(
            prices.rates,
            [
                "GPUs 0-1 (NVIDIA H100): 1.225000000 EUR per GPU-hour, class spot (9.8 per node-hour / 8 GPUs), \
              for model *H100*, pool spot-*"
            ]
        );
        let (Some(missing), [unused]) = (&prices.missing, &prices.unused[..]) else { panic!("{prices:?}") };
        assert!(missing.contains("no rate is in force for GPU 2 (NVIDIA L40S)"), "{missing}");
        assert!(unused.ends_with("no GPU of this node has the rate 2.000000000 EUR per GPU-hour, class on_demand, for model *A100*"), "{unused}");
        let finding = check_gpu_prices(&prices).unwrap();
        assert!(!finding.works && !finding.why.contains("A100"), "{}", finding.why);
    }
}
