//! Chooses how each point of the catalogue is read on this board: every source is called once, and a point uses
//! its first source that works.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::{self, CallValues, DriverFunction};
use super::driver_api::{DriverApi, Handle};
use super::fields::{FieldBatch, FieldQuery};
use super::gpm::GpmPair;
use super::quirks::DriverVersion;
use crate::model::catalogue::{
    Bound, COUNTING, CallValue, FAN, FIRST_GENERATION_WITHOUT_LINKS_TOTAL, Family, GpuRows, LINK_STATE,
    Level, MEMORY_ERRORS, MOST_LINKS, PointId, RENUMBERED, Rows, SRAM_ERRORS, Source, THRESHOLD,
    device_points,
};
use crate::model::{Absence, Reading, Via};

/// How a point is read on this board: a [`Source`] completed with what depends on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMethod {
    /// A value of the batched field call.
    Field {
        field: FieldQuery,
        times: i64,
    },
    /// The margin call minus this field.
    Margin {
        limit: FieldQuery,
    },
    /// A value of a call of its own.
    Call {
        value: CallValue,
        times: i64,
    },
    /// A bit of the clock event reasons, or all of them, unless a bit of `unless` is set.
    Reason {
        bit: u64,
        unless: u64,
    },
    Gpm(GpmMetrics),
}

/// One GPM metric, or the sum of the same metric over several links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpmMetrics {
    pub(super) first: u32,
    pub(super) links: u32,
    /// The factor, applied before rounding, since GPM returns fractions of a percent.
    pub(super) times: i64,
}

impl GpmMetrics {
    /// The driver's ids; link metrics have two ids per link, one for each direction.
    pub(super) fn ids(self) -> impl Iterator<Item = u32> {
        (0..self.links).map(move |link| self.first + 2 * link)
    }
}

#[derive(Clone, Copy)]
pub(super) struct ChosenMethod {
    pub(super) point: PointId,
    pub(super) family: &'static Family,
    pub(super) method: ReadMethod,
}

impl ChosenMethod {
    pub(super) fn bound(&self) -> Bound {
        match (&self.family.rows, self.method) {
            (Rows::Gpu(GpuRows::Flow(_)), ReadMethod::Gpm(_)) => Bound::RATE,
            // The catalogue's tests ensure that the family has one.
            _ => self.family.bound().unwrap_or(Bound::COUNTER),
        }
    }
}

pub(super) struct ProbeResult {
    pub(super) chosen: Vec<ChosenMethod>,
    /// The first reading of every point: absent for good, or not yet read.
    pub(super) initial: Vec<Reading>,
    /// The driver's counters as read here, in their families' units.
    pub(super) probed: Vec<Option<i64>>,
    /// The kind of source of each point; none if it is not read.
    pub(super) via: Vec<Option<Via>>,
    pub(super) links: u32,
    /// Whether GPM works on the device, and whether the driver has GPM's counters too.
    pub(super) has_gpm: bool,
    pub(super) has_gpm_counters: bool,
    /// True unless a choice was made because of a temporary failure.
    pub(super) is_final: bool,
}

#[derive(Clone, Copy)]
pub(super) struct ProbeRequest<'a> {
    /// Points up to this level are read.
    pub(super) level: Level,
    /// GPM metrics that the board refused when they were computed, although it supports GPM.
    pub(super) refused: &'a BTreeSet<u32>,
    /// Points whose field returned implausible values for long while a call returned plausible ones.
    pub(super) implausible: &'a BTreeSet<PointId>,
}

