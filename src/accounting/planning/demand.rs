//! How many GPUs were held, used, idle and free in each hour of the week, how work began, and what the next week will be like if it
//! is as the last four.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::accounting::advice::AdviceSource;
use crate::accounting::billing::costs::{LocalHour, WEEK, local_hours};
use crate::accounting::billing::{ExactMoney, optional_money, time};
use crate::model::json::integer;
use crate::model::{DAY, HOUR, Money, Nanoseconds, QUARTER_HOUR, TimeSum, Utc};

/// The version of the JSON; fields are added without a new one.
const SCHEMA: u32 = 1;

/// So many weeks are looked at: four to expect the next week from, and four that are compared with what the four before each of
/// them made expect.
pub const WEEKS: usize = 8;

/// Of so many weeks the next one is the mean.
const MEAN_OF: usize = 4;

const TEN_MINUTES: u64 = 10 * 60 * 1_000_000_000;

/// An hour of the week is off-peak by use if at most this part of the GPUs of the busiest hour is used, and by price if a GPU-hour
/// costs at most so much of the dearest.
const OFF_PEAK_USE: f64 = 0.5;
const OFF_PEAK_PRICE: f64 = 0.99;

/// How many workloads are listed.
const MOST_WORKLOADS: usize = 50;

#[derive(Clone, Debug)]
pub struct DemandRequest {
    /// The only node pool that counts.
    pub pool: Option<String>,
    pub zone: TimeZone,
}

impl Default for DemandRequest {
    fn default() -> Self {
        Self { pool: None, zone: TimeZone::UTC }
    }
}

impl DemandRequest {
    /// Reads the parameters `pool` and `time_zone`; `zone` holds where none is given.
    ///
    /// # Errors
    /// Another parameter, one that is given twice, a zone that is not known.
    pub fn parse<'a>(pairs: impl Iterator<Item = (&'a str, String)>, zone: TimeZone) -> Result<Self, String> {
        let (mut pool, mut time_zone) = (None, None);
        for (name, value) in pairs {
            let place = match name {
                "pool" => &mut pool,
                "time_zone" => &mut time_zone,
                _ => return Err(format!("unknown parameter {name:?}; use pool and time_zone")),
            };
            if place.replace(value).is_some() {
                return Err(format!("{name} is given twice; give it once"));
            }
        }
        let asked = time_zone.filter(|name| !name.is_empty()).map(|name| {
            let unknown = |_| format!("time_zone: {name:?} is not known; write one like Europe/Zurich");
            TimeZone::get(&name).map_err(unknown)
        });
        Ok(Self { pool: pool.filter(|pool| !pool.is_empty()), zone: asked.transpose()?.unwrap_or(zone) })
    }

    /// Whether time of a node counts that is in that pool.
    pub fn counts(&self, pool: Option<&str>) -> bool {
        self.pool.as_deref().is_none_or(|wanted| pool == Some(wanted))
    }

    /// The whole weeks up to the last whole hour of an account.
    pub fn period(&self, settled_until: Utc) -> [Utc; 2] {
        let to = settled_until.floor(HOUR);
        [Utc(to.0.saturating_sub(WEEKS as u64 * 7 * DAY.0)), to]
    }
}

/// GPU time of a quarter hour.
#[derive(Clone, Copy, Debug, Default)]
pub struct DemandQuarter {
    /// By tenants.
    pub held: u64,
    pub used: u64,
    /// Held and not used.
    pub idle: u64,
    /// Held by nobody.
    pub unallocated: u64,
    /// All of it.
    pub all: u64,
    /// The time that has a price, and its money before terms.
    pub priced: u64,
    pub money: ExactMoney,
}

impl DemandQuarter {
    pub const fn add(&mut self, more: &Self) {
        self.held = self.held.saturating_add(more.held);
        self.used = self.used.saturating_add(more.used);
        self.idle = self.idle.saturating_add(more.idle);
        self.unallocated = self.unallocated.saturating_add(more.unallocated);
        self.all = self.all.saturating_add(more.all);
        self.priced = self.priced.saturating_add(more.priced);
        self.money = self.money.saturating_plus(more.money);
    }
}

