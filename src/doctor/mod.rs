//! Examines the node as the agent would find it: driver, GPUs, host, ledger directory.
//!
//! The driver is examined on a thread of its own ([`examination`]), since a call that hangs cannot be ended: the findings
//! until then are reported, and the call is named.

mod board;
mod containers;
mod deployment;
mod examination;
mod families;
mod grants;
mod jobs;
mod place;
mod pods;
mod push;
mod variant;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::clock::system_now;
use crate::config::Config;
use crate::demo;
use crate::holders::{Allocation, SessionGpu};
use crate::host::{Host, UserDatabase};
use crate::model::Nanoseconds;
use crate::session::NODE_LOCK;
use crate::thread::Thread;
use examination::{ExaminationNews, ExaminationProgress, Step};
use families::WantedFamilies;

pub use board::board_sentences;
pub use families::{FamilyDiagnosis, FamilyStatus};
pub use grants::GrantDiagnosis;

/// What works and what does not.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Findings on the node.
    pub findings: Vec<Finding>,
    /// What each GPU answers.
    pub gpus: Vec<GpuDiagnosis>,
    /// What each standing grant matches.
    pub grants: Vec<GrantDiagnosis>,
    /// Which deployment it amounts to.
    pub variant: &'static str,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was examined.
    pub what: &'static str,
    /// Whether it works.
    pub works: bool,
    /// Why not, and what to do; or what it is.
    pub why: String,
}

impl Finding {
    fn new(what: &'static str, works: bool, why: impl Into<String>) -> Self {
        Self { what, works, why: why.into() }
    }

    /// A summary followed by what is wrong; it works where nothing is.
    fn with_problems(what: &'static str, summary: String, problems: &[String]) -> Self {
        let why = problems.iter().fold(summary, |why, problem| why + "; " + problem);
        Self::new(what, problems.is_empty(), why)
    }
}

/// How many holders have these allocations.
fn count_holders(allocations: &[Allocation]) -> usize {
    allocations.iter().map(|one| &one.holder.id).collect::<BTreeSet<_>>().len()
}

/// What one GPU answers.
#[derive(Clone, Debug)]
pub struct GpuDiagnosis {
    /// NVML index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub model: String,
    /// Every family of the catalogue that is not the agent's own.
    pub families: Vec<FamilyDiagnosis>,
}

/// How long one driver call may take.
const PATIENCE: Nanoseconds = Nanoseconds::from_seconds(10);

/// Examines the node; nothing is changed and no ledger is opened.
pub fn diagnose(config: &Config) -> Diagnosis {
    let (mut diagnosis, host) = (Diagnosis::default(), Host::at("/"));
    let DriverFindings { pids, gpus } = driver(config, &mut diagnosis);
    if config.nvml.library.is_none() {
        diagnosis.findings.extend(demo::running().map(demo_finding));
    }
    let users = UserDatabase::of_host(Path::new("/"));
    diagnosis.grants = grants::examine(config, gpus.as_deref(), &users);
    diagnosis.findings.extend(gpus.as_ref().and_then(|gpus| place::grants(config, gpus)));
    diagnosis.findings.push(place::processes(&host, &pids));
    let (finding, mut workloads) = pods::pods(config, &host, &pids);
    diagnosis.findings.extend(finding);
    diagnosis.findings.extend(jobs::jobs(config, (&host, gpus.as_deref()), &mut workloads));
    diagnosis.findings.extend(containers::containers(config, &host, &mut workloads));
    diagnosis.findings.push(place::owners(&host, &pids, &workloads));
    diagnosis.findings.extend(place::standing(config, &users));
    diagnosis.findings.push(place::prices(config, system_now().utc));
    diagnosis.findings.push(place::kernel_log(&host));
    diagnosis.findings.push(place::node_lock(Path::new(NODE_LOCK)));
    diagnosis.findings.push(place::ledger(config));
    diagnosis.findings.extend(push::otlp(config));
    let deployment = deployment::deployment(config, &host, &diagnosis);
    diagnosis.findings.extend(deployment);
    diagnosis.variant = variant::of(&diagnosis.findings);
    diagnosis
}

