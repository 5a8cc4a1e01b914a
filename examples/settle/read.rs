//! Reads segments of one GPU from JSON: integers as integers, fractions as "n/d".
//!
//! Invalid input is refused with its place in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpumeter::model::{
    ActivitySource, Carry, Fraction, HolderId, Holding, HoldingSource, InstanceSpan, Microjoules, MigLayout,
    MigSlot, MigSpan, Presence, SlotState, Span, Utc,
};
use serde_json::{Map, Value};

/// An error with its place.
pub type Problem = String;

/// A segment as the agent's account has it.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Whether the GPU is divided into instances, or is between two epochs.
    pub is_divided: bool,
    /// Its slots.
    pub slots: Vec<SegmentSlot>,
    /// The spans of the GPU.
    pub spans: Vec<Span>,
    /// The weights of the window before; MIG instances have none.
    pub previous: Previous,
    /// The carries after the segment before.
    pub carry: Carry,
}

/// A slot of a segment.
#[derive(Clone, Debug)]
pub struct SegmentSlot {
    /// Its name in the file: `gpu`, or `gi` and the id of a GPU instance.
    pub name: String,
    /// The GPU instance; none for a whole GPU.
    pub gpu_instance: Option<u32>,
    /// Whether holdings and activity were known.
    pub state: SlotState,
    /// Who claims a part of it.
    pub holders: Vec<HolderId>,
}

impl Segment {
    /// The name in the file of a slot, of a tree node of its carry, or in a remark: `7/held` is `gi7/held`.
    pub fn outer_name(&self, name: &str) -> String {
        let is_instance = self.is_divided && name.starts_with(|first: char| first.is_ascii_digit());
        if is_instance { format!("gi{name}") } else { name.to_owned() }
    }
}

/// Weights of the window before, by holder.
type Previous = BTreeMap<HolderId, u64>;

/// The segments of a file: one, or a list; each by itself, or as `segment` beside a note and a result.
pub fn segments(text: &str) -> Result<Vec<Segment>, Problem> {
    let file: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let root = Place { value: &file, path: String::new() };
    match &file {
        Value::Array(_) => root.items()?.iter().map(one).collect(),
        _ => Ok(vec![one(&root)?]),
    }
}

fn one(place: &Place<'_>) -> Result<Segment, Problem> {
    match place.optional("segment")? {
        Some(inner) => {
            place.only(&["note", "segment", "result"])?;
            segment(&inner)
        }
        None => segment(place),
    }
}

fn segment(place: &Place<'_>) -> Result<Segment, Problem> {
    place.only(&["t0", "t1", "mig", "layout", "covered_by", "slots", "energy", "carry"])?;
    let (from, to) = (place.key("t0")?.integer()?, place.key("t1")?.integer()?);
    if to <= from {
        return Err(place.key("t1")?.wrong("is not after t0"));
    }
    let covered_by = covers(place)?;
    let mig = place.optional("mig")?.map(|mig| mig.flag()).transpose()?.unwrap_or(false);
    let layout = place.optional("layout")?.map(|layout| self::layout(&layout)).transpose()?;
    let is_divided = mig || layout.is_none();
    let (mut slots, mut of_slots, mut previous) = (Vec::new(), Vec::new(), Previous::new());
    for (name, slot) in place.key("slots")?.entries()? {
        let gpu_instance = name.strip_prefix("gi").and_then(|id| id.parse().ok());
        if gpu_instance.is_some() != mig || (!mig && name != "gpu") {
            return Err(slot.wrong("is the slot of a whole GPU, gpu, or with mig an instance such as gi1"));
        }
        let (spans, weights) = self::slot(&slot, (from, to), &covered_by)?;
        previous = weights;
        let holders = spans[0].holdings.iter().map(|holding| holding.holder.clone()).collect();
        slots.push(SegmentSlot { name, gpu_instance, state: spans[0].state, holders });
        of_slots.push(spans);
    }
    let mut spans = match layout {
        Some(layout) if mig => {
            divided(Span::empty(Utc(from), Utc(to), SlotState::Unmeasured), layout, &slots, &of_slots)
                .map_err(|problem| place.wrong(&problem))?
        }
        Some(layout)
            if layout.slots.len() != 1 || layout.slots.values().any(|slot| slot.size != layout.total) =>
        {
            return Err(place.key("layout")?.wrong("divides the GPU; without mig it is one slot, gpu"));
        }
        Some(_) => of_slots.pop().ok_or_else(|| place.wrong("lacks the slot gpu"))?,
        None if of_slots.is_empty() => {
            vec![Span::empty(Utc(from), Utc(to), SlotState::Unavailable)]
        }
        None => return Err(place.key("slots")?.wrong("are given without a layout")),
    };
    if let Some(energy) = place.optional("energy")? {
        energy.only(&["delta", "floor"])?;
        spans[0].energy = Some(Microjoules(energy.key("delta")?.integer()?));
        spans[0].idle_energy = Microjoules(energy.key("floor")?.integer()?);
    }
    let carry =
        place.optional("carry")?.map(|carry| self::carry(&carry, mig)).transpose()?.unwrap_or_default();
    Ok(Segment { is_divided, slots, spans, previous, carry })
}

