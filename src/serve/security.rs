//! What protects the pages at the moment: TLS, headers, users and a rate limit. A reload swaps it whole.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio_rustls::TlsAcceptor;

use super::local::Ends;
use super::passwords::Passwords;
use super::tls;
use crate::clock::system_now;
use crate::config::{Credential, RateLimit, WebAccess};
use crate::model::Nanoseconds;

/// What protects the pages cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecurityError(String);

/// What protects the pages.
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

/// Whose lines somebody sees: those of some tenants, or without a list all.
pub type Visible = Option<Vec<String>>;

impl Security {
    /// Reads certificates, keys and hashes.
    ///
    /// # Errors
    /// What cannot be used, and what to do.
    pub fn load(access: &WebAccess) -> Result<Self, SecurityError> {
        let tls = access.tls.as_ref().map(|settings| tls::acceptor(settings, access.http2));
        let users = access.users.iter().map(|(name, hash)| Ok((name.clone(), hash_of(name, hash)?)));
        let header = |(name, text): &(String, String)| {
            Some((HeaderName::try_from(&**name).ok()?, HeaderValue::from_str(text).ok()?))
        };
        Ok(Self {
            tls: tls.transpose().map_err(SecurityError)?,
            headers: access.headers.iter().filter_map(header).collect(),
            users: users.collect::<Result<_, String>>().map_err(SecurityError)?,
            tenants: access.tenants.clone(),
            open_probes: access.open_probes,
            bucket: access.rate_limit.map(Bucket::new),
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

    /// Whether one request more may be answered.
    pub(super) fn allows_request(&self) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.take(system_now().boottime))
    }

    /// Adds the headers that every answer has, in place of our own.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
    }

    /// Whose lines a user sees.
    pub(super) fn visible_to(&self, user: &str) -> Visible {
        if self.tenants.is_empty() {
            return None;
        }
        let tenants = self.tenants.get(user).cloned().unwrap_or_default();
        (!tenants.iter().any(|tenant| tenant == "*")).then_some(tenants)
    }
}

fn hash_of(user: &str, hash: &Credential) -> Result<String, String> {
    let what = match hash {
        Credential::File(path) => format!("user {user}: {}", path.display()),
        Credential::Inline(_) => format!("user {user}"),
    };
    let wrong = || format!("{what}: is not a bcrypt hash; make one by `htpasswd -nBC 10 {user}`");
    let text = tls::text_of(&format!("user {user}:"), Some(hash))?;
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

/// The least time between two lines of the log about failed handshakes: anybody can cause them.
const QUIET: Nanoseconds = Nanoseconds::from_seconds(10);

/// What is in force, and who verified a password under it.
pub struct Access {
    in_force: Mutex<Arc<Security>>,
    /// Since when failed handshakes were last logged, and how many failed since.
    failed_handshakes: Mutex<(Option<Nanoseconds>, u64)>,
    pub(super) passwords: Passwords,
}

impl Access {
    /// With passwords verified by whoever receives from that channel.
    pub fn new(security: Security, passwords: Passwords) -> Self {
        Self { in_force: Mutex::new(Arc::new(security)), failed_handshakes: Mutex::default(), passwords }
    }

    /// Puts another one in force, for new connections and requests.
    pub fn replace(&self, next: Security) {
        let next = Arc::new(next);
        *self.current_slot() = Arc::clone(&next);
        self.passwords.forget_all_but(next.users.keys());
    }

    /// Logs why a client was not let in, now and then.
    pub(super) fn note_failed_handshake(&self, ends: Ends, error: &io::Error) {
        let now = system_now().boottime;
        let mut failed = self.failed_handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        failed.1 += 1;
        if failed.0.is_some_and(|last| now.0.saturating_sub(last.0) < QUIET.0) {
            return;
        }
        let count = std::mem::take(&mut failed.1);
        failed.0 = Some(now);
        drop(failed);
        tracing::warn!(peer = %ends.peer(), %error, count, "TLS handshakes failed; the last one is told");
    }

    /// What is in force.
    pub fn current(&self) -> Arc<Security> {
        Arc::clone(&self.current_slot())
    }

    fn current_slot(&self) -> MutexGuard<'_, Arc<Security>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token bucket: each request costs an interval of time, of which some requests' worth can be saved.
struct Bucket {
    cost: u64,
    most: u64,
    /// What is left, and when that was so.
    left: Mutex<(u64, Nanoseconds)>,
}

impl Bucket {
    fn new(limit: RateLimit) -> Self {
        let most = limit.interval.0.saturating_mul(limit.burst.into());
        Self { cost: limit.interval.0, most, left: Mutex::new((most, system_now().boottime)) }
    }

    fn take(&self, now: Nanoseconds) -> bool {
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
    fn a_rate_limit_lets_a_burst_pass_and_then_one_request_for_each_interval() {
        let bucket = Bucket::new(RateLimit { interval: Nanoseconds(10), burst: 2 });
        let start = system_now().boottime.0 + 1_000_000_000;
        let allowed: Vec<_> = [0, 0, 0, 9, 10, 11, 1_000, 1_000, 1_000]
            .map(|at| bucket.take(Nanoseconds(start + at)))
            .into_iter()
            .collect();
        assert_eq!(allowed, [true, true, false, false, true, false, true, true, false]);
        let none = Bucket::new(RateLimit { interval: Nanoseconds(10), burst: 0 });
        assert!(!none.take(Nanoseconds(start)), "as with Prometheus' exporters");
    }
}
