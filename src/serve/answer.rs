//! Builds answers. Errors are one line that says what to do: JSON below `/api/`, where programs read, text
//! elsewhere.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// An answer, its body shared with whoever rendered it.
pub(super) type Answer = Response<Full<Bytes>>;

const TEXT: &str = "text/plain; charset=utf-8";
/// The type of what programs read.
pub(super) const JSON: &str = "application/json";

/// An answer of that type.
pub(super) fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let answer = with(answer, CONTENT_TYPE, content_type);
    with(answer, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// One line of text.
pub(super) fn text(status: StatusCode, line: &str) -> Answer {
    answer(status, TEXT, Bytes::from(format!("{line}\n")))
}

/// An error, as those read it who ask for this path.
pub(super) fn error(status: StatusCode, path: &str, line: &str) -> Answer {
    if !path.starts_with("/api/") {
        return text(status, line);
    }
    let body = serde_json::json!({ "error": line });
    answer(status, JSON, Bytes::from(format!("{body}\n")))
}

/// The same answer with one more header.
pub(super) fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}
