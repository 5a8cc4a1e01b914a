//! Times in a history's file: days before its last day, days of the week, hours of the day. All are in UTC.

use std::str::FromStr;

use serde::Deserialize;

use crate::model::{DAY, MINUTE, Nanoseconds, Utc};

/// A time of day, some days before the day in which the history ends: `-12d 08:30`, or `-12d` for its midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PastTime {
    days: u64,
    minutes: u64,
}

/// Days of the week, as bits from Monday on: `mon-fri`, `sat,sun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Weekdays(u8);

/// Whole hours of the day: `8-18` is from 08:00 to 18:00, `22-6` goes over midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct DayHours {
    from: u64,
    to: u64,
}

/// A time of day: `20:30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct TimeOfDay(u64);

const WEEK: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// The longest history, as long as quarter hours are kept.
pub(super) const MOST_DAYS: u64 = 400;

pub(super) const fn minutes(count: u64) -> Nanoseconds {
    Nanoseconds(count * MINUTE.0)
}

impl PastTime {
    /// The time in a history whose last day begins at `midnight`.
    pub(super) fn at(self, midnight: Utc) -> Utc {
        Utc(midnight.0.saturating_sub(self.days * DAY.0)).plus(minutes(self.minutes))
    }

    pub(super) fn is_before(self, other: Self) -> bool {
        self.days > other.days || (self.days == other.days && self.minutes < other.minutes)
    }
}

impl TryFrom<String> for PastTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no time of a history; write -12d, or -12d 08:30 (0d is its last day)");
        let (days, time) =
            text.split_once(' ').map_or((text.as_str(), None), |(days, time)| (days, Some(time)));
        let days = match days.strip_suffix('d').ok_or_else(wrong)? {
            "0" => Some(0),
            before => before.strip_prefix('-').and_then(|days| below(days, MOST_DAYS + 1)),
        };
        let minutes = time.map_or(Some(0), time_of_day).ok_or_else(wrong)?;
        Ok(Self { days: days.ok_or_else(wrong)?, minutes })
    }
}

/// The minutes since midnight.
fn time_of_day(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes) = (below(hours, 24)?, below(minutes, 60)?);
    Some(hours * 60 + minutes)
}

fn below(text: &str, end: u64) -> Option<u64> {
    // A sign is no digit, though a number may have one.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| u64::from_str(digits).ok()).filter(|number| *number < end)
}

impl TimeOfDay {
    /// Since midnight.
    pub(super) const fn since_midnight(self) -> Nanoseconds {
        minutes(self.0)
    }
}

impl TryFrom<String> for TimeOfDay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time_of_day(&text).map(Self).ok_or_else(|| format!("{text:?} is no time of day; write 20:30"))
    }
}

impl Weekdays {
    pub(super) fn contains(self, at: Utc) -> bool {
        // 1970-01-01 was a Thursday.
        self.0 >> ((at.0 / DAY.0 + 3) % 7) & 1 == 1
    }
}

impl TryFrom<String> for Weekdays {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let place = |name: &str| WEEK.iter().position(|known| *known == name.trim());
        let mut days = 0;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Some(first), Some(last)) = (place(first), place(last)) else {
                return Err(format!("{text:?} are no days of the week; write mon-fri, or sat,sun"));
            };
            let count = (last + 7 - first) % 7;
            days |= (0..=count).fold(0, |days, next| days | 1 << ((first + next) % 7));
        }
        Ok(Self(days))
    }
}

impl DayHours {
    pub(super) fn contains(self, at: Utc) -> bool {
        let hour = at.0 % DAY.0 / minutes(60).0;
        if self.from < self.to {
            (self.from..self.to).contains(&hour)
        } else {
            hour >= self.from || hour < self.to
        }
    }
}

impl TryFrom<String> for DayHours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = || {
            let (from, to) = text.split_once('-')?;
            let (from, to) = (below(from, 24)?, below(to, 25)?);
            (from != to).then_some(Self { from, to })
        };
        read().ok_or_else(|| format!("{text:?} are no hours of a day; write 8-18, or 22-6"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// 2026-11-28T00:00:00Z, a Saturday.
    const MIDNIGHT: Utc = Utc(1_795_824_000_000_000_000);

    #[test]
    fn times_are_days_before_the_last_midnight() {
        let at = |text: &str| PastTime::try_from(text.to_owned()).map(|time| time.at(MIDNIGHT).to_string());
        assert_eq!(at("-1d 08:30").unwrap(), "2026-11-27T08:30:00Z");
        assert_eq!(at("0d").unwrap(), "2026-11-28T00:00:00Z");
        for wrong in
            ["", "-1", "1h", "-1d 24:00", "-1d 8", "-401d", "-x d", "12d", "+12d", "-+12d", "-1d +8:30"]
        {
            assert!(at(wrong).unwrap_err().contains("write -12d"), "{wrong}");
        }
        let time = |text: &str| PastTime::try_from(text.to_owned()).unwrap();
        assert!(time("-2d 09:00").is_before(time("-1d")) && time("-1d").is_before(time("-1d 00:01")));
        assert!(!time("-1d").is_before(time("-1d")) && !time("0d").is_before(time("-1d 23:59")));
    }

    #[test]
    fn days_and_hours_may_go_over_the_end_of_week_and_day() {
        let days = |text: &str| Weekdays::try_from(text.to_owned()).unwrap();
        assert!(days("sat").contains(MIDNIGHT) && days("fri-mon").contains(MIDNIGHT));
        assert!(!days("mon-fri").contains(MIDNIGHT) && !days("mon,wed").contains(MIDNIGHT));
        let hours = |text: &str| DayHours::try_from(text.to_owned()).unwrap();
        let at = MIDNIGHT.plus(minutes(23 * 60 + 59));
        assert!(
            hours("22-6").contains(at) && hours("22-6").contains(MIDNIGHT) && hours("20-24").contains(at)
        );
        assert!(!hours("8-18").contains(at) && !hours("22-6").contains(MIDNIGHT.plus(minutes(360))));
        for wrong in ["", "8", "8-8", "24-3", "8-25"] {
            assert!(DayHours::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        assert!(Weekdays::try_from("mon-x".to_owned()).unwrap_err().contains("write mon-fri"));
    }
}
