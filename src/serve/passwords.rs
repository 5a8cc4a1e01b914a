//! Passwords of users: read from a request, verified on a thread of their own, remembered once they were right.
//!
//! bcrypt takes a tenth of a second of CPU or more by design, so it never runs here. Questions go through a bounded
//! queue; when it is full, or an answer does not come in time, the request is refused as one that came too early.
//! What was verified is remembered as a digest with a secret of this process: the right password of each user, and
//! the last wrong ones, so that a scraper with an outdated password costs little.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderMap};
use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::security::Security;

/// A question to the thread that verifies passwords.
pub struct VerifyRequest {
    /// The bcrypt hash.
    pub hash: String,
    /// What was given as the password.
    pub password: Vec<u8>,
    /// Whether it is the right one; closed when nobody waits for it any more.
    pub reply: oneshot::Sender<bool>,
}

/// Wrong passwords that are remembered.
const MOST_WRONG: usize = 64;

/// How long a request waits for its password to be verified.
const PATIENCE: Duration = Duration::from_secs(8);

type Digest = [u8; 32];

/// What is known of passwords.
pub struct Passwords {
    questions: mpsc::Sender<VerifyRequest>,
    secret: Digest,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By user, so there are no more than users.
    right: BTreeMap<String, Digest>,
    wrong: VecDeque<Digest>,
}

/// Why a request goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No user, or a wrong password.
    Unauthorized,
    /// Too many passwords are being verified.
    Busy,
}

impl Passwords {
    /// Verified by whoever receives these questions.
    pub fn new(questions: mpsc::Sender<VerifyRequest>) -> Self {
        let mut secret = Digest::default();
        // It cannot fail on Linux; without a secret nothing else becomes wrong.
        let _ = SystemRandom::new().fill(&mut secret);
        Self { questions, secret, known: Mutex::default() }
    }

    /// Forgets what was verified.
    pub(super) fn forget(&self) {
        *self.known() = Known::default();
    }

    /// The user who asks.
    pub(super) async fn user(&self, headers: &HeaderMap, security: &Security) -> Result<String, Refusal> {
        let (user, password) = credentials(headers).ok_or(Refusal::Unauthorized)?;
        let hash = security.users.get(&user);
        // Somebody unknown is compared with some user's hash, always the same one for one name: it takes as long.
        let stand_in = || {
            let digest = self.digest(&[user.as_bytes()]);
            security.users.values().nth(usize::from(digest[0]) % security.users.len().max(1))
        };
        let compared = hash.or_else(stand_in).ok_or(Refusal::Unauthorized)?;
        let digest = self.digest(&[user.as_bytes(), compared.as_bytes(), &password]);
        {
            let known = self.known();
            if hash.is_some() && known.right.get(&user) == Some(&digest) {
                return Ok(user);
            }
            if known.wrong.contains(&digest) {
                return Err(Refusal::Unauthorized);
            }
        }
        let is_right = self.verify(compared.clone(), password).await? && hash.is_some();
        let mut known = self.known();
        if is_right {
            known.right.insert(user.clone(), digest);
            return Ok(user);
        }
        known.wrong.truncate(MOST_WRONG - 1);
        known.wrong.push_front(digest);
        Err(Refusal::Unauthorized)
    }

    async fn verify(&self, hash: String, password: Vec<u8>) -> Result<bool, Refusal> {
        let (reply, answer) = oneshot::channel();
        let request = VerifyRequest { hash, password, reply };
        self.questions.try_send(request).map_err(|_| Refusal::Busy)?;
        match timeout(PATIENCE, answer).await {
            Ok(Ok(is_right)) => Ok(is_right),
            _ => Err(Refusal::Busy),
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

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// User and password of basic authentication.
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
    use crate::config::{Credential, WebAccess};

    /// Of the password "secret".
    const HASH: &str = "$2y$04$WvSm6pXVbbH21f0PsZDZsO0VSZCvQeBCLDRlCWSdlTKPYxR3xbD2G";

    fn headers(text: &str) -> HeaderMap {
        let encoded = STANDARD.encode(text);
        [(AUTHORIZATION, format!("Basic {encoded}").parse().unwrap())].into_iter().collect()
    }

    /// Says that the password "secret" is right, and counts questions.
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
        Security::load(&WebAccess { users, ..WebAccess::default() }).unwrap()
    }

    #[tokio::test]
    async fn a_password_is_verified_once_and_so_is_a_wrong_one() {
        let (passwords, count) = verifier();
        let security = security();
        for _ in 0..3 {
            assert_eq!(passwords.user(&headers("alice:secret"), &security).await.unwrap(), "alice");
            let wrong = passwords.user(&headers("alice:guess"), &security).await;
            assert_eq!(wrong.unwrap_err(), Refusal::Unauthorized);
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
        passwords.forget();
        passwords.user(&headers("alice:secret"), &security).await.unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn an_unknown_user_is_verified_too_and_never_let_in() {
        let (passwords, count) = verifier();
        for text in ["mallory:secret", ":secret", "alice\0:secret"] {
            let refused = passwords.user(&headers(text), &security()).await;
            assert_eq!(refused.unwrap_err(), Refusal::Unauthorized, "{text}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3);
        for text in ["alice", ""] {
            assert!(passwords.user(&headers(text), &security()).await.is_err(), "{text}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3, "what is not a name with a password is not verified");
    }

    #[tokio::test]
    async fn what_does_not_fit_into_the_queue_is_refused_at_once() {
        let (sender, _questions) = mpsc::channel(1);
        let passwords = Passwords::new(sender);
        let (first, second) = (headers("alice:1"), headers("alice:2"));
        let security = security();
        let waiting = passwords.user(&first, &security);
        tokio::pin!(waiting);
        assert!(timeout(Duration::ZERO, waiting.as_mut()).await.is_err(), "nobody verifies");
        assert_eq!(passwords.user(&second, &security).await.unwrap_err(), Refusal::Busy);
    }
}
