//! Parses plain values: flags, counts, words, names, paths. A complaint says what to write instead.

use std::borrow::Cow;
use std::path::PathBuf;

use jiff::tz::TimeZone;
use percent_encoding::percent_decode_str;

use super::problem::Complaint;
use crate::model::PodLabel;

pub(crate) fn put<S, V: Into<S>>(place: &mut S, value: Result<V, Complaint>) -> Result<(), Complaint> {
    *place = value?.into();
    Ok(())
}

/// Adds a value to a list in which no two are alike.
pub(crate) fn add<V: PartialEq>(
    list: &mut Vec<V>,
    text: &str,
    value: Result<V, Complaint>,
) -> Result<(), Complaint> {
    let value = value?;
    if list.contains(&value) {
        return Err(Complaint::about(text, "is in the list twice", "keep one"));
    }
    list.push(value);
    Ok(())
}

/// `true` or `false`; YAML parsers disagree on yes, on and True.
pub(crate) fn flag(text: &str) -> Result<bool, Complaint> {
    text.parse().map_err(|_| Complaint::about(text, "is neither true nor false", "write true or false"))
}

/// A decimal number of at least 0 and less than `limit`, in billionths, without floating point.
pub(crate) fn billionths<N: TryFrom<i128>>(text: &str, limit: u64) -> Result<N, Complaint> {
    let complain = |wrong: &str, remedy| Err(Complaint::about(text, wrong, remedy));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    match whole.strip_prefix('-') {
        Some(whole) if digits(whole) && digits(decimals) => {
            return complain("is negative", "give a number >= 0");
        }
        _ if !digits(whole) || !digits(decimals) => {
            return complain("is not a decimal number", "give digits such as 2.49");
        }
        _ => {}
    }
    let decimals = decimals.trim_end_matches('0');
    if decimals.len() > 9 {
        return complain("has more than nine decimals", "round it to nine");
    }
    let number = format!("{whole}{decimals:0<9}").parse::<i128>().ok();
    let within = number.filter(|number| *number < i128::from(limit) * 1_000_000_000);
    within
        .and_then(|number| N::try_from(number).ok())
        .map_or_else(|| complain(&format!("is {limit} or more"), "give a lower number"), Ok)
}

/// A whole number between two bounds, both included.
pub(crate) fn count(text: &str, least: u32, most: u32) -> Result<u32, Complaint> {
    let complain =
        |wrong| Err(Complaint::about(text, wrong, &format!("give a whole number from {least} to {most}")));
    match text.parse::<i64>() {
        Err(_) => complain("is not a whole number"),
        Ok(number) if number < i64::from(least) => complain("is too small"),
        Ok(number) => match u32::try_from(number) {
            Ok(number) if number <= most => Ok(number),
            _ => complain("is too large"),
        },
    }
}

/// The position of a word among those that are allowed.
pub(crate) fn word(text: &str, words: &[&str]) -> Result<usize, Complaint> {
    words.iter().position(|word| *word == text).ok_or_else(|| {
        let remedy = match nearest(text, words) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("give {}", one_of(words)),
        };
        Complaint::about(text, "is not known here", &remedy)
    })
}

/// The nearest of the words by edit distance, if at most a third of its letters differ.
pub(crate) fn nearest<'a>(written: &str, words: &[&'a str]) -> Option<&'a str> {
    // Nothing longer than this is a misspelt key, and the distance costs the product of the lengths.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_ascii_lowercase();
    let distances = words.iter().map(|word| (strsim::osa_distance(&written, word), *word));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (nearest.len() / 3).max(1)).then_some(nearest)
}

/// `lean, standard or full`.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// A name that may become a label value.
pub(crate) fn name(text: &str) -> Result<String, Complaint> {
    let complain = |wrong| Err(Complaint::about(text, wrong, "give a name of 1 to 200 printable characters"));
    match text {
        "" => complain("is empty"),
        _ if text.chars().any(char::is_control) => complain("contains control characters"),
        _ if text.trim() != text => complain("begins or ends with a blank"),
        _ if text.chars().count() > 200 => complain("is too long"),
        _ => Ok(text.to_owned()),
    }
}

/// The name of a time zone that this machine knows.
pub(crate) fn time_zone(text: &str) -> Result<TimeZone, Complaint> {
    let remedy = "give a name such as Europe/Zurich or UTC";
    TimeZone::get(text).map_err(|_| Complaint::about(text, "is no time zone that this machine knows", remedy))
}

/// A name without blanks, such as that of a user.
pub(crate) fn token(text: &str) -> Result<String, Complaint> {
    let name = name(text)?;
    if name.contains(char::is_whitespace) {
        return Err(Complaint::about(text, "contains a blank", "give one name"));
    }
    Ok(name)
}

