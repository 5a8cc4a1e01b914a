//! The past of a demo: two months of account, in ledgers and exports, before the agent begins.
//!
//! A scenario's key `history` describes what ran on its node and on further ones ([`description`]). That becomes runs with
//! times ([`runs`]), and for each GPU spans in which everything is constant ([`gpu`]). They are settled and committed as those
//! of an agent ([`node`]), so every law of the account holds. What looks random depends on the seed alone.

mod boards;
mod description;
mod events;
mod gpu;
mod node;
mod random;
mod runs;
mod times;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{DemoError, make};
use crate::accounting::day_files::{ExportDirectory, write_days};
use crate::accounting::ledger::{Reader, Retention};
use crate::agent::app::StartError;
use crate::agent::policy::{how_held, node_identity, tenant_rules};
use crate::config::{Config, RetentionConfig};
use crate::holders::SessionGpu;
use crate::model::{DAY, HowHeld, NodeIdentity, QUARTER_HOUR, Utc};
use crate::runtime::clock::system_zone;
use boards::PastBoard;
use description::{HistoryDescription, PastGpus, PastHolder, PastNode, PastSettings, PastSpan};
use gpu::{NodeContext, Outage, OutageKind, PastGpu};
use node::{HistoryError, NodeAccount, Settings};
use random::{mixed, uuid};
use runs::NodeTime;
use times::{MOST_DAYS, PastTime};

/// The name of the directory of exports below that of the demo, and of the ledgers of further nodes.
pub(super) const EXPORTS: &str = "exports";
pub(super) const NODES: &str = "nodes";

/// The file that is there while a history is written.
pub(super) const BEGUN: &str = "history.part";

/// The most nodes of a history.
const MOST_NODES: usize = 1_000;

/// How much past, of how many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryExtent {
    pub days: u64,
    pub nodes: usize,
    /// Decides about all that looks random, UUIDs of GPUs among them.
    pub seed: u64,
}

/// Parses the length of a history; returns it in days.
pub fn parse_days(text: &str) -> Result<u64, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse().ok());
    let days = days.filter(|days| (1..=MOST_DAYS).contains(days));
    days.ok_or_else(|| format!("give a number of days from 1d to {MOST_DAYS}d"))
}

/// Parses the number of nodes.
pub fn parse_nodes(text: &str) -> Result<usize, String> {
    let nodes = text.parse().ok().filter(|nodes| (1..=MOST_NODES).contains(nodes));
    nodes.ok_or_else(|| format!("give a number from 1 to {MOST_NODES}"))
}

/// A past that is described, and not written yet.
pub struct DemoHistory {
    description: HistoryDescription,
    boards: Vec<Vec<&'static PastBoard>>,
    extent: HistoryExtent,
    /// When the history ends, and the demo begins.
    end: Utc,
    /// Of the scenario's own node.
    config: Config,
    /// The configuration of each described node.
    configs: Vec<Config>,
    settings: Vec<Settings>,
}

/// Where the ledgers and exports of a history are written.
#[derive(Clone, Copy, Debug)]
pub struct HistoryPaths<'a> {
    /// The ledger of the scenario's own node.
    pub ledger: &'a Path,
    /// The directory in which the ledgers of further nodes are made.
    pub directory: &'a Path,
    /// The directory of exports, which exists.
    pub exports: &'a Path,
}

/// What a scenario says of its past and of its own GPUs.
#[derive(Clone, Debug)]
pub(super) struct ScenarioPast {
    history: Value,
    gpus: Value,
}

impl ScenarioPast {
    /// Removes the past from a scenario's document; none where it has none.
    pub(super) fn take(document: &mut Value) -> Option<Self> {
        let history = document.as_object_mut()?.remove("history")?;
        Some(Self { history, gpus: document.get("gpus").cloned().unwrap_or_default() })
    }
}

/// GPUs of a scenario, of which a history needs the board alone.
#[derive(Deserialize)]
struct ScenarioGpus {
    profile: String,
    #[serde(default = "one")]
    count: u32,
}

const fn one() -> u32 {
    1
}

