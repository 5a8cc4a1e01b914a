//! Which metric families a GPU supports, judged by one frame, and by which source each is read.
//!
//! `gpu_unsupported` and the doctor share this, so they never differ. What the configuration leaves out is not considered.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::TrackedGpu;
use super::counter_total::CounterTotal;
use crate::model::catalogue::{
    Family, GpuRows, InstanceRows, InstanceValue, Labelled, Level, PointId, ProcessValue, Rows, families,
    first_point, numbered_families, points_of,
};
use crate::model::{Absence, ActivitySource, Frame, InstanceFrame, Via};

/// Whether a family is supported; one value is enough.
type Support = Result<(), Absence>;

/// Every family in the order of the page, with its support.
pub fn family_support(frame: &Frame) -> impl Iterator<Item = (&'static Family, Result<(), Absence>)> {
    FAMILIES.iter().map(move |(family, points)| (*family, board_support(frame, family, points)))
}

pub fn unsupported(frame: &Frame, level: Level) -> Vec<(&'static str, Absence)> {
    let families = family_support(frame).filter(|(family, _)| family.level <= level);
    let absent = families.filter_map(|(family, support)| Some((family.name, support.err()?)));
    absent.filter(|(_, absence)| absence.is_permanent()).collect()
}

/// Every family with the points that it is read from: its own, or those that its values follow from. Found once: looking
/// them up by name takes a third of a tick.
static FAMILIES: LazyLock<Vec<(&'static Family, Range<PointId>)>> = LazyLock::new(|| {
    let own = |family: &Family| match &family.rows {
        Rows::Gpu(GpuRows::Read(_) | GpuRows::State(_) | GpuRows::Flow(_)) => points(family.name),
        Rows::Gpu(GpuRows::Integrals { of: ratio, .. }) => points(ratio),
        Rows::Gpu(GpuRows::FabricInfo) => points("gpu_fabric_state"),
        Rows::Gpu(GpuRows::Busy) => points("gpu_utilization_ratio"),
        _ => 0..0,
    };
    families().map(|family| (family, own(family))).collect()
});

fn points(name: &str) -> Range<PointId> {
    let mut points = points_of(name, &[]).map(|(point, _)| point);
    points.next().map_or(0..0, |first| first..points.last().unwrap_or(first) + 1)
}

/// A missing function is the driver's fault, unless the board is older than the first that supports the family: no
/// driver reads the family there.
fn board_support(frame: &Frame, family: &Family, points: &Range<PointId>) -> Support {
    let is_later = |first| capability(frame).is_some_and(|own| own < first);
    match frame_support(frame, family, points) {
        Err(Absence::NoSymbol) if family.first_capability().is_some_and(is_later) => {
            Err(Absence::NotSupported)
        }
        support => support,
    }
}

fn capability(frame: &Frame) -> Option<(u32, u32)> {
    let (major, minor) = frame.identity.compute_capability.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn frame_support(frame: &Frame, family: &Family, points: &Range<PointId>) -> Support {
    let identity = &frame.identity;
    match &family.rows {
        Rows::Gpu(GpuRows::Read(_) | GpuRows::State(_) | GpuRows::Flow(_) | GpuRows::Integrals { .. }) => {
            points_support(frame, points)
        }
        Rows::Gpu(GpuRows::PlatformInfo) => {
            identity.platform.as_ref().map(|_| ()).ok_or(Absence::NotSupported)
        }
        Rows::Gpu(GpuRows::FabricInfo) => match &identity.fabric {
            Some(_) => Ok(()),
            // A GPU that is not registered yet has a fabric state, but no cluster or clique.
            None => Err(points_support(frame, points).err().unwrap_or(Absence::NotYet)),
        },
        Rows::Gpu(GpuRows::Busy) => busy_support(frame, points),
        Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
            best(points.iter().map(|point| instance_support(frame, point.value)))
        }
        Rows::Gpu(GpuRows::Processes) | Rows::Process([Labelled { value: ProcessValue::Memory, .. }, ..]) => {
            frame.processes.as_ref().map(|_| ()).map_err(|absence| *absence)
        }
        Rows::Process(_) => frame.samples.as_ref().map(|_| ()).map_err(|absence| *absence),
        _ => Ok(()),
    }
}

