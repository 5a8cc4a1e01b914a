//! As much of the protobuf wire format as an OTLP request needs, appended to a byte vector.
//!
//! Every length is known before its message is written, so lengths are as short as they can be. It does not
//! know any message: field numbers are the caller's.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

/// Appends a number in groups of seven bits.
pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// How many bytes [`varint`] appends.
pub(super) const fn varint_length(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends a field of type `uint32`, `bool` or an enum.
pub(super) fn small(out: &mut Vec<u8>, field: u64, number: u64) {
    varint(out, (field << 3) | VARINT);
    varint(out, number);
}

/// Appends a field of type `fixed64`; `sfixed64` and `double` are written by their bits.
pub(super) fn fixed64(out: &mut Vec<u8>, field: u64, bits: u64) {
    varint(out, (field << 3) | FIXED64);
    out.extend_from_slice(&bits.to_le_bytes());
}

/// Appends the tag and length of a string, a message or packed numbers; the content follows.
pub(super) fn open(out: &mut Vec<u8>, field: u64, length: usize) {
    varint(out, (field << 3) | LENGTH);
    varint(out, length as u64);
}

/// Appends a string, a message or packed numbers.
pub(super) fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    open(out, field, content.len());
    out.extend_from_slice(content);
}

/// How many bytes [`bytes`] appends for a field below 16.
pub(super) const fn bytes_length(content: usize) -> usize {
    1 + varint_length(content as u64) + content
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_varint_is_as_long_as_said_and_reads_back(number in any::<u64>(), shift in 0_u32..64) {
            let number = number >> shift;
            let mut out = Vec::new();
            varint(&mut out, number);
            prop_assert_eq!(out.len(), varint_length(number));
            prop_assert_eq!(prost::encoding::decode_varint(&mut out.as_slice()).unwrap(), number);
        }
    }
}
