//! The driver's meters: readings derived from the truth, each with its documented distortion.
//!
//! In: a timeline and an elapsed time. Out: readings as NVML gives them: whole percent of completed windows,
//! power that is sampled a quarter of the time, temperatures that lag.

mod samples;

use crate::board::{Board, Limits};
use crate::schedule::{Timeline, Work};
use crate::surprise::Surprise;
pub(crate) use samples::{ProcessWindowSample, RING, Ring};

/// The power sensor's period, and the part of it that is sampled: 25 ms of every 100 ms on A100 and H100
/// (arXiv 2312.02741), so the mean misses three quarters of the time.
const POWER_PERIOD: u64 = 100_000_000;
const POWER_SEEN: u64 = 25_000_000;
const POWER_MEAN: u64 = 10;

/// Whole percent of the last complete utilization window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Utilization {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
    pub(crate) jpeg: u32,
    pub(crate) ofa: u32,
}

impl Utilization {
    /// The percentages of a window from busy nanoseconds and work.
    fn of(busy: u64, work: Work, window: u64) -> Self {
        Self {
            gpu: percent(busy, window),
            memory: percent(work.dram, window),
            encoder: percent(work.encoder, window),
            decoder: percent(work.decoder, window),
            jpeg: percent(work.jpeg, window),
            ofa: percent(work.ofa, window),
        }
    }
}

/// The meters of one GPU at one time.
pub(crate) struct Meters<'a> {
    pub(crate) timeline: &'a Timeline,
    pub(crate) board: &'a Board,
    /// Degrees by which this GPU's place in the chassis is warmer than the coolest.
    pub(crate) warmer: u32,
    pub(crate) surprise: Option<Surprise>,
    pub(crate) elapsed: u64,
}

impl Meters<'_> {
    pub(crate) fn utilization(&self) -> Utilization {
        let truth = self.utilization_of_work();
        match self.surprised().and_then(|surprise| surprise.without_processes(self.elapsed)) {
            Some((gpu, memory)) => Utilization { gpu, memory, ..truth },
            None => truth,
        }
    }

    /// The misleading reading of this GPU, while no process is on it.
    fn surprised(&self) -> Option<Surprise> {
        self.surprise.filter(|_| self.timeline.present(self.elapsed).next().is_none())
    }

    fn utilization_of_work(&self) -> Utilization {
        let window = self.board.utilization_window;
        let end = self.elapsed / window * window;
        let Some(begin) = end.checked_sub(window) else { return Utilization::default() };
        let mut walk = self.timeline.walk(begin);
        let before = walk.totals();
        walk.advance(end);
        let after = walk.totals();
        Utilization::of(after.busy - before.busy, after.all() - before.all(), window)
    }

    /// Milliwatts, averaged over one second.
    pub(crate) fn power_average(&self) -> u64 {
        self.power_shown((0..POWER_MEAN).map(|back| self.power_seen(back)).sum::<u64>() / POWER_MEAN, true)
    }

    /// Milliwatts of the sensor's last sample.
    pub(crate) fn power_instant(&self) -> u64 {
        self.power_shown(self.power_seen(0), false)
    }

    fn power_shown(&self, truth: u64, mean: bool) -> u64 {
        let limit = u64::from(self.board.power.limit_default) * 1_000;
        let shown = |surprise: Surprise| surprise.power(truth, limit, mean, self.elapsed);
        self.surprised().map_or(truth, shown)
    }

    /// Milliwatts of the memory, where the board reports them.
    pub(crate) fn memory_power(&self, of_gpu: u64) -> Option<u64> {
        self.board.memory_power.map(|memory| memory.rest + of_gpu * memory.share / 1_000)
    }

    fn power_seen(&self, back: u64) -> u64 {
        let end = (self.elapsed / POWER_PERIOD).saturating_sub(back) * POWER_PERIOD;
        self.timeline.power(end.saturating_sub(POWER_SEEN), end)
    }

    /// The GPU's degrees Celsius.
    pub(crate) fn temperature(&self) -> u32 {
        self.warmed(self.board.thermal.gpu)
    }

    /// The memory's degrees Celsius, where the board reports them.
    pub(crate) fn memory_temperature(&self) -> Option<u32> {
        self.board.thermal.memory.map(|range| self.warmed(range))
    }

    /// Degrees left until the GPU slows down, where the board reports margins.
    pub(crate) fn margin(&self) -> Option<i32> {
        match self.board.thermal.limits {
            Limits::Margins { zero, .. } => {
                let truth = zero.cast_signed() - self.temperature().cast_signed();
                self.surprise.map_or(Some(truth), |surprise| surprise.margin(truth, self.elapsed))
            }
            Limits::Absolute(_) => None,
        }
    }

    /// A temperature between that at rest and that at the power limit, by the power of the last half minute.
    fn warmed(&self, (rest, limit): (u32, u32)) -> u32 {
        let power = &self.board.power;
        let range = u64::from(power.limit_default - power.idle.0) * 1_000;
        rest + self.warmer + narrow(self.heat_above_rest() * u64::from(limit - rest) / range)
    }

    /// Milliwatts above rest, smoothed over the last half minute.
    fn heat_above_rest(&self) -> u64 {
        let now = self.timeline.lifetime(self.elapsed).energy;
        let rest = u128::from(self.board.power.idle.0) * 1_000;
        let mean = |span: u64| {
            let seen = span.min(self.elapsed);
            let spent = now - self.timeline.lifetime(self.elapsed - seen).energy;
            // Microjoules per nanosecond are thousands of watts. Before elapsed 0 the board counts as at rest,
            // or the mean of the first few milliseconds would jump.
            (u128::from(spent) * 1_000_000 + rest * u128::from(span - seen)) / u128::from(span)
        };
        let smooth = (mean(2_000_000_000) + mean(8_000_000_000) + 2 * mean(30_000_000_000)) / 4;
        u64::try_from(smooth.saturating_sub(rest)).unwrap_or(0)
    }

    /// Milliwatts of `nvmlDeviceGetPowerUsage`: the mean of a second; on GA100 and before Ampere the instant.
    pub(crate) fn power_usage(&self) -> u64 {
        if self.board.power_is_mean { self.power_average() } else { self.power_instant() }
    }

    /// Whether the clocks are those at rest.
    pub(crate) fn resting(&self) -> bool {
        let woken = self.surprised().filter(|surprise| surprise.wakes());
        if woken.is_some_and(|surprise| surprise.without_processes(self.elapsed).is_some()) {
            return false;
        }
        let Utilization { gpu, encoder, decoder, jpeg, ofa, .. } = self.utilization_of_work();
        gpu == 0 && encoder == 0 && decoder == 0 && jpeg == 0 && ofa == 0
    }
}

/// Whole percent, rounded to the nearest, never above 100.
fn percent(part: u64, whole: u64) -> u32 {
    narrow(((part * 100 + whole / 2) / whole).min(100))
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
