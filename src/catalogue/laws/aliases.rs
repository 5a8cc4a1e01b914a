//! Laws of the names that others use.

use super::labels::{check_values, contains};
use super::starts_with;
use crate::catalogue::points::{find, same};
use crate::catalogue::{ALIASES, Alias, Instrument, Kind, Profile};

const _: () = {
    let mut alias = 0;
    while alias < ALIASES.len() {
        check(&ALIASES[alias]);
        let mut other = 0;
        while other < alias {
            assert!(!clash(&ALIASES[alias], &ALIASES[other]), "a series has one name in a profile");
            other += 1;
        }
        alias += 1;
    }
};

const fn check(alias: &Alias) {
    let prefix = match alias.profile {
        Profile::Dcgm => "DCGM_FI_",
        Profile::Otel => "hw.",
    };
    assert!(starts_with(alias.name, prefix), "a profile's names have its prefix");
    assert!(alias.scale.0 > 0 && alias.scale.1 > 0, "a scale is no division by zero");
    let family = find(alias.of);
    let mut index = 0;
    while index < alias.when.len() {
        let (name, value) = alias.when[index];
        assert!(contains(family.labels, name), "an alias chooses by labels of its family");
        check_values(name, &[value]);
        index += 1;
    }
    let counts = matches!(family.kind, Kind::Counter);
    assert!(counts || !alias.rate, "only a counter has a rate");
    // DCGM declares pages and rows that only grow as counters; ours are gauges, since a new board has fewer.
    let declared = matches!(alias.kind, Instrument::Counter);
    assert!(
        !counts || declared != alias.rate,
        "a counter stays a counter under another name, and a rate is a gauge"
    );
    check_taken(alias);
}

/// Labels that take the value of the family's name one that it has.
const fn check_taken(alias: &Alias) {
    let labels = find(alias.of).labels;
    let mut index = 0;
    while index < alias.labels.len() {
        let value = alias.labels[index].1;
        if starts_with(value, "=") {
            assert!(contains(labels, value.split_at(1).1), "an alias takes values of its family's labels");
        }
        index += 1;
    }
}

/// Whether two aliases would print one series: same name, and no label of theirs tells them apart.
const fn clash(one: &Alias, other: &Alias) -> bool {
    if !same(one.name, other.name)
        || !matches!(
            (one.profile, other.profile),
            (Profile::Dcgm, Profile::Dcgm) | (Profile::Otel, Profile::Otel)
        )
    {
        return false;
    }
    if one.labels.len() != other.labels.len() {
        return false;
    }
    let mut index = 0;
    while index < one.labels.len() {
        if !same(one.labels[index].1, other.labels[index].1) {
            return false;
        }
        index += 1;
    }
    true
}
