//! The holder of each process, as last published: the immutable, shared result of one round.
//!
//! Since pids are reused, a pid is looked up with the time since boot at which it was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::{Holder, HolderId, Nanoseconds};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifiedProcess {
    pub holder: Arc<Holder>,
    pub name: Arc<str>,
    /// Clock ticks between boot and its start.
    pub start_time: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    table: Arc<ProcessTable>,
    /// The time since boot at which each process was last confirmed to have its pid. It is not in the table, since it
    /// changes in every round.
    until: Vec<Nanoseconds>,
}

/// Processes by pid and start, in parallel lists, so that a search among thousands stays within the processor's caches.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessTable {
    pids: Vec<u32>,
    /// Time since boot of their starts.
    from: Vec<Nanoseconds>,
    holder_indices: Vec<usize>,
    identified: Vec<IdentifiedProcess>,
    /// The holders, by id; where facts of one id differ, those of the lowest pid.
    holders: Vec<Arc<Holder>>,
}

impl Identities {
    /// The identities of processes that are sorted by pid and start, each with the time since boot of its start.
    pub(super) fn new(processes: impl Iterator<Item = (u32, Nanoseconds, IdentifiedProcess)>) -> Self {
        let mut table = ProcessTable::default();
        // Ids are compared once for each holder, since most processes share one with others.
        let mut known: Vec<Arc<Holder>> = Vec::new();
        let mut number_of: HashMap<*const Holder, usize> = HashMap::new();
        let mut numbers = Vec::new();
        for (pid, from, identified) in processes {
            numbers.push(*number_of.entry(Arc::as_ptr(&identified.holder)).or_insert_with(|| {
                known.push(Arc::clone(&identified.holder));
                known.len() - 1
            }));
            table.pids.push(pid);
            table.from.push(from);
            table.identified.push(identified);
        }
        let mut holders: BTreeMap<&HolderId, &Arc<Holder>> = BTreeMap::new();
        for holder in &known {
            holders.entry(&holder.id).or_insert(holder);
        }
        table.holders = holders.into_values().cloned().collect();
        let index_of = |holder: &Arc<Holder>| {
            table.holders.binary_search_by(|other| other.id.cmp(&holder.id)).unwrap_or_default()
        };
        let indices: Vec<usize> = known.iter().map(index_of).collect();
        table.holder_indices = numbers.iter().filter_map(|number| indices.get(*number).copied()).collect();
        let until = vec![Nanoseconds(u64::MAX); table.pids.len()];
        Self { table: Arc::new(table), until }
    }

    pub fn until(&self, until: Vec<Nanoseconds>) -> Self {
        Self { table: Arc::clone(&self.table), until }
    }

    /// The same processes with other holders; itself where these are the same.
    #[must_use]
    pub fn with_holders(&self, mut holder: impl FnMut(&Arc<Holder>) -> Arc<Holder>) -> Self {
        let mut holders: HashMap<*const Holder, Arc<Holder>> = HashMap::new();
        let mut other = |identified: &IdentifiedProcess| {
            let known = &identified.holder;
            let other = holders.entry(Arc::as_ptr(known)).or_insert_with(|| holder(known));
            IdentifiedProcess { holder: Arc::clone(other), ..identified.clone() }
        };
        let ProcessTable { pids, from, identified, .. } = &*self.table;
        let others: Vec<IdentifiedProcess> = identified.iter().map(&mut other).collect();
        if others.iter().zip(identified).all(|(one, other)| Arc::ptr_eq(&one.holder, &other.holder)) {
            return self.clone();
        }
        let keys = pids.iter().copied().zip(from.iter().copied());
        Self::new(keys.zip(others).map(|((pid, from), other)| (pid, from, other))).confirmed_as(self)
    }

    #[must_use]
    pub fn confirmed_as(&self, others: &Self) -> Self {
        self.until(others.until.clone())
    }

    pub fn has_same_processes(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table)
    }

    /// The process that had the pid when it was read; none where it is not known, or not confirmed for that time.
    pub fn get(&self, pid: u32, read: Nanoseconds) -> Option<&IdentifiedProcess> {
        self.process(self.find(pid, read)?)
    }

    /// The index among [`Identities::holders`] of the holder of the process with that number, so that sums by holder compare no
    /// names.
    pub fn holder_index(&self, number: usize) -> Option<usize> {
        self.table.holder_indices.get(number).copied()
    }

    pub fn find(&self, pid: u32, read: Nanoseconds) -> Option<usize> {
        let ProcessTable { pids, from, .. } = &*self.table;
        let mut number = pids.partition_point(|known| *known <= pid).checked_sub(1)?;
        // A pid that was reused is in the table more than once.
        while *pids.get(number)? == pid {
            if *from.get(number)? <= read {
                return (read <= *self.until.get(number)?).then_some(number);
            }
            number = number.checked_sub(1)?;
        }
        None
    }

    pub fn process(&self, number: usize) -> Option<&IdentifiedProcess> {
        self.table.identified.get(number)
    }

    /// A holder with its facts, if one of its processes is known.
    pub fn holder(&self, id: &HolderId) -> Option<&Arc<Holder>> {
        let index = self.table.holders.binary_search_by(|holder| holder.id.cmp(id)).ok()?;
        self.table.holders.get(index)
    }

    pub fn len(&self) -> usize {
        self.table.pids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.pids.is_empty()
    }

    /// The holders of all known processes, by id.
    pub fn holders(&self) -> impl ExactSizeIterator<Item = &Arc<Holder>> {
        self.table.holders.iter()
    }

    /// The holders of all known processes, that of the oldest process first.
    pub fn oldest_first(&self) -> Vec<&Arc<Holder>> {
        let mut processes: Vec<&IdentifiedProcess> = self.table.identified.iter().collect();
        processes.sort_by_key(|process| process.start_time);
        processes.into_iter().map(|process| &process.holder).collect()
    }

    pub fn uids(&self) -> BTreeSet<u32> {
        self.table.identified.iter().filter_map(|identified| identified.holder.facts.uid).collect()
    }
}

/// Processes that keep their pids for all time, for tests.
impl FromIterator<(u32, IdentifiedProcess)> for Identities {
    fn from_iter<I: IntoIterator<Item = (u32, IdentifiedProcess)>>(processes: I) -> Self {
        let processes: BTreeMap<u32, IdentifiedProcess> = processes.into_iter().collect();
        Self::new(processes.into_iter().map(|(pid, identified)| (pid, Nanoseconds(0), identified)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{IdentifiedProcess, Identities};
    use crate::model::{Holder, Nanoseconds};

    #[test]
    fn processes_of_one_holder_share_its_index_and_the_facts_of_the_lowest_pid() {
        let of = |user: Option<u32>, name| Arc::new(Holder::user(name, user));
        let shared = of(Some(2), "bob");
        let holders =
            [(7, of(None, "bob")), (4, Arc::clone(&shared)), (5, shared), (6, of(Some(1), "alice"))];
        let processes = holders
            .map(|(pid, holder)| (pid, IdentifiedProcess { holder, name: "python3".into(), start_time: 1 }));
        let identities: Identities = processes.into_iter().collect();
        let found = [4, 5, 6, 7].map(|pid| identities.find(pid, Nanoseconds(0)).unwrap());
        let found = found.map(|process| identities.holder_index(process).unwrap());
        assert_eq!(found, [1, 1, 0, 1]);
        let holders: Vec<&Holder> = identities.holders().map(|holder| &**holder).collect();
        assert_eq!(holders, [&Holder::user("alice", Some(1)), &Holder::user("bob", Some(2))]);
    }
}