/// Calls every requested source once and chooses the source of every point.
pub(super) fn choose(
    api: &mut DriverApi,
    device: Handle,
    request: ProbeRequest<'_>,
) -> Result<ProbeResult, Absence> {
    let mut probe = BoardProbe::new(api, device, request)?;
    let (mut chosen, mut initial, mut probed, mut via) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (point, (family, candidates)) in device_points().enumerate() {
        let is_read = family.is_read_at(request.level);
        let answer = is_read.then(|| probe.choose(api, point, family, candidates.sources)).transpose();
        let method = answer.ok().flatten();
        initial.push(Err(answer.err().unwrap_or(Absence::NotYet)));
        probed.push(
            method.filter(|_| family.is_driver_counter()).and_then(|method| probe.probed_value(method)),
        );
        via.push(method.map(|chosen| chosen.method.via()));
        chosen.extend(method);
    }
    let has_gpm = probe.gpm.is_ok();
    let has_gpm_counters = has_gpm && has_counters(probe.facts.driver);
    let (links, is_final) = (probe.facts.links, probe.is_final);
    Ok(ProbeResult { chosen, initial, probed, via, links, has_gpm, has_gpm_counters, is_final })
}

#[derive(Clone, Copy)]
struct BoardFacts {
    /// The driver's version, if it reports one.
    driver: Option<DriverVersion>,
    links: u32,
    /// NVML's number of their generation, if the driver reports it.
    generation: Option<i64>,
}

impl BoardFacts {
    /// How to read a source; none if this board cannot have it.
    fn method(self, source: Source) -> Option<ReadMethod> {
        let field = |id, scope, times| Some(ReadMethod::Field { field: FieldQuery::one(id, scope), times });
        let gpm = |first, links, times| Some(ReadMethod::Gpm(GpmMetrics { first, links, times }));
        match source {
            Source::Field { id, scope, times } | Source::NotZero { id, scope, times } => {
                field(id, scope, times)
            }
            Source::Renumbered { before, since, times } => match self.driver? {
                // Older drivers use both numbers for other fields.
                driver if driver < NUMBERED => None,
                driver if driver < RENUMBERED => field(before, 0, times),
                _ => field(since, 0, times),
            },
            Source::Is { id, value } => {
                let field = FieldQuery { is: Some(value), ..FieldQuery::one(id, 0) };
                Some(ReadMethod::Field { field, times: 1 })
            }
            Source::Count { id, times } => field(id, 0, times),
            Source::Link { id, link, times } => field(id, link, times).filter(|_| link < self.links),
            Source::Links { id, times } => {
                let field = FieldQuery { scopes: self.links, ..FieldQuery::one(id, 0) };
                (self.links > 0).then_some(ReadMethod::Field { field, times })
            }
            Source::LinksTotal { id, times } => {
                // Drivers that do not report the generation support no board whose links keep no sums.
                let has_sums = self
                    .generation
                    .is_none_or(|generation| generation < FIRST_GENERATION_WITHOUT_LINKS_TOTAL.into());
                field(id, 0, times).filter(|_| self.links > 0 && has_sums)
            }
            Source::Margin { limit } => Some(ReadMethod::Margin { limit: FieldQuery::one(limit, 0) }),
            Source::Call { value, times } => Some(ReadMethod::Call { value, times }),
            Source::Reason { bit, unless } => Some(ReadMethod::Reason { bit, unless }),
            Source::Gpm { id, times } => gpm(id, 1, times),
            Source::GpmLinks { first, times } => {
                gpm(first, self.links, times).filter(|_| self.links > 0 && has_counters(self.driver))
            }
            // It is read in addition to the point's own source.
            Source::GpmCounter(_) => None,
        }
    }
}

impl ReadMethod {
    const fn via(self) -> Via {
        match self {
            Self::Field { .. } | Self::Margin { .. } => Via::Field,
            Self::Call { .. } | Self::Reason { .. } => Via::Call,
            Self::Gpm(_) => Via::Gpm,
        }
    }
}

/// The driver that brought the fields of [`Source::Renumbered`]: 575 (its header; that of 570 has other fields there).
const NUMBERED: DriverVersion = (575, 0);

/// Whether the driver has GPM's counters; assumed not if its version is unknown.
fn has_counters(driver: Option<DriverVersion>) -> bool {
    driver.is_some_and(|driver| driver >= COUNTING)
}

pub(super) fn link_count(api: &mut DriverApi, device: Handle) -> Result<i64, Absence> {
    read_link_fields(api, device)[0]
}

