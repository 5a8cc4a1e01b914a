//! How often the encoders allocate: a count that is the same on every machine, so the test can require it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use gpumeter::agent::policy::dcgm_options;
use gpumeter::config::Config;
use gpumeter::model::catalogue::Level;
use gpumeter::output::render::{OtlpEncoder, OtlpResource, PageCache, PageFormat, PublishedSnapshot};

use super::fixture;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator; a cell of this thread is counted up beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How many allocations `work` makes on this thread.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn a_warm_page_of_eight_gpus_and_two_hundred_processes_allocates_nothing_but_itself() {
    let roster = Arc::new(fixture::roster(8, 200));
    let cache = Arc::new(PageCache::new(Level::Full, true, dcgm_options(&Config::default())));
    let tick = |scale| {
        PublishedSnapshot::new(Arc::new(fixture::values(Arc::clone(&roster), scale)), Arc::clone(&cache))
    };
    for format in PageFormat::ALL {
        // One for its bytes, and one to share them.
        let mut last = tick(1);
        last.page(format);
        for scale in 2..8 {
            let next = tick(scale);
            let count = allocations(|| drop(next.page(format)));
            assert!(count <= 2, "{format:?}: {count} allocations for page {scale}");
            last = next;
        }
    }
}

#[test]
fn a_request_allocates_less_than_once_for_each_point() {
    let roster = Arc::new(fixture::roster(8, 200));
    let mut otlp = OtlpEncoder::new(Level::Full, &OtlpResource::new("node-1", ""));
    let mut body = Vec::new();
    fixture::encode(&mut otlp, &fixture::values(Arc::clone(&roster), 1), &mut body);
    for (name, next) in
        [("the same roster", fixture::values(roster, 2)), ("a process more", fixture::node(8, 201))]
    {
        let mut points = 0;
        let count = allocations(|| points = fixture::encode(&mut otlp, &next, &mut body));
        assert!(count < points, "{name}: {count} allocations for {points} points");
        println!("{name}: {count} allocations for {points} points");
    }
}