/// The name of an extended resource of Kubernetes, or the beginning of such names before a `*`.
pub(crate) fn resource(text: &str) -> Result<String, Complaint> {
    let complain = |wrong| {
        Err(Complaint::about(
            text,
            wrong,
            "give a name with a domain, such as nvidia.com/gpu or nvidia.com/*",
        ))
    };
    let plain = text.strip_suffix('*').unwrap_or(text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match plain.split_once('/') {
        Some((domain, rest))
            if !domain.is_empty() && [domain, rest].iter().all(|part| part.chars().all(is_plain)) =>
        {
            match rest.is_empty() && plain.len() == text.len() {
                true => complain("ends with its domain"),
                false => Ok(text.to_owned()),
            }
        }
        Some(_) => complain("is not the name of an extended resource"),
        None => complain("has no domain"),
    }
}

pub(crate) fn label(text: &str) -> Result<String, Complaint> {
    let (domain, name) = text.rsplit_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_plain = |part: &str| {
        part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            && is_edge(part.chars().next())
            && is_edge(part.chars().next_back())
    };
    if is_plain(name)
        && name.len() <= 63
        && domain.is_none_or(|domain| is_plain(domain) && domain.len() <= 253)
    {
        return Ok(text.to_owned());
    }
    let remedy = "give a label of Kubernetes, such as team or kueue.x-k8s.io/queue-name";
    Err(Complaint::about(text, "is not the name of a label", remedy))
}

/// An absolute path, or `off` for none.
pub(crate) fn path_or_off(text: &str) -> Result<Option<PathBuf>, Complaint> {
    if text == "off" {
        return Ok(None);
    }
    let remedy = "give a path that begins with /, or off";
    path(text).map(Some).map_err(|_| Complaint::about(text, "is not an absolute path", remedy))
}

/// Decodes percent-encoding. A `+` stays: in a time it is the sign of an offset.
pub(crate) fn decode_percent(text: &str) -> Option<String> {
    let is_code = |rest: &[u8]| rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_hexdigit);
    // The decoder leaves a lone `%` as it is, which may be a mistyped code.
    if !text.as_bytes().split(|byte| *byte == b'%').skip(1).all(is_code) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

/// An absolute path; a service has no useful current directory.
pub(crate) fn path(text: &str) -> Result<PathBuf, Complaint> {
    let path = PathBuf::from(text);
    if !path.is_absolute() || text.contains('\0') {
        return Err(Complaint::about(text, "is not an absolute path", "give a path that begins with /"));
    }
    Ok(path)
}

/// The name of a service; a `*` at its end stands for any ending.
pub(crate) fn service(text: &str) -> Result<String, Complaint> {
    let plain = text.strip_suffix('*').unwrap_or(text);
    if plain.is_empty() || plain.contains(['/', '*']) || (plain == text && !text.ends_with(".service")) {
        let remedy = "give a name such as my-runtime.service or my-runtime*";
        return Err(Complaint::about(text, "is not the name of a service", remedy));
    }
    name(text)
}

/// The cgroup path of a container; a `*` at the end of a part stands for any ending.
pub(crate) fn cgroup_path(text: &str) -> Result<String, Complaint> {
    let is_plain = |part: &str| {
        let plain = part.strip_suffix('*').unwrap_or(part);
        !plain.is_empty() && plain != ".." && !plain.contains('*')
    };
    if !text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain)) {
        let remedy = "give a path as in /proc/PID/cgroup, such as /lxc.payload.slurm";
        return Err(Complaint::about(text, "is not the cgroup path of a container", remedy));
    }
    name(text)
}

pub(super) fn add_label(labels: &mut Vec<String>, text: &str) -> Result<(), Complaint> {
    let label = label(text)?;
    let name = PodLabel::name_of(&label);
    if labels.iter().any(|other| PodLabel::name_of(other) == name) {
        return Err(Complaint::about(
            text,
            "is in the list twice, or has the same name in metrics as another label",
            "keep one",
        ));
    }
    if labels.len() == PodLabel::MOST {
        return Err(Complaint::about(text, "is one label too many", "keep the 12 that you need"));
    }
    labels.push(label);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_are_exact_to_the_billionth_and_anything_else_is_refused() {
        const LIMIT: u64 = 1_000_000_000_000_000;
        for (text, expected) in [
            ("5000", 5_000_000_000_000),
            ("0", 0),
            ("0.000000001", 1),
            ("4999.50", 4_999_500_000_000),
            ("007.1000000000000", 7_100_000_000),
            ("999999999999999.999999999", 999_999_999_999_999_999_999_999),
        ] {
            assert_eq!(billionths(text, LIMIT), Ok::<i128, _>(expected), "{text}");
        }
        let very_long = "1".repeat(60);
        for (texts, wrong) in [
            (
                &[
                    "", ".", "1.", ".5", "+1", "--1", "1e3", "5,000", "5'000", "5_000", "5000 EUR", "٣",
                    "nan", ".inf", "1.2.3", " 1", "0x10",
                ][..],
                "is not a decimal number; give digits such as 2.49",
            ),
            (&["-1", "-0.5"], "is negative"),
            (&["1.0000000001"], "has more than nine decimals"),
            (&["1000000000000000", &very_long], "is 1000000000000000 or more"),
        ] {
            for text in texts {
                let complaint = billionths::<i128>(text, LIMIT).unwrap_err().0;
                assert!(complaint.contains(wrong), "{complaint}");
            }
        }
    }

    #[test]
    fn a_misspelt_word_finds_its_nearest() {
        let words = ["interval", "medium", "slow", "level"];
        for (written, expected) in [
            ("intervall", Some("interval")),
            ("inetrval", Some("interval")),
            ("Slow", Some("slow")),
            ("levle", Some("level")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, &words), expected, "{written}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), &words), None);
    }
}
