//! The files that the library writes: `truth` (what the GPUs really did) and `calls` (how often each function was
//! called).
//!
//! JSON, replaced by rename at most once per simulated second, or whenever a held clock is set to another value.
//! No call fails because a file could not be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Serialize;

use super::replace_file;
use super::settled::Fired;
use crate::clock::Now;
use crate::lock;
use crate::schedule::Work;

const EVERY: u64 = 1_000_000_000;

/// Cumulative since elapsed 0.
#[derive(Serialize)]
pub(crate) struct Truth<'a> {
    pub(crate) elapsed_ns: u64,
    pub(crate) gpus: Vec<GpuTruth<'a>>,
    pub(crate) processes: Vec<ProcessTruth>,
    /// In ascending GPU and code.
    pub(crate) xids: Vec<Fired>,
}

#[derive(Serialize)]
pub(crate) struct GpuTruth<'a> {
    pub(crate) uuid: &'a str,
    /// By position in the scenario's `mig` list; one without MIG.
    pub(crate) engines: Vec<Work>,
    pub(crate) busy_ns: u64,
    pub(crate) energy_uj: u64,
}

/// `instance` is the position in the scenario's `mig` list; null without MIG.
#[derive(Serialize)]
pub(crate) struct ProcessTruth {
    pub(crate) pid: u32,
    pub(crate) gpu: u32,
    pub(crate) instance: Option<usize>,
    pub(crate) busy_ns: u64,
    /// Left out while all of it is 0.
    #[serde(skip_serializing_if = "nothing")]
    pub(crate) used: Work,
}

fn nothing(work: &Work) -> bool {
    *work == Work::default()
}

/// Counts calls and remembers when the files were last written.
pub(crate) struct Report {
    directory: PathBuf,
    written: Mutex<Option<Now>>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    /// Nanoseconds by function, in scenarios with realistic delays.
    owed: Mutex<BTreeMap<&'static str, u64>>,
}

impl Report {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_path_buf(),
            written: Mutex::new(None),
            calls: Mutex::new(BTreeMap::new()),
            owed: Mutex::new(BTreeMap::new()),
        }
    }

    /// Adds the simulated time of calls of a function.
    pub(crate) fn owe(&self, function: &'static str, nanoseconds: u64) {
        *lock(&self.owed).entry(function).or_insert(0) += nanoseconds;
    }

    /// Counts a call; returns the number of calls of the function including this one.
    pub(crate) fn count(&self, function: &'static str) -> u64 {
        let mut calls = lock(&self.calls);
        let count = calls.entry(function).or_insert(0);
        *count += 1;
        *count
    }

    /// Counts events that an event set has lost.
    pub(crate) fn dropped(&self, events: u64) {
        *lock(&self.calls).entry("events_dropped").or_insert(0) += events;
    }

    /// Whether the files are due; the caller that gets true writes them.
    pub(crate) fn due(&self, now: Now) -> bool {
        let mut written = lock(&self.written);
        let due = written.is_none_or(|former| {
            let moved = now.elapsed.abs_diff(former.elapsed);
            moved >= EVERY || (now.held && (moved > 0 || !former.held))
        });
        if due {
            *written = Some(now);
        }
        due
    }

    pub(crate) fn write(&self, truth: &Truth<'_>) {
        replace_file(&self.directory, "truth", truth);
        let calls = lock(&self.calls).clone();
        let mut counts = serde_json::Map::new();
        counts.insert("pid".to_owned(), std::process::id().into());
        counts.extend(calls.into_iter().map(|(function, count)| (function.to_owned(), count.into())));
        let owed = lock(&self.owed).clone();
        if !owed.is_empty() {
            counts.insert("owed_ns".to_owned(), serde_json::json!(owed));
        }
        replace_file(&self.directory, "calls", &counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_due_every_second_or_at_every_held_value() {
        let report = Report::new(Path::new("/nonexistent"));
        let now = |elapsed, held| Now { elapsed, utc: 0, held };
        assert!(report.due(now(5, false)));
        assert!(!report.due(now(999_999_999, false)));
        assert!(report.due(now(1_000_000_005, false)));
        assert!(report.due(now(1_000_000_006, true)));
        assert!(!report.due(now(1_000_000_006, true)));
        assert!(report.due(now(1_000_000_000, true)));
        report.write(&Truth { elapsed_ns: 0, gpus: Vec::new(), processes: Vec::new(), xids: Vec::new() });
    }
}
