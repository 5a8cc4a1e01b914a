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
    /// By pid, each with the place of its holder among the holders.
    processes: Vec<(u32, usize, Identified)>,
    /// Whose they are, by id: of the lowest pid where they differ.
    holders: Vec<Arc<Holder>>,
}

impl Identities {
    /// Whose pid it is, or was until a moment ago; nothing for one that was never found.
    pub fn get(&self, pid: u32) -> Option<&Identified> {
        self.find(pid).map(|(_, _, identified)| identified)
    }

    /// The place among [`Identities::holders`] of whose pid it is: what is added up by holder compares no names.
    pub fn place(&self, pid: u32) -> Option<usize> {
        self.find(pid).map(|(_, place, _)| *place)
    }

    /// A holder with its facts, if any of its processes is known.
    pub fn holder(&self, id: &HolderId) -> Option<&Arc<Holder>> {
        let place = self.holders.binary_search_by(|holder| holder.id.cmp(id)).ok()?;
        self.holders.get(place)
    }

    /// Everybody of whom a process is known, by id.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = &Arc<Holder>> {
        self.holders.iter()
    }

    fn find(&self, pid: u32) -> Option<&(u32, usize, Identified)> {
        let at = self.processes.binary_search_by_key(&pid, |(pid, ..)| *pid).ok()?;
        self.processes.get(at)
    }
}

impl FromIterator<(u32, Identified)> for Identities {
    fn from_iter<I: IntoIterator<Item = (u32, Identified)>>(processes: I) -> Self {
        let processes: BTreeMap<u32, Identified> = processes.into_iter().collect();
        let mut holders: BTreeMap<&HolderId, Arc<Holder>> = BTreeMap::new();
        for identified in processes.values() {
            holders.entry(&identified.holder.id).or_insert_with(|| Arc::clone(&identified.holder));
        }
        let places: BTreeMap<&HolderId, usize> = holders.keys().copied().zip(0..).collect();
        let place = |identified: &Identified| places.get(&identified.holder.id).copied().unwrap_or_default();
        let places: Vec<usize> = processes.values().map(place).collect();
        let holders = holders.into_values().collect();
        let placed = processes.into_iter().zip(places);
        Self {
            processes: placed.map(|((pid, identified), place)| (pid, place, identified)).collect(),
            holders,
        }
    }
}
