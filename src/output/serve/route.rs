//! Routes a request: checks rate limit, user and path, and builds the response.

use std::time::Duration;

use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, HeaderMap, RETRY_AFTER, VARY,
};
use hyper::{Method, Request, StatusCode};
use tokio::time::sleep;

use super::bill::{LedgerAnswer, parse_query, request_bill};
use super::connection::Arrival;
use super::listen::MetricNames;
use super::local::{Ends, check_origin};
use super::page::LivePage;
use super::response::{JSON, PageResponse, Refusal, busy, error, respond_with, text, with};
use super::security::Security;
use super::{NO_SNAPSHOT, Site, live};
use crate::model::VisibleAccount;
use crate::output::render::{self, PageFormat, PublishedSnapshot};

/// No path reads the body of a request; a longer one closes the connection.
const LONGEST_BODY: u64 = 16 * 1024;

#[derive(Clone, Copy)]
struct Route {
    path: &'static str,
    audience: Audience,
    answer: Answer,
}

/// Who may read an endpoint while no users are configured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// Everybody; by `web.open_probes` also while users are configured.
    Probes,
    Scrapers,
    /// Clients on this host, who all get the same.
    Host,
    /// Clients on this host, each of whom gets what its user may see.
    Reader,
}

#[derive(Clone, Copy)]
enum Answer {
    AtOnce(fn(&Call<'_>) -> PageResponse),
    /// By the thread that reads the ledger.
    FromLedger(LedgerAnswer),
}

pub(super) struct Call<'a> {
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
    names: MetricNames,
    pub(super) visible: VisibleAccount,
    pub(super) site: &'a Site,
}

const fn at_once(path: &'static str, audience: Audience, answer: fn(&Call<'_>) -> PageResponse) -> Route {
    Route { path, audience, answer: Answer::AtOnce(answer) }
}

const fn from_ledger(path: &'static str, answer: LedgerAnswer) -> Route {
    Route { path, audience: Audience::Reader, answer: Answer::FromLedger(answer) }
}

/// All paths but the files of the live page.
const ENDPOINTS: &[Route] = &[
    at_once("/metrics", Audience::Scrapers, metrics),
    at_once("/-/healthy", Audience::Probes, healthy),
    at_once("/-/ready", Audience::Probes, ready),
    at_once("/api/v1/summary", Audience::Reader, live::summary),
    at_once("/api/v1/history", Audience::Reader, live::history),
    at_once("/api/v1/processes", Audience::Reader, live::processes),
    at_once("/api/v1/snapshot", Audience::Reader, |call| {
        json(call, |published| render::json(&published.snapshot, published.level(), &call.visible))
    }),
    at_once("/api/v1/health", Audience::Host, |call| {
        json(call, |published| render::health(&published.snapshot, (call.site.release)(), &call.visible))
    }),
    at_once("/api/v1/events", Audience::Reader, |call| {
        json(call, |published| {
            render::events(&call.site.status.pages.events().latest(), &published.snapshot, &call.visible)
        })
    }),
    from_ledger("/api/v1/bill", LedgerAnswer::Bill),
    from_ledger("/api/v1/explain", LedgerAnswer::Explanation),
    from_ledger("/api/v1/costs", LedgerAnswer::Costs),
];

/// All paths but the files of the live page, for the test that asks each as a reader of some tenants.
pub fn endpoint_paths() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.iter().map(|endpoint| endpoint.path)
}

impl Route {
    fn at(path: &str, names: MetricNames, page: &LivePage) -> Option<Self> {
        // The path that probes of dcgm-exporter ask.
        let path = if path == "/health" && names == MetricNames::Dcgm { "/-/healthy" } else { path };
        let file = || Some(at_once(page.find(path)?.path, Audience::Host, page_file));
        ENDPOINTS.iter().find(|endpoint| endpoint.path == path).copied().or_else(file)
    }
}

pub(super) async fn reply_to<B: Body>(request: &Request<B>, arrival: Arrival, site: &Site) -> PageResponse {
    let security = site.access.current();
    let mut response = authenticate(request, arrival, site, &security).await;
    security.add_headers(response.headers_mut());
    response
}

