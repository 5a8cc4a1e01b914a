//! Which bill is made, or which lines of it are explained, and to whom.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{BillLine, LineFilter, Month, PriceBook};
use crate::model::{HolderId, MINUTE, Utc, VisibleAccount};

/// A request for a bill or an explanation, whether it is made from a ledger or from exports.
#[derive(Clone, Debug)]
pub struct BillRequest {
    /// Begin, on a whole minute; none: that of the month of the account's last minute.
    pub from: Option<Utc>,
    /// End, on a whole minute; none: that of the account.
    pub to: Option<Utc>,
    pub zone: TimeZone,
    /// How finely lines are distinguished. A bill of one ledger has whole lines; only `day` counts there.
    pub detail: LineDetail,
    /// The lines that are explained. A bill over exports has no others.
    pub filter: LineFilter,
    pub visible: VisibleAccount,
    /// Prices and terms in place of the recorded ones.
    pub book: Option<PriceBook>,
    /// The present; a bill that begins later than this and than the end of the account is refused.
    pub now: Utc,
}

impl Default for BillRequest {
    fn default() -> Self {
        Self {
            from: None,
            to: None,
            zone: TimeZone::UTC,
            detail: LineDetail::whole(),
            filter: LineFilter::default(),
            visible: VisibleAccount::Everything,
            book: None,
            now: Utc(u64::MAX),
        }
    }
}

impl BillRequest {
    /// Reads `from`, `to`, `time_zone` and `by` of the API and of the command line, each at most once, and the parameters of
    /// a filter. `zone` holds where no other one is given.
    ///
    /// # Errors
    /// An unknown parameter, one that is given twice, or a value that it cannot have.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a str, String)>,
        zone: TimeZone,
        now: Utc,
    ) -> Result<Self, String> {
        let mut request = Self { zone, now, ..Self::default() };
        let (mut from, mut to, mut time_zone, mut by) = (None, None, None, None);
        for (name, value) in parameters {
            let given = match name {
                "from" => &mut from,
                "to" => &mut to,
                "time_zone" => &mut time_zone,
                "by" => &mut by,
                _ => {
                    request.filter.set(name, &value)?;
                    continue;
                }
            };
            // Forms send empty fields for values that were not given.
            if !value.is_empty() && given.replace(value).is_some() {
                return Err(format!("{name} is given twice; give it once"));
            }
        }
        if let Some(name) = time_zone {
            request.zone = TimeZone::get(&name).map_err(|_| {
                format!("time_zone: {name:?} is no time zone that this machine knows; write it like Europe/Zurich or UTC")
            })?;
        }
        request.detail.day = match by.as_deref() {
            None => false,
            Some("day") => true,
            Some(by) => return Err(format!("by={by:?} is not known; give by=day, or leave it out")),
        };
        request.from = from.as_deref().map(|text| parse_time("from", text, &request.zone)).transpose()?;
        request.to = to.as_deref().map(|text| parse_time("to", text, &request.zone)).transpose()?;
        match (from, to) {
            (Some(from), Some(to)) if request.from > request.to => {
                Err(format!("from: {from:?} is after to: {to:?}; swap them"))
            }
            _ => Ok(request),
        }
    }

    pub fn period(&self, account_end: Utc) -> [Utc; 2] {
        let to = self.to.map_or(account_end, |to| to.min(account_end));
        let month = Month::containing(Utc(to.0.saturating_sub(1)), &self.zone);
        let from = self.from.unwrap_or_else(|| month.map_or(to, |month| month.begin));
        [from, to.max(from)]
    }

    /// Makes the bills of a period, one after the other, each of a span in one currency. `since` is the time at which another
    /// currency begins, where that is the error.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn by_currency<B, E>(
        &self,
        mut make: impl FnMut(&Self) -> Result<B, E>,
        since: impl Fn(&E) -> Option<Utc>,
    ) -> Result<Vec<B>, E> {
        let (mut request, mut bills) = (self.clone(), Vec::new());
        loop {
            let made = make(&request);
            match made.as_ref().err().and_then(&since) {
                Some(since) if request.from < Some(since) => {
                    bills.push(make(&Self { to: Some(since), ..request.clone() })?);
                    request.from = Some(since);
                }
                _ => {
                    bills.push(made?);
                    return Ok(bills);
                }
            }
        }
    }
}

/// Parses a time with an offset, or a date with or without a time of day in that zone; `name` is named in errors.
fn parse_time(name: &str, text: &str, zone: &TimeZone) -> Result<Utc, String> {
    let wrong =
        || format!("{name}: {text:?} is not a valid time; write it like 2026-01-31 or 2026-01-31T08:00:00Z");
    let moment = match text.parse::<Timestamp>() {
        Ok(moment) => moment,
        Err(_) => {
            let local: DateTime = text.parse().map_err(|_| wrong())?;
            zone.to_timestamp(local).map_err(|_| wrong())?
        }
    };
    // The times of the ledger end in 2262.
    let moment = i64::try_from(moment.as_nanosecond()).ok().and_then(|moment| u64::try_from(moment).ok());
    let moment = moment.map(Utc).ok_or_else(wrong)?;
    if moment.floor(MINUTE) != moment {
        return Err(format!(
            "{name}: {text:?} is not on a whole minute; bills cover whole minutes, leave out the seconds"
        ));
    }
    Ok(moment)
}

/// How finely a bill over exports distinguishes lines. Coarser lines take less memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineDetail {
    pub workload: bool,
    /// By these labels; none: by all.
    pub labels: Option<Vec<String>>,
    pub node: bool,
    pub day: bool,
}

