//! What a job, or a part of one, held and used.

use serde::{Deserialize, Serialize};

use super::bill::BillLine;
use super::explanation::WorkloadUsage;
use super::json;
use crate::model::{EnergySum, Microjoules, Money, TimeSum, Utc};

/// What a job or a step held and used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobUsage {
    /// Begin of the first minute.
    #[serde(with = "json::time")]
    pub start: Utc,
    /// End of the last minute.
    #[serde(with = "json::time")]
    pub end: Utc,
    #[serde(with = "json::integer")]
    pub held_ns: TimeSum,
    #[serde(with = "json::integer")]
    pub used_ns: TimeSum,
    /// Held, and used by others.
    #[serde(with = "json::integer")]
    pub lent_ns: TimeSum,
    /// Held, and used by nobody.
    #[serde(with = "json::integer")]
    pub idle_ns: TimeSum,
    /// Held while activity was unknown.
    #[serde(with = "json::integer")]
    pub unmeasured_ns: TimeSum,
    /// Held while the GPU was lost or failed.
    #[serde(with = "json::integer")]
    pub unavailable_ns: TimeSum,
    /// Held and used time divided by held and measured time; absent if that is 0.
    pub efficiency: Option<f64>,
    /// The part of the minutes in which it was there throughout that it kept the GPU busy; absent without such a minute.
    pub activity: Option<f64>,
    /// Used time in these minutes.
    #[serde(with = "json::integer")]
    pub busy_ns: TimeSum,
    /// Measured time of its slots in these minutes.
    #[serde(with = "json::integer")]
    pub measured_slot_ns: TimeSum,
    /// End of the last minute in which it used something; absent if it never did.
    #[serde(default, with = "json::optional_time")]
    pub last_use: Option<Utc>,
    /// Held after that while activity was unknown, or while the GPU was lost or failed.
    #[serde(default, with = "json::integer")]
    pub unknown_after_use_ns: TimeSum,
    /// Energy after that above that of an idle GPU, while a process of it was there and the GPU was not busy.
    #[serde(default, with = "json::integer")]
    pub waiting_after_use_uj: EnergySum,
    /// Its most memory on one GPU in a tick; where several steps had some at once, at least their mean over a minute.
    #[serde(with = "json::integer")]
    pub memory_peak_bytes: u64,
    /// Absent if no GPU's energy was measured.
    #[serde(default, with = "json::optional_integer")]
    pub energy_uj: Option<EnergySum>,
    /// What it costs; absent without prices.
    #[serde(default, with = "json::optional_money")]
    pub money: Option<Money>,
}

impl JobUsage {
    /// What lines held, used and cost, without times.
    pub fn of_lines(lines: &[&BillLine]) -> Self {
        Self::new(lines, std::iter::empty())
    }