fn points_support(frame: &Frame, points: &Range<PointId>) -> Support {
    let readings = frame.readings.get(points.clone()).unwrap_or_default();
    best(readings.iter().map(|reading| reading.map(|_| ())))
}

/// The one point of the activity by GPM.
const GR_ENGINE: PointId = first_point("gpu_gr_engine_active_ratio");

/// Activity by any of its meters, of which the plain call has these points; no meter covers a GPU that is divided into
/// instances.
fn busy_support(frame: &Frame, utilization: &Range<PointId>) -> Support {
    if frame.identity.mig {
        return Err(Absence::NotSupported);
    }
    if frame.sampled.is_some() {
        return Ok(());
    }
    either(points_support(frame, &(GR_ENGINE..GR_ENGINE + 1)), points_support(frame, utilization))
}

/// The value of any instance; supported without instances. GPU instances are read through their first compute
/// instance.
fn instance_support(frame: &Frame, value: InstanceValue) -> Support {
    let same = |one: &InstanceFrame, next: &InstanceFrame| {
        one.identity.id.gpu_instance == next.identity.id.gpu_instance
    };
    let instances = frame.instances.chunk_by(same).filter_map(|instances| instances.first());
    best(instances.filter_map(|instance| Some(instance.readings.get(value as usize)?.map(|_| ()))))
}

/// The best of several; supported if there are none.
fn best(all: impl Iterator<Item = Support>) -> Support {
    all.reduce(either).unwrap_or(Ok(()))
}

/// Supported if either is; otherwise an absence that may end outranks a permanent one.
fn either(one: Support, other: Support) -> Support {
    match (one, other) {
        (Ok(()), _) | (_, Ok(())) => Ok(()),
        (Err(one), Err(other)) if other.is_permanent() && !one.is_permanent() => Err(one),
        (_, other) => other,
    }
}

/// The level from which on `gpumeter_source_info` has the source of a family that has one.
pub fn source_level(family: &Family) -> Level {
    family.source_level.map_or(Level::Full, |level| level.max(family.level))
}

/// Family and source of everything read of the GPU up to a level, as label values.
pub(super) fn sources(gpu: &TrackedGpu, level: Level) -> impl Iterator<Item = (Arc<str>, Arc<str>)> {
    let metered = METERED
        .iter()
        .filter(move |metered| source_level(metered.family) <= level || metered.is_substituted(gpu, level));
    metered.filter_map(|metered| Some((Arc::clone(&metered.name), label(metered.source(gpu)?))))
}

fn label(source: &'static str) -> Arc<str> {
    static LABELS: LazyLock<[Arc<str>; 5]> =
        LazyLock::new(|| [GPM_COUNTER, "gpm", "field", "call", "utilization"].map(Arc::from));
    LABELS.iter().find(|label| ***label == *source).map_or_else(|| source.into(), Arc::clone)
}

/// The source of totals that grow by GPM's own counters.
const GPM_COUNTER: &str = "gpm_counter";

/// A family whose source is published.
struct Metered {
    family: &'static Family,
    name: Arc<str>,
    /// The number of its first integral, which may grow by a counter.
    integral: usize,
    points: Range<PointId>,
}

static METERED: LazyLock<Vec<Metered>> = LazyLock::new(|| {
    let metered = numbered_families().zip(FAMILIES.iter());
    let metered = metered.filter(|((family, _), _)| family.source_level.is_some());
    let metered = metered.map(|((family, first), (_, points))| Metered {
        family,
        name: family.name.into(),
        integral: first.integral,
        points: points.clone(),
    });
    metered.collect()
});

impl Metered {
    fn is_substituted(&self, gpu: &TrackedGpu, level: Level) -> bool {
        matches!(self.family.rows, Rows::Gpu(GpuRows::Read(_)))
            && self.family.level <= level
            && gpu.frame.as_deref().and_then(|frame| via(frame, &self.points)).is_some_and(Via::is_substitute)
    }