impl DemoHistory {
    /// Checks what a scenario says of its past, for a demo of that configuration which begins when the history ends.
    ///
    /// # Errors
    /// The first mistake, with its key.
    pub(super) fn plan(
        past: &ScenarioPast,
        config: &Config,
        extent: HistoryExtent,
        end: Utc,
    ) -> Result<Self, String> {
        let description = HistoryDescription::parse(&past.history)?;
        let gpus: Vec<ScenarioGpus> =
            serde_path_to_error::deserialize(&past.gpus).map_err(|error| format!("gpus.{error}"))?;
        let own: Vec<PastGpus> =
            gpus.into_iter().map(|ScenarioGpus { profile, count }| PastGpus { profile, count }).collect();
        let boards = description.boards(&own)?;
        description.check_runs(extent.days)?;
        let settings = settings(&description, config, end)?;
        let configs =
            description.nodes.iter().enumerate().map(|(place, node)| node_config(node, place, config));
        let configs = configs.collect::<Result<_, _>>()?;
        let config = config.clone();
        let planned = Self { description, boards, extent, end, config, configs, settings };
        planned.check_names()?;
        Ok(planned)
    }

    /// Checks that each node has a name of its own, which can be that of a directory.
    fn check_names(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for number in 0..self.extent.nodes {
            let (place, name) = (self.described(number), self.identity(number).name);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if number > 0 && (!name.chars().all(is_plain) || name.starts_with('.')) {
                return Err(format!(
                    "history.nodes[{place}].config.node.name: {name:?} is no name of a directory; give letters, digits and -"
                ));
            }
            if !names.insert(name.clone()) {
                return Err(format!(
                    "history.nodes[{place}].config.node.name: {name:?} is the name of another node too; give each its own"
                ));
            }
        }
        Ok(())
    }

    /// When it ends, and the demo begins.
    pub const fn end(&self) -> Utc {
        self.end
    }

    /// Writes the ledger of each node, and its exports. `uuids` are those of the GPUs of the scenario's own node, where a driver
    /// gave them.
    ///
    /// # Errors
    /// A ledger or a file cannot be written.
    pub fn write(&self, paths: HistoryPaths<'_>, uuids: Option<&[String]>) -> Result<(), DemoError> {
        // The demo's own node is last, so that it is the freshest when its agent begins.
        for number in (0..self.extent.nodes).rev() {
            let identity = self.identity(number);
            let Some(time) = self.lifetime(number) else {
                tracing::info!(node = identity.name, "the node has no time within this history");
                continue;
            };
            let ledger = self.ledger(paths, number, &identity)?;
            self.write_node(number, time, &ledger, uuids)?;
            let mut reader = Reader::open(&ledger).map_err(StartError::Ledger)?;
            let files = write_days(&mut reader, ExportDirectory(paths.exports), || false);
            let files = files.map_err(|error| DemoError::Other(error.to_string()))?;
            tracing::info!(node = identity.name, files, "the exports of the history are written");
        }
        Ok(())
    }

    fn ledger(
        &self,
        paths: HistoryPaths<'_>,
        number: usize,
        node: &NodeIdentity,
    ) -> Result<PathBuf, DemoError> {
        if number == 0 {
            return Ok(paths.ledger.to_owned());
        }
        let directory = paths.directory.join(NODES).join(&node.name);
        make(&directory)?;
        Ok(directory.join("ledger.db"))
    }

    /// The place in the description of the node with that number: the further ones come in turn.
    fn described(&self, number: usize) -> usize {
        match self.description.nodes.len() {
            0 | 1 => 0,
            _ if number == 0 => 0,
            known => 1 + (number - 1) % (known - 1),
        }
    }

    fn identity(&self, number: usize) -> NodeIdentity {
        let config = &self.configs[self.described(number)];
        let given = config.node.name.as_deref().unwrap_or("demo-node");
        let round = match self.description.nodes.len() {
            0 | 1 => number,
            known => number.saturating_sub(1) / (known - 1),
        };
        let name = if round == 0 { given.to_owned() } else { format!("{given}-{}", round + 1) };
        NodeIdentity { simulated: true, ..node_identity(config, &name) }
    }

