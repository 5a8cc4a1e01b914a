//! What of a request does not change while the roster stays, and which series the last one carried.

use std::collections::HashMap;
use std::sync::Arc;

use super::{native_name, native_unit};
use crate::catalogue::{Family, Kind, Level};
use crate::export::pieces::Pieces;
use crate::export::protobuf;
use crate::export::walk::{Sample, Sink, walk};
use crate::model::snapshot::{Roster, Snapshot};

/// Encoded heads and attributes of one roster, by number of the visit.
#[derive(Debug)]
pub(super) struct Series {
    roster: Arc<Roster>,
    /// `Metric.name`, `description` and `unit` of each family.
    pub(super) heads: Pieces,
    /// Attributes of each series.
    pub(super) attributes: Pieces,
    /// The number of each series' family.
    families: Vec<usize>,
    /// Whether the last request carried a value of each series.
    pub(super) sent: Vec<bool>,
}

/// A series that the last request carried, and that the roster has no more.
#[derive(Debug)]
pub(super) struct Ended {
    /// The number of its family.
    pub(super) family: usize,
    /// Its encoded attributes.
    pub(super) attributes: Box<[u8]>,
}

impl Series {
    /// Encodes heads and attributes of the snapshot's roster.
    pub(super) fn new(snapshot: &Snapshot, level: Level) -> Self {
        let mut draft = Draft::default();
        walk(snapshot, level, &mut draft);
        Self {
            roster: Arc::clone(&snapshot.roster),
            sent: vec![false; draft.attributes.len()],
            heads: draft.heads,
            attributes: draft.attributes,
            families: draft.families,
        }
    }

    /// Whether it was made for this very roster.
    pub(super) fn fits(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.roster, &snapshot.roster)
    }

    /// Takes over what was sent before; what was sent and is no more here comes back, by family.
    pub(super) fn succeed(&mut self, before: &Self) -> Vec<Ended> {
        let Self { families, attributes, sent, .. } = self;
        let numbers: HashMap<_, _> = identities(families, attributes).zip(0_usize..).collect();
        let mut ended = Vec::new();
        for (series, _) in
            identities(&before.families, &before.attributes).zip(&before.sent).filter(|(_, sent)| **sent)
        {
            match numbers.get(&series) {
                Some(number) => sent[*number] = true,
                None => ended.push(Ended { family: series.0, attributes: series.1.into() }),
            }
        }
        ended
    }
}

/// What tells series apart, in their order.
fn identities<'a>(families: &'a [usize], attributes: &'a Pieces) -> impl Iterator<Item = (usize, &'a [u8])> {
    families.iter().copied().zip(attributes.iter())
}

#[derive(Default)]
struct Draft {
    heads: Pieces,
    attributes: Pieces,
    families: Vec<usize>,
    /// Field number of a point's attributes in this family.
    field: u64,
}

impl Sink for Draft {
    fn family(&mut self, family: &'static Family) {
        self.field = if family.kind == Kind::Histogram { 9 } else { 7 };
        self.heads.put(|out| {
            protobuf::bytes(out, 1, native_name(family).as_bytes());
            protobuf::bytes(out, 2, family.help.as_bytes());
            let unit = native_unit(family.unit);
            if !unit.is_empty() {
                protobuf::bytes(out, 3, unit.as_bytes());
            }
        });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        self.families.push(self.heads.len() - 1);
        self.attributes.put(|out| {
            for (name, value) in sample.labels.pairs() {
                attribute(out, self.field, name, value);
            }
        });
    }
}

/// Appends a `KeyValue` whose value is a string, as a field of that number.
pub(super) fn attribute(out: &mut Vec<u8>, field: u64, key: &str, value: &str) {
    let any = protobuf::bytes_length(value.len());
    protobuf::open(out, field, protobuf::bytes_length(key.len()) + protobuf::bytes_length(any));
    protobuf::bytes(out, 1, key.as_bytes());
    protobuf::open(out, 2, any);
    protobuf::bytes(out, 1, value.as_bytes());
}
