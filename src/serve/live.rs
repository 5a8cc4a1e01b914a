//! The documents of the live page: summary, history and processes, each made at most once per snapshot and reader.

use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY};
use hyper::{Request, StatusCode};
use serde::Serialize;

use super::Site;
use super::response::{JSON, PageResponse, error, respond_with, with};
use super::route::{accepts_gzip, no_snapshot};
use crate::config::decode_percent;
use crate::export::{
    self, DocumentKind, PublishedSnapshot, SharedDocument, SummarySource, list_processes, report_history,
};
use crate::model::VisibleAccount;

/// The response with a document of the latest snapshot.
pub(super) fn document<B>(
    request: &Request<B>,
    kind: DocumentKind,
    visible: &VisibleAccount,
    site: &Site,
) -> PageResponse {
    let path = request.uri().path();
    let kind = match (kind, request.uri().query()) {
        (DocumentKind::Processes(_), query) => match parse_gpu(query) {
            Ok(uuid) => DocumentKind::Processes(uuid),
            Err(line) => return error(StatusCode::BAD_REQUEST, path, &line),
        },
        (kind, None | Some("")) => kind,
        (_, Some(_)) => return error(StatusCode::BAD_REQUEST, path, "this document has no parameters"),
    };
    site.pages.request_processes();
    let Some(published) = site.pages.get() else { return no_snapshot(path) };
    let document = published.document(kind.clone(), visible, || make(&kind, &published, visible, site));
    let tag = match visible {
        VisibleAccount::Everything => Some(tag(&published)),
        // Another user of the same browser must not get it from a cache.
        _ => None,
    };
    shared_response(request.headers(), &document, JSON, tag)
}

/// The UUID in a query.
fn parse_gpu(query: Option<&str>) -> Result<Option<String>, String> {
    match query.unwrap_or_default().split_once('=') {
        None if query.is_none_or(str::is_empty) => Ok(None),
        Some(("gpu", uuid)) if !uuid.contains('&') => decode_percent(uuid)
            .map(Some)
            .ok_or_else(|| format!("gpu={uuid} is not percent-encoded UTF-8; encode it again")),
        _ => Err("unknown parameters; use gpu=UUID or none".to_owned()),
    }
}

fn make(
    kind: &DocumentKind,
    published: &PublishedSnapshot,
    visible: &VisibleAccount,
    site: &Site,
) -> Vec<u8> {
    let snapshot = &*published.snapshot;
    match kind {
        DocumentKind::Summary => to_json(&export::summarize(&SummarySource {
            snapshot,
            visible,
            history: &site.pages.history(),
            release: (site.release)(),
            no_account: site.no_account.reason(),
        })),
        DocumentKind::History => to_json(&report_history(snapshot, visible, &site.pages.history())),
        DocumentKind::Processes(uuid) => to_json(&list_processes(snapshot, visible, uuid.as_deref())),
    }
}

fn to_json<T: Serialize>(document: &T) -> Vec<u8> {
    // Writing plain values to memory does not fail.
    let mut text = serde_json::to_vec(document).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Identifies a snapshot among all of all runs of the agent.
fn tag(published: &PublishedSnapshot) -> String {
    format!("\"{:x}-{:x}\"", published.snapshot.started.0, published.snapshot.sequence)
}

/// A response with a shared document: compressed where the client accepts it, and without a body where the client has it.
pub(super) fn shared_response(
    headers: &HeaderMap,
    document: &SharedDocument,
    content_type: &'static str,
    tag: Option<String>,
) -> PageResponse {
    let Some(tag) = tag.and_then(|tag| HeaderValue::from_str(&tag).ok()) else {
        return with(body(headers, document, content_type), CACHE_CONTROL, "no-store");
    };
    let has_it = headers.get_all(IF_NONE_MATCH).iter().any(|known| *known == tag);
    let mut response = match has_it {
        true => respond_with(StatusCode::NOT_MODIFIED, content_type, hyper::body::Bytes::new()),
        false => body(headers, document, content_type),
    };
    response.headers_mut().insert(ETAG, tag);
    with(response, CACHE_CONTROL, "private, no-cache")
}

fn body(headers: &HeaderMap, document: &SharedDocument, content_type: &'static str) -> PageResponse {
    let response = match accepts_gzip(headers) {
        true => {
            let response = respond_with(StatusCode::OK, content_type, document.compressed());
            with(response, CONTENT_ENCODING, "gzip")
        }
        false => respond_with(StatusCode::OK, content_type, document.text.clone()),
    };
    with(response, VARY, "accept-encoding")
}
