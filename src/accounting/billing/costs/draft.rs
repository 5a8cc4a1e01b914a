//! Adds up sums of costs by the grouping that is asked for, in memory that is bounded by its groups and days.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::civil::Date;

use super::calendar::{LocalHour, WEEK};
use super::key::{CostKey, CostSums, CostWorkload};
use super::projection::Forecast;
use super::request::{CostRanges, CostRequest};
use super::row::HeldIdle;
use crate::accounting::billing::{ExactMoney, GroupValue, MoneyOverflow, TenantBudget};
use crate::model::{RESERVED, TimeSum};

/// What is known of tenants, by their names.
#[derive(Clone, Debug, Default)]
pub struct CostTenants {
    pub attributes: BTreeMap<String, BTreeMap<String, String>>,
    /// Those of the month in which the period ends.
    pub budgets: BTreeMap<String, TenantBudget>,
}

/// What an hour has of the costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourSums {
    /// Of tenants, without remainders.
    pub held: TimeSum,
    pub used: TimeSum,
    /// Of tenants, without remainders.
    pub idle: TimeSum,
    pub money: ExactMoney,
}

/// A report while it is made. A source feeds it the sums of the period, those of the period before, and those of the hours of
/// the period and of the last weeks; each in any order, and in any number of parts.
#[derive(Debug)]
pub struct CostDraft<'a> {
    pub(super) request: &'a CostRequest,
    pub(super) ranges: &'a CostRanges,
    pub(super) tenants: &'a CostTenants,
    /// The keys that were met, by their addresses, and what becomes of each.
    places: HashMap<usize, (Arc<CostKey>, KeyPlace)>,
    /// The values of all properties but the day, by number.
    groups: HashMap<Vec<GroupValue>, u32>,
    /// What people call the workload of a group, by number.
    pub(super) titles: HashMap<u32, String>,
    /// By number and, in reports by day, day.
    pub(super) rows: HashMap<(u32, Option<Date>), DraftRow>,
    pub(super) days: HashMap<(u32, Date), DaySums>,
    /// What a source has of groups that it does not tell apart, since others cost more; and how many these are.
    pub(super) rest: DraftRow,
    pub(super) rest_count: usize,
    pub(super) before: CostSums,
    /// By hour of week; none while a source fed none.
    pub(super) hours: Option<Box<[HourSums; WEEK]>>,
    pub(super) forecast: Forecast,
    pub(super) spread: Spread,
    pub(super) tenant_sums: BTreeMap<Arc<str>, TenantSums>,
    by_day: bool,
    tells_hours: bool,
}

/// Of a tenant in the period, whatever the grouping.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TenantSums {
    pub(super) held: u128,
    pub(super) idle: u128,
    pub(super) unavailable: u128,
    pub(super) money: ExactMoney,
}

#[derive(Clone, Copy, Debug)]
struct KeyPlace {
    is_visible: bool,
    is_selected: bool,
    payment: Payment,
    /// None until it has sums of the period or of the one before.
    group: Option<u32>,
}

/// The part that a line has in spread remainders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payment {
    /// It is a remainder that is divided.
    Divided,
    /// It pays by its charged time.
    Pays,
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DraftRow {
    pub(super) sums: CostSums,
    pub(super) of_tenants: HeldIdle,
    pub(super) spread: Spread,
    /// Held time and money of the period before.
    pub(super) before: Option<(u128, ExactMoney)>,
}

/// Money of remainders that are divided, and the charged time by which they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    pub(super) divided: ExactMoney,
    pub(super) charged: u128,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DaySums {
    pub(super) held: u128,
    pub(super) idle: u128,
    pub(super) money: ExactMoney,
}

impl Spread {
    fn add(&mut self, payment: Payment, sums: &CostSums) -> Result<(), MoneyOverflow> {
        match payment {
            Payment::Divided => self.divided = self.divided.plus(sums.money)?,
            Payment::Pays => self.charged += sums.charged.0,
            Payment::Nothing => {}
        }
        Ok(())
    }
}

