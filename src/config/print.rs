//! Prints the default configuration as commented YAML.
//!
//! Keys with a default have that value, and all others are comments with an example. Prose begins with `##`, so removing one
//! `# ` from the other comments gives YAML.

use super::key::KeyDescription;
use super::settings::{key_descriptions, sections};

const HEAD: &str = "\
## gpumeter: every key, its meaning and its default.
## Every key is optional, and so is the file. Check a file with `gpumeter check-config FILE`.
## A changed file is read again within seconds, or at once on SIGHUP. A file with a mistake changes nothing and
## the log says what is wrong; keys that need a restart keep their value until then.
";

/// The commented default configuration, which parses to the defaults.
pub fn default_yaml() -> String {
    let rows = key_descriptions();
    let mut page = HEAD.to_owned();
    for (section, help) in sections() {
        page.push_str(&format!("\n## {help}\n{section}:\n"));
        let is_below = |row: &&KeyDescription| {
            row.path.strip_prefix(section).is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let mut subsection = "";
        for row in rows.iter().filter(is_below) {
            let within = subsection_of(row);
            if within != subsection && !within.is_empty() {
                page.push_str(&format!("  {within}:\n"));
            }
            subsection = within;
            print_row(&mut page, row);
        }
    }
    page
}

fn subsection_of(row: &KeyDescription) -> &str {
    let path = row.path.split("[].").next().unwrap_or_default();
    match path.split('.').collect::<Vec<_>>()[..] {
        [_, subsection, _] => subsection,
        _ => "",
    }
}

fn print_row(page: &mut String, row: &KeyDescription) {
    let plain = if subsection_of(row).is_empty() { "  " } else { "    " };
    // The keys of a list entry are comments below the list.
    let (name, margin, marker) = match row.path.rsplit_once("[].") {
        Some((list, name)) => {
            let item = if is_first(list, row) { "- " } else { "  " };
            (name, format!("{plain}#     "), format!("{plain}#   {item}"))
        }
        None => (row.path.rsplit('.').next().unwrap_or_default(), plain.to_owned(), plain.to_owned()),
    };
    page.push_str(&format!("{margin}## {}\n{margin}## {}\n", row.help, describe_value(row)));
    let value = if row.is_list { String::new() } else { format!(" {}", quote(row.example)) };
    let hidden = if margin == plain && row.default.is_none() { "# " } else { "" };
    page.push_str(&format!("{marker}{hidden}{name}:{value}\n"));
}

fn is_first(list: &str, row: &KeyDescription) -> bool {
    let below = format!("{list}[].");
    key_descriptions()
        .iter()
        .find(|other| other.path.starts_with(&below))
        .is_some_and(|first| first.path == row.path)
}

/// Accepted values and default: `Value: a duration from 100ms to 1m; default: 1s.`
fn describe_value(row: &KeyDescription) -> String {
    let unit = if row.unit.is_empty() { String::new() } else { format!(", in {}", row.unit) };
    let otherwise = match (row.default, row.required) {
        (Some(default), _) => format!("default: {default}"),
        (None, true) => "required".to_owned(),
        (None, false) => "optional".to_owned(),
    };
    let restart = if row.needs_restart { "; needs a restart" } else { "" };
    format!("Value: {}{unit}; {otherwise}{restart}.", row.accepts)
}

/// Quotes a value that plain YAML would not read as that text.
fn quote(text: &str) -> String {
    // A mapping.
    if text.starts_with('{') {
        return text.to_owned();
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:".contains(&byte);
    match text.as_bytes() {
        [first, rest @ ..] if plain(*first) && *first != b'-' && rest.iter().all(|byte| plain(*byte)) => {
            text.to_owned()
        }
        _ => format!("\"{text}\""),
    }
}
