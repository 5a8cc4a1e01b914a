//! A snapshot with its pages, and the place where the latest one is found.
//!
//! A page is rendered on first demand and then shared by every scraper of that snapshot.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{Page, Press, Variant};
use crate::model::snapshot::Snapshot;

/// A snapshot with the pages that were asked for.
#[derive(Debug)]
pub struct Sealed {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    press: Arc<Press>,
    pages: [OnceLock<Arc<Page>>; Variant::ALL.len()],
}

impl Sealed {
    /// A snapshot whose pages this press will render.
    pub fn new(snapshot: Arc<Snapshot>, press: Arc<Press>) -> Self {
        Self { snapshot, press, pages: Default::default() }
    }

    /// The page of that variant, rendered at most once.
    pub fn page(&self, variant: Variant) -> Arc<Page> {
        let page = &self.pages[variant as usize];
        Arc::clone(page.get_or_init(|| self.press.page(&self.snapshot, variant)))
    }
}

/// Where the pulse puts each sealed snapshot and everybody else finds it.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Option<Arc<Sealed>>>);

impl Latest {
    /// Replaces what readers will find.
    pub fn publish(&self, sealed: Arc<Sealed>) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(sealed);
        // Outside the lock: the last reference to a snapshot frees a lot.
        drop(before);
    }

    /// The latest, absent before the first pulse.
    pub fn get(&self) -> Option<Arc<Sealed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
