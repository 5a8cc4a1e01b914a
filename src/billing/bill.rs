//! The bill of a period: what each holder held, used and owes on each GPU, and the proof that its sums agree.
//!
//! There is one bill. It is JSON in the API, and text and CSV are views of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{self, GpuIdJson, LineJson};
use super::money::{ExactMoney, MoneyOverflow, round_together};
use super::schedule::RecordedRate;
use crate::model::{
    ActivitySource, Amounts, GpuId, Grade, HolderId, Method, Money, Nanoseconds, Price, Utc, VisibleAccount,
};

/// The account of a span of whole minutes. Money is of [`Bill::currency`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bill {
    /// Name of the node; empty where it is unknown.
    #[serde(default)]
    pub node: String,
    /// The cluster to which the node belongs.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Whether the GPUs are simulated.
    #[serde(default)]
    pub simulated: bool,
    /// First minute.
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of the last minute: as asked for, or `closed_until` where that is earlier.
    #[serde(with = "json::time")]
    pub to: Utc,
    /// First minute in the time zone of the machine where the bill is made.
    #[serde(default)]
    pub from_local: String,
    /// End of the last minute in that time zone.
    #[serde(default)]
    pub to_local: String,
    /// That time zone.
    #[serde(default)]
    pub time_zone: String,
    /// The requested end in that time zone, where the bill ends earlier because later minutes are not closed yet.
    #[serde(default)]
    pub asked_to: Option<String>,
    /// Every GPU's minutes are closed up to this time.
    #[serde(with = "json::time")]
    pub closed_until: Utc,
    /// Whether it has lines of some tenants only. Then sums are of these lines, and there are no GPUs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Currency of all money here; absent where no price was in force.
    pub currency: Option<String>,
    /// The prices that were in force, in order of time.
    #[serde(default)]
    pub prices: Vec<BillPrice>,
    /// Whether the prices are gpumeter's example prices instead of the operator's.
    #[serde(default)]
    pub example_prices: bool,
    /// GPU time without a price in force; absent where no prices were ever configured.
    #[serde(default, rename = "unpriced_ns")]
    pub unpriced: Option<Nanoseconds>,
    /// Lines by tenant, GPU and holder; remainders have lines too.
    pub lines: Vec<BillLine>,
    /// Attributes of the tenants of the lines, such as a cost center, by tenant and name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_attributes: BTreeMap<String, BTreeMap<String, String>>,
    /// Totals by GPU.
    pub gpus: Vec<BillGpu>,
    /// Sums that were computed separately and must agree.
    pub reconciliation: Reconciliation,
}

/// A price, and the GPU time under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillPrice {
    /// Begin of the price, possibly before the bill; absent for one that was always in force.
    #[serde(default, with = "json::optional_time")]
    pub since: Option<Utc>,
    /// Money per GPU-hour.
    #[serde(with = "json::money")]
    pub gpu_hour: Money,
    /// Price class.
    pub class: String,
    /// How it follows from what the operator gave, as `32.77 per node-hour / 8 GPUs`; absent where it was given itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derivation: Option<String>,
    /// GPU time under it.
    #[serde(rename = "slot_ns")]
    pub slot: Nanoseconds,
    /// Money of that time.
    #[serde(with = "json::money")]
    pub money: Money,
}

/// What one version of a holder held and used on one slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "LineJson", try_from = "LineJson")]
pub struct BillLine {
    /// The tenant.
    pub tenant: String,
    /// The version of the holder.
    pub holder: HolderId,
    /// Facts of the holder, by label of `gpu_workload_info`.
    pub labels: BTreeMap<String, String>,
    /// The GPU.
    pub gpu: GpuId,
    /// Id of the GPU instance; none for a whole GPU, and for time of a MIG GPU that is no instance's.
    pub gpu_instance: Option<u32>,
    /// What the holder held, used and drew.
    pub amounts: Amounts,
    /// Whether the GPU's energy was measured; if not, the energy in `amounts` is meaningless.
    pub has_energy: bool,
    /// The worst grade of any minute.
    pub grade: Grade,
    /// `Bridged` if any minute was.
    pub method: Method,
    /// Whether any minute is a share of merged windows.
    pub coarse: bool,
    /// The coarsest activity source of each minute, each once.
    pub sources: Vec<ActivitySource>,
    /// Time for which `money` is charged: held less unavailable, and for `__unavailable__` all unavailable time, while a
    /// price was in force.
    pub charged: Nanoseconds,
    /// The same time while no price was in force.
    pub unpriced: Nanoseconds,
    /// Money of the charged time; none where no price was in force in the whole bill.
    pub money: Option<Money>,
    /// The same before it was rounded; of a bill that was read from JSON, the rounded one.
    pub exact: ExactMoney,
}

