//! TLS, headers, users and a rate limit. A reload replaces all of it at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;

use super::local::Ends;
use super::passwords::Passwords;
use super::tls;
use crate::config::{ClientAuth, Credential, WebConfig, WebRateLimitConfig};
use crate::model::{Nanoseconds, VisibleAccount};
use crate::runtime::clock::system_now;
use crate::runtime::http;

#[derive(Default)]
pub struct Security {
    pub(super) tls: Option<TlsAcceptor>,
    client_auth: ClientAuth,
    checks_names: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The bcrypt hash of each user's password.
    pub(super) users: BTreeMap<String, String>,
    tenants: BTreeMap<String, Vec<String>>,
    pub(super) open_probes: bool,
    bucket: Option<Bucket>,
}

impl Security {
    /// Reads certificates, keys and hashes.
    ///
    /// # Errors
    /// The certificate, key or password hash that cannot be used, and what to do.
    pub fn load(access: &WebConfig) -> Result<Self, String> {
        let tls = access.tls.is_enabled().then(|| tls::acceptor(&access.tls, access.http2));
        let users = access.users.iter().map(|(name, hash)| Ok((name.clone(), read_hash(name, hash)?)));
        let header = |(name, text): &(String, String)| {
            Some((HeaderName::try_from(&**name).ok()?, HeaderValue::from_str(text).ok()?))
        };
        Ok(Self {
            tls: tls.transpose()?,
            client_auth: access.tls.client_auth_type,
            checks_names: !access.tls.client_allowed_sans.is_empty(),
            headers: access.headers.iter().filter_map(header).collect(),
            users: users.collect::<Result<_, String>>()?,
            tenants: access.tenants.clone(),
            open_probes: access.open_probes,
            bucket: access.rate_limit.is_enabled().then(|| Bucket::new(&access.rate_limit)),
        })
    }

    pub const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// What keeps clients out, or shows them less.
    fn protections(&self) -> [(&'static str, bool); 6] {
        let has_policy = |policies: &[ClientAuth]| policies.contains(&self.client_auth);
        [
            ("TLS", self.has_tls()),
            ("client certificates", has_policy(&[ClientAuth::RequireAny, ClientAuth::RequireAndVerify])),
            ("the verification of client certificates", has_policy(&[ClientAuth::RequireAndVerify])),
            ("client_allowed_sans", self.checks_names),
            ("users", !self.users.is_empty()),
            ("web.tenants", !self.tenants.is_empty()),
        ]
    }

    /// The protections that `next` would lack altogether.
    fn lost_in(&self, next: &Self) -> Vec<&'static str> {
        let pairs = self.protections().into_iter().zip(next.protections());
        pairs.filter(|((_, had), (_, has))| *had && !has).map(|((name, _), _)| name).collect()
    }

    pub fn user_count(&self) -> usize {
        self.users.len()
    }

    pub(super) fn allows_request(&self) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.allow(system_now().boottime))
    }

    /// Adds the configured headers, which replace our own.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
    }

    pub(super) fn visible_to(&self, user: &str) -> VisibleAccount {
        let tenants = self.tenants.get(user).cloned().unwrap_or_default();
        if self.tenants.is_empty() || tenants.iter().any(|tenant| tenant == "*") {
            return VisibleAccount::Everything;
        }
        VisibleAccount::Tenants(tenants)
    }
}

