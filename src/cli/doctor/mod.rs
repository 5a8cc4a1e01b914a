//! Examines the node as the agent would find it: driver, GPUs, host, schedulers, ledger directory.
//!
//! The driver is examined on a thread of its own ([`examination`]), because a driver call that hangs cannot be ended: the
//! command then reports what was found before, and the call that hangs.

mod board;
mod deployment;
mod examination;
mod families;
mod grants;
mod node;
mod prices;
mod workloads;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::accounting::tenants::TenantRules;
use crate::agent::policy;
use crate::agent::session::NODE_LOCK;
use crate::cli::demo;
use crate::config::Config;
use crate::holders::host::{Host, UserDatabase};
use crate::model::Nanoseconds;
use crate::runtime::clock::system_now;
use crate::runtime::thread::Thread;
use examination::{DriverReport, Examination, Step};

pub use board::board_sentences;
pub use families::{FamilyDiagnosis, FamilyStatus};
pub use grants::GrantDiagnosis;

/// What works on the node and what does not; its JSON is that of `gpumeter doctor --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diagnosis {
    pub findings: Vec<Finding>,
    pub gpus: Vec<GpuDiagnosis>,
    pub grants: Vec<GrantDiagnosis>,
    /// What the agent can do on this node, in one sentence.
    pub variant: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub works: bool,
    /// Details; of what does not work, the reason and what to do.
    pub why: String,
}

impl Finding {
    fn new(what: &'static str, works: bool, why: impl Into<String>) -> Self {
        Self { what, works, why: why.into() }
    }

