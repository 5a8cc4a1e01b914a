//! Routes a request: checks rate limit, user and path, and builds the response.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, HeaderMap, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Request, StatusCode};
use tokio::time::sleep;

use super::bill::{BillQuery, parse_explain_query, parse_query, request_bill};
use super::connection::Arrival;
use super::listen::MetricNames;
use super::live::document;
use super::local::{Ends, OwnersBusy, admit};
use super::page::{LivePage, PageFile};
use super::passwords::LoginRefusal;
use super::response::{JSON, PageResponse, error, respond_with, text, with};
use super::security::Security;
use super::{Liveness, ReaderUnknown, Site};
use crate::billing::LineFilter;
use crate::export::{self, DocumentKind, PageFormat, PublishedSnapshot, RenderedPage};
use crate::model::VisibleAccount;

/// No path reads the body of a request; a longer one closes the connection.
const LONGEST_BODY: u64 = 16 * 1024;

/// The paths that are served.
#[derive(Clone, Copy)]
enum ServedPath<'a> {
    Metrics,
    Healthy,
    Ready,
    Page(&'a PageFile),
    Snapshot,
    Summary,
    History,
    Processes,
    Bill,
    Explain,
    Health,
    Events,
}

impl<'a> ServedPath<'a> {
    fn at(path: &str, names: MetricNames, page: &'a LivePage) -> Option<Self> {
        match path {
            "/metrics" => Some(Self::Metrics),
            // The path that probes of dcgm-exporter ask.
            "/health" if names == MetricNames::Dcgm => Some(Self::Healthy),
            "/-/healthy" => Some(Self::Healthy),
            "/-/ready" => Some(Self::Ready),
            "/api/v1/snapshot" => Some(Self::Snapshot),
            "/api/v1/summary" => Some(Self::Summary),
            "/api/v1/history" => Some(Self::History),
            "/api/v1/processes" => Some(Self::Processes),
            "/api/v1/bill" => Some(Self::Bill),
            "/api/v1/explain" => Some(Self::Explain),
            "/api/v1/health" => Some(Self::Health),
            "/api/v1/events" => Some(Self::Events),
            _ => page.find(path).map(Self::Page),
        }
    }

    /// Whether only clients on this host may read it while no users are configured.
    fn is_local(self) -> bool {
        !matches!(self, Self::Metrics | Self::Healthy | Self::Ready)
    }

    /// Whether it depends on what the reader may see.
    fn is_of_reader(self) -> bool {
        self.is_local() && !matches!(self, Self::Page(_) | Self::Health)
    }
}

/// The response to a request, with the configured headers.
pub(super) async fn reply_to<B: Body>(request: &Request<B>, arrival: Arrival, site: &Site) -> PageResponse {
    let security = site.access.current();
    let mut response = authorize(request, arrival, site, &security).await;
    security.add_headers(response.headers_mut());
    response
}

async fn authorize<B: Body>(
    request: &Request<B>,
    arrival: Arrival,
    site: &Site,
    security: &Security,
) -> PageResponse {
    let path = request.uri().path();
    let Arrival { ends, names } = arrival;
    if !security.allows_request() {
        let line = "more requests than web.rate_limit allows; send fewer";
        return with(error(StatusCode::TOO_MANY_REQUESTS, path, line), RETRY_AFTER, "1");
    }
    let is_probe =
        matches!(ServedPath::at(path, names, &site.page), Some(ServedPath::Healthy | ServedPath::Ready));
    if security.users.is_empty() || (is_probe && security.open_probes) {
        return route(request, Caller::Anonymous(ends), names, site).await;
    }
    match site.access.passwords.user(request.headers(), ends.peer(), security).await {
        Ok(user) => route(request, Caller::User(security.visible_to(&user)), names, site).await,
        Err(LoginRefusal::Unauthorized) => {
            let refused = error(StatusCode::UNAUTHORIZED, path, "give a user and the right password");
            with(refused, WWW_AUTHENTICATE, "Basic realm=\"gpumeter\"")
        }
        Err(LoginRefusal::Busy) => busy(path, "too many passwords are being verified; try again soon"),
    }
}