/// The spans of a GPU that is divided, from those of its slots. A slot without ticks is the same in every tick.
fn divided(
    whole: Span,
    layout: MigLayout,
    slots: &[SegmentSlot],
    of_slots: &[Vec<Span>],
) -> Result<Vec<Span>, Problem> {
    let longest = of_slots.iter().max_by_key(|spans| spans.len()).cloned().unwrap_or(vec![whole]);
    let layout = Arc::new(layout);
    let state = match slots.first().map(|slot| slot.state) {
        Some(lost @ (SlotState::Unavailable | SlotState::Unobserved))
            if slots.iter().all(|slot| slot.state == lost) =>
        {
            lost
        }
        _ => SlotState::Measured,
    };
    let mut spans = Vec::new();
    for (place, tick) in longest.iter().enumerate() {
        let mut instances = BTreeMap::new();
        for (slot, own) in slots.iter().zip(of_slots) {
            let span = match own.get(place) {
                Some(span) if (span.from, span.to) == (tick.from, tick.to) => span,
                _ if own.len() == 1 && own[0].busy == 0 => &own[0],
                _ => return Err(format!("has other ticks in {} than in another slot", slot.name)),
            };
            let Span { state, source, holdings, covered_by, busy, shares, present, blind, .. } = span.clone();
            let instance = InstanceSpan { state, source, holdings, covered_by, busy, shares, present, blind };
            let id = slot.gpu_instance.unwrap_or_default().to_string();
            instances.insert(id.into(), instance);
        }
        let instances = Some(Box::new(MigSpan { layout: Arc::clone(&layout), slots: instances }));
        spans.push(Span { instances, ..Span::empty(tick.from, tick.to, state) });
    }
    Ok(spans)
}

/// Which holder's holding covers each user; cycles are refused.
fn covers(place: &Place<'_>) -> Result<BTreeMap<HolderId, HolderId>, Problem> {
    let Some(place) = place.optional("covered_by")? else { return Ok(BTreeMap::new()) };
    let mut covered_by = BTreeMap::new();
    for (user, cover) in place.entries()? {
        covered_by.insert(HolderId::new(user), HolderId::new(cover.text()?));
    }
    for (user, cover) in place.entries()? {
        let start = HolderId::new(user);
        let chain = std::iter::successors(covered_by.get(&start), |at| covered_by.get(*at));
        if chain.take(covered_by.len()).any(|at| *at == start) {
            return Err(cover.wrong("leads back to the holder that it covers"));
        }
    }
    Ok(covered_by)
}

