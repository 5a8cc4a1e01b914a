//! Which meter serves the metrics whose exactness depends on it, as `gpumeter_source_info` says.
//!
//! In goes a GPU as the meter follows it, out come pairs of family and source. It does not know the labels.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::TrackedGpu;
use super::since::CounterTotal;
use crate::catalogue::{
    Family, GpuRows, InstanceRows, InstanceValue, IntegralOf, Labelled, Level, PointId, Rows, device_points,
    integral_of, numbered_families,
};
use crate::model::{Absence, ActivitySource, Frame, Via};

/// From which level on the source of a family is told, where it is: a node with many GPUs pays for each row.
pub fn source_told_from(family: &Family) -> Level {
    family.source_level.map_or(Level::Full, |level| level.max(family.level))
}

/// Family and source of what is read of the GPU up to a level, as labels: the texts are made once.
pub(super) fn sources(gpu: &TrackedGpu, level: Level) -> impl Iterator<Item = (Arc<str>, Arc<str>)> {
    let told = METERED.iter().filter(move |metered| metered.from <= level);
    told.filter_map(|metered| Some((Arc::clone(&metered.label), word(metered.source(gpu)?))))
}

/// The sources, as far as they are told of often.
static WORDS: LazyLock<[Arc<str>; 5]> =
    LazyLock::new(|| [COUNTER, "gpm", "field", "call", "utilization"].map(Arc::from));

fn word(source: &'static str) -> Arc<str> {
    WORDS.iter().find(|word| ***word == *source).map_or_else(|| source.into(), Arc::clone)
}

/// The source of what goes by GPM's own counter.
const COUNTER: &str = "gpm_counter";

/// A family of which it is told.
struct Metered {
    /// Its name.
    label: Arc<str>,
    /// From which level on.
    from: Level,
    by: SourceLookup,
}

/// Where to look for what serves it.
enum SourceLookup {
    /// The account, whose own it is.
    Account,
    /// The way of its points.
    Points(Range<PointId>),
    /// The first of its integrals, which a counter may tell, and the points of what else does.
    Integral(usize, Range<PointId>),
    /// Totals of MIG instances.
    Instance(&'static [Labelled<InstanceValue>]),
}

/// All of them.
static METERED: LazyLock<Vec<Metered>> = LazyLock::new(|| {
    let mut metered = Vec::new();
    for (family, first) in numbered_families() {
        let by = match &family.rows {
            Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_)) => {
                let (IntegralOf::Ratio(point) | IntegralOf::Flow(point)) = integral_of(first.integral);
                SourceLookup::Integral(first.integral, points_beside(point))
            }
            Rows::Gpu(GpuRows::Read(points)) => SourceLookup::Points(first.point..first.point + points.len()),
            Rows::Instance(InstanceRows::Integrals(points)) => SourceLookup::Instance(points),
            _ => SourceLookup::Account,
        };
        if family.source_level.is_some() {
            metered.push(Metered { label: family.name.into(), from: source_told_from(family), by });
        }
    }
    metered
});

/// A point and those of its family that follow.
fn points_beside(first: PointId) -> Range<PointId> {
    let mut families = device_points().map(|(family, _)| family.name).skip(first);
    let name = families.next();
    first..first + 1 + families.take_while(|other| Some(*other) == name).count()
}

impl Metered {
    /// None where nothing serves it; what is not read at this level is counted no more, either.
    fn source(&self, gpu: &TrackedGpu) -> Option<&'static str> {
        if matches!(self.by, SourceLookup::Account) {
            return gpu.account.source().map(ActivitySource::name);
        }
        let frame = gpu.frame.as_deref()?;
        match &self.by {
            SourceLookup::Account => None,
            SourceLookup::Points(points) => Some(match via(frame, points)? {
                // Of bytes that the driver counts GPM has a counter, too, and no rate is asked for.
                Via::Gpm => COUNTER,
                via => via.name(),
            }),
            SourceLookup::Integral(integral, points) => {
                let via = via(frame, points)?;
                let counts = gpu.since.get(*integral).is_some_and(CounterTotal::is_in_force);
                Some(match via {
                    _ if counts => COUNTER,
                    // A share of the driver's window, which is shorter than a tick.
                    Via::Call => ActivitySource::Utilization.name(),
                    via => via.name(),
                })
            }
            SourceLookup::Instance(points) => of_instances(gpu, frame, points),
        }
    }
}

/// By what the first point is read that is; GPM may refuse a metric after it was planned.
fn via(frame: &Frame, points: &Range<PointId>) -> Option<Via> {
    let ways = frame.identity.via.get(points.clone())?.iter().zip(frame.readings.get(points.clone())?);
    ways.filter(|(_, reading)| !reading.is_err_and(Absence::is_permanent)).find_map(|(via, _)| *via)
}

/// All instances of a GPU are read alike; by what the first value is read that is.
fn of_instances(gpu: &TrackedGpu, frame: &Frame, points: &[Labelled<InstanceValue>]) -> Option<&'static str> {
    let instance = frame.instances.first()?;
    let is_read = |value: &usize| {
        instance.readings.get(*value).is_some_and(|reading| !reading.is_err_and(Absence::is_permanent))
    };
    let value = points.iter().map(|point| point.value as usize).find(is_read)?;
    let since = gpu.instances_since.get(&instance.identity.id.gpu_instance);
    let counts = since.and_then(|since| since.get(value)).is_some_and(CounterTotal::is_in_force);
    Some(if counts { COUNTER } else { Via::Gpm.name() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{families, first_integral, first_point};

    #[test]
    fn every_total_of_the_agent_has_a_source_and_looks_for_it_at_what_it_grows_by() {
        let told: Vec<&str> = METERED.iter().map(|metered| &*metered.label).collect();
        let totals = families().filter(|family| {
            matches!(
                family.rows,
                Rows::Gpu(GpuRows::Integrals { .. } | GpuRows::Flow(_))
                    | Rows::Instance(InstanceRows::Integrals(_))
            )
        });
        let totals: Vec<&str> = totals.map(|family| family.name).collect();
        assert!(totals.iter().all(|family| told.contains(family)));
        // Busy time, power and the bytes over NVLink that the driver counts beside them.
        assert_eq!(told.len(), totals.len() + 3);
        let by = |name: &str| METERED.iter().find(|one| *one.label == *name).map(|one| &one.by);
        const SM: (usize, PointId) =
            (first_integral("gpu_sm_active_seconds_total"), first_point("gpu_sm_active_ratio"));
        const PIPE: (usize, PointId) =
            (first_integral("gpu_pipe_active_seconds_total"), first_point("gpu_pipe_active_ratio"));
        assert!(matches!(by("gpu_sm_active_seconds_total"), Some(SourceLookup::Integral(integral, points))
            if (*integral, points.start) == SM && points.len() == 1));
        assert!(matches!(by("gpu_pipe_active_seconds_total"), Some(SourceLookup::Integral(integral, points))
            if (*integral, points.start) == PIPE && points.len() == 8));
        assert!(matches!(by("gpu_power_watts"), Some(SourceLookup::Points(points)) if points.len() == 1));
    }

    #[test]
    fn level_standard_tells_of_busy_time_power_and_pcie() {
        let shown = METERED.iter().filter(|metered| !matches!(metered.by, SourceLookup::Instance(_)));
        let shown = shown.filter(|metered| metered.from < Level::Full).map(|metered| &*metered.label);
        assert!(shown.eq(["gpu_busy_seconds_total", "gpu_power_watts", "gpu_pcie_bytes_total"]));
    }
}
