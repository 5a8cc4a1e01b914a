//! What is recorded of a node's past at single moments, in order of time: GPUs that come, failures, and runs that begin.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::gpu::{NodeContext, Outage, PastGpu};
use crate::accounting::batches::OpenIncidents;
use crate::model::Utc;
use crate::model::catalogue::xid::{self, Action};

/// Something that is recorded at a moment.
pub(super) struct PastEvent {
    pub(super) at: Utc,
    pub(super) kind: PastEventKind,
}

/// The order of those of one moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PastEventKind {
    /// A GPU comes: its place in the node's list.
    Gpu(usize),
    /// A failure ends: its place in the list of failures.
    Repaired(usize),
    Failed(usize),
    /// A run begins: its place in the node's list.
    Run(usize),
}

/// A failure of a GPU while the node had it. One that was there before is found when the GPU comes.
pub(super) struct GpuFailure {
    pub(super) gpu: Arc<str>,
    pub(super) xid: u32,
    pub(super) from: Utc,
    to: Utc,
}

/// The failures of a node's GPUs.
pub(super) fn failures(node: &NodeContext<'_>, gpus: &[PastGpu]) -> Vec<GpuFailure> {
    let failure = |outage: &Outage| {
        let gpu = gpus.iter().find(|gpu| gpu.session.index == outage.gpu)?;
        let from = outage.from.max(gpu.from);
        let is_seen = from < outage.to.min(gpu.to);
        let gpu = Arc::clone(&gpu.session.uuid);
        Some(GpuFailure { gpu, xid: outage.xid()?, from, to: outage.to }).filter(|_| is_seen)
    };
    node.outages.iter().filter_map(failure).collect()
}

/// The events of a node whose history begins at `begin`, where it records what was there before.
pub(super) fn events(
    node: &NodeContext<'_>,
    gpus: &[PastGpu],
    failures: &[GpuFailure],
    begin: Utc,
) -> Vec<PastEvent> {
    let event = |at: Utc, kind| PastEvent { at: at.max(begin), kind };
    let mut events = Vec::new();
    events.extend(gpus.iter().enumerate().map(|(place, gpu)| event(gpu.from, PastEventKind::Gpu(place))));
    for (place, failure) in failures.iter().enumerate() {
        events.push(event(failure.from, PastEventKind::Failed(place)));
        events.push(event(failure.to, PastEventKind::Repaired(place)));
    }
    events
        .extend(node.runs.iter().enumerate().map(|(place, run)| event(run.from, PastEventKind::Run(place))));
    events.sort_by_key(|event| (event.at, event.kind));
    events
}

/// The incidents that a GPU has at a time.
pub(super) fn incidents(failures: &[GpuFailure], gpu: &Arc<str>, at: Utc) -> OpenIncidents {
    let open = failures.iter().filter(|failure| failure.gpu == *gpu && failure.from <= at && at < failure.to);
    let kinds = open.map(|failure| match xid::find(failure.xid).action {
        Action::RebootNode => "xid_reboot".into(),
        _ => "xid_hardware".into(),
    });
    OpenIncidents { gpu: Arc::clone(gpu), at, kinds: kinds.collect::<BTreeSet<_>>() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::super::boards;
    use super::super::gpu::OutageKind;
    use super::*;
    use crate::holders::SessionGpu;

    const BEGIN: Utc = Utc(100);

    fn failed(gpu: u32, from: u64, to: u64) -> Outage {
        Outage { kind: OutageKind::Failed { xid: 79 }, gpu: Some(gpu), from: Utc(from), to: Utc(to) }
    }

    #[test]
    fn events_are_in_order_of_time_and_failures_from_before_are_found_at_the_begin() {
        let gpu = |index, from, to| {
            let session = SessionGpu { index: Some(index), uuid: index.to_string().into() };
            PastGpu::new(session, boards::find("h100").unwrap(), [Utc(from), Utc(to)], &[])
        };
        let gpus = [gpu(0, 100, 900), gpu(1, 300, 400)];
        // The last two are of times in which the node did not have the GPU.
        let outages = [
            failed(1, 50, 350),
            failed(0, 250, 350),
            failed(0, 150, 300),
            failed(0, 20, 120),
            failed(0, 20, 100),
            failed(1, 400, 500),
        ];
        let node =
            NodeContext { workloads: &[], runs: &[], standing: &[], presence: false, outages: &outages };
        let failures = failures(&node, &gpus);
        let events = events(&node, &gpus, &failures, BEGIN);
        let told: Vec<String> = events
            .iter()
            .map(|PastEvent { at, kind }| match kind {
                PastEventKind::Gpu(place) => format!("{} gpu {place}", at.0),
                PastEventKind::Failed(place) => format!("{} failed {}", at.0, failures[*place].gpu),
                PastEventKind::Repaired(place) => format!("{} repaired {}", at.0, failures[*place].gpu),
                PastEventKind::Run(place) => format!("{} run {place}", at.0),
            })
            .collect();
        let expected = [
            "100 gpu 0",
            "100 failed 0",
            "120 repaired 0",
            "150 failed 0",
            "250 failed 0",
            "300 gpu 1",
            "300 repaired 0",
            "300 failed 1",
            "350 repaired 1",
            "350 repaired 0",
        ];
        assert_eq!(told, expected);
        // While another failure lasts, the incident goes on.
        let open = |at| incidents(&failures, &"0".into(), Utc(at)).kinds.len();
        assert_eq!([open(100), open(120), open(300), open(350)], [1, 0, 1, 0]);
    }
}
