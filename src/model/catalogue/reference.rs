//! The catalogue printed as text, Markdown and JSON.

use serde_json::json;

use super::{Alias, Family, InstanceRows, Kind, LABELS, Origin, Profile, Rows, families, values_of};
use crate::model::Unit;

/// A line per family, with its help below.
pub fn text() -> String {
    families()
        .map(|family| {
            let labels = family.labels.join(",");
            format!(
                "{}{{{labels}}}  {}, {}, level {}\n    {}\n{}",
                family.name,
                family.kind.name(),
                unit(family.unit),
                family.level.name(),
                family.help,
                aliases_line(family)
            )
        })
        .collect()
}

/// A line with its names elsewhere, if it has any.
fn aliases_line(family: &Family) -> String {
    let names: Vec<_> =
        family.aliases.iter().map(|alias| format!("{} ({})", alias.name, alias.profile.name())).collect();
    if names.is_empty() { String::new() } else { format!("    elsewhere: {}\n", names.join(", ")) }
}

/// The reference page `docs/metrics.md`.
pub fn markdown() -> String {
    let head = "# Metrics\n\nGenerated from the catalogue by `gpumeter metrics --format markdown`.\n\n\
                A family is exported at its level and above (lean, standard, full). What does not exist on a \
                board is absent, never 0; `gpu_unsupported` says why.\n\n\
                | name | type | unit | labels | level | tier | counts from | meaning |\n\
                |---|---|---|---|---|---|---|---|\n";
    let page = families().fold(head.to_owned(), |page, family| page + &markdown_row(family));
    let labels = "\n## Labels\n\nA label has one meaning in all families.\n\n| label | meaning | values |\n|---|---|---|\n";
    let page = LABELS.iter().fold(page + labels, |page, label| {
        page + &format!("| `{}` | {} | {} |\n", label.name, label.meaning, quoted(label.values))
    });
    let page = page + &values_by_family();
    let aliases = "\n## Names in other exporters\n\nThe names of dcgm-exporter and of OpenTelemetry's hardware \
                   conventions (otel: sent with `otlp.names: hw`, and `hw.gpu.memory.utilization` as usage by \
                   limit), and the factor by which the value here is multiplied to get theirs.\n\n\
                   | profile | name there | labels there | here | factor |\n|---|---|---|---|---|\n";
    let of = |profile| families().flat_map(move |family| other_names(family, profile));
    of(Profile::Dcgm).chain(of(Profile::Otel)).fold(page + aliases, |page, name| page + &name)
}

/// The values of labels whose closed sets differ by family.
fn values_by_family() -> String {
    let head = "\n## Values by family\n\nClosed sets of values that hold in one family only.\n\n| label | family | values |\n|---|---|---|\n";
    let rows = LABELS.iter().flat_map(|label| families().map(move |family| (label, family)));
    let own =
        rows.filter(|(label, family)| family.labels.contains(&label.name)).filter_map(|(label, family)| {
            let values = values_of(family, label.name);
            (!values.is_empty() && values != label.values)
                .then(|| format!("| `{}` | `{}` | {} |\n", label.name, family.name, quoted(&values)))
        });
    own.fold(head.to_owned(), |page, row| page + &row)
}

fn quoted(values: &[&str]) -> String {
    values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" ")
}

fn other_names(family: &Family, profile: Profile) -> impl Iterator<Item = String> {
    let own = family.aliases.iter().filter(move |alias| alias.profile == profile);
    own.map(|alias| other_name(family, alias))
}

fn other_name(family: &Family, alias: &Alias) -> String {
    let written = |labels: &[(&str, &str)]| {
        labels
            .iter()
            .map(|(name, value)| match value.strip_prefix('=') {
                Some(label) => format!("{name}={label}"),
                None => format!("{name}=\"{value}\""),
            })
            .collect::<Vec<_>>()
            .join(",")
    };
    let series = match written(alias.when) {
        chosen if chosen.is_empty() => family.name.to_owned(),
        chosen => format!("{}{{{chosen}}}", family.name),
    };
    let series = if alias.rate { format!("rate({series})") } else { series };
    let factor = match alias.scale {
        (factor, 1) => factor.to_string(),
        (factor, divisor) => format!("{factor}/{divisor}"),
    };
    format!(
        "| {} | `{}` | {} | `{series}` | {factor} |\n",
        alias.profile.name(),
        alias.name,
        match written(alias.labels) {
            labels if labels.is_empty() => labels,
            labels => format!("`{labels}`"),
        }
    )
}

fn markdown_row(family: &Family) -> String {
    format!(
        "| `{}` | {} | {} | {} | {} | {} | {} | {} |\n",
        family.name,
        family.kind.name(),
        unit(family.unit),
        family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" "),
        family.level.name(),
        if is_read(family) { family.tier.name() } else { "" },
        if family.name.ends_with("_total") { origin(family) } else { "" },
        family.help
    )
}

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
                "range": range(family),
                "aliases": family.aliases.iter().map(|alias| json!({
                    "profile": alias.profile.name(),
                    "name": alias.name,
                    "when": pairs(alias.when),
                    "labels": pairs(alias.labels),
                    "factor": alias.scale.0,
                    "divisor": alias.scale.1,
                    "rate": alias.rate,
                })).collect::<Vec<_>>(),
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

/// The plausible range of a gauge of a GPU, in its unit.
fn range(family: &Family) -> Option<[f64; 2]> {
    let bound = family.bound().filter(|_| family.kind == Kind::Gauge)?;
    let one = 10_f64.powi(family.unit.decimals().into());
    Some([bound.least, bound.most].map(|limit| limit as f64 / one))
}

fn pairs(labels: &[(&str, &str)]) -> serde_json::Value {
    labels.iter().map(|(name, value)| ((*name).to_owned(), serde_json::Value::from(*value))).collect()
}

fn is_read(family: &Family) -> bool {
    !family.rows.points().is_empty() || matches!(family.rows, Rows::Instance(InstanceRows::Read(_)))
}

fn origin(family: &Family) -> &'static str {
    match family.origin() {
        Origin::Driver => "driver load",
        Origin::Agent => "agent start",
        Origin::Ledger => "ledger",
        Origin::LedgerOrAgent => "ledger; agent start without one",
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Money => "currency",
        Unit::None => "1",
        unit => unit.suffix(),
    }
}
