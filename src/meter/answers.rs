//! Which metric families a GPU supports, judged by one frame, and why the others are missing. `gpu_unsupported` and the
//! doctor both use it, so they never differ.
//!
//! In goes a frame, its instances included. It does not know what the configuration leaves out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use crate::catalogue::{
    Family, GpuRows, InstanceRows, InstanceValue, Labelled, Level, PointId, ProcessValue, Rows,
    device_points, families,
};
use crate::model::{Absence, Frame, InstanceFrame};

/// Whether a family is supported; one value is enough.
type FamilyAnswer = Result<(), Absence>;

/// Every family in the order of the page, with how the GPU answers it.
pub fn answers(frame: &Frame) -> impl Iterator<Item = (&'static Family, Result<(), Absence>)> {
    let told = FrameAnswers { frame };
    FAMILIES.iter().map(move |(family, points)| (*family, told.of_board(family, points)))
}

/// Families up to that level of which the GPU can answer nothing, ever, and why.
pub fn unsupported(frame: &Frame, level: Level) -> Vec<(&'static str, Absence)> {
    let shown = answers(frame).filter(|(family, _)| family.level <= level);
    let absent = shown.filter_map(|(family, answer)| Some((family.name, answer.err()?)));
    absent.filter(|(_, absence)| absence.is_permanent()).collect()
}

/// The points of each family that has some.
static POINTS: LazyLock<BTreeMap<&'static str, Range<PointId>>> = LazyLock::new(|| {
    let mut points = BTreeMap::new();
    for (point, (family, _)) in device_points().enumerate() {
        points.entry(family.name).or_insert(point..point).end = point + 1;
    }
    points
});

/// A family with the points that answer for it: its own, or those that its values are integrals of.
type FamilySources = (&'static Family, Vec<Range<PointId>>);

static FAMILIES: LazyLock<Vec<FamilySources>> = LazyLock::new(|| {
    let of = |name: &str| POINTS.get(name).cloned().unwrap_or_default();
    let points = |family: &Family| match &family.rows {
        Rows::Gpu(GpuRows::Read(_) | GpuRows::State(_) | GpuRows::Flow(_)) => vec![of(family.name)],
        Rows::Gpu(GpuRows::Integrals { of: ratio, .. }) => vec![of(ratio)],
        _ => Vec::new(),
    };
    families().map(|family| (family, points(family))).collect()
});

/// The support of families by one frame.
struct FrameAnswers<'a> {
    frame: &'a Frame,
}

impl FrameAnswers<'_> {
    /// A driver that lacks a function says nothing of the board: one that came before the first board with it would
    /// not tell with any driver.
    fn of_board(&self, family: &Family, points: &[Range<PointId>]) -> FamilyAnswer {
        let comes_later = |first| self.capability().is_some_and(|own| own < first);
        match self.of(family, points) {
            Err(Absence::NoSymbol) if family.first_capability().is_some_and(comes_later) => {
                Err(Absence::NotSupported)
            }
            answer => answer,
        }
    }

    /// CUDA compute capability, where it is known.
    fn capability(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.frame.identity.compute_capability.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    fn of(&self, family: &Family, points: &[Range<PointId>]) -> FamilyAnswer {
        let identity = &self.frame.identity;
        match &family.rows {
            Rows::Gpu(
                GpuRows::Read(_) | GpuRows::State(_) | GpuRows::Flow(_) | GpuRows::Integrals { .. },
            ) => best(points.iter().map(|points| self.read(points))),
            Rows::Gpu(GpuRows::PlatformInfo) => {
                identity.platform.as_ref().map(|_| ()).ok_or(Absence::NotSupported)
            }
            Rows::Gpu(GpuRows::FabricInfo) => match &identity.fabric {
                Some(_) => Ok(()),
                // A GPU that is not registered yet has a fabric state, but no cluster or clique.
                None => Err(self.reading("gpu_fabric_state").err().unwrap_or(Absence::NotYet)),
            },
            Rows::Gpu(GpuRows::Busy) => self.busy(),
            Rows::Instance(InstanceRows::Read(points) | InstanceRows::Integrals(points)) => {
                best(points.iter().map(|point| self.instance(point.value)))
            }
            Rows::Process([Labelled { value: ProcessValue::Memory, .. }, ..]) => {
                self.frame.processes.as_ref().map(|_| ()).map_err(|absence| *absence)
            }
            Rows::Process(_) => self.frame.samples.as_ref().map(|_| ()).map_err(|absence| *absence),
            _ => Ok(()),
        }
    }

    fn reading(&self, family: &str) -> FamilyAnswer {
        POINTS.get(family).map_or(Ok(()), |points| self.read(points))
    }

    fn read(&self, points: &Range<PointId>) -> FamilyAnswer {
        let readings = self.frame.readings.get(points.clone()).unwrap_or_default();
        best(readings.iter().map(|reading| reading.map(|_| ())))
    }

    /// Activity by any of its meters; no meter covers a GPU that is divided into instances.
    fn busy(&self) -> FamilyAnswer {
        if self.frame.identity.mig {
            return Err(Absence::NotSupported);
        }
        if self.frame.sampled.is_some() {
            return Ok(());
        }
        either(self.reading("gpu_gr_engine_active_ratio"), self.reading("gpu_utilization_ratio"))
    }

    /// A reading of any instance; without instances there is nothing that could not be told. GPU instances are read
    /// by their first compute instance.
    fn instance(&self, value: InstanceValue) -> FamilyAnswer {
        let same = |one: &InstanceFrame, next: &InstanceFrame| {
            one.identity.id.gpu_instance == next.identity.id.gpu_instance
        };
        let instances = self.frame.instances.chunk_by(same).filter_map(|instances| instances.first());
        best(instances.filter_map(|instance| Some(instance.readings.get(value as usize)?.map(|_| ()))))
    }
}

