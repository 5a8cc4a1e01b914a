//! Busy time to users: `A x P = Σ used` (L1), one split of the segment along known and missing shares
//! together.
//!
//! From a segment, its grants and the fallback order it makes integer nanoseconds per user with grade and measured
//! share. It does not know within what holding a use lies.

use std::collections::BTreeMap;

use super::apportion::apportion;
use super::carries::Owed;
use super::claims::SlotGrants;
use super::fallback::UseFallback;
use super::quota::Quota;
use super::segment::WindowSegment;
use crate::model::{Grade, HolderId};

/// What one user used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// In nanoseconds.
    pub(super) time: u64,
    /// How much of it was split by measurement.
    pub(super) measured: u64,
    /// The worst grade in it.
    pub(super) grade: Grade,
}

#[derive(Default)]
struct UserQuota {
    quota: Quota,
    measured: Quota,
    grade: Grade,
}

/// Splits a measured segment's busy time.
pub(super) fn split_busy_time(
    segment: &WindowSegment<'_>,
    grants: &SlotGrants,
    fallback: &UseFallback<'_>,
    owed: &mut Owed,
) -> BTreeMap<HolderId, Used> {
    let mut claims: BTreeMap<HolderId, UserQuota> = BTreeMap::new();
    for span in segment.spans.iter().filter(|span| span.busy > 0) {
        let (shares, grade) = fallback.shares(span, grants);
        for (user, quota) in shares.quotas(span.busy) {
            let claim = claims.entry(user.clone()).or_default();
            claim.quota.add(quota);
            claim.grade = claim.grade.max(grade);
            if grade == Grade::Measured {
                claim.measured.add(quota);
            }
        }
    }
    let quotas = claims.iter().map(|(user, claim)| (user.clone(), claim.quota)).collect();
    let times = apportion(segment.busy(), &quotas, owed);
    claims
        .into_iter()
        .map(|(user, claim)| {
            let time = times.get(&user).copied().unwrap_or(0);
            (user, claim.used_time(time))
        })
        .collect()
}

impl UserQuota {
    fn used_time(self, time: u64) -> Used {
        if time == 0 {
            return Used::default();
        }
        let measured = if self.grade == Grade::Measured { time } else { self.measured.floor().min(time) };
        Used { time, measured, grade: self.grade }
    }
}
