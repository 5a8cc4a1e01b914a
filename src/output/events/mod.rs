//! Events: what happens to GPUs, tenants and the agent, found by comparing each snapshot with the one before.
//!
//! Pure: [`EventTracker`] compares, [`EventLog`] joins storms and keeps the latest. Whether they are logged, served or sent is
//! decided elsewhere.

mod compare;
mod kinds;
mod log;

use std::sync::Arc;

use crate::model::{Fact, GpuId, Utc, VisibleAccount, named};

pub use compare::{ConfigReloads, EventTracker};
pub use kinds::{EVENT_KINDS, EventKind, reference};
pub use log::EventLog;

named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Severity {
        Info = "INFO",
        Warn = "WARN",
        Error = "ERROR",
    }
    fn text
}

impl Severity {
    pub const fn number(self) -> i32 {
        match self {
            Self::Info => 9,
            Self::Warn => 13,
            Self::Error => 17,
        }
    }
}

/// A workload that an event concerns, with who may see that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// Workload id; "" where the tenant as a whole is meant.
    pub workload: Arc<str>,
    pub tenant: Arc<str>,
    /// The Unix users that its facts name.
    pub users: [Option<Arc<str>>; 2],
}

impl Party {
    fn is_shown_to(&self, visible: &VisibleAccount) -> bool {
        let fact = |fact| match fact {
            Fact::User => self.users[0].as_deref(),
            Fact::SlurmUser => self.users[1].as_deref(),
            _ => None,
        };
        visible.shows(&self.tenant, fact)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: &'static EventKind,
    pub severity: Severity,
    /// When it happened; the last time where it is joined from several.
    pub at: Utc,
    pub observed: Utc,
    pub gpu: Option<GpuId>,
    /// What distinguishes events of the same kind and GPU, such as the XID.
    pub detail: Arc<str>,
    pub text: String,
    pub attributes: Vec<(&'static str, String)>,
    pub parties: Vec<Party>,
    pub count: u64,
}

impl Event {
    /// The event's id, which is the same wherever the event appears, also if it is sent twice.
    pub fn id(&self) -> String {
        let place = self.gpu.as_ref().map_or("node", |gpu| &*gpu.uuid);
        format!("{}/{place}/{}/{}", self.kind.name, self.detail, self.observed.0 / 1_000_000)
    }

    /// The key by which events are joined.
    fn storm(&self) -> (&'static str, Arc<str>, Arc<str>) {
        let place = self.gpu.as_ref().map_or_else(|| "".into(), |gpu| Arc::clone(&gpu.uuid));
        (self.kind.name, place, Arc::clone(&self.detail))
    }

    pub fn shown_to(&self, visible: &VisibleAccount) -> Option<Self> {
        let parties: Vec<Party> =
            self.parties.iter().filter(|party| party.is_shown_to(visible)).cloned().collect();
        let is_hidden =
            self.kind.is_of_tenant && parties.is_empty() && *visible != VisibleAccount::Everything;
        (!is_hidden).then(|| Self { parties, ..self.clone() })
    }
}
