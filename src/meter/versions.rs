//! Versions of holders: what tenant rules can read of a holder never changes in place.
//!
//! What was not known yet is added to a version. Facts that differ, as those of another run of a job, of another account or
//! of a changed label, and a fact that would change the tenant, begin another version. Each version has an id of its own,
//! which holdings, spans, rows and counters have: so a change is a cut, and settles nothing anew.

use std::collections::HashMap;
use std::sync::Arc;

use crate::accounting::tenants::RuleSchedule;
use crate::holders::{Allocation, Identities};
use crate::model::{Holder, HolderId, HolderKind, Nanoseconds, StandingGrant, Utc};

/// How long a workload without process or grant is remembered. The account's windows are closed long before.
const KEEP_TIME: Nanoseconds = Nanoseconds::from_seconds(1_800);

const MOST_VERSIONS: usize = 64;

/// The most units whose users are remembered without a process or a grant.
const MOST_UNITS: usize = 4_096;

#[derive(Default)]
pub(super) struct HolderVersions {
    workloads: HashMap<Arc<str>, TrackedWorkload>,
    unsent: Vec<Arc<Holder>>,
    /// The last identities, and the same with versions.
    identities: Option<[Arc<Identities>; 2]>,
    /// The users of units, by the id of the unit.
    units: HashMap<Arc<str>, UnitUsers>,
    /// The tenant rules. A change of them begins a version in the ledger, which has the counters.
    rules: Arc<RuleSchedule>,
}

#[derive(Default)]
struct UnitUsers {
    /// The first one, whose holder has the id of the unit.
    first: Option<u32>,
    /// Whether there were others.
    are_several: bool,
}

#[derive(Default)]
struct TrackedWorkload {
    /// In the order in which they began.
    versions: Vec<Arc<Holder>>,
    /// When it last had a process or a grant.
    seen: Utc,
}

impl HolderVersions {
    pub(super) fn recover(holders: &[Holder], at: Utc) -> Self {
        let mut recovered = Self::default();
        for holder in holders {
            let tracked = recovered.workloads.entry(holder.id.workload()).or_default();
            tracked.versions.push(Arc::new(holder.clone()));
            tracked.seen = at;
            recovered.recover_unit(holder);
        }
        recovered
    }

    fn recover_unit(&mut self, holder: &Holder) {
        if let Some(unit) = holder.id.shared_unit() {
            self.units.entry(unit.0).or_default().are_several = true;
        } else if holder.id.kind() == HolderKind::Unit && holder.facts.uid.is_some() {
            self.units.entry(holder.id.workload()).or_default().first = holder.facts.uid;
        }
    }

    /// Notes the user of a unit's process. The first user of a unit has its id, each further one is a part of it.
    fn note_unit_user(&mut self, holder: &Holder) {
        if let Some(uid) = holder.facts.uid.filter(|_| holder.id.kind() == HolderKind::Unit) {
            let users = self.units.entry(holder.id.workload()).or_default();
            users.are_several |= *users.first.get_or_insert(uid) != uid;
        }
    }

    pub(super) fn set_tenant_rules(&mut self, rules: &Arc<RuleSchedule>) {
        self.rules = Arc::clone(rules);
    }

