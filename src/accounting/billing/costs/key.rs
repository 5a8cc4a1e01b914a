//! What sums of costs are told apart by, and the sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounting::billing::{BillLine, ExactMoney, LineView, MoneyOverflow};
use crate::model::{EnergySum, GpuId, HolderId, Microjoules, Money, NodeIdentity, PARTS, TimeSum, USES};

/// What tells sums apart. A source makes each key once, so that a draft looks at it once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CostKey {
    pub node: Arc<NodeIdentity>,
    pub model: Arc<str>,
    pub tenant: Arc<str>,
    /// The price class; none where no price was in force.
    pub class: Option<Arc<str>>,
    /// Where the request needs it.
    pub workload: Option<CostWorkload>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CostWorkload {
    pub gpu: GpuId,
    /// With its version.
    pub holder: HolderId,
    /// Facts of the holder, by label of `gpu_workload_info`.
    pub labels: Arc<BTreeMap<String, String>>,
}

impl CostWorkload {
    /// What people call it.
    pub(super) fn title(&self) -> Option<String> {
        self.holder.kind().title(|fact| self.labels.get(fact.label()).map(String::as_str))
    }
}

impl CostKey {
    pub fn is_same_without_workload(&self, other: &Self) -> bool {
        (&self.node, &self.model, &self.tenant, &self.class)
            == (&other.node, &other.model, &other.tenant, &other.class)
    }

    /// What groups and filters look at; `attributes` are those of its tenant.
    pub fn view<'a>(&'a self, attributes: Option<&'a BTreeMap<String, String>>) -> LineView<'a> {
        let workload = self.workload.as_ref();
        LineView {
            tenant: &self.tenant,
            holder: workload.map(|workload| &workload.holder),
            labels: workload.map(|workload| &*workload.labels),
            gpu: workload.map(|workload| &workload.gpu),
            model: Some(&self.model),
            class: self.class.as_deref(),
            rate: (0, None),
            node: Some(&self.node.name),
            cluster: self.node.cluster.as_deref(),
            pool: self.node.pool.as_deref(),
            day: None,
            attributes,
        }
    }
}

/// Sums over any number of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostSums {
    /// The parts of held time, then the shares of used time, in the order of [`PARTS`] and [`USES`].
    pub times: [TimeSum; PARTS.len() + USES.len()],
    /// The time that the money is for.
    pub charged: TimeSum,
    /// The same time while no price was in force.
    pub unpriced: TimeSum,
    /// None where it was not measured.
    pub energy: Option<EnergySum>,
    /// Of time and energy; 0 where no price was in force.
    pub money: ExactMoney,
    /// The part for energy; none where energy has no price of its own, or was not measured.
    pub energy_money: Option<ExactMoney>,
    /// Nanograms of CO2e, exact like money; none where energy was not measured, or the grams per kWh are not known.
    pub emissions: Option<ExactMoney>,
}

impl CostSums {
    /// Those of a priced line, with the nanograms of CO2e per kWh where these are known. Whether energy is measured is the
    /// line's [`BillLine::has_energy`].
    pub fn of_line(line: &BillLine, nanograms_per_kwh: Option<i64>) -> Self {
        let mut times = [TimeSum(0); PARTS.len() + USES.len()];
        for (time, amount) in times.iter_mut().zip(PARTS.iter().chain(USES)) {
            *time = TimeSum(amount.of(&line.amounts).into());
        }
        let energy = line.energy();
        let has_price = line.rates.energy.is_some();
        Self {
            times,
            charged: line.charged.into(),
            unpriced: line.unpriced.into(),
            energy: line.has_energy.then(|| Microjoules(energy).into()),
            money: line.exact,
            energy_money: (line.has_energy && has_price).then_some(line.exact_energy),
            emissions: nanograms_per_kwh
                .filter(|_| line.has_energy)
                .map(|nano| ExactMoney::of_energy(nano, energy)),
        }
    }

    /// Adds other sums.
    ///
    /// # Errors
    /// The money does not fit.
    pub fn add(&mut self, other: &Self) -> Result<(), MoneyOverflow> {
        for (time, more) in self.times.iter_mut().zip(other.times) {
            *time += more;
        }
        self.charged += other.charged;
        self.unpriced += other.unpriced;
        self.energy = match (self.energy, other.energy) {
            (Some(one), Some(other)) => Some(EnergySum(one.0 + other.0)),
            (one, other) => one.or(other),
        };
        self.money = self.money.plus(other.money)?;
        self.energy_money = plus(self.energy_money, other.energy_money)?;
        self.emissions = plus(self.emissions, other.emissions)?;
        Ok(())
    }

    /// Whether there is neither time nor energy nor money.
    pub fn is_nothing(&self) -> bool {
        let energy = self.energy.filter(|energy| energy.0 > 0);
        Self { energy, energy_money: None, emissions: None, ..*self } == Self::default()
    }

    pub fn held(&self) -> u128 {
        self.times[..PARTS.len()].iter().map(|time| time.0).sum()
    }

    pub const fn idle(&self) -> u128 {
        self.times[2].0
    }

    pub const fn unavailable(&self) -> u128 {
        self.times[4].0
    }

    pub fn used(&self) -> u128 {
        self.times[PARTS.len()..].iter().map(|time| time.0).sum()
    }
}

fn plus(one: Option<ExactMoney>, other: Option<ExactMoney>) -> Result<Option<ExactMoney>, MoneyOverflow> {
    match (one, other) {
        (Some(one), Some(other)) => one.plus(other).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

/// What rows of a report have in money, rounded together, so that they add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundedMoney {
    pub money: Option<Money>,
    pub energy: Option<Money>,
    /// In nanograms.
    pub emissions: Option<Money>,
    pub spread: Option<Money>,
}

impl RoundedMoney {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { money, energy, emissions, spread } = self;
        for (sum, more) in [
            (money, other.money),
            (energy, other.energy),
            (emissions, other.emissions),
            (spread, other.spread),
        ] {
            *sum = match (*sum, more) {
                (Some(one), Some(other)) => Some(one + other),
                (one, other) => one.or(other),
            };
        }
    }
}
