//! Evidence of how holders used GPUs: what advice and reports of jobs need and the account does not have. All of it adds up,
//! so parts of a time make the evidence of the whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{AMOUNTS, Amounts, HolderId, Nanoseconds, Utc, named};

named! {
    /// What a shape is of: how busy the GPU was, then what GPM reports beside that.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Series {
        /// Share of time in which the busiest engine worked, from any meter.
        Busy = "busy",
        /// Share of multiprocessors with a warp.
        Sm = "sm",
        Tensor = "tensor",
        Fp64 = "fp64",
        /// Share of the memory bandwidth.
        Dram = "dram",
    }
    /// The name in the ledger and in exports.
    fn name
}

/// Shares of one tick by [`Series`], in ten-thousandths, so that a share at the edge of a bin is exact. Absent where nothing
/// reports it. That of busy time is there only in a part of a tick: it is the whole tick's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TickShares(pub [Option<u16>; Series::ALL.len()]);

/// A share of 1 in [`TickShares`].
pub const WHOLE_SHARE: u16 = 10_000;

/// Below this share of busy time a process waits: 1 %.
pub const WAITING_SHARE: u16 = WHOLE_SHARE / 100;

impl TickShares {
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    pub const fn of(&self, series: Series) -> Option<u16> {
        self.0[series as usize]
    }

    /// Those of a part of the tick, of which this is the share of busy time.
    #[must_use]
    pub const fn of_part(mut self, busy: u16) -> Self {
        self.0[Series::Busy as usize] = Some(busy);
        self
    }
}

/// The lower edges of the bins of a shape, in percent.
pub const EDGES: [u16; 12] = [0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90];

/// The columns of a shape, in nanoseconds: its bins by their edges, then the other times.
pub const SHAPE_COLUMNS: [&str; 14] = [
    "from_0_ns",
    "from_1_ns",
    "from_5_ns",
    "from_10_ns",
    "from_20_ns",
    "from_30_ns",
    "from_40_ns",
    "from_50_ns",
    "from_60_ns",
    "from_70_ns",
    "from_80_ns",
    "from_90_ns",
    "shared_ns",
    "unknown_ns",
];

/// How long one series of a holder on a slot was in each bin, in nanoseconds, by [`SHAPE_COLUMNS`]. The times sum to that in
/// which the holder held or was present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub [u64; SHAPE_COLUMNS.len()]);

impl Shape {
    /// Adds time with that share, in which nobody else used the slot.
    pub fn add_alone(&mut self, share: u16, time: Nanoseconds) {
        let bin = EDGES.iter().rposition(|edge| edge * (WHOLE_SHARE / 100) <= share).unwrap_or(0);
        self.0[bin] += time.0;
    }

    /// Adds time in which others used the slot too, so that the share is not known to be the holder's.
    pub fn add_shared(&mut self, time: Nanoseconds) {
        self.0[EDGES.len()] += time.0;
    }

    /// Adds time in which the share was not known.
    pub fn add_unknown(&mut self, time: Nanoseconds) {
        self.0[EDGES.len() + 1] += time.0;
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Whether the share was known at any time.
    pub fn is_known(&self) -> bool {
        self.0[..=EDGES.len()].iter().any(|time| *time > 0)
    }
}

/// By [`Series`].
pub type Shapes = [Shape; Series::ALL.len()];

/// The holder and the hour of some shapes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShapeKey {
    /// Begin of the hour.
    pub hour: Utc,
    /// GPU instance id; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    pub holder: HolderId,
}

/// A workload that is back within this time goes on with its run, and a fault with its incident, so that a unit that fails again and
/// again, a user's short commands, or a reading at a limit make no row each.
pub const LONGEST_PAUSE: Nanoseconds = Nanoseconds::from_seconds(5 * 60);

/// A run: a job, a pod, or the time of any other workload, on one slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    pub gpu_instance: Option<u32>,
    /// The workload; of a step its job, of a container its pod.
    pub workload: HolderId,
    /// When it held or was present first.
    pub begin: Utc,
}

