//! The laws that every row and label obeys, checked when the crate is compiled.

#![expect(clippy::panic, reason = "the functions that panic run when the crate is compiled")]

use super::points::{find, same};
use super::{
    Counter, FAMILIES, Family, GpuRows, InstanceRows, Kind, LABELS, Label, Labelled, PROCESS_LABELS, Point,
    Rows,
};
use crate::model::Unit;

/// Label names that scrape targets and scrapers set.
const FOREIGN: &[&str] =
    &["job", "instance", "pod", "namespace", "container", "node", "service", "endpoint", "le", "quantile"];

const _: () = {
    let mut place = 0;
    while place < FAMILIES.len() {
        check_family(FAMILIES[place]);
        let mut other = 0;
        while other < place {
            assert!(!same(FAMILIES[place].name, FAMILIES[other].name), "a name is written once");
            other += 1;
        }
        place += 1;
    }
    let mut label = 0;
    while label < LABELS.len() {
        let mut other = 0;
        while other < label {
            assert!(!same(LABELS[label].name, LABELS[other].name), "a label name has one meaning");
            other += 1;
        }
        label += 1;
    }
};

const fn check_family(family: &Family) {
    assert!(
        starts_with(family.name, "gpu_")
            || starts_with(family.name, "gpumeter_")
            || starts_with(family.name, "process_"),
        "a name starts with gpu_, gpumeter_ or process_"
    );
    let is_counter = matches!(family.kind, Kind::Counter);
    assert!(is_counter == ends_with(family.name, "_total"), "a counter ends in _total, and only a counter");
    assert!(names_unit(family), "a name ends in its unit");
    assert!(ends_with(family.help, "."), "help is a sentence");
    let has_unit = !matches!(family.unit, Unit::None);
    assert!(family.most.is_none() || !has_unit, "a gauge with a unit is bound by its unit");
    match &family.rows {
        Rows::Gpu(GpuRows::Read(points) | GpuRows::Flow(points) | GpuRows::State(points)) => {
            assert!(family.bound().is_some(), "what is read from a GPU has a bound");
            check_points(points, family.labels);
        }
        Rows::Gpu(GpuRows::Integrals { of, counters }) => check_integrals(family, find(of), counters),
        Rows::Instance(InstanceRows::Read(points)) => {
            assert!(family.bound().is_some(), "what is read from an instance has a bound");
            check_labelled(points, family.labels, 3);
        }
        Rows::Instance(InstanceRows::Integrals(points)) => {
            let mut index = 0;
            while index < points.len() {
                assert!(is_counter && points[index].value.is_ratio(), "what is integrated is a ratio");
                index += 1;
            }
            check_labelled(points, family.labels, 3);
        }
        Rows::Process(points) => check_labelled(points, family.labels, PROCESS_LABELS),
        _ => {}
    }
    check_labels(family);
}

const fn check_points(points: &[Point], names: &[&str]) {
    assert!(!points.is_empty(), "a family that is read has points");
    let mut index = 0;
    while index < points.len() {
        check_pairs(points[index].labels, names, 2);
        assert!(!points[index].sources.is_empty(), "a point has a source");
        index += 1;
    }
}

const fn check_integrals(family: &Family, of: &Family, counters: &[Counter]) {
    assert!(matches!(family.kind, Kind::Counter), "an integral is a counter");
    assert!(matches!(of.unit, Unit::Ratio), "what is integrated is a ratio");
    assert!(counters.is_empty() || counters.len() == of.rows.points().len(), "a counter per point, or none");
    check_points(of.rows.points(), family.labels);
}

const fn check_labelled<V>(points: &[Labelled<V>], names: &[&str], first: usize) {
    let mut index = 0;
    while index < points.len() {
        check_pairs(points[index].labels, names, first);
        index += 1;
    }
}

/// Checks that a point's own labels are the family's labels from `first` on, with values of their closed sets.
const fn check_pairs(own: &[(&str, &str)], names: &[&str], first: usize) {
    assert!(own.len() + first == names.len(), "a point names the labels that its family adds");
    let mut label = 0;
    while label < own.len() {
        let (name, value) = own[label];
        assert!(same(name, names[first + label]), "labels stand in the family's order");
        assert!(!same(value, "total"), "no label value sums others");
        let set = known_label(name).values;
        assert!(set.is_empty() || contains(set, value), "a value is of its label's closed set");
        label += 1;
    }
}

/// Checks that every label of the family is known and stands once, and that its own closed sets are of its labels.
const fn check_labels(family: &Family) {
    let mut label = 0;
    while label < family.labels.len() {
        let name = family.labels[label];
        let _ = known_label(name);
        assert!(!contains(FOREIGN, name), "scrape targets and scrapers set this label");
        assert!(!contains(family.labels.split_at(label).0, name), "a label stands once");
        label += 1;
    }
    let mut set = 0;
    while set < family.values.len() {
        assert!(contains(family.labels, family.values[set].0), "a set of values is of a label of its family");
        set += 1;
    }
}

const fn known_label(name: &str) -> &'static Label {
    let mut label = 0;
    while label < LABELS.len() {
        if same(LABELS[label].name, name) {
            return &LABELS[label];
        }
        label += 1;
    }
    panic!("a label stands in the table of labels with its meaning")
}

const fn names_unit(family: &Family) -> bool {
    let stem = if ends_with(family.name, "_total") {
        family.name.split_at(family.name.len() - "_total".len()).0
    } else {
        family.name
    };
    // Infos and counts say in other words what they count, and money names its currency in a label.
    matches!(family.unit, Unit::None | Unit::Money) || ends_with(stem, family.unit.suffix())
}

const fn contains(set: &[&str], text: &str) -> bool {
    let mut index = 0;
    while index < set.len() {
        if same(set[index], text) {
            return true;
        }
        index += 1;
    }
    false
}

const fn starts_with(text: &str, start: &str) -> bool {
    text.len() >= start.len() && same(text.split_at(start.len()).0, start)
}

const fn ends_with(text: &str, end: &str) -> bool {
    text.len() >= end.len() && same(text.split_at(text.len() - end.len()).1, end)
}
