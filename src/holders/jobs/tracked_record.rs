//! How long a record of a job counts.
//!
//! In: the version of the record's file and the cgroups of jobs. Out: whether the job has ended although its record is
//! still there, because its epilog did not run.

use super::{JobObservation, JobRecord};
use crate::host::slurm::{FileVersion, JobCgroup};
use crate::model::Nanoseconds;

/// A job that has no cgroup so long after its record was written has ended without an epilog.
const LONGEST_START: Nanoseconds = Nanoseconds::from_seconds(60);

/// A record from round to round.
#[derive(Debug)]
pub(super) struct TrackedRecord {
    /// Changes when the record is rewritten, as for a job that was requeued.
    version: FileVersion,
    since: Nanoseconds,
    /// Whether the job's cgroup was seen.
    was_running: bool,
    /// Number of consecutive rounds without the cgroup.
    missing: u8,
}

impl TrackedRecord {
    /// Dates the record by its file, which may be older than the agent; a time in the future counts as now.
    pub(super) fn begin(version: FileVersion, observation: &JobObservation<'_>) -> Self {
        let written = u64::try_from(version.0).unwrap_or(0).saturating_mul(1_000_000_000);
        let age = observation.utc.0.saturating_sub(written);
        let since = Nanoseconds(observation.now.0.saturating_sub(age));
        Self { version, since, was_running: false, missing: 0 }
    }

    pub(super) const fn version(&self) -> FileVersion {
        self.version
    }

    /// Whether the job has ended although its record of that version is still there.
    pub(super) fn has_ended(
        &mut self,
        version: FileVersion,
        record: &JobRecord,
        observation: &JobObservation<'_>,
    ) -> bool {
        if self.version != version {
            *self = Self::begin(version, observation);
        }
        match has_cgroup(record, observation.cgroups, self.was_running) {
            Some(true) => (self.was_running, self.missing) = (true, 0),
            Some(false) if self.was_running || observation.now >= self.since + LONGEST_START => {
                self.missing = self.missing.saturating_add(1);
            }
            Some(false) | None => {}
        }
        self.missing >= 2
    }
}

/// Whether the job has a cgroup; none where that cannot be known.
fn has_cgroup(record: &JobRecord, cgroups: Option<&[JobCgroup]>, was_running: bool) -> Option<bool> {
    let is_of_job = |cgroup: &JobCgroup| {
        let names = [Some(&cgroup.name), cgroup.job.as_ref()];
        names.contains(&Some(&record.job)) || record.sluid.as_ref() == Some(&cgroup.name)
    };
    // A SLUID without a running step may be this job's.
    let is_unknown = |cgroup: &JobCgroup| cgroup.name.starts_with('s') && cgroup.job.is_none();
    match cgroups {
        Some(cgroups) if cgroups.iter().any(is_of_job) => Some(true),
        Some(cgroups) if record.sluid.is_none() && cgroups.iter().any(is_unknown) => None,
        Some(_) => Some(false),
        None => was_running.then_some(false),
    }
}
