//! Pages of published snapshots. A page is rendered at most once, and shared by all scrapers of its snapshot.

use std::io::Write;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;

use super::PageFormat;
use super::dcgm::{DcgmOptions, DcgmRenderer};
use super::text::TextRenderer;
use crate::model::VisibleAccount;
use crate::model::catalogue::Level;
use crate::model::snapshot::Snapshot;

/// Renders pages, and keeps labels for the next ones; shared by all snapshots of a configuration.
#[derive(Debug)]
pub struct PageCache {
    level: Level,
    formats: [Mutex<Renderer>; PageFormat::ALL.len()],
}

#[derive(Debug)]
enum Renderer {
    Native(TextRenderer),
    Dcgm(DcgmRenderer),
}

impl PageCache {
    /// Creates a cache for the families up to `level`; with `has_created`, pages say when counters began.
    pub fn new(level: Level, has_created: bool, dcgm: Arc<DcgmOptions>) -> Self {
        let renderer = |format| {
            Mutex::new(match format {
                PageFormat::Dcgm => Renderer::Dcgm(DcgmRenderer::new(Arc::clone(&dcgm))),
                format => Renderer::Native(TextRenderer::new(format, level, has_created)),
            })
        };
        Self { level, formats: PageFormat::ALL.map(renderer) }
    }

    /// Renders a page into a buffer with room for the last one and a little more.
    pub fn render(&self, snapshot: &Snapshot, format: PageFormat) -> Bytes {
        let mut renderer = self.formats[format as usize].lock();
        match &mut *renderer {
            Renderer::Native(renderer) => renderer.render(snapshot),
            Renderer::Dcgm(renderer) => renderer.render(snapshot),
        }
    }
}

/// A snapshot with its pages, as far as they were requested.
#[derive(Debug)]
pub struct PublishedSnapshot {
    pub snapshot: Arc<Snapshot>,
    cache: Arc<PageCache>,
    pages: [OnceLock<Bytes>; PageFormat::ALL.len()],
    compressed: [OnceLock<Bytes>; PageFormat::ALL.len()],
    /// The documents that were requested, by name and reader.
    documents: Mutex<Vec<((String, VisibleAccount), SharedDocument)>>,
}

/// The most documents that are kept for one snapshot; there are as many as readers with views of their own.
const MOST_DOCUMENTS: usize = 64;

/// A document that all requests of one kind share, compressed at most once.
#[derive(Clone, Debug)]
pub struct SharedDocument {
    pub text: Bytes,
    compressed: Arc<OnceLock<Bytes>>,
}

impl SharedDocument {
    pub fn new(text: Bytes) -> Self {
        Self { text, compressed: Arc::default() }
    }

    pub fn compressed(&self) -> Bytes {
        self.compressed.get_or_init(|| gzip(&self.text)).clone()
    }
}

impl PublishedSnapshot {
    pub fn new(snapshot: Arc<Snapshot>, cache: Arc<PageCache>) -> Self {
        Self {
            snapshot,
            cache,
            pages: Default::default(),
            compressed: Default::default(),
            documents: Mutex::default(),
        }
    }

    pub fn level(&self) -> Level {
        self.cache.level
    }

    /// The page in that format, rendered at most once.
    pub fn page(&self, format: PageFormat) -> Bytes {
        self.pages[format as usize].get_or_init(|| self.cache.render(&self.snapshot, format)).clone()
    }

    /// The same page as gzip, compressed at most once, since that costs more than rendering.
    pub fn compressed_page(&self, format: PageFormat) -> Bytes {
        let page = &self.compressed[format as usize];
        page.get_or_init(|| gzip(&self.page(format))).clone()
    }

    /// The document of that name for a reader, made at most once by `make`.
    pub fn document(
        &self,
        name: String,
        visible: &VisibleAccount,
        make: impl FnOnce() -> Vec<u8>,
    ) -> SharedDocument {
        let mut documents = self.documents.lock();
        let known = documents.iter().find(|((known, reader), _)| (known, reader) == (&name, visible));
        if let Some((_, document)) = known {
            return document.clone();
        }
        let document = SharedDocument::new(make().into());
        if documents.len() < MOST_DOCUMENTS {
            documents.push(((name, visible.clone()), document.clone()));
        }
        document
    }
}

pub fn gzip(page: &[u8]) -> Bytes {
    // A page shrinks to a twentieth; level 6 would take three times as long for a quarter less.
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Writing to memory does not fail.
    let written = encoder.write_all(page).and_then(|()| encoder.finish());
    written.map(Bytes::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_compressed_page_is_the_page() {
        let page = b"gpu_up{gpu=\"0\"} 1\n".repeat(100);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*gzip(&page)).read_to_end(&mut text).unwrap();
        assert_eq!(text, page);
    }
}