/// The best of several answers.
fn best(answers: impl Iterator<Item = FamilyAnswer>) -> FamilyAnswer {
    answers.reduce(either).unwrap_or(Ok(()))
}

/// Supported if either is; otherwise an absence that may end outranks a permanent one.
fn either(one: FamilyAnswer, other: FamilyAnswer) -> FamilyAnswer {
    match (one, other) {
        (Ok(()), _) | (_, Ok(())) => Ok(()),
        (Err(one), Err(other)) if other.is_permanent() && !one.is_permanent() => Err(one),
        (_, other) => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Bytes, GpuIdentity, InstanceId, InstanceIdentity, Reading};

    const NONE: Reading = Err(Absence::NotSupported);

    /// A GPU of that capability, of which no family is answered but those.
    fn frame(capability: &str, absence: Absence, answered: &[&str]) -> Frame {
        let reading = |family: &Family| if answered.contains(&family.name) { Ok(1) } else { Err(absence) };
        let identity = GpuIdentity { compute_capability: capability.into(), ..GpuIdentity::default() };
        let readings = device_points().map(|(family, _)| reading(family)).collect();
        Frame { identity: Arc::new(identity), ..Frame::with(readings) }
    }

    /// The instance with these ids, of which memory is told, and that about activity.
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

    fn cut(instances: Vec<InstanceFrame>) -> Frame {
        let whole = frame("8.0", Absence::NotSupported, &["gpu_memory_used_bytes"]);
        let identity = GpuIdentity { mig: true, ..(*whole.identity).clone() };
        Frame { identity: Arc::new(identity), instances: instances.into(), ..whole }
    }

    fn answer(frame: &Frame, name: &str) -> FamilyAnswer {
        answers(frame).find(|(family, _)| family.name == name).unwrap().1
    }

    #[test]
    fn what_no_instance_can_tell_is_unsupported_and_so_is_its_total() {
        // The second compute instance is not read: its GPU instance is, through the first one.
        let mut unread = instance(1, 1, NONE);
        unread.readings.fill(Err(Absence::NotYet));
        let frame = cut(vec![instance(1, 0, NONE), unread]);
        let absent = unsupported(&frame, Level::Full);
        for name in ["gpu_mig_sm_active_ratio", "gpu_mig_sm_active_seconds_total", "gpu_busy_seconds_total"] {
            assert!(absent.contains(&(name, Absence::NotSupported)), "{name} is not in {absent:?}");
        }
        assert_eq!(answer(&frame, "gpu_mig_memory_used_bytes"), Ok(()));
        let lean = unsupported(&frame, Level::Lean);
        assert!(lean.iter().all(|(name, _)| crate::catalogue::family(name).unwrap().level == Level::Lean));
    }

    #[test]
    fn one_instance_that_tells_is_enough_and_without_instances_nothing_is_missing() {
        let frame = cut(vec![instance(1, 0, NONE), instance(2, 0, Ok(1))]);
        assert_eq!(answer(&frame, "gpu_mig_sm_active_ratio"), Ok(()));
        assert_eq!(answer(&cut(Vec::new()), "gpu_mig_sm_active_ratio"), Ok(()));
    }

    #[test]
    fn what_an_old_driver_lacks_is_the_boards_reason_where_no_driver_tells_it_of_that_board() {
        for (capability, name, expected) in [
            ("7.5", "gpu_sm_active_ratio", Absence::NotSupported),
            ("7.5", "gpu_sm_active_seconds_total", Absence::NotSupported),
            ("8.9", "gpu_fabric_state", Absence::NotSupported),
            ("8.9", "gpu_fabric_info", Absence::NotSupported),
            ("8.6", "gpu_temperature_margin_celsius", Absence::NotSupported),
            ("8.9", "gpu_temperature_margin_celsius", Absence::NoSymbol),
            ("9.0", "gpu_sm_active_ratio", Absence::NoSymbol),
            ("", "gpu_sm_active_ratio", Absence::NoSymbol),
            // Newer drivers tell it of every board.
            ("7.5", "gpu_pcie_bytes_total", Absence::NoSymbol),
        ] {
            let frame = frame(capability, Absence::NoSymbol, &[]);
            assert_eq!(answer(&frame, name), Err(expected), "{capability} {name}");
        }
    }

    #[test]
    fn what_may_pass_is_not_for_good_beside_what_is() {
        assert_eq!(either(Err(Absence::NotSupported), Err(Absence::Failed)), Err(Absence::Failed));
        assert_eq!(either(Err(Absence::Failed), Err(Absence::NotSupported)), Err(Absence::Failed));
        assert_eq!(either(Err(Absence::Failed), Ok(())), Ok(()));
    }

    #[test]
    fn a_gpu_on_its_way_into_a_fabric_has_a_state_and_no_place_yet() {
        assert_eq!(
            answer(&frame("9.0", Absence::NotSupported, &["gpu_fabric_state"]), "gpu_fabric_info"),
            Err(Absence::NotYet)
        );
    }
}
