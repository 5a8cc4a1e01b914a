//! What clients hold by handle: event sets and GPM samples.
//!
//! Handles are numbers, not addresses, so that a wrong one is refused instead of followed.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::answer::{Answer, INVALID_ARGUMENT, Refused};
use crate::lock;

const MARK: usize = 0x6F62_0000_0000;

/// Handles given out by this process. None is given twice, so that one from before a shutdown is unknown.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Objects of one kind, by handle.
pub(crate) struct Handles<T>(Mutex<BTreeMap<usize, T>>);

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Handles<T> {
    pub(crate) fn insert(&self, object: T) -> usize {
        let handle = MARK | (GIVEN.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.0).insert(handle, object);
        handle
    }

    pub(crate) fn remove(&self, handle: usize) -> Answer {
        lock(&self.0).remove(&handle).map(drop).ok_or(INVALID_ARGUMENT)
    }

    /// Calls `body` with the object of a handle.
    pub(crate) fn with<R>(&self, handle: usize, body: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        lock(&self.0).get_mut(&handle).map(body).ok_or(INVALID_ARGUMENT)
    }
}

/// An event set: the events it wants, and what it has delivered.
pub(crate) struct ClientEventSet {
    /// Event types by the scenario's number of the GPU.
    pub(crate) wanted: BTreeMap<u32, c_ulonglong>,
    /// Elapsed nanoseconds.
    pub(crate) created: u64,
    /// The last scripted event that was delivered.
    pub(crate) delivered: Cursor,
    /// How many events of each storm were delivered, by the storm's number.
    pub(crate) storms: BTreeMap<u64, u64>,
    /// The first number of a moment or storm that came after the set.
    pub(crate) known: u64,
    /// The number of the next moment to deliver.
    pub(crate) moments: u64,
}

/// A place in the repeating script: the time, and the position among the XIDs of the script.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub(crate) at: u64,
    pub(crate) place: usize,
}

/// A GPM sample: a GPU, or a part of it, at a time.
#[derive(Clone, Copy)]
pub(crate) struct GpmSample {
    pub(crate) subject: Subject,
    pub(crate) elapsed: u64,
}

/// What a sample is of. Another board or another MIG layout in the same place is another subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) slot: u32,
    pub(crate) life: u32,
    pub(crate) cut: u32,
    pub(crate) part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// A GPU instance, by its id.
    Instance(u32),
    /// A compute instance, by its engine.
    Compute(usize),
}
