//! Periods of the calendar, and local hours.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::accounting::billing::day_begin;
use crate::model::Utc;

/// Whole local days that a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostPeriod {
    /// That many calendar months from the first day of one: a month, a quarter or a year.
    Months { first: Date, months: i32 },
    Days {
        from: Date,
        /// Not included.
        to: Date,
    },
}

impl CostPeriod {
    /// Reads a period; relative ones are those of `today`.
    ///
    /// # Errors
    /// A text that names none.
    pub fn parse(text: &str, today: Date) -> Result<Self, String> {
        let (month, quarter) = (today.first_of_month(), quarter_of(today.year(), (today.month() + 2) / 3));
        let year = date(today.year(), 1);
        let relative = match text {
            "this-month" => Some((month, 1, 0)),
            "last-month" => Some((month, 1, 1)),
            "this-quarter" => Some((quarter, 3, 0)),
            "last-quarter" => Some((quarter, 3, 1)),
            "this-year" => Some((year, 12, 0)),
            "last-year" => Some((year, 12, 1)),
            _ => None,
        };
        if let Some((first, months, back)) = relative {
            let period = Self::Months { first, months };
            return Ok(if back == 1 { period.before().unwrap_or(period) } else { period });
        }
        let wrong = || {
            format!(
                "period: {text:?} is no period; write this-month, last-month, this-quarter, last-quarter, this-year, last-year, \
                 or one like 2026-10, 2026-Q4, 2026 or 2026-10-03..2026-10-17"
            )
        };
        Self::named(text).ok_or_else(wrong)
    }

    fn named(text: &str) -> Option<Self> {
        if let Some((from, to)) = text.split_once("..") {
            let (from, to) = (from.parse::<Date>().ok()?, to.parse::<Date>().ok()?);
            return (from < to).then_some(Self::Days { from, to });
        }
        if text.len() == "2026".len() {
            let year = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())??;
            return Some(Self::Months { first: date(year, 1), months: 12 });
        }
        let (year, part) = text.split_once('-')?;
        match part.strip_prefix('Q') {
            Some(quarter @ ("1" | "2" | "3" | "4")) => {
                let first = quarter_of(date_of(&format!("{year}-01-01"))?.year(), quarter.parse().ok()?);
                Some(Self::Months { first, months: 3 })
            }
            Some(_) => None,
            None if part.len() == 2 => {
                Some(Self::Months { first: date_of(&format!("{text}-01"))?, months: 1 })
            }
            None => None,
        }
    }

    /// Its name, from which it is read again: `2026-10`, `2026-Q4`, `2026`, `2026-10-03..2026-10-17`.
    pub fn name(self) -> String {
        match self {
            Self::Months { first, months: 1 } => first.strftime("%Y-%m").to_string(),
            Self::Months { first, months: 3 } => {
                format!("{}-Q{}", first.strftime("%Y"), (first.month() + 2) / 3)
            }
            Self::Months { first, .. } => first.strftime("%Y").to_string(),
            Self::Days { from, to } => format!("{from}..{to}"),
        }
    }

    pub const fn is_month(self) -> bool {
        matches!(self, Self::Months { months: 1, .. })
    }

    /// Its first day, and the first one after it; none where the calendar ends.
    pub fn days(self) -> Option<[Date; 2]> {
        match self {
            Self::Months { first, months } => Some([first, first.checked_add(months.months()).ok()?]),
            Self::Days { from, to } => Some([from, to]),
        }
    }

    pub fn bounds(self, zone: &TimeZone) -> Option<[Utc; 2]> {
        let [from, to] = self.days()?;
        Some([day_begin(from, zone)?, day_begin(to, zone)?])
    }

    /// The period of the same kind that ends where this one begins.
    pub fn before(self) -> Option<Self> {
        match self {
            Self::Months { first, months } => {
                Some(Self::Months { first: first.checked_sub(months.months()).ok()?, months })
            }
            Self::Days { from, to } => {
                Some(Self::Days { from: from.checked_sub(from.until(to).ok()?).ok()?, to: from })
            }
        }
    }
}

