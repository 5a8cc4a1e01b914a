//! Choosing how each point of the catalogue is read on this board: everything is asked once, and of a
//! point's sources the first that answers is its way.
//!
//! In go the catalogue's rows up to a level, out comes a way or an absence for each point. It does not know
//! when anything is read.

use std::collections::{BTreeMap, BTreeSet};

use super::calls::{self, Function, Values};
use super::door::{Door, Handle};
use super::fields::{Batch, Field};
use super::gpm::Pair;
use crate::catalogue::{
    Bound, COUNTING, CallValue, Counter, Family, Level, MOST_LINKS, PointId, RENUMBERED, Rows, Source,
    UNCOUNTED, counters, device_points,
};
use crate::model::{Absence, Reading, Via};

/// How a point is read on this board; a [`Source`] with everything filled in that the board decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A value of the batched field call.
    Field { field: Field, times: i64 },
    /// The margin call less this field.
    Margin { limit: Field },
    /// A value of a call of its own.
    Call { value: CallValue, times: i64 },
    /// A bit of the clock event reasons, unless one of the others is set.
    Reason { bit: u64, unless: u64 },
    /// Metrics of the GPM pair, added up.
    Gpm { metric: Metric, times: i64 },
}

/// Metrics of GPM of which the sum is asked for: one, or the same of several links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    pub(super) first: u32,
    pub(super) links: u32,
}

impl Metric {
    /// The driver's ids; those of links come in pairs, by direction.
    pub(super) fn ids(self) -> impl Iterator<Item = u32> {
        (0..self.links).map(move |link| self.first + 2 * link)
    }
}

/// A point with its way.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) point: PointId,
    pub(super) family: &'static Family,
    pub(super) way: Way,
}

impl Chosen {
    /// What its readings can be.
    pub(super) fn bound(&self) -> Bound {
        match (&self.family.rows, self.way) {
            (Rows::Flow(_), Way::Gpm { .. }) => Bound::RATE,
            // By the catalogue's laws there is one.
            _ => self.family.bound().unwrap_or(Bound::COUNTER),
        }
    }
}

/// What was chosen for all points.
pub(super) struct Choice {
    pub(super) chosen: Vec<Chosen>,
    /// What every point starts from: absent for good, or not yet read.
    pub(super) blank: Vec<Reading>,
    /// What the driver's counters stood at, in their families' units.
    pub(super) probed: Vec<Option<i64>>,
    /// By what each point is read, none where it is not.
    pub(super) via: Vec<Option<Via>>,
    /// Whether GPM works on the device.
    pub(super) gpm: bool,
    /// What GPM may count of the GPU.
    pub(super) counters: Vec<Counter>,
    /// What GPM may count of each of its instances.
    pub(super) of_instances: Vec<Counter>,
    /// Whether no failure that may pass decided a choice.
    pub(super) whole: bool,
}

/// What is asked for, and what is known of the board before it is asked.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Everything up to this.
    pub(super) level: Level,
    /// GPM's metrics that the board refused when they were computed: support is told of GPM as a whole.
    pub(super) refused: &'a BTreeSet<u32>,
    /// Points whose field answered garbage for long while a call answered well.
    pub(super) garbled: &'a BTreeSet<PointId>,
}

/// Asks the board for everything that is wanted, once.
pub(super) fn choose(
    door: &mut Door,
    device: Handle,
    wanted: Wanted<'_>,
    driver_version: &str,
) -> Result<Choice, Absence> {
    let level = wanted.level;
    let driver = driver(driver_version);
    let mut probe = Probe::new(door, device, wanted, driver)?;
    let (mut chosen, mut blank, mut via) = (Vec::new(), Vec::new(), Vec::new());
    let mut probed = Vec::new();
    for (point, (family, candidates)) in device_points().enumerate() {
        let way = family
            .is_read_at(level)
            .then(|| probe.choose(door, (point, family), candidates.sources))
            .transpose();
        via.push(way.ok().flatten().map(|chosen| chosen.way.via()));
        let counts = way.ok().flatten().filter(|_| family.is_driver_counter());
        probed.push(counts.and_then(|counter| probe.stood(counter)));
        match way {
            Ok(way) => {
                blank.push(Err(Absence::NotYet));
                chosen.extend(way);
            }
            Err(absence) => blank.push(Err(absence)),
        }
    }
    let counts = probe.gpm.is_ok() && is_counting(driver);
    let counted = |of_instances| if counts { counters(level, of_instances) } else { Vec::new() };
    Ok(Choice {
        chosen,
        blank,
        probed,
        via,
        gpm: probe.gpm.is_ok(),
        counters: counted(false),
        of_instances: counted(true),
        whole: probe.whole,
    })
}

