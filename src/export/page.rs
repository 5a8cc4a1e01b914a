//! A rendered page, shared by whoever sends it, and the shelf from which its buffer is used again.
//!
//! The shelf keeps a reference to the last two pages. A page of which nobody else holds one is taken off and
//! written anew, so that neither its buffers nor its count of references is allocated again. Two, because the
//! last snapshot still holds its page while the next one is rendered.

use std::sync::{Arc, Mutex, PoisonError};

use super::render::Paper;

/// The bytes of one page.
#[derive(Debug, Default)]
pub struct Page {
    paper: Paper,
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.paper.page
    }
}

/// The last two pages of one variant.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pages: Mutex<[Option<Arc<Page>>; 2]>,
}

impl Shelf {
    /// A page written by `write`, on used paper where some is free.
    pub(super) fn page(&self, write: impl FnOnce(&mut Paper)) -> Arc<Page> {
        let mut page = self.take();
        match Arc::get_mut(&mut page) {
            Some(own) => write(&mut own.paper),
            // Cannot be: taken pages have no other reference.
            None => {
                let mut own = Page::default();
                write(&mut own.paper);
                page = Arc::new(own);
            }
        }
        self.put(Arc::clone(&page));
        page
    }

    /// A page that nobody else holds.
    fn take(&self) -> Arc<Page> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let free =
            |slot: &&mut Option<Arc<Page>>| slot.as_ref().is_some_and(|page| Arc::strong_count(page) == 1);
        pages.iter_mut().find(free).and_then(Option::take).unwrap_or_default()
    }

    /// Keeps the page, instead of the older one where no slot is empty.
    fn put(&self, page: Arc<Page>) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if pages[0].is_some() {
            pages.swap(0, 1);
        }
        pages[0] = Some(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(shelf: &Shelf, text: &str) -> Arc<Page> {
        shelf.page(|paper| {
            paper.page.clear();
            paper.page.extend_from_slice(text.as_bytes());
        })
    }

    #[test]
    fn a_page_that_somebody_reads_is_never_written_again() {
        let shelf = Shelf::default();
        let held: Vec<_> = (0..5).map(|number| page(&shelf, &number.to_string())).collect();
        for (number, page) in held.iter().enumerate() {
            assert_eq!(page.as_ref().as_ref(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn a_page_that_nobody_reads_is_written_again() {
        let shelf = Shelf::default();
        let first = page(&shelf, "first");
        let address = Arc::as_ptr(&first);
        let second = page(&shelf, "second");
        drop(first);
        let third = page(&shelf, "third");
        assert_eq!(Arc::as_ptr(&third), address);
        assert_eq!(second.as_ref().as_ref(), b"second");
    }
}
