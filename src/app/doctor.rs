//! Examines the node as the agent would find it: driver, GPUs, host, ledger's place.

use std::sync::Arc;

use crate::catalogue::{Level, Rows, families};
use crate::clock::Clock;
use crate::config::Config;
use crate::host::Host;
use crate::model::{Absence, Frame};
use crate::nvml::{CallSlot, Found, Lane, Library, count, find};

/// What works and what does not.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Findings on the node.
    pub findings: Vec<Finding>,
    /// What each GPU answers.
    pub gpus: Vec<GpuDiagnosis>,
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

/// What one GPU answers.
#[derive(Clone, Debug)]
pub struct GpuDiagnosis {
    /// NVML index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub model: String,
    /// Families that it answers.
    pub answered: usize,
    /// Families that it does not, and why.
    pub absent: Vec<(&'static str, &'static str)>,
}

/// Examines the node; nothing is changed and no ledger is opened.
pub fn diagnose(config: &Config) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    driver(config, &mut diagnosis);
    host(&mut diagnosis);
    ledger(config, &mut diagnosis);
    diagnosis
}

impl Diagnosis {
    fn add(&mut self, what: &'static str, works: bool, why: impl Into<String>) {
        self.findings.push(Finding { what, works, why: why.into() });
    }
}

fn driver(config: &Config, diagnosis: &mut Diagnosis) {
    let clock = super::clock_of(config.nvml.library.as_deref());
    let library = match Library::open(config.nvml.library.as_deref()) {
        Ok(library) => library,
        Err(error) => return diagnosis.add("driver", false, error.to_string()),
    };
    let kind = if library.is_simulated() { "a simulated library: every number is made up" } else { "opened" };
    diagnosis.add("driver", true, kind);
    match count(&library, &CallSlot::default(), &clock) {
        Ok(0) => diagnosis.add("gpus", false, "the driver counts none"),
        Ok(counted) => {
            diagnosis.add("gpus", true, format!("{counted} counted"));
            for index in 0..counted {
                let answer = find(&library, index, &CallSlot::default(), &clock)
                    .and_then(|gpu| examine(&library, &gpu, &clock));
                match answer {
                    Ok(gpu) => diagnosis.gpus.push(gpu),
                    Err(absence) => diagnosis.add(
                        "gpu",
                        false,
                        format!("GPU {index} answers nothing: {}", absence.reason()),
                    ),
                }
            }
        }
        Err(absence) => diagnosis.add("gpus", false, format!("cannot be counted: {}", absence.reason())),
    }
}

fn examine(library: &Arc<Library>, gpu: &Found, clock: &Clock) -> Result<GpuDiagnosis, Absence> {
    let mut lane = Lane::new(Arc::clone(library), gpu, CallSlot::default(), clock.clone(), Level::Full);
    let frame = lane.tick([true; 3])?;
    lane.forget_plan();
    let absent = absent(&frame);
    let device = families().filter(|family| matches!(family.rows, Rows::Device(_))).count();
    Ok(GpuDiagnosis {
        index: gpu.id.index,
        uuid: gpu.id.uuid.to_string(),
        model: frame.identity.model.to_string(),
        answered: device - absent.len(),
        absent,
    })
}

fn absent(frame: &Frame) -> Vec<(&'static str, &'static str)> {
    let mut absent = crate::meter::unsupported(frame)
        .into_iter()
        .map(|(family, absence)| (family, absence.reason()))
        .collect::<Vec<_>>();
    if let Err(absence) = &frame.processes {
        absent.push(("gpu_process_memory_bytes", absence.reason()));
    }
    if let Err(absence) = &frame.samples {
        absent.push(("gpu_process_utilization_ratio", absence.reason()));
    }
    absent
}

fn host(diagnosis: &mut Diagnosis) {
    let host = Host::at("/");
    match host.process(1) {
        Ok(_) => diagnosis.add("processes", true, "/proc tells who a process is"),
        Err(error) => diagnosis.add(
            "processes",
            false,
            format!("/proc does not tell who process 1 is ({error}); run in the host's pid namespace"),
        ),
    }
}

fn ledger(config: &Config, diagnosis: &mut Diagnosis) {
    let path = &config.ledger.path;
    if !config.ledger.enabled {
        return diagnosis.add("ledger", false, "switched off by ledger.enabled");
    }
    let place = path.ancestors().skip(1).find(|place| place.exists());
    match place.map(std::fs::metadata) {
        Some(Ok(place)) if !place.permissions().readonly() => {
            diagnosis.add("ledger", true, format!("{}", path.display()));
        }
        _ => diagnosis.add(
            "ledger",
            false,
            format!("{}: its directory cannot be written; set ledger.path", path.display()),
        ),
    }
}
