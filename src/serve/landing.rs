//! The page at `/`: what this is, and where to go from here.

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, X_FRAME_OPTIONS};

use super::answer::{Answer, answer, with};

const PAGE: &str = concat!(
    "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>gpumeter</title>\n",
    "<h1>gpumeter ",
    env!("CARGO_PKG_VERSION"),
    "</h1>\n<ul>\n",
    "<li><a href=\"/metrics\">/metrics</a> Prometheus text or OpenMetrics\n",
    "<li><a href=\"/api/v1/snapshot\">/api/v1/snapshot</a> the latest snapshot as JSON\n",
    "<li><a href=\"/api/v1/health\">/api/v1/health</a> how each GPU is, and what to do\n",
    "<li><a href=\"/api/v1/bill\">/api/v1/bill?from=&amp;to=</a> the bill of a time\n",
    "<li><a href=\"/-/healthy\">/-/healthy</a> whether the agent is alive\n",
    "<li><a href=\"/-/ready\">/-/ready</a> whether there is a first snapshot\n",
    "</ul>\n</html>\n",
);

/// The page.
pub(super) fn landing() -> Answer {
    let page = answer(StatusCode::OK, "text/html; charset=utf-8", Bytes::from_static(PAGE.as_bytes()));
    let page = with(page, X_FRAME_OPTIONS, "deny");
    with(page, CONTENT_SECURITY_POLICY, "default-src 'none'")
}
