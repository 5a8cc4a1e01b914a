//! Opens the driver and reads every GPU twice, telling each thing as it is found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use super::families::{self, FamilyStatus, WantedFamilies};
use super::{Finding, GpuDiagnosis};
use crate::catalogue::Level;
use crate::clock::{Clock, Stop, system_now};
use crate::holders::SessionGpu;
use crate::host::agent_usage;
use crate::model::{Absence, Frame, Nanoseconds};
use crate::nvml::{CallSlot, EventSet, FoundGpu, InFlight, Library, Sampler, count, find};

/// What was found.
pub(super) enum ExaminationNews {
    Finding(Finding),
    Gpu(GpuDiagnosis),
    /// All GPUs that the driver counts, where each says who it is.
    Counted(Vec<SessionGpu>),
    /// Processes on a GPU of a real driver; those of a simulated one are not this host's.
    Processes(Vec<u32>),
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
pub(super) struct ExaminationProgress {
    step: Arc<Mutex<Step>>,
    slot: CallSlot,
}

impl ExaminationProgress {
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

/// Examines driver and GPUs; sets the last step when every finding is there.
pub(super) fn examine(
    path: Option<&Path>,
    wanted: WantedFamilies,
    progress: &ExaminationProgress,
    news: &Sender<ExaminationNews>,
) {
    // Nobody listens any more after a call that took too long.
    let tell =
        |what, works, why: String| drop(news.send(ExaminationNews::Finding(Finding::new(what, works, why))));
    match Library::open(path) {
        Ok(library) => {
            let clock = Clock::of_library(path);
            let simulated = library.is_simulated();
            let kind = if simulated { "a simulated library: every number is made up" } else { "opened" };
            tell("driver", true, format!("{kind} ({})", place(&library)));
            Examination { library: &library, clock: &clock, wanted, progress, news }.gpus();
            progress.set(Step::Closing);
            drop(library);
        }
        Err(error) => tell("driver", false, error.to_string()),
    }
    progress.set(Step::Done);
}

/// Which file was taken: the loader may have found it under a bare name.
fn place(library: &Library) -> String {
    let mapped = agent_usage::mapped_files().unwrap_or_default();
    let is_library = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvidia-ml.so"))
    };
    let path = mapped.iter().find(is_library).map_or(library.path(), PathBuf::as_path);
    path.display().to_string()
}

/// A driver that is open.
struct Examination<'a> {
    library: &'a Arc<Library>,
    clock: &'a Clock,
    wanted: WantedFamilies,
    progress: &'a ExaminationProgress,
    news: &'a Sender<ExaminationNews>,
}

impl Examination<'_> {
    fn tell(&self, what: &'static str, works: bool, why: String) {
        drop(self.news.send(ExaminationNews::Finding(Finding::new(what, works, why))));
    }

    fn gpus(&self) {
        self.progress.set(Step::Asking { gpu: None, call: None });
        let counted = match count(self.library, &self.progress.slot, self.clock) {
            Ok(0) => return self.tell("gpus", false, "the driver counts none".into()),
            Ok(counted) => counted,
            Err(absence) => {
                return self.tell("gpus", false, format!("cannot be counted: {}", absence.reason()));
            }
        };
        self.tell("gpus", true, format!("{counted} counted"));
        let mut found = Vec::new();
        for index in 0..counted {
            self.progress.set(Step::Asking { gpu: Some(index), call: None });
            match find(self.library, index, &self.progress.slot, self.clock) {
                Ok(gpu) => {
                    self.gpu(&gpu);
                    found.push(gpu);
                }
                Err(absence) => {
                    self.tell("gpu", false, format!("{index}: does not say who it is: {}", absence.reason()));
                }
            }
        }
        if found.len() == counted as usize {
            let gpus = found.iter().map(|gpu| SessionGpu::from(&gpu.id)).collect();
            drop(self.news.send(ExaminationNews::Counted(gpus)));
        }
        self.xids(&found);
    }

    fn gpu(&self, gpu: &FoundGpu) {
        let name = format!("{} {}", gpu.id.index, gpu.id.uuid);
        let frame = match self.read(gpu) {
            Ok(frame) => frame,
            Err(absence) => {
                return self.tell("gpu", false, format!("{name}: answers nothing: {}", absence.reason()));
            }
        };
        if !self.library.is_simulated() {
            let pids = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
            drop(self.news.send(ExaminationNews::Processes(pids.collect())));
        }
        let families = families::of(&frame, self.wanted);
        let faults: Vec<String> = families
            .iter()
            .filter(|family| family.standing == FamilyStatus::Failed)
            .map(|family| format!("{} {}", family.family, family.reason))
            .collect();
        if !faults.is_empty() {
            self.tell("gpu", false, format!("{name}: {}", faults.join(", ")));
        }
        let diagnosis = GpuDiagnosis {
            index: frame.gpu.index,
            uuid: frame.gpu.uuid.to_string(),
            model: frame.identity.model.to_string(),
            families,
        };
        drop(self.news.send(ExaminationNews::Gpu(diagnosis)));
    }

    /// The second of two ticks: GPM values come from pairs of samples.
    fn read(&self, gpu: &FoundGpu) -> Result<Frame, Absence> {
        let slot = self.progress.slot.clone();
        let mut sampler = Sampler::new(Arc::clone(self.library), gpu, slot, self.clock.clone(), Level::Full);
        let first = sampler.tick([true; 3])?;
        wait(self.clock, first.ended.boottime + APART);
        let frame = sampler.tick([true; 3]);
        sampler.drop_plan();
        frame
    }

    /// Whether the driver reports XIDs.
    fn xids(&self, gpus: &[FoundGpu]) {
        const ALSO: &str = "XIDs come from the kernel's log alone, if that can be read";
        self.progress.set(Step::Asking { gpu: None, call: None });
        let mut events = match EventSet::new(self.library, self.progress.slot.clone(), self.clock.clone()) {
            Ok(events) => events,
            Err(absence) => {
                return self.tell("xids", false, format!("no event set: {}; {ALSO}", absence.reason()));
            }
        };
        let deaf: Vec<String> = gpus
            .iter()
            .filter_map(|gpu| Some(format!("GPU {} {}", gpu.id.index, events.register(gpu).err()?.reason())))
            .collect();
        events.free();
        match deaf.is_empty() {
            true => self.tell("xids", true, "the driver tells of them".into()),
            false => self.tell("xids", false, format!("{}; {ALSO}", deaf.join(", "))),
        }
    }
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
