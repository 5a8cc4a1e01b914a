//! The plan: how to read each row of the catalogue on this board, per tier and level.
//!
//! A plan is compiled by calling everything once. A call that is refused for good is not made again and its
//! points are absent; a change of driver, MIG layout or configuration compiles a new plan. If a call failed that
//! may work later, the plan is provisional and is compared with a new one later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::activity::MEMORY_USED;
use super::calls::DriverFunction;
use super::driver_api::{DriverApi, Handle};
use super::fields::FieldBatch;
use super::gpm::{GpmCounters, GpmPair};
use super::identity;
use super::inventory::{self, FoundGpu};
use super::mig_instances::{self, InstanceLayout, MigInstance, MigInstances};
use super::probe::{self, ChosenMethod, GpmMetrics, ProbeRequest, ReadMethod};
use super::quirks::Quirks;
use crate::model::catalogue::{
    self, Bound, CallValue, Counter, PointId, counters, device_points, first_point, points_of,
};
use crate::model::frame::Tier;
use crate::model::{Absence, GpuIdentity, MemoryKind, Reading, Via};

/// How to read one GPU.
pub(super) struct Plan {
    pub(super) device: Handle,
    pub(super) identity: Arc<GpuIdentity>,
    pub(super) tiers: [TierPlan; 3],
    pub(super) gpm: Option<GpmPlan>,
    /// Points of the utilization call, whose tier depends on what else returns activity.
    pub(super) utilization: Vec<ReadTarget<CallValue>>,
    pub(super) video: Vec<TargetsOfCall>,
    pub(super) instances: Vec<MigInstance>,
    /// The MIG layout, including instances that could not be identified.
    layout: InstanceLayout,
    /// The first reading of every point: absent for good, or not yet read.
    pub(super) initial: Box<[Reading]>,
    /// The driver's counters as the probe read them.
    pub(super) probed: Box<[Option<i64>]>,
    /// Whether a call failed that may work later, so that the plan is compared with a new one from time to time.
    pub(super) provisional: bool,
    supports_mig: bool,
    chosen: Vec<ChosenMethod>,
}

/// Where the memory of a GPU without one of its own comes from; the meter puts it into the frames.
const UNIFIED: [(PointId, Via); 4] = [
    (MEMORY_USED, Via::Processes),
    (MEMORY_TOTAL, Via::Host),
    (first_point("gpu_memory_free_bytes"), Via::Host),
    (first_point("gpu_memory_reserved_bytes"), Via::Host),
];

const MEMORY_TOTAL: PointId = first_point("gpu_memory_total_bytes");

/// The GPU's memory, by what the probe found. Every board with memory of its own answers the memory calls, except a MIG
/// GPU all of whose instances belong to containers.
fn memory_kind(initial: &[Reading], via: &[Option<Via>], mig: bool) -> Option<MemoryKind> {
    match (via[MEMORY_TOTAL], initial[MEMORY_TOTAL]) {
        (Some(_), _) => Some(MemoryKind::Device),
        (None, Err(Absence::NotSupported)) if !mig => Some(MemoryKind::Unified),
        _ => None,
    }
}

pub(super) struct TierPlan {
    pub(super) batch: FieldBatch,
    pub(super) fields: Vec<ReadTarget<usize>>,
    pub(super) margins: Vec<ReadTarget<usize>>,
    pub(super) calls: Vec<TargetsOfCall>,
    pub(super) reasons: Vec<ReadTarget<(u64, u64)>>,
    /// Calls that no rule of health needs; none in the fast tier. Margins are such calls, too.
    pub(super) others: Vec<TargetsOfCall>,
}

pub(super) struct GpmPlan {
    pub(super) pair: GpmPair,
    pub(super) metrics: Vec<ReadTarget<GpmMetrics>>,
    /// Metrics whose points have another source.
    pub(super) replaceable: Vec<u32>,
    pub(super) counters: GpmCounters,
}

