//! Opens the driver and reads every GPU twice, telling each thing as it is found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Finding, GpuDiagnosis};
use crate::catalogue::{Level, ProcessValue, Rows, device_points, families};
use crate::clock::{Clock, Stop, system_now};
use crate::host::own;
use crate::model::{Absence, Frame, Nanoseconds};
use crate::nvml::{CallSlot, Found, InFlight, Lane, Library, count, find};

/// What was found.
pub(super) enum News {
    Finding(Finding),
    Gpu(GpuDiagnosis),
}

/// Where the examination is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Step {
    /// The library is opened and initialised, or closed, which is no call through the door.
    #[default]
    Opening,
    /// A call is made, or something between two calls.
    Asking {
        gpu: Option<u32>,
        call: Option<InFlight>,
    },
    Closing,
    Done,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening => f.write_str("opening the library (nvmlInit_v2)"),
            Self::Asking { gpu, call } => {
                match call {
                    Some(call) => write!(f, "the call {}", call.function)?,
                    None => f.write_str("the examination")?,
                }
                gpu.map_or(Ok(()), |gpu| write!(f, " on GPU {gpu}"))
            }
            Self::Closing => f.write_str("closing the library (nvmlShutdown)"),
            Self::Done => f.write_str("the end"),
        }
    }
}

/// Seen by who waits for the examination.
#[derive(Clone, Default)]
pub(super) struct Progress {
    step: Arc<Mutex<Step>>,
    slot: CallSlot,
}

impl Progress {
    pub(super) fn step(&self) -> Step {
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match step {
            Step::Asking { gpu, .. } => Step::Asking { gpu, call: self.slot.in_flight() },
            other => other,
        }
    }

    fn set(&self, step: Step) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }
}

/// Examines driver and GPUs; the last step is set when all has been told.
pub(super) fn examine(path: Option<&Path>, progress: &Progress, news: &Sender<News>) {
    // Nobody listens any more after a call that took too long.
    let tell = |what, works, why: String| drop(news.send(News::Finding(Finding::new(what, works, why))));
    match Library::open(path) {
        Ok(library) => {
            let clock = crate::app::clock_of(path);
            let simulated = library.is_simulated();
            let kind = if simulated { "a simulated library: every number is made up" } else { "opened" };
            tell("driver", true, format!("{kind} ({})", place(&library)));
            gpus(&library, &clock, progress, news);
            progress.set(Step::Closing);
            drop(library);
        }
        Err(error) => tell("driver", false, error.to_string()),
    }
    progress.set(Step::Done);
}

/// Which file was taken: the loader may have found it under a bare name.
fn place(library: &Library) -> String {
    let mapped = own::mapped_files().unwrap_or_default();
    let is_library = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvidia-ml.so"))
    };
    let path = mapped.iter().find(is_library).map_or(library.path(), PathBuf::as_path);
    path.display().to_string()
}

fn gpus(library: &Arc<Library>, clock: &Clock, progress: &Progress, news: &Sender<News>) {
    let tell = |what, works, why: String| drop(news.send(News::Finding(Finding::new(what, works, why))));
    progress.set(Step::Asking { gpu: None, call: None });
    let counted = match count(library, &progress.slot, clock) {
        Ok(0) => return tell("gpus", false, "the driver counts none".into()),
        Ok(counted) => counted,
        Err(absence) => return tell("gpus", false, format!("cannot be counted: {}", absence.reason())),
    };
    tell("gpus", true, format!("{counted} counted"));
    for index in 0..counted {
        progress.set(Step::Asking { gpu: Some(index), call: None });
        let gpu = match find(library, index, &progress.slot, clock) {
            Ok(gpu) => gpu,
            Err(absence) => {
                tell("gpu", false, format!("{index}: does not say who it is: {}", absence.reason()));
                continue;
            }
        };
        let name = format!("{} {}", gpu.id.index, gpu.id.uuid);
        match read(library, &gpu, clock, progress) {
            Ok(frame) => {
                let answers = Answers::of(&frame);
                if !answers.faults.is_empty() {
                    tell("gpu", false, format!("{name}: {}", list(&answers.faults)));
                }
                drop(news.send(News::Gpu(answers.diagnosis(&frame))));
            }
            Err(absence) => tell("gpu", false, format!("{name}: answers nothing: {}", absence.reason())),
        }
    }
}

/// The second of two ticks: GPM values come from pairs of samples.
fn read(library: &Arc<Library>, gpu: &Found, clock: &Clock, progress: &Progress) -> Result<Frame, Absence> {
    let slot = progress.slot.clone();
    let mut lane = Lane::new(Arc::clone(library), gpu, slot, clock.clone(), Level::Full);
    let first = lane.tick([true; 3])?;
    wait(clock, first.ended.boottime + APART);
    let frame = lane.tick([true; 3]);
    lane.forget_plan();
    frame
}

/// The driver wants 100 ms between the samples of a pair.
const APART: Nanoseconds = Nanoseconds(120_000_000);

/// Waits on the clock, but not for ever: a demo's may be slow or held.
fn wait(clock: &Clock, moment: Nanoseconds) {
    const LONGEST: Nanoseconds = Nanoseconds::from_seconds(1);
    let (stop, begun) = (Stop::default(), system_now());
    clock.wait_until(moment, &stop, || {
        if system_now().since(begun) >= LONGEST {
            stop.call();
        }
    });
}

/// Every family that is read from a GPU, by how it was answered.
#[derive(Default)]
struct Answers {
    answered: usize,
    /// The board or the library cannot, or nothing has come yet.
    absent: Vec<(&'static str, &'static str)>,
    /// The driver should have answered.
    faults: Vec<(&'static str, &'static str)>,
}

impl Answers {
    fn of(frame: &Frame) -> Self {
        let mut families: Vec<(&'static str, Result<(), Absence>)> = Vec::new();
        for ((family, _), reading) in device_points().zip(&*frame.readings) {
            let answer = reading.map(|_| ());
            match families.last_mut() {
                Some((name, former)) if *name == family.name => *former = former.or(answer),
                _ => families.push((family.name, answer)),
            }
        }
        families.extend(processes(frame));
        let mut answers = Self::default();
        for (family, answer) in families {
            match answer {
                Ok(()) => answers.answered += 1,
                Err(absence) if passes(absence) => answers.faults.push((family, absence.reason())),
                Err(absence) => answers.absent.push((family, absence.reason())),
            }
        }
        answers
    }

    fn diagnosis(self, frame: &Frame) -> GpuDiagnosis {
        GpuDiagnosis {
            index: frame.gpu.index,
            uuid: frame.gpu.uuid.to_string(),
            model: frame.identity.model.to_string(),
            answered: self.answered,
            absent: self.absent,
        }
    }
}

/// Whether it is no property of the board, so that something is wrong.
fn passes(absence: Absence) -> bool {
    matches!(absence, Absence::Failed | Absence::Rejected | Absence::Lost)
}

fn processes(frame: &Frame) -> impl Iterator<Item = (&'static str, Result<(), Absence>)> {
    families()
        .filter_map(|family| match family.rows {
            Rows::Process(ProcessValue::Memory) => Some((family.name, frame.processes.as_ref().map(|_| ()))),
            Rows::Process(ProcessValue::SmUtilization) => {
                Some((family.name, frame.samples.as_ref().map(|_| ())))
            }
            _ => None,
        })
        .map(|(name, answer)| (name, answer.map_err(|absence| *absence)))
}

fn list(faults: &[(&str, &str)]) -> String {
    faults.iter().map(|(family, reason)| format!("{family} {reason}")).collect::<Vec<_>>().join(", ")
}
