//! What of a page does not change while the roster stays: heads of families and prefixes of series.
//!
//! One arena of pieces in the order of the walk: visit n of a warm walk copies piece n. A layout holds the
//! roster that it was made for, so that no other roster can come to stand at the same address.

use std::sync::Arc;

use super::walk::{Sample, Sink, walk};
use super::{Variant, escape, openmetrics, text};
use crate::catalogue::{Family, Kind, Level};
use crate::model::snapshot::{Roster, Snapshot};

/// The pieces of one variant for one roster.
#[derive(Debug)]
pub(super) struct Layout {
    roster: Arc<Roster>,
    arena: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<usize>,
}

impl Layout {
    /// Renders all pieces for the snapshot's roster.
    pub(super) fn new(snapshot: &Snapshot, level: Level, variant: Variant) -> Self {
        let mut draft = Draft { variant, family: None, arena: Vec::new(), ends: Vec::new() };
        walk(snapshot, level, &mut draft);
        Self { roster: Arc::clone(&snapshot.roster), arena: draft.arena, ends: draft.ends }
    }

    /// Whether it was made for this very roster.
    pub(super) fn fits(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.roster, &snapshot.roster)
    }

    /// The pieces in the order of the walk.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        self.ends.iter().map(move |&end| {
            let piece = &self.arena[begin..end];
            begin = end;
            piece
        })
    }
}

struct Draft {
    variant: Variant,
    family: Option<&'static Family>,
    arena: Vec<u8>,
    ends: Vec<usize>,
}

impl Sink for Draft {
    fn family(&mut self, family: &'static Family) {
        self.family = Some(family);
        match self.variant {
            Variant::Text => text::head(&mut self.arena, family),
            Variant::OpenMetrics => openmetrics::head(&mut self.arena, family),
        }
        self.ends.push(self.arena.len());
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let Some(family) = self.family else { return };
        // A histogram's name has a suffix per line: its piece is the labels alone.
        let histogram = family.kind == Kind::Histogram;
        if !histogram {
            self.arena.extend_from_slice(family.name.as_bytes());
        }
        let mut separator = b'{';
        for (name, value) in sample.labels.pairs() {
            self.arena.push(separator);
            self.arena.extend_from_slice(name.as_bytes());
            self.arena.extend_from_slice(b"=\"");
            escape::label(&mut self.arena, value);
            self.arena.push(b'"');
            separator = b',';
        }
        let labelled = separator == b',';
        match (histogram, labelled) {
            (true, _) => {}
            (false, true) => self.arena.extend_from_slice(b"} "),
            (false, false) => self.arena.push(b' '),
        }
        self.ends.push(self.arena.len());
    }
}