/// The least lengths of the classes of idle stretches; shorter ones do not count.
pub const IDLE_CLASSES: [Nanoseconds; 7] = [
    Nanoseconds::from_seconds(60),
    Nanoseconds::from_seconds(5 * 60),
    Nanoseconds::from_seconds(15 * 60),
    Nanoseconds::from_seconds(3_600),
    Nanoseconds::from_seconds(4 * 3_600),
    Nanoseconds::from_seconds(12 * 3_600),
    Nanoseconds::from_seconds(24 * 3_600),
];

/// The columns of idle stretches: of each class how many and how long together.
pub const IDLE_COLUMNS: [[&str; 2]; IDLE_CLASSES.len()] = [
    ["idle_1m", "idle_1m_ns"],
    ["idle_5m", "idle_5m_ns"],
    ["idle_15m", "idle_15m_ns"],
    ["idle_1h", "idle_1h_ns"],
    ["idle_4h", "idle_4h_ns"],
    ["idle_12h", "idle_12h_ns"],
    ["idle_24h", "idle_24h_ns"],
];

/// The measured time between two uses: stretches without use, by their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleStretches {
    /// Before the first use; all of it where there is none.
    before: u64,
    /// After the last use.
    after: u64,
    /// Between two uses, by [`IDLE_COLUMNS`].
    pub between: [[u64; 2]; IDLE_CLASSES.len()],
}

impl IdleStretches {
    fn add_between(&mut self, stretch: u64) {
        if let Some(class) = IDLE_CLASSES.iter().rposition(|least| least.0 <= stretch) {
            let [count, time] = &mut self.between[class];
            (*count, *time) = (*count + 1, *time + stretch);
        }
    }

    /// Appends the stretches of the time that follows; each with whether there was any use.
    fn append(&mut self, has_use: bool, next: &Self, next_has_use: bool) {
        match (has_use, next_has_use) {
            (false, _) => self.before += next.before,
            (true, false) => self.after += next.before,
            (true, true) => self.add_between(self.after + next.before),
        }
        if next_has_use {
            self.after = next.after;
        }
        for (sum, more) in self.between.iter_mut().flatten().zip(next.between.iter().flatten()) {
            *sum += more;
        }
    }
}

/// What is known of a run, or of a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose facts are those of the run: the workload itself where it holds or is present, else a part of it.
    pub holder: HolderId,
    /// When it held or was present first.
    pub begin: Utc,
    /// When it held or was present last.
    pub end: Utc,
    /// Begin of its first use.
    pub first_use: Option<Utc>,
    /// End of its last use.
    pub last_use: Option<Utc>,
    pub idle: IdleStretches,
    /// What the account has of it.
    pub amounts: Amounts,
}

impl Run {
    pub fn new(holder: HolderId, begin: Utc) -> Self {
        let (idle, amounts) = (IdleStretches::default(), Amounts::default());
        Self { holder, begin, end: begin, first_use: None, last_use: None, idle, amounts }
    }

    /// Adds a time in which the slot was in use or not. Times come in order.
    pub fn add_measured(&mut self, from: Utc, to: Utc, is_used: bool) {
        let idle = IdleStretches { before: to.since(from).0, ..IdleStretches::default() };
        let next = if is_used { IdleStretches::default() } else { idle };
        self.idle.append(self.first_use.is_some(), &next, is_used);
        if is_used {
            self.first_use = self.first_use.or(Some(from));
            self.last_use = Some(to);
        }
    }

    /// Appends what is known of the same run later.
    pub fn append(&mut self, next: &Self) {
        self.idle.append(self.first_use.is_some(), &next.idle, next.first_use.is_some());
        // The workload itself sorts before its parts.
        self.holder = next.holder.clone().min(self.holder.clone());
        self.end = next.end.max(self.end);
        self.first_use = self.first_use.or(next.first_use);
        self.last_use = next.last_use.or(self.last_use);
        self.amounts.add(&next.amounts);
    }
}

/// The evidence of one GPU in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    #[serde(with = "shapes", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shapes: BTreeMap<ShapeKey, [Shape; Series::ALL.len()]>,
    #[serde(with = "runs", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<RunKey, Run>,
}

