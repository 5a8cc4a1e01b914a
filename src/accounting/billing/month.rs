//! Calendar months in a time zone, and the budgets that tenants have in each.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

use super::json;
use crate::model::{Money, Utc};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Month {
    /// Its name, such as `2026-11`.
    pub name: Arc<str>,
    pub begin: Utc,
    /// The first moment of the next month.
    pub end: Utc,
}

impl Month {
    /// The month that contains a time; none in 2554, in which times of 64 bits end.
    pub fn containing(at: Utc, zone: &TimeZone) -> Option<Self> {
        let date = Timestamp::from(at).to_zoned(zone.clone()).date();
        let first = date.first_of_month();
        let moment = |date: jiff::civil::Date| {
            let begin = date.to_zoned(zone.clone()).ok()?.timestamp();
            // The month of 1970-01-01 begins before all times of 64 bits in zones east of UTC.
            Utc::try_from(begin.max(Timestamp::UNIX_EPOCH)).ok()
        };
        Some(Self {
            name: first.strftime("%Y-%m").to_string().into(),
            begin: moment(first)?,
            end: moment(first.checked_add(1.month()).ok()?)?,
        })
    }

    pub fn contains(&self, at: Utc) -> bool {
        (self.begin..self.end).contains(&at)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantBudget {
    #[serde(with = "json::money")]
    pub amount: Money,
    /// Its currency: that of the prices beside which it was given.
    pub currency: Arc<str>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn month(at: &str, zone: &str) -> [String; 3] {
        let at = at.parse::<Timestamp>().unwrap().as_nanosecond();
        let zone = TimeZone::get(zone).unwrap();
        let Month { name, begin, end } = Month::containing(Utc(at as u64), &zone).unwrap();
        [name.to_string(), begin.to_string(), end.to_string()]
    }

    #[test]
    fn a_month_begins_and_ends_at_midnight_in_its_zone() {
        assert_eq!(
            month("2026-10-31T22:59:59Z", "Europe/Zurich"),
            ["2026-10", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"],
            "an hour longer than 31 days"
        );
        assert_eq!(
            month("2026-10-31T23:00:00Z", "Europe/Zurich"),
            ["2026-11", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z"]
        );
        assert_eq!(
            month("2026-12-31T18:15:00Z", "Asia/Kathmandu"),
            ["2027-01", "2026-12-31T18:15:00Z", "2027-01-31T18:15:00Z"]
        );
        assert_eq!(month("1970-01-01T00:00:00Z", "Asia/Kolkata")[1], "1970-01-01T00:00:00Z");
        assert_eq!(Month::containing(Utc(u64::MAX), &TimeZone::UTC), None);
    }
}