fn layout(place: &Place<'_>) -> Result<MigLayout, Problem> {
    place.only(&["total", "slots", "unallocated", "stranded"])?;
    let mut slots = BTreeMap::new();
    for (name, size) in place.key("slots")?.entries()? {
        if name.starts_with("__") || name == "root" {
            return Err(size.wrong("is a reserved name; name the slot otherwise"));
        }
        let name = name.strip_prefix("gi").unwrap_or(&name);
        slots.insert(name.into(), MigSlot { size: size.integer()?, ..MigSlot::default() });
    }
    let size = |key| place.optional(key)?.map_or(Ok(0), |size| size.integer());
    Ok(MigLayout {
        total: place.key("total")?.integer()?,
        slots,
        unallocated: size("unallocated")?,
        stranded: Some(size("stranded")?),
    })
}

fn slot(
    place: &Place<'_>,
    (from, to): (u64, u64),
    covered_by: &BTreeMap<HolderId, HolderId>,
) -> Result<(Vec<Span>, Previous), Problem> {
    place.only(&["state", "u_kind", "holdings", "ticks", "memory", "present", "previous"])?;
    let whole = Span {
        source: ActivitySource::Gpm,
        holdings: holdings(place)?,
        covered_by: covered_by.clone(),
        ..Span::empty(Utc(from), Utc(to), state(place)?)
    };
    let mut previous = weights(place, "previous")?;
    let ticks = place.optional("ticks")?.map_or(Ok(Vec::new()), |ticks| ticks.items())?;
    if ticks.is_empty() {
        return Ok((vec![Span { present: present(&[place])?, ..whole }], previous));
    }
    let lengths = lengths(place, &ticks, to - from)?;
    let mut at = from;
    let mut spans = Vec::new();
    for (tick, length) in ticks.iter().zip(lengths) {
        tick.only(&["busy", "weights", "present", "memory", "previous", "length", "blind"])?;
        let busy = tick.optional("busy")?.map_or(Ok(0), |busy| busy.integer())?;
        if busy > length {
            return Err(tick.key("busy")?.wrong(&format!("is above the tick's length, {length}")));
        }
        for (user, weight) in weights(tick, "previous")? {
            if previous.insert(user, weight).is_some_and(|other| other != weight) {
                return Err(tick.key("previous")?.wrong("differs from what was given before in this slot"));
            }
        }
        spans.push(Span {
            from: Utc(at),
            to: Utc(at + length),
            busy,
            present: present(&[place, tick])?,
            blind: tick.optional("blind")?.map_or(Ok(false), |blind| blind.flag())?,
            ..whole.clone()
        });
        at += length;
    }
    Ok((spans, previous))
}

/// The lengths of ticks: as given, or equal parts of the segment.
fn lengths(slot: &Place<'_>, ticks: &[Place<'_>], whole: u64) -> Result<Vec<u64>, Problem> {
    let count = ticks.len() as u64;
    let given: Vec<Option<u64>> = ticks
        .iter()
        .map(|tick| tick.optional("length")?.map(|length| length.integer()).transpose())
        .collect::<Result<_, _>>()?;
    if given.iter().all(Option::is_none) {
        if !whole.is_multiple_of(count) {
            let what = format!("do not divide {whole} ns equally; give each a length");
            return Err(slot.key("ticks")?.wrong(&what));
        }
        return Ok(vec![whole / count; ticks.len()]);
    }
    let lengths: Option<Vec<u64>> = given.into_iter().collect();
    let Some(lengths) = lengths else {
        return Err(slot.key("ticks")?.wrong("have a length in part; give each one or none"));
    };
    let sum: u128 = lengths.iter().map(|length| u128::from(*length)).sum();
    if sum != u128::from(whole) {
        return Err(slot
            .key("ticks")?
            .wrong(&format!("are {sum} ns long together; the segment has {whole}")));
    }
    Ok(lengths)
}

