//! Recording: reads every GPU as the agent does at level full, and takes down what passes the door.
//!
//! It accounts for nothing and so takes no lock of the node: it may run beside the agent.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;

use crate::catalogue::Level;
use crate::clock::{Clock, Stop, next_multiple};
use crate::config::Config;
use crate::model::{Absence, Nanoseconds};
use crate::nvml::{
    CallSlot, EventSet, FoundGpu, Library, OpenError, Recorder, Sampler, count, driver_version, find,
};
use crate::record::{FORMAT, RecordingHead};
use crate::thread::{self, Thread};

/// What to record.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds.
    pub library: Option<PathBuf>,
    /// Where the recording goes; a file that is there is not overwritten.
    pub file: PathBuf,
    /// For how long.
    pub length: Nanoseconds,
    /// Interval between readings of every GPU.
    pub interval: Nanoseconds,
}

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// How many GPUs said who they are.
    pub gpus: usize,
    /// How many times each was read.
    pub ticks: u64,
    /// How many answers of the driver were written.
    pub answers: u64,
}

/// A recording under way.
#[derive(Debug)]
pub struct RunningRecord {
    stop: Stop,
    outcome: Receiver<Result<Recorded, RecordError>>,
}

impl RunningRecord {
    /// Ends it after the reading under way.
    pub fn stop(&self) {
        self.stop.call();
    }

    /// What was recorded, if it ends within that time.
    pub fn wait(&self, longest: Duration) -> Option<Result<Recorded, RecordError>> {
        match self.outcome.recv_timeout(longest) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(RecordError::Failed)),
        }
    }
}

/// Nothing was recorded, or not all.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The driver cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The driver does not count its GPUs.
    #[error("the driver does not count its GPUs: {}", .0.reason())]
    Uncounted(Absence),
    /// The file cannot be written.
    #[error("recording {path}: {source}; name a new file in a directory that this user can write")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] thread::Error),
    /// The recording thread panicked.
    #[error("the recording failed; the message above is worth a report")]
    Failed,
}

/// Every tick, every fifth tick, every sixtieth tick.
const EVERY: [u64; 3] = [1, 5, 60];

/// Records until the time is over, or until it is stopped, on a thread of its own: a driver call may hang.
pub fn record(recording: Recording) -> Result<RunningRecord, thread::Error> {
    let (sender, outcome) = channel();
    let stop = Stop::default();
    let theirs = stop.clone();
    Thread::start("record", move || {
        // Nobody may be waiting any more.
        let _ = sender.send(record_until(&recording, &theirs));
    })?;
    Ok(RunningRecord { stop, outcome })
}

fn record_until(recording: &Recording, stop: &Stop) -> Result<Recorded, RecordError> {
    let Recording { library, file, length, interval } = recording;
    let clock = Clock::of_library(library.as_deref());
    let library = Library::open(library.as_deref())?;
    let recorder = Arc::new(begin(&library, file, *interval, &clock)?);
    library.record(Arc::clone(&recorder));
    let outcome = read(&library, (*length, *interval), &clock, stop);
    let written = recorder.end().map_err(|source| RecordError::File { path: file.clone(), source });
    let (gpus, ticks) = outcome?;
    Ok(Recorded { gpus, ticks, answers: written? })
}

fn begin(
    library: &Arc<Library>,
    path: &Path,
    interval: Nanoseconds,
    clock: &Clock,
) -> Result<Recorder, RecordError> {
    let failed = |source| RecordError::File { path: path.into(), source };
    let file = File::create_new(path).map_err(failed)?;
    let now = clock.now();
    let head = RecordingHead {
        gpumeter_recording: FORMAT,
        utc_ns: now.utc.0,
        interval_ns: interval.0,
        driver_version: driver_version(library, clock).to_string(),
        simulated: library.is_simulated(),
    };
    Recorder::begin(Box::new(BufWriter::new(file)), &head, now.boottime).map_err(failed)
}

/// How many GPUs there are, and how many times each was read.
fn read(
    library: &Arc<Library>,
    (length, interval): (Nanoseconds, Nanoseconds),
    clock: &Clock,
    stop: &Stop,
) -> Result<(usize, u64), RecordError> {
    let slot = CallSlot::default();
    let counted = count(library, &slot, clock).map_err(RecordError::Uncounted)?;
    let found: Vec<FoundGpu> =
        (0..counted).filter_map(|index| find(library, index, &slot, clock).ok()).collect();
    let share = Config::default().sampling.driver_share / counted.max(1);
    let sampler = |gpu| {
        let mut sampler = Sampler::new(Arc::clone(library), gpu, slot.clone(), clock.clone(), Level::Full);
        // Who was there is then known in every tick, by whatever rule the recording is billed later.
        sampler.configure(Level::Full, true, share);
        sampler
    };
    let mut samplers: Vec<Sampler> = found.iter().map(sampler).collect();
    let events = hear(library, &found, clock, stop)?;
    let end = clock.now().boottime + length;
    let mut ticks = 0;
    while clock.now().boottime < end && !stop.is_called() {
        let due = EVERY.map(|every| ticks % every == 0);
        for sampler in &mut samplers {
            // What a GPU refuses is part of the recording.
            let _ = sampler.tick(due);
        }
        ticks += 1;
        let next = next_multiple(clock.now().boottime, interval);
        clock.wait_until(next, stop, || {});
    }
    stop.call();
    events.wait(EVENTS_TIMEOUT);
    Ok((samplers.len(), ticks))
}

/// Short, since whoever waits hears no stop meanwhile.
const WAIT_MILLISECONDS: u32 = 200;

/// How long the events thread may take to end.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(700);

/// EventSet come when they come, so they are waited for beside the reading.
fn hear(
    library: &Arc<Library>,
    gpus: &[FoundGpu],
    clock: &Clock,
    stop: &Stop,
) -> Result<Thread, thread::Error> {
    let mut events = EventSet::new(library, CallSlot::default(), clock.clone()).ok();
    for gpu in gpus {
        if let Some(events) = &mut events {
            // A registration that the driver refuses is recorded, too, so its error needs no handling.
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
