//! Laws of labels: one meaning per name, closed sets closed.

#![expect(clippy::panic, reason = "the functions that panic run when the crate is compiled")]

use crate::catalogue::points::same;
use crate::catalogue::{Family, LABELS, Label};

/// What targets and scrapers own.
const FOREIGN: &[&str] =
    &["job", "instance", "pod", "namespace", "container", "node", "service", "endpoint", "le", "quantile"];

const _: () = {
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

/// Every label of the family is known, stands once, and is not somebody else's.
pub(super) const fn check(family: &Family) {
    let mut label = 0;
    while label < family.labels.len() {
        let name = family.labels[label];
        let _ = known(name);
        assert!(!contains(FOREIGN, name), "labels of targets and scrapers are theirs");
        let mut other = 0;
        while other < label {
            assert!(!same(name, family.labels[other]), "a label stands once");
            other += 1;
        }
        label += 1;
    }
}

/// A closed set of values is of a label of the family.
pub(super) const fn check_sets(family: &Family) {
    let mut set = 0;
    while set < family.values.len() {
        assert!(contains(family.labels, family.values[set].0), "a set of values is of a label of its family");
        set += 1;
    }
}

/// A series' own labels are the family's after the first ones, in its order, with values of their sets.
pub(super) const fn check_pairs(own: &[(&str, &str)], names: &[&str], first: usize) {
    assert!(own.len() + first == names.len(), "a point names the labels after the GPU's");
    let mut label = 0;
    while label < own.len() {
        assert!(same(own[label].0, names[first + label]), "labels stand in the family's order");
        check_values(own[label].0, &[own[label].1]);
        label += 1;
    }
}

/// Values that the catalogue writes are of the label's set.
pub(super) const fn check_values(name: &str, values: &[&str]) {
    let set = known(name).values;
    let mut value = 0;
    while value < values.len() {
        assert!(!same(values[value], "total"), "no label value sums others");
        assert!(set.is_empty() || contains(set, values[value]), "a value is of its label's closed set");
        value += 1;
    }
}

/// The label of that name.
pub(super) const fn known(name: &str) -> &'static Label {
    let mut label = 0;
    while label < LABELS.len() {
        if same(LABELS[label].name, name) {
            return &LABELS[label];
        }
        label += 1;
    }
    panic!("a label stands in the table of labels with its meaning")
}

pub(super) const fn contains(set: &[&str], text: &str) -> bool {
    let mut index = 0;
    while index < set.len() {
        if same(set[index], text) {
            return true;
        }
        index += 1;
    }
    false
}