    /// The time of a node within the history; none where it went before or came after.
    fn lifetime(&self, number: usize) -> Option<NodeTime> {
        let node = &self.description.nodes[self.described(number)];
        let midnight = self.end.floor(DAY);
        let begin = Utc(self.end.0.saturating_sub(self.extent.days * DAY.0)).floor(QUARTER_HOUR);
        let at = |time: Option<PastTime>, otherwise: Utc| time.map_or(otherwise, |time| time.at(midnight));
        let (from, to) = (at(node.from, begin).max(begin), at(node.to, self.end).min(self.end));
        let salt = mixed(&[self.extent.seed, number as u64]);
        (from < to).then_some(NodeTime { salt, from, to, midnight })
    }

    fn write_node(
        &self,
        number: usize,
        time: NodeTime,
        ledger: &Path,
        uuids: Option<&[String]>,
    ) -> Result<(), DemoError> {
        let node = &self.description.nodes[self.described(number)];
        let config = &self.configs[self.described(number)];
        let NodeTime { from, to, midnight, .. } = time;
        let identity = self.identity(number);
        let runs = runs::runs(node, time);
        let gpus = self.gpus(number, time, uuids);
        let gpus =
            gpus.into_iter().map(|gpu| PastGpu::new(gpu.session, gpu.board, gpu.life, &runs)).collect();
        let outages = outages(node, midnight);
        let how_held = how_held(config, scheduler(node));
        let past = NodeContext {
            workloads: &node.workloads,
            runs: &runs,
            standing: &config.attribution.standing,
            presence: how_held.is_by_presence(),
            outages: &outages,
        };
        let settings = in_force(&self.settings, from);
        let zone = self.config.billing.time_zone.clone().unwrap_or_else(system_zone);
        let days = to.since(from).0 / DAY.0;
        tracing::info!(
            node = identity.name,
            days,
            seed = self.extent.seed,
            "writing a history: every number is made up"
        );
        let name = identity.name.clone();
        let RetentionConfig { minutes, quarter_hours } = self.config.ledger.retention;
        let retention = Retention { minutes, quarter_hours };
        let history = NodeAccount { identity, how_held, from, to, gpus, past, settings, zone, retention };
        let written = node::write(ledger, history, |reached| {
            let done = reached.since(from).0 / DAY.0;
            if done.is_multiple_of(10) && done > 0 {
                tracing::info!(node = name, day = done, of = days, "the history goes on");
            }
        });
        written.map_err(|error| match error {
            HistoryError::Ledger(error) => StartError::Ledger(error).into(),
            other => DemoError::Other(format!("{}: {other}", ledger.display())),
        })
    }

    /// The GPUs of a node, and those of others that it claimed.
    fn gpus(&self, number: usize, time: NodeTime, uuids: Option<&[String]>) -> Vec<NodeGpu> {
        let place = self.described(number);
        let uuid_of = |number: usize, index: u32| -> Arc<str> {
            let given = uuids.filter(|_| number == 0).and_then(|uuids| uuids.get(index as usize));
            let made = || format!("GPU-{}", uuid(&[self.extent.seed, number as u64, index.into()]));
            given.cloned().unwrap_or_else(made).into()
        };
        let session = |index: u32, uuid| SessionGpu { index: Some(index), uuid };
        let own = (0..).zip(&self.boards[place]).map(|(index, board)| NodeGpu {
            session: session(index, uuid_of(number, index)),
            board,
            life: [time.from, time.to],
        });
        let mut gpus: Vec<NodeGpu> = own.collect();
        // A claim that is left out keeps its number: workloads and failures name GPUs by it.
        for (index, claimed) in (gpus.len() as u32..).zip(&self.description.nodes[place].claimed) {
            // Of nodes that come again, each claims a GPU of its own round.
            let of = if claimed.node == 0 { 0 } else { number + claimed.node - place };
            let [from, to] = [claimed.from, claimed.to].map(|at| at.at(time.midnight));
            if let Some(life) = time.within(from, to).filter(|_| of < self.extent.nodes) {
                let session = session(index, uuid_of(of, claimed.gpu));
                let board = self.boards[claimed.node][claimed.gpu as usize];
                gpus.push(NodeGpu { session, board, life });
            }
        }
        gpus
    }
}

/// A GPU of a node, and when the node had it.
struct NodeGpu {
    session: SessionGpu,
    board: &'static PastBoard,
    life: [Utc; 2],
}

