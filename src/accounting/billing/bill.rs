//! The bill of a period: what each holder held, used and owes on each GPU, and the proof that its sums agree.
//!
//! There is one bill for each span in one currency. It is JSON in the API, and text, CSV and HTML are views of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::day::ExportedFile;
use super::explanation::FleetReasons;
use super::json::{self, GpuIdJson};
use super::money::{ExactMoney, MoneyOverflow, SumOverflow, round_to, round_together};
use super::month::{DifferingBudgets, TenantBudget};
use super::pricing::nano_per_gpu_hour;
use super::rate::{EXAMPLE, Rate, RateKind, RateSelector};
use super::schedule::Recorded;
use super::terms::{Terms, charges_unheld};
use crate::model::{
    ActivitySource, Amounts, Bytes, EnergySum, GpuId, Grade, HolderId, HoldingSource, HowHeld, Method,
    Microjoules, MigProfile, Money, Nanoseconds, NodeIdentity, RESERVED, SlotId, TimeSum, Utc,
    VisibleAccount,
};

/// The account of a span of whole minutes. Money is of [`Bill::currency`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bill {
    /// Name of the node; empty where it is unknown.
    #[serde(default)]
    pub node: String,
    #[serde(default)]
    pub cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<Fleet>,
    /// How GPUs are held on the node where no grant names them; absent where it is not known, where it became so after the
    /// begin, and in a bill over exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how_held: Option<HowHeld>,
    /// Where claims of one rank did not fit together, so that each was charged for a part; empty in a bill over exports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_conflicts: Vec<ClaimConflict>,
    /// The account to which the costs belong, for FOCUS; absent where `billing.account` is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing_account: Option<String>,
    /// The organisation that charges for the GPUs, for FOCUS; absent where `billing.invoice_issuer` is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice_issuer: Option<String>,
    #[serde(default)]
    pub simulated: bool,
    #[serde(with = "json::time")]
    pub from: Utc,
    /// End of the last minute: as asked for, or `closed_until` where that is earlier.
    #[serde(with = "json::time")]
    pub to: Utc,
    /// First minute in the time zone of the machine where the bill is made.
    #[serde(default)]
    pub from_local: String,
    #[serde(default)]
    pub to_local: String,
    #[serde(default)]
    pub time_zone: String,
    /// The requested end in that time zone, where the bill ends earlier because later minutes are not closed yet.
    #[serde(default)]
    pub asked_to: Option<String>,
    #[serde(with = "json::time")]
    pub closed_until: Utc,
    /// Whether it has lines of some tenants only. Then sums are of these lines, and GPUs are theirs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Currency of all money here; absent where no price was in force.
    pub currency: Option<String>,
    /// The rates that were in force, in order of their begin.
    #[serde(default)]
    pub rates: Vec<BillRate>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<BillTerms>,
    /// Whether the prices are gpumeter's example prices instead of the operator's.
    #[serde(default)]
    pub example_prices: bool,
    /// GPU time without a price in force; absent where no prices were ever configured.
    #[serde(default, rename = "unpriced_ns", with = "json::optional_integer")]
    pub unpriced: Option<TimeSum>,
    /// Lines by tenant, GPU, slot, holder, rates and, on request, day; remainders have lines too.
    pub lines: Vec<BillLine>,
    /// Attributes of the tenants of the lines, such as a cost center, by tenant and name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_attributes: BTreeMap<String, BTreeMap<String, String>>,
    /// Monthly budgets of the tenants of the lines: those of the month in which the bill ends.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenant_budgets: BTreeMap<String, TenantBudget>,
    pub gpus: Vec<BillGpu>,
    pub reconciliation: Reconciliation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimConflict {
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    /// The MIG instance; absent for a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    pub holders: Vec<String>,
    /// In how many quarter hours, a part of one included.
    pub quarter_hours: u64,
}

/// A period in which prices changed their currency, where one bill is needed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prices are in {first} and, since {since}, in {second}, and this needs a period in one currency")]
pub struct SeveralCurrencies {
    first: String,
    second: String,
    since: String,
}

