//! From a request to its answer: which place, whether this may be asked here, and what it says.

use hyper::body::{Body, Bytes};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, HeaderMap, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Request, StatusCode};

use super::answer::{Answer, JSON, answer, error, text, with};
use super::landing::landing;
use super::local::{Ends, admit};
use super::passwords::Refusal;
use super::seats::network;
use super::security::{Security, Visible};
use super::{Heartbeat, Pages, Site, Wanted, bill, query};

/// No place reads a body; one beyond this is not even skipped over.
const LONGEST_BODY: u64 = 16 * 1024;

/// What can be asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Metrics,
    Healthy,
    Ready,
    Landing,
    Snapshot,
    Bill,
    Health,
}

impl Place {
    fn at(path: &str) -> Option<Self> {
        match path {
            "/metrics" => Some(Self::Metrics),
            "/-/healthy" => Some(Self::Healthy),
            "/-/ready" => Some(Self::Ready),
            "/" => Some(Self::Landing),
            "/api/v1/snapshot" => Some(Self::Snapshot),
            "/api/v1/bill" => Some(Self::Bill),
            "/api/v1/health" => Some(Self::Health),
            _ => None,
        }
    }

    /// Whether only this host may ask while there are no users.
    fn is_local(self) -> bool {
        matches!(self, Self::Landing | Self::Snapshot | Self::Bill | Self::Health)
    }
}

/// Answers a request, if it may be asked here and now.
pub(super) async fn reply_to<B: Body>(request: &Request<B>, ends: Ends, site: &Site) -> Answer {
    let security = site.access.current();
    let mut answer = protected(request, ends, site, &security).await;
    security.add_headers(answer.headers_mut());
    answer
}

async fn protected<B: Body>(request: &Request<B>, ends: Ends, site: &Site, security: &Security) -> Answer {
    let path = request.uri().path();
    if !security.allows_request() {
        let line = "more requests than web.rate_limit allows; ask less often";
        return with(error(StatusCode::TOO_MANY_REQUESTS, path, line), RETRY_AFTER, "1");
    }
    let is_probe = matches!(Place::at(path), Some(Place::Healthy | Place::Ready));
    if security.users.is_empty() || (is_probe && security.open_probes) {
        return route(request, Caller::Nobody(ends), site).await;
    }
    let peer = network(ends.peer());
    match site.access.passwords.user(request.headers(), peer, security).await {
        Ok(user) => route(request, Caller::User(security.visible_to(&user)), site).await,
        Err(Refusal::Unauthorized) => {
            let refused = error(StatusCode::UNAUTHORIZED, path, "give a user and the right password");
            with(refused, WWW_AUTHENTICATE, "Basic realm=\"gpumeter\"")
        }
        Err(Refusal::Busy) => {
            let line = "too many passwords are being verified; try again soon";
            with(error(StatusCode::SERVICE_UNAVAILABLE, path, line), RETRY_AFTER, "1")
        }
    }
}

/// Who asks.
enum Caller {
    /// No user; there may be none.
    Nobody(Ends),
    /// A user, who sees these lines.
    User(Visible),
}

impl Caller {
    /// Whose lines are shown, or why there is no answer.
    fn may_see<B>(self, place: Place, request: &Request<B>) -> Result<Visible, &'static str> {
        match self {
            Self::Nobody(ends) if place.is_local() => admit(request, ends).map(|()| None),
            Self::Nobody(_) => Ok(None),
            Self::User(Some(_)) if place == Place::Metrics => Err(
                "/metrics shows every tenant, and this user sees only some; give the user \"*\" in web.tenants",
            ),
            Self::User(visible) => Ok(visible),
        }
    }
}

