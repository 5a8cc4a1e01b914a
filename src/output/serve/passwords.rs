//! Verifies passwords of users on a thread of their own, and caches the results.
//!
//! bcrypt takes 0.1 s of CPU time or more by design, so it never runs on the I/O thread. Requests go through a bounded
//! queue in which one peer address has a few places, and all of loopback half of them; if there is no place, or no result in
//! time, the HTTP request is refused with Retry-After. The cache holds digests keyed with a secret of this process: the right password of each user,
//! across reloads, and the last wrong ones, so that a scraper with an outdated password costs little.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderMap};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::response::Refusal;
use super::security::Security;

pub struct VerifyRequest {
    pub hash: String,
    pub password: Vec<u8>,
    /// Receives whether it is right; closed when nothing waits for it any more.
    pub reply: oneshot::Sender<bool>,
    /// Freed once the request has left the queue.
    _place: QueuePlace,
}

/// A place in the queue, which its peer occupies until this is dropped.
#[derive(Debug)]
pub(super) struct QueuePlace {
    peer: PasswordPeer,
    taken: TakenPlaces,
}

/// The network of a peer; absent for all processes of this host, which are one peer.
type PasswordPeer = Option<IpAddr>;

/// The peers of the passwords in the queue and of the one that is being verified.
type TakenPlaces = Arc<Mutex<Vec<PasswordPeer>>>;

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(place) = taken.iter().position(|peer| *peer == self.peer) {
            taken.swap_remove(place);
        }
    }
}

/// Places in the queue that a peer of another host may have. All processes of this host together have half of the places:
/// a loopback address does not tell them apart, and several of them may be scrapers.
const MOST_OF_PEER: usize = 2;

const MOST_WRONG: usize = 64;

const VERIFY_TIMEOUT: Duration = Duration::from_secs(8);

type Digest = [u8; 32];

/// Verifies passwords, with a cache.
pub struct Passwords {
    requests: mpsc::Sender<VerifyRequest>,
    secret: Digest,
    known: Mutex<KnownPasswords>,
    taken: TakenPlaces,
}

#[derive(Default)]
struct KnownPasswords {
    right: BTreeMap<String, Digest>,
    wrong: VecDeque<Digest>,
}

/// The refusal while too many passwords are being verified.
const BUSY: Refusal = Refusal::Busy("too many passwords are being verified; try again soon");

impl Passwords {
    pub fn new(requests: mpsc::Sender<VerifyRequest>) -> Self {
        let mut secret = Digest::default();
        // It does not fail on Linux; without the secret, verification still works.
        let _ = SystemRandom::new().fill(&mut secret);
        Self { requests, secret, known: Mutex::default(), taken: TakenPlaces::default() }
    }