/// A run that has ended, on one slot.
#[derive(Clone, Debug)]
pub struct DemandRun {
    /// That all runs of a recurring workload have.
    pub name: String,
    /// Of this run.
    pub workload: String,
    pub begin: Utc,
    /// None where it never used the slot.
    pub first_use: Option<Utc>,
}

#[derive(Debug)]
pub struct DemandDraft {
    request: DemandRequest,
    from: Utc,
    to: Utc,
    quarters: Vec<DemandQuarter>,
    runs: Vec<DemandRun>,
    pub currency: Option<String>,
    /// What could not be looked at.
    pub notes: Vec<String>,
}

impl DemandDraft {
    pub fn new(request: DemandRequest, [from, to]: [Utc; 2]) -> Self {
        let count = to.since(from).0.div_ceil(QUARTER_HOUR.0);
        let quarters = vec![DemandQuarter::default(); usize::try_from(count).unwrap_or_default()];
        Self { request, from, to, quarters, runs: Vec::new(), currency: None, notes: Vec::new() }
    }

    /// Adds time of the quarter hour that begins at `from`; what is outside the period does not count.
    pub fn add(&mut self, from: Utc, quarter: &DemandQuarter) {
        if self.from <= from
            && from < self.to
            && let Ok(place) = usize::try_from(from.since(self.from).0 / QUARTER_HOUR.0)
            && let Some(known) = self.quarters.get_mut(place)
        {
            known.add(quarter);
        }
    }

    pub fn add_run(&mut self, run: DemandRun) {
        if self.from <= run.begin && run.begin < self.to {
            self.runs.push(run);
        }
    }

    /// # Errors
    /// There is no time in the account.
    pub fn finish(mut self, source: AdviceSource) -> Result<Demand, String> {
        if self.quarters.iter().all(|quarter| quarter.all == 0) {
            return Err(match &self.request.pool {
                Some(pool) => format!("no node of the last eight weeks is in the pool {pool:?}"),
                None => "there is no whole hour in the account yet".to_owned(),
            });
        }
        let samples = self.samples();
        let mut hours: Vec<DemandHour> =
            samples.iter().enumerate().map(|(place, one)| one.hour(place)).collect();
        if self.currency.is_none() {
            // Amounts of several currencies are no price.
            hours.iter_mut().for_each(|hour| hour.price = None);
        }
        mark_off_peak(&mut hours);
        let weeks = WeeksOfHours::of(&samples);
        for (hour, forecast) in hours.iter_mut().zip(weeks.forecasts(0)) {
            hour.expected = forecast;
        }
        let hits = weeks.back_test();
        let workloads = self.starts(&mut hours);
        let full: f64 = hours.iter().map(|hour| hour.full).sum::<f64>() / WEEK as f64;
        if full >= 0.005 {
            self.notes.push(format!(
                "in {:.0} % of the time all GPUs were held: there may have been more demand than was met",
                full * 100.0
            ));
        }
        if weeks.count < MEAN_OF {
            self.notes.push(format!(
                "{} whole weeks are known, and {MEAN_OF} are needed to expect the next one",
                weeks.count
            ));
        }
        self.notes.push("runs that have not ended are not in the starts".to_owned());
        Ok(Demand {
            schema: SCHEMA,
            source,
            pool: self.request.pool,
            time_zone: self.request.zone.iana_name().map(str::to_owned),
            from: self.from,
            to: self.to,
            currency: self.currency,
            weeks: weeks.count,
            hours,
            tested: hits[1],
            hits: hits[0],
            workloads,
            notes: self.notes,
        })
    }

    fn samples(&self) -> Vec<HourSamples> {
        let mut samples = vec![HourSamples::default(); WEEK];
        for hour in local_hours([self.from, self.to], &self.request.zone) {
            let LocalHour { begin, end, .. } = hour;
            let mut at = begin.floor(QUARTER_HOUR);
            while at < end {
                let place = usize::try_from(at.since(self.from).0 / QUARTER_HOUR.0).unwrap_or(usize::MAX);
                if let Some(quarter) = self.quarters.get(place).filter(|quarter| quarter.all > 0) {
                    let week = self.to.since(at.plus(Nanoseconds(1))).0 / (7 * DAY.0);
                    samples[hour.of_week()].quarters.push((week, *quarter));
                }
                at = at.plus(QUARTER_HOUR);
            }
        }
        samples
    }

