//! The configuration: reads YAML into a validated [`Config`], or returns all [`Problems`] at once.
//!
//! One table declares all keys; parsing, defaults, the printed default file and the documentation follow from it.
//! Comes in: text. Goes out: values in their final types.
//! Does not know: whether paths, addresses or GPUs exist, and what the agent makes of the values.

#[macro_use]
mod declare;

mod address;
mod changes;
mod check;
mod classes;
mod config_file;
mod dcgm_counters;
mod entries;
mod fraction;
mod ignored_pods;
mod key;
mod node_labels;
mod otlp;
mod prices;
mod print;
mod problem;
mod read_mapping;
mod settings;
mod standing;
mod tenants;
mod terms;
mod time;
mod tree;
mod values;
mod web;
mod web_file;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use address::{Endpoint, ListenAddress};
pub use config_file::{ConfigFile, FileSet, ReloadedConfig};
pub use dcgm_counters::CounterLine;
pub use key::KeyDescription;
pub use otlp::{BadVariable, OtlpCompression, OtlpDestination, OtlpNames, OtlpPlan, OtlpProtocol};
pub use print::default_yaml;
pub use problem::{Complaint, ConfigProblem, FilePosition, Problems};
pub use settings::{
    AttributionConfig, BillingConfig, Config, ContainersConfig, KubernetesConfig, LedgerConfig, LimitsConfig,
    NodeConfig, NvmlConfig, OtlpConfig, RetentionConfig, SamplingConfig, SlurmConfig, SpoolConfig,
    TenantsConfig, WebConfig, WebRateLimitConfig, WebTlsConfig, key_descriptions, sections,
};
pub use time::duration;
pub(crate) use values::decode_percent;
pub use web::{ClientAuth, Credential, TlsVersion};

use crate::runtime::file;
use problem::ProblemCollector;
use settings::ConfigDraft;
use tree::{YamlNode, YamlValue};

/// Largest size of a configuration file.
const MOST_BYTES: u64 = 1 << 20;

impl Config {
    pub fn read(path: &Path) -> Result<Self, Problems> {
        Self::parse(&read_argument(path)?, &path.display().to_string())
    }

    /// Reads the file that `node.labels_file` names.
    ///
    /// # Errors
    /// All problems of that file.
    pub fn read_node_labels(&mut self) -> Result<(), Problems> {
        self.node.read_labels()
    }

    /// Reads the file that `web.dcgm_counters` names.
    ///
    /// # Errors
    /// All problems of that file.
    pub fn read_dcgm_counters(&mut self) -> Result<(), Problems> {
        if let Some(path) = &self.web.dcgm_counters {
            self.dcgm_counters = dcgm_counters::read(path)?;
        }
        Ok(())
    }

    /// Checks a text; problems name it `file`.
    pub fn parse(text: &str, file: &str) -> Result<Self, Problems> {
        Ok(parse(text, file)?.0)
    }
}

fn parse(text: &str, file: &str) -> Result<(Config, YamlNode), Problems> {
    let tree = tree::read(text, file)?;
    let mut report = ProblemCollector::default();
    let config = from_tree(&tree, &mut report);
    report.finish(file).map(|()| (config, tree))
}

/// The text of a file that the command line names.
fn read_argument(path: &Path) -> Result<String, Problems> {
    read_opened(path, file::open)
}

/// The text of a file that a key names.
fn read_text(path: &Path) -> Result<String, Problems> {
    read_opened(path, file::open_regular)
}

fn read_opened(path: &Path, open: fn(&Path) -> io::Result<File>) -> Result<String, Problems> {
    let name = path.display().to_string();
    let unreadable = |error: io::Error| {
        Problems::one(&name, None, format!("cannot be read: {error}; name a file that can be read"))
    };
    let mut bytes = Vec::new();
    let file = open(path).map_err(unreadable)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Problems::one(&name, None, "is longer than 1 MiB; name a configuration file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let before = String::from_utf8_lossy(valid);
        let last = before.rsplit('\n').next().unwrap_or_default();
        let line = before.matches('\n').count() as u64 + 1;
        let place = FilePosition { line, column: last.chars().count() as u64 + 1 };
        Problems::one(&name, Some(place), "is not UTF-8 text; save the file as UTF-8")
    })
}

/// The configuration without a file.
impl Default for Config {
    fn default() -> Self {
        from_tree(&YamlNode { place: None, shape: YamlValue::Empty }, &mut ProblemCollector::default())
    }
}

fn from_tree(tree: &YamlNode, report: &mut ProblemCollector) -> Config {
    let mut draft = ConfigDraft::blank();
    if let Some(places) = read_mapping::read_mapping(tree, "", settings::TABLE.keys, &mut draft, report) {
        draft.finish(&places, report);
    }
    draft.config
}