fn state(place: &Place<'_>) -> Result<SlotState, Problem> {
    let unheld = place.optional("u_kind")?;
    let unheld_is = |kinds: &[&str]| match &unheld {
        Some(kind) if !kinds.contains(&kind.text()?) => {
            Err(kind.wrong(&format!("does not fit the state; it is {}", kinds.join(" or "))))
        }
        _ => Ok(()),
    };
    let state = place.key("state")?;
    match state.text()? {
        "measured" => unheld_is(&[HolderId::UNALLOCATED]).map(|()| SlotState::Measured),
        "unavailable" => unheld_is(&[HolderId::UNAVAILABLE]).map(|()| SlotState::Unavailable),
        "unmeasured" => {
            unheld_is(&[HolderId::UNALLOCATED, HolderId::UNOBSERVED])?;
            let is_unobserved = unheld.is_some_and(|kind| kind.text() == Ok(HolderId::UNOBSERVED));
            Ok(if is_unobserved { SlotState::Unobserved } else { SlotState::Unmeasured })
        }
        _ => Err(state.wrong("is no state; it is measured, unmeasured or unavailable")),
    }
}

fn holdings(slot: &Place<'_>) -> Result<Arc<[Holding]>, Problem> {
    let mut holders = BTreeSet::new();
    let Some(place) = slot.optional("holdings")? else { return Ok(Arc::default()) };
    let mut holdings = Vec::new();
    for place in place.items()? {
        place.only(&["holder", "fraction", "rank"])?;
        let name = place.key("holder")?;
        let holder = HolderId::new(name.text()?);
        if holder.is_remainder() {
            return Err(name.wrong("is reserved and cannot hold"));
        }
        if !holders.insert(holder.clone()) {
            return Err(name.wrong("holds twice on one slot; add the fractions"));
        }
        let rank = place.optional("rank")?.map(|rank| rank.small()).transpose()?;
        let fraction = place.key("fraction")?.share()?;
        holdings.push(Holding { holder, fraction, source: HoldingSource::Standing, rank });
    }
    Ok(holdings.into())
}

