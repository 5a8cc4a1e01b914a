//! Reads of processes that may never return, each on a thread beside the caller's.
//!
//! `/proc/PID/environ` and `/proc/PID/cmdline` need the lock of the process's memory, which a stuck process may hold for
//! ever. Such a read keeps its thread, of which there are at most four; its process is skipped from then on.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::runtime::thread::Thread;

const MOST_THREADS: usize = 4;

/// How long a round waits for what it asks for; a process that is not stuck is read within microseconds.
const PATIENCE: Duration = Duration::from_millis(250);

pub(super) struct AsideReader<T>(Arc<AsideThreads<T>>);

/// Processes among which one is searched for.
pub(super) struct WantedProcess<T> {
    pub(super) pids: Vec<u32>,
    /// Reads one of them; none where it is not the one.
    pub(super) read: Box<dyn Fn(u32) -> Option<T> + Send>,
}

struct AsideThreads<T> {
    state: Mutex<AsideState<T>>,
    changed: Condvar,
}

struct AsideState<T> {
    waiting: VecDeque<WantedProcess<T>>,
    reading: BTreeSet<u32>,
    threads: usize,
    found: Vec<T>,
}

impl<T: Send + 'static> AsideReader<T> {
    pub(super) fn new() -> Self {
        let (waiting, reading, found) = (VecDeque::new(), BTreeSet::new(), Vec::new());
        let state = Mutex::new(AsideState { waiting, reading, threads: 0, found });
        Self(Arc::new(AsideThreads { state, changed: Condvar::new() }))
    }

    /// What was found of these, and of those of earlier rounds whose reads have returned since. What is not read soon
    /// is not waited for: the next round asks for it again.
    pub(super) fn read(&self, wanted: Vec<WantedProcess<T>>) -> Vec<T> {
        let mut state = self.0.state.lock();
        let stuck = state.reading.clone();
        state.waiting = wanted.into();
        while state.threads < MOST_THREADS.min(stuck.len() + state.waiting.len()) {
            let shared = Arc::clone(&self.0);
            if let Err(error) = Thread::start("environ", move || shared.work()) {
                tracing::warn!(%error, "no thread to read /proc/PID/environ could be started; GPUs of jobs that are known only from it are not billed to them; trying again in a second");
                break;
            }
            state.threads += 1;
        }
        let is_pending = |state: &mut AsideState<T>| {
            let is_new = state.reading.iter().any(|pid| !stuck.contains(pid));
            is_new || (!state.waiting.is_empty() && state.threads > stuck.len())
        };
        self.0.changed.wait_while_for(&mut state, is_pending, PATIENCE);
        std::mem::take(&mut state.found)
    }
}

impl<T> AsideThreads<T> {
    fn work(&self) {
        let mut state = self.state.lock();
        while let Some(WantedProcess { pids, read }) = state.waiting.pop_front() {
            for pid in pids {
                // A step is in several hierarchies, so another thread may be reading the same process.
                if !state.reading.insert(pid) {
                    continue;
                }
                drop(state);
                let found = read(pid);
                state = self.state.lock();
                state.reading.remove(&pid);
                if let Some(found) = found {
                    state.found.push(found);
                    break;
                }
            }
            self.changed.notify_all();
        }
        state.threads -= 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn read_until(
        reader: &AsideReader<u32>,
        expected: &[u32],
        pids: &[Vec<u32>],
        read: fn(u32) -> Option<u32>,
    ) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        while !expected.iter().all(|pid| found.contains(pid)) {
            let wanted = pids.iter().map(|pids| WantedProcess { pids: pids.clone(), read: Box::new(read) });
            found.extend(reader.read(wanted.collect()));
        }
        found
    }

    #[test]
    fn processes_that_never_answer_are_skipped_and_keep_four_threads_at_most() {
        let reader = AsideReader::new();
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        // The first read takes the gate and waits for ever; the others wait for the gate.
        let stuck = |pid: u32| {
            let gate = Arc::clone(&gate);
            let read = move |_| gate.lock().recv().err().map(|_| pid);
            WantedProcess { pids: vec![pid], read: Box::new(read) as Box<dyn Fn(u32) -> Option<u32> + Send> }
        };
        while reader.0.state.lock().reading.len() < 2 {
            assert!(reader.read(vec![stuck(1), stuck(2)]).is_empty());
        }
        // A step of which one process is stuck is known by another one.
        let beside = read_until(&reader, &[3, 4], &[vec![1, 3], vec![4]], Some);
        assert_eq!(beside, [3, 4].into());
        while reader.0.state.lock().reading.len() < MOST_THREADS {
            assert!(reader.read(vec![stuck(5), stuck(6)]).is_empty());
        }
        for pid in 7..50 {
            assert!(reader.read(vec![stuck(1), stuck(pid)]).is_empty());
        }
        assert_eq!(reader.0.state.lock().threads, MOST_THREADS);
        drop(release);
        // What answers late is used.
        read_until(&reader, &[1, 2], &[], Some);
    }

    #[test]
    fn the_first_process_that_has_what_is_wanted_is_enough() {
        let reader = AsideReader::new();
        let even = |pid: u32| pid.is_multiple_of(2).then_some(pid);
        assert_eq!(read_until(&reader, &[2, 6], &[vec![1, 2, 4], vec![3], vec![6]], even), [2, 6].into());
    }
}
