//! `docs/names.txt`: the names that never change, one family per line: name, type, unit, labels.
//!
//! Device and agent families only; those of the account and of processes, which name tenants, settle with the
//! account, those of OTLP with OTLP. What was once written there stays: `UPDATE` adds to the file and takes nothing away.

use std::path::Path;
use std::{env, fs};

use gpumeter::catalogue::{Family, Rows, families};

use super::check::{Outcome, check};

const FILE: &str = "docs/names.txt";

fn is_settled(family: &Family) -> bool {
    let with_the_account = matches!(family.rows, Rows::Account(_) | Rows::Process(_));
    !with_the_account && !family.name.starts_with("gpumeter_otlp_")
}

fn line(family: &Family) -> String {
    let unit = match family.unit.suffix() {
        "" => "1",
        suffix => suffix,
    };
    format!("{} {} {unit} {}", family.name, family.kind.name(), family.labels.join(",")).trim_end().to_owned()
}

/// The lines that the catalogue no longer has.
fn broken<'a>(settled: &'a str, now: &[String]) -> Vec<&'a str> {
    settled.lines().filter(|line| !now.iter().any(|has| has == line)).collect()
}

#[test]
fn a_settled_name_stays_with_type_unit_and_labels() -> Outcome {
    let now: Vec<String> = families().filter(|family| is_settled(family)).map(line).collect();
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
}
