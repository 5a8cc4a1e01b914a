//! `gpumeter doctor`: what works on this node, what does not, and why.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, configuration, print};
use crate::app::{self, Diagnosis};

/// Options of the command.
#[derive(Args, Debug)]
pub(super) struct Doctor {
    /// Configuration file of the agent to be examined.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The driver library, instead of the one that the loader finds.
    #[arg(long, value_name = "PATH")]
    nvml_library: Option<PathBuf>,
}

impl Doctor {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut config = configuration(self.config.as_ref())?;
        if self.nvml_library.is_some() {
            config.nvml.library.clone_from(&self.nvml_library);
        }
        let diagnosis = app::diagnose(&config);
        print(&page(&diagnosis))?;
        let missing = diagnosis.findings.iter().filter(|finding| !finding.works).count();
        match missing {
            0 => Ok(()),
            1 => Err(Failure::found("1 finding")),
            _ => Err(Failure::found(format!("{missing} findings"))),
        }
    }
}

fn page(diagnosis: &Diagnosis) -> String {
    let mut page = String::new();
    for finding in &diagnosis.findings {
        let mark = if finding.works { "ok     " } else { "missing" };
        page += &format!("{mark} {}: {}\n", finding.what, finding.why);
    }
    for gpu in &diagnosis.gpus {
        page += &format!("\nGPU {} {} {}\n", gpu.index, gpu.uuid, gpu.model);
        page += &format!("  {} families answered\n", gpu.answered);
        for (family, reason) in &gpu.absent {
            page += &format!("  absent {family}: {reason}\n");
        }
    }
    page
}
