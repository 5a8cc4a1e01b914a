//! A node of one GPU under a driver variant: the output of `doctor`, and a frame read under a held clock.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use gpumeter::driver::nvml::{CallSlot, Library, Sampler, find};
use gpumeter::model::catalogue::Level;
use gpumeter::model::{Frame, Nanoseconds, Utc};
use gpumeter::runtime::clock::{Clock, ClockPage, PageState};
use nvidia_ml::persona::{Persona, without};
use tempfile::TempDir;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// A directory with the driver variant's library and a scenario.
pub(crate) struct Node {
    directory: TempDir,
}

/// The state of a family on the node's GPU, as `doctor` prints it.
#[derive(Clone, Debug)]
pub(crate) struct FamilyState {
    pub(crate) family: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) why: String,
}

impl Node {
    /// `persona` is the variant's name, `None` the newest driver; `gpu` is the scenario's entry, `processes` its list.
    pub(crate) fn new(persona: Option<&str>, gpu: &str, processes: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let missing = persona.map_or(Vec::new(), |name| Persona::named(name).unwrap().missing());
        let library = without(LIBRARY, &missing).unwrap();
        fs::write(directory.path().join("libnvidia-ml.so.1"), library).unwrap();
        let persona = persona.map_or(String::new(), |name| format!(r#""persona":"{name}","#));
        let scenario = format!(r#"{{{persona}"seed":1,"gpus":[{gpu}],"processes":[{processes}]}}"#);
        fs::write(directory.path().join("scenario"), scenario).unwrap();
        Self { directory }
    }

    fn library(&self) -> PathBuf {
        self.directory.path().join("libnvidia-ml.so.1")
    }

    /// The model, and every family as `gpumeter doctor` prints it at level full.
    pub(crate) fn doctor(&self) -> (String, Vec<FamilyState>) {
        let config = self.directory.path().join("config.yaml");
        let ledger = self.directory.path().join("ledger.db");
        let text = format!(
            "sampling: {{level: full}}\nledger: {{path: {}}}\nprices: {{currency: EUR, rates: [{{gpu_hour: 2.4}}]}}\n",
            ledger.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpumeter"));
        command.args(["doctor", "--json", "--config"]).arg(config).arg("--nvml-library").arg(self.library());
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&errors);
        let gpu = &report["gpus"][0];
        let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let families = gpu["families"].as_array().unwrap_or_else(|| panic!("no GPU: {report:#}"));
        let families = families.iter().map(|family| FamilyState {
            family: word(&family["family"]),
            status: word(&family["status"]),
            reason: word(&family["reason"]),
            why: word(&family["why"]),
        });
        (word(&gpu["model"]), families.collect())
    }

    /// The frame of a sampler at level full after a few seconds under a held clock.
    pub(crate) fn frame(&self) -> Frame {
        let page = Arc::new(ClockPage::create(&self.directory.path().join("clock"), held(FIRST)).unwrap());
        let clock = Clock::Page(Arc::clone(&page));
        let library = Library::open(Some(&self.library())).unwrap();
        let slot = CallSlot::default();
        let found = find(&library, 0, &slot, &clock).unwrap();
        let mut sampler = Sampler::new(library, &found, slot, clock, Level::Full);
        sampler.tick([true; 3]).unwrap();
        page.set(held(FIRST + 5)).unwrap();
        sampler.tick([true; 3]).unwrap()
    }
}

const FIRST: u64 = 60;

fn held(second: u64) -> PageState {
    let (utc, boottime) = (Utc(1_767_225_600_000_000_000), Nanoseconds::from_seconds(1_000));
    PageState::held_at(Nanoseconds::from_seconds(second), utc, boottime)
}