fn busy(path: &str, line: &str) -> PageResponse {
    with(error(StatusCode::SERVICE_UNAVAILABLE, path, line), RETRY_AFTER, "1")
}

/// Why a request is not answered.
enum AccessRefusal {
    Forbidden(&'static str),
    Busy,
}

impl AccessRefusal {
    fn response(self, path: &str) -> PageResponse {
        match self {
            Self::Forbidden(line) => error(StatusCode::FORBIDDEN, path, line),
            Self::Busy => busy(
                path,
                "too many requests of this host wait for the owner of their connection; try again soon",
            ),
        }
    }
}

impl From<&'static str> for AccessRefusal {
    fn from(line: &'static str) -> Self {
        Self::Forbidden(line)
    }
}

impl From<OwnersBusy> for AccessRefusal {
    fn from(_: OwnersBusy) -> Self {
        Self::Busy
    }
}

/// Who sent the request.
enum Caller {
    /// No authentication is configured.
    Anonymous(Ends),
    /// A configured user who may read this.
    User(VisibleAccount),
}

/// How often the name of a client's user is asked for while it is being looked up, and how long it is waited in between.
const NAME_TRIES: u32 = 40;
const NAME_WAIT: Duration = Duration::from_millis(100);

impl Caller {
    /// What is sent, or why the request is refused.
    async fn check_access<B>(
        self,
        served: ServedPath<'_>,
        request: &Request<B>,
        site: &Site,
    ) -> Result<VisibleAccount, AccessRefusal> {
        match self {
            Self::Anonymous(ends) if served.is_local() => {
                admit(request, ends)?;
                match served.is_of_reader() {
                    true => local_reader(ends, site).await,
                    false => Ok(VisibleAccount::Everything),
                }
            }
            Self::Anonymous(_) => Ok(VisibleAccount::Everything),
            Self::User(visible)
                if matches!(served, ServedPath::Metrics) && visible != VisibleAccount::Everything =>
            {
                Err(AccessRefusal::Forbidden(
                    "/metrics shows every tenant, and this user may read only some; give the user \"*\" in web.tenants",
                ))
            }
            Self::User(visible) => Ok(visible),
        }
    }
}

/// What a client on this host may see.
async fn local_reader(ends: Ends, site: &Site) -> Result<VisibleAccount, AccessRefusal> {
    if let Some(uid) = ends.user(&site.owners).await? {
        for _ in 0..NAME_TRIES {
            match (site.local_reader)(uid) {
                Err(ReaderUnknown::Yet) => sleep(NAME_WAIT).await,
                Err(ReaderUnknown::Never) => break,
                Ok(visible) => return Ok(visible),
            }
        }
    }
    Err(AccessRefusal::Forbidden(
        "the user of this connection is not known, so nothing can be shown; ask as root, or configure web.users",
    ))
}