/// The number of NVLinks and their generation, as the GPU reports them.
fn read_link_fields(api: &mut DriverApi, device: Handle) -> [Result<i64, Absence>; 2] {
    let mut link_fields = FieldBatch::new([LINK_COUNT, LINK_VERSION].map(|id| FieldQuery::one(id, 0)).into());
    match link_fields.read(api, device) {
        Ok(()) => [0, 1].map(|position| link_fields.value(position)),
        Err(absence) => [Err(absence); 2],
    }
}

/// The number of NVLinks and whether it is final; an impossible number is 0 for now.
fn links(answer: Result<i64, Absence>) -> (u32, bool) {
    let possible = |links: i64| u32::try_from(links).ok().filter(|links| *links <= MOST_LINKS);
    let links = answer.and_then(|links| possible(links).ok_or(Absence::Rejected));
    (links.unwrap_or(0), links.err().is_none_or(Absence::is_permanent))
}

/// The field with the number of NVLinks.
const LINK_COUNT: u32 = 91;

/// The field with a link's generation, with the link as scope; drivers before 525 do not have it.
const LINK_VERSION: u32 = 166;

/// What the board returned when everything was called once.
struct BoardProbe<'a> {
    device: Handle,
    refused: &'a BTreeSet<u32>,
    implausible: &'a BTreeSet<PointId>,
    facts: BoardFacts,
    fields: FieldBatch,
    fields_read: Result<(), Absence>,
    functions: BTreeMap<DriverFunction, Result<CallValues, Absence>>,
    margin: Result<i64, Absence>,
    reasons: Result<u64, Absence>,
    gpm: Result<(), Absence>,
    ecc: Result<(), Absence>,
    fans: Result<u32, Absence>,
    /// True unless a choice was made because of a temporary failure.
    is_final: bool,
}

impl<'a> BoardProbe<'a> {
    fn new(
        api: &mut DriverApi,
        device: Handle,
        ProbeRequest { level, refused, implausible }: ProbeRequest<'a>,
    ) -> Result<Self, Absence> {
        let [count, generation] = read_link_fields(api, device);
        let (links, count_is_final) = links(count);
        let generation_is_final = links == 0 || generation.err().is_none_or(Absence::is_permanent);
        let facts = BoardFacts { driver: api.quirks().version, links, generation: generation.ok() };
        let mut fields = FieldBatch::new(all_fields(level, facts));
        let fields_read = fields.read(api, device);
        let probe = Self {
            device,
            refused,
            implausible,
            facts,
            fields,
            fields_read,
            functions: BTreeMap::new(),
            margin: calls::margin(api, device),
            reasons: calls::reasons(api, device),
            gpm: GpmPair::supported(api, device),
            ecc: calls::ecc(api, device),
            fans: calls::fans(api, device),
            is_final: count_is_final && generation_is_final,
        };
        api.take_fatal().map_or(Ok(probe), Err)
    }

    /// Chooses the first source with a plausible value; else the first that returned something or may do so
    /// later; else the reason of the first refusal.
    fn choose(
        &mut self,
        api: &mut DriverApi,
        point: PointId,
        family: &'static Family,
        sources: &[Source],
    ) -> Result<ChosenMethod, Absence> {
        let (mut refused, mut failed, mut implausible) = (None, None, None);
        for source in sources.iter().filter(|source| !matches!(source, Source::GpmCounter(_))) {
            let Some(method) = self.facts.method(*source) else {
                refused = refused.or(Some(Absence::NotSupported));
                continue;
            };
            let chosen = ChosenMethod { point, family, method };
            match self.check_source(api, *source, chosen) {
                Ok(()) if !self.is_plausible(chosen) => implausible = implausible.or(Some(chosen)),
                Ok(()) => {
                    self.is_final &= failed.is_none() && implausible.is_none();
                    return Ok(chosen);
                }
                Err(absence) if absence.is_permanent() => refused = refused.or(Some(absence)),
                Err(_) => failed = failed.or(Some(chosen)),
            }
        }
        self.is_final &= failed.is_none();
        implausible.or(failed).ok_or(refused.unwrap_or(Absence::NotSupported))
    }