/// The only bill of a period.
///
/// # Errors
/// There are several, of spans in different currencies.
pub fn only_bill(bills: Vec<Bill>) -> Result<Bill, SeveralCurrencies> {
    <[Bill; 1]>::try_from(bills).map(|[bill]| bill).map_err(|bills| {
        let mut bills = bills.iter();
        let [first, second] = [bills.next(), bills.next()];
        let currency = |bill: Option<&Bill>| bill.and_then(|bill| bill.currency.clone()).unwrap_or_default();
        SeveralCurrencies {
            first: currency(first),
            second: currency(second),
            since: second.map(|bill| bill.from.to_string()).unwrap_or_default(),
        }
    })
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    pub nodes: u64,
    pub clusters: Vec<String>,
    /// What a reader must know about the exports, such as nodes that are behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Time of GPUs that is set aside, since two ledgers held a GPU at one time; it is in no line and no sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<GpuConflict>,
    /// Budgets of the tenants of the lines that differ between nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing_budgets: Vec<DifferingBudgets>,
    /// The files that were read, with their digests where these are wanted; empty in a bill that was read from JSON, as are the
    /// next ones.
    #[serde(skip)]
    pub files: Vec<ExportedFile>,
    /// What is missing by the list of expected nodes, each in words.
    #[serde(skip)]
    pub gaps: Vec<String>,
    /// Where lines are selected, why they are what they are.
    #[serde(skip)]
    pub reasons: FleetReasons,
}