pub(super) type TargetsOfCall = (DriverFunction, Vec<ReadTarget<CallValue>>);

/// A point to fill, where its value is in the answer, and its factor.
pub(super) struct ReadTarget<T> {
    pub(super) point: PointId,
    pub(super) bound: Bound,
    pub(super) from: T,
    pub(super) times: i64,
}

impl Plan {
    /// Calls everything that is requested once and keeps what works.
    pub(super) fn compile(
        api: &mut DriverApi,
        found: &FoundGpu,
        request: ProbeRequest<'_>,
    ) -> Result<Self, Absence> {
        let device = inventory::handle(api, found)?;
        // Without the MIG mode there is no plan, since a MIG GPU would be billed as a whole one.
        let mig = inventory::mig_mode(api, device)?;
        let (mut identity, identity_is_final) = identity::identity(api, device, mig == Some(true));
        api.set_quirks(Quirks::of(&identity.driver_version));
        let probe = probe::choose(api, device, request)?;
        let counters = |of_instances| {
            if probe.has_gpm_counters { counters(request.level, of_instances) } else { Vec::new() }
        };
        let mut via = probe.via;
        identity.memory = memory_kind(&probe.initial, &via, identity.mig);
        if identity.memory == Some(MemoryKind::Unified) {
            UNIFIED.iter().for_each(|(point, from)| via[*point] = Some(*from));
        }
        (identity.via, identity.nvlinks) = (via.into(), probe.links);
        let instances = if identity.mig {
            mig_instances::find_instances(api, device, probe.has_gpm.then(|| counters(true)).as_deref())
        } else {
            MigInstances { is_final: true, ..MigInstances::default() }
        };
        identity.mig_slices = instances.slices;
        let (gpm, gpm_is_final) = plan_gpm(api, &probe.chosen, counters(false));
        let mut tiers = Tier::ALL.map(|tier| TierPlan::new(tier, &probe.chosen));
        // These have a schedule of their own (`activity`).
        let is_utilization = |(function, _): &mut TargetsOfCall| *function == UTILIZATION;
        let utilization = take_calls(&mut tiers, is_utilization).into_iter().flat_map(|(_, targets)| targets);
        let utilization = utilization.collect();
        let is_video = |target: &ReadTarget<CallValue>| {
            points_of("gpu_engine_utilization_ratio", &[]).any(|(video, _)| video == target.point)
        };
        let video = take_calls(&mut tiers, |(_, targets)| targets.iter().all(is_video));
        Ok(Self {
            device,
            identity: Arc::new(identity),
            tiers,
            gpm,
            utilization,
            video,
            instances: instances.found,
            layout: instances.layout,
            initial: probe.initial.into(),
            probed: probe.probed.into(),
            provisional: !(identity_is_final && instances.is_final && gpm_is_final && probe.is_final),
            supports_mig: mig.is_some(),
            chosen: probe.chosen,
        })
    }

    pub(super) fn reads_same_as(&self, other: &Self) -> bool {
        let methods =
            |plan: &Self| plan.chosen.iter().map(|chosen| (chosen.point, chosen.method)).collect::<Vec<_>>();
        let identities = |plan: &Self| {
            plan.instances.iter().map(|one| (one.identity().clone(), one.has_pair())).collect::<Vec<_>>()
        };
        self.identity == other.identity
            && self.initial == other.initial
            && self.gpm.is_some() == other.gpm.is_some()
            && self.layout == other.layout
            && identities(self) == identities(other)
            && methods(self) == methods(other)
    }

    /// Whether the MIG layout changed; if it cannot be read now, it has not.
    pub(super) fn has_new_layout(&self, api: &mut DriverApi) -> bool {
        if !self.supports_mig {
            return false;
        }
        match inventory::mig_mode(api, self.device) {
            Ok(Some(mig)) if mig != self.identity.mig => true,
            Ok(Some(true)) => {
                mig_instances::read_layout(api, self.device).is_ok_and(|now| now != self.layout)
            }
            _ => false,
        }
    }