/// One GPU's total, from the times recorded for the GPU itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillGpu {
    /// The GPU.
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    /// Product name.
    pub model: String,
    /// GPU time.
    #[serde(rename = "slot_ns")]
    pub slot: Nanoseconds,
    /// End of its account; before the end of the bill only where the GPU is gone.
    #[serde(with = "json::time")]
    pub settled_until: Utc,
    /// Its money; none where no price was in force in the whole bill.
    #[serde(default, with = "json::optional_money")]
    pub money: Option<Money>,
    /// Its time by rate; empty in a bill that was read from JSON.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
}

/// GPU time under one rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The rate; none where no rate was in force.
    pub rate: Option<RecordedRate>,
    /// GPU time.
    pub slot: Nanoseconds,
    /// Money of that time; 0 without a rate.
    pub money: ExactMoney,
}

/// Sums that were computed separately and must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// GPU time of all GPUs.
    #[serde(rename = "slot_ns")]
    pub slot: Nanoseconds,
    /// Held time of all lines.
    #[serde(rename = "held_ns")]
    pub held: Nanoseconds,
    /// GPU time - held time, in nanoseconds; must be 0.
    #[serde(rename = "imbalance_ns", with = "json::integer")]
    pub imbalance: i128,
    /// Money of all GPUs.
    #[serde(with = "json::money")]
    pub gpu_money: Money,
    /// Money of all lines.
    #[serde(with = "json::money")]
    pub line_money: Money,
    /// Money of GPUs - money of lines; must be 0. It is not 0 where they differ by less than a nano-unit.
    #[serde(with = "json::money")]
    pub imbalance_money: Money,
}

impl BillLine {
    /// A line without time.
    pub fn empty(gpu: GpuId, holder: HolderId) -> Self {
        Self {
            tenant: String::new(),
            holder,
            labels: BTreeMap::new(),
            gpu,
            gpu_instance: None,
            amounts: Amounts::default(),
            has_energy: false,
            grade: Grade::Measured,
            method: Method::Observed,
            coarse: false,
            sources: Vec::new(),
            charged: Nanoseconds(0),
            unpriced: Nanoseconds(0),
            money: None,
            exact: ExactMoney::ZERO,
        }
    }

    /// Adds a line of the same holder on the same slot.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add(&mut self, other: &Self) -> Result<(), MoneyOverflow> {
        self.amounts.add(&other.amounts);
        self.has_energy |= other.has_energy;
        self.grade = self.grade.max(other.grade);
        self.method = self.method.max(other.method);
        self.coarse |= other.coarse;
        self.sources.extend(&other.sources);
        self.sources.sort();
        self.sources.dedup();
        self.charged += other.charged;
        self.unpriced += other.unpriced;
        self.exact = self.exact.plus(other.exact)?;
        Ok(())
    }
}

impl BillGpu {
    /// Adds GPU time under a rate.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add(&mut self, slot: Nanoseconds, rate: Option<&RecordedRate>) -> Result<(), MoneyOverflow> {
        let nano_per_gpu_hour = rate.map_or(0, |rate| rate.price.nano_per_gpu_hour);
        let money = ExactMoney::of_time(nano_per_gpu_hour, slot.0);
        self.slot += slot;
        match self.intervals.iter_mut().find(|interval| interval.rate.as_ref() == rate) {
            Some(known) => (known.slot, known.money) = (known.slot + slot, known.money.plus(money)?),
            None => self.intervals.push(Interval { rate: rate.cloned(), slot, money }),
        }
        Ok(())
    }
}

impl BillGpu {
    /// Its money before it was rounded; 0 of a bill that was read from JSON.
    ///
    /// # Errors
    /// It does not fit.
    pub fn exact(&self) -> Result<ExactMoney, MoneyOverflow> {
        ExactMoney::sum(self.intervals.iter().map(|interval| interval.money))
    }
}