    /// Starts by hour of the week, and by workload.
    fn starts(&mut self, hours: &mut [DemandHour]) -> Vec<WorkloadStarts> {
        self.runs.sort_by(|one, other| (one.begin, &one.workload).cmp(&(other.begin, &other.workload)));
        let mut windows = BTreeMap::<u64, u32>::new();
        let mut workloads = BTreeMap::<&str, StartsDraft>::new();
        for run in &self.runs {
            *windows.entry(run.begin.0 / TEN_MINUTES).or_default() += 1;
            let known = workloads.entry(&run.name).or_default();
            known.runs.insert((run.begin, &run.workload));
            *known.windows.entry(run.begin.0 / TEN_MINUTES).or_default() += 1;
            if let Some(first) = run.first_use {
                known.waits.push(first.since(run.begin));
            }
        }
        for (window, starts) in windows {
            let begin = Utc(window * TEN_MINUTES);
            let local = local_hours([begin, begin.plus(Nanoseconds(1))], &self.request.zone);
            if let Some(hour) = local.first().and_then(|hour| hours.get_mut(hour.of_week())) {
                hour.starts += starts;
                hour.most_starts = hour.most_starts.max(starts);
            }
        }
        let mut listed: Vec<WorkloadStarts> =
            workloads.into_iter().map(|(name, starts)| starts.finish(name)).collect();
        listed.sort_by(|one, other| other.waited.cmp(&one.waited).then_with(|| one.name.cmp(&other.name)));
        if listed.len() > MOST_WORKLOADS {
            self.notes.push(format!("{} more workloads began", listed.len() - MOST_WORKLOADS));
            listed.truncate(MOST_WORKLOADS);
        }
        listed
    }
}

#[derive(Default)]
struct StartsDraft<'a> {
    runs: BTreeSet<(Utc, &'a str)>,
    windows: BTreeMap<u64, u32>,
    waits: Vec<Nanoseconds>,
}

impl StartsDraft<'_> {
    fn finish(mut self, name: &str) -> WorkloadStarts {
        self.waits.sort_unstable();
        let at = |part| rank(&self.waits, part).copied();
        WorkloadStarts {
            name: name.to_owned(),
            runs: self.runs.len(),
            most_starts: self.windows.values().copied().max().unwrap_or_default(),
            wait_p50: at(50),
            wait_p95: at(95),
            waited: self.waits.iter().copied().sum(),
        }
    }
}

/// The quarter hours of an hour of the week, each with how many weeks it is ago.
#[derive(Clone, Debug, Default)]
struct HourSamples {
    quarters: Vec<(u64, DemandQuarter)>,
}

impl HourSamples {
    fn series(&self, of: impl Fn(&DemandQuarter) -> u64) -> DemandSeries {
        let mut gpus: Vec<f64> = self.quarters.iter().map(|(_, one)| gpus(of(one))).collect();
        gpus.sort_by(f64::total_cmp);
        let mean = gpus.iter().sum::<f64>() / gpus.len().max(1) as f64;
        DemandSeries { mean, p95: rank(&gpus, 95).copied().unwrap_or_default() }
    }

    fn hour(&self, place: usize) -> DemandHour {
        let last_week = self.quarters.iter().filter(|(ago, _)| *ago == 0);
        let (priced, money) = last_week.fold((0_u64, ExactMoney::ZERO), |(time, money), (_, one)| {
            (time.saturating_add(one.priced), money.saturating_plus(one.money))
        });
        let price = money.parts().checked_div(priced.into()).map(Money);
        // Less than a hundredth of the GPUs was free.
        let is_full = |one: &DemandQuarter| one.held > 0 && one.unallocated < one.all / 100;
        let full = self.quarters.iter().filter(|(_, one)| is_full(one)).count();
        DemandHour {
            weekday: place / 24 + 1,
            hour: place % 24,
            quarters: self.quarters.len(),
            held: self.series(|one| one.held),
            used: self.series(|one| one.used),
            idle: self.series(|one| one.idle),
            unallocated: self.series(|one| one.unallocated),
            price,
            full: full as f64 / self.quarters.len().max(1) as f64,
            starts: 0,
            most_starts: 0,
            off_peak_use: false,
            off_peak_price: false,
            expected: None,
        }
    }
}