    fn check_source(
        &mut self,
        api: &mut DriverApi,
        source: Source,
        ChosenMethod { point, method, .. }: ChosenMethod,
    ) -> Result<(), Absence> {
        let is_met = match method {
            ReadMethod::Field { .. } if self.implausible.contains(&point) => false,
            ReadMethod::Field { field, .. } => {
                let value = self.field(field)?;
                match source {
                    Source::NotZero { .. } => value != 0,
                    Source::Count { .. } => {
                        self.fields.position(field).is_some_and(|position| self.fields.is_wide(position))
                    }
                    _ => true,
                }
            }
            ReadMethod::Margin { limit } => self.margin.and_then(|_| self.field(limit)).map(|_| true)?,
            ReadMethod::Call { value, .. } => {
                let function = DriverFunction::of(value);
                self.check_meaningful(function)?;
                let device = self.device;
                let answer =
                    self.functions.entry(function).or_insert_with(|| calls::call(api, device, function));
                (*answer)?.get(value).map(|_| true)?
            }
            ReadMethod::Reason { .. } => self.reasons.map(|_| true)?,
            ReadMethod::Gpm(metric) => !self.refused.contains(&metric.first) && self.gpm.map(|()| true)?,
        };
        if is_met { Ok(()) } else { Err(Absence::NotSupported) }
    }

    /// Whether a function's value is meaningful on this board. Some boards return 0 for what they do not count
    /// (a 4080 SUPER's SRAM errors), or a temperature for a limit that they have as a distance.
    fn check_meaningful(&self, function: DriverFunction) -> Result<(), Absence> {
        let meant = match function.name {
            MEMORY_ERRORS | SRAM_ERRORS => return self.ecc,
            LINK_STATE => self.facts.links > 0,
            FAN => function.arguments[0] < self.fans?,
            // Boards with distances to their limits have no temperatures of the limits. What an older driver
            // without the margin call returns here on such a board is unknown, so it is not used.
            THRESHOLD => {
                let has_distances = DISTANCES.iter().any(|id| self.field(FieldQuery::one(*id, 0)).is_ok());
                self.margin.is_err() && !has_distances
            }
            _ => true,
        };
        if meant { Ok(()) } else { Err(Absence::NotSupported) }
    }

    /// Whether the value is plausible; only fields and calls are checked.
    fn is_plausible(&self, chosen: ChosenMethod) -> bool {
        !matches!(chosen.method, ReadMethod::Field { .. } | ReadMethod::Call { .. })
            || self.probed_value(chosen).is_some()
    }

    fn probed_value(&self, chosen: ChosenMethod) -> Option<i64> {
        let (raw, times) = match chosen.method {
            ReadMethod::Field { field, times } => (self.field(field).ok()?, times),
            ReadMethod::Call { value, times } => {
                let answer = self.functions.get(&DriverFunction::of(value))?.ok()?;
                (i64::try_from(answer.get(value).ok()?).ok()?, times)
            }
            _ => return None,
        };
        raw.checked_mul(times).and_then(|value| chosen.bound().accept(value))
    }

    fn field(&self, field: FieldQuery) -> Result<i64, Absence> {
        self.fields_read?;
        let position = self.fields.position(field).ok_or(Absence::NotSupported)?;
        self.fields.value(position)
    }
}

/// The fields of distances to thermal limits.
const DISTANCES: [u32; 4] = [193, 194, 195, 196];

