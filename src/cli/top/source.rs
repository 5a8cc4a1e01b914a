//! Where `gpumeter top` gets the node from: a running agent, or its own look where none runs.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::accounting::billing::{Bill, BillLine, JobUsage, bills_from_json};
use crate::agent::app::Observer;
use crate::cli::Failure;
use crate::cli::agent::RunningAgent;
use crate::model::{HolderId, VisibleAccount};
use crate::output::render::{
    HistoryReport, ProcessList, Summary, SummarySource, list_processes, report_history, summarize,
};
use crate::runtime::clock::Stop;
use crate::runtime::thread::{self, Thread};

#[derive(Clone, Debug, Default)]
pub(super) struct TopData {
    pub(super) summary: Summary,
    pub(super) history: HistoryReport,
    pub(super) processes: ProcessList,
    /// Money by tenant; none without a bill.
    pub(super) money: Option<TenantMoney>,
}

/// What tenants have cost by the bill, in nano-units.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantMoney {
    pub(super) today: BTreeMap<String, i128>,
    pub(super) month: BTreeMap<String, i128>,
    /// By workload, since the first of the month.
    pub(super) workloads: BTreeMap<String, JobUsage>,
    /// Whether prices changed their currency in the month, so that sums may be missing.
    pub(super) has_several_currencies: bool,
}

pub(super) enum TopSource {
    Agent(RunningAgent),
    Own(Box<Observer>),
}

/// How often bills are made: they take the agent up to a second.
const BILL_EVERY: u32 = 300;
const INTERVAL: Duration = Duration::from_secs(1);

impl TopSource {
    pub(super) fn read(&self, money: Option<TenantMoney>) -> Result<TopData, Failure> {
        match self {
            Self::Agent(agent) => Ok(TopData {
                summary: get(agent, "/api/v1/summary")?,
                history: get(agent, "/api/v1/history")?,
                processes: get(agent, "/api/v1/processes")?,
                money,
            }),
            Self::Own(observer) => look(observer),
        }
    }

    /// Bills of today and of this month; none without a ledger, or while it cannot be read.
    pub(super) fn read_money(&self) -> Option<TenantMoney> {
        let Self::Agent(agent) = self else { return None };
        let bills = |path: &str| bills_from_json(&agent.get(path).ok()?).ok();
        let month = bills("/api/v1/bill")?;
        // The day in the time zone of the bill, by the agent's clock.
        let today = month.last()?.to_local.get(..10)?;
        let today = bills(&format!("/api/v1/bill?from={today}"))?;
        let has_several_currencies = month.len() > 1;
        Some(TenantMoney {
            today: by_tenant(&today),
            month: by_tenant(&month),
            workloads: by_workload(&month),
            has_several_currencies,
        })
    }

    /// Whether a signal has asked an own look to end.
    fn is_ended(&self) -> bool {
        matches!(self, Self::Own(observer) if observer.stop().is_called())
    }

    pub(super) fn close(self) {
        if let Self::Own(observer) = self {
            observer.close();
        }
    }
}

/// The money of each tenant; none where the prices changed their currency.
fn by_tenant(bills: &[Bill]) -> BTreeMap<String, i128> {
    let mut sums = BTreeMap::new();
    let [bill] = bills else { return sums };
    for line in &bill.lines {
        if let Some(money) = line.money {
            *sums.entry(line.tenant.clone()).or_default() += money.0;
        }
    }
    sums
}

/// What each workload, and the job of each step, held, used and cost; none where the prices changed their currency.
fn by_workload(bills: &[Bill]) -> BTreeMap<String, JobUsage> {
    let mut lines = BTreeMap::<HolderId, Vec<&BillLine>>::new();
    let [bill] = bills else { return BTreeMap::new() };
    for line in &bill.lines {
        let workload = HolderId::new(line.holder.name());
        for workload in [workload.outer(), Some(workload)].into_iter().flatten() {
            lines.entry(workload).or_default().push(line);
        }
    }
    lines.into_iter().map(|(id, lines)| (id.to_string(), JobUsage::of_lines(&lines))).collect()
}

fn get<T: DeserializeOwned>(agent: &RunningAgent, path: &str) -> Result<T, Failure> {
    let body = agent.get(path)?;
    serde_json::from_str(&body).map_err(|error| {
        Failure::wrong(format!("{}{path}: the agent there is of another version: {error}", agent.url))
    })
}

fn look(observer: &Observer) -> Result<TopData, Failure> {
    let pages = observer.pages();
    pages.request_processes();
    let Some(published) = pages.get() else {
        return Err(Failure::wrong("the GPUs are being opened; nothing has been read yet"));
    };
    if published.snapshot.roster.gpus.is_empty() && observer.has_no_driver() {
        return Err(Failure::wrong("no agent runs here, and no GPU can be read; see gpumeter doctor"));
    }
    let (snapshot, history, visible) = (&*published.snapshot, &pages.history(), &VisibleAccount::Everything);
    let no_account = Some("no agent runs here: this is a look of gpumeter top itself".to_owned());
    let source = SummarySource { snapshot, visible, history, release: None, no_account };
    let mut summary = summarize(&source);
    // Nobody expects an account of a look.
    summary.problems.retain(|problem| problem.gpu.is_some());
    Ok(TopData {
        summary,
        history: report_history(snapshot, visible, history),
        processes: list_processes(snapshot, visible, None),
        money: None,
    })
}

pub(super) type TopReading = Result<Box<TopData>, String>;

/// Starts the thread that reads every second, so that keys never wait for an agent.
pub(super) fn start(
    source: TopSource,
    stop: Stop,
) -> Result<(mpsc::Receiver<TopReading>, Thread), thread::Error> {
    let (sender, receiver) = mpsc::channel();
    let thread = Thread::start("top", move || {
        let (mut money, mut round) = (None, 0_u32);
        while !source.is_ended() {
            let data = source.read(money.clone()).map(Box::new).map_err(|failure| failure.message);
            if sender.send(data).is_err() {
                break;
            }
            // After the first look, so that it does not wait for a bill.
            if round.is_multiple_of(BILL_EVERY) {
                money = source.read_money();
            }
            round = round.wrapping_add(1);
            if stop.wait(INTERVAL) {
                break;
            }
        }
        source.close();
    })?;
    Ok((receiver, thread))
}