impl LineDetail {
    /// As finely as a bill of one ledger does, and by node.
    pub const fn whole() -> Self {
        Self { workload: true, labels: None, node: true, day: false }
    }

    /// By tenant and node, which is what statements of fleets have.
    pub const fn of_tenants() -> Self {
        Self { workload: false, labels: Some(Vec::new()), node: true, day: false }
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let labels = self.labels.zip(other.labels).map(|(one, other)| [one, other].concat());
        Self {
            workload: self.workload || other.workload,
            labels,
            node: self.node || other.node,
            day: self.day || other.day,
        }
    }

    fn keeps(&self, label: &str) -> bool {
        self.labels.as_ref().is_none_or(|labels| labels.iter().any(|kept| kept == label))
    }

    /// Removes from a line what does not distinguish lines.
    pub fn reduce(&self, line: &mut BillLine) {
        // The time of a remainder is the tenant's, whatever is told apart.
        if !self.workload && !line.holder.is_remainder() {
            line.holder = HolderId::new("");
        }
        line.labels.retain(|label, _| self.keeps(label));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn parse(parameters: &[(&'static str, &str)]) -> Result<BillRequest, String> {
        let parameters = parameters.iter().map(|(name, value)| (*name, (*value).to_owned()));
        BillRequest::parse(parameters, TimeZone::UTC, Utc(0))
    }

    #[test]
    fn a_date_without_an_offset_is_meant_in_the_node_s_time_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let at = |text: &str| parse_time("from", text, &zone).map(|at| at.0 / 1_000_000_000);
        for text in ["2026-11-01", "2026-11-01T00:00", "2026-11-01 00:00:00", "2026-10-31T19:00:00Z"] {
            assert_eq!(at(text).unwrap(), 1_793_473_200, "{text}");
        }
        assert_eq!(at("2026-11-01T00:00:00+05:00").unwrap(), 1_793_473_200);
    }

    #[test]
    fn a_day_in_which_clocks_are_set_has_23_or_25_hours() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let at = |text: &str| parse_time("from", text, &zone).map(|at| at.0 / 1_000_000_000).unwrap();
        for (day, next, hours) in [
            ("2026-03-28", "2026-03-29", 24),
            ("2026-03-29", "2026-03-30", 23),
            ("2026-10-25", "2026-10-26", 25),
            ("2026-12-31", "2027-01-01", 24),
        ] {
            assert_eq!(at(next) - at(day), hours * 3_600, "{day}");
        }
        // A time that this day does not have, and one that it has twice.
        assert_eq!(at("2026-03-29 02:30"), at("2026-03-29 03:30"));
        assert_eq!(at("2026-10-25 02:30"), at("2026-10-25T02:30:00+02:00"));
    }

    #[test]
    fn a_time_that_no_bill_can_begin_with_is_refused_in_the_words_of_the_user() {
        let told = |text: &str| parse(&[("to", text)]).unwrap_err();
        let seconds = "2026-11-01T08:00:30Z";
        assert_eq!(
            told(seconds),
            r#"to: "2026-11-01T08:00:30Z" is not on a whole minute; bills cover whole minutes, leave out the seconds"#
        );
        for text in ["yesterday", "2026-13-01", "1969-12-31", "2999-01-01", "2026-11", "11/01/2026"] {
            assert!(told(text).starts_with(&format!("to: {text:?} is not a valid time; ")), "{text}");
        }
        let nowhere = parse(&[("time_zone", "Europe/Nowhere")]).unwrap_err();
        assert!(nowhere.starts_with(r#"time_zone: "Europe/Nowhere" is no time zone"#), "{nowhere}");
        let backwards = parse(&[("from", "2026-11-15"), ("to", "2026-11-01")]).unwrap_err();
        assert_eq!(backwards, r#"from: "2026-11-15" is after to: "2026-11-01"; swap them"#);
    }

    #[test]
    fn the_requested_time_zone_holds_then_the_configured_one() {
        let zone_of = |parameters: &[(&'static str, String)]| {
            let configured = TimeZone::get("Asia/Kolkata").unwrap();
            let request = BillRequest::parse(parameters.iter().cloned(), configured, Utc(0)).unwrap();
            (
                super::super::local_time(request.from.unwrap(), &request.zone),
                request.zone.iana_name().unwrap().to_owned(),
            )
        };
        let from = ("from", "2024-11-01".to_owned());
        let kathmandu = ("2024-11-01T00:00:00+05:45".to_owned(), "Asia/Kathmandu".to_owned());
        assert_eq!(zone_of(&[from.clone(), ("time_zone", "Asia/Kathmandu".to_owned())]), kathmandu);
        let kolkata = ("2024-11-01T00:00:00+05:30".to_owned(), "Asia/Kolkata".to_owned());
        assert_eq!(zone_of(&[from]), kolkata);
    }

    #[test]
    fn empty_parameters_are_not_given_and_mistakes_are_named() {
        let empty = parse(&[("from", ""), ("to", ""), ("by", "")]).unwrap();
        assert_eq!((empty.from, empty.to, empty.detail), (None, None, LineDetail::whole()));
        assert!(parse(&[("by", "day")]).unwrap().detail.day);
        let error = |parameters| parse(parameters).unwrap_err();
        assert_eq!(error(&[("by", "week")]), r#"by="week" is not known; give by=day, or leave it out"#);
        assert_eq!(error(&[("from", "1"), ("from", "2")]), "from is given twice; give it once");
        assert!(error(&[("form", "1")]).contains(r#"unknown parameter "form"; use from, to, "#));
        assert_eq!(parse(&[("gpu", "1")]).unwrap().filter, LineFilter::of([("gpu", "1")]).unwrap());
    }
}
