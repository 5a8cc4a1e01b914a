//! The press: what is kept between pages, so that the next one is cheap.
//!
//! Per variant, the layout of the last roster and a shelf of used pages. One press serves all snapshots of a
//! configuration; it never shows anything but the snapshot that it is given.

use std::sync::{Arc, Mutex, PoisonError};

use super::Variant;
use super::layout::Layout;
use super::page::{Page, Shelf};
use super::render::{Order, render};
use crate::catalogue::Level;
use crate::model::snapshot::Snapshot;

/// Renders pages of one level.
#[derive(Debug)]
pub struct Press {
    level: Level,
    created: bool,
    trays: [Tray; Variant::ALL.len()],
}

/// What is kept for one variant.
#[derive(Debug, Default)]
struct Tray {
    layout: Mutex<Option<Arc<Layout>>>,
    shelf: Shelf,
}

impl Press {
    /// A press for the families up to `level`; with `created`, pages tell when counters began.
    pub fn new(level: Level, created: bool) -> Self {
        Self { level, created, trays: Default::default() }
    }

    /// The level of its pages.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Renders the snapshot. [`super::Sealed::page`] does so at most once.
    pub fn page(&self, snapshot: &Snapshot, variant: Variant) -> Arc<Page> {
        let tray = &self.trays[variant as usize];
        let layout = self.layout(tray, snapshot, variant);
        let order = Order { variant, level: self.level, created: self.created };
        tray.shelf.page(|paper| render(snapshot, &layout, order, paper))
    }

    fn layout(&self, tray: &Tray, snapshot: &Snapshot, variant: Variant) -> Arc<Layout> {
        let mut kept = tray.layout.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(layout) if layout.fits(snapshot) => Arc::clone(layout),
            _ => {
                let layout = Arc::new(Layout::new(snapshot, self.level, variant));
                *kept = Some(Arc::clone(&layout));
                layout
            }
        }
    }
}
