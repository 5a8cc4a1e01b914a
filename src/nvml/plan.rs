//! How to read the rows of the catalogue on this board: rows x what the board answers x level, per tier.
//!
//! A plan is compiled by asking everything once. What is refused for good is never asked again and stands
//! in the plan as an absence; a change of driver, MIG layout or configuration compiles a new plan. A plan
//! that met a failure that may pass is provisional: it works, and is compared with a new one later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::calls::{self, Function, Values};
use super::door::{Door, Handle};
use super::fields::{Batch, Field};
use super::gpm::Pair;
use super::instances::{self, Instance};
use super::inventory::{self, Found};
use super::quirks::Quirks;
use crate::catalogue::{CallValue, Family, Level, PointId, Source, device_points, first_point};
use crate::model::frame::Tier;
use crate::model::{Absence, GpuIdentity, InstanceId, Reading, Unit};

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
    /// What every point starts from: absent for good, or not yet read.
    pub(super) blank: Box<[Reading]>,
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
    pub(super) reasons: Vec<Ask<u64>>,
}

/// The GPM pair of the GPU and what it serves.
pub(super) struct Gpm {
    pub(super) pair: Pair,
    pub(super) metrics: Vec<Ask<u32>>,
}

/// One point to fill: from where in the answer, and times what.
pub(super) struct Ask<T> {
    pub(super) point: PointId,
    pub(super) unit: Unit,
    pub(super) from: T,
    pub(super) times: i64,
}

