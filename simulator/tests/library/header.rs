//! The functions of the header, from the source of its bindings.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// The kind of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Device,
    Handle,
    Pointer,
    Number,
}

fn source() -> String {
    // Only for this target: the packages of other targets may be missing.
    let asked = ["metadata", "--format-version", "1", "--offline", "--filter-platform", env!("TARGET")];
    let cargo = Command::new(env!("CARGO")).args(asked).output();
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.unwrap().stdout).unwrap();
    let packages = metadata.get("packages").and_then(|packages| packages.as_array()).unwrap();
    let bindings = packages.iter().find(|package| package["name"] == "nvml-wrapper-sys").unwrap();
    let manifest = PathBuf::from(bindings["manifest_path"].as_str().unwrap());
    std::fs::read_to_string(manifest.parent().unwrap().join("src/bindings.rs")).unwrap()
}

/// The names that nvml-wrapper-sys looks up: the header's functions, the older ones included.
pub(crate) fn names() -> BTreeSet<String> {
    let source = source();
    let calls = source.split(".get(b\"").skip(1).filter_map(|rest| rest.split_once("\\0"));
    calls.map(|(name, _)| name.to_owned()).collect()
}

/// Functions with their arguments.
pub(crate) fn functions() -> Vec<(String, Vec<Argument>)> {
    let source = source();
    let mut found = Vec::new();
    for rest in source.split("pub unsafe fn ").skip(1) {
        let Some((name, rest)) = rest.split_once('(').filter(|(name, _)| name.starts_with("nvml")) else {
            continue;
        };
        let list = rest.split_once(')').unwrap().0;
        let types = list.split(',').filter_map(|one| one.split_once(':')).map(|(_, kind)| kind.trim());
        found.push((name.to_owned(), types.map(argument).collect()));
    }
    found
}

fn argument(kind: &str) -> Argument {
    match kind {
        "nvmlDevice_t" => Argument::Device,
        "nvmlGpuInstance_t"
        | "nvmlComputeInstance_t"
        | "nvmlEventSet_t"
        | "nvmlSystemEventSet_t"
        | "nvmlGpmSample_t"
        | "nvmlUnit_t" => Argument::Handle,
        kind if kind.starts_with('*') => Argument::Pointer,
        _ => Argument::Number,
    }
}