impl Bill {
    /// Sets everything that follows from exact lines and GPUs: prices, reconciliation, and the money that is shown, which is
    /// rounded down to nano-units such that lines, GPUs and prices each sum to the same total.
    ///
    /// # Errors
    /// A sum of money does not fit.
    pub fn add_up(&mut self) -> Result<(), MoneyOverflow> {
        let by_gpu: Vec<ExactMoney> = self.gpus.iter().map(BillGpu::exact).collect::<Result<_, _>>()?;
        let by_line: Vec<ExactMoney> = self.lines.iter().map(|line| line.exact).collect();
        if self.currency.is_some() {
            for (gpu, money) in self.gpus.iter_mut().zip(round_together(&by_gpu, 1)?) {
                gpu.money = Some(money);
            }
            for (line, money) in self.lines.iter_mut().zip(round_together(&by_line, 1)?) {
                line.money = Some(money);
            }
        }
        self.prices = prices(&self.gpus)?;
        let (gpu_money, line_money) = (ExactMoney::sum(by_gpu)?, ExactMoney::sum(by_line)?);
        let slot: Nanoseconds = self.gpus.iter().map(|gpu| gpu.slot).sum();
        let held: Nanoseconds = self.lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum();
        let (difference, rest) = gpu_money.minus(line_money)?.into_parts();
        self.reconciliation = Reconciliation {
            slot,
            held,
            imbalance: i128::from(slot.0) - i128::from(held.0),
            gpu_money: gpu_money.floor(),
            line_money: line_money.floor(),
            imbalance_money: Money(difference.0 + i128::from(difference.0 >= 0 && rest > 0)),
        };
        Ok(())
    }

    /// The bill as a reader may see it: with these lines only, and sums of these lines.
    pub fn visible_to(mut self, visible: &VisibleAccount) -> Self {
        if *visible == VisibleAccount::Everything {
            return self;
        }
        self.lines.retain(|line| {
            visible.shows(&line.tenant, |fact| line.labels.get(fact.label()).map(String::as_str))
        });
        self.tenant_attributes.retain(|tenant, _| self.lines.iter().any(|line| line.tenant == *tenant));
        let held: Nanoseconds = self.lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum();
        let money: Money = self.lines.iter().filter_map(|line| line.money).sum();
        self.unpriced = self.unpriced.map(|_| self.lines.iter().map(|line| line.unpriced).sum());
        self.gpus.clear();
        // Prices are public; what was charged by them is a sum over all tenants.
        for price in &mut self.prices {
            (price.slot, price.money) = (Nanoseconds(0), Money(0));
        }
        self.reconciliation = Reconciliation {
            slot: held,
            held,
            gpu_money: money,
            line_money: money,
            ..Reconciliation::default()
        };
        Self { partial: true, ..self }
    }

    /// Whether every sum agrees.
    pub fn is_balanced(&self) -> bool {
        let proof = &self.reconciliation;
        (proof.imbalance, proof.imbalance_money) == (0, Money(0))
            && (proof.slot, proof.gpu_money) == (proof.held, proof.line_money)
    }
}

/// Begin, nano-units per GPU-hour, class and derivation.
type PriceKey<'a> = (Utc, i64, &'a str, Option<&'a str>);

/// The prices of all GPUs, each once, with the time and money of all GPUs under it.
fn prices(gpus: &[BillGpu]) -> Result<Vec<BillPrice>, MoneyOverflow> {
    let mut sums: BTreeMap<PriceKey<'_>, (Nanoseconds, ExactMoney)> = BTreeMap::new();
    for interval in gpus.iter().flat_map(|gpu| &gpu.intervals) {
        let Some(rate) = &interval.rate else { continue };
        let Price { tariff, nano_per_gpu_hour } = &rate.price;
        let key = (rate.begin, *nano_per_gpu_hour, &*tariff.class, rate.derivation.as_deref());
        let (slot, money) = sums.entry(key).or_default();
        *slot += interval.slot;
        *money = money.plus(interval.money)?;
    }
    let rounded = round_together(&sums.values().map(|sum| sum.1).collect::<Vec<_>>(), 1)?;
    let prices =
        sums.into_iter().zip(rounded).map(|(((begin, nano, class, derivation), (slot, _)), money)| {
            BillPrice {
                since: Some(begin).filter(|begin| begin.0 > 0),
                gpu_hour: Money(nano.into()),
                class: class.to_owned(),
                derivation: derivation.map(str::to_owned),
                slot,
                money,
            }
        });
    Ok(prices.collect())
}
