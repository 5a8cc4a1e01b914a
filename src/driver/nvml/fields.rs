//! The batched field call: many values in one driver call, each with its scope.

use std::ops::Range;

use nvml_wrapper_sys::bindings as sys;

use super::driver_api::{CallError, DriverApi, Handle, call};
use crate::driver::record::{RecordedAnswer, RecordedValue};
use crate::model::Absence;

/// A field id and its scope; the values of several successive scopes are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FieldQuery {
    pub(super) id: u32,
    pub(super) scope: u32,
    pub(super) scopes: u32,
    /// If set, the result is 1 when the value equals this, else 0.
    pub(super) is: Option<i64>,
}

impl FieldQuery {
    pub(super) const fn one(id: u32, scope: u32) -> Self {
        Self { id, scope, scopes: 1, is: None }
    }
}

/// A batch of fields with its buffer, kept between ticks.
pub(super) struct FieldBatch {
    fields: Vec<FieldQuery>,
    places: Vec<Range<usize>>,
    buffer: Vec<sys::nvmlFieldValue_t>,
}

impl FieldBatch {
    pub(super) fn new(fields: Vec<FieldQuery>) -> Self {
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

    /// Reads all fields. Values are matched by position, since some drivers return translated ids.
    pub(super) fn read(&mut self, api: &mut DriverApi, Handle(device): Handle) -> Result<(), Absence> {
        if self.fields.is_empty() {
            return Ok(());
        }
        for (place, blank) in self.buffer.iter_mut().zip(self.fields.iter().flat_map(|field| blanks(*field)))
        {
            *place = blank;
        }
        let count = i32::try_from(self.buffer.len()).unwrap_or(i32::MAX);
        call!(api, nvmlDeviceGetFieldValues(device, count, self.buffer.as_mut_ptr()))?;
        self.record(api, Handle(device));
        Ok(())
    }

    fn record(&self, api: &DriverApi, device: Handle) {
        let Some(recorder) = api.recorder() else { return };
        // Recorded under the requested ids, since some drivers return translated ones.
        let requested = self.fields.iter().flat_map(|field| blanks(*field));
        for (answer, requested) in self.buffer.iter().zip(requested) {
            // SAFETY: an integer of 8 bytes in zeroed memory: every bit pattern is one.
            let bits = unsafe { answer.value.ullVal };
            let value = RecordedAnswer {
                at: api.clock().now().boottime.0,
                call: "nvmlFieldValue_t".into(),
                arguments: [requested.fieldId, requested.scopeId]
                    .map(|id| RecordedValue::Number(id.into()))
                    .into(),
                code: Some(answer.nvmlReturn),
                out: [answer.valueType.into(), bits].map(RecordedValue::Number).into(),
            };
            recorder.value(device, value);
        }
    }

    pub(super) fn value(&self, position: usize) -> Result<i64, Absence> {
        let value = self.answers(position).iter().map(decode).reduce(add).unwrap_or(Err(Absence::NotYet))?;
        let is = self.fields.get(position).and_then(|field| field.is);
        Ok(is.map_or(value, |is| i64::from(value == is)))
    }

    pub(super) fn is_wide(&self, position: usize) -> bool {
        self.answers(position).iter().all(|answer| matches!(answer.valueType, 2..=4))
    }

    fn answers(&self, position: usize) -> &[sys::nvmlFieldValue_t] {
        self.places.get(position).and_then(|place| self.buffer.get(place.clone())).unwrap_or_default()
    }

    pub(super) fn position(&self, field: FieldQuery) -> Option<usize> {
        self.fields.iter().position(|other| *other == field)
    }
}

/// The sum of two scopes; without one of them there is no sum.
fn add(left: Result<i64, Absence>, right: Result<i64, Absence>) -> Result<i64, Absence> {
    left?.checked_add(right?).ok_or(Absence::Rejected)
}

fn blanks(field: FieldQuery) -> impl Iterator<Item = sys::nvmlFieldValue_t> {
    (0..field.scopes).map(move |step| blank(field.id, field.scope.wrapping_add(step)))
}

fn blank(id: u32, scope: u32) -> sys::nvmlFieldValue_t {
    sys::nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // A driver that leaves an entry untouched must not seem to have returned 0.
        nvmlReturn: 3,
        value: sys::nvmlValue_t { ullVal: 0 },
    }
}

