//! Builds responses. An error is one line that says what to do: JSON below `/api/`, where programs read, text elsewhere.

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// A response whose body is shared with whoever rendered it.
pub(super) type PageResponse = Response<Bytes>;

const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of the API.
pub(super) const JSON: &str = "application/json";

/// A response with that content type.
pub(super) fn respond_with(status: StatusCode, content_type: &'static str, body: Bytes) -> PageResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let response = with(response, CONTENT_TYPE, content_type);
    with(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// One line of text.
pub(super) fn text(status: StatusCode, line: &str) -> PageResponse {
    respond_with(status, TEXT, Bytes::from(format!("{line}\n")))
}

/// An error, in the form that clients of this path read.
pub(super) fn error(status: StatusCode, path: &str, line: &str) -> PageResponse {
    if !path.starts_with("/api/") {
        return text(status, line);
    }
    let body = serde_json::json!({ "error": line });
    respond_with(status, JSON, Bytes::from(format!("{body}\n")))
}

/// The same response with one more header.
pub(super) fn with(mut response: PageResponse, name: HeaderName, value: &'static str) -> PageResponse {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
