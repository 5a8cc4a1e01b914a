//! TLS, headers, users and a rate limit. A reload replaces all of it at once.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio_rustls::TlsAcceptor;

use super::local::Ends;
use super::passwords::Passwords;
use super::tls;
use crate::clock::system_now;
use crate::config::{Credential, WebConfig, WebRateLimitConfig};
use crate::http;
use crate::model::{Nanoseconds, VisibleAccount};

/// TLS, users, headers and a rate limit.
#[derive(Default)]
pub struct Security {
    pub(super) tls: Option<TlsAcceptor>,
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
            headers: access.headers.iter().filter_map(header).collect(),
            users: users.collect::<Result<_, String>>()?,
            tenants: access.tenants.clone(),
            open_probes: access.open_probes,
            bucket: access.rate_limit.is_enabled().then(|| Bucket::new(&access.rate_limit)),
        })
    }

    /// Whether pages are served over TLS.
    pub const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// How many users there are.
    pub fn user_count(&self) -> usize {
        self.users.len()
    }

    /// Whether the rate limit allows one more request.
    pub(super) fn allows_request(&self) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.allow(system_now().boottime))
    }

    /// Adds the configured headers, which replace our own.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
    }

    /// What this configured user may read.
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

/// Failed TLS handshakes that have not been logged.
#[derive(Default)]
struct FailedHandshakes {
    last_logged: Option<Nanoseconds>,
    count: u64,
}

/// The current settings, and the passwords verified under them.
pub struct Access {
    in_force: Mutex<Arc<Security>>,
    failed_handshakes: Mutex<FailedHandshakes>,
    pub(super) passwords: Passwords,
}

impl Access {
    /// Starts with these settings.
    pub fn new(security: Security, passwords: Passwords) -> Self {
        Self { in_force: Mutex::new(Arc::new(security)), failed_handshakes: Mutex::default(), passwords }
    }

    /// Replaces the settings, for new connections and requests.
    pub fn replace(&self, next: Security) {
        let next = Arc::new(next);
        *self.current_slot() = Arc::clone(&next);
        self.passwords.forget_all_but(next.users.keys());
    }

    /// Logs a failed handshake, at most once in 10 s.
    pub(super) fn note_failed_handshake(&self, ends: Ends, error: &io::Error) {
        let now = system_now().boottime;
        let mut failed = self.failed_handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        failed.count += 1;
        if failed.last_logged.is_some_and(|last| now.0.saturating_sub(last.0) < LOG_INTERVAL.0) {
            return;
        }
        let count = std::mem::take(&mut failed.count);
        failed.last_logged = Some(now);
        drop(failed);
        tracing::warn!(peer = %ends.peer(), %error, count, "TLS handshakes failed; peer and error are those of the last one");
    }

    /// The current settings.
    pub fn current(&self) -> Arc<Security> {
        Arc::clone(&self.current_slot())
    }

    fn current_slot(&self) -> MutexGuard<'_, Arc<Security>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
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
