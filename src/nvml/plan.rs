//! How to read the rows of the catalogue on this board: rows x what the board answers x level, per tier.
//!
//! A plan is compiled by asking everything once. What is refused for good is never asked again and stands
//! in the plan as an absence; a change of driver, MIG layout or configuration compiles a new plan. A plan
//! that met a failure that may pass is provisional: it works, and is compared with a new one later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::{self, Function};
use super::door::{Door, Handle};
use super::fields::Batch;
use super::gpm::{Counters, Pair};
use super::identity;
use super::instances::{self, Instance, Instances, Layout};
use super::inventory::{self, Found};
use super::lists::Devices;
use super::probe::{self, Choice, Chosen, Metric, Wanted, Way};
use super::quirks::Quirks;
use crate::catalogue::{Bound, CallValue, Counter, PointId, device_points, first_point};
use crate::model::frame::Tier;
use crate::model::{Absence, GpuIdentity, InstanceIdentity, Reading};

/// How to read one GPU.
pub(super) struct Plan {
    pub(super) device: Handle,
    pub(super) identity: Arc<GpuIdentity>,
    pub(super) tiers: [TierPlan; 3],
    pub(super) gpm: Option<Gpm>,
    /// What the plain utilization call serves: in which tier it is due depends on what else tells activity.
    pub(super) utilization: Vec<Ask<CallValue>>,
    /// The video engines, each a call of its own.
    pub(super) video: Vec<(Function, Vec<Ask<CallValue>>)>,
    pub(super) instances: Vec<Instance>,
    /// How the GPU was cut, instances included that do not say what they are.
    layout: Layout,
    /// What every point starts from: absent for good, or not yet read.
    pub(super) blank: Box<[Reading]>,
    /// What the driver's counters stood at when they were asked for once.
    pub(super) probed: Box<[Option<i64>]>,
    /// Whether something failed that may work later.
    pub(super) provisional: bool,
    /// Whether the GPU can be cut into instances at all.
    cuttable: bool,
    chosen: Vec<Chosen>,
}

/// What to ask in one tier.
pub(super) struct TierPlan {
    pub(super) batch: Batch,
    pub(super) fields: Vec<Ask<usize>>,
    pub(super) margins: Vec<Ask<usize>>,
    pub(super) calls: Vec<(Function, Vec<Ask<CallValue>>)>,
    pub(super) reasons: Vec<Ask<(u64, u64)>>,
}

/// The GPM pair of the GPU and what it serves.
pub(super) struct Gpm {
    pub(super) pair: Pair,
    pub(super) metrics: Vec<Ask<Metric>>,
    /// Those whose points might be read by something else.
    pub(super) replaceable: Vec<u32>,
    pub(super) counters: Counters,
}

/// One point to fill: from where in the answer, and times what.
pub(super) struct Ask<T> {
    pub(super) point: PointId,
    pub(super) bound: Bound,
    pub(super) from: T,
    pub(super) times: i64,
}

impl Plan {
    /// Asks the board for everything that is wanted, once, and keeps what it answers.
    pub(super) fn compile(door: &mut Door, found: &Found, wanted: Wanted<'_>) -> Result<Self, Absence> {
        let device = inventory::handle(door, found)?;
        // Without the MIG mode there is no plan: a GPU that is believed to be whole is billed as such.
        let mig = inventory::mig_mode(door, device)?;
        let (mut identity, whole) = identity::identity(door, device, mig == Some(true));
        door.learn(Quirks::of(&identity.driver_version));
        let Choice { chosen, blank, probed, via, gpm: can_pair, counters, of_instances, whole: settled } =
            probe::choose(door, device, wanted, &identity.driver_version)?;
        identity.via = via.into();
        let Instances { found: instances, layout, slices, whole: complete } = if identity.mig {
            instances::find(door, device, can_pair.then_some(of_instances.as_slice()))
        } else {
            Instances { whole: true, ..Instances::default() }
        };
        identity.mig_slices = slices;
        let (gpm, allocated) = gpm(door, &chosen, counters);
        let mut tiers = Tier::ALL.map(|tier| TierPlan::new(tier, &chosen));
        let Apart { utilization, video } = Apart::take(&mut tiers);
        Ok(Self {
            device,
            identity: Arc::new(identity),
            tiers,
            gpm,
            utilization,
            video,
            instances,
            layout,
            blank: blank.into(),
            probed: probed.into(),
            provisional: !(whole && complete && allocated && settled),
            cuttable: mig.is_some(),
            chosen,
        })
    }

