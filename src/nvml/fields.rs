//! The batched field call: many values for one trip into the driver, each with its scope.

use std::ops::Range;

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, Refusal, ask};
use crate::model::Absence;

/// What to ask: a field id and its scope; of several scopes in a row the answers are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Field {
    pub(super) id: u32,
    pub(super) scope: u32,
    pub(super) scopes: u32,
    /// The value at which the answer is 1, else 0; none: the answer itself.
    pub(super) is: Option<i64>,
}

impl Field {
    /// A field of one scope.
    pub(super) const fn one(id: u32, scope: u32) -> Self {
        Self { id, scope, scopes: 1, is: None }
    }
}

/// A batch of fields with its buffer, kept between ticks.
pub(super) struct Batch {
    fields: Vec<Field>,
    /// Where the answers to each field stand in the buffer.
    places: Vec<Range<usize>>,
    buffer: Vec<sys::nvmlFieldValue_t>,
}

// SAFETY: the buffer is plain memory that the driver writes only during a call.
unsafe impl Send for Batch {}

impl Batch {
    pub(super) fn new(fields: Vec<Field>) -> Self {
        let mut next = 0;
        let places = fields
            .iter()
            .map(|field| {
                let first = next;
                next += field.scopes as usize;
                first..next
            })
            .collect();
        let buffer = fields.iter().flat_map(|field| blanks(*field)).collect();
        Self { fields, places, buffer }
    }

    /// Asks for all fields; the answers stand in the order of the fields. By position, since some drivers
    /// return translated ids.
    pub(super) fn read(&mut self, door: &mut Door, Handle(device): Handle) -> Result<(), Absence> {
        if self.fields.is_empty() {
            return Ok(());
        }
        for (place, blank) in self.buffer.iter_mut().zip(self.fields.iter().flat_map(|field| blanks(*field)))
        {
            *place = blank;
        }
        let count = i32::try_from(self.buffer.len()).unwrap_or(i32::MAX);
        ask!(door, nvmlDeviceGetFieldValues(device, count, self.buffer.as_mut_ptr()))?;
        Ok(())
    }

    /// The answer to the field at that position.
    pub(super) fn value(&self, position: usize) -> Result<i64, Absence> {
        let value = self.answers(position).iter().map(decode).reduce(add).unwrap_or(Err(Absence::NotYet))?;
        let is = self.fields.get(position).and_then(|field| field.is);
        Ok(is.map_or(value, |is| i64::from(value == is)))
    }

    /// Whether the field at that position is answered in 64 bits.
    pub(super) fn is_wide(&self, position: usize) -> bool {
        self.answers(position).iter().all(|answer| matches!(answer.valueType, 2..=4))
    }

    fn answers(&self, position: usize) -> &[sys::nvmlFieldValue_t] {
        self.places.get(position).and_then(|place| self.buffer.get(place.clone())).unwrap_or_default()
    }

    /// Where a field stands in the batch.
    pub(super) fn position(&self, field: Field) -> Option<usize> {
        self.fields.iter().position(|other| *other == field)
    }
}

/// The sum of two scopes; one that answers nothing would be missing from it, so there is none.
fn add(left: Result<i64, Absence>, right: Result<i64, Absence>) -> Result<i64, Absence> {
    left?.checked_add(right?).ok_or(Absence::Rejected)
}

fn blanks(field: Field) -> impl Iterator<Item = sys::nvmlFieldValue_t> {
    (0..field.scopes).map(move |step| blank(field.id, field.scope.wrapping_add(step)))
}

fn blank(id: u32, scope: u32) -> sys::nvmlFieldValue_t {
    sys::nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // A driver that leaves an entry untouched must not look as if it had answered 0.
        nvmlReturn: 3,
        value: sys::nvmlValue_t { ullVal: 0 },
    }
}

/// Memory temperature: R545 tags it as a double while the union holds an unsigned integer (DCGM's source).
const MEMORY_TEMPERATURE: u32 = 82;

fn decode(answer: &sys::nvmlFieldValue_t) -> Result<i64, Absence> {
    if answer.nvmlReturn != 0 {
        return Err(match answer.nvmlReturn {
            // Fields that a driver does not know are answered with "invalid argument".
            2 => Absence::NotSupported,
            code => Refusal::Code(code).into(),
        });
    }
    let value = answer.value;
    // SAFETY: all members are plain integers or a double at offset 0 of zeroed memory: every bit pattern
    // is a value of each.
    unsafe {
        match answer.valueType {
            0 if answer.fieldId == MEMORY_TEMPERATURE => Ok(value.uiVal.into()),
            0 => whole(value.dVal),
            1 => Ok(value.uiVal.into()),
            2 => i64::try_from(value.ulVal).map_err(|_| Absence::Rejected),
            3 => i64::try_from(value.ullVal).map_err(|_| Absence::Rejected),
            4 => Ok(value.sllVal),
            5 => Ok(value.siVal.into()),
            6 => Ok(value.usVal.into()),
            _ => Err(Absence::Rejected),
        }
    }
}

/// The driver's doubles become integers at the door.
pub(super) fn whole(value: f64) -> Result<i64, Absence> {
    const LIMIT: f64 = 9.0e18;
    if value.is_finite() && value.abs() < LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "within the range just checked")]
        Ok(value.round() as i64)
    } else {
        Err(Absence::Rejected)
    }
}
