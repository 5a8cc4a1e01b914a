//! Who is behind each pid, as last published.
//!
//! Immutable: one round's knowledge, shared by whoever looks. It does not know how it was found out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Holder, HolderId};

/// A process that was identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// Whose it is.
    pub holder: Arc<Holder>,
    /// Its name, as the kernel tells it.
    pub name: Arc<str>,
    /// Clock ticks between boot and its start.
    pub start_time: u64,
}

/// Pids and whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    processes: BTreeMap<u32, Identified>,
    /// The same by whose they are: of the lowest pid where they differ.
    holders: BTreeMap<HolderId, Arc<Holder>>,
}

impl Identities {
    /// Whose pid it is, or was until a moment ago; nothing for one that was never found.
    pub fn get(&self, pid: u32) -> Option<&Identified> {
        self.processes.get(&pid)
    }

    /// A holder with its facts, if any of its processes is known.
    pub fn holder(&self, id: &HolderId) -> Option<&Arc<Holder>> {
        self.holders.get(id)
    }

    /// Everybody of whom a process is known, by id.
    pub fn holders(&self) -> impl Iterator<Item = &Arc<Holder>> {
        self.holders.values()
    }
}

impl FromIterator<(u32, Identified)> for Identities {
    fn from_iter<I: IntoIterator<Item = (u32, Identified)>>(processes: I) -> Self {
        let processes: BTreeMap<u32, Identified> = processes.into_iter().collect();
        let mut holders = BTreeMap::new();
        for identified in processes.values() {
            let holder = &identified.holder;
            if !holders.contains_key(&holder.id) {
                holders.insert(holder.id.clone(), Arc::clone(holder));
            }
        }
        Self { processes, holders }
    }
}