/// GPUs held on average, by hour of the week and week; the last week first.
struct WeeksOfHours {
    means: Vec<[Option<f64>; WEEKS]>,
    /// Weeks of which most hours are known.
    count: usize,
}

impl WeeksOfHours {
    fn of(samples: &[HourSamples]) -> Self {
        let means: Vec<[Option<f64>; WEEKS]> = samples
            .iter()
            .map(|hour| {
                std::array::from_fn(|week| {
                    let own = hour.quarters.iter().filter(|(ago, _)| usize::try_from(*ago) == Ok(week));
                    let held: Vec<u64> = own.map(|(_, one)| one.held).collect();
                    (!held.is_empty())
                        .then(|| held.iter().map(|held| gpus(*held)).sum::<f64>() / held.len() as f64)
                })
            })
            .collect();
        let is_known =
            |week: &usize| means.iter().filter(|hour| hour[*week].is_some()).count() * 10 >= WEEK * 9;
        let count = (0..WEEKS).take_while(is_known).count();
        Self { means, count }
    }

    /// What the four weeks from `week` on make expect of the week before them in this order, which came after them.
    fn forecasts(&self, week: usize) -> Vec<Option<HourForecast>> {
        let is_known = week + MEAN_OF <= self.count;
        let of_hour = |hour: &[Option<f64>; WEEKS]| {
            let known: Vec<f64> = hour.get(week..week + MEAN_OF)?.iter().copied().flatten().collect();
            let first = *known.first().filter(|_| is_known)?;
            let range = known.iter().fold([first, first], |[low, high], one| [low.min(*one), high.max(*one)]);
            let mean = known.iter().sum::<f64>() / known.len() as f64;
            Some(HourForecast { mean, lowest: range[0], highest: range[1] })
        };
        self.means.iter().map(of_hour).collect()
    }

    /// Of the weeks that have four before them: how many hours were within the range of these, and how many there are.
    fn back_test(&self) -> [usize; 2] {
        let mut counts = [0, 0];
        for week in 0..self.count.saturating_sub(MEAN_OF) {
            for (hour, forecast) in self.means.iter().zip(self.forecasts(week + 1)) {
                let Some((actual, forecast)) = hour[week].zip(forecast) else { continue };
                counts[1] += 1;
                counts[0] += usize::from((forecast.lowest..=forecast.highest).contains(&actual));
            }
        }
        counts
    }
}

fn gpus(time: u64) -> f64 {
    time as f64 / QUARTER_HOUR.0 as f64
}

/// The least of sorted values that so many percent of them do not exceed.
fn rank<T>(sorted: &[T], percent: usize) -> Option<&T> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1))
}

