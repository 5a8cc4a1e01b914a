//! Reads lists of mappings, such as rates or grants.

use super::key::Key;
use super::problem::{Complaint, FilePosition, ProblemCollector};
use super::read_mapping::{KeyPositions, read_mapping};
use super::tree::YamlNode;

pub(super) struct Placed<E> {
    pub(super) entry: E,
    pub(super) at: EntryPlace,
}

/// Where an entry stands, and which of its keys are given, valid or not.
pub(super) struct EntryPlace {
    item: Option<FilePosition>,
    keys: KeyPositions,
    path: String,
}

impl EntryPlace {
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.get(key).is_some()
    }

    /// The line of a key, or of the entry where it is not given.
    pub(super) fn line(&self, key: &str) -> u64 {
        self.keys.get(key).or(self.item).map_or(0, |position| position.line)
    }

    pub(super) fn complain(&self, report: &mut ProblemCollector, mistake: Mistake) {
        let Mistake { key, complaint } = mistake;
        let dot = if key.is_empty() { "" } else { "." };
        report.add(self.keys.get(key).or(self.item), format!("{}{dot}{key}", self.path), complaint);
    }
}

/// What is wrong with an entry: the key that is wrong or missing, or "" for the entry itself, and why.
pub(super) struct Mistake {
    key: &'static str,
    complaint: Complaint,
}

impl Mistake {
    pub(super) const fn new(key: &'static str, complaint: Complaint) -> Self {
        Self { key, complaint }
    }

    pub(super) fn of(key: &'static str, text: impl Into<String>) -> Self {
        Self::new(key, Complaint(text.into()))
    }
}

/// Reads the entries of a list and returns the valid ones. `finish` makes of what was read of one what the list holds; it is given
/// the entries before, and says what is wrong, which is nothing where that is reported already.
pub(super) fn read_entries<D: Default, E>(
    items: &[YamlNode],
    base: &str,
    keys: &'static [Key<D>],
    report: &mut ProblemCollector,
    mut finish: impl FnMut(D, &EntryPlace, &[Placed<E>]) -> Result<E, Option<Mistake>>,
) -> Vec<Placed<E>> {
    let mut entries = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("{base}[{index}]");
        let mut draft = D::default();
        let Some(given) = read_mapping(item, &path, keys, &mut draft, report) else { continue };
        let at = EntryPlace { item: item.place, keys: given, path };
        match finish(draft, &at, &entries) {
            Ok(entry) => entries.push(Placed { entry, at }),
            Err(Some(mistake)) => at.complain(report, mistake),
            Err(None) => {}
        }
    }
    entries
}

pub(super) fn entries_of<E>(placed: Vec<Placed<E>>) -> Vec<E> {
    placed.into_iter().map(|placed| placed.entry).collect()
}