impl Fleet {
    /// For readers of some lines: that something may be missing, and not of whom.
    pub(super) fn note_without_names(&self) -> Option<String> {
        let is_whole = self.notes.is_empty() && self.conflicts.is_empty() && self.gaps.is_empty();
        let note = "MAY BE INCOMPLETE: time of some nodes is missing, in conflict, or not checked";
        (!is_whole).then(|| note.to_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuConflict {
    pub gpu: String,
    /// The date in UTC.
    pub date: String,
    pub ledgers: Vec<ConflictingLedger>,
}

/// A ledger whose time of a GPU on one day is set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictingLedger {
    /// Its id and node, `ID of NODE`.
    pub ledger: String,
    /// Its time of the GPU on that day, in the period of the bill.
    #[serde(rename = "held_ns", with = "json::integer")]
    pub held: TimeSum,
}

impl std::fmt::Display for GpuConflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ledgers: Vec<&str> = self.ledgers.iter().map(|one| &*one.ledger).collect();
        write!(f, "{} on {} is held in the ledgers {}", self.gpu, self.date, ledgers.join(" and "))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillRate {
    /// Its number in the ledger, to which lines refer.
    #[serde(with = "json::integer")]
    pub id: i64,
    pub unit: RateKind,
    /// Money, or grams of CO2e, per unit.
    #[serde(with = "json::money")]
    pub price: Money,
    pub class: String,
    #[serde(default)]
    pub selector: RateSelector,
    /// Begin of the rate, possibly before the bill; absent for one that was always in force.
    #[serde(default, with = "json::optional_time")]
    pub since: Option<Utc>,
    /// The begin that the operator gave, where that time was final already, so that the rate begins later.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::optional_time")]
    pub given_since: Option<Utc>,
    /// Its end; absent while the operator's book has it.
    #[serde(default, with = "json::optional_time")]
    pub until: Option<Utc>,
    #[serde(default, with = "json::optional_time")]
    pub recorded: Option<Utc>,
    /// How it follows from what the operator gave, as `32.77 per node-hour / 8 GPUs`; absent where it was given itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derivation: Option<String>,
    /// Time under it, before terms: of a GPU's rate all time of the GPUs, of one of instances the time of these, which is in
    /// that of the GPUs too.
    #[serde(rename = "slot_ns", with = "json::integer")]
    pub slot: TimeSum,
    #[serde(default, rename = "energy_uj", with = "json::integer")]
    pub energy: EnergySum,
    /// Money of that time or energy; for emissions, grams.
    #[serde(with = "json::money")]
    pub money: Money,
}

impl BillRate {
    /// Its price in nano-units.
    ///
    /// # Errors
    /// It does not fit.
    pub fn nano(&self) -> Result<i64, MoneyOverflow> {
        i64::try_from(self.price.0).map_err(|_| MoneyOverflow)
    }

    /// The price of a GPU-hour of a line on a slot of that profile, in nano-units.
    ///
    /// # Errors
    /// It does not fit.
    pub fn nano_per_gpu_hour(&self, profile: Option<&MigProfile>) -> Result<i64, MoneyOverflow> {
        let instance = profile.filter(|_| self.unit == RateKind::InstanceHour);
        let nano = self.nano()?;
        Ok(instance.map_or(nano, |profile| nano_per_gpu_hour(nano, profile)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillTerms {
    /// Their number in the ledger, to which lines refer.
    #[serde(with = "json::integer")]
    pub id: i64,
    pub tenant: String,
    pub terms: String,
    /// Begin of the terms; absent for terms that always held.
    #[serde(default, with = "json::optional_time")]
    pub since: Option<Utc>,
    #[serde(default, with = "json::optional_time")]
    pub recorded: Option<Utc>,
}

/// The numbers of what prices a line; none where there is no such rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineRates {
    /// The rate of its time: that of its GPU, or of its MIG instance.
    pub time: Option<i64>,
    pub energy: Option<i64>,
    pub carbon: Option<i64>,
    pub terms: Option<i64>,
}

impl LineRates {
    /// The numbers that distinguish lines of `__terms__`; energy has no terms.
    #[must_use]
    pub const fn of_terms(self) -> Self {
        Self { energy: None, carbon: None, ..self }
    }

    /// The numbers that distinguish lines of `__rate_variance__`.
    pub const fn of_variance(self) -> Self {
        Self { time: self.time, energy: None, carbon: None, terms: None }
    }
}

/// What one version of a holder held and used on one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BillLine {
    pub tenant: String,
    pub holder: HolderId,
    /// Facts of the holder, by label of `gpu_workload_info`.
    pub labels: BTreeMap<String, String>,
    pub gpu: GpuId,
    pub slot: SlotId,
    /// Its node, in bills over exports that distinguish nodes.
    pub node: Option<Arc<NodeIdentity>>,
    /// The local date, in bills by day.
    pub day: Option<String>,
    pub rates: LineRates,
    pub amounts: Amounts,
    /// Whether the GPU's energy was measured; if not, the energy in `amounts` is meaningless.
    pub has_energy: bool,
    /// The worst grade of any minute.
    pub grade: Grade,
    /// `Bridged` if any minute was.
    pub method: Method,
    pub coarse: bool,
    /// The coarsest activity source of each minute, each once.
    pub sources: Vec<ActivitySource>,
    /// By whom what it held was granted, each once; empty where it held nothing.
    pub granted_by: Vec<HoldingSource>,
    /// Time for which `money` is charged while a price was in force: without terms, held less unavailable, and for
    /// `__unavailable__` all unavailable time.
    pub charged: Nanoseconds,
    /// The same time while no price was in force.
    pub unpriced: Nanoseconds,
    /// Money of the charged time and of the energy; none where no price was in force in the whole bill.
    pub money: Option<Money>,
    pub exact: ExactMoney,
    /// The part of `money` that is for energy; none where energy has no price of its own, or was not measured.
    pub energy_money: Option<Money>,
    pub exact_energy: ExactMoney,
    /// Grams of CO2e of its energy; none where its energy was not measured, or the grams per kWh are not configured.
    pub emissions: Option<Money>,
    /// Its share of the remainders that are spread over the tenants, negative for these remainders; `money` is without it.
    pub spread: Option<Money>,
}

/// One GPU's total, from the times recorded for the GPU itself; in a bill of some tenants, from their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillGpu {
    #[serde(flatten, with = "GpuIdJson")]
    pub gpu: GpuId,
    pub model: String,
    #[serde(rename = "slot_ns", with = "json::integer")]
    pub slot: Nanoseconds,
    /// Begin of its account, possibly before the bill.
    #[serde(default, with = "json::time")]
    pub accounted_since: Utc,
    /// End of its account; before the end of the bill only where the GPU is gone.
    #[serde(with = "json::time")]
    pub settled_until: Utc,
    /// Its money; none where no price was in force in the whole bill.
    #[serde(default, with = "json::optional_money")]
    pub money: Option<Money>,
    /// Its memory; none where that is unknown, and in a bill that was read from JSON.
    #[serde(skip)]
    pub memory: Option<Bytes>,
    /// Its time by rate; empty in a bill that was read from JSON.
    #[serde(skip)]
    pub intervals: Vec<Interval>,
    /// Money of its energy; 0 in a bill that was read from JSON.
    #[serde(skip)]
    pub energy_money: ExactMoney,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The number of the rate; none where no rate was in force.
    pub rate: Option<i64>,
    pub slot: Nanoseconds,
    /// Money of that time; 0 without a rate.
    pub money: ExactMoney,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    #[serde(rename = "slot_ns", with = "json::integer")]
    pub slot: TimeSum,
    #[serde(rename = "held_ns", with = "json::integer")]
    pub held: TimeSum,
    /// GPU time - held time, in nanoseconds; must be 0.
    #[serde(rename = "imbalance_ns", with = "json::integer")]
    pub imbalance: i128,
    #[serde(with = "json::money")]
    pub gpu_money: Money,
    #[serde(with = "json::money")]
    pub line_money: Money,
    /// Money of GPUs - money of lines; must be 0. It is not 0 where they differ by less than a nano-unit.
    #[serde(with = "json::money")]
    pub imbalance_money: Money,
}

impl BillLine {
    pub fn empty(gpu: GpuId, holder: HolderId) -> Self {
        Self { gpu, holder, ..Self::default() }
    }

    /// Adds a line of the same holder on the same slot under the same rates.
    ///
    /// # Errors
    /// The money, the time or the energy does not fit.
    pub fn add(&mut self, other: &Self) -> Result<(), SumOverflow> {
        self.add_amounts(&other.amounts, [other.charged, other.unpriced])?;
        self.has_energy |= other.has_energy;
        self.grade = self.grade.max(other.grade);
        self.method = self.method.max(other.method);
        self.coarse |= other.coarse;
        self.sources.extend(&other.sources);
        self.sources.sort();
        self.sources.dedup();
        self.granted_by.extend(&other.granted_by);
        self.granted_by.sort();
        self.granted_by.dedup();
        self.exact = self.exact.plus(other.exact)?;
        self.exact_energy = self.exact_energy.plus(other.exact_energy)?;
        Ok(())
    }

    /// Adds amounts, and charged and unpriced time.
    ///
    /// # Errors
    /// The time or the energy does not fit.
    pub fn add_amounts(
        &mut self,
        amounts: &Amounts,
        [charged, unpriced]: [Nanoseconds; 2],
    ) -> Result<(), SumOverflow> {
        let plus = |time: Nanoseconds, more: Nanoseconds| time.checked_add(more).ok_or(SumOverflow::Gpu);
        self.amounts = self.amounts.checked_add(amounts).ok_or(SumOverflow::Gpu)?;
        (self.charged, self.unpriced) = (plus(self.charged, charged)?, plus(self.unpriced, unpriced)?);
        Ok(())
    }

    /// Its time before terms as that of the instance, in nanoseconds; none of a line that has money alone.
    fn instance_time(&self) -> Result<u64, MoneyOverflow> {
        let parts = &self.amounts.parts;
        let time = match self.rates.terms {
            Some(_) => parts.held().saturating_sub(parts.unavailable),
            None => self.charged.0,
        };
        let Some(profile) = &self.slot.profile else { return Ok(time) };
        // Sizes are powers of two, so that this is exact.
        let time = u128::from(time) * u128::from(profile.total) / u128::from(profile.size.max(1));
        u64::try_from(time).map_err(|_| MoneyOverflow)
    }

    pub const fn energy(&self) -> u64 {
        self.amounts.energy_static.0.saturating_add(self.amounts.energy_dynamic.0)
    }
}

impl BillGpu {
    /// Adds GPU time under a rate, given by its number and its price in nano-units.
    ///
    /// # Errors
    /// The money or the time does not fit.
    pub fn add(&mut self, slot: Nanoseconds, rate: Option<(i64, i64)>) -> Result<(), SumOverflow> {
        let (rate, nano) = rate.unzip();
        let money = ExactMoney::of_time(nano.unwrap_or(0), slot.0);
        self.slot = self.slot.checked_add(slot).ok_or(SumOverflow::Gpu)?;
        match self.intervals.iter_mut().find(|interval| interval.rate == rate) {
            Some(known) => (known.slot, known.money) = (known.slot + slot, known.money.plus(money)?),
            None => self.intervals.push(Interval { rate, slot, money }),
        }
        Ok(())
    }

    pub fn unpriced(&self) -> Nanoseconds {
        self.intervals.iter().filter(|interval| interval.rate.is_none()).map(|interval| interval.slot).sum()
    }

    /// Its money before it was rounded; 0 of a bill that was read from JSON.
    ///
    /// # Errors
    /// It does not fit.
    pub fn exact(&self) -> Result<ExactMoney, MoneyOverflow> {
        ExactMoney::sum(self.intervals.iter().map(|interval| interval.money).chain([self.energy_money]))
    }
}

impl Bill {
    /// Sets everything that follows from exact lines, GPUs and rates: times and money of rates, reconciliation, and the money
    /// that is shown, which is rounded down to nano-units such that lines, GPUs and rates each sum to the same total.
    ///
    /// # Errors
    /// A sum of money does not fit.
    pub fn add_up(&mut self) -> Result<(), MoneyOverflow> {
        let by_gpu: Vec<ExactMoney> = self.gpus.iter().map(BillGpu::exact).collect::<Result<_, _>>()?;
        let by_line: Vec<ExactMoney> = self.lines.iter().map(|line| line.exact).collect();
        if self.currency.is_some() {
            for (gpu, money) in self.gpus.iter_mut().zip(round_together(&by_gpu)?) {
                gpu.money = Some(money);
            }
            self.round_lines(|line| line.rates.energy.is_some() && line.has_energy)?;
        }
        self.add_up_rates()?;
        let (gpu_money, line_money) = (ExactMoney::sum(by_gpu)?, ExactMoney::sum(by_line)?);
        let (slot, held) = (self.gpu_time(), self.held_time());
        let (difference, rest) = gpu_money.minus(line_money)?.into_parts();
        self.reconciliation = Reconciliation {
            slot,
            held,
            imbalance: slot.difference(held),
            gpu_money: gpu_money.floor(),
            line_money: line_money.floor(),
            imbalance_money: Money(difference.0 + i128::from(difference.0 >= 0 && rest > 0)),
        };
        Ok(())
    }

    /// Sets the money of lines that is shown; `has_energy_money` where a line has some for energy.
    pub(super) fn round_lines(
        &mut self,
        has_energy_money: impl Fn(&BillLine) -> bool,
    ) -> Result<(), MoneyOverflow> {
        let exact: Vec<ExactMoney> = self.lines.iter().map(|line| line.exact).collect();
        let energy: Vec<ExactMoney> = self.lines.iter().map(|line| line.exact_energy).collect();
        let rounded = round_together(&exact)?.into_iter().zip(round_together(&energy)?);
        for (line, (money, energy)) in self.lines.iter_mut().zip(rounded) {
            line.money = Some(money);
            line.energy_money = has_energy_money(line).then_some(energy);
        }
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
        self.keep_own();
        self
    }

    /// Leaves only what belongs to its lines, so that it may be shown to those who may see them and nothing else.
    pub(super) fn keep_own(&mut self) {
        self.keep_lines(|_| true);
        // Which of the other rates were in force tells which GPUs others hold: rates may be of nodes, models and UUIDs.
        let own = |line: &BillLine| [line.rates.time, line.rates.energy, line.rates.carbon];
        let own: BTreeSet<i64> = self.lines.iter().flat_map(own).flatten().collect();
        self.rates.retain(|rate| own.contains(&rate.id));
        self.hide_fleet();
    }

    /// Leaves of the fleet what the lines have: no nodes, conflicts and files of others.
    fn hide_fleet(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        let nodes = self.lines.iter().filter_map(|line| line.node.as_ref());
        let nodes: BTreeSet<_> = nodes.map(|node| (&node.cluster, &node.name)).collect();
        let clusters: BTreeSet<&String> = nodes.iter().filter_map(|(cluster, _)| cluster.as_ref()).collect();
        *fleet = Fleet {
            nodes: nodes.len() as u64,
            clusters: clusters.into_iter().cloned().collect(),
            notes: fleet.note_without_names().into_iter().collect(),
            reasons: std::mem::take(&mut fleet.reasons),
            ..Fleet::default()
        };
        self.cluster =
            Some(&fleet.clusters).filter(|all| all.len() == 1).and_then(|all| all.first().cloned());
    }

    /// Removes lines, and makes all sums those of the lines that are left.
    pub fn keep_lines(&mut self, is_kept: impl FnMut(&BillLine) -> bool) {
        self.lines.retain(is_kept);
        self.keep_tenants();
        let held = self.held_time();
        let money: Money = self.lines.iter().filter_map(|line| line.money).sum();
        self.unpriced = self.unpriced.map(|_| self.lines.iter().map(|line| line.unpriced).sum());
        let mut own = BTreeMap::<&str, (TimeSum, Money)>::new();
        for line in &self.lines {
            let sum = own.entry(&line.gpu.uuid).or_default();
            sum.0 += Nanoseconds(line.amounts.parts.held()).into();
            sum.1 += line.money.unwrap_or_default();
        }
        self.gpus.retain_mut(|gpu| {
            let Some((time, money)) = own.get(&*gpu.gpu.uuid) else { return false };
            gpu.slot = Nanoseconds(u64::try_from(time.0).unwrap_or(u64::MAX));
            gpu.money = gpu.money.map(|_| *money);
            (gpu.intervals, gpu.energy_money) = (Vec::new(), ExactMoney::ZERO);
            true
        });
        // Rates are public; what was charged by them is a sum over all tenants.
        for rate in &mut self.rates {
            (rate.slot, rate.energy, rate.money) = (TimeSum(0), EnergySum(0), Money(0));
        }
        let terms: BTreeSet<i64> = self.lines.iter().filter_map(|line| line.rates.terms).collect();
        self.terms.retain(|one| terms.contains(&one.id));
        self.reconciliation = Reconciliation {
            slot: held,
            held,
            gpu_money: money,
            line_money: money,
            ..Reconciliation::default()
        };
        // They name the holders of other lines.
        self.claim_conflicts.clear();
        self.partial = true;
    }

    /// Takes all lines out; their rates stay, without sums, and their terms.
    pub fn take_lines(&mut self) -> Vec<BillLine> {
        let (lines, terms) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.terms));
        let is_partial = self.partial;
        self.keep_lines(|_| false);
        (self.partial, self.terms) = (is_partial, terms);
        lines
    }

    pub fn keep_tenants(&mut self) {
        let tenants: BTreeSet<&str> = self.lines.iter().map(|line| &*line.tenant).collect();
        self.tenant_attributes.retain(|tenant, _| tenants.contains(&**tenant));
        self.tenant_budgets.retain(|tenant, _| tenants.contains(&**tenant));
        if let Some(fleet) = &mut self.fleet {
            fleet.differing_budgets.retain(|one| tenants.contains(&*one.tenant));
        }
    }

    /// Whether the terms of the line charge for use while nobody held the GPU.
    pub fn charges_unheld(&self, line: &BillLine) -> bool {
        let terms = self.terms.iter().find(|terms| Some(terms.id) == line.rates.terms);
        charges_unheld(terms.and_then(|terms| Terms::described(&terms.terms)).as_ref())
    }

    /// Divides the money of remainders among the lines of tenants by charged time, in a column of its own.
    ///
    /// # Errors
    /// A sum of money does not fit.
    pub fn spread(&mut self, remainders: &[String]) -> Result<(), MoneyOverflow> {
        let is_spread = |line: &BillLine| remainders.contains(&line.tenant);
        let spread =
            ExactMoney::sum(self.lines.iter().filter(|line| is_spread(line)).map(|line| line.exact))?;
        let weight = |line: &BillLine| if line.tenant.starts_with(RESERVED) { 0 } else { line.charged.0 };
        let weights: Vec<u64> = self.lines.iter().map(weight).collect();
        let shares = round_together(&spread.divide(&weights)?)?;
        // Without a tenant that is charged there is nobody to pay.
        if weights.iter().all(|weight| *weight == 0) {
            return Ok(());
        }
        let own: Vec<ExactMoney> = self
            .lines
            .iter()
            .map(|line| if is_spread(line) { line.exact } else { ExactMoney::ZERO })
            .collect();
        for ((line, share), own) in self.lines.iter_mut().zip(shares).zip(round_together(&own)?) {
            line.spread = Some(Money(share.0 - own.0));
        }
        Ok(())
    }

    pub(super) fn gpu_time(&self) -> TimeSum {
        self.gpus.iter().map(|gpu| gpu.slot).sum()
    }

    pub(super) fn held_time(&self) -> TimeSum {
        self.lines.iter().map(|line| Nanoseconds(line.amounts.parts.held())).sum()
    }

    pub fn is_balanced(&self) -> bool {
        let proof = &self.reconciliation;
        (proof.imbalance, proof.imbalance_money) == (0, Money(0))
            && (proof.slot, proof.gpu_money) == (proof.held, proof.line_money)
    }

    /// Sets time, energy and money of each rate: of GPUs from their intervals, of all else from the lines.
    fn add_up_rates(&mut self) -> Result<(), MoneyOverflow> {
        let mut sums: BTreeMap<i64, (TimeSum, EnergySum, ExactMoney)> = BTreeMap::new();
        for interval in self.gpus.iter().flat_map(|gpu| &gpu.intervals) {
            let Some(rate) = interval.rate else { continue };
            let sum = sums.entry(rate).or_default();
            sum.0 += interval.slot.into();
            sum.2 = sum.2.plus(interval.money)?;
        }
        let units: BTreeMap<i64, (RateKind, Money)> =
            self.rates.iter().map(|rate| (rate.id, (rate.unit, rate.price))).collect();
        let mut emissions = BTreeMap::<i64, Vec<(&mut BillLine, ExactMoney)>>::new();
        for line in &mut self.lines {
            let mut of_line = None;
            for id in [line.rates.time, line.rates.energy, line.rates.carbon].into_iter().flatten() {
                let sum = sums.entry(id).or_default();
                let Some((unit, price)) = units.get(&id) else { continue };
                match unit {
                    RateKind::GpuHour => {}
                    RateKind::InstanceHour => {
                        let time = line.instance_time()?;
                        let nano = i64::try_from(price.0).map_err(|_| MoneyOverflow)?;
                        sum.0 += Nanoseconds(time).into();
                        sum.2 = sum.2.plus(ExactMoney::of_time(nano, time))?;
                    }
                    RateKind::Kwh | RateKind::CarbonKwh => {
                        sum.1 += Microjoules(line.energy()).into();
                        let nano = i64::try_from(price.0).map_err(|_| MoneyOverflow)?;
                        let amount = ExactMoney::of_energy(nano, line.energy());
                        sum.2 = sum.2.plus(amount)?;
                        of_line = Some((id, amount)).filter(|_| *unit == RateKind::CarbonKwh);
                    }
                }
            }
            if let Some((id, amount)) = of_line.filter(|_| line.has_energy) {
                emissions.entry(id).or_default().push((line, amount));
            }
        }
        let by_rate: Vec<ExactMoney> =
            self.rates.iter().map(|rate| sums.get(&rate.id).map_or(ExactMoney::ZERO, |sum| sum.2)).collect();
        let rounded = round_rates(&self.rates, &by_rate)?;
        for (rate, money) in self.rates.iter_mut().zip(rounded) {
            let (slot, energy, _) = sums.get(&rate.id).copied().unwrap_or_default();
            (rate.slot, rate.energy, rate.money) = (slot, energy, money);
            // The lines of a rate sum to what it has.
            let (lines, exact): (Vec<_>, Vec<_>) = emissions.remove(&rate.id).into_iter().flatten().unzip();
            for (line, grams) in lines.into_iter().zip(round_to(&exact, money.0)) {
                line.emissions = Some(grams);
            }
        }
        Ok(())
    }
}

/// Rounds the money of rates, those of each unit together.
fn round_rates(rates: &[BillRate], exact: &[ExactMoney]) -> Result<Vec<Money>, MoneyOverflow> {
    let mut rounded = vec![Money(0); rates.len()];
    let units: BTreeSet<RateKind> = rates.iter().map(|rate| rate.unit).collect();
    for unit in units {
        let places: Vec<usize> = (0..rates.len()).filter(|place| rates[*place].unit == unit).collect();
        let of_unit: Vec<ExactMoney> = places.iter().map(|place| exact[*place]).collect();
        for (place, money) in places.into_iter().zip(round_together(&of_unit)?) {
            rounded[place] = money;
        }
    }
    Ok(rounded)
}

/// Marks the lines of GPUs with any energy. Every GPU draws power, so one without energy was not measured.
pub fn mark_measured_energy<R>(rows: &mut [R], line_of: impl Fn(&mut R) -> &mut BillLine) {
    let mut measured = BTreeSet::<Arc<str>>::new();
    for line in rows.iter_mut().map(&line_of) {
        if line.amounts.energy_static.max(line.amounts.energy_dynamic).0 > 0 {
            measured.insert(Arc::clone(&line.gpu.uuid));
        }
    }
    for line in rows.iter_mut().map(line_of) {
        line.has_energy = measured.contains(&line.gpu.uuid);
    }
}

impl BillTerms {
    pub fn new(recorded: &Recorded<Terms>) -> Self {
        Self {
            id: recorded.id,
            tenant: recorded.entry.tenant.clone(),
            terms: recorded.entry.describe().to_string(),
            since: Some(recorded.begin).filter(|begin| begin.0 > 0),
            recorded: Some(recorded.recorded),
        }
    }
}

impl BillRate {
    /// A recorded rate, without time or energy under it.
    pub fn new(recorded: &Recorded<Rate>) -> Self {
        let Rate { kind, selector, nano, tariff, derivation, .. } = &recorded.entry;
        Self {
            id: recorded.id,
            unit: *kind,
            price: Money((*nano).into()),
            class: tariff.class.to_string(),
            selector: selector.clone(),
            since: Some(recorded.begin).filter(|begin| begin.0 > 0),
            given_since: recorded.entry.from.filter(|from| *from < recorded.begin),
            until: recorded.end,
            recorded: Some(recorded.recorded),
            derivation: derivation.as_ref().map(ToString::to_string),
            ..Self::default()
        }
    }

