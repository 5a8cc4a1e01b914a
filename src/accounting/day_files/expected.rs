//! The nodes that should be in the exports: what they did not report is unobserved time, not no time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::error::{ExportError, FileProblem};
use crate::accounting::billing::{BillLine, DayGpu, DayHeader, DayRow, FileNumbers};
use crate::model::{GpuId, HolderId, Nanoseconds, NodeIdentity, Parts, QUARTER_HOUR, TimeSum, Utc};
use crate::runtime::file;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedNode {
    pub node: String,
    pub from: Utc,
    pub to: Utc,
    /// How many GPUs it has; needed where it never reported.
    pub gpus: Option<u32>,
    pub model: Option<String>,
}

/// Reads a CSV file with the columns node, from, to, and possibly gpus and model.
///
/// # Errors
/// The file cannot be read, or a line of it is wrong.
pub fn read_expected(path: &Path) -> Result<Vec<ExpectedNode>, ExportError> {
    let wrong = |line: usize, problem: String| {
        ExportError::Expected(format!(
            "{}:{line}: {problem}; write lines like gpu-7,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,8,NVIDIA H100",
            path.display()
        ))
    };
    let text = file::read_text(path).map_err(|error| FileProblem::Io(error).at(path))?;
    let mut expected = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if line.trim().is_empty() || line.starts_with('#') || (number == 0 && cells[0] == "node") {
            continue;
        }
        let wrong = |problem: String| wrong(number + 1, problem);
        let time = |cell: usize| -> Result<Utc, ExportError> {
            let text = cells.get(cell).copied().unwrap_or_default();
            let time: jiff::Timestamp =
                text.parse().map_err(|_| wrong(format!("{text:?} is not a time with an offset")))?;
            let time =
                Utc::try_from(time).map_err(|_| wrong(format!("{text:?} is before 1970 or out of range")))?;
            if time.floor(QUARTER_HOUR) == time {
                Ok(time)
            } else {
                Err(wrong(format!("{text:?} is not on a quarter hour")))
            }
        };
        let given = |cell: usize| cells.get(cell).copied().filter(|text| !text.is_empty());
        let gpus =
            given(3).map(|text| text.parse().map_err(|_| wrong(format!("{text:?} is not a number of GPUs"))));
        let node = ExpectedNode {
            node: cells[0].to_owned(),
            from: time(1)?,
            to: time(2)?,
            gpus: gpus.transpose()?,
            model: given(4).map(str::to_owned),
        };
        if node.to <= node.from {
            return Err(wrong("it ends before it begins".to_owned()));
        }
        let is_same =
            |known: &ExpectedNode| known.node == node.node && known.from < node.to && node.from < known.to;
        if expected.iter().any(is_same) {
            return Err(wrong(format!("{} is expected twice at one time", node.node)));
        }
        expected.push(node);
    }
    Ok(expected)
}

#[derive(Debug)]
pub(super) struct Reports<'a> {
    expected: &'a [ExpectedNode],
    places: BTreeMap<&'a str, Vec<usize>>,
    gpus: BTreeMap<String, BTreeMap<Arc<str>, DayGpu>>,
    /// What was reported, by place in `expected` and GPU, in the order of the files.
    reported: BTreeMap<(usize, Arc<str>), Vec<ReportedSpan>>,
}

/// The GPU time in the rows of one file, with the number that the rate of the GPU has there, by node, GPU and quarter hour.
#[derive(Debug, Default)]
pub(super) struct FileTimes(BTreeMap<(Arc<NodeIdentity>, Arc<str>, Utc), QuarterTime>);

#[derive(Clone, Copy, Debug, Default)]
struct QuarterTime {
    time: TimeSum,
    rate: Option<i64>,
}

impl FileTimes {
    pub(super) fn add(&mut self, run: &DayRow) {
        let key = (Arc::clone(&run.node), Arc::clone(&run.line.gpu.uuid), run.from);
        let quarter = self.0.entry(key).or_default();
        quarter.time += Nanoseconds(run.line.amounts.parts.held()).into();
        quarter.rate = run.gpu_rate;
    }
}

/// Consecutive quarter hours of a GPU under one rate that were reported in full, or one that was in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReportedSpan {
    from: Utc,
    to: Utc,
    /// What was not reported of it, in nanoseconds.
    missing: u64,
    rate: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportGap {
    pub(super) from: Utc,
    pub(super) to: Utc,
    pub(super) time: Nanoseconds,
    /// The rate of the latest quarter hour before it that was reported; before the first one, that of the first.
    pub(super) rate: Option<i64>,
}

pub(super) struct MissingTime {
    pub(super) node: String,
    pub(super) gpu: DayGpu,
    pub(super) gaps: Vec<ReportGap>,
}

impl ReportGap {
    pub(super) fn line(&self, gpu: &GpuId) -> BillLine {
        let mut line = BillLine::empty(gpu.clone(), HolderId::new(HolderId::UNOBSERVED));
        line.tenant = HolderId::UNOBSERVED.to_owned();
        line.amounts.parts = Parts { unmeasured: self.time.0, ..Parts::default() };
        line.unpriced = self.time;
        line
    }

