//! A bill by tenant, as the API and the command line show it. It contains sums of bill lines, before any terms.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::billing::{BillLine, LedgerBill};
use super::node::NodeIdentity;
use crate::billing::{EXAMPLE, ExactMoney, MoneyOverflow, round_together};
use crate::model::{Amounts, Holder, HolderId, Money, Utc, VisibleAccount};
use crate::tenants::tenant;

/// The account of a span of time, by tenant, holder and GPU. Names end in their units; money is a decimal number of
/// [`Statement::currency`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Name of the node; empty where it is unknown.
    #[serde(default)]
    pub node: String,
    /// The cluster to which the node belongs.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Whether the GPUs are simulated.
    #[serde(default)]
    pub simulated: bool,
    /// First minute, in UTC like all times but the two below.
    pub from: String,
    /// End of the last minute.
    pub to: String,
    /// First minute in the time zone of the machine where the bill is made.
    #[serde(default)]
    pub from_local: String,
    /// End of the last minute in the time zone of the machine where the bill is made.
    #[serde(default)]
    pub to_local: String,
    /// Time zone of the machine where the bill is made.
    #[serde(default)]
    pub time_zone: String,
    /// The requested end, where the bill ends earlier because later minutes are not closed yet.
    #[serde(default)]
    pub asked_to: Option<String>,
    /// Every GPU's minutes are closed up to this time.
    pub closed_until: String,
    /// Whether it has lines of some tenants only. Then sums are of these lines, and there are no GPUs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Currency of all money here; absent where no price was in force.
    pub currency: Option<String>,
    /// The prices that were in force, in order of time.
    #[serde(default)]
    pub prices: Vec<StatementPrice>,
    /// Whether the prices are gpumeter's example prices instead of the operator's.
    #[serde(default)]
    pub example_prices: bool,
    /// GPU time without a price in force; absent where no prices were ever configured.
    #[serde(default)]
    pub unpriced_ns: Option<u64>,
    /// Lines by tenant, GPU and holder; remainders have lines too.
    pub lines: Vec<StatementLine>,
    /// Totals by GPU.
    pub gpus: Vec<StatementGpu>,
    /// Sums that were computed separately and must agree.
    pub reconciliation: StatementProof,
}

/// A price, and the GPU time under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatementPrice {
    /// Begin of the price, possibly before the bill; absent for one that was always in force.
    pub since: Option<String>,
    /// Money per GPU-hour.
    pub gpu_hour: String,
    /// Price class.
    pub class: String,
    /// GPU time under it, in nanoseconds.
    pub slot_ns: u64,
    /// Money of that time.
    pub money: String,
}

/// What one holder held and used on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are those of the account's parts and end in their units")]
pub struct StatementLine {
    pub tenant: String,
    pub holder: String,
    /// Facts of the holder, by label of `gpu_workload_info`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub gpu: u32,
    pub uuid: String,
    /// Id of the GPU instance; absent for a whole GPU, and for time of a MIG GPU that is no instance's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    pub held_ns: u64,
    pub within_ns: u64,
    pub lent_ns: u64,
    pub idle_ns: u64,
    pub unmeasured_ns: u64,
    pub unavailable_ns: u64,
    pub used_ns: u64,
    pub beyond_share_ns: u64,
    pub outside_holding_ns: u64,
    pub unheld_ns: u64,
    /// None where the GPU's energy was not measured.
    pub energy_static_uj: Option<u64>,
    pub energy_dynamic_uj: Option<u64>,
    pub grade: String,
    pub measured_ns: u64,
    pub method: String,
    pub sources: Vec<String>,
    /// Time for which `money` is charged: held less unavailable, and for `__unavailable__` all unavailable time, while a
    /// price was in force.
    #[serde(default)]
    pub charged_ns: u64,
    /// The same time while no price was in force.
    #[serde(default)]
    pub unpriced_ns: u64,
    pub money: Option<String>,
}

/// One GPU's total.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it and end in their units")]
pub struct StatementGpu {
    pub gpu: u32,
    pub uuid: String,
    pub model: String,
    pub slot_ns: u64,
    pub settled_until: String,
    pub money: Option<String>,
}

/// Sums that were computed separately and must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it and end in their units")]
pub struct StatementProof {
    pub slot_ns: u64,
    pub held_ns: u64,
    pub imbalance_ns: String,
    pub gpu_money: String,
    pub line_money: String,
    pub imbalance_money: String,
}