/// What of a board decides how a source is asked.
#[derive(Clone, Copy)]
struct Facts {
    /// Major and minor number of the driver, where it tells.
    driver: Option<(u32, u32)>,
    /// How many NVLinks the GPU has.
    links: u32,
    /// NVML's number of their generation, where the driver tells.
    generation: Option<i64>,
}

impl Facts {
    /// The way that a source names; none where this board cannot have it.
    fn way(self, source: Source) -> Option<Way> {
        Some(match source {
            Source::Field { id, scope, times } => Way::Field { field: Field::one(id, scope), times },
            Source::Renumbered { before, since, times } => {
                let id = match self.driver? {
                    // There, both numbers are of other fields.
                    driver if driver < NUMBERED => return None,
                    driver if driver < RENUMBERED => before,
                    _ => since,
                };
                Way::Field { field: Field::one(id, 0), times }
            }
            Source::Is { id, value } => {
                Way::Field { field: Field { is: Some(value), ..Field::one(id, 0) }, times: 1 }
            }
            Source::NotZero { id, times } | Source::Count { id, times } => {
                Way::Field { field: Field::one(id, 0), times }
            }
            Source::Link { id, link, times } => {
                if link >= self.links {
                    return None;
                }
                Way::Field { field: Field::one(id, link), times }
            }
            Source::Links { id, times } => {
                if self.links == 0 {
                    return None;
                }
                Way::Field { field: Field { scopes: self.links, ..Field::one(id, 0) }, times }
            }
            Source::LinksTotal { id, times } => {
                // Drivers that do not tell the generation know none of those that keep no sums.
                if self.links == 0 || self.generation.is_some_and(|of| of >= UNCOUNTED.into()) {
                    return None;
                }
                Way::Field { field: Field::one(id, 0), times }
            }
            Source::Margin { limit } => Way::Margin { limit: Field::one(limit, 0) },
            Source::Call { value, times } => Way::Call { value, times },
            Source::Reason { bit, unless } => Way::Reason { bit, unless },
            Source::Gpm { id, times } => Way::Gpm { metric: Metric { first: id, links: 1 }, times },
            Source::GpmLinks { first, times } => {
                if self.links == 0 || !is_counting(self.driver) {
                    return None;
                }
                Way::Gpm { metric: Metric { first, links: self.links }, times }
            }
            // It is read beside the point's own way.
            Source::Since(_) => return None,
        })
    }
}

impl Way {
    /// By what it is read, in words of [`Via`].
    const fn via(self) -> Via {
        match self {
            Self::Field { .. } | Self::Margin { .. } => Via::Field,
            Self::Call { .. } | Self::Reason { .. } => Via::Call,
            Self::Gpm { .. } => Via::Gpm,
        }
    }
}

/// The driver that brought the fields of [`Source::Renumbered`]: 575 (its header; that of 570 has other fields there).
const NUMBERED: (u32, u32) = (575, 0);

/// Whether the driver has GPM's counters; one that does not tell its version is not asked.
fn is_counting(driver: Option<(u32, u32)>) -> bool {
    driver.is_some_and(|driver| driver >= COUNTING)
}

/// `580.95.05` to 580 and 95.
fn driver(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the GPU says of how many NVLinks it has.
pub(super) fn link_count(door: &mut Door, device: Handle) -> Result<i64, Absence> {
    said_of_links(door, device)[0]
}

/// How many NVLinks the GPU says it has, and of which generation.
fn said_of_links(door: &mut Door, device: Handle) -> [Result<i64, Absence>; 2] {
    let mut said = Batch::new([LINK_COUNT, LINK_VERSION].map(|id| Field::one(id, 0)).into());
    match said.read(door, device) {
        Ok(()) => [0, 1].map(|position| said.value(position)),
        Err(absence) => [Err(absence); 2],
    }
}

/// How many NVLinks that are, and whether that is for good; a number that no GPU can have is none for now.
fn links(answer: Result<i64, Absence>) -> (u32, bool) {
    let possible = |links: i64| u32::try_from(links).ok().filter(|links| *links <= MOST_LINKS);
    let links = answer.and_then(|links| possible(links).ok_or(Absence::Rejected));
    (links.unwrap_or(0), links.err().is_none_or(Absence::is_permanent))
}

/// The field that counts NVLinks.
const LINK_COUNT: u32 = 91;

/// The field of a link's generation, with the link as scope; drivers before 525 do not know it.
const LINK_VERSION: u32 = 166;

/// What the board answers when asked for everything once.
struct Probe<'a> {
    device: Handle,
    refused: &'a BTreeSet<u32>,
    garbled: &'a BTreeSet<PointId>,
    facts: Facts,
    fields: Batch,
    answered: Result<(), Absence>,
    functions: BTreeMap<Function, Result<Values, Absence>>,
    margin: Result<i64, Absence>,
    reasons: Result<u64, Absence>,
    gpm: Result<(), Absence>,
    ecc: Result<(), Absence>,
    fans: Result<u32, Absence>,
    /// Whether no failure that may pass decided a choice.
    whole: bool,
}

