//! Rules between keys, checked when all values are read.

use super::prices;
use super::problem::{Complaint, ProblemCollector};
use super::read_mapping::KeyPositions;
use super::settings::{Config, ConfigDraft, PricesConfig, RetentionConfig, TenantsConfig};
use super::time::in_words;
use super::values::nearest;
use crate::accounting::billing::{Rate, RateKind};

impl ConfigDraft {
    /// Checks the rules between keys, and sets what follows from several of them.
    pub(crate) fn finish(&mut self, places: &KeyPositions, report: &mut ProblemCollector) {
        check_push_interval(&self.config, places, report);
        check_retention(&self.config, places, report);
        check_price_source(places, report);
        check_energy_and_terms(self, places, report);
        check_web_tls(&self.config, places, report);
        check_web_tenants(places, report);
        let PricesConfig { book: is_example, currency, rates, energy } = std::mem::take(&mut self.prices);
        let mut book = if is_example { prices::example_book() } else { Default::default() };
        if let Some(currency) = currency {
            check_instance_prices(&rates, places, report);
            book.rates = rates;
            book.rates.extend(energy.rate());
            book.rates.iter_mut().for_each(|rate| rate.tariff.currency = currency.as_str().into());
        }
        book.terms = std::mem::take(&mut self.terms.terms);
        book.rates.extend(self.carbon.rate());
        self.config.prices = book;
    }
}

impl Config {
    /// Warnings about accepted settings that are probably not intended.
    pub fn hints(&self) -> Vec<String> {
        let sampling = &self.sampling;
        let tiers = [("sampling.medium", sampling.medium), ("sampling.slow", sampling.slow)];
        let shorter = tiers.into_iter().filter(|(_, tier)| *tier < sampling.interval);
        let shorter = shorter.map(|(key, tier)| {
            let (tier, tick) = (in_words(tier), in_words(sampling.interval));
            format!("{key}, {tier}, is shorter than sampling.interval, {tick}: it is read every {tick}")
        });
        shorter.chain(self.tenants.misspelt_budgets()).collect()
    }
}

/// Every Nth tick is pushed, so the interval must be a multiple of the tick; without an endpoint the default is accepted.
fn check_push_interval(config: &Config, places: &KeyPositions, report: &mut ProblemCollector) {
    let (tick, push) = (config.sampling.interval, config.otlp.interval);
    let place = places.get("otlp.interval");
    let whole = push.0.checked_rem(tick.0).is_none_or(|rest| rest == 0) && push >= tick;
    // A malformed value, which is 0, is reported already.
    let is_used = config.otlp.endpoint.is_some() || !config.otlp.destinations.is_empty();
    if whole || push.0 == 0 || (place.is_none() && !is_used) {
        return;
    }
    let where_else = match (place, places.get("sampling.interval")) {
        (Some(_), Some(other)) => format!(" on line {}", other.line),
        _ => String::new(),
    };
    let by_default = if place.is_none() { " by default" } else { "" };
    let place = place.or(places.get("sampling.interval"));
    let below = push.0.checked_div(tick.0).unwrap_or(1).max(1) * tick.0;
    let text = format!(
        "{}{by_default} is not a multiple of sampling.interval, {}{where_else}; give a multiple such as {}",
        in_words(push),
        in_words(tick),
        in_words(crate::model::Nanoseconds(below)),
    );
    report.add(place, "otlp.interval", Complaint(text));
}

/// Minutes become quarter hours, which must be kept longer.
fn check_retention(config: &Config, places: &KeyPositions, report: &mut ProblemCollector) {
    let RetentionConfig { minutes, quarter_hours } = config.ledger.retention;
    let keys = ["ledger.retention.quarter_hours", "ledger.retention.minutes"];
    let Some(key) = keys.into_iter().find(|key| places.get(key).is_some()) else { return };
    // A malformed value, which is 0, is reported already.
    if quarter_hours.0 > 0 && quarter_hours < minutes {
        let (minutes, quarter_hours) = (in_words(minutes), in_words(quarter_hours));
        let text = format!(
            "quarter hours are kept for {quarter_hours}, less than minutes, {minutes}; give quarter_hours of {minutes} or more"
        );
        report.add(places.get(key), key, Complaint(text));
    }
}

