//! Makes the rows of a bill by day.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use thiserror::Error;

use super::decimal::{COST_SCALE, PRICE_SCALE, QUANTITY_SCALE, costs, quantities, ratios};
use crate::accounting::billing::{
    Bill, BillGpu, BillLine, BillRate, ExactMoney, MoneyOverflow, Month, day_begin,
};
use crate::model::{Decimal, GpuId, HolderId, MINUTE, Utc};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    Time,
    Energy,
    /// What terms take off or add, what prices of MIG instances differ by, and what quantities were rounded by.
    Adjustment,
}

#[derive(Clone, Debug)]
pub struct FocusRow<'a> {
    pub bill: &'a Bill,
    pub gpu: &'a GpuId,
    /// Its product name; none where the bill does not have it.
    pub model: Option<&'a str>,
    /// Its node; empty where that is unknown.
    pub node: &'a str,
    pub cluster: Option<&'a str>,
    /// The line of the bill; none for what quantities were rounded by.
    pub line: Option<&'a BillLine>,
    pub day: &'a str,
    pub kind: RowKind,
    /// The rate that prices it; none where no rate was in force, and for adjustments.
    pub rate: Option<&'a BillRate>,
    /// The begin and the end of the charged time.
    pub period: [Utc; 2],
    /// The begin and the end of the local month that contains it.
    pub month: [Utc; 2],
    /// Hours or kilowatt-hours; none for adjustments.
    pub quantity: Option<Decimal>,
    /// The price of a unit before terms.
    pub list_price: Option<Decimal>,
    /// The price of a unit under the terms.
    pub price: Option<Decimal>,
    pub cost: Decimal,
    /// Price before terms × quantity.
    pub list_cost: Decimal,
    /// The part of what the GPU costs in this period.
    pub ratio: Option<Decimal>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FocusError {
    #[error("no price was in force, and FOCUS is about money; configure prices.rates")]
    NoPrices,
    /// The currency is a word of the operator.
    #[error("FOCUS wants a national currency as in ISO 4217, such as EUR, and prices.currency is {0:?}")]
    Currency(String),
    #[error("FOCUS needs {what}; set {key} in the agent's configuration, or give {option}")]
    Missing { what: &'static str, key: &'static str, option: &'static str },
    #[error("the bill is not by day")]
    NotByDay,
    #[error("{0:?} is no time zone that this machine knows; give --time-zone")]
    Zone(String),
    /// The time zone is an offset, which may have been another one in other months.
    #[error("the time zone has no name, in which months and days begin; give --time-zone")]
    NamelessZone,
    /// A day that is not a valid date.
    #[error("{0:?} is not a date in the bill's time zone")]
    Day(String),
    #[error(transparent)]
    Overflow(#[from] MoneyOverflow),
    #[error("a price of {0} units of the currency is too large for FOCUS; give prices in a larger unit")]
    Price(i64),
}

const RATIO_SCALE: u8 = 12;

/// The largest price in nano-units: one of 18 digits, so that databases multiply it by a quantity exactly.
const LARGEST_PRICE: i64 = 999_999_999_999_999_999;

/// The rows of a bill by day. In both columns of costs they sum to the exact total of the bill, rounded down to 22 places,
/// and those of a GPU and a day to what the GPU cost in it.
///
/// # Errors
/// The bill has no prices, no account, no issuer or no days; see [`FocusError`].
pub fn focus_rows(bill: &Bill) -> Result<Vec<FocusRow<'_>>, FocusError> {
    check(bill)?;
    let zone = zone_of(&bill.time_zone)?;
    let mut by_gpu: BTreeMap<(&GpuId, &str), Vec<&BillLine>> = BTreeMap::new();
    for line in &bill.lines {
        let day = line.day.as_deref().ok_or(FocusError::NotByDay)?;
        by_gpu.entry((&line.gpu, day)).or_default().push(line);
    }
    let exact: Vec<ExactMoney> = by_gpu
        .values()
        .map(|lines| ExactMoney::sum(lines.iter().map(|line| line.exact)))
        .collect::<Result<_, _>>()?;
    // A bill of a fleet has thousands of them.
    let accounts: BTreeMap<&GpuId, &BillGpu> =
        bill.gpus.iter().map(|account| (&account.gpu, account)).collect();
    let mut rows = Vec::new();
    for (((gpu, day), lines), total) in by_gpu.into_iter().zip(costs(&exact)?) {
        let account = accounts.get(gpu).copied();
        let draft = DayDraft { bill, gpu, account, day: DayBounds::new(day, &zone)?, lines };
        rows.extend(draft.rows(total)?);
    }
    Ok(rows)
}

fn check(bill: &Bill) -> Result<(), FocusError> {
    let missing = |what, key, option| Err(FocusError::Missing { what, key, option });
    match &bill.currency {
        None => return Err(FocusError::NoPrices),
        Some(code) if code.len() != 3 || !code.bytes().all(|byte| byte.is_ascii_uppercase()) => {
            return Err(FocusError::Currency(code.clone()));
        }
        Some(_) => {}
    }
    if bill.billing_account.is_none() {
        return missing("the account that the costs belong to", "billing.account", "--billing-account");
    }
    if bill.invoice_issuer.is_none() {
        return missing(
            "the organisation that issues the bill",
            "billing.invoice_issuer",
            "--invoice-issuer",
        );
    }
    Ok(())
}

fn zone_of(name: &str) -> Result<TimeZone, FocusError> {
    if name.starts_with(['+', '-']) {
        return Err(FocusError::NamelessZone);
    }
    TimeZone::get(name).map_err(|_| FocusError::Zone(name.to_owned()))
}

struct DayBounds<'a> {
    name: &'a str,
    day: [Utc; 2],
    month: [Utc; 2],
}