impl<'a> Probe<'a> {
    fn new(
        door: &mut Door,
        device: Handle,
        Wanted { level, refused, garbled }: Wanted<'a>,
        driver: Option<(u32, u32)>,
    ) -> Result<Self, Absence> {
        let [count, generation] = said_of_links(door, device);
        let (links, settled) = links(count);
        let told = links == 0 || generation.err().is_none_or(Absence::is_permanent);
        let facts = Facts { driver, links, generation: generation.ok() };
        let mut fields = Batch::new(all_fields(level, facts));
        let answered = fields.read(door, device);
        let probe = Self {
            device,
            refused,
            garbled,
            facts,
            fields,
            answered,
            functions: BTreeMap::new(),
            margin: calls::margin(door, device),
            reasons: calls::reasons(door, device),
            gpm: Pair::supported(door, device),
            ecc: calls::ecc(door, device),
            fans: calls::fans(door, device),
            whole: settled && told,
        };
        door.take_gone().map_or(Ok(probe), Err)
    }

    /// The first source that answers what can be; else the first that answers or may answer later; else why the
    /// first was refused.
    fn choose(
        &mut self,
        door: &mut Door,
        (point, family): (PointId, &'static Family),
        sources: &[Source],
    ) -> Result<Chosen, Absence> {
        let (mut refused, mut failed, mut implausible) = (None, None, None);
        for source in sources {
            if matches!(source, Source::Since(_)) {
                // Read beside the point's own way, it decides nothing.
                continue;
            }
            let Some(way) = self.facts.way(*source) else {
                refused = refused.or(Some(Absence::NotSupported));
                continue;
            };
            let chosen = Chosen { point, family, way };
            match self.ask(door, chosen).and_then(|()| self.accept(*source, way)) {
                Ok(()) if !self.is_plausible(chosen) => implausible = implausible.or(Some(chosen)),
                Ok(()) => {
                    self.whole &= failed.is_none() && implausible.is_none();
                    return Ok(chosen);
                }
                Err(absence) if absence.is_permanent() => refused = refused.or(Some(absence)),
                Err(_) => failed = failed.or(Some(chosen)),
            }
        }
        self.whole &= failed.is_none();
        implausible.or(failed).ok_or(refused.unwrap_or(Absence::NotSupported))
    }

    fn ask(&mut self, door: &mut Door, Chosen { point, way, .. }: Chosen) -> Result<(), Absence> {
        match way {
            Way::Field { .. } if self.garbled.contains(&point) => Err(Absence::NotSupported),
            Way::Field { field, .. } => self.field(field).map(|_| ()),
            Way::Margin { limit } => {
                self.margin?;
                self.field(limit).map(|_| ())
            }
            Way::Call { value, .. } => {
                let function = calls::function(value);
                self.is_meant(function)?;
                let device = self.device;
                let answer =
                    self.functions.entry(function).or_insert_with(|| calls::call(door, device, function));
                (*answer)?.get(value).map(|_| ())
            }
            Way::Reason { .. } => self.reasons.map(|_| ()),
            Way::Gpm { metric, .. } if self.refused.contains(&metric.first) => Err(Absence::NotSupported),
            Way::Gpm { .. } => self.gpm,
        }
    }

    /// Whether a function's answer would mean something on this board. Some boards answer 0 where they do
    /// not count (a 4080 SUPER's SRAM errors), or a temperature for a limit that they know as a distance.
    fn is_meant(&self, function: Function) -> Result<(), Absence> {
        let meant = match function {
            Function::EccCounter { .. } | Function::Sram => return self.ecc,
            Function::NvLinksUp => self.facts.links > 0,
            Function::Fan(fan) => fan < self.fans?,
            // Boards that know distances to their limits know no temperatures of them. An older driver lacks the
            // margin call; what it answers here on such a board was never seen, so that is no reason to believe it.
            Function::Threshold(_) => self.margin.is_err() && !self.has_distances(),
            _ => true,
        };
        if meant { Ok(()) } else { Err(Absence::NotSupported) }
    }

    fn has_distances(&self) -> bool {
        DISTANCES.iter().any(|id| self.field(Field::one(*id, 0)).is_ok())
    }

    /// What a source asks of the answer itself.
    fn accept(&self, source: Source, way: Way) -> Result<(), Absence> {
        let Way::Field { field, .. } = way else { return Ok(()) };
        let accepted = match source {
            Source::NotZero { .. } => self.field(field)? != 0,
            Source::Count { .. } => {
                self.fields.position(field).is_some_and(|position| self.fields.is_wide(position))
            }
            _ => true,
        };
        if accepted { Ok(()) } else { Err(Absence::NotSupported) }
    }

    /// Whether what was answered by that way can be a reading; other ways than fields and calls are believed.
    fn is_plausible(&self, chosen: Chosen) -> bool {
        !matches!(chosen.way, Way::Field { .. } | Way::Call { .. }) || self.stood(chosen).is_some()
    }

    /// What was answered by that way, if it can be.
    fn stood(&self, chosen: Chosen) -> Option<i64> {
        let (raw, times) = match chosen.way {
            Way::Field { field, times } => (self.field(field).ok()?, times),
            Way::Call { value, times } => {
                let answer = self.functions.get(&calls::function(value))?.ok()?;
                (i64::try_from(answer.get(value).ok()?).ok()?, times)
            }
            _ => return None,
        };
        raw.checked_mul(times).and_then(|value| chosen.bound().hold(value))
    }

    fn field(&self, field: Field) -> Result<i64, Absence> {
        self.answered?;
        let position = self.fields.position(field).ok_or(Absence::NotSupported)?;
        self.fields.value(position)
    }
}

/// The fields of distances to thermal limits.
const DISTANCES: [u32; 4] = [193, 194, 195, 196];

fn all_fields(level: Level, facts: Facts) -> Vec<Field> {
    let mut fields: Vec<Field> = device_points()
        .filter(|(family, _)| family.is_read_at(level))
        .flat_map(|(_, point)| point.sources)
        .filter_map(|source| match facts.way(*source)? {
            Way::Field { field, .. } | Way::Margin { limit: field } => Some(field),
            _ => None,
        })
        .chain(DISTANCES.map(|id| Field::one(id, 0)))
        .collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const THROTTLE: Source = Source::Renumbered { before: 251, since: 269, times: 1 };

    fn id(facts: Facts, source: Source) -> Option<u32> {
        match facts.way(source) {
            Some(Way::Field { field, .. }) => Some(field.id),
            _ => None,
        }
    }

    #[test]
    fn a_renumbered_field_is_asked_by_the_number_that_the_driver_knows() {
        let of = |version: &str| id(Facts { driver: driver(version), links: 0, generation: None }, THROTTLE);
        assert_eq!(of("570.124.06"), None);
        assert_eq!(of("575.51.03"), Some(251));
        assert_eq!(of("580.65.06"), Some(251));
        assert_eq!(of("580.82.07"), Some(269));
        assert_eq!(of("590.48.01"), Some(269));
        // Both numbers mean something else to the other drivers: without the version nothing is asked.
        assert_eq!([of(""), of("beta"), of("580")], [None; 3]);
    }

    #[test]
    fn only_links_that_the_gpu_has_are_asked() {
        let facts = Facts { driver: None, links: 2, generation: None };
        let link = |link| Source::Link { id: 165, link, times: 1 };
        assert!(facts.way(link(1)).is_some());
        assert_eq!(facts.way(link(2)), None);
        let sum = Source::Links { id: 165, times: 1 };
        let field = Field { scopes: 2, ..Field::one(165, 0) };
        assert_eq!(facts.way(sum), Some(Way::Field { field, times: 1 }));
        assert_eq!(Facts { links: 0, ..facts }.way(sum), None);
    }

    #[test]
    fn links_are_added_up_by_gpm_from_the_driver_on_that_counts_them() {
        let sent = Source::GpmLinks { first: 262, times: 1 };
        let ids = |version: &str, links| match (Facts { driver: driver(version), links, generation: None })
            .way(sent)
        {
            Some(Way::Gpm { metric, .. }) => metric.ids().collect(),
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
        let of = |links, generation| id(Facts { driver: None, links, generation }, total);
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
        let facts = Facts { driver: None, links: MOST_LINKS, generation: None };
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
