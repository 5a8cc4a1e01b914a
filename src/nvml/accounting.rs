//! The driver's accounting mode, where an administrator has put it on: processes that ended since the last
//! look, so that one which came and went between two lists is known at least by its pid, its time and how busy
//! it kept the GPU.
//!
//! It is a record of what was, for explaining busy time that nobody on a list explains. It names nobody: the
//! process is gone, and its place in `/proc` with it. This module decides nothing about accounts.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper_sys::bindings as sys;

use super::door::{Door, Handle, INSUFFICIENT_SIZE, NOT_FOUND, Refusal, ask, more_room};
use crate::model::{Absence, Bytes, EndedProcess, Nanoseconds, Rejection, Utc};

/// The driver keeps some 4,000 records at most; one that wants room for more than this answers garbage.
const MOST: usize = 16_384;

/// The most records that one look asks for: each is a call of its own.
const PER_LOOK: usize = 8;

/// The longest life that is believed: ten years.
const LONGEST: u64 = 10 * 366 * 24 * 3_600 * 1_000;

/// More memory than any GPU has: 16 TiB.
const MOST_MEMORY: u64 = 1 << 44;

/// What is known of the accounting of one GPU.
#[derive(Default)]
pub(super) struct Accounting {
    state: State,
    pids: Vec<u32>,
    /// Processes of which nothing new is expected, with the start of the life that was told.
    told: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Not asked yet.
    #[default]
    Unknown,
    /// The driver keeps no records, or cannot.
    Off,
    /// It does, and what it remembers from before is not ours to tell.
    Fresh,
    /// Looked at before.
    On,
}

/// A process's record: still running, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Running,
    Ended(EndedProcess, u64),
}

impl Accounting {
    /// Whether the mode is on; an administrator may change it at any time.
    pub(super) fn check(&mut self, door: &mut Door, Handle(device): Handle) {
        let mut mode: sys::nvmlEnableState_t = 0;
        let answer = ask!(door, nvmlDeviceGetAccountingMode(device, &raw mut mode));
        self.state = match (answer, self.state) {
            (Ok(()), State::On) if mode == 1 => State::On,
            (Ok(()), _) if mode == 1 => State::Fresh,
            // What was known stands: who ended meanwhile would be taken for one who ended before us.
            (Err(refusal), known) if !Absence::from(refusal).is_permanent() => known,
            _ => State::Off,
        };
    }

    /// Whether a look can tell anything.
    pub(super) fn is_on(&self) -> bool {
        matches!(self.state, State::Fresh | State::On)
    }

    /// Processes that ended since the last look, a few at a time; `listed` are those that still run.
    pub(super) fn ended(
        &mut self,
        door: &mut Door,
        device: Handle,
        listed: &BTreeSet<u32>,
    ) -> Vec<EndedProcess> {
        if self.read_pids(door, device).is_err() {
            return Vec::new();
        }
        let fresh = self.state == State::Fresh;
        self.state = State::On;
        let wanted = self.wanted(listed, fresh);
        let mut ended = Vec::new();
        for pid in wanted {
            match record(door, device, pid) {
                Ok(Record::Ended(process, started)) => ended.extend(self.tell(process, started)),
                Ok(Record::Running) => {}
                // Another record took its place meanwhile, or it is garbage: it must not hold up the others.
                Err(absence) => {
                    door.reject(Rejection::Record, u64::from(absence == Absence::Rejected));
                    self.told.insert(pid, 0);
                }
            }
        }
        ended
    }

    /// Whose records to ask for. At first nobody's: who is remembered and not listed ended before we looked.
    fn wanted(&mut self, listed: &BTreeSet<u32>, fresh: bool) -> Vec<u32> {
        let kept: BTreeSet<u32> = self.pids.iter().copied().collect();
        // Who runs again under an old pid will end again; what the driver forgot need not be remembered.
        self.told.retain(|pid, _| kept.contains(pid) && !listed.contains(pid));
        let gone = kept.into_iter().filter(|pid| !listed.contains(pid) && !self.told.contains_key(pid));
        if fresh {
            let before: Vec<_> = gone.collect();
            self.told.extend(before.into_iter().map(|pid| (pid, 0)));
            return Vec::new();
        }
        gone.take(PER_LOOK).collect()
    }

    fn tell(&mut self, process: EndedProcess, started: u64) -> Option<EndedProcess> {
        let before = self.told.insert(process.pid, started);
        (before != Some(started)).then_some(process)
    }

    fn read_pids(&mut self, door: &mut Door, Handle(device): Handle) -> Result<(), Absence> {
        if self.pids.is_empty() {
            self.pids.resize(64, 0);
        }
        let mut room = self.pids.capacity().max(64);
        loop {
            self.pids.resize(room, 0);
            let mut count = u32::try_from(room).unwrap_or(u32::MAX);
            let buffer = self.pids.as_mut_ptr();
            match ask!(door, nvmlDeviceGetAccountingPids(device, &raw mut count, buffer)) {
                Ok(()) => {
                    self.pids.truncate(count as usize);
                    return Ok(());
                }
                Err(Refusal::Code(NOT_FOUND)) => {
                    self.pids.clear();
                    return Ok(());
                }
                Err(Refusal::Code(INSUFFICIENT_SIZE)) => {
                    let Some(more) = more_room(room, count as usize, MOST) else {
                        self.state = State::Off;
                        door.reject(Rejection::Count, 1);
                        return Err(Absence::Rejected);
                    };
                    room = more;
                }
                Err(refusal) => {
                    let absence = Absence::from(refusal);
                    if absence.is_permanent() {
                        self.state = State::Off;
                    }
                    return Err(absence);
                }
            }
        }
    }
}