async fn authenticate<B: Body>(
    request: &Request<B>,
    arrival: Arrival,
    site: &Site,
    security: &Security,
) -> PageResponse {
    let path = request.uri().path();
    if !security.allows_request() {
        let line = "more requests than web.rate_limit allows; send fewer";
        return with(error(StatusCode::TOO_MANY_REQUESTS, path, line), RETRY_AFTER, "1");
    }
    let endpoint = Route::at(path, arrival.names, &site.page);
    let is_probe = endpoint.is_some_and(|endpoint| endpoint.audience == Audience::Probes);
    if security.users.is_empty() || (is_probe && security.open_probes) {
        return route(request, endpoint, None, arrival, site).await;
    }
    match site.access.passwords.user(request.headers(), arrival.ends.peer(), security).await {
        Ok(user) => route(request, endpoint, Some(security.visible_to(&user)), arrival, site).await,
        Err(refusal) => refusal.response(path),
    }
}

/// How often the name of a client's user is asked for during its lookup, and the wait between two tries.
const NAME_TRIES: u32 = 40;
const NAME_WAIT: Duration = Duration::from_millis(100);

/// What the client may see: `user` is what a configured user may, absent where no user is needed.
async fn check_access<B>(
    request: &Request<B>,
    audience: Audience,
    user: Option<VisibleAccount>,
    ends: Ends,
    site: &Site,
) -> Result<VisibleAccount, Refusal> {
    match (user, audience) {
        (Some(visible), Audience::Scrapers) if visible != VisibleAccount::Everything => {
            Err(Refusal::Forbidden(
                "/metrics shows every tenant, and this user may read only some; give the user \"*\" in web.tenants",
            ))
        }
        (Some(visible), _) => Ok(visible),
        (None, Audience::Probes | Audience::Scrapers) => Ok(VisibleAccount::Everything),
        (None, audience) => {
            check_origin(request, ends).map_err(Refusal::Forbidden)?;
            if audience == Audience::Host {
                return Ok(VisibleAccount::Everything);
            }
            local_reader(ends, site).await
        }
    }
}

/// What a client on this host may see.
async fn local_reader(ends: Ends, site: &Site) -> Result<VisibleAccount, Refusal> {
    if let Some(uid) = ends.user(&site.owners).await? {
        for _ in 0..NAME_TRIES {
            if let Some(visible) = (site.local_reader)(uid) {
                return Ok(visible);
            }
            sleep(NAME_WAIT).await;
        }
    }
    Err(Refusal::Forbidden(
        "the kernel does not tell the user of this connection, so nothing can be shown; ask over a Unix socket (web.listen), or \
         configure web.users",
    ))
}

async fn route<B: Body>(
    request: &Request<B>,
    endpoint: Option<Route>,
    user: Option<VisibleAccount>,
    Arrival { ends, names }: Arrival,
    site: &Site,
) -> PageResponse {
    let path = request.uri().path();
    let Some(endpoint) = endpoint else { return no_such_page(path) };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused =
            error(StatusCode::METHOD_NOT_ALLOWED, path, "the agent cannot be changed over HTTP; use GET");
        return with(refused, ALLOW, "GET, HEAD");
    }
    if request.body().size_hint().lower() > LONGEST_BODY {
        let refused =
            error(StatusCode::PAYLOAD_TOO_LARGE, path, "request bodies are not accepted; send none");
        return with(refused, CONNECTION, "close");
    }
    let visible = match check_access(request, endpoint.audience, user, ends, site).await {
        Ok(visible) => visible,
        Err(refusal) => return refusal.response(path),
    };
    if visible != VisibleAccount::Everything {
        // Who is on the GPUs decides what is shown of them.
        site.status.pages.request_processes();
    }
    let query = request.uri().query();
    match endpoint.answer {
        Answer::AtOnce(answer) => {
            answer(&Call { path, query, headers: request.headers(), names, visible, site })
        }
        Answer::FromLedger(answer) => from_reader(request, answer, visible, site).await,
    }
}

