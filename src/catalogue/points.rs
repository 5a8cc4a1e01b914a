//! Numbers for what has values per GPU, so that a frame is one slice and adding a row changes no struct.

#![expect(clippy::panic, reason = "the functions that panic run when the crate is compiled")]

use super::{Counter, Family, Integral, Point, Rows, SUBJECTS, Source};

/// The position of a device point in [`crate::model::Frame::readings`].
pub type PointId = usize;

/// All device points in their order, with their family.
pub fn device_points() -> impl Iterator<Item = (&'static Family, &'static Point)> {
    super::families().flat_map(|family| family.rows.points().iter().map(move |point| (family, point)))
}

/// How many integrals there are.
pub const INTEGRALS: usize = count_integrals();

/// How many values of the rows the agent keeps as integrals.
const fn integrals(rows: &Rows) -> usize {
    match rows {
        Rows::Integral(integrals) => integrals.len(),
        Rows::Flow(points) => points.len(),
        _ => 0,
    }
}

const fn count_integrals() -> usize {
    let mut count = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            count += integrals(&SUBJECTS[subject][row].rows);
            row += 1;
        }
        subject += 1;
    }
    count
}

/// The number of the first point of the family of that name; at compile time, so a wrong name does not build.
pub const fn first_point(name: &str) -> PointId {
    let mut number = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            let family = &SUBJECTS[subject][row];
            if !family.rows.points().is_empty() && same(family.name, name) {
                return number;
            }
            number += family.rows.points().len();
            row += 1;
        }
        subject += 1;
    }
    panic!("no device family of that name")
}

/// The number of a point of a family by the value of its one label; at compile time.
pub const fn point(name: &str, label: &str) -> PointId {
    first_point(name) + offset(find(name).rows.points(), &[("", label)])
}

/// The family of that name; at compile time, so a wrong name does not build.
pub(super) const fn find(name: &str) -> &'static Family {
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            if same(SUBJECTS[subject][row].name, name) {
                return &SUBJECTS[subject][row];
            }
            row += 1;
        }
        subject += 1;
    }
    panic!("no family of that name")
}

/// Where the point with these label values stands among its family's.
const fn offset(points: &[Point], labels: &[(&str, &str)]) -> usize {
    let mut offset = 0;
    while offset < points.len() {
        let own = points[offset].labels;
        let mut equal = own.len() == labels.len();
        let mut label = 0;
        while equal && label < labels.len() {
            equal = same(own[label].1, labels[label].1);
            label += 1;
        }
        if equal {
            return offset;
        }
        offset += 1;
    }
    panic!("no point of that family has those label values")
}

/// The number of the first integral of the family of that name; at compile time.
pub const fn first_integral(name: &str) -> usize {
    let mut number = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            let family = &SUBJECTS[subject][row];
            let count = integrals(&family.rows);
            if count > 0 && same(family.name, name) {
                return number;
            }
            number += count;
            row += 1;
        }
        subject += 1;
    }
    panic!("no integral family of that name")
}

/// What an integral integrates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegralOf {
    /// A point that reads a ratio.
    Ratio(PointId),
    /// A point that reads a rate or a count.
    Flow(PointId),
}

/// What each integral integrates, by integral number.
pub const fn integral_of(number: usize) -> IntegralOf {
    INTEGRATED[number].0
}

/// The counter that tells the same as what an integral integrates, by integral number; none where nothing does.
pub const fn counter_of(number: usize) -> Option<Counter> {
    INTEGRATED[number].1
}

const INTEGRATED: [(IntegralOf, Option<Counter>); INTEGRALS] = {
    let mut all = [(IntegralOf::Ratio(0), None); INTEGRALS];
    let mut number = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            let family = &SUBJECTS[subject][row];
            let mut index = 0;
            while index < integrals(&family.rows) {
                all[number] = integrated(family, index);
                number += 1;
                index += 1;
            }
            row += 1;
        }
        subject += 1;
    }
    all
};

/// What the integral of that place in its family integrates, and the counter that tells the same.
const fn integrated(family: &Family, index: usize) -> (IntegralOf, Option<Counter>) {
    match &family.rows {
        Rows::Integral(integrals) => {
            let Integral { of, labels, counter } = integrals[index];
            (IntegralOf::Ratio(first_point(of) + offset(find(of).rows.points(), labels)), counter)
        }
        rows => {
            // A counter is a flow's best source, and so its first.
            let counter = match rows.points()[index].sources[0] {
                Source::Since(counter) => Some(counter),
                _ => None,
            };
            (IntegralOf::Flow(first_point(family.name) + index), counter)
        }
    }
}

/// Whether two strings are equal, at compile time.
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
