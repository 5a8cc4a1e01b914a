//! Compares the code with the architecture, which is a table of imports and a list of what must not occur.
//!
//! ARCHITECTURE.md prints the same table; a difference fails here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod edge_cases;
mod modules;
mod named_files;
mod size;
mod source;
mod walks;

use std::collections::{BTreeMap, BTreeSet};

use gpumeter::catalogue::families;
use modules::MODULES;
use source::{SOURCES, Source};

fn offences(of: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    SOURCES.iter().flat_map(of).collect()
}

fn none(offences: &[String]) {
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

#[test]
fn every_module_is_in_the_table_and_every_row_is_a_module() {
    let found: BTreeSet<String> = SOURCES.iter().filter_map(|source| source.module.clone()).collect();
    let listed: BTreeSet<String> = MODULES.iter().map(|module| module.name.to_owned()).collect();
    assert_eq!(found, listed);
}

#[test]
fn no_import_violates_the_table() {
    none(&offences(|source| {
        let Some(module) = source.module() else { return Vec::new() };
        source
            .imports
            .iter()
            .filter(|(other, _)| *other != module.name && !module.may_import(other))
            .map(|(other, line)| format!("{}:{line}: {} may not import {other}", source.path, module.name))
            .collect()
    }));
}

#[test]
fn every_allowed_import_is_used() {
    let sources = &*SOURCES;
    let is_used = |module: &str, other: &str| {
        let own = sources.iter().filter(|source| source.is_in(module));
        own.flat_map(|source| &source.imports).any(|(name, _)| name == other)
    };
    let unused = MODULES.iter().flat_map(|module| {
        let others = module.may_import.iter().filter(|other| **other != "*" && !is_used(module.name, other));
        others.map(|other| format!("{} does not import {other}: remove it from the table", module.name))
    });
    none(&unused.collect::<Vec<_>>());
}

#[test]
fn only_the_clock_reads_clocks() {
    none(&offences(|source| {
        if source.is_in("clock") {
            return Vec::new();
        }
        source.mentions(&[
            "Instant :: now",
            "SystemTime :: now",
            "clock_gettime",
            "Timestamp :: now",
            "Zoned :: now",
        ])
    }));
}

#[test]
fn only_the_thread_module_starts_threads_of_the_system() {
    none(&offences(|source| {
        if source.is_in("thread") {
            return Vec::new();
        }
        source.mentions(&["thread :: spawn", "thread :: Builder", "spawn_blocking"])
    }));
}

#[test]
fn only_app_and_the_modules_with_threads_of_their_own_start_named_threads() {
    // Each of these starts threads by need (a sampler per GPU, a resolver per source), or beside the agent, as `top` does,
    // whose keys wait for no agent.
    const MODULES_WITH_THREADS: &[&str] =
        &["app", "session", "resolvers", "control", "log", "doctor", "demo", "thread", "cli"];
    none(&offences(|source| {
        if MODULES_WITH_THREADS.iter().any(|module| source.is_in(module)) {
            return Vec::new();
        }
        source.mentions(&["Thread :: start"])
    }));
}

#[test]
fn nothing_that_runs_in_an_agent_starts_a_process() {
    // The agent raises its limit on open files, which a child would inherit. The demo starts its children before that.
    none(&offences(|source| {
        if source.path == "src/demo/local.rs" || source.is_in("cli") {
            Vec::new()
        } else {
            source.mentions(&["Command :: new"])
        }
    }));
}

#[test]
fn only_the_driver_module_is_unsafe() {
    none(&offences(|source| {
        // adjtimex(2) is in no safe crate.
        if source.is_in("nvml") || source.path.ends_with("host/clock_sync.rs") {
            Vec::new()
        } else {
            source.mentions(&["unsafe {", "unsafe impl", "unsafe fn"])
        }
    }));
}

#[test]
fn nothing_above_the_driver_module_sees_an_nvml_type() {
    none(&offences(|source| {
        if source.is_in("nvml") {
            Vec::new()
        } else {
            source.mentions(&["nvml_wrapper", "nvmlReturn_t", "nvmlDevice_t"])
        }
    }));
}

#[test]
fn driver_functions_are_called_through_the_table_and_never_as_methods() {
    // The methods of that name panic when the library has no such symbol.
    none(&offences(|source| {
        source
            .method_calls
            .iter()
            .filter(|(name, _)| name.starts_with("nvml") && name.len() > 4)
            .map(|(name, line)| format!("{}:{line}: .{name}()", source.path))
            .collect()
    }));
}

#[test]
fn attribution_account_and_ledger_use_no_floating_point() {
    none(&offences(|source| {
        if ["attribution", "account", "ledger"].iter().any(|module| source.is_in(module)) {
            source.mentions(&["f64", "f32"])
        } else {
            Vec::new()
        }
    }));
}

#[test]
fn no_module_has_an_empty_name() {
    const EMPTY: &[&str] = &["utils", "util", "common", "helpers", "helper", "types", "manager", "misc"];
    none(&offences(|source| {
        let stem = source.path.rsplit('/').next().unwrap().trim_end_matches(".rs");
        if EMPTY.contains(&stem) { vec![source.path.clone()] } else { Vec::new() }
    }));
}

#[test]
fn every_module_has_a_doc_comment() {
    none(&offences(|source| {
        if source.has_module_docs { Vec::new() } else { vec![format!("{}: opens without //!", source.path)] }
    }));
}

#[test]
fn functions_have_at_most_60_lines_and_6_parameters() {
    none(&offences(|source| {
        source
            .functions
            .iter()
            .filter(|function| function.lines > 60 || function.parameters > 6)
            .map(|function| {
                format!(
                    "{}: {} has {} lines and {} parameters",
                    source.path, function.name, function.lines, function.parameters
                )
            })
            .collect()
    }));
}

#[test]
fn the_catalogue_declares_each_metric_once() {
    let mut places: BTreeMap<String, Vec<&str>> =
        families().map(|family| (format!("{:?}", family.name), Vec::new())).collect();
    assert!(places.len() >= 155, "{} families", places.len());
    for source in SOURCES.iter().filter(|source| source.is_in("catalogue")) {
        for name in &source.names {
            if let Some(places) = places.get_mut(name) {
                places.push(&source.path);
            }
        }
    }
    places.retain(|_, places| places.len() != 1);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn the_architecture_page_prints_this_table() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md")).unwrap();
    let table = modules::table();
    assert!(page.contains(&table), "ARCHITECTURE.md must contain:\n{table}");
}
