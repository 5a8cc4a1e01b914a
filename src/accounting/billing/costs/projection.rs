//! What an open period will have cost: what is spent, and for each hour that is left what such an hour of the week cost in the
//! last whole weeks.

use jiff::tz::TimeZone;

use super::calendar::{LocalHour, WEEK, local_hours};
use super::request::CostRanges;
use crate::accounting::billing::{ExactMoney, MoneyOverflow};
use crate::model::Money;

/// Nanoseconds of each hour of the week. In a week in which clocks are set, an hour is missing or comes twice.
#[derive(Clone, Debug)]
pub(super) struct WeekHours([u64; WEEK]);

/// Money by week and hour of week, of the last weeks.
#[derive(Clone, Debug, Default)]
pub(super) struct Forecast(Vec<[ExactMoney; WEEK]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Projection {
    pub(super) amount: Money,
    /// If each week were like the one of the last weeks in which this cost least, and most.
    pub(super) lowest: Money,
    pub(super) highest: Money,
}

impl WeekHours {
    pub(super) fn of(hours: &[LocalHour]) -> Self {
        let mut lengths = [0; WEEK];
        for hour in hours {
            lengths[hour.of_week()] += hour.end.since(hour.begin).0;
        }
        Self(lengths)
    }

    /// The length of that hour of the week.
    pub(super) const fn at(&self, place: usize) -> u64 {
        self.0[place]
    }
}

impl Forecast {
    pub(super) fn add(&mut self, week: usize, hour: usize, money: ExactMoney) -> Result<(), MoneyOverflow> {
        if self.0.len() <= week {
            self.0.resize(week + 1, [ExactMoney::ZERO; WEEK]);
        }
        let sum = &mut self.0[week][hour];
        *sum = sum.plus(money)?;
        Ok(())
    }

    /// The projection of a period in which so much is spent; none where it is over or there are too few weeks. It is of whole
    /// nano-units, since it is no account.
    pub(super) fn project(
        &self,
        spent: ExactMoney,
        ranges: &CostRanges,
        zone: &TimeZone,
    ) -> Option<Projection> {
        let until = ranges.open_until.filter(|_| !self.0.is_empty() && !ranges.weeks.is_empty())?;
        let left = WeekHours::of(&local_hours([ranges.period[1], until], zone));
        let weeks: Vec<Week> = ranges
            .weeks
            .iter()
            .enumerate()
            .map(|(place, week)| Week {
                lengths: WeekHours::of(&local_hours(*week, zone)),
                money: self.0.get(place).copied().unwrap_or([ExactMoney::ZERO; WEEK]),
            })
            .collect();
        let all: i128 = (0..WEEK).map(|hour| cost(&weeks, hour, left.at(hour))).sum();
        let by_week = weeks.iter().map(|week| -> i128 {
            let one = std::slice::from_ref(week);
            // An hour that the week does not have is as in the other weeks.
            let cost_of =
                |hour| cost(if week.lengths.at(hour) > 0 { one } else { &weeks }, hour, left.at(hour));
            (0..WEEK).map(cost_of).sum()
        });
        let by_week: Vec<i128> = by_week.collect();
        let of = |more: i128| Money(spent.floor().0.saturating_add(more));
        let (lowest, highest) = (by_week.iter().min().copied()?, by_week.iter().max().copied()?);
        Some(Projection { amount: of(all), lowest: of(lowest), highest: of(highest) })
    }
}

struct Week {
    lengths: WeekHours,
    money: [ExactMoney; WEEK],
}

/// Nano-units of a time at what that hour of the weeks cost.
fn cost(weeks: &[Week], hour: usize, time: u64) -> i128 {
    let nano: i128 = weeks.iter().map(|week| week.money[hour].floor().0).sum();
    let length: i128 = weeks.iter().map(|week| i128::from(week.lengths.at(hour))).sum();
    if length == 0 { 0 } else { nano.saturating_mul(time.into()) / length }
}