fn mark_off_peak(hours: &mut [DemandHour]) {
    let busiest = hours.iter().map(|hour| hour.used.mean).fold(0.0, f64::max);
    let dearest = hours.iter().filter_map(|hour| hour.price).max();
    for hour in hours.iter_mut().filter(|hour| hour.quarters > 0) {
        hour.off_peak_use = busiest > 0.0 && hour.used.mean <= busiest * OFF_PEAK_USE;
        let of_dearest = hour.price.zip(dearest).map(|(price, most)| price.0 as f64 / most.0.max(1) as f64);
        hour.off_peak_price = of_dearest.is_some_and(|part| part <= OFF_PEAK_PRICE);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    pub schema: u32,
    pub source: AdviceSource,
    pub pool: Option<String>,
    pub time_zone: Option<String>,
    #[serde(with = "time")]
    pub from: Utc,
    #[serde(with = "time")]
    pub to: Utc,
    pub currency: Option<String>,
    /// How many whole weeks are known, the last ones.
    pub weeks: usize,
    /// From Monday at 00.
    pub hours: Vec<DemandHour>,
    /// Hours of past weeks of which the four weeks before made expect something, and those that were within its range.
    pub tested: usize,
    pub hits: usize,
    /// The longest wait first.
    pub workloads: Vec<WorkloadStarts>,
    pub notes: Vec<String>,
}

/// An hour of the week, in the mean of all weeks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandHour {
    /// From 1, Monday.
    pub weekday: usize,
    pub hour: usize,
    /// How many quarter hours are known of it.
    pub quarters: usize,
    /// By tenants.
    pub held: DemandSeries,
    pub used: DemandSeries,
    /// Held and not used.
    pub idle: DemandSeries,
    /// Held by nobody.
    pub unallocated: DemandSeries,
    /// Of a GPU-hour in the last week, before terms; none without a price.
    #[serde(with = "optional_money")]
    pub price: Option<Money>,
    /// The part of its time in which nearly no GPU was free.
    pub full: f64,
    /// GPUs and instances on which a run began, and the most of them in ten minutes.
    pub starts: u32,
    pub most_starts: u32,
    pub off_peak_use: bool,
    pub off_peak_price: bool,
    pub expected: Option<HourForecast>,
}

/// GPUs over the quarter hours of an hour of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandSeries {
    pub mean: f64,
    pub p95: f64,
}

