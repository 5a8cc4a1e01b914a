//! Builds responses and counts them. An error is one line that says what to do, as JSON below `/api/` and as text elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use hyper::header::{
    CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

pub(super) type PageResponse = Response<Bytes>;

const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";

pub(super) fn respond_with(status: StatusCode, content_type: &'static str, body: Bytes) -> PageResponse {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let response = with(response, CONTENT_TYPE, content_type);
    with(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

pub(super) fn text(status: StatusCode, line: &str) -> PageResponse {
    respond_with(status, TEXT, Bytes::from(format!("{line}\n")))
}

/// An error as JSON or text, depending on the path.
pub(super) fn error(status: StatusCode, path: &str, line: &str) -> PageResponse {
    if !path.starts_with("/api/") {
        return text(status, line);
    }
    let body = serde_json::json!({ "error": line });
    respond_with(status, JSON, Bytes::from(format!("{body}\n")))
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No user, or a wrong password.
    Unauthorized,
    Forbidden(&'static str),
    /// Too many requests wait for the same.
    Busy(&'static str),
}

impl Refusal {
    pub(super) fn response(self, path: &str) -> PageResponse {
        match self {
            Self::Unauthorized => {
                let refused = error(StatusCode::UNAUTHORIZED, path, "give a user and the right password");
                with(refused, WWW_AUTHENTICATE, "Basic realm=\"gpumeter\"")
            }
            Self::Forbidden(line) => error(StatusCode::FORBIDDEN, path, line),
            Self::Busy(line) => busy(path, line),
        }
    }
}

/// An error that is over soon.
pub(super) fn busy(path: &str, line: &str) -> PageResponse {
    with(error(StatusCode::SERVICE_UNAVAILABLE, path, line), RETRY_AFTER, "1")
}

pub(super) fn with(mut response: PageResponse, name: HeaderName, value: &'static str) -> PageResponse {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

/// Every status that the server uses; all are exported from 0 on, so that a first error is an increase.
const CODES: [u16; 16] = [200, 304, 400, 401, 403, 404, 405, 408, 413, 414, 415, 429, 431, 500, 503, 504];

#[derive(Debug, Default)]
pub struct Requests {
    counts: [AtomicU64; CODES.len()],
}

impl Requests {
    pub fn count(&self, code: u16) {
        let position = CODES.iter().position(|known| *known == code);
        if let Some(count) = position.and_then(|position| self.counts.get(position)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn by_code(&self) -> impl Iterator<Item = (u16, u64)> {
        CODES.into_iter().zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_counted_by_status_and_every_status_starts_at_0() {
        let requests = Requests::default();
        requests.count(200);
        requests.count(200);
        requests.count(504);
        let counts: Vec<_> = requests.by_code().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(200, 2), (504, 1)]);
        assert_eq!(requests.by_code().count(), CODES.len());
    }
}
