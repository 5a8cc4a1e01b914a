//! Local times and days of bills.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::model::Utc;

/// Local time in RFC 3339.
pub fn local_time(at: Utc, zone: &TimeZone) -> String {
    Timestamp::from(at).to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Local time to the minute, as a person reads it: `2026-11-01 00:00 +01:00`.
pub fn readable_time(at: Utc, zone: &TimeZone) -> String {
    let offset = if *zone == TimeZone::UTC { "Z" } else { "%:z" };
    Timestamp::from(at).to_zoned(zone.clone()).strftime(&format!("%Y-%m-%d %H:%M {offset}")).to_string()
}

pub fn local_date(at: Utc, zone: &TimeZone) -> String {
    local_time(at, zone).chars().take("2026-11-01".len()).collect()
}

/// The name of a zone; of one without a name, its offset at that time.
pub fn zone_name(zone: &TimeZone, at: Utc) -> String {
    let offset = || local_time(at, zone).chars().skip("2026-11-01T00:00:00".len()).collect();
    zone.iana_name().map_or_else(offset, str::to_owned)
}

/// The zone of such a name or offset, else UTC.
pub fn zone_of(name: &str) -> TimeZone {
    let offset = || jiff::fmt::strtime::parse("%:z", name).ok()?.offset();
    let named = TimeZone::get(name).ok();
    named.or_else(|| offset().map(TimeZone::fixed)).unwrap_or(TimeZone::UTC)
}

/// When a local day begins; none before 1970 and after 2554.
pub fn day_begin(day: Date, zone: &TimeZone) -> Option<Utc> {
    Utc::try_from(day.to_zoned(zone.clone()).ok()?.timestamp()).ok()
}

pub fn days_between(from: Utc, to: Utc, zone: &TimeZone) -> Vec<Utc> {
    let next_day = |at: Utc| -> Option<Utc> {
        let time = Timestamp::from(at).to_zoned(zone.clone());
        Utc::try_from(time.tomorrow().ok()?.start_of_day().ok()?.timestamp()).ok()
    };
    let mut days = Vec::new();
    let mut at = from;
    while let Some(next) = next_day(at).filter(|next| *next < to && *next > at) {
        days.push(next);
        at = next;
    }
    days
}