    /// The use of lines, and the times and memory that were found of them.
    pub(super) fn new<'a>(lines: &[&BillLine], found: impl Iterator<Item = &'a WorkloadUsage>) -> Self {
        let mut usage = Self { start: Utc(u64::MAX), ..Self::default() };
        let mut lent_used = Vec::new();
        for line in lines {
            let BillLine { amounts, has_energy, money, .. } = line;
            let parts = &amounts.parts;
            let time = |time: u64| TimeSum(time.into());
            lent_used.push([parts.lent, amounts.used.beyond + amounts.used.outside].map(u128::from));
            usage.add(&Self {
                start: Utc(u64::MAX),
                held_ns: time(parts.held()),
                used_ns: time(amounts.used.total()),
                lent_ns: time(parts.lent),
                idle_ns: time(parts.idle),
                unmeasured_ns: time(parts.unmeasured),
                unavailable_ns: time(parts.unavailable),
                energy_uj: has_energy.then(|| Microjoules(line.energy()).into()),
                money: *money,
                ..Self::default()
            });
        }
        usage.lent_ns.0 -= used_by_others(&lent_used);
        for one in found {
            usage.add(&Self {
                start: one.from,
                end: one.to,
                busy_ns: one.busy.into(),
                measured_slot_ns: one.measured_slot.into(),
                last_use: one.last_use,
                unknown_after_use_ns: one.unknown_after_use.into(),
                waiting_after_use_uj: one.waiting_after_use.into(),
                memory_peak_bytes: one.memory_peak_bytes,
                ..Self::default()
            });
        }
        usage.set_ratios();
        usage
    }

    /// The sum, from the first start to the last end.
    pub fn sum(all: &[&Self]) -> Self {
        let mut sum = all.first().copied().cloned().unwrap_or_default();
        all.iter().skip(1).for_each(|one| sum.add(one));
        sum
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
        self.last_use = self.last_use.max(other.last_use);
        let sums: [(&mut TimeSum, TimeSum); 9] = [
            (&mut self.held_ns, other.held_ns),
            (&mut self.used_ns, other.used_ns),
            (&mut self.lent_ns, other.lent_ns),
            (&mut self.idle_ns, other.idle_ns),
            (&mut self.unmeasured_ns, other.unmeasured_ns),
            (&mut self.unavailable_ns, other.unavailable_ns),
            (&mut self.busy_ns, other.busy_ns),
            (&mut self.measured_slot_ns, other.measured_slot_ns),
            (&mut self.unknown_after_use_ns, other.unknown_after_use_ns),
        ];
        for (sum, one) in sums {
            *sum += one;
        }
        self.waiting_after_use_uj += other.waiting_after_use_uj;
        self.memory_peak_bytes = self.memory_peak_bytes.max(other.memory_peak_bytes);
        if let Some(energy) = other.energy_uj {
            *self.energy_uj.get_or_insert_default() += energy;
        }
        self.money = self.money.map_or(other.money, |sum| Some(sum + other.money.unwrap_or_default()));
        self.set_ratios();
    }

    /// Held while its use, or that it used nothing, was known.
    pub fn measured(&self) -> TimeSum {
        TimeSum(self.held_ns.0.saturating_sub(self.unmeasured_ns.0 + self.unavailable_ns.0))
    }

    fn set_ratios(&mut self) {
        let measured = self.measured().0;
        let unused = self.lent_ns.0 + self.idle_ns.0;
        self.efficiency = ratio(measured.saturating_sub(unused), measured);
        self.activity = ratio(self.busy_ns.0, self.measured_slot_ns.0);
    }
}

/// A ratio with four decimals.
fn ratio(part: u128, whole: u128) -> Option<f64> {
    let ten_thousandths = (part * 10_000).checked_div(whole)?;
    u32::try_from(ten_thousandths).ok().map(|share| f64::from(share) / 10_000.0)
}

/// The most that one line lent and another line used, given what each line lent and used outside its holding. A line
/// never uses what it lends itself.
fn used_by_others(lent_used: &[[u128; 2]]) -> u128 {
    let lent: u128 = lent_used.iter().map(|[lent, _]| lent).sum();
    let used: u128 = lent_used.iter().map(|[_, used]| used).sum();
    let without_own = lent_used.iter().map(|[own_lent, own_used]| lent + used - own_lent - own_used);
    without_own.min().unwrap_or(0).min(lent).min(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Amounts, GpuId, HolderId, Parts, Use};

    fn line(holder: &str, parts: Parts, used: Use) -> BillLine {
        let gpu = GpuId { index: 0, uuid: "GPU-0".into() };
        let amounts = Amounts { parts, used, ..Amounts::default() };
        BillLine { amounts, ..BillLine::empty(gpu, HolderId::new(holder)) }
    }

    fn use_of(lines: &[BillLine]) -> JobUsage {
        JobUsage::new(&lines.iter().collect::<Vec<_>>(), std::iter::empty())
    }

    #[test]
    fn time_that_a_step_lends_and_the_batch_step_uses_is_used_by_the_job() {
        let parts = Parts { within: 2, lent: 6, idle: 2, ..Parts::default() };
        let step = line("slurm:c/1.0", parts, Use { within: 2, ..Use::default() });
        let batch = line("slurm:c/1.batch", Parts::default(), Use { outside: 5, ..Use::default() });
        let job = use_of(&[step.clone(), batch]);
        let times = [job.held_ns, job.used_ns, job.lent_ns, job.idle_ns];
        assert_eq!(times, [10, 7, 1, 2].map(TimeSum));
        assert_eq!(job.efficiency, Some(0.7));
        let mut own = step;
        own.amounts.used.beyond = 5;
        let job = use_of(&[own]);
        let found = (job.lent_ns.0, job.idle_ns.0, job.efficiency);
        assert_eq!(found, (6, 2, Some(0.2)), "its own use was at other times");
    }
}
