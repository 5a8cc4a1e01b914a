//! What of a node needs attention, the worst first: faults by the verdict, spent budgets, GPUs that are held without use, processes of
//! unknown owners.

use crate::model::snapshot::CONFLICT_ADVICE;

use super::summary::{
    Summary, SummaryGpu, SummaryNode, SummaryProblem, SummarySxid, SummaryTenant, SummaryUnused,
};

/// Use that nobody holds is a problem from this many GPU-seconds in an hour on, above this share of what was used.
const UNHELD_SECONDS: f64 = 60.0;
const UNHELD_SHARE: f64 = 0.05;

pub(super) fn problems(summary: &Summary) -> Vec<SummaryProblem> {
    let mut faults: Vec<(u8, SummaryProblem)> = summary.gpus.iter().filter_map(fault).collect();
    faults.sort_by_key(|(order, _)| *order);
    let unused = |gpu| Some((longest_unused(gpu)?, gpu));
    let mut unused: Vec<(&SummaryUnused, &SummaryGpu)> = summary.gpus.iter().filter_map(unused).collect();
    unused.sort_by_key(|(longest, _)| std::cmp::Reverse(longest.seconds));
    let account = (summary.node.account != "ok").then(|| account(&summary.node));
    account
        .into_iter()
        .chain(unheld(&summary.node))
        .chain(summary.node.sxids.iter().filter(|one| one.fatal).map(fatal_sxid))
        .chain(faults.into_iter().map(|(_, problem)| problem))
        .chain(summary.gpus.iter().filter_map(conflict))
        .chain(summary.tenants.iter().filter_map(|tenant| overspent(tenant, &summary.node)))
        .chain(unused.into_iter().map(|(longest, gpu)| held_without_use(longest, gpu, &summary.node)))
        .chain(summary.gpus.iter().filter_map(left_memory))
        .chain(summary.gpus.iter().filter_map(strangers))
        .collect()
}

fn account(node: &SummaryNode) -> SummaryProblem {
    let title = if node.account == "none" { "no account is kept" } else { "the account is wrong" };
    SummaryProblem {
        level: "failed".to_owned(),
        title: title.to_owned(),
        text: node.account_reason.clone().unwrap_or_default(),
        advice: "let gpumeter examine the node".to_owned(),
        command: Some("gpumeter doctor".to_owned()),
        ..SummaryProblem::default()
    }
}

fn unheld(node: &SummaryNode) -> Option<SummaryProblem> {
    let (used, unheld) = (node.used_last_hour?, node.unheld_last_hour?);
    (unheld >= UNHELD_SECONDS && unheld > used * UNHELD_SHARE).then(|| SummaryProblem {
        level: "cost".to_owned(),
        title: "use that nobody holds".to_owned(),
        text: format!(
            "{unheld:.0} of {used:.0} GPU-seconds used in the last hour were used while nobody held the GPU, so nobody is \
             charged for them; {}",
            node.how_held
        ),
        advice: node.how_held_advice.clone(),
        command: Some("gpumeter doctor".to_owned()),
        ..SummaryProblem::default()
    })
}

fn of_gpu(gpu: &SummaryGpu, level: &str, what: &str) -> SummaryProblem {
    SummaryProblem {
        gpu: Some(gpu.uuid.clone()),
        level: level.to_owned(),
        title: format!("GPU {} {what}", gpu.gpu),
        ..SummaryProblem::default()
    }
}

/// The fault of a GPU that is not well, with its place in the order.
fn fault(gpu: &SummaryGpu) -> Option<(u8, SummaryProblem)> {
    let (order, level) = match (&*gpu.status, &*gpu.health.state) {
        ("up", "failed") => (0, "failed"),
        ("up", "ok") => return None,
        ("up", "degraded") => (2, "degraded"),
        // Somebody meant it to be away.
        ("guest" | "replaced" | "forgotten", _) => return None,
        _ => (1, "failed"),
    };
    let reason = gpu.health.reasons.first();
    let what = match &*gpu.status {
        "up" => &gpu.health.state,
        "silent" => "does not answer",
        status => status,
    };
    let evidence = reason.map(|reason| &*reason.evidence).filter(|evidence| !evidence.is_empty());
    let evidence = evidence.map(|evidence| format!(": {evidence}")).unwrap_or_default();
    let call = gpu.call.as_ref().map(|(call, seconds)| format!(" ({call} has not returned for {seconds} s)"));
    let text = reason.map(|reason| format!("{}{evidence}", reason.what)).unwrap_or_default();
    let problem = SummaryProblem {
        text: text + &call.unwrap_or_default(),
        since: reason.and_then(|reason| reason.since.clone()),
        advice: gpu.advice.clone(),
        command: gpu.command.clone(),
        ..of_gpu(gpu, level, what)
    };
    Some((order, problem))
}