async fn route<B: Body>(request: &Request<B>, caller: Caller, site: &Site) -> Answer {
    let path = request.uri().path();
    let Some(place) = Place::at(path) else {
        return error(StatusCode::NOT_FOUND, path, "nothing is here; try /metrics, /-/healthy or /-/ready");
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let refused = error(StatusCode::METHOD_NOT_ALLOWED, path, "nothing can be changed here; use GET");
        return with(refused, ALLOW, "GET, HEAD");
    }
    if request.body().size_hint().lower() > LONGEST_BODY {
        let refused = error(StatusCode::PAYLOAD_TOO_LARGE, path, "bodies are not read here; send none");
        return with(refused, CONNECTION, "close");
    }
    let visible = match caller.may_see(place, request) {
        Ok(visible) => visible,
        Err(line) => return error(StatusCode::FORBIDDEN, path, line),
    };
    match place {
        Place::Metrics => match foreign_profile(request.uri().query()) {
            Some(line) => error(StatusCode::BAD_REQUEST, path, &line),
            None => metrics(request.headers(), &site.pages),
        },
        Place::Healthy => healthy(&site.heartbeat),
        Place::Ready => ready(site),
        Place::Landing => landing(&site.landing),
        Place::Snapshot => json(path, site.pages.snapshot(&visible)),
        Place::Health => json(path, site.pages.health()),
        Place::Bill => bill(request, visible, site).await,
    }
}

/// What to say to who asks for names that are not served: other names under that request would mislead. Other
/// parameters, which scrapers add for exporters that filter, change nothing.
fn foreign_profile(query: Option<&str>) -> Option<String> {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let (_, profile) = pairs.find(|(name, profile)| *name == "profile" && *profile != "native")?;
    Some(format!("profile={profile} is not served; leave it out, or ask for profile=native"))
}

fn metrics(headers: &HeaderMap, pages: &Pages) -> Answer {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let Some(page) = pages.metrics(Wanted { accept, gzip: takes_gzip(headers) }) else {
        return too_early("/metrics");
    };
    let answer = with(answer(StatusCode::OK, page.content_type, page.body), VARY, "accept, accept-encoding");
    if page.gzip { with(answer, CONTENT_ENCODING, "gzip") } else { answer }
}

/// Whether gzip is among what the client takes; `gzip;q=0` refuses it.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|list| list.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight
            .split_once('=')
            .is_some_and(|(_, weight)| weight.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

fn json(path: &str, body: Option<Bytes>) -> Answer {
    match body {
        Some(body) => answer(StatusCode::OK, JSON, body),
        None => too_early(path),
    }
}

fn too_early(path: &str) -> Answer {
    let line = "the first snapshot is not there yet; try again in a second";
    with(error(StatusCode::SERVICE_UNAVAILABLE, path, line), RETRY_AFTER, "1")
}

fn healthy(heartbeat: &Heartbeat) -> Answer {
    if heartbeat.is_alive() {
        return text(StatusCode::OK, "healthy");
    }
    let seconds = heartbeat.silence().0 / 1_000_000_000;
    let line = format!("the tick loop has been still for {seconds} s; restart the agent");
    text(StatusCode::SERVICE_UNAVAILABLE, &line)
}

/// Without an account the agent is ready all the same: a full disk must not restart the only witness.
fn ready(site: &Site) -> Answer {
    if !site.pages.are_there() {
        return too_early("/-/ready");
    }
    match site.no_account.reason() {
        None => text(StatusCode::OK, "ready"),
        Some(reason) => text(StatusCode::OK, &format!("ready\nno account: {reason}")),
    }
}

async fn bill<B>(request: &Request<B>, visible: Visible, site: &Site) -> Answer {
    let path = request.uri().path();
    let query = match query::parse(request.uri().query()) {
        Ok(query) => query,
        Err(line) => return error(StatusCode::BAD_REQUEST, path, &line),
    };
    match bill::ask(&site.bills, (query, visible), site.limits.bill).await {
        Ok(bill) => answer(StatusCode::OK, JSON, Bytes::from(bill)),
        Err((status, line)) => error(status, path, &line),
    }
}