    /// A summary followed by the problems; it works if there are none.
    fn with_problems(what: &'static str, summary: String, problems: &[String]) -> Self {
        let why = problems.iter().fold(summary, |why, problem| why + "; " + problem);
        Self::new(what, problems.is_empty(), why)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct GpuDiagnosis {
    #[serde(rename = "gpu")]
    pub index: u32,
    pub uuid: String,
    pub model: String,
    /// Every family of the catalogue except the agent's own.
    pub families: Vec<FamilyDiagnosis>,
}

/// GPUs by their indices, as `GPU 3` or `GPUs 0-2, 5`, so that a long list of equal ones is a few words.
fn name_gpus(indices: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for index in indices {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*index) => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let range = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = ranges.into_iter().map(range).collect();
    format!("{} {}", if indices.len() == 1 { "GPU" } else { "GPUs" }, ranges.join(", "))
}

const CALL_TIMEOUT: Nanoseconds = Nanoseconds::from_seconds(10);

/// How often a new step of the examination is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Examines the node; changes nothing and opens no ledger.
pub fn diagnose(config: &Config) -> Diagnosis {
    let host = Host::at("/");
    let users = UserDatabase::of_host(Path::new("/"));
    let DriverReport { mut findings, gpus, listed, pids, .. } = examine_driver(config);
    if config.nvml.library.is_none() {
        findings.extend(demo::running().map(|demo| describe_demo(&demo)));
    }
    let listed = listed.as_deref();
    findings.extend(listed.and_then(|listed| grants::check_gpus(config, listed)));
    findings.push(node::check_processes(&host, &pids));
    let (finding, mut workloads) = workloads::check_pods(config, &host, &pids);
    findings.extend(finding);
    findings.extend(workloads::check_jobs(config, &host, listed, &mut workloads));
    findings.extend(workloads::check_containers(config, &host, &mut workloads));
    findings
        .extend(listed.and_then(|listed| grants::check_conflicts(config, listed, &workloads.allocations)));
    findings.push(node::check_owners(&host, &pids, &workloads));
    let rules = policy::tenant_rules(config);
    findings.extend(node::check_tenants(&host, &pids, &workloads, &rules));
    findings.extend(check_rules(prices::tenants_of_holders(&host, &pids, &workloads, &rules), &rules));
    findings.extend(prices::check_gpu_prices(&prices::price_gpus(config, &host, &gpus, system_now().utc)));
    findings.extend(node::check_cgroups(&host, &pids, &workloads));
    findings.push(grants::check_holding(config, &host));
    findings.extend(grants::check_users(config, &users));
    findings.push(node::check_prices(config, system_now().utc));
    findings.extend(node::check_dcgm_counters(config));
    findings.push(node::check_kernel_log(&host));
    findings.push(node::check_node_lock(Path::new(NODE_LOCK)));
    findings.push(node::check_ledger(config));
    findings.extend(node::check_socket_unit(&host));
    findings.extend(node::check_otlp(config));
    let grants = grants::match_grants(config, listed, &users);
    let mut diagnosis = Diagnosis { findings, gpus, grants, variant: "" };
    diagnosis.findings.extend(deployment::check_manifest(config, &host, &diagnosis));
    diagnosis.variant = deployment::describe_variant(&diagnosis.findings);
    diagnosis
}

fn check_rules(tenants: Vec<String>, rules: &TenantRules) -> Option<Finding> {
    let why = if tenants.is_empty() { "no workload is on a GPU now".to_owned() } else { tenants.join("; ") };
    (!rules.rules.is_empty()).then(|| Finding::new("tenant rules", true, why))
}

#[derive(Debug, Default)]
pub struct NodeCheck {
    pub warnings: Vec<String>,
    /// How GPUs are held, the rate of each GPU, and the tenant of each workload that is on a GPU or was granted one.
    pub notes: Vec<String>,
}

pub fn check_on_node(config: &Config) -> NodeCheck {
    let has_prices = config.prices.currency().is_some();
    let rules = policy::tenant_rules(config);
    let host = Host::at("/");
    let holding = grants::check_holding(config, &host);
    let mut check = NodeCheck::default();
    if holding.works { &mut check.notes } else { &mut check.warnings }.push(holding.why);
    if config.attribution.standing.is_empty() && !has_prices && rules.rules.is_empty() {
        return check;
    }
    let DriverReport { findings, gpus, listed, pids, .. } = examine_driver(config);
    // Commands that run on a driver have an option for its path; this one has the key alone.
    let of_config = |why: String| why.replace("with --nvml-library", "in nvml.library");
    let failed = |findings: Vec<Finding>| {
        findings.into_iter().filter(|one| !one.works).map(move |one| of_config(one.why))
    };
    let reasons = || failed(findings.clone()).collect::<Vec<_>>().join("; ");
    if !config.attribution.standing.is_empty() {
        check.warnings.extend(match &listed {
            Some(listed) => failed(grants::check_gpus(config, listed).into_iter().collect()).collect(),
            None => vec![format!("attribution.standing: GPUs are not checked: {}", reasons())],
        });
    }
    if has_prices && gpus.is_empty() {
        check.warnings.push(format!("prices.rates: GPUs are not checked: {}", reasons()));
    }
    let prices = prices::price_gpus(config, &host, &gpus, system_now().utc);
    check.warnings.extend(prices.missing.into_iter().chain(prices.unused));
    check.notes.extend(prices.rates);
    if !rules.rules.is_empty() {
        let (_, mut workloads) = workloads::check_pods(config, &host, &pids);
        workloads::check_jobs(config, &host, listed.as_deref(), &mut workloads);
        workloads::check_containers(config, &host, &mut workloads);
        check.notes.extend(prices::tenants_of_holders(&host, &pids, &workloads, &rules));
    }
    check
}

fn describe_demo(demo::RunningDemo { directory, pid }: &demo::RunningDemo) -> Finding {
    let library = demo::library(directory);
    let why = format!(
        "process {pid} runs one in {}, on a simulated driver; examine that with gpumeter doctor --nvml-library {}",
        directory.display(),
        library.display()
    );
    Finding::new("demo", true, why)
}

/// Examines the driver and its GPUs until everything is found, or until one call has not returned for too long.
fn examine_driver(config: &Config) -> DriverReport {
    let examination = Arc::new(Examination::default());
    let run = {
        let (examination, config) = (Arc::clone(&examination), config.clone());
        move || examination.run(&config)
    };
    match Thread::start("doctor", run) {
        Ok(thread) => wait_for(&thread, &examination),
        Err(error) => examination.add_finding("driver", false, error.to_string()),
    }
    examination.take_report()
}

fn wait_for(thread: &Thread, examination: &Examination) {
    let (mut step, mut since) = (examination.step(), system_now());
    while !thread.wait(POLL_INTERVAL) {
        let next = examination.step();
        if next != step {
            (step, since) = (next, system_now());
        }
        let waited = system_now().since(since);
        if waited >= CALL_TIMEOUT {
            let seconds = waited.0 / Nanoseconds::SECOND.0;
            let why = format!(
                "{step} has not returned for {seconds} s; look for NVRM and Xid lines in the kernel log"
            );
            return examination.add_finding("driver", false, why);
        }
    }
    let step = examination.step();
    if step != Step::Done {
        let why = format!(
            "gpumeter's own examination thread failed in {step}; please report the error that it printed to standard error"
        );
        examination.add_finding("driver", false, why);
    }
}