/// The users present according to the slot and the tick, with memory and weight. A tick that lists who is present has
/// nobody else: who came later has used nothing of it, although the slot gives the memory of all.
fn present(places: &[&Place<'_>]) -> Result<BTreeMap<HolderId, Presence>, Problem> {
    let mut present: BTreeMap<HolderId, Presence> = BTreeMap::new();
    for (depth, place) in places.iter().enumerate() {
        let listed = place.optional("present")?.map(|users| users.items()).transpose()?;
        if let Some(users) = &listed {
            let users = users.iter().map(|user| user.text().map(HolderId::new));
            let users: BTreeSet<HolderId> = users.collect::<Result<_, _>>()?;
            if depth > 0 {
                present.retain(|user, _| users.contains(user));
            }
            for user in users {
                present.entry(user).or_default();
            }
        }
        for (user, memory) in weights(place, "memory")? {
            present.entry(user).or_default().memory = Some(memory);
        }
        for (user, weight) in weights(place, "weights")? {
            present.entry(user).or_default().weight = Some(weight);
        }
    }
    Ok(present)
}

/// Integers by holder; empty without the key.
fn weights(place: &Place<'_>, key: &str) -> Result<BTreeMap<HolderId, u64>, Problem> {
    let entries = place.optional(key)?.map_or(Ok(Vec::new()), |weights| weights.entries())?;
    entries.into_iter().map(|(user, weight)| Ok((HolderId::new(user), weight.integer()?))).collect()
}

/// The carry by tree node and holder: fractions of a nanosecond, in units of 2^-32.
fn carry(place: &Place<'_>, mig: bool) -> Result<Carry, Problem> {
    let node = |(node, owed): (String, Place<'_>)| {
        let node = node.strip_prefix("gi").filter(|_| mig).unwrap_or(&node).to_owned();
        let owed = owed.entries()?.into_iter();
        let owed = owed.map(|(holder, part)| Ok((HolderId::new(holder), part.carried()?)));
        Ok((node, owed.collect::<Result<_, Problem>>()?))
    };
    place.entries()?.into_iter().map(node).collect()
}

/// A value and its place in the file.
struct Place<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Place<'a> {
    fn wrong(&self, what: &str) -> Problem {
        let path = self.path.strip_prefix('.').unwrap_or(&self.path);
        let shown = match self.value {
            Value::Object(_) | Value::Array(_) => String::new(),
            value => format!("{value} "),
        };
        format!("{}: {shown}{what}", if path.is_empty() { "the file" } else { path })
    }

    fn object(&self) -> Result<&'a Map<String, Value>, Problem> {
        self.value.as_object().ok_or_else(|| self.wrong("is not an object"))
    }

    /// Refuses unknown keys, which may be mistyped.
    fn only(&self, keys: &[&str]) -> Result<(), Problem> {
        match self.object()?.keys().find(|key| !keys.contains(&key.as_str())) {
            Some(key) => {
                Err(self.wrong(&format!("has an unknown key {key:?}; known are {}", keys.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn optional(&self, key: &str) -> Result<Option<Self>, Problem> {
        let value = self.object()?.get(key).filter(|value| !value.is_null());
        Ok(value.map(|value| Self { value, path: format!("{}.{key}", self.path) }))
    }

    fn key(&self, key: &str) -> Result<Self, Problem> {
        self.optional(key)?.ok_or_else(|| self.wrong(&format!("lacks {key:?}")))
    }

    fn entries(&self) -> Result<Vec<(String, Self)>, Problem> {
        let at = |key: &String| format!("{}.{key}", self.path);
        let entries = self.object()?.iter();
        Ok(entries.map(|(key, value)| (key.clone(), Self { value, path: at(key) })).collect())
    }

    fn items(&self) -> Result<Vec<Self>, Problem> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("is not a list"))?.iter().enumerate();
        Ok(items.map(|(place, value)| Self { value, path: format!("{}[{place}]", self.path) }).collect())
    }

    fn text(&self) -> Result<&'a str, Problem> {
        self.value.as_str().ok_or_else(|| self.wrong("is not a text"))
    }

    fn flag(&self) -> Result<bool, Problem> {
        self.value.as_bool().ok_or_else(|| self.wrong("is neither true nor false"))
    }

    /// An integer that also fits the ledger's columns.
    fn integer(&self) -> Result<u64, Problem> {
        let value = self.value.as_u64().filter(|value| i64::try_from(*value).is_ok());
        value.ok_or_else(|| self.wrong("is not an integer from 0 to 2^63 - 1"))
    }

    fn small(&self) -> Result<u32, Problem> {
        u32::try_from(self.integer()?).map_err(|_| self.wrong("is above 2^32 - 1"))
    }

    /// A share of a slot, from 0 to the whole.
    fn share(&self) -> Result<Fraction, Problem> {
        let parts = self.text()?.split_once('/');
        let parsed = parts.and_then(|(numerator, denominator)| {
            Some(Fraction { numerator: numerator.parse().ok()?, denominator: denominator.parse().ok()? })
        });
        let fraction = parsed.ok_or_else(|| self.wrong("is not a fraction; write it like \"1/3\""))?;
        if fraction.denominator == 0 || fraction.numerator > fraction.denominator {
            return Err(self.wrong("is not between 0 and 1"));
        }
        Ok(fraction)
    }

    /// A fraction of a nanosecond in units of 2^-32, rounded down.
    fn carried(&self) -> Result<i64, Problem> {
        let text = self.text()?;
        let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
        let numerator = numerator.parse::<i64>().ok();
        let denominator = denominator.parse::<u64>().ok().filter(|denominator| *denominator > 0);
        numerator
            .zip(denominator)
            .map(|(numerator, denominator)| (i128::from(numerator) << 32).div_euclid(denominator.into()))
            .and_then(|units| i64::try_from(units).ok())
            .ok_or_else(|| self.wrong("is not a carry; write it like \"-1/3\""))
    }
}
