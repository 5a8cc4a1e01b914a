//! What the driver's meters show of the truth, each with its documented distortion.
//!
//! In: a timeline and an elapsed time. Out: readings as NVML gives them: whole percent over windows that are
//! over, power seen a quarter of the time, temperatures that lag. It knows no handles and no buffers.

use crate::board::{Board, Limits};
use crate::schedule::{Timeline, Work};
use crate::surprise::Surprise;

/// The power sensor's period, and how much of it is seen: 25 ms of every 100 ms on A100 and H100
/// (arXiv 2312.02741), so that the mean misses three quarters of what happens.
const POWER_PERIOD: u64 = 100_000_000;
const POWER_SEEN: u64 = 25_000_000;
const POWER_MEAN: u64 = 10;

/// Length of a window of process utilization: a sixth of a second.
pub(crate) const PROCESS_WINDOW: u64 = 166_666_000;
/// How many windows the driver keeps; samples of processes that have ended stay that long.
const PROCESS_WINDOWS: u64 = 16;

/// Whole percent of the last complete utilization window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Utilization {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// One process in one window, in whole percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessSample {
    pub(crate) worker: usize,
    /// Elapsed nanoseconds at the end of the window.
    pub(crate) at: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// The meters of one GPU at one time.
pub(crate) struct Meters<'a> {
    pub(crate) timeline: &'a Timeline,
    pub(crate) board: &'a Board,
    /// Degrees by which this GPU's place in the chassis is warmer.
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

    /// What is odd about this GPU, while nobody is on it.
    fn surprised(&self) -> Option<Surprise> {
        self.surprise.filter(|_| self.timeline.present(self.elapsed).next().is_none())
    }

    fn utilization_of_work(&self) -> Utilization {
        let window = self.board.utilization_window;
        let end = self.elapsed / window * window;
        let Some(begin) = end.checked_sub(window) else { return Utilization::default() };
        let (before, after) = (self.timeline.totals(begin), self.timeline.totals(end));
        let mut all = Work::default();
        for (earlier, later) in before.engines.iter().zip(&after.engines) {
            all += *later - *earlier;
        }
        Utilization {
            gpu: percent(after.busy - before.busy, window),
            memory: percent(all.dram, window),
            encoder: percent(all.encoder, window),
            decoder: percent(all.decoder, window),
        }
    }

    /// Milliwatts, mean of one second.
    pub(crate) fn power_average(&self) -> u64 {
        self.power_shown((0..POWER_MEAN).map(|back| self.power_seen(back)).sum::<u64>() / POWER_MEAN, true)
    }

    /// Milliwatts as last seen by the sensor.
    pub(crate) fn power_instant(&self) -> u64 {
        self.power_shown(self.power_seen(0), false)
    }

    fn power_shown(&self, truth: u64, mean: bool) -> u64 {
        let limit = u64::from(self.board.power.limit_default) * 1_000;
        let shown = |surprise: Surprise| surprise.power(truth, limit, mean, self.elapsed);
        self.surprised().map_or(truth, shown)
    }

    /// Milliwatts of the memory, where the board shows them.
    pub(crate) fn memory_power(&self, of_gpu: u64) -> Option<u64> {
        self.board.memory_power.map(|memory| memory.rest + of_gpu * memory.share / 1_000)
    }

    fn power_seen(&self, back: u64) -> u64 {
        let end = (self.elapsed / POWER_PERIOD).saturating_sub(back) * POWER_PERIOD;
        self.timeline.power(end.saturating_sub(POWER_SEEN), end)
    }

    /// Degrees of the GPU.
    pub(crate) fn temperature(&self) -> u32 {
        self.warmed(self.board.thermal.gpu)
    }

    /// Degrees of the memory, where the board shows it.
    pub(crate) fn memory_temperature(&self) -> Option<u32> {
        self.board.thermal.memory.map(|range| self.warmed(range))
    }

    /// Degrees left until the GPU slows itself, where the board counts in margins.
    pub(crate) fn margin(&self) -> Option<i32> {
        match self.board.thermal.limits {
            Limits::Margins { zero, .. } => {
                let truth = zero.cast_signed() - self.temperature().cast_signed();
                self.surprise.map_or(Some(truth), |surprise| surprise.margin(truth, self.elapsed))
            }
            Limits::Absolute(_) => None,
        }
    }

    /// Between rest and the power limit, by the power of the last half minute.
    fn warmed(&self, (rest, limit): (u32, u32)) -> u32 {
        let power = &self.board.power;
        let range = u64::from(power.limit_default - power.idle.0) * 1_000;
        rest + self.warmer + narrow(self.heat_above_rest() * u64::from(limit - rest) / range)
    }

    /// Milliwatts above rest, smoothed over the last half minute.
    fn heat_above_rest(&self) -> u64 {
        let now = self.timeline.totals(self.elapsed).energy;
        let rest = u128::from(self.board.power.idle.0) * 1_000;
        let mean = |span: u64| {
            let seen = span.min(self.elapsed);
            let spent = now - self.timeline.totals(self.elapsed - seen).energy;
            // Microjoules over nanoseconds are thousands of watts. Before its time the board was at rest:
            // a mean over a first few milliseconds would leap.
            (u128::from(spent) * 1_000_000 + rest * u128::from(span - seen)) / u128::from(span)
        };
        let smooth = (mean(2_000_000_000) + mean(8_000_000_000) + 2 * mean(30_000_000_000)) / 4;
        u64::try_from(smooth.saturating_sub(rest)).unwrap_or(0)
    }

    /// What `nvmlDeviceGetPowerUsage` shows: the mean of a second, on GA100 and before Ampere the instant.
    pub(crate) fn power_usage(&self) -> u64 {
        if self.board.power_is_mean { self.power_average() } else { self.power_instant() }
    }

    /// Whether the clocks are those of rest.
    pub(crate) fn resting(&self) -> bool {
        let woken = self.surprised().filter(|surprise| surprise.wakes());
        if woken.is_some_and(|surprise| surprise.without_processes(self.elapsed).is_some()) {
            return false;
        }
        let Utilization { gpu, encoder, decoder, .. } = self.utilization_of_work();
        gpu == 0 && encoder == 0 && decoder == 0
    }

    /// The samples that ended after `since` (elapsed nanoseconds), oldest first.
    pub(crate) fn process_samples(&self, since: Option<u64>) -> Vec<ProcessSample> {
        let last = self.elapsed / PROCESS_WINDOW;
        let first = since.map_or(0, |since| since / PROCESS_WINDOW).max(last.saturating_sub(PROCESS_WINDOWS));
        let mut samples = Vec::new();
        if first >= last {
            return samples;
        }
        let mut before = self.timeline.totals(first * PROCESS_WINDOW);
        for window in first + 1..=last {
            let at = window * PROCESS_WINDOW;
            let after = self.timeline.totals(at);
            let workers = before.workers.iter().zip(&after.workers).enumerate();
            let seen = if self.surprise == Some(Surprise::OneSample) { 1 } else { usize::MAX };
            for (worker, (earlier, later)) in workers.take(seen) {
                samples.extend(sample(worker, at, *later - *earlier));
            }
            before = after;
        }
        samples
    }
}

