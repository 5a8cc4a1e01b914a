//! `docs/names.txt`: the names that never change, one family per line: name, type, unit, labels.
//!
//! What was once written there stays: `UPDATE` adds to the file and takes nothing away. An `_info` family may get further
//! labels, since nothing is summed over them.

use std::path::Path;
use std::{env, fs};

use gpumeter::model::catalogue::{Family, families};

use super::check::{Outcome, check};

const FILE: &str = "docs/names.txt";

fn line(family: &Family) -> String {
    let unit = match family.unit.suffix() {
        "" => "1",
        suffix => suffix,
    };
    format!("{} {} {unit} {}", family.name, family.kind.name(), family.labels.join(",")).trim_end().to_owned()
}

/// The lines that the catalogue no longer has.
fn broken<'a>(settled: &'a str, now: &[String]) -> Vec<&'a str> {
    settled.lines().filter(|line| !now.iter().any(|has| keeps(line, has))).collect()
}

/// Whether the family of a line is the same now; an `_info` may have further labels.
fn keeps(settled: &str, now: &str) -> bool {
    let split = |line: &str| -> (String, Vec<String>) {
        let (family, labels) = line.rsplit_once(' ').unwrap_or((line, ""));
        (family.to_owned(), labels.split(',').map(str::to_owned).collect())
    };
    let ((family, labels), (family_now, labels_now)) = (split(settled), split(now));
    let is_info = family.split(' ').next().is_some_and(|name| name.ends_with("_info"));
    settled == now || is_info && family == family_now && labels.iter().all(|label| labels_now.contains(label))
}

#[test]
fn a_settled_name_stays_with_type_unit_and_labels() -> Outcome {
    let now: Vec<String> = families().map(line).collect();
    let settled = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE))?;
    let broken = broken(&settled, &now);
    if !broken.is_empty() {
        return Err(format!(
            "these families were promised in {FILE} and are no longer in the catalogue; give the new meaning a new \
             name and keep the old one:\n{}",
            broken.join("\n")
        )
        .into());
    }
    check(FILE, &(now.join("\n") + "\n"))
}

#[test]
fn renamed_families_and_lost_labels_are_detected() {
    let now = ["gpu_up gauge 1 gpu,uuid".to_owned(), "gpu_new gauge 1".to_owned()];
    assert!(broken("gpu_up gauge 1 gpu,uuid\n", &now).is_empty());
    for settled in ["gpu_up gauge 1 gpu\n", "gpu_up counter 1 gpu,uuid\n", "gpu_down gauge 1 gpu,uuid\n"] {
        assert_eq!(broken(settled, &now), [settled.trim_end()]);
    }
    let more = ["gpu_info gauge 1 gpu,model,uuid".to_owned()];
    assert!(broken("gpu_info gauge 1 gpu,uuid\n", &more).is_empty());
    assert_eq!(broken("gpu_info gauge 1 gpu,serial\n", &more), ["gpu_info gauge 1 gpu,serial"]);
}