    /// None where the family is not read.
    fn source(&self, gpu: &TrackedGpu) -> Option<&'static str> {
        let frame = gpu.frame.as_deref();
        let is_counted = || gpu.totals.get(self.integral).is_some_and(CounterTotal::uses_counter);
        Some(match &self.family.rows {
            Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_)) => match via(frame?, &self.points)? {
                _ if is_counted() => GPM_COUNTER,
                // The share of the driver's own window, which is shorter than a tick.
                Via::Call => ActivitySource::Utilization.name(),
                via => via.name(),
            },
            Rows::Gpu(GpuRows::Read(_)) => match via(frame?, &self.points)? {
                // GPM reads these bytes as a counter.
                Via::Gpm => GPM_COUNTER,
                via => via.name(),
            },
            Rows::Instance(InstanceRows::Integrals(points)) => instance_source(gpu, frame?, points)?,
            _ => gpu.account.source()?.name(),
        })
    }
}

/// The call that reads the first point with a value or a temporary absence; GPM may refuse a metric that was planned.
fn via(frame: &Frame, points: &Range<PointId>) -> Option<Via> {
    let ways = frame.identity.via.get(points.clone())?.iter().zip(frame.readings.get(points.clone())?);
    ways.filter(|(_, reading)| !reading.is_err_and(Absence::is_permanent)).find_map(|(via, _)| *via)
}