/// The scheduler that granted GPUs on a node, if one did.
fn scheduler(node: &PastNode) -> Option<HowHeld> {
    node.workloads.iter().find_map(|workload| match workload.holder {
        PastHolder::Pod { .. } => Some(HowHeld::Kubelet),
        PastHolder::Job { .. } => Some(HowHeld::Slurm),
        PastHolder::Unit { .. } | PastHolder::User { .. } => None,
    })
}

fn outages(node: &PastNode, midnight: Utc) -> Vec<Outage> {
    let of_node = |kind, spans: &[PastSpan]| -> Vec<Outage> {
        let outage = |span: &PastSpan| {
            let [from, to] = [span.from, span.to].map(|at| at.at(midnight));
            Outage { kind, gpu: None, from, to }
        };
        spans.iter().map(outage).collect()
    };
    let failed = node.failures.iter().map(|failure| {
        let [from, to] = [failure.from, failure.to].map(|at| at.at(midnight));
        Outage { kind: OutageKind::Failed { xid: failure.xid }, gpu: Some(failure.gpu), from, to }
    });
    let mut outages = of_node(OutageKind::Off, &node.off);
    outages.extend(of_node(OutageKind::Gap, &node.gaps));
    outages.extend(failed);
    outages
}

/// The settings from the begin of a node on: the first is in force then.
fn in_force(settings: &[Settings], from: Utc) -> &[Settings] {
    let before = settings.iter().rposition(|one| one.recorded <= from).unwrap_or(0);
    &settings[before..]
}

/// The configuration of a described node. Prices, tenants and the time zone are those of the demo.
fn node_config(node: &PastNode, place: usize, own: &Config) -> Result<Config, String> {
    let Some(given) = &node.config else { return Ok(own.clone()) };
    let mut config = parse_config(given, &format!("history.nodes[{place}].config"))?;
    config.prices = own.prices.clone();
    config.tenants = own.tenants.clone();
    config.billing = own.billing.clone();
    config.node.cluster = config.node.cluster.or_else(|| own.node.cluster.clone());
    Ok(config)
}

/// A part of a configuration, which is in the history as it would be in a file.
fn parse_config(given: &Value, at: &str) -> Result<Config, String> {
    Config::parse(&given.to_string(), at).map_err(|problems| problems.to_string())
}

/// All settings in order of time, from those of the demo's configuration on, which hold until the first others.
fn settings(description: &HistoryDescription, config: &Config, end: Utc) -> Result<Vec<Settings>, String> {
    let midnight = end.floor(DAY);
    let of = |recorded: Utc, config: &Config| Settings {
        recorded,
        book: config.prices.clone(),
        rules: Arc::new(tenant_rules(config)),
    };
    let mut all = vec![of(Utc(0), config)];
    for (place, given) in description.settings.iter().enumerate() {
        let at = format!("history.settings[{place}]");
        let PastSettings { recorded, prices, tenants, .. } = given;
        let mut past = config.clone();
        let mut document = serde_json::Map::new();
        let parts = [("prices", prices), ("tenants", tenants)];
        for (key, value) in parts.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))) {
            document.insert(key.to_owned(), with_times(value, midnight));
        }
        let parsed = parse_config(&Value::Object(document), &at)?;
        if prices.is_some() {
            past.prices = parsed.prices;
        }
        if tenants.is_some() {
            past.tenants = parsed.tenants;
        }
        let recorded = recorded.at(midnight).floor(QUARTER_HOUR);
        if all.last().is_some_and(|last| recorded <= last.recorded) {
            return Err(format!("{at}.recorded: is not after the one before; give them in order of time"));
        }
        all.push(of(recorded, &past));
    }
    Ok(all)
}

/// The value with times of the history under `from` as times of the calendar.
fn with_times(value: &Value, midnight: Utc) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| with_times(item, midnight)).collect(),
        Value::Object(pairs) => {
            let pair = |(key, value): (&String, &Value)| {
                let time = value.as_str().filter(|_| key == "from").map(str::to_owned);
                let time = time.and_then(|text| PastTime::try_from(text).ok());
                let value = time
                    .map_or_else(|| with_times(value, midnight), |time| time.at(midnight).to_string().into());
                (key.clone(), value)
            };
            Value::Object(pairs.iter().map(pair).collect())
        }
        other => other.clone(),
    }
}
