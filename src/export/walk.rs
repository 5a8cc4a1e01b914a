//! The one walk over every series of a snapshot, in the catalogue's order.
//!
//! In: a snapshot and a level. Out: calls of a [`Sink`], family by family, series by series, in roster order.
//! Which series are visited, and in which order, depends on roster, catalogue and level alone: a value that is
//! absent is visited as `None`. So a sink may number the visits and keep what it made of the labels for as
//! long as the roster is the same `Arc`. It does not know how anything is written.

mod rows;

use std::ops::Range;

use crate::catalogue::{self, Family, Level, Origin, Rows, SUBJECTS};
use crate::model::Utc;
use crate::model::snapshot::{Histogram, Roster, Snapshot};

/// What receives the visits of a walk.
pub trait Sink {
    /// A family begins; its series follow, if it has any.
    fn family(&mut self, family: &'static Family);
    /// A series of the family that began last.
    fn sample(&mut self, sample: Sample<'_>);
}

/// One visit: a series and its value.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Which series of the family.
    pub labels: Labels<'a>,
    /// Its value; absent ones are visited too.
    pub value: Option<Value<'a>>,
    /// When it began to count, where that is later than the family's start.
    pub start: Option<Utc>,
}

/// The labels of a series: two slices of one length.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    /// The family's label names, those of empty values perhaps left out.
    pub names: &'a [&'a str],
    /// This series' values, unescaped.
    pub values: &'a [&'a str],
}

impl<'a> Labels<'a> {
    /// Names with values, in the family's order.
    pub fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.names.iter().copied().zip(self.values.iter().copied())
    }
}

/// The value of a series.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// An integer of the family's unit ([`crate::model::Unit::decimals`]).
    Number(i128),
    /// Observations in buckets.
    Histogram(&'a Histogram),
}

/// The most labels a series can have.
const MOST_LABELS: usize = 36;

const _: () = {
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            assert!(SUBJECTS[subject][row].labels.len() <= MOST_LABELS, "raise MOST_LABELS");
            row += 1;
        }
        subject += 1;
    }
};

/// Visits every series of the families that are exported at `level`.
pub fn walk<S: Sink>(snapshot: &Snapshot, level: Level, sink: &mut S) {
    let mut numbers = FamilyNumbers::default();
    for family in catalogue::families() {
        let own = numbers.take(family, &snapshot.roster);
        if family.level <= level {
            sink.family(family);
            rows::FamilyWalk { snapshot, family, sink }.rows(own);
        }
    }
    debug_assert_eq!(
        numbers.agent,
        snapshot.roster.agent.len(),
        "the agent's series stand in the catalogue's order"
    );
}

/// When the family's counters began; the driver does not tell.
pub(super) fn start(snapshot: &Snapshot, family: &Family) -> Option<Utc> {
    match family.rows.origin() {
        Origin::Driver => None,
        Origin::Agent => Some(snapshot.started),
        Origin::Ledger => snapshot.ledger_started,
        Origin::LedgerOrAgent => snapshot.ledger_started.or(Some(snapshot.started)),
    }
}

/// Where the values of the next family begin. Families below the level are counted too.
#[derive(Default)]
struct FamilyNumbers {
    point: usize,
    integral: usize,
    agent: usize,
}

impl FamilyNumbers {
    /// The numbers of this family's values, empty where it is not numbered.
    fn take(&mut self, family: &Family, roster: &Roster) -> Range<usize> {
        let (next, count) = match &family.rows {
            Rows::Device(points) | Rows::State(points) => (&mut self.point, points.len()),
            Rows::Integral(integrals) => (&mut self.integral, integrals.len()),
            // Shown is what the agent kept of its points, not what was read.
            Rows::Flow(points) => {
                self.point += points.len();
                (&mut self.integral, points.len())
            }
            Rows::Agent => {
                let rest = roster.agent.get(self.agent..).unwrap_or_default();
                (&mut self.agent, rest.iter().take_while(|entry| entry.family == family.name).count())
            }
            _ => return 0..0,
        };
        let first = *next;
        *next += count;
        first..*next
    }
}
