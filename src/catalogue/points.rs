//! Numbers for what has values per GPU, so that a frame is one slice and adding a row changes no struct.

#![expect(clippy::panic, reason = "the functions that panic run when the crate is compiled")]

use super::{Family, Integral, Point, Rows, SUBJECTS, Source};

/// The position of a device point in [`crate::model::Frame::readings`].
pub type PointId = usize;

/// All device points in their order, with their family.
pub fn device_points() -> impl Iterator<Item = (&'static Family, &'static Point)> {
    super::families()
        .filter_map(|family| match &family.rows {
            Rows::Device(points) => Some((family, *points)),
            _ => None,
        })
        .flat_map(|(family, points)| points.iter().map(move |point| (family, point)))
}

/// How many integrals there are.
pub const INTEGRALS: usize = count_integrals();

const fn count_integrals() -> usize {
    let mut count = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            if let Rows::Integral(integrals) = &SUBJECTS[subject][row].rows {
                count += integrals.len();
            }
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
            if let Rows::Device(points) = &family.rows {
                if same(family.name, name) {
                    return number;
                }
                number += points.len();
            }
            row += 1;
        }
        subject += 1;
    }
    panic!("no device family of that name")
}

/// The number of a point of a family by the value of its one label; at compile time.
pub const fn point(name: &str, label: &str) -> PointId {
    let first = first_point(name);
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            let family = &SUBJECTS[subject][row];
            if let Rows::Device(points) = &family.rows
                && same(family.name, name)
            {
                let mut offset = 0;
                while offset < points.len() {
                    if points[offset].labels.len() == 1 && same(points[offset].labels[0].1, label) {
                        return first + offset;
                    }
                    offset += 1;
                }
            }
            row += 1;
        }
        subject += 1;
    }
    panic!("no point of that family has that label value")
}

/// The point that each integral integrates, by integral number.
pub const fn integral_source(number: usize) -> PointId {
    SOURCES[number]
}

const SOURCES: [PointId; INTEGRALS] = {
    let mut sources = [0; INTEGRALS];
    let mut number = 0;
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            if let Rows::Integral(integrals) = &SUBJECTS[subject][row].rows {
                let mut index = 0;
                while index < integrals.len() {
                    let Integral { of } = &integrals[index];
                    sources[number] = first_point(of);
                    number += 1;
                    index += 1;
                }
            }
            row += 1;
        }
        subject += 1;
    }
    sources
};

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

impl Source {
    /// Whether the value needs the pair of GPM samples.
    pub const fn is_gpm(&self) -> bool {
        matches!(self, Self::Gpm { .. })
    }
}
