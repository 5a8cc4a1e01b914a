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
use std::path::Path;

use gpumeter::model::catalogue::families;
use modules::FOLDERS;
use source::{SOURCES, Source};

fn offences(of: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    SOURCES.iter().flat_map(of).collect()
}

fn none(offences: &[String]) {
    assert!(offences.is_empty(), "\n{}", offences.join("\n"));
}

#[test]
fn every_folder_and_its_modules_are_in_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let entries = std::fs::read_dir(&src).unwrap().map(|entry| entry.unwrap().path());
    let found: BTreeSet<_> = entries
        .filter(|path| path.is_dir())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, FOLDERS.iter().map(|folder| folder.name.to_owned()).collect());
    for folder in FOLDERS {
        let text = std::fs::read_to_string(src.join(folder.name).join("mod.rs")).unwrap();
        for module in folder.modules {
            assert!(text.contains(&format!("pub mod {module};")), "{} has no module {module}", folder.name);
            assert!(
                text.contains(&format!("//! - [`{module}`]")),
                "src/{}/mod.rs must say what {module} is for",
                folder.name
            );
        }
    }
}

#[test]
fn a_folder_imports_only_what_the_table_allows_and_only_from_above() {
    none(&offences(|source| {
        let Some(folder) = source.folder() else { return Vec::new() };
        let above = FOLDERS.iter().map(|folder| folder.name).take_while(|name| *name != folder.name);
        let above: Vec<&str> = above.collect();
        let may_import = |other: &str| {
            above.contains(&other) && (folder.may_import == ["*"] || folder.may_import.contains(&other))
        };
        let others = source.imports.iter().filter(|(path, _)| path[0] != folder.name && is_folder(&path[0]));
        others
            .filter(|(path, _)| !may_import(&path[0]))
            .map(|(path, line)| {
                format!("{}:{line}: {} may not import {}", source.path, folder.name, path.join("::"))
            })
            .collect()
    }));
}

fn is_folder(name: &str) -> bool {
    FOLDERS.iter().any(|folder| folder.name == name)
}

#[test]
fn every_allowed_import_is_used() {
    let is_used = |folder: &str, other: &str| {
        let own = SOURCES.iter().filter(|source| source.is_in(folder));
        own.flat_map(|source| &source.imports).any(|(path, _)| path[0] == other)
    };
    let unused = FOLDERS.iter().flat_map(|folder| {
        let others = folder.may_import.iter().filter(|other| **other != "*" && !is_used(folder.name, other));
        others.map(|other| format!("{} does not import {other}: remove it from the table", folder.name))
    });
    none(&unused.collect::<Vec<_>>());
}

/// The modules that each module imports.
fn imports_by_module() -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in SOURCES.iter() {
        let Some(module) = source.module() else { continue };
        let imported = source.imports.iter().filter_map(|(path, _)| {
            let folder = FOLDERS.iter().find(|folder| folder.name == path[0])?;
            let inner = path.get(1).filter(|name| folder.modules.contains(&name.as_str()));
            Some(inner.map_or_else(|| path[0].clone(), |name| format!("{}/{name}", path[0])))
        });
        let imported: Vec<String> = imported.filter(|other| *other != module).collect();
        graph.entry(module).or_default().extend(imported);
    }
    graph
}

#[test]
fn no_module_reaches_itself() {
    let graph = imports_by_module();
    let reached_from = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            for other in graph.get(module).into_iter().flatten() {
                if seen.insert(other) {
                    next.push(other);
                }
            }
        }
        seen
    };
    let knots = graph.keys().filter(|module| reached_from(module).contains(module));
    none(&knots.map(|module| format!("{module} imports itself by way of others")).collect::<Vec<_>>());
}

#[test]
fn the_runtime_knows_of_the_model_only_time_and_how_to_print_text() {
    const TIME: &[&str] = &["Nanoseconds", "Utc", "Stamp", "printable"];
    none(&offences(|source| {
        if !source.is_in("runtime") {
            return Vec::new();
        }
        let model = source.imports.iter().filter(|(path, _)| path[0] == "model");
        model
            .filter(|(path, _)| !path.get(1).is_some_and(|name| TIME.contains(&name.as_str())))
            .map(|(path, line)| format!("{}:{line}: {}", source.path, path.join("::")))
            .collect()
    }));
}

#[test]
fn only_the_clock_reads_clocks() {
    none(&offences(|source| {
        if source.is_in("runtime/clock") {
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
        if source.is_in("runtime/thread") {
            return Vec::new();
        }
        source.mentions(&["thread :: spawn", "thread :: Builder", "spawn_blocking"])
    }));
}

#[test]
fn only_app_and_the_modules_with_threads_of_their_own_start_named_threads() {
    // Each of these starts threads by need (a sampler per GPU, a resolver per source), or beside the agent, as `top` does,
    // whose keys wait for no agent.
    const MODULES_WITH_THREADS: &[&str] = &["agent", "runtime/log", "runtime/thread", "cli"];
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
        if source.path == "src/cli/demo/local.rs" || source.is_in("cli") {
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
        if source.is_in("driver/nvml") || source.path.ends_with("holders/host/clock_sync.rs") {
            Vec::new()
        } else {
            source.mentions(&["unsafe {", "unsafe impl", "unsafe fn"])
        }
    }));
}

#[test]
fn nothing_above_the_driver_module_sees_an_nvml_type() {
    none(&offences(|source| {
        if source.is_in("driver/nvml") {
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
        if ["meter/attribution", "accounting/batches", "accounting/ledger"]
            .iter()
            .any(|module| source.is_in(module))
        {
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
    for source in SOURCES.iter().filter(|source| source.is_in("model/catalogue")) {
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