impl<'a> DayBounds<'a> {
    fn new(day: &'a str, zone: &TimeZone) -> Result<Self, FocusError> {
        let wrong = || FocusError::Day(day.to_owned());
        let date: Date = day.parse().map_err(|_| wrong())?;
        let begin_of = |date: Date| day_begin(date, zone).ok_or_else(wrong);
        let begin = begin_of(date)?;
        let month = Month::containing(begin, zone).ok_or_else(wrong)?;
        let end = begin_of(date.tomorrow().map_err(|_| wrong())?)?;
        Ok(Self { name: day, day: [begin, end], month: [month.begin, month.end] })
    }
}

struct DayDraft<'a> {
    bill: &'a Bill,
    gpu: &'a GpuId,
    account: Option<&'a BillGpu>,
    day: DayBounds<'a>,
    lines: Vec<&'a BillLine>,
}

/// Nano-units per unit of quantity, before and under terms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct UnitPrices {
    list: i64,
    charged: i64,
}

struct FocusUsage<'a> {
    row: FocusRow<'a>,
    prices: UnitPrices,
    /// Nanoseconds, or microjoules.
    amount: u64,
}

impl<'a> DayDraft<'a> {
    /// Its rows, which cost `total` units of [`COST_SCALE`].
    fn rows(&self, total: i128) -> Result<Vec<FocusRow<'a>>, FocusError> {
        let mut rows = self.usage()?;
        set_ratios(&mut rows);
        for line in self.lines.iter().copied().filter(|line| is_adjustment(line)) {
            let units = costs(&[line.exact])?[0];
            rows.push(self.adjustment(Some(line), units));
        }
        let rest =
            |cost: fn(&FocusRow<'a>) -> Decimal| total - rows.iter().map(|row| cost(row).units).sum::<i128>();
        let (rest, list_rest) = (rest(|row| row.cost), rest(|row| row.list_cost));
        if (rest, list_rest) != (0, 0) {
            // What terms change in list costs, and what is no decimal, stands beside the terms where there are any.
            let last = rows.iter().rposition(|row| row.kind == RowKind::Adjustment);
            let place = last.unwrap_or_else(|| {
                rows.push(self.adjustment(None, 0));
                rows.len() - 1
            });
            rows[place].cost.units += rest;
            rows[place].list_cost.units += list_rest;
        }
        Ok(rows)
    }