fn no_such_page(path: &str) -> PageResponse {
    error(StatusCode::NOT_FOUND, path, "no such page; try /metrics, /-/healthy or /-/ready")
}

fn page_file(call: &Call<'_>) -> PageResponse {
    call.site.page.find(call.path).map_or_else(|| no_such_page(call.path), |file| file.response(call.headers))
}

/// The names of the metrics that `profile` asks for; without it those of the listener. Another profile is an error, since
/// other names in its place would mislead. Other parameters, which scrapers send to exporters with filters, are ignored.
fn requested_names(query: Option<&str>, names: MetricNames) -> Result<MetricNames, String> {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    match pairs.find(|(name, _)| *name == "profile") {
        None => Ok(names),
        Some((_, "native")) => Ok(MetricNames::Native),
        Some((_, "dcgm")) => Ok(MetricNames::Dcgm),
        Some((_, other)) => {
            Err(format!("profile={other} is not served; ask for profile=native or profile=dcgm"))
        }
    }
}

fn metrics(call: &Call<'_>) -> PageResponse {
    let headers = call.headers;
    let names = match requested_names(call.query, call.names) {
        Ok(names) => names,
        Err(line) => return error(StatusCode::BAD_REQUEST, call.path, &line),
    };
    let Some(published) = call.site.status.pages.get() else { return no_snapshot(call.path) };
    let format = match names {
        MetricNames::Native => {
            PageFormat::negotiate(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()))
        }
        MetricNames::Dcgm => PageFormat::Dcgm,
    };
    let is_compressed = accepts_gzip(headers);
    let page = match is_compressed {
        true => published.compressed_page(format),
        false => published.page(format),
    };
    let response = respond_with(StatusCode::OK, format.content_type(), page);
    let response = with(response, VARY, "accept, accept-encoding");
    if is_compressed { with(response, CONTENT_ENCODING, "gzip") } else { response }
}

/// Whether the client accepts gzip; `gzip;q=0` refuses it.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|list| list.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight
            .split_once('=')
            .is_some_and(|(_, weight)| weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

fn json(call: &Call<'_>, encode: impl FnOnce(&PublishedSnapshot) -> Vec<u8>) -> PageResponse {
    match call.site.status.pages.get() {
        Some(published) => respond_with(StatusCode::OK, JSON, encode(&published).into()),
        None => no_snapshot(call.path),
    }
}

pub(super) fn no_snapshot(path: &str) -> PageResponse {
    busy(path, NO_SNAPSHOT)
}

fn healthy(call: &Call<'_>) -> PageResponse {
    match call.site.status.check_health() {
        Ok(()) => text(StatusCode::OK, "healthy"),
        Err(line) => text(StatusCode::SERVICE_UNAVAILABLE, &line),
    }
}

fn ready(call: &Call<'_>) -> PageResponse {
    let status = &call.site.status;
    if let Err(line) = status.check_readiness() {
        return busy(call.path, &line);
    }
    match &*status.no_account.lock() {
        None => text(StatusCode::OK, "ready"),
        Some(reason) => text(StatusCode::OK, &format!("ready\nno account: {reason}")),
    }
}

async fn from_reader<B>(
    request: &Request<B>,
    answer: LedgerAnswer,
    visible: VisibleAccount,
    site: &Site,
) -> PageResponse {
    let path = request.uri().path();
    let question = match parse_query(request.uri().query(), answer, &site.zone, visible) {
        Ok(question) => question,
        Err(line) => return error(StatusCode::BAD_REQUEST, path, &line),
    };
    match request_bill(&site.bills, question, site.limits.bill).await {
        // What one reader may see is nothing for the next one behind a proxy.
        Ok(answer) => {
            with(respond_with(StatusCode::OK, JSON, Bytes::from(answer)), CACHE_CONTROL, "no-store")
        }
        Err((status, line)) => error(status, path, &line),
    }
}