impl Statement {
    /// Makes the statement of a bill, with the facts of its holders. Money is rounded down to nano-units; lines, GPUs and
    /// prices each sum to the rounded total.
    pub(super) fn new(
        bill: &LedgerBill,
        holders: &[Holder],
        node: &NodeIdentity,
        zone: &TimeZone,
    ) -> Result<Self, MoneyOverflow> {
        let holders: BTreeMap<&HolderId, &Holder> =
            holders.iter().map(|holder| (&holder.id, holder)).collect();
        let line = |(line, money): (&BillLine, Option<String>)| match holders.get(&line.holder) {
            Some(holder) => statement_line(line, holder, money),
            None => statement_line(line, &Holder::from_id(line.holder.clone()), money),
        };
        let money = decimals(bill.lines.iter().map(|line| line.money))?;
        let mut lines: Vec<StatementLine> = bill.lines.iter().zip(money).map(line).collect();
        lines.sort_by(|left, right| {
            let key = |line: &StatementLine| (line.gpu, line.gpu_instance);
            (&left.tenant, key(left), &left.holder).cmp(&(&right.tenant, key(right), &right.holder))
        });
        let proof = &bill.reconciliation;
        let prices = prices(bill)?;
        let gpu_money = decimals(bill.gpus.iter().map(|gpu| gpu.money))?;
        Ok(Self {
            node: node.name.clone(),
            cluster: node.cluster.clone(),
            simulated: node.simulated || bill.gpus.iter().any(|gpu| gpu.model.ends_with(SIMULATED)),
            from: time(bill.from),
            to: time(bill.to),
            from_local: local_time(bill.from, zone),
            to_local: local_time(bill.to, zone),
            time_zone: zone.iana_name().unwrap_or("local time").to_owned(),
            asked_to: bill.asked_to.map(|to| local_time(to, zone)),
            example_prices: prices.iter().any(|price| price.class == EXAMPLE),
            prices,
            partial: false,
            unpriced_ns: bill.has_prices.then_some(proof.unpriced.0),
            closed_until: time(bill.closed_until),
            currency: bill.currency.clone(),
            lines,
            gpus: bill
                .gpus
                .iter()
                .zip(gpu_money)
                .map(|(total, money)| StatementGpu {
                    gpu: total.gpu.index,
                    uuid: total.gpu.uuid.to_string(),
                    model: total.model.clone(),
                    slot_ns: total.slot.0,
                    settled_until: time(total.settled_until),
                    money,
                })
                .collect(),
            reconciliation: StatementProof {
                slot_ns: proof.slot.0,
                held_ns: proof.held.0,
                imbalance_ns: proof.imbalance.to_string(),
                gpu_money: decimal(proof.gpu_money.floor()),
                line_money: decimal(proof.line_money.floor()),
                imbalance_money: decimal(proof.imbalance_money.floor()),
            },
        })
    }

    /// The statement as a reader may see it: with these lines only, and sums of these lines.
    pub fn visible_to(mut self, visible: &VisibleAccount) -> Self {
        if *visible == VisibleAccount::Everything {
            return self;
        }
        self.lines.retain(|line| {
            visible.shows(&line.tenant, |fact| line.labels.get(fact.label()).map(String::as_str))
        });
        let sum = |of: fn(&StatementLine) -> u64| self.lines.iter().map(of).sum::<u64>();
        let held_ns = sum(|line| line.held_ns);
        let money = self.lines.iter().filter_map(|line| line.money.as_deref()).map(nano).sum::<i128>();
        let money = decimal(Money(money));
        self.unpriced_ns = self.unpriced_ns.map(|_| sum(|line| line.unpriced_ns));
        self.gpus.clear();
        // Prices are public; what was charged by them is a sum over all tenants.
        for price in &mut self.prices {
            (price.slot_ns, price.money) = (0, decimal(Money(0)));
        }
        self.reconciliation = StatementProof {
            slot_ns: held_ns,
            held_ns,
            imbalance_ns: "0".to_owned(),
            gpu_money: money.clone(),
            line_money: money,
            imbalance_money: decimal(Money(0)),
        };
        Self { partial: true, ..self }
    }

    /// Whether every sum agrees.
    pub fn is_balanced(&self) -> bool {
        let proof = &self.reconciliation;
        proof.imbalance_ns == "0" && proof.slot_ns == proof.held_ns && proof.gpu_money == proof.line_money
    }
}

/// End of the product names of simulated GPUs.
const SIMULATED: &str = "(simulated)";

