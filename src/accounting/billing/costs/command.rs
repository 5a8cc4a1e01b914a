//! The command that prints the costs of a request as a bill.

use super::request::CostRequest;

/// `source` are the options that name what is asked, such as `--exports DIR`; none of a running agent.
pub(super) fn command(request: &CostRequest, source: &str, is_open: bool) -> String {
    let mut words = bill_of_period(request, source, is_open);
    words.extend(["--by".to_owned(), quoted(&request.group.asked().join(","))]);
    words.extend(selection(request));
    words.extend(time_zone(request));
    words.join(" ")
}

/// The command that writes the rows of FOCUS of the period; these are always of all lines.
pub(super) fn focus_command(request: &CostRequest, source: &str, is_open: bool) -> String {
    let mut words = bill_of_period(request, source, is_open);
    words.extend(time_zone(request));
    words.extend(["--focus", "costs.parquet"].map(str::to_owned));
    words.join(" ")
}

fn bill_of_period(request: &CostRequest, source: &str, is_open: bool) -> Vec<String> {
    let mut words = vec!["gpumeter".to_owned(), "bill".to_owned()];
    words.extend(source.split_whitespace().map(str::to_owned));
    match request.period.days() {
        Some(_) if request.period.is_month() && !is_open => {
            words.extend(["--month".to_owned(), request.period.name()]);
        }
        Some([from, to]) => {
            words.extend(["--from".to_owned(), from.to_string()]);
            words.extend((!is_open).then(|| ["--to".to_owned(), to.to_string()]).into_iter().flatten());
        }
        None => {}
    }
    words
}

fn selection(request: &CostRequest) -> Vec<String> {
    let mut words = Vec::new();
    for (name, values) in request.filters.asked() {
        for value in &values {
            words.extend(match &*name {
                "tenant" => ["--tenant".to_owned(), quoted(value)],
                _ => ["--only".to_owned(), quoted(&format!("{name}={value}"))],
            });
        }
    }
    if !request.spread.is_empty() {
        let remainders: Vec<&str> = request.spread.iter().map(String::as_str).collect();
        words.push(format!("--spread={}", quoted(&remainders.join(","))));
    }
    words
}

fn time_zone(request: &CostRequest) -> Vec<String> {
    request.zone.iana_name().map(|zone| vec!["--time-zone".to_owned(), quoted(zone)]).unwrap_or_default()
}

/// A word of a POSIX shell.
fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./:@=,+%".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_outside_is_one_word_of_the_shell() {
        assert_eq!(quoted("k8s:a/b"), "k8s:a/b");
        assert_eq!(quoted("it's $(reboot)"), r"'it'\''s $(reboot)'");
        assert_eq!(quoted(""), "''");
    }
}
