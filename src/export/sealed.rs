//! A snapshot with its pages, and the place where the latest one is found.
//!
//! A page is rendered on first demand and then shared by every scraper of that snapshot.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Page, Press, Variant};
use crate::catalogue::Level;
use crate::model::snapshot::Snapshot;

/// A snapshot with the pages that were asked for.
#[derive(Debug)]
pub struct Sealed {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    press: Arc<Press>,
    pages: [OnceLock<Arc<Page>>; Variant::ALL.len()],
    compressed: [OnceLock<Bytes>; Variant::ALL.len()],
}

impl Sealed {
    /// A snapshot whose pages this press will render.
    pub fn new(snapshot: Arc<Snapshot>, press: Arc<Press>) -> Self {
        Self { snapshot, press, pages: Default::default(), compressed: Default::default() }
    }

    /// The level of its pages.
    pub fn level(&self) -> Level {
        self.press.level()
    }

    /// The page of that variant, rendered at most once.
    pub fn page(&self, variant: Variant) -> Arc<Page> {
        let page = &self.pages[variant as usize];
        Arc::clone(page.get_or_init(|| self.press.page(&self.snapshot, variant)))
    }

    /// The same page as gzip, compressed at most once: that costs more than rendering it.
    pub fn compressed(&self, variant: Variant) -> Bytes {
        let page = &self.compressed[variant as usize];
        page.get_or_init(|| gzip((*self.page(variant)).as_ref())).clone()
    }
}

fn gzip(page: &[u8]) -> Bytes {
    // A page of labels shrinks to a twentieth; level 6 would take three times as long for a quarter less.
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Writing to memory does not fail.
    let written = encoder.write_all(page).and_then(|()| encoder.finish());
    written.map(Bytes::from).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_compressed_is_the_page() {
        let page = b"gpu_up{gpu=\"0\"} 1\n".repeat(100);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*gzip(&page)).read_to_end(&mut text).unwrap();
        assert_eq!(text, page);
    }
}
