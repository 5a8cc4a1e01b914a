//! The command `record`: reads every GPU as the agent does at level full, and records every driver call.
//!
//! It keeps no account, so it takes no lock of the node and may run beside the agent.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;

use crate::config::Config;
use crate::driver::nvml::{
    CallSlot, EventSet, FoundGpu, Library, OpenError, Recorder, Sampler, count, driver_version, find,
};
use crate::driver::record::{FORMAT, RecordingHead};
use crate::model::catalogue::Level;
use crate::model::{Absence, Nanoseconds};
use crate::runtime::clock::{Clock, Stop, next_multiple};
use crate::runtime::thread::{self, Thread};

#[derive(Clone, Debug)]
pub struct Recording {
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    pub library: Option<PathBuf>,
    /// The file to write; an existing file is not overwritten.
    pub file: PathBuf,
    pub length: Nanoseconds,
    pub interval: Nanoseconds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingTotals {
    /// How many GPUs returned their identity.
    pub gpus: usize,
    /// How many times each was read.
    pub ticks: u64,
    /// How many results of driver calls were written.
    pub answers: u64,
}

#[derive(Debug)]
pub struct RunningRecord {
    stop: Stop,
    outcome: Receiver<Result<RecordingTotals, RecordError>>,
}

impl RunningRecord {
    /// Ends it after the reading under way.
    pub fn stop(&self) {
        self.stop.call();
    }

    pub fn wait(&self, longest: Duration) -> Option<Result<RecordingTotals, RecordError>> {
        match self.outcome.recv_timeout(longest) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(RecordError::Failed)),
        }
    }
}

#[derive(Debug, Error)]
pub enum RecordError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the driver does not count its GPUs: {}", .0.reason())]
    Uncounted(Absence),
    #[error("recording {path}: {source}; name a new file in a directory that this user can write")]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Thread(#[from] thread::Error),
    /// The recording thread panicked.
    #[error("the recording failed; the message above is worth a report")]
    Failed,
}

/// Ticks per tier: fast, medium, slow.
const EVERY: [u64; 3] = [1, 5, 60];

/// Records until the time is over, or until it is stopped, on a thread of its own, since a driver call may hang.
pub fn record(recording: Recording) -> Result<RunningRecord, thread::Error> {
    let (sender, outcome) = channel();
    let stop = Stop::default();
    let stop_by_thread = stop.clone();
    Thread::start("record", move || {
        // Nobody may be waiting any more.
        let _ = sender.send(record_until(&recording, &stop_by_thread));
    })?;
    Ok(RunningRecord { stop, outcome })
}

fn record_until(recording: &Recording, stop: &Stop) -> Result<RecordingTotals, RecordError> {
    let clock = Clock::of_library(recording.library.as_deref());
    let library = Library::open(recording.library.as_deref())?;
    let failed = |source| RecordError::File { path: recording.file.clone(), source };
    let recorder = Arc::new(begin(&library, recording, &clock).map_err(failed)?);
    library.record(Arc::clone(&recorder));
    let outcome = read(&library, recording, &clock, stop);
    let written = recorder.end().map_err(failed);
    let (gpus, ticks) = outcome?;
    Ok(RecordingTotals { gpus, ticks, answers: written? })
}

fn begin(library: &Arc<Library>, recording: &Recording, clock: &Clock) -> io::Result<Recorder> {
    let file = File::create_new(&recording.file)?;
    let now = clock.now();
    let head = RecordingHead {
        gpumeter_recording: FORMAT,
        utc_ns: now.utc.0,
        interval_ns: recording.interval.0,
        driver_version: driver_version(library, clock).to_string(),
        simulated: library.is_simulated(),
    };
    Recorder::begin(Box::new(BufWriter::new(file)), &head, now.boottime)
}

fn read(
    library: &Arc<Library>,
    recording: &Recording,
    clock: &Clock,
    stop: &Stop,
) -> Result<(usize, u64), RecordError> {
    let slot = CallSlot::default();
    let counted = count(library, &slot, clock).map_err(RecordError::Uncounted)?;
    let found: Vec<FoundGpu> =
        (0..counted).filter_map(|index| find(library, index, &slot, clock).ok()).collect();
    let share = Config::default().sampling.driver_share;
    let sampler = |gpu| {
        let mut sampler = Sampler::new(Arc::clone(library), gpu, slot.clone(), clock.clone(), Level::Full);
        // Under presence the processes are known in every tick, so a replay can use any rule of billing.
        sampler.configure(Level::Full, true, share);
        sampler
    };
    let mut samplers: Vec<Sampler> = found.iter().map(sampler).collect();
    let events = receive_events(library, &found, clock, stop)?;
    let end = clock.now().boottime + recording.length;
    let mut ticks = 0;
    while clock.now().boottime < end && !stop.is_called() {
        let due = EVERY.map(|every| ticks % every == 0);
        for sampler in &mut samplers {
            // A refusal is part of the recording.
            let _ = sampler.tick(due);
        }
        ticks += 1;
        let next = next_multiple(clock.now().boottime, recording.interval);
        clock.wait_until(next, stop, || {});
    }
    stop.call();
    events.wait(EVENTS_TIMEOUT);
    Ok((samplers.len(), ticks))
}

/// How long one wait for an event lasts; a stop is seen only after it.
const WAIT_MILLISECONDS: u32 = 200;

/// How long the events thread may take to end.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(700);

fn receive_events(
    library: &Arc<Library>,
    gpus: &[FoundGpu],
    clock: &Clock,
    stop: &Stop,
) -> Result<Thread, thread::Error> {
    let mut events = EventSet::new(library, CallSlot::default(), clock.clone()).ok();
    for gpu in gpus {
        if let Some(events) = &mut events {
            // A refused registration is recorded too, so its error needs no handling.
            let _ = events.register(gpu);
        }
    }
    let stop = stop.clone();
    Thread::start("events", move || {
        let Some(mut events) = events.filter(|events| !events.is_empty()) else { return };
        while !stop.is_called() && events.wait(WAIT_MILLISECONDS).is_ok() {}
        events.free();
    })
}