    /// Forgets the passwords of removed users, and the wrong ones. A digest includes the user's hash, so it no longer
    /// matches when the hash has changed.
    pub(super) fn forget_all_but<'a>(&self, users: impl Iterator<Item = &'a String>) {
        let mut known = self.known.lock();
        let mut right = std::mem::take(&mut known.right);
        *known = KnownPasswords {
            right: users.filter_map(|user| right.remove_entry(user)).collect(),
            wrong: VecDeque::new(),
        };
    }

    pub(super) async fn user(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        security: &Security,
    ) -> Result<String, Refusal> {
        let (user, password) = credentials(headers).ok_or(Refusal::Unauthorized)?;
        let hash = security.users.get(&user);
        // An unknown user is checked against the hash of some user, always the same for one name, so that it takes as long.
        let stand_in = || {
            let digest = self.digest(&[user.as_bytes()]);
            security.users.values().nth(usize::from(digest[0]) % security.users.len().max(1))
        };
        let compared = hash.or_else(stand_in).ok_or(Refusal::Unauthorized)?;
        let digest = self.digest(&[user.as_bytes(), compared.as_bytes(), &password]);
        {
            let known = self.known.lock();
            if hash.is_some() && known.right.get(&user) == Some(&digest) {
                return Ok(user);
            }
            if known.wrong.contains(&digest) {
                return Err(Refusal::Unauthorized);
            }
        }
        let place = self.take_place(network(peer))?;
        let is_right = self.verify(compared.clone(), password, place).await? && hash.is_some();
        let mut known = self.known.lock();
        if is_right {
            known.right.insert(user.clone(), digest);
            return Ok(user);
        }
        known.wrong.truncate(MOST_WRONG - 1);
        known.wrong.push_front(digest);
        Err(Refusal::Unauthorized)
    }

    fn take_place(&self, peer: PasswordPeer) -> Result<QueuePlace, Refusal> {
        let most = peer.map_or((self.requests.max_capacity() / 2).max(1), |_| MOST_OF_PEER);
        let mut taken = self.taken.lock();
        if taken.iter().filter(|of| **of == peer).count() >= most {
            return Err(BUSY);
        }
        taken.push(peer);
        Ok(QueuePlace { peer, taken: Arc::clone(&self.taken) })
    }

    async fn verify(&self, hash: String, password: Vec<u8>, place: QueuePlace) -> Result<bool, Refusal> {
        let (reply, answer) = oneshot::channel();
        let request = VerifyRequest { hash, password, reply, _place: place };
        self.requests.try_send(request).map_err(|_| BUSY)?;
        match timeout(VERIFY_TIMEOUT, answer).await {
            Ok(Ok(is_right)) => Ok(is_right),
            _ => Err(BUSY),
        }
    }

    fn digest(&self, parts: &[&[u8]]) -> Digest {
        let mut context = Context::new(&SHA256);
        context.update(&self.secret);
        for part in parts {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.finish().as_ref().try_into().unwrap_or_default()
    }
}

