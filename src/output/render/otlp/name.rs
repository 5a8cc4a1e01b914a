//! Native OTLP names: the page's name without `_total` and unit, with dots; the unit is a field of its own.
//!
//! A ratio keeps its last word (`gpu.sm.active.ratio`), because some have a counter of the same subject (`gpu.sm.active`)
//! and receivers know a metric by its name alone. Prometheus' receiver appends unit and `_total` again, so that a pushed
//! series has the name of a scraped one.

use crate::model::Unit;
use crate::model::catalogue::Family;

/// The family's OTLP name, e.g. `gpu.power` for `gpu_power_watts`.
pub fn native_name(family: &Family) -> String {
    if family.name.starts_with("hw.") {
        return family.name.to_owned();
    }
    let name = family.name.strip_suffix("_total").unwrap_or(family.name);
    let stem = match family.unit {
        Unit::Ratio => None,
        unit => name.strip_suffix(unit.suffix()).and_then(|stem| stem.strip_suffix('_')),
    };
    stem.unwrap_or(name).replace('_', ".")
}

/// The unit's UCUM code; "" where the page's name has no unit.
pub const fn native_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "s",
        Unit::Bytes => "By",
        Unit::Joules => "J",
        Unit::Watts => "W",
        Unit::Celsius => "Cel",
        Unit::Hertz => "Hz",
        Unit::Ratio => "1",
        Unit::Money | Unit::None => "",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::catalogue::{HARDWARE, Kind, families, family};

    type Translate = fn(&Family) -> String;

    /// How Prometheus 3 translates a name by each value of `translation_strategy` (prometheus/otlptranslator,
    /// `metric_namer.go`).
    const STRATEGIES: [(&str, Translate); 4] = [
        ("UnderscoreEscapingWithSuffixes", |family| escaped_with_suffixes(&native_name(family), family)),
        ("UnderscoreEscapingWithoutSuffixes", |family| native_name(family).replace('.', "_")),
        ("NoUTF8EscapingWithSuffixes", |family| with_suffixes(native_name(family), family)),
        ("NoTranslation", |family| native_name(family)),
    ];

    fn unit_word(family: &Family) -> &'static str {
        match native_unit(family.unit) {
            "s" => "seconds",
            "By" => "bytes",
            "J" => "joules",
            "W" => "watts",
            "Cel" => "celsius",
            "Hz" => "hertz",
            _ => "",
        }
    }

    fn is_ratio_gauge(family: &Family) -> bool {
        native_unit(family.unit) == "1" && family.kind == Kind::Gauge
    }

    /// `buildCompliantMetricName`.
    fn escaped_with_suffixes(name: &str, family: &Family) -> String {
        let mut words: Vec<&str> = name.split('.').collect();
        let mut append = |word, moves: bool| {
            if moves {
                words.retain(|other| *other != word);
            }
            if !words.contains(&word) {
                words.push(word);
            }
        };
        if !unit_word(family).is_empty() {
            append(unit_word(family), false);
        }
        if family.kind == Kind::Counter {
            append("total", true);
        }
        if is_ratio_gauge(family) {
            append("ratio", true);
        }
        words.join("_")
    }

    /// `buildMetricName`.
    fn with_suffixes(mut name: String, family: &Family) -> String {
        let trim = |name: &mut String, word: &str| {
            if name.ends_with(word) && name.len() > word.len() + 1 {
                name.truncate(name.len() - word.len() - 1);
            }
        };
        if is_ratio_gauge(family) {
            trim(&mut name, "ratio");
        }
        if family.kind == Kind::Counter {
            trim(&mut name, "total");
        }
        let unit = unit_word(family);
        if !unit.is_empty() && !name.ends_with(unit) {
            name += &format!("_{unit}");
        }
        if family.kind == Kind::Counter {
            name += "_total";
        }
        if is_ratio_gauge(family) {
            name += "_ratio";
        }
        name
    }

    #[test]
    fn every_name_comes_back_from_prometheus_as_it_is_on_the_page() {
        for family in families() {
            let name = native_name(family);
            assert_eq!(escaped_with_suffixes(&name, family), family.name, "{name}");
        }
    }

    #[test]
    fn no_two_families_share_a_name_whichever_way_prometheus_translates_it() {
        for (strategy, translate) in STRATEGIES {
            // Prometheus makes it of the resource.
            let mut seen = BTreeMap::from([("target_info".to_owned(), "target_info")]);
            for family in families().chain(&HARDWARE) {
                let endings: &[&str] = match family.kind {
                    Kind::Histogram => &["", "_bucket", "_count", "_sum"],
                    Kind::Counter | Kind::Gauge => &[""],
                };
                for ending in endings {
                    let name = translate(family) + ending;
                    assert_eq!(seen.insert(name, family.name), None, "{} by {strategy}", family.name);
                }
            }
        }
    }

    #[test]
    fn names_lose_unit_and_total_but_not_ratio() {
        for (page, native) in [
            ("gpu_power_watts", "gpu.power"),
            ("gpu_sm_active_ratio", "gpu.sm.active.ratio"),
            ("gpu_sm_active_seconds_total", "gpu.sm.active"),
            ("gpu_info", "gpu.info"),
            ("gpu_tenant_held_cost_total", "gpu.tenant.held.cost"),
            ("gpu_pcie_replays_total", "gpu.pcie.replays"),
        ] {
            assert_eq!(native_name(family(page).unwrap()), native);
        }
    }
}