/// The source of the first supported value; all instances of a GPU are read alike.
fn instance_source(
    gpu: &TrackedGpu,
    frame: &Frame,
    points: &[Labelled<InstanceValue>],
) -> Option<&'static str> {
    let instance = frame.instances.first()?;
    let is_read = |value: &usize| {
        instance.readings.get(*value).is_some_and(|reading| !reading.is_err_and(Absence::is_permanent))
    };
    let value = points.iter().map(|point| point.value as usize).find(is_read)?;
    let totals = gpu.instance_totals.get(&instance.identity.id.gpu_instance);
    let is_counted = totals.and_then(|totals| totals.get(value)).is_some_and(CounterTotal::uses_counter);
    Some(if is_counted { GPM_COUNTER } else { Via::Gpm.name() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::model::catalogue::device_points;
    use crate::model::catalogue::{first_integral, first_point};
    use crate::model::{Bytes, GpuIdentity, InstanceId, InstanceIdentity, Reading};

    const NONE: Reading = Err(Absence::NotSupported);

    fn frame(capability: &str, absence: Absence, supported: &[&str]) -> Frame {
        let reading = |family: &Family| if supported.contains(&family.name) { Ok(1) } else { Err(absence) };
        let identity = GpuIdentity { compute_capability: capability.into(), ..GpuIdentity::default() };
        let readings = device_points().map(|(family, _)| reading(family)).collect();
        Frame { identity: Arc::new(identity), ..Frame::with(readings) }
    }

    fn instance(gpu_instance: u32, compute_instance: u32, activity: Reading) -> InstanceFrame {
        let reading = |value: InstanceValue| if value.is_ratio() { activity } else { Ok(1) };
        InstanceFrame {
            identity: InstanceIdentity {
                id: InstanceId { gpu_instance, compute_instance },
                uuid: "MIG-1".into(),
                placement: "4:4".into(),
                profile: "3g.40gb".into(),
                memory: Bytes(1),
            },
            readings: InstanceValue::ALL.map(reading).into(),
            counters: Box::default(),
        }
    }

    fn divided(instances: Vec<InstanceFrame>) -> Frame {
        let whole = frame("8.0", Absence::NotSupported, &["gpu_memory_used_bytes"]);
        let identity = GpuIdentity { mig: true, ..(*whole.identity).clone() };
        Frame { identity: Arc::new(identity), instances: instances.into(), ..whole }
    }

    fn support(frame: &Frame, name: &str) -> Support {
        family_support(frame).find(|(family, _)| family.name == name).unwrap().1
    }

    #[test]
    fn a_value_that_no_instance_has_is_unsupported_and_so_is_its_total() {
        // The second compute instance is not read: its GPU instance is, through the first one.
        let mut unread = instance(1, 1, NONE);
        unread.readings.fill(Err(Absence::NotYet));
        let frame = divided(vec![instance(1, 0, NONE), unread]);
        let absent = unsupported(&frame, Level::Full);
        for name in ["gpu_mig_sm_active_ratio", "gpu_mig_sm_active_seconds_total", "gpu_busy_seconds_total"] {
            assert!(absent.contains(&(name, Absence::NotSupported)), "{name} is not in {absent:?}");
        }
        assert_eq!(support(&frame, "gpu_mig_memory_used_bytes"), Ok(()));
        let lean = unsupported(&frame, Level::Lean);
        assert!(
            lean.iter().all(|(name, _)| crate::model::catalogue::family(name).unwrap().level == Level::Lean)
        );
    }

    #[test]
    fn a_value_of_one_instance_is_enough_and_without_instances_all_are_supported() {
        let frame = divided(vec![instance(1, 0, NONE), instance(2, 0, Ok(1))]);
        assert_eq!(support(&frame, "gpu_mig_sm_active_ratio"), Ok(()));
        assert_eq!(support(&divided(Vec::new()), "gpu_mig_sm_active_ratio"), Ok(()));
    }

    #[test]
    fn a_missing_function_is_the_boards_reason_where_no_driver_has_it_for_that_board() {
        for (capability, name, expected) in [
            ("7.5", "gpu_sm_active_ratio", Absence::NotSupported),
            ("7.5", "gpu_sm_active_seconds_total", Absence::NotSupported),
            ("8.9", "gpu_fabric_state", Absence::NotSupported),
            ("8.9", "gpu_fabric_info", Absence::NotSupported),
            ("8.6", "gpu_temperature_margin_celsius", Absence::NotSupported),
            ("8.9", "gpu_temperature_margin_celsius", Absence::NoSymbol),
            ("9.0", "gpu_sm_active_ratio", Absence::NoSymbol),
            ("", "gpu_sm_active_ratio", Absence::NoSymbol),
            // Newer drivers support it on every board.
            ("7.5", "gpu_pcie_bytes_total", Absence::NoSymbol),
        ] {
            let frame = frame(capability, Absence::NoSymbol, &[]);
            assert_eq!(support(&frame, name), Err(expected), "{capability} {name}");
        }
    }

    #[test]
    fn a_temporary_absence_outranks_a_permanent_one() {
        assert_eq!(either(Err(Absence::NotSupported), Err(Absence::Failed)), Err(Absence::Failed));
        assert_eq!(either(Err(Absence::Failed), Err(Absence::NotSupported)), Err(Absence::Failed));
        assert_eq!(either(Err(Absence::Failed), Ok(())), Ok(()));
    }

    #[test]
    fn the_fabric_of_a_gpu_that_is_not_registered_is_not_known_yet() {
        assert_eq!(
            support(&frame("9.0", Absence::NotSupported, &["gpu_fabric_state"]), "gpu_fabric_info"),
            Err(Absence::NotYet)
        );
    }

    #[test]
    fn every_total_of_the_agent_has_the_source_of_what_it_grows_by() {
        let names: Vec<&str> = METERED.iter().map(|metered| &*metered.name).collect();
        let totals = families().filter(|family| {
            matches!(
                family.rows,
                Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_))
                    | Rows::Instance(InstanceRows::Integrals(_))
            )
        });
        let totals: Vec<&str> = totals.map(|family| family.name).collect();
        assert!(totals.iter().all(|family| names.contains(family)));
        // Busy time, power, the bytes over NVLink that the driver counts beside them, and four of memory, which is the
        // host's on some boards.
        assert_eq!(names.len(), totals.len() + 3 + 4);
        let grows_by = |name: &str| {
            let metered = METERED.iter().find(|one| *one.name == *name).unwrap();
            (metered.integral, metered.points.clone())
        };
        const SM: (usize, PointId) =
            (first_integral("gpu_sm_active_seconds_total"), first_point("gpu_sm_active_ratio"));
        const PIPE: (usize, PointId) =
            (first_integral("gpu_pipe_active_seconds_total"), first_point("gpu_pipe_active_ratio"));
        assert_eq!(grows_by("gpu_sm_active_seconds_total"), (SM.0, SM.1..SM.1 + 1));
        assert_eq!(grows_by("gpu_pipe_active_seconds_total"), (PIPE.0, PIPE.1..PIPE.1 + 8));
        assert_eq!(grows_by("gpu_power_watts").1.len(), 1);
    }

    #[test]
    fn level_standard_has_the_sources_of_busy_time_power_and_pcie() {
        let published = METERED.iter().map(|metered| metered.family);
        let published = published.filter(|family| !matches!(family.rows, Rows::Instance(_)));
        let published =
            published.filter(|family| source_level(family) < Level::Full).map(|family| family.name);
        assert!(published.eq(["gpu_busy_seconds_total", "gpu_power_watts", "gpu_pcie_bytes_total"]));
    }
}