/// What identifies a peer: the IPv4 address, or the IPv6 /64 network, of which one host can use all addresses; nothing on
/// loopback.
fn network(peer: IpAddr) -> PasswordPeer {
    match peer.to_canonical() {
        peer if peer.is_loopback() => None,
        IpAddr::V6(peer) => {
            let [a, b, c, d, ..] = peer.segments();
            Some(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
        }
        peer => Some(peer),
    }
}

fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(decoded.get(..colon)?.to_vec()).ok()?;
    Some((user, decoded.get(colon + 1..)?.to_vec()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::config::{Credential, WebConfig};

    const LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    const HASH: &str = "$2y$04$WvSm6pXVbbH21f0PsZDZsO0VSZCvQeBCLDRlCWSdlTKPYxR3xbD2G";

    fn headers(text: &str) -> HeaderMap {
        let encoded = STANDARD.encode(text);
        [(AUTHORIZATION, format!("Basic {encoded}").parse().unwrap())].into_iter().collect()
    }

    /// A verifier for which "secret" is right, and the number of its requests.
    fn verifier() -> (Passwords, Arc<AtomicUsize>) {
        let (sender, mut questions) = mpsc::channel::<VerifyRequest>(1);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while let Some(question) = questions.recv().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = question.reply.send(question.password == b"secret");
            }
        });
        (Passwords::new(sender), count)
    }

    fn security() -> Security {
        let users = [("alice".to_owned(), Credential::Inline(HASH.to_owned()))].into();
        Security::load(&WebConfig { users, ..WebConfig::default() }).unwrap()
    }

    #[tokio::test]
    async fn a_password_is_verified_once_and_so_is_a_wrong_one() {
        let (passwords, count) = verifier();
        let security = security();
        for _ in 0..3 {
            assert_eq!(passwords.user(&headers("alice:secret"), LOCAL, &security).await.unwrap(), "alice");
            let wrong = passwords.user(&headers("alice:guess"), LOCAL, &security).await;
            assert_eq!(wrong.unwrap_err(), Refusal::Unauthorized);
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_right_password_stays_known_across_reloads_while_its_user_has_the_same_hash() {
        let (passwords, count) = verifier();
        let access = |users| {
            let security = Security::load(&WebConfig { users, ..WebConfig::default() }).unwrap();
            passwords.forget_all_but(security.users.keys());
            security
        };
        let with = |hash: &str| [("alice".to_owned(), Credential::Inline(hash.to_owned()))].into();
        let questions = async |security: Security| {
            passwords.user(&headers("alice:secret"), LOCAL, &security).await.unwrap();
            count.load(Ordering::Relaxed)
        };
        assert_eq!(questions(access(with(HASH))).await, 1);
        assert_eq!(questions(access(with(HASH))).await, 1);
        let other = HASH.replace("$04$", "$05$");
        assert_eq!(questions(access(with(&other))).await, 2, "another hash");
        access([].into());
        assert_eq!(questions(access(with(&other))).await, 3, "the user was gone");
    }

    #[tokio::test]
    async fn one_peer_takes_two_places_of_the_queue_and_leaves_the_others() {
        let (sender, mut questions) = mpsc::channel(16);
        let passwords = Passwords::new(sender);
        let security = security();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|peer| peer.parse().unwrap());
        let ask = async |text: &str, peer| {
            let (headers, security) = (headers(text), &security);
            // A client that left keeps its place, because its request is still in the queue.
            timeout(Duration::ZERO, passwords.user(&headers, peer, security)).await
        };
        assert!(ask("alice:1", one).await.is_err(), "it waits");
        assert!(ask("alice:2", one).await.is_err(), "it waits");
        assert_eq!(ask("alice:3", one).await.unwrap().unwrap_err(), BUSY);
        assert!(ask("alice:4", other).await.is_err(), "it waits");
        drop(questions.recv().await.unwrap());
        assert!(ask("alice:5", one).await.is_err(), "it waits");
    }

    #[tokio::test]
    async fn wrong_passwords_from_loopback_leave_half_of_the_queue_to_others() {
        let (sender, _questions) = mpsc::channel(16);
        let passwords = Passwords::new(sender);
        let security = security();
        let ask = async |number: usize, peer| {
            let headers = headers(&format!("alice:{number}"));
            timeout(Duration::ZERO, passwords.user(&headers, peer, &security)).await
        };
        for number in 0..8 {
            assert!(ask(number, LOCAL).await.is_err(), "it waits");
        }
        for number in 8..20 {
            assert_eq!(ask(number, LOCAL).await.unwrap().unwrap_err(), BUSY);
        }
        assert!(ask(20, "192.0.2.1".parse().unwrap()).await.is_err(), "it waits, and is not refused");
    }

    #[tokio::test]
    async fn an_unknown_user_is_verified_too_and_always_refused() {
        let (passwords, count) = verifier();
        for text in ["mallory:secret", ":secret", "alice\0:secret"] {
            let refused = passwords.user(&headers(text), LOCAL, &security()).await;
            assert_eq!(refused.unwrap_err(), Refusal::Unauthorized, "{text}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3);
        for text in ["alice", ""] {
            assert!(passwords.user(&headers(text), LOCAL, &security()).await.is_err(), "{text}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3, "what is not a name with a password is not verified");
    }

    #[tokio::test]
    async fn a_request_that_does_not_fit_into_the_queue_is_refused_at_once() {
        let (sender, _questions) = mpsc::channel(1);
        let passwords = Passwords::new(sender);
        let (first, second) = (headers("alice:1"), headers("alice:2"));
        let security = security();
        let waiting = passwords.user(&first, LOCAL, &security);
        tokio::pin!(waiting);
        assert!(timeout(Duration::ZERO, waiting.as_mut()).await.is_err(), "nobody verifies");
        assert_eq!(passwords.user(&second, LOCAL, &security).await.unwrap_err(), BUSY);
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer_and_loopback_is_none() {
        let of = |address: &str| network(address.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff::8"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(["127.0.0.2", "::1", "::ffff:127.0.0.1"].map(of), [None; 3]);
    }
}
