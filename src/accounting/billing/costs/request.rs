//! Which costs are asked for, and the times that are read for them.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::calendar::CostPeriod;
use crate::accounting::billing::{
    BillGrouping, BillProperty, LineView, NONE, PropertyFilters, day_begin, local_date,
};
use crate::model::{QUARTER_HOUR, RESERVED, Utc, VisibleAccount};

/// A request, as the parameters of a URL say it.
#[derive(Clone, Debug)]
pub struct CostRequest {
    /// As it was written, so that a link to this month stays one.
    pub asked_period: String,
    pub period: CostPeriod,
    pub group: BillGrouping,
    pub filters: PropertyFilters,
    /// The remainders whose money is divided among tenants.
    pub spread: BTreeSet<String>,
    /// How many rows are shown; the others are one.
    pub top: usize,
    pub zone: TimeZone,
    pub visible: VisibleAccount,
    pub now: Utc,
}

/// The times that a report is made from, each from and to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostRanges {
    /// It ends where the account does, if that is earlier.
    pub period: [Utc; 2],
    /// Where an open period will end.
    pub open_until: Option<Utc>,
    /// The period before, of an open one the same elapsed time, to the quarter hour; none where the account does not have all
    /// of it.
    pub before: Option<[Utc; 2]>,
    /// The last whole weeks of the account, the latest first; none where there are less than three, or nothing is open.
    pub weeks: Vec<[Utc; 2]>,
}

const TOP: usize = 200;
const MOST: usize = 10_000;
const LEAST_WEEKS: usize = 3;
const WEEKS: i32 = 4;

impl CostRequest {
    /// Reads the parameters of a URL: `period`, `group`, `top`, each at most once, `spread`, and any property as a filter.
    ///
    /// # Errors
    /// An unknown parameter, one that is given twice, or a value that it cannot have.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a str, String)>,
        zone: TimeZone,
        now: Utc,
    ) -> Result<Self, String> {
        let (mut period, mut group, mut top) = (None, None, None);
        let (mut filters, mut spread) = (PropertyFilters::default(), BTreeSet::new());
        for (name, value) in parameters {
            let given = match name {
                "period" => &mut period,
                "group" => &mut group,
                "top" => &mut top,
                // Forms send empty fields for values that were not given.
                _ if value.is_empty() => continue,
                "spread" => {
                    spread.insert(remainder(value)?);
                    continue;
                }
                "day" => {
                    return Err(format!("day={value}: give a day as period, as in 2026-10-03..2026-10-04"));
                }
                _ => {
                    filters.add(property(name)?, value)?;
                    continue;
                }
            };
            if !value.is_empty() && given.replace(value).is_some() {
                return Err(format!("{name} is given twice; give it once"));
            }
        }
        let asked_period = period.unwrap_or_else(|| "this-month".to_owned());
        let today = Timestamp::from(now).to_zoned(zone.clone()).date();
        let group =
            group.as_deref().unwrap_or("tenant").parse().map_err(|error| format!("group: {error}"))?;
        let top = top.map_or(Ok(TOP), |top| parse_top(&top))?;
        let period = CostPeriod::parse(&asked_period, today)?;
        let visible = VisibleAccount::Everything;
        Ok(Self { asked_period, period, group, filters, spread, top, zone, visible, now })
    }

    /// The times to read of an account that begins and ends there.
    ///
    /// # Errors
    /// The period is in the future, or ends before 1970.
    pub fn ranges(&self, [begin, end]: [Utc; 2]) -> Result<CostRanges, String> {
        let name = &self.asked_period;
        let outside = || format!("period: {name} is outside the times of an account; ask for a later one");
        let [from, until] = self.period.bounds(&self.zone).ok_or_else(outside)?;
        if from > end.max(self.now) {
            let end = local_date(end, &self.zone);
            return Err(format!("period: {name} is in the future; the account is closed up to {end}"));
        }
        let to = until.min(end).max(from);
        let is_open = to < until;
        let before = self.period.before().and_then(|before| before.bounds(&self.zone));
        let before = before.filter(|[before, _]| *before >= begin).map(|[before, end]| {
            let elapsed = to.since(from).0 / QUARTER_HOUR.0 * QUARTER_HOUR.0;
            [before, if is_open { Utc(before.0 + elapsed).min(end) } else { end }]
        });
        let weeks = if is_open { self.weeks(begin, to) } else { Vec::new() };
        Ok(CostRanges {
            period: [from, to],
            open_until: is_open.then_some(until),
            before: before.filter(|[from, to]| from < to),
            weeks,
        })
    }

    fn weeks(&self, begin: Utc, end: Utc) -> Vec<[Utc; 2]> {
        let today = Timestamp::from(end).to_zoned(self.zone.clone()).date();
        let edge = |weeks: i32| day_begin(today.checked_sub((7 * weeks).days()).ok()?, &self.zone);
        let weeks = (1..=WEEKS).map_while(|week| Some([edge(week)?, edge(week - 1)?]));
        let weeks: Vec<_> = weeks.take_while(|[from, _]| *from >= begin).collect();
        if weeks.len() < LEAST_WEEKS { Vec::new() } else { weeks }
    }

    /// Whether keys need their workloads: GPUs, holders and labels.
    pub fn needs_workloads(&self) -> bool {
        self.properties().any(|property| match property {
            BillProperty::Word(_) => {
                matches!(property.word(), Some("workload" | "gpu" | "uuid" | "user"))
            }
            BillProperty::Fact(_) | BillProperty::PodLabel(_) => true,
            BillProperty::Attribute(_) => false,
        })
    }

    /// Whether sums by tenant and hour are enough for its filters.
    pub fn filters_tenants_only(&self) -> bool {
        self.filters.properties().all(is_of_tenant)
    }

    /// Whether sums by tenant are enough for its groups.
    pub fn groups_tenants_only(&self) -> bool {
        self.group.properties().iter().all(is_of_tenant)
    }

    pub fn is_partial(&self) -> bool {
        self.visible != VisibleAccount::Everything
    }

    /// Of its groups and filters.
    pub fn properties(&self) -> impl Iterator<Item = &BillProperty> {
        self.group.properties().iter().chain(self.filters.properties())
    }

    pub(super) fn is_visible(&self, line: &LineView<'_>) -> bool {
        let label = |name: &str| line.labels.and_then(|labels| labels.get(name)).map(String::as_str);
        self.visible.shows(line.tenant, |fact| label(fact.label()))
    }
}

