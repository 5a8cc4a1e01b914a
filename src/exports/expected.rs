//! The nodes that should be in the exports: what they did not report is unobserved time, not no time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::error::{ExportError, FileProblem};
use crate::billing::{BillLine, DayGpu, DayHeader};
use crate::input;
use crate::model::{GpuId, HolderId, Nanoseconds, Parts, QUARTER_HOUR, TimeSum, Utc};

/// A node that should report from a time to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedNode {
    /// Its name.
    pub node: String,
    /// From then on.
    pub from: Utc,
    /// Until then.
    pub to: Utc,
    /// How many GPUs it has; needed where it never reported.
    pub gpus: Option<u32>,
    /// Their product name, for their rate.
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
    let text = input::read_text(path).map_err(|error| FileProblem::Io(error).at(path))?;
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

/// What expected nodes have reported.
#[derive(Debug)]
pub(super) struct Reports<'a> {
    expected: &'a [ExpectedNode],
    /// The places in `expected` of each node.
    places: BTreeMap<&'a str, Vec<usize>>,
    /// The GPUs of each node.
    gpus: BTreeMap<String, BTreeMap<Arc<str>, DayGpu>>,
    /// Held time by place in `expected` and GPU.
    reported: BTreeMap<(usize, Arc<str>), TimeSum>,
}

/// Time of a GPU that its node did not report.
pub(super) struct MissingTime {
    pub(super) node: String,
    pub(super) gpu: DayGpu,
    pub(super) from: Utc,
    pub(super) line: BillLine,
}

impl<'a> Reports<'a> {
    pub(super) fn new(expected: &'a [ExpectedNode]) -> Self {
        let mut places = BTreeMap::<&str, Vec<usize>>::new();
        for (place, one) in expected.iter().enumerate() {
            places.entry(&one.node).or_default().push(place);
        }
        Self { expected, places, gpus: BTreeMap::new(), reported: BTreeMap::new() }
    }

    /// The times at which an expectation of that node begins or ends.
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

    /// Notes the time of a run that begins at that time.
    pub(super) fn add(&mut self, node: &str, from: Utc, line: &BillLine) {
        for place in self.places.get(node).into_iter().flatten() {
            let ExpectedNode { from: begin, to: end, .. } = &self.expected[*place];
            if *begin <= from && from < *end {
                *self.reported.entry((*place, Arc::clone(&line.gpu.uuid))).or_default() +=
                    Nanoseconds(line.amounts.parts.held()).into();
            }
        }
    }

    /// The nodes that reported and are not expected.
    pub(super) fn unexpected(&self) -> BTreeSet<&str> {
        // Without a list nothing is unexpected.
        let nodes = self.gpus.keys().map(String::as_str);
        nodes.filter(|node| !self.places.contains_key(node)).collect()
    }

    /// What expected nodes did not report between two times.
    pub(super) fn missing(&self, from: Utc, to: Utc) -> Result<Vec<MissingTime>, ExportError> {
        let mut missing = Vec::new();
        for (place, one) in self.expected.iter().enumerate() {
            let (begin, end) = (one.from.max(from), one.to.min(to));
            if begin >= end {
                continue;
            }
            for (gpu, [since, until]) in self.gpus_of(one)? {
                let (begin, end) = (begin.max(since), end.min(until));
                let reported = self.reported.get(&(place, Arc::clone(&gpu.gpu.uuid))).copied();
                let reported = u64::try_from(reported.unwrap_or_default().0).unwrap_or(u64::MAX);
                let time = end.since(begin).0.saturating_sub(reported);
                if time > 0 {
                    let mut line = BillLine::empty(gpu.gpu.clone(), HolderId::new(HolderId::UNOBSERVED));
                    line.tenant = HolderId::UNOBSERVED.to_owned();
                    line.amounts.parts = Parts { unmeasured: time, ..Parts::default() };
                    line.unpriced = Nanoseconds(time);
                    missing.push(MissingTime { node: one.node.clone(), gpu, from: begin, line });
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
            };
            gpus.push((gpu, [*from, *to]));
        }
        Ok(gpus)
    }
}
