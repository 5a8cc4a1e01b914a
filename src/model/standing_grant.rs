//! Shares of GPUs that the operator grants in the configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Fraction, GpuSelector};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingGrant {
    /// The operator's name for it; without one, its place in the list.
    pub id: String,
    /// On which GPUs; a GPU that several of these select counts once.
    pub gpus: Vec<GpuSelector>,
    pub fraction: Fraction,
    pub selector: Selector,
    pub version: u64,
}

/// Nothing held by nobody: the parts of a grant that are not read yet or are malformed.
impl Default for StandingGrant {
    fn default() -> Self {
        Self {
            id: String::new(),
            gpus: Vec::new(),
            fraction: Fraction { numerator: 0, denominator: 1 },
            selector: Selector::NOBODY,
            version: 0,
        }
    }
}

/// The holder of a standing grant, who is covered with everything that runs under that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A Unix user, with the units that run as that user.
    User(String),
    /// The same by uid, with the name that is known for it, else the number.
    Uid {
        uid: u32,
        name: Arc<str>,
    },
    /// A systemd unit, or a template with all its instances.
    Unit(String),
    /// A Unix group, with what its members run.
    Group {
        name: String,
        members: Arc<BTreeSet<u32>>,
    },
    Namespace(String),
    Team {
        name: String,
        users: BTreeSet<String>,
        uids: BTreeSet<u32>,
    },
}

impl Selector {
    pub const NOBODY: Self =
        Self::Team { name: String::new(), users: BTreeSet::new(), uids: BTreeSet::new() };
}
