//! Choosing how each point of the catalogue is read on this board: everything is asked once, and of a
//! point's sources the first that answers is its way.
//!
//! In go the catalogue's rows up to a level, out comes a way or an absence for each point. It does not know
//! when anything is read.

use std::collections::BTreeMap;

use super::calls::{self, Function, Values};
use super::door::{Door, Handle};
use super::fields::{Batch, Field};
use super::gpm::Pair;
use crate::catalogue::{CallValue, Family, Level, PointId, Source, device_points};
use crate::model::{Absence, Reading};

/// How a point is read on this board; a [`Source`] with everything filled in that the board decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A value of the batched field call.
    Field { field: Field, times: i64 },
    /// The margin call less this field.
    Margin { limit: Field },
    /// A value of a call of its own.
    Call { value: CallValue, times: i64 },
    /// A bit of the clock event reasons.
    Reason { bit: u64 },
    /// A metric of the GPM pair.
    Gpm { id: u32, times: i64 },
}

/// A point with its way.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) point: PointId,
    pub(super) family: &'static Family,
    pub(super) way: Way,
}

/// What was chosen for all points.
pub(super) struct Choice {
    pub(super) chosen: Vec<Chosen>,
    /// What every point starts from: absent for good, or not yet read.
    pub(super) blank: Vec<Reading>,
    /// Whether GPM works on the device.
    pub(super) gpm: bool,
    /// Whether no failure that may pass decided a choice.
    pub(super) whole: bool,
}

/// Asks the board for everything up to that level, once.
pub(super) fn choose(door: &mut Door, device: Handle, level: Level) -> Result<Choice, Absence> {
    let mut probe = Probe::new(door, device, level)?;
    let mut chosen = Vec::new();
    let mut blank = Vec::new();
    for (point, (family, candidates)) in device_points().enumerate() {
        if family.level > level {
            blank.push(Err(Absence::NotYet));
            continue;
        }
        match probe.choose(door, candidates.sources) {
            Ok(way) => {
                blank.push(Err(Absence::NotYet));
                chosen.push(Chosen { point, family, way });
            }
            Err(absence) => blank.push(Err(absence)),
        }
    }
    Ok(Choice { chosen, blank, gpm: probe.gpm.is_ok(), whole: probe.whole })
}

/// The way that a source names.
fn way(source: Source) -> Way {
    match source {
        Source::Field { id, scope, times } => Way::Field { field: Field { id, scope }, times },
        Source::Margin { limit } => Way::Margin { limit: Field { id: limit, scope: 0 } },
        Source::Call { value, times } => Way::Call { value, times },
        Source::Reason { bit } => Way::Reason { bit },
        Source::Gpm { id, times } => Way::Gpm { id, times },
    }
}

/// What the board answers when asked for everything once.
struct Probe {
    device: Handle,
    fields: Batch,
    answered: Result<(), Absence>,
    functions: BTreeMap<Function, Result<Values, Absence>>,
    margin: Result<i64, Absence>,
    reasons: Result<u64, Absence>,
    gpm: Result<(), Absence>,
    /// Whether no failure that may pass decided a choice.
    whole: bool,
}

impl Probe {
    fn new(door: &mut Door, device: Handle, level: Level) -> Result<Self, Absence> {
        let mut fields = Batch::new(all_fields(level));
        let answered = fields.read(door, device);
        let margin = calls::margin(door, device);
        let reasons = calls::reasons(door, device);
        let gpm = Pair::supported(door, device);
        if door.take_lost() {
            return Err(Absence::Lost);
        }
        Ok(Self { device, fields, answered, functions: BTreeMap::new(), margin, reasons, gpm, whole: true })
    }

    /// The first source that answers; else the first that may answer later; else why the first was refused.
    fn choose(&mut self, door: &mut Door, sources: &[Source]) -> Result<Way, Absence> {
        let (mut refused, mut failed) = (None, None);
        for way in sources.iter().map(|source| way(*source)) {
            match self.ask(door, way) {
                Ok(()) => {
                    self.whole &= failed.is_none();
                    return Ok(way);
                }
                Err(absence) if absence.is_permanent() => refused = refused.or(Some(absence)),
                Err(_) => failed = failed.or(Some(way)),
            }
        }
        self.whole &= failed.is_none();
        failed.ok_or(refused.unwrap_or(Absence::NotSupported))
    }

    fn ask(&mut self, door: &mut Door, way: Way) -> Result<(), Absence> {
        match way {
            Way::Field { field, .. } => self.field(field),
            Way::Margin { limit } => {
                self.margin?;
                self.field(limit)
            }
            Way::Call { value, .. } => {
                let function = calls::function(value);
                let device = self.device;
                let answer =
                    self.functions.entry(function).or_insert_with(|| calls::call(door, device, function));
                (*answer)?.get(value).map(|_| ())
            }
            Way::Reason { .. } => self.reasons.map(|_| ()),
            Way::Gpm { .. } => self.gpm,
        }
    }

    fn field(&self, field: Field) -> Result<(), Absence> {
        self.answered?;
        let position = self.fields.position(field).ok_or(Absence::NotSupported)?;
        self.fields.value(position).map(|_| ())
    }
}

fn all_fields(level: Level) -> Vec<Field> {
    let mut fields: Vec<Field> = device_points()
        .filter(|(family, _)| family.level <= level)
        .flat_map(|(_, point)| point.sources)
        .filter_map(|source| match way(*source) {
            Way::Field { field, .. } | Way::Margin { limit: field } => Some(field),
            _ => None,
        })
        .collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}