    pub fn is_example(&self) -> bool {
        self.class.starts_with(EXAMPLE)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use serde_json::json;

    use super::super::made;

    #[test]
    fn emissions_of_lines_sum_to_those_of_their_rate() {
        // A third and two thirds of a kilowatt-hour at one nanogram per kilowatt-hour.
        let third = 1_200_000_000_000_u64;
        let line = |gpu: u32, energy: u64, rate: u32| {
            made::line(&json!({"gpu": gpu, "uuid": format!("GPU-{gpu}"), "carbon_rate": rate,
                "energy_static_uj": energy, "energy_dynamic_uj": 0}))
        };
        let rate = |id: u32| {
            json!({"id": id, "unit": "carbon_kwh", "price": "0.000000001", "class": "", "slot_ns": 0,
                "money": "0.000000000"})
        };
        let lines = [line(0, third, 1), line(1, 2 * third, 1), line(2, 2 * third, 1), line(3, third, 2)];
        let mut bill = made::bill(&json!({"lines": lines, "rates": [rate(1), rate(2)]}));
        bill.add_up().unwrap();
        let grams: Vec<i128> = bill.lines.iter().map(|line| line.emissions.unwrap().0).collect();
        assert_eq!(grams, [0, 1, 1, 0]);
        assert_eq!(bill.rates.iter().map(|rate| rate.money.0).collect::<Vec<_>>(), [2, 0]);
    }
}
