//! Native OTLP names: the page's name without `_total` and unit, with dots; the unit is a field of its own.
//!
//! Prometheus' receiver appends unit and `_total` again, so a pushed series has the name of a scraped one. A gauge and a
//! counter may share a native name (`gpu.sm.active` in `1` and in `s`); their units differ.

use crate::catalogue::Family;
use crate::model::Unit;

/// The family's OTLP name, e.g. `gpu.power` for `gpu_power_watts`.
pub fn native_name(family: &Family) -> String {
    let name = family.name.strip_suffix("_total").unwrap_or(family.name);
    let stem = match family.unit.suffix() {
        "" => None,
        suffix => name.strip_suffix(suffix).and_then(|stem| stem.strip_suffix('_')),
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
    use crate::catalogue::{Kind, families, family};

    /// The name in Prometheus 3 (prometheus/otlptranslator, `buildCompliantMetricName`).
    fn back(name: &str, unit: &str, kind: Kind) -> String {
        let mut tokens: Vec<&str> = name.split('.').collect();
        let suffix = match unit {
            "s" => "seconds",
            "By" => "bytes",
            "J" => "joules",
            "W" => "watts",
            "Cel" => "celsius",
            "Hz" => "hertz",
            _ => "",
        };
        if !suffix.is_empty() && !tokens.contains(&suffix) {
            tokens.push(suffix);
        }
        if kind == Kind::Counter {
            tokens.retain(|token| *token != "total");
            tokens.push("total");
        }
        if unit == "1" && kind == Kind::Gauge {
            tokens.retain(|token| *token != "ratio");
            tokens.push("ratio");
        }
        tokens.join("_")
    }

    #[test]
    fn every_name_comes_back_from_prometheus_as_it_is_on_the_page() {
        for family in families() {
            let name = native_name(family);
            assert_eq!(back(&name, native_unit(family.unit), family.kind), family.name, "{name}");
        }
    }

    #[test]
    fn families_that_share_a_native_name_differ_in_unit() {
        let mut seen = BTreeMap::new();
        for family in families() {
            let before = seen.insert((native_name(family), native_unit(family.unit)), family.name);
            assert_eq!(before, None, "{}", family.name);
        }
    }

    #[test]
    fn names_lose_unit_and_total() {
        for (page, native) in [
            ("gpu_power_watts", "gpu.power"),
            ("gpu_sm_active_ratio", "gpu.sm.active"),
            ("gpu_sm_active_seconds_total", "gpu.sm.active"),
            ("gpu_info", "gpu.info"),
            ("gpu_tenant_held_cost_total", "gpu.tenant.held.cost"),
            ("gpu_pcie_replays_total", "gpu.pcie.replays"),
        ] {
            assert_eq!(native_name(family(page).unwrap()), native);
        }
    }
}
