//! What only a whole fleet shows: nodes that nobody needs, GPUs that are always needed, and replicas that are never needed together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{HOUR, QUARTER_HOUR, Utc};

/// How much of the account commitments are judged by: 60 days.
pub const COMMITMENT_DAYS: u64 = 60;

/// The evidence of a fleet of which every expected node reported all its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetEvidence {
    /// By name, from `begin` on.
    pub nodes: BTreeMap<String, NodeHours>,
    /// By product name, from `models_begin` on.
    pub models: BTreeMap<String, ModelHours>,
    /// By tenant and name, from `begin` on.
    pub services: BTreeMap<(Arc<str>, String), ServiceQuarters>,
    /// The begin of a day.
    pub begin: Utc,
    /// The begin of a day.
    pub models_begin: Utc,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHours {
    pub gpus: BTreeSet<Arc<str>>,
    pub hours: Vec<HourOfNode>,
    /// Whether a part of it is committed or owned, so that it costs the same without it.
    pub stays: bool,
    /// Whether no rate was in force for some of it.
    pub is_unpriced: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HourOfNode {
    /// GPU time that nobody held, in nanoseconds.
    pub free: u64,
    /// All GPU time, in nanoseconds.
    pub all: u64,
    /// What all of it costs at the rates of the GPUs, in parts of [`ExactMoney`](crate::accounting::billing::ExactMoney).
    pub money: i128,
}

/// GPUs of one model that are paid on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelHours {
    /// Time that tenants held, by hour, in nanoseconds.
    pub held: Vec<u64>,
    /// Rates of it on demand and committed, in nano-units per GPU-hour.
    pub on_demand: BTreeSet<i64>,
    pub committed: BTreeSet<i64>,
}

/// Replicas of a service by quarter hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceQuarters {
    /// How many held GPUs, and how many of these used them, or may have.
    pub counts: Vec<[u16; 2]>,
}

/// The element of that place, which is made where it is not there yet.
fn at<T: Clone + Default>(list: &mut Vec<T>, place: usize) -> &mut T {
    if list.len() <= place {
        list.resize(place + 1, T::default());
    }
    &mut list[place]
}

impl FleetEvidence {
    /// The sums of a node in an hour; none before the begin.
    pub fn node_hour(&mut self, node: &str, from: Utc) -> Option<&mut HourOfNode> {
        let place = place_of(self.begin, from, HOUR.0)?;
        let node = self.nodes.get_mut(node)?;
        Some(at(&mut node.hours, place))
    }

    /// The time that tenants held of a model in an hour; none before the begin.
    pub fn held_hour(&mut self, model: &str, from: Utc) -> Option<&mut u64> {
        let place = place_of(self.models_begin, from, HOUR.0)?;
        Some(at(&mut self.models.get_mut(model)?.held, place))
    }

    /// The counts of a service in a quarter hour; none before the begin.
    pub fn service_quarter(&mut self, key: (Arc<str>, String), from: Utc) -> Option<&mut [u16; 2]> {
        let place = place_of(self.begin, from, QUARTER_HOUR.0)?;
        Some(at(&mut self.services.entry(key).or_default().counts, place))
    }
}

fn place_of(begin: Utc, at: Utc, length: u64) -> Option<usize> {
    let since = at.0.checked_sub(begin.0)? / length;
    usize::try_from(since).ok()
}