fn check_web_tls(config: &Config, places: &KeyPositions, report: &mut ProblemCollector) {
    let tls = &config.web.tls;
    tls.check(|key| places.get(key), "web.tls", report);
    if let Err(complaint) = tls.check_http2(config.web.http2) {
        report.add(places.get("web.tls.cipher_suites"), "web.tls.cipher_suites", complaint);
    }
}

/// Checks that `web.tenants`, without which every user sees every tenant, names somebody where it is given.
fn check_web_tenants(places: &KeyPositions, report: &mut ProblemCollector) {
    let key = "web.tenants";
    if let Some(place) = places.get_empty(key) {
        let text = "names nobody, and so would show every tenant to every user; name each user with the tenants that he \
                    sees, or remove the key";
        report.add(Some(place), key, Complaint(text.to_owned()));
    }
}

/// Checks that what refines prices has some to refine.
fn check_energy_and_terms(draft: &ConfigDraft, places: &KeyPositions, report: &mut ProblemCollector) {
    let has_prices = ["prices.rates", "prices.book"].iter().any(|key| places.get(key).is_some());
    let mut complain = |key: &str, text: &str| report.add(places.get(key), key, Complaint(text.to_owned()));
    if places.get("prices.energy.kwh").is_some() && places.get("prices.rates").is_none() {
        complain("prices.energy.kwh", "has no rates beside it; give prices.rates, or remove it");
    }
    for (section, required) in [("prices.energy", "kwh"), ("carbon", "grams_per_kwh")] {
        let key = |name: &str| format!("{section}.{name}");
        let beside = ["pue", "from", "source"].map(key).into_iter().find(|key| places.get(key).is_some());
        if let Some(beside) = beside.filter(|_| places.get(&key(required)).is_none()) {
            complain(&beside, &format!("belongs to {section}.{required}; give it, or remove this"));
        }
    }
    if !has_prices && !draft.terms.terms.is_empty() {
        complain("terms", "need prices; give prices.rates, or remove them");
    }
    if !has_prices && places.get("tenants.budgets").is_some() {
        complain("tenants.budgets", "need prices; give prices.rates, or remove them");
    }
}

/// Checks that prices are either the example or complete ones of the operator.
fn check_price_source(places: &KeyPositions, report: &mut ProblemCollector) {
    let [book, currency, rates] =
        ["prices.book", "prices.currency", "prices.rates"].map(|key| places.get(key));
    let (place, path, text) = match (book, currency, rates) {
        (Some(place), Some(own), _) | (Some(place), None, Some(own)) => {
            let text = format!("your own prices are given too, on line {}; keep one of the two", own.line);
            (place, "prices.book", text)
        }
        (None, Some(place), None) => {
            let text = "has no rates; give prices.rates, or remove the currency";
            (place, "prices.currency", text.to_owned())
        }
        (None, None, Some(place)) => {
            let text = "has no currency; give prices.currency, such as USD";
            (place, "prices.rates", text.to_owned())
        }
        _ => return,
    };
    report.add(Some(place), path, Complaint(text));
}

/// Checks that instances, whose prices are part of the GPU's, have such a GPU.
fn check_instance_prices(rates: &[Rate], places: &KeyPositions, report: &mut ProblemCollector) {
    let has = |kind| rates.iter().any(|rate| rate.kind == kind);
    if has(RateKind::InstanceHour) && !has(RateKind::GpuHour) {
        let text =
            "has prices of instances alone, which price nothing; add the price of the GPU, as {gpu_hour: 2}";
        report.add(places.get("prices.rates"), "prices.rates", Complaint(text.to_owned()));
    }
}

impl TenantsConfig {
    /// A hint for each budget of a tenant that no rule and no attribute names, where a name is similar.
    fn misspelt_budgets(&self) -> Vec<String> {
        let literal = self.rules.iter().filter(|rule| rule.is_literal()).map(|rule| &*rule.tenant);
        let listed = self.rules.iter().flat_map(|rule| &rule.tenants).map(String::as_str);
        let named: Vec<&str> =
            literal.chain(listed).chain(self.attributes.keys().map(String::as_str)).collect();
        let unnamed = self.budgets.keys().filter(|tenant| !named.contains(&tenant.as_str()));
        let hint = |tenant: &String| {
            let near = nearest(tenant, &named)?;
            Some(format!("tenants.budgets.{tenant}: no rule yields this tenant; did you mean `{near}`?"))
        };
        unnamed.filter_map(hint).collect()
    }
}