fn record(door: &mut Door, Handle(device): Handle, pid: u32) -> Result<Record, Absence> {
    let mut stats = sys::nvmlAccountingStats_t {
        gpuUtilization: u32::MAX,
        memoryUtilization: u32::MAX,
        maxMemoryUsage: u64::MAX,
        time: 0,
        startTime: 0,
        isRunning: 0,
        reserved: [0; 5],
    };
    ask!(door, nvmlDeviceGetAccountingStats(device, pid, &raw mut stats))?;
    believed(pid, &stats)
}

fn believed(pid: u32, stats: &sys::nvmlAccountingStats_t) -> Result<Record, Absence> {
    if stats.isRunning != 0 {
        return Ok(Record::Running);
    }
    let started = stats.startTime.checked_mul(1_000).ok_or(Absence::Rejected)?;
    if started == 0 || stats.time > LONGEST {
        return Err(Absence::Rejected);
    }
    let process = EndedProcess {
        pid,
        started: Utc(started),
        ran: Nanoseconds(stats.time * 1_000_000),
        // Ada answers 0 for whoever has ended; a process with a context had some.
        memory: (1..=MOST_MEMORY).contains(&stats.maxMemoryUsage).then_some(Bytes(stats.maxMemoryUsage)),
        utilization: (stats.gpuUtilization <= 100).then_some(stats.gpuUtilization),
    };
    Ok(Record::Ended(process, stats.startTime))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> sys::nvmlAccountingStats_t {
        sys::nvmlAccountingStats_t {
            gpuUtilization: 80,
            memoryUtilization: 20,
            maxMemoryUsage: 1 << 30,
            time: 2_500,
            startTime: 1_800_000_000_000_000,
            isRunning: 0,
            reserved: [0; 5],
        }
    }

    fn ended(pid: u32) -> EndedProcess {
        EndedProcess {
            pid,
            started: Utc(1_800_000_000_000_000_000),
            ran: Nanoseconds(2_500_000_000),
            memory: Some(Bytes(1 << 30)),
            utilization: Some(80),
        }
    }

    #[test]
    fn a_record_tells_when_how_long_and_how_busy() {
        assert_eq!(believed(7, &stats()), Ok(Record::Ended(ended(7), 1_800_000_000_000_000)));
        let running = sys::nvmlAccountingStats_t { isRunning: 1, ..stats() };
        assert_eq!(believed(7, &running), Ok(Record::Running));
    }

    #[test]
    fn what_a_record_does_not_know_is_absent_and_what_cannot_be_is_refused() {
        let unknown =
            sys::nvmlAccountingStats_t { gpuUtilization: u32::MAX, maxMemoryUsage: u64::MAX, ..stats() };
        for stats in [unknown, sys::nvmlAccountingStats_t { maxMemoryUsage: 0, ..unknown }] {
            let Ok(Record::Ended(process, _)) = believed(7, &stats) else { unreachable!("it has ended") };
            assert_eq!((process.memory, process.utilization), (None, None));
        }
        for garbage in [
            sys::nvmlAccountingStats_t { time: u64::MAX, ..stats() },
            sys::nvmlAccountingStats_t { startTime: u64::MAX, ..stats() },
            sys::nvmlAccountingStats_t { startTime: 0, ..stats() },
        ] {
            assert_eq!(believed(7, &garbage), Err(Absence::Rejected), "{garbage:?}");
        }
    }

    #[test]
    fn who_ended_before_the_first_look_is_not_told_and_who_ends_after_it_is_told_once() {
        let mut accounting = Accounting { pids: vec![1, 2, 3], ..Accounting::default() };
        let listed = BTreeSet::from([3]);
        assert!(accounting.wanted(&listed, true).is_empty());
        assert!(accounting.wanted(&listed, false).is_empty());
        assert_eq!(accounting.wanted(&BTreeSet::new(), false), [3], "it is on no list any more");
        assert_eq!(accounting.tell(ended(3), 5), Some(ended(3)));
        assert!(accounting.wanted(&BTreeSet::new(), false).is_empty());
        assert_eq!(accounting.tell(ended(3), 5), None);
    }

    #[test]
    fn a_pid_that_is_used_again_is_told_again() {
        let mut accounting = Accounting { pids: vec![3], ..Accounting::default() };
        accounting.tell(ended(3), 5);
        assert!(accounting.wanted(&BTreeSet::from([3]), false).is_empty());
        assert_eq!(accounting.wanted(&BTreeSet::new(), false), [3]);
        assert_eq!(accounting.tell(ended(3), 9), Some(ended(3)));
    }

    #[test]
    fn a_look_asks_for_a_few_records_only() {
        let mut accounting = Accounting { pids: (1..=100).collect(), ..Accounting::default() };
        assert_eq!(accounting.wanted(&BTreeSet::new(), false).len(), PER_LOOK);
    }
}
