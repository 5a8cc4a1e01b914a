//! Who is behind each pid, as last published.
//!
//! Immutable: one round's knowledge, shared by whoever looks. A pid is looked up with the boot time at which it was read,
//! since it may be used again. It does not know how it was found out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Holder, HolderId, Nanoseconds};

/// A process that was identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifiedProcess {
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
    named: Arc<ProcessTable>,
    /// Parallel to the processes: the last boot time at which each is known to have had its pid. It moves in every
    /// round, and the processes hardly ever do.
    until: Vec<Nanoseconds>,
}

/// Processes by pid, then start, in parallel lists: what a search touches of thousands fits into the processor's caches.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessTable {
    pids: Vec<u32>,
    /// Boot times of their starts.
    from: Vec<Nanoseconds>,
    /// The places of their holders among the holders.
    places: Vec<usize>,
    identified: Vec<IdentifiedProcess>,
    /// Whose they are, by id: of the lowest pid where they differ.
    holders: Vec<Arc<Holder>>,
}

impl Identities {
    /// Processes by pid and start, each with the boot time of its start.
    pub(super) fn new(processes: impl Iterator<Item = (u32, Nanoseconds, IdentifiedProcess)>) -> Self {
        let mut named = ProcessTable::default();
        // The processes of a holder share it, so that an id is compared once for each holder and not for each process.
        let mut numbers: BTreeMap<*const Holder, usize> = BTreeMap::new();
        let mut shared: Vec<Arc<Holder>> = Vec::new();
        for (pid, from, identified) in processes {
            let number = *numbers.entry(Arc::as_ptr(&identified.holder)).or_insert(shared.len());
            if number == shared.len() {
                shared.push(Arc::clone(&identified.holder));
            }
            named.pids.push(pid);
            named.from.push(from);
            named.places.push(number);
            named.identified.push(identified);
        }
        let mut holders: BTreeMap<&HolderId, &Arc<Holder>> = BTreeMap::new();
        for holder in &shared {
            holders.entry(&holder.id).or_insert(holder);
        }
        named.holders = holders.into_values().cloned().collect();
        let place = |holder: &Arc<Holder>| {
            named.holders.binary_search_by(|other| other.id.cmp(&holder.id)).unwrap_or_default()
        };
        let places: Vec<usize> = shared.iter().map(place).collect();
        for place in &mut named.places {
            *place = places.get(*place).copied().unwrap_or_default();
        }
        let until = vec![Nanoseconds(u64::MAX); named.pids.len()];
        Self { named: Arc::new(named), until }
    }

    /// The same processes, each known until another time.
    pub fn until(&self, until: Vec<Nanoseconds>) -> Self {
        Self { named: Arc::clone(&self.named), until }
    }

    /// Whether these are the same processes as others, which may be known until another time.
    pub fn are_those_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.named, &other.named)
    }

    /// Whose pid it was when it was read; nothing where that process is not known, or not known to have lived so long.
    pub fn get(&self, pid: u32, read: Nanoseconds) -> Option<&IdentifiedProcess> {
        self.process(self.find(pid, read)?)
    }

    /// The place among [`Identities::holders`] of whose pid it was: what is added up by holder compares no names.
    pub fn place(&self, pid: u32, read: Nanoseconds) -> Option<usize> {
        self.place_of(self.find(pid, read)?)
    }

    /// The place among [`Identities::holders`] of the holder of the process with that number.
    pub fn place_of(&self, number: usize) -> Option<usize> {
        self.named.places.get(number).copied()
    }

    /// The number of the process that had the pid when it was read.
    pub fn find(&self, pid: u32, read: Nanoseconds) -> Option<usize> {
        let ProcessTable { pids, from, .. } = &*self.named;
        let mut number = pids.partition_point(|known| *known <= pid).checked_sub(1)?;
        // A pid that was used again is there more than once.
        while *pids.get(number)? == pid {
            if *from.get(number)? <= read {
                return (read <= *self.until.get(number)?).then_some(number);
            }
            number = number.checked_sub(1)?;
        }
        None
    }

    /// The process of that number.
    pub fn process(&self, number: usize) -> Option<&IdentifiedProcess> {
        self.named.identified.get(number)
    }

    /// A holder with its facts, if any of its processes is known.
    pub fn holder(&self, id: &HolderId) -> Option<&Arc<Holder>> {
        let place = self.named.holders.binary_search_by(|holder| holder.id.cmp(id)).ok()?;
        self.named.holders.get(place)
    }

    /// How many processes are known.
    pub fn len(&self) -> usize {
        self.named.pids.len()
    }

    /// Whether no process is known.
    pub fn is_empty(&self) -> bool {
        self.named.pids.is_empty()
    }

    /// Everybody of whom a process is known, by id.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = &Arc<Holder>> {
        self.named.holders.iter()
    }
}

/// Processes that have their pids for all time.
impl FromIterator<(u32, IdentifiedProcess)> for Identities {
    fn from_iter<I: IntoIterator<Item = (u32, IdentifiedProcess)>>(processes: I) -> Self {
        let processes: BTreeMap<u32, IdentifiedProcess> = processes.into_iter().collect();
        Self::new(processes.into_iter().map(|(pid, identified)| (pid, Nanoseconds(0), identified)))
    }
}
