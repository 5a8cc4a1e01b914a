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

/// The bytes of one page.
#[derive(Debug, Default)]
pub struct RenderedPage(Vec<u8>);

impl AsRef<[u8]> for RenderedPage {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Renders pages, and keeps labels and buffers for the next ones; shared by all snapshots of a configuration.
#[derive(Debug)]
pub struct PageCache {
    level: Level,
    formats: [Mutex<FormatCache>; PageFormat::ALL.len()],
}

#[derive(Debug)]
struct FormatCache {
    renderer: Renderer,
    buffers: BufferPool,
}

#[derive(Debug)]
enum Renderer {
    Native(TextRenderer),
    Dcgm(DcgmRenderer),
}

/// The last two pages, the older one first. A page's buffer is reused once nothing else holds the page; there are two
/// because the last snapshot still holds its page while the next one is rendered.
#[derive(Debug, Default)]
struct BufferPool([Arc<RenderedPage>; 2]);

impl BufferPool {
    /// Returns a page with what `write` appends to it.
    fn write_page(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Arc<RenderedPage> {
        let Self([older, newer]) = self;
        if Arc::get_mut(older).is_none() {
            *older = Arc::default();
        }
        if let Some(RenderedPage(bytes)) = Arc::get_mut(older) {
            bytes.clear();
            write(bytes);
        }
        std::mem::swap(older, newer);
        Arc::clone(newer)
    }
}

impl PageCache {
    /// Creates a cache for the families up to `level`; with `has_created`, pages say when counters began.
    pub fn new(level: Level, has_created: bool, dcgm: Arc<DcgmOptions>) -> Self {
        let cache = |format| {
            let renderer = match format {
                PageFormat::Dcgm => Renderer::Dcgm(DcgmRenderer::new(Arc::clone(&dcgm))),
                format => Renderer::Native(TextRenderer::new(format, level, has_created)),
            };
            Mutex::new(FormatCache { renderer, buffers: BufferPool::default() })
        };
        Self { level, formats: PageFormat::ALL.map(cache) }
    }

    pub fn render(&self, snapshot: &Snapshot, format: PageFormat) -> Arc<RenderedPage> {
        let mut cache = self.formats[format as usize].lock();
        let FormatCache { renderer, buffers } = &mut *cache;
        buffers.write_page(|page| match renderer {
            Renderer::Native(renderer) => renderer.render(snapshot, page),
            Renderer::Dcgm(renderer) => renderer.render(snapshot, page),
        })
    }
}

/// A snapshot with its pages, as far as they were requested.
#[derive(Debug)]
pub struct PublishedSnapshot {
    pub snapshot: Arc<Snapshot>,
    cache: Arc<PageCache>,
    pages: [OnceLock<Arc<RenderedPage>>; PageFormat::ALL.len()],
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

    /// The same as gzip.
    pub fn compressed(&self) -> Bytes {
        self.compressed.get_or_init(|| gzip(&self.text)).clone()
    }
}

impl PublishedSnapshot {
    /// A snapshot whose pages are rendered by `cache`.
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
    pub fn page(&self, format: PageFormat) -> Arc<RenderedPage> {
        let page = &self.pages[format as usize];
        Arc::clone(page.get_or_init(|| self.cache.render(&self.snapshot, format)))
    }

    /// The same page as gzip, compressed at most once, since that costs more than rendering.
    pub fn compressed_page(&self, format: PageFormat) -> Bytes {
        let page = &self.compressed[format as usize];
        page.get_or_init(|| gzip(&self.page(format).0)).clone()
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

fn gzip(page: &[u8]) -> Bytes {
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

    fn page(pool: &mut BufferPool, text: &str) -> Arc<RenderedPage> {
        pool.write_page(|page| page.extend_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_page_that_somebody_reads_is_never_written_again() {
        let mut pool = BufferPool::default();
        let held: Vec<_> = (0..5).map(|number| page(&mut pool, &number.to_string())).collect();
        for (number, page) in held.iter().enumerate() {
            assert_eq!(page.0, number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_page_that_nobody_reads_is_written_again() {
        let mut pool = BufferPool::default();
        let first = page(&mut pool, "first");
        let address = Arc::as_ptr(&first);
        let second = page(&mut pool, "second");
        drop(first);
        let third = page(&mut pool, "third");
        assert_eq!(Arc::as_ptr(&third), address);
        assert_eq!((&*second.0, &*third.0), (&b"second"[..], &b"third"[..]));
    }

    #[test]
    fn a_compressed_page_is_the_page() {
        let page = b"gpu_up{gpu=\"0\"} 1\n".repeat(100);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&*gzip(&page)).read_to_end(&mut text).unwrap();
        assert_eq!(text, page);
    }
}