fn is_of_tenant(property: &BillProperty) -> bool {
    property.word() == Some("tenant") || matches!(property, BillProperty::Attribute(_))
}

fn remainder(name: String) -> Result<String, String> {
    if name.starts_with(RESERVED) {
        return Ok(name);
    }
    Err(format!("spread={name}: only remainders are divided among tenants; write one like __unallocated__"))
}

fn parse_top(text: &str) -> Result<usize, String> {
    let top = text.parse().ok().filter(|top| (1..=MOST).contains(top));
    top.ok_or_else(|| format!("top: {text:?} is no number of rows; write one from 1 to {MOST}"))
}

fn property(name: &str) -> Result<BillProperty, String> {
    name.parse().map_err(|_| {
        format!(
            "unknown parameter {name:?}; use period, group, spread, top, or a property to select by, such as tenant, node, model \
             or k8s_namespace_name (docs/costs-page.md)"
        )
    })
}

/// What a click on a row selects; nothing where it cannot be said.
pub(super) fn row_filter(
    property: &BillProperty,
    name: &str,
    qualifier: Option<&str>,
) -> Vec<(String, String)> {
    let one = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    match property.word() {
        // Unheld time has the name of its tenant in all groups.
        _ if name.starts_with(RESERVED) => one("tenant", name),
        Some("gpu") => one("gpu", qualifier.unwrap_or(name)),
        Some("workload") if qualifier.is_some() && name != NONE => {
            [one("workload", name), one("tenant", qualifier.unwrap_or_default())].concat()
        }
        _ => one(&property.asked(), name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000_000_000;

    fn at(text: &str) -> Utc {
        Utc::try_from(text.parse::<Timestamp>().unwrap()).unwrap()
    }

    fn parse(parameters: &[(&'static str, &str)]) -> Result<CostRequest, String> {
        let parameters = parameters.iter().map(|(name, value)| (*name, (*value).to_owned()));
        CostRequest::parse(parameters, TimeZone::UTC, at("2026-11-17T12:10:00Z"))
    }

    #[test]
    fn a_request_without_parameters_is_this_month_by_tenant_and_mistakes_are_named() {
        let request = parse(&[("group", ""), ("node", "")]).unwrap();
        assert_eq!(
            (request.period.name(), request.group.asked(), request.top),
            ("2026-11".into(), vec!["tenant".to_owned()], 200)
        );
        let request = parse(&[("node", "n1"), ("node", "n2"), ("attribute:owner", "ada")]).unwrap();
        assert_eq!(
            request.filters.asked(),
            [
                ("node".to_owned(), vec!["n1".to_owned(), "n2".to_owned()]),
                ("attribute:owner".to_owned(), vec!["ada".to_owned()])
            ]
        );
        assert!(!request.needs_workloads() && !request.filters_tenants_only());
        assert!(parse(&[("namespace", "a")]).unwrap().needs_workloads());
        let error = |parameters| parse(parameters).unwrap_err();
        assert_eq!(error(&[("period", "2026"), ("period", "2025")]), "period is given twice; give it once");
        assert_eq!(error(&[("node", "n1"), ("node", "n1")]), "node=n1 is given twice; give it once");
        for (name, value, told) in [
            ("grop", "x", "unknown parameter \"grop\"; use period, group, "),
            ("day", "2026-10-03", "give a day as period, as in 2026-10-03..2026-10-04"),
            ("spread", "ml", "only remainders are divided"),
            ("top", "0", "write one from 1 to 10000"),
            ("group", "team", "group: write tenant, "),
        ] {
            assert!(parse(&[(name, value)]).unwrap_err().contains(told), "{name}");
        }
    }

    #[test]
    fn an_open_period_is_compared_with_the_same_elapsed_time_to_the_quarter_hour() {
        let ranges = |period: &str, begin: &str| {
            let end = at("2026-11-17T12:10:00Z");
            parse(&[("period", period)]).unwrap().ranges([at(begin), end]).unwrap()
        };
        let open = ranges("this-month", "2026-01-01T00:00:00Z");
        assert_eq!(open.period, [at("2026-11-01T00:00:00Z"), at("2026-11-17T12:10:00Z")]);
        assert_eq!(open.open_until, Some(at("2026-12-01T00:00:00Z")));
        assert_eq!(open.before, Some([at("2026-10-01T00:00:00Z"), at("2026-10-17T12:00:00Z")]));
        assert_eq!(open.weeks.len(), 4);
        assert_eq!(open.weeks[0], [at("2026-11-10T00:00:00Z"), at("2026-11-17T00:00:00Z")]);
        assert_eq!(ranges("this-month", "2026-10-25T00:00:00Z").weeks.len(), 3);
        let young = ranges("this-month", "2026-10-28T00:00:00Z");
        assert_eq!((young.before, young.weeks.len()), (None, 0), "there is no account of it");
        let closed = ranges("last-month", "2026-01-01T00:00:00Z");
        assert_eq!(closed.before, Some([at("2026-09-01T00:00:00Z"), at("2026-10-01T00:00:00Z")]));
        assert_eq!((closed.open_until, closed.weeks.len()), (None, 0));
        let future = parse(&[("period", "2026-12")]).unwrap().ranges([Utc(0), at("2026-11-17T12:10:00Z")]);
        assert!(future.unwrap_err().contains("2026-12 is in the future"));
        let late = parse(&[]).unwrap().ranges([Utc(0), Utc(at("2026-11-01T00:00:00Z").0 - DAY)]).unwrap();
        assert_eq!(late.period, [at("2026-11-01T00:00:00Z"); 2], "nothing of the month is closed yet");
    }
}
