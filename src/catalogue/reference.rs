//! The catalogue in words: for people, for documentation, for programs.

use serde_json::json;

use super::{Family, Origin, Rows, families};
use crate::model::Unit;

/// For people: a line per family and its help.
pub fn text() -> String {
    families()
        .map(|family| {
            let labels = family.labels.join(",");
            format!(
                "{}{{{labels}}}  {}, {}, level {}\n    {}\n",
                family.name,
                family.kind.name(),
                unit(family.unit),
                family.level.name(),
                family.help
            )
        })
        .collect()
}

/// The reference page; `docs/metrics.md` is this text.
pub fn markdown() -> String {
    let head = "# Metrics\n\nGenerated from the catalogue by `gpumeter metrics --format markdown`.\n\n\
                A family is exported at its level and above (lean, standard, full). What does not exist on a \
                board is absent, never 0; `gpu_unsupported` says why.\n\n\
                | name | type | unit | labels | level | tier | counts from | meaning |\n\
                |---|---|---|---|---|---|---|---|\n";
    families().fold(head.to_owned(), |page, family| page + &row(family))
}

fn row(family: &Family) -> String {
    format!(
        "| `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
        family.name,
        family.kind.name(),
        unit(family.unit),
        family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" "),
        family.level.name(),
        if matches!(family.rows, Rows::Device(_)) { family.tier.name() } else { "" },
        if family.name.ends_with("_total") { origin(family) } else { "" },
        family.help
    )
}

/// For programs: a list of objects.
pub fn json() -> String {
    let rows: Vec<_> = families()
        .map(|family| {
            json!({
                "name": family.name,
                "type": family.kind.name(),
                "unit": unit(family.unit),
                "labels": family.labels,
                "level": family.level.name(),
                "tier": family.tier.name(),
                "help": family.help,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

fn origin(family: &Family) -> &'static str {
    match family.rows.origin() {
        Origin::Driver => "driver load",
        Origin::Agent => "agent start",
        Origin::Ledger => "ledger",
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Money => "currency",
        Unit::None => "1",
        unit => unit.suffix(),
    }
}