async fn route<B: Body>(
    request: &Request<B>,
    caller: Caller,
    names: MetricNames,
    site: &Site,
) -> PageResponse {
    let path = request.uri().path();
    let Some(served) = ServedPath::at(path, names, &site.page) else {
        return error(StatusCode::NOT_FOUND, path, "no such page; try /metrics, /-/healthy or /-/ready");
    };
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
    let visible = match caller.check_access(served, request, site).await {
        Ok(visible) => visible,
        Err(refusal) => return refusal.response(path),
    };
    if visible != VisibleAccount::Everything {
        // Who is on the GPUs decides what is shown of them.
        site.pages.request_processes();
    }
    match served {
        ServedPath::Metrics => match requested_names(request.uri().query(), names) {
            Err(line) => error(StatusCode::BAD_REQUEST, path, &line),
            Ok(names) => metrics(request.headers(), names, site),
        },
        ServedPath::Healthy => healthy(&site.liveness),
        ServedPath::Ready => ready(site),
        ServedPath::Page(file) => file.response(request.headers()),
        ServedPath::Summary => document(request, DocumentKind::Summary, &visible, site),
        ServedPath::History => document(request, DocumentKind::History, &visible, site),
        ServedPath::Processes => document(request, DocumentKind::Processes(None), &visible, site),
        ServedPath::Snapshot => json(path, site, |published| snapshot_json(published, &visible)),
        ServedPath::Health => json(path, site, |published| {
            export::health(&published.snapshot, (site.release)(), &visible).into_bytes()
        }),
        ServedPath::Events => json(path, site, |published| {
            export::events(&site.pages.events().latest(), &published.snapshot, &visible)
        }),
        ServedPath::Bill => {
            let query = parse_query(request.uri().query()).map(|query| (query, None));
            bill(path, query, visible, site).await
        }
        ServedPath::Explain => {
            let query = parse_explain_query(request.uri().query());
            bill(path, query.map(|(query, filter)| (query, Some(filter))), visible, site).await
        }
    }
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

fn metrics(headers: &HeaderMap, names: MetricNames, site: &Site) -> PageResponse {
    let Some(published) = site.pages.get() else { return no_snapshot("/metrics") };
    let format = match names {
        MetricNames::Native => {
            PageFormat::negotiate(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()))
        }
        MetricNames::Dcgm => PageFormat::Dcgm,
    };
    let is_compressed = accepts_gzip(headers);
    let page = match is_compressed {
        true => published.compressed_page(format),
        false => Bytes::from_owner(SharedPage(published.page(format))),
    };
    let response = respond_with(StatusCode::OK, format.content_type(), page);
    let response = with(response, VARY, "accept, accept-encoding");
    if is_compressed { with(response, CONTENT_ENCODING, "gzip") } else { response }
}

/// A page as bytes that many connections share.
struct SharedPage(Arc<RenderedPage>);

impl AsRef<[u8]> for SharedPage {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
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

fn json(path: &str, site: &Site, encode: impl FnOnce(&PublishedSnapshot) -> Vec<u8>) -> PageResponse {
    match site.pages.get() {
        Some(published) => respond_with(StatusCode::OK, JSON, encode(&published).into()),
        None => no_snapshot(path),
    }
}

fn snapshot_json(published: &PublishedSnapshot, visible: &VisibleAccount) -> Vec<u8> {
    let mut json = Vec::new();
    export::json_of(&published.snapshot, published.level(), visible, &mut json);
    json
}

pub(super) fn no_snapshot(path: &str) -> PageResponse {
    busy(path, "there is no snapshot yet; try again in a second")
}

fn healthy(liveness: &Liveness) -> PageResponse {
    if liveness.is_alive() {
        return text(StatusCode::OK, "healthy");
    }
    let seconds = liveness.since_last_tick().0 / 1_000_000_000;
    let line = format!("the last tick was {seconds} s ago; restart the agent");
    text(StatusCode::SERVICE_UNAVAILABLE, &line)
}

/// The agent is ready without an account: a full disk must not restart it. It is not ready while it cannot be scraped at one
/// of its addresses.
fn ready(site: &Site) -> PageResponse {
    if site.pages.get().is_none() {
        return no_snapshot("/-/ready");
    }
    if let Some(reason) = site.missing.reason() {
        return text(StatusCode::SERVICE_UNAVAILABLE, &reason);
    }
    match site.no_account.reason() {
        None => text(StatusCode::OK, "ready"),
        Some(reason) => text(StatusCode::OK, &format!("ready\nno account: {reason}")),
    }
}

async fn bill(
    path: &str,
    query: Result<(BillQuery, Option<LineFilter>), String>,
    visible: VisibleAccount,
    site: &Site,
) -> PageResponse {
    let query = match query {
        Ok(query) => query,
        Err(line) => return error(StatusCode::BAD_REQUEST, path, &line),
    };
    match request_bill(&site.bills, query, visible, site.limits.bill).await {
        Ok(bill) => respond_with(StatusCode::OK, JSON, Bytes::from(bill)),
        Err((status, line)) => error(status, path, &line),
    }
}
