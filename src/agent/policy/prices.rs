//! Sentences for the operator about the configured prices: which is in force, or when the first one begins.

use crate::accounting::billing::RateKind;
use crate::config::Config;
use crate::model::Utc;

pub fn price_warning(config: &Config, now: Utc) -> Option<String> {
    let is_any = config.prices.prices().next().is_some();
    let rates = config.prices.prices().filter(|rate| rate.kind == RateKind::GpuHour);
    let Some(first) = rates.filter(|rate| rate.selector.is_for_all()).map(|rate| rate.from).min() else {
        let text = "prices.rates: each rate is for some GPUs (model, node, pool, uuid ...); others cost nothing and are \
                    `unpriced` in the bill: add a rate without these keys";
        return is_any.then(|| text.to_owned());
    };
    first.filter(|first| *first > now).map(|first| {
        format!(
            "prices.rates: no price is in force before {first}, when the first rate begins; GPU time until then costs nothing \
             and is `unpriced` in the bill: give that rate an earlier `from`, or none"
        )
    })
}

pub(crate) fn price_in_words(config: &Config, now: Utc) -> String {
    let book = &config.prices;
    let Some(currency) = book.currency() else {
        return "none are configured: bills have hours and energy only".into();
    };
    if book.is_example() {
        return "the example price, not yours (prices.book: example)".into();
    }
    let active = book.prices().filter(|rate| rate.from.is_none_or(|from| from <= now));
    let Some(latest) = active.max_by_key(|rate| rate.from) else { return String::new() };
    let since = latest.from.map(|from| format!(", since {from}")).unwrap_or_default();
    format!("a rate in {currency} is in force, class {}{since}", latest.tariff.class)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// 2026-11-22T17:30:00Z.
    const NOON: Utc = Utc(1_795_368_600_000_000_000);

    fn config(prices: &str) -> Config {
        Config::parse(&format!("prices: {prices}"), "test").unwrap()
    }

    #[test]
    fn only_a_first_rate_in_the_future_causes_a_warning() {
        let rates = |rates: &str| config(&format!("{{currency: EUR, rates: [{rates}]}}"));
        let later = "{gpu_hour: 2, from: \"2026-11-22T17:45:00Z\"}";
        let warning = price_warning(&rates(later), NOON).unwrap();
        assert!(
            warning.starts_with("prices.rates: no price is in force before 2026-11-22T17:45:00Z,"),
            "{warning}"
        );
        let now = "{gpu_hour: 1, from: \"2026-11-22T17:30:00Z\", class: spot}";
        for well in [now, "{gpu_hour: 1}", &format!("{later}, {now}")] {
            assert_eq!(price_warning(&rates(well), NOON), None, "{well}");
        }
        assert_eq!(
            price_in_words(&rates(&format!("{later}, {now}")), NOON),
            "a rate in EUR is in force, class spot, since 2026-11-22T17:30:00Z"
        );
        let of_some = price_warning(&rates("{gpu_hour: 1, model: \"*H100*\"}"), NOON).unwrap();
        assert!(of_some.starts_with("prices.rates: each rate is for some GPUs"), "{of_some}");
        assert_eq!(price_warning(&rates("{gpu_hour: 1}, {gpu_hour: 2, node: gpu-7}"), NOON), None);
        for other in ["{book: example}", "{}"] {
            assert_eq!(price_warning(&config(other), NOON), None, "{other}");
        }
    }
}
