//! Opens the driver and reads every GPU twice; each finding is in the report as soon as it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::families::{self, FamilyStatus};
use super::{Finding, GpuDiagnosis, name_gpus};
use crate::config::Config;
use crate::driver::nvml::{CallSlot, EventSet, FoundGpu, Library, Sampler, count, find};
use crate::holders::SessionGpu;
use crate::holders::host::{Host, agent_usage};
use crate::meter::{expect_links, set_unified_memory};
use crate::model::catalogue::Level;
use crate::model::{Absence, CallInFlight, Frame, Nanoseconds};
use crate::runtime::clock::{Clock, Stop, system_now};

#[derive(Default)]
pub(super) struct DriverReport {
    pub(super) findings: Vec<Finding>,
    pub(super) gpus: Vec<GpuDiagnosis>,
    unwell: Vec<GpuProblem>,
    /// All GPUs of the driver; absent where one of them could not be identified.
    pub(super) listed: Option<Vec<SessionGpu>>,
    /// The processes on the GPUs of a real driver; those of a simulated one are not processes of this host.
    pub(super) pids: BTreeSet<u32>,
}

struct GpuProblem {
    index: u32,
    /// Its UUID; empty where it could not be identified.
    uuid: String,
    why: String,
}

fn gpu_findings(problems: &[GpuProblem]) -> Vec<Finding> {
    let mut first: Vec<&GpuProblem> = Vec::new();
    for problem in problems {
        if !first.iter().any(|known| known.why == problem.why) {
            first.push(problem);
        }
    }
    let finding = |GpuProblem { index, uuid, why }: &GpuProblem| {
        let same = problems.iter().filter(|other| other.why == *why).map(|other| other.index);
        let indices: BTreeSet<u32> = same.collect();
        let name = match indices.len() {
            1 => format!("{index} {uuid}").trim_end().to_owned(),
            _ => name_gpus(&indices),
        };
        Finding::new("gpu", false, format!("{name}: {why}"))
    };
    first.into_iter().map(finding).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Step {
    #[default]
    Opening,
    /// Making driver calls; `call` is the one in flight, if any.
    Calling {
        gpu: Option<u32>,
        call: Option<CallInFlight>,
    },
    Closing,
    Done,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening => f.write_str("opening the library (nvmlInit_v2)"),
            Self::Calling { gpu, call } => {
                match call {
                    Some(call) => write!(f, "the call {}", call.function)?,
                    None => f.write_str("the examination")?,
                }
                gpu.map_or(Ok(()), |gpu| write!(f, " on GPU {gpu}"))
            }
            Self::Closing => f.write_str("closing the library (nvmlShutdown)"),
            Self::Done => f.write_str("the last step"),
        }
    }
}

/// An examination with its progress, shared by the thread that makes it and the one that waits for it.
#[derive(Default)]
pub(super) struct Examination {
    report: Mutex<DriverReport>,
    step: Mutex<Step>,
    slot: CallSlot,
}

impl Examination {
    pub(super) fn step(&self) -> Step {
        match self.step.lock().clone() {
            Step::Calling { gpu, .. } => Step::Calling { gpu, call: self.slot.in_flight() },
            other => other,
        }
    }

    pub(super) fn add_finding(&self, what: &'static str, works: bool, why: String) {
        self.report.lock().findings.push(Finding::new(what, works, why));
    }

    pub(super) fn take_report(&self) -> DriverReport {
        let mut report = std::mem::take(&mut *self.report.lock());
        report.findings.extend(gpu_findings(&report.unwell));
        report
    }

    /// Examines driver and GPUs; sets the last step when every finding is in the report.
    pub(super) fn run(&self, config: &Config) {
        let path = config.nvml.library.as_deref();
        match Library::open(path) {
            Ok(library) => {
                let kind = match library.is_simulated() {
                    true => "a simulated library: every number is made up",
                    false => "opened",
                };
                self.add_finding("driver", true, format!("{kind} ({})", loaded_file(&library)));
                OpenDriver { library: &library, clock: Clock::of_library(path), config, examination: self }
                    .examine_gpus();
                self.set_step(Step::Closing);
                drop(library);
            }
            Err(error) => self.add_finding("driver", false, error.to_string()),
        }
        self.set_step(Step::Done);
    }

    fn set_step(&self, step: Step) {
        *self.step.lock() = step;
    }
}

/// The file of the library; the loader may have found it under a bare name.
fn loaded_file(library: &Library) -> String {
    let mapped = agent_usage::mapped_files().unwrap_or_default();
    let is_library = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvidia-ml.so"))
    };
    let path = mapped.iter().find(is_library).map_or(library.path(), PathBuf::as_path);
    path.display().to_string()
}

struct OpenDriver<'a> {
    library: &'a Arc<Library>,
    clock: Clock,
    config: &'a Config,
    examination: &'a Examination,
}