impl Plan {
    /// Asks the board for everything up to that level, once, and keeps what it answers.
    pub(super) fn compile(door: &mut Door, found: &Found, level: Level) -> Result<Self, Absence> {
        let device = inventory::handle(door, found)?;
        // Without the MIG mode there is no plan: a GPU that is believed to be whole is billed as such.
        let mig = inventory::mig_mode(door, device)?;
        let (identity, whole) = inventory::identity(door, device, mig == Some(true));
        door.learn(Quirks::of(&identity.driver_version));
        let mut probe = Probe::new(door, device, level)?;
        let mut chosen = Vec::new();
        let mut blank = Vec::new();
        for (point, (family, candidates)) in device_points().enumerate() {
            if family.level > level {
                blank.push(Err(Absence::NotYet));
                continue;
            }
            match probe.choose(door, candidates.sources) {
                Ok(source) => {
                    blank.push(Err(Absence::NotYet));
                    chosen.push((point, family, source));
                }
                Err(absence) => blank.push(Err(absence)),
            }
        }
        let (instances, complete) =
            if identity.mig { instances::find(door, device, probe.gpm.is_ok()) } else { (Vec::new(), true) };
        let (gpm, allocated) = gpm(door, &chosen);
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
            blank: blank.into(),
            provisional: !(whole && complete && allocated && probe.whole),
            cuttable: mig.is_some(),
            chosen,
        })
    }

    /// Whether the other plan reads the same things of the same GPU.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let sources =
            |plan: &Self| plan.chosen.iter().map(|(point, _, source)| (*point, *source)).collect::<Vec<_>>();
        self.identity == other.identity
            && self.blank == other.blank
            && self.gpm.is_some() == other.gpm.is_some()
            && self.layout() == other.layout()
            && self.pairs() == other.pairs()
            && sources(self) == sources(other)
    }

    /// Whether the GPU was cut otherwise since; one that cannot tell now has not been.
    pub(super) fn is_recut(&self, door: &mut Door) -> bool {
        if !self.cuttable {
            return false;
        }
        match inventory::mig_mode(door, self.device) {
            Ok(Some(mig)) if mig != self.identity.mig => true,
            Ok(Some(true)) => instances::layout(door, self.device).is_ok_and(|now| now != self.layout()),
            _ => false,
        }
    }

    fn pairs(&self) -> usize {
        self.instances.iter().filter(|instance| instance.has_pair()).count()
    }

    fn layout(&self) -> Vec<(InstanceId, Arc<str>)> {
        let identities = self.instances.iter().map(Instance::identity);
        let mut layout: Vec<_> = identities.map(|one| (one.id, Arc::clone(&one.uuid))).collect();
        layout.sort();
        layout
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

type Chosen = (PointId, &'static Family, Source);

/// The pair, if anything needs one, and whether that is for good.
fn gpm(door: &mut Door, chosen: &[Chosen]) -> (Option<Gpm>, bool) {
    let metrics: Vec<_> = chosen
        .iter()
        .filter_map(|(point, family, source)| match source {
            Source::Gpm { id, times } => {
                Some(Ask { point: *point, unit: family.unit, from: *id, times: *times })
            }
            _ => None,
        })
        .collect();
    if metrics.is_empty() {
        return (None, true);
    }
    match Pair::new(door, metrics.iter().map(|ask| ask.from).collect()) {
        Ok(pair) => (Some(Gpm { pair, metrics }), true),
        Err(absence) => (None, absence.is_permanent()),
    }
}

impl TierPlan {
    fn new(tier: Tier, chosen: &[Chosen]) -> Self {
        let mut wanted = Vec::new();
        let (mut fields, mut margins, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        let mut groups: BTreeMap<Function, Vec<Ask<CallValue>>> = BTreeMap::new();
        for &(point, family, source) in chosen.iter().filter(|(_, family, _)| family.tier == tier) {
            let unit = family.unit;
            match source {
                Source::Field { id, scope, times } => {
                    fields.push(Ask { point, unit, from: wanted.len(), times });
                    wanted.push(Field { id, scope });
                }
                Source::Margin { limit } => {
                    margins.push(Ask { point, unit, from: wanted.len(), times: DEGREES });
                    wanted.push(Field { id: limit, scope: 0 });
                }
                Source::Call { value, times } => {
                    let group = groups.entry(calls::function(value)).or_default();
                    group.push(Ask { point, unit, from: value, times });
                }
                Source::Reason { bit } => reasons.push(Ask { point, unit, from: bit, times: 1 }),
                Source::Gpm { .. } => {}
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

/// What the board answers when asked for everything once.
struct Probe {
    device: Handle,
    fields: Batch,
    answered: Result<(), Absence>,
    functions: BTreeMap<Function, Result<Values, Absence>>,
    margin: Result<i64, Absence>,
    reasons: Result<u64, Absence>,
    gpm: Result<(), Absence>,
    /// Whether no failure that may pass decided a choice.
    whole: bool,
}

impl Probe {
    fn new(door: &mut Door, device: Handle, level: Level) -> Result<Self, Absence> {
        let mut fields = Batch::new(all_fields(level));
        let answered = fields.read(door, device);
        let margin = calls::margin(door, device);
        let reasons = calls::reasons(door, device);
        let gpm = Pair::supported(door, device);
        if let Some(absence) = door.take_gone() {
            return Err(absence);
        }
        Ok(Self { device, fields, answered, functions: BTreeMap::new(), margin, reasons, gpm, whole: true })
    }

    /// The first source that answers; else the first that may answer later; else why the first was refused.
    fn choose(&mut self, door: &mut Door, sources: &[Source]) -> Result<Source, Absence> {
        let (mut refused, mut failed) = (None, None);
        for source in sources {
            match self.ask(door, *source) {
                Ok(()) => {
                    self.whole &= failed.is_none();
                    return Ok(*source);
                }
                Err(absence) if absence.is_permanent() => refused = refused.or(Some(absence)),
                Err(_) => failed = failed.or(Some(*source)),
            }
        }
        self.whole &= failed.is_none();
        failed.ok_or(refused.unwrap_or(Absence::NotSupported))
    }

    fn ask(&mut self, door: &mut Door, source: Source) -> Result<(), Absence> {
        match source {
            Source::Field { id, scope, .. } => self.field(Field { id, scope }),
            Source::Margin { limit } => {
                self.margin?;
                self.field(Field { id: limit, scope: 0 })
            }
            Source::Call { value, .. } => {
                let function = calls::function(value);
                let device = self.device;
                let answer =
                    self.functions.entry(function).or_insert_with(|| calls::call(door, device, function));
                (*answer)?.get(value).map(|_| ())
            }
            Source::Reason { .. } => self.reasons.map(|_| ()),
            Source::Gpm { .. } => self.gpm,
        }
    }

    fn field(&self, field: Field) -> Result<(), Absence> {
        self.answered?;
        let position = self.fields.position(field).ok_or(Absence::NotSupported)?;
        self.fields.value(position).map(|_| ())
    }
}

fn all_fields(level: Level) -> Vec<Field> {
    let mut fields: Vec<Field> = device_points()
        .filter(|(family, _)| family.level <= level)
        .flat_map(|(_, point)| point.sources)
        .filter_map(|source| match *source {
            Source::Field { id, scope, .. } => Some(Field { id, scope }),
            Source::Margin { limit } => Some(Field { id: limit, scope: 0 }),
            _ => None,
        })
        .collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// An answer in its family's unit, or rejected when the quantity cannot be that.
pub(super) fn believe(raw: Result<i64, Absence>, times: i64, unit: Unit) -> Reading {
    let value = raw?.checked_mul(times).ok_or(Absence::Rejected)?;
    match unit {
        // Driver's and host's clocks differ: up to 2 % above is the whole.
        Unit::Ratio if (RATIO + 1..=RATIO + RATIO / 50).contains(&value) => Ok(RATIO),
        Unit::Ratio if !(0..=RATIO).contains(&value) => Err(Absence::Rejected),
        Unit::Celsius if !(-100_000..=200_000).contains(&value) => Err(Absence::Rejected),
        Unit::Watts if !(0..=20_000_000).contains(&value) => Err(Absence::Rejected),
        Unit::Seconds | Unit::Bytes | Unit::Joules | Unit::Hertz | Unit::Money | Unit::None if value < 0 => {
            Err(Absence::Rejected)
        }
        _ => Ok(value),
    }
}

const RATIO: i64 = 1_000_000_000;
