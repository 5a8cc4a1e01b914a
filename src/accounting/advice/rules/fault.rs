//! A8: time that was held and charged while a fault of the platform kept the GPU from working. It is a credit that the operator may
//! give, not a saving. Time of a GPU that had failed is charged to nobody, so it is in no such finding.

use super::{
    AdviceRule, FoundAdvice, FoundStretch, Known, WorkloadGroup, count_gpus, count_workloads, counted, hours,
    sum,
};
use crate::accounting::advice::evidence::{EvidenceGpu, IdleStretch};
use crate::accounting::advice::finding::FindingKind;
use crate::model::{Grade, Nanoseconds, Utc};

pub(super) const RULE: AdviceRule = AdviceRule {
    kind: FindingKind::HeldBesideFault,
    code: "A8",
    rule: "used nothing for 10 minutes or more while its GPU had a fault of hardware, driver or fabric that stops work; errors of \
           applications do not count",
    risk: "the holder may have been idle for another reason",
    how: "look at the fault with gpumeter explain, and give the amount back with gpumeter statement credit",
    is_credit: true,
    find,
};

/// The findings of a health verdict by which work stops: of the GPU, or of its links to others. Work goes on beside the others.
pub const FAULTS: [&str; 18] = [
    "lost",
    "recovery_reset",
    "recovery_reboot",
    "row_remap_failure",
    "sram_threshold",
    "nvlink_down",
    "fabric_failed",
    "fabric_in_progress",
    "fabric_timeout",
    "fabric_configuration",
    "xid_hardware",
    "xid_reboot",
    "xid_driver",
    "xid_link",
    "xid_mechanicals",
    "unavailable",
    "poison_fatal",
    "memory_retirement_failed",
];

const LEAST: Nanoseconds = Nanoseconds::from_seconds(10 * 60);

fn find<'a>(known: &Known<'a>, group: &WorkloadGroup<'a>) -> Option<FoundAdvice<'a>> {
    let (mut stretches, mut kinds) = (Vec::new(), Vec::new());
    for (key, _, slot, evidence) in group.slots() {
        let Some(gpu) = known.evidence.gpus.get(&slot.uuid) else { continue };
        // Who may see only his own lines learns of the GPU only what was while nobody else was there.
        let own = known.free(key, slot, evidence).filter(|stretch| stretch.is_alone || !known.is_partial);
        for (kind, stretch) in beside_faults(gpu, own.collect()) {
            kinds.push(kind);
            stretches.push(FoundStretch { key, slot, stretch });
        }
    }
    let last = stretches.iter().map(|found| found.stretch.to).max()?;
    kinds.sort_unstable();
    kinds.dedup();
    let what = format!(
        "idle for {} beside a fault ({}), on {} in {}",
        hours(sum(&stretches)),
        kinds.join(", "),
        counted(count_gpus(&stretches), "GPU"),
        counted(count_workloads(&stretches), "run"),
    );
    let runs = count_workloads(&stretches);
    let found = FoundAdvice::idle(what, kinds.join(","), runs, Grade::Measured, stretches);
    known.is_recent(last).then_some(found)
}

/// The parts of stretches that are beside a fault, each once, with its kind.
fn beside_faults(gpu: &EvidenceGpu, stretches: Vec<IdleStretch>) -> Vec<(&str, IdleStretch)> {
    let faults = gpu.incidents.iter().filter(|incident| FAULTS.contains(&&*incident.kind));
    let mut faults: Vec<_> = faults.collect();
    faults.sort();
    let mut found = Vec::new();
    for stretch in stretches {
        let mut covered = Utc(0);
        for fault in &faults {
            let part = stretch.between(fault.from.max(covered), fault.to);
            if let Some(part) = part.filter(|part| part.length() >= LEAST) {
                covered = part.to;
                found.push((&*fault.kind, part));
            }
        }
    }
    found
}
