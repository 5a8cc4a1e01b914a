//! `gpumeter doctor`: what works on this node, what does not, and why.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{Failure, print, print_data, read_config, wrap};
use crate::cli::doctor::{self, Diagnosis, FamilyDiagnosis, FamilyStatus, GpuDiagnosis, GrantDiagnosis};
use crate::model::shown;

#[derive(Args, Debug)]
pub(super) struct DoctorCommand {
    /// Configuration file of the agent to examine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the driver library (libnvidia-ml.so.1), instead of the one that the loader finds; that of a demo is
    /// driver/libnvidia-ml.so.1 in its directory.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Print JSON: every metric family of every GPU, with the reason where it is missing.
    #[arg(long)]
    json: bool,
}

impl DoctorCommand {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut config = read_config(self.config.as_ref())?;
        if self.nvml_library.is_some() {
            config.nvml.library.clone_from(&self.nvml_library);
        }
        let diagnosis = doctor::diagnose(&config);
        if self.json { print_data(&format!("{:#}\n", json!(diagnosis))) } else { print(&page(&diagnosis)) }?;
        match diagnosis.findings.iter().filter(|finding| !finding.works).count() {
            0 => Ok(()),
            1 => Err(Failure::found("1 check failed")),
            failed => Err(Failure::found(format!("{failed} checks failed"))),
        }
    }
}

fn page(diagnosis: &Diagnosis) -> String {
    let mut page = String::new();
    for finding in &diagnosis.findings {
        let mark = if finding.works { "ok     " } else { "FAILED " };
        page += &format!("{mark} {}: {}\n", finding.what, finding.why);
    }
    page += &format!("\nOn this node the agent provides {}.\n", diagnosis.variant);
    if !diagnosis.grants.is_empty() {
        page += "\nGrants (attribution.standing):\n";
    }
    for GrantDiagnosis { grant, fraction, gpus, holder } in &diagnosis.grants {
        page += &format!("  {grant}: {fraction} of {gpus}; held by {}\n", shown(holder));
    }
    // GPUs with the same families are listed together.
    let mut groups: Vec<Vec<&GpuDiagnosis>> = Vec::new();
    for gpu in &diagnosis.gpus {
        let is_equal = |first: &GpuDiagnosis| (&first.model, &first.families) == (&gpu.model, &gpu.families);
        match groups.iter_mut().find(|group| group.first().is_some_and(|first| is_equal(first))) {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    for group in groups {
        page += "\n";
        for gpu in &group {
            page += &format!("GPU {} {} {}\n", gpu.index, gpu.uuid, shown(&gpu.model));
        }
        page += &group.first().map(|gpu| list_families(gpu)).unwrap_or_default();
    }
    page
}

/// The families of a GPU, grouped by state and reason.
fn list_families(gpu: &GpuDiagnosis) -> String {
    let exported = gpu.families.iter().filter(|family| family.status == FamilyStatus::Exported).count();
    let mut page = format!("  {exported} metric families exported\n");
    for status in [FamilyStatus::Failed, FamilyStatus::Absent, FamilyStatus::Off] {
        let mut families: Vec<&FamilyDiagnosis> =
            gpu.families.iter().filter(|family| family.status == status).collect();
        families.sort_by_key(|family| (family.reason, &family.why));
        for group in families.chunk_by(|one, next| one.reason == next.reason && one.why == next.why) {
            let names: Vec<&str> = group.iter().map(|family| family.family).collect();
            let Some(first) = group.first() else { continue };
            let is_redundant = ["", status.name()].contains(&first.reason);
            let reason = if is_redundant { String::new() } else { format!(" {}", first.reason) };
            page +=
                &format!("  {}{reason}, {}:\n{}", status.name(), first.why, wrap("    ", &names.join(" ")));
        }
    }
    page
}