/// The prices of all GPUs, each once, with the time and money of all GPUs under it.
fn prices(bill: &LedgerBill) -> Result<Vec<StatementPrice>, MoneyOverflow> {
    let mut sums: BTreeMap<(Utc, i64, &str), (u64, ExactMoney)> = BTreeMap::new();
    for interval in bill.gpus.iter().flat_map(|gpu| &gpu.intervals) {
        let Some(rate) = &interval.rate else { continue };
        let key = (rate.begin, rate.price.nano_per_gpu_hour, &*rate.price.tariff.class);
        let sum = sums.entry(key).or_default();
        sum.0 += interval.slot.0;
        sum.1 = sum.1.plus(interval.money.unwrap_or_default())?;
    }
    let money = round_together(&sums.values().map(|sum| sum.1).collect::<Vec<_>>(), 1)?;
    let price = |(((since, rate, class), (slot_ns, _)), money): ((_, (u64, _)), _)| {
        let (since, rate, class): (Utc, i64, &str) = (since, rate, class);
        StatementPrice {
            since: (since.0 > 0).then(|| time(since)),
            gpu_hour: decimal(Money(rate.into())),
            class: class.to_owned(),
            slot_ns,
            money: decimal(money),
        }
    };
    Ok(sums.into_iter().zip(money).map(price).collect())
}

/// Amounts as decimals that sum to their exact sum rounded down.
fn decimals(amounts: impl Iterator<Item = Option<ExactMoney>>) -> Result<Vec<Option<String>>, MoneyOverflow> {
    let amounts: Vec<Option<ExactMoney>> = amounts.collect();
    let rounded =
        round_together(&amounts.iter().map(|amount| amount.unwrap_or_default()).collect::<Vec<_>>(), 1)?;
    Ok(amounts.iter().zip(rounded).map(|(amount, rounded)| amount.map(|_| decimal(rounded))).collect())
}

fn statement_line(line: &BillLine, holder: &Holder, money: Option<String>) -> StatementLine {
    let Amounts { parts, used, energy_static, energy_dynamic, measured, .. } = line.amounts;
    StatementLine {
        tenant: tenant(holder).to_string(),
        holder: line.holder.to_string(),
        labels: holder.facts.iter().map(|(fact, text)| (fact.label().to_owned(), text.to_owned())).collect(),
        gpu: line.gpu.index,
        uuid: line.gpu.uuid.to_string(),
        gpu_instance: line.gpu_instance,
        held_ns: parts.held(),
        within_ns: parts.within,
        lent_ns: parts.lent,
        idle_ns: parts.idle,
        unmeasured_ns: parts.unmeasured,
        unavailable_ns: parts.unavailable,
        used_ns: used.total(),
        beyond_share_ns: used.beyond,
        outside_holding_ns: used.outside,
        unheld_ns: used.unheld,
        energy_static_uj: line.has_energy.then_some(energy_static.0),
        energy_dynamic_uj: line.has_energy.then_some(energy_dynamic.0),
        grade: line.grade.name().into(),
        measured_ns: measured,
        method: line.method.name().into(),
        sources: line.sources.iter().map(|source| source.name().into()).collect(),
        charged_ns: line.charged.0,
        unpriced_ns: line.unpriced.0,
        money,
    }
}

/// Local time in RFC 3339.
fn local_time(at: Utc, zone: &TimeZone) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.0)).map_or_else(
        |_| at.0.to_string(),
        |time| time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    )
}

/// UTC in RFC 3339.
pub(super) fn time(at: Utc) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(at.0))
        .map_or_else(|_| at.0.to_string(), |time| time.to_string())
}

/// Nano-units of a decimal that [`decimal`] wrote.
fn nano(text: &str) -> i128 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let amount = digits.parse::<i128>().unwrap_or_default();
    if text.starts_with('-') { -amount } else { amount }
}

/// Nano-units as a decimal with nine places.
fn decimal(money: Money) -> String {
    const UNIT: u128 = 1_000_000_000;
    let sign = if money.0 < 0 { "-" } else { "" };
    let amount = money.0.unsigned_abs();
    format!("{sign}{}.{:09}", amount / UNIT, amount % UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_a_decimal_with_every_place() {
        assert_eq!(decimal(Money(2_500_000_000)), "2.500000000");
        assert_eq!(decimal(Money(-1)), "-0.000000001");
        assert_eq!([nano("2.500000000"), nano("-0.000000001")], [2_500_000_000, -1]);
    }
}