/// A switch that has stopped takes its GPUs' links along.
fn fatal_sxid(one: &SummarySxid) -> SummaryProblem {
    let SummarySxid { pci_bus_id, sxid, count, last, .. } = one;
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    SummaryProblem {
        level: "failed".to_owned(),
        title: format!("NVSwitch {pci_bus_id} failed"),
        text: format!("SXID {sxid}, which is fatal{times}"),
        since: Some(last.clone()),
        advice: "drain the node, then reset the switch together with all GPUs on it, or reboot".to_owned(),
        ..SummaryProblem::default()
    }
}

/// Conflicting claims, each of them charged for a part.
fn conflict(gpu: &SummaryGpu) -> Option<SummaryProblem> {
    (!gpu.conflicts.is_empty()).then(|| SummaryProblem {
        text: format!(
            "the claims of {} do not fit together, so each is charged for a part of what it claims",
            gpu.conflicts.join(", ")
        ),
        advice: CONFLICT_ADVICE.to_owned(),
        command: Some("gpumeter doctor".to_owned()),
        ..of_gpu(gpu, "cost", "granted twice")
    })
}

fn overspent(tenant: &SummaryTenant, node: &SummaryNode) -> Option<SummaryProblem> {
    let cents = |amount: &str| {
        let end = amount.find('.').map_or(amount.len(), |point| point + 3);
        amount.get(..end).unwrap_or(amount).to_owned()
    };
    let (spent, budget) = (cents(tenant.spent.as_ref()?), cents(tenant.budget.as_ref()?));
    let (name, currency) = (&tenant.tenant, node.currency.as_deref().unwrap_or_default());
    tenant.over_budget.then(|| SummaryProblem {
        level: "cost".to_owned(),
        tenant: Some(name.clone()),
        title: format!("{name} is over its budget"),
        text: format!("{spent} {currency} in this month, of {budget} allowed"),
        advice: format!("ask {name} what to stop, or raise tenants.budgets"),
        ..SummaryProblem::default()
    })
}

fn longest_unused(gpu: &SummaryGpu) -> Option<&SummaryUnused> {
    gpu.unused.iter().max_by_key(|one| one.seconds)
}

fn held_without_use(longest: &SummaryUnused, gpu: &SummaryGpu, node: &SummaryNode) -> SummaryProblem {
    let mut tenants: Vec<&str> = gpu.unused.iter().map(|one| &*one.tenant).collect();
    tenants.dedup();
    let tenants = tenants.join(", ");
    let how = match &*longest.kind {
        "open_session" => "open in a session that does nothing",
        _ => "there is no process",
    };
    // A part of a GPU does not cost what the GPU costs.
    let is_whole = matches!(&gpu.holders[..], [only] if only.gpu_instance.is_empty() && only.share >= 1.0);
    let cost = gpu.per_hour.as_ref().zip(node.currency.as_ref()).filter(|_| is_whole);
    let cost = cost.map(|(amount, currency)| format!(", {amount} {currency} per hour for nothing"));
    SummaryProblem {
        text: format!("held by {tenants} and not used: {how}{}", cost.unwrap_or_default()),
        since: Some(longest.since.clone()),
        advice: format!("ask {tenants} whether it is needed"),
        ..of_gpu(gpu, "cost", "held without use")
    }
}

fn left_memory(gpu: &SummaryGpu) -> Option<SummaryProblem> {
    let since = gpu.memory_left_since.clone()?;
    let gib =
        gpu.readings.memory_used.map(|bytes| format!("{:.1} GiB of ", bytes as f64 / f64::from(1 << 30)));
    Some(SummaryProblem {
        text: format!(
            "{}memory in use though nobody holds it and no process is listed",
            gib.unwrap_or_default()
        ),
        since: Some(since),
        advice: "end what is left of the last job (fuser -v /dev/nvidia*), else reset the GPU".to_owned(),
        ..of_gpu(gpu, "cost", "has memory that nobody uses")
    })
}

fn strangers(gpu: &SummaryGpu) -> Option<SummaryProblem> {
    let count: usize =
        gpu.users.iter().filter(|user| user.workload.is_empty()).map(|user| user.processes).sum();
    (count > 0).then(|| SummaryProblem {
        text: match count {
            1 => "a process whose use nobody pays for".to_owned(),
            count => format!("{count} processes whose use nobody pays for"),
        },
        advice: "find out whose they are".to_owned(),
        command: Some("gpumeter doctor".to_owned()),
        ..of_gpu(gpu, "cost", "used by unknown owners")
    })
}