    /// Whether the other plan reads the same things of the same GPU.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let ways =
            |plan: &Self| plan.chosen.iter().map(|chosen| (chosen.point, chosen.way)).collect::<Vec<_>>();
        self.identity == other.identity
            && self.blank == other.blank
            && self.gpm.is_some() == other.gpm.is_some()
            && self.layout == other.layout
            && self.identities().eq(other.identities())
            && self.pairs() == other.pairs()
            && ways(self) == ways(other)
    }

    /// Whether the GPU was cut otherwise since; one that cannot tell now has not been.
    pub(super) fn is_recut(&self, door: &mut Door) -> bool {
        if !self.cuttable {
            return false;
        }
        match inventory::mig_mode(door, self.device) {
            Ok(Some(mig)) if mig != self.identity.mig => true,
            Ok(Some(true)) => instances::layout(door, self.device).is_ok_and(|now| now != self.layout),
            _ => false,
        }
    }

    /// What has memory of its own: the GPU, or each of its instances.
    pub(super) fn devices(&self) -> impl Iterator<Item = Handle> {
        let whole = (!self.identity.mig).then_some(self.device);
        whole.into_iter().chain(self.instances.iter().filter_map(Instance::device))
    }

    /// The devices whose lists of processes may be asked for.
    pub(super) fn listed_devices(&self) -> Devices {
        let instances = self.instances.iter();
        let own = instances.filter_map(|one| Some((one.identity().id.gpu_instance, one.device()?)));
        Devices { whole: self.device, instances: own.collect() }
    }

    fn pairs(&self) -> usize {
        self.instances.iter().filter(|instance| instance.has_pair()).count()
    }

    fn identities(&self) -> impl Iterator<Item = &InstanceIdentity> {
        self.instances.iter().map(Instance::identity)
    }

    /// Gives back what the plan allocated in the library.
    pub(super) fn free(self, door: &mut Door) {
        if let Some(gpm) = self.gpm {
            gpm.pair.free(door);
        }
        for instance in self.instances {
            instance.free(door);
        }
    }
}

/// The pair, if anything needs one, and whether that is for good.
fn gpm(door: &mut Door, chosen: &[Chosen], counters: Vec<Counter>) -> (Option<Gpm>, bool) {
    let metrics: Vec<_> = chosen
        .iter()
        .filter_map(|chosen| match chosen.way {
            Way::Gpm { metric, times } => {
                Some(Ask { point: chosen.point, bound: chosen.bound(), from: metric, times })
            }
            _ => None,
        })
        .collect();
    if metrics.is_empty() {
        return (None, true);
    }
    let counters = Counters::new(counters);
    match Pair::new(door, metrics.iter().flat_map(|ask| ask.from.ids()).chain(counters.ids()).collect()) {
        Ok(pair) => {
            let others = |ask: &&Ask<Metric>| {
                device_points().nth(ask.point).is_some_and(|(_, point)| point.sources.len() > 1)
            };
            let replaceable = metrics.iter().filter(others).map(|ask| ask.from.first).collect();
            (Some(Gpm { pair, metrics, replaceable, counters }), true)
        }
        Err(absence) => (None, absence.is_permanent()),
    }
}

impl TierPlan {
    fn new(tier: Tier, chosen: &[Chosen]) -> Self {
        let mut wanted = Vec::new();
        let (mut fields, mut margins, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        let mut groups: BTreeMap<Function, Vec<Ask<CallValue>>> = BTreeMap::new();
        for chosen in chosen.iter().filter(|chosen| chosen.family.tier == tier) {
            let (point, bound) = (chosen.point, chosen.bound());
            match chosen.way {
                Way::Field { field, times } => {
                    fields.push(Ask { point, bound, from: wanted.len(), times });
                    wanted.push(field);
                }
                Way::Margin { limit } => {
                    margins.push(Ask { point, bound, from: wanted.len(), times: DEGREES });
                    wanted.push(limit);
                }
                Way::Call { value, times } => {
                    let group = groups.entry(calls::function(value)).or_default();
                    group.push(Ask { point, bound, from: value, times });
                }
                Way::Reason { bit, unless } => {
                    reasons.push(Ask { point, bound, from: (bit, unless), times: 1 });
                }
                Way::Gpm { .. } => {}
            }
        }
        Self { batch: Batch::new(wanted), fields, margins, calls: groups.into_iter().collect(), reasons }
    }
}

/// Calls with a cadence of their own, taken out of the tiers.
struct Apart {
    utilization: Vec<Ask<CallValue>>,
    video: Vec<(Function, Vec<Ask<CallValue>>)>,
}

impl Apart {
    fn take(tiers: &mut [TierPlan; 3]) -> Self {
        let mut apart = Self { utilization: Vec::new(), video: Vec::new() };
        for tier in tiers {
            let calls = std::mem::take(&mut tier.calls);
            for (function, asks) in calls {
                if function == UTILIZATION {
                    apart.utilization.extend(asks);
                } else if asks.iter().all(|ask| is_video(ask.point)) {
                    apart.video.push((function, asks));
                } else {
                    tier.calls.push((function, asks));
                }
            }
        }
        apart
    }
}

/// The call that brings the plain utilization.
pub(super) const UTILIZATION: Function = calls::function(CallValue::UtilizationGpu);

const FIRST_VIDEO: PointId = first_point("gpu_engine_utilization_ratio");

/// Whether a point is the activity of a video engine.
fn is_video(point: PointId) -> bool {
    let family = |point| device_points().nth(point).map(|(family, _)| family.name);
    family(point) == family(FIRST_VIDEO)
}

/// The margin and its limits come in whole degrees.
const DEGREES: i64 = 1_000;