/// Memory temperature: R545 tags it as a double while the union holds an unsigned integer (DCGM's source).
const MEMORY_TEMPERATURE: u32 = 82;

fn decode(answer: &sys::nvmlFieldValue_t) -> Result<i64, Absence> {
    if answer.nvmlReturn != 0 {
        return Err(match answer.nvmlReturn {
            // Drivers return "invalid argument" for fields that they do not have.
            2 => Absence::NotSupported,
            code => CallError::Code(code).into(),
        });
    }
    let value = answer.value;
    // SAFETY: all members are plain integers or a double at offset 0 of zeroed memory: every bit pattern
    // is a value of each.
    unsafe {
        match answer.valueType {
            0 if answer.fieldId == MEMORY_TEMPERATURE => Ok(value.uiVal.into()),
            0 => round_to_i64(value.dVal),
            // The driver's marker for "no value".
            1 if value.uiVal == u32::MAX => Err(Absence::Rejected),
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

pub(super) fn round_to_i64(value: f64) -> Result<i64, Absence> {
    const LIMIT: f64 = 9.0e18;
    if value.is_finite() && value.abs() < LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "within the range just checked")]
        Ok(value.round() as i64)
    } else {
        Err(Absence::Rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with its buffer as a driver would fill it: code, type, value.
    fn filled_batch(fields: Vec<FieldQuery>, answers: &[(u32, u32, u64)]) -> FieldBatch {
        let mut batch = FieldBatch::new(fields);
        assert_eq!(batch.buffer.len(), answers.len());
        for (place, (code, kind, value)) in batch.buffer.iter_mut().zip(answers) {
            place.nvmlReturn = *code;
            place.valueType = *kind;
            place.value.ullVal = *value;
        }
        batch
    }

    #[test]
    fn links_are_added_up_and_one_that_does_not_answer_leaves_no_sum() {
        let links = FieldQuery { scopes: 3, ..FieldQuery::one(165, 0) };
        let fields = vec![links, FieldQuery::one(83, 0)];
        let batch = filled_batch(fields.clone(), &[(0, 1, 1), (0, 1, 0), (0, 1, 1), (0, 3, 9)]);
        assert_eq!((batch.value(0), batch.value(1)), (Ok(2), Ok(9)));
        assert_eq!(batch.buffer.iter().map(|one| one.scopeId).collect::<Vec<_>>(), [0, 1, 2, 0]);
        let batch = filled_batch(fields, &[(0, 1, 1), (3, 1, 0), (0, 1, 1), (0, 3, 9)]);
        assert_eq!((batch.value(0), batch.value(1)), (Err(Absence::NotSupported), Ok(9)));
    }

    #[test]
    fn a_sum_above_what_can_be_counted_is_rejected() {
        let links = FieldQuery { scopes: 2, ..FieldQuery::one(138, 0) };
        let most = u64::try_from(i64::MAX).unwrap_or(0);
        let batch = filled_batch(vec![links], &[(0, 3, most), (0, 3, 1)]);
        assert_eq!(batch.value(0), Err(Absence::Rejected));
    }

    #[test]
    fn one_of_several_states_is_1_and_an_answer_that_failed_is_none() {
        let is = |value| FieldQuery { is: Some(value), ..FieldQuery::one(230, 0) };
        let batch = filled_batch(vec![is(0), is(2), is(2)], &[(0, 1, 2), (0, 1, 2), (999, 1, 2)]);
        assert_eq!([0, 1, 2].map(|place| batch.value(place)), [Ok(0), Ok(1), Err(Absence::Failed)]);
    }

    #[test]
    fn only_64_bits_are_wide() {
        let fields = vec![FieldQuery::one(197, 0), FieldQuery::one(198, 0)];
        let batch = filled_batch(fields, &[(0, 1, 5), (0, 3, 5)]);
        assert_eq!([0, 1].map(|place| batch.is_wide(place)), [false, true]);
    }

    #[test]
    fn signed_answers_keep_their_sign() {
        let limit = i64::from(-2_i32).cast_unsigned();
        let batch = filled_batch(vec![FieldQuery::one(194, 0)], &[(0, 5, limit)]);
        assert_eq!(batch.value(0), Ok(-2));
    }
}