/// None for a process that did nothing: the driver has no sample of it.
fn sample(worker: usize, at: u64, work: Work) -> Option<ProcessSample> {
    let of = |time| percent(time, PROCESS_WINDOW);
    let sample = ProcessSample {
        worker,
        at,
        sm: of(work.busy),
        memory: of(work.dram),
        encoder: of(work.encoder),
        decoder: of(work.decoder),
    };
    (sample.sm + sample.memory + sample.encoder + sample.decoder > 0).then_some(sample)
}

/// Whole percent, rounded to the nearest, never above 100.
fn percent(part: u64, whole: u64) -> u32 {
    narrow(((part * 100 + whole / 2) / whole).min(100))
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::board::board;
    use crate::channel::scenario::Phase;
    use crate::schedule::{PowerModel, Script, Span, Worker};

    fn timeline(demand: f64) -> Timeline {
        let phase = Phase {
            from: 0.0,
            to: 60.0,
            demand,
            memory_bytes: 0,
            sm: 1.0,
            tensor: 1.0,
            dram: 0.5,
            encoder: 0.25,
            decoder: 0.0,
        };
        Timeline::new(Script {
            seed: 3,
            cycle_seconds: 120.0,
            engines: vec![1_000_000],
            workers: vec![Worker { pid: 1, engine: 0, spans: vec![Span::new(&phase)] }],
            brakes: Vec::new(),
            power: PowerModel { idle: 70_000, dynamic: 630_000 },
        })
    }

    fn at(timeline: &Timeline, seconds: u64) -> Meters<'_> {
        Meters {
            timeline,
            board: board("h100").unwrap(),
            warmer: 0,
            surprise: None,
            elapsed: seconds * 1_000_000_000,
        }
    }

    #[test]
    fn utilization_is_the_last_complete_window_in_whole_percent() {
        let full = timeline(1.0);
        assert_eq!(
            at(&full, 10).utilization(),
            Utilization { gpu: 100, memory: 50, encoder: 25, decoder: 0 }
        );
        assert_eq!(at(&full, 0).utilization(), Utilization::default());
        assert_eq!(at(&full, 70).utilization(), Utilization::default());
        let half = timeline(0.5);
        let mut meters = at(&half, 10);
        let first = meters.utilization();
        meters.elapsed += 199_999_999;
        assert_eq!(meters.utilization(), first);
        let sum: u32 = (10..60).map(|second| at(&half, second).utilization().gpu).sum();
        assert!((45..55).contains(&(sum / 50)), "{}", sum / 50);
    }

    #[test]
    fn power_and_temperature_are_those_of_a_real_board() {
        let full = timeline(1.0);
        let (load, rest) = (at(&full, 59), at(&full, 119));
        // 30 + 30 + 25 + 7.5 hundredths of the dynamic power, the encoder's half a hundredth.
        assert_eq!(load.power_average(), 70_000 + 630_000 * 93 / 100);
        assert_eq!(rest.power_average(), 70_000);
        assert!((58..68).contains(&load.temperature()), "{}", load.temperature());
        assert!((28..34).contains(&rest.temperature()));
        assert!((20..30).contains(&load.margin().unwrap()));
        assert!(rest.resting() && !load.resting());
    }

    #[test]
    fn the_mean_power_misses_what_happens_between_its_looks() {
        let half = timeline(0.5);
        let meters = at(&half, 30);
        let truth = half.power(29_000_000_000, 30_000_000_000);
        assert_ne!(meters.power_average(), truth);
        let off = meters.power_average().abs_diff(truth) as f64 / truth as f64;
        assert!(off < 0.4, "{off}");
    }

    #[test]
    fn process_samples_begin_after_the_last_seen_and_end_for_an_idle_gpu() {
        let full = timeline(1.0);
        let all = at(&full, 10).process_samples(None);
        assert_eq!(all.len(), 16);
        assert!(all.iter().all(|sample| sample.sm == 100 && sample.memory == 50));
        let seen = all.get(13).unwrap().at;
        assert_eq!(at(&full, 10).process_samples(Some(seen)).len(), 2);
        assert!(at(&full, 100).process_samples(None).is_empty());
        // A process that has ended is still in the buffer for a while.
        assert!(!at(&full, 61).process_samples(None).is_empty());
    }
}
