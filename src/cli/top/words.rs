//! Numbers, times and names as `gpumeter top` writes them. What is not known is a dash.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui::text::Span;

use crate::model::printable;
use crate::output::render::Summary;

pub(super) const DASH: &str = "–";

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| DASH.to_owned(), |share| format!("{:.0} %", share * 100.0))
}

/// GPUs as a sum of shares.
pub(super) fn gpus(sum: Option<f64>) -> String {
    sum.map_or_else(|| DASH.to_owned(), |sum| format!("{sum:.2}"))
}

const GIB: f64 = (1_u64 << 30) as f64;

pub(super) fn gib(bytes: Option<f64>) -> String {
    bytes.map_or_else(|| DASH.to_owned(), |bytes| format!("{:.1}", bytes / GIB))
}

/// A number without decimals.
pub(super) fn whole(number: Option<f64>) -> String {
    of_limit(number, None)
}

/// A value and its limit without decimals, as `62/80`.
pub(super) fn of_limit(value: Option<f64>, limit: Option<f64>) -> String {
    match (value, limit) {
        (None, _) => DASH.to_owned(),
        (Some(value), None) => format!("{value:.0}"),
        (Some(value), Some(limit)) => format!("{value:.0}/{limit:.0}"),
    }
}

pub(super) fn memory(used: Option<u64>, total: Option<u64>) -> String {
    of_limit(used.map(|bytes| bytes as f64 / GIB), total.map(|bytes| bytes as f64 / GIB))
}

/// Money from the agent's text, which has up to nine decimals.
pub(super) fn amount(text: Option<&String>) -> Option<f64> {
    text?.parse().ok()
}

/// Money rounded half up, as the live page does.
pub(super) fn cents(amount: Option<f64>) -> String {
    amount.map_or_else(|| DASH.to_owned(), |amount| format!("{:.2}", (amount * 100.0).round() / 100.0))
}

/// A tenant's name for people.
pub(super) fn tenant(name: &str) -> &str {
    match name {
        "" => "unknown owner",
        "__unallocated__" => "held by nobody",
        "__unattributed__" => "unknown owners",
        "__unavailable__" => "lost or broken",
        "__unobserved__" => "not observed",
        "__stranded__" => "stranded by MIG",
        "__system__" => "system processes",
        "__other__" => "other tenants",
        name => name,
    }
}

/// Times in a reader's words, in one time zone and as seen at one moment.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    zone: TimeZone,
    now: Option<Timestamp>,
    /// A state that already held at this time has lasted longer.
    watched: Option<Timestamp>,
}

impl Moments {
    /// As seen when the agent wrote that summary.
    pub(super) fn of(summary: &Summary, zone: TimeZone) -> Self {
        let parse = |text: &Option<String>| text.as_ref()?.parse().ok();
        Self { zone, now: parse(&summary.at), watched: parse(&summary.watched_since) }
    }

    /// The time of day; with the date if it was on another day.
    pub(super) fn clock(&self, at: &str) -> String {
        let Ok(at) = at.parse::<Timestamp>() else { return DASH.to_owned() };
        let local = at.to_zoned(self.zone.clone());
        let is_today = self.now.is_some_and(|now| now.to_zoned(self.zone.clone()).date() == local.date());
        local.strftime(if is_today { "%H:%M" } else { "%Y-%m-%d %H:%M" }).to_string()
    }

    /// Since when, and for how long; empty where that is not known.
    pub(super) fn since(&self, at: Option<&str>) -> String {
        let Some((text, at)) = at.and_then(|text| Some((text, text.parse::<Timestamp>().ok()?))) else {
            return String::new();
        };
        if self.watched.is_some_and(|watched| at <= watched) {
            return format!("since before {}", self.clock(text));
        }
        let seconds = self.now.map_or(0, |now| now.as_second() - at.as_second());
        format!("since {} ({})", self.clock(text), span(u64::try_from(seconds).unwrap_or(0)))
    }
}

/// A duration in its two largest units.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A text that a terminal only shows, cut to so many columns.
pub(super) fn fit(text: &str, width: usize) -> String {
    let mut fitted = String::new();
    let mut used = 0;
    for character in printable(text).chars() {
        let columns = width_of(character.encode_utf8(&mut [0; 4]));
        if used + columns > width {
            // The last column says that there is more.
            while used + 1 > width
                && fitted.pop().is_some_and(|last| {
                    used -= width_of(last.encode_utf8(&mut [0; 4]));
                    true
                })
            {}
            return if width == 0 { String::new() } else { fitted + "…" };
        }
        fitted.push(character);
        used += columns;
    }
    fitted
}

pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The means of a series in so many columns, or fewer; none where there was no value.
pub(super) fn means(points: &[Option<f32>], width: usize) -> impl Iterator<Item = Option<f64>> {
    let size = points.len().div_ceil(width.max(1)).max(1);
    points.chunks(size).map(|chunk| {
        let known: Vec<f64> = chunk.iter().flatten().map(|value| f64::from(*value)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    })
}

/// A line of bars for these means, up to `most`.
pub(super) fn bars(points: &[Option<f32>], most: f64, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |mean: f64| BARS[((mean / most.max(f64::MIN_POSITIVE) * 8.0) as usize).min(7)];
    means(points, width).map(|mean| mean.map_or(' ', bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_cannot_command_a_terminal() {
        assert_eq!(fit("a\u{1b}[31mred\n\u{202e}x", 30), "a\\u{1b}[31mred\\n\\u{202e}x");
    }

    #[test]
    fn a_text_is_cut_to_its_columns_and_says_so() {
        for (text, width, fitted) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("", 3, ""),
            ("abcd", 1, "…"),
            ("abcd", 0, ""),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
        ] {
            assert_eq!(fit(text, width), fitted, "{text} {width}");
            assert!(width_of(&fit(text, width)) <= width);
        }
    }

    #[test]
    fn bars_are_means_of_their_points() {
        let points = [Some(0.0), Some(0.0), Some(1.0), Some(1.0), None, None, Some(0.5), None];
        assert_eq!(bars(&points, 1.0, 4), "▁█ ▅");
        assert_eq!(bars(&[], 1.0, 4), "");
    }

    #[test]
    fn times_say_since_when_and_for_how_long() {
        let at = |text: &str| text.parse::<Timestamp>().ok();
        let moments = Moments {
            zone: TimeZone::UTC,
            now: at("2026-11-26T01:00:00Z"),
            watched: at("2026-11-25T20:00:00Z"),
        };
        assert_eq!(moments.since(Some("2026-11-26T00:58:30Z")), "since 00:58 (1 min)");
        assert_eq!(moments.since(Some("2026-11-25T22:30:00Z")), "since 2026-11-25 22:30 (2 h 30 min)");
        assert_eq!(moments.since(Some("2026-11-25T20:00:00Z")), "since before 2026-11-25 20:00");
        assert_eq!((moments.since(None), moments.since(Some("x"))), (String::new(), String::new()));
        assert_eq!((span(5), span(200_000)), ("5 s".to_owned(), "2 d 7 h".to_owned()));
    }
}