impl DraftRow {
    pub(super) fn add(&mut self, other: &Self) -> Result<(), MoneyOverflow> {
        self.sums.add(&other.sums)?;
        self.of_tenants = self.of_tenants.plus(other.of_tenants);
        self.spread.divided = self.spread.divided.plus(other.spread.divided)?;
        self.spread.charged += other.spread.charged;
        if let Some((held, money)) = other.before {
            let before = self.before.get_or_insert_default();
            *before = (before.0 + held, before.1.plus(money)?);
        }
        Ok(())
    }
}

impl DaySums {
    /// Adds others; the report's totals are checked, of which these are parts.
    pub(super) fn add(&mut self, other: &Self) {
        self.held += other.held;
        self.idle += other.idle;
        self.money = self.money.saturating_plus(other.money);
    }
}

impl<'a> CostDraft<'a> {
    pub fn new(request: &'a CostRequest, ranges: &'a CostRanges, tenants: &'a CostTenants) -> Self {
        Self {
            request,
            ranges,
            tenants,
            places: HashMap::new(),
            groups: HashMap::new(),
            titles: HashMap::new(),
            rows: HashMap::new(),
            days: HashMap::new(),
            rest: DraftRow::default(),
            rest_count: 0,
            before: CostSums::default(),
            hours: None,
            forecast: Forecast::default(),
            spread: Spread::default(),
            tenant_sums: BTreeMap::new(),
            by_day: request.group.needs_days(),
            tells_hours: true,
        }
    }

    /// Leaves the hours of the period out of the report, for a source that does not read each of them.
    pub const fn leave_out_hours(&mut self) {
        self.tells_hours = false;
    }

