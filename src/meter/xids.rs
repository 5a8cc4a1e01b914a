//! The XIDs of one GPU since the agent's start.

use std::collections::BTreeMap;

use crate::catalogue::xid::{Action, meaning};
use crate::model::{Utc, XidEvent};

/// No GPU has more kinds of XID than this; a driver that sends more sends garbage.
const MOST_CODES: usize = 64;

/// Counts by code and by action.
#[derive(Clone, Debug)]
pub(super) struct Xids {
    pub(super) codes: BTreeMap<u32, (u64, Utc)>,
    pub(super) actions: Vec<u64>,
}

impl Default for Xids {
    fn default() -> Self {
        Self { codes: BTreeMap::new(), actions: vec![0; Action::ALL.len()] }
    }
}

impl Xids {
    /// Counts an XID. The count by action is complete even when a flood of codes is not told apart.
    pub(super) fn hear(&mut self, event: &XidEvent) {
        let (_, action) = meaning(event.xid);
        if let Some(position) = Action::ALL.iter().position(|other| *other == action) {
            self.actions[position] += 1;
        }
        if self.codes.len() < MOST_CODES || self.codes.contains_key(&event.xid) {
            let (count, last) = self.codes.entry(event.xid).or_insert((0, event.at.utc));
            *count += 1;
            *last = event.at.utc;
        }
    }
}
