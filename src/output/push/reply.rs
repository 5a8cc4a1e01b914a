//! Reads the responses of a destination: two small protobuf messages of OTLP.

use std::time::Duration;

use prost::Message;

use super::Accepted;

/// Longest message of a destination that is logged, in characters.
const MAX_MESSAGE: usize = 200;

/// `ExportMetricsServiceResponse`. Messages are bytes here, since a destination's text may not be UTF-8.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(bytes = "vec", tag = "2")]
    message: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(bytes = "vec", optional, tag = "2")]
    message: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "3")]
    details: Vec<AnyMessage>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo` with its `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<RetryDelay>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryDelay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

pub(super) fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = RpcStatus::decode(details).ok()?;
    let info = status.details.iter().find(|one| one.type_url.ends_with("google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?))
}

/// Reads an `ExportMetricsServiceResponse`; none if it is something else.
pub(super) fn accepted(bytes: &[u8]) -> Option<Accepted> {
    let PartialSuccess { rejected, message } =
        ExportResponse::decode(bytes).ok()?.partial_success.unwrap_or_default();
    // A negative count is invalid and counts as 0.
    Some(Accepted { rejected: u64::try_from(rejected).unwrap_or(0), message: line(&message) })
}

/// The message of a `google.rpc.Status`, or the begin of any other text.
pub(super) fn status_message(bytes: &[u8]) -> String {
    match RpcStatus::decode(bytes) {
        Ok(RpcStatus { message: Some(message), .. }) => line(&message),
        // Some text happens to be valid protobuf.
        _ => line(bytes),
    }
}

/// A destination's message for the log: short and without control characters.
pub(super) fn line(bytes: &[u8]) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    let text: String = String::from_utf8_lossy(bytes).chars().take(MAX_MESSAGE).map(printable).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use proptest::prelude::*;

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
    fn the_pause_of_a_grpc_status_is_read() {
        let info = RetryInfo { delay: Some(RetryDelay { seconds: 2, nanos: 500_000_000 }) };
        let type_url = "type.googleapis.com/google.rpc.RetryInfo".to_owned();
        let details = vec![AnyMessage { type_url, value: info.encode_to_vec() }];
        let status = RpcStatus { message: None, details }.encode_to_vec();
        assert_eq!(retry_delay(&status), Some(Duration::from_millis(2_500)));
        assert_eq!(retry_delay(b"\xff"), None);
    }

    #[test]
    fn a_status_is_read_and_plain_text_is_passed_on() {
        assert_eq!(status_message(b"\x08\x03\x12\x04slow"), "slow");
        assert_eq!(status_message(b"\x08\x03"), "");
        assert_eq!(status_message(b"<h1>no\n\x1b[31m</h1>"), "<h1>no  [31m</h1>");
        assert_eq!(status_message(&[b'x'; 1000]).len(), MAX_MESSAGE);
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