fn date_of(text: &str) -> Option<Date> {
    text.parse().ok()
}

fn date(year: i16, month: i8) -> Date {
    Date::new(year, month, 1).unwrap_or(Date::MIN)
}

fn quarter_of(year: i16, quarter: i8) -> Date {
    date(year, 3 * quarter - 2)
}

/// An hour of the local clock, or what a period has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalHour {
    pub begin: Utc,
    pub end: Utc,
    pub day: Date,
    /// From 0 to 23.
    pub hour: i8,
}

/// Hours of a week.
pub const WEEK: usize = 7 * 24;

impl LocalHour {
    /// Its place in a week that begins on Monday.
    pub fn of_week(&self) -> usize {
        let weekday = usize::from(self.day.weekday().to_monday_zero_offset().unsigned_abs());
        weekday * 24 + usize::from(self.hour.unsigned_abs())
    }
}

/// The local hours of a span, in order. Where clocks are set back an hour comes twice.
pub fn local_hours([from, to]: [Utc; 2], zone: &TimeZone) -> Vec<LocalHour> {
    const HOUR: i64 = 3_600;
    let mut hours = Vec::new();
    let mut begin = from;
    while begin < to {
        let local = Timestamp::from(begin).to_zoned(zone.clone());
        let passed = i64::from(local.minute()) * 60 + i64::from(local.second());
        let end = Utc(begin.0 + (HOUR - passed).unsigned_abs() * 1_000_000_000).min(to);
        hours.push(LocalHour { begin, end, day: local.date(), hour: local.hour() });
        begin = end;
    }
    hours
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn parse(text: &str) -> CostPeriod {
        CostPeriod::parse(text, "2026-11-17".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_period_is_read_from_its_name_and_the_one_before_it_is_of_its_kind() {
        for (text, name, before) in [
            ("this-month", "2026-11", "2026-10"),
            ("last-month", "2026-10", "2026-09"),
            ("this-quarter", "2026-Q4", "2026-Q3"),
            ("last-quarter", "2026-Q3", "2026-Q2"),
            ("this-year", "2026", "2025"),
            ("last-year", "2025", "2024"),
            ("2026-01", "2026-01", "2025-12"),
            ("2026-Q1", "2026-Q1", "2025-Q4"),
            ("2026-10-03..2026-10-17", "2026-10-03..2026-10-17", "2026-09-19..2026-10-03"),
        ] {
            let period = parse(text);
            assert_eq!(
                (period.name(), period.before().unwrap().name()),
                (name.to_owned(), before.to_owned())
            );
            assert_eq!(parse(name), period);
        }
        for wrong in
            ["", "october", "2026-13", "2026-Q5", "2026-10-17..2026-10-03", "2026-1", "2026-10-03..", "+026"]
        {
            let error = CostPeriod::parse(wrong, "2026-11-17".parse().unwrap()).unwrap_err();
            assert!(error.contains("write this-month"), "{error}");
        }
    }

    #[test]
    fn local_hours_follow_the_clock_and_an_hour_that_comes_twice_is_there_twice() {
        let zone = TimeZone::get("Europe/Zurich").unwrap();
        let bounds = |text: &str| parse(text).bounds(&zone).unwrap();
        let of_day = |text: &str| local_hours(bounds(text), &zone);
        let hours = of_day("2026-10-25..2026-10-26");
        assert_eq!(hours.len(), 25);
        assert_eq!([hours[2].hour, hours[3].hour, hours[4].hour], [2, 2, 3]);
        assert_eq!(hours[0].of_week(), 6 * 24, "a Sunday");
        assert_eq!(of_day("2026-03-29..2026-03-30").len(), 23);
        let kathmandu = TimeZone::get("Asia/Kathmandu").unwrap();
        let begin = Utc(1_793_491_200_000_000_000);
        let hours = local_hours([begin, Utc(begin.0 + 5_400_000_000_000)], &kathmandu);
        assert_eq!(
            hours.iter().map(|hour| (hour.end.0 - hour.begin.0) / 60_000_000_000).collect::<Vec<_>>(),
            [15, 60, 15]
        );
    }
}
