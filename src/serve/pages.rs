//! Where the server finds the pages of the latest snapshot.
//!
//! Questions that whoever wires the server answers: the page that a scraper's `Accept` header prefers, the
//! snapshot and the verdicts as JSON. Bytes are shared, never copied: a page lives for as long as a scraper reads it.

use hyper::body::Bytes;

use super::security::Visible;

/// A page, ready to be sent.
#[derive(Clone, Debug)]
pub struct Served {
    /// The value of the `Content-Type` header.
    pub content_type: &'static str,
    /// Whether the body is gzip.
    pub gzip: bool,
    /// The page.
    pub body: Bytes,
}

/// What a scraper asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its `Accept` header.
    pub accept: Option<&'a str>,
    /// Whether it takes gzip.
    pub gzip: bool,
}

type Metrics = dyn Fn(Wanted<'_>) -> Option<Served> + Send + Sync;
type Snapshot = dyn Fn(&Visible) -> Option<Bytes> + Send + Sync;
type Verdicts = dyn Fn() -> Option<Bytes> + Send + Sync;
type PublishedSnapshot = dyn Fn() -> bool + Send + Sync;

/// The pages of the latest snapshot; there are none before the first is sealed.
pub struct Pages {
    metrics: Box<Metrics>,
    snapshot: Box<Snapshot>,
    health: Box<Verdicts>,
    sealed: Box<PublishedSnapshot>,
}

impl Pages {
    /// Pages that `metrics` tells by what is wanted, JSON that `snapshot` tells of what is visible, and whether there are any.
    pub fn new(
        metrics: impl Fn(Wanted<'_>) -> Option<Served> + Send + Sync + 'static,
        snapshot: impl Fn(&Visible) -> Option<Bytes> + Send + Sync + 'static,
        sealed: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            metrics: Box::new(metrics),
            snapshot: Box::new(snapshot),
            health: Box::new(|| None),
            sealed: Box::new(sealed),
        }
    }

    /// The same pages with verdicts as JSON, which without this are never there.
    pub fn with_health(self, health: impl Fn() -> Option<Bytes> + Send + Sync + 'static) -> Self {
        Self { health: Box::new(health), ..self }
    }

    /// The page of metrics, as the scraper prefers it.
    pub(super) fn metrics(&self, wanted: Wanted<'_>) -> Option<Served> {
        (self.metrics)(wanted)
    }

    /// The snapshot as JSON, as far as it is visible.
    pub(super) fn snapshot(&self, visible: &Visible) -> Option<Bytes> {
        (self.snapshot)(visible)
    }

    /// The verdicts as JSON.
    pub(super) fn health(&self) -> Option<Bytes> {
        (self.health)()
    }

    /// Whether a first snapshot was sealed.
    pub(super) fn are_there(&self) -> bool {
        (self.sealed)()
    }
}
