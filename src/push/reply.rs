//! Reads what a destination answers: two small protobuf messages, of which three fields matter.
//!
//! The bytes come from a peer, so every length is checked and unknown fields are stepped over. A few lines
//! here spare a protobuf library.

use super::Accepted;

/// Longest message of a peer that is passed on, in characters.
const LONGEST_MESSAGE: usize = 200;

/// Reads an `ExportMetricsServiceResponse`, or finds that it is none.
pub(super) fn accepted(bytes: &[u8]) -> Option<Accepted> {
    let mut accepted = Accepted::default();
    let partial_success = last_message(bytes, 1)?;
    let mut rest = partial_success.unwrap_or_default();
    while !rest.is_empty() {
        match field(&mut rest)? {
            // An int64; a negative one is nonsense and rejects nothing.
            (1, Value::Number(rejected)) => {
                accepted.rejected = u64::try_from(rejected.cast_signed()).unwrap_or(0);
            }
            (2, Value::Bytes(message)) => accepted.message = line(message),
            _ => {}
        }
    }
    Some(accepted)
}

/// The message of a `google.rpc.Status`, or the start of whatever text it is.
pub(super) fn status_message(bytes: &[u8]) -> String {
    match last_message(bytes, 2) {
        Some(Some(message)) => line(message),
        // Some text is also protobuf, by chance.
        _ => line(bytes),
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The last bytes under that field number, as protobuf has it where there are several.
fn last_message(mut rest: &[u8], wanted: u64) -> Option<Option<&[u8]>> {
    let mut last = None;
    while !rest.is_empty() {
        if let (number, Value::Bytes(bytes)) = field(&mut rest)?
            && number == wanted
        {
            last = Some(bytes);
        }
    }
    Some(last)
}

/// Takes one field off the front.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Number(varint(rest)?),
        1 => take(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Value::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Value::Fixed)?,
        _ => return None,
    };
    // Field numbers begin at 1.
    (tag >> 3 != 0).then_some((tag >> 3, value))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

/// What a peer said, short and without anything that could disturb a log.
fn line(bytes: &[u8]) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text: String = String::from_utf8_lossy(bytes).chars().take(LONGEST_MESSAGE).map(printable).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn encoded(rejected: i64, message: &str) -> Vec<u8> {
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message: message.to_owned() };
        ExportMetricsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
    }

    #[test]
    fn a_partial_success_is_read() {
        let expected = Accepted { rejected: 300, message: "too old".to_owned() };
        assert_eq!(accepted(&encoded(300, "too old")), Some(expected));
        assert_eq!(accepted(&[]), Some(Accepted::default()));
        assert_eq!(accepted(&encoded(-1, "")), Some(Accepted::default()));
    }

    #[test]
    fn a_web_page_is_no_reply() {
        assert_eq!(accepted(b"<!doctype html>"), None);
        assert_eq!(accepted(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), None);
        assert_eq!(accepted(&[0x80; 20]), None);
        assert_eq!(accepted(&[0, 0]), None);
    }

    #[test]
    fn a_status_is_read_and_plain_text_is_passed_on() {
        assert_eq!(status_message(b"\x08\x03\x12\x04slow"), "slow");
        assert_eq!(status_message(b"\x08\x03"), "");
        assert_eq!(status_message(b"<h1>no\n\x1b[31m</h1>"), "<h1>no  [31m</h1>");
        assert_eq!(status_message(&[b'x'; 1000]).len(), LONGEST_MESSAGE);
    }

    proptest! {
        #[test]
        fn no_reply_makes_the_reader_panic(bytes: Vec<u8>) {
            let _ = accepted(&bytes);
            let _ = status_message(&bytes);
        }

        #[test]
        fn every_partial_success_is_read_as_written(rejected in 0..i64::MAX, message in "[a-z]{0,40}") {
            let read = accepted(&encoded(rejected, &message));
            prop_assert_eq!(read, Some(Accepted { rejected: rejected.unsigned_abs(), message }));
        }
    }
}
