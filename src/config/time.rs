//! Parses durations such as `1s`, `500ms`, `1h30m`, `35d`, and times such as `2026-01-01T00:00:00Z`.

use std::str::FromStr;

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

use super::problem::Complaint;
use crate::model::{Nanoseconds, Utc};

/// Prices change on this grid only, so that the boundaries of windows and statements do not depend on them.
const GRID: Nanoseconds = Nanoseconds::from_seconds(15 * 60);

/// A duration between two bounds, both included.
pub fn duration(text: &str, least: Nanoseconds, most: Nanoseconds) -> Result<Nanoseconds, Complaint> {
    let shape =
        |wrong| Complaint::about(text, wrong, "give a number with its unit, such as 500ms, 1s, 2m or 1h");
    // Days are no part of a `SignedDuration`, whose limits are wider.
    let in_days =
        || Span::from_str(text).and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let parsed =
        SignedDuration::from_str(text).or_else(|_| in_days()).map_err(|_| shape("is not a duration"))?;
    if parsed.is_negative() {
        return Err(shape("is negative"));
    }
    let range = |wrong: &str, bound| {
        let remedy = format!("give a duration from {} to {}", in_words(least), in_words(most));
        Complaint::about(text, &format!("is {wrong} than {}", in_words(bound)), &remedy)
    };
    let span = u64::try_from(parsed.as_nanos()).map(Nanoseconds).map_err(|_| range("longer", most))?;
    if span < least {
        return Err(range("shorter", least));
    }
    if span > most {
        return Err(range("longer", most));
    }
    Ok(span)
}

/// A duration as in the configuration: `500ms`, `60s`, `10m`, `35d`.
pub(crate) fn in_words(span: Nanoseconds) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
    ];
    let unit = UNITS.iter().find(|(size, _)| span.0 >= *size && span.0.is_multiple_of(*size));
    match unit {
        Some((size, name)) => format!("{}{name}", span.0 / size),
        None if span.0 == 0 => "0s".to_owned(),
        None => format!("{}ns", span.0),
    }
}

/// A time in UTC on the 15-minute grid.
pub(crate) fn moment(text: &str) -> Result<Utc, Complaint> {
    let remedy = "give a time in UTC such as 2026-01-01T00:00:00Z";
    // Other offsets are refused, because statements print UTC and both should look alike.
    let parsed = text.ends_with('Z').then(|| Timestamp::from_str(text).ok()).flatten();
    let parsed = parsed.ok_or_else(|| Complaint::about(text, "is not a time in UTC", remedy))?;
    let utc = Utc::try_from(parsed)
        .map_err(|_| Complaint::about(text, "is before 1970 or out of range", remedy))?;
    if utc.floor(GRID) != utc {
        let wrong = "is not on the 15-minute grid";
        return Err(Complaint::about(text, wrong, "give minutes :00, :15, :30 or :45 and no seconds"));
    }
    Ok(utc)
}
