//! Makes the report of what a draft added up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;

use super::calendar::{CostPeriod, WEEK, local_hours};
use super::command::{command, focus_command};
use super::draft::{CostDraft, DaySums, DraftRow, REST, TenantSums};
use super::key::{CostSums, RoundedMoney};
use super::projection::{Projection, WeekHours};
use super::report::{
    AskedCosts, AskedFilter, ComparedPeriod, CostDay, CostFacts, CostHour, CostReport, CostShares, DayRow,
    ProjectedCosts, ReportPeriod,
};
use super::request::{CostRequest, row_filter};
use super::row::{BudgetUse, CostAmounts, CostBefore, CostRow, ShownColumn, ratio, shown};
use crate::accounting::billing::{
    BillProperty, ExactMoney, GroupValue, MoneyOverflow, SharedNames, TenantBudget, local_time, print_money,
    round_together, zone_name,
};
use crate::model::{HolderId, Money, RESERVED, Utc};

/// Groups that have a name in the days beside the remainders; the others are one.
const NAMED_IN_DAYS: usize = 11;

/// A row before it is rounded.
struct OpenRow {
    group: u32,
    key: Vec<(u32, String)>,
    row: CostRow,
    draft: DraftRow,
}

impl CostDraft<'_> {
    /// The report of what was added.
    ///
    /// # Errors
    /// A sum of money does not fit.
    pub fn finish(mut self, facts: CostFacts) -> Result<CostReport, MoneyOverflow> {
        let groups = self.take_groups();
        let currency = facts.currency.as_deref();
        let compares_money = currency.is_some() && facts.compares_money;
        let mut open = self.open_rows(&groups, currency.is_some());
        let days = self.cost_days(&open, currency.is_some());
        let others = open.split_off(open.len().min(self.request.top));
        let rest = self.rest_of(others)?;
        let has_rest = rest.is_some();
        open.extend(rest);
        let (mut rows, total) = self.close_rows(open, currency.is_some(), compares_money)?;
        let budget = self.set_budgets(&mut rows, currency);
        let rest = if has_rest { rows.pop() } else { None };
        let spent = total.amounts.sums.money;
        let projection = self.forecast.project(spent, self.ranges, &self.request.zone);
        let is_open = self.ranges.open_until.is_some();
        Ok(CostReport {
            schema: 1,
            period: self.period(self.request.period, self.ranges.period, self.ranges.open_until),
            request: AskedCosts::of(self.request),
            command: command(self.request, &facts.options, is_open),
            focus_command: focus_command(self.request, &facts.options, is_open),
            partial: self.request.is_partial(),
            before: self.compared(compares_money),
            shares: self.shares(),
            budget,
            projection: projection.filter(|_| compares_money).map(ProjectedCosts::of),
            groups: self.request.group.asked(),
            properties: self.properties(),
            total,
            rows,
            rest,
            days,
            hours: self.cost_hours(),
            source: facts.source,
            currency: facts.currency,
            notices: facts.notices,
            statement: facts.statement,
        })
    }

    /// The rows in the order of the report: by day, else what costs most first, and remainders last.
    fn open_rows(&self, groups: &[Vec<GroupValue>], has_money: bool) -> Vec<OpenRow> {
        let names = SharedNames::of(groups.iter().map(Vec::as_slice));
        let rows = self.rows.iter().filter(|(_, draft)| !draft.sums.is_nothing());
        let rows = rows.map(|(&(group, day), draft)| {
            let (key, mut row) = self.named_row(&groups[group as usize], day, &names);
            row.title = self.titles.get(&group).cloned();
            OpenRow { group, key, row, draft: draft.clone() }
        });
        let mut rows: Vec<OpenRow> = rows.collect();
        let amount = |sums: &CostSums| match has_money {
            true => sums.money.parts(),
            false => sums.held().cast_signed(),
        };
        if self.request.group.needs_days() {
            rows.sort_by(|one, other| one.key.cmp(&other.key));
        } else {
            rows.sort_by_cached_key(|row| {
                (row.row.remainder, Reverse(amount(&row.draft.sums)), row.key.clone())
            });
        }
        rows
    }

    fn named_row(
        &self,
        values: &[GroupValue],
        day: Option<Date>,
        names: &SharedNames<'_>,
    ) -> (Vec<(u32, String)>, CostRow) {
        let (mut row, mut key) = (CostRow::default(), Vec::new());
        let mut values = values.iter().enumerate();
        for property in self.request.group.properties() {
            let (named, filter) = if let Some(day) = day.filter(|_| property.word() == Some("day")) {
                let next = day.tomorrow().unwrap_or(day);
                ((0, day.to_string()), vec![("period".to_owned(), format!("{day}..{next}"))])
            } else {
                let Some((place, value)) = values.next() else { continue };
                let filter = row_filter(property, &value.name, value.qualifier.as_deref());
                (names.resolve(place, value), filter)
            };
            row.remainder |= named.1.starts_with(RESERVED);
            if property.word() == Some("tenant") {
                row.set_attributes(self.tenants.attributes.get(&named.1));
            }
            row.values.push(named.1.clone());
            row.filter.get_or_insert_default().extend(filter);
            key.push(named);
        }
        row.name = row.values.join(", ");
        (key, row)
    }

    /// The rows with what they show, and their total.
    fn close_rows(
        &self,
        open: Vec<OpenRow>,
        has_money: bool,
        compares_money: bool,
    ) -> Result<(Vec<CostRow>, CostRow), MoneyOverflow> {
        let rounded = self.round(&open, has_money)?;
        let amounts: Vec<CostAmounts> = open
            .iter()
            .zip(rounded)
            .map(|(row, rounded)| CostAmounts {
                sums: row.draft.sums,
                of_tenants: row.draft.of_tenants,
                rounded,
            })
            .collect();
        let mut total = CostRow { name: "total".to_owned(), ..CostRow::default() };
        for one in &amounts {
            total.amounts.sums.add(&one.sums)?;
            total.amounts.rounded.add(&one.rounded);
        }
        let before = before_of(&open, compares_money);
        let mut shown = shown(&amounts).into_iter();
        let mut rows = Vec::new();
        for ((open, amounts), before) in open.into_iter().zip(amounts).zip(before) {
            let shown = shown.next().unwrap_or_default();
            rows.push(CostRow { amounts, shown, before, ..open.row });
        }
        total.shown = shown.next().unwrap_or_default();
        Ok((rows, total))
    }

    /// Rounds what rows have in money together.
    fn round(&self, rows: &[OpenRow], has_money: bool) -> Result<Vec<RoundedMoney>, MoneyOverflow> {
        let round = |of: fn(&CostSums) -> Option<ExactMoney>| {
            let exact: Vec<_> = rows.iter().map(|row| of(&row.draft.sums)).collect();
            let known: Vec<_> = exact.iter().map(|one| one.unwrap_or_default()).collect();
            let rounded = round_together(&known)?;
            let rounded = exact.into_iter().zip(rounded).map(|(exact, rounded)| exact.map(|_| rounded));
            Ok::<_, MoneyOverflow>(rounded.collect::<Vec<_>>())
        };
        let money = round(|sums| Some(sums.money))?.into_iter().zip(round(|sums| sums.energy_money)?);
        let others = round(|sums| sums.emissions)?.into_iter().zip(self.divide_spread(rows)?);
        let rounded = money.zip(others).map(|((money, energy), (emissions, spread))| RoundedMoney {
            money: money.filter(|_| has_money),
            energy: energy.filter(|_| has_money),
            emissions,
            spread: spread.filter(|_| has_money),
        });
        Ok(rounded.collect())
    }

    /// The share of each row in the remainders that are divided, as `bill --spread` has it; that of lines that are not selected
    /// goes to no row.
    fn divide_spread(&self, rows: &[OpenRow]) -> Result<Vec<Option<Money>>, MoneyOverflow> {
        if self.request.spread.is_empty() || self.spread.charged == 0 {
            return Ok(vec![None; rows.len()]);
        }
        let of_rows: u128 = rows.iter().map(|row| row.draft.spread.charged).sum();
        let weights = rows.iter().map(|row| row.draft.spread.charged);
        let weights = weights.chain([self.spread.charged.saturating_sub(of_rows)]);
        // Weights have 64 bits; what is cut off of larger ones is less than the last digit of money.
        let excess = (u128::BITS - self.spread.charged.leading_zeros()).saturating_sub(u64::BITS - 1);
        let weights = weights.map(|time| u64::try_from(time >> excess).unwrap_or(u64::MAX));
        let shares = round_together(&self.spread.divided.divide(&weights.collect::<Vec<_>>())?)?;
        let own: Vec<ExactMoney> = rows.iter().map(|row| row.draft.spread.divided).collect();
        let own = round_together(&own)?;
        Ok(shares.into_iter().zip(own).map(|(share, own)| Some(Money(share.0 - own.0))).collect())
    }

    fn properties(&self) -> Vec<String> {
        let tenants = self.tenant_sums.keys();
        let attributes = tenants.filter_map(|tenant| self.tenants.attributes.get(&**tenant)).flatten();
        let names: BTreeSet<&str> = attributes.map(|(name, _)| name.as_str()).collect();
        let attributes = names.into_iter().map(|name| BillProperty::Attribute(name.to_owned()).asked());
        BillProperty::words().map(str::to_owned).chain(attributes).collect()
    }

    fn shares(&self) -> CostShares {
        let (mut all, mut of_tenants) = (TenantSums::default(), TenantSums::default());
        let (mut unallocated, mut unavailable) = (0, 0);
        for (name, sums) in &self.tenant_sums {
            all.held += sums.held;
            unavailable += sums.unavailable;
            match &**name {
                HolderId::UNALLOCATED => unallocated += sums.held,
                name if name.starts_with(RESERVED) => {}
                _ => {
                    of_tenants.held += sums.held;
                    of_tenants.idle += sums.idle;
                }
            }
        }
        let share = |part: u128, whole: u128| ratio(part.cast_signed(), whole.cast_signed());
        CostShares {
            idle: share(of_tenants.idle, of_tenants.held),
            unallocated: share(unallocated, all.held).filter(|_| !self.request.is_partial()),
            unavailable: share(unavailable, all.held),
        }
    }

    /// Sets the budgets of rows by tenant, and returns that of all tenants that have one. A budget is of a whole month of a
    /// tenant.
    fn set_budgets(&self, rows: &mut [CostRow], currency: Option<&str>) -> Option<BudgetUse> {
        let currency = currency?;
        if !self.request.period.is_month() || !self.request.filters_tenants_only() {
            return None;
        }
        let budget = |tenant: &str| -> Option<&TenantBudget> {
            self.tenants.budgets.get(tenant).filter(|budget| *budget.currency == *currency)
        };
        if self.request.group.asked() == ["tenant"] {
            for row in rows.iter_mut() {
                let spent = row.amounts.rounded.money.unwrap_or_default();
                row.budget = row
                    .values
                    .first()
                    .and_then(|name| budget(name))
                    .map(|of| BudgetUse::of(of.amount, spent));
            }
        }
        let (mut all, mut spent) = (Money(0), ExactMoney::ZERO);
        for (tenant, sums) in &self.tenant_sums {
            if let Some(budget) = budget(tenant) {
                all += budget.amount;
                spent = spent.saturating_plus(sums.money);
            }
        }
        (all.0 > 0).then(|| BudgetUse::of(all, spent.floor()))
    }

    /// By day, the rows that cost most by name, and the others as one. A report by day has its other property there.
    fn cost_days(&self, rows: &[OpenRow], has_money: bool) -> Vec<CostDay> {
        let (mut names, mut count) = (BTreeMap::<u32, Option<String>>::new(), 0);
        // Of two properties, a remainder has a row for each value of the other.
        let is_single =
            self.request.group.properties().iter().filter(|one| one.word() != Some("day")).count() == 1;
        for row in rows {
            let is_remainder = is_single && row.row.remainder;
            let is_named = is_remainder || count < NAMED_IN_DAYS;
            let day =
                self.request.group.properties().iter().position(|property| property.word() == Some("day"));
            let values = row.row.values.iter().enumerate().filter(|(place, _)| Some(*place) != day);
            let name = values.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
            let name = if name.is_empty() { "total".to_owned() } else { name };
            names.entry(row.group).or_insert_with(|| {
                count += usize::from(!is_remainder);
                is_named.then_some(name)
            });
        }
        let order: Vec<u32> = rows.iter().map(|row| row.group).collect();
        let mut days = BTreeMap::<Date, Vec<(usize, Option<String>, DaySums)>>::new();
        let places: BTreeMap<u32, usize> =
            order.iter().enumerate().rev().map(|(place, group)| (*group, place)).collect();
        for (&(group, day), sums) in &self.days {
            let name = names.get(&group).cloned().flatten();
            let place = if name.is_some() { places.get(&group).copied().unwrap_or(0) } else { usize::MAX };
            days.entry(day).or_default().push((place, name, *sums));
        }
        days.into_iter()
            .map(|(day, rows)| CostDay { day: day.to_string(), rows: day_rows(rows, has_money) })
            .collect()
    }

    fn cost_hours(&self) -> Option<Vec<CostHour>> {
        let hours = self.hours.as_ref()?;
        let lengths = WeekHours::of(&local_hours(self.ranges.period, &self.request.zone));
        let of_week = (0..WEEK).map(|place| {
            let average = |time: u128| ratio(time.cast_signed(), lengths.at(place).into()).unwrap_or(0.0);
            let sums = &hours[place];
            CostHour {
                weekday: place / 24 + 1,
                hour: place % 24,
                held: average(sums.held.0),
                used: average(sums.used.0),
                idle: average(sums.idle.0),
            }
        });
        Some(of_week.collect())
    }

    fn period(&self, period: CostPeriod, [from, to]: [Utc; 2], open_until: Option<Utc>) -> ReportPeriod {
        let zone = &self.request.zone;
        ReportPeriod {
            name: period.name(),
            from: local_time(from, zone),
            to: local_time(to, zone),
            asked_to: open_until.map(|until| local_time(until, zone)),
            time_zone: zone_name(zone, to),
            open: open_until.is_some(),
            hours: to.since(from).0 / 3_600_000_000_000,
        }
    }

    fn compared(&self, has_money: bool) -> Option<ComparedPeriod> {
        let (range, period) = (self.ranges.before?, self.request.period.before()?);
        let money = |exact: ExactMoney| has_money.then(|| exact.floor());
        let rounded = RoundedMoney {
            money: money(self.before.money),
            energy: self.before.energy_money.and_then(money),
            emissions: self.before.emissions.map(ExactMoney::floor),
            spread: None,
        };
        let amounts = CostAmounts { sums: self.before, rounded, ..CostAmounts::default() };
        let shown = shown(&[amounts]).pop().unwrap_or_default();
        let total = CostRow { name: "total".to_owned(), amounts, shown, ..CostRow::default() };
        let end = period.bounds(&self.request.zone).map(|[_, end]| end).filter(|end| *end > range[1]);
        Some(ComparedPeriod { period: self.period(period, range, end), total })
    }
}

