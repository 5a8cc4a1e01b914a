//! Caches the encoded heads of families (HELP and TYPE lines) and label sets until the roster changes.

use std::ops::Range;
use std::sync::Arc;

use crate::model::snapshot::Roster;

/// An entry for each visit of a walk, one after the other.
#[derive(Debug, Default)]
pub(super) struct LabelCache {
    /// The roster of the last complete walk; held, so that no other roster gets its address.
    roster: Option<Arc<Roster>>,
    /// Whether the entries are those of the roster that is being walked.
    is_filled: bool,
    bytes: Vec<u8>,
    /// Where the entry of each visit ends.
    ends: Vec<usize>,
    /// The visits of this walk so far, and where the entry of the last one ends.
    visits: usize,
    end: usize,
}

impl LabelCache {
    pub(super) fn is_of(&self, roster: &Arc<Roster>) -> bool {
        self.roster.as_ref().is_some_and(|own| Arc::ptr_eq(own, roster))
    }

    /// Begins a walk of that roster, and drops the entries of another one.
    pub(super) fn begin(&mut self, roster: &Arc<Roster>) {
        self.is_filled = self.is_of(roster);
        if !self.is_filled {
            self.bytes.clear();
            self.ends.clear();
        }
        // A walk that panics leaves no roster, and so no entries that the next one would take for complete.
        (self.roster, self.visits, self.end) = (None, 0, 0);
    }

    pub(super) fn finish(&mut self, roster: &Arc<Roster>) {
        self.roster = Some(Arc::clone(roster));
    }

    /// The entry of the next visit, which `write` appends where the roster is new.
    #[inline]
    pub(super) fn next_entry(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        if !self.is_filled {
            write(&mut self.bytes);
            self.ends.push(self.bytes.len());
        }
        let begin = self.end;
        self.end = self.ends.get(self.visits).copied().unwrap_or(begin);
        self.visits += 1;
        begin..self.end
    }

    #[inline]
    pub(super) fn entry(&self, entry: Range<usize>) -> &[u8] {
        &self.bytes[entry]
    }
}