    /// The version of a holder that has these facts: the newest that they do not contradict, or one that begins now.
    pub(super) fn version(&mut self, holder: &Arc<Holder>, at: Utc) -> Arc<Holder> {
        self.note_unit_user(holder);
        let unit = self.units.get(holder.id.name());
        let holder = &match holder.facts.uid.filter(|uid| unit.is_some_and(|unit| unit.first != Some(*uid))) {
            Some(uid) => Arc::new(holder.of_further_user(uid)),
            None => Arc::clone(holder),
        };
        // What is granted to a unit of several users is not granted to the first of them.
        let is_shared = self.units.get(holder.id.name()).is_some_and(|users| users.are_several);
        let tracked = self.workloads.entry(holder.id.workload()).or_default();
        tracked.seen = at;
        for version in tracked.versions.iter_mut().rev() {
            if is_shared && version.facts.uid != holder.facts.uid {
                continue;
            }
            let Some(facts) = version.facts.completed_by(&holder.facts) else { continue };
            if facts == version.facts {
                return Arc::clone(version);
            }
            let complete = Holder { id: version.id.clone(), facts };
            if self.rules.keeps_tenant(version, &complete) {
                *version = Arc::new(complete);
                self.unsent.push(Arc::clone(version));
                return Arc::clone(version);
            }
        }
        let latest = tracked.versions.iter().map(|version| version.id.version()).max();
        let version = match latest {
            None => Arc::clone(holder),
            Some(latest) => {
                let id = holder.id.with_version(at.0.max(latest + 1));
                Arc::new(Holder { id, facts: holder.facts.clone() })
            }
        };
        tracked.versions.push(Arc::clone(&version));
        if tracked.versions.len() > MOST_VERSIONS {
            tracked.versions.remove(0);
        }
        self.unsent.push(Arc::clone(&version));
        version
    }

    pub(super) fn holder(&self, id: &HolderId) -> Arc<Holder> {
        let tracked = self.workloads.get(&id.workload());
        let known = tracked.and_then(|tracked| tracked.versions.iter().find(|version| version.id == *id));
        known.map_or_else(|| Arc::new(Holder::from_id(id.clone())), Arc::clone)
    }

    /// The identities with the versions of their holders, and whether these are other processes than in the last call.
    pub(super) fn identify(&mut self, identities: &Arc<Identities>, at: Utc) -> (Arc<Identities>, bool) {
        let last = self.identities.take();
        let (versions, is_new) = match &last {
            Some([known, versions]) if Arc::ptr_eq(known, identities) => (Arc::clone(versions), false),
            Some([known, versions]) if known.has_same_processes(identities) => {
                (Arc::new(versions.confirmed_as(identities)), false)
            }
            _ => {
                if let Some([_, before]) = &last {
                    self.note_seen(before.holders().map(|holder| &holder.id), at);
                }
                for holder in identities.oldest_first() {
                    self.note_unit_user(holder);
                }
                (Arc::new(identities.with_holders(|holder| self.version(holder, at))), true)
            }
        };
        self.identities = Some([Arc::clone(identities), Arc::clone(&versions)]);
        (versions, is_new)
    }

    pub(super) fn allocations(&mut self, allocations: &[Allocation], at: Utc) -> Arc<[Allocation]> {
        let mut version = |one: &Allocation| {
            let holder = self.version(&Arc::new(one.holder.clone()), at);
            Allocation { holder: (*holder).clone(), ..one.clone() }
        };
        allocations.iter().map(&mut version).collect()
    }

    pub(super) fn set_grantees(&mut self, standing: &mut [StandingGrant], at: Utc) -> bool {
        let mut any = false;
        for grant in standing {
            let version = self.version(&Arc::new(grant.selector.holder()), at).id.version();
            any |= version != grant.version;
            grant.version = version;
        }
        any
    }

    /// Notes that these have a process or a grant.
    pub(super) fn note_seen<'a>(&mut self, holders: impl Iterator<Item = &'a HolderId>, at: Utc) {
        for holder in holders {
            if let Some(tracked) = self.workloads.get_mut(&holder.workload()) {
                tracked.seen = at;
            }
        }
    }

    pub(super) fn forget_old(&mut self, at: Utc) {
        self.workloads.retain(|_, tracked| at < tracked.seen.plus(KEEP_TIME));
        if self.units.len() > MOST_UNITS {
            self.units.retain(|unit, _| self.workloads.contains_key(unit));
        }
    }

    pub(super) const fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The versions that are new, or about which more is known now.
    pub(super) fn take_unsent(&mut self) -> Vec<Holder> {
        std::mem::take(&mut self.unsent).iter().map(|version| (**version).clone()).collect()
    }
}