    fn usage(&self) -> Result<Vec<FocusRow<'a>>, FocusError> {
        let mut groups: BTreeMap<(RowKind, i64), Vec<FocusUsage<'a>>> = BTreeMap::new();
        for line in self.lines.iter().copied().filter(|line| !is_adjustment(line)) {
            let rate = self.rate(line.rates.time);
            let prices = self.time_prices(line, rate)?;
            let row = |kind, rate| self.row(Some(line), kind, rate);
            let mut add = |row: FocusRow<'a>, prices: UnitPrices, amount| {
                let usage = FocusUsage { row, prices, amount };
                groups.entry((usage.row.kind, prices.list)).or_default().push(usage);
            };
            if line.charged.0 > 0 || line.unpriced.0 == 0 {
                add(row(RowKind::Time, rate), prices, line.charged.0);
            }
            if line.unpriced.0 > 0 {
                add(row(RowKind::Time, None), UnitPrices { list: 0, charged: 0 }, line.unpriced.0);
            }
            if let Some(rate) = self.rate(line.rates.energy).filter(|_| line.has_energy) {
                let price = nano(rate.nano()?)?;
                add(
                    row(RowKind::Energy, Some(rate)),
                    UnitPrices { list: price, charged: price },
                    line.energy(),
                );
            }
        }
        let mut rows = Vec::new();
        for group in groups.into_values() {
            let amounts: Vec<u64> = group.iter().map(|usage| usage.amount).collect();
            for (usage, quantity) in group.into_iter().zip(quantities(&amounts)) {
                rows.push(usage.with_quantity(quantity)?);
            }
        }
        Ok(rows)
    }

    fn rate(&self, id: Option<i64>) -> Option<&'a BillRate> {
        self.bill.rates.iter().find(|rate| Some(rate.id) == id)
    }

    fn time_prices(&self, line: &BillLine, rate: Option<&BillRate>) -> Result<UnitPrices, FocusError> {
        let list = match rate {
            None => 0,
            Some(rate) => nano(rate.nano_per_gpu_hour(line.slot.profile.as_ref())?)?,
        };
        // All lines under the same rate, terms and profile have one price.
        let key = |line: &BillLine| (line.rates.time, line.rates.terms, line.slot.profile.clone());
        let priced = self.lines.iter().find(|other| other.charged.0 > 0 && key(other) == key(line));
        let charged = match priced {
            None => list,
            Some(line) => {
                let money = line.exact.minus(line.exact_energy)?;
                i64::try_from(money.parts() / i128::from(line.charged.0)).map_err(|_| MoneyOverflow)?
            }
        };
        nano(charged)?;
        Ok(UnitPrices { list, charged })
    }

    fn row(&self, line: Option<&'a BillLine>, kind: RowKind, rate: Option<&'a BillRate>) -> FocusRow<'a> {
        let zero = Decimal { units: 0, scale: COST_SCALE };
        let (node, cluster) = self.node(line);
        FocusRow {
            bill: self.bill,
            gpu: self.gpu,
            model: self.account.map(|account| account.model.as_str()),
            node,
            cluster,
            line,
            day: self.day.name,
            kind,
            rate,
            period: line.map_or_else(|| self.whole_period(), |line| self.period(line, rate)),
            month: self.day.month,
            quantity: None,
            list_price: None,
            price: None,
            cost: zero,
            list_cost: zero,
            ratio: None,
        }
    }

    fn period(&self, line: &BillLine, rate: Option<&BillRate>) -> [Utc; 2] {
        let [begin, end] = self.whole_period();
        let terms = self.bill.terms.iter().find(|terms| Some(terms.id) == line.rates.terms);
        let since = [rate.and_then(|rate| rate.since), terms.and_then(|terms| terms.since)];
        let begin = since.into_iter().flatten().fold(begin, Utc::max);
        let end = rate.and_then(|rate| rate.until).map_or(end, |until| end.min(until));
        [begin, end.max(begin)]
    }

    /// Name and cluster of the node: of the line in a bill of many nodes, else of the bill.
    fn node(&self, line: Option<&'a BillLine>) -> (&'a str, Option<&'a str>) {
        let line = line.or_else(|| self.lines.first().copied());
        match line.and_then(|line| line.node.as_deref()) {
            Some(node) => (&node.name, node.cluster.as_deref()),
            None => (&self.bill.node, self.bill.cluster.as_deref()),
        }
    }

    fn whole_period(&self) -> [Utc; 2] {
        let [begin, end] = self.day.day;
        let (begin, end) = (begin.max(self.bill.from), end.min(self.bill.to));
        match self.account {
            Some(account) => [
                begin.max(account.accounted_since.floor(MINUTE)),
                end.min(account.settled_until.ceil(MINUTE)),
            ],
            None => [begin, end],
        }
    }

    fn adjustment(&self, line: Option<&'a BillLine>, units: i128) -> FocusRow<'a> {
        let cost = Decimal { units, scale: COST_SCALE };
        let rate = line.and_then(|line| self.rate(line.rates.time));
        let row = self.row(line, RowKind::Adjustment, rate);
        FocusRow { rate: None, cost, list_cost: cost, ..row }
    }
}

fn is_adjustment(line: &BillLine) -> bool {
    [HolderId::TERMS, HolderId::RATE_VARIANCE].contains(&&*line.tenant)
}

fn nano(nano: i64) -> Result<i64, FocusError> {
    if nano > LARGEST_PRICE { Err(FocusError::Price(nano / 1_000_000_000)) } else { Ok(nano) }
}

impl<'a> FocusUsage<'a> {
    fn with_quantity(self, quantity: i128) -> Result<FocusRow<'a>, FocusError> {
        let UnitPrices { list, charged } = self.prices;
        let price = |nano: i64| Decimal { units: nano.into(), scale: PRICE_SCALE };
        let cost = |nano: i64| {
            let units = i128::from(nano).checked_mul(quantity).ok_or(MoneyOverflow)?;
            Ok::<_, MoneyOverflow>(Decimal { units, scale: COST_SCALE })
        };
        Ok(FocusRow {
            quantity: Some(Decimal { units: quantity, scale: QUANTITY_SCALE }),
            list_price: Some(price(list)),
            price: Some(price(charged)),
            cost: cost(charged)?,
            list_cost: cost(list)?,
            ..self.row
        })
    }
}

fn set_ratios(rows: &mut [FocusRow<'_>]) {
    let mut origins: BTreeMap<(RowKind, [Utc; 2]), Vec<usize>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        origins.entry((row.kind, row.period)).or_default().push(place);
    }
    for places in origins.into_values() {
        let weights: Vec<i128> =
            places.iter().map(|place| rows[*place].quantity.map_or(0, |quantity| quantity.units)).collect();
        for (place, units) in places.into_iter().zip(ratios(&weights, RATIO_SCALE)) {
            rows[place].ratio = Some(Decimal { units, scale: RATIO_SCALE });
        }
    }
}