impl OpenDriver<'_> {
    fn add_finding(&self, what: &'static str, works: bool, why: String) {
        self.examination.add_finding(what, works, why);
    }

    fn add_gpu_problem(&self, index: u32, uuid: String, why: String) {
        self.examination.report.lock().unwell.push(GpuProblem { index, uuid, why });
    }

    fn examine_gpus(&self) {
        let slot = &self.examination.slot;
        self.examination.set_step(Step::Calling { gpu: None, call: None });
        let counted = match count(self.library, slot, &self.clock) {
            Ok(0) => return self.add_finding("gpus", false, "the driver lists none".into()),
            Ok(counted) => counted,
            Err(absence) => {
                let why = format!("the number of GPUs cannot be read from the driver: {}", absence.reason());
                return self.add_finding("gpus", false, why);
            }
        };
        self.add_finding("gpus", true, format!("the driver lists {counted}"));
        let mut found = Vec::new();
        for index in 0..counted {
            self.examination.set_step(Step::Calling { gpu: Some(index), call: None });
            match find(self.library, index, slot, &self.clock) {
                Ok(gpu) => {
                    self.examine_gpu(&gpu);
                    found.push(gpu);
                }
                Err(absence) => {
                    let why = format!("not identified: {}", absence.reason());
                    self.add_gpu_problem(index, String::new(), why);
                }
            }
        }
        if found.len() == counted as usize {
            let listed = found.iter().map(|gpu| SessionGpu::from(&gpu.id)).collect();
            self.examination.report.lock().listed = Some(listed);
        }
        self.check_xids(&found);
    }

    fn examine_gpu(&self, gpu: &FoundGpu) {
        let add_problem = |why| self.add_gpu_problem(gpu.id.index, gpu.id.uuid.to_string(), why);
        let frame = match self.read(gpu) {
            Ok(frame) => frame,
            Err(absence) => {
                return add_problem(format!("cannot be read: {}", absence.reason()));
            }
        };
        let families = families::of(&frame, self.config);
        let failed: Vec<String> = families
            .iter()
            .filter(|family| family.status == FamilyStatus::Failed)
            .map(|family| format!("{} {}", family.family, family.reason))
            .collect();
        if !failed.is_empty() {
            add_problem(failed.join(", "));
        }
        let mut report = self.examination.report.lock();
        if !self.library.is_simulated() {
            let pids = frame.processes.iter().flat_map(|list| list.iter()).map(|process| process.pid);
            report.pids.extend(pids);
        }
        report.gpus.push(GpuDiagnosis {
            index: frame.gpu.index,
            uuid: frame.gpu.uuid.to_string(),
            model: frame.identity.model.to_string(),
            families,
        });
    }

    /// The second of two ticks: GPM values come from pairs of samples.
    fn read(&self, gpu: &FoundGpu) -> Result<Frame, Absence> {
        let slot = self.examination.slot.clone();
        let mut sampler = Sampler::new(Arc::clone(self.library), gpu, slot, self.clock.clone(), Level::Full);
        let first = sampler.tick([true; 3])?;
        wait_until(&self.clock, first.ended.boottime + GPM_INTERVAL);
        let frame = sampler.tick([true; 3]);
        sampler.drop_plan();
        let mut frame = frame?;
        expect_links(&mut frame, 0);
        set_unified_memory(&mut frame, Host::at("/").memory());
        Ok(frame)
    }

    fn check_xids(&self, gpus: &[FoundGpu]) {
        const FALLBACK: &str = "XIDs come from the kernel log only, if that can be read";
        let slot = self.examination.slot.clone();
        self.examination.set_step(Step::Calling { gpu: None, call: None });
        let mut events = match EventSet::new(self.library, slot, self.clock.clone()) {
            Ok(events) => events,
            Err(absence) => {
                let why = format!("the driver makes no event set: {}; {FALLBACK}", absence.reason());
                return self.add_finding("xids", false, why);
            }
        };
        let mut refused: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for gpu in gpus {
            if let Err(absence) = events.register(gpu) {
                refused.entry(absence.reason()).or_default().insert(gpu.id.index);
            }
        }
        events.free();
        let refused = refused.iter().map(|(reason, gpus)| format!("{} {reason}", name_gpus(gpus)));
        let refused: Vec<String> = refused.collect();
        match refused.is_empty() {
            true => self.add_finding("xids", true, "the driver reports them as events".into()),
            false => self.add_finding("xids", false, format!("{}; {FALLBACK}", refused.join(", "))),
        }
    }
}

/// The driver wants 100 ms between the GPM samples of a pair.
const GPM_INTERVAL: Nanoseconds = Nanoseconds(120_000_000);

/// Waits on the clock, for a second at most: a demo's clock may be slow or held.
fn wait_until(clock: &Clock, moment: Nanoseconds) {
    const TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(1);
    let (stop, begun) = (Stop::default(), system_now());
    clock.wait_until(moment, &stop, || {
        if system_now().since(begun) >= TIMEOUT {
            stop.call();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_equal_gpus_is_said_once() {
        let problem =
            |index: u32, why: &str| GpuProblem { index, uuid: format!("GPU-{index}"), why: why.to_owned() };
        let mut problems: Vec<GpuProblem> = (0..8).map(|index| problem(index, "power failed")).collect();
        problems.insert(3, problem(9, "cannot be read: lost"));
        problems.push(problem(11, "power failed"));
        let told: Vec<String> = gpu_findings(&problems).into_iter().map(|finding| finding.why).collect();
        assert_eq!(told, ["GPUs 0-7, 11: power failed", "9 GPU-9: cannot be read: lost"]);
    }
}
