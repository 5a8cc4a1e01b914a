//! The documents of the live page: summary, history and processes, each made at most once per snapshot and reader.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY};

use super::AgentSite;
use super::response::{JSON, PageResponse, error, respond_with, with};
use super::route::{Call, accepts_gzip, no_snapshot};
use crate::config::decode_percent;
use crate::model::VisibleAccount;
use crate::output::render::{
    self, PublishedSnapshot, SharedDocument, SummarySource, list_processes, report_history, to_json,
};

pub(super) fn summary(call: &Call<'_>, agent: &AgentSite) -> PageResponse {
    without_parameters(call, agent, |published| {
        to_json(&render::summarize(&SummarySource {
            snapshot: &published.snapshot,
            visible: &call.visible,
            history: &agent.status.pages.history(),
            release: (agent.release)(),
            no_account: agent.status.no_account.lock().clone(),
        }))
    })
}

pub(super) fn history(call: &Call<'_>, agent: &AgentSite) -> PageResponse {
    without_parameters(call, agent, |published| {
        to_json(&report_history(&published.snapshot, &call.visible, &agent.status.pages.history()))
    })
}

pub(super) fn processes(call: &Call<'_>, agent: &AgentSite) -> PageResponse {
    match parse_gpu(call.query) {
        Ok(uuid) => document(call, agent, |published| {
            to_json(&list_processes(&published.snapshot, &call.visible, uuid.as_deref()))
        }),
        Err(line) => error(StatusCode::BAD_REQUEST, call.path, &line),
    }
}

fn without_parameters(
    call: &Call<'_>,
    agent: &AgentSite,
    make: impl FnOnce(&PublishedSnapshot) -> Vec<u8>,
) -> PageResponse {
    match call.query {
        None | Some("") => document(call, agent, make),
        Some(_) => error(StatusCode::BAD_REQUEST, call.path, "this document has no parameters"),
    }
}

fn document(
    call: &Call<'_>,
    agent: &AgentSite,
    make: impl FnOnce(&PublishedSnapshot) -> Vec<u8>,
) -> PageResponse {
    let Call { path, visible, .. } = call;
    let pages = &agent.status.pages;
    pages.request_processes();
    let Some(published) = pages.get() else { return no_snapshot(path) };
    let name = format!("{path}?{}", call.query.unwrap_or_default());
    let document = published.document(name, visible, || make(&published));
    let tag = match visible {
        VisibleAccount::Everything => Some(tag(&published)),
        // Another user of the same browser must not get it from a cache.
        _ => None,
    };
    shared_response(call.headers, &document, JSON, tag)
}

fn parse_gpu(query: Option<&str>) -> Result<Option<String>, String> {
    match query.unwrap_or_default().split_once('=') {
        None if query.is_none_or(str::is_empty) => Ok(None),
        Some(("gpu", uuid)) if !uuid.contains('&') => decode_percent(uuid)
            .map(Some)
            .ok_or_else(|| format!("gpu={uuid} is not percent-encoded UTF-8; encode it again")),
        _ => Err("unknown parameters; use gpu=UUID or none".to_owned()),
    }
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