impl CostDraft<'_> {
    /// All that are not shown, as one row.
    fn rest_of(&self, rows: Vec<OpenRow>) -> Result<Option<OpenRow>, MoneyOverflow> {
        let count = rows.len() + self.rest_count;
        let mut draft = self.rest.clone();
        for OpenRow { draft: other, .. } in &rows {
            draft.add(other)?;
        }
        let row = CostRow { name: format!("{count} others"), ..CostRow::default() };
        Ok((count > 0).then_some(OpenRow { group: REST, key: Vec::new(), row, draft }))
    }
}

/// Of each row, what it had in the period before, rounded together.
fn before_of(rows: &[OpenRow], has_money: bool) -> Vec<Option<CostBefore>> {
    let befores = rows.iter().map(|row| row.draft.before);
    let held: Vec<Option<i128>> =
        befores.clone().map(|before| before.map(|(held, _)| held.cast_signed())).collect();
    let money: Vec<Option<i128>> =
        befores.map(|before| before.filter(|_| has_money).map(|(_, money)| money.floor().0)).collect();
    let (held, money) = (ShownColumn::Hours.print_all(&held), ShownColumn::Money.print_all(&money));
    let rows = held.into_iter().zip(money).take(rows.len());
    rows.map(|(held, amount)| held.map(|held| CostBefore { held, amount })).collect()
}

