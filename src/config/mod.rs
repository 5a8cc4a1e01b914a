//! The configuration. In: YAML. Out: a validated [`Config`], or all [`Problems`] at once.
//!
//! One table declares all keys; parsing, defaults, the printed default file and the documentation follow from it. It
//! opens no other file and does not check whether paths, addresses or GPUs exist.

#[macro_use]
mod declare;

mod address;
mod changes;
mod check;
mod config_file;
mod fraction;
mod key;
mod nearest;
mod prices;
mod print;
mod problem;
mod read_mapping;
mod settings;
mod standing;
mod time;
mod tree;
mod values;
mod web;
mod web_file;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::string::FromUtf8Error;

pub use address::{Endpoint, ListenAddress};
pub use changes::KeyChange;
pub use config_file::{ConfigFile, FileSet, ReloadedConfig};
pub use key::KeyDescription;
pub use prices::{PriceBookConfig, PriceClass, RateConfig};
pub use print::default_yaml;
pub use problem::{ConfigProblem, FilePosition, Problems};
pub use settings::{
    AttributionConfig, Config, ContainersConfig, KubernetesConfig, LedgerConfig, LimitsConfig, NodeConfig,
    NvmlConfig, OtlpConfig, SamplingConfig, SlurmConfig, WebConfig, WebRateLimitConfig, WebTlsConfig,
    key_descriptions, sections,
};
pub use standing::{GpuChoice, GrantConfig, Grantee, UserChoice};
pub use time::span;
pub use web::{ClientAuth, Credential, RateLimit, TlsSettings, TlsVersion, WebAccess};

use crate::model::Nanoseconds;
use problem::ProblemCollector;
use settings::ConfigDraft;
use tree::YamlValue;

/// Largest size of a configuration file.
const MOST_BYTES: u64 = 1 << 20;

/// A duration of the command line, from a tenth of a second to a day.
pub fn duration(text: &str) -> Result<Nanoseconds, String> {
    const LEAST: Nanoseconds = Nanoseconds(100_000_000);
    const MOST: Nanoseconds = Nanoseconds::from_seconds(86_400);
    time::duration(text, LEAST, MOST).map_err(|complaint| complaint.0)
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        Self::parse(&text(path)?, &path.display().to_string())
    }

    /// Checks a text; the name is what problems call the file.
    pub fn parse(text: &str, file: &str) -> Result<Self, Problems> {
        let tree = tree::read(text).map_err(|error| {
            let text = format!("not valid YAML: {}", error.reason);
            let problem = ConfigProblem { place: error.place, path: String::new(), text };
            Problems { file: file.to_owned(), list: vec![problem] }
        })?;
        let mut report = ProblemCollector::default();
        let config = from_tree(&tree, &mut report);
        report.finish(file).map_or(Ok(config), Err)
    }
}

/// The text of a file.
fn text(path: &Path) -> Result<String, Problems> {
    let name = path.display().to_string();
    let whole = |text: String| Problems::of_file(&name, text);
    let unreadable =
        |error: std::io::Error| whole(format!("cannot be read: {error}; name a file that can be read"));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(whole("is longer than 1 MiB; name a configuration file".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| not_text(&name, &error))
}

/// The position at which a file is not UTF-8.
fn not_text(file: &str, error: &FromUtf8Error) -> Problems {
    let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let line = before.split(|byte| *byte == b'\n').count();
    let last = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let column = String::from_utf8_lossy(last).chars().count() + 1;
    let place = u64::try_from(line).ok().zip(u64::try_from(column).ok());
    let place = place.map(|(line, column)| FilePosition { line, column });
    let text = "is not UTF-8 text; save the file as UTF-8".to_owned();
    let problem = ConfigProblem { place, path: String::new(), text };
    Problems { file: file.to_owned(), list: vec![problem] }
}

/// The configuration without a file.
impl Default for Config {
    fn default() -> Self {
        from_tree(&tree::YamlNode { place: None, shape: YamlValue::Empty }, &mut ProblemCollector::default())
    }
}

fn from_tree(tree: &tree::YamlNode, report: &mut ProblemCollector) -> Config {
    let mut draft = ConfigDraft::blank();
    if let Some(places) = read_mapping::read_mapping(tree, "", settings::TABLE.keys, &mut draft, report) {
        draft.finish(&places, report);
    }
    draft.config
}
