//! The laws that every row obeys, checked when the crate is compiled.

mod labels;

use super::points::{find, same};
use super::{Family, Kind, PROCESS_LABELS, Rows, SUBJECTS};
use crate::model::Unit;

const _: () = check();

const fn check() {
    let mut subject = 0;
    while subject < SUBJECTS.len() {
        let mut row = 0;
        while row < SUBJECTS[subject].len() {
            check_row(&SUBJECTS[subject][row]);
            check_unique(subject, row);
            row += 1;
        }
        subject += 1;
    }
}

const fn check_row(family: &Family) {
    assert!(
        starts_with(family.name, "gpu_")
            || starts_with(family.name, "gpumeter_")
            || starts_with(family.name, "process_"),
        "a name starts with gpu_, gpumeter_ or process_"
    );
    let counter = matches!(family.kind, Kind::Counter);
    assert!(counter == ends_with(family.name, "_total"), "a counter ends in _total, and only a counter");
    assert!(has_unit(family), "a name ends in its unit");
    assert!(ends_with(family.help, "."), "help is a sentence");
    let is_read =
        matches!(&family.rows, Rows::Device(_) | Rows::Flow(_) | Rows::State(_) | Rows::Instance(_));
    assert!(!is_read || family.bound().is_some(), "what is read from a GPU has a bound");
    let is_bound_by_unit = !matches!(family.unit, Unit::None);
    assert!(family.most.is_none() || !is_bound_by_unit, "a gauge with a unit is bound by that");
    match &family.rows {
        Rows::Device(points) | Rows::Flow(points) | Rows::State(points) => check_points(family, points),
        Rows::Integral(integrals) => check_integrals(family, integrals),
        Rows::Instance(points) => {
            let mut index = 0;
            while index < points.len() {
                labels::check_pairs(points[index].labels, family.labels, 3);
                index += 1;
            }
        }
        Rows::Process(points) => {
            let mut index = 0;
            while index < points.len() {
                labels::check_pairs(points[index].labels, family.labels, PROCESS_LABELS);
                index += 1;
            }
        }
        Rows::InstanceIntegral(points) => {
            let mut index = 0;
            while index < points.len() {
                assert!(counter && points[index].value.is_ratio(), "what is integrated over time is a ratio");
                labels::check_pairs(points[index].labels, family.labels, 3);
                index += 1;
            }
        }
        _ => {}
    }
    labels::check(family);
    labels::check_sets(family);
}

const fn check_integrals(family: &Family, integrals: &[super::Integral]) {
    assert!(matches!(family.kind, Kind::Counter), "an integral is a counter");
    let mut index = 0;
    while index < integrals.len() {
        let of = find(integrals[index].of);
        assert!(matches!(of.unit, Unit::Ratio), "what is integrated over time is a ratio");
        assert!(of.labels.len() == family.labels.len(), "an integral has the labels of its ratio");
        labels::check_pairs(integrals[index].labels, family.labels, 2);
        index += 1;
    }
}

const fn check_points(family: &Family, points: &[super::Point]) {
    assert!(!points.is_empty(), "a device family has points");
    let mut index = 0;
    while index < points.len() {
        labels::check_pairs(points[index].labels, family.labels, 2);
        assert!(!points[index].sources.is_empty(), "a point has a source");
        index += 1;
    }
}

const fn has_unit(family: &Family) -> bool {
    // Names without a unit suffix: infos and counts say what they count, money names its currency in a label.
    match family.unit {
        Unit::None | Unit::Money => true,
        unit => ends_with(family.name, unit.suffix()) || ends_with_total(family.name, unit.suffix()),
    }
}

const fn ends_with_total(name: &str, unit: &str) -> bool {
    const TOTAL: usize = "_total".len();
    let (name, unit) = (name.as_bytes(), unit.as_bytes());
    if name.len() < TOTAL + unit.len() {
        return false;
    }
    let start = name.len() - TOTAL - unit.len();
    let mut index = 0;
    while index < unit.len() {
        if name[start + index] != unit[index] {
            return false;
        }
        index += 1;
    }
    true
}

const fn check_unique(subject: usize, row: usize) {
    let name = SUBJECTS[subject][row].name;
    let mut other = 0;
    while other <= subject {
        let mut index = 0;
        while index < SUBJECTS[other].len() && (other < subject || index < row) {
            assert!(!same(name, SUBJECTS[other][index].name), "a name is written once");
            index += 1;
        }
        other += 1;
    }
}

const fn starts_with(text: &str, start: &str) -> bool {
    let (text, start) = (text.as_bytes(), start.as_bytes());
    let mut index = 0;
    while index < start.len() {
        if index >= text.len() || text[index] != start[index] {
            return false;
        }
        index += 1;
    }
    true
}

const fn ends_with(text: &str, end: &str) -> bool {
    let (text, end) = (text.as_bytes(), end.as_bytes());
    if text.len() < end.len() {
        return false;
    }
    let mut index = 0;
    while index < end.len() {
        if text[text.len() - end.len() + index] != end[index] {
            return false;
        }
        index += 1;
    }
    true
}
