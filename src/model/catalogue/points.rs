//! Numbers of the values per GPU, so that a frame is one slice, and adding a row changes no struct.

#![expect(clippy::panic, reason = "the functions that panic run when the crate is compiled")]

use super::{Counter, FAMILIES, Family, GpuRows, LabelPair, Point, Rows, Source};
use crate::model::Unit;
use crate::model::frame::Tier;

/// The position of a device point in [`crate::model::Frame::readings`].
pub type PointId = usize;

pub fn device_points() -> impl Iterator<Item = (&'static Family, &'static Point)> {
    super::families().flat_map(|family| family.rows.points().iter().map(move |point| (family, point)))
}

/// The device points of a family that have these labels, each with its tier: what a sum over them adds up.
pub fn points_of(family: &str, labels: &[LabelPair]) -> impl Iterator<Item = (PointId, Tier)> {
    let of_family = device_points().enumerate().filter(move |(_, (one, _))| one.name == family);
    let has_labels = move |point: &Point| labels.iter().all(|label| point.labels.contains(label));
    let points = of_family.filter(move |(_, (_, point))| has_labels(point));
    points.map(|(number, (family, _))| (number, family.tier))
}

pub const INTEGRALS: usize = numbers_before(FAMILIES.len()).integral;

#[derive(Clone, Copy)]
pub struct FirstNumbers {
    pub point: PointId,
    /// Its first integral, where the agent integrates it.
    pub integral: usize,
    pub integrals: usize,
}

pub fn numbered_families() -> impl Iterator<Item = (&'static Family, FirstNumbers)> {
    static NUMBERS: [FirstNumbers; FAMILIES.len()] = {
        let mut numbers = [numbers_before(0); FAMILIES.len()];
        let mut place = 0;
        while place < FAMILIES.len() {
            numbers[place] = numbers_before(place);
            place += 1;
        }
        numbers
    };
    super::families().zip(NUMBERS.iter().copied())
}

const fn numbers_before(place: usize) -> FirstNumbers {
    let (mut point, mut integral) = (0, 0);
    let mut before = 0;
    while before < place {
        point += FAMILIES[before].rows.points().len();
        integral += FAMILIES[before].rows.integrated_points().len();
        before += 1;
    }
    let integrals = if place < FAMILIES.len() { FAMILIES[place].rows.integrated_points().len() } else { 0 };
    FirstNumbers { point, integral, integrals }
}

/// The place of the family of that name; at compile time, so that a wrong name does not build.
const fn place_of(name: &str) -> usize {
    let mut place = 0;
    while place < FAMILIES.len() {
        if same(FAMILIES[place].name, name) {
            return place;
        }
        place += 1;
    }
    panic!("no family of that name")
}

pub(super) const fn find(name: &str) -> &'static Family {
    FAMILIES[place_of(name)]
}

pub const fn first_point(name: &str) -> PointId {
    assert!(!find(name).rows.points().is_empty(), "the family has no points");
    numbers_before(place_of(name)).point
}

pub const fn first_integral(name: &str) -> usize {
    assert!(!find(name).rows.integrated_points().is_empty(), "the family has no integrals");
    numbers_before(place_of(name)).integral
}

/// The number of a point of a family by the value of its one label; at compile time.
pub const fn point(name: &str, label: &str) -> PointId {
    let points = find(name).rows.points();
    let mut offset = 0;
    while offset < points.len() {
        if points[offset].labels.len() == 1 && same(points[offset].labels[0].1, label) {
            return first_point(name) + offset;
        }
        offset += 1;
    }
    panic!("no point of that family has that label value")
}

/// A device point with what its values mean.
#[derive(Clone, Copy, Debug)]
pub struct KnownPoint {
    pub id: PointId,
    pub tier: Tier,
    pub unit: Unit,
}

/// The point of the family of that name by the value of its one label, or its first point without one; at compile time.
pub const fn known_point(name: &str, label: Option<&str>) -> KnownPoint {
    let family = find(name);
    let id = match label {
        Some(label) => point(name, label),
        None => first_point(name),
    };
    KnownPoint { id, tier: family.tier, unit: family.unit }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegralOf {
    /// A point that reads a ratio.
    Ratio(PointId),
    /// A point that reads a rate or a count.
    Flow(PointId),
}

pub const fn integral_of(number: usize) -> IntegralOf {
    INTEGRATED[number].0
}

/// The counter of the same quantity as an integral, by integral number; absent where GPM has none.
pub const fn counter_of(number: usize) -> Option<Counter> {
    INTEGRATED[number].1
}

const INTEGRATED: [(IntegralOf, Option<Counter>); INTEGRALS] = {
    let mut all = [(IntegralOf::Ratio(0), None); INTEGRALS];
    let mut number = 0;
    let mut place = 0;
    while place < FAMILIES.len() {
        let mut index = 0;
        while index < FAMILIES[place].rows.integrated_points().len() {
            all[number] = integrated(FAMILIES[place], index);
            number += 1;
            index += 1;
        }
        place += 1;
    }
    all
};

/// What the integral of that place in its family integrates, and the counter of the same quantity.
const fn integrated(family: &Family, index: usize) -> (IntegralOf, Option<Counter>) {
    match &family.rows {
        Rows::Gpu(GpuRows::Integrals { of, counters }) => {
            let counter = if counters.is_empty() { None } else { Some(counters[index]) };
            (IntegralOf::Ratio(first_point(of) + index), counter)
        }
        rows => {
            // A counter is the best source of a flow, and so its first.
            let counter = match rows.points()[index].sources[0] {
                Source::GpmCounter(counter) => Some(counter),
                _ => None,
            };
            (IntegralOf::Flow(first_point(family.name) + index), counter)
        }
    }
}

pub(super) const fn same(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len() != right.len() {
        return false;
    }
    let mut index = 0;
    while index < left.len() {
        if left[index] != right[index] {
            return false;
        }
        index += 1;
    }
    true
}
