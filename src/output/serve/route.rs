//! Routes a request: checks rate limit, user and path, and builds the response.

use std::time::Duration;

use hyper::body::Body;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, HeaderMap, RETRY_AFTER, VARY,
};
use hyper::{Method, Request, StatusCode};
use tokio::time::sleep;

use super::bill::{BoxError, LedgerAnswer, LedgerQuestion, parse_query, read_book, request_bill};
use super::connection::Arrival;
use super::fleet::TEXT_FORMAT;
use super::listen::MetricNames;
use super::local::{Ends, check_origin};
use super::page::PageFile;
use super::response::{JSON, PageResponse, Refusal, busy, error, respond_with, text, with};
use super::security::Security;
use super::{AgentSite, NO_SNAPSHOT, Served, Site, live};
use crate::accounting::billing::{BillRequest, LONGEST_BOOK};
use crate::model::VisibleAccount;
use crate::output::render::{self, PageFormat, PublishedSnapshot};

/// A longer body closes the connection where none is read.
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
    /// Clients on this host whose user may see everything; also while users are configured.
    WholeReader,
}

#[derive(Clone, Copy)]
enum Answer {
    /// By an agent and by the server of a fleet.
    AtOnce(fn(&Call<'_>) -> PageResponse),
    /// By an agent alone.
    OfAgent(fn(&Call<'_>, &AgentSite) -> PageResponse),
    /// By the thread that reads the ledger of an agent, or the exports of a fleet.
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

const fn of_agent(
    path: &'static str,
    audience: Audience,
    answer: fn(&Call<'_>, &AgentSite) -> PageResponse,
) -> Route {
    Route { path, audience, answer: Answer::OfAgent(answer) }
}

const fn from_ledger(path: &'static str, answer: LedgerAnswer) -> Route {
    Route { path, audience: Audience::Reader, answer: Answer::FromLedger(answer) }
}

/// All paths but the files of pages.
const ENDPOINTS: &[Route] = &[
    at_once("/metrics", Audience::Scrapers, metrics),
    at_once("/-/healthy", Audience::Probes, healthy),
    at_once("/-/ready", Audience::Probes, ready),
    of_agent("/api/v1/summary", Audience::Reader, live::summary),
    of_agent("/api/v1/history", Audience::Reader, live::history),
    of_agent("/api/v1/processes", Audience::Reader, live::processes),
    of_agent("/api/v1/snapshot", Audience::Reader, |call, agent| {
        json(call, agent, |published| render::json(&published.snapshot, published.level(), &call.visible))
    }),
    of_agent("/api/v1/health", Audience::Host, |call, agent| {
        json(call, agent, |published| render::health(&published.snapshot, (agent.release)(), &call.visible))
    }),
    of_agent("/api/v1/events", Audience::Reader, |call, agent| {
        json(call, agent, |published| {
            render::events(&agent.status.pages.events().latest(), &published.snapshot, &call.visible)
        })
    }),
    from_ledger("/api/v1/bill", LedgerAnswer::Bill),
    from_ledger("/api/v1/explain", LedgerAnswer::Explanation),
    from_ledger("/api/v1/explain/whole", LedgerAnswer::Whole),
    from_ledger("/api/v1/costs", LedgerAnswer::Costs),
    from_ledger("/api/v1/advice", LedgerAnswer::Advice),
    Route { audience: Audience::WholeReader, ..from_ledger("/api/v1/fit", LedgerAnswer::Fit) },
    Route { audience: Audience::WholeReader, ..from_ledger("/api/v1/demand", LedgerAnswer::Demand) },
    from_ledger("/api/v1/jobs", LedgerAnswer::Jobs),
];

/// All paths but the files of pages, for the test that asks each as a reader of some tenants.
pub fn endpoint_paths() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.iter().map(|endpoint| endpoint.path)
}

/// The paths that the server of a fleet serves, without the files of pages.
pub fn fleet_paths() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.iter().filter(|endpoint| !endpoint.is_of_agent()).map(|endpoint| endpoint.path)
}

impl Route {
    fn at(path: &str, names: MetricNames, site: &Site) -> Option<Self> {
        // The path that probes of dcgm-exporter ask.
        let path = if path == "/health" && names == MetricNames::Dcgm { "/-/healthy" } else { path };
        let file = || Some(at_once(site.file(path)?.path, Audience::Host, page_file));
        let found = ENDPOINTS.iter().find(|endpoint| endpoint.path == path).copied().or_else(file);
        found.filter(|endpoint| endpoint.is_served_by(&site.served))
    }

    /// Whether it is also asked with prices, by POST.
    const fn takes_book(&self) -> bool {
        matches!(self.answer, Answer::FromLedger(LedgerAnswer::Bill))
    }

    const fn is_served_by(&self, served: &Served) -> bool {
        !(self.is_of_agent() && matches!(served, Served::Fleet(_)))
    }

    const fn is_of_jobs(&self) -> bool {
        matches!(self.answer, Answer::FromLedger(LedgerAnswer::Jobs))
    }

    const fn is_of_agent(&self) -> bool {
        matches!(self.answer, Answer::OfAgent(_))
    }
}

impl Site {
    /// The file of a page; the first page of a fleet is that of its costs.
    fn file(&self, path: &str) -> Option<&PageFile> {
        match &self.served {
            Served::Fleet(_) if path == "/" => self.page.find("/costs"),
            _ => self.page.find(path),
        }
    }
}

pub(super) async fn reply_to<B>(request: &mut Request<B>, arrival: Arrival, site: &Site) -> PageResponse
where
    B: Body<Error: Into<BoxError>> + Unpin,
{
    let security = site.access.current();
    let mut response = authenticate(request, arrival, site, &security).await;
    security.add_headers(response.headers_mut());
    response
}

async fn authenticate<B>(
    request: &mut Request<B>,
    arrival: Arrival,
    site: &Site,
    security: &Security,
) -> PageResponse
where
    B: Body<Error: Into<BoxError>> + Unpin,
{
    let path = request.uri().path();
    if !security.allows_request() {
        let line = "more requests than web.rate_limit allows; send fewer";
        return with(error(StatusCode::TOO_MANY_REQUESTS, path, line), RETRY_AFTER, "1");
    }
    let endpoint = Route::at(path, arrival.names, site);
    let is_probe = endpoint.is_some_and(|endpoint| endpoint.audience == Audience::Probes);
    if security.users.is_empty() || (is_probe && security.open_probes) {
        return route(request, endpoint, None, arrival, site).await;
    }
    match site.access.passwords.user(request.headers(), arrival.ends.peer(), security).await {
        Ok(user) => route(request, endpoint, Some(security.visible_to(&user)), arrival, site).await,
        Err(refusal) => refusal.response(request.uri().path()),
    }
}

/// How often the name of a client's user is asked for during its lookup, and the wait between two tries.
const NAME_TRIES: u32 = 40;
const NAME_WAIT: Duration = Duration::from_millis(100);

/// The refusal of what is of more than one's own jobs.
const ONLY_READERS: Refusal = Refusal::Forbidden(
    "without web.users only root, the server's user and web.local_readers may read the costs of a fleet",
);

/// What the client may see: `user` is what a configured user may, absent where no user is needed.
async fn check_access<B>(
    request: &Request<B>,
    endpoint: Route,
    user: Option<VisibleAccount>,
    ends: Ends,
    site: &Site,
) -> Result<VisibleAccount, Refusal> {
    match (user, endpoint.audience) {
        (Some(visible), Audience::Scrapers) if visible != VisibleAccount::Everything => {
            Err(Refusal::Forbidden(
                "/metrics shows every tenant, and this user may read only some; give the user \"*\" in web.tenants",
            ))
        }
        (Some(visible), audience) => of_audience(audience, visible),
        (None, Audience::Probes | Audience::Scrapers) => Ok(VisibleAccount::Everything),
        (None, audience) => {
            check_origin(request, ends).map_err(Refusal::Forbidden)?;
            if audience == Audience::Host {
                return Ok(VisibleAccount::Everything);
            }
            match (local_reader(ends, site).await?, &site.served) {
                // What a user runs is known on his own host alone: another one may have his id and name for somebody else. A
                // cluster of Slurm has one user of a name.
                (VisibleAccount::OfUser(_), Served::Fleet(_)) if endpoint.is_of_jobs() => {
                    Err(Refusal::Forbidden(
                        "users see their jobs where node.cluster of the server's configuration is the ClusterName of Slurm",
                    ))
                }
                (VisibleAccount::OfUser(_), Served::Fleet(_)) => Err(ONLY_READERS),
                (VisibleAccount::OfSlurmUser { .. }, _) if !endpoint.is_of_jobs() => Err(ONLY_READERS),
                (visible, _) => of_audience(audience, visible),
            }
        }
    }
}

fn of_audience(audience: Audience, visible: VisibleAccount) -> Result<VisibleAccount, Refusal> {
    if audience == Audience::WholeReader && visible != VisibleAccount::Everything {
        return Err(Refusal::Forbidden(
            "this is answered from every tenant's use, and this user may read only some",
        ));
    }
    Ok(visible)
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

async fn route<B>(
    request: &mut Request<B>,
    endpoint: Option<Route>,
    user: Option<VisibleAccount>,
    Arrival { ends, names }: Arrival,
    site: &Site,
) -> PageResponse
where
    B: Body<Error: Into<BoxError>> + Unpin,
{
    let path = request.uri().path();
    let Some(endpoint) = endpoint else { return no_such_page(path) };
    if let Some(refused) = refused_form(request, endpoint) {
        return refused;
    }
    let visible = match check_access(request, endpoint, user, ends, site).await {
        Ok(visible) => visible,
        Err(refusal) => return refusal.response(path),
    };
    if let (true, Served::Agent(agent)) = (visible != VisibleAccount::Everything, &site.served) {
        // Who is on the GPUs decides what is shown of them.
        agent.status.pages.request_processes();
    }
    let query = request.uri().query();
    let call = |visible| Call { path, query, headers: request.headers(), names, visible, site };
    match endpoint.answer {
        Answer::AtOnce(answer) => answer(&call(visible)),
        Answer::OfAgent(answer) => match &site.served {
            Served::Agent(agent) => answer(&call(visible), agent),
            Served::Fleet(_) => no_such_page(path),
        },
        Answer::FromLedger(answer) => from_reader(request, answer, visible, site).await,
    }
}

/// The refusal of a request for its method or length.
fn refused_form<B: Body>(request: &Request<B>, endpoint: Route) -> Option<PageResponse> {
    let path = request.uri().path();
    let has_book = endpoint.takes_book() && *request.method() == Method::POST;
    if !has_book && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused =
            error(StatusCode::METHOD_NOT_ALLOWED, path, "nothing can be changed over HTTP; use GET");
        let allowed = if endpoint.takes_book() { "GET, HEAD, POST" } else { "GET, HEAD" };
        return Some(with(refused, ALLOW, allowed));
    }
    let (longest, line) = match has_book {
        true => (LONGEST_BOOK as u64, "the book is longer than 64 KiB; give fewer rates"),
        false => (LONGEST_BODY, "request bodies are not accepted; send none"),
    };
    let is_longer = request.body().size_hint().lower() > longest;
    is_longer.then(|| with(error(StatusCode::PAYLOAD_TOO_LARGE, path, line), CONNECTION, "close"))
}

fn no_such_page(path: &str) -> PageResponse {
    error(StatusCode::NOT_FOUND, path, "no such page; try /metrics, /-/healthy or /-/ready")
}

fn page_file(call: &Call<'_>) -> PageResponse {
    call.site.file(call.path).map_or_else(|| no_such_page(call.path), |file| file.response(call.headers))
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
    let agent = match &call.site.served {
        Served::Agent(agent) => agent,
        Served::Fleet(fleet) => return respond_with(StatusCode::OK, TEXT_FORMAT, fleet.metrics().into()),
    };
    let Some(published) = agent.status.pages.get() else { return no_snapshot(call.path) };
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

fn json(
    call: &Call<'_>,
    agent: &AgentSite,
    encode: impl FnOnce(&PublishedSnapshot) -> Vec<u8>,
) -> PageResponse {
    match agent.status.pages.get() {
        Some(published) => respond_with(StatusCode::OK, JSON, encode(&published).into()),
        None => no_snapshot(call.path),
    }
}

pub(super) fn no_snapshot(path: &str) -> PageResponse {
    busy(path, NO_SNAPSHOT)
}

fn healthy(call: &Call<'_>) -> PageResponse {
    let health = match &call.site.served {
        Served::Agent(agent) => agent.status.check_health(),
        // It is restarted where one of its threads ends; nothing else is a reason.
        Served::Fleet(_) => Ok(()),
    };
    match health {
        Ok(()) => text(StatusCode::OK, "healthy"),
        Err(line) => text(StatusCode::SERVICE_UNAVAILABLE, &line),
    }
}

fn ready(call: &Call<'_>) -> PageResponse {
    let status = match &call.site.served {
        Served::Agent(agent) => &agent.status,
        Served::Fleet(fleet) => {
            let ready = fleet.check_readiness();
            return ready.map_or_else(|line| busy(call.path, &line), |told| text(StatusCode::OK, &told));
        }
    };
    if let Err(line) = status.check_readiness() {
        return busy(call.path, &line);
    }
    match &*status.no_account.lock() {
        None => text(StatusCode::OK, "ready"),
        Some(reason) => text(StatusCode::OK, &format!("ready\nno account: {reason}")),
    }
}

async fn from_reader<B>(
    request: &mut Request<B>,
    answer: LedgerAnswer,
    visible: VisibleAccount,
    site: &Site,
) -> PageResponse
where
    B: Body<Error: Into<BoxError>> + Unpin,
{
    let question = match parse_query(request.uri().query(), answer, &site.zone, visible) {
        Ok(question) => question,
        Err(line) => return error(StatusCode::BAD_REQUEST, request.uri().path(), &line),
    };
    let question = match question {
        LedgerQuestion::Bill(bill) if *request.method() == Method::POST => {
            match read_book(request, site.limits.head).await {
                Ok(book) => LedgerQuestion::Bill(BillRequest { book: Some(book), ..bill }),
                Err((status, line)) => {
                    // What is left of the body is not read.
                    return with(error(status, request.uri().path(), &line), CONNECTION, "close");
                }
            }
        }
        question => question,
    };
    let wants_gzip = accepts_gzip(request.headers());
    match request_bill(&site.bills, question, wants_gzip, site.limits.bill).await {
        // What one reader may see is nothing for the next one behind a proxy.
        Ok(answer) => {
            let response = with(respond_with(StatusCode::OK, JSON, answer), CACHE_CONTROL, "no-store");
            let response = with(response, VARY, "accept-encoding");
            if wants_gzip { with(response, CONTENT_ENCODING, "gzip") } else { response }
        }
        Err((status, line)) => error(status, request.uri().path(), &line),
    }
}