/// GPUs that will be held: the mean of that hour in the last four weeks, the least and the most of these.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HourForecast {
    pub mean: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// How runs of a workload began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadStarts {
    pub name: String,
    pub runs: usize,
    /// The most GPUs and instances on which it began in ten minutes: the size of a warm pool.
    pub most_starts: u32,
    /// From holding a slot to its first use; none where it never used one.
    #[serde(rename = "wait_p50_ns", with = "crate::model::json::optional_integer")]
    pub wait_p50: Option<Nanoseconds>,
    #[serde(rename = "wait_p95_ns", with = "crate::model::json::optional_integer")]
    pub wait_p95: Option<Nanoseconds>,
    /// All of it together: what a warm pool would have saved.
    #[serde(rename = "waited_ns", with = "integer")]
    pub waited: TimeSum,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// Monday 2026-09-28, 00:00.
    const MONDAY: u64 = 1_790_553_600_000_000_000;

    /// Eight weeks of ten GPUs: eight are held from 22 to 06 on weekdays, else two, in odd weeks one more by night.
    fn demand(weeks: u64, change: impl Fn(u64, u64) -> u64) -> Demand {
        let (from, to) = (Utc(MONDAY), Utc(MONDAY + WEEKS as u64 * 7 * DAY.0));
        let request = DemandRequest { pool: None, zone: TimeZone::UTC };
        assert_eq!(request.period(to), [from, to]);
        let mut draft = DemandDraft::new(request, [from, to]);
        draft.currency = Some("EUR".to_owned());
        for quarter in 0..WEEKS as u64 * 7 * 96 {
            let (week, hour) = (quarter / 672, quarter / 4 % 168);
            if week < WEEKS as u64 - weeks {
                continue;
            }
            let is_night = hour / 24 < 5 && !(6..22).contains(&(hour % 24));
            let held = if is_night { 8 + week % 2 } else { 2 } + change(week, hour);
            let of = |gpus: u64| gpus * QUARTER_HOUR.0;
            let price = if is_night { 1 } else { 2 } * 1_000_000_000;
            let all = DemandQuarter {
                held: of(held),
                used: of(held - 1),
                idle: of(1),
                unallocated: of(10 - held),
                all: of(10),
                priced: of(10),
                money: ExactMoney::of_time(price, of(10)),
            };
            draft.add(Utc(from.0 + quarter * QUARTER_HOUR.0), &all);
        }
        draft.finish(AdviceSource::default()).unwrap()
    }

    #[test]
    fn the_nightly_batch_and_the_hours_off_peak_are_found() {
        let demand = demand(8, |_, _| 0);
        assert_eq!((demand.weeks, demand.hours.len()), (8, WEEK));
        let (night, noon) = (&demand.hours[24 + 2], &demand.hours[24 + 12]);
        assert_eq!((night.held.mean, night.held.p95, night.used.mean), (8.5, 9.0, 7.5));
        assert_eq!((noon.held.mean, noon.unallocated.mean), (2.0, 8.0));
        assert_eq!((night.off_peak_use, night.off_peak_price), (false, true));
        assert_eq!((noon.off_peak_use, noon.off_peak_price), (true, false));
        assert_eq!((night.price, noon.price), (Some(Money(1_000_000_000)), Some(Money(2_000_000_000))));
        let expected = night.expected.unwrap();
        assert_eq!((expected.mean, expected.lowest, expected.highest), (8.5, 8.0, 9.0));
        assert_eq!((demand.hits, demand.tested), (4 * WEEK, 4 * WEEK));
    }

    #[test]
    fn a_week_that_was_not_as_those_before_is_no_hit() {
        // One more GPU on the Sunday of the last week.
        let demand = demand(8, |week, hour| u64::from(week == 7 && hour >= 144));
        assert_eq!((demand.hits, demand.tested), (4 * WEEK - 24, 4 * WEEK));
        assert_eq!(demand.hours[150].expected.map(|one| [one.lowest, one.highest]), Some([2.0, 3.0]));
    }

    #[test]
    fn of_fewer_than_four_weeks_nothing_is_expected() {
        let demand = demand(3, |_, _| 0);
        assert_eq!((demand.weeks, demand.tested), (3, 0));
        assert!(demand.hours.iter().all(|hour| hour.expected.is_none()));
        assert!(
            demand.notes.iter().any(|note| note.starts_with("3 whole weeks are known, and 4 are needed"))
        );
    }

    #[test]
    fn the_time_to_the_first_use_is_told_by_workload_and_by_ten_minutes() {
        let (from, to) = (Utc(MONDAY), Utc(MONDAY + 7 * DAY.0));
        let mut draft = DemandDraft::new(DemandRequest::default(), [from, to]);
        draft.add(from, &DemandQuarter { all: 1, ..DemandQuarter::default() });
        let second = 1_000_000_000;
        for run in 0..20_u64 {
            // Each on two slots, of which one is never used.
            let begin = Utc(from.0 + run * TEN_MINUTES);
            for first in [Some(begin.plus(Nanoseconds((run + 1) * second))), None] {
                let (name, workload) = ("pod:ml/train".to_owned(), format!("pod:{run}"));
                draft.add_run(DemandRun { name, workload, begin, first_use: first });
            }
        }
        let demand = draft.finish(AdviceSource::default()).unwrap();
        let [of] = &demand.workloads[..] else { panic!("{:?}", demand.workloads) };
        assert_eq!((of.runs, of.most_starts), (20, 2));
        assert_eq!([of.wait_p50, of.wait_p95].map(|wait| wait.unwrap().0 / second), [10, 19]);
        assert_eq!(of.waited.0, 210 * u128::from(second));
        assert_eq!((demand.hours[0].starts, demand.hours[0].most_starts, demand.hours[3].starts), (12, 2, 4));
    }

    #[test]
    fn a_pool_that_no_node_is_in_is_an_error() {
        let request = DemandRequest::parse([("pool", "a100".to_owned())].into_iter(), TimeZone::UTC).unwrap();
        assert!(!request.counts(Some("h100")) && request.counts(Some("a100")) && !request.counts(None));
        let draft = DemandDraft::new(request, [Utc(0), Utc(DAY.0)]);
        assert!(draft.finish(AdviceSource::default()).unwrap_err().contains("in the pool \"a100\""));
        let parse =
            |name, value: &str| DemandRequest::parse([(name, value.to_owned())].into_iter(), TimeZone::UTC);
        assert_eq!(parse("time_zone", "Asia/Kathmandu").unwrap().zone.iana_name(), Some("Asia/Kathmandu"));
        assert!(parse("time_zone", "Mars").is_err() && parse("node", "").is_err());
    }
}
