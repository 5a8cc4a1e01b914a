//! Advice: what tenants may change to spend less, from how they held and used GPUs. It is right or silent.
//!
//! Comes in: [`AdviceEvidence`], which a ledger, or the files of many, yield. Goes out: [`Advice`], a list of [`AdviceFinding`]s. All of it is
//! pure. Each rule is a file of `rules`, and what all of them demand is in `gates`. Does not know: where evidence is kept, who asks.

mod evidence;
mod finding;
mod fleet;
mod gates;
mod job_notes;
mod report;
mod rules;
mod slot_time;

pub use evidence::{
    AdviceEvidence, ChargedRates, ChargedTime, EvidenceGpu, IdleStretch, ProcessPresence, ProfilePrice,
    SlotEvidence, SlotKey, SlotRun, WorkloadEvidence, WorkloadKey, least_idle,
};
pub use finding::{AdviceFinding, Dismissal, FindingGpu, FindingKind, FindingStretch, OrganisationSaving};
pub use fleet::{COMMITMENT_DAYS, FleetEvidence, HourOfNode, ModelHours, NodeHours, ServiceQuarters};
pub use gates::{
    PERIOD, grace_without_process, grace_without_use, is_wait_known, is_work_by_power, unknown_part,
};
pub use job_notes::{add_notes, job_report};
pub use report::{Advice, AdviceForReaders, AdviceRequest, AdviceSource, advise};
pub use slot_time::{SlotRow, SlotTime};