    /// Its parts between these times, which are in order. They are on quarter hours, and a part of a quarter hour is never cut.
    pub(super) fn cut_at(self, cuts: impl Iterator<Item = Utc>) -> Vec<Self> {
        let mut parts = vec![self];
        for cut in cuts {
            if let Some(last) = parts.last_mut().filter(|last| last.from < cut && cut < last.to) {
                let rest = Self { from: cut, time: last.to.since(cut), ..*last };
                (last.to, last.time) = (cut, cut.since(last.from));
                parts.push(rest);
            }
        }
        parts
    }
}

fn gaps_of(mut spans: Vec<ReportedSpan>, [begin, end]: [Utc; 2]) -> Vec<ReportGap> {
    // Files of two ledgers, of which the GPU moved from one to the other.
    spans.sort_by_key(|span| (span.from, Reverse(span.to)));
    let mut gaps = Vec::new();
    let mut rate = spans.first().and_then(|span| span.rate);
    let (mut at, mut latest) = (begin, Utc(0));
    let mut spans = spans.into_iter().peekable();
    while let Some(mut span) = spans.next() {
        while let Some(same) = spans.next_if(|next| (next.from, next.to) == (span.from, span.to)) {
            span.missing = (span.missing + same.missing).saturating_sub(QUARTER_HOUR.0);
        }
        let (from, to) = (span.from.max(at), span.to.min(end));
        if at < from.min(end) {
            let to = from.min(end);
            gaps.push(ReportGap { from: at, to, time: to.since(at), rate });
            at = to;
        }
        if latest <= span.to {
            (latest, rate) = (span.to, span.rate);
        }
        if from < to {
            let outside = span.to.since(span.from).0 - to.since(from).0;
            let missing = span.missing.saturating_sub(outside);
            if missing > 0 {
                gaps.push(ReportGap { from, to, time: Nanoseconds(missing), rate });
            }
            at = to;
        }
    }
    if at < end {
        gaps.push(ReportGap { from: at, to: end, time: end.since(at), rate });
    }
    gaps
}

impl<'a> Reports<'a> {
    pub(super) fn new(expected: &'a [ExpectedNode]) -> Self {
        let mut places = BTreeMap::<&str, Vec<usize>>::new();
        for (place, one) in expected.iter().enumerate() {
            places.entry(&one.node).or_default().push(place);
        }
        Self { expected, places, gpus: BTreeMap::new(), reported: BTreeMap::new() }
    }

    pub(super) fn cuts(&self, node: &str) -> impl Iterator<Item = Utc> {
        let places = self.places.get(node).into_iter().flatten();
        places.flat_map(|place| [self.expected[*place].from, self.expected[*place].to])
    }

