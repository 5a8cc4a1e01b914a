//! How easy the code is to search: unique type names, few test binaries, a short ARCHITECTURE.md.
//!
//! `cargo test --test architecture size -- --nocapture` prints the figures.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::SOURCES;

/// Type names that may be defined twice, since they are usual in two modules that are never used together.
const MOST_REPEATED_TYPE_NAMES: usize = 12;

/// Type names that are defined more than once under `src/`, with their files; `Error` and `Config` are free.
fn repeated_type_names() -> BTreeMap<String, Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in SOURCES.iter() {
        for name in &source.type_names {
            places.entry(name.clone()).or_default().push(source.path.clone());
        }
    }
    places.retain(|name, files| files.len() > 1 && name != "Error" && name != "Config");
    places
}

fn test_binaries(directory: &str) -> usize {
    let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)).unwrap();
    let is_binary = |path: &Path| {
        path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists()
    };
    entries.filter(|entry| is_binary(&entry.as_ref().unwrap().path())).count()
}

fn words_of(document: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
    std::fs::read_to_string(path).unwrap().split_whitespace().count()
}

#[test]
fn size_of_the_code_stays_within_its_limits() {
    let lines: usize = SOURCES.iter().map(|source| source.lines).sum();
    let repeated = repeated_type_names();
    let binaries = test_binaries("tests");
    let simulator_binaries = test_binaries("simulator/tests");
    let words = words_of("ARCHITECTURE.md");
    println!("lines under src/: {lines}");
    println!("type names defined more than once: {}", repeated.len());
    println!("test binaries: {binaries}, of the simulator: {simulator_binaries}");
    println!("words of ARCHITECTURE.md: {words}");
    assert!(repeated.len() <= MOST_REPEATED_TYPE_NAMES, "{repeated:#?}");
    assert!(binaries <= 6, "{binaries}");
    assert!(simulator_binaries <= 3, "{simulator_binaries}");
    assert!(words <= 1_500, "{words}");
}