fn all_fields(level: Level, facts: BoardFacts) -> Vec<FieldQuery> {
    let mut fields: Vec<FieldQuery> = device_points()
        .filter(|(family, _)| family.is_read_at(level))
        .flat_map(|(_, point)| point.sources)
        .filter_map(|source| match facts.method(*source)? {
            ReadMethod::Field { field, .. } | ReadMethod::Margin { limit: field } => Some(field),
            _ => None,
        })
        .chain(DISTANCES.map(|id| FieldQuery::one(id, 0)))
        .collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

#[cfg(test)]
mod tests {
    use super::super::quirks::Quirks;
    use super::*;

    const THROTTLE: Source = Source::Renumbered { before: 251, since: 269, times: 1 };

    fn id(facts: BoardFacts, source: Source) -> Option<u32> {
        match facts.method(source) {
            Some(ReadMethod::Field { field, .. }) => Some(field.id),
            _ => None,
        }
    }

    #[test]
    fn a_renumbered_field_is_asked_by_the_number_that_the_driver_knows() {
        let of = |version: &str| {
            id(BoardFacts { driver: Quirks::of(version).version, links: 0, generation: None }, THROTTLE)
        };
        assert_eq!(of("570.124.06"), None);
        assert_eq!(of("575.51.03"), Some(251));
        assert_eq!(of("580.65.06"), Some(251));
        assert_eq!(of("580.82.07"), Some(269));
        assert_eq!(of("590.48.01"), Some(269));
        // Other drivers use both numbers for other fields, so nothing is read without the version.
        assert_eq!([of(""), of("beta"), of("580")], [None; 3]);
    }

    #[test]
    fn only_links_that_the_gpu_has_are_read() {
        let facts = BoardFacts { driver: None, links: 2, generation: None };
        let link = |link| Source::Link { id: 165, link, times: 1 };
        assert!(facts.method(link(1)).is_some());
        assert_eq!(facts.method(link(2)), None);
        let sum = Source::Links { id: 165, times: 1 };
        let field = FieldQuery { scopes: 2, ..FieldQuery::one(165, 0) };
        assert_eq!(facts.method(sum), Some(ReadMethod::Field { field, times: 1 }));
        assert_eq!(BoardFacts { links: 0, ..facts }.method(sum), None);
    }

    #[test]
    fn links_are_added_up_by_gpm_from_the_driver_on_that_counts_them() {
        let sent = Source::GpmLinks { first: 262, times: 1 };
        let ids = |version: &str, links| match (BoardFacts {
            driver: Quirks::of(version).version,
            links,
            generation: None,
        })
        .method(sent)
        {
            Some(ReadMethod::Gpm(metric)) => metric.ids().collect(),
            _ => Vec::new(),
        };
        assert_eq!(ids("590.48.01", 3), [262, 264, 266]);
        for (version, links) in [("590.48.01", 0), ("580.105.08", 3), ("", 3)] {
            assert!(ids(version, links).is_empty(), "{version}");
        }
    }

    #[test]
    fn sums_of_the_drivers_own_are_asked_of_generations_that_keep_them() {
        let total = Source::LinksTotal { id: 38, times: 1 };
        let of = |links, generation| id(BoardFacts { driver: None, links, generation }, total);
        // NVLink 3 is 4 and 5, NVLink 4 is 6.
        assert_eq!([None, Some(4), Some(5)].map(|generation| of(12, generation)), [Some(38); 3]);
        assert_eq!([Some(6), Some(7)].map(|generation| of(18, generation)), [None; 2]);
        assert_eq!(of(0, Some(4)), None);
    }

    #[test]
    fn links_that_could_not_be_counted_for_now_leave_a_plan_that_is_looked_at_again() {
        assert_eq!(links(Ok(18)), (18, true));
        assert_eq!(links(Err(Absence::NotSupported)), (0, true));
        assert_eq!(links(Err(Absence::Failed)), (0, false));
        assert_eq!([-1, 1 << 40].map(|garbage| links(Ok(garbage))), [(0, false); 2]);
    }

    #[test]
    fn levels_ask_for_their_families_and_for_what_the_account_goes_by() {
        let facts = BoardFacts { driver: None, links: MOST_LINKS, generation: None };
        let counts = Level::ALL.map(|level| all_fields(level, facts).len());
        assert!(counts.is_sorted(), "{counts:?}");
        assert!(counts[1] < 100 && counts[2] > 300, "{counts:?}");
        let read = |name: &str| {
            device_points().any(|(family, _)| family.name == name && family.is_read_at(Level::Lean))
        };
        assert!(read("gpu_gr_engine_active_ratio") && read("gpu_engine_utilization_ratio"));
        assert!(!read("gpu_sm_active_ratio"));
    }
}