    /// The devices with memory of their own: the GPU, or each of its instances.
    pub(super) fn devices(&self) -> impl Iterator<Item = Handle> {
        let whole = (!self.identity.mig).then_some(self.device);
        whole.into_iter().chain(self.instances.iter().filter_map(MigInstance::device))
    }

    pub(super) fn free(self, api: &mut DriverApi) {
        if let Some(gpm) = self.gpm {
            gpm.pair.free(api);
        }
        for instance in self.instances {
            instance.free(api);
        }
    }
}

/// The GPM pair if a point needs one, and whether the result is final.
fn plan_gpm(api: &mut DriverApi, chosen: &[ChosenMethod], counters: Vec<Counter>) -> (Option<GpmPlan>, bool) {
    let target = |chosen: &ChosenMethod| match chosen.method {
        ReadMethod::Gpm(metric) => {
            Some(ReadTarget { point: chosen.point, bound: chosen.bound(), from: metric, times: 1 })
        }
        _ => None,
    };
    let metrics: Vec<_> = chosen.iter().filter_map(target).collect();
    if metrics.is_empty() {
        return (None, true);
    }
    let counters = GpmCounters::new(counters);
    match GpmPair::new(
        api,
        metrics.iter().flat_map(|target| target.from.ids()).chain(counters.ids()).collect(),
    ) {
        Ok(pair) => {
            let others = |target: &&ReadTarget<GpmMetrics>| {
                device_points().nth(target.point).is_some_and(|(_, point)| point.sources.len() > 1)
            };
            let replaceable = metrics.iter().filter(others).map(|target| target.from.first).collect();
            (Some(GpmPlan { pair, metrics, replaceable, counters }), true)
        }
        Err(absence) => (None, absence.is_permanent()),
    }
}

impl TierPlan {
    fn new(tier: Tier, chosen: &[ChosenMethod]) -> Self {
        let mut wanted = Vec::new();
        let (mut fields, mut margins, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        let mut groups: BTreeMap<DriverFunction, Vec<ReadTarget<CallValue>>> = BTreeMap::new();
        let mut needed = BTreeSet::new();
        for chosen in chosen.iter().filter(|chosen| chosen.family.tier == tier) {
            let (point, bound) = (chosen.point, chosen.bound());
            match chosen.method {
                ReadMethod::Field { field, times } => {
                    fields.push(ReadTarget { point, bound, from: wanted.len(), times });
                    wanted.push(field);
                }
                ReadMethod::Margin { limit } => {
                    margins.push(ReadTarget { point, bound, from: wanted.len(), times: DEGREES });
                    wanted.push(limit);
                }
                ReadMethod::Call { value, times } => {
                    let function = DriverFunction::of(value);
                    groups.entry(function).or_default().push(ReadTarget { point, bound, from: value, times });
                    if chosen.family.is_judged || tier == Tier::Fast {
                        needed.insert(function);
                    }
                }
                ReadMethod::Reason { bit, unless } => {
                    reasons.push(ReadTarget { point, bound, from: (bit, unless), times: 1 });
                }
                ReadMethod::Gpm(_) => {}
            }
        }
        let (calls, others) = groups.into_iter().partition(|(function, _)| needed.contains(function));
        Self { batch: FieldBatch::new(wanted), fields, margins, calls, reasons, others }
    }
}

fn take_calls(
    tiers: &mut [TierPlan; 3],
    is_taken: impl Fn(&mut TargetsOfCall) -> bool,
) -> Vec<TargetsOfCall> {
    let calls = tiers.iter_mut().flat_map(|tier| [&mut tier.calls, &mut tier.others]);
    calls.flat_map(|calls| calls.extract_if(.., &is_taken)).collect()
}

pub(super) const UTILIZATION: DriverFunction = DriverFunction::of(CallValue::of(catalogue::UTILIZATION, 0));

/// The margin and its limits come in whole degrees.
const DEGREES: i64 = 1_000;
