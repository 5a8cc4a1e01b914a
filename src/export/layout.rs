//! What of a page does not change while the roster stays: heads of families and prefixes of series.
//!
//! The pieces stand in the order of the walk: visit n of a warm walk copies piece n. A layout holds the
//! roster that it was made for, so that no other roster can come to stand at the same address.

use std::sync::Arc;

use super::pieces::{self, Pieces};
use super::walk::{Labels, Sample, Sink, walk};
use super::{Variant, escape, openmetrics, text};
use crate::catalogue::{Family, Kind, Level};
use crate::model::snapshot::{Roster, Snapshot};

/// The pieces of one variant for one roster.
#[derive(Debug)]
pub(super) struct Layout {
    roster: Arc<Roster>,
    pieces: Pieces,
}

impl Layout {
    /// Renders all pieces for the snapshot's roster.
    pub(super) fn new(snapshot: &Snapshot, level: Level, variant: Variant) -> Self {
        let mut draft = Draft { variant, family: None, pieces: Pieces::default() };
        walk(snapshot, level, &mut draft);
        Self { roster: Arc::clone(&snapshot.roster), pieces: draft.pieces }
    }

    /// Whether it was made for this very roster.
    pub(super) fn fits(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.roster, &snapshot.roster)
    }

    /// The pieces in the order of the walk.
    pub(super) fn pieces(&self) -> pieces::Iter<'_> {
        self.pieces.iter()
    }
}

struct Draft {
    variant: Variant,
    family: Option<&'static Family>,
    pieces: Pieces,
}

impl Sink for Draft {
    fn family(&mut self, family: &'static Family) {
        self.family = Some(family);
        self.pieces.put(|out| match self.variant {
            Variant::Text => text::head(out, family),
            Variant::OpenMetrics => openmetrics::head(out, family),
        });
    }

    fn sample(&mut self, sample: Sample<'_>) {
        let Some(family) = self.family else { return };
        self.pieces.put(|out| match family.kind {
            // A histogram's name has a suffix per line: its piece is the labels alone, left open for `le`.
            Kind::Histogram => {
                labels(out, sample.labels);
            }
            Kind::Gauge | Kind::Counter => {
                out.extend_from_slice(family.name.as_bytes());
                let any = labels(out, sample.labels);
                out.extend_from_slice(if any { b"} " } else { b" " });
            }
        });
    }
}

/// Appends the labels without the closing brace; whether there are any.
fn labels(out: &mut Vec<u8>, labels: Labels<'_>) -> bool {
    let mut separator = b'{';
    for (name, value) in labels.pairs() {
        out.push(separator);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"=\"");
        escape::label(out, value);
        out.push(b'"');
        separator = b',';
    }
    separator == b','
}