impl Evidence {
    /// Appends the evidence of the time that follows.
    pub fn append(&mut self, next: Self) {
        for (key, shapes) in next.shapes {
            let sums = self.shapes.entry(key).or_default();
            sums.iter_mut().zip(&shapes).for_each(|(sum, more)| sum.add(more));
        }
        for (key, run) in next.runs {
            let first = RunKey { begin: Utc(0), ..key.clone() };
            match self.runs.range_mut(first..=key.clone()).next_back() {
                Some((_, last)) if run.begin.since(last.end) < LONGEST_PAUSE => last.append(&run),
                _ => drop(self.runs.insert(key, run)),
            }
        }
    }
}

/// Shapes as lists without zeros, since each window writes those of the open hour again: key, then of each known series the place
/// and length of its times. Those of a series that is not known are the sum of the first as unknown time.
mod shapes {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{EDGES, HolderId, Shape, ShapeKey, Shapes, Utc};

    type Listed<H> = (u64, Option<u32>, H, Vec<Vec<(usize, u64)>>);

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<ShapeKey, Shapes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let times = |shape: &Shape| -> Vec<(usize, u64)> {
            shape.0.iter().copied().enumerate().filter(|(_, time)| *time > 0).collect()
        };
        to.collect_seq(map.iter().map(|(key, shapes)| -> Listed<&str> {
            let is_left_out = |(place, shape): (usize, &Shape)| place > 0 && !shape.is_known();
            let listed = shapes.iter().enumerate().map(|(place, shape)| match is_left_out((place, shape)) {
                true => Vec::new(),
                false => times(shape),
            });
            (key.hour.0, key.gpu_instance, key.holder.as_str(), listed.collect())
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<ShapeKey, Shapes>, D::Error> {
        let listed = Vec::<Listed<String>>::deserialize(from)?;
        let shapes = listed.into_iter().map(|(hour, gpu_instance, holder, listed)| {
            let mut shapes = Shapes::default();
            for (shape, times) in shapes.iter_mut().zip(&listed) {
                for (place, time) in times {
                    if let Some(sum) = shape.0.get_mut(*place) {
                        *sum = *time;
                    }
                }
            }
            let all = shapes[0].0.iter().fold(0, |sum: u64, time| sum.saturating_add(*time));
            for shape in shapes.iter_mut().skip(1).filter(|shape| !shape.is_known()) {
                shape.0[EDGES.len() + 1] = all;
            }
            (ShapeKey { hour: Utc(hour), gpu_instance, holder: HolderId::new(holder) }, shapes)
        });
        Ok(shapes.collect())
    }
}

/// Runs as lists of their fields and amounts, for the same reason.
mod runs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{AMOUNTS, HolderId, IdleStretches, Run, RunKey, Utc};

    /// Instance, workload, holder, times, idle stretches and amounts. A migration that adds an amount between others rewrites them.
    type Listed<H> = (Option<u32>, H, H, [Option<u64>; 4], Option<IdleStretches>, Vec<u64>);

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<RunKey, Run>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.iter().map(|(key, run)| -> Listed<&str> {
            let Run { holder, begin, end, first_use, last_use, idle, amounts } = run;
            let times = [Some(begin.0), Some(end.0), first_use.map(|at| at.0), last_use.map(|at| at.0)];
            let idle = Some(*idle).filter(|idle| *idle != IdleStretches::default());
            let amounts = AMOUNTS.iter().map(|amount| amount.of(amounts)).collect();
            (key.gpu_instance, key.workload.as_str(), holder.as_str(), times, idle, amounts)
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<RunKey, Run>, D::Error> {
        let listed = Vec::<Listed<String>>::deserialize(from)?;
        let runs = listed.into_iter().map(|(gpu_instance, workload, holder, times, idle, amounts)| {
            let [begin, end, first_use, last_use] = times.map(|at| at.map(Utc));
            let mut run = Run::new(HolderId::new(holder), begin.unwrap_or_default());
            (run.end, run.first_use, run.last_use) = (end.unwrap_or_default(), first_use, last_use);
            run.idle = idle.unwrap_or_default();
            for (amount, value) in AMOUNTS.iter().zip(amounts) {
                *amount.of_mut(&mut run.amounts) = value;
            }
            (RunKey { gpu_instance, workload: HolderId::new(workload), begin: run.begin }, run)
        });
        Ok(runs.collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_share_at_an_edge_is_in_the_bin_above_it() {
        for (share, column) in
            [(0, 0), (99, 0), (100, 1), (999, 3 - 1), (1_000, 3), (8_999, 10), (9_000, 11), (10_000, 11)]
        {
            let mut shape = Shape::default();
            shape.add_alone(share, Nanoseconds(7));
            assert_eq!(shape.0[column], 7, "{share} in {shape:?}");
        }
    }

    #[test]
    fn a_stretch_between_two_uses_counts_by_its_length_and_the_rest_is_before_and_after() {
        let mut run = Run::new(HolderId::new("user:a"), Utc(0));
        let uses = [
            (30, false),
            (10, true),
            (59, false),
            (10, true),
            (60, false),
            (240, false),
            (1, true),
            (600, false),
        ];
        let mut at = Utc(0);
        for (seconds, is_used) in uses {
            let to = at.plus(Nanoseconds::from_seconds(seconds));
            run.add_measured(at, to, is_used);
            at = to;
        }
        let mut between = [[0; 2]; IDLE_CLASSES.len()];
        between[1] = [1, 300 * SECOND];
        assert_eq!(run.idle, IdleStretches { before: 30 * SECOND, after: 600 * SECOND, between });
        let uses = [run.first_use, run.last_use].map(Option::unwrap);
        assert_eq!(uses, [Utc(30 * SECOND), Utc(410 * SECOND)]);
    }

    #[test]
    fn windows_that_are_merged_have_a_run_for_each_time_after_a_long_pause() {
        let window = |from: u64, to: u64| {
            let [begin, end] = [from, to].map(|second| Utc(second * SECOND));
            let mut run = Run::new(HolderId::new("user:a"), begin);
            (run.end, run.amounts.parts.within) = (end, end.since(begin).0);
            let key = RunKey { gpu_instance: None, workload: run.holder.clone(), begin };
            Evidence { runs: BTreeMap::from([(key, run)]), ..Evidence::default() }
        };
        let mut later = window(700, 715);
        later.append(window(1_014, 1_020));
        let mut all = window(0, 15);
        all.append(window(15, 30));
        all.append(later);
        let runs: Vec<_> =
            all.runs.values().map(|run| [run.begin, run.end].map(|at| at.0 / SECOND)).collect();
        assert_eq!(runs, [[0, 30], [700, 1_020]]);
        let sums: Vec<_> = all.runs.values().map(|run| run.amounts.parts.within / SECOND).collect();
        assert_eq!(sums, [30, 21]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_parts_of_a_run_make_the_run_wherever_it_is_cut(
            uses in prop::collection::vec((1..5_000_u64, any::<bool>()), 1..20),
            cuts in prop::collection::vec(0..20_usize, 0..3),
        ) {
            let holder = HolderId::new("user:a");
            let (mut whole, mut parts, mut at) = (Run::new(holder.clone(), Utc(0)), vec![Run::new(holder.clone(), Utc(0))], Utc(0));
            for (place, (seconds, is_used)) in uses.into_iter().enumerate() {
                let to = at.plus(Nanoseconds::from_seconds(seconds));
                if cuts.contains(&place) {
                    parts.push(Run::new(holder.clone(), at));
                }
                for run in [&mut whole, parts.last_mut().unwrap()] {
                    run.add_measured(at, to, is_used);
                    run.end = to;
                    run.amounts.memory_peak = run.amounts.memory_peak.max(seconds);
                }
                at = to;
            }
            let mut sum = parts.remove(0);
            parts.iter().for_each(|part| sum.append(part));
            prop_assert_eq!(&sum, &whole);
            let mut evidence = Evidence::default();
            evidence.runs.insert(RunKey { gpu_instance: Some(3), workload: holder.clone(), begin: sum.begin }, sum);
            let mut shapes = [Shape::default(); Series::ALL.len()];
            for (place, shape) in shapes.iter_mut().enumerate() {
                shape.add_unknown(Nanoseconds(20));
                if place.is_multiple_of(2) {
                    *shape = Shape::default();
                    shape.add_alone(2_500, Nanoseconds(15));
                    shape.add_shared(Nanoseconds(5));
                }
            }
            evidence.shapes.insert(ShapeKey { hour: Utc(7), gpu_instance: None, holder }, shapes);
            let json = serde_json::to_string(&evidence).unwrap();
            prop_assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
        }
    }
}
