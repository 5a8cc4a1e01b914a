//! The page at `/`: what this is, and links to everything else.

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, X_FRAME_OPTIONS};

use super::response::{PageResponse, respond_with, with};

/// Each path with what it serves.
const PATHS: [(&str, &str); 6] = [
    ("/metrics", "Prometheus text or OpenMetrics"),
    ("/api/v1/snapshot", "the latest snapshot as JSON"),
    ("/api/v1/health", "how each GPU is, and what to do"),
    ("/api/v1/bill", "the bill of a time, from= and to="),
    ("/-/healthy", "whether the agent is alive"),
    ("/-/ready", "whether there is a first snapshot"),
];

/// Renders the page, with links below the URL under which users reach the agent; without one, relative to the host that
/// they asked.
pub fn render_index_page(external_url: Option<&str>) -> Bytes {
    let base = external_url.unwrap_or_default().replace('&', "&amp;").replace('"', "&quot;");
    let links = PATHS.map(|(path, what)| format!("<li><a href=\"{base}{path}\">{path}</a> {what}\n"));
    let (version, links) = (env!("CARGO_PKG_VERSION"), links.concat());
    Bytes::from(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>gpumeter</title>\n\
         <h1>gpumeter {version}</h1>\n<ul>\n{links}</ul>\n</html>\n"
    ))
}

/// The response that carries it.
pub(super) fn index_response(page: &Bytes) -> PageResponse {
    let page = respond_with(StatusCode::OK, "text/html; charset=utf-8", page.clone());
    let page = with(page, X_FRAME_OPTIONS, "deny");
    with(page, CONTENT_SECURITY_POLICY, "default-src 'none'")
}