/// The rows of one day in the order of the report, those without a name as one.
fn day_rows(mut rows: Vec<(usize, Option<String>, DaySums)>, has_money: bool) -> Vec<DayRow> {
    rows.sort_by_key(|(place, _, _)| *place);
    let mut merged = Vec::<(Option<String>, DaySums)>::new();
    for (_, name, sums) in rows {
        match merged.last_mut().filter(|(known, _)| name.is_none() && known.is_none()) {
            Some((_, sum)) => sum.add(&sums),
            None => merged.push((name, sums)),
        }
    }
    let column = |column: ShownColumn, of: &dyn Fn(&DaySums) -> Option<i128>| {
        column.print_all(&merged.iter().map(|(_, sums)| of(sums)).collect::<Vec<_>>())
    };
    let held = column(ShownColumn::Hours, &|sums| Some(sums.held.cast_signed()));
    let idle = column(ShownColumn::Hours, &|sums| Some(sums.idle.cast_signed()));
    let amount = column(ShownColumn::Money, &|sums| has_money.then(|| sums.money.floor().0));
    let texts = held.into_iter().zip(idle).zip(amount);
    let rows = merged.iter().zip(texts).map(|((name, _), ((held, idle), amount))| DayRow {
        name: name.clone(),
        held: held.unwrap_or_default(),
        idle: idle.unwrap_or_default(),
        amount,
    });
    rows.collect()
}

impl AskedCosts {
    fn of(request: &CostRequest) -> Self {
        let filters = request.filters.asked().into_iter();
        let filters = filters.map(|(property, values)| AskedFilter { property, values });
        Self {
            period: request.asked_period.clone(),
            group: request.group.asked().join(","),
            filters: filters.collect(),
            spread: request.spread.clone(),
            top: request.top,
        }
    }
}

impl ProjectedCosts {
    fn of(Projection { amount, lowest, highest }: Projection) -> Self {
        let [amount, lowest, highest] = [amount, lowest, highest].map(print_money);
        Self { amount, lowest, highest }
    }
}

impl BudgetUse {
    fn of(amount: Money, spent: Money) -> Self {
        Self { amount: print_money(amount), used: ratio(spent.0, amount.0) }
    }
}