    /// Adds sums of the period, of one local day.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add(&mut self, key: &Arc<CostKey>, day: Date, sums: &CostSums) -> Result<(), MoneyOverflow> {
        let place = self.place(key, true);
        // A reader of some tenants gets nothing of remainders, which spread would tell.
        if place.is_visible && !self.request.is_partial() {
            self.spread.add(place.payment, sums)?;
        }
        let Some(group) = place.group else { return Ok(()) };
        let row = self.rows.entry((group, self.by_day.then_some(day))).or_default();
        row.sums.add(sums)?;
        row.of_tenants = row.of_tenants.plus(HeldIdle::of(&key.tenant, sums));
        row.spread.add(place.payment, sums)?;
        self.add_to_day(group, key, day, sums)
    }

    fn add_to_day(
        &mut self,
        group: u32,
        key: &CostKey,
        day: Date,
        sums: &CostSums,
    ) -> Result<(), MoneyOverflow> {
        let (held, idle, money) = (sums.held(), sums.idle(), sums.money);
        self.days.entry((group, day)).or_default().add(&DaySums { held, idle, money });
        let of_tenant = self.tenant_sums.entry(Arc::clone(&key.tenant)).or_default();
        of_tenant.held += held;
        of_tenant.idle += idle;
        of_tenant.unavailable += sums.unavailable();
        of_tenant.money = of_tenant.money.plus(money)?;
        Ok(())
    }

    /// Adds sums of the period of lines that are in no row with a name: of groups that cost less than all that are shown, or of
    /// what is not selected. The key has no workload.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add_rest(
        &mut self,
        key: &CostKey,
        day: Date,
        sums: &CostSums,
        is_selected: bool,
    ) -> Result<(), MoneyOverflow> {
        let payment = self.payment(&key.tenant);
        if !self.request.is_partial() {
            self.spread.add(payment, sums)?;
        }
        if !is_selected {
            return Ok(());
        }
        self.rest.sums.add(sums)?;
        self.rest.of_tenants = self.rest.of_tenants.plus(HeldIdle::of(&key.tenant, sums));
        self.rest.spread.add(payment, sums)?;
        self.add_to_day(REST, key, day, sums)
    }

    /// Adds sums of the period before of such groups.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add_rest_before(&mut self, sums: &CostSums) -> Result<(), MoneyOverflow> {
        self.before.add(sums)?;
        if !self.request.group.detail().workload {
            let before = self.rest.before.get_or_insert_default();
            *before = (before.0 + sums.held(), before.1.plus(sums.money)?);
        }
        Ok(())
    }

    /// Tells how many such groups there are.
    pub const fn count_rest(&mut self, groups: usize) {
        self.rest_count = groups;
    }

    /// Adds sums of the period before.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add_before(&mut self, key: &Arc<CostKey>, sums: &CostSums) -> Result<(), MoneyOverflow> {
        // A workload that is over is no row of this period.
        let keeps_rows = !self.by_day && !self.request.group.detail().workload;
        let place = self.place(key, keeps_rows);
        if !place.is_selected {
            return Ok(());
        }
        self.before.add(sums)?;
        if let Some(group) = place.group.filter(|_| !self.by_day) {
            let before = self.rows.entry((group, None)).or_default().before.get_or_insert_default();
            *before = (before.0 + sums.held(), before.1.plus(sums.money)?);
        }
        Ok(())
    }

    /// Adds sums of a local hour of the period or of the last weeks. The key needs no more than what filters select by.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add_hour(
        &mut self,
        key: &Arc<CostKey>,
        hour: &LocalHour,
        sums: &HourSums,
    ) -> Result<(), MoneyOverflow> {
        if !self.place(key, false).is_selected {
            return Ok(());
        }
        let (place, is_inside) =
            (hour.of_week(), |[from, to]: &[_; 2]| *from <= hour.begin && hour.begin < *to);
        if self.tells_hours && is_inside(&self.ranges.period) {
            let hours = self.hours.get_or_insert_with(|| Box::new([HourSums::default(); WEEK]));
            hours[place].add(sums)?;
        }
        match self.ranges.weeks.iter().position(is_inside) {
            Some(week) => self.forecast.add(week, place, sums.money),
            None => Ok(()),
        }
    }

    /// What becomes of a key. Its group is made where the report may have it as a row.
    fn place(&mut self, key: &Arc<CostKey>, makes_group: bool) -> KeyPlace {
        let address = Arc::as_ptr(key).addr();
        let known = self.places.get(&address).map(|(_, place)| *place);
        if let Some(place) = known
            && (place.group.is_some() || !makes_group || !place.is_selected)
        {
            return place;
        }
        let view = key.view(self.tenants.attributes.get(&*key.tenant));
        let is_visible = self.request.is_visible(&view);
        let is_selected = is_visible && self.request.filters.selects(&view);
        let payment = self.payment(&key.tenant);
        let group = (makes_group && is_selected).then(|| {
            let properties = self.request.group.properties().iter();
            let values = properties.filter(|property| property.word() != Some("day"));
            let values: Vec<GroupValue> = values.map(|property| property.value(&view)).collect();
            let next = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
            *self.groups.entry(values).or_insert(next)
        });
        if let Some(group) = group.filter(|_| self.request.group.detail().workload)
            && let Some(title) = key.workload.as_ref().and_then(CostWorkload::title)
        {
            self.titles.entry(group).or_insert(title);
        }
        let place = KeyPlace { is_visible, is_selected, payment, group };
        self.places.insert(address, (Arc::clone(key), place));
        place
    }

    fn payment(&self, tenant: &str) -> Payment {
        if self.request.spread.contains(tenant) {
            Payment::Divided
        } else if tenant.starts_with(RESERVED) {
            Payment::Nothing
        } else {
            Payment::Pays
        }
    }

    /// The values of each group by its number.
    pub(super) fn take_groups(&mut self) -> Vec<Vec<GroupValue>> {
        let mut groups: Vec<(u32, Vec<GroupValue>)> =
            std::mem::take(&mut self.groups).into_iter().map(|(values, number)| (number, values)).collect();
        groups.sort_unstable_by_key(|(number, _)| *number);
        groups.into_iter().map(|(_, values)| values).collect()
    }
}

/// The number of all groups that a source does not tell apart.
pub(super) const REST: u32 = u32::MAX;

impl HourSums {
    /// Of a sum: time of a remainder is nobody's.
    pub fn of(tenant: &str, sums: &CostSums) -> Self {
        let of_tenant = |time: u128| TimeSum(if tenant.starts_with(RESERVED) { 0 } else { time });
        Self {
            held: of_tenant(sums.held()),
            used: TimeSum(sums.used()),
            idle: of_tenant(sums.idle()),
            money: sums.money,
        }
    }

    fn add(&mut self, other: &Self) -> Result<(), MoneyOverflow> {
        self.held += other.held;
        self.used += other.used;
        self.idle += other.idle;
        self.money = self.money.plus(other.money)?;
        Ok(())
    }
}