    pub(super) fn add_gpus(&mut self, header: &DayHeader) {
        if self.expected.is_empty() {
            return;
        }
        let known = self.gpus.entry(header.node.clone()).or_default();
        for gpu in &header.gpus {
            let known = known.entry(Arc::clone(&gpu.gpu.uuid)).or_insert_with(|| gpu.clone());
            known.settled_until = known.settled_until.max(gpu.settled_until);
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    pub(super) fn add(&mut self, times: FileTimes, numbers: &FileNumbers) {
        for ((node, gpu, from), QuarterTime { time, rate }) in times.0 {
            let time = u64::try_from(time.0).unwrap_or(u64::MAX);
            let missing = QUARTER_HOUR.0.saturating_sub(time);
            let rate = rate.and_then(|id| numbers.rates.get(&id).copied());
            let span = ReportedSpan { from, to: from.plus(QUARTER_HOUR), missing, rate };
            for place in self.places.get(&*node.name).into_iter().flatten() {
                let ExpectedNode { from: begin, to: end, .. } = &self.expected[*place];
                if *begin <= from && from < *end {
                    let spans = self.reported.entry((*place, Arc::clone(&gpu))).or_default();
                    match spans.last_mut() {
                        Some(last)
                            if (last.to, last.missing, missing) == (from, 0, 0) && last.rate == rate =>
                        {
                            last.to = span.to;
                        }
                        _ => spans.push(span),
                    }
                }
            }
        }
    }

    pub(super) fn unexpected(&self) -> BTreeSet<&str> {
        // Without a list nothing is unexpected.
        let nodes = self.gpus.keys().map(String::as_str);
        nodes.filter(|node| !self.places.contains_key(node)).collect()
    }

    pub(super) fn missing(&self, from: Utc, to: Utc) -> Result<Vec<MissingTime>, ExportError> {
        let mut missing = Vec::new();
        for (place, one) in self.expected.iter().enumerate() {
            let (begin, end) = (one.from.max(from), one.to.min(to));
            if begin >= end {
                continue;
            }
            for (gpu, [since, until]) in self.gpus_of(one)? {
                let (begin, end) = (begin.max(since), end.min(until));
                let reported = self.reported.get(&(place, Arc::clone(&gpu.gpu.uuid)));
                let gaps = gaps_of(reported.cloned().unwrap_or_default(), [begin, end]);
                if !gaps.is_empty() {
                    missing.push(MissingTime { node: one.node.clone(), gpu, gaps });
                }
            }
        }
        Ok(missing)
    }

    /// The GPUs of a node with the time that is expected of each: those that it reported, and as many more as it should have. A
    /// GPU that was there from the first report on is expected before it too, one of the last report after it; one that came
    /// or went in between, only within its account.
    fn gpus_of(&self, expected: &ExpectedNode) -> Result<Vec<(DayGpu, [Utc; 2])>, ExportError> {
        let ExpectedNode { node, from, to, gpus: count, model } = expected;
        let known = || self.gpus.get(node).into_iter().flat_map(BTreeMap::values);
        let first = known().map(|gpu| gpu.accounted_since).min().unwrap_or_default();
        let last = known().map(|gpu| gpu.settled_until).max().unwrap_or_default();
        if known().next().is_none() && count.is_none() {
            return Err(ExportError::Expected(format!(
                "{node} is expected and has no export: give its number of GPUs in a fourth column, and their model in a fifth"
            )));
        }
        let mut gpus: Vec<(DayGpu, [Utc; 2])> = known()
            .map(|gpu| {
                let since = if gpu.accounted_since <= first { *from } else { gpu.accounted_since };
                let until = if gpu.settled_until >= last { *to } else { gpu.settled_until };
                (gpu.clone(), [since, until])
            })
            .collect();
        let present = gpus.iter().filter(|(_, [_, until])| until == to).count() as u64;
        for index in present..u64::from(count.unwrap_or(0)) {
            let gpu = DayGpu {
                gpu: GpuId {
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                    uuid: format!("{node}/{index}").into(),
                },
                model: model.clone().unwrap_or_else(|| "unknown".to_owned()),
                accounted_since: *from,
                settled_until: Utc(0),
                memory: None,
            };
            gpus.push((gpu, [*from, *to]));
        }
        Ok(gpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_the_rate_of_the_latest_time_before_it_and_the_first_one_that_after_it() {
        let at = |quarter: u64| Utc(quarter * QUARTER_HOUR.0);
        let span = |from: u64, to: u64, missing: u64, rate: Option<i64>| ReportedSpan {
            from: at(from),
            to: at(to),
            missing,
            rate,
        };
        let gap = |from: u64, to: u64, rate: Option<i64>| {
            let (from, to) = (at(from), at(to));
            ReportGap { from, to, time: to.since(from), rate }
        };
        let (one, two) = (Some(1), Some(2));
        let spans = vec![span(2, 4, 0, one), span(4, 6, 0, two), span(8, 9, 0, one), span(9, 10, 0, None)];
        let expected = [gap(0, 2, one), gap(6, 8, two), gap(10, 12, None)];
        assert_eq!(gaps_of(spans.clone(), [at(0), at(12)]), expected);
        assert_eq!(gaps_of(spans, [at(3), at(7)]), [gap(6, 7, two)]);
        assert_eq!(gaps_of(Vec::new(), [at(0), at(1)]), [gap(0, 1, None)]);
        // A part of a quarter hour has its own rate; two ledgers may each have a part, or one of them all.
        let part = |missing| span(0, 1, missing, one);
        let of_quarter = |missing: u64| ReportGap { time: Nanoseconds(missing), ..gap(0, 1, one) };
        assert_eq!(gaps_of(vec![part(5)], [at(0), at(1)]), [of_quarter(5)]);
        let half = QUARTER_HOUR.0 / 2;
        assert_eq!(gaps_of(vec![part(half), part(half + 7)], [at(0), at(1)]), [of_quarter(7)]);
        assert_eq!(gaps_of(vec![part(half), part(0)], [at(0), at(1)]), []);
        assert_eq!(gaps_of(vec![part(5), span(0, 3, 0, two)], [at(0), at(3)]), []);
        // A span that ends before what another ledger reported is not the latest before a gap.
        assert_eq!(gaps_of(vec![part(5), span(0, 3, 0, two)], [at(0), at(4)]), [gap(3, 4, two)]);
        assert_eq!(gaps_of(vec![span(0, 1, 0, one), span(1, 2, 0, two)], [at(3), at(4)]), [gap(3, 4, two)]);
        // The GPU came within the quarter hour.
        let since = Utc(at(1).0 - 9);
        assert_eq!(gaps_of(vec![part(QUARTER_HOUR.0 - 9)], [since, at(1)]), []);
    }

    #[test]
    fn a_gap_is_cut_where_a_book_has_another_price() {
        let at = |quarter: u64| Utc(quarter * QUARTER_HOUR.0);
        let gap = |from: u64, to: u64| {
            let (from, to) = (at(from), at(to));
            ReportGap { from, to, time: to.since(from), rate: None }
        };
        let cuts = [at(0), at(1), at(3), at(4)];
        assert_eq!(gap(1, 4).cut_at(cuts.into_iter()), [gap(1, 3), gap(3, 4)]);
        assert_eq!(gap(1, 2).cut_at(cuts.into_iter()), [gap(1, 2)]);
    }
}