/// A sentence for each standing grant that names a GPU which this node's driver does not list.
pub fn unmatched_grants(config: &Config) -> Vec<String> {
    if config.attribution.standing.is_empty() {
        return Vec::new();
    }
    let mut diagnosis = Diagnosis::default();
    let Some(gpus) = driver(config, &mut diagnosis).gpus else {
        let faults = diagnosis.findings.iter().filter(|finding| !finding.works);
        let faults: Vec<&str> = faults.map(|finding| finding.why.as_str()).collect();
        return vec![format!("attribution.standing: GPUs are not checked: {}", faults.join("; "))];
    };
    place::grants(config, &gpus)
        .filter(|finding| !finding.works)
        .map(|finding| finding.why)
        .into_iter()
        .collect()
}

/// How a demo that runs beside is examined.
fn demo_finding(demo::RunningDemo { directory, pid }: demo::RunningDemo) -> Finding {
    let library = demo::library(&directory);
    let why = format!(
        "process {pid} runs one in {}, on a simulated driver; examine that with gpumeter doctor --nvml-library {}",
        directory.display(),
        library.display()
    );
    Finding::new("demo", true, why)
}

/// What the driver reported beside the findings.
#[derive(Default)]
struct DriverFindings {
    /// The processes on its GPUs.
    pids: BTreeSet<u32>,
    /// All its GPUs, where each said who it is.
    gpus: Option<Vec<SessionGpu>>,
}

/// Examines the driver and its GPUs.
fn driver(config: &Config, diagnosis: &mut Diagnosis) -> DriverFindings {
    let (sender, news) = channel();
    let progress = ExaminationProgress::default();
    let mut seen = DriverFindings::default();
    let (path, theirs, wanted) = (config.nvml.library.clone(), progress.clone(), WantedFamilies::by(config));
    let thread =
        Thread::start("doctor", move || examination::examine(path.as_deref(), wanted, &theirs, &sender));
    match thread {
        Ok(_) => listen(&news, &progress, (diagnosis, &mut seen)),
        Err(error) => diagnosis.findings.push(Finding::new("driver", false, error.to_string())),
    }
    seen
}

/// Takes in what is found until all is found, or until one call has not returned for too long.
fn listen(
    news: &Receiver<ExaminationNews>,
    progress: &ExaminationProgress,
    (diagnosis, seen): (&mut Diagnosis, &mut DriverFindings),
) {
    const LOOK: Duration = Duration::from_millis(100);
    let mut step = progress.step();
    let mut since = system_now();
    loop {
        match news.recv_timeout(LOOK) {
            Ok(ExaminationNews::Finding(finding)) => diagnosis.findings.push(finding),
            Ok(ExaminationNews::Gpu(gpu)) => diagnosis.gpus.push(gpu),
            Ok(ExaminationNews::Processes(on_gpu)) => seen.pids.extend(on_gpu),
            Ok(ExaminationNews::Counted(gpus)) => seen.gpus = Some(gpus),
            Err(RecvTimeoutError::Disconnected) => return panicked(&progress.step(), diagnosis),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let next = progress.step();
        if next != step {
            (step, since) = (next, system_now());
        }
        let waited = system_now().since(since);
        if step != Step::Done && waited >= PATIENCE {
            return diagnosis.findings.push(Finding::new("driver", false, hung(&step, waited)));
        }
    }
}

/// The thread has ended; if it was not done, it panicked, and the panic message is in the log.
fn panicked(step: &Step, diagnosis: &mut Diagnosis) {
    if *step != Step::Done {
        let why = format!("the examination failed at {step}; the message above is worth a report");
        diagnosis.findings.push(Finding::new("driver", false, why));
    }
}

fn hung(step: &Step, waited: Nanoseconds) -> String {
    let seconds = waited.0 / Nanoseconds::SECOND.0;
    format!("{step} has not returned for {seconds} s; look for NVRM and Xid lines in the kernel's log")
}
