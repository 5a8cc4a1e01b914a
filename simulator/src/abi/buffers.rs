//! The caller's pointers: nearly all reads and writes through them are here.
//!
//! The types are transparent wrappers of pointers that C callers pass. By NVML's contract these are null or
//! valid for what the function's header says. Null is always refused.

use std::ffi::{CStr, c_char, c_uint};

use super::answer::{Answer, INSUFFICIENT_SIZE, INVALID_ARGUMENT, Refused, VERSION_MISMATCH};
use super::spoil;

/// A pointer to one or more values that the caller owns.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn pointer(self) -> Result<*mut T, Refused> {
        if self.0.is_null() { Err(INVALID_ARGUMENT) } else { Ok(self.0) }
    }

    pub(crate) fn at(pointer: *mut T) -> Self {
        Self(pointer)
    }
}

impl<T: 'static> Out<T> {
    pub(crate) fn put(self, value: T) -> Answer {
        let pointer = self.pointer()?;
        // SAFETY: not null, so by NVML's contract the caller's own value to be written.
        unsafe { pointer.write(value) };
        spoil::written(pointer);
        Ok(())
    }
}

impl<T> Out<T> {
    /// The first word of a versioned structure. Only that is read, since the caller's structure may be shorter.
    pub(crate) fn version(self) -> Result<u32, Refused> {
        // SAFETY: not null, so by NVML's contract a structure of the caller's, whose first word it has set.
        Ok(unsafe { self.pointer()?.cast::<u32>().read() })
    }
}

impl<T: Copy + 'static> Out<T> {
    pub(crate) fn get(self) -> Result<T, Refused> {
        let pointer = self.pointer()?;
        // SAFETY: not null, so by NVML's contract a value that the caller has set.
        Ok(unsafe { pointer.read() })
    }

    /// Writes the value at an index of the caller's array; the index must be within it.
    pub(crate) fn put_at(self, index: usize, value: T) -> Answer {
        Self(self.pointer()?.wrapping_add(index)).put(value)
    }
}

/// Fills an array as NVML does: `count` holds how many fit, and gets how many there are.
pub(crate) fn fill<T: Copy + 'static>(count: Out<c_uint>, items: Out<T>, values: &[T]) -> Answer {
    let room = count.get()? as usize;
    count.put(c_uint::try_from(values.len()).unwrap_or(c_uint::MAX))?;
    if room < values.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    if spoil::widened::<T>() {
        return fill_wide(items, values, room);
    }
    values.iter().enumerate().try_for_each(|(index, value)| items.put_at(index, *value))
}

/// As `fill`, for lists where a count of 0 asks for the number without an error.
pub(crate) fn listed<T: Copy + 'static>(count: Out<c_uint>, items: Out<T>, values: &[T]) -> Answer {
    if count.get()? == 0 {
        return count.put(c_uint::try_from(values.len()).unwrap_or(c_uint::MAX));
    }
    fill(count, items, values)
}

/// Fills the array as a driver whose structure has eight bytes more. A real one writes past the end of the
/// array of a caller with the shorter structure; this one stops there.
fn fill_wide<T: Copy + 'static>(items: Out<T>, values: &[T], room: usize) -> Answer {
    let first = items.pointer()?.cast::<u8>();
    let wide = size_of::<T>() + size_of::<u64>();
    for (index, value) in values.iter().enumerate() {
        if (index + 1) * wide <= room * size_of::<T>() {
            // SAFETY: within the room that the caller has; the entries need not be aligned any more.
            unsafe { first.add(index * wide).cast::<T>().write_unaligned(*value) };
        }
    }
    Ok(())
}

/// Checks the version word that names the caller's structure.
pub(crate) fn expect_version<T>(given: u32, version: u32) -> Answer {
    let expected = u32::try_from(size_of::<T>()).unwrap_or(0) | version << 24;
    if given == expected { Ok(()) } else { Err(VERSION_MISMATCH) }
}

/// Writes a text with its NUL into the caller's buffer.
pub(crate) fn text(buffer: Out<c_char>, length: c_uint, value: &str) -> Answer {
    buffer.pointer()?;
    if value.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    let bytes = value.bytes().chain([0]);
    bytes.enumerate().try_for_each(|(index, byte)| buffer.put_at(index, byte.cast_signed()))?;
    spoil::text(buffer.pointer()?, length as usize);
    Ok(())
}

/// A text in an array of fixed size, truncated if it is longer.
pub(crate) fn array<const N: usize>(value: &str) -> [c_char; N] {
    let mut array = [0; N];
    let room = N.saturating_sub(1);
    for (place, byte) in array.iter_mut().take(room).zip(value.bytes()) {
        *place = byte.cast_signed();
    }
    array
}

/// A NUL-terminated text that the caller owns.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn at(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    pub(crate) fn get(&self) -> Result<&str, Refused> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by NVML's contract NUL-terminated and alive during the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| INVALID_ARGUMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_is_too_small_still_gets_the_count() {
        let (mut count, mut items) = (1, [0; 3]);
        assert_eq!(fill(Out(&raw mut count), Out(items.as_mut_ptr()), &[7, 8]), Err(INSUFFICIENT_SIZE));
        assert_eq!(count, 2);
        assert_eq!(fill(Out(&raw mut count), Out(items.as_mut_ptr()), &[7, 8]), Ok(()));
        assert_eq!(items, [7, 8, 0]);
        count = 0;
        let none = Out::<u32>(std::ptr::null_mut());
        assert_eq!(fill(Out(&raw mut count), none, &[]), Ok(()));
        assert_eq!(fill(Out(&raw mut count), none, &[7]), Err(INSUFFICIENT_SIZE));
        assert_eq!(fill(Out(&raw mut count), none, &[7]), Err(INVALID_ARGUMENT));
    }

    #[test]
    fn a_text_needs_room_for_its_nul() {
        let mut buffer = [1; 4];
        assert_eq!(text(Out(buffer.as_mut_ptr()), 3, "abc"), Err(INSUFFICIENT_SIZE));
        assert_eq!(text(Out(buffer.as_mut_ptr()), 4, "abc"), Ok(()));
        assert_eq!(buffer, [97, 98, 99, 0]);
        assert_eq!(array::<3>("abc"), [97, 98, 0]);
    }
}