fn read_hash(user: &str, hash: &Credential) -> Result<String, String> {
    let (what, text) = match hash {
        Credential::File(path) => {
            (format!("user {user}: {}", path.display()), http::read_file(&format!("user {user}:"), path)?)
        }
        Credential::Inline(text) => (format!("user {user}"), text.clone().into_bytes()),
    };
    let wrong = || format!("{what}: is not a bcrypt hash; make one with `htpasswd -nBC 10 {user}`");
    let text = String::from_utf8(text).map_err(|_| wrong())?;
    // htpasswd prints the name before it.
    let text = text.trim();
    let text = text.strip_prefix(&format!("{user}:")).unwrap_or(text);
    let parts: bcrypt::HashParts = text.parse().map_err(|_| wrong())?;
    if !(4..=31).contains(&parts.get_cost()) {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

/// Shortest time between two log lines about failed handshakes, which any client can cause.
const LOG_INTERVAL: Nanoseconds = Nanoseconds::from_seconds(10);

#[derive(Default)]
struct FailedHandshakes {
    last_logged: Option<Nanoseconds>,
    count: u64,
}

pub struct Access {
    in_force: Mutex<Arc<Security>>,
    failed_handshakes: Mutex<FailedHandshakes>,
    pub(super) passwords: Passwords,
}

impl Access {
    pub fn new(security: Security, passwords: Passwords) -> Self {
        Self { in_force: Mutex::new(Arc::new(security)), failed_handshakes: Mutex::default(), passwords }
    }

    /// Replaces the settings, for new connections and requests. Half a file must not open the agent to everybody, so nothing
    /// that keeps clients out is switched off; its parts, such as a certificate or a user, may change.
    ///
    /// # Errors
    /// What would be switched off, and what to do.
    pub fn replace(&self, next: Security) -> Result<(), String> {
        let lost = self.current().lost_in(&next);
        if !lost.is_empty() {
            return Err(format!(
                "would leave the agent without {}, which no reload switches off; restart the agent if that is intended, or \
                 put it back",
                lost.join(", ")
            ));
        }
        let next = Arc::new(next);
        *self.in_force.lock() = Arc::clone(&next);
        self.passwords.forget_all_but(next.users.keys());
        Ok(())
    }

    /// Logs a failed handshake, at most once in 10 s.
    pub(super) fn note_failed_handshake(&self, ends: Ends, error: &io::Error) {
        let now = system_now().boottime;
        let mut failed = self.failed_handshakes.lock();
        failed.count += 1;
        if failed.last_logged.is_some_and(|last| now.0.saturating_sub(last.0) < LOG_INTERVAL.0) {
            return;
        }
        let count = std::mem::take(&mut failed.count);
        failed.last_logged = Some(now);
        drop(failed);
        tracing::warn!(peer = %ends.peer(), %error, count, "TLS handshakes failed; peer and error are those of the last one");
    }

    pub fn current(&self) -> Arc<Security> {
        Arc::clone(&self.in_force.lock())
    }
}

/// A token bucket: each request costs an interval of time, and at most `burst` intervals are saved.
struct Bucket {
    cost: u64,
    most: u64,
    /// What is left, and when that was computed.
    left: Mutex<(u64, Nanoseconds)>,
}

impl Bucket {
    fn new(limit: &WebRateLimitConfig) -> Self {
        let most = limit.interval.0.saturating_mul(limit.burst.into());
        Self { cost: limit.interval.0, most, left: Mutex::new((most, system_now().boottime)) }
    }

    fn allow(&self, now: Nanoseconds) -> bool {
        let mut left = self.left.lock();
        let earned = now.0.saturating_sub(left.1.0);
        *left = (left.0.saturating_add(earned).min(self.most), now);
        let is_allowed = left.0 >= self.cost;
        if is_allowed {
            left.0 -= self.cost;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_changes_single_users_and_policies_and_switches_nothing_off() {
        let users = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), String::new())).collect();
        let with = |names: &[&str], tenants: &[&str], client_auth, checks_names| Security {
            users: users(names),
            tenants: tenants.iter().map(|name| ((*name).to_owned(), vec!["*".to_owned()])).collect(),
            client_auth,
            checks_names,
            ..Security::default()
        };
        let verified = ClientAuth::RequireAndVerify;
        let running = with(&["alice", "bob"], &["alice", "bob"], verified, true);
        for (next, lost) in [
            (with(&["carol"], &["carol"], verified, true), ""),
            (with(&["carol"], &[], verified, true), "web.tenants"),
            (with(&[], &[], verified, false), "client_allowed_sans, users, web.tenants"),
            (
                with(&["alice"], &["alice"], ClientAuth::RequireAny, true),
                "the verification of client certificates",
            ),
            (
                with(&["alice"], &["alice"], ClientAuth::VerifyIfGiven, true),
                "client certificates, the verification of client certificates",
            ),
        ] {
            assert_eq!(running.lost_in(&next).join(", "), lost);
        }
        let open = Security::default();
        assert!(open.lost_in(&running).is_empty() && open.lost_in(&Security::default()).is_empty());
    }

    #[test]
    fn a_rate_limit_allows_a_burst_and_then_one_request_per_interval() {
        let bucket = Bucket::new(&WebRateLimitConfig { interval: Nanoseconds(10), burst: 2 });
        let start = system_now().boottime.0 + 1_000_000_000;
        let allowed: Vec<_> = [0, 0, 0, 9, 10, 11, 1_000, 1_000, 1_000]
            .map(|at| bucket.allow(Nanoseconds(start + at)))
            .into_iter()
            .collect();
        assert_eq!(allowed, [true, true, false, false, true, false, true, true, false]);
        let none = Bucket::new(&WebRateLimitConfig { interval: Nanoseconds(10), burst: 0 });
        assert!(!none.allow(Nanoseconds(start)), "as with Prometheus' exporters");
    }
}
